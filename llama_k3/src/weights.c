// weights.c - binds tensors to their places by tables of {name, place, type, dimensions}, one table for each kind of
// block. After the tables are through, every tensor left over is an error.
#include "weights.h"

#include "ggml.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

// Types the runtime computes with in a place. MXFP4 scales of 255 (NaN) are not looked for: that would read all data.
typedef enum type_class { TYPE_F32, TYPE_MATRIX, TYPE_EXPERTS } type_class;

// Dimensions by their meaning; the numbers are in a dim_sizes.
typedef enum dim {
    DIM_NONE,  // 1: behind the last dimension
    DIM_EMBD,
    DIM_VOCAB,
    DIM_HEADS,
    DIM_KDA,           // n_head * kda_dim
    DIM_KDA_HEAD,      // kda_dim
    DIM_TAPS,          // conv_width
    DIM_Q_LORA,        // q_lora
    DIM_QUERY,         // n_head * (nope_dim + rope_dim)
    DIM_ROW,           // kv_lora + rope_dim
    DIM_KV_LORA,       // kv_lora
    DIM_NOPE,          // nope_dim
    DIM_VALUE,         // v_dim
    DIM_VALUES,        // n_head * v_dim
    DIM_FF,            // n_ff
    DIM_EXPERTS,       // n_expert
    DIM_EXPERT_WIDTH,  // width of the experts' input and output
    DIM_EXPERT_FF,     // n_ff_expert
    DIM_SHARED_FF,     // n_ff_expert * n_expert_shared
    DIM_COUNT,
} dim;

typedef struct dim_sizes {
    int64_t of[DIM_COUNT];
} dim_sizes;

typedef enum presence { REQUIRED, OPTIONAL } presence;

typedef struct place {
    const char * name;  // behind "blk.N." in a layer
    size_t offset;      // of the pointer in k3_weights or k3_layer
    type_class type;
    uint8_t dims[3];  // dim, the contiguous one first
    presence presence;
} place;

#define GLOBAL(field) offsetof(k3_weights, field)
#define LAYER(field) offsetof(k3_layer, field)

static const place global_places[] = {
    {"token_embd.weight", GLOBAL(token_embd), TYPE_MATRIX, {DIM_EMBD, DIM_VOCAB}, REQUIRED},
    {"output_norm.weight", GLOBAL(output_norm), TYPE_F32, {DIM_EMBD}, REQUIRED},
    {"output.weight", GLOBAL(output), TYPE_MATRIX, {DIM_EMBD, DIM_VOCAB}, REQUIRED},
};

static const place global_residual_places[] = {
    {"output_res_score.weight", GLOBAL(output_res_score), TYPE_F32, {DIM_EMBD}, REQUIRED},
};

static const place layer_places[] = {
    {"attn_norm.weight", LAYER(attn_norm), TYPE_F32, {DIM_EMBD}, REQUIRED},
    {"ffn_norm.weight", LAYER(ffn_norm), TYPE_F32, {DIM_EMBD}, REQUIRED},
};

static const place layer_residual_places[] = {
    {"attn_res_score.weight", LAYER(attn_res_score), TYPE_F32, {DIM_EMBD}, REQUIRED},
    {"ffn_res_score.weight", LAYER(ffn_res_score), TYPE_F32, {DIM_EMBD}, REQUIRED},
};

static const place kda_places[] = {
    {"attn_q.weight", LAYER(q), TYPE_MATRIX, {DIM_EMBD, DIM_KDA}, REQUIRED},
    {"attn_k.weight", LAYER(k), TYPE_MATRIX, {DIM_EMBD, DIM_KDA}, REQUIRED},
    {"attn_v.weight", LAYER(v), TYPE_MATRIX, {DIM_EMBD, DIM_KDA}, REQUIRED},
    {"ssm_conv1d_q.weight", LAYER(conv_q), TYPE_F32, {DIM_TAPS, DIM_NONE, DIM_KDA}, REQUIRED},
    {"ssm_conv1d_k.weight", LAYER(conv_k), TYPE_F32, {DIM_TAPS, DIM_NONE, DIM_KDA}, REQUIRED},
    {"ssm_conv1d_v.weight", LAYER(conv_v), TYPE_F32, {DIM_TAPS, DIM_NONE, DIM_KDA}, REQUIRED},
    {"ssm_f_a.weight", LAYER(f_a), TYPE_MATRIX, {DIM_EMBD, DIM_KDA_HEAD}, REQUIRED},
    {"ssm_f_b.weight", LAYER(f_b), TYPE_MATRIX, {DIM_KDA_HEAD, DIM_KDA}, REQUIRED},
    {"ssm_beta.weight", LAYER(beta), TYPE_MATRIX, {DIM_EMBD, DIM_HEADS}, REQUIRED},
    {"ssm_a", LAYER(a), TYPE_F32, {DIM_HEADS}, REQUIRED},
    {"ssm_dt.bias", LAYER(dt_bias), TYPE_F32, {DIM_KDA}, REQUIRED},
    {"ssm_norm.weight", LAYER(kda_norm), TYPE_F32, {DIM_KDA_HEAD}, REQUIRED},
    {"attn_output.weight", LAYER(attn_output), TYPE_MATRIX, {DIM_KDA, DIM_EMBD}, REQUIRED},
};

