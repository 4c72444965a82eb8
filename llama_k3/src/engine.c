// engine.c - graphs are built once for each shape of a micro-batch and share one buffer; the fast form reuses them, the
// others build anew, since their graphs contain positions.
#include "engine.h"

#include "ggml_k3_mutant.h"

#include <stdlib.h>
#include <string.h>

int k3_engine_init(k3_engine * g, const struct llama_k3_model * model, const k3_cache * cache, k3_ubatch * batch,
                   enum ggml_k3_form form, k3_error e) {
    *g         = (k3_engine) {.model = model, .cache = cache, .batch = batch, .form = form};
    g->compute = ggml_gallocr_new(ggml_backend_cpu_buffer_type());
    return g->compute ? LLAMA_K3_OK : k3_fail(e, LLAMA_K3_MEMORY, "context: no memory for the allocator");
}

int k3_engine_start_threads(k3_engine * g, int n_threads, bool (*stop)(void * user), void * user, k3_error e) {
    g->n_threads = n_threads;
    if (g->form == GGML_K3_FAST) {
        g->pool = ggml_k3_pool_new(n_threads);
        return g->pool ? LLAMA_K3_OK : k3_fail(e, LLAMA_K3_MEMORY, "context: no pool of %d threads", n_threads);
    }
    struct ggml_threadpool_params pool = ggml_threadpool_params_default(n_threads);
    g->backend                         = ggml_backend_cpu_init();
    g->threads                         = ggml_threadpool_new(&pool);
    if (!g->backend || !g->threads) {
        return k3_fail(e, LLAMA_K3_MEMORY, "context: no CPU backend with %d threads", n_threads);
    }
    ggml_backend_cpu_set_threadpool(g->backend, g->threads);
    ggml_backend_cpu_set_abort_callback(g->backend, stop, user);
    return LLAMA_K3_OK;
}

static void drop(k3_engine * g, int index) {
    if (g->graphs[index]) {
        k3_graph_free(g->graphs[index]);
        free(g->graphs[index]);
        g->graphs[index] = NULL;
    }
}

static void drop_all(k3_engine * g) {
    for (int i = 0; i < K3_MAX_GRAPHS; i++) {
        drop(g, i);
    }
}

void k3_engine_free(k3_engine * g, bool abandon) {
    drop_all(g);
    ggml_gallocr_free(g->compute);
    ggml_backend_free(g->backend);
    if (abandon) {
        ggml_k3_pool_abandon(g->pool);
    } else {
        ggml_k3_pool_free(g->pool);
        if (g->threads) {  // would wait for them
            ggml_threadpool_free(g->threads);
        }
    }
    *g = (k3_engine) {0};
}

static int build(k3_engine * g, k3_graph * graph, k3_error e) {
    return k3_graph_build(graph, &g->model->hp, &g->model->weights, g->cache, g->batch, g->form, e);
}

int k3_engine_estimate(k3_engine * g, int n_threads, uint64_t * bytes, k3_error e) {
    k3_graph * graph = calloc(1, sizeof(*graph));
    if (!graph) {
        return k3_fail(e, LLAMA_K3_MEMORY, "context: no memory for a graph");
    }
    int status     = build(g, graph, e);
    size_t compute = 0;
    if (!status) {
        ggml_gallocr_reserve_n_size(g->compute, graph->nodes, NULL, NULL, &compute);
        if (g->form == GGML_K3_FAST && !ggml_k3_plan_init(&graph->plan, graph->nodes)) {
            status = k3_fail(e, LLAMA_K3_MEMORY, "context: no memory for a plan");
        }
    }
    *bytes = compute + graph->plan.work + graph->plan.scratch * (uint64_t) n_threads;
    k3_graph_free(graph);
    free(graph);
    return status;
}

// A place for a new graph at the front; the least recently used one goes, or all where they are of no more use.
static k3_graph * front(k3_engine * g) {
    if (g->form != GGML_K3_FAST) {
        drop_all(g);
    }
    k3_graph * graph = calloc(1, sizeof(*graph));
    if (graph) {
        drop(g, K3_MAX_GRAPHS - 1);
        memmove(g->graphs + 1, g->graphs, (K3_MAX_GRAPHS - 1) * sizeof(g->graphs[0]));
        g->graphs[0] = graph;
    }
    return graph;
}

// The graph for the present micro-batch moves to the front; NULL: there is none.
static k3_graph * find(k3_engine * g) {
    const bool reuse = g->form == GGML_K3_FAST && !GGML_K3_MUTANT("rebuild-graph");
    for (int i = 0; reuse && i < K3_MAX_GRAPHS && g->graphs[i]; i++) {
        k3_graph * graph = g->graphs[i];
        if (graph->n_tokens == g->batch->n_tokens && graph->n_outputs == g->batch->n_outputs) {
            memmove(g->graphs + 1, g->graphs, (size_t) i * sizeof(g->graphs[0]));
            g->graphs[0] = graph;
            return graph;
        }
    }
    return NULL;
}

