// mla.c - the fast node of absorbed attention over the latent cache: appends the tokens' rows to their sequences, then
// attends. Positions, lengths and places are read from the batch when the node runs.
//
// Work is cut into panels (query rows of one sequence that a kernel computes together) and these, where few panels
// carry most of the work, into spans of positions:
//   append rows | barrier | whole panels and spans, taken by the threads one after another | barrier | fold the spans
// The parts of spans lie in the node's shared memory; panels that do not fit there take further rounds. How panels are
// cut is a matter of speed only: see mla.h for why it never shows in a result.
#include "mla.h"
#include "cpu.h"
#include "ggml_k3_mutant.h"
#include "node.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

enum {
    MAX_SPANS = 64,        // of one row
    WORK      = 32 << 20,  // most bytes for parts of spans, unless a panel needs more
    ROUND     = 2 << 20,   // bytes for parts in a round and thread: what caches keep until they are folded
    LANE_STEP = 16,        // floats: m and l of a part start on cache lines
    Q8_BLOCK  = 32,
};

struct mla_params {
    float scale;
    const struct ggml_k3_batch * batch;
    size_t work, kernel_scratch;  // bytes
};

// At the start of the node's shared memory.
struct mla_shared {
    _Alignas(K3_LINE) atomic_int ticket[2];  // next unit of the round; even and odd rounds take turns
};

// Length of the spans of a row at this position.
static int64_t span_length(int64_t position) {
    int64_t length = K3_MLA_SPAN;
    while (length * MAX_SPANS <= position) {
        length *= 2;
    }
    return length;
}

// ---- rows of the cache -----------------------------------------------------------------------------------

// ggml's Q8_0; a block with a value that is not finite has d = NaN.
static void store_q8_block(const float * x, uint8_t * out) {
    float top = 0, zero = 0;
    for (int i = 0; i < Q8_BLOCK; i++) {
        top = fabsf(x[i]) > top ? fabsf(x[i]) : top;
        zero += x[i] * 0.0f;
    }
    const float d = top / 127.0f + zero, inverse = d > 0 ? 1.0f / d : 0.0f;
    const ggml_fp16_t half = ggml_fp32_to_fp16(d);
    memcpy(out, &half, sizeof(half));
    int8_t * q = (int8_t *) out + sizeof(half);
    for (int i = 0; i < Q8_BLOCK; i++) {
        const float y   = inverse > 0 ? x[i] * inverse : 0.0f;
        const int whole = (int) y;  // then halves away from zero
        q[i]            = (int8_t) (whole + (y - (float) whole >= 0.5f) - (y - (float) whole <= -0.5f));
    }
}

static void store_row(enum ggml_type type, const float * x, int64_t n, void * out) {
    switch (type) {
        case GGML_TYPE_F32: memcpy(out, x, (size_t) n * sizeof(float)); break;
        case GGML_TYPE_F16: ggml_fp32_to_fp16_row(x, out, n); break;
        case GGML_TYPE_BF16: ggml_fp32_to_bf16_row(x, out, n); break;
        default:
            for (int64_t i = 0; i < n; i += Q8_BLOCK) {
                store_q8_block(x + i, (uint8_t *) out + i / Q8_BLOCK * (Q8_BLOCK + 2));
            }
    }
}

static uint8_t * cache_row(const struct ggml_tensor * cache, int32_t seq, int64_t position) {
    return (uint8_t *) cache->data + (size_t) seq * cache->nb[2] + (size_t) position * cache->nb[1];
}

// Tokens are dealt to the threads in turn.
static void append_rows(const struct k3_task * task) {
    const struct mla_params * p      = task->params;
    const struct ggml_tensor *latent = task->dst->src[2], *shared = task->dst->src[3], *cache = task->dst->src[4];
    float * row = (float *) task->scratch;
    for (int i = 0; i < p->batch->n_segments; i++) {
        const struct ggml_k3_segment * s = &p->batch->segments[i];
        for (int64_t t = 0; t < s->n; t++) {
            if ((s->first + t) % task->nth != task->ith) {
                continue;
            }
            memcpy(row, (const char *) latent->data + (size_t) (s->first + t) * latent->nb[1],
                   (size_t) latent->ne[0] * sizeof(float));
            memcpy(row + latent->ne[0], (const char *) shared->data + (size_t) (s->first + t) * shared->nb[1],
                   (size_t) shared->ne[0] * sizeof(float));
            store_row(cache->type, row, cache->ne[0], cache_row(cache, s->seq, s->position + t));
        }
    }
}

