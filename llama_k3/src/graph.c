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
    struct ggml_tensor * bank[K3_MAX_LAYERS];  // stored block sums [n_embd, T]
    int n_bank;
} builder;

static struct ggml_tensor * norm(builder * b, struct ggml_tensor * x, struct ggml_tensor * weight, float eps) {
    return ggml_k3_norm(&b->ops, x, weight, eps);
}

static struct ggml_tensor * matmul(builder * b, struct ggml_tensor * w, struct ggml_tensor * x) {
    return ggml_k3_matmul(&b->ops, w, x);
}

// norm(mix(x))
static struct ggml_tensor * mix_norm(builder * b, struct ggml_tensor * x, struct ggml_tensor * score,
                                     struct ggml_tensor * weight) {
    return ggml_k3_attn_res(&b->ops, b->bank, b->n_bank, x, score, weight, b->hp->eps);
}

// Norm of a low-rank latent (q_a, kv_a): its eps is not that of the other norms.
static struct ggml_tensor * lora_norm(builder * b, struct ggml_tensor * x, struct ggml_tensor * weight) {
    return norm(b, x, weight, GGML_K3_MUTANT("lora-eps") ? b->hp->eps : b->hp->lora_eps);
}

// x: [n_embd, T], normed -> [n_embd, T]
static struct ggml_tensor * kda_layer(builder * b, int layer, const k3_layer * w, struct ggml_tensor * x) {
    const k3_hparams * hp                  = b->hp;
    const struct ggml_k3_kda_params params = {
        .n_head           = hp->n_head,
        .dim              = hp->kda_dim,
        .conv_width       = hp->conv_width,
        .gate_bounded     = hp->gate_bounded,
        .gate_lower_bound = hp->gate_lower_bound,
        .l2_eps           = hp->l2_eps,
        .norm_eps         = hp->eps,
        .conv             = {w->conv_q, w->conv_k, w->conv_v},
        .a                = w->a,
        .dt_bias          = w->dt_bias,
        .norm             = w->kda_norm,
    };
    struct ggml_tensor * matrices[] = {w->q, w->k, w->v, w->f_a, w->beta, w->g ? w->g : w->g_a};
    struct ggml_tensor * y[6];
    ggml_k3_matmul_group(&b->ops, matrices, 6, x, y);
    const struct ggml_k3_kda_input input = {
        .qkv         = {y[0], y[1], y[2]},
        .z           = matmul(b, w->f_b, y[3]),
        .beta_logits = y[4],
        .gate        = w->g ? y[5] : matmul(b, w->g_b, y[5]),
    };
    const struct ggml_k3_kda_memory memory = {b->cache->state[layer], b->cache->window[layer]};
    return matmul(b, w->attn_output, ggml_k3_kda(&b->ops, &params, &input, &memory));
}

// [n, T] elements [first, first + n) of each row of x
static struct ggml_tensor * part(builder * b, struct ggml_tensor * x, int64_t first, int64_t n) {
    return ggml_view_2d(b->ctx, x, n, x->ne[1], x->nb[1], (size_t) first * x->nb[0]);
}

// [n, T, n_head] elements [first, first + n) of each head of q: [width * n_head, T]
static struct ggml_tensor * head_part(builder * b, struct ggml_tensor * q, int64_t width, int64_t first, int64_t n) {
    return ggml_view_3d(b->ctx, q, n, q->ne[1], b->hp->n_head, q->nb[1], (size_t) width * q->nb[0],
                        (size_t) first * q->nb[0]);
}

// Absorbed attention: queries go through k_b into the latent space, the result comes back through v_b.
static struct ggml_tensor * mla_layer(builder * b, int layer, const k3_layer * w, struct ggml_tensor * x) {
    const k3_hparams * hp           = b->hp;
    const int64_t width             = hp->nope_dim + hp->rope_dim;
    struct ggml_tensor * matrices[] = {hp->q_lora ? w->q_a : w->mla_q, w->kv_a, w->mla_gate};
    struct ggml_tensor * y[3];
    ggml_k3_matmul_group(&b->ops, matrices, w->mla_gate ? 3 : 2, x, y);
    struct ggml_tensor * q               = hp->q_lora ? matmul(b, w->q_b, lora_norm(b, y[0], w->q_a_norm)) : y[0];
    const struct ggml_k3_mla_input input = {
        .q_latent = ggml_k3_matmul_heads(&b->ops, w->k_b, head_part(b, q, width, 0, hp->nope_dim), false),
        .q_shared = head_part(b, q, width, hp->nope_dim, hp->rope_dim),
        .latent   = lora_norm(b, part(b, y[1], 0, hp->kv_lora), w->kv_a_norm),
        .shared   = part(b, y[1], hp->kv_lora, hp->rope_dim),
    };
    struct ggml_tensor * o = ggml_k3_mla(&b->ops, 1.0f / sqrtf((float) width), &input, b->cache->latent[layer]);
    o = ggml_k3_matmul_heads(&b->ops, w->v_b, ggml_permute(b->ctx, o, 0, 2, 1, 3), true);  // [v_dim n_head, T]
    if (w->mla_gate && !GGML_K3_MUTANT("no-output-gate")) {
        o = ggml_k3_gate(&b->ops, o, y[2]);
    }
    return matmul(b, w->attn_output, o);
}

