// mla_bf16_avx512.c - attention with the bf16 dot product of AVX-512. In Q K^T of many queries they are the lanes, and
// pairs of a key's elements are broadcast from the cache as it lies; of few queries the keys are the lanes, transposed
// in registers, and pairs of a query's elements are broadcast. In P V columns are the lanes, where pairs of
// probabilities are broadcast and two rows are woven into pairs of positions. A Q8_0 tile is rounded to bf16 first:
// 8-bit queries would be faster, but their error is ten times that of bf16.
#include "mla_bf16.h"
#include "simd.h"
#include "transpose_avx512.h"

#include <stdbool.h>

enum {
    TILE        = 128,  // positions
    MAX_VECTORS = K3_MLA_ROWS / LANES,
    MAX_QK_ROWS = 8,
    FEW         = 0,  // "vectors" of a panel of at most FEW_ROWS rows: keys are lanes
    FEW_ROWS    = 12,
    QUAD        = 4,   // pairs of a key that are transposed together
    PV_SUMS     = 24,  // most accumulators of P V
    SLAB        = 64,  // columns of a block, or STEP
    COPY_ROWS   = 33,  // queries for which a copy of the woven values pays
    STEP        = 32,  // elements of one vector of bf16
    LINE        = 16,  // pairs of elements in a cache line
    LINE_BYTES  = 64,
    Q8_BLOCK    = 32,
};

// Keys at once against nv vectors of queries: as many accumulators as the registers hold.
#define QK_ROWS(nv) ((nv) > 4 ? 4 : (nv) == 4 ? 6 : 8)

struct memory {
    uint32_t * q;     // [width / 2][lanes], few: [width / 2][rows]: pairs of bf16
    uint32_t * v;     // [TILE / 2][SLAB]: woven values, pairs of bf16
    uint16_t * keys;  // [TILE][key_stride]: a tile in bf16 that the cache does not hold as needed
    float * s;        // [TILE + MAX_QK_ROWS][lanes], few: [rows][TILE]: scores
    uint32_t * p;     // [TILE / 2][lanes], few: [rows][TILE / 2]: pairs of bf16
    float *m, *l;     // [lanes]
    float * f;        // [lanes]: rescaling of a tile
    int32_t * end;    // [lanes]: position relative to the tile
};

// Into level 2: a tile fills level 1 several times.
K3_INLINE void prefetch(const char * p) { __builtin_prefetch(p, 0, 2); }

// ---- memory ----------------------------------------------------------------------------------------------

// An odd number of cache lines, so that columns spread over all sets; whole vectors of columns can be read.
static int64_t key_stride(int64_t width, int64_t n_latent) {
    const int64_t n = width > k3_mla_columns(n_latent) ? width : k3_mla_columns(n_latent);
    return ((n + STEP - 1) / STEP | 1) * STEP;
}

size_t k3_mla_bf16_scratch(enum ggml_type type, int64_t n_latent, int64_t width) {
    (void) type;
    const int64_t words = K3_MLA_ROWS * ((width / 2 + LANES - 1) / LANES * LANES) + TILE / 2 * SLAB +
                          TILE * key_stride(width, n_latent) / 2 + (TILE + MAX_QK_ROWS + TILE / 2 + 4) * K3_MLA_ROWS;
    return (size_t) words * sizeof(uint32_t);
}

static struct memory memory_of(const struct k3_mla_panel * panel, void * scratch) {
    struct memory a;
    a.q    = scratch;
    a.v    = a.q + K3_MLA_ROWS * ((panel->width / 2 + LANES - 1) / LANES * LANES);
    a.s    = (float *) (a.v + TILE / 2 * SLAB);
    a.m    = a.s + (TILE + MAX_QK_ROWS) * K3_MLA_ROWS;
    a.l    = a.m + K3_MLA_ROWS;
    a.f    = a.l + K3_MLA_ROWS;
    a.end  = (int32_t *) (a.f + K3_MLA_ROWS);
    a.p    = (uint32_t *) (a.f + 2 * K3_MLA_ROWS);
    a.keys = (uint16_t *) (a.p + TILE / 2 * K3_MLA_ROWS);
    return a;
}

