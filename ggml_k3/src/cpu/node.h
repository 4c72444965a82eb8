// node.h - a node of the fast form: a ggml tensor that one function computes, run by the threads of a pool.
//
// The tensor has the op GGML_OP_CUSTOM, so that ggml's allocator plans its memory, and carries its k3_node in
// `extra`. ggml's own executor cannot run it.
#ifndef K3_NODE_H
#define K3_NODE_H

#include "ggml_k3.h"

enum { K3_ALIGN = 64, K3_LINE = 64 };

// What a thread gets to compute its share of a node.
struct k3_task {
    struct ggml_tensor * dst;  // results; its sources are the node's inputs
    const void * params;       // the op's own, as given to k3_node_add
    int ith, nth;              // this thread of so many; nth == 1 for a node made with `single`
    uint8_t * scratch;         // of this thread, aligned to 64 bytes, at least k3_node_info.scratch bytes
    uint8_t * work;            // of all threads of the node, aligned to 64 bytes, at least k3_node_info.work bytes
    struct ggml_k3_pool * pool;
};

typedef void (*k3_node_fn)(const struct k3_task * task);

struct k3_node_info {
    k3_node_fn run;
    bool single;     // little work: one thread does it, no barrier between two such nodes
    size_t scratch;  // bytes each thread needs
    size_t work;     // bytes the node needs
    const void * params;
    size_t params_size;
};

// All threads of the node wait here for each other; what they wrote before is visible after. Not in a `single` node.
void k3_task_barrier(const struct k3_task * task);

// A new node with up to GGML_MAX_SRC sources. `params` are copied. The result is contiguous.
struct ggml_tensor * k3_node_add(struct ggml_k3_builder * b, enum ggml_type type, const int64_t ne[4],
                                 struct ggml_tensor * const * sources, int n_sources, const struct k3_node_info * info);

// Part `ith` of `nth` of `n` items in multiples of `step`: items [*first, *last).
static inline void k3_share(int64_t n, int64_t step, int ith, int nth, int64_t * first, int64_t * last) {
    const int64_t blocks = (n + step - 1) / step;
    *first               = blocks * ith / nth * step;
    *last                = blocks * (ith + 1) / nth * step;
    *last                = *last < n ? *last : n;
    *first               = *first < n ? *first : n;
}

static inline size_t k3_aligned(size_t size) { return (size + K3_ALIGN - 1) / K3_ALIGN * K3_ALIGN; }

#endif
