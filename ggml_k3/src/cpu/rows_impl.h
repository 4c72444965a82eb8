// rows_impl.h - kernels that go through rows of activations, for the instruction set of the including file.
//
// An elementwise result depends on its own inputs alone. A sum over a row of n values has one order for each n: four
// vectors of partial sums take turns, a fifth has the rest, then their lanes are added (v_sum).
#ifndef K3_ROWS_IMPL_H
#define K3_ROWS_IMPL_H

#include "rows.h"
#include "simd.h"

#include <math.h>

// ---- the end of a row ------------------------------------------------------------------------------------

// The first n < LANES values of p, then zeros.
K3_INLINE vf v_load_part(const float * p, int64_t n) {
    float lane[LANES] = {0};
    memcpy(lane, p, (size_t) n * sizeof(float));
    return v_load(lane);
}

K3_INLINE void v_store_part(float * p, vf v, int64_t n) {
    float lane[LANES];
    v_store(lane, v);
    memcpy(p, lane, (size_t) n * sizeof(float));
}

K3_INLINE vf row_load(const float * p, int64_t n) { return n >= LANES ? v_load(p) : v_load_part(p, n); }

K3_INLINE void row_store(float * p, vf v, int64_t n) {
    if (n >= LANES) {
        v_store(p, v);
    } else {
        v_store_part(p, v, n);
    }
}

// ---- functions -------------------------------------------------------------------------------------------

// tanh(x), relative error below 5e-7; NaN for NaN. Near 0, where 1 - 2 / (exp(2x) + 1) cancels, a polynomial.
K3_INLINE vf v_tanh(vf x) {
    const vi sign = (vi) x & (vi) v_set(-0.0f);
    const vf size = (vf) ((vi) x ^ sign), square = x * x;
    vf p          = v_set(-5.70498872745e-3f);
    p             = v_fma(p, square, v_set(2.06390887954e-2f));
    p             = v_fma(p, square, v_set(-5.37397155531e-2f));
    p             = v_fma(p, square, v_set(1.33314422036e-1f));
    p             = v_fma(p, square, v_set(-3.33332819422e-1f));
    const vf near = v_fma(p * square, x, x);
    const vf far  = v_set(1.0f) - v_set(2.0f) / (v_exp(size + size) + v_set(1.0f));
    return v_select((vi) (size < v_set(0.625f)), near, (vf) ((vi) far | sign));
}

// Sum of x[i] y[i].
K3_INLINE float row_dot(const float * x, const float * y, int64_t n) {
    vf sum[4] = {{0}, {0}, {0}, {0}}, rest = {0};
    int64_t at = 0;
    for (; at + 4 * LANES <= n; at += 4 * LANES) {
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            sum[i] = v_fma(v_load(x + at + i * LANES), v_load(y + at + i * LANES), sum[i]);
        }
    }
    for (; at < n; at += LANES) {
        rest = v_fma(row_load(x + at, n - at), row_load(y + at, n - at), rest);
    }
    return v_sum((sum[0] + sum[1]) + (sum[2] + sum[3]) + rest);
}

// ---- kernels ---------------------------------------------------------------------------------------------

static void rows_norm(const float * x, const float * weight, float eps, int64_t n, float * out) {
    const vf scale = v_set(1.0f / sqrtf(row_dot(x, x, n) / (float) n + eps));
    for (int64_t i = 0; i < n; i += LANES) {
        row_store(out + i, row_load(x + i, n - i) * scale * row_load(weight + i, n - i), n - i);
    }
}

static void rows_add(const float * x, const float * y, int64_t n, float * out) {
    for (int64_t i = 0; i < n; i += LANES) {
        row_store(out + i, row_load(x + i, n - i) + row_load(y + i, n - i), n - i);
    }
}

