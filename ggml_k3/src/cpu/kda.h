// kda.h - kernel of Kimi Delta Attention for one head of one segment: one table for each instruction set.
#ifndef K3_KDA_H
#define K3_KDA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// A head's share of the op. Channels are those of this head: pointers are to its first one.
struct k3_kda_head {
    int64_t dim, conv_width, n;  // n: tokens
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
    void * scratch;  // scratch(dim, conv_width, n) bytes, aligned to 64
};

struct k3_kda_kernels {
    size_t (*scratch)(int64_t dim, int64_t conv_width, int64_t n);
    // Results do not depend on how a sequence is cut into calls.
    void (*run)(const struct k3_kda_head * head);
};

extern const struct k3_kda_kernels k3_kda_generic, k3_kda_avx2, k3_kda_avx512, k3_kda_neon;

#endif
