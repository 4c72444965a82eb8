// graph.c - the graph builder. k3_graph_build reads top to bottom as the model does:
//   x = embed(tokens)
//   per layer: h = norm(mix(x)); [store x as a block sum]; x = x + (KDA | MLA)(h); x = x + (dense | experts)(norm(mix(x)))
//   logits = output(norm(mix(x)))
// where mix is the attention-residual mix (K3), the identity without it (Kimi-Linear). MODEL.md has the formulas.
#include "graph.h"

#include "ggml_k3_mutant.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// Everything a layer needs; lives for one build.
typedef struct builder {
    struct ggml_k3_builder ops;
    struct ggml_context * ctx;
    k3_graph * g;
    const k3_hparams * hp;
    const k3_cache * cache;
    const k3_ubatch * batch;
    struct ggml_tensor * bank[K3_MAX_LAYERS];  // stored block sums [n_embd, T]
    int n_bank;
} builder;

static struct ggml_tensor * norm(builder * b, struct ggml_tensor * x, struct ggml_tensor * weight, float eps) {
    return ggml_mul(b->ctx, ggml_rms_norm(b->ctx, x, eps), weight);
}

static struct ggml_tensor * matmul(builder * b, struct ggml_tensor * w, struct ggml_tensor * x) {
    return ggml_k3_matmul(&b->ops, w, x);
}

static struct ggml_tensor * mix(builder * b, struct ggml_tensor * x, struct ggml_tensor * score) {
    return ggml_k3_attn_res(&b->ops, b->bank, b->n_bank, x, score, b->hp->eps);
}

// Norm of a low-rank latent (q_a, kv_a): its eps is not that of the other norms.
static struct ggml_tensor * lora_norm(builder * b, struct ggml_tensor * x, struct ggml_tensor * weight) {
    return norm(b, x, weight, GGML_K3_MUTANT("lora-eps") ? b->hp->eps : b->hp->lora_eps);
}

static struct ggml_tensor * gated(builder * b, struct ggml_tensor * x, struct ggml_tensor * gate) {
    return GGML_K3_MUTANT("no-output-gate") ? x : ggml_mul(b->ctx, x, ggml_sigmoid(b->ctx, gate));
}

// Views of the halves of a segment's sequence that a KDA layer reads and writes.
static struct ggml_k3_kda_state kda_state(builder * b, int layer, int segment) {
    const k3_cache * c    = b->cache;
    struct ggml_tensor *s = c->state[layer], *w = c->window[layer];
    const size_t read  = 2 * (size_t) b->batch->seq[segment] + (size_t) c->seq[b->batch->seq[segment]].active;
    const size_t write = read ^ 1;
    return (struct ggml_k3_kda_state) {
        .state_in   = ggml_view_3d(b->ctx, s, s->ne[0], s->ne[1], s->ne[2], s->nb[1], s->nb[2], read * s->nb[3]),
        .state_out  = ggml_view_3d(b->ctx, s, s->ne[0], s->ne[1], s->ne[2], s->nb[1], s->nb[2], write * s->nb[3]),
        .window_in  = ggml_view_3d(b->ctx, w, w->ne[0], w->ne[1], 3, w->nb[1], w->nb[2], read * 3 * w->nb[2]),
        .window_out = ggml_view_3d(b->ctx, w, w->ne[0], w->ne[1], 3, w->nb[1], w->nb[2], write * 3 * w->nb[2]),
    };
}

// x: [n_embd, T], normed -> [n_embd, T]
static struct ggml_tensor * kda_layer(builder * b, int layer, const k3_layer * w, struct ggml_tensor * x) {
    const k3_hparams * hp  = b->hp;
    const int64_t n_tokens = x->ne[1], channels = k3_kda_channels(hp);
    const struct ggml_k3_kda_params params = {
        .n_head           = hp->n_head,
        .dim              = hp->kda_dim,
        .conv_width       = hp->conv_width,
        .gate_bounded     = hp->gate_bounded,
        .gate_lower_bound = hp->gate_lower_bound,
        .l2_eps           = hp->l2_eps,
        .conv             = {w->conv_q, w->conv_k, w->conv_v},
        .a                = w->a,
        .dt_bias          = w->dt_bias,
    };
    const struct ggml_k3_kda_input input = {
        .qkv         = {matmul(b, w->q, x), matmul(b, w->k, x), matmul(b, w->v, x)},
        .z           = matmul(b, w->f_b, matmul(b, w->f_a, x)),
        .beta_logits = matmul(b, w->beta, x),
    };
    struct ggml_k3_kda_state * states = calloc((size_t) b->batch->n_segments, sizeof(*states));
    if (!states) {
        return NULL;
    }
    for (int i = 0; i < b->batch->n_segments; i++) {
        states[i] = kda_state(b, layer, i);
    }
    struct ggml_tensor * o = ggml_k3_kda(&b->ops, &params, &input, b->batch->segments, states, b->batch->n_segments);
    free(states);

