// model.c - loads a model: files, hyper-parameters, weights; answers questions about it.
#include "model.h"

#include "hash.h"
#include "log.h"
#include "meta.h"
#include "split.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static int compare_names(const void * a, const void * b) {
    const k3_tensor_entry * left  = a;
    const k3_tensor_entry * right = b;
    return strcmp(left->tensor->name, right->tensor->name);
}

static int check_unique(const llama_k3_model * model, const k3_tensor_index * index, k3_error e) {
    for (uint64_t i = 1; i < index->n; i++) {
        const k3_tensor_entry * one   = &index->entries[i - 1];
        const k3_tensor_entry * other = &index->entries[i];
        if (strcmp(one->tensor->name, other->tensor->name) == 0) {
            return k3_fail(e, LLAMA_K3_SPLIT_PART, "tensor %s: found in %s and in %s, wanted in one part",
                           one->tensor->name, model->parts[one->part].name, model->parts[other->part].name);
        }
    }
    return LLAMA_K3_OK;
}

// The tensors of all parts by name, and their sums. The caller frees index->entries, also on failure.
static int index_tensors(llama_k3_model * model, k3_tensor_index * index, k3_error e) {
    for (uint32_t i = 0; i < model->n_parts; i++) {
        model->n_tensors += model->parts[i].layout.n_tensors;
    }
    index->entries = calloc(model->n_tensors ? (size_t) model->n_tensors : 1, sizeof(*index->entries));
    if (!index->entries) {
        return k3_fail(e, LLAMA_K3_MEMORY, "no memory for an index of %" PRIu64 " tensors", model->n_tensors);
    }
    for (uint32_t i = 0; i < model->n_parts; i++) {
        struct ggml_context * tensors = model->parts[i].tensors;
        for (struct ggml_tensor * t = ggml_get_first_tensor(tensors); t; t = ggml_get_next_tensor(tensors, t)) {
            index->entries[index->n++] = (k3_tensor_entry) {.tensor = t, .part = i};
            model->n_params += (uint64_t) ggml_nelements(t);  // backed by data in the files: no overflow
            model->n_bytes += ggml_nbytes(t);
        }
    }
    qsort(index->entries, (size_t) index->n, sizeof(*index->entries), compare_names);
    return check_unique(model, index, e);
}

// Metadata and tensor tables of all parts.
static uint64_t digest_of(const llama_k3_model * model) {
    uint64_t digest = 0;
    for (uint32_t i = 0; i < model->n_parts; i++) {
        digest = k3_hash64(digest, model->parts[i].bytes, (size_t) model->parts[i].layout.header_size);
    }
    return digest;
}

// Bytes copied of all parts, for the caller's progress callback.
typedef struct copying {
    const llama_k3_model_params * params;
    double done, total;
} copying;

static bool on_copied(size_t n, void * user) {
    copying * c = user;
    c->done += (double) n;
    return !c->params->progress || c->params->progress((float) (c->done / c->total), c->params->progress_user);
}

static int copy_parts(llama_k3_model * model, const llama_k3_model_params * params, k3_error e) {
    copying c = {.params = params};
    for (uint32_t i = 0; i < model->n_parts; i++) {
        c.total += (double) model->parts[i].size;
    }
    int status = LLAMA_K3_OK;
    for (uint32_t i = 0; !status && i < model->n_parts; i++) {
        status = k3_part_copy(&model->parts[i], on_copied, &c, e);
    }
    return status;
}

static int load(llama_k3_model * model, const char * path, const llama_k3_model_params * params, k3_error e) {
    const bool copy = params && params->copy;  // its progress is that of the copying alone
    int status      = k3_split_open(path, copy ? NULL : params, &model->parts, &model->n_parts, e);
    if (status) {
        return status;
    }
    model->digest         = digest_of(model);
    k3_tensor_index index = {0};
    status                = k3_hparams_read(&model->hp, model->parts[0].gguf, e);
    if (!status) {
        status = index_tensors(model, &index, e);
    }
    if (!status) {
        status = k3_weights_bind(&model->weights, &model->hp, &index, e);
    }
    free(index.entries);
    return status || !copy ? status : copy_parts(model, params, e);
}