static int vectors_of(const struct k3_mla_panel * panel) {
    const bool few = panel->n_rows <= FEW_ROWS && panel->width % (2 * QUAD) == 0;
    return few ? FEW : (panel->n_rows + LANES - 1) / LANES;
}

// Queries that are computed for a panel of n, at most FEW_ROWS.
static int few_rows(int n) { return n <= 8 ? (n + 1) / 2 * 2 : (n + 3) / 4 * 4; }

// ---- queries ---------------------------------------------------------------------------------------------

// Elements [first, first + STEP) of a query row, zeros behind its end.
static void query_elements(const struct k3_mla_panel * panel, int row, int64_t first, float * x) {
    memset(x, 0, STEP * sizeof(float));
    const int64_t end   = first + STEP < panel->width ? first + STEP : panel->width;
    const int64_t split = end < panel->n_latent ? end : first < panel->n_latent ? panel->n_latent : first;
    if (split > first) {
        memcpy(x, panel->latent[row] + first, (size_t) (split - first) * sizeof(float));
    }
    if (end > split) {
        memcpy(x + split - first, panel->shared[row] + split - panel->n_latent, (size_t) (end - split) * sizeof(float));
    }
}

void k3_mla_bf16_pack(const struct k3_mla_panel * panel, void * scratch) {
    const struct memory a = memory_of(panel, scratch);
    const int vectors = vectors_of(panel), few = few_rows(panel->n_rows);
    const int64_t pairs = panel->width / 2;
    const vf factor     = v_set((float) (panel->scale * 1.4426950408889634));
    for (int64_t first = 0; first < pairs; first += LANES) {
        for (int v = 0; v < (vectors ? vectors : 1); v++) {
            __m512i x[LANES];
            for (int i = 0; i < LANES; i++) {
                const int row = v * LANES + i;
                float y[STEP];
                x[i] = _mm512_setzero_si512();
                if (row < panel->n_rows) {
                    query_elements(panel, row, 2 * first, y);
                    x[i] = (__m512i) _mm512_cvtne2ps_pbh(v_load(y + LANES) * factor, v_load(y) * factor);
                }
            }
            k3_transpose_16x16(x, x);
            for (int64_t i = 0; i < LANES && first + i < pairs; i++) {
                if (vectors == FEW) {
                    memcpy(a.q + (first + i) * few, &x[i], (size_t) few * sizeof(*a.q));
                } else {
                    memcpy(a.q + ((first + i) * vectors + v) * LANES, &x[i], sizeof(x[i]));
                }
            }
        }
    }
}

// ---- scores ----------------------------------------------------------------------------------------------

// s[keys][nv vectors] for `rows` keys. Half as many bytes from `ahead` on are prefetched.
K3_INLINE void qk_block(const uint32_t * q, const uint32_t * const * k, int64_t pairs, const char * ahead, float * s,
                        int rows, int nv) {
    vf c[MAX_QK_ROWS][MAX_VECTORS];
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++) {
#pragma GCC unroll 16
        for (int v = 0; v < nv; v++) {
            c[i][v] = (vf) {0};
        }
    }
    for (int64_t start = 0; start < pairs; start += LINE) {
        const int64_t stop = start + LINE < pairs ? start + LINE : pairs;
#pragma GCC unroll 16
        for (int i = 0; i < rows / 2; i++, ahead += LINE_BYTES) {
            prefetch(ahead);
        }
        for (int64_t d = start; d < stop; d++, q += nv * LANES) {
            __m512i x[MAX_VECTORS];
#pragma GCC unroll 16
            for (int v = 0; v < nv; v++) {
                x[v] = _mm512_load_si512(q + v * LANES);
            }
#pragma GCC unroll 16
            for (int i = 0; i < rows; i++) {
                const __m512i y = _mm512_set1_epi32((int) k[i][d]);
#pragma GCC unroll 16
                for (int v = 0; v < nv; v++) {
                    c[i][v] = _mm512_dpbf16_ps(c[i][v], (__m512bh) x[v], (__m512bh) y);
                }
            }
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++) {
#pragma GCC unroll 16
        for (int v = 0; v < nv; v++) {
            _mm512_store_ps(s + (i * nv + v) * LANES, c[i][v]);
        }
    }
}

