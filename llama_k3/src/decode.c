// decode.c - llama_k3_decode: checks the whole batch, then runs it in micro-batches. A micro-batch is grouped by
// sequence, computed, and only then made part of its sequences: one that was stopped or failed leaves no trace. In the
// fast form a micro-batch with one token a sequence updates the KDA states in place, and nothing stops it.
#include "context.h"

#include "ggml_k3_mutant.h"

#include <math.h>
#include <string.h>
#include <time.h>

static double now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double) t.tv_sec * 1e3 + (double) t.tv_nsec * 1e-6;
}

static int check_items(llama_k3_context * ctx, const llama_k3_batch_item * items, size_t n_items, k3_error e) {
    const int32_t n_vocab = ctx->model->hp.n_vocab;
    for (size_t i = 0; i < n_items; i++) {
        int status = k3_context_check_seq(ctx, items[i].seq, e);
        if (status) {
            return status;
        }
        if (items[i].token < 0 || items[i].token >= n_vocab) {
            return k3_fail(e, LLAMA_K3_ARGUMENT, "token %zu: found %d, wanted 0 to %d", i, items[i].token, n_vocab - 1);
        }
    }
    return LLAMA_K3_OK;
}

// Room in every sequence for all its tokens, counted before anything is computed.
static int check_room(llama_k3_context * ctx, const llama_k3_batch_item * items, size_t n_items, k3_error e) {
    if (n_items > INT32_MAX) {
        return k3_fail(e, LLAMA_K3_ARGUMENT, "batch: found %zu tokens, wanted at most %d", n_items, INT32_MAX);
    }
    int32_t * n_new = ctx->segment_of;
    memset(n_new, 0, ctx->params.n_seq_max * sizeof(*n_new));
    for (size_t i = 0; i < n_items; i++) {
        n_new[items[i].seq]++;
    }
    for (uint32_t seq = 0; seq < ctx->params.n_seq_max; seq++) {
        const int64_t end = ctx->cache.seq[seq].position + n_new[seq];
        if (end > (int64_t) ctx->params.n_ctx) {
            return k3_fail(e, LLAMA_K3_CONTEXT_FULL, "sequence %u: %lld tokens found, n_ctx %u wanted at most", seq,
                           (long long) end, ctx->params.n_ctx);
        }
        int status = n_new[seq] ? k3_cache_reserve_tokens(&ctx->cache, (int32_t) seq, end, e) : LLAMA_K3_OK;
        if (status) {
            return status;
        }
    }
    return LLAMA_K3_OK;
}

static size_t count_wanted(const llama_k3_batch_item * items, size_t n_items) {
    size_t n = 0;
    for (size_t i = 0; i < n_items; i++) {
        n += items[i].want;
    }
    return n;
}

static int check_logits(const llama_k3_context * ctx, const llama_k3_batch_item * items, size_t n_items,
                        const float * logits, size_t n_logits, k3_error e) {
    const uint64_t n_want = count_wanted(items, n_items);
    uint64_t wanted;
    if (!k3_mul_u64(n_want, (uint64_t) ctx->model->hp.n_vocab, &wanted) || n_logits < wanted || (wanted && !logits)) {
        return k3_fail(e, LLAMA_K3_ARGUMENT, "logits: room for %zu values found, %llu rows of %d wanted", n_logits,
                       (unsigned long long) n_want, ctx->model->hp.n_vocab);
    }
    return LLAMA_K3_OK;
}

// Places of a sequence's state to read and to write.
static struct ggml_k3_segment new_segment(const llama_k3_context * ctx, int32_t seq) {
    const k3_sequence * s = &ctx->cache.seq[seq];
    const int32_t active  = 2 * seq + s->active;
    return (struct ggml_k3_segment) {.position = s->position, .seq = seq, .state_in = active, .state_out = active ^ 1};
}

static bool in_place(const llama_k3_context * ctx) {
    return ctx->engine.form == GGML_K3_FAST && ctx->batch.n_tokens == ctx->batch.n_segments &&
           !GGML_K3_MUTANT("copy-state");
}

