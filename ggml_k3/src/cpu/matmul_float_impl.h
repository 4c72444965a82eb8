// matmul_float_impl.h - y = W x for F32, F16 and BF16 and any number of tokens, for instruction sets whose vector has
// LANES = 4 or 8 floats.
//
//   rows, GROUP at a time: lanes are rows
//     columns, PIECE bytes of each row at a time: the weights are transposed into scratch as they are, in words of
//                                                 32 bits: one float or two values of 16 bits
//       tokens, two at a time: a tile of registers; the sums lie in scratch
#ifndef K3_MATMUL_FLOAT_IMPL_H
#define K3_MATMUL_FLOAT_IMPL_H

#include "matmul_impl.h"

// VECTORS: as many sums run side by side for each token, which hides the latency of an fma.
enum { VECTORS = 4, GROUP = VECTORS * LANES, LINE = 64, PIECE = 4 * LINE, WORDS = PIECE / 4 };

// The two values of each word
K3_INLINE void split(enum ggml_type type, vi words, vf * even, vf * odd) {
    if (type == GGML_TYPE_BF16) {
        *even = (vf) (words << 16);
        *odd  = (vf) (words & (int32_t) 0xffff0000);
        return;
    }
#if defined(__AVX2__)
    // 16-bit numbers of a 128-bit half: even ones, then odd ones; then the even ones of both halves
    const __m256i order = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
    const __m256i sorted = _mm256_permute4x64_epi64(_mm256_shuffle_epi8((__m256i) words, order), 0xd8);
    *even                = _mm256_cvtph_ps(_mm256_castsi256_si128(sorted));
    *odd                 = _mm256_cvtph_ps(_mm256_extracti128_si256(sorted, 1));
#elif defined(__aarch64__)
    *even = (vf) vcvt_f32_f16((float16x4_t) vmovn_u32((uint32x4_t) words));
    *odd  = (vf) vcvt_f32_f16((float16x4_t) vshrn_n_u32((uint32x4_t) words, 16));
#endif
}

K3_INLINE int64_t value_bytes(enum ggml_type type) { return type == GGML_TYPE_F32 ? 4 : 2; }

// words[i] lane r <- word i of rows[r] at `offset`, for `bytes` bytes of GROUP rows
K3_INLINE void load_words(const uint8_t * const rows[GROUP], size_t offset, size_t bytes, const uint8_t * ahead,
                          const uint8_t * end, vf words[WORDS][VECTORS]) {
    enum { STEP = LANES * 4 };
    for (size_t at = 0; at < bytes; at += STEP) {
        const size_t n = bytes - at < STEP ? bytes - at : STEP;
        for (int v = 0; v < VECTORS; v++) {
            vf w[LANES];
            if (ahead < end) {  // as much as is taken here
                for (size_t line = 0; line < LANES * STEP; line += LINE) {
                    __builtin_prefetch(ahead + line, 0, 2);
                }
                ahead += LANES * STEP;
            }
#pragma GCC unroll 8
            for (int r = 0; r < LANES; r++) {
                const uint8_t * p = rows[v * LANES + r] + offset + at;
                if (n == STEP) {
                    memcpy(&w[r], p, STEP);
                } else {  // no load may reach behind the row
                    w[r] = (vf) {0};
                    memcpy(&w[r], p, n);
                }
            }
            k3_transpose(w);
#pragma GCC unroll 8
            for (int i = 0; i < LANES; i++) {
                words[at / 4 + (size_t) i][v] = w[i];
            }
        }
    }
}

