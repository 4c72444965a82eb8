// matmul.c - fast nodes of y = W x. Each thread packs what it shares of the activations, then multiplies its own
// contiguous range of weight rows; ranges are cut by bytes, so that threads stream equally long.
#include "matmul.h"
#include "cpu.h"
#include "fast.h"
#include "ggml_k3_mutant.h"
#include "node.h"

#include <string.h>

enum { ROW_STEP = 16, MAX_KINDS = 4 };  // rows that kernels work on at once; k3_act_kind values

static size_t max_size(size_t a, size_t b) { return a > b ? a : b; }

// ---- several matrices on one x ---------------------------------------------------------------------------

struct group_params {
    int n, n_kinds;
    bool alone;  // every thread packs all activations for itself, without a barrier: one token
    const struct ggml_tensor * w[GGML_K3_MAX_GROUP];
    enum k3_act_kind kinds[MAX_KINDS];  // packed one behind the other, each for all tokens
};

// Act rows of one kind for all tokens of a node.
static uint8_t * acts_of(const struct group_params * p, enum k3_act_kind kind, int64_t k, int64_t n_tokens,
                         uint8_t * memory) {
    for (int i = 0; p->kinds[i] != kind; i++) {
        memory += k3_act_size(p->kinds[i], k) * (size_t) n_tokens;
    }
    return memory;
}

static size_t acts_size(const struct group_params * p, int64_t k, int64_t n_tokens) {
    size_t size = 0;
    for (int i = 0; i < p->n_kinds; i++) {
        size += k3_act_size(p->kinds[i], k) * (size_t) n_tokens;
    }
    return size;
}

static void pack_tokens(const struct group_params * p, const struct ggml_tensor * x, int64_t first, int64_t last,
                        uint8_t * memory) {
    for (int i = 0; i < p->n_kinds; i++) {
        const size_t size = k3_act_size(p->kinds[i], x->ne[0]);
        for (int64_t t = first; t < last; t++) {
            k3_cpu()->matmul->pack(p->kinds[i], (const float *) ((const char *) x->data + (size_t) t * x->nb[1]),
                                   x->ne[0], memory + (size_t) t * size);
        }
        memory += size * (size_t) x->ne[1];
    }
}

// Rows of matrix i that belong to a thread, when all matrices lie one behind the other and are cut by bytes.
static void rows_of(const struct group_params * p, int i, const struct k3_task * task, int64_t * first,
                    int64_t * last) {
    double before = 0, total = 0;
    for (int j = 0; j < p->n; j++) {
        const double bytes = (double) p->w[j]->nb[1] * (double) p->w[j]->ne[1];
        before += j < i ? bytes : 0;
        total += bytes;
    }
    const double row_bytes = (double) p->w[i]->nb[1];
    const int64_t n        = p->w[i]->ne[1];
    int64_t cut[2];
    for (int side = 0; side < 2; side++) {
        const double rows = (total * (task->ith + side) / task->nth - before) / row_bytes;
        cut[side] = rows <= 0 ? 0 : rows >= (double) n ? n : ((int64_t) rows + ROW_STEP / 2) / ROW_STEP * ROW_STEP;
        cut[side] = cut[side] < n ? cut[side] : n;
    }
    *first = cut[0];
    *last  = task->ith == task->nth - 1 ? n : cut[1];
}

static void group(const struct k3_task * task) {
    const struct group_params * p = task->params;
    const struct ggml_tensor * x  = task->dst->src[0];
    const int64_t k = x->ne[0], n_tokens = x->ne[1];
    const void ** acts = (const void **) task->scratch;
    float ** y         = (float **) (acts + n_tokens);
    uint8_t * scratch  = task->scratch + k3_aligned((size_t) n_tokens * 2 * sizeof(void *));
    uint8_t * packed   = task->work;
    if (p->alone) {
        packed = scratch;
        scratch += k3_aligned(acts_size(p, k, n_tokens));
        pack_tokens(p, x, 0, n_tokens, packed);
    } else {
        int64_t first, last;
        k3_share(n_tokens, 1, task->ith, task->nth, &first, &last);
        pack_tokens(p, x, first, last, packed);
        k3_task_barrier(task);
    }
    int64_t offset = 0;
    for (int i = 0; i < p->n; i++) {
        const struct ggml_tensor * w = p->w[i];
        const enum k3_act_kind kind  = k3_cpu()->matmul->kind(w->type);
        const uint8_t * const rows   = acts_of(p, kind, k, n_tokens, packed);
        struct k3_matmul_args args   = {.type      = w->type,
                                        .w         = w->data,
                                        .row_bytes = w->nb[1],
                                        .k         = k,
                                        .n_tokens  = n_tokens,
                                        .acts      = acts,
                                        .y         = y,
                                        .scratch   = scratch};
        rows_of(p, i, task, &args.first, &args.last);
        for (int64_t t = 0; t < n_tokens; t++) {
            acts[t] = rows + (size_t) t * k3_act_size(kind, k);
            y[t]    = (float *) ((char *) task->dst->data + (size_t) t * task->dst->nb[1]) + offset;
        }
        if (args.first < args.last) {
            k3_cpu()->matmul->run(&args);
        }
        offset += w->ne[1];
    }
}

