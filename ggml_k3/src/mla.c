// mla.c - absorbed multi-head latent attention: all heads share one key row per token (latent and unrotated shared
// part), the values are the row's latent. Stock form: ggml_flash_attn_ext on a view of the cache, per segment. It
// rounds q to the cache type's dot format (BF16, Q8_0) and splits long caches by thread.
#include "ggml_k3.h"

static struct ggml_tensor * segment(struct ggml_k3_builder * b, int64_t n_latent, float scale, struct ggml_tensor * q,
                                    struct ggml_tensor * rows, const struct ggml_k3_segment * s,
                                    const struct ggml_k3_mla_cache * cache) {
    struct ggml_context * ctx = b->ctx;
    const int64_t width = cache->rows->ne[0], n_kv = s->position + s->n;
    const size_t row_bytes = cache->rows->nb[1];

    struct ggml_tensor * fresh = ggml_view_2d(ctx, rows, width, s->n, rows->nb[1], (size_t) s->first * rows->nb[1]);
    struct ggml_tensor * place = ggml_view_2d(ctx, cache->rows, width, s->n, row_bytes,
                                              (size_t) s->position * row_bytes);
    ggml_build_forward_expand(b->graph, ggml_cpy(ctx, fresh, place));

    struct ggml_tensor * keys = ggml_view_3d(ctx, cache->rows, width, n_kv, 1, row_bytes, row_bytes * (size_t) n_kv, 0);
    struct ggml_tensor * values = ggml_view_3d(ctx, cache->rows, n_latent, n_kv, 1, row_bytes,
                                               row_bytes * (size_t) n_kv, 0);
    struct ggml_tensor * mine   = ggml_view_3d(ctx, q, width, s->n, q->ne[2], q->nb[1], q->nb[2],
                                               (size_t) s->first * q->nb[1]);
    return ggml_flash_attn_ext(ctx, mine, keys, values, cache->mask, scale, 0.0f, 0.0f);
}

struct ggml_tensor * ggml_k3_mla(struct ggml_k3_builder * b, int64_t n_latent, float scale, struct ggml_tensor * q,
                                 struct ggml_tensor * rows, const struct ggml_k3_segment * segments,
                                 const struct ggml_k3_mla_cache * caches, int n_segments) {
    struct ggml_tensor * out = NULL;
    for (int i = 0; i < n_segments; i++) {
        struct ggml_tensor * o = segment(b, n_latent, scale, q, rows, &segments[i], &caches[i]);
        out                    = out ? ggml_concat(b->ctx, out, o, 2) : o;
    }
    return out;
}