// Groups items by sequence, in order of first appearance.
static void fill_batch(llama_k3_context * ctx, const llama_k3_batch_item * items, int32_t n_items) {
    k3_ubatch * b = &ctx->batch;
    b->n_tokens   = n_items;
    b->n_segments = b->n_outputs = 0;
    for (uint32_t i = 0; i < ctx->params.n_seq_max; i++) {
        ctx->segment_of[i] = -1;
    }
    for (int32_t i = 0; i < n_items; i++) {
        int32_t * segment = &ctx->segment_of[items[i].seq];
        if (*segment < 0) {
            *segment              = b->n_segments++;
            b->seq[*segment]      = items[i].seq;
            b->segments[*segment] = new_segment(ctx, items[i].seq);
        }
        b->segments[*segment].n++;
    }
    int64_t first = 0;
    for (int32_t i = 0; i < b->n_segments; i++) {
        b->segments[i].first     = first;
        b->segments[i].state_out = in_place(ctx) ? b->segments[i].state_in : b->segments[i].state_out;
        first += b->segments[i].n;
        b->segments[i].n = 0;  // counted again while the tokens are placed
    }
    for (int32_t i = 0; i < n_items; i++) {
        struct ggml_k3_segment * s = &b->segments[ctx->segment_of[items[i].seq]];
        const int32_t slot         = (int32_t) (s->first + s->n++);
        b->tokens[slot]            = items[i].token;
        if (items[i].want) {
            b->outputs[b->n_outputs++] = slot;
        }
    }
}

// Threads are synchronised at every node: below some megabytes of weights for each thread this costs more than it gives.
// Attention over the cache counts by its operations, as the weights that take equally long.
static int useful_threads(const llama_k3_context * ctx) {
    enum { BYTES_PER_THREAD = 8 << 20, OPERATIONS_PER_BYTE = 8 };
    const k3_hparams * hp = &ctx->model->hp;
    const k3_ubatch * b   = &ctx->batch;
    const double per_row  = 2.0 * hp->n_head * (double) (k3_row_width(hp) + hp->kv_lora) * ctx->cache.n_mla;
    double bytes          = (double) b->n_tokens * (double) ctx->token_bytes;
    for (int32_t i = 0; i < b->n_segments; i++) {
        bytes += (double) b->segments[i].n * (double) b->segments[i].position * per_row / OPERATIONS_PER_BYTE;
    }
    const double n = bytes / BYTES_PER_THREAD + 1;
    return n < ctx->params.n_threads ? (int) n : (int) ctx->params.n_threads;
}

// The micro-batch becomes part of its sequences.
static void commit(llama_k3_context * ctx) {
    const k3_ubatch * b = &ctx->batch;
    for (int32_t i = 0; i < b->n_segments; i++) {
        k3_sequence * s                    = &ctx->cache.seq[b->seq[i]];
        const struct ggml_k3_segment * seg = &b->segments[i];
        memcpy(s->tokens + s->position, b->tokens + seg->first, (size_t) seg->n * sizeof(*s->tokens));
        s->position += seg->n;
        s->active = seg->state_out & 1;
    }
}

// Bytes that the micro-batch read or wrote: see llama_k3_counters.
static uint64_t moved_bytes(const llama_k3_context * ctx, const k3_graph * g) {
    const k3_weights * w = &ctx->model->weights;
    const k3_cache * c   = &ctx->cache;
    const k3_ubatch * b  = &ctx->batch;
    uint64_t n           = ctx->dense_bytes + (uint64_t) b->n_tokens * w->token_embd->nb[1];
    n += b->n_outputs ? ggml_nbytes(w->output) : 0;
    for (int32_t i = 0; i < ctx->model->hp.n_layer; i++) {
        const k3_layer * l = &w->layer[i];
        if (l->gate_exps) {
            n += g->n_distinct[i] * (l->gate_exps->nb[2] + l->up_exps->nb[2] + l->down_exps->nb[2]);
        }
    }
    for (int32_t i = 0; i < b->n_segments; i++) {
        const uint64_t rows = (uint64_t) (b->segments[i].position + 2 * b->segments[i].n);  // read all, write new ones
        n += rows * c->row_bytes * (uint64_t) c->n_mla + 2 * k3_cache_recurrent_bytes(c);
    }
    return n;
}

static void count(llama_k3_context * ctx, const k3_graph * g, double ms) {
    const double * section = ctx->engine.ms;
    const k3_ubatch * b    = &ctx->batch;
    llama_k3_phase * phase = b->n_tokens == b->n_segments ? &ctx->counters.decode : &ctx->counters.prefill;
    phase->tokens += (uint64_t) b->n_tokens;
    phase->batches += 1;
    phase->ms += ms + (GGML_K3_MUTANT("prefill-in-decode") ? ctx->counters.prefill.ms : 0.0);
    phase->bytes += moved_bytes(ctx, g);
    phase->ms_kda += section[GGML_K3_KDA];
    phase->ms_mla += section[GGML_K3_MLA];
    phase->ms_experts += section[GGML_K3_EXPERTS];
    phase->ms_other += section[GGML_K3_OTHER];
    ctx->counters.graphs_built += ctx->engine.graphs_built;
    ctx->counters.graphs_reused += ctx->engine.graphs_reused;
    ctx->engine.graphs_built = ctx->engine.graphs_reused = 0;
}

