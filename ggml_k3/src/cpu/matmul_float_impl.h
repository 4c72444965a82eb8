// matmul_float_impl.h - y = W x for F32, F16 and BF16 and any number of tokens, for instruction sets whose vector has
// LANES = 4 or 8 floats.
//
//   rows, GROUP at a time: lanes are rows
//     columns, up to WORDS words of each row at a time: the weights are transposed into scratch in words of 32 bits:
//                                                       one float, or two BF16
//       tokens, one, two or six at a time: a tile of registers; the sums lie in scratch
#ifndef K3_MATMUL_FLOAT_IMPL_H
#define K3_MATMUL_FLOAT_IMPL_H

#include "matmul_impl.h"

// VECTORS: as many sums of a token run side by side, which hides the latency of an fma.
enum { VECTORS = 4, GROUP = VECTORS * LANES, WORDS = 64, LINE = 64, MAX_TILE = 6 };

// What the words are made of. BF16 stay as they are, two in a word, for up to PAIR_TOKENS: fewer words to transpose. For
// more, one float in a word leaves more registers.
enum { PAIR_TOKENS = 17 };
struct form {
    enum ggml_type type;
    bool pairs;
};

// Values in a word, and the bytes of a row that it comes from
K3_INLINE int64_t word_values(struct form form) { return form.pairs ? 2 : 1; }
K3_INLINE int64_t word_bytes(struct form form) { return form.pairs || form.type == GGML_TYPE_F32 ? 4 : 2; }

// Value `part` of each word
K3_INLINE vf word_value(struct form form, vf words, int part) {
    if (!form.pairs) {
        return words;
    }
    return part ? (vf) ((vi) words & (int32_t) 0xffff0000) : (vf) ((vi) words << 16);
}

// LANES words of a row
K3_INLINE vf load_vector(struct form form, const uint8_t * p) {
    vf v;
    if (word_bytes(form) == 4) {
        memcpy(&v, p, sizeof(v));
        return v;
    }
#if defined(__AVX2__)
    const __m128i half = _mm_loadu_si128((const __m128i *) p);
    v = form.type == GGML_TYPE_F16 ? _mm256_cvtph_ps(half) : (vf) _mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16);
#elif defined(__aarch64__)
    const uint8x8_t half = vld1_u8(p);
    v                    = form.type == GGML_TYPE_F16 ? (vf) vcvt_f32_f16(vreinterpret_f16_u8(half))
                                                      : (vf) vshll_n_u16(vreinterpret_u16_u8(half), 16);
#endif
    return v;
}

// words[i][v] lane r <- word i of rows[v * LANES + r] at `offset`, for n words, a multiple of LANES
K3_INLINE void load_words(struct form form, const uint8_t * const rows[GROUP], size_t offset, int64_t n,
                          vf words[WORDS][VECTORS]) {
    for (int64_t first = 0; first < n; first += LANES, offset += (size_t) (LANES * word_bytes(form))) {
        for (int v = 0; v < VECTORS; v++) {
            vf w[LANES];
#pragma GCC unroll 8
            for (int r = 0; r < LANES; r++) {
                w[r] = load_vector(form, rows[v * LANES + r] + offset);
            }
            k3_transpose(w);
#pragma GCC unroll 8
            for (int i = 0; i < LANES; i++) {
                words[first + i][v] = w[i];
            }
        }
    }
}

// The same for the last bytes of the rows, fewer than of LANES words: no load may reach behind a row.
K3_INLINE void load_last_words(struct form form, const uint8_t * const rows[GROUP], size_t offset, size_t bytes,
                               vf words[WORDS][VECTORS]) {
    uint8_t copies[GROUP][LANES * 4] = {{0}};
    const uint8_t * copy[GROUP];
    for (int r = 0; r < GROUP; r++) {
        memcpy(copies[r], rows[r] + offset, bytes);
        copy[r] = copies[r];
    }
    load_words(form, copy, 0, LANES, words);
}

// sum[t][v] += value `part` of the words times x[t][column]
K3_INLINE void multiply_words(struct form form, int n_tokens, int n_vectors, const vf words[VECTORS], int part,
                              const float * const x[MAX_TILE], int64_t column, vf sum[MAX_TILE][VECTORS]) {
    vf w[VECTORS];
#pragma GCC unroll 4
    for (int v = 0; v < n_vectors; v++) {
        w[v] = word_value(form, words[v], part);
    }
#pragma GCC unroll 6
    for (int t = 0; t < n_tokens; t++) {
        const vf factor = v_set(x[t][column]);
#pragma GCC unroll 4
        for (int v = 0; v < n_vectors; v++) {
            sum[t][v] = v_fma(w[v], factor, sum[t][v]);
        }
    }
}