// ---- panels ----------------------------------------------------------------------------------------------

// A panel: tokens [token, token + n_tokens) of a segment, heads [head, head + n_heads).
struct cut {
    int number;
    const struct ggml_k3_segment * segment;
    int64_t token, n_tokens, head, n_heads;
    int64_t span, n_spans;  // length; of the last token
    int round;              // whose units its spans are, -1: the panel is one unit of the first round
    size_t offset;          // of its parts
};

// What decides how a node is cut: the same for all threads.
struct plan {
    const struct ggml_k3_batch * batch;
    int64_t n_head, columns, lanes;
    int rows, nth, number;  // rows: most of a panel; number of panels
    bool uniform;           // all panels cost about the same
    double total;
    size_t work;  // bytes of parts in a round, unless it has a single panel
};

// A walk through the panels in their order.
struct walk {
    const struct plan * plan;
    int segment;
    int64_t token, head;
    int number, round;
    size_t used;  // bytes of the round
};

static size_t part_size(const struct plan * plan, int64_t rows) {
    return (size_t) (rows * plan->columns + 2 * ((rows + LANE_STEP - 1) / LANE_STEP * LANE_STEP)) * sizeof(float);
}

static double cost(const struct plan * plan, const struct cut * c) {
    const int64_t rows = (c->n_tokens * c->n_heads + plan->lanes - 1) / plan->lanes * plan->lanes;
    return (double) rows * (double) (c->segment->position + c->token + c->n_tokens);
}

// A panel's spans become units of their own if threads would wait for it otherwise: if it is most of a thread's share,
// or, as long as the first round has room, not small beside it.
static void choose_round(struct walk * w, struct cut * c) {
    const struct plan * plan = w->plan;
    const double share       = cost(plan, c) * plan->nth;
    const size_t size        = part_size(plan, c->n_tokens * c->n_heads) * (size_t) c->n_spans;
    const bool fits          = w->used == 0 || w->used + size <= plan->work;
    const bool even          = plan->uniform && c->number < plan->number / plan->nth * plan->nth;
    c->round                 = -1;
    if (plan->nth == 1 || c->n_spans == 1 || even || share * 16 <= plan->total) {
        return;
    }
    if (share * 2 <= plan->total && (w->round > 0 || !fits)) {
        return;
    }
    if (!fits) {
        w->round++;
        w->used = 0;
    }
    c->round  = w->round;
    c->offset = w->used;
    w->used += size;
}

static bool next_panel(struct walk * w, struct cut * c) {
    const struct plan * plan = w->plan;
    while (w->segment < plan->batch->n_segments && w->token >= plan->batch->segments[w->segment].n) {
        w->segment++;
        w->token = 0;
    }
    if (w->segment == plan->batch->n_segments) {
        return false;
    }
    const struct ggml_k3_segment * s = &plan->batch->segments[w->segment];
    const int64_t most               = GGML_K3_MUTANT("scan-by-head") ? 1 : plan->rows;  // heads
    const int64_t groups = (plan->n_head + most - 1) / most, at_once = plan->rows / plan->n_head;
    const int64_t start = s->position + w->token;
    *c         = (struct cut) {.number = w->number++, .segment = s, .token = w->token, .head = w->head, .n_tokens = 1};
    c->span    = span_length(start);
    c->n_heads = (plan->n_head + groups - 1) / groups;
    c->n_heads = c->n_heads < plan->n_head - c->head ? c->n_heads : plan->n_head - c->head;
    while (c->n_tokens < at_once && c->token + c->n_tokens < s->n && span_length(start + c->n_tokens) == c->span) {
        c->n_tokens++;
    }
    c->n_spans = (start + c->n_tokens - 1) / c->span + 1;
    w->head += c->n_heads;
    if (w->head >= plan->n_head) {
        w->head = 0;
        w->token += c->n_tokens;
    }
    choose_round(w, c);
    return true;
}