static struct ggml_k3_glu_params glu_params(const k3_hparams * hp) {
    return (struct ggml_k3_glu_params) {.situ = hp->situ, .beta = hp->situ_beta, .linear_beta = hp->situ_linear_beta};
}

// down(glu(gate x, up x)) of a dense layer
static struct ggml_tensor * mlp(builder * b, const k3_layer * w, struct ggml_tensor * x) {
    const struct ggml_k3_glu_params glu = glu_params(b->hp);
    struct ggml_tensor * matrices[]     = {w->ffn_gate, w->ffn_up};
    struct ggml_tensor * y[2];
    ggml_k3_matmul_group(&b->ops, matrices, 2, x, y);
    return matmul(b, w->ffn_down, ggml_k3_glu(&b->ops, &glu, y[0], y[1]));
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
    struct ggml_tensor * matrices[]              = {w->router, w->gate_shexp, w->up_shexp, w->routed_down};
    struct ggml_tensor *y[4], *ids, *weights;
    ggml_k3_matmul_group(&b->ops, matrices, w->routed_down ? 4 : 3, x, y);
    struct ggml_tensor * shared = matmul(b, w->down_shexp, ggml_k3_glu(&b->ops, &glu, y[1], y[2]));

    b->ops.section = GGML_K3_EXPERTS;
    ggml_k3_router(&b->ops, &router, y[0], w->router_bias, &ids, &weights);
    struct ggml_tensor * routed = ggml_k3_experts(&b->ops, &experts, &glu, w->routed_down ? y[3] : x, ids, weights);
    b->ops.section              = GGML_K3_OTHER;
    if (w->routed_norm && !GGML_K3_MUTANT("skip-latent-norm")) {
        routed = norm(b, routed, w->routed_norm, hp->eps);
    }
    if (w->routed_up) {
        routed = matmul(b, w->routed_up, routed);
    }
    return ggml_k3_add(&b->ops, routed, shared);
}

// One layer: `x` is the residual stream, or the running sum of the present block.
static struct ggml_tensor * layer(builder * b, int i, const k3_layer * w, struct ggml_tensor * x) {
    const k3_hparams * hp  = b->hp;
    const bool kda         = hp->layer_kind[i] == LLAMA_K3_LAYER_KDA;
    struct ggml_tensor * h = mix_norm(b, x, w->attn_res_score, w->attn_norm);
    if (hp->attn_res_block && i % hp->attn_res_block == 0) {
        b->bank[b->n_bank++] = x;  // the raw sum, not the mix; the stream starts anew
        x                    = NULL;
    }
    b->ops.section         = kda ? GGML_K3_KDA : GGML_K3_MLA;
    struct ggml_tensor * y = kda ? kda_layer(b, i, w, h) : mla_layer(b, i, w, h);
    b->ops.section         = GGML_K3_OTHER;
    x                      = x ? ggml_k3_add(&b->ops, x, y) : y;
    h                      = mix_norm(b, x, w->ffn_res_score, w->ffn_norm);
    return ggml_k3_add(&b->ops, x, i < hp->n_dense ? mlp(b, w, h) : moe_layer(b, i, w, h));
}

// Upper bound of graph nodes and of tensors (views included) over all layers.
static size_t max_nodes(const k3_hparams * hp, const k3_ubatch * batch, enum ggml_k3_form form) {
    if (form == GGML_K3_FAST) {
        enum { PER_LAYER = 64 };
        return (size_t) hp->n_layer * PER_LAYER + PER_LAYER;
    }
    const size_t n_bank    = hp->attn_res_block ? (size_t) (hp->n_layer / hp->attn_res_block) + 2 : 0;
    const size_t per_layer = 192 + 48 * (size_t) batch->n_segments + 16 * n_bank + 4 * (size_t) hp->n_expert_used;
    return (size_t) hp->n_layer * per_layer + 16 * n_bank + 256;
}

// Memory for the parameters of fast nodes, pointers to the stored sums included.
static size_t arena_size(const k3_hparams * hp) {
    enum { NODES_PER_LAYER = 32 };
    const size_t n_layer = (size_t) hp->n_layer;
    const size_t bank    = hp->attn_res_block ? n_layer / (size_t) hp->attn_res_block + 1 : 0;
    return (n_layer + 1) * (NODES_PER_LAYER * GGML_K3_NODE_BYTES + 2 * bank * sizeof(void *));
}

