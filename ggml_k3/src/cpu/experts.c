// experts.c - the fast node of the routed experts, for any number of tokens.
//
// (token, slot) pairs are grouped by expert, so that each chosen expert's weights are read once. Phases, with a barrier
// between: pack the tokens and sort the pairs | gate, up and activation of each pair | pack its activations | down
// projection | weighted sum of a token's pairs in slot order. Threads take contiguous ranges of the rows of all chosen
// experts, cut by work. With one token, each thread packs and sorts what it needs for itself, without a barrier.
#include "cpu.h"
#include "fast.h"
#include "node.h"

#include <string.h>

enum { ROW_STEP = 32, UP_VALUES = 1 << 16 };  // rows of a share; values of `up x` kept at once, 256 KiB

struct experts_params {
    struct ggml_k3_experts_weights w;
    struct ggml_k3_glu_params glu;
    int64_t n_used, n_tokens, n_experts;
};

// Places in the work memory; with one token all but values and results are in the thread's scratch.
struct layout {
    uint8_t * x;          // act rows of the tokens
    uint8_t * h;          // act rows of the pairs' activations
    float * values;       // [pairs][max(F, W)]: activations
    float * results;      // the same of the down projection, in the place of the activations if those are packed before
    int32_t * order;      // [pairs] pairs (token * n_used + slot), grouped by expert
    int32_t * start;      // [n_experts + 1] first place of an expert in `order`
    size_t x_act, h_act;  // bytes of an act row
    size_t work, scratch;
};

static int64_t max_of(int64_t a, int64_t b) { return a > b ? a : b; }

// Floats from one pair's values to the next.
static int64_t stride(const struct experts_params * p) { return max_of(p->w.gate->ne[1], p->w.down->ne[1]); }

static bool alone(const struct experts_params * p) { return p->n_tokens == 1; }

static struct layout lay_out(const struct experts_params * p, uint8_t * work, uint8_t * scratch) {
    const struct k3_matmul_kernels * kernels = k3_cpu()->matmul;
    const size_t pairs                       = (size_t) (p->n_tokens * p->n_used);
    const size_t values                      = k3_aligned(pairs * (size_t) stride(p) * sizeof(float));
    struct layout l                          = {.x_act = k3_act_size(kernels->kind(p->w.gate->type), p->w.gate->ne[0]),
                                                .h_act = k3_act_size(kernels->kind(p->w.down->type), p->w.down->ne[0])};
    uint8_t * const rest                     = alone(p) ? scratch : work + values;
    size_t size                              = 0;
    l.results                                = alone(p) ? (float *) (work + values) : (float *) work;
    l.values                                 = (float *) work;
    l.x                                      = rest;
    size += l.x_act * (size_t) p->n_tokens;
    l.h = rest + size;
    size += l.h_act * pairs;
    l.order = (int32_t *) (rest + size);
    size += k3_aligned(pairs * sizeof(int32_t));
    l.start = (int32_t *) (rest + size);
    size += k3_aligned((size_t) (p->n_experts + 1) * sizeof(int32_t));
    l.work    = values + (alone(p) ? values : size);
    l.scratch = alone(p) ? size : 0;
    return l;
}

// Counting sort of the pairs by expert; pairs of one expert stay in token order.
static void sort_pairs(const struct experts_params * p, const int32_t * ids, const struct layout * l) {
    const int64_t pairs = p->n_tokens * p->n_used;
    memset(l->start, 0, (size_t) (p->n_experts + 1) * sizeof(*l->start));
    for (int64_t i = 0; i < pairs; i++) {
        l->start[ids[i] + 1]++;
    }
    for (int64_t e = 0; e < p->n_experts; e++) {
        l->start[e + 1] += l->start[e];
    }
    for (int64_t i = 0; i < pairs; i++) {
        l->order[l->start[ids[i]]++] = (int32_t) i;
    }
    for (int64_t e = p->n_experts; e > 0; e--) {
        l->start[e] = l->start[e - 1];
    }
    l->start[0] = 0;
}

// Cost of an expert's rows: reading and unpacking them takes as long as multiplying by two tokens.
static int64_t cost(int64_t n_pairs) { return n_pairs == 0 ? 0 : n_pairs + 2; }

// Rows [first, last) of one expert for n pairs, at most as many as there are tokens.
struct part {
    int64_t expert, first, last;
    const int32_t * pairs;
    int64_t n;
};

