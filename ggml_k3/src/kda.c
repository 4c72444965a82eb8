// kda.c - Kimi Delta Attention between the projections: short convolution, SiLU, L2 norm, decay gate, delta rule,
// head norm, output gate.
// Stock form: per segment ggml_ssm_conv and ggml_gated_delta_net in its per-channel form (which takes log decays and
// scales q by 1/sqrt(dim) itself).
#include "cpu/kda.h"
#include "ggml_k3.h"
#include "ggml_k3_mutant.h"

#include <math.h>

// Columns [first, first + n) of a contiguous [rows, T] tensor.
static struct ggml_tensor * columns(struct ggml_context * ctx, struct ggml_tensor * x,
                                    const struct ggml_k3_segment * s) {
    return ggml_view_2d(ctx, x, x->ne[0], s->n, x->nb[1], (size_t) s->first * x->nb[1]);
}

// [D, T] log decays
static struct ggml_tensor * decay(struct ggml_context * ctx, const struct ggml_k3_kda_params * p,
                                  struct ggml_tensor * z) {
    const int64_t n_tokens = z->ne[1];
    struct ggml_tensor * a = ggml_reshape_2d(ctx, p->a, 1, p->n_head);
    z                      = ggml_reshape_3d(ctx, ggml_add(ctx, z, p->dt_bias), p->dim, p->n_head, n_tokens);
    struct ggml_tensor * g;
    if (p->gate_bounded && !GGML_K3_MUTANT("softplus-gate")) {
        struct ggml_tensor * minus_az = ggml_neg(ctx, ggml_mul(ctx, z, a));
        g                             = ggml_scale(ctx, ggml_sigmoid(ctx, minus_az), p->gate_lower_bound);
    } else {
        g = ggml_mul(ctx, ggml_softplus(ctx, z), a);
    }
    return ggml_reshape_2d(ctx, g, p->dim * p->n_head, n_tokens);
}

// Place `index` of a memory whose places lie `per_place` along dimension `dim`.
static struct ggml_tensor * place(struct ggml_context * ctx, struct ggml_tensor * m, int dim, int64_t per_place,
                                  int32_t index) {
    return ggml_view_3d(ctx, m, m->ne[0], m->ne[1], dim == 2 ? per_place : m->ne[2], m->nb[1], m->nb[2],
                        (size_t) (index * per_place) * m->nb[dim]);
}

// Convolves channel group i (q, k or v) of a segment over its window, writes the new window, applies SiLU: [D, n]
static struct ggml_tensor * convolve(struct ggml_k3_builder * b, const struct ggml_k3_kda_params * p, int i,
                                     struct ggml_tensor * x, struct ggml_tensor * windows,
                                     const struct ggml_k3_segment * s) {
    const int64_t channels = x->ne[0], n = x->ne[1], past = p->conv_width - 1;
    struct ggml_tensor * before = place(b->ctx, windows, 2, 1, 3 * s->state_in + i);
    struct ggml_tensor * after  = place(b->ctx, windows, 2, 1, 3 * s->state_out + i);
    struct ggml_tensor * series = ggml_concat(b->ctx, before, ggml_cont(b->ctx, ggml_transpose(b->ctx, x)), 0);
    struct ggml_tensor * newest = ggml_view_2d(b->ctx, series, past, channels, series->nb[1],
                                               (size_t) n * series->nb[0]);
    ggml_build_forward_expand(b->graph, ggml_cpy(b->ctx, newest, after));
    struct ggml_tensor * taps = ggml_reshape_2d(b->ctx, p->conv[i], p->conv_width, channels);
    series                    = ggml_reshape_3d(b->ctx, series, past + n, channels, 1);
    return ggml_silu(b->ctx, ggml_reshape_2d(b->ctx, ggml_ssm_conv(b->ctx, series, taps), channels, n));
}

// x / sqrt(sum(x^2) + eps) over a head's channels: [dim, n_head, n]. ggml_l2_norm clamps the root instead.
static struct ggml_tensor * l2_norm(struct ggml_context * ctx, const struct ggml_k3_kda_params * p,
                                    struct ggml_tensor * x) {
    struct ggml_tensor * heads = ggml_reshape_3d(ctx, x, p->dim, p->n_head, x->ne[1]);
    return ggml_scale(ctx, ggml_rms_norm(ctx, heads, p->l2_eps / (float) p->dim), 1.0f / sqrtf((float) p->dim));
}