    o = norm(b, ggml_reshape_3d(b->ctx, o, hp->kda_dim, hp->n_head, n_tokens), w->kda_norm, hp->eps);
    struct ggml_tensor * gate = w->g ? matmul(b, w->g, x) : matmul(b, w->g_b, matmul(b, w->g_a, x));
    return matmul(b, w->attn_output, gated(b, ggml_reshape_2d(b->ctx, o, channels, n_tokens), gate));
}

// [kv_lora + rope, T, n_head] absorbed queries: nope part through k_b, rope part as it is
static struct ggml_tensor * mla_queries(builder * b, const k3_layer * w, struct ggml_tensor * x) {
    const k3_hparams * hp = b->hp;
    const int64_t width = hp->nope_dim + hp->rope_dim, n_tokens = x->ne[1];
    struct ggml_tensor * q = hp->q_lora ? matmul(b, w->q_b, lora_norm(b, matmul(b, w->q_a, x), w->q_a_norm))
                                        : matmul(b, w->mla_q, x);
    q                      = ggml_permute(b->ctx, ggml_reshape_3d(b->ctx, q, width, hp->n_head, n_tokens), 0, 2, 1, 3);
    struct ggml_tensor * nope = ggml_view_3d(b->ctx, q, hp->nope_dim, n_tokens, hp->n_head, q->nb[1], q->nb[2], 0);
    struct ggml_tensor * rope = ggml_view_3d(b->ctx, q, hp->rope_dim, n_tokens, hp->n_head, q->nb[1], q->nb[2],
                                             (size_t) hp->nope_dim * q->nb[0]);
    return ggml_concat(b->ctx, matmul(b, w->k_b, nope), rope, 0);
}

// [kv_lora + rope, T] cache rows: normed latent, raw shared key part
static struct ggml_tensor * mla_rows(builder * b, const k3_layer * w, struct ggml_tensor * x) {
    const k3_hparams * hp       = b->hp;
    struct ggml_tensor * kv     = matmul(b, w->kv_a, x);
    struct ggml_tensor * latent = ggml_view_2d(b->ctx, kv, hp->kv_lora, x->ne[1], kv->nb[1], 0);
    struct ggml_tensor * shared = ggml_view_2d(b->ctx, kv, hp->rope_dim, x->ne[1], kv->nb[1],
                                               (size_t) hp->kv_lora * kv->nb[0]);
    return ggml_concat(b->ctx, lora_norm(b, latent, w->kv_a_norm), shared, 0);
}

static struct ggml_tensor * mla_layer(builder * b, int layer, const k3_layer * w, struct ggml_tensor * x) {
    const k3_hparams * hp     = b->hp;
    const int64_t n_tokens    = x->ne[1];
    const k3_cache * c        = b->cache;
    struct ggml_tensor * q    = mla_queries(b, w, x);
    struct ggml_tensor * rows = mla_rows(b, w, x);
    for (int i = 0; i < b->batch->n_segments; i++) {
        struct ggml_tensor * all = c->latent[layer];
        b->g->masks[i].rows      = ggml_view_2d(b->ctx, all, all->ne[0], all->ne[1], all->nb[1],
                                                (size_t) b->batch->seq[i] * all->nb[2]);
    }
    const float scale      = 1.0f / sqrtf((float) (hp->nope_dim + hp->rope_dim));
    struct ggml_tensor * o = ggml_k3_mla(&b->ops, hp->kv_lora, scale, q, rows, b->batch->segments, b->g->masks,
                                         b->batch->n_segments);                       // [kv_lora, n_head, T]
    o                      = matmul(b, w->v_b, ggml_permute(b->ctx, o, 0, 2, 1, 3));  // [v_dim, T, n_head]
    o = ggml_cont_2d(b->ctx, ggml_permute(b->ctx, o, 0, 2, 1, 3), (int64_t) hp->v_dim * hp->n_head, n_tokens);
    if (w->mla_gate) {
        o = gated(b, o, matmul(b, w->mla_gate, x));
    }
    return matmul(b, w->attn_output, o);
}

