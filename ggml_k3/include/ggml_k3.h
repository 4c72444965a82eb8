// ggml_k3.h - the ops of the Kimi-K3 family as constructors of ggml graph nodes, one op per source file.
//
// Every op has a *stock* form, a subgraph of ggml's own ops, and where stock ggml rounds activations to the weight's
// type (matmul, experts) a *reference* form: plain C with fp32 activations and fp64 sums, for any weight type. Nodes
// of own code are GGML_OP_CUSTOM and run on the CPU backend only.
//
// Shapes are in ggml order, the contiguous dimension first; T = tokens of the micro-batch. All activations are F32.
#ifndef GGML_K3_H
#define GGML_K3_H

#include "ggml.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum ggml_k3_form { GGML_K3_STOCK = 0, GGML_K3_REFERENCE = 1 };

// Where an op puts its nodes. `graph` receives the nodes that write to the cache at once, so that they run before
// the nodes that read it.
struct ggml_k3_builder {
    struct ggml_context * ctx;
    struct ggml_cgraph * graph;
    enum ggml_k3_form form;
};

// A run of tokens of one sequence inside the micro-batch.
struct ggml_k3_segment {
    int64_t first;     // index of its first token in the micro-batch
    int64_t n;         // tokens
    int64_t position;  // tokens already in the sequence
};

// ---- matmul: y = W x -------------------------------------------------------------------------------------
// w: [K, M] or [K, M, B] of F32, F16, BF16, Q8_0 or MXFP4;  x: [K, T] or [K, T, B], rows contiguous
// result: [M, T] or [M, T, B]
struct ggml_tensor * ggml_k3_matmul(struct ggml_k3_builder * b, struct ggml_tensor * w, struct ggml_tensor * x);

// y[:, s, t] = W[ids[s, t]] x[:, min(s, S-1), t]
// w: [K, M, E];  x: [K, S, T] with S = 1 or k;  ids: [k, T] I32;  result: [M, k, T]
struct ggml_tensor * ggml_k3_matmul_id(struct ggml_k3_builder * b, struct ggml_tensor * w, struct ggml_tensor * x,
                                       struct ggml_tensor * ids);

// ---- glu -------------------------------------------------------------------------------------------------
// SiTU:   beta tanh(g / beta) sigmoid(g) * linear_beta tanh(u / linear_beta); linear_beta <= 0 leaves u as it is
// SwiGLU: g sigmoid(g) * u
struct ggml_k3_glu_params {
    bool situ;
    float beta, linear_beta;
};
// gate, up: same shape, contiguous
struct ggml_tensor * ggml_k3_glu(struct ggml_k3_builder * b, const struct ggml_k3_glu_params * p,
                                 struct ggml_tensor * gate, struct ggml_tensor * up);

// ---- attn_res: attention residuals -----------------------------------------------------------------------
// softmax over sources v of sum_d(v / rms(v) * score), applied to the raw sources; no 1/sqrt(d)
// bank: n_bank tensors [H, T];  current: [H, T];  score: [H];  result: [H, T], `current` itself when n_bank == 0
struct ggml_tensor * ggml_k3_attn_res(struct ggml_k3_builder * b, struct ggml_tensor ** bank, int n_bank,
                                      struct ggml_tensor * current, struct ggml_tensor * score, float eps);

// ---- router ----------------------------------------------------------------------------------------------
struct ggml_k3_router_params {
    int n_used;
    bool normalise;  // divide the weights by their sum + 1e-20
    float scale;
    uint64_t * n_distinct;  // receives the number of distinct experts chosen in the micro-batch; may be NULL
};
// logits: [E, T] F32;  bias: [E], used for the selection only
// ids: [n_used, T] I32, by descending biased score, ties to the lower id;  weights: [n_used, T] F32
void ggml_k3_router(struct ggml_k3_builder * b, const struct ggml_k3_router_params * p, struct ggml_tensor * logits,
                    struct ggml_tensor * bias, struct ggml_tensor ** ids, struct ggml_tensor ** weights);

// ---- experts ---------------------------------------------------------------------------------------------
// sum_s weights[s, t] * W_down[e] glu(W_gate[e] x, W_up[e] x), e = ids[s, t], summed in slot order
// gate, up: [W, F, E];  down: [F, W, E];  x: [W, T];  result: [W, T]
struct ggml_k3_experts_weights {
    struct ggml_tensor *gate, *up, *down;
};
struct ggml_tensor * ggml_k3_experts(struct ggml_k3_builder * b, const struct ggml_k3_experts_weights * w,
                                     const struct ggml_k3_glu_params * glu, struct ggml_tensor * x,
                                     struct ggml_tensor * ids, struct ggml_tensor * weights);

// ---- kda: short convolution, SiLU, L2 norm, decay gate, delta rule ---------------------------------------
// D = n_head * dim channels. Per head, S [dim keys, dim values]:
//   S <- diag(exp(g)) S;  d = beta (v - S^T k);  S <- S + k d^T;  o = S^T q / sqrt(dim)
struct ggml_k3_kda_params {
    int64_t n_head, dim, conv_width;
    bool gate_bounded;  // g = gate_lower_bound sigmoid(-a z), else g = a softplus(z)
    float gate_lower_bound;
    float l2_eps;
    struct ggml_tensor * conv[3];  // q, k, v: [conv_width, 1, D] F32
    struct ggml_tensor * a;        // n_head values, -exp(A_log)
    struct ggml_tensor * dt_bias;  // [D]
};
// q, k, v before the convolution and the gate input z: [D, T];  beta_logits: [n_head, T]
struct ggml_k3_kda_input {
    struct ggml_tensor * qkv[3];
    struct ggml_tensor * z;
    struct ggml_tensor * beta_logits;
};
// Memory of one segment's sequence; read from `in`, written to `out`, which must not overlap.
struct ggml_k3_kda_state {
    struct ggml_tensor *state_in, *state_out;    // [dim keys, dim values, n_head] F32, keys contiguous
    struct ggml_tensor *window_in, *window_out;  // [conv_width - 1, D, 3] F32, time contiguous, oldest first
};
// result: [D, T], before the head norm
struct ggml_tensor * ggml_k3_kda(struct ggml_k3_builder * b, const struct ggml_k3_kda_params * p,
                                 const struct ggml_k3_kda_input * in, const struct ggml_k3_segment * segments,
                                 const struct ggml_k3_kda_state * states, int n_segments);

// ---- mla: absorbed attention over the latent cache -------------------------------------------------------
// R = latent + shared key width. Appends `rows` to each segment's cache, then attends causally by position.
struct ggml_k3_mla_cache {
    struct ggml_tensor * rows;  // [R, n_ctx] of F32, F16, BF16 or Q8_0
    struct ggml_tensor * mask;  // [position + n, n] F16, 0 or -inf; NULL for a segment of one token
};
// q: [R, T, n_head];  rows: [R, T];  result: [n_latent, n_head, T], probabilities times latents
struct ggml_tensor * ggml_k3_mla(struct ggml_k3_builder * b, int64_t n_latent, float scale, struct ggml_tensor * q,
                                 struct ggml_tensor * rows, const struct ggml_k3_segment * segments,
                                 const struct ggml_k3_mla_cache * caches, int n_segments);

#endif
