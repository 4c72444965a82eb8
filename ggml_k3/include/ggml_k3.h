// ggml_k3.h - the ops of the Kimi-K3 family as constructors of ggml graph nodes, one op per source file.
//
// Every op has a *stock* form, a subgraph of ggml's own ops, and a *fast* form, nodes with kernels of our own that a
// ggml_k3_pool runs. Where stock ggml rounds activations to the weight's type (matmul, experts) there is a *reference*
// form too: plain C with fp32 activations and fp64 sums, for any weight type. All nodes of a graph have one form;
// stock and reference graphs run on ggml's CPU backend, fast ones through a ggml_k3_plan.
//
// Shapes are in ggml order, the contiguous dimension first; T = tokens of the micro-batch. All activations are F32.
#ifndef GGML_K3_H
#define GGML_K3_H

#include "ggml.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum ggml_k3_form { GGML_K3_STOCK = 0, GGML_K3_REFERENCE = 1, GGML_K3_FAST = 2 };

// What the time of a fast node is counted as.
enum ggml_k3_section { GGML_K3_KDA, GGML_K3_MLA, GGML_K3_EXPERTS, GGML_K3_OTHER, GGML_K3_SECTIONS };

// A run of tokens of one sequence inside the micro-batch.
struct ggml_k3_segment {
    int64_t first;                // index of its first token in the micro-batch
    int64_t n;                    // tokens
    int64_t position;             // tokens already in the sequence
    int32_t seq;                  // its place in the MLA caches
    int32_t state_in, state_out;  // its places in the KDA states and windows, before and after; may be the same
};

// The stock form reads the segments when the graph is built, the fast form whenever it runs: one fast graph serves
// all segments, positions and places. Masks are for the stock form only.
struct ggml_k3_batch {
    const struct ggml_k3_segment * segments;
    int n_segments;
    struct ggml_tensor ** masks;  // [n_segments]: [position + n, n] F16, 0 or -inf; NULL for a segment of one token
};

// Memory for the parameters of fast nodes; lives as long as the graph.
struct ggml_k3_arena {
    uint8_t * data;
    size_t used, size;
};

// Where an op puts its nodes. `graph` receives the nodes that write to the cache at once, so that they run before
// the nodes that read it.
struct ggml_k3_builder {
    struct ggml_context * ctx;
    struct ggml_cgraph * graph;
    enum ggml_k3_form form;
    enum ggml_k3_section section;
    struct ggml_k3_arena * arena;  // of the fast form; GGML_K3_NODE_BYTES for each of its nodes are enough
    const struct ggml_k3_batch * batch;
};
enum { GGML_K3_NODE_BYTES = 320 };

// ---- rows of activations ---------------------------------------------------------------------------------
// rows `ids` [N] I32 of a table [K, V] of F32, F16, BF16, Q8_0 or MXFP4: [K, N]
struct ggml_tensor * ggml_k3_get_rows(struct ggml_k3_builder * b, struct ggml_tensor * table, struct ggml_tensor * ids);
// x / sqrt(mean(x^2) + eps) * weight over dimension 0;  x: [K, N], rows contiguous;  weight: [K]
struct ggml_tensor * ggml_k3_norm(struct ggml_k3_builder * b, struct ggml_tensor * x, struct ggml_tensor * weight,
                                  float eps);
// x, y: same shape [K, N], rows contiguous
struct ggml_tensor * ggml_k3_add(struct ggml_k3_builder * b, struct ggml_tensor * x, struct ggml_tensor * y);
// x * sigmoid(gate), same shape [K, N], rows contiguous
struct ggml_tensor * ggml_k3_gate(struct ggml_k3_builder * b, struct ggml_tensor * x, struct ggml_tensor * gate);

// ---- matmul: y = W x -------------------------------------------------------------------------------------
// w: [K, M] of F32, F16, BF16, Q8_0 or MXFP4;  x: [K, T], rows contiguous;  result: [M, T]
struct ggml_tensor * ggml_k3_matmul(struct ggml_k3_builder * b, struct ggml_tensor * w, struct ggml_tensor * x);

// n matrices of K columns each on the same x; y[i]: [M_i, T], rows contiguous
enum { GGML_K3_MAX_GROUP = 8 };
void ggml_k3_matmul_group(struct ggml_k3_builder * b, struct ggml_tensor * const * w, int n, struct ggml_tensor * x,
                          struct ggml_tensor ** y);

// A matrix for each head. w: [K, M, h];  x: [K, T, h], dimension 0 contiguous;  result: [M, T, h], or, merged, [M h, T]
struct ggml_tensor * ggml_k3_matmul_heads(struct ggml_k3_builder * b, struct ggml_tensor * w, struct ggml_tensor * x,
                                          bool merged);

// y[:, s, t] = W[ids[s, t]] x[:, min(s, S-1), t]; stock and reference form only
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
// gate, up: same shape [K, ...], dimension 0 contiguous
struct ggml_tensor * ggml_k3_glu(struct ggml_k3_builder * b, const struct ggml_k3_glu_params * p,
                                 struct ggml_tensor * gate, struct ggml_tensor * up);

