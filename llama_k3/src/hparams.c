// hparams.c - reads and checks the hyper-parameters. Both architectures share one set of keys; which of them are
// required is the only place where the architecture's name counts.
#include "hparams.h"

#include "meta.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

// Limits far above the real models, so that products of a few of these values stay within 64 bits.
enum {
    MAX_WIDTH      = 1 << 20,
    MAX_HEADS      = 4096,
    MAX_HEAD_WIDTH = 4096,
    MAX_VOCABULARY = 1 << 24,
    MAX_TAPS       = 16,
    GATING_SIGMOID = 2,  // value of expert_gating_func
};
static const double default_eps = 1e-6, min_eps = 1e-12, max_eps = 1.0, max_float = 1e6;

static const char arch_k3[] = "kimi-k3", arch_linear[] = "kimi-linear";

static bool is_k3(const k3_hparams * hp) { return strcmp(hp->architecture, arch_k3) == 0; }

static void read_architecture(k3_hparams * hp, k3_meta_reader * r) {
    if (k3_meta_find(r, "general.architecture") < 0) {
        r->status = k3_fail(r->e, LLAMA_K3_MODEL_ARCHITECTURE, "key general.architecture: missing, wanted %s or %s",
                            arch_k3, arch_linear);
        return;
    }
    const char * name = k3_meta_string(r, "general.architecture");
    if (name && strcmp(name, arch_k3) != 0 && strcmp(name, arch_linear) != 0) {
        r->status = k3_fail(r->e, LLAMA_K3_MODEL_ARCHITECTURE, "key general.architecture: found %.64s, wanted %s or %s",
                            name, arch_k3, arch_linear);
        return;
    }
    if (name) {
        strcpy(hp->architecture, strcmp(name, arch_k3) == 0 ? arch_k3 : arch_linear);
        r->prefix = hp->architecture;
    }
}

static void read_sizes(k3_hparams * hp, k3_meta_reader * r) {
    hp->n_layer        = (int32_t) k3_meta_int(r, ".block_count", 1, K3_MAX_LAYERS);
    hp->n_ctx_train    = (int32_t) k3_meta_int(r, ".context_length", 1, INT32_MAX);
    hp->n_embd         = (int32_t) k3_meta_int(r, ".embedding_length", 1, MAX_WIDTH);
    hp->n_ff           = (int32_t) k3_meta_int(r, ".feed_forward_length", 1, MAX_WIDTH);
    hp->n_dense        = (int32_t) k3_meta_int_or(r, ".leading_dense_block_count", 0, hp->n_layer, 0);
    hp->n_head         = (int32_t) k3_meta_int(r, ".attention.head_count", 1, MAX_HEADS);
    hp->eps            = k3_meta_float(r, ".attention.layer_norm_rms_epsilon", min_eps, max_eps);
    // Layers between two stored block sums; Kimi-Linear has plain residual connections.
    hp->attn_res_block = is_k3(hp) ? (int32_t) k3_meta_int(r, ".attn_res.block_size", 0, K3_MAX_LAYERS)
                                   : (int32_t) k3_meta_int_or(r, ".attn_res.block_size", 0, K3_MAX_LAYERS, 0);
}

static void read_kda(k3_hparams * hp, k3_meta_reader * r) {
    hp->kda_dim      = (int32_t) k3_meta_int(r, ".kda.head_dim", 1, MAX_HEAD_WIDTH);
    hp->conv_width   = (int32_t) k3_meta_int(r, ".ssm.conv_kernel", 2, MAX_TAPS);
    hp->l2_eps       = k3_meta_float_or(r, "llama_k3.l2_norm_epsilon", min_eps, max_eps, (float) default_eps);
    hp->gate_bounded = k3_meta_find(r, ".kda.gate_lower_bound") >= 0;
    if (hp->gate_bounded) {
        hp->gate_lower_bound = k3_meta_float(r, ".kda.gate_lower_bound", -max_float, -1e-6);
    }
}