static const place full_gate_places[] = {
    {"ssm_g.weight", LAYER(g), TYPE_MATRIX, {DIM_EMBD, DIM_KDA}, REQUIRED},
};

static const place low_rank_gate_places[] = {
    {"ssm_g_a.weight", LAYER(g_a), TYPE_MATRIX, {DIM_EMBD, DIM_KDA_HEAD}, REQUIRED},
    {"ssm_g_b.weight", LAYER(g_b), TYPE_MATRIX, {DIM_KDA_HEAD, DIM_KDA}, REQUIRED},
};

static const place mla_places[] = {
    {"attn_kv_a_mqa.weight", LAYER(kv_a), TYPE_MATRIX, {DIM_EMBD, DIM_ROW}, REQUIRED},
    {"attn_kv_a_norm.weight", LAYER(kv_a_norm), TYPE_F32, {DIM_KV_LORA}, REQUIRED},
    {"attn_k_b.weight", LAYER(k_b), TYPE_MATRIX, {DIM_NOPE, DIM_KV_LORA, DIM_HEADS}, REQUIRED},
    {"attn_v_b.weight", LAYER(v_b), TYPE_MATRIX, {DIM_KV_LORA, DIM_VALUE, DIM_HEADS}, REQUIRED},
    {"attn_gate.weight", LAYER(mla_gate), TYPE_MATRIX, {DIM_EMBD, DIM_VALUES}, OPTIONAL},
    {"attn_output.weight", LAYER(attn_output), TYPE_MATRIX, {DIM_VALUES, DIM_EMBD}, REQUIRED},
};

static const place query_places[] = {
    {"attn_q.weight", LAYER(mla_q), TYPE_MATRIX, {DIM_EMBD, DIM_QUERY}, REQUIRED},
};

static const place query_lora_places[] = {
    {"attn_q_a.weight", LAYER(q_a), TYPE_MATRIX, {DIM_EMBD, DIM_Q_LORA}, REQUIRED},
    {"attn_q_a_norm.weight", LAYER(q_a_norm), TYPE_F32, {DIM_Q_LORA}, REQUIRED},
    {"attn_q_b.weight", LAYER(q_b), TYPE_MATRIX, {DIM_Q_LORA, DIM_QUERY}, REQUIRED},
};

static const place dense_places[] = {
    {"ffn_gate.weight", LAYER(ffn_gate), TYPE_MATRIX, {DIM_EMBD, DIM_FF}, REQUIRED},
    {"ffn_up.weight", LAYER(ffn_up), TYPE_MATRIX, {DIM_EMBD, DIM_FF}, REQUIRED},
    {"ffn_down.weight", LAYER(ffn_down), TYPE_MATRIX, {DIM_FF, DIM_EMBD}, REQUIRED},
};

static const place expert_places[] = {
    {"ffn_gate_inp.weight", LAYER(router), TYPE_F32, {DIM_EMBD, DIM_EXPERTS}, REQUIRED},
    {"exp_probs_b.bias", LAYER(router_bias), TYPE_F32, {DIM_EXPERTS}, REQUIRED},
    {"ffn_gate_exps.weight", LAYER(gate_exps), TYPE_EXPERTS, {DIM_EXPERT_WIDTH, DIM_EXPERT_FF, DIM_EXPERTS}, REQUIRED},
    {"ffn_up_exps.weight", LAYER(up_exps), TYPE_EXPERTS, {DIM_EXPERT_WIDTH, DIM_EXPERT_FF, DIM_EXPERTS}, REQUIRED},
    {"ffn_down_exps.weight", LAYER(down_exps), TYPE_EXPERTS, {DIM_EXPERT_FF, DIM_EXPERT_WIDTH, DIM_EXPERTS}, REQUIRED},
    {"ffn_gate_shexp.weight", LAYER(gate_shexp), TYPE_MATRIX, {DIM_EMBD, DIM_SHARED_FF}, REQUIRED},
    {"ffn_up_shexp.weight", LAYER(up_shexp), TYPE_MATRIX, {DIM_EMBD, DIM_SHARED_FF}, REQUIRED},
    {"ffn_down_shexp.weight", LAYER(down_shexp), TYPE_MATRIX, {DIM_SHARED_FF, DIM_EMBD}, REQUIRED},
};