// Clears the sequences whose logits are not finite and names the first of them.
static int check_finite(llama_k3_context * ctx, const float * logits, k3_error e) {
    const k3_ubatch * b   = &ctx->batch;
    const int32_t n_vocab = ctx->model->hp.n_vocab;
    int status            = LLAMA_K3_OK;
    for (int32_t row = 0; row < b->n_outputs; row++) {
        const float * values = logits + (size_t) row * (size_t) n_vocab;
        int32_t i            = 0;
        while (i < n_vocab && isfinite(values[i])) {
            i++;
        }
        if (i == n_vocab) {
            continue;
        }
        int32_t segment = 0;
        while (b->outputs[row] >= b->segments[segment].first + b->segments[segment].n) {
            segment++;
        }
        const int32_t seq = b->seq[segment];
        if (!status) {
            status = k3_fail(
                e, LLAMA_K3_NON_FINITE, "sequence %d: logit of token %d at position %lld is not finite", seq, i,
                (long long) (b->segments[segment].position + b->outputs[row] - b->segments[segment].first));
        }
        k3_cache_clear(&ctx->cache, seq);
    }
    return status;
}

// Long prefills leave checkpoints behind, so that `truncate` need not start from the beginning.
static int checkpoint_prefill(llama_k3_context * ctx, k3_error e) {
    const int64_t every = ctx->params.snapshot_every;
    for (int32_t i = 0; every > 0 && i < ctx->batch.n_segments; i++) {
        const struct ggml_k3_segment * s = &ctx->batch.segments[i];
        if (s->n > 1 && s->position / every != (s->position + s->n) / every) {
            int status = k3_cache_checkpoint(&ctx->cache, ctx->batch.seq[i], e);
            if (status) {
                return status;
            }
        }
    }
    return LLAMA_K3_OK;
}

// One micro-batch; *logits moves behind the rows that were written.
static int decode_ubatch(llama_k3_context * ctx, const llama_k3_batch_item * items, int32_t n_items, float ** logits,
                         k3_error e) {
    const double start = now_ms();
    const k3_graph * g = NULL;
    fill_batch(ctx, items, n_items);
    bool (*const stop)(void *) = in_place(ctx) ? NULL : k3_context_stop;
    int status                 = k3_engine_run(&ctx->engine, useful_threads(ctx), stop, ctx, &g, e);
    if (status) {
        return status;
    }
    const size_t n = (size_t) ctx->batch.n_outputs * (size_t) ctx->model->hp.n_vocab;
    if (n > 0) {
        memcpy(*logits, g->logits->data, n * sizeof(**logits));
    }
    commit(ctx);
    count(ctx, g, now_ms() - start);
    status = check_finite(ctx, *logits, e);
    *logits += n;
    return status ? status : checkpoint_prefill(ctx, e);
}

static int decode_all(llama_k3_context * ctx, const llama_k3_batch_item * items, size_t n_items, float * logits,
                      size_t n_logits, k3_error e) {
    int status        = check_items(ctx, items, n_items, e);
    status            = status ? status : check_logits(ctx, items, n_items, logits, n_logits, e);
    status            = status ? status : check_room(ctx, items, n_items, e);
    float * const end = status ? logits : logits + count_wanted(items, n_items) * (size_t) ctx->model->hp.n_vocab;
    for (size_t done = 0; !status && done < n_items;) {
        const size_t left = n_items - done, n = left < ctx->params.n_ubatch ? left : ctx->params.n_ubatch;
        if (ctx->params.abort && ctx->params.abort(ctx->params.abort_user)) {
            return k3_fail(e, LLAMA_K3_ABORTED, "decode: stopped by the caller");
        }
        status = decode_ubatch(ctx, items + done, (int32_t) n, &logits, e);
        done += n;
        if (!status && ctx->params.progress) {
            ctx->params.progress(done, n_items, ctx->params.progress_user);
        }
    }
    while (status == LLAMA_K3_NON_FINITE && logits < end) {
        *logits++ = NAN;
    }
    return status;
}

int llama_k3_decode(llama_k3_context * ctx, const llama_k3_batch_item * items, size_t n_items, float * logits,
                    size_t n_logits, char * err, size_t err_size) {
    const k3_error e = {err, err_size};
    int status       = k3_context_enter(ctx, e);
    if (status) {
        return status;
    }
    status = decode_all(ctx, items, n_items, logits, n_logits, e);
    k3_context_leave(ctx);
    return status;
}
