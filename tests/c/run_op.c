// run_op.c - runs one op of ggml_k3 on tensors from a file, for tests/ggml_k3.
//
//   run_op OP stock|reference|fast IN OUT
//   run_op cpu    prints the kernels in use
//
// IN: u32 number of parameters, f64 each; u32 number of tensors, each { i32 type, i64 ne[4], data }. OUT: results as
// tensors in the same form, without parameters. Input order per op: see the functions below. Compute memory starts
// as NaN; guards behind the tensors that an op writes in place must survive.
#include "ggml_k3.h"

#include "ggml-alloc.h"
#include "ggml-cpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_PARAMS = 64, MAX_TENSORS = 64, GUARD = 64, NAN_BYTE = 0xFF, GUARD_BYTE = 0xA5, N_THREADS = 2 };

typedef struct job {
    struct ggml_k3_builder b;
    struct ggml_k3_batch batch;
    struct ggml_k3_segment segments[MAX_TENSORS];
    struct ggml_tensor * masks[MAX_TENSORS];
    struct ggml_context * inputs;
    ggml_backend_buffer_t input_memory;
    ggml_gallocr_t memory;
    double p[MAX_PARAMS];
    struct ggml_tensor * in[MAX_TENSORS];
    struct ggml_tensor * guard[MAX_TENSORS];
    int n_params, n_in;
    struct ggml_tensor * out[MAX_TENSORS];
    int n_out;
} job;

static void fail(const char * what) {
    printf("run_op: %s\n", what);
    exit(1);
}

static void read_bytes(FILE * f, void * out, size_t n) {
    if (fread(out, 1, n, f) != n) fail("input ends early");
}

static int count(FILE * f, int most) {
    uint32_t n;
    read_bytes(f, &n, sizeof(n));
    if (n > (uint32_t) most) fail("too many parameters or tensors");
    return (int) n;
}

// Tensors and the guards behind them, in one buffer.
static void read_job(job * j, const char * path) {
    FILE * f = fopen(path, "rb");
    if (!f) fail("no input");
    j->n_params = count(f, MAX_PARAMS);
    read_bytes(f, j->p, (size_t) j->n_params * sizeof(double));
    j->n_in = count(f, MAX_TENSORS);
    void * data[MAX_TENSORS];
    for (int i = 0; i < j->n_in; i++) {
        int32_t type;
        int64_t ne[4];
        read_bytes(f, &type, sizeof(type));
        read_bytes(f, ne, sizeof(ne));
        j->in[i]    = ggml_new_tensor(j->inputs, (enum ggml_type) type, 4, ne);
        j->guard[i] = ggml_new_tensor_1d(j->inputs, GGML_TYPE_I8, GUARD);
        data[i]     = malloc(ggml_nbytes(j->in[i]));
        read_bytes(f, data[i], ggml_nbytes(j->in[i]));
    }
    fclose(f);
    j->input_memory = ggml_backend_alloc_ctx_tensors_from_buft(j->inputs, ggml_backend_cpu_buffer_type());
    if (!j->input_memory) fail("no memory");
    for (int i = 0; i < j->n_in; i++) {
        memcpy(j->in[i]->data, data[i], ggml_nbytes(j->in[i]));
        memset(j->guard[i]->data, GUARD_BYTE, GUARD);
        free(data[i]);
    }
}

static void write_rows(const struct ggml_tensor * t, FILE * f) {
    for (int64_t i = 0; i < ggml_nrows(t); i++) {
        const size_t at = (size_t) (i % t->ne[1]) * t->nb[1] + (size_t) (i / t->ne[1] % t->ne[2]) * t->nb[2] +
                          (size_t) (i / t->ne[1] / t->ne[2]) * t->nb[3];
        fwrite((const char *) t->data + at, 1, ggml_row_size(t->type, t->ne[0]), f);
    }
}

static void write_results(const job * j, const char * path) {
    FILE * f         = fopen(path, "wb");
    const uint32_t n = (uint32_t) j->n_out;
    if (!f || fwrite(&n, sizeof(n), 1, f) != 1) fail("no output");
    for (int i = 0; i < j->n_out; i++) {
        const int32_t type = j->out[i]->type;
        fwrite(&type, sizeof(type), 1, f);
        fwrite(j->out[i]->ne, sizeof(j->out[i]->ne), 1, f);
        write_rows(j->out[i], f);
    }
    if (fclose(f) != 0) fail("output not written");
    for (int i = 0; i < j->n_in; i++) {
        for (int k = 0; k < GUARD; k++) {
            if (((uint8_t *) j->guard[i]->data)[k] != GUARD_BYTE) fail("an op wrote behind its tensor");
        }
    }
}

static void result(job * j, struct ggml_tensor * t) {
    ggml_set_output(t);
    ggml_build_forward_expand(j->b.graph, t);
    j->out[j->n_out++] = t;
}