// Calls `run` for this thread's share of the rows [0, n_rows) of every chosen expert.
static void for_rows(const struct k3_task * task, const struct layout * l, int64_t n_rows,
                     void (*run)(const struct k3_task * task, const struct layout * l, const struct part * part)) {
    const struct experts_params * p = task->params;
    const int64_t blocks            = (n_rows + ROW_STEP - 1) / ROW_STEP;
    int64_t total = 0, before = 0;
    for (int64_t e = 0; e < p->n_experts; e++) {
        total += cost(l->start[e + 1] - l->start[e]) * blocks;
    }
    const int64_t from = total * task->ith / task->nth, to = total * (task->ith + 1) / task->nth;
    for (int64_t e = 0; e < p->n_experts && before < to; e++) {
        const int64_t each = cost(l->start[e + 1] - l->start[e]);
        if (each == 0) {
            continue;
        }
        // block i belongs to the thread in whose range its start before + i * each lies
        const int64_t first = from <= before ? 0 : (from - before + each - 1) / each;
        const int64_t last  = to <= before ? 0 : (to - before + each - 1) / each;
        if (first < blocks && first < last) {
            const int64_t end = (last < blocks ? last : blocks) * ROW_STEP;
            struct part part  = {.expert = e, .first = first * ROW_STEP, .last = end < n_rows ? end : n_rows};
            for (int64_t i = l->start[e]; i < l->start[e + 1]; i += part.n) {
                part.pairs = l->order + i;
                part.n     = l->start[e + 1] - i < p->n_tokens ? l->start[e + 1] - i : p->n_tokens;
                run(task, l, &part);
            }
        }
        before += each * blocks;
    }
}

// A call's pointers and the memory behind them, in a thread's scratch.
struct call {
    const void ** acts;
    float ** y;
    float * up;
    uint8_t * scratch;
};

static size_t pointers_size(const struct experts_params * p) {
    return k3_aligned((size_t) p->n_tokens * 2 * sizeof(void *));
}

static size_t up_size(const struct experts_params * p) {
    return (size_t) max_of(UP_VALUES, p->n_tokens * ROW_STEP) * sizeof(float);
}

static struct call call_in(const struct k3_task * task, const struct layout * l) {
    const struct experts_params * p = task->params;
    struct call c                   = {.acts = (const void **) (task->scratch + l->scratch)};
    c.y                             = (float **) (c.acts + p->n_tokens);
    c.up                            = (float *) (task->scratch + l->scratch + pointers_size(p));
    c.scratch                       = (uint8_t *) c.up + up_size(p);
    return c;
}

static struct k3_matmul_args args_of(const struct call * c, const struct ggml_tensor * w, const struct part * part,
                                     int64_t first, int64_t last) {
    return (struct k3_matmul_args) {.type      = w->type,
                                    .w         = (const char *) w->data + (size_t) part->expert * w->nb[2],
                                    .row_bytes = w->nb[1],
                                    .k         = w->ne[0],
                                    .first     = first,
                                    .last      = last,
                                    .n_tokens  = part->n,
                                    .acts      = c->acts,
                                    .y         = c->y,
                                    .scratch   = c->scratch};
}

static void gate_up(const struct k3_task * task, const struct layout * l, const struct part * part) {
    const struct experts_params * p = task->params;
    const struct call c             = call_in(task, l);
    const int32_t * pairs           = part->pairs;
    const int64_t n                 = part->n;
    for (int64_t i = 0; i < n; i++) {
        c.acts[i] = l->x + (size_t) (pairs[i] / p->n_used) * l->x_act;
    }
    const int64_t chunk = max_of(UP_VALUES / n / ROW_STEP * ROW_STEP, ROW_STEP);
    for (int64_t row = part->first; row < part->last; row += chunk) {
        const int64_t end = row + chunk < part->last ? row + chunk : part->last;
        for (int64_t i = 0; i < n; i++) {
            c.y[i] = l->values + pairs[i] * stride(p);
        }
        struct k3_matmul_args args = args_of(&c, p->w.gate, part, row, end);
        k3_cpu()->matmul->run(&args);
        for (int64_t i = 0; i < n; i++) {
            c.y[i] = c.up + i * (end - row) - row;
        }
        args = args_of(&c, p->w.up, part, row, end);
        k3_cpu()->matmul->run(&args);
        for (int64_t i = 0; i < n; i++) {
            float * gate = l->values + pairs[i] * stride(p) + row;
            k3_cpu()->rows->glu(&p->glu, gate, c.up + i * (end - row), end - row, gate);
        }
    }
}

static void pack_activation(const struct experts_params * p, const struct layout * l, int64_t pair) {
    k3_cpu()->matmul->pack(k3_cpu()->matmul->kind(p->w.down->type), l->values + pair * stride(p), p->w.down->ne[0],
                           l->h + (size_t) pair * l->h_act);
}

static void down(const struct k3_task * task, const struct layout * l, const struct part * part) {
    const struct experts_params * p = task->params;
    const struct call c             = call_in(task, l);
    const int32_t * pairs           = part->pairs;
    const int64_t n                 = part->n;
    for (int64_t i = 0; i < n; i++) {
        if (alone(p)) {
            pack_activation(p, l, pairs[i]);
        }
        c.acts[i] = l->h + (size_t) pairs[i] * l->h_act;
        c.y[i]    = l->results + pairs[i] * stride(p);
    }
    const struct k3_matmul_args args = args_of(&c, p->w.down, part, part->first, part->last);
    k3_cpu()->matmul->run(&args);
}