static void read_mla(k3_hparams * hp, k3_meta_reader * r) {
    hp->q_lora        = (int32_t) k3_meta_int_or(r, ".attention.q_lora_rank", 0, MAX_WIDTH, 0);
    hp->kv_lora       = (int32_t) k3_meta_int(r, ".attention.kv_lora_rank", 1, MAX_WIDTH);
    hp->rope_dim      = (int32_t) k3_meta_int(r, ".rope.dimension_count", 1, MAX_HEAD_WIDTH);
    hp->v_dim         = (int32_t) k3_meta_int(r, ".attention.value_length_mla", 1, MAX_HEAD_WIDTH);
    hp->lora_eps      = k3_meta_float_or(r, "llama_k3.lora_norm_epsilon", min_eps, max_eps, (float) default_eps);
    // Width of a head's key without absorption: its own part and the shared one.
    int64_t key_width = k3_meta_int(r, ".attention.key_length_mla", 1 + (int64_t) hp->rope_dim, 2 * MAX_HEAD_WIDTH);
    hp->nope_dim      = (int32_t) (key_width - hp->rope_dim);
    // Width of a cache row.
    k3_meta_int(r, ".attention.key_length", k3_row_width(hp), k3_row_width(hp));
}

static void read_experts(k3_hparams * hp, k3_meta_reader * r) {
    hp->n_expert             = (int32_t) k3_meta_int(r, ".expert_count", 1, K3_MAX_EXPERTS);
    int32_t most_used        = hp->n_expert < K3_MAX_EXPERTS_USED ? hp->n_expert : K3_MAX_EXPERTS_USED;
    hp->n_expert_used        = (int32_t) k3_meta_int(r, ".expert_used_count", 1, most_used);
    hp->n_expert_shared      = (int32_t) k3_meta_int(r, ".expert_shared_count", 1, K3_MAX_EXPERTS_USED);
    hp->n_ff_expert          = (int32_t) k3_meta_int(r, ".expert_feed_forward_length", 1, MAX_WIDTH);
    hp->n_latent             = (int32_t) k3_meta_int_or(r, ".expert_latent_length", 0, MAX_WIDTH, 0);
    // Files written by llama.cpp leave the norm out for Kimi-Linear, which has it.
    hp->expert_weights_norm  = k3_meta_bool_or(r, ".expert_weights_norm", true);
    hp->expert_weights_scale = k3_meta_float_or(r, ".expert_weights_scale", 1e-6, max_float, 1.0f);
    k3_meta_int(r, ".expert_gating_func", GATING_SIGMOID, GATING_SIGMOID);
    // Group-limited routing is not implemented; one group is none.
    k3_meta_int_or(r, ".expert_group_count", 0, 1, 1);
    k3_meta_int_or(r, ".expert_group_used_count", 0, 1, 1);
}

static void read_activation(k3_hparams * hp, k3_meta_reader * r) {
    hp->situ = is_k3(hp) || k3_meta_find(r, ".activation.situ_beta") >= 0;
    if (hp->situ) {
        hp->situ_beta        = k3_meta_float(r, ".activation.situ_beta", 1e-6, max_float);
        hp->situ_linear_beta = k3_meta_float(r, ".activation.situ_linear_beta", -max_float, max_float);
    }
}

// The shared key part is not rotated, so that no way of scaling a rotation can apply; `key` says that there is none.
static bool is_no_scaling(const struct gguf_context * gguf, int64_t id, const char * key) {
    switch (gguf_get_kv_type(gguf, id)) {
        case GGUF_TYPE_STRING: return strcmp(key, "type") == 0 && strcmp(gguf_get_val_str(gguf, id), "none") == 0;
        case GGUF_TYPE_FLOAT32: return strcmp(key, "factor") == 0 && gguf_get_val_f32(gguf, id) == 1.0f;
        default: return false;
    }
}

// The value of a string or float, else the type.
static const char * describe(const struct gguf_context * gguf, int64_t id, char buffer[32]) {
    switch (gguf_get_kv_type(gguf, id)) {
        case GGUF_TYPE_STRING: return gguf_get_val_str(gguf, id);
        case GGUF_TYPE_FLOAT32: snprintf(buffer, 32, "%g", (double) gguf_get_val_f32(gguf, id)); return buffer;
        default: return k3_meta_type_name(gguf, id, buffer, 32);
    }
}

