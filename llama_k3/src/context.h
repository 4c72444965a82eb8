// context.h - a context: sequences with their hybrid cache, one engine with persistent threads, counters.
#ifndef K3_CONTEXT_H
#define K3_CONTEXT_H

#include "cache.h"
#include "engine.h"
#include "model.h"

#include <stdatomic.h>
#include <sys/types.h>

struct llama_k3_context {
    struct llama_k3_model * model;
    llama_k3_context_params params;
    k3_cache cache;
    k3_engine engine;
    k3_ubatch batch;       // arrays of n_ubatch entries
    int32_t * segment_of;  // [n_seq_max] scratch: segment of a sequence in the micro-batch, -1: none
    llama_k3_counters counters;
    uint64_t dense_bytes;  // weights read by every micro-batch, the output matrix not counted
    uint64_t token_bytes;  // weights that one token with logits is multiplied by
    atomic_flag busy;
    pid_t process;  // that made the context: a forked one has none of its threads
};

// Claims the context for one call; LLAMA_K3_BUSY when another thread holds it. LLAMA_K3_ARGUMENT in a forked process
// that lacks the context's threads.
int k3_context_enter(llama_k3_context * ctx, k3_error e);
void k3_context_leave(llama_k3_context * ctx);
// Asks the caller whether to stop; `user` is the context.
bool k3_context_stop(void * user);
// LLAMA_K3_ARGUMENT unless 0 <= seq < n_seq_max.
int k3_context_check_seq(const llama_k3_context * ctx, int32_t seq, k3_error e);

#endif
