// matmul_tile_avx2.c - y = W x for Q8_0 and MXFP4 and many tokens: lanes are tokens.
//
//   tokens, PANEL at a time:  their values are arranged by blocks, eight tokens side by side
//     rows, ROWS at a time:
//       blocks, DEPTH at a time: the weights are unpacked into scratch, the next ones asked for from memory
//         8 or 16 tokens:        their part of the panel stays in L1
//           8 or 4 rows:         a tile of registers; the fp32 sums lie in scratch
#include "matmul_avx2.h"
#include "matmul_impl.h"

enum { PANEL = 128, ROWS = 32, DEPTH = 16, LANE_TOKENS = 8 };

// One block of eight tokens. MXFP4: step i has values 4 i to 4 i + 3 of each token; `start` is -12 times the sum of
// what a 16-bit lane gets, as the codes are unpacked as code + 12. All arithmetic is modulo 2^16; the end result is at
// most 16 * 12 * 127. Q8_0: step i has values 2 i, 2 i + 1, as 16 bits.
struct bytes_block {
    int8_t q[8][LANE_TOKENS][4];
    int16_t start[LANE_TOKENS][2];
    float d[LANE_TOKENS];
};

struct words_block {
    int16_t q[16][LANE_TOKENS][2];
    float d[LANE_TOKENS];
};

// Views of the scratch.
struct tile {
    int64_t blocks;    // of a row
    int64_t groups;    // of eight tokens
    uint8_t * panel;   // [groups][blocks] bytes_block or words_block
    uint8_t * values;  // [ROWS][DEPTH][32], bytes or words
    float * scales;    // [ROWS][DEPTH]
    float * sums;      // [ROWS][groups][8]
};

K3_INLINE size_t panel_block(enum ggml_type type) {
    return type == GGML_TYPE_MXFP4 ? sizeof(struct bytes_block) : sizeof(struct words_block);
}

K3_INLINE size_t value_block(enum ggml_type type) { return K3_BLOCK * (type == GGML_TYPE_MXFP4 ? 1 : sizeof(int16_t)); }

static int64_t group_count(int64_t n_tokens) {
    return ((n_tokens < PANEL ? n_tokens : PANEL) + LANE_TOKENS - 1) / LANE_TOKENS;
}

size_t k3_matmul_tile_scratch_avx2(enum ggml_type type, int64_t k, int64_t n_tokens) {
    const size_t groups = (size_t) group_count(n_tokens);
    return groups * (size_t) (k / K3_BLOCK) * panel_block(type) + ROWS * DEPTH * (value_block(type) + sizeof(float)) +
           ROWS * groups * LANE_TOKENS * sizeof(float);
}

// The panel's part of the token in lane `lane`; q NULL: no token, zeros.
K3_INLINE void arrange(enum ggml_type type, const struct k3_q8 * act, int64_t blocks, int lane, uint8_t * group) {
    for (int64_t b = 0; b < blocks; b++) {
        if (type == GGML_TYPE_MXFP4) {
            struct bytes_block * to = (struct bytes_block *) group + b;
            int sum[2]              = {0, 0};
            for (int i = 0; i < 8; i++) {
                const int8_t * q = act->q + b * K3_BLOCK + 4 * i;
                memcpy(to->q[i][lane], q, 4);
                sum[0] += q[0] + q[1];
                sum[1] += q[2] + q[3];
            }
            to->start[lane][0] = (int16_t) (-12 * sum[0]);
            to->start[lane][1] = (int16_t) (-12 * sum[1]);
            to->d[lane]        = act->d[b];
        } else {
            struct words_block * to = (struct words_block *) group + b;
            for (int i = 0; i < 16; i++) {
                to->q[i][lane][0] = act->q[b * K3_BLOCK + 2 * i];
                to->q[i][lane][1] = act->q[b * K3_BLOCK + 2 * i + 1];
            }
            to->d[lane] = act->d[b];
        }
    }
}

