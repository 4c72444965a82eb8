// mla.h - fast form of absorbed attention over the latent cache, and its kernels: one table for each instruction set.
//
// Every query row (a head of a token) has one order of operations, which depends on its position alone, so that a
// result does not depend on how a prompt is cut, on the company in a batch, or on the number of threads:
//   The positions up to the row's own are cut into spans at multiples of span(position) (mla.c), a span into tiles at
//   multiples of the kernel's tile. A span starts from m = -inf, l = 0, o = 0 and takes tile after tile:
//     s[j] = q scale log2(e) . k[j], summed in the order of the elements
//     m' = max(m, s);  p[j] = 2^(s[j] - m');  f = 2^(m - m')
//     l = f l + sum_j p[j];  o = f o + sum_j p[j] v[j], both in the order of the positions
//   Spans are folded in ascending order, the first as it is:
//     m' = max(m, m2);  a = 2^(m - m');  b = 2^(m2 - m');  l = a l + b l2;  o = a o + b o2
//   and the result is o / l, a zero always +0. Positions behind the row's own have p = 0 and v = 0, whatever the cache
//   holds there; rows behind the last one in use are not read. A row that attends to a key whose product with the
//   query is not finite becomes NaN.
// Precision: fp32; AVX-512 rounds q, p and dequantised Q8_0 to bf16 for a BF16 or Q8_0 cache and adds pairs of
// elements, or of positions, at once.
#ifndef K3_MLA_H
#define K3_MLA_H

#include "ggml_k3.h"

#include <stddef.h>
#include <stdint.h>

enum {
    K3_MLA_ROWS        = 96,   // most rows of a panel
    K3_MLA_SPAN        = 512,  // shortest span; a multiple of every kernel's tile
    K3_MLA_COLUMN_STEP = 32,
};

// Query rows of one sequence that are computed together.
struct k3_mla_panel {
    enum ggml_type type;  // of the cache: F32, F16, BF16 or Q8_0
    int64_t n_latent, width;
    float scale;
    const uint8_t * cache;  // row of position 0
    size_t row_bytes;       // from one position to the next
    int n_rows;
    int64_t position[K3_MLA_ROWS];      // ascending
    const float * latent[K3_MLA_ROWS];  // [n_latent] of each query row
    const float * shared[K3_MLA_ROWS];  // [width - n_latent]
};

// What rows have gathered from some positions.
struct k3_mla_part {
    float *m, *l;  // [rows]
    float * o;     // [rows][columns]
};

struct k3_mla_kernels {
    int row_step;  // panels of a multiple of so many rows waste nothing
    size_t (*scratch)(enum ggml_type type, int64_t n_latent, int64_t width);  // bytes, a multiple of 64
    void (*pack)(const struct k3_mla_panel * panel, void * scratch);          // the queries; before `span`
    // The positions [first, last) of one span, as far as they are in use; `first` is a multiple of K3_MLA_SPAN. A row
    // whose position is before `first` gets no meaningful part.
    void (*span)(const struct k3_mla_panel * panel, int64_t first, int64_t last, void * scratch,
                 const struct k3_mla_part * part);
    void (*fold)(int64_t columns, const struct k3_mla_part * into, const struct k3_mla_part * part);  // of one row
    void (*finish)(int64_t n, const struct k3_mla_part * part, float * out);  // out[n] = o / l of one row
};

extern const struct k3_mla_kernels k3_mla_generic, k3_mla_avx2, k3_mla_avx512, k3_mla_neon;

static inline int64_t k3_mla_columns(int64_t n_latent) {
    return (n_latent + K3_MLA_COLUMN_STEP - 1) / K3_MLA_COLUMN_STEP * K3_MLA_COLUMN_STEP;
}

// See ggml_k3_mla.
struct ggml_tensor * k3_mla_fast(struct ggml_k3_builder * b, float scale, const struct ggml_k3_mla_input * in,
                                 struct ggml_tensor * cache);

#endif
