// kda.c - Kimi Delta Attention as one node: every head of every segment is a task of its own, reads the state and the
// window at the segment's place state_in and writes them at state_out.
#include "kda.h"

#include "cpu.h"
#include "ggml_k3_mutant.h"
#include "node.h"

struct kda_params {
    struct ggml_k3_kda_params op;
    struct ggml_k3_kda_memory memory;
    const struct ggml_k3_batch * batch;
};

// Places of the inputs among the node's sources.
enum { SRC_Q, SRC_K, SRC_V, SRC_Z, SRC_BETA, SRC_GATE, N_SRC };

enum { HEADS = 16 };  // in one call of the kernel

// A head of a segment costs its tokens and about one more for what is done once.
static int64_t head_cost(const struct ggml_k3_segment * s) { return s->n + 1; }

static const float * channels(const struct ggml_tensor * x, int64_t token, int64_t channel, int64_t * stride) {
    *stride = (int64_t) (x->nb[1] / sizeof(float));
    return (const float *) x->data + token * *stride + channel;
}

// Head `i` of a segment.
static struct k3_kda_head head_of(const struct k3_task * task, const struct ggml_k3_segment * s, int64_t i) {
    const struct kda_params * p          = task->params;
    const struct ggml_k3_kda_params * op = &p->op;
    struct ggml_tensor ** src            = task->dst->src;
    const int64_t first = i * op->dim, all = op->n_head * op->dim, past = op->conv_width - 1;
    float * state           = p->memory.state->data;
    float * window          = p->memory.window->data;
    struct k3_kda_head head = {
        .dim              = op->dim,
        .conv_width       = op->conv_width,
        .n                = s->n,
        .dt_bias          = (const float *) op->dt_bias->data + first,
        .norm             = op->norm->data,
        .a                = ((const float *) op->a->data)[i],
        .gate_bounded     = op->gate_bounded && !GGML_K3_MUTANT("softplus-gate"),
        .gate_lower_bound = op->gate_lower_bound,
        .l2_eps           = op->l2_eps,
        .norm_eps         = op->norm_eps,
        .state_in         = state + (s->state_in * all + first) * op->dim,
        .state_out        = state + (s->state_out * all + first) * op->dim,
        .out              = (float *) task->dst->data + s->first * all + first,
        .out_stride       = all,
        .scratch          = task->scratch,
    };
    head.z    = channels(src[SRC_Z], s->first, first, &head.z_stride);
    head.gate = channels(src[SRC_GATE], s->first, first, &head.gate_stride);
    head.beta = channels(src[SRC_BETA], s->first, i, &head.beta_stride);
    for (int j = 0; j < 3; j++) {
        head.x[j]          = channels(src[SRC_Q + j], s->first, first, &head.x_stride[j]);
        head.conv[j]       = (const float *) op->conv[j]->data + first * op->conv_width;
        head.window_in[j]  = window + ((3 * s->state_in + j) * all + first) * past;
        head.window_out[j] = window + ((3 * s->state_out + j) * all + first) * past;
    }
    return head;
}

// Heads in the order of the segments; a thread takes those whose middle lies in its share of the whole cost. Heads of
// a place lie one behind the other in memory, so that a thread reads the states in one go.
static void run(const struct k3_task * task) {
    const struct kda_params * p        = task->params;
    const struct ggml_k3_batch * batch = p->batch;
    int64_t total                      = 0;
    for (int i = 0; i < batch->n_segments; i++) {
        total += head_cost(&batch->segments[i]) * p->op.n_head;
    }
    const int64_t begin = 2 * total * task->ith / task->nth, end = 2 * total * (task->ith + 1) / task->nth;
    int64_t middle = 0;  // in half units
    struct k3_kda_head heads[HEADS];
    int n = 0;
    for (int i = 0; i < batch->n_segments; i++) {
        const int64_t cost = head_cost(&batch->segments[i]);
        for (int64_t head = 0; head < p->op.n_head; head++) {
            middle += cost;
            if (middle >= begin && middle < end) {
                heads[n++] = head_of(task, &batch->segments[i], head);
            }
            if (n == HEADS) {
                k3_cpu()->kda->run(heads, n);
                n = 0;
            }
            middle += cost;
        }
    }
    if (n) {
        k3_cpu()->kda->run(heads, n);
    }
}

static void check(const struct ggml_k3_kda_params * p, const struct ggml_k3_kda_input * in,
                  const struct ggml_k3_kda_memory * memory) {
    const int64_t all = p->n_head * p->dim;
    GGML_ASSERT(p->dim % GGML_K3_KDA_STEP == 0 && p->conv_width >= 1);
    for (int i = 0; i < 3; i++) {
        GGML_ASSERT(in->qkv[i]->type == GGML_TYPE_F32 && in->qkv[i]->ne[0] == all);
        GGML_ASSERT(p->conv[i]->type == GGML_TYPE_F32 && ggml_nelements(p->conv[i]) == p->conv_width * all);
    }
    GGML_ASSERT(in->z->type == GGML_TYPE_F32 && in->z->ne[0] == all);
    GGML_ASSERT(in->gate->type == GGML_TYPE_F32 && in->gate->ne[0] == all);
    GGML_ASSERT(in->beta_logits->type == GGML_TYPE_F32 && in->beta_logits->ne[0] == p->n_head);
    GGML_ASSERT(p->a->type == GGML_TYPE_F32 && p->dt_bias->type == GGML_TYPE_F32 && p->norm->type == GGML_TYPE_F32);
    GGML_ASSERT(memory->state->type == GGML_TYPE_F32 && ggml_is_contiguous(memory->state));
    GGML_ASSERT(memory->window->type == GGML_TYPE_F32 && ggml_is_contiguous(memory->window));
}

struct ggml_tensor * k3_kda_fast(struct ggml_k3_builder * b, const struct ggml_k3_kda_params * p,
                                 const struct ggml_k3_kda_input * in, const struct ggml_k3_kda_memory * memory) {
    check(p, in, memory);
    const struct kda_params params = {*p, *memory, b->batch};
    const struct k3_node_info info = {
        .run         = run,
        .scratch     = k3_cpu()->kda->scratch(p->dim, p->conv_width),
        .params      = &params,
        .params_size = sizeof(params),
    };
    const int64_t ne[4]                 = {p->n_head * p->dim, in->z->ne[1], 1, 1};
    struct ggml_tensor * sources[N_SRC] = {in->qkv[0], in->qkv[1], in->qkv[2], in->z, in->beta_logits, in->gate};
    return k3_node_add(b, GGML_TYPE_F32, ne, sources, N_SRC, &info);
}