static struct ggml_k3_glu_params glu_params(const k3_hparams * hp) {
    return (struct ggml_k3_glu_params) {.situ = hp->situ, .beta = hp->situ_beta, .linear_beta = hp->situ_linear_beta};
}

// down(glu(gate x, up x))
static struct ggml_tensor * mlp(builder * b, struct ggml_tensor * gate, struct ggml_tensor * up,
                                struct ggml_tensor * down, struct ggml_tensor * x) {
    const struct ggml_k3_glu_params glu = glu_params(b->hp);
    return matmul(b, down, ggml_k3_glu(&b->ops, &glu, matmul(b, gate, x), matmul(b, up, x)));
}

// The router and the shared experts read x at full width; the routed experts its latent, where there is one.
static struct ggml_tensor * moe_layer(builder * b, int layer, const k3_layer * w, struct ggml_tensor * x) {
    const k3_hparams * hp                     = b->hp;
    const struct ggml_k3_glu_params glu       = glu_params(hp);
    const struct ggml_k3_router_params router = {
        .n_used     = hp->n_expert_used,
        .normalise  = hp->expert_weights_norm,
        .scale      = hp->expert_weights_scale,
        .n_distinct = &b->g->n_distinct[layer],
    };
    const struct ggml_k3_experts_weights experts = {w->gate_exps, w->up_exps, w->down_exps};
    struct ggml_tensor *ids, *weights;
    ggml_k3_router(&b->ops, &router, matmul(b, w->router, x), w->router_bias, &ids, &weights);
    struct ggml_tensor * latent = w->routed_down ? matmul(b, w->routed_down, x) : x;
    struct ggml_tensor * y      = ggml_k3_experts(&b->ops, &experts, &glu, latent, ids, weights);
    if (w->routed_norm && !GGML_K3_MUTANT("skip-latent-norm")) {
        y = norm(b, y, w->routed_norm, hp->eps);
    }
    if (w->routed_up) {
        y = matmul(b, w->routed_up, y);
    }
    return ggml_add(b->ctx, y, mlp(b, w->gate_shexp, w->up_shexp, w->down_shexp, x));
}

// One layer: `x` is the residual stream, or the running sum of the present block.
static struct ggml_tensor * layer(builder * b, int i, const k3_layer * w, struct ggml_tensor * x) {
    const k3_hparams * hp  = b->hp;
    struct ggml_tensor * h = norm(b, mix(b, x, w->attn_res_score), w->attn_norm, hp->eps);
    if (hp->attn_res_block && i % hp->attn_res_block == 0) {
        b->bank[b->n_bank++] = x;  // the raw sum, not the mix; the stream starts anew
        x                    = NULL;
    }
    struct ggml_tensor * y = hp->layer_kind[i] == LLAMA_K3_LAYER_KDA ? kda_layer(b, i, w, h) : mla_layer(b, i, w, h);
    if (!y) {
        return NULL;
    }
    x = x ? ggml_add(b->ctx, x, y) : y;
    h = norm(b, mix(b, x, w->ffn_res_score), w->ffn_norm, hp->eps);
    y = i < hp->n_dense ? mlp(b, w->ffn_gate, w->ffn_up, w->ffn_down, h) : moe_layer(b, i, w, h);
    return ggml_add(b->ctx, x, y);
}

// Upper bound of graph nodes and of tensors (views included) over all layers.
static size_t max_nodes(const k3_hparams * hp, const k3_ubatch * batch) {
    const size_t n_bank    = hp->attn_res_block ? (size_t) (hp->n_layer / hp->attn_res_block) + 2 : 0;
    const size_t per_layer = 192 + 48 * (size_t) batch->n_segments + 16 * n_bank + 4 * (size_t) hp->n_expert_used;
    return (size_t) hp->n_layer * per_layer + 16 * n_bank + 256;
}

