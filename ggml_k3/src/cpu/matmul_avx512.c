// matmul_avx512.c - the table of matmul kernels for AVX-512 and what its two forms share: the packing of activations.
#include "matmul_avx512.h"

#include <immintrin.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

enum { BLOCK = 32, GROUP = 16 };  // values of one scale; blocks packed together

static enum k3_act_kind act_kind(enum ggml_type type) {
    switch (type) {
        case GGML_TYPE_MXFP4: return K3_ACT_Q8_SPLIT;
        case GGML_TYPE_Q8_0: return K3_ACT_Q8;
        case GGML_TYPE_BF16: return K3_ACT_BF16;
        default: return K3_ACT_F32;
    }
}

static void pack_f32(const float * x, int64_t k, float * act) {
    memcpy(act, x, (size_t) k * sizeof(float));
    memset(act + k, 0, k3_act_size(K3_ACT_F32, k) - (size_t) k * sizeof(float));
}

static void pack_bf16(const float * x, int64_t k, uint16_t * act) {
    const int64_t padded = (int64_t) (k3_act_size(K3_ACT_BF16, k) / sizeof(*act));  // a multiple of 32
    for (int64_t i = 0; i < padded; i += 16) {
        const int64_t left   = k - i;
        const __mmask16 have = left >= 16 ? 0xffff : left > 0 ? (__mmask16) ((1 << left) - 1) : 0;
        const __m256bh y     = _mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(have, x + i));
        memcpy(act + i, &y, sizeof(y));
    }
}

// lane b = the largest lane of v[b] as unsigned integers
INLINE __m512i max_of_each(__m512i v[GROUP]) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        const __m512i * r = v + 4 * i;
        const __m512i a   = _mm512_max_epu32(_mm512_unpacklo_epi32(r[0], r[1]), _mm512_unpackhi_epi32(r[0], r[1]));
        const __m512i b   = _mm512_max_epu32(_mm512_unpacklo_epi32(r[2], r[3]), _mm512_unpackhi_epi32(r[2], r[3]));
        v[i]              = _mm512_max_epu32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
    }
    const __m512i a = _mm512_max_epu32(_mm512_shuffle_i32x4(v[0], v[1], 0x88), _mm512_shuffle_i32x4(v[0], v[1], 0xdd));
    const __m512i b = _mm512_max_epu32(_mm512_shuffle_i32x4(v[2], v[3], 0x88), _mm512_shuffle_i32x4(v[2], v[3], 0xdd));
    return _mm512_max_epu32(_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xdd));
}

// lane i of the result = sum of dwords 4 i to 4 i + 3 of the sixteen
INLINE __m128i sum_of_quarters(__m512i v) {
    v = _mm512_add_epi32(v, _mm512_shuffle_epi32(v, 0xb1));
    v = _mm512_add_epi32(v, _mm512_shuffle_epi32(v, 0x4e));
    return _mm512_castsi512_si128(
        _mm512_permutexvar_epi32(_mm512_set_epi32(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 12, 8, 4, 0), v));
}

// Up to 16 blocks, those behind k as zeros: their scales, and the bits of `good` for the blocks that have one, not 0.
INLINE __m512 group_scales(const float * x, int64_t blocks, __mmask16 * good) {
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    __m512i largest[GROUP];
#pragma GCC unroll 16
    for (int b = 0; b < GROUP; b++) {
        largest[b] = _mm512_setzero_si512();
        if (b < blocks) {
            const __m512i lo = _mm512_and_si512(_mm512_loadu_si512(x + BLOCK * b), magnitude);
            const __m512i hi = _mm512_and_si512(_mm512_loadu_si512(x + BLOCK * b + 16), magnitude);
            largest[b]       = _mm512_max_epu32(lo, hi);
        }
    }
    const __m512i max      = max_of_each(largest);
    const __mmask16 finite = _mm512_cmplt_epu32_mask(max, _mm512_set1_epi32(0x7f800000));
    const __m512 d         = _mm512_div_ps(_mm512_castsi512_ps(max), _mm512_set1_ps(127.0f));
    *good                  = _mm512_mask_cmp_ps_mask(finite, d, _mm512_setzero_ps(), _CMP_GT_OQ);
    return _mm512_mask_mov_ps(_mm512_set1_ps(__builtin_nanf("")), finite, d);
}