// Largest panels with enough units for all threads.
static struct plan make_plan(const struct k3_task * task) {
    static const int sizes[]    = {K3_MLA_ROWS, K3_MLA_ROWS / 2, K3_MLA_ROWS / 3, K3_MLA_ROWS / 6};
    const struct mla_params * p = task->params;
    struct plan plan            = {.batch   = p->batch,
                                   .n_head  = task->dst->ne[1],
                                   .columns = k3_mla_columns(task->dst->ne[0]),
                                   .lanes   = k3_cpu()->mla->row_step,
                                   .nth     = task->nth,
                                   .work    = (size_t) task->nth * ROUND};
    plan.work                   = plan.work < p->work ? plan.work : p->work;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        struct walk w = {.plan = &plan};
        struct cut c;
        int64_t units = 0;
        double least = 0, most = 0;
        plan.rows  = sizes[i];
        plan.total = 0;
        while (next_panel(&w, &c)) {
            const double size = cost(&plan, &c);
            least             = c.number == 0 || size < least ? size : least;
            most              = size > most ? size : most;
            units += c.n_spans;
            plan.total += size;
        }
        plan.number  = w.number;
        plan.uniform = most <= least * 1.125;
        if (units >= 4 * plan.nth || w.number % plan.nth == 0) {
            break;
        }
    }
    return plan;
}

// ---- units -----------------------------------------------------------------------------------------------

// One thread's run of a node.
struct run {
    const struct k3_task * task;
    struct plan plan;
    struct k3_mla_panel panel;
    int packed;  // number of the panel whose queries lie in the kernel's memory
    void * kernel_scratch;
    struct mla_shared * shared;
    uint8_t * parts;                  // of spans, shared
    struct k3_mla_part whole, other;  // of a whole panel: so far; of the present span
};

static struct k3_mla_part part_at(const struct plan * plan, int64_t rows, uint8_t * memory) {
    struct k3_mla_part part;
    part.o = (float *) memory;
    part.m = part.o + rows * plan->columns;
    part.l = part.m + (rows + LANE_STEP - 1) / LANE_STEP * LANE_STEP;
    return part;
}

static struct k3_mla_part part_row(const struct plan * plan, const struct k3_mla_part * part, int64_t row) {
    return (struct k3_mla_part) {.m = part->m + row, .l = part->l + row, .o = part->o + row * plan->columns};
}

static float * result(const struct k3_task * task, const struct cut * c, int64_t row) {
    const int64_t token = c->segment->first + c->token + row / c->n_heads, head = c->head + row % c->n_heads;
    return (float *) task->dst->data + (token * task->dst->ne[1] + head) * task->dst->ne[0];
}

static int64_t position(const struct cut * c, int64_t row) {
    return c->segment->position + c->token + row / c->n_heads;
}

// Makes `c` the panel whose queries are packed.
static void select_panel(struct run * r, const struct cut * c) {
    if (r->packed == c->number) {
        return;
    }
    const struct ggml_tensor * const * src = (const struct ggml_tensor * const *) r->task->dst->src;
    const struct ggml_tensor *q_latent = src[0], *q_shared = src[1], *cache = src[4];
    const struct mla_params * p = r->task->params;
    struct k3_mla_panel * panel = &r->panel;
    panel->type                 = cache->type;
    panel->n_latent             = q_latent->ne[0];
    panel->width                = cache->ne[0];
    panel->scale                = p->scale;
    panel->cache                = cache_row(cache, c->segment->seq, 0);
    panel->row_bytes            = cache->nb[1];
    panel->n_rows               = (int) (c->n_tokens * c->n_heads);
    for (int i = 0; i < panel->n_rows; i++) {
        const size_t token = (size_t) (c->segment->first + c->token + i / c->n_heads);
        const size_t head  = (size_t) (c->head + i % c->n_heads);
        panel->position[i] = position(c, i);
        panel->latent[i]   = (const float *) ((const char *) q_latent->data + token * q_latent->nb[1] +
                                            head * q_latent->nb[2]);
        panel->shared[i]   = (const float *) ((const char *) q_shared->data + token * q_shared->nb[1] +
                                            head * q_shared->nb[2]);
    }
    k3_cpu()->mla->pack(panel, r->kernel_scratch);
    r->packed = c->number;
}