static int start(builder * b, k3_graph * g, k3_ubatch * batch, k3_error e) {
    const size_t n                       = max_nodes(b->hp, batch, b->ops.form);
    const size_t size                    = ggml_graph_overhead_custom(n, false) + n * ggml_tensor_overhead();
    g->memory                            = malloc(size);  // ggml would abort without it
    const struct ggml_init_params params = {.mem_size = size, .mem_buffer = g->memory, .no_alloc = true};
    const bool fast                      = b->ops.form == GGML_K3_FAST;
    g->ctx                               = g->memory ? ggml_init(params) : NULL;
    g->masks                             = calloc((size_t) batch->n_segments, sizeof(*g->masks));
    g->arena                             = (struct ggml_k3_arena) {.size = fast ? arena_size(b->hp) : 0};
    g->arena.data                        = fast ? malloc(g->arena.size) : NULL;
    if (!g->ctx || !g->masks || (fast && !g->arena.data)) {
        return k3_fail(e, LLAMA_K3_MEMORY, "graph: no memory for %zu nodes", n);
    }
    g->nodes     = ggml_new_graph_custom(g->ctx, n, false);
    b->ctx       = g->ctx;
    b->ops.ctx   = g->ctx;
    b->ops.graph = g->nodes;
    b->ops.arena = &g->arena;
    b->ops.batch = &batch->ops;
    batch->ops   = (struct ggml_k3_batch) {batch->segments, batch->n_segments, g->masks};
    g->tokens    = ggml_new_tensor_1d(g->ctx, GGML_TYPE_I32, batch->n_tokens);
    ggml_set_input(g->tokens);
    for (int i = 0; !fast && i < batch->n_segments; i++) {
        const struct ggml_k3_segment * s = &batch->segments[i];
        if (s->n > 1) {
            g->masks[i] = ggml_new_tensor_2d(g->ctx, GGML_TYPE_F16, s->position + s->n, s->n);
            ggml_set_input(g->masks[i]);
        }
    }
    return LLAMA_K3_OK;
}

int k3_graph_build(k3_graph * g, const k3_hparams * hp, const k3_weights * w, const k3_cache * cache, k3_ubatch * batch,
                   enum ggml_k3_form form, k3_error e) {
    *g         = (k3_graph) {.n_tokens = batch->n_tokens, .n_outputs = batch->n_outputs, .form = form};
    builder b  = {.ops = {.form = form, .section = GGML_K3_OTHER}, .g = g, .hp = hp, .cache = cache};
    int status = start(&b, g, batch, e);
    if (status) {
        return status;
    }
    struct ggml_tensor * x = ggml_k3_get_rows(&b.ops, w->token_embd, g->tokens);
    for (int i = 0; i < hp->n_layer; i++) {
        if (GGML_K3_MUTANT("skip-layer") && i == hp->n_layer / 2) {
            continue;
        }
        x = layer(&b, i, &w->layer[i], x);
    }
    if (batch->n_outputs > 0) {
        g->outputs = ggml_new_tensor_1d(b.ctx, GGML_TYPE_I32, batch->n_outputs);
        ggml_set_input(g->outputs);
        x         = mix_norm(&b, x, w->output_res_score, w->output_norm);
        g->logits = matmul(&b, w->output, ggml_k3_get_rows(&b.ops, x, g->outputs));
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

// The fault of building a mask of all positions for every token.
static void make_masks(const k3_ubatch * batch) {
    for (int i = 0; i < batch->n_segments; i++) {
        const struct ggml_k3_segment * s = &batch->segments[i];
        struct ggml_tensor mask          = {.nb = {2, 2 * (size_t) (s->position + s->n)}};
        mask.data                        = malloc(mask.nb[1] * (size_t) s->n);
        if (mask.data) {
            fill_mask(&mask, s);
        }
        free(mask.data);
    }
}

void k3_graph_set_inputs(const k3_graph * g, const k3_ubatch * batch) {
    memcpy(g->tokens->data, batch->tokens, (size_t) batch->n_tokens * sizeof(int32_t));
    if (g->outputs) {
        memcpy(g->outputs->data, batch->outputs, (size_t) batch->n_outputs * sizeof(int32_t));
    }
    if (GGML_K3_MUTANT("mask-per-token")) {
        make_masks(batch);
    }
    for (int i = 0; g->form != GGML_K3_FAST && i < batch->n_segments; i++) {
        if (g->masks[i]) {
            fill_mask(g->masks[i], &batch->segments[i]);
        }
    }
}

void k3_graph_free(k3_graph * g) {
    ggml_k3_plan_free(&g->plan);
    ggml_free(g->ctx);
    free(g->memory);
    free(g->masks);
    free(g->arena.data);
    *g = (k3_graph) {0};
}
