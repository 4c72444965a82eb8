// split.c - finds, opens and cross-checks the parts of a split model.
#include "split.h"

#include "meta.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_PARTS = 4096, REASON_SIZE = 512 };
static const char key_no[] = "split.no", key_count[] = "split.count", key_tensors[] = "split.tensors.count";

typedef struct split_keys {
    uint32_t no;         // from 0 on
    uint32_t count;      // 1: a whole model
    uint64_t n_tensors;  // of all parts
} split_keys;

static int fail_key(k3_error e, const struct k3_part * part, const char * key, const char * found,
                    const char * wanted) {
    return k3_fail(e, LLAMA_K3_SPLIT_KEYS, "%s: key %s: %s, wanted %s", part->name, key, found, wanted);
}

static int read_key(const struct k3_part * part, const char * key, int64_t min, int64_t max, int64_t * out,
                    k3_error e) {
    char found[64], wanted[64];
    snprintf(wanted, sizeof(wanted), "%" PRId64 " to %" PRId64, min, max);
    int64_t id = gguf_find_key(part->gguf, key);
    if (id < 0) {
        return fail_key(e, part, key, "missing", wanted);
    }
    if (!k3_meta_is_int(gguf_get_kv_type(part->gguf, id))) {
        char type[32];
        snprintf(found, sizeof(found), "found %s", k3_meta_type_name(part->gguf, id, type, sizeof(type)));
        return fail_key(e, part, key, found, "an integer");
    }
    *out = k3_meta_element(part->gguf, id, 0).i;
    if (*out < min || *out > max) {
        snprintf(found, sizeof(found), "found %" PRId64, *out);
        return fail_key(e, part, key, found, wanted);
    }
    return LLAMA_K3_OK;
}

// A file without any of the keys is a whole model.
static int read_split_keys(const struct k3_part * part, split_keys * out, k3_error e) {
    *out = (split_keys) {.no = 0, .count = 1, .n_tensors = part->layout.n_tensors};
    if (gguf_find_key(part->gguf, key_no) < 0 && gguf_find_key(part->gguf, key_count) < 0 &&
        gguf_find_key(part->gguf, key_tensors) < 0) {
        return LLAMA_K3_OK;
    }
    int64_t no, count, n_tensors;
    int status;
    if ((status = read_key(part, key_count, 1, MAX_PARTS, &count, e)) ||
        (status = read_key(part, key_no, 0, count - 1, &no, e)) ||
        (status = read_key(part, key_tensors, 1, K3_MAX_TENSORS, &n_tensors, e))) {
        return status;
    }
    *out = (split_keys) {(uint32_t) no, (uint32_t) count, (uint64_t) n_tensors};
    return LLAMA_K3_OK;
}

// "-00002-of-00003.gguf"; the names count from 1.
static void suffix_of(const split_keys * keys, char suffix[32]) {
    snprintf(suffix, 32, "-%05u-of-%05u.gguf", keys->no + 1, keys->count);
}

// Length of `path` without the suffix that its own keys ask for; SIZE_MAX when it ends otherwise.
static size_t prefix_length(const char * path, const split_keys * keys) {
    char suffix[32];
    suffix_of(keys, suffix);
    size_t length = strlen(path), suffix_length = strlen(suffix);
    if (length < suffix_length || strcmp(path + length - suffix_length, suffix) != 0) {
        return SIZE_MAX;
    }
    return length - suffix_length;
}

static int check_other_part(const struct k3_part * part, const split_keys * first, uint32_t no, k3_error e) {
    split_keys keys;
    int status = read_split_keys(part, &keys, e);
    if (status) {
        return status;
    }
    if (keys.count != first->count || keys.no != no) {
        return k3_fail(e, LLAMA_K3_SPLIT_PART, "%s: found part %u of %u, wanted part %u of %u", part->name, keys.no + 1,
                       keys.count, no + 1, first->count);
    }
    if (keys.n_tensors != first->n_tensors) {
        return k3_fail(e, LLAMA_K3_SPLIT_PART,
                       "%s: part of another model: found %" PRIu64 " tensors in all parts, wanted %" PRIu64, part->name,
                       keys.n_tensors, first->n_tensors);
    }
    return LLAMA_K3_OK;
}