static void run_whole(struct run * r, const struct cut * c) {
    const struct k3_mla_kernels * kernels = k3_cpu()->mla;
    for (int64_t i = 0; i < c->n_spans; i++) {
        const struct k3_mla_part * part = i == 0 ? &r->whole : &r->other;
        kernels->span(&r->panel, i * c->span, (i + 1) * c->span, r->kernel_scratch, part);
        for (int64_t row = 0; i > 0 && row < r->panel.n_rows; row++) {
            if (position(c, row) >= i * c->span) {
                const struct k3_mla_part into = part_row(&r->plan, &r->whole, row);
                const struct k3_mla_part from = part_row(&r->plan, part, row);
                kernels->fold(r->plan.columns, &into, &from);
            }
        }
    }
    for (int64_t row = 0; row < r->panel.n_rows; row++) {
        const struct k3_mla_part from = part_row(&r->plan, &r->whole, row);
        kernels->finish(r->task->dst->ne[0], &from, result(r->task, c, row));
    }
}

static struct k3_mla_part span_part(const struct run * r, const struct cut * c, int64_t span) {
    const int64_t rows = c->n_tokens * c->n_heads;
    return part_at(&r->plan, rows, r->parts + c->offset + part_size(&r->plan, rows) * (size_t) span);
}

static void run_span(struct run * r, const struct cut * c, int64_t span) {
    const struct k3_mla_part part = span_part(r, c, span);
    k3_cpu()->mla->span(&r->panel, span * c->span, (span + 1) * c->span, r->kernel_scratch, &part);
}

// The span of a panel's unit: threads that take units in turn have adjacent ones, so that what a kernel prefetches
// behind its span is the thread's next one.
static int64_t span_of(const struct cut * c, int64_t unit, int64_t nth) {
    const int64_t thread = unit % nth, more = c->n_spans % nth;
    return thread * (c->n_spans / nth) + (thread < more ? thread : more) + unit / nth;
}

// Units of the panels with this `round` among those with tickets from *first on; *ticket is the thread's next one.
static void run_units(struct run * r, int round, atomic_int * next, int * first, int * ticket) {
    struct walk w = {.plan = &r->plan};
    struct cut c;
    while (next_panel(&w, &c)) {
        if (c.round != round) {
            continue;
        }
        const int units = c.round < 0 ? 1 : (int) c.n_spans;
        while (*ticket < *first + units) {
            select_panel(r, &c);
            if (c.round < 0) {
                run_whole(r, &c);
            } else {
                run_span(r, &c, span_of(&c, *ticket - *first, r->plan.nth));
            }
            *ticket = atomic_fetch_add_explicit(next, 1, memory_order_relaxed);
        }
        *first += units;
    }
}

static void fold_row(const struct run * r, const struct cut * c, int64_t row) {
    const struct k3_mla_kernels * kernels = k3_cpu()->mla;
    const struct k3_mla_part first = span_part(r, c, 0), into = part_row(&r->plan, &first, row);
    for (int64_t i = 1; i <= position(c, row) / c->span; i++) {
        const struct k3_mla_part part = span_part(r, c, i), from = part_row(&r->plan, &part, row);
        kernels->fold(r->plan.columns, &into, &from);
    }
    kernels->finish(r->task->dst->ne[0], &into, result(r->task, c, row));
}

