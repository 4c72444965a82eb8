// mla.c - absorbed multi-head latent attention: all heads share one key row per token (latent and unrotated shared
// part), the values are the row's latent. Stock form: ggml_flash_attn_ext on a view of the cache, per segment. It
// rounds q to the cache type's dot format (BF16, Q8_0) and splits long caches by thread.
#include "cpu/mla.h"
#include "ggml_k3.h"

static struct ggml_tensor * segment(struct ggml_k3_builder * b, int index, float scale, struct ggml_tensor * q,
                                    struct ggml_tensor * rows, int64_t n_latent, struct ggml_tensor * cache) {
    struct ggml_context * ctx        = b->ctx;
    const struct ggml_k3_segment * s = &b->batch->segments[index];
    const int64_t width = cache->ne[0], n_kv = s->position + s->n;
    const size_t row_bytes = cache->nb[1], start = (size_t) s->seq * cache->nb[2];

    struct ggml_tensor * fresh = ggml_view_2d(ctx, rows, width, s->n, rows->nb[1], (size_t) s->first * rows->nb[1]);
    struct ggml_tensor * place = ggml_view_2d(ctx, cache, width, s->n, row_bytes,
                                              start + (size_t) s->position * row_bytes);
    ggml_build_forward_expand(b->graph, ggml_cpy(ctx, fresh, place));

    const size_t all            = row_bytes * (size_t) n_kv;
    struct ggml_tensor * keys   = ggml_view_3d(ctx, cache, width, n_kv, 1, row_bytes, all, start);
    struct ggml_tensor * values = ggml_view_3d(ctx, cache, n_latent, n_kv, 1, row_bytes, all, start);
    struct ggml_tensor * mine   = ggml_view_3d(ctx, q, width, s->n, q->ne[2], q->nb[1], q->nb[2],
                                               (size_t) s->first * q->nb[1]);
    return ggml_flash_attn_ext(ctx, mine, keys, values, b->batch->masks[index], scale, 0.0f, 0.0f);
}

struct ggml_tensor * ggml_k3_mla(struct ggml_k3_builder * b, float scale, const struct ggml_k3_mla_input * in,
                                 struct ggml_tensor * cache) {
    if (b->form == GGML_K3_FAST) {
        return k3_mla_fast(b, scale, in, cache);
    }
    struct ggml_tensor * q    = ggml_concat(b->ctx, in->q_latent, in->q_shared, 0);
    struct ggml_tensor * rows = ggml_concat(b->ctx, in->latent, in->shared, 0);
    struct ggml_tensor * out  = NULL;
    for (int i = 0; i < b->batch->n_segments; i++) {
        struct ggml_tensor * o = segment(b, i, scale, q, rows, in->latent->ne[0], cache);
        out                    = out ? ggml_concat(b->ctx, out, o, 2) : o;
    }
    return out;
}
