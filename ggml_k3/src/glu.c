// glu.c - the gated activations: SiTU (K3) and SwiGLU (Kimi-Linear).
#include "cpu/fast.h"
#include "ggml_k3.h"

// cap * tanh(x / cap)
static struct ggml_tensor * soft_cap(struct ggml_context * ctx, struct ggml_tensor * x, float cap) {
    return ggml_scale(ctx, ggml_tanh(ctx, ggml_scale(ctx, x, 1.0f / cap)), cap);
}

struct ggml_tensor * ggml_k3_glu(struct ggml_k3_builder * b, const struct ggml_k3_glu_params * p,
                                 struct ggml_tensor * gate, struct ggml_tensor * up) {
    if (b->form == GGML_K3_FAST) {
        return k3_glu_fast(b, p, gate, up);
    }
    if (!p->situ) {
        return ggml_swiglu_split(b->ctx, gate, up);
    }
    struct ggml_tensor * g = ggml_mul(b->ctx, soft_cap(b->ctx, gate, p->beta), ggml_sigmoid(b->ctx, gate));
    struct ggml_tensor * u = p->linear_beta > 0.0f ? soft_cap(b->ctx, up, p->linear_beta) : up;
    return ggml_mul(b->ctx, g, u);
}