static const place latent_places[] = {
    {"ffn_routed_down.weight", LAYER(routed_down), TYPE_MATRIX, {DIM_EMBD, DIM_EXPERT_WIDTH}, REQUIRED},
    {"ffn_routed_norm.weight", LAYER(routed_norm), TYPE_F32, {DIM_EXPERT_WIDTH}, OPTIONAL},
    {"ffn_routed_up.weight", LAYER(routed_up), TYPE_MATRIX, {DIM_EXPERT_WIDTH, DIM_EMBD}, REQUIRED},
};

typedef struct binder {
    k3_tensor_index * index;
    dim_sizes sizes;
    char * base;      // k3_weights or k3_layer that the offsets refer to
    char prefix[24];  // "" or "blk.N."
    k3_error e;
} binder;

static dim_sizes sizes_of(const k3_hparams * hp) {
    dim_sizes s = {{
        [DIM_NONE]         = 1,
        [DIM_EMBD]         = hp->n_embd,
        [DIM_VOCAB]        = hp->n_vocab,
        [DIM_HEADS]        = hp->n_head,
        [DIM_KDA]          = k3_kda_channels(hp),
        [DIM_KDA_HEAD]     = hp->kda_dim,
        [DIM_TAPS]         = hp->conv_width,
        [DIM_Q_LORA]       = hp->q_lora,
        [DIM_QUERY]        = (int64_t) hp->n_head * (hp->nope_dim + hp->rope_dim),
        [DIM_ROW]          = k3_row_width(hp),
        [DIM_KV_LORA]      = hp->kv_lora,
        [DIM_NOPE]         = hp->nope_dim,
        [DIM_VALUE]        = hp->v_dim,
        [DIM_VALUES]       = (int64_t) hp->n_head * hp->v_dim,
        [DIM_FF]           = hp->n_ff,
        [DIM_EXPERTS]      = hp->n_expert,
        [DIM_EXPERT_WIDTH] = k3_expert_width(hp),
        [DIM_EXPERT_FF]    = hp->n_ff_expert,
        [DIM_SHARED_FF]    = (int64_t) hp->n_ff_expert * hp->n_expert_shared,
    }};
    return s;
}

static bool type_allowed(type_class type, enum ggml_type found) {
    switch (found) {
        case GGML_TYPE_F32: return true;
        case GGML_TYPE_F16:
        case GGML_TYPE_BF16:
        case GGML_TYPE_Q8_0: return type != TYPE_F32;
        case GGML_TYPE_MXFP4: return type == TYPE_EXPERTS;
        default: return false;
    }
}

static const char * type_wanted(type_class type) {
    switch (type) {
        case TYPE_F32: return "F32";
        case TYPE_MATRIX: return "F32, F16, BF16 or Q8_0";
        default: return "MXFP4, Q8_0, BF16, F16 or F32";
    }
}

static const char * name_of(const binder * b, const char * name, char buffer[GGML_MAX_NAME]) {
    snprintf(buffer, GGML_MAX_NAME, "%s%s", b->prefix, name);
    return buffer;
}

// Binary search; NULL when there is none.
static k3_tensor_entry * find_entry(const binder * b, const char * name) {
    char full[GGML_MAX_NAME];
    uint64_t low = 0, high = b->index->n;
    name_of(b, name, full);
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        int order       = strcmp(full, b->index->entries[middle].tensor->name);
        if (order == 0) {
            return &b->index->entries[middle];
        }
        if (order < 0) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return NULL;
}

// Files of llama.cpp for Kimi-Linear hold ssm_a as one column for each head, [1, n_head].
static bool is_column_of_heads(const place * p, const struct ggml_tensor * t) {
    return p->dims[0] == DIM_HEADS && p->dims[1] == DIM_NONE && t->ne[0] == 1 && t->ne[2] == 1 && t->ne[3] == 1;
}

static int check_shape(const binder * b, const place * p, const struct ggml_tensor * t) {
    const int64_t heads     = b->sizes.of[DIM_HEADS];
    const bool column       = is_column_of_heads(p, t);
    const int64_t wanted[4] = {
        column ? 1 : b->sizes.of[p->dims[0]],
        column ? heads : b->sizes.of[p->dims[1]],
        b->sizes.of[p->dims[2]],
        1,
    };
    for (int i = 0; i < 4; i++) {
        if (t->ne[i] != wanted[i]) {
            return k3_fail(b->e, LLAMA_K3_MODEL_TENSOR_SHAPE,
                           "tensor %s: dimension %d: found %" PRId64 ", wanted %" PRId64, t->name, i, t->ne[i],
                           wanted[i]);
        }
    }
    return LLAMA_K3_OK;
}