// k[d]: pair d of 16 keys from `key` on, d < QUAD.
K3_INLINE void key_quad(const uint16_t * key, int64_t stride, __m512i * k) {
    __m512i x[QUAD], y[QUAD];
#pragma GCC unroll 4
    for (int i = 0; i < QUAD; i++, key += stride) {
        x[i] = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *) key));
        x[i] = _mm512_mask_broadcast_i32x4(x[i], 0x00f0, _mm_loadu_si128((const __m128i *) (key + 4 * stride)));
        x[i] = _mm512_mask_broadcast_i32x4(x[i], 0x0f00, _mm_loadu_si128((const __m128i *) (key + 8 * stride)));
        x[i] = _mm512_mask_broadcast_i32x4(x[i], 0xf000, _mm_loadu_si128((const __m128i *) (key + 12 * stride)));
    }
#pragma GCC unroll 2
    for (int i = 0; i < QUAD; i += 2) {
        y[i]     = _mm512_unpacklo_epi32(x[i], x[i + 1]);
        y[i + 1] = _mm512_unpackhi_epi32(x[i], x[i + 1]);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) {
        k[2 * i]     = _mm512_unpacklo_epi64(y[i], y[i + 2]);
        k[2 * i + 1] = _mm512_unpackhi_epi64(y[i], y[i + 2]);
    }
}

// The same for few queries: s[rows][TILE], keys in `blocks` of 16.
K3_INLINE void qk_few_block(const uint32_t * q, const uint16_t * key, int64_t stride, int64_t pairs, const char * ahead,
                            float * s, int rows, int blocks) {
    vf c[2][FEW_ROWS];
#pragma GCC unroll 2
    for (int b = 0; b < blocks; b++) {
#pragma GCC unroll 16
        for (int i = 0; i < rows; i++) {
            c[b][i] = (vf) {0};
        }
    }
    for (int64_t d = 0; d < pairs; d += QUAD, q += QUAD * rows) {
        __m512i k[2][QUAD];
#pragma GCC unroll 2
        for (int b = 0; b < blocks; b++, ahead += 2 * LINE_BYTES) {
            prefetch(ahead);
            prefetch(ahead + LINE_BYTES);
            key_quad(key + b * LANES * stride + 2 * d, stride, k[b]);
        }
#pragma GCC unroll 4
        for (int e = 0; e < QUAD; e++) {
#pragma GCC unroll 16
            for (int i = 0; i < rows; i++) {
                const __m512i x = _mm512_set1_epi32((int) q[e * rows + i]);
#pragma GCC unroll 2
                for (int b = 0; b < blocks; b++) {
                    c[b][i] = _mm512_dpbf16_ps(c[b][i], (__m512bh) x, (__m512bh) k[b][e]);
                }
            }
        }
    }
#pragma GCC unroll 2
    for (int b = 0; b < blocks; b++) {
#pragma GCC unroll 16
        for (int i = 0; i < rows; i++) {
            _mm512_store_ps(s + i * TILE + b * LANES, c[b][i]);
        }
    }
}

K3_INLINE void qk_few(const struct memory * a, const uint16_t * keys, int64_t stride, int n, int64_t width,
                      const char * ahead, int rows) {
    const int blocks = rows > 4 ? 1 : 2;
    for (int j = 0; j < n; j += blocks * LANES, ahead += blocks * LANES * width) {
        qk_few_block(a->q, keys + j * stride, stride, width / 2, ahead, a->s + j, rows, blocks);
    }
}

