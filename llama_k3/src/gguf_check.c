// gguf_check.c - one pass over the header of a GGUF file. Every read goes through `take`, so that a file that ends
// early is noticed in the section where it ends; sizes are computed with overflow checks.
//
// Header: magic, version u32, tensor count u64, key count u64; keys {string, type u32, value}; tensors {string,
// n_dims u32, dims u64[n_dims], type u32, offset u64}; strings are {length u64, bytes}; all little-endian.
#include "gguf_check.h"

#include "hash.h"

#include "ggml.h"
#include "gguf.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Smallest encodings, to hold the counts against the file's size.
enum { MIN_KEY_SIZE = 8 + 1 + 4 + 1, MIN_TENSOR_SIZE = 8 + 1 + 4 + 8 + 4 + 8 };
enum { MAX_KEY_LENGTH = 65535, MAX_STRING_LENGTH = 1 << 30, SHOWN_LENGTH = 80 };
// Keeps the products of dimensions within what ggml computes in 64-bit signed integers.
static const uint64_t max_elements = (uint64_t) 1 << 62;
static const uint64_t max_bytes    = (uint64_t) 1 << 62;

typedef struct text {
    const char * bytes;  // in the file, not 0-terminated
    uint64_t length;
} text;

// Open-addressing hash set of names; at most half full.
typedef struct name_set {
    text * slots;
    uint64_t mask;
} name_set;

typedef struct walk {
    const unsigned char * bytes;
    uint64_t size, position;
    uint64_t alignment;
    const char * name;  // of the file
    char section[128];  // what is being read, for messages
    name_set seen;      // names of the table being read
    k3_error e;
} walk;

static void enter_section(walk * w, const char * section) { snprintf(w->section, sizeof(w->section), "%s", section); }

static void enter_entry(walk * w, const char * what, uint64_t index, uint64_t n) {
    snprintf(w->section, sizeof(w->section), "%s %" PRIu64 " of %" PRIu64, what, index + 1, n);
}

static void enter_named(walk * w, const char * what, text name) {
    int shown = (int) (name.length < SHOWN_LENGTH ? name.length : SHOWN_LENGTH);
    snprintf(w->section, sizeof(w->section), "%s %.*s", what, shown, name.bytes);
}

// The next n bytes.
static int take(walk * w, uint64_t n, const unsigned char ** out) {
    uint64_t left = w->size - w->position;
    *out          = w->bytes + w->position;
    if (n > left) {
        return k3_fail(w->e, LLAMA_K3_FILE_TRUNCATED,
                       "%s: %s: found the end of the file at byte %" PRIu64 ", wanted %" PRIu64 " more bytes", w->name,
                       w->section, w->size, n - left);
    }
    w->position += n;
    return LLAMA_K3_OK;
}

static int take_u32(walk * w, uint32_t * out) {
    const unsigned char * at;
    int status = take(w, sizeof(*out), &at);
    if (!status) {
        memcpy(out, at, sizeof(*out));
    }
    return status;
}

static int take_u64(walk * w, uint64_t * out) {
    const unsigned char * at;
    int status = take(w, sizeof(*out), &at);
    if (!status) {
        memcpy(out, at, sizeof(*out));
    }
    return status;
}

// A string without 0 bytes: ggml hands strings out 0-terminated.
static int take_text(walk * w, uint64_t max_length, text * out) {
    uint64_t length;
    int status = take_u64(w, &length);
    if (status) {
        return status;
    }
    if (length > w->size || length > max_length) {
        return k3_fail(w->e, LLAMA_K3_FILE_STRING,
                       "%s: %s: length of a string: found %" PRIu64 ", wanted at most %" PRIu64, w->name, w->section,
                       length, w->size < max_length ? w->size : max_length);
    }
    const unsigned char * at;
    status = take(w, length, &at);
    if (status) {
        return status;
    }
    if (length > 0 && memchr(at, 0, (size_t) length)) {
        return k3_fail(w->e, LLAMA_K3_FILE_STRING, "%s: %s: found a string with a 0 byte, wanted text", w->name,
                       w->section);
    }
    *out = (text) {(const char *) at, length};
    return LLAMA_K3_OK;
}

static int take_name(walk * w, uint64_t max_length, text * out) {
    int status = take_text(w, max_length, out);
    if (!status && out->length == 0) {
        return k3_fail(w->e, LLAMA_K3_FILE_STRING, "%s: %s: found an empty name, wanted 1 to %" PRIu64 " bytes",
                       w->name, w->section, max_length);
    }
    return status;
}

