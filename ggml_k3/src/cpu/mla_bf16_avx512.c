// mla_bf16_avx512.c - attention with the bf16 dot product of AVX-512. Queries of a panel are the lanes in Q K^T, where
// pairs of a key's elements are broadcast from the cache as it lies; in P V columns are the lanes, where pairs of
// probabilities are broadcast and pairs of positions lie side by side in a copy of the tile. A Q8_0 tile is rounded to
// bf16 first: 8-bit queries would be faster, but their error is ten times that of bf16.
#include "mla_bf16.h"
#include "simd.h"

#include <stdbool.h>

enum {
    TILE        = 128,  // positions
    MAX_VECTORS = K3_MLA_ROWS / LANES,
    MAX_QK_ROWS = 12,
    HALF        = 0,  // "vectors" of a panel of at most 8 rows: half a vector
    HALF_LANES  = 8,
    PV_ROWS     = 6,
    SLAB        = 64,  // columns of the copy that lie together, as 4 vectors of pairs; the last may have 32
    STEP        = 32,  // columns; elements of one vector of bf16
    LINE        = 16,  // pairs of elements in a cache line
    LINE_BYTES  = 64,
    Q8_BLOCK    = 32,
};

// Keys at once against nv vectors of queries: as many accumulators as the registers hold.
#define QK_ROWS(nv) ((nv) > 4 ? 4 : (nv) == 4 ? 6 : (nv) > 0 ? 8 : 12)

struct memory {
    uint32_t * q;     // [width / 2][lanes], lanes 8 for HALF: pairs of bf16
    uint16_t * keys;  // [TILE][key_stride]: a Q8_0 tile in bf16
    uint32_t * v;     // [TILE / 2][columns of a slab]: pairs of bf16
    float * s;        // [TILE + MAX_QK_ROWS][lanes]: scores
    uint32_t * p;     // [TILE / 2][lanes]: pairs of bf16
    float *m, *l;     // [lanes]
    float * f;        // [lanes]: rescaling of a tile
    int32_t * end;    // [lanes]: position relative to the tile
};

// ---- memory ----------------------------------------------------------------------------------------------

// An odd number of cache lines, so that columns spread over all sets; whole vectors of columns can be read.
static int64_t key_stride(int64_t width, int64_t n_latent) {
    const int64_t n = width > k3_mla_columns(n_latent) ? width : k3_mla_columns(n_latent);
    return ((n + STEP - 1) / STEP | 1) * STEP;
}

size_t k3_mla_bf16_scratch(enum ggml_type type, int64_t n_latent, int64_t width) {
    const int64_t keys  = type == GGML_TYPE_Q8_0 ? TILE * key_stride(width, n_latent) / 2 : 0;
    const int64_t words = K3_MLA_ROWS * ((width / 2 + LANES - 1) / LANES * LANES) + keys + TILE / 2 * SLAB +
                          (TILE + MAX_QK_ROWS + TILE / 2 + 4) * K3_MLA_ROWS;
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
    return panel->n_rows <= HALF_LANES ? HALF : (panel->n_rows + LANES - 1) / LANES;
}

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

static void transpose(__m512i * a) {
    __m512i b[16];
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2) {
        b[i]     = _mm512_unpacklo_epi32(a[i], a[i + 1]);
        b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) {
        a[i]     = _mm512_unpacklo_epi64(b[i], b[i + 2]);
        a[i + 1] = _mm512_unpackhi_epi64(b[i], b[i + 2]);
        a[i + 2] = _mm512_unpacklo_epi64(b[i + 1], b[i + 3]);
        a[i + 3] = _mm512_unpackhi_epi64(b[i + 1], b[i + 3]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        const __m512i low0  = _mm512_shuffle_i32x4(a[i], a[i + 4], 0x88),
                      low1  = _mm512_shuffle_i32x4(a[i], a[i + 4], 0xdd);
        const __m512i high0 = _mm512_shuffle_i32x4(a[i + 8], a[i + 12], 0x88);
        const __m512i high1 = _mm512_shuffle_i32x4(a[i + 8], a[i + 12], 0xdd);
        b[i]                = _mm512_shuffle_i32x4(low0, high0, 0x88);
        b[i + 4]            = _mm512_shuffle_i32x4(low1, high1, 0x88);
        b[i + 8]            = _mm512_shuffle_i32x4(low0, high0, 0xdd);
        b[i + 12]           = _mm512_shuffle_i32x4(low1, high1, 0xdd);
    }
    memcpy(a, b, sizeof(b));
}

