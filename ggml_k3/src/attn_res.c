// attn_res.c - attention residuals: a softmax mix of the stored block sums and the running sum, per token, normed.
#include "cpu/fast.h"
#include "ggml_k3.h"
#include "ggml_k3_mutant.h"

// [1, T]: how much a source asks to be mixed in; its keys are normed, its values are not
static struct ggml_tensor * source_score(struct ggml_context * ctx, struct ggml_tensor * source,
                                         struct ggml_tensor * score, float eps) {
    return ggml_sum_rows(ctx, ggml_mul(ctx, ggml_rms_norm(ctx, source, eps), score));
}

// [H, T]
static struct ggml_tensor * mix_sources(struct ggml_k3_builder * b, struct ggml_tensor ** bank, int n_bank,
                                        struct ggml_tensor * current, struct ggml_tensor * score, float eps) {
    struct ggml_tensor * scores = NULL;  // [sources, T]
    for (int i = 0; i <= n_bank; i++) {
        struct ggml_tensor * s = source_score(b->ctx, i < n_bank ? bank[i] : current, score, eps);
        scores                 = scores ? ggml_concat(b->ctx, scores, s, 0) : s;
    }
    struct ggml_tensor * p   = ggml_soft_max(b->ctx, scores);
    struct ggml_tensor * mix = NULL;
    for (int i = 0; i <= n_bank; i++) {
        struct ggml_tensor * weight = ggml_view_2d(b->ctx, p, 1, p->ne[1], p->nb[1], (size_t) i * p->nb[0]);
        struct ggml_tensor * part   = ggml_mul(b->ctx, i < n_bank ? bank[i] : current, weight);
        mix                         = mix ? ggml_add(b->ctx, mix, part) : part;
    }
    return mix;
}

struct ggml_tensor * ggml_k3_attn_res(struct ggml_k3_builder * b, struct ggml_tensor ** bank, int n_bank,
                                      struct ggml_tensor * current, struct ggml_tensor * score,
                                      struct ggml_tensor * weight, float eps) {
    if (n_bank == 0 || GGML_K3_MUTANT("drop-attn-res")) {
        return ggml_k3_norm(b, current, weight, eps);
    }
    if (b->form == GGML_K3_FAST) {
        return k3_attn_res_fast(b, bank, n_bank, current, score, weight, eps);
    }
    return ggml_k3_norm(b, mix_sources(b, bank, n_bank, current, score, eps), weight, eps);
}