static bool name_set_init(name_set * set, uint64_t n) {
    uint64_t n_slots = 16;
    while (n_slots < 2 * n) {
        n_slots *= 2;
    }
    set->mask  = n_slots - 1;
    set->slots = calloc((size_t) n_slots, sizeof(*set->slots));
    return set->slots != NULL;
}

// False when the name is in the set already.
static bool name_set_add(name_set * set, text name) {
    uint64_t slot = k3_hash64(0, name.bytes, (size_t) name.length) & set->mask;
    for (; set->slots[slot].bytes; slot = (slot + 1) & set->mask) {
        const text * other = &set->slots[slot];
        if (other->length == name.length && memcmp(other->bytes, name.bytes, (size_t) name.length) == 0) {
            return false;
        }
    }
    set->slots[slot] = name;
    return true;
}

// Bytes of one value; 0 for strings, arrays and unknown types.
static uint64_t value_size(uint32_t type) {
    switch (type) {
        case GGUF_TYPE_UINT8:
        case GGUF_TYPE_INT8:
        case GGUF_TYPE_BOOL: return 1;
        case GGUF_TYPE_UINT16:
        case GGUF_TYPE_INT16: return 2;
        case GGUF_TYPE_UINT32:
        case GGUF_TYPE_INT32:
        case GGUF_TYPE_FLOAT32: return 4;
        case GGUF_TYPE_UINT64:
        case GGUF_TYPE_INT64:
        case GGUF_TYPE_FLOAT64: return 8;
        default: return 0;
    }
}

static int check_magic(walk * w) {
    enter_section(w, "magic");
    const unsigned char * magic;
    int status = take(w, 4, &magic);
    if (!status && memcmp(magic, GGUF_MAGIC, 4) != 0) {
        return k3_fail(w->e, LLAMA_K3_FILE_MAGIC, "%s: magic: found bytes %02x %02x %02x %02x, wanted \"%s\"", w->name,
                       magic[0], magic[1], magic[2], magic[3], GGUF_MAGIC);
    }
    return status;
}

static int check_version(walk * w) {
    enter_section(w, "version");
    uint32_t version;
    int status = take_u32(w, &version);
    if (!status && version != 2 && version != 3) {
        return k3_fail(w->e, LLAMA_K3_FILE_VERSION, "%s: version: found %" PRIu32 "%s, wanted 2 or 3", w->name, version,
                       (version & 0xFFFF) == 0 && version ? " (the other byte order)" : "");
    }
    return status;
}

static int check_count(walk * w, const char * what, uint64_t n, uint64_t limit, uint64_t min_size) {
    uint64_t holds = w->size / min_size;
    uint64_t most  = holds < limit ? holds : limit;
    if (n > most) {
        return k3_fail(w->e, LLAMA_K3_FILE_COUNT, "%s: %s: found %" PRIu64 ", wanted at most %" PRIu64 "%s", w->name,
                       what, n, most, holds < limit ? " in a file of this size" : "");
    }
    return LLAMA_K3_OK;
}

static int check_counts(walk * w, k3_gguf_layout * out) {
    static const char tensors[] = "number of tensors", keys[] = "number of keys";
    enter_section(w, tensors);
    int status = take_u64(w, &out->n_tensors);
    if (!status) {
        enter_section(w, keys);
        status = take_u64(w, &out->n_keys);
    }
    if (!status) {
        status = check_count(w, tensors, out->n_tensors, K3_MAX_TENSORS, MIN_TENSOR_SIZE);
    }
    return status ? status : check_count(w, keys, out->n_keys, K3_MAX_KEYS, MIN_KEY_SIZE);
}

static int check_array(walk * w) {
    uint32_t type;
    int status = take_u32(w, &type);
    if (status) {
        return status;
    }
    uint64_t size = value_size(type);
    if (size == 0 && type != GGUF_TYPE_STRING) {
        return k3_fail(w->e, LLAMA_K3_FILE_VALUE_TYPE,
                       "%s: %s: type of the array's elements: found %" PRIu32 "%s, wanted a scalar or string", w->name,
                       w->section, type, type == GGUF_TYPE_ARRAY ? " (array)" : "");
    }
    uint64_t n;
    status = take_u64(w, &n);
    if (status) {
        return status;
    }
    char what[sizeof(w->section) + 16];
    snprintf(what, sizeof(what), "%s: elements", w->section);
    status = check_count(w, what, n, K3_MAX_ARRAY, size ? size : sizeof(uint64_t));
    if (status) {
        return status;
    }
    if (size) {
        const unsigned char * at;
        return take(w, n * size, &at);
    }
    for (uint64_t i = 0; i < n && !status; i++) {
        text element;
        status = take_text(w, MAX_STRING_LENGTH, &element);
    }
    return status;
}