static int bind_place(const binder * b, const place * p) {
    k3_tensor_entry * entry = find_entry(b, p->name);
    if (!entry) {
        char name[GGML_MAX_NAME];
        return p->presence == OPTIONAL
                   ? LLAMA_K3_OK
                   : k3_fail(b->e, LLAMA_K3_MODEL_TENSOR_MISSING,
                             "tensor %s: missing, wanted [%" PRId64 ", %" PRId64 ", %" PRId64 "] in %s",
                             name_of(b, p->name, name), b->sizes.of[p->dims[0]], b->sizes.of[p->dims[1]],
                             b->sizes.of[p->dims[2]], type_wanted(p->type));
    }
    struct ggml_tensor * t = entry->tensor;
    if (!type_allowed(p->type, t->type)) {
        return k3_fail(b->e, LLAMA_K3_MODEL_TENSOR_TYPE, "tensor %s: type: found %s, wanted %s", t->name,
                       ggml_type_name(t->type), type_wanted(p->type));
    }
    int status = check_shape(b, p, t);
    if (!status) {
        *(struct ggml_tensor **) (b->base + p->offset) = t;
        entry->bound                                   = true;
    }
    return status;
}

static int bind_places(const binder * b, const place * places, size_t n) {
    for (size_t i = 0; i < n; i++) {
        int status = bind_place(b, &places[i]);
        if (status) {
            return status;
        }
    }
    return LLAMA_K3_OK;
}

#define BIND(b, places) bind_places(b, places, sizeof(places) / sizeof((places)[0]))

static int bind_kda(const binder * b) {
    int status = BIND(b, kda_places);
    if (status) {
        return status;
    }
    bool low_rank = find_entry(b, "ssm_g_a.weight") && !find_entry(b, "ssm_g.weight");
    return low_rank ? BIND(b, low_rank_gate_places) : BIND(b, full_gate_places);
}

static int bind_mla(const binder * b, const k3_hparams * hp) {
    k3_tensor_entry * joint = find_entry(b, "attn_kv_b.weight");
    if (joint) {
        return k3_fail(b->e, LLAMA_K3_MODEL_TENSOR_EXTRA,
                       "tensor %s: found the joint form of older files, wanted attn_k_b and attn_v_b",
                       joint->tensor->name);
    }
    int status = hp->q_lora > 0 ? BIND(b, query_lora_places) : BIND(b, query_places);
    return status ? status : BIND(b, mla_places);
}

static int bind_ffn(const binder * b, const k3_hparams * hp, int32_t layer) {
    if (layer < hp->n_dense) {
        return BIND(b, dense_places);
    }
    int status = BIND(b, expert_places);
    return status || hp->n_latent == 0 ? status : BIND(b, latent_places);
}

static int bind_layer(binder * b, k3_layer * place_of_layer, const k3_hparams * hp, int32_t layer) {
    snprintf(b->prefix, sizeof(b->prefix), "blk.%d.", layer);
    b->base    = (char *) place_of_layer;
    int status = BIND(b, layer_places);
    if (!status && hp->attn_res_block > 0) {
        status = BIND(b, layer_residual_places);
    }
    if (!status) {
        status = hp->layer_kind[layer] == LLAMA_K3_LAYER_KDA ? bind_kda(b) : bind_mla(b, hp);
    }
    return status ? status : bind_ffn(b, hp, layer);
}

static int check_left_over(const binder * b, const k3_hparams * hp) {
    const char * first = NULL;
    uint64_t n         = 0;
    for (uint64_t i = 0; i < b->index->n; i++) {
        if (!b->index->entries[i].bound) {
            first = first ? first : b->index->entries[i].tensor->name;
            n++;
        }
    }
    if (n > 0) {
        return k3_fail(b->e, LLAMA_K3_MODEL_TENSOR_EXTRA,
                       "tensor %s: has no place in a %s model (%" PRIu64 " such tensors)", first, hp->architecture, n);
    }
    return LLAMA_K3_OK;
}

int k3_weights_bind(k3_weights * w, const k3_hparams * hp, k3_tensor_index * index, k3_error e) {
    *w         = (k3_weights) {0};
    binder b   = {.index = index, .sizes = sizes_of(hp), .base = (char *) w, .e = e};
    int status = BIND(&b, global_places);
    if (!status && hp->attn_res_block > 0) {
        status = BIND(&b, global_residual_places);
    }
    for (int32_t layer = 0; layer < hp->n_layer && !status; layer++) {
        status = bind_layer(&b, &w->layer[layer], hp, layer);
    }
    return status ? status : check_left_over(&b, hp);
}