// The fault of decaying behind the delta correction: each token sees the decay of the one before it.
static struct ggml_tensor * delayed(struct ggml_context * ctx, struct ggml_tensor * g) {
    struct ggml_tensor * first = ggml_scale(ctx, ggml_view_2d(ctx, g, g->ne[0], 1, g->nb[1], 0), 0.0f);
    if (g->ne[1] == 1) {
        return first;
    }
    return ggml_concat(ctx, first, ggml_cont(ctx, ggml_view_2d(ctx, g, g->ne[0], g->ne[1] - 1, g->nb[1], 0)), 1);
}

// One segment: [D, n]
static struct ggml_tensor * segment(struct ggml_k3_builder * b, const struct ggml_k3_kda_params * p,
                                    const struct ggml_k3_kda_input * in, struct ggml_tensor * g,
                                    struct ggml_tensor * beta, const struct ggml_k3_kda_memory * memory,
                                    const struct ggml_k3_segment * s) {
    struct ggml_context * ctx = b->ctx;
    struct ggml_tensor * x[3];
    for (int i = 0; i < 3; i++) {
        x[i] = convolve(b, p, i, columns(ctx, in->qkv[i], s), memory->window, s);
    }
    g = columns(ctx, g, s);
    if (GGML_K3_MUTANT("decay-after-delta")) {
        g = delayed(ctx, g);
    }
    struct ggml_tensor * before = place(ctx, memory->state, 3, 1, s->state_in);
    if (GGML_K3_MUTANT("swap-state-axes")) {
        before = ggml_cont(ctx, ggml_permute(ctx, before, 1, 0, 2, 3));
    }
    const int64_t channels      = p->dim * p->n_head;
    struct ggml_tensor * packed = ggml_gated_delta_net(
        ctx, l2_norm(ctx, p, x[0]), l2_norm(ctx, p, x[1]), ggml_reshape_3d(ctx, x[2], p->dim, p->n_head, s->n),
        ggml_reshape_3d(ctx, g, p->dim, p->n_head, s->n),
        ggml_reshape_3d(ctx, columns(ctx, beta, s), 1, p->n_head, s->n), before, 1);
    struct ggml_tensor * after = ggml_view_3d(ctx, packed, p->dim, p->dim, p->n_head, (size_t) p->dim * sizeof(float),
                                              (size_t) (p->dim * p->dim) * sizeof(float),
                                              (size_t) (channels * s->n) * sizeof(float));
    ggml_build_forward_expand(b->graph, ggml_cpy(ctx, after, place(ctx, memory->state, 3, 1, s->state_out)));
    return ggml_view_2d(ctx, packed, channels, s->n, (size_t) channels * sizeof(float), 0);
}

struct ggml_tensor * ggml_k3_kda(struct ggml_k3_builder * b, const struct ggml_k3_kda_params * p,
                                 const struct ggml_k3_kda_input * in, const struct ggml_k3_kda_memory * memory) {
    if (b->form == GGML_K3_FAST) {
        return k3_kda_fast(b, p, in, memory);
    }
    struct ggml_tensor * g    = decay(b->ctx, p, in->z);
    struct ggml_tensor * beta = ggml_sigmoid(b->ctx, in->beta_logits);
    struct ggml_tensor * out  = NULL;
    for (int i = 0; i < b->batch->n_segments; i++) {
        struct ggml_tensor * o = segment(b, p, in, g, beta, memory, &b->batch->segments[i]);
        out                    = out ? ggml_concat(b->ctx, out, o, 1) : o;
    }
    const int64_t channels = out->ne[0], n_tokens = out->ne[1];
    out = ggml_k3_norm(b, ggml_reshape_3d(b->ctx, out, p->dim, p->n_head, n_tokens), p->norm, p->norm_eps);
    out = ggml_reshape_2d(b->ctx, out, channels, n_tokens);
    return GGML_K3_MUTANT("no-output-gate") ? out : ggml_k3_gate(b, out, in->gate);
}
