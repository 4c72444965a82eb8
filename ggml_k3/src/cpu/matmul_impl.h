// matmul_impl.h - what the generic, AVX2 and NEON kernels of matmul.h share: the weight formats and the packing of
// activations. Included by one file of each variant, compiled with that variant's flags.
#ifndef K3_MATMUL_IMPL_H
#define K3_MATMUL_IMPL_H

#include "matmul.h"
#include "simd.h"

#include <stdbool.h>

enum {
    K3_BLOCK       = 32,  // weights under one scale
    K3_MXFP4_BYTES = 17,  // E8M0 scale, 16 bytes: value i in the low half of byte i, value i + 16 in the high half
    K3_Q8_0_BYTES  = 34,  // fp16 scale, 32 int8
};

static const int8_t k3_mxfp4_doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

K3_INLINE float k3_bits_to_float(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

K3_INLINE uint32_t k3_float_to_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

// Half of the E8M0 scale 2^(e - 127), for values that are doubled. e = 0 and 1 give subnormal floats, 255 is NaN.
K3_INLINE float k3_mxfp4_scale(uint8_t e) {
    const uint32_t bits = e > 1 ? (uint32_t) (e - 1) << 23 : (uint32_t) 0x200000 << e;
    return k3_bits_to_float(e == 255 ? 0x7fc00000u : bits);
}

K3_INLINE float k3_bf16_to_float(const uint8_t * p) {
    uint16_t h;
    memcpy(&h, p, sizeof(h));
    return k3_bits_to_float((uint32_t) h << 16);
}

K3_INLINE float k3_f16_to_float(const uint8_t * p) {
    uint16_t h;
    memcpy(&h, p, sizeof(h));
    const uint32_t sign = (uint32_t) (h & 0x8000) << 16, magnitude = h & 0x7fff;
    if (magnitude < 0x400) {  // zero and subnormal: so many times 2^-24
        const float x = (float) magnitude * 0x1p-24f;
        return sign ? -x : x;
    }
    // The exponent's bias goes from 15 to 127; that of inf and NaN stays all ones.
    const uint32_t bias = magnitude >= 0x7c00 ? (255 - 31) << 23 : (127 - 15) << 23;
    return k3_bits_to_float(sign | ((magnitude << 13) + bias));
}

// v[i] lane r <- v[r] lane i
#if defined(__AVX2__)
K3_INLINE void k3_transpose(vf v[LANES]) {
    __m256 a[8], b[8];
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += 2) {
        a[i]     = _mm256_unpacklo_ps(v[i], v[i + 1]);
        a[i + 1] = _mm256_unpackhi_ps(v[i], v[i + 1]);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 8; i += 4) {
        b[i]     = _mm256_shuffle_ps(a[i], a[i + 2], 0x44);
        b[i + 1] = _mm256_shuffle_ps(a[i], a[i + 2], 0xee);
        b[i + 2] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0x44);
        b[i + 3] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0xee);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        v[i]     = _mm256_permute2f128_ps(b[i], b[i + 4], 0x20);
        v[i + 4] = _mm256_permute2f128_ps(b[i], b[i + 4], 0x31);
    }
}
#else
K3_INLINE void k3_transpose(vf v[LANES]) {
    vf a[4];
    for (int i = 0; i < 4; i += 2) {
        a[i]     = __builtin_shufflevector(v[i], v[i + 1], 0, 4, 1, 5);
        a[i + 1] = __builtin_shufflevector(v[i], v[i + 1], 2, 6, 3, 7);
    }
    for (int i = 0; i < 2; i++) {
        v[2 * i]     = __builtin_shufflevector(a[i], a[i + 2], 0, 1, 4, 5);
        v[2 * i + 1] = __builtin_shufflevector(a[i], a[i + 2], 2, 3, 6, 7);
    }
}
#endif

// Parts of an act row of 8 bits: see enum k3_act_kind.
struct k3_q8 {
    int8_t * q;
    float * d;
    int32_t * sum;
};

K3_INLINE int64_t k3_q8_columns(int64_t k) { return (k + 127) / 128 * 128; }
K3_INLINE int64_t k3_q8_blocks(int64_t k) { return (k3_q8_columns(k) / K3_BLOCK + 15) / 16 * 16; }

K3_INLINE struct k3_q8 k3_q8_parts(const void * act, int64_t k) {
    int8_t * q = (int8_t *) act;
    float * d  = (float *) (q + k3_q8_columns(k));
    return (struct k3_q8) {q, d, (int32_t *) (d + k3_q8_blocks(k))};
}

// One block of 32. Adding 1.5 * 2^23 rounds to an integer, ties to even, in the low bits of the sum. Only where d is
// subnormal, thus inexact, can a quotient leave [-127, 127].
static inline void k3_q8_pack_block(const float * x, int8_t * q, float * d, int32_t * sum) {
    int32_t max = 0;
    for (int i = 0; i < K3_BLOCK; i++) {
        const int32_t magnitude = (int32_t) (k3_float_to_bits(x[i]) & 0x7fffffff);
        max                     = magnitude > max ? magnitude : max;
    }
    if (max >= 0x7f800000) {
        memset(q, 0, K3_BLOCK);
        *d   = k3_bits_to_float(0x7fc00000);
        *sum = 0;
        return;
    }
    const float magic = 12582912.0f, scale = k3_bits_to_float((uint32_t) max) / 127, divisor = scale > 0 ? scale : 1;
    int32_t value[K3_BLOCK], total = 0;
    for (int i = 0; i < K3_BLOCK; i++) {
        const int32_t n       = (int32_t) (k3_float_to_bits(x[i] / divisor + magic) - k3_float_to_bits(magic));
        const int32_t limited = n > 127 ? 127 : n;
        value[i]              = limited < -127 ? -127 : limited;
        total += value[i];
    }
    for (int i = 0; i < K3_BLOCK; i++) {
        q[i] = (int8_t) value[i];
    }
    *d   = scale > 0 ? scale : 0;
    *sum = scale > 0 ? total : 0;
}

static inline void k3_q8_pack(const float * x, int64_t k, void * act) {
    const struct k3_q8 a = k3_q8_parts(act, k);
    const int64_t blocks = k / K3_BLOCK;
    for (int64_t b = 0; b < blocks; b++) {
        k3_q8_pack_block(x + b * K3_BLOCK, a.q + b * K3_BLOCK, &a.d[b], &a.sum[b]);
    }
    memset(a.q + k, 0, (size_t) (k3_q8_columns(k) - k));
    for (int64_t b = blocks; b < k3_q8_blocks(k); b++) {
        a.d[b]   = 0;
        a.sum[b] = 0;
    }
}

// Activations of these variants: 8 bits for the block types, floats for the others.
static inline enum k3_act_kind k3_matmul_kind(enum ggml_type type) {
    return type == GGML_TYPE_Q8_0 || type == GGML_TYPE_MXFP4 ? K3_ACT_Q8 : K3_ACT_F32;
}

static inline void k3_matmul_pack(enum k3_act_kind kind, const float * x, int64_t k, void * act) {
    if (kind == K3_ACT_Q8) {
        k3_q8_pack(x, k, act);
    } else {
        memcpy(act, x, (size_t) k * sizeof(float));
        memset((float *) act + k, 0, k3_act_size(K3_ACT_F32, k) - (size_t) k * sizeof(float));
    }
}

#endif
