// llama_k3.h - public interface of the Kimi-K3 / Kimi-Linear runtime.
//
// Two nouns: a *model* (loaded, immutable, shared between threads) and a *context* (sequences with their hybrid
// cache and one thread pool; used by one thread at a time, a second one gets LLAMA_K3_BUSY). A sequence is one
// timeline of tokens; everything mutable belongs to a sequence. Positions and counters may be read at any time.
//
// What can fail returns a status (0 = LLAMA_K3_OK) and writes a message into `err` (may be NULL; 0-terminated) that
// names the thing, the value found and the value wanted. The library never exits, aborts or prints.
#ifndef LLAMA_K3_H
#define LLAMA_K3_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define LLAMA_K3_API __attribute__((visibility("default")))
#else
#define LLAMA_K3_API
#endif

typedef struct llama_k3_model llama_k3_model;
typedef struct llama_k3_context llama_k3_context;
typedef struct llama_k3_snapshot llama_k3_snapshot;
typedef struct llama_k3_sampler llama_k3_sampler;

enum llama_k3_status {
    LLAMA_K3_OK                 = 0,
    LLAMA_K3_ABORTED            = 1,  // a callback asked to stop; finished micro-batches are kept
    LLAMA_K3_ARGUMENT           = 2,  // an argument is out of its range
    LLAMA_K3_MEMORY             = 3,  // an allocation failed
    LLAMA_K3_BUSY               = 4,  // the context is in use by another thread
    LLAMA_K3_CONTEXT_FULL       = 5,  // a sequence would grow beyond n_ctx
    LLAMA_K3_NON_FINITE         = 6,  // logits with inf or nan; their sequences were cleared
    LLAMA_K3_COMPUTE            = 7,  // the backend failed
    // model files, one code per violation
    LLAMA_K3_FILE_OPEN          = 20,  // missing, unreadable, not a regular file
    LLAMA_K3_FILE_MAGIC         = 21,
    LLAMA_K3_FILE_VERSION       = 22,
    LLAMA_K3_FILE_TRUNCATED     = 23,  // the file ends inside the named section
    LLAMA_K3_FILE_COUNT         = 24,  // a count that the file cannot hold, or beyond a limit
    LLAMA_K3_FILE_STRING        = 25,  // a string longer than the file, empty, or with a 0 byte where a name is wanted
    LLAMA_K3_FILE_VALUE_TYPE    = 26,  // unknown metadata type
    LLAMA_K3_FILE_DUPLICATE     = 27,  // a key or tensor twice
    LLAMA_K3_FILE_ALIGNMENT     = 28,
    LLAMA_K3_FILE_TENSOR_DIMS   = 29,  // number of dimensions, zero or negative size, row not a multiple of the block
    LLAMA_K3_FILE_TENSOR_TYPE   = 30,  // unknown tensor type
    LLAMA_K3_FILE_SIZE          = 31,  // a size computation overflows
    LLAMA_K3_FILE_OFFSET        = 32,  // offset of a tensor differs from the end of the one before it
    LLAMA_K3_SPLIT_KEYS         = 33,  // split.no, split.count, split.tensors.count wrong or missing
    LLAMA_K3_SPLIT_PART         = 34,  // a part is missing, or carries another part's number or model
    LLAMA_K3_MODEL_ARCHITECTURE = 40,
    LLAMA_K3_MODEL_KEY_MISSING  = 41,
    LLAMA_K3_MODEL_KEY_TYPE     = 42,
    LLAMA_K3_MODEL_KEY_VALUE    = 43,  // outside its range, or something the runtime does not implement
    LLAMA_K3_MODEL_LAYER_KINDS  = 44,
    LLAMA_K3_MODEL_VOCABULARY   = 45,  // token list, token types or special ids that do not fit
    LLAMA_K3_MODEL_TENSOR_MISSING = 46,
    LLAMA_K3_MODEL_TENSOR_EXTRA   = 47,
    LLAMA_K3_MODEL_TENSOR_TYPE    = 48,  // a type that the runtime does not compute with in this place
    LLAMA_K3_MODEL_TENSOR_SHAPE   = 49,
    // saved sequences
    LLAMA_K3_STATE_OPEN           = 60,
    LLAMA_K3_STATE_FORMAT         = 61,  // magic, version, sizes
    LLAMA_K3_STATE_CHECKSUM       = 62,
    LLAMA_K3_STATE_MODEL          = 63,  // made with another model
    LLAMA_K3_STATE_GEOMETRY       = 64,  // made with another cache type
    LLAMA_K3_STATE_WRITE          = 65,
};
LLAMA_K3_API const char * llama_k3_status_name(int status);  // its name here; "unknown status" for other numbers