int llama_k3_model_load(const char * path, const llama_k3_model_params * params, llama_k3_model ** out, char * err,
                        size_t err_size) {
    k3_error e = {err, err_size};
    if (err && err_size > 0) {
        err[0] = '\0';
    }
    if (!path || !out) {
        return k3_fail(e, LLAMA_K3_ARGUMENT, "%s: found NULL, wanted a pointer", path ? "out" : "path");
    }
    *out = NULL;
    k3_log_attach_ggml();
    llama_k3_model * model = calloc(1, sizeof(*model));
    if (!model) {
        return k3_fail(e, LLAMA_K3_MEMORY, "no memory for a model");
    }
    atomic_init(&model->references, 1);
    int status = load(model, path, params, e);
    if (status) {
        llama_k3_model_free(model);
        return status;
    }
    k3_log(LLAMA_K3_LOG_INFO, "%s: %s, %d layers, %" PRIu64 " tensors, %" PRIu64 " bytes, digest %016" PRIx64, path,
           model->hp.architecture, model->hp.n_layer, model->n_tensors, model->n_bytes, model->digest);
    *out = model;
    return LLAMA_K3_OK;
}

void k3_model_retain(llama_k3_model * model) { atomic_fetch_add(&model->references, 1); }

void llama_k3_model_free(llama_k3_model * model) {
    if (model && atomic_fetch_sub(&model->references, 1) == 1) {
        k3_split_close(model->parts, model->n_parts);
        free(model);
    }
}

void llama_k3_model_get_info(const llama_k3_model * model, llama_k3_model_info * out) {
    const k3_hparams * hp = &model->hp;
    *out                  = (llama_k3_model_info) {
                         .architecture  = hp->architecture,
                         .n_layer       = hp->n_layer,
                         .n_vocab       = hp->n_vocab,
                         .n_ctx_train   = hp->n_ctx_train,
                         .n_embd        = hp->n_embd,
                         .n_head        = hp->n_head,
                         .n_expert      = hp->n_expert,
                         .n_expert_used = hp->n_expert_used,
                         .bos_id        = hp->bos_id,
                         .eos_id        = hp->eos_id,
                         .pad_id        = hp->pad_id,
                         .n_params      = model->n_params,
                         .n_bytes       = model->n_bytes,
                         .digest        = model->digest,
    };
}

int llama_k3_model_layer_kind(const llama_k3_model * model, int32_t layer) {
    return layer < 0 || layer >= model->hp.n_layer ? -1 : model->hp.layer_kind[layer];
}

uint64_t llama_k3_model_meta_count(const llama_k3_model * model) {
    return (uint64_t) gguf_get_n_kv(model->parts[0].gguf);
}

static int public_type(enum gguf_type type) {
    switch (type) {
        case GGUF_TYPE_STRING: return LLAMA_K3_META_STRING;
        case GGUF_TYPE_BOOL: return LLAMA_K3_META_BOOL;
        case GGUF_TYPE_FLOAT32:
        case GGUF_TYPE_FLOAT64: return LLAMA_K3_META_FLOAT;
        default: return LLAMA_K3_META_INT;
    }
}

int llama_k3_model_meta_at(const llama_k3_model * model, uint64_t index, llama_k3_meta * out) {
    const struct gguf_context * gguf = model->parts[0].gguf;
    if (index >= llama_k3_model_meta_count(model)) {
        return LLAMA_K3_ARGUMENT;
    }
    int64_t id          = (int64_t) index;
    enum gguf_type type = gguf_get_kv_type(gguf, id);
    bool is_array       = type == GGUF_TYPE_ARRAY;
    *out                = (llama_k3_meta) {
                       .key      = gguf_get_key(gguf, id),
                       .type     = public_type(is_array ? gguf_get_arr_type(gguf, id) : type),
                       .is_array = is_array,
                       .count    = is_array ? gguf_get_arr_n(gguf, id) : 1,
    };
    return LLAMA_K3_OK;
}

int llama_k3_model_meta_value_at(const llama_k3_model * model, uint64_t index, uint64_t element,
                                 llama_k3_meta_value * out) {
    llama_k3_meta meta;
    if (llama_k3_model_meta_at(model, index, &meta) != LLAMA_K3_OK || element >= meta.count) {
        return LLAMA_K3_ARGUMENT;
    }
    const struct gguf_context * gguf = model->parts[0].gguf;
    int64_t id                       = (int64_t) index;
    *out                             = (llama_k3_meta_value) {0};
    if (meta.type == LLAMA_K3_META_STRING) {
        out->s      = meta.is_array ? gguf_get_arr_str(gguf, id, (size_t) element) : gguf_get_val_str(gguf, id);
        out->s_size = strlen(out->s);
        return LLAMA_K3_OK;
    }
    k3_meta_number number = k3_meta_element(gguf, id, element);
    out->i                = number.i;
    out->f                = number.f;
    return LLAMA_K3_OK;
}
