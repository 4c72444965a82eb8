// hparams.h - hyper-parameters of both architectures, read once from the file's metadata. One hybrid path: the
// graph asks these fields and the layer kinds, never the architecture's name.
#ifndef K3_HPARAMS_H
#define K3_HPARAMS_H

#include "error.h"

struct gguf_context;

enum { K3_MAX_LAYERS = 512, K3_MAX_EXPERTS = 4096, K3_MAX_EXPERTS_USED = 64 };

typedef struct k3_hparams {
    char architecture[16];  // kimi-k3 | kimi-linear
    int32_t n_layer;
    int32_t n_vocab;
    int32_t n_ctx_train;
    int32_t n_embd;   // width of the residual stream
    int32_t n_ff;     // dense FFN
    int32_t n_dense;  // leading layers with a dense FFN
    float eps;        // RMS norms but those below

    // attention, both kinds
    int32_t n_head;
    // KDA
    int32_t kda_dim;     // key and value width of a head
    int32_t conv_width;  // taps of the short convolution; the window holds conv_width - 1 rows
    bool gate_bounded;   // true: g = gate_lower_bound * sigmoid(exp(A) z); false: g = -exp(A) softplus(z)
    float gate_lower_bound;
    float l2_eps;  // inside the square root of the q and k normalisation, on the sum of squares
    // MLA
    int32_t q_lora;    // 0: a plain q projection
    int32_t kv_lora;   // latent width = value width of the absorbed form
    int32_t rope_dim;  // shared key part, not rotated
    int32_t nope_dim;  // per-head key part
    int32_t v_dim;     // value width of a head
    float lora_eps;    // q_a and kv_a norms

    // mixture of experts
    int32_t n_expert, n_expert_used, n_expert_shared;
    int32_t n_ff_expert;
    int32_t n_latent;  // width of the experts' input; 0: n_embd, no latent projections
    bool expert_weights_norm;
    float expert_weights_scale;
    // activation of every FFN
    bool situ;  // SiTU, else SwiGLU
    float situ_beta, situ_linear_beta;

    int32_t attn_res_block;  // layers between two stored block sums; 0: plain residual connections

    int32_t bos_id, eos_id, pad_id;     // -1: not in the file
    uint8_t layer_kind[K3_MAX_LAYERS];  // llama_k3_layer_kind
} k3_hparams;

// Width of one MLA cache row: latent and shared key part.
static inline int64_t k3_row_width(const k3_hparams * hp) { return (int64_t) hp->kv_lora + hp->rope_dim; }
// Channels of q, k or v in a KDA layer.
static inline int64_t k3_kda_channels(const k3_hparams * hp) { return (int64_t) hp->n_head * hp->kda_dim; }
// Width of the routed experts' input and output.
static inline int64_t k3_expert_width(const k3_hparams * hp) { return hp->n_latent ? hp->n_latent : hp->n_embd; }

// Every required key present and of its type, every value in its range and implemented, the vocabulary consistent.
int k3_hparams_read(k3_hparams * hp, const struct gguf_context * gguf, k3_error e);

#endif
