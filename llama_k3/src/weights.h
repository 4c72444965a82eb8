// weights.h - the model's tensors, looked up by name once. After k3_weights_bind every pointer has been checked
// for type and for every dimension. Shapes in ggml order (ne0, the contiguous one, first).
#ifndef K3_WEIGHTS_H
#define K3_WEIGHTS_H

#include "hparams.h"

struct ggml_tensor;

// D = n_head * kda_dim, H = n_embd, W = expert width. Pointers of the other layer kind are NULL.
typedef struct k3_layer {
    struct ggml_tensor * attn_norm;       // [H] F32
    struct ggml_tensor * ffn_norm;        // [H] F32
    struct ggml_tensor * attn_res_score;  // [H] F32; NULL without attention residuals
    struct ggml_tensor * ffn_res_score;   // [H] F32; likewise
    struct ggml_tensor * attn_output;     // [D or n_head*v_dim, H]

    // KDA
    struct ggml_tensor *q, *k, *v;                 // [H, D]
    struct ggml_tensor *conv_q, *conv_k, *conv_v;  // [conv_width, 1, D] F32 (a trailing 1 may follow)
    struct ggml_tensor *f_a, *f_b;                 // [H, kda_dim], [kda_dim, D]
    struct ggml_tensor * beta;                     // [H, n_head]
    struct ggml_tensor * a;                        // n_head values F32, -exp(A_log)
    struct ggml_tensor * dt_bias;                  // [D] F32
    struct ggml_tensor * g;                        // [H, D] full-rank output gate, or NULL and
    struct ggml_tensor *g_a, *g_b;                 // [H, kda_dim], [kda_dim, D]
    struct ggml_tensor * kda_norm;                 // [kda_dim] F32

    // MLA
    struct ggml_tensor *q_a, *q_a_norm, *q_b;  // [H, q_lora], [q_lora] F32, [q_lora, n_head*(nope+rope)]
    struct ggml_tensor * mla_q;                // [H, n_head*(nope+rope)] when q_lora == 0
    struct ggml_tensor *kv_a, *kv_a_norm;      // [H, kv_lora+rope], [kv_lora] F32
    struct ggml_tensor * k_b;                  // [nope, kv_lora, n_head]
    struct ggml_tensor * v_b;                  // [kv_lora, v_dim, n_head]
    struct ggml_tensor * mla_gate;             // [H, n_head*v_dim] or NULL

    // FFN: dense (leading layers) or experts
    struct ggml_tensor *ffn_gate, *ffn_up, *ffn_down;     // [H, n_ff] x2, [n_ff, H]
    struct ggml_tensor *router, *router_bias;             // [H, n_expert] F32, [n_expert] F32
    struct ggml_tensor *gate_exps, *up_exps, *down_exps;  // [W, n_ff_expert, n_expert] x2, [n_ff_expert, W, n_expert]
    struct ggml_tensor *routed_down, *routed_norm, *routed_up;  // [H, W], [W] F32 or NULL, [W, H]; NULL without latent
    struct ggml_tensor *gate_shexp, *up_shexp, *down_shexp;     // [H, n_ff_expert*n_expert_shared] x2, [.., H]
} k3_layer;

typedef struct k3_weights {
    struct ggml_tensor * token_embd;        // [H, n_vocab]
    struct ggml_tensor * output_norm;       // [H] F32
    struct ggml_tensor * output;            // [H, n_vocab]
    struct ggml_tensor * output_res_score;  // [H] F32; NULL without attention residuals
    k3_layer layer[K3_MAX_LAYERS];
} k3_weights;

// The tensors of all parts, sorted by name.
typedef struct k3_tensor_entry {
    struct ggml_tensor * tensor;
    uint32_t part;  // index of its file
    bool bound;     // has a place in the model
} k3_tensor_entry;

typedef struct k3_tensor_index {
    k3_tensor_entry * entries;
    uint64_t n;
} k3_tensor_index;

// Binds every tensor of the index; refuses missing, left-over, wrongly shaped and wrongly typed ones by name.
// LLAMA_K3_MODEL_TENSOR_*.
int k3_weights_bind(k3_weights * w, const k3_hparams * hp, k3_tensor_index * index, k3_error e);

#endif
