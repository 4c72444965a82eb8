// rows.c - fast nodes that go through rows of activations: look-up, norm, sum, gates, attention residuals, router.
// A row is computed by one thread; few and short rows by one thread all together.
#include "cpu.h"
#include "fast.h"
#include "ggml_k3_mutant.h"
#include "node.h"
#include "select.h"

#include <math.h>
#include <string.h>

// Values below which one thread is faster than several and their barrier.
enum { SINGLE_VALUES = 16384 };

static float * row(const struct ggml_tensor * t, int64_t i) {
    return (float *) ((char *) t->data + (size_t) i * t->nb[1]);
}

static struct ggml_tensor * rows_node(struct ggml_k3_builder * b, k3_node_fn run, int64_t n, int64_t n_rows,
                                      struct ggml_tensor * const * sources, int n_sources, const void * params,
                                      size_t params_size) {
    const struct k3_node_info info = {
        .run         = run,
        .single      = n * n_rows < SINGLE_VALUES || n_rows == 1,
        .params      = params,
        .params_size = params_size,
    };
    return k3_node_add(b, GGML_TYPE_F32, (int64_t[4]) {n, n_rows, 1, 1}, sources, n_sources, &info);
}

struct get_rows_params {
    const struct ggml_tensor * table;
};

static void get_rows(const struct k3_task * task) {
    const struct get_rows_params * p = task->params;
    const int32_t * ids              = task->dst->src[0]->data;
    int64_t first, last;
    k3_share(task->dst->ne[1], 1, task->ith, task->nth, &first, &last);
    for (int64_t i = first; i < last; i++) {
        const char * source = (const char *) p->table->data + (size_t) ids[i] * p->table->nb[1];
        if (p->table->type == GGML_TYPE_F32) {
            memcpy(row(task->dst, i), source, (size_t) task->dst->ne[0] * sizeof(float));
        } else {
            ggml_get_type_traits(p->table->type)->to_float(source, row(task->dst, i), task->dst->ne[0]);
        }
    }
}

struct ggml_tensor * k3_get_rows_fast(struct ggml_k3_builder * b, struct ggml_tensor * table,
                                      struct ggml_tensor * ids) {
    const struct get_rows_params p = {table};
    struct ggml_tensor * sources[] = {ids, table};
    return rows_node(b, get_rows, table->ne[0], ids->ne[0], sources, table->op == GGML_OP_NONE ? 1 : 2, &p, sizeof(p));
}

struct norm_params {
    const float * weight;
    float eps;
};

static void norm(const struct k3_task * task) {
    const struct norm_params * p = task->params;
    int64_t first, last;
    k3_share(task->dst->ne[1], 1, task->ith, task->nth, &first, &last);
    for (int64_t i = first; i < last; i++) {
        k3_cpu()->rows->norm(row(task->dst->src[0], i), p->weight, p->eps, task->dst->ne[0], row(task->dst, i));
    }
}

struct ggml_tensor * k3_norm_fast(struct ggml_k3_builder * b, struct ggml_tensor * x, struct ggml_tensor * weight,
                                  float eps) {
    const struct norm_params p = {weight->data, eps};
    return rows_node(b, norm, x->ne[0], x->ne[1], &x, 1, &p, sizeof(p));
}

static void add(const struct k3_task * task) {
    const struct ggml_tensor *x = task->dst->src[0], *y = task->dst->src[1];
    int64_t first, last;
    k3_share(task->dst->ne[1], 1, task->ith, task->nth, &first, &last);
    for (int64_t i = first; i < last; i++) {
        k3_cpu()->rows->add(row(x, i), row(y, i), task->dst->ne[0], row(task->dst, i));
    }
}

struct ggml_tensor * k3_add_fast(struct ggml_k3_builder * b, struct ggml_tensor * x, struct ggml_tensor * y) {
    struct ggml_tensor * sources[] = {x, y};
    return rows_node(b, add, x->ne[0], x->ne[1], sources, 2, NULL, 0);
}

static void gate(const struct k3_task * task) {
    const struct ggml_tensor *x = task->dst->src[0], *g = task->dst->src[1];
    int64_t first, last;
    k3_share(task->dst->ne[1], 1, task->ith, task->nth, &first, &last);
    for (int64_t i = first; i < last; i++) {
        k3_cpu()->rows->gate(row(x, i), row(g, i), task->dst->ne[0], row(task->dst, i));
    }
}

struct ggml_tensor * k3_gate_fast(struct ggml_k3_builder * b, struct ggml_tensor * x, struct ggml_tensor * g) {
    struct ggml_tensor * sources[] = {x, g};
    return rows_node(b, gate, x->ne[0], x->ne[1], sources, 2, NULL, 0);
}

static void glu(const struct k3_task * task) {
    const struct ggml_tensor *g = task->dst->src[0], *u = task->dst->src[1];
    int64_t first, last;
    k3_share(task->dst->ne[1], 1, task->ith, task->nth, &first, &last);
    for (int64_t i = first; i < last; i++) {
        k3_cpu()->rows->glu(task->params, row(g, i), row(u, i), task->dst->ne[0], row(task->dst, i));
    }
}

