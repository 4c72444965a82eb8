// matmul.h - kernels of y = W x: one table for each instruction set.
//
// Every kernel adds up in the same order, whatever the number of tokens and rows in the call, so that a result does
// not depend on how a prompt is cut, on the company in a batch, or on the number of threads:
//   F32, F16:      acc = fma(w[k], x[k], acc) for ascending k                            x fp32
//   BF16:          acc = acc + (w[2j] x[2j] , w[2j+1] x[2j+1]) for ascending j           x rounded to bf16 where the
//                  instruction set has a bf16 dot product, else as F32
//   Q8_0, MXFP4:   acc = fma((float) i[b], scale_w[b] * d[b], acc) for ascending blocks b of 32, i[b] the exact
//                  integer dot product                                                    x rounded to 8 bits
// A variant without fused multiply-add rounds the product; results then differ between variants, never within one.
#ifndef K3_MATMUL_H
#define K3_MATMUL_H

#include "ggml.h"

#include <stddef.h>
#include <stdint.h>

// Forms of one token's activations ("act row").
enum k3_act_kind {
    K3_ACT_F32,       // float x[K]
    K3_ACT_BF16,      // uint16_t x[K], round to nearest even
    K3_ACT_Q8,        // int8_t q[Kp]; float d[NBp]; int32_t sum[NBp]
    K3_ACT_Q8_SPLIT,  // the same; each 128 values of q in the order 0-15, 32-47, 64-79, 96-111, then the others
};
// Kp = K rounded up to 128 with zeros; NB = K / 32 blocks, NBp = Kp / 32 rounded up to 16 with zeros;
// d = max|x| / 127 of a block, q = x / d rounded to nearest even, sum = sum of the block's q. A block with a value
// that is not finite has d = NaN, q = sum = 0.

struct k3_matmul_args {
    enum ggml_type type;        // of w: F32, F16, BF16, Q8_0, MXFP4
    const void * w;             // row 0 of the matrix
    size_t row_bytes;           // from one row to the next
    int64_t k;                  // columns; a multiple of the type's block, any number > 0 for F32, F16, BF16
    int64_t first, last;        // rows to compute
    int64_t n_tokens;           // > 0
    const void * const * acts;  // [n_tokens] act rows of kind(type), aligned to 64 bytes
    float * const * y;          // [n_tokens]: y[t][m] = sum_k w[m][k] x[t][k] for rows m in [first, last)
    void * scratch;             // scratch(type, k, n_tokens) bytes, aligned to 64
};

struct k3_matmul_kernels {
    enum k3_act_kind (*kind)(enum ggml_type type);
    void (*pack)(enum k3_act_kind kind, const float * x, int64_t k, void * act);  // one token
    size_t (*scratch)(enum ggml_type type, int64_t k, int64_t n_tokens);
    void (*run)(const struct k3_matmul_args * args);
};

extern const struct k3_matmul_kernels k3_matmul_generic, k3_matmul_avx2, k3_matmul_avx512, k3_matmul_neon;

// Bytes of an act row, a multiple of 64.
static inline size_t k3_act_size(enum k3_act_kind kind, int64_t k) {
    const size_t kp = (size_t) (k + 127) / 128 * 128, blocks = (kp / 32 + 15) / 16 * 16;
    switch (kind) {
        case K3_ACT_F32: return ((size_t) k * 4 + 63) / 64 * 64;
        case K3_ACT_BF16: return ((size_t) k * 2 + 63) / 64 * 64;
        default: return kp + blocks * 8;
    }
}

#endif