static int start(builder * b, k3_graph * g, const k3_ubatch * batch, k3_error e) {
    const size_t n                       = max_nodes(b->hp, batch);
    const struct ggml_init_params params = {
        .mem_size = ggml_graph_overhead_custom(n, false) + n * ggml_tensor_overhead(), .no_alloc = true};
    g->ctx   = ggml_init(params);
    g->masks = calloc((size_t) batch->n_segments, sizeof(*g->masks));
    if (!g->ctx || !g->masks) {
        return k3_fail(e, LLAMA_K3_MEMORY, "graph: no memory for %zu nodes", n);
    }
    g->nodes     = ggml_new_graph_custom(g->ctx, n, false);
    b->ctx       = g->ctx;
    b->ops.ctx   = g->ctx;
    b->ops.graph = g->nodes;
    g->tokens    = ggml_new_tensor_1d(g->ctx, GGML_TYPE_I32, batch->n_tokens);
    ggml_set_input(g->tokens);
    for (int i = 0; i < batch->n_segments; i++) {
        const struct ggml_k3_segment * s = &batch->segments[i];
        if (s->n > 1) {
            g->masks[i].mask = ggml_new_tensor_2d(g->ctx, GGML_TYPE_F16, s->position + s->n, s->n);
            ggml_set_input(g->masks[i].mask);
        }
    }
    return LLAMA_K3_OK;
}

int k3_graph_build(k3_graph * g, const k3_hparams * hp, const k3_weights * w, const k3_cache * cache,
                   const k3_ubatch * batch, enum ggml_k3_form form, k3_error e) {
    *g         = (k3_graph) {0};
    builder b  = {.ops = {.form = form}, .g = g, .hp = hp, .cache = cache, .batch = batch};
    int status = start(&b, g, batch, e);
    if (status) {
        return status;
    }
    struct ggml_tensor * x = ggml_get_rows(b.ctx, w->token_embd, g->tokens);
    for (int i = 0; i < hp->n_layer; i++) {
        if (GGML_K3_MUTANT("skip-layer") && i == hp->n_layer / 2) {
            continue;
        }
        x = layer(&b, i, &w->layer[i], x);
        if (!x) {
            return k3_fail(e, LLAMA_K3_MEMORY, "graph: no memory for %d segments", batch->n_segments);
        }
    }
    if (batch->n_outputs > 0) {
        g->outputs = ggml_new_tensor_1d(b.ctx, GGML_TYPE_I32, batch->n_outputs);
        ggml_set_input(g->outputs);
        x         = ggml_get_rows(b.ctx, mix(&b, x, w->output_res_score), g->outputs);
        g->logits = matmul(&b, w->output, norm(&b, x, w->output_norm, hp->eps));
        ggml_set_output(g->logits);
        x = g->logits;
    }
    ggml_build_forward_expand(g->nodes, x);
    return LLAMA_K3_OK;
}

// 0 where query i of the segment may look (its own position and before), -inf elsewhere, as fp16 bits
static void fill_mask(struct ggml_tensor * mask, const struct ggml_k3_segment * s) {
    enum { ZERO = 0x0000, MINUS_INFINITY = 0xFC00 };
    const int64_t n_kv = s->position + s->n;
    for (int64_t i = 0; i < s->n; i++) {
        uint16_t * row = (uint16_t *) ((char *) mask->data + (size_t) i * mask->nb[1]);
        for (int64_t j = 0; j < n_kv; j++) {
            row[j] = j <= s->position + i ? ZERO : MINUS_INFINITY;
        }
    }
}

void k3_graph_set_inputs(const k3_graph * g, const k3_ubatch * batch) {
    memcpy(g->tokens->data, batch->tokens, (size_t) batch->n_tokens * sizeof(int32_t));
    if (g->outputs) {
        memcpy(g->outputs->data, batch->outputs, (size_t) batch->n_outputs * sizeof(int32_t));
    }
    for (int i = 0; i < batch->n_segments; i++) {
        if (g->masks[i].mask) {
            fill_mask(g->masks[i].mask, &batch->segments[i]);
        }
    }
}

void k3_graph_free(k3_graph * g) {
    ggml_free(g->ctx);
    free(g->masks);
    g->ctx   = NULL;
    g->masks = NULL;
}
