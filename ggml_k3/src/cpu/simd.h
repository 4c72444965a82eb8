// simd.h - a vector of floats in the widest form of the instruction set that the including file is compiled for, and
// the few functions that kernels need beside + - * / on vectors. GCC and Clang.
#ifndef K3_SIMD_H
#define K3_SIMD_H

#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__)
#include <immintrin.h>
enum { LANES = 16 };
typedef __m512 vf;
typedef int32_t vi __attribute__((vector_size(64)));
#elif defined(__AVX2__)
#include <immintrin.h>
enum { LANES = 8 };
typedef __m256 vf;
typedef int32_t vi __attribute__((vector_size(32)));
#else
enum { LANES = 4 };
typedef float vf __attribute__((vector_size(16)));
typedef int32_t vi __attribute__((vector_size(16)));
#endif

#define K3_INLINE static inline __attribute__((always_inline, unused))

K3_INLINE vf v_load(const float * p) {
    vf v;
    memcpy(&v, p, sizeof(v));
    return v;
}

K3_INLINE void v_store(float * p, vf v) { memcpy(p, &v, sizeof(v)); }

K3_INLINE vf v_set(float x) { return x - (vf) {0}; }

// a * b + c, rounded once where the instruction set can
K3_INLINE vf v_fma(vf a, vf b, vf c) {
#if defined(__AVX512F__)
    return _mm512_fmadd_ps(a, b, c);
#elif defined(__AVX2__)
    return _mm256_fmadd_ps(a, b, c);
#elif defined(__aarch64__)
    return __builtin_aarch64_fmav4sf(a, b, c);
#else
    return a * b + c;
#endif
}

K3_INLINE vf v_select(vi mask, vf yes, vf no) { return (vf) (((vi) yes & mask) | ((vi) no & ~mask)); }
K3_INLINE vf v_max(vf a, vf b) { return v_select((vi) (a > b), a, b); }  // b where a is NaN
K3_INLINE vf v_min(vf a, vf b) { return v_select((vi) (a < b), a, b); }  // b where a is NaN

// Sum of the lanes, in a fixed order: halves are added until one is left.
K3_INLINE float v_sum(vf v) {
    float lane[LANES];
    v_store(lane, v);
    for (int n = LANES / 2; n > 0; n /= 2) {
        for (int i = 0; i < n; i++) {
            lane[i] += lane[i + n];
        }
    }
    return lane[0];
}

// Polynomial of exp(r), |r| <= ln(2) / 2, for v_exp
K3_INLINE vf v_exp_polynomial(vf r) {
    vf p = v_set(1.0f / 720);
    p    = v_fma(p, r, v_set(1.0f / 120));
    p    = v_fma(p, r, v_set(1.0f / 24));
    p    = v_fma(p, r, v_set(1.0f / 6));
    p    = v_fma(p, r, v_set(0.5f));
    p    = v_fma(p, r, v_set(1.0f));
    return v_fma(p, r, v_set(1.0f));
}

// exp(x): relative error below 3e-7; 0 from -86.6 (AVX-512: -104) on, inf from 88.8 on, NaN for NaN.
K3_INLINE vf v_exp(vf x) {
    const vf log2_e = v_set(1.44269504f), ln2_high = v_set(-0.693145752f), ln2_low = v_set(-1.42860677e-6f);
#if defined(__AVX512F__)
    // max and min return their second operand where one is NaN
    const vf y = _mm512_min_ps(v_set(89.0f), _mm512_max_ps(v_set(-104.0f), x));
    const vf n = _mm512_roundscale_ps(y * log2_e, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    return _mm512_scalef_ps(v_exp_polynomial(v_fma(n, ln2_low, v_fma(n, ln2_high, y))), n);
#else
    const vf magic = v_set(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer in the low bits
    const vf low = v_set(-86.6f), high = v_set(88.7f);
    const vf y    = v_min(v_max(x, low), high);
    const vf t    = v_fma(y, log2_e, magic);
    const vf n    = t - magic;
    const vf p    = v_exp_polynomial(v_fma(n, ln2_low, v_fma(n, ln2_high, y)));
    // n reaches 128 where 2^n is no float: 2^(n-1) * 2
    const vi half = ((vi) t - (vi) magic - 1 + 127) << 23;
    vf result     = p * (vf) half * v_set(2.0f);
    result        = v_select((vi) (x < low), v_set(0.0f), result);
    result        = v_select((vi) (x > high), v_set(__builtin_inff()), result);
    return v_select((vi) (x != x), x, result);
#endif
}

K3_INLINE vf v_sigmoid(vf x) { return v_set(1.0f) / (v_set(1.0f) + v_exp(-x)); }

#endif
