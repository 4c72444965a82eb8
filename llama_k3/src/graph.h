// graph.h - the one graph of both architectures for a micro-batch: embed, layers (KDA | MLA) + (dense | experts), head.
#ifndef K3_GRAPH_H
#define K3_GRAPH_H

#include "cache.h"
#include "weights.h"

#include "ggml_k3.h"

// Tokens of a micro-batch, grouped by sequence.
typedef struct k3_ubatch {
    int32_t n_tokens, n_segments, n_outputs;
    int32_t * tokens;                   // [n_tokens]
    int32_t * outputs;                  // [n_outputs] indices into tokens whose logits are wanted
    int32_t * seq;                      // [n_segments] sequence of a segment
    struct ggml_k3_segment * segments;  // [n_segments]
    struct ggml_k3_batch ops;           // the same for the ops; fast graphs keep its address
} k3_ubatch;

typedef struct k3_graph {
    int32_t n_tokens, n_outputs;  // a fast graph serves every micro-batch with these numbers
    enum ggml_k3_form form;
    struct ggml_context * ctx;
    void * memory;  // of ctx
    struct ggml_cgraph * nodes;
    struct ggml_k3_arena arena;
    struct ggml_k3_plan plan;            // of an allocated fast graph
    struct ggml_tensor * tokens;         // input [n_tokens] I32
    struct ggml_tensor * outputs;        // input [n_outputs] I32; NULL when n_outputs == 0
    struct ggml_tensor * logits;         // [n_vocab, n_outputs]; NULL when n_outputs == 0
    struct ggml_tensor ** masks;         // [n_segments]: input [position + n, n] F16, or NULL
    uint64_t n_distinct[K3_MAX_LAYERS];  // experts chosen per layer in the last run
} k3_graph;

// Builds the graph; tensors are not allocated yet. k3_graph_free releases what a failed build left, too. The graph and
// the batch keep their addresses as long as the graph is used.
int k3_graph_build(k3_graph * g, const k3_hparams * hp, const k3_weights * w, const k3_cache * cache, k3_ubatch * batch,
                   enum ggml_k3_form form, k3_error e);
// Fills the inputs of an allocated graph.
void k3_graph_set_inputs(const k3_graph * g, const k3_ubatch * batch);
void k3_graph_free(k3_graph * g);

#endif
