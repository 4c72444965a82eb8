// matmul_stream_avx512.c - the stream form of y = W x: the choice by type, and weights that are numbers of their own.
//
// 64 bytes of sixteen rows are transposed as 16 x 16 dwords, so that lanes are rows, and then multiplied one after the
// other with the activations, each the same for all lanes.
#include "matmul_stream_avx512.h"

enum {
    STEP    = 64,    // bytes of a row that are transposed together
    COLUMNS = 32,    // that they make: 16 of float or of bf16 pairs, 32 of fp16 made float
    AHEAD   = 1024,  // bytes of each row between the prefetch and the use
};

// Sixteen rows of the matrix. Row 4 i + j lies at quarter[i] + j * stride: few enough pointers for the registers.
struct group {
    const uint8_t * quarter[4];
    size_t stride, stride3;
};

// For a row that does not exist, row 0.
K3_INLINE const uint8_t * row_at(const struct group * group, int rows, int r) {
    const size_t offset[4] = {0, group->stride, 2 * group->stride, group->stride3};
    return r < rows ? group->quarter[r / 4] + offset[r % 4] : group->quarter[0];
}

// The first `bytes` of 64 bytes of each row, the others 0, as columns.
K3_INLINE void load_columns(enum ggml_type type, const struct group * group, int rows, size_t at, int bytes,
                            __m512i column[COLUMNS]) {
    __m512i row[16], pair[16];
#pragma GCC unroll 16
    for (int r = 0; r < 16; r++) {
        const uint8_t * p = row_at(group, rows, r) + at;
        row[r] = bytes < STEP ? _mm512_maskz_loadu_epi8(((__mmask64) 1 << bytes) - 1, p) : _mm512_loadu_si512(p);
    }
    if (type != GGML_TYPE_F16) {
        k3_transpose_16x16(row, column);
        return;
    }
    k3_transpose_16x16(row, pair);
#pragma GCC unroll 16
    for (int c = 0; c < 16; c++) {
        const __m512 even = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(pair[c]));
        const __m512 odd  = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(pair[c], 16)));
        column[2 * c]     = _mm512_castps_si512(even);
        column[2 * c + 1] = _mm512_castps_si512(odd);
    }
}

// y + the columns of `bytes` of each row times their activations
K3_INLINE __m512 add_columns(enum ggml_type type, const __m512i column[COLUMNS], int bytes, const uint8_t * x,
                             __m512 y) {
    const int width = type == GGML_TYPE_F16 ? 2 : 4;  // bytes of a column in a row
    __asm__("" : "+r"(x));                            // one pointer: GCC 12 else keeps the sixteen addresses
#pragma GCC unroll 32
    for (int c = 0; c < STEP / width; c++) {
        if (width * c < bytes) {
            const __m512i all = _mm512_set1_epi32(*(const int32_t *) (const void *) (x + 4 * c));
            y                 = type == GGML_TYPE_BF16 ? _mm512_dpbf16_ps(y, (__m512bh) column[c], (__m512bh) all)
                                                       : _mm512_fmadd_ps((__m512) column[c], (__m512) all, y);
        }
    }
    return y;
}

// 64 bytes of each row, times all tokens. `one` token's result stays in a register.
K3_INLINE void add_step(enum ggml_type type, const struct k3_matmul_args * args, const struct group * group, int rows,
                        size_t at, int bytes, int one, __m512 * y) {
    __m512i column[COLUMNS];
    load_columns(type, group, rows, at, bytes, column);
    const size_t act = type == GGML_TYPE_F16 ? 2 * at : at;
    for (int64_t t = 0; t < (one ? 1 : args->n_tokens); t++) {
        y[t] = add_columns(type, column, bytes, (const uint8_t *) args->acts[t] + act, y[t]);
    }
}

// 64 bytes of each row are read into the level 2 cache: AHEAD of those in use, or at the start of the next rows.
K3_INLINE void prefetch_step(const struct group * group, const uint8_t * next, size_t at, size_t bytes) {
    const uint8_t * p = at + AHEAD < bytes ? group->quarter[0] + at + AHEAD : next + (at + AHEAD - bytes);
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++, p += 4 * group->stride) {
        _mm_prefetch((const char *) p, _MM_HINT_T1);
        _mm_prefetch((const char *) p + group->stride, _MM_HINT_T1);
        _mm_prefetch((const char *) p + 2 * group->stride, _MM_HINT_T1);
        _mm_prefetch((const char *) p + group->stride3, _MM_HINT_T1);
    }
}

// Up to sixteen rows from `first`; next: the rows that come then.
K3_INLINE void sixteen_rows(enum ggml_type type, const struct k3_matmul_args * args, const struct group * group,
                            int rows, int64_t first, const uint8_t * next, int one) {
    const size_t bytes = (size_t) args->k * (type == GGML_TYPE_F32 ? 4 : 2);
    __m512 y[K3_STREAM_TOKENS];
    for (int64_t t = 0; t < (one ? 1 : args->n_tokens); t++) {
        y[t] = _mm512_setzero_ps();
    }
    size_t at = 0;
    for (; at + STEP <= bytes; at += STEP) {
        prefetch_step(group, next, at, bytes);
        add_step(type, args, group, rows, at, STEP, one, y);
    }
    if (at < bytes) add_step(type, args, group, rows, at, (int) (bytes - at), one, y);
    for (int64_t t = 0; t < (one ? 1 : args->n_tokens); t++) {
        _mm512_mask_storeu_ps(args->y[t] + first, (__mmask16) ((1 << rows) - 1), y[t]);
    }
}

K3_INLINE void stream(enum ggml_type type, const struct k3_matmul_args * args, int one) {
    const size_t stride = args->row_bytes;
    const uint8_t * w   = (const uint8_t *) args->w + (size_t) args->first * stride;
    for (int64_t row = args->first; row < args->last; row += K3_STREAM_ROWS, w += K3_STREAM_ROWS * stride) {
        const int64_t left       = args->last - row;
        const uint8_t * next     = left > K3_STREAM_ROWS ? w + K3_STREAM_ROWS * stride : w;
        const struct group group = {{w, w + 4 * stride, w + 8 * stride, w + 12 * stride}, stride, 3 * stride};
        if (left >= K3_STREAM_ROWS) {
            sixteen_rows(type, args, &group, K3_STREAM_ROWS, row, next, one);
        } else {
            sixteen_rows(type, args, &group, (int) left, row, next, one);
        }
    }
}

K3_INLINE void stream_any(enum ggml_type type, const struct k3_matmul_args * args) {
    if (args->n_tokens == 1) {
        stream(type, args, 1);
    } else {
        stream(type, args, 0);
    }
}

size_t k3_matmul_stream_scratch_avx512(enum ggml_type type, int64_t k, int64_t n_tokens) {
    return type == GGML_TYPE_MXFP4 || type == GGML_TYPE_Q8_0 ? k3_matmul_stream_q_scratch_avx512(k, n_tokens) : 0;
}

void k3_matmul_stream_avx512(const struct k3_matmul_args * args) {
    switch (args->type) {
        case GGML_TYPE_MXFP4: k3_matmul_stream_mxfp4_avx512(args); break;
        case GGML_TYPE_Q8_0: k3_matmul_stream_q8_0_avx512(args); break;
        case GGML_TYPE_BF16: stream_any(GGML_TYPE_BF16, args); break;
        case GGML_TYPE_F16: stream_any(GGML_TYPE_F16, args); break;
        default: stream_any(GGML_TYPE_F32, args); break;
    }
}
