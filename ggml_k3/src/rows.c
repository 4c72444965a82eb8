// rows.c - look-up, norm, sum and gate over rows of activations.
#include "cpu/fast.h"
#include "ggml_k3.h"

struct ggml_tensor * ggml_k3_get_rows(struct ggml_k3_builder * b, struct ggml_tensor * table,
                                      struct ggml_tensor * ids) {
    return b->form == GGML_K3_FAST ? k3_get_rows_fast(b, table, ids) : ggml_get_rows(b->ctx, table, ids);
}

struct ggml_tensor * ggml_k3_norm(struct ggml_k3_builder * b, struct ggml_tensor * x, struct ggml_tensor * weight,
                                  float eps) {
    if (b->form == GGML_K3_FAST) {
        return k3_norm_fast(b, x, weight, eps);
    }
    return ggml_mul(b->ctx, ggml_rms_norm(b->ctx, x, eps), weight);
}

struct ggml_tensor * ggml_k3_add(struct ggml_k3_builder * b, struct ggml_tensor * x, struct ggml_tensor * y) {
    return b->form == GGML_K3_FAST ? k3_add_fast(b, x, y) : ggml_add(b->ctx, x, y);
}

struct ggml_tensor * ggml_k3_gate(struct ggml_k3_builder * b, struct ggml_tensor * x, struct ggml_tensor * gate) {
    return b->form == GGML_K3_FAST ? k3_gate_fast(b, x, gate) : ggml_mul(b->ctx, x, ggml_sigmoid(b->ctx, gate));
}