// Blocks [first, first + n) of the rows from `row` on, in the order of the row. Behind the last row it is repeated, up
// to a multiple of eight.
K3_INLINE void unpack(enum ggml_type type, const struct k3_matmul_args * args, int64_t row, int rows, int64_t first,
                      int n, const struct tile * tile) {
    const __m256i codes = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
    const __m256i shifts = _mm256_setr_epi32(0, 0, 0, 0, 4, 4, 4, 4);
    const size_t block   = type == GGML_TYPE_MXFP4 ? K3_MXFP4_BYTES : K3_Q8_0_BYTES;
    const size_t ahead   = first + n < tile->blocks ? (size_t) n * block
                                                    : ROWS * args->row_bytes - (size_t) first * block;
    for (int r = 0; r < (rows + 7) / 8 * 8; r++) {
        const int64_t m   = row + (r < rows ? r : rows - 1);
        const uint8_t * p = (const uint8_t *) args->w + (size_t) m * args->row_bytes + (size_t) first * block;
        uint8_t * out     = tile->values + (size_t) r * DEPTH * value_block(type);
        for (size_t line = 0; line < DEPTH * block; line += 64) {
            _mm_prefetch((const char *) p + ahead + line, _MM_HINT_T1);
        }
        for (int b = 0; b < n; b++, p += block) {
            if (type == GGML_TYPE_MXFP4) {
                const __m256i v = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *) (p + 1)));
                const __m256i c = _mm256_and_si256(_mm256_srlv_epi32(v, shifts), _mm256_set1_epi8(15));
                _mm256_store_si256((__m256i *) out + b, _mm256_shuffle_epi8(codes, c));
                tile->scales[r * DEPTH + b] = k3_mxfp4_scale(p[0]);
            } else {
                for (int half = 0; half < 2; half++) {
                    const __m128i v = _mm_loadu_si128((const __m128i *) (p + 2 + 16 * half));
                    _mm256_store_si256((__m256i *) out + 2 * b + half, _mm256_cvtepi8_epi16(v));
                }
                uint16_t half;
                memcpy(&half, p, sizeof(half));
                tile->scales[r * DEPTH + b] = _cvtsh_ss(half);
            }
        }
    }
}

// sums += n blocks of n_rows rows times n_groups groups of tokens. values, scales and sums begin at the first row,
// panel and sums at the first group and block.
K3_INLINE void multiply(enum ggml_type type, int n_rows, int n_groups, const struct tile * tile, const uint8_t * values,
                        const float * scales, const uint8_t * panel, float * sums, int n) {
    const __m256i ones       = _mm256_set1_epi16(1);
    const size_t group_bytes = (size_t) tile->blocks * panel_block(type), steps = type == GGML_TYPE_MXFP4 ? 8 : 16;
    for (int b = 0; b < n; b++, panel += panel_block(type), values += value_block(type)) {
        __m256i dot[8][2];
#pragma GCC unroll 8
        for (int r = 0; r < n_rows; r++) {
#pragma GCC unroll 2
            for (int g = 0; g < n_groups; g++) {
                const uint8_t * start = panel + (size_t) g * group_bytes + offsetof(struct bytes_block, start);
                dot[r][g]             = type == GGML_TYPE_MXFP4 ? _mm256_load_si256((const __m256i *) start)
                                                                : _mm256_setzero_si256();
            }
        }
#pragma GCC unroll 4
        for (size_t i = 0; i < steps; i++) {
            __m256i x[2];
#pragma GCC unroll 2
            for (int g = 0; g < n_groups; g++) {
                x[g] = _mm256_load_si256((const __m256i *) (panel + (size_t) g * group_bytes) + i);
            }
#pragma GCC unroll 8
            for (int r = 0; r < n_rows; r++) {
                int32_t four;
                memcpy(&four, values + (size_t) r * DEPTH * value_block(type) + 4 * i, sizeof(four));
                const __m256i w = _mm256_set1_epi32(four);
#pragma GCC unroll 2
                for (int g = 0; g < n_groups; g++) {
                    dot[r][g] = type == GGML_TYPE_MXFP4 ? _mm256_add_epi16(dot[r][g], _mm256_maddubs_epi16(w, x[g]))
                                                        : _mm256_add_epi32(dot[r][g], _mm256_madd_epi16(w, x[g]));
                }
            }
        }
#pragma GCC unroll 8
        for (int r = 0; r < n_rows; r++) {
            const __m256 scale = _mm256_broadcast_ss(scales + r * DEPTH + b);
#pragma GCC unroll 2
            for (int g = 0; g < n_groups; g++) {
                const uint8_t * d = panel + (size_t) g * group_bytes + panel_block(type) - LANE_TOKENS * sizeof(float);
                const __m256 both = _mm256_mul_ps(scale, _mm256_load_ps((const float *) d));
                const __m256i sum = type == GGML_TYPE_MXFP4 ? _mm256_madd_epi16(dot[r][g], ones) : dot[r][g];
                float * to        = sums + (r * tile->groups + g) * LANE_TOKENS;
                _mm256_store_ps(to, _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), both, _mm256_load_ps(to)));
            }
        }
    }
}