static void check_rope_scaling(k3_meta_reader * r) {
    char prefix[64], found[32];
    int length = snprintf(prefix, sizeof(prefix), "%s.rope.scaling.", r->prefix);
    for (int64_t id = 0; id < gguf_get_n_kv(r->gguf) && !r->status; id++) {
        const char * key = gguf_get_key(r->gguf, id);
        if (strncmp(key, prefix, (size_t) length) == 0 && !is_no_scaling(r->gguf, id, key + length)) {
            r->status = k3_fail(r->e, LLAMA_K3_MODEL_KEY_VALUE,
                                "key %.80s: found %.40s, wanted no scaling: positions are not rotated", key,
                                describe(r->gguf, id, found));
        }
    }
}

// head_count_kv has one entry for each layer: 0 marks a KDA layer.
static void read_layer_kinds(k3_hparams * hp, k3_meta_reader * r) {
    static const char key[] = ".attention.head_count_kv";
    int64_t id              = k3_meta_find(r, key);
    if (!r->status && id >= 0 && gguf_get_kv_type(r->gguf, id) != GGUF_TYPE_ARRAY) {
        r->status = k3_fail(r->e, LLAMA_K3_MODEL_KEY_TYPE,
                            "key %s%s: found one value, wanted an array of integers, one for each layer: 0 marks a KDA "
                            "layer, 1 an MLA layer",
                            r->prefix, key);
        return;
    }
    uint64_t n = k3_meta_int_array(r, key, &id);
    if (r->status) {
        return;
    }
    if (n != (uint64_t) hp->n_layer) {
        r->status = k3_fail(r->e, LLAMA_K3_MODEL_LAYER_KINDS,
                            "key %s.attention.head_count_kv: elements: found %" PRIu64 ", wanted %d", r->prefix, n,
                            hp->n_layer);
        return;
    }
    for (int32_t layer = 0; layer < hp->n_layer; layer++) {
        int64_t n_head_kv = k3_meta_element(r->gguf, id, (uint64_t) layer).i;
        if (n_head_kv < 0 || n_head_kv > hp->n_head) {
            r->status = k3_fail(r->e, LLAMA_K3_MODEL_LAYER_KINDS,
                                "layer %d: key %s.attention.head_count_kv: found %" PRId64
                                ", wanted 0 (KDA) or 1 (MLA)",
                                layer, r->prefix, n_head_kv);
            return;
        }
        hp->layer_kind[layer] = n_head_kv == 0 ? LLAMA_K3_LAYER_KDA : LLAMA_K3_LAYER_MLA;
    }
}

// Our own key names the kinds; it also knows layers that are neither, which the runtime does not have.
static void check_layer_kinds(const k3_hparams * hp, k3_meta_reader * r) {
    static const char key[] = "llama_k3.layer_kinds";
    if (r->status || k3_meta_find(r, key) < 0) {
        return;
    }
    int64_t id;
    uint64_t n = k3_meta_string_array(r, key, &id);
    if (r->status) {
        return;
    }
    if (n != (uint64_t) hp->n_layer) {
        r->status = k3_fail(r->e, LLAMA_K3_MODEL_LAYER_KINDS, "key %s: elements: found %" PRIu64 ", wanted %d", key, n,
                            hp->n_layer);
        return;
    }
    for (int32_t layer = 0; layer < hp->n_layer; layer++) {
        const char * found  = gguf_get_arr_str(r->gguf, id, (size_t) layer);
        const char * wanted = hp->layer_kind[layer] == LLAMA_K3_LAYER_KDA ? "kda" : "mla";
        if (strcmp(found, wanted) != 0) {
            r->status = k3_fail(r->e, LLAMA_K3_MODEL_LAYER_KINDS,
                                "layer %d: key %s: found %.32s, wanted %s as in attention.head_count_kv", layer, key,
                                found, wanted);
            return;
        }
    }
}