// sums[t][GROUP] += n columns times x[t], for one or two tokens
K3_INLINE void multiply(enum ggml_type type, int n_tokens, const vf words[WORDS][VECTORS], const float * const x[2],
                        int64_t n, float * sums) {
    vf sum[2][VECTORS];
#pragma GCC unroll 2
    for (int t = 0; t < n_tokens; t++) {
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++) {
            sum[t][v] = v_load(sums + t * GROUP + v * LANES);
        }
    }
    const int64_t per_word = 4 / value_bytes(type), full = n / per_word;
    for (int64_t i = 0; i < full; i++) {
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++) {
            vf even = words[i][v], odd = even;
            if (per_word == 2) {
                split(type, (vi) words[i][v], &even, &odd);
            }
#pragma GCC unroll 2
            for (int t = 0; t < n_tokens; t++) {
                sum[t][v] = v_fma(even, v_set(x[t][i * per_word]), sum[t][v]);
                if (per_word == 2) {
                    sum[t][v] = v_fma(odd, v_set(x[t][i * 2 + 1]), sum[t][v]);
                }
            }
        }
    }
    if (full * per_word < n) {
        for (int v = 0; v < VECTORS; v++) {
            vf even, odd;
            split(type, (vi) words[full][v], &even, &odd);
            for (int t = 0; t < n_tokens; t++) {
                sum[t][v] = v_fma(even, v_set(x[t][n - 1]), sum[t][v]);
            }
        }
    }
#pragma GCC unroll 2
    for (int t = 0; t < n_tokens; t++) {
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++) {
            v_store(sums + t * GROUP + v * LANES, sum[t][v]);
        }
    }
}

// Columns [first, first + n), whose words these are, of all tokens
K3_INLINE void multiply_all(enum ggml_type type, const struct k3_matmul_args * args, const vf words[WORDS][VECTORS],
                            int64_t first, int64_t n, float * sums) {
    int64_t t = 0;
    for (; t + 1 < args->n_tokens; t += 2) {
        const float * x[2] = {(const float *) args->acts[t] + first, (const float *) args->acts[t + 1] + first};
        multiply(type, 2, words, x, n, sums + t * GROUP);
    }
    if (t < args->n_tokens) {
        const float * x[2] = {(const float *) args->acts[t] + first, NULL};
        multiply(type, 1, words, x, n, sums + t * GROUP);
    }
}

K3_INLINE void run_float_type(enum ggml_type type, const struct k3_matmul_args * args) {
    vf(*words)[VECTORS]  = args->scratch;
    float * sums         = (float *) (words + WORDS);
    const int64_t step   = PIECE / value_bytes(type);
    const uint8_t * w    = args->w;
    const uint8_t * end  = w + (size_t) args->last * args->row_bytes;
    const uint8_t *ahead = w + (size_t) args->first * args->row_bytes, *group_end = ahead + GROUP * args->row_bytes;
    for (; ahead < end && ahead < group_end; ahead += LINE) {
        __builtin_prefetch(ahead, 0, 2);
    }
    for (int64_t row = args->first; row < args->last; row += GROUP) {
        const int n = args->last - row < GROUP ? (int) (args->last - row) : GROUP;
        const uint8_t * rows[GROUP];  // behind the last row it is repeated
        for (int r = 0; r < GROUP; r++) {
            rows[r] = w + (size_t) (row + (r < n ? r : n - 1)) * args->row_bytes;
        }
        memset(sums, 0, (size_t) (args->n_tokens * GROUP) * sizeof(float));
        for (int64_t first = 0; first < args->k; first += step) {
            const int64_t count = args->k - first < step ? args->k - first : step;
            const size_t offset = (size_t) (first * value_bytes(type)), bytes = (size_t) (count * value_bytes(type));
            load_words(rows, offset, bytes, rows[0] + GROUP * (args->row_bytes + offset), end, words);
            multiply_all(type, args, (const vf(*)[VECTORS]) words, first, count, sums);
        }
        for (int64_t t = 0; t < args->n_tokens; t++) {
            memcpy(args->y[t] + row, sums + t * GROUP, (size_t) n * sizeof(float));
        }
    }
}

static size_t float_scratch(int64_t n_tokens) { return PIECE * GROUP + (size_t) n_tokens * GROUP * sizeof(float); }

static void run_float(const struct k3_matmul_args * args) {
    switch (args->type) {
        case GGML_TYPE_F32: run_float_type(GGML_TYPE_F32, args); break;
        case GGML_TYPE_F16: run_float_type(GGML_TYPE_F16, args); break;
        default: run_float_type(GGML_TYPE_BF16, args); break;
    }
}

#endif