struct ggml_tensor * k3_glu_fast(struct ggml_k3_builder * b, const struct ggml_k3_glu_params * p,
                                 struct ggml_tensor * g, struct ggml_tensor * u) {
    struct ggml_tensor * sources[] = {g, u};
    return rows_node(b, glu, g->ne[0], g->ne[1], sources, 2, p, sizeof(*p));
}

// The stored sums are kept to the end of the graph by their output flag, so that they need not be sources, of which a
// node can have ten only.
enum { MAX_BANK = 512 };
struct attn_res_params {
    const float *score, *weight;
    float eps;
    int n_bank;
    const struct ggml_tensor * bank[MAX_BANK];  // only n_bank of them are stored
};

static void attn_res(const struct k3_task * task) {
    const struct attn_res_params * p = task->params;
    const float * sources[MAX_BANK + 1];
    int64_t first, last;
    k3_share(task->dst->ne[1], 1, task->ith, task->nth, &first, &last);
    for (int64_t i = first; i < last; i++) {
        for (int j = 0; j < p->n_bank; j++) {
            sources[j] = row(p->bank[j], i);
        }
        sources[p->n_bank] = row(task->dst->src[0], i);
        k3_cpu()->rows->mix(sources, p->n_bank + 1, p->score, p->weight, p->eps, task->dst->ne[0], row(task->dst, i));
    }
}

struct ggml_tensor * k3_attn_res_fast(struct ggml_k3_builder * b, struct ggml_tensor ** bank, int n_bank,
                                      struct ggml_tensor * current, struct ggml_tensor * score,
                                      struct ggml_tensor * weight, float eps) {
    GGML_ASSERT(n_bank > 0 && n_bank <= MAX_BANK);
    struct attn_res_params p = {score->data, weight->data, eps, n_bank, {0}};
    for (int i = 0; i < n_bank; i++) {
        p.bank[i] = bank[i];
        ggml_set_output(bank[i]);
    }
    const size_t size = offsetof(struct attn_res_params, bank) + (size_t) n_bank * sizeof(p.bank[0]);
    return rows_node(b, attn_res, current->ne[0], current->ne[1], &current, 1, &p, size);
}

struct router_params {
    const float * bias;
    bool normalise;
    float scale;
    uint64_t * n_distinct;
};

static void router_ids(const struct k3_task * task) {
    const struct router_params * p    = task->params;
    const struct ggml_tensor * logits = task->dst->src[0];
    const int64_t n                   = logits->ne[0];
    float * scores                    = (float *) task->scratch;
    int64_t first, last;
    k3_share(task->dst->ne[1], 1, task->ith, task->nth, &first, &last);
    for (int64_t i = first; i < last; i++) {
        int32_t * ids = (int32_t *) row(task->dst, i);
        k3_cpu()->rows->sigmoid(row(logits, i), n, scores);
        k3_cpu()->rows->add(scores, p->bias, n, scores);
        k3_select_top(scores, n, ids, task->dst->ne[0]);
        for (int64_t slot = 0; GGML_K3_MUTANT("expert-zero") && slot < task->dst->ne[0]; slot++) {
            ids[slot] = 0;
        }
    }
}

static void router_weights(const struct k3_task * task) {
    const struct router_params * p   = task->params;
    const struct ggml_tensor *logits = task->dst->src[0], *ids = task->dst->src[1];
    const int64_t n_used = task->dst->ne[0], n_tokens = task->dst->ne[1];
    for (int64_t i = 0; i < n_tokens; i++) {
        const int32_t * chosen = (const int32_t *) row(ids, i);
        float *w = row(task->dst, i), sum = 0.0f;
        for (int64_t slot = 0; slot < n_used; slot++) {
            w[slot] = row(logits, i)[chosen[slot]];
        }
        k3_cpu()->rows->sigmoid(w, n_used, w);
        for (int64_t slot = 0; slot < n_used; slot++) {
            w[slot] += GGML_K3_MUTANT("biased-router") ? p->bias[chosen[slot]] : 0.0f;
            sum += w[slot];
        }
        const float factor = p->normalise ? p->scale / (sum + 1e-20f) : p->scale;
        for (int64_t slot = 0; slot < n_used; slot++) {
            w[slot] *= factor;
        }
    }
    if (p->n_distinct) {
        *p->n_distinct = k3_count_distinct(ids->data, n_used * n_tokens);
    }
}

void k3_router_fast(struct ggml_k3_builder * b, const struct ggml_k3_router_params * p, struct ggml_tensor * logits,
                    struct ggml_tensor * bias, struct ggml_tensor ** ids, struct ggml_tensor ** weights) {
    const int64_t ne[4]               = {p->n_used, logits->ne[1], 1, 1};
    const struct router_params params = {bias->data, p->normalise, p->scale, p->n_distinct};
    struct k3_node_info info          = {
                 .run         = router_ids,
                 .single      = logits->ne[1] < 4,
                 .scratch     = (size_t) logits->ne[0] * sizeof(float),
                 .params      = &params,
                 .params_size = sizeof(params),
    };
    *ids                           = k3_node_add(b, GGML_TYPE_I32, ne, &logits, 1, &info);
    struct ggml_tensor * sources[] = {logits, *ids};
    info.run                       = router_weights;
    info.single                    = true;
    *weights                       = k3_node_add(b, GGML_TYPE_F32, ne, sources, 2, &info);
}