// The rows of the round's panels; true when a later round has panels.
static bool fold_round(const struct run * r, int round) {
    struct walk w = {.plan = &r->plan};
    struct cut c;
    while (next_panel(&w, &c)) {
        if (c.round == round) {
            int64_t first, last;
            k3_share(c.n_tokens * c.n_heads, 1, r->task->ith, r->task->nth, &first, &last);
            for (int64_t row = first; row < last; row++) {
                fold_row(r, &c, row);
            }
        }
    }
    return w.round > round;
}

static void mla(const struct k3_task * task) {
    const struct mla_params * p = task->params;
    const struct plan plan      = make_plan(task);
    const size_t part           = part_size(&plan, K3_MLA_ROWS);
    struct run r                = {.task           = task,
                                   .plan           = plan,
                                   .packed         = -1,
                                   .kernel_scratch = task->scratch,
                                   .shared         = (struct mla_shared *) task->work,
                                   .parts          = task->work + sizeof(struct mla_shared)};
    r.whole                     = part_at(&plan, K3_MLA_ROWS, task->scratch + p->kernel_scratch);
    r.other                     = part_at(&plan, K3_MLA_ROWS, task->scratch + p->kernel_scratch + part);
    append_rows(task);
    if (task->ith == 0) {
        atomic_store_explicit(&r.shared->ticket[0], 0, memory_order_relaxed);
    }
    k3_task_barrier(task);
    for (int round = 0;; round++) {
        atomic_int * next = &r.shared->ticket[round % 2];
        int first = 0, ticket = atomic_fetch_add_explicit(next, 1, memory_order_relaxed);
        if (round == 0) {
            run_units(&r, -1, next, &first, &ticket);
        }
        run_units(&r, round, next, &first, &ticket);
        if (task->ith == 0) {
            atomic_store_explicit(&r.shared->ticket[(round + 1) % 2], 0, memory_order_relaxed);
        }
        k3_task_barrier(task);
        if (!fold_round(&r, round)) {
            break;
        }
        k3_task_barrier(task);
    }
}

struct ggml_tensor * k3_mla_fast(struct ggml_k3_builder * b, float scale, const struct ggml_k3_mla_input * in,
                                 struct ggml_tensor * cache) {
    const int64_t n_latent = in->q_latent->ne[0], n_tokens = in->q_latent->ne[1], n_head = in->q_latent->ne[2];
    const int64_t ne[4]    = {n_latent, n_head, n_tokens, 1};
    const struct plan plan = {.columns = k3_mla_columns(n_latent)};
    GGML_ASSERT(cache->ne[0] == n_latent + in->q_shared->ne[0]);
    GGML_ASSERT(in->q_latent->nb[0] == sizeof(float) && in->q_shared->nb[0] == sizeof(float));
    const int64_t rows = n_tokens * n_head < K3_MLA_ROWS ? n_tokens * n_head : K3_MLA_ROWS;
    const int64_t most = (cache->ne[1] + K3_MLA_SPAN - 1) / K3_MLA_SPAN, spans = most < MAX_SPANS ? most : MAX_SPANS;
    const size_t panel = part_size(&plan, rows) * (size_t) spans;
    const size_t work  = n_tokens == 1 && n_head <= rows ? panel : panel > WORK ? panel : WORK;

    struct mla_params p                  = {.scale = scale, .batch = b->batch, .work = work};
    p.kernel_scratch                     = k3_cpu()->mla->scratch(cache->type, n_latent, cache->ne[0]);
    struct ggml_tensor * const sources[] = {in->q_latent, in->q_shared, in->latent, in->shared, cache};
    const struct k3_node_info info       = {.run     = mla,
                                            .scratch = p.kernel_scratch + 2 * part_size(&plan, K3_MLA_ROWS) +
                                                       (size_t) cache->ne[0] * sizeof(float),
                                            .work        = sizeof(struct mla_shared) + work,
                                            .params      = &p,
                                            .params_size = sizeof(p)};
    return k3_node_add(b, GGML_TYPE_F32, ne, sources, 5, &info);
}
