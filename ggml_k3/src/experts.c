// experts.c - the routed experts: gate, up, activation, down, weighted sum in slot order.
#include "cpu/fast.h"
#include "ggml_k3.h"

struct ggml_tensor * ggml_k3_experts(struct ggml_k3_builder * b, const struct ggml_k3_experts_weights * w,
                                     const struct ggml_k3_glu_params * glu, struct ggml_tensor * x,
                                     struct ggml_tensor * ids, struct ggml_tensor * weights) {
    if (b->form == GGML_K3_FAST) {
        return k3_experts_fast(b, w, glu, x, ids, weights);
    }
    const int64_t n_used = ids->ne[0], n_tokens = ids->ne[1];
    struct ggml_tensor * x3   = ggml_reshape_3d(b->ctx, x, x->ne[0], 1, n_tokens);
    struct ggml_tensor * gate = ggml_k3_matmul_id(b, w->gate, x3, ids);
    struct ggml_tensor * up   = ggml_k3_matmul_id(b, w->up, x3, ids);
    struct ggml_tensor * y    = ggml_k3_matmul_id(b, w->down, ggml_k3_glu(b, glu, gate, up), ids);

    y                        = ggml_mul(b->ctx, y, ggml_reshape_3d(b->ctx, weights, 1, n_used, n_tokens));
    struct ggml_tensor * sum = NULL;
    for (int64_t slot = 0; slot < n_used; slot++) {
        struct ggml_tensor * part = ggml_view_2d(b->ctx, y, y->ne[0], n_tokens, y->nb[2], (size_t) slot * y->nb[1]);
        sum                       = sum ? ggml_add(b->ctx, sum, part) : part;
    }
    return n_used == 1 ? ggml_cont(b->ctx, sum) : sum;
}