void k3_matmul_group_fast(struct ggml_k3_builder * b, struct ggml_tensor * const * w, int n, struct ggml_tensor * x,
                          struct ggml_tensor ** y) {
    const int64_t k = x->ne[0], n_tokens = x->ne[1];
    struct group_params p = {.n = n, .alone = n_tokens == 1};
    int64_t n_rows        = 0;
    size_t scratch        = 0;
    for (int i = 0; i < n; i++) {
        const enum k3_act_kind kind = k3_cpu()->matmul->kind(w[i]->type);
        int known                   = 0;
        while (known < p.n_kinds && p.kinds[known] != kind) {
            known++;
        }
        p.kinds[known] = kind;
        p.n_kinds += known == p.n_kinds;
        p.w[i]  = w[i];
        scratch = max_size(scratch, k3_cpu()->matmul->scratch(w[i]->type, k, n_tokens));
        n_rows += w[i]->ne[1];
    }
    const size_t acts              = k3_aligned(acts_size(&p, k, n_tokens));
    const struct k3_node_info info = {
        .run         = group,
        .scratch     = k3_aligned((size_t) n_tokens * 2 * sizeof(void *)) + (p.alone ? acts : 0) + scratch,
        .work        = p.alone ? 0 : acts,
        .params      = &p,
        .params_size = sizeof(p),
    };
    struct ggml_tensor * all = k3_node_add(b, GGML_TYPE_F32, (int64_t[4]) {n_rows, n_tokens, 1, 1}, &x, 1, &info);
    size_t offset            = 0;
    for (int i = 0; i < n; i++) {
        y[i] = n == 1 ? all : ggml_view_2d(b->ctx, all, w[i]->ne[1], n_tokens, all->nb[1], offset);
        offset += (size_t) w[i]->ne[1] * sizeof(float);
    }
}

// ---- a matrix for each head ------------------------------------------------------------------------------

struct heads_params {
    const struct ggml_tensor * w;
    bool merged;
};

// Rows of all heads lie one behind the other; a thread packs the activations of the heads it meets.
static void heads(const struct k3_task * task) {
    const struct heads_params * p = task->params;
    const struct ggml_tensor * x  = task->dst->src[0];
    const int64_t k = x->ne[0], n_tokens = x->ne[1], n_rows = p->w->ne[1];
    const enum k3_act_kind kind = k3_cpu()->matmul->kind(p->w->type);
    const size_t act            = k3_act_size(kind, k);
    const void ** acts          = (const void **) task->scratch;
    float ** y                  = (float **) (acts + n_tokens);
    uint8_t * packed            = task->scratch + k3_aligned((size_t) n_tokens * 2 * sizeof(void *));
    const int64_t steps         = (n_rows + ROW_STEP - 1) / ROW_STEP;  // of one head
    int64_t step, end;
    k3_share(steps * p->w->ne[2], 1, task->ith, task->nth, &step, &end);
    while (step < end) {
        const int64_t head = step / steps, first = step % steps;
        const int64_t last = first + (end - step) < steps ? first + (end - step) : steps;
        for (int64_t t = 0; t < n_tokens; t++) {
            const char * source = (const char *) x->data + (size_t) t * x->nb[1] + (size_t) head * x->nb[2];
            k3_cpu()->matmul->pack(kind, (const float *) source, k, packed + (size_t) t * act);
            acts[t] = packed + (size_t) t * act;
            y[t]    = (float *) task->dst->data +
                   (p->merged ? (t * p->w->ne[2] + head) * n_rows : (head * n_tokens + t) * n_rows);
        }
        const struct k3_matmul_args args = {.type      = p->w->type,
                                            .w         = (const char *) p->w->data + (size_t) head * p->w->nb[2],
                                            .row_bytes = p->w->nb[1],
                                            .k         = k,
                                            .first     = first * ROW_STEP,
                                            .last      = last * ROW_STEP < n_rows ? last * ROW_STEP : n_rows,
                                            .n_tokens  = n_tokens,
                                            .acts      = acts,
                                            .y         = y,
                                            .scratch   = packed + k3_aligned((size_t) n_tokens * act)};
        k3_cpu()->matmul->run(&args);
        step += last - first;
    }
}

struct ggml_tensor * k3_matmul_heads_fast(struct ggml_k3_builder * b, struct ggml_tensor * w, struct ggml_tensor * x,
                                          bool merged) {
    const int64_t n_tokens         = x->ne[1];
    const struct heads_params p    = {w, merged};
    const size_t acts              = k3_act_size(k3_cpu()->matmul->kind(w->type), x->ne[0]) * (size_t) n_tokens;
    const struct k3_node_info info = {
        .run     = heads,
        .scratch = k3_aligned((size_t) n_tokens * 2 * sizeof(void *)) + k3_aligned(acts) +
                   k3_cpu()->matmul->scratch(w->type, x->ne[0], n_tokens),
        .params      = &p,
        .params_size = sizeof(p),
    };
    const int64_t apart[4] = {w->ne[1], n_tokens, w->ne[2], 1}, together[4] = {w->ne[1] * w->ne[2], n_tokens, 1, 1};
    return k3_node_add(b, GGML_TYPE_F32, merged ? together : apart, &x, 1, &info);
}