static void rows_glu(const struct ggml_k3_glu_params * p, const float * gate, const float * up, int64_t n,
                     float * out) {
    const vf beta = v_set(p->beta), scale = v_set(1.0f / p->beta);
    const vf linear_beta = v_set(p->linear_beta), linear_scale = v_set(1.0f / p->linear_beta);
    for (int64_t i = 0; i < n; i += LANES) {
        const vf g = row_load(gate + i, n - i);
        vf level = g, u = row_load(up + i, n - i);
        if (p->situ) {
            level = beta * v_tanh(g * scale);
        }
        if (p->situ && p->linear_beta > 0) {
            u = linear_beta * v_tanh(u * linear_scale);
        }
        row_store(out + i, level * v_sigmoid(g) * u, n - i);
    }
}

static void rows_gate(const float * x, const float * gate, int64_t n, float * out) {
    for (int64_t i = 0; i < n; i += LANES) {
        row_store(out + i, row_load(x + i, n - i) * v_sigmoid(row_load(gate + i, n - i)), n - i);
    }
}

static void rows_sigmoid(const float * x, int64_t n, float * out) {
    for (int64_t i = 0; i < n; i += LANES) {
        row_store(out + i, v_sigmoid(row_load(x + i, n - i)), n - i);
    }
}

static void rows_scale_add(const float * x, float scale, int64_t n, float * out) {
    for (int64_t i = 0; i < n; i += LANES) {
        row_store(out + i, v_fma(row_load(x + i, n - i), v_set(scale), row_load(out + i, n - i)), n - i);
    }
}

// ---- mix: softmax over sources, in groups of MIX so that any number of sources will do ---------------------

enum { MIX = 16 };

// out = kept out + sum_i weight[i] sources[i], in the order of the sources; kept == 0 does not read out
static void mix_add(const float * const * sources, int n_sources, const float * weight, float kept, int64_t n,
                    float * out) {
    for (int64_t at = 0; at < n; at += LANES) {
        vf sum = {0};
        if (kept > 0) {
            sum = v_set(kept) * row_load(out + at, n - at);
        }
        for (int i = 0; i < n_sources; i++) {
            sum = v_fma(row_load(sources[i] + at, n - at), v_set(weight[i]), sum);
        }
        row_store(out + at, sum, n - at);
    }
}

static void rows_mix(const float * const * sources, int n_sources, const float * score, const float * weight, float eps,
                     int64_t n, float * out) {
    float top = -INFINITY, total = 0;
    for (int first = 0; first < n_sources; first += MIX) {
        const int count         = n_sources - first < MIX ? n_sources - first : MIX;
        const float * const * x = sources + first;
        const float before      = top;
        float logit[MIX], kept[LANES];
        for (int i = 0; i < count; i++) {
            logit[i] = row_dot(x[i], score, n) / sqrtf(row_dot(x[i], x[i], n) / (float) n + eps);
            top      = logit[i] > top ? logit[i] : top;
        }
        for (int i = count; i < MIX; i++) {
            logit[i] = -INFINITY;
        }
        // -inf - -inf is no number: with no finite logit at all the result is none either
        v_store(kept, first ? v_exp(v_set(before - top)) : v_set(0.0f));
        total *= kept[0];
        for (int i = 0; i < MIX; i += LANES) {
            v_store(logit + i, v_exp(v_load(logit + i) - v_set(top)));
        }
        for (int i = 0; i < count; i++) {
            total += logit[i];
        }
        mix_add(x, count, logit, kept[0], n, out);
    }
    for (int64_t i = 0; i < n; i += LANES) {
        row_store(out + i, row_load(out + i, n - i) / v_set(total), n - i);
    }
    rows_norm(out, weight, eps, n, out);
}

#define K3_ROWS_KERNELS                                                                                                \
    {.norm      = rows_norm,                                                                                           \
     .add       = rows_add,                                                                                            \
     .glu       = rows_glu,                                                                                            \
     .gate      = rows_gate,                                                                                           \
     .mix       = rows_mix,                                                                                            \
     .sigmoid   = rows_sigmoid,                                                                                        \
     .scale_add = rows_scale_add}

#endif