void k3_mla_bf16_pack(const struct k3_mla_panel * panel, void * scratch) {
    const struct memory a = memory_of(panel, scratch);
    const int vectors     = vectors_of(panel);
    const int64_t pairs   = panel->width / 2;
    const vf factor       = v_set((float) (panel->scale * 1.4426950408889634));
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
            transpose(x);
            for (int64_t i = 0; i < LANES && first + i < pairs; i++) {
                if (vectors == HALF) {
                    memcpy(a.q + (first + i) * HALF_LANES, &x[i], HALF_LANES * sizeof(*a.q));
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
            __builtin_prefetch(ahead);
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

// The same for 8 queries; the other lanes of s are 0.
K3_INLINE void qk_half_block(const uint32_t * q, const uint32_t * const * k, int64_t pairs, const char * ahead,
                             float * s) {
    __m256 c[MAX_QK_ROWS];
#pragma GCC unroll 16
    for (int i = 0; i < MAX_QK_ROWS; i++) {
        c[i] = _mm256_setzero_ps();
    }
    for (int64_t start = 0; start < pairs; start += LINE) {
        const int64_t stop = start + LINE < pairs ? start + LINE : pairs;
#pragma GCC unroll 16
        for (int i = 0; i < MAX_QK_ROWS / 2; i++, ahead += LINE_BYTES) {
            __builtin_prefetch(ahead);
        }
        for (int64_t d = start; d < stop; d++, q += HALF_LANES) {
            const __m256i x = _mm256_load_si256((const __m256i *) q);
#pragma GCC unroll 16
            for (int i = 0; i < MAX_QK_ROWS; i++) {
                c[i] = _mm256_dpbf16_ps(c[i], (__m256bh) x, (__m256bh) _mm256_set1_epi32((int) k[i][d]));
            }
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < MAX_QK_ROWS; i++) {
        _mm512_store_ps(s + i * LANES, _mm512_zextps256_ps512(c[i]));
    }
}

K3_INLINE void qk_vectors(const struct memory * a, const uint16_t * keys, int64_t stride, int n, int64_t width,
                          const char * ahead, int nv) {
    const int rows = QK_ROWS(nv), lanes = (nv ? nv : 1) * LANES;
    for (int j = 0; j < n; j += rows, ahead += rows * width) {
        const uint32_t * k[MAX_QK_ROWS];
#pragma GCC unroll 16
        for (int i = 0; i < rows; i++) {
            k[i] = (const uint32_t *) (keys + (j + i < n ? j + i : n - 1) * stride);
        }
        if (nv == HALF) {
            qk_half_block(a->q, k, width / 2, ahead, a->s + j * lanes);
        } else {
            qk_block(a->q, k, width / 2, ahead, a->s + j * lanes, rows, nv);
        }
    }
}

// Scores of n keys; the rows of s up to the next multiple of QK_ROWS are written too.
static void qk_tile(const struct memory * a, const uint16_t * keys, int64_t stride, int n, int64_t width,
                    const char * ahead, int vectors) {
    switch (vectors) {
        case HALF: qk_vectors(a, keys, stride, n, width, ahead, HALF); break;
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

// ---- values ----------------------------------------------------------------------------------------------

// Values that are not finite become 0 when rows must not see them all: they would be multiplied by p = 0. The rows
// that do see them are NaN by their scores.
K3_INLINE __m512i load_values(const uint16_t * row, int64_t n, bool blank) {
    const __mmask32 some = n >= STEP ? ~0u : (1u << n) - 1;
    const __m512i x = _mm512_maskz_loadu_epi16(some, row), exponent = _mm512_set1_epi16(0x7f80);
    if (!blank) {
        return x;
    }
    return _mm512_maskz_mov_epi16(_mm512_cmpneq_epi16_mask(_mm512_and_si512(x, exponent), exponent), x);
}

// Columns [column, end) of n keys to v[pairs][end - column]: pairs of positions side by side, the last of an odd number
// with zeros.
K3_INLINE void pack_slab(uint32_t * v, const uint16_t * keys, int64_t stride, int n, int64_t n_latent, int64_t column,
                         int64_t end, bool blank) {
    static const uint16_t low[32] = {0, 32, 1, 33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39,
                                     8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
    const __m512i first = _mm512_loadu_si512(low), second = _mm512_add_epi16(first, _mm512_set1_epi16(16));
    for (int j = 0; j < n; j += 2) {
        const uint16_t *x = keys + j * stride, *y = x + stride;
        for (int64_t d = column; d < end; d += STEP, v += STEP) {
            const __m512i u = load_values(x + d, n_latent - d, blank);
            const __m512i w = j + 1 < n ? load_values(y + d, n_latent - d, blank) : _mm512_setzero_si512();
            _mm512_store_si512(v, _mm512_permutex2var_epi16(u, first, w));
            _mm512_store_si512(v + LANES, _mm512_permutex2var_epi16(u, second, w));
        }
    }
}

struct pv_args {
    const uint32_t * p;  // [pairs][lanes]
    int lanes, pairs;
    const float * f;
    float * o;  // [rows][columns]
    int64_t columns;
    bool fresh;          // o starts from zeros
    const char * ahead;  // what to prefetch meanwhile
    int64_t ahead_step;  // bytes of it for each pair of a block
};

// A slab of nv vectors of columns; v: [pairs][nv vectors].
K3_INLINE void pv_block(struct pv_args * a, const uint32_t * v, int row, int64_t column, int rows, int nv) {
    vf c[PV_ROWS][SLAB / LANES];
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
    const uint32_t * p = a->p + row;
    const char * ahead = a->ahead;
    const int64_t step = a->ahead_step;
    for (int j = 0; j < a->pairs; j++, v += nv * LANES, p += a->lanes) {
        __builtin_prefetch(ahead);
        __builtin_prefetch(ahead + step / 2);
        ahead += step;
        __m512i x[SLAB / LANES];
#pragma GCC unroll 16
        for (int k = 0; k < nv; k++) {
            x[k] = _mm512_load_si512(v + k * LANES);
        }
#pragma GCC unroll 16
        for (int i = 0; i < rows; i++) {
            const __m512i w = _mm512_set1_epi32((int) p[i]);
#pragma GCC unroll 16
            for (int k = 0; k < nv; k++) {
                c[i][k] = _mm512_dpbf16_ps(c[i][k], (__m512bh) x[k], (__m512bh) w);
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

K3_INLINE void pv_slab(struct pv_args * a, const uint32_t * v, int n_rows, int64_t column, int nv) {
    for (int row = 0, n; row < n_rows; row += n) {
        const int rest = n_rows - row;
        n              = rest >= 2 * PV_ROWS ? PV_ROWS : rest > PV_ROWS ? (rest + 1) / 2 : rest;
        switch (n) {
            case 1: pv_block(a, v, row, column, 1, nv); break;
            case 2: pv_block(a, v, row, column, 2, nv); break;
            case 3: pv_block(a, v, row, column, 3, nv); break;
            case 4: pv_block(a, v, row, column, 4, nv); break;
            case 5: pv_block(a, v, row, column, 5, nv); break;
            default: pv_block(a, v, row, column, PV_ROWS, nv); break;
        }
    }
}

// Slab by slab, so that the copy stays in L1. `blank`: see load_values.
static void pv_tile(struct pv_args * a, uint32_t * v, const uint16_t * keys, int64_t stride, int n,
                    const struct k3_mla_panel * panel, bool blank) {
    for (int64_t column = 0; column < a->columns; column += SLAB) {
        const bool whole  = a->columns - column >= SLAB;
        const int64_t end = column + (whole ? SLAB : STEP);
        if (blank) {
            pack_slab(v, keys, stride, n, panel->n_latent, column, end, true);
        } else {
            pack_slab(v, keys, stride, n, panel->n_latent, column, end, false);
        }
        if (whole) {
            pv_slab(a, v, panel->n_rows, column, SLAB / LANES);
        } else {
            pv_slab(a, v, panel->n_rows, column, STEP / LANES);
        }
    }
}

// ---- spans -----------------------------------------------------------------------------------------------

static void round_q8_row(const uint8_t * row, int64_t width, uint16_t * out) {
    for (int64_t d = 0; d < width; d += Q8_BLOCK, row += 2 + Q8_BLOCK) {
        uint16_t h;
        memcpy(&h, row, sizeof(h));
        const vf scale    = _mm512_cvtph_ps(_mm256_set1_epi16((short) h));
        const __m256i q   = _mm256_loadu_si256((const __m256i *) (row + 2));
        const vf low      = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_castsi256_si128(q))) * scale;
        const vf high     = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_extracti128_si256(q, 1))) * scale;
        const __m512bh xy = _mm512_cvtne2ps_pbh(high, low);
        memcpy(out + d, &xy, sizeof(xy));
    }
}

// Keys of positions [base, base + n) in bf16; *stride: elements from one to the next.
static const uint16_t * load_tile(const struct k3_mla_panel * panel, int64_t base, int n, uint16_t * copy,
                                  int64_t * stride) {
    const uint8_t * row = panel->cache + (size_t) base * panel->row_bytes;
    if (panel->type == GGML_TYPE_BF16) {
        *stride = (int64_t) (panel->row_bytes / sizeof(uint16_t));
        return (const uint16_t *) row;
    }
    *stride = key_stride(panel->width, panel->n_latent);
    for (int j = 0; j < n; j++, row += panel->row_bytes) {
        round_q8_row(row, panel->width, copy + j * *stride);
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
    const int vectors = vectors_of(panel), full = vectors ? vectors : 1, lanes = full * LANES;
    const int64_t in_use = panel->position[panel->n_rows - 1] + 1;
    last                 = last < in_use ? last : in_use;
    struct pv_args pv    = {
           .p = a.p, .lanes = lanes, .f = a.f, .o = part->o, .columns = k3_mla_columns(panel->n_latent), .fresh = true};
    const int64_t pv_blocks = (pv.columns + SLAB - 1) / SLAB * ((panel->n_rows + PV_ROWS - 1) / PV_ROWS);
    for (int i = 0; i < lanes; i++) {
        a.m[i] = -__builtin_inff();
        a.l[i] = 0;
    }
    for (int64_t base = first; base < last; base += TILE) {
        const int n       = last - base < TILE ? (int) (last - base) : TILE;
        const bool masked = tile_ends(panel, base, n, lanes, a.end);
        int64_t stride;
        const uint16_t * keys = load_tile(panel, base, n, a.keys, &stride);
        // The next tile's rows come into the cache evenly over both products, the second gets what the first leaves.
        const char * next     = (const char *) panel->cache + (size_t) (base + TILE) * panel->row_bytes;
        qk_tile(&a, keys, stride, n, panel->width, next, vectors);
        if (masked) {
            softmax_tile(&a, n, full, true);
        } else {
            softmax_tile(&a, n, full, false);
        }
        pv.pairs      = (n + 1) / 2;
        pv.ahead      = next + n * panel->width;
        pv.ahead_step = (TILE * (int64_t) panel->row_bytes - n * panel->width) / (pv.pairs * pv_blocks);
        pv_tile(&pv, a.v, keys, stride, n, panel, masked);
        pv.fresh = false;
    }
    memcpy(part->m, a.m, (size_t) panel->n_rows * sizeof(float));
    memcpy(part->l, a.l, (size_t) panel->n_rows * sizeof(float));
}
