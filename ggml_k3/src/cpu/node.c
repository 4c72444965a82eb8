// node.c - makes the tensors of the fast form and gathers those of a graph into a plan.
#include "node.h"
#include "plan.h"

#include <stdlib.h>
#include <string.h>

// ggml's executor must never get a fast node: no op of the fast form is correct there.
static void not_for_ggml(struct ggml_tensor * dst, int ith, int nth, void * user) {
    (void) dst;
    (void) ith;
    (void) nth;
    (void) user;
    GGML_ASSERT(!"a fast node runs in a ggml_k3_pool only");
}

static void * take(struct ggml_k3_arena * arena, size_t size) {
    const size_t start = (arena->used + 15) / 16 * 16;
    GGML_ASSERT(start + size <= arena->size);
    arena->used = start + size;
    return arena->data + start;
}

struct ggml_tensor * k3_node_add(struct ggml_k3_builder * b, enum ggml_type type, const int64_t ne[4],
                                 struct ggml_tensor * const * sources, int n_sources,
                                 const struct k3_node_info * info) {
    GGML_ASSERT(n_sources >= 1 && n_sources <= GGML_MAX_SRC);
    struct ggml_tensor * copy[GGML_MAX_SRC];
    memcpy(copy, sources, (size_t) n_sources * sizeof(*copy));
    struct ggml_tensor * t = ggml_custom_4d(b->ctx, type, ne[0], ne[1], ne[2], ne[3], copy, n_sources, not_for_ggml, 1,
                                            NULL);
    struct k3_node * node  = take(b->arena, sizeof(*node) + info->params_size);
    *node                  = (struct k3_node) {.info = *info, .section = b->section};
    if (info->params_size) {
        memcpy(node->params, info->params, info->params_size);
    }
    node->info.params = node->params;
    t->extra          = node;
    return t;
}

bool ggml_k3_plan_init(struct ggml_k3_plan * plan, struct ggml_cgraph * graph) {
    const int n = ggml_graph_n_nodes(graph);
    *plan       = (struct ggml_k3_plan) {.nodes = malloc((size_t) (n ? n : 1) * sizeof(*plan->nodes))};
    if (!plan->nodes) {
        return false;
    }
    for (int i = 0; i < n; i++) {
        struct ggml_tensor * t = ggml_graph_node(graph, i);
        if (t->op != GGML_OP_CUSTOM) {
            GGML_ASSERT(t->view_src && "a fast graph has fast nodes and views only");
            continue;
        }
        const struct k3_node * node  = t->extra;
        plan->work                   = node->info.work > plan->work ? node->info.work : plan->work;
        plan->scratch                = node->info.scratch > plan->scratch ? node->info.scratch : plan->scratch;
        plan->nodes[plan->n_nodes++] = t;
    }
    return true;
}

void ggml_k3_plan_free(struct ggml_k3_plan * plan) {
    free(plan->nodes);
    *plan = (struct ggml_k3_plan) {0};
}