K3_INLINE void qk_vectors(const struct memory * a, const uint16_t * keys, int64_t stride, int n, int64_t width,
                          const char * ahead, int nv) {
    const int rows = QK_ROWS(nv);
    for (int j = 0; j < n; j += rows, ahead += rows * width) {
        const uint32_t * k[MAX_QK_ROWS];
#pragma GCC unroll 16
        for (int i = 0; i < rows; i++) {
            k[i] = (const uint32_t *) (keys + (j + i < n ? j + i : n - 1) * stride);
        }
        qk_block(a->q, k, width / 2, ahead, a->s + j * nv * LANES, rows, nv);
    }
}

// Scores of n keys; those of s up to the next multiple of the keys at once are written too, and for few queries keys
// up to there are read.
static void qk_tile(const struct memory * a, const uint16_t * keys, int64_t stride, int n, int64_t width,
                    const char * ahead, int vectors, int few) {
    switch (vectors ? vectors : -few) {
        case -2: qk_few(a, keys, stride, n, width, ahead, 2); break;
        case -4: qk_few(a, keys, stride, n, width, ahead, 4); break;
        case -6: qk_few(a, keys, stride, n, width, ahead, 6); break;
        case -8: qk_few(a, keys, stride, n, width, ahead, 8); break;
        case -12: qk_few(a, keys, stride, n, width, ahead, 12); break;
        case 1: qk_vectors(a, keys, stride, n, width, ahead, 1); break;
        case 2: qk_vectors(a, keys, stride, n, width, ahead, 2); break;
        case 3: qk_vectors(a, keys, stride, n, width, ahead, 3); break;
        case 4: qk_vectors(a, keys, stride, n, width, ahead, 4); break;
        case 5: qk_vectors(a, keys, stride, n, width, ahead, 5); break;
        default: qk_vectors(a, keys, stride, n, width, ahead, MAX_VECTORS); break;
    }
}

// ---- probabilities ---------------------------------------------------------------------------------------

// 2^x for x <= 0: relative error below 3e-7; 0 below -150, NaN for NaN.
K3_INLINE vf exp2_of(vf x) {
    const vf y = _mm512_max_ps(v_set(-200.0f), x);  // the second one where one is NaN
    const vf n = _mm512_roundscale_ps(y, _MM_FROUND_TO_NEAREST_INT), r = y - n;
    vf p = v_set(1.540353039e-4f);
    p    = v_fma(p, r, v_set(1.333355815e-3f));
    p    = v_fma(p, r, v_set(9.618129108e-3f));
    p    = v_fma(p, r, v_set(5.550410866e-2f));
    p    = v_fma(p, r, v_set(2.402265070e-1f));
    p    = v_fma(p, r, v_set(6.931471806e-1f));
    p    = v_fma(p, r, v_set(1.0f));
    return _mm512_scalef_ps(p, n);
}

// Scores of n positions to probabilities, in pairs; updates m and l, sets f. `masked`: lanes whose `end` is before a
// position do not see it.
K3_INLINE void softmax_tile(const struct memory * a, int n, int vectors, bool masked) {
    const int lanes  = vectors * LANES;
    const vf nothing = v_set(-__builtin_inff());
    for (int at = 0; at < lanes; at += LANES) {
        float * s         = a->s + at;
        const __m512i end = _mm512_load_si512(a->end + at);
        const vf m        = _mm512_load_ps(a->m + at);
        vf top            = m;
        for (int j = 0; j < n; j++) {
            vf x = _mm512_load_ps(s + j * lanes);
            x    = v_fma(x, (vf) {0}, x);  // NaN unless finite
            if (masked) {
                x = _mm512_mask_blend_ps(_mm512_cmpge_epi32_mask(end, _mm512_set1_epi32(j)), nothing, x);
            }
            _mm512_store_ps(s + j * lanes, x);
            top = _mm512_max_ps(x, top);  // the second one where x is NaN
        }
        if (n % 2) {
            _mm512_store_ps(s + n * lanes, nothing);
        }
        const vf f = exp2_of(m - top);
        vf sum     = _mm512_load_ps(a->l + at) * f;
        for (int j = 0; j < n; j += 2) {
            const vf p0      = exp2_of(_mm512_load_ps(s + j * lanes) - top);
            const vf p1      = exp2_of(_mm512_load_ps(s + (j + 1) * lanes) - top);
            const __m512i lo = _mm512_cvtepu16_epi32((__m256i) _mm512_cvtneps_pbh(p0));
            const __m512i hi = _mm512_cvtepu16_epi32((__m256i) _mm512_cvtneps_pbh(p1));
            _mm512_store_si512(a->p + j / 2 * lanes + at, _mm512_or_si512(lo, _mm512_slli_epi32(hi, 16)));
            sum += p0 + p1;
        }
        _mm512_store_ps(a->m + at, top);
        _mm512_store_ps(a->l + at, sum);
        _mm512_store_ps(a->f + at, f);
    }
}