static bool text_equals(text t, const char * literal) {
    return t.length == strlen(literal) && memcmp(t.bytes, literal, (size_t) t.length) == 0;
}

static int check_alignment(walk * w, uint32_t type) {
    if (type != GGUF_TYPE_UINT32) {
        return k3_fail(w->e, LLAMA_K3_FILE_ALIGNMENT, "%s: %s: type: found %s, wanted u32", w->name, w->section,
                       gguf_type_name((enum gguf_type) type));
    }
    uint32_t value;
    int status = take_u32(w, &value);
    if (!status && (value < K3_MIN_ALIGNMENT || (value & (value - 1)) != 0)) {
        return k3_fail(w->e, LLAMA_K3_FILE_ALIGNMENT, "%s: %s: found %" PRIu32 ", wanted a power of two from %d on",
                       w->name, w->section, value, K3_MIN_ALIGNMENT);
    }
    w->alignment = value;
    return status;
}

static int check_value(walk * w, text key) {
    uint32_t type;
    int status = take_u32(w, &type);
    if (status) {
        return status;
    }
    if (type >= GGUF_TYPE_COUNT) {
        return k3_fail(w->e, LLAMA_K3_FILE_VALUE_TYPE, "%s: %s: type: found %" PRIu32 ", wanted 0 to %d", w->name,
                       w->section, type, GGUF_TYPE_COUNT - 1);
    }
    if (text_equals(key, GGUF_KEY_GENERAL_ALIGNMENT)) {
        return check_alignment(w, type);
    }
    if (type == GGUF_TYPE_ARRAY) {
        return check_array(w);
    }
    if (type == GGUF_TYPE_STRING) {
        text value;
        return take_text(w, MAX_STRING_LENGTH, &value);
    }
    const unsigned char * at;
    return take(w, value_size(type), &at);
}

static int check_keys(walk * w, uint64_t n) {
    for (uint64_t i = 0; i < n; i++) {
        enter_entry(w, "key", i, n);
        text key;
        int status = take_name(w, MAX_KEY_LENGTH, &key);
        if (status) {
            return status;
        }
        enter_named(w, "key", key);
        if (!name_set_add(&w->seen, key)) {
            return k3_fail(w->e, LLAMA_K3_FILE_DUPLICATE, "%s: %s: found twice, wanted once", w->name, w->section);
        }
        status = check_value(w, key);
        if (status) {
            return status;
        }
    }
    return LLAMA_K3_OK;
}

static int take_dims(walk * w, uint64_t ne[GGML_MAX_DIMS], uint64_t * n_elements) {
    uint32_t n_dims;
    int status = take_u32(w, &n_dims);
    if (status) {
        return status;
    }
    if (n_dims < 1 || n_dims > GGML_MAX_DIMS) {
        return k3_fail(w->e, LLAMA_K3_FILE_TENSOR_DIMS,
                       "%s: %s: number of dimensions: found %" PRIu32 ", wanted 1 to %d", w->name, w->section, n_dims,
                       GGML_MAX_DIMS);
    }
    *n_elements = 1;
    for (uint32_t i = 0; i < n_dims; i++) {
        status = take_u64(w, &ne[i]);
        if (status) {
            return status;
        }
        if (ne[i] == 0 || ne[i] > INT64_MAX) {
            return k3_fail(w->e, LLAMA_K3_FILE_TENSOR_DIMS,
                           "%s: %s: dimension %" PRIu32 ": found %" PRId64 ", wanted 1 or more", w->name, w->section, i,
                           (int64_t) ne[i]);
        }
        if (!k3_mul_u64(*n_elements, ne[i], n_elements) || *n_elements >= max_elements) {
            return k3_fail(w->e, LLAMA_K3_FILE_SIZE,
                           "%s: %s: dimension %" PRIu32 ": found %" PRIu64 ", wanted fewer than 2^62 elements", w->name,
                           w->section, i, ne[i]);
        }
    }
    return LLAMA_K3_OK;
}

