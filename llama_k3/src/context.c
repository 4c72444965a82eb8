// context.c - creation, size estimate and counters of a context.
#include "context.h"

#include "log.h"

#include "ggml-backend.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_THREADS = GGML_MAX_N_THREADS, MAX_SEQUENCES = 4096, MAX_UBATCH = 1 << 16 };

void llama_k3_context_default_params(llama_k3_context_params * out) {
    *out = (llama_k3_context_params) {
        .n_ctx          = 4096,
        .n_seq_max      = 1,
        .n_ubatch       = 512,
        .n_threads      = 1,
        .cache_type     = LLAMA_K3_CACHE_BF16,
        .snapshot_every = 4096,
        .snapshot_bytes = UINT64_C(1) << 30,
    };
}

static int check_range(const char * name, uint64_t found, uint64_t least, uint64_t most, k3_error e) {
    if (found < least || found > most) {
        return k3_fail(e, LLAMA_K3_ARGUMENT, "%s: found %llu, wanted %llu to %llu", name, (unsigned long long) found,
                       (unsigned long long) least, (unsigned long long) most);
    }
    return LLAMA_K3_OK;
}

static int cache_type(int32_t type, enum ggml_type * out, k3_error e) {
    switch (type) {
        case LLAMA_K3_CACHE_F32: *out = GGML_TYPE_F32; return LLAMA_K3_OK;
        case LLAMA_K3_CACHE_F16: *out = GGML_TYPE_F16; return LLAMA_K3_OK;
        case LLAMA_K3_CACHE_BF16: *out = GGML_TYPE_BF16; return LLAMA_K3_OK;
        case LLAMA_K3_CACHE_Q8_0: *out = GGML_TYPE_Q8_0; return LLAMA_K3_OK;
        default: return k3_fail(e, LLAMA_K3_ARGUMENT, "cache_type: found %d, wanted 0 to 3", type);
    }
}

// The form of every op can be forced for diagnosis. Head sizes that no model of the family has are left to stock ggml.
static int ops_form(const k3_hparams * hp, enum ggml_k3_form * out, k3_error e) {
    static const char * const names[] = {
        [GGML_K3_STOCK] = "stock", [GGML_K3_REFERENCE] = "reference", [GGML_K3_FAST] = "fast"};
    const char * name = getenv("LLAMA_K3_OPS");
    *out              = GGML_K3_FAST;
    for (int i = 0; name && *name && strcmp(name, names[ *out = (enum ggml_k3_form) i]) != 0; i++) {
        if (i == GGML_K3_FAST) {
            return k3_fail(e, LLAMA_K3_ARGUMENT, "LLAMA_K3_OPS: found \"%s\", wanted fast, stock or reference", name);
        }
    }
    if (*out == GGML_K3_FAST && !ggml_k3_cpu_name()) {
        return k3_fail(e, LLAMA_K3_ARGUMENT, "GGML_K3_CPU: found \"%s\", wanted a variant that this processor runs",
                       getenv("GGML_K3_CPU"));
    }
    if (*out == GGML_K3_FAST && hp->kda_dim % GGML_K3_KDA_STEP != 0) {
        k3_log(LLAMA_K3_LOG_WARN, "kda.head_dim: found %d, wanted a multiple of %d for the fast kernels", hp->kda_dim,
               GGML_K3_KDA_STEP);
        *out = GGML_K3_STOCK;
    }
    return LLAMA_K3_OK;
}

static int check_params(const llama_k3_context_params * p, k3_error e) {
    int status = check_range("n_ctx", p->n_ctx, 1, INT32_MAX, e);
    status     = status ? status : check_range("n_seq_max", p->n_seq_max, 1, MAX_SEQUENCES, e);
    status     = status ? status : check_range("n_ubatch", p->n_ubatch, 1, MAX_UBATCH, e);
    return status ? status : check_range("n_threads", p->n_threads, 1, MAX_THREADS, e);
}

// The biggest micro-batch of one sequence with one row of logits: full, and at the end of the context. One that wants
// more logits lets the compute buffer grow.
static void set_largest(llama_k3_context * ctx) {
    const uint32_t n      = ctx->params.n_ubatch < ctx->params.n_ctx ? ctx->params.n_ubatch : ctx->params.n_ctx;
    ctx->batch.n_tokens   = (int32_t) n;
    ctx->batch.n_segments = ctx->batch.n_outputs = 1;
    ctx->batch.seq[0]                            = 0;
    ctx->batch.segments[0] = (struct ggml_k3_segment) {.n = n, .position = ctx->params.n_ctx - n, .state_out = 1};
}

