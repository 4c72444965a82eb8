// sequence.c - tokens, clear, copy, truncate and checkpoints of sequences.
#include "context.h"

#include <string.h>

int64_t llama_k3_seq_position(const llama_k3_context * ctx, int32_t seq) {
    const k3_error none = {NULL, 0};
    return k3_context_check_seq(ctx, seq, none) ? -1 : ctx->cache.seq[seq].position;
}

static int64_t copy_tokens(const k3_sequence * s, int64_t first, int32_t * tokens, int64_t n) {
    if (first < 0 || first >= s->position || n <= 0) {
        return 0;
    }
    n = n < s->position - first ? n : s->position - first;
    memcpy(tokens, s->tokens + first, (size_t) n * sizeof(*tokens));
    return n;
}

int llama_k3_seq_tokens(llama_k3_context * ctx, int32_t seq, int64_t first, int32_t * tokens, int64_t n,
                        int64_t * n_copied, char * err, size_t err_size) {
    const k3_error e = {err, err_size};
    int status       = k3_context_enter(ctx, e);
    if (status) {
        return status;
    }
    status    = k3_context_check_seq(ctx, seq, e);
    *n_copied = status ? 0 : copy_tokens(&ctx->cache.seq[seq], first, tokens, n);
    k3_context_leave(ctx);
    return status;
}

int llama_k3_seq_clear(llama_k3_context * ctx, int32_t seq, char * err, size_t err_size) {
    const k3_error e = {err, err_size};
    int status       = k3_context_enter(ctx, e);
    if (status) {
        return status;
    }
    status = k3_context_check_seq(ctx, seq, e);
    if (!status) {
        k3_cache_clear(&ctx->cache, seq);
    }
    k3_context_leave(ctx);
    return status;
}

int llama_k3_seq_copy(llama_k3_context * ctx, int32_t src, int32_t dst, char * err, size_t err_size) {
    const k3_error e = {err, err_size};
    int status       = k3_context_enter(ctx, e);
    if (status) {
        return status;
    }
    status = k3_context_check_seq(ctx, src, e);
    status = status ? status : k3_context_check_seq(ctx, dst, e);
    if (!status && src != dst) {
        status = k3_cache_copy(&ctx->cache, src, dst, e);
    }
    k3_context_leave(ctx);
    return status;
}

static int truncate_sequence(llama_k3_context * ctx, int32_t seq, int64_t position, int32_t * result, int64_t * go_on,
                             k3_error e) {
    int status = k3_context_check_seq(ctx, seq, e);
    if (status) {
        return status;
    }
    const int64_t present = ctx->cache.seq[seq].position;
    if (position < 0 || position > present) {
        return k3_fail(e, LLAMA_K3_ARGUMENT, "sequence %d: truncate to %lld found, 0 to %lld wanted", seq,
                       (long long) position, (long long) present);
    }
    *go_on  = position == present ? position : k3_cache_rewind(&ctx->cache, seq, position);
    *result = *go_on == position ? LLAMA_K3_TRUNCATE_DONE : LLAMA_K3_TRUNCATE_REBUILD;
    return LLAMA_K3_OK;
}

int llama_k3_seq_truncate(llama_k3_context * ctx, int32_t seq, int64_t position, int32_t * result, int64_t * go_on,
                          char * err, size_t err_size) {
    const k3_error e = {err, err_size};
    int status       = k3_context_enter(ctx, e);
    if (status) {
        return status;
    }
    status = truncate_sequence(ctx, seq, position, result, go_on, e);
    k3_context_leave(ctx);
    return status;
}

int llama_k3_seq_checkpoint(llama_k3_context * ctx, int32_t seq, char * err, size_t err_size) {
    const k3_error e = {err, err_size};
    int status       = k3_context_enter(ctx, e);
    if (status) {
        return status;
    }
    status = k3_context_check_seq(ctx, seq, e);
    status = status ? status : k3_cache_checkpoint(&ctx->cache, seq, e);
    k3_context_leave(ctx);
    return status;
}

int llama_k3_seq_checkpoints(llama_k3_context * ctx, int32_t seq, int64_t * positions, uint64_t * ids, int64_t n,
                             int64_t * n_found, char * err, size_t err_size) {
    const k3_error e = {err, err_size};
    int status       = k3_context_enter(ctx, e);
    if (status) {
        return status;
    }
    *n_found = 0;
    status   = k3_context_check_seq(ctx, seq, e);
    if (!status) {
        const k3_sequence * s = &ctx->cache.seq[seq];
        *n_found              = s->n_checkpoints;
        for (int64_t i = 0; i < n && i < *n_found; i++) {
            positions[i] = s->checkpoints[i]->position;
            ids[i]       = s->checkpoints[i]->serial;
        }
    }
    k3_context_leave(ctx);
    return status;
}

int llama_k3_seq_drop_checkpoint(llama_k3_context * ctx, int32_t seq, int64_t position, char * err, size_t err_size) {
    const k3_error e = {err, err_size};
    int status       = k3_context_enter(ctx, e);
    if (status) {
        return status;
    }
    status = k3_context_check_seq(ctx, seq, e);
    if (!status && !k3_cache_checkpoint_drop(&ctx->cache, seq, position)) {
        status = k3_fail(e, LLAMA_K3_ARGUMENT, "sequence %d: no checkpoint at position %lld found, one wanted", seq,
                         (long long) position);
    }
    k3_context_leave(ctx);
    return status;
}