static void pack_inputs(const struct k3_task * task, const struct layout * l) {
    const struct experts_params * p = task->params;
    const struct ggml_tensor * x    = task->dst->src[0];
    const enum k3_act_kind kind     = k3_cpu()->matmul->kind(p->w.gate->type);
    if (alone(p)) {
        sort_pairs(p, task->dst->src[1]->data, l);
        k3_cpu()->matmul->pack(kind, x->data, x->ne[0], l->x);
        return;
    }
    // the last thread starts with the tokens, the first one with the sorting
    int64_t first, last;
    k3_share(p->n_tokens, 1, task->nth - 1 - task->ith, task->nth, &first, &last);
    for (int64_t t = first; t < last; t++) {
        k3_cpu()->matmul->pack(kind, (const float *) ((const char *) x->data + (size_t) t * x->nb[1]), x->ne[0],
                               l->x + (size_t) t * l->x_act);
    }
    if (task->ith == 0) {
        sort_pairs(p, task->dst->src[1]->data, l);
    }
    k3_task_barrier(task);
}

static void pack_activations(const struct k3_task * task, const struct layout * l) {
    const struct experts_params * p = task->params;
    int64_t first, last;
    k3_share(p->n_tokens * p->n_used, 1, task->ith, task->nth, &first, &last);
    for (int64_t i = first; i < last; i++) {
        pack_activation(p, l, i);
    }
    k3_task_barrier(task);
}

// Columns of all tokens are shared in steps of a cache line.
static void sum_up(const struct k3_task * task, const struct layout * l) {
    const struct experts_params * p = task->params;
    const int64_t width             = task->dst->ne[0];
    const float * weights           = task->dst->src[2]->data;
    const int64_t steps             = (width + K3_LINE / 4 - 1) / (K3_LINE / 4);
    int64_t step, end;
    k3_share(steps * p->n_tokens, 1, task->ith, task->nth, &step, &end);
    while (step < end) {
        const int64_t token = step / steps, first = step % steps * (K3_LINE / 4);
        const int64_t n_steps = steps - step % steps < end - step ? steps - step % steps : end - step;
        const int64_t n       = n_steps * (K3_LINE / 4) < width - first ? n_steps * (K3_LINE / 4) : width - first;
        float * out           = (float *) ((char *) task->dst->data + (size_t) token * task->dst->nb[1]) + first;
        memset(out, 0, (size_t) n * sizeof(float));
        for (int64_t slot = 0; slot < p->n_used; slot++) {
            const int64_t pair = token * p->n_used + slot;
            k3_cpu()->rows->scale_add(l->results + pair * stride(p) + first, weights[pair], n, out);
        }
        step += n_steps;
    }
}

static void experts(const struct k3_task * task) {
    const struct experts_params * p = task->params;
    const struct layout l           = lay_out(p, task->work, task->scratch);
    pack_inputs(task, &l);
    for_rows(task, &l, p->w.gate->ne[1], gate_up);
    k3_task_barrier(task);
    if (!alone(p)) {
        pack_activations(task, &l);
    }
    for_rows(task, &l, p->w.down->ne[1], down);
    k3_task_barrier(task);
    sum_up(task, &l);
}

// Scratch of calls with any number of tokens up to n_tokens.
static size_t scratch_for(const struct ggml_tensor * w, int64_t n_tokens) {
    size_t most = 0;
    for (int64_t n = 1; n <= n_tokens; n = n < 64 ? n + 1 : n * 2) {
        const size_t size = k3_cpu()->matmul->scratch(w->type, w->ne[0], n);
        most              = size > most ? size : most;
    }
    const size_t all = k3_cpu()->matmul->scratch(w->type, w->ne[0], n_tokens);
    return all > most ? all : most;
}

struct ggml_tensor * k3_experts_fast(struct ggml_k3_builder * b, const struct ggml_k3_experts_weights * w,
                                     const struct ggml_k3_glu_params * glu, struct ggml_tensor * x,
                                     struct ggml_tensor * ids, struct ggml_tensor * weights) {
    const struct experts_params p         = {*w, *glu, ids->ne[0], ids->ne[1], w->gate->ne[2]};
    const struct ggml_tensor * matrices[] = {w->gate, w->up, w->down};
    size_t scratch                        = 0;
    for (int i = 0; i < 3; i++) {
        const size_t size = scratch_for(matrices[i], p.n_tokens);
        scratch           = size > scratch ? size : scratch;
    }
    const struct layout l          = lay_out(&p, NULL, NULL);
    const struct k3_node_info info = {
        .run         = experts,
        .scratch     = l.scratch + pointers_size(&p) + up_size(&p) + scratch,
        .work        = l.work,
        .params      = &p,
        .params_size = sizeof(p),
    };
    struct ggml_tensor * sources[] = {x, ids, weights};
    return k3_node_add(b, GGML_TYPE_F32, (int64_t[4]) {w->down->ne[1], p.n_tokens, 1, 1}, sources, 3, &info);
}
