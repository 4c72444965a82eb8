// engine.h - computes micro-batches: keeps the threads, the compute memory and the graphs built so far.
#ifndef K3_ENGINE_H
#define K3_ENGINE_H

#include "graph.h"
#include "model.h"

#include "ggml-alloc.h"
#include "ggml-cpu.h"

// One for each number of sequences up to 16, and as many for mixtures of decoding and prompts. With 93 layers a graph
// has some 3 MB and takes some 3 ms to build.
enum { K3_MAX_GRAPHS = 32 };

typedef struct k3_engine {
    const struct llama_k3_model * model;
    const k3_cache * cache;
    k3_ubatch * batch;
    enum ggml_k3_form form;
    int n_threads;
    ggml_gallocr_t compute;      // one buffer for all graphs
    struct ggml_k3_pool * pool;  // of the fast form
    ggml_backend_t backend;      // of the other forms, with its threads
    struct ggml_threadpool * threads;
    k3_graph * graphs[K3_MAX_GRAPHS];  // most recently used first
    uint64_t graphs_built, graphs_reused;
    int fewer_runs, last_fewer_runs;  // runs left with fewer threads, and how many there were the last time
    int waiting_runs;                 // in a row that were mostly waiting
    double ms[GGML_K3_SECTIONS];      // of the last run; 0 in the other forms
} k3_engine;

// Without threads: enough for k3_engine_estimate.
int k3_engine_init(k3_engine * engine, const struct llama_k3_model * model, const k3_cache * cache, k3_ubatch * batch,
                   enum ggml_k3_form form, k3_error e);
int k3_engine_start_threads(k3_engine * engine, int n_threads, bool (*stop)(void * user), void * user, k3_error e);
// `abandon`: the threads stayed behind in the process that forked this one.
void k3_engine_free(k3_engine * engine, bool abandon);

// Bytes that the present micro-batch's graph needs; builds it and throws it away.
int k3_engine_estimate(k3_engine * engine, int n_threads, uint64_t * bytes, k3_error e);
// Makes room for the present micro-batch's graph.
int k3_engine_reserve(k3_engine * engine, k3_error e);
uint64_t k3_engine_memory(const k3_engine * engine);

// Computes the present micro-batch with a graph built before, if the form allows it and there is one. *out stays
// valid until the next call. `stop` (NULL: nothing stops it) belongs to the fast form; the others ask what
// k3_engine_start_threads got. LLAMA_K3_ABORTED, LLAMA_K3_MEMORY, LLAMA_K3_COMPUTE.
int k3_engine_run(k3_engine * engine, int n_threads, bool (*stop)(void * user), void * user, const k3_graph ** out,
                  k3_error e);

#endif