// The same for few queries. Lanes are positions; the sum over them is taken in their order all the same.
static void softmax_few(const struct memory * a, int n, int n_rows) {
    enum { CHAINS = 8 };  // sums of rows beside each other
    const vf nothing    = v_set(-__builtin_inff());
    const __m512i count = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    for (int row = 0; row < n_rows; row++) {
        float * s             = a->s + row * TILE;
        const __m512i visible = _mm512_set1_epi32(a->end[row] < n ? a->end[row] + 1 : n);
        const vf m            = v_set(a->m[row]);
        vf top                = m;
        for (int j = 0; j < n; j += LANES) {
            const __mmask16 seen = _mm512_cmpgt_epi32_mask(visible, _mm512_add_epi32(count, _mm512_set1_epi32(j)));
            vf x                 = _mm512_load_ps(s + j);
            x                    = _mm512_mask_blend_ps(seen, nothing, v_fma(x, (vf) {0}, x));  // NaN unless finite
            _mm512_store_ps(s + j, x);
            top = _mm512_max_ps(x, top);  // the second one where x is NaN
        }
        top        = v_set(_mm512_reduce_max_ps(top));
        const vf f = exp2_of(m - top);
        for (int j = 0; j < n; j += LANES) {
            const vf p       = exp2_of(_mm512_load_ps(s + j) - top);
            const __m256bh h = _mm512_cvtneps_pbh(p);
            memcpy(a->p + (row * TILE + j) / 2, &h, sizeof(h));
            _mm512_store_ps(s + j, p + _mm512_permute_ps(p, 0xb1));
        }
        a->m[row] = top[0];
        a->f[row] = f[0];
        a->l[row] *= f[0];
    }
    for (int row = 0; row < n_rows; row += CHAINS) {
        float sum[CHAINS];
        memcpy(sum, a->l + row, sizeof(sum));
        for (int j = 0; j < n; j += 2) {
#pragma GCC unroll 8
            for (int i = 0; i < CHAINS; i++) {
                sum[i] += a->s[(row + i) * TILE + j];
            }
        }
        memcpy(a->l + row, sum, sizeof(sum));
    }
}

// ---- values ----------------------------------------------------------------------------------------------

// Values that are not finite become 0 when rows must not see them all: they would be multiplied by p = 0. The rows
// that do see them are NaN by their scores.
static void blank_not_finite(uint16_t * keys, int n, int64_t stride, int64_t columns) {
    const __m512i exponent = _mm512_set1_epi16(0x7f80);
    for (int j = 0; j < n; j++) {
        for (int64_t d = 0; d < columns; d += STEP) {
            uint16_t * at   = keys + j * stride + d;
            const __m512i x = _mm512_loadu_si512(at), e = _mm512_and_si512(x, exponent);
            _mm512_storeu_si512(at, _mm512_maskz_mov_epi16(_mm512_cmpneq_epi16_mask(e, exponent), x));
        }
    }
}