// Gives the graph its memory. A buffer that had to grow has moved: the other graphs' tensors are lost. An allocator
// that failed has lost its buffer and would place the next graph in it all the same, so that a new one takes over.
static int allocate(k3_engine * g, k3_graph * graph, k3_error e) {
    const size_t before = ggml_gallocr_get_buffer_size(g->compute, 0);
    const bool ok       = ggml_gallocr_alloc_graph(g->compute, graph->nodes);
    if (!ok || ggml_gallocr_get_buffer_size(g->compute, 0) != before) {
        for (int i = 1; i < K3_MAX_GRAPHS; i++) {
            drop(g, i);
        }
    }
    if (!ok) {
        ggml_gallocr_free(g->compute);
        g->compute = ggml_gallocr_new(ggml_backend_cpu_buffer_type());
    }
    if (!ok || (g->form == GGML_K3_FAST && (!ggml_k3_plan_init(&graph->plan, graph->nodes) ||
                                            !ggml_k3_pool_reserve(g->pool, graph->plan.work, graph->plan.scratch)))) {
        return k3_fail(e, LLAMA_K3_MEMORY, "micro-batch of %d tokens: no memory for the computation",
                       g->batch->n_tokens);
    }
    return LLAMA_K3_OK;
}

static int make(k3_engine * g, k3_graph ** out, k3_error e) {
    *out = front(g);
    if (!*out) {
        return k3_fail(e, LLAMA_K3_MEMORY, "context: no memory for a graph");
    }
    int status = build(g, *out, e);
    status     = status ? status : allocate(g, *out, e);
    if (status) {
        drop_all(g);  // what was at the front is not whole
    }
    return status;
}

int k3_engine_reserve(k3_engine * g, k3_error e) {
    k3_graph * graph;
    return make(g, &graph, e);
}

uint64_t k3_engine_memory(const k3_engine * g) {
    return ggml_gallocr_get_buffer_size(g->compute, 0) + (g->pool ? ggml_k3_pool_memory(g->pool) : 0);
}

// Where other programs take processors away, threads wait for each other most of the time and fewer are faster, by far.
// So after some runs in a row that were mostly waiting the next ones get half the threads, longer every time it happens
// again; one such run alone is a server's own work for its clients. A result does not depend on it.
static void watch_contention(k3_engine * g) {
    enum { IN_A_ROW = 3, FIRST = 8, MOST = 512 };
    double total = 0.0;
    for (int i = 0; i < GGML_K3_SECTIONS; i++) {
        total += g->ms[i];
    }
    if (ggml_k3_pool_waited(g->pool) < 0.5 * total) {
        g->last_fewer_runs = g->waiting_runs = 0;
        return;
    }
    if (++g->waiting_runs < IN_A_ROW && g->last_fewer_runs == 0) {
        return;
    }
    g->last_fewer_runs = g->last_fewer_runs == 0 ? FIRST : 2 * g->last_fewer_runs;
    g->last_fewer_runs = g->last_fewer_runs < MOST ? g->last_fewer_runs : MOST;
    g->fewer_runs      = g->last_fewer_runs;
}

static int compute_fast(k3_engine * g, const k3_graph * graph, int n_threads, bool (*stop)(void * user), void * user,
                        k3_error e) {
    const bool fewer = n_threads > 1 && g->fewer_runs > 0;
    if (!ggml_k3_plan_run(&graph->plan, g->pool, fewer ? n_threads / 2 : n_threads, stop, user, g->ms)) {
        return k3_fail(e, LLAMA_K3_ABORTED, "decode: stopped by the caller");
    }
    if (fewer) {
        g->fewer_runs--;
    } else if (n_threads > 1) {
        watch_contention(g);
    }
    return LLAMA_K3_OK;
}

static int compute_stock(k3_engine * g, const k3_graph * graph, int n_threads, k3_error e) {
    ggml_backend_cpu_set_n_threads(g->backend, n_threads);
    switch (ggml_backend_graph_compute(g->backend, graph->nodes)) {
        case GGML_STATUS_SUCCESS: return LLAMA_K3_OK;
        case GGML_STATUS_ABORTED: return k3_fail(e, LLAMA_K3_ABORTED, "decode: stopped by the caller");
        case GGML_STATUS_ALLOC_FAILED: return k3_fail(e, LLAMA_K3_MEMORY, "decode: the backend is out of memory");
        default: return k3_fail(e, LLAMA_K3_COMPUTE, "decode: the backend failed");
    }
}

int k3_engine_run(k3_engine * g, int n_threads, bool (*stop)(void * user), void * user, const k3_graph ** out,
                  k3_error e) {
    k3_graph * graph = find(g);
    if (graph) {
        g->graphs_reused++;
        g->batch->ops.n_segments = g->batch->n_segments;
    } else {
        int status = make(g, &graph, e);
        if (status) {
            return status;
        }
        g->graphs_built++;
    }
    *out = graph;
    memset(g->ms, 0, sizeof(g->ms));
    k3_graph_set_inputs(graph, g->batch);
    return g->form == GGML_K3_FAST ? compute_fast(g, graph, n_threads, stop, user, e)
                                   : compute_stock(g, graph, n_threads, e);
}
