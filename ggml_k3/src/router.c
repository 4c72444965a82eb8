// router.c - sigmoid router: the bias takes part in the selection only, the weights are the unbiased scores.
#include "cpu/fast.h"
#include "ggml_k3.h"
#include "ggml_k3_mutant.h"
#include "select.h"

#include <math.h>
#include <string.h>

void k3_select_top(const float * scores, int64_t n_expert, int32_t * ids, int64_t n_used) {
    int64_t n = 0;
    for (int32_t expert = 0; expert < n_expert; expert++) {
        int64_t place = n;
        while (place > 0 && scores[expert] > scores[ids[place - 1]]) {
            place--;
        }
        if (place == n_used) {
            continue;
        }
        n = n < n_used ? n + 1 : n_used;
        memmove(ids + place + 1, ids + place, (size_t) (n - 1 - place) * sizeof(*ids));
        ids[place] = expert;
    }
}

uint64_t k3_count_distinct(const int32_t * ids, int64_t n) {
    uint64_t chosen[K3_SELECT_MAX / 64] = {0}, count = 0;
    for (int64_t i = 0; i < n; i++) {
        chosen[ids[i] / 64] |= UINT64_C(1) << (ids[i] % 64);
    }
    for (int i = 0; i < K3_SELECT_MAX / 64; i++) {
        for (uint64_t bits = chosen[i]; bits; bits &= bits - 1) {
            count++;
        }
    }
    return count;
}

// One task: the work is a few microseconds per token.
static void select_op(struct ggml_tensor * dst, int ith, int nth, void * user) {
    (void) nth;
    if (ith != 0) {
        return;
    }
    const struct ggml_tensor * scores = dst->src[0];
    for (int64_t token = 0; token < dst->ne[1]; token++) {
        int32_t * ids = (int32_t *) ((char *) dst->data + (size_t) token * dst->nb[1]);
        k3_select_top((const float *) ((const char *) scores->data + (size_t) token * scores->nb[1]), scores->ne[0],
                      ids, dst->ne[0]);
        for (int64_t slot = 0; GGML_K3_MUTANT("expert-zero") && slot < dst->ne[0]; slot++) {
            ids[slot] = 0;
        }
    }
    if (user) {
        *(uint64_t *) user = k3_count_distinct(dst->data, ggml_nelements(dst));
    }
}

void ggml_k3_router(struct ggml_k3_builder * b, const struct ggml_k3_router_params * p, struct ggml_tensor * logits,
                    struct ggml_tensor * bias, struct ggml_tensor ** ids, struct ggml_tensor ** weights) {
    const int64_t n_expert = logits->ne[0], n_tokens = logits->ne[1];
    GGML_ASSERT(n_expert <= K3_SELECT_MAX && p->n_used <= n_expert);
    if (b->form == GGML_K3_FAST) {
        k3_router_fast(b, p, logits, bias, ids, weights);
        return;
    }
    struct ggml_tensor * probs  = ggml_sigmoid(b->ctx, logits);
    struct ggml_tensor * scores = ggml_add(b->ctx, probs, bias);
    *ids = ggml_custom_4d(b->ctx, GGML_TYPE_I32, p->n_used, n_tokens, 1, 1, &scores, 1, select_op, 1, p->n_distinct);

    struct ggml_tensor * source = GGML_K3_MUTANT("biased-router") ? scores : probs;
    struct ggml_tensor * rows   = ggml_reshape_3d(b->ctx, source, 1, n_expert, n_tokens);
    struct ggml_tensor * w      = ggml_reshape_2d(b->ctx, ggml_get_rows(b->ctx, rows, *ids), p->n_used, n_tokens);
    if (p->normalise) {
        // the reference adds 1e-20 to the sum; a lower clamp gives the same quotient and needs no constant tensor
        struct ggml_tensor * sum = ggml_clamp(b->ctx, ggml_sum_rows(b->ctx, w), 1e-20f, INFINITY);
        w                        = ggml_div(b->ctx, w, sum);
    }
    *weights = p->scale == 1.0f ? w : ggml_scale(b->ctx, w, p->scale);
}