// What needs no threads: cache address space and batch arrays.
static int init_cache(llama_k3_context * ctx, k3_error e) {
    const llama_k3_context_params * p = &ctx->params;
    enum ggml_type row_type           = GGML_TYPE_F32;
    enum ggml_k3_form form            = GGML_K3_FAST;
    int status                        = check_params(p, e);
    status                            = status ? status : cache_type(p->cache_type, &row_type, e);
    status                            = status ? status : ops_form(&ctx->model->hp, &form, e);
    if (status) {
        return status;
    }
    status = k3_cache_init(&ctx->cache, &ctx->model->hp, p->n_ctx, p->n_seq_max, row_type, p->snapshot_bytes, e);
    if (status) {
        return status;
    }
    const size_t n      = p->n_ubatch;
    ctx->batch.tokens   = calloc(n, sizeof(*ctx->batch.tokens));
    ctx->batch.outputs  = calloc(n, sizeof(*ctx->batch.outputs));
    ctx->batch.seq      = calloc(n, sizeof(*ctx->batch.seq));
    ctx->batch.segments = calloc(n, sizeof(*ctx->batch.segments));
    ctx->segment_of     = malloc(p->n_seq_max * sizeof(*ctx->segment_of));
    if (!ctx->batch.tokens || !ctx->batch.outputs || !ctx->batch.seq || !ctx->batch.segments || !ctx->segment_of) {
        return k3_fail(e, LLAMA_K3_MEMORY, "context: no memory for micro-batches of %zu tokens", n);
    }
    set_largest(ctx);
    return k3_engine_init(&ctx->engine, ctx->model, &ctx->cache, &ctx->batch, form, e);
}

// A thread without a processor of its own only takes time from the others. Results do not depend on the number.
static uint32_t usable_threads(uint32_t wanted) {
    long n = sysconf(_SC_NPROCESSORS_ONLN);
#ifdef __linux__
    cpu_set_t allowed;
    n = sched_getaffinity(0, sizeof(allowed), &allowed) == 0 ? CPU_COUNT(&allowed) : n;
#endif
    if (n < 1 || wanted <= (unsigned long) n) {
        return wanted;
    }
    k3_log(LLAMA_K3_LOG_WARN, "n_threads: found %u, using the %ld processors that the process may run on", wanted, n);
    return (uint32_t) n;
}

static int start_engine(llama_k3_context * ctx, k3_error e) {
    ctx->params.n_threads = usable_threads(ctx->params.n_threads);
    int status            = k3_engine_start_threads(&ctx->engine, (int) ctx->params.n_threads, k3_context_stop, ctx, e);
    return status ? status : k3_engine_reserve(&ctx->engine, e);
}

// The threads of the pool stayed behind in the process that forked this one.
static bool lost_threads(const llama_k3_context * ctx) { return ctx->params.n_threads > 1 && ctx->process != getpid(); }

static void destroy(llama_k3_context * ctx) {
    k3_engine_free(&ctx->engine, lost_threads(ctx));
    k3_cache_free(&ctx->cache);
    free(ctx->batch.tokens);
    free(ctx->batch.outputs);
    free(ctx->batch.seq);
    free(ctx->batch.segments);
    free(ctx->segment_of);
    llama_k3_model_free(ctx->model);
    free(ctx);
}

static llama_k3_context * create(llama_k3_model * model, const llama_k3_context_params * params, k3_error e) {
    llama_k3_context * ctx = calloc(1, sizeof(*ctx));
    if (!ctx) {
        k3_fail(e, LLAMA_K3_MEMORY, "context: out of memory");
        return NULL;
    }
    k3_model_retain(model);
    ctx->model   = model;
    ctx->params  = *params;
    ctx->process = getpid();
    atomic_flag_clear(&ctx->busy);
    return ctx;
}

static uint64_t tensor_bytes(const struct ggml_tensor * t) { return t ? ggml_nbytes(t) : 0; }

// All weights but the embedding, the output matrix and the routed experts.
static uint64_t dense_bytes(const llama_k3_model * m) {
    uint64_t n = m->n_bytes - tensor_bytes(m->weights.token_embd) - tensor_bytes(m->weights.output);
    for (int32_t i = 0; i < m->hp.n_layer; i++) {
        const k3_layer * l = &m->weights.layer[i];
        n -= tensor_bytes(l->gate_exps) + tensor_bytes(l->up_exps) + tensor_bytes(l->down_exps);
    }
    return n;
}

// All weights that take part in one token: the dense ones, the output matrix and the chosen experts.
static uint64_t token_bytes(const llama_k3_model * m) {
    uint64_t n = dense_bytes(m) + tensor_bytes(m->weights.output);
    for (int32_t i = 0; i < m->hp.n_layer; i++) {
        const k3_layer * l     = &m->weights.layer[i];
        const uint64_t experts = tensor_bytes(l->gate_exps) + tensor_bytes(l->up_exps) + tensor_bytes(l->down_exps);
        n += experts / (uint64_t) m->hp.n_expert * (uint64_t) m->hp.n_expert_used;
    }
    return n;
}