// Pairs of positions of two rows of STEP values.
K3_INLINE void weave(const uint16_t * row, const uint16_t * next, __m512i * x) {
    static const uint16_t low[STEP] = {0, 32, 1, 33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39,
                                       8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
    const __m512i first = _mm512_loadu_si512(low), second = _mm512_add_epi16(first, _mm512_set1_epi16(16));
    const __m512i u = _mm512_loadu_si512(row), w = _mm512_loadu_si512(next);
    x[0] = _mm512_permutex2var_epi16(u, first, w);
    x[1] = _mm512_permutex2var_epi16(u, second, w);
}

struct pv_args {
    const uint16_t * keys;  // [2 pairs][columns] at stride
    int64_t stride;
    uint32_t * v;        // [pairs][SLAB]: woven values, where `copied`
    const uint32_t * p;  // [pairs][lanes], few: [rows][TILE / 2]
    int lanes, pairs, n_rows;
    const float * f;
    float * o;  // [rows][columns]
    int64_t columns;
    bool fresh;          // o starts from zeros
    const char * ahead;  // what to prefetch meanwhile
    int64_t ahead_step;  // bytes of it for each pair of a block
};

static void copy_slab(struct pv_args * a, int64_t column) {
    const uint16_t * key = a->keys + column;
    uint32_t * v         = a->v;
    for (int j = 0; j < a->pairs; j++, key += 2 * a->stride) {
        for (int d = 0; d < SLAB; d += STEP, v += STEP) {
            __m512i x[2];
            weave(key + d, key + a->stride + d, x);
            _mm512_store_si512(v, x[0]);
            _mm512_store_si512(v + LANES, x[1]);
        }
    }
}

// `rows` queries, nv vectors of columns.
K3_INLINE void pv_block(struct pv_args * a, int row, int64_t column, int rows, int nv, bool few, bool copied) {
    vf c[PV_SUMS / 2][SLAB / LANES];
    float * o = a->o + row * a->columns + column;
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++) {
#pragma GCC unroll 16
        for (int k = 0; k < nv; k++) {
            if (a->fresh) {
                c[i][k] = (vf) {0};
            } else {
                c[i][k] = v_set(a->f[row + i]) * v_load(o + i * a->columns + k * LANES);
            }
        }
    }
    const int p_row = few ? TILE / 2 : 1, p_pair = few ? 1 : a->lanes;
    const uint32_t *p = a->p + row * p_row, *v = a->v;
    const uint16_t * key = a->keys + column;
    const char * ahead   = a->ahead;
    const int64_t step   = a->ahead_step;
    for (int j = 0; j < a->pairs; j++, key += 2 * a->stride, v += nv * LANES, p += p_pair) {
        prefetch(ahead);
        prefetch(ahead + step / 2);
        ahead += step;
        __m512i x[SLAB / LANES];
#pragma GCC unroll 16
        for (int k = 0; k < nv; k += 2) {
            if (!copied) {
                weave(key + k * LANES, key + a->stride + k * LANES, x + k);
            } else {
                x[k]     = _mm512_load_si512(v + k * LANES);
                x[k + 1] = _mm512_load_si512(v + (k + 1) * LANES);
            }
        }
#pragma GCC unroll 16
        for (int i = 0; i < rows; i++) {
            const __m512i y = _mm512_set1_epi32((int) p[i * p_row]);
#pragma GCC unroll 16
            for (int k = 0; k < nv; k++) {
                c[i][k] = _mm512_dpbf16_ps(c[i][k], (__m512bh) x[k], (__m512bh) y);
            }
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++) {
#pragma GCC unroll 16
        for (int k = 0; k < nv; k++) {
            v_store(o + i * a->columns + k * LANES, c[i][k]);
        }
    }
    a->ahead = ahead;
}

#define PV_CASE(n)                                                                                                     \
    case n: pv_block(a, row, column, (n) < PV_SUMS / nv ? (n) : PV_SUMS / nv, nv, few, copied); break

K3_INLINE void pv_rows(struct pv_args * a, int row, int64_t column, int rows, int nv, bool few, bool copied) {
    switch (rows) {
        PV_CASE(1);
        PV_CASE(2);
        PV_CASE(3);
        PV_CASE(4);
        PV_CASE(5);
        PV_CASE(6);
        PV_CASE(7);
        PV_CASE(8);
        PV_CASE(9);
        PV_CASE(10);
        PV_CASE(11);
        default: pv_block(a, row, column, PV_SUMS / nv, nv, few, copied); break;
    }
}

static void pv_few_wide(struct pv_args * a, int row, int64_t column, int n) {
    pv_rows(a, row, column, n, 4, true, false);
}

static void pv_few(struct pv_args * a, int row, int64_t column, int n) { pv_rows(a, row, column, n, 2, true, false); }
static void pv_many(struct pv_args * a, int row, int64_t column, int n) { pv_rows(a, row, column, n, 2, false, false); }
static void pv_copied(struct pv_args * a, int row, int64_t column, int n) {
    pv_rows(a, row, column, n, 4, false, true);
}

// Rows of the next block of nv vectors when `rest` are left.
static int next_rows(int rest, int nv) {
    const int most = PV_SUMS / nv;
    return rest >= 2 * most ? most : rest > most ? (rest + 1) / 2 : rest;
}

// Vectors of columns in a block, unless fewer are left.
static int pv_vectors(int n_rows) { return n_rows > 4 && n_rows < COPY_ROWS ? 2 : 4; }

static int64_t count_blocks(const struct pv_args * a) {
    const int nv = pv_vectors(a->n_rows);
    int64_t n    = 0;
    for (int row = 0; row < a->n_rows; row += next_rows(a->n_rows - row, nv)) {
        n += (a->columns + nv * LANES - 1) / (nv * LANES);
    }
    return n;
}

// Many queries take the values from a copy of a slab, which stays in L1.
static void pv_tile(struct pv_args * a, bool few) {
    const int most = pv_vectors(a->n_rows);
    for (int64_t column = 0, nv; column < a->columns; column += nv * LANES) {
        nv                                                       = a->columns - column < most * LANES ? 2 : most;
        void (*const block)(struct pv_args *, int, int64_t, int) = few       ? (nv == 2 ? pv_few : pv_few_wide)
                                                                   : nv == 2 ? pv_many
                                                                             : pv_copied;
        if (block == pv_copied) {
            copy_slab(a, column);
        }
        for (int row = 0, n; row < a->n_rows; row += n) {
            n = next_rows(a->n_rows - row, (int) nv);
            block(a, row, column, n);
        }
    }
}

// ---- spans -----------------------------------------------------------------------------------------------

static void round_q8_row(const uint8_t * row, int64_t width, uint16_t * out) {
    for (int64_t d = 0; d < width; d += Q8_BLOCK, row += 2 + Q8_BLOCK) {
        const vf scale     = _mm512_broadcastss_ps(_mm_cvtph_ps(_mm_loadu_si64(row)));
        const __m128i low  = _mm_loadu_si128((const __m128i *) (row + 2));
        const __m128i high = _mm_loadu_si128((const __m128i *) (row + 2 + Q8_BLOCK / 2));
        const vf x         = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(low)) * scale;
        const vf y         = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(high)) * scale;
        const __m512bh xy  = _mm512_cvtne2ps_pbh(y, x);
        memcpy(out + d, &xy, sizeof(xy));
    }
}