// ---- log -------------------------------------------------------------------------------------------------
enum llama_k3_log_level { LLAMA_K3_LOG_DEBUG, LLAMA_K3_LOG_INFO, LLAMA_K3_LOG_WARN, LLAMA_K3_LOG_ERROR };
typedef void (*llama_k3_log_callback)(int level, const char * text, void * user);
// Process-wide; NULL (the default) drops all messages. Takes the backend's messages too. Not thread-safe: set it first.
LLAMA_K3_API void llama_k3_log_set(llama_k3_log_callback callback, void * user);

// ---- model -----------------------------------------------------------------------------------------------
// fraction in [0, 1]; return false to stop (LLAMA_K3_ABORTED).
typedef bool (*llama_k3_progress_callback)(float fraction, void * user);
typedef struct llama_k3_model_params {
    llama_k3_progress_callback progress;  // may be NULL
    void * progress_user;
    bool copy;  // read the files into memory in huge pages, which is faster to compute with, instead of mapping them
} llama_k3_model_params;

typedef struct llama_k3_model_info {
    const char * architecture;  // "kimi-k3" or "kimi-linear"
    int32_t n_layer, n_vocab, n_ctx_train, n_embd, n_head, n_expert, n_expert_used;
    int32_t bos_id, eos_id, pad_id;  // -1: not in the file
    uint64_t n_params, n_bytes;      // of all tensors
    uint64_t digest;                 // of the metadata and tensor tables of all parts
} llama_k3_model_info;

enum llama_k3_layer_kind { LLAMA_K3_LAYER_KDA = 0, LLAMA_K3_LAYER_MLA = 1 };
// Maps the file (and, for a split model, all its parts: `path` may name any of them), checks every key and every
// tensor's type and dimensions, binds the weights. params may be NULL.
LLAMA_K3_API int llama_k3_model_load(const char * path, const llama_k3_model_params * params, llama_k3_model ** out,
                                     char * err, size_t err_size);
// Drops the caller's reference; contexts hold their own. NULL is allowed.
LLAMA_K3_API void llama_k3_model_free(llama_k3_model * model);
LLAMA_K3_API void llama_k3_model_get_info(const llama_k3_model * model, llama_k3_model_info * out);
LLAMA_K3_API int llama_k3_model_layer_kind(const llama_k3_model * model, int32_t layer);  // -1: no such layer

// Metadata of the file: entries 0 .. n - 1 with `count` elements each (1 for a scalar).
enum llama_k3_meta_type { LLAMA_K3_META_INT, LLAMA_K3_META_FLOAT, LLAMA_K3_META_BOOL, LLAMA_K3_META_STRING };
typedef struct llama_k3_meta {
    const char * key;
    int32_t type;
    bool is_array;
    uint64_t count;
} llama_k3_meta;
typedef struct llama_k3_meta_value {
    int64_t i;
    double f;
    const char * s;
    uint64_t s_size;
} llama_k3_meta_value;
LLAMA_K3_API uint64_t llama_k3_model_meta_count(const llama_k3_model * model);
LLAMA_K3_API int llama_k3_model_meta_at(const llama_k3_model * model, uint64_t index, llama_k3_meta * out);
LLAMA_K3_API int llama_k3_model_meta_value_at(const llama_k3_model * model, uint64_t index, uint64_t element,
                                              llama_k3_meta_value * out);

// ---- context ---------------------------------------------------------------------------------------------
enum llama_k3_cache_type { LLAMA_K3_CACHE_F32, LLAMA_K3_CACHE_F16, LLAMA_K3_CACHE_BF16, LLAMA_K3_CACHE_Q8_0 };

