// run_pool.c - runs a plan of small nodes again and again, with changing numbers of threads, some runs stopped on the
// way, and checks what was computed. Prints the number of stopped runs.
//
//   run_pool RUNS THREADS SEED
#include "cpu/node.h"

#include "ggml-alloc.h"
#include "ggml-backend.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NODES = 48, VALUES = 64, ARENA = 1 << 16, GRAPH = 256 };

static void fail(const char * what) {
    printf("run_pool: %s\n", what);
    exit(1);
}

// dst[i] = src[i] + 1, shared; every thread then checks that all values are there
static void add_one(const struct k3_task * task) {
    const float * x = task->dst->src[0]->data;
    float * y       = task->dst->data;
    int64_t first, last;
    k3_share(VALUES, 1, task->ith, task->nth, &first, &last);
    for (int64_t i = first; i < last; i++) {
        y[i] = x[i] + 1.0f;
    }
    if (task->nth > 1) {
        k3_task_barrier(task);
        for (int64_t i = 0; i < VALUES; i++) {
            if (y[i] != x[i] + 1.0f) fail("a thread went through a barrier too early");
        }
        k3_task_barrier(task);
    }
}

struct stopper {
    int questions_left;
};

static bool stop(void * user) {
    struct stopper * s = user;
    return --s->questions_left <= 0;
}

static struct ggml_tensor * build(struct ggml_k3_builder * b, struct ggml_tensor * x) {
    for (int i = 0; i < NODES; i++) {
        b->section                     = (enum ggml_k3_section)(i / 3 % GGML_K3_SECTIONS);
        const struct k3_node_info info = {.run = add_one, .single = i % 3 == 0};
        x                              = k3_node_add(b, GGML_TYPE_F32, (int64_t[4]) {VALUES, 1, 1, 1}, &x, 1, &info);
    }
    ggml_set_output(x);
    ggml_build_forward_expand(b->graph, x);
    return x;
}

static int run(const struct ggml_k3_plan * plan, struct ggml_k3_pool * pool, int n_threads,
               const struct ggml_tensor * y) {
    double ms[GGML_K3_SECTIONS] = {0};
    struct stopper s            = {1 + rand() % NODES};
    const bool may_stop         = rand() % 2;
    memset(y->data, 0, VALUES * sizeof(float));
    if (!ggml_k3_plan_run(plan, pool, n_threads, may_stop ? stop : NULL, &s, ms)) {
        if (!may_stop) fail("stopped without a question");
        return 1;
    }
    for (int i = 0; i < VALUES; i++) {
        if (((float *) y->data)[i] != NODES) fail("wrong sum");
    }
    return 0;
}

int main(int argc, char ** argv) {
    if (argc != 4) fail("usage: run_pool RUNS THREADS SEED");
    const int n_runs = atoi(argv[1]), n_threads = atoi(argv[2]);
    srand((unsigned) atoi(argv[3]));
    const struct ggml_init_params meta = {.mem_size = GRAPH * 512 + ggml_graph_overhead_custom(GRAPH, false),
                                          .no_alloc = true};
    struct ggml_k3_arena arena         = {.data = malloc(ARENA), .size = ARENA};
    struct ggml_k3_builder b           = {.ctx = ggml_init(meta), .form = GGML_K3_FAST, .arena = &arena};
    b.graph                            = ggml_new_graph_custom(b.ctx, GRAPH, false);
    struct ggml_tensor * x             = ggml_new_tensor_1d(b.ctx, GGML_TYPE_F32, VALUES);
    ggml_set_input(x);
    struct ggml_tensor * y     = build(&b, x);
    ggml_gallocr_t memory      = ggml_gallocr_new(ggml_backend_cpu_buffer_type());
    struct ggml_k3_pool * pool = ggml_k3_pool_new(n_threads);
    struct ggml_k3_plan plan;
    if (!ggml_gallocr_alloc_graph(memory, b.graph) || !pool || !ggml_k3_plan_init(&plan, b.graph) ||
        !ggml_k3_pool_reserve(pool, plan.work, plan.scratch)) {
        fail("no memory");
    }
    memset(x->data, 0, VALUES * sizeof(float));
    int stopped = 0;
    for (int i = 0; i < n_runs; i++) {
        stopped += run(&plan, pool, 1 + rand() % n_threads, y);
    }
    printf("%d\n", stopped);
    ggml_k3_plan_free(&plan);
    ggml_k3_pool_free(pool);
    ggml_gallocr_free(memory);
    ggml_free(b.ctx);
    free(arena.data);
    return 0;
}