static struct ggml_k3_glu_params glu_params(const job * j) {
    return (struct ggml_k3_glu_params) {j->p[0] != 0, (float) j->p[1], (float) j->p[2]};
}

// parameters from `first` on: number of segments, then first, n, position of each. Segment i is sequence i; it reads
// place 2 i of the states and writes place 2 i + 1.
static void segments(job * j, int first) {
    j->batch = (struct ggml_k3_batch) {j->segments, (int) j->p[first], j->masks};
    for (int i = 0; i < j->batch.n_segments; i++) {
        const double * s = j->p + first + 1 + 3 * i;
        j->segments[i] = (struct ggml_k3_segment) {(int64_t) s[0], (int64_t) s[1], (int64_t) s[2], i, 2 * i, 2 * i + 1};
    }
    j->b.batch = &j->batch;
}

// w, x
static void matmul(job * j) { result(j, ggml_k3_matmul(&j->b, j->in[0], j->in[1])); }

// number of matrices | w..., x
static void matmul_group(job * j) {
    struct ggml_tensor * y[GGML_K3_MAX_GROUP];
    const int n = (int) j->p[0];
    ggml_k3_matmul_group(&j->b, j->in, n, j->in[n], y);
    for (int i = 0; i < n; i++) {
        result(j, y[i]);
    }
}

// merged | w, x
static void matmul_heads(job * j) { result(j, ggml_k3_matmul_heads(&j->b, j->in[0], j->in[1], j->p[0] != 0)); }

// table, ids
static void get_rows(job * j) { result(j, ggml_k3_get_rows(&j->b, j->in[0], j->in[1])); }

// eps | x, weight
static void norm(job * j) { result(j, ggml_k3_norm(&j->b, j->in[0], j->in[1], (float) j->p[0])); }

// x, y
static void add(job * j) { result(j, ggml_k3_add(&j->b, j->in[0], j->in[1])); }

// x, gate
static void gate(job * j) { result(j, ggml_k3_gate(&j->b, j->in[0], j->in[1])); }

// w, x, ids
static void matmul_id(job * j) { result(j, ggml_k3_matmul_id(&j->b, j->in[0], j->in[1], j->in[2])); }

// situ, beta, linear_beta | gate, up
static void glu(job * j) {
    const struct ggml_k3_glu_params p = glu_params(j);
    result(j, ggml_k3_glu(&j->b, &p, j->in[0], j->in[1]));
}

// eps | bank..., current, score, weight
static void attn_res(job * j) {
    const int n = j->n_in - 3;
    result(j, ggml_k3_attn_res(&j->b, j->in, n, j->in[n], j->in[n + 1], j->in[n + 2], (float) j->p[0]));
}

// n_used, normalise, scale | logits, bias
static void router(job * j) {
    static uint64_t n_distinct;
    const struct ggml_k3_router_params p = {(int) j->p[0], j->p[1] != 0, (float) j->p[2], &n_distinct};
    struct ggml_tensor *ids, *weights;
    ggml_k3_router(&j->b, &p, j->in[0], j->in[1], &ids, &weights);
    result(j, ids);
    result(j, weights);
}

// situ, beta, linear_beta | gate, up, down, x, ids, weights
static void experts(job * j) {
    const struct ggml_k3_glu_params p      = glu_params(j);
    const struct ggml_k3_experts_weights w = {j->in[0], j->in[1], j->in[2]};
    result(j, ggml_k3_experts(&j->b, &w, &p, j->in[3], j->in[4], j->in[5]));
}

// n_head, dim, taps, bounded, lower bound, l2 eps, norm eps, segments |
// q, k, v, z, beta, gate, taps of q, k, v, a, dt_bias, norm, states, windows
static void kda(job * j) {
    const struct ggml_k3_kda_params p = {
        .n_head           = (int64_t) j->p[0],
        .dim              = (int64_t) j->p[1],
        .conv_width       = (int64_t) j->p[2],
        .gate_bounded     = j->p[3] != 0,
        .gate_lower_bound = (float) j->p[4],
        .l2_eps           = (float) j->p[5],
        .norm_eps         = (float) j->p[6],
        .conv             = {j->in[6], j->in[7], j->in[8]},
        .a                = j->in[9],
        .dt_bias          = j->in[10],
        .norm             = j->in[11],
    };
    const struct ggml_k3_kda_input in      = {{j->in[0], j->in[1], j->in[2]}, j->in[3], j->in[4], j->in[5]};
    const struct ggml_k3_kda_memory memory = {j->in[12], j->in[13]};
    segments(j, 7);
    result(j, ggml_k3_kda(&j->b, &p, &in, &memory));
    j->out[j->n_out++] = memory.state;
    j->out[j->n_out++] = memory.window;
}