// Keys of positions [base, base + n) in bf16; *stride: elements from one to the next. A copy, an odd number with a row
// of zeros behind it, where they must be converted or will be changed, where n is no multiple of `unit`, or where
// reading whole vectors of columns would leave the row.
static const uint16_t * load_tile(const struct k3_mla_panel * panel, int64_t base, int n, int unit, bool change,
                                  uint16_t * copy, int64_t * stride) {
    const uint8_t * row = panel->cache + (size_t) base * panel->row_bytes;
    const bool bf16     = panel->type == GGML_TYPE_BF16;
    if (bf16 && !change && n % unit == 0 && panel->width >= k3_mla_columns(panel->n_latent)) {
        *stride = (int64_t) (panel->row_bytes / sizeof(uint16_t));
        return (const uint16_t *) row;
    }
    *stride = key_stride(panel->width, panel->n_latent);
    for (int j = 0; j < n; j++, row += panel->row_bytes) {
        if (bf16) {
            memcpy(copy + j * *stride, row, (size_t) panel->width * sizeof(*copy));
        } else {
            round_q8_row(row, panel->width, copy + j * *stride);
        }
    }
    if (n % 2) {
        memset(copy + n * *stride, 0, (size_t) *stride * sizeof(*copy));
    }
    return copy;
}

