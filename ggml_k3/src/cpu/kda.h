// kda.h - Kimi Delta Attention in one pass: kernel for one head of one segment, one table for each instruction set.
//
// Every token of a head goes through the same operations, all fp32, whatever the number of tokens in the call. With
// S[v] the row of value v of the state, 16 or fewer keys to a vector:
//   S[v] = decay * S[v];  u, w = S[v] . k, S[v] . q   one fma chain for each lane in ascending keys, then v_sum's order
//   d = beta v - beta u;  S[v] = S[v] + k d;  o = w + (q . k) d
// so that a result does not depend on how a sequence is cut, on the batch, or on the number of threads.
#ifndef K3_KDA_H
#define K3_KDA_H

#include "ggml_k3.h"

// A head's share of the op. Channels are those of this head: pointers are to its first one.
struct k3_kda_head {
    int64_t dim, conv_width, n;  // dim: a multiple of 16;  n: tokens
    const float * x[3];          // q, k, v before the convolution: token t at x[i] + t * x_stride[i]
    const float * z;             // decay gate input
    const float * gate;          // output gate logits
    const float * beta;          // one logit per token
    int64_t x_stride[3], z_stride, gate_stride, beta_stride;  // floats from one token to the next
    const float * conv[3];                                    // [dim][conv_width], oldest tap first
    const float *dt_bias, *norm;                              // [dim] each
    float a;                                                  // -exp(A_log)
    bool gate_bounded;
    float gate_lower_bound, l2_eps, norm_eps;
    const float * state_in;      // [dim values][dim keys], keys contiguous
    float * state_out;           // may be state_in
    const float * window_in[3];  // [dim][conv_width - 1], oldest first
    float * window_out[3];       // may be window_in
    float * out;                 // [dim] of token t at out + t * out_stride
    int64_t out_stride;
    void * scratch;  // scratch(dim, conv_width) bytes, aligned to 64; the same for all heads of a call
};

struct k3_kda_kernels {
    size_t (*scratch)(int64_t dim, int64_t conv_width);
    // Heads of equal dim and conv_width. Those of one token are best given some at a time, in the states' order.
    void (*run)(const struct k3_kda_head * heads, int n);
};

extern const struct k3_kda_kernels k3_kda_generic, k3_kda_avx2, k3_kda_avx512, k3_kda_neon;

// ggml_k3_kda in the fast form. A segment's places may be the same, but none may write a place that another one uses.
struct ggml_tensor * k3_kda_fast(struct ggml_k3_builder * b, const struct ggml_k3_kda_params * p,
                                 const struct ggml_k3_kda_input * in, const struct ggml_k3_kda_memory * memory);

#endif