// sums[t][GROUP] += n columns times x[t], for n_tokens tokens and n_vectors of the vectors of words and sums. `ahead`,
// unless NULL: memory to ask for, into L2, as much as the words of all vectors take.
K3_INLINE void multiply(struct form form, int n_tokens, int n_vectors, const vf (*words)[VECTORS],
                        const float * const x[MAX_TILE], int64_t n, const uint8_t * ahead, float * sums) {
    vf sum[MAX_TILE][VECTORS];
#pragma GCC unroll 6
    for (int t = 0; t < n_tokens; t++) {
#pragma GCC unroll 4
        for (int v = 0; v < n_vectors; v++) {
            sum[t][v] = v_load(sums + t * GROUP + v * LANES);
        }
    }
    const int64_t values = word_values(form);
    for (int64_t i = 0; i < n / values; i++) {
        if (ahead) {
            const uint8_t * p = ahead + i * GROUP * word_bytes(form);
            __builtin_prefetch(p, 0, 2);
            if (GROUP * word_bytes(form) > LINE) {
                __builtin_prefetch(p + LINE, 0, 2);
            }
        }
#pragma GCC unroll 2
        for (int part = 0; part < values; part++) {
            multiply_words(form, n_tokens, n_vectors, words[i], part, x, i * values + part, sum);
        }
    }
    if (n % values) {
        multiply_words(form, n_tokens, n_vectors, words[n / values], 0, x, n - 1, sum);
    }
#pragma GCC unroll 6
    for (int t = 0; t < n_tokens; t++) {
#pragma GCC unroll 4
        for (int v = 0; v < n_vectors; v++) {
            v_store(sums + t * GROUP + v * LANES, sum[t][v]);
        }
    }
}

// Columns [first, first + n), whose words these are, of all tokens. One of the calls asks for memory.
K3_INLINE void multiply_all(struct form form, const struct k3_matmul_args * args, const vf (*words)[VECTORS],
                            int64_t first, int64_t n, const uint8_t * ahead, float * sums) {
    for (int64_t t = 0; t < args->n_tokens;) {
        const int64_t rest = args->n_tokens - t;
        const float * x[MAX_TILE];
        for (int i = 0; i < MAX_TILE; i++) {
            x[i] = (const float *) args->acts[i < rest ? t + i : t] + first;
        }
        float * to = sums + t * GROUP;
        if (!form.pairs && rest >= MAX_TILE) {
            multiply(form, MAX_TILE, 2, words, x, n, rest == args->n_tokens ? ahead : NULL, to);
            multiply(form, MAX_TILE, 2, (const vf(*)[VECTORS])(*words + 2), x, n, NULL, to + 2 * LANES);
            t += MAX_TILE;
        } else if (rest >= 2) {
            multiply(form, 2, VECTORS, words, x, n, rest == args->n_tokens ? ahead : NULL, to);
            t += 2;
        } else {
            multiply(form, 1, VECTORS, words, x, n, rest == args->n_tokens ? ahead : NULL, to);
            t += 1;
        }
    }
}

// Memory is asked for one group of rows ahead, in a linear stream. With few tokens a piece of columns is small, so that
// the requests, which are made while the sums are, come at an even rate.
K3_INLINE void run_form(struct form form, const struct k3_matmul_args * args) {
    vf(*words)[VECTORS]   = args->scratch;
    float * sums          = (float *) (words + WORDS);
    const int64_t columns = (args->n_tokens < MAX_TILE ? WORDS / 2 : WORDS) * word_values(form);
    const uint8_t * w     = args->w;
    const uint8_t * end   = w + (size_t) args->last * args->row_bytes;
    const uint8_t * start = w + (size_t) args->first * args->row_bytes;
    for (const uint8_t * p = start; p < end && p < start + GROUP * args->row_bytes; p += LINE) {
        __builtin_prefetch(p, 0, 2);
    }
    for (int64_t row = args->first; row < args->last; row += GROUP) {
        const int n = args->last - row < GROUP ? (int) (args->last - row) : GROUP;
        const uint8_t * rows[GROUP];  // behind the last row it is repeated
        for (int r = 0; r < GROUP; r++) {
            rows[r] = w + (size_t) (row + (r < n ? r : n - 1)) * args->row_bytes;
        }
        memset(sums, 0, (size_t) (args->n_tokens * GROUP) * sizeof(float));
        for (int64_t first = 0; first < args->k; first += columns) {
            const int64_t count   = args->k - first < columns ? args->k - first : columns;
            const int64_t full    = count / word_values(form) / LANES * LANES;
            const size_t offset   = (size_t) (first / word_values(form) * word_bytes(form));
            const size_t end_full = offset + (size_t) (full * word_bytes(form));
            const size_t bytes    = (size_t) (args->k * word_bytes(form) / word_values(form));
            load_words(form, rows, offset, full, words);
            if (full * word_values(form) < count) {
                load_last_words(form, rows, end_full, bytes - end_full, words + full);
            }
            const uint8_t * ahead = rows[0] + GROUP * (args->row_bytes + offset);
            multiply_all(form, args, (const vf(*)[VECTORS]) words, first, count, ahead < end ? ahead : rows[0], sums);
        }
        for (int64_t t = 0; t < args->n_tokens; t++) {
            memcpy(args->y[t] + row, sums + t * GROUP, (size_t) n * sizeof(float));
        }
    }
}

static size_t float_scratch(int64_t n_tokens) {
    return WORDS * VECTORS * sizeof(vf) + (size_t) n_tokens * GROUP * sizeof(float);
}

static void run_float(const struct k3_matmul_args * args) {
    if (args->type == GGML_TYPE_F32) {
        run_form((struct form) {GGML_TYPE_F32, false}, args);
    } else if (args->type == GGML_TYPE_F16) {
        run_form((struct form) {GGML_TYPE_F16, false}, args);
    } else if (args->n_tokens <= PAIR_TOKENS) {
        run_form((struct form) {GGML_TYPE_BF16, true}, args);
    } else {
        run_form((struct form) {GGML_TYPE_BF16, false}, args);
    }
}

#endif