// 16 values as bytes; zeros where the block has no scale.
INLINE void pack_16(const float * x, __m512 d, __mmask16 good, int8_t * q) {
    const __m512i i = _mm512_maskz_cvtps_epi32(good, _mm512_div_ps(_mm512_loadu_ps(x), d));
    _mm_store_si128((void *) q, _mm512_cvtsepi32_epi8(i));
}

// Four blocks as 128 bytes of q and their sums.
INLINE void pack_four(enum k3_act_kind kind, const float * x, int64_t blocks, const float * d, unsigned good,
                      int8_t * q, int32_t * sum) {
#pragma GCC unroll 4
    for (int b = 0; b < 4; b++) {
        int8_t *lo = q + (kind == K3_ACT_Q8 ? 32 * b : 16 * b), *hi = lo + (kind == K3_ACT_Q8 ? 16 : 64);
        if (b < blocks) {
            const __mmask16 mask = (__mmask16) - (int) (good >> b & 1);
            const __m512 scale   = _mm512_set1_ps(d[b]);
            pack_16(x + BLOCK * b, scale, mask, lo);
            pack_16(x + BLOCK * b + 16, scale, mask, hi);
        } else {
            _mm_store_si128((void *) lo, _mm_setzero_si128());
            _mm_store_si128((void *) hi, _mm_setzero_si128());
        }
    }
    const __m512i ones = _mm512_set1_epi8(1), zero = _mm512_setzero_si512();
    const __m512i first = _mm512_load_si512(q), second = _mm512_load_si512(q + 64);
    if (kind == K3_ACT_Q8) {  // a block is two quarters
        const __m512i a = _mm512_dpbusd_epi32(zero, ones, first), b = _mm512_dpbusd_epi32(zero, ones, second);
        const __m512i s = _mm512_add_epi32(_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xdd));
        _mm_store_si128((void *) sum, sum_of_quarters(s));
    } else {
        const __m512i s = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(zero, ones, first), ones, second);
        _mm_store_si128((void *) sum, sum_of_quarters(s));
    }
}

INLINE void pack_group(enum k3_act_kind kind, const float * x, int64_t blocks, int8_t * q, float * d, int32_t * sum) {
    __mmask16 good;
    const __m512 scales = group_scales(x, blocks, &good);
    _mm512_store_ps(d, scales);
    _mm512_store_si512(sum, _mm512_setzero_si512());
#pragma GCC unroll 4
    for (int b = 0; b < GROUP; b += 4) {
        if (b < blocks) {
            pack_four(kind, x + BLOCK * b, blocks - b, d + b, (unsigned) good >> b, q + BLOCK * b, sum + b);
        }
    }
}

INLINE void pack_q8(enum k3_act_kind kind, const float * x, int64_t k, int8_t * q) {
    const size_t padded = (size_t) (k + 127) / 128 * 128;
    const int64_t n     = k / BLOCK;
    float * d           = (float *) (void *) (q + padded);
    int32_t * sum       = (int32_t *) (void *) (d + (n + GROUP - 1) / GROUP * GROUP);
    int64_t b           = 0;
    for (; b + GROUP <= n; b += GROUP) {
        pack_group(kind, x + BLOCK * b, GROUP, q + BLOCK * b, d + b, sum + b);
    }
    if (b < n) pack_group(kind, x + BLOCK * b, n - b, q + BLOCK * b, d + b, sum + b);
}

static void pack(enum k3_act_kind kind, const float * x, int64_t k, void * act) {
    switch (kind) {
        case K3_ACT_F32: pack_f32(x, k, act); break;
        case K3_ACT_BF16: pack_bf16(x, k, act); break;
        case K3_ACT_Q8: pack_q8(K3_ACT_Q8, x, k, act); break;
        case K3_ACT_Q8_SPLIT: pack_q8(K3_ACT_Q8_SPLIT, x, k, act); break;
    }
}

static size_t scratch(enum ggml_type type, int64_t k, int64_t n_tokens) {
    return n_tokens <= K3_STREAM_TOKENS ? k3_matmul_stream_scratch_avx512(type, k, n_tokens)
                                        : k3_matmul_tile_scratch_avx512(type, k, n_tokens);
}

static void run(const struct k3_matmul_args * args) {
    if (args->n_tokens <= K3_STREAM_TOKENS) {
        k3_matmul_stream_avx512(args);
    } else {
        k3_matmul_tile_avx512(args);
    }
}

const struct k3_matmul_kernels k3_matmul_avx512 = {act_kind, pack, scratch, run};
