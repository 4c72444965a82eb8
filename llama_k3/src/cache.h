// cache.h - the hybrid cache. Per sequence: rows of every MLA layer, and for every KDA layer a state and a
// convolution window in two halves: a prefill reads the active half and writes the other one, which becomes active when
// the whole micro-batch is done. So one that was stopped or failed leaves the sequence as it was. Decode, which nothing
// stops, writes the half that it reads.
#ifndef K3_CACHE_H
#define K3_CACHE_H

#include "hparams.h"

#include "ggml-backend.h"
#include "ggml.h"

// KDA states and windows of a sequence at a position, for `truncate`. Shared by copied sequences.
typedef struct k3_checkpoint {
    int references;
    int64_t position;
    uint64_t serial;  // order of creation in the context
    uint64_t size;    // bytes of data
    uint8_t data[];
} k3_checkpoint;

typedef struct k3_sequence {
    int64_t position;  // tokens held
    int32_t * tokens;  // [capacity]
    int64_t capacity;
    int active;                    // half that holds the present state
    k3_checkpoint ** checkpoints;  // [n_checkpoints], ascending positions
    uint32_t n_checkpoints;
} k3_sequence;

typedef struct k3_cache {
    const k3_hparams * hp;
    uint32_t n_ctx, n_seq;
    enum ggml_type row_type;
    int32_t n_mla, n_kda;
    uint64_t row_bytes;                  // of one token in one MLA layer
    uint64_t state_bytes, window_bytes;  // of one sequence in one KDA layer
    struct ggml_context * tensors;
    struct ggml_tensor * latent[K3_MAX_LAYERS];  // [kv_lora + rope, n_ctx, n_seq]; NULL for KDA layers
    struct ggml_tensor * state[K3_MAX_LAYERS];   // [dim keys, dim values, n_head, 2 n_seq] F32
    struct ggml_tensor * window[K3_MAX_LAYERS];  // [conv_width - 1, D, 3 * 2 n_seq] F32
    void * memory[2];                            // anonymous mappings: rows; states and windows
    uint64_t memory_size[2];
    ggml_backend_buffer_t buffer[2];
    k3_sequence * seq;  // [n_seq]
    uint64_t checkpoint_budget, checkpoint_bytes, checkpoint_serial;
} k3_cache;

// Reserves address space only: pages are committed when they are first written.
int k3_cache_init(k3_cache * cache, const k3_hparams * hp, uint32_t n_ctx, uint32_t n_seq, enum ggml_type row_type,
                  uint64_t checkpoint_budget, k3_error e);
void k3_cache_free(k3_cache * cache);

// Bytes of all states and windows of one sequence.
uint64_t k3_cache_recurrent_bytes(const k3_cache * cache);
// Copies the active states and windows of a sequence, layer by layer: state, window.
void k3_cache_recurrent_read(const k3_cache * cache, int32_t seq, uint8_t * out);
void k3_cache_recurrent_write(k3_cache * cache, int32_t seq, const uint8_t * in);
// The active half of a sequence in a state or window tensor with `bytes` in a half.
uint8_t * k3_cache_half(const k3_cache * cache, const struct ggml_tensor * t, int32_t seq, uint64_t bytes);
// First `n` rows of a sequence in an MLA layer, contiguous.
uint8_t * k3_cache_rows(const k3_cache * cache, int32_t layer, int32_t seq);

int k3_cache_reserve_tokens(k3_cache * cache, int32_t seq, int64_t n, k3_error e);
void k3_cache_clear(k3_cache * cache, int32_t seq);
int k3_cache_copy(k3_cache * cache, int32_t src, int32_t dst, k3_error e);

// Keeps the present state of the sequence for k3_cache_rewind; the oldest checkpoints of the context make room.
// Does nothing when one at this position exists or one alone exceeds the budget.
int k3_cache_checkpoint(k3_cache * cache, int32_t seq, k3_error e);
// Drops the checkpoint at `position`; false when there is none. Sequences that share it keep it.
bool k3_cache_checkpoint_drop(k3_cache * cache, int32_t seq, int64_t position);
// Adds a checkpoint read from a saved sequence, in ascending order of position.
int k3_cache_checkpoint_add(k3_cache * cache, int32_t seq, int64_t position, const uint8_t * data, k3_error e);
// Goes back to the newest checkpoint at or before `position` (0 when there is none) and returns its position.
int64_t k3_cache_rewind(k3_cache * cache, int32_t seq, int64_t position);

#endif