// All tokens times the unpacked blocks [first, first + n) of `rows` rows
K3_INLINE void multiply_all(enum ggml_type type, const struct tile * tile, int rows, int64_t first, int n) {
    for (int64_t g = 0; g < tile->groups; g += 2) {
        const uint8_t * panel = tile->panel + (size_t) (g * tile->blocks + first) * panel_block(type);
        for (int r = 0; r < rows; r += g + 1 < tile->groups ? 4 : 8) {
            const uint8_t * values = tile->values + (size_t) r * DEPTH * value_block(type);
            const float * scales   = tile->scales + r * DEPTH;
            float * sums           = tile->sums + (r * tile->groups + g) * LANE_TOKENS;
            if (g + 1 < tile->groups) {
                multiply(type, 4, 2, tile, values, scales, panel, sums, n);
            } else {
                multiply(type, 8, 1, tile, values, scales, panel, sums, n);
            }
        }
    }
}

// Up to PANEL tokens from token `first` on
K3_INLINE void run(enum ggml_type type, const struct k3_matmul_args * args, const struct tile * tile, int64_t first) {
    const int64_t n_tokens = args->n_tokens - first < PANEL ? args->n_tokens - first : PANEL;
    memset(tile->panel, 0, (size_t) (tile->groups * tile->blocks) * panel_block(type));
    for (int64_t t = 0; t < n_tokens; t++) {
        const struct k3_q8 act = k3_q8_parts(args->acts[first + t], args->k);
        const int64_t group    = t / LANE_TOKENS * tile->blocks;
        arrange(type, &act, tile->blocks, (int) (t % LANE_TOKENS), tile->panel + (size_t) group * panel_block(type));
    }
    for (int64_t row = args->first; row < args->last; row += ROWS) {
        const int rows = args->last - row < ROWS ? (int) (args->last - row) : ROWS;
        memset(tile->sums, 0, (size_t) (ROWS * tile->groups * LANE_TOKENS) * sizeof(float));
        for (int64_t b = 0; b < tile->blocks; b += DEPTH) {
            const int n = tile->blocks - b < DEPTH ? (int) (tile->blocks - b) : DEPTH;
            unpack(type, args, row, rows, b, n, tile);
            multiply_all(type, tile, rows, b, n);
        }
        for (int64_t t = 0; t < n_tokens; t++) {
            for (int r = 0; r < rows; r++) {
                args->y[first + t][row + r] = tile->sums[r * tile->groups * LANE_TOKENS + t];
            }
        }
    }
}

void k3_matmul_tile_avx2(const struct k3_matmul_args * args) {
    const int64_t blocks = args->k / K3_BLOCK;
    for (int64_t first = 0; first < args->n_tokens; first += PANEL) {
        struct tile tile = {blocks, group_count(args->n_tokens - first), args->scratch, NULL, NULL, NULL};
        tile.values      = tile.panel + (size_t) (tile.groups * blocks) * panel_block(args->type);
        tile.scales      = (float *) (tile.values + ROWS * DEPTH * value_block(args->type));
        tile.sums        = tile.scales + ROWS * DEPTH;
        if (args->type == GGML_TYPE_MXFP4) {
            run(GGML_TYPE_MXFP4, args, &tile, first);
        } else {
            run(GGML_TYPE_Q8_0, args, &tile, first);
        }
    }
}
