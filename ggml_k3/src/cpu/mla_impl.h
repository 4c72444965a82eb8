// mla_impl.h - kernels of attention in fp32 arithmetic, for the instruction set of the including file. Queries of a
// panel are the lanes of vectors in Q K^T, where elements of the keys are broadcast; in P V columns are the lanes.
#ifndef K3_MLA_IMPL_H
#define K3_MLA_IMPL_H

#include "mla.h"
#include "simd.h"

#include <stdbool.h>

// Tiles of accumulators that fit the registers: QK_ROWS(nv) keys x nv vectors of queries, PV_ROWS queries x PV_VECTORS
// vectors of columns.
#if defined(__AVX512F__) || defined(__aarch64__)
enum { QK_VECTORS = 6, PV_ROWS = 6, PV_VECTORS = 4 };
#define QK_ROWS(nv) ((nv) > 4 ? 4 : (nv) > 3 ? 6 : 8)
#else
enum { QK_VECTORS = 3, PV_ROWS = 6, PV_VECTORS = 2 };
#define QK_ROWS(nv) ((nv) > 2 ? 4 : (nv) > 1 ? 6 : 8)
#endif
enum { K3_MLA_LINE = 64 };  // bytes of a cache line
enum { TILE = 64, MAX_QK_ROWS = 8, PAD_ROWS = K3_MLA_ROWS + LANES };

typedef uint16_t vhalf __attribute__((vector_size(LANES * 2)));
typedef int8_t vbyte __attribute__((vector_size(LANES)));

// ---- functions -------------------------------------------------------------------------------------------