// Called between micro-batches and, in a prefill, at least once a layer; return true to stop (LLAMA_K3_ABORTED).
typedef bool (*llama_k3_abort_callback)(void * user);
// Called after each micro-batch of a decode call with the tokens done and wanted.
typedef void (*llama_k3_decode_callback)(uint64_t n_done, uint64_t n_total, void * user);
typedef struct llama_k3_context_params {
    uint32_t n_ctx;      // tokens a sequence can hold
    uint32_t n_seq_max;  // sequences
    uint32_t n_ubatch;   // tokens computed at once
    uint32_t n_threads;
    int32_t cache_type;             // llama_k3_cache_type of the MLA rows
    uint32_t snapshot_every;        // tokens between the snapshots taken in a prefill; 0: none
    uint64_t snapshot_bytes;        // budget for the snapshots that `truncate` goes back to, all sequences together
    llama_k3_abort_callback abort;  // may be NULL
    void * abort_user;
    llama_k3_decode_callback progress;  // may be NULL
    void * progress_user;
} llama_k3_context_params;
// n_ctx 4096, n_seq_max 1, n_ubatch 512, n_threads 1, BF16, snapshot_every 4096, snapshot_bytes 1 GiB
LLAMA_K3_API void llama_k3_context_default_params(llama_k3_context_params * out);

typedef struct llama_k3_memory {
    uint64_t weights;      // mapped from the file
    uint64_t latent;       // MLA rows, reserved for n_ctx, committed as they are used
    uint64_t latent_used;  // of these, rows of tokens in sequences
    uint64_t state;        // KDA states, fp32, two per sequence: a prefill reads one and writes the other
    uint64_t window;       // short-convolution windows, fp32, two per sequence
    uint64_t compute;      // graph buffer
    uint64_t snapshots;    // bytes of checkpoints
} llama_k3_memory;
// What a context would take, without allocating its caches.
LLAMA_K3_API int llama_k3_context_estimate(llama_k3_model * model, const llama_k3_context_params * params,
                                           llama_k3_memory * out, char * err, size_t err_size);
LLAMA_K3_API int llama_k3_context_new(llama_k3_model * model, const llama_k3_context_params * params,
                                      llama_k3_context ** out, char * err, size_t err_size);
// LLAMA_K3_BUSY while another thread uses the context: nothing is freed then. NULL is allowed.
LLAMA_K3_API int llama_k3_context_free(llama_k3_context * ctx);
LLAMA_K3_API int llama_k3_context_get_memory(llama_k3_context * ctx, llama_k3_memory * out, char * err,
                                             size_t err_size);

typedef struct llama_k3_batch_item {
    int32_t token, seq;
    bool want;
} llama_k3_batch_item;
// Appends tokens to their sequences, in order, in micro-batches of n_ubatch. For each item with `want` one row of
// n_vocab logits is written to `logits` (float [n_want][n_vocab], in item order; n_logits = its size in floats).
// On LLAMA_K3_ABORTED the sequences stand behind the last whole micro-batch; see llama_k3_seq_position. So they do on
// LLAMA_K3_NON_FINITE, but for those with such logits, which are empty; rows that were not computed are nan then.
LLAMA_K3_API int llama_k3_decode(llama_k3_context * ctx, const llama_k3_batch_item * items, size_t n_items,
                                 float * logits, size_t n_logits, char * err, size_t err_size);

typedef struct llama_k3_phase {
    uint64_t tokens, batches, bytes;
    double ms, ms_kda, ms_mla, ms_experts, ms_other;  // the last four: parts of ms; 0 in the diagnostic forms
} llama_k3_phase;
// Micro-batches with one token a sequence count as decode, all others as prefill. `bytes`: weights (of the experts
// those that were chosen), cache rows and states read or written.
typedef struct llama_k3_counters {
    llama_k3_phase prefill, decode;
    uint64_t graphs_built, graphs_reused;
} llama_k3_counters;
LLAMA_K3_API void llama_k3_context_get_counters(const llama_k3_context * ctx, llama_k3_counters * out);
LLAMA_K3_API void llama_k3_context_reset_counters(llama_k3_context * ctx);

// ---- sequences -------------------------------------------------------------------------------------------
LLAMA_K3_API int64_t llama_k3_seq_position(const llama_k3_context * ctx, int32_t seq);  // -1: no such sequence
LLAMA_K3_API int llama_k3_seq_clear(llama_k3_context * ctx, int32_t seq, char * err, size_t err_size);
LLAMA_K3_API int llama_k3_seq_copy(llama_k3_context * ctx, int32_t src, int32_t dst, char * err, size_t err_size);

