// rows.h - kernels of the ops that go through rows of activations: one table for each instruction set.
#ifndef K3_ROWS_H
#define K3_ROWS_H

#include "ggml_k3.h"

struct k3_rows_kernels {
    // out = x / sqrt(mean(x^2) + eps) * weight
    void (*norm)(const float * x, const float * weight, float eps, int64_t n, float * out);
    void (*add)(const float * x, const float * y, int64_t n, float * out);
    void (*glu)(const struct ggml_k3_glu_params * p, const float * gate, const float * up, int64_t n, float * out);
    void (*gate)(const float * x, const float * gate, int64_t n, float * out);  // x * sigmoid(gate)
    // out = norm(sum_i softmax_i(dot(x_i / rms(x_i), score)) x_i) * weight over n_sources vectors
    void (*mix)(const float * const * sources, int n_sources, const float * score, const float * weight, float eps,
                int64_t n, float * out);
    void (*sigmoid)(const float * x, int64_t n, float * out);
    void (*scale_add)(const float * x, float scale, int64_t n, float * out);  // out += scale * x
};

extern const struct k3_rows_kernels k3_rows_generic, k3_rows_avx2, k3_rows_avx512, k3_rows_neon;

#endif