// 2^x for x <= 0: relative error below 3e-7; 0 below -127, NaN for NaN.
K3_INLINE vf v_exp2(vf x) {
    const vf magic = v_set(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer in the low bits
    const vf y     = v_max(v_set(-127.0f), x);
    const vf t     = y + magic;
    const vf r     = y - (t - magic);
    vf p           = v_set(1.540353039e-4f);
    p              = v_fma(p, r, v_set(1.333355815e-3f));
    p              = v_fma(p, r, v_set(9.618129108e-3f));
    p              = v_fma(p, r, v_set(5.550410866e-2f));
    p              = v_fma(p, r, v_set(2.402265070e-1f));
    p              = v_fma(p, r, v_set(6.931471806e-1f));
    p              = v_fma(p, r, v_set(1.0f));
    return p * (vf) (((vi) t - (vi) magic + 127) << 23);
}

K3_INLINE vf v_from_half(vhalf h) {
#if defined(__AVX512F__)
    return _mm512_cvtph_ps((__m256i) h);
#elif defined(__AVX2__)
    return _mm256_cvtph_ps((__m128i) h);
#else
    const vi bits = __builtin_convertvector(h, vi), size = bits & 0x7fff;
    const vi value   = (vi) ((vf) (size << 13) * v_set(0x1p112f));
    const vi special = (vi) (size >= 0x7c00) & 0x7f800000;
    return (vf) (value | special | (bits & 0x8000) << 16);
#endif
}

K3_INLINE vf v_from_bf16(vhalf h) { return (vf) (__builtin_convertvector(h, vi) << 16); }

K3_INLINE float half_value(uint16_t h) { return v_from_half((vhalf) {h})[0]; }

// ---- memory ----------------------------------------------------------------------------------------------

// A panel's memory. Vectors of queries are gathered in slabs of QK_VECTORS, the last one with the rest.
struct mla_memory {
    float * q;      // for each slab: [width][vectors of the slab][LANES]
    float * keys;   // [TILE][key_stride], where the cache cannot be used as it is
    float * p;      // [TILE + MAX_QK_ROWS][lanes]: scores, then probabilities
    float *m, *l;   // [lanes]
    float * f;      // [lanes]: rescaling of a tile
    int32_t * end;  // [lanes]: position relative to the tile
};

// Floats from one key to the next: an odd number of cache lines, so that columns spread over all sets.
static int64_t key_stride(int64_t width, int64_t n_latent) {
    const int64_t n = width > k3_mla_columns(n_latent) ? width : k3_mla_columns(n_latent);
    return ((n + 15) / 16 | 1) * 16;
}

static size_t mla_scratch(enum ggml_type type, int64_t n_latent, int64_t width) {
    (void) type;
    const int64_t floats = PAD_ROWS * width + TILE * key_stride(width, n_latent) + (TILE + MAX_QK_ROWS + 4) * PAD_ROWS;
    return ((size_t) floats * sizeof(float) + 63) / 64 * 64;
}

static struct mla_memory mla_memory(const struct k3_mla_panel * panel, void * scratch) {
    struct mla_memory a;
    a.keys = scratch;
    a.p    = a.keys + TILE * key_stride(panel->width, panel->n_latent);
    a.m    = a.p + (TILE + MAX_QK_ROWS) * PAD_ROWS;
    a.l    = a.m + PAD_ROWS;
    a.f    = a.l + PAD_ROWS;
    a.end  = (int32_t *) (a.f + PAD_ROWS);
    a.q    = a.f + 2 * PAD_ROWS;
    return a;
}

static int mla_vectors(const struct k3_mla_panel * panel) { return (panel->n_rows + LANES - 1) / LANES; }

// ---- queries ---------------------------------------------------------------------------------------------

K3_INLINE float query_element(const struct k3_mla_panel * panel, int row, int64_t d) {
    if (row >= panel->n_rows) {
        return 0;
    }
    return d < panel->n_latent ? panel->latent[row][d] : panel->shared[row][d - panel->n_latent];
}

static void mla_pack(const struct k3_mla_panel * panel, void * scratch) {
    enum { BLOCK = 16 };  // elements of all rows before the next ones: the lines written stay in L1
    const struct mla_memory a = mla_memory(panel, scratch);
    const float factor        = (float) (panel->scale * 1.4426950408889634);
    for (int v = 0; v < mla_vectors(panel); v += QK_VECTORS) {
        const int rest = mla_vectors(panel) - v, lanes = (rest < QK_VECTORS ? rest : QK_VECTORS) * LANES;
        float * slab = a.q + (int64_t) v * LANES * panel->width;
        for (int64_t start = 0; start < panel->width; start += BLOCK) {
            const int64_t stop = start + BLOCK < panel->width ? start + BLOCK : panel->width;
            for (int i = 0; i < lanes; i++) {
                for (int64_t d = start; d < stop; d++) {
                    slab[d * lanes + i] = query_element(panel, v * LANES + i, d) * factor;
                }
            }
        }
    }
}

// ---- keys ------------------------------------------------------------------------------------------------

K3_INLINE void widen_row(const uint16_t * row, int64_t width, float * out, bool half) {
    int64_t d = 0;
    vhalf h;
    for (; d + LANES <= width; d += LANES) {
        memcpy(&h, row + d, sizeof(h));
        v_store(out + d, half ? v_from_half(h) : v_from_bf16(h));
    }
    if (d < width) {
        h = (vhalf) {0};
        memcpy(&h, row + d, (size_t) (width - d) * sizeof(*row));
        v_store(out + d, half ? v_from_half(h) : v_from_bf16(h));
    }
}

static void widen_q8_row(const uint8_t * row, int64_t width, float * out) {
    enum { BLOCK = 32 };
    for (int64_t d = 0; d < width; d += BLOCK, row += 2 + BLOCK) {
        uint16_t h;
        memcpy(&h, row, sizeof(h));
        const vf scale = v_set(half_value(h));
#pragma GCC unroll 8
        for (int i = 0; i < BLOCK; i += LANES) {
            vbyte q;
            memcpy(&q, row + 2 + i, sizeof(q));
            v_store(out + d + i, __builtin_convertvector(__builtin_convertvector(q, vi), vf) * scale);
        }
    }
}

// Keys of positions [base, base + n) as floats; *stride: floats from one to the next. A copy where they will be
// changed, or where reading whole vectors of columns would leave the row.
static float * load_tile(const struct k3_mla_panel * panel, int64_t base, int n, bool change, float * copy,
                         int64_t * stride) {
    const uint8_t * row = panel->cache + (size_t) base * panel->row_bytes;
    if (panel->type == GGML_TYPE_F32 && !change && panel->width >= k3_mla_columns(panel->n_latent)) {
        *stride = (int64_t) (panel->row_bytes / sizeof(float));
        return (float *) (uintptr_t) row;
    }
    *stride = key_stride(panel->width, panel->n_latent);
    for (int j = 0; j < n; j++, row += panel->row_bytes) {
        float * out = copy + j * *stride;
        switch (panel->type) {
            case GGML_TYPE_F32: memcpy(out, row, (size_t) panel->width * sizeof(float)); break;
            case GGML_TYPE_F16: widen_row((const uint16_t *) row, panel->width, out, true); break;
            case GGML_TYPE_BF16: widen_row((const uint16_t *) row, panel->width, out, false); break;
            default: widen_q8_row(row, panel->width, out); break;
        }
    }
    return copy;
}

// Values that are not finite become 0: they are multiplied by the p = 0 of rows that must not see them, and the rows
// that do see them are NaN by their scores.
static void blank_not_finite(float * keys, int n, int64_t stride, int64_t columns) {
    const vi exponent = (vi) {0} + 0x7f800000;
    for (int j = 0; j < n; j++) {
        for (int64_t d = 0; d < columns; d += LANES) {
            float * at = keys + j * stride + d;
            const vf x = v_load(at);
            v_store(at, v_select(((vi) x & exponent) == exponent, (vf) {0}, x));
        }
    }
}

// ---- scores ----------------------------------------------------------------------------------------------

struct qk_args {
    const float * keys;  // [n] at stride
    int64_t stride, width;
    int n, lanes;
    const char * ahead;    // what to prefetch meanwhile: the next tile
    int64_t ahead_stride;  // bytes of it for each key
};

// s[rows][lanes of nv vectors]
K3_INLINE void qk_block(const struct qk_args * a, const float * q, const float * const * k, const char * ahead,
                        float * s, int rows, int nv) {
    enum { STEP = 16 };  // elements between prefetches
    const int lanes     = a->lanes;
    const int64_t bytes = a->ahead_stride * rows * STEP / a->width;
    vf c[MAX_QK_ROWS][QK_VECTORS];
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++) {
#pragma GCC unroll 16
        for (int v = 0; v < nv; v++) {
            c[i][v] = (vf) {0};
        }
    }
    for (int64_t start = 0; start < a->width; start += STEP) {
        const int64_t stop = start + STEP < a->width ? start + STEP : a->width;
        for (int64_t i = 0; i < bytes; i += K3_MLA_LINE) {
            __builtin_prefetch(ahead + i);
        }
        ahead += bytes;
        for (int64_t d = start; d < stop; d++, q += nv * LANES) {
            vf x[QK_VECTORS];
#pragma GCC unroll 16
            for (int v = 0; v < nv; v++) {
                x[v] = v_load(q + v * LANES);
            }
#pragma GCC unroll 16
            for (int i = 0; i < rows; i++) {
                const vf y = v_set(k[i][d]);
#pragma GCC unroll 16
                for (int v = 0; v < nv; v++) {
                    c[i][v] = v_fma(x[v], y, c[i][v]);
                }
            }
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++) {
#pragma GCC unroll 16
        for (int v = 0; v < nv; v++) {
            v_store(s + i * lanes + v * LANES, c[i][v]);
        }
    }
}

// s[j][lanes of the slab] for n keys; the rows of s up to the next multiple of QK_ROWS(nv) are written too.
K3_INLINE void qk_slab(const struct qk_args * a, const float * q, float * s, int nv) {
    const int rows = QK_ROWS(nv);
    for (int j = 0; j < a->n; j += rows) {
        const float * k[MAX_QK_ROWS];
#pragma GCC unroll 16
        for (int i = 0; i < rows; i++) {
            k[i] = a->keys + (j + i < a->n ? j + i : a->n - 1) * a->stride;
        }
        qk_block(a, q, k, a->ahead + j * a->ahead_stride, s + j * a->lanes, rows, nv);
    }
}

static void qk_tile(struct qk_args * a, const float * q, float * s) {
    const int vectors = a->lanes / LANES;
    for (int v = 0; v < vectors; v += QK_VECTORS) {
        switch (vectors - v) {
            case 1: qk_slab(a, q, s, 1); break;
            case 2: qk_slab(a, q, s, 2); break;
#if defined(__AVX512F__) || defined(__aarch64__)
            case 3: qk_slab(a, q, s, 3); break;
            case 4: qk_slab(a, q, s, 4); break;
            case 5: qk_slab(a, q, s, 5); break;
#endif
            default: qk_slab(a, q, s, QK_VECTORS); break;
        }
        q += QK_VECTORS * LANES * a->width;
        s += QK_VECTORS * LANES;
        a->ahead_stride = 0;  // the first slab has seen to it
    }
}

// ---- probabilities ---------------------------------------------------------------------------------------

// Scores p[n] to probabilities, in place; updates m and l, sets f. `masked`: lanes whose `end` is before a position
// do not see it.
K3_INLINE void softmax_tile(const struct mla_memory * a, int n, int vectors, bool masked) {
    const int lanes = vectors * LANES;
    for (int v = 0; v < vectors; v++) {
        const int at = v * LANES;
        float * p    = a->p + at;
        vi end;
        memcpy(&end, a->end + at, sizeof(end));
        const vf m = v_load(a->m + at);
        vf top     = m;
        for (int j = 0; j < n; j++) {
            vf x = v_load(p + j * lanes);
            x    = v_fma(x, (vf) {0}, x);  // NaN unless finite
            x    = masked ? v_select(end >= j, x, v_set(-__builtin_inff())) : x;
            v_store(p + j * lanes, x);
            top = v_max(x, top);
        }
        const vf f = v_exp2(m - top);
        vf sum     = v_load(a->l + at) * f;
        for (int j = 0; j < n; j++) {
            const vf x = v_exp2(v_load(p + j * lanes) - top);
            v_store(p + j * lanes, x);
            sum += x;
        }
        v_store(a->m + at, top);
        v_store(a->l + at, sum);
        v_store(a->f + at, f);
    }
}

// ---- values ----------------------------------------------------------------------------------------------

struct pv_args {
    const float * p;  // [n][lanes]
    int lanes, n;
    const float * f;
    const float * values;  // [n] at stride
    int64_t stride;
    float * o;  // [rows][columns]
    int64_t columns;
    bool fresh;  // o starts from zeros
};

K3_INLINE void pv_block(const struct pv_args * a, int row, int64_t column, int rows, int nv) {
    vf c[PV_ROWS][PV_VECTORS];
    float * o = a->o + row * a->columns + column;
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++) {
#pragma GCC unroll 16
        for (int v = 0; v < nv; v++) {
            if (a->fresh) {
                c[i][v] = (vf) {0};
            } else {
                c[i][v] = v_set(a->f[row + i]) * v_load(o + i * a->columns + v * LANES);
            }
        }
    }
    const float *y = a->values + column, *p = a->p + row;
    for (int j = 0; j < a->n; j++, y += a->stride, p += a->lanes) {
        vf x[PV_VECTORS];
#pragma GCC unroll 16
        for (int v = 0; v < nv; v++) {
            x[v] = v_load(y + v * LANES);
        }
#pragma GCC unroll 16
        for (int i = 0; i < rows; i++) {
            const vf w = v_set(p[i]);
#pragma GCC unroll 16
            for (int v = 0; v < nv; v++) {
                c[i][v] = v_fma(w, x[v], c[i][v]);
            }
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++) {
#pragma GCC unroll 16
        for (int v = 0; v < nv; v++) {
            v_store(o + i * a->columns + v * LANES, c[i][v]);
        }
    }
}

K3_INLINE void pv_columns(const struct pv_args * a, int n_rows, int64_t column, int nv) {
    for (int row = 0, n; row < n_rows; row += n) {
        const int rest = n_rows - row;
        n              = rest >= 2 * PV_ROWS ? PV_ROWS : rest > PV_ROWS ? (rest + 1) / 2 : rest;
        switch (n) {
            case 1: pv_block(a, row, column, 1, nv); break;
            case 2: pv_block(a, row, column, 2, nv); break;
            case 3: pv_block(a, row, column, 3, nv); break;
            case 4: pv_block(a, row, column, 4, nv); break;
            case 5: pv_block(a, row, column, 5, nv); break;
            default: pv_block(a, row, column, PV_ROWS, nv); break;
        }
    }
}

static void pv_tile(const struct pv_args * a, int n_rows) {
    int64_t column = 0;
    for (; column + PV_VECTORS * LANES <= a->columns; column += PV_VECTORS * LANES) {
        pv_columns(a, n_rows, column, PV_VECTORS);
    }
    if (column < a->columns) {  // AVX-512: one step of 32 columns is left
        pv_columns(a, n_rows, column,
                   K3_MLA_COLUMN_STEP / LANES < PV_VECTORS ? K3_MLA_COLUMN_STEP / LANES : PV_VECTORS);
    }
}

// ---- spans -----------------------------------------------------------------------------------------------

// Positions of all lanes relative to `base`; true when a row does not see the whole tile of n.
K3_INLINE bool tile_ends(const struct k3_mla_panel * panel, int64_t base, int n, int lanes, int32_t * end) {
    for (int i = 0; i < lanes; i++) {
        const int64_t e = panel->position[i < panel->n_rows ? i : panel->n_rows - 1] - base;
        end[i]          = (int32_t) (e < -1 ? -1 : e < n ? e : n);
    }
    return end[0] < n - 1;
}

static void mla_span(const struct k3_mla_panel * panel, int64_t first, int64_t last, void * scratch,
                     const struct k3_mla_part * part) {
    const struct mla_memory a = mla_memory(panel, scratch);
    const int vectors = mla_vectors(panel), lanes = vectors * LANES;
    const int64_t in_use = panel->position[panel->n_rows - 1] + 1;
    last                 = last < in_use ? last : in_use;
    for (int i = 0; i < lanes; i++) {
        a.m[i] = -__builtin_inff();
        a.l[i] = 0;
    }
    for (int64_t base = first; base < last; base += TILE) {
        const int n       = last - base < TILE ? (int) (last - base) : TILE;
        const bool masked = tile_ends(panel, base, n, lanes, a.end);
        int64_t stride;
        float * keys      = load_tile(panel, base, n, masked, a.keys, &stride);
        struct qk_args qk = {.keys         = keys,
                             .stride       = stride,
                             .width        = panel->width,
                             .n            = n,
                             .lanes        = lanes,
                             .ahead        = (const char *) panel->cache + (size_t) (base + TILE) * panel->row_bytes,
                             .ahead_stride = (int64_t) panel->row_bytes};
        qk_tile(&qk, a.q, a.p);
        if (masked) {
            blank_not_finite(keys, n, stride, k3_mla_columns(panel->n_latent));
            softmax_tile(&a, n, vectors, true);
        } else {
            softmax_tile(&a, n, vectors, false);
        }
        const struct pv_args pv = {.p       = a.p,
                                   .lanes   = lanes,
                                   .n       = n,
                                   .f       = a.f,
                                   .values  = keys,
                                   .stride  = stride,
                                   .o       = part->o,
                                   .columns = k3_mla_columns(panel->n_latent),
                                   .fresh   = base == first};
        pv_tile(&pv, panel->n_rows);
    }
    memcpy(part->m, a.m, (size_t) panel->n_rows * sizeof(float));
    memcpy(part->l, a.l, (size_t) panel->n_rows * sizeof(float));
}

static void mla_fold(int64_t columns, const struct k3_mla_part * into, const struct k3_mla_part * part) {
    const float m = *into->m > *part->m ? *into->m : *part->m;
    const vf a = v_exp2(v_set(*into->m - m)), b = v_exp2(v_set(*part->m - m));
    *into->m = m;
    *into->l = v_fma(v_set(*part->l), b, v_set(*into->l) * a)[0];
    for (int64_t d = 0; d < columns; d += LANES) {
        __builtin_prefetch(part->o + d + columns);  // the next row's
        v_store(into->o + d, v_fma(v_load(part->o + d), b, v_load(into->o + d) * a));
    }
}

static void mla_finish(int64_t n, const struct k3_mla_part * part, float * out) {
    const vf factor = v_set(1.0f / *part->l);
    int64_t d       = 0;
    for (; d + LANES <= n; d += LANES) {
        v_store(out + d, v_load(part->o + d) * factor + (vf) {0});
    }
    if (d < n) {
        const vf x = v_load(part->o + d) * factor + (vf) {0};
        memcpy(out + d, &x, (size_t) (n - d) * sizeof(float));
    }
}

#endif