static void read_vocabulary_size(k3_hparams * hp, k3_meta_reader * r) {
    if (k3_meta_find(r, "tokenizer.ggml.tokens") < 0) {
        hp->n_vocab = (int32_t) k3_meta_int(r, ".vocab_size", 1, MAX_VOCABULARY);
        return;
    }
    int64_t id;
    uint64_t n = k3_meta_string_array(r, "tokenizer.ggml.tokens", &id);
    if (!r->status && (n < 1 || n > MAX_VOCABULARY)) {
        r->status = k3_fail(r->e, LLAMA_K3_MODEL_VOCABULARY,
                            "key tokenizer.ggml.tokens: elements: found %" PRIu64 ", wanted 1 to %d", n,
                            MAX_VOCABULARY);
        return;
    }
    hp->n_vocab        = (int32_t) n;
    int64_t vocab_size = k3_meta_int_or(r, ".vocab_size", INT64_MIN, INT64_MAX, hp->n_vocab);
    if (!r->status && vocab_size != hp->n_vocab) {
        r->status = k3_fail(r->e, LLAMA_K3_MODEL_VOCABULARY,
                            "key %s.vocab_size: found %" PRId64 ", wanted %d as in tokenizer.ggml.tokens", r->prefix,
                            vocab_size, hp->n_vocab);
    }
}

static void check_token_types(const k3_hparams * hp, k3_meta_reader * r) {
    static const char key[] = "tokenizer.ggml.token_type";
    enum { MAX_TOKEN_TYPE = 6 };
    int64_t id;
    if (r->status || k3_meta_find(r, key) < 0) {
        return;
    }
    uint64_t n = k3_meta_int_array(r, key, &id);
    if (!r->status && n != (uint64_t) hp->n_vocab) {
        r->status = k3_fail(r->e, LLAMA_K3_MODEL_VOCABULARY, "key %s: elements: found %" PRIu64 ", wanted %d", key, n,
                            hp->n_vocab);
    }
    for (uint64_t i = 0; i < n && !r->status; i++) {
        int64_t type = k3_meta_element(r->gguf, id, i).i;
        if (type < 0 || type > MAX_TOKEN_TYPE) {
            r->status = k3_fail(r->e, LLAMA_K3_MODEL_VOCABULARY,
                                "token %" PRIu64 ": key %s: found %" PRId64 ", wanted 0 to %d", i, key, type,
                                MAX_TOKEN_TYPE);
        }
    }
}

// Every tokenizer.ggml.*_token_id, also those that the runtime does not use.
static void check_special_ids(const k3_hparams * hp, k3_meta_reader * r) {
    static const char prefix[] = "tokenizer.ggml.", suffix[] = "_token_id";
    for (int64_t i = 0; i < gguf_get_n_kv(r->gguf) && !r->status; i++) {
        const char * key = gguf_get_key(r->gguf, i);
        size_t length    = strlen(key);
        if (strncmp(key, prefix, strlen(prefix)) != 0 || length < strlen(prefix) + strlen(suffix) ||
            strcmp(key + length - strlen(suffix), suffix) != 0) {
            continue;
        }
        int64_t id = k3_meta_int(r, key, INT64_MIN, INT64_MAX);
        if (!r->status && (id < 0 || id >= hp->n_vocab)) {
            r->status = k3_fail(r->e, LLAMA_K3_MODEL_VOCABULARY, "key %.80s: found %" PRId64 ", wanted 0 to %d", key,
                                id, hp->n_vocab - 1);
        }
    }
}

static void read_vocabulary(k3_hparams * hp, k3_meta_reader * r) {
    read_vocabulary_size(hp, r);
    check_token_types(hp, r);
    check_special_ids(hp, r);
    hp->bos_id = (int32_t) k3_meta_int_or(r, "tokenizer.ggml.bos_token_id", 0, INT32_MAX, -1);
    hp->eos_id = (int32_t) k3_meta_int_or(r, "tokenizer.ggml.eos_token_id", 0, INT32_MAX, -1);
    hp->pad_id = (int32_t) k3_meta_int_or(r, "tokenizer.ggml.padding_token_id", 0, INT32_MAX, -1);
}

int k3_hparams_read(k3_hparams * hp, const struct gguf_context * gguf, k3_error e) {
    *hp              = (k3_hparams) {0};
    k3_meta_reader r = {.gguf = gguf, .prefix = "", .e = e};
    read_architecture(hp, &r);
    if (r.status) {
        return r.status;
    }
    read_sizes(hp, &r);
    read_kda(hp, &r);
    read_mla(hp, &r);
    read_experts(hp, &r);
    read_activation(hp, &r);
    check_rope_scaling(&r);
    read_layer_kinds(hp, &r);
    check_layer_kinds(hp, &r);
    read_vocabulary(hp, &r);
    return r.status;
}