// ---- attn_res: attention residuals and the norm behind them ----------------------------------------------
// norm(mix): mix = softmax over sources v of sum_d(v / rms(v) * score), applied to the raw sources; no 1/sqrt(d);
// norm as in ggml_k3_norm, with the same eps
// bank: n_bank tensors [H, T];  current: [H, T];  score, weight: [H];  result: [H, T]; n_bank == 0: norm(current)
struct ggml_tensor * ggml_k3_attn_res(struct ggml_k3_builder * b, struct ggml_tensor ** bank, int n_bank,
                                      struct ggml_tensor * current, struct ggml_tensor * score,
                                      struct ggml_tensor * weight, float eps);

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

// ---- kda: short convolution, SiLU, L2 norm, decay gate, delta rule, head norm, output gate ---------------
// D = n_head * dim channels. Per head, S [dim keys, dim values]:
//   S <- diag(exp(g)) S;  d = beta (v - S^T k);  S <- S + k d^T;  o = S^T q / sqrt(dim)
//   result: o / sqrt(mean(o^2) + norm_eps) * norm * sigmoid(gate)
struct ggml_k3_kda_params {
    int64_t n_head, dim, conv_width;
    bool gate_bounded;  // g = gate_lower_bound sigmoid(-a z), else g = a softplus(z), with z = input + dt_bias
    float gate_lower_bound;
    float l2_eps, norm_eps;
    struct ggml_tensor * conv[3];  // q, k, v: [conv_width, 1, D] F32
    struct ggml_tensor * a;        // n_head values, -exp(A_log)
    struct ggml_tensor * dt_bias;  // [D]
    struct ggml_tensor * norm;     // [dim]
};
// q, k, v before the convolution, the decay gate's input z and the output gate: [D, T];  beta_logits: [n_head, T];
// rows contiguous
struct ggml_k3_kda_input {
    struct ggml_tensor * qkv[3];
    struct ggml_tensor * z;
    struct ggml_tensor * beta_logits;
    struct ggml_tensor * gate;
};
// Memory of all sequences: the batch's segments say which place to read and which to write.
struct ggml_k3_kda_memory {
    struct ggml_tensor * state;   // [dim keys, dim values, n_head, places] F32, keys contiguous
    struct ggml_tensor * window;  // [conv_width - 1, D, 3 places] F32, time contiguous, oldest first; q, k, v in turn
};
// result: [D, T]. The fast form wants a head size that is a multiple of GGML_K3_KDA_STEP.
enum { GGML_K3_KDA_STEP = 16 };
struct ggml_tensor * ggml_k3_kda(struct ggml_k3_builder * b, const struct ggml_k3_kda_params * p,
                                 const struct ggml_k3_kda_input * in, const struct ggml_k3_kda_memory * memory);

// ---- mla: absorbed attention over the latent cache -------------------------------------------------------
// R = n_latent + shared key width. Appends one row [latent | shared] per token to its sequence's cache, then attends
// causally by position.
struct ggml_k3_mla_input {
    struct ggml_tensor * q_latent;  // [n_latent, T, n_head]
    struct ggml_tensor * q_shared;  // [R - n_latent, T, n_head], dimension 0 contiguous
    struct ggml_tensor * latent;    // [n_latent, T], rows contiguous
    struct ggml_tensor * shared;    // [R - n_latent, T], rows contiguous
};
// cache: [R, n_ctx, n_seq] of F32, F16, BF16 or Q8_0;  result: [n_latent, n_head, T], probabilities times latents
struct ggml_tensor * ggml_k3_mla(struct ggml_k3_builder * b, float scale, const struct ggml_k3_mla_input * in,
                                 struct ggml_tensor * cache);

// ---- running the fast form -------------------------------------------------------------------------------

// The kernels in use: "generic", "avx2", "avx512" or "neon". NULL when the environment variable GGML_K3_CPU names a
// variant that is unknown or cannot run on this processor.
const char * ggml_k3_cpu_name(void);

// Persistent threads, the caller's among them. NULL: no memory or no threads.
struct ggml_k3_pool;
struct ggml_k3_pool * ggml_k3_pool_new(int n_threads);
void ggml_k3_pool_free(struct ggml_k3_pool * pool);
// In a process that was forked off: frees the memory, does not wait for threads, which are not there.
void ggml_k3_pool_abandon(struct ggml_k3_pool * pool);
// Makes room for the temporary memory of a plan. False: no memory.
bool ggml_k3_pool_reserve(struct ggml_k3_pool * pool, size_t work, size_t scratch);
size_t ggml_k3_pool_memory(const struct ggml_k3_pool * pool);

// The fast nodes of an allocated graph, in the graph's order.
struct ggml_k3_plan {
    struct ggml_tensor ** nodes;
    int n_nodes;
    size_t work, scratch;  // temporary bytes: shared, and of each thread
};
bool ggml_k3_plan_init(struct ggml_k3_plan * plan, struct ggml_cgraph * graph);
void ggml_k3_plan_free(struct ggml_k3_plan * plan);

// Runs all nodes with the first n_threads threads of the pool, which has room for the plan. `stop` (may be NULL) is
// asked wherever the section changes; when it says true the rest is left out and the result is false. The time of each
// section is added to ms[GGML_K3_SECTIONS].
bool ggml_k3_plan_run(const struct ggml_k3_plan * plan, struct ggml_k3_pool * pool, int n_threads,
                      bool (*stop)(void * user), void * user, double * ms);
// Milliseconds of the last run in which the caller's thread waited for others.
double ggml_k3_pool_waited(const struct ggml_k3_pool * pool);

#endif