// scale, segments | latent part of q, shared part of q, latent, shared, cache, then the mask (one element: none) of
// each segment
static void mla(job * j) {
    segments(j, 1);
    for (int i = 0; i < j->batch.n_segments; i++) {
        struct ggml_tensor * mask = j->in[5 + i];
        j->masks[i]               = ggml_nelements(mask) > 1 ? mask : NULL;
    }
    const struct ggml_k3_mla_input in = {j->in[0], j->in[1], j->in[2], j->in[3]};
    result(j, ggml_k3_mla(&j->b, (float) j->p[0], &in, j->in[4]));
    j->out[j->n_out++] = j->in[4];
}

static const struct {
    const char * name;
    void (*build)(job * j);
} OPS[] = {
    {"matmul", matmul},
    {"matmul_group", matmul_group},
    {"matmul_heads", matmul_heads},
    {"matmul_id", matmul_id},
    {"get_rows", get_rows},
    {"norm", norm},
    {"add", add},
    {"gate", gate},
    {"glu", glu},
    {"attn_res", attn_res},
    {"router", router},
    {"experts", experts},
    {"kda", kda},
    {"mla", mla},
};

static void build(job * j, const char * name) {
    for (size_t i = 0; i < sizeof(OPS) / sizeof(OPS[0]); i++) {
        if (strcmp(OPS[i].name, name) == 0) {
            OPS[i].build(j);
            return;
        }
    }
    fail("no such op");
}

static void poison(const job * j) {
    for (int i = 0; i < ggml_graph_n_nodes(j->b.graph); i++) {
        struct ggml_tensor * node = ggml_graph_node(j->b.graph, i);
        if (!node->view_src) memset(node->data, NAN_BYTE, ggml_nbytes(node));
    }
}

static void compute_fast(job * j, int n_threads) {
    struct ggml_k3_plan plan;
    double ms[GGML_K3_SECTIONS] = {0};
    struct ggml_k3_pool * pool  = ggml_k3_pool_new(n_threads);
    if (!pool || !ggml_k3_plan_init(&plan, j->b.graph) || !ggml_k3_pool_reserve(pool, plan.work, plan.scratch)) {
        fail("no pool");
    }
    if (!ggml_k3_plan_run(&plan, pool, n_threads, NULL, NULL, ms)) fail("not computed");
    ggml_k3_plan_free(&plan);
    ggml_k3_pool_free(pool);
}

static void compute_stock(job * j, int n_threads) {
    ggml_backend_t backend = ggml_backend_cpu_init();
    ggml_backend_cpu_set_n_threads(backend, n_threads);
    if (ggml_backend_graph_compute(backend, j->b.graph) != GGML_STATUS_SUCCESS) fail("not computed");
    ggml_backend_free(backend);
}

static void compute(job * j) {
    const char * threads = getenv("RUN_OP_THREADS");
    const int n_threads  = threads ? atoi(threads) : N_THREADS;
    j->memory            = ggml_gallocr_new(ggml_backend_cpu_buffer_type());
    if (!ggml_gallocr_alloc_graph(j->memory, j->b.graph)) fail("no memory");
    poison(j);
    if (j->b.form == GGML_K3_FAST) {
        compute_fast(j, n_threads);
    } else {
        compute_stock(j, n_threads);
    }
}

static enum ggml_k3_form form_of(const char * name) {
    if (strcmp(name, "fast") == 0) return GGML_K3_FAST;
    return strcmp(name, "reference") == 0 ? GGML_K3_REFERENCE : GGML_K3_STOCK;
}

int main(int argc, char ** argv) {
    if (argc == 2 && strcmp(argv[1], "cpu") == 0) {
        printf("%s", ggml_k3_cpu_name() ? ggml_k3_cpu_name() : "none");
        return 0;
    }
    if (argc != 5) fail("usage: run_op OP stock|reference|fast IN OUT");
    enum { NODES = 4096, ARENA = 1 << 20 };
    const struct ggml_init_params meta = {.mem_size = NODES * 512, .no_alloc = true};
    static job j;
    struct ggml_k3_arena arena = {.data = malloc(ARENA), .size = ARENA};
    j.inputs                   = ggml_init(meta);
    j.b.ctx                    = ggml_init(meta);
    j.b.graph                  = ggml_new_graph_custom(j.b.ctx, NODES / 2, false);
    j.b.form                   = form_of(argv[2]);
    j.b.arena                  = &arena;
    if (j.b.form == GGML_K3_FAST && !ggml_k3_cpu_name()) fail("GGML_K3_CPU cannot run here");
    read_job(&j, argv[3]);
    build(&j, argv[1]);
    compute(&j);
    write_results(&j, argv[4]);
    ggml_gallocr_free(j.memory);
    ggml_backend_buffer_free(j.input_memory);
    ggml_free(j.b.ctx);
    ggml_free(j.inputs);
    free(arena.data);
    return 0;
}