// Type and size in bytes.
static int take_type(walk * w, uint64_t ne0, uint64_t n_elements, uint64_t * n_bytes) {
    uint32_t type;
    int status = take_u32(w, &type);
    if (status) {
        return status;
    }
    uint64_t block = type < GGML_TYPE_COUNT ? (uint64_t) ggml_blck_size((enum ggml_type) type) : 0;
    if (block == 0) {  // also the types that ggml has dropped
        return k3_fail(w->e, LLAMA_K3_FILE_TENSOR_TYPE, "%s: %s: type: found %" PRIu32 ", wanted one that ggml knows",
                       w->name, w->section, type);
    }
    if (ne0 % block != 0) {
        return k3_fail(w->e, LLAMA_K3_FILE_TENSOR_DIMS,
                       "%s: %s: dimension 0: found %" PRIu64 ", wanted a multiple of %" PRIu64 " for type %s", w->name,
                       w->section, ne0, block, ggml_type_name((enum ggml_type) type));
    }
    uint64_t block_bytes = ggml_type_size((enum ggml_type) type);
    if (!k3_mul_u64(n_elements / block, block_bytes, n_bytes) || *n_bytes >= max_bytes) {
        return k3_fail(w->e, LLAMA_K3_FILE_SIZE,
                       "%s: %s: found %" PRIu64 " blocks of %" PRIu64 " bytes, wanted less than 2^62 bytes", w->name,
                       w->section, n_elements / block, block_bytes);
    }
    return LLAMA_K3_OK;
}

static uint64_t padded(uint64_t n, uint64_t alignment) { return (n + alignment - 1) & ~(alignment - 1); }

// One entry of the tensor table. `end`: of the data so far, relative to the data section; `last`: the same without
// the padding behind the last tensor, which a file may lack.
static int check_tensor(walk * w, uint64_t * end, uint64_t * last) {
    text name;
    uint64_t ne[GGML_MAX_DIMS], n_elements, n_bytes, offset;
    int status = take_name(w, GGML_MAX_NAME - 1, &name);
    if (status) {
        return status;
    }
    enter_named(w, "tensor", name);
    if (!name_set_add(&w->seen, name)) {
        return k3_fail(w->e, LLAMA_K3_FILE_DUPLICATE, "%s: %s: found twice, wanted once", w->name, w->section);
    }
    if ((status = take_dims(w, ne, &n_elements)) || (status = take_type(w, ne[0], n_elements, &n_bytes)) ||
        (status = take_u64(w, &offset))) {
        return status;
    }
    if (offset != *end) {
        return k3_fail(w->e, LLAMA_K3_FILE_OFFSET, "%s: %s: offset: found %" PRIu64 ", wanted %" PRIu64, w->name,
                       w->section, offset, *end);
    }
    // Both below 2^62, and the padding below 2^32.
    *last = *end + n_bytes;
    *end  = padded(*last, w->alignment);
    if (*end >= max_bytes) {
        return k3_fail(w->e, LLAMA_K3_FILE_SIZE, "%s: %s: end of its data: found %" PRIu64 ", wanted less than 2^62",
                       w->name, w->section, *end);
    }
    return LLAMA_K3_OK;
}

static int check_tensors(walk * w, uint64_t n, k3_gguf_layout * out) {
    uint64_t end = 0, last = 0;
    for (uint64_t i = 0; i < n; i++) {
        enter_entry(w, "tensor", i, n);
        int status = check_tensor(w, &end, &last);
        if (status) {
            return status;
        }
    }
    out->header_size = w->position;
    out->data_offset = n > 0 ? padded(w->position, w->alignment) : w->position;
    uint64_t wanted  = out->data_offset + last;
    if (wanted > w->size) {
        return k3_fail(w->e, LLAMA_K3_FILE_TRUNCATED,
                       "%s: tensor data: found the end of the file at byte %" PRIu64 ", wanted %" PRIu64 " bytes",
                       w->name, w->size, wanted);
    }
    return LLAMA_K3_OK;
}

static int check_tables(walk * w, k3_gguf_layout * out) {
    if (!name_set_init(&w->seen, out->n_keys)) {
        return k3_fail(w->e, LLAMA_K3_MEMORY, "%s: no memory for %" PRIu64 " keys", w->name, out->n_keys);
    }
    int status = check_keys(w, out->n_keys);
    free(w->seen.slots);
    if (status) {
        return status;
    }
    if (!name_set_init(&w->seen, out->n_tensors)) {
        return k3_fail(w->e, LLAMA_K3_MEMORY, "%s: no memory for %" PRIu64 " names", w->name, out->n_tensors);
    }
    status = check_tensors(w, out->n_tensors, out);
    free(w->seen.slots);
    return status;
}

int k3_gguf_check(const void * bytes, uint64_t size, const char * name, k3_gguf_layout * out, k3_error e) {
    walk w = {.bytes = bytes, .size = size, .name = name, .alignment = GGUF_DEFAULT_ALIGNMENT, .e = e};
    int status;
    if ((status = check_magic(&w)) || (status = check_version(&w)) || (status = check_counts(&w, out))) {
        return status;
    }
    return check_tables(&w, out);
}
