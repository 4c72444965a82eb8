// cache.c - memory of the hybrid cache, copies and checkpoints of sequences.
#include "cache.h"

#include "ggml-backend.h"
#include "ggml_k3_mutant.h"
#include "log.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { ROWS = 0, RECURRENT = 1, ALIGNMENT = 64, MIN_TOKENS = 256 };

static uint64_t padded(uint64_t size) { return (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT; }

static void create_tensors(k3_cache * c) {
    const k3_hparams * hp = c->hp;
    for (int32_t i = 0; i < hp->n_layer; i++) {
        if (hp->layer_kind[i] == LLAMA_K3_LAYER_MLA) {
            c->latent[i] = ggml_new_tensor_3d(c->tensors, c->row_type, k3_row_width(hp), c->n_ctx, c->n_seq);
        } else {
            c->state[i]  = ggml_new_tensor_4d(c->tensors, GGML_TYPE_F32, hp->kda_dim, hp->kda_dim, hp->n_head,
                                              2 * (int64_t) c->n_seq);
            c->window[i] = ggml_new_tensor_3d(c->tensors, GGML_TYPE_F32, hp->conv_width - 1, k3_kda_channels(hp),
                                              3 * 2 * (int64_t) c->n_seq);
        }
    }
}

// Sizes of both mappings, checked.
static bool sizes(k3_cache * c) {
    const uint64_t n_seq = c->n_seq;
    uint64_t rows, layer, recurrent;
    bool ok = k3_mul_u64(c->row_bytes, c->n_ctx, &rows) && k3_mul_u64(rows, n_seq, &rows) && rows < UINT64_MAX / 2 &&
              k3_mul_u64(padded(rows), (uint64_t) c->n_mla, &c->memory_size[ROWS]) &&
              k3_mul_u64(padded(c->state_bytes), 2 * n_seq, &recurrent) &&
              k3_mul_u64(padded(c->window_bytes), 2 * n_seq, &layer) && k3_add_u64(recurrent, layer, &layer) &&
              k3_mul_u64(layer, (uint64_t) c->n_kda, &c->memory_size[RECURRENT]);
    return ok && c->memory_size[ROWS] < SIZE_MAX / 2 && c->memory_size[RECURRENT] < SIZE_MAX / 2;
}

static int map_memory(k3_cache * c, int which, const char * what, k3_error e) {
    if (c->memory_size[which] == 0) {
        return LLAMA_K3_OK;
    }
    int flags = MAP_PRIVATE | MAP_ANONYMOUS;
#ifdef MAP_NORESERVE
    flags |= MAP_NORESERVE;
#endif
    void * p = mmap(NULL, c->memory_size[which], PROT_READ | PROT_WRITE, flags, -1, 0);
    if (p == MAP_FAILED) {
        return k3_fail(e, LLAMA_K3_MEMORY, "%s: %llu bytes could not be reserved", what,
                       (unsigned long long) c->memory_size[which]);
    }
#ifdef MADV_HUGEPAGE
    if (which == RECURRENT) {  // is read and written whole with every token; rows would be committed far ahead
        madvise(p, c->memory_size[which], MADV_HUGEPAGE);
    }
#endif
    c->memory[which] = p;
    c->buffer[which] = ggml_backend_cpu_buffer_from_ptr(p, c->memory_size[which]);
    if (!c->buffer[which]) {
        return k3_fail(e, LLAMA_K3_MEMORY, "%s: no buffer", what);
    }
    return LLAMA_K3_OK;
}

static void place(k3_cache * c, struct ggml_tensor * t, int which, uint64_t * offset) {
    ggml_backend_tensor_alloc(c->buffer[which], t, (char *) c->memory[which] + *offset);
    *offset += padded(ggml_nbytes(t));
}

static int place_tensors(k3_cache * c, k3_error e) {
    int status = map_memory(c, ROWS, "latent cache", e);
    status     = status ? status : map_memory(c, RECURRENT, "recurrent state", e);
    if (status) {
        return status;
    }
    uint64_t rows = 0, recurrent = 0;
    for (int32_t i = 0; i < c->hp->n_layer; i++) {
        if (c->latent[i]) {
            place(c, c->latent[i], ROWS, &rows);
        } else {
            place(c, c->state[i], RECURRENT, &recurrent);
            place(c, c->window[i], RECURRENT, &recurrent);
        }
    }
    return LLAMA_K3_OK;
}

int k3_cache_init(k3_cache * c, const k3_hparams * hp, uint32_t n_ctx, uint32_t n_seq, enum ggml_type row_type,
                  uint64_t checkpoint_budget, k3_error e) {
    *c = (k3_cache) {
        .hp = hp, .n_ctx = n_ctx, .n_seq = n_seq, .row_type = row_type, .checkpoint_budget = checkpoint_budget};
    const int64_t block = ggml_blck_size(row_type);
    if (k3_row_width(hp) % block != 0 || hp->kv_lora % block != 0) {
        return k3_fail(e, LLAMA_K3_ARGUMENT, "cache type %s: row of %lld + %d values found, multiples of %lld wanted",
                       ggml_type_name(row_type), (long long) hp->kv_lora, hp->rope_dim, (long long) block);
    }
    for (int32_t i = 0; i < hp->n_layer; i++) {
        *(hp->layer_kind[i] == LLAMA_K3_LAYER_MLA ? &c->n_mla : &c->n_kda) += 1;
    }
    const uint64_t dim = (uint64_t) hp->kda_dim, channels = (uint64_t) k3_kda_channels(hp);
    c->row_bytes    = ggml_row_size(row_type, k3_row_width(hp));
    c->state_bytes  = dim * channels * sizeof(float);
    c->window_bytes = (uint64_t) (hp->conv_width - 1) * channels * 3 * sizeof(float);
    if (!sizes(c)) {
        return k3_fail(e, LLAMA_K3_ARGUMENT, "cache: n_ctx %u times n_seq_max %u does not fit an address space", n_ctx,
                       n_seq);
    }
    const struct ggml_init_params params = {.mem_size = ggml_tensor_overhead() * (size_t) (2 * hp->n_layer + 1),
                                            .no_alloc = true};
    c->tensors                           = ggml_init(params);
    c->seq                               = calloc(n_seq, sizeof(*c->seq));
    if (!c->tensors || !c->seq) {
        return k3_fail(e, LLAMA_K3_MEMORY, "cache: no memory for %u sequences", n_seq);
    }
    create_tensors(c);
    return place_tensors(c, e);
}

static void checkpoint_release(k3_cache * c, k3_checkpoint * p) {
    if (--p->references == 0) {
        c->checkpoint_bytes -= p->size;
        free(p);
    }
}

// Drops checkpoints [first, n) of a sequence.
static void checkpoints_drop(k3_cache * c, k3_sequence * s, uint32_t first) {
    while (s->n_checkpoints > first) {
        checkpoint_release(c, s->checkpoints[--s->n_checkpoints]);
    }
}

void k3_cache_free(k3_cache * c) {
    for (uint32_t i = 0; c->seq && i < c->n_seq; i++) {
        checkpoints_drop(c, &c->seq[i], 0);
        free(c->seq[i].checkpoints);
        free(c->seq[i].tokens);
    }
    free(c->seq);
    for (int i = 0; i < 2; i++) {
        ggml_backend_buffer_free(c->buffer[i]);
        if (c->memory[i]) {
            munmap(c->memory[i], c->memory_size[i]);
        }
    }
    ggml_free(c->tensors);
    *c = (k3_cache) {0};
}

uint64_t k3_cache_recurrent_bytes(const k3_cache * c) {
    return (uint64_t) c->n_kda * (c->state_bytes + c->window_bytes);
}

uint8_t * k3_cache_half(const k3_cache * c, const struct ggml_tensor * t, int32_t seq, uint64_t bytes) {
    return (uint8_t *) t->data + (2 * (uint64_t) seq + (uint64_t) c->seq[seq].active) * bytes;
}

void k3_cache_recurrent_read(const k3_cache * c, int32_t seq, uint8_t * out) {
    for (int32_t i = 0; i < c->hp->n_layer; i++) {
        if (c->state[i]) {
            memcpy(out, k3_cache_half(c, c->state[i], seq, c->state_bytes), c->state_bytes);
            memcpy(out + c->state_bytes, k3_cache_half(c, c->window[i], seq, c->window_bytes), c->window_bytes);
            out += c->state_bytes + c->window_bytes;
        }
    }
}

void k3_cache_recurrent_write(k3_cache * c, int32_t seq, const uint8_t * in) {
    for (int32_t i = 0; i < c->hp->n_layer; i++) {
        if (c->state[i]) {
            memcpy(k3_cache_half(c, c->state[i], seq, c->state_bytes), in, c->state_bytes);
            memcpy(k3_cache_half(c, c->window[i], seq, c->window_bytes), in + c->state_bytes, c->window_bytes);
            in += c->state_bytes + c->window_bytes;
        }
    }
}

uint8_t * k3_cache_rows(const k3_cache * c, int32_t layer, int32_t seq) {
    return (uint8_t *) c->latent[layer]->data + (uint64_t) seq * c->latent[layer]->nb[2];
}

int k3_cache_reserve_tokens(k3_cache * c, int32_t seq, int64_t n, k3_error e) {
    k3_sequence * s = &c->seq[seq];
    if (n <= s->capacity) {
        return LLAMA_K3_OK;
    }
    int64_t capacity = s->capacity ? s->capacity : MIN_TOKENS;
    while (capacity < n) {
        capacity *= 2;
    }
    int32_t * tokens = realloc(s->tokens, (size_t) capacity * sizeof(*tokens));
    if (!tokens) {
        return k3_fail(e, LLAMA_K3_MEMORY, "sequence %d: no memory for %lld tokens", seq, (long long) capacity);
    }
    s->tokens   = tokens;
    s->capacity = capacity;
    return LLAMA_K3_OK;
}

// Gives the whole pages of the sequence's rows from position `keep` on back to the system.
static void release_rows(k3_cache * c, int32_t seq, int64_t keep) {
    const uintptr_t page = (uintptr_t) sysconf(_SC_PAGESIZE);
    for (int32_t i = 0; i < c->hp->n_layer; i++) {
        if (c->latent[i]) {
            const uintptr_t start = (uintptr_t) k3_cache_rows(c, i, seq);
            const uintptr_t first = (start + (uintptr_t) keep * c->row_bytes + page - 1) / page * page;
            const uintptr_t end   = (start + (uintptr_t) c->seq[seq].position * c->row_bytes) / page * page;
            if (end > first) {
                madvise((void *) first, end - first, MADV_DONTNEED);
            }
        }
    }
}

void k3_cache_clear(k3_cache * c, int32_t seq) {
    k3_sequence * s = &c->seq[seq];
    checkpoints_drop(c, s, 0);
    release_rows(c, seq, 0);
    s->position = 0;
    for (int32_t i = 0; i < c->hp->n_layer; i++) {
        if (c->state[i]) {
            memset(k3_cache_half(c, c->state[i], seq, c->state_bytes), 0, c->state_bytes);
            memset(k3_cache_half(c, c->window[i], seq, c->window_bytes), 0, c->window_bytes);
        }
    }
}

int k3_cache_copy(k3_cache * c, int32_t src, int32_t dst, k3_error e) {
    k3_sequence *from = &c->seq[src], *to = &c->seq[dst];
    int status = k3_cache_reserve_tokens(c, dst, from->position, e);
    if (status) {
        return status;
    }
    const uint32_t n        = from->n_checkpoints > to->n_checkpoints ? from->n_checkpoints : to->n_checkpoints;
    k3_checkpoint ** shared = realloc(to->checkpoints, (n + 1) * sizeof(*shared));  // those of dst are still in it
    if (!shared) {
        return k3_fail(e, LLAMA_K3_MEMORY, "sequence %d: no memory for %u snapshots", dst, from->n_checkpoints);
    }
    to->checkpoints = shared;
    k3_cache_clear(c, dst);
    for (uint32_t i = 0; i < from->n_checkpoints; i++) {
        from->checkpoints[i]->references++;
        to->checkpoints[to->n_checkpoints++] = from->checkpoints[i];
    }
    if (from->position > 0) {
        memcpy(to->tokens, from->tokens, (size_t) from->position * sizeof(*to->tokens));
    }
    to->position = from->position;
    for (int32_t i = 0; i < c->hp->n_layer; i++) {
        if (c->latent[i]) {
            memcpy(k3_cache_rows(c, i, dst), k3_cache_rows(c, i, src), (size_t) from->position * c->row_bytes);
        } else {
            memcpy(k3_cache_half(c, c->state[i], dst, c->state_bytes),
                   k3_cache_half(c, c->state[i], src, c->state_bytes), c->state_bytes);
            memcpy(k3_cache_half(c, c->window[i], dst, c->window_bytes),
                   k3_cache_half(c, c->window[i], src, c->window_bytes), c->window_bytes);
        }
    }
    return LLAMA_K3_OK;
}

// Drops checkpoint `index` of a sequence.
static void checkpoint_remove(k3_cache * c, k3_sequence * s, uint32_t index) {
    checkpoint_release(c, s->checkpoints[index]);
    s->n_checkpoints--;
    memmove(s->checkpoints + index, s->checkpoints + index + 1, (s->n_checkpoints - index) * sizeof(*s->checkpoints));
}

bool k3_cache_checkpoint_drop(k3_cache * c, int32_t seq, int64_t position) {
    k3_sequence * s = &c->seq[seq];
    for (uint32_t i = 0; i < s->n_checkpoints; i++) {
        if (s->checkpoints[i]->position == position) {
            checkpoint_remove(c, s, i);
            return true;
        }
    }
    return false;
}

// Drops the context's oldest checkpoint; false when there is none.
static bool drop_oldest(k3_cache * c) {
    k3_sequence * owner = NULL;
    uint32_t index      = 0;
    for (uint32_t i = 0; i < c->n_seq; i++) {
        for (uint32_t j = 0; j < c->seq[i].n_checkpoints; j++) {
            if (!owner || c->seq[i].checkpoints[j]->serial < owner->checkpoints[index]->serial) {
                owner = &c->seq[i];
                index = j;
            }
        }
    }
    if (!owner) {
        return false;
    }
    checkpoint_remove(c, owner, index);
    return true;
}

// An empty checkpoint behind those of the sequence; *out is NULL when the budget is too small for it.
static int checkpoint_new(k3_cache * c, int32_t seq, int64_t position, k3_checkpoint ** out, k3_error e) {
    const uint64_t size = k3_cache_recurrent_bytes(c);
    k3_sequence * s     = &c->seq[seq];
    *out                = NULL;
    if (size > c->checkpoint_budget) {
        k3_log(LLAMA_K3_LOG_DEBUG, "no snapshot: %llu bytes wanted, budget %llu", (unsigned long long) size,
               (unsigned long long) c->checkpoint_budget);
        return LLAMA_K3_OK;
    }
    while (c->checkpoint_bytes + size > c->checkpoint_budget && drop_oldest(c)) {
    }
    k3_checkpoint ** list = realloc(s->checkpoints, (s->n_checkpoints + 1) * sizeof(*list));
    if (list) {
        s->checkpoints = list;
    }
    k3_checkpoint * p = list ? malloc(sizeof(*p) + size) : NULL;
    if (!p) {
        return k3_fail(e, LLAMA_K3_MEMORY, "sequence %d: no memory for a snapshot of %llu bytes", seq,
                       (unsigned long long) size);
    }
    p->references = 1;
    p->position   = position;
    p->serial     = c->checkpoint_serial++;
    p->size       = size;
    c->checkpoint_bytes += size;
    s->checkpoints[s->n_checkpoints++] = p;
    *out                               = p;
    return LLAMA_K3_OK;
}

int k3_cache_checkpoint(k3_cache * c, int32_t seq, k3_error e) {
    const k3_sequence * s = &c->seq[seq];
    if (s->position == 0 || (s->n_checkpoints && s->checkpoints[s->n_checkpoints - 1]->position == s->position)) {
        return LLAMA_K3_OK;
    }
    k3_checkpoint * p;
    int status = checkpoint_new(c, seq, s->position, &p, e);
    if (p) {
        k3_cache_recurrent_read(c, seq, p->data);
    }
    return status;
}

int k3_cache_checkpoint_add(k3_cache * c, int32_t seq, int64_t position, const uint8_t * data, k3_error e) {
    k3_checkpoint * p;
    int status = checkpoint_new(c, seq, position, &p, e);
    if (p) {
        memcpy(p->data, data, p->size);
    }
    return status;
}

int64_t k3_cache_rewind(k3_cache * c, int32_t seq, int64_t position) {
    k3_sequence * s = &c->seq[seq];
    uint32_t keep   = s->n_checkpoints;
    while (keep > 0 && s->checkpoints[keep - 1]->position > position) {
        keep--;
    }
    if (keep == 0) {
        k3_cache_clear(c, seq);
        return 0;
    }
    checkpoints_drop(c, s, keep);
    const k3_checkpoint * p = s->checkpoints[keep - 1];
    const bool wrong        = GGML_K3_MUTANT("restore-wrong-position") && keep > 1;
    k3_cache_recurrent_write(c, seq, wrong ? s->checkpoints[keep - 2]->data : p->data);
    release_rows(c, seq, p->position);
    s->position = p->position;
    return s->position;
}
