// meta.h - typed reads of a file's metadata. ggml's gguf_get_val_* abort on a wrong type, so types are checked here
// first. Integers may have any integer type that holds the value.
#ifndef K3_META_H
#define K3_META_H

#include "error.h"

#include "gguf.h"

// Keeps the first failure: reads after it do nothing, so that a caller asks `status` once at the end.
typedef struct k3_meta_reader {
    const struct gguf_context * gguf;
    const char * prefix;  // before every key that starts with a dot: the architecture
    k3_error e;
    int status;
} k3_meta_reader;

// Index of a key; -1: not there. A key that starts with a dot gets the prefix.
int64_t k3_meta_find(const k3_meta_reader * r, const char * key);

// Required values in [min, max]; the *_or forms leave `fallback` when the key is absent. A float has to be finite.
int64_t k3_meta_int(k3_meta_reader * r, const char * key, int64_t min, int64_t max);
int64_t k3_meta_int_or(k3_meta_reader * r, const char * key, int64_t min, int64_t max, int64_t fallback);
float k3_meta_float(k3_meta_reader * r, const char * key, double min, double max);
float k3_meta_float_or(k3_meta_reader * r, const char * key, double min, double max, float fallback);
bool k3_meta_bool_or(k3_meta_reader * r, const char * key, bool fallback);
const char * k3_meta_string(k3_meta_reader * r, const char * key);  // NULL on failure

// Required arrays; `id` is the key's index, for gguf_get_arr_str or k3_meta_element. Number of elements.
uint64_t k3_meta_int_array(k3_meta_reader * r, const char * key, int64_t * id);
uint64_t k3_meta_string_array(k3_meta_reader * r, const char * key, int64_t * id);

// One element of an array, or the value of a scalar (element 0), whatever its type.
typedef struct k3_meta_number {
    bool is_int;
    int64_t i;  // a u64 above INT64_MAX reads as INT64_MAX
    double f;
} k3_meta_number;
bool k3_meta_is_int(enum gguf_type type);
k3_meta_number k3_meta_element(const struct gguf_context * gguf, int64_t id, uint64_t element);

// "u32", "array of i32".
const char * k3_meta_type_name(const struct gguf_context * gguf, int64_t id, char * buffer, size_t size);

#endif