// Opens part `no` beside the given one.
static int open_other_part(struct k3_part * part, const struct k3_part * given, size_t prefix, const split_keys * keys,
                           uint32_t no, k3_error e) {
    char suffix[32];
    size_t size = prefix + sizeof(suffix);
    char * path = malloc(size);
    if (!path) {
        return k3_fail(e, LLAMA_K3_MEMORY, "%s: no memory for a path of %zu bytes", given->name, size);
    }
    suffix_of(&(split_keys) {.no = no, .count = keys->count}, suffix);
    snprintf(path, size, "%.*s%s", (int) prefix, given->path, suffix);

    char reason[REASON_SIZE] = "";
    int status               = k3_part_open(part, path, (k3_error) {reason, sizeof(reason)});
    if (status == LLAMA_K3_FILE_OPEN) {
        status = LLAMA_K3_SPLIT_PART;
    }
    if (status) {
        k3_fail(e, status, "part %u of %u: %s", no + 1, keys->count, reason);
    } else {
        status = check_other_part(part, keys, no, e);
    }
    free(path);
    return status;
}

static int check_tensor_count(const struct k3_part * parts, const split_keys * keys, k3_error e) {
    uint64_t n = 0;
    for (uint32_t i = 0; i < keys->count; i++) {
        n += parts[i].layout.n_tensors;
    }
    if (n != keys->n_tensors) {
        return k3_fail(e, LLAMA_K3_SPLIT_KEYS, "%s: key %s: found %" PRIu64 ", wanted %" PRIu64 " as in all parts",
                       parts[0].name, key_tensors, keys->n_tensors, n);
    }
    return LLAMA_K3_OK;
}

static bool report(const llama_k3_model_params * params, float fraction) {
    return !params || !params->progress || params->progress(fraction, params->progress_user);
}

// parts[keys->no] is open; opens all others.
static int open_others(struct k3_part * parts, const split_keys * keys, const llama_k3_model_params * params,
                       k3_error e) {
    const struct k3_part * given = &parts[keys->no];
    if (keys->count == 1) {
        return LLAMA_K3_OK;
    }
    size_t prefix = prefix_length(given->path, keys);
    if (prefix == SIZE_MAX) {
        char suffix[32];
        suffix_of(keys, suffix);
        return k3_fail(e, LLAMA_K3_SPLIT_PART, "%s: holds part %u of %u, wanted a file name that ends with %s",
                       given->name, keys->no + 1, keys->count, suffix);
    }
    for (uint32_t no = 0; no < keys->count; no++) {
        if (!report(params, (float) no / (float) keys->count)) {
            return k3_fail(e, LLAMA_K3_ABORTED, "stopped by the progress callback");
        }
        int status = no == keys->no ? LLAMA_K3_OK : open_other_part(&parts[no], given, prefix, keys, no, e);
        if (status) {
            return status;
        }
    }
    return LLAMA_K3_OK;
}

int k3_split_open(const char * path, const llama_k3_model_params * params, struct k3_part ** out, uint32_t * n_parts,
                  k3_error e) {
    struct k3_part given;
    split_keys keys;
    int status = k3_part_open(&given, path, e);
    if (status) {
        return status;
    }
    status = read_split_keys(&given, &keys, e);
    if (status) {
        k3_part_close(&given);
        return status;
    }
    struct k3_part * parts = calloc(keys.count, sizeof(*parts));
    if (!parts) {
        k3_part_close(&given);
        return k3_fail(e, LLAMA_K3_MEMORY, "%s: no memory for %u parts", path, keys.count);
    }
    parts[keys.no] = given;
    status         = open_others(parts, &keys, params, e);
    if (!status) {
        status = check_tensor_count(parts, &keys, e);
    }
    if (!status && !report(params, 1.0f)) {
        status = k3_fail(e, LLAMA_K3_ABORTED, "stopped by the progress callback");
    }
    if (status) {
        k3_split_close(parts, keys.count);
        return status;
    }
    *out     = parts;
    *n_parts = keys.count;
    return LLAMA_K3_OK;
}

void k3_split_close(struct k3_part * parts, uint32_t n_parts) {
    for (uint32_t i = 0; i < n_parts; i++) {
        k3_part_close(&parts[i]);
    }
    free(parts);
}