// Positions of all lanes relative to `base`; true when a row does not see the whole tile of n.
static bool tile_ends(const struct k3_mla_panel * panel, int64_t base, int n, int lanes, int32_t * end) {
    for (int i = 0; i < lanes; i++) {
        const int64_t e = panel->position[i < panel->n_rows ? i : panel->n_rows - 1] - base;
        end[i]          = (int32_t) (e < -1 ? -1 : e < n ? e : n);
    }
    return end[0] < n - 1;
}

void k3_mla_bf16_span(const struct k3_mla_panel * panel, int64_t first, int64_t last, void * scratch,
                      const struct k3_mla_part * part) {
    const struct memory a = memory_of(panel, scratch);
    const int vectors = vectors_of(panel), lanes = (vectors ? vectors : 1) * LANES;
    const int64_t in_use    = panel->position[panel->n_rows - 1] + 1;
    last                    = last < in_use ? last : in_use;
    struct pv_args pv       = {.v       = a.v,
                               .p       = a.p,
                               .lanes   = lanes,
                               .n_rows  = panel->n_rows,
                               .f       = a.f,
                               .o       = part->o,
                               .columns = k3_mla_columns(panel->n_latent),
                               .fresh   = true};
    const int64_t pv_blocks = count_blocks(&pv);
    for (int i = 0; i < lanes; i++) {
        a.m[i] = -__builtin_inff();
        a.l[i] = 0;
    }
    const char * start = (const char *) panel->cache + (size_t) first * panel->row_bytes;
    for (size_t i = 0; i < TILE * panel->row_bytes; i += LINE_BYTES) {
        prefetch(start + i);  // unless the span before this one was the thread's, too
    }
    for (int64_t base = first; base < last; base += TILE) {
        const int n       = last - base < TILE ? (int) (last - base) : TILE;
        const bool masked = tile_ends(panel, base, n, lanes, a.end);
        pv.keys           = load_tile(panel, base, n, vectors == FEW ? 2 * LANES : 2, masked, a.keys, &pv.stride);
        // The next tile's rows come into the cache evenly over both products, the second gets what the first leaves.
        const char * next = (const char *) panel->cache + (size_t) (base + TILE) * panel->row_bytes;
        qk_tile(&a, pv.keys, pv.stride, n, panel->width, next, vectors, few_rows(panel->n_rows));
        if (vectors == FEW) {
            softmax_few(&a, n, panel->n_rows);
        } else if (masked) {
            softmax_tile(&a, n, vectors, true);
        } else {
            softmax_tile(&a, n, vectors, false);
        }
        if (masked) {
            blank_not_finite(a.keys, n, pv.stride, pv.columns);
        }
        pv.pairs      = (n + 1) / 2;
        pv.ahead      = next + n * panel->width;
        pv.ahead_step = (TILE * (int64_t) panel->row_bytes - n * panel->width) / (pv.pairs * pv_blocks);
        pv_tile(&pv, vectors == FEW);
        pv.fresh = false;
    }
    memcpy(part->m, a.m, (size_t) panel->n_rows * sizeof(float));
    memcpy(part->l, a.l, (size_t) panel->n_rows * sizeof(float));
}