int llama_k3_context_new(llama_k3_model * model, const llama_k3_context_params * params, llama_k3_context ** out,
                         char * err, size_t err_size) {
    const k3_error e       = {err, err_size};
    *out                   = NULL;
    llama_k3_context * ctx = create(model, params, e);
    if (!ctx) {
        return LLAMA_K3_MEMORY;
    }
    int status = init_cache(ctx, e);
    status     = status ? status : start_engine(ctx, e);
    if (status) {
        destroy(ctx);
        return status;
    }
    ctx->dense_bytes = dense_bytes(model);
    ctx->token_bytes = token_bytes(model);
    *out             = ctx;
    return LLAMA_K3_OK;
}

int llama_k3_context_free(llama_k3_context * ctx) {
    if (!ctx) {
        return LLAMA_K3_OK;
    }
    if (atomic_flag_test_and_set(&ctx->busy)) {
        return LLAMA_K3_BUSY;
    }
    destroy(ctx);
    return LLAMA_K3_OK;
}

static void memory_of(const llama_k3_context * ctx, uint64_t compute, llama_k3_memory * out) {
    const k3_cache * c = &ctx->cache;
    *out               = (llama_k3_memory) {
                      .weights   = ctx->model->n_bytes,
                      .latent    = (uint64_t) c->n_mla * c->row_bytes * c->n_ctx * c->n_seq,
                      .state     = (uint64_t) c->n_kda * c->state_bytes * 2 * c->n_seq,
                      .window    = (uint64_t) c->n_kda * c->window_bytes * 2 * c->n_seq,
                      .compute   = compute,
                      .snapshots = c->checkpoint_bytes,
    };
    for (uint32_t i = 0; i < c->n_seq; i++) {
        out->latent_used += (uint64_t) c->n_mla * c->row_bytes * (uint64_t) c->seq[i].position;
    }
}

int llama_k3_context_estimate(llama_k3_model * model, const llama_k3_context_params * params, llama_k3_memory * out,
                              char * err, size_t err_size) {
    const k3_error e       = {err, err_size};
    llama_k3_context * ctx = create(model, params, e);
    if (!ctx) {
        return LLAMA_K3_MEMORY;
    }
    int status       = init_cache(ctx, e);
    uint64_t compute = 0;
    status = status ? status : k3_engine_estimate(&ctx->engine, (int) usable_threads(params->n_threads), &compute, e);
    if (!status) {
        memory_of(ctx, compute, out);
    }
    destroy(ctx);
    return status;
}

int llama_k3_context_get_memory(llama_k3_context * ctx, llama_k3_memory * out, char * err, size_t err_size) {
    const k3_error e = {err, err_size};
    int status       = k3_context_enter(ctx, e);
    if (status) {
        return status;
    }
    memory_of(ctx, k3_engine_memory(&ctx->engine), out);
    k3_context_leave(ctx);
    return LLAMA_K3_OK;
}

void llama_k3_context_get_counters(const llama_k3_context * ctx, llama_k3_counters * out) { *out = ctx->counters; }

void llama_k3_context_reset_counters(llama_k3_context * ctx) { ctx->counters = (llama_k3_counters) {0}; }

int k3_context_enter(llama_k3_context * ctx, k3_error e) {
    if (lost_threads(ctx)) {
        return k3_fail(e, LLAMA_K3_ARGUMENT,
                       "context: found one of process %lld with %u threads in process %lld, wanted one made after fork",
                       (long long) ctx->process, ctx->params.n_threads, (long long) getpid());
    }
    if (atomic_flag_test_and_set(&ctx->busy)) {
        return k3_fail(e, LLAMA_K3_BUSY, "context: in use by another thread, wanted one thread at a time");
    }
    return LLAMA_K3_OK;
}

void k3_context_leave(llama_k3_context * ctx) { atomic_flag_clear(&ctx->busy); }

int k3_context_check_seq(const llama_k3_context * ctx, int32_t seq, k3_error e) {
    if (seq < 0 || (uint32_t) seq >= ctx->params.n_seq_max) {
        return k3_fail(e, LLAMA_K3_ARGUMENT, "sequence: found %d, wanted 0 to %u", seq, ctx->params.n_seq_max - 1);
    }
    return LLAMA_K3_OK;
}

bool k3_context_stop(void * user) {
    const llama_k3_context * ctx = user;
    return ctx->params.abort && ctx->params.abort(ctx->params.abort_user);
}