// MLA rows can be cut anywhere, KDA states cannot: the sequence goes back to `*go_on`, which is `position` (DONE) or the
// newest checkpoint before it (REBUILD: decode the tokens from there on again).
enum llama_k3_truncate_result { LLAMA_K3_TRUNCATE_DONE = 0, LLAMA_K3_TRUNCATE_REBUILD = 1 };
LLAMA_K3_API int llama_k3_seq_truncate(llama_k3_context * ctx, int32_t seq, int64_t position, int32_t * result,
                                       int64_t * go_on, char * err, size_t err_size);

// For measuring: the sequence becomes n random tokens with latents, states and windows of usual size, at once.
LLAMA_K3_API int llama_k3_seq_fill(llama_k3_context * ctx, int32_t seq, int64_t n, uint64_t seed, char * err,
                                   size_t err_size);

// The positions that `truncate` goes back to are checkpoints; copies of a sequence share them (same id, bytes counted
// once). Keeps the present position; lists them in ascending order (up to n; *n_found tells how many there are); drops
// the one at `position` (LLAMA_K3_ARGUMENT: none there).
LLAMA_K3_API int llama_k3_seq_checkpoint(llama_k3_context * ctx, int32_t seq, char * err, size_t err_size);
LLAMA_K3_API int llama_k3_seq_checkpoints(llama_k3_context * ctx, int32_t seq, int64_t * positions, uint64_t * ids,
                                          int64_t n, int64_t * n_found, char * err, size_t err_size);
LLAMA_K3_API int llama_k3_seq_drop_checkpoint(llama_k3_context * ctx, int32_t seq, int64_t position, char * err,
                                              size_t err_size);

// A whole, independent copy of a sequence (tokens, MLA rows, KDA states, windows) that can be restored into any
// sequence of any context of the same model and cache type. Checkpoints at `checkpoints_from` and behind come along;
// -1: none do, and the present position is kept as one. `restore` keeps it in any case.
LLAMA_K3_API int llama_k3_seq_snapshot(llama_k3_context * ctx, int32_t seq, int64_t checkpoints_from,
                                       llama_k3_snapshot ** out, char * err, size_t err_size);
LLAMA_K3_API int llama_k3_seq_restore(llama_k3_context * ctx, int32_t seq, const llama_k3_snapshot * snapshot,
                                      char * err, size_t err_size);
LLAMA_K3_API void llama_k3_snapshot_free(llama_k3_snapshot * snapshot);
LLAMA_K3_API int64_t llama_k3_snapshot_position(const llama_k3_snapshot * snapshot);  // -1: no snapshot's bytes
LLAMA_K3_API uint64_t llama_k3_snapshot_size(const llama_k3_snapshot * snapshot);     // bytes
// The bytes themselves, and a snapshot of `size` bytes that the caller fills: `restore` checks them whole.
LLAMA_K3_API uint8_t * llama_k3_snapshot_data(llama_k3_snapshot * snapshot);
LLAMA_K3_API int llama_k3_snapshot_new(uint64_t size, llama_k3_snapshot ** out, char * err, size_t err_size);

// The same as a file, all checkpoints included: written to a temporary name and renamed; checked whole when read.
LLAMA_K3_API int llama_k3_seq_save(llama_k3_context * ctx, int32_t seq, const char * path, char * err, size_t err_size);
LLAMA_K3_API int llama_k3_seq_load(llama_k3_context * ctx, int32_t seq, const char * path, char * err, size_t err_size);
// Copies up to n tokens from `first` on; *n_copied tells how many there were.
LLAMA_K3_API int llama_k3_seq_tokens(llama_k3_context * ctx, int32_t seq, int64_t first, int32_t * out, int64_t n,
                                     int64_t * n_copied, char * err, size_t err_size);

// ---- sampler ---------------------------------------------------------------------------------------------
typedef struct llama_k3_sampler_params {
    float temperature;  // 0: the largest logit, ties to the lower id
    int32_t top_k;      // <= 0: all
    float top_p;        // >= 1: all
    float min_p;        // 0: all; relative to the largest probability
    uint64_t seed;
} llama_k3_sampler_params;
LLAMA_K3_API int llama_k3_sampler_new(const llama_k3_sampler_params * params, llama_k3_sampler ** out, char * err,
                                      size_t err_size);
LLAMA_K3_API void llama_k3_sampler_free(llama_k3_sampler * sampler);
// Filters in the order top-k, top-p, min-p, temperature, then draws. logits: float [n].
LLAMA_K3_API int llama_k3_sampler_sample(llama_k3_sampler * sampler, const float * logits, int32_t n, int32_t * token,
                                         char * err, size_t err_size);

#endif
