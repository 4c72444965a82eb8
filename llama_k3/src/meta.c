// meta.c - typed reads of metadata with their errors: key, found, wanted.
#include "meta.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { KEY_SIZE = 128, TYPE_NAME_SIZE = 32 };

// `buffer` is used for keys that get the prefix; those are this library's own, short ones.
static const char * full_key(const k3_meta_reader * r, const char * key, char buffer[KEY_SIZE]) {
    if (key[0] != '.') {
        return key;
    }
    snprintf(buffer, KEY_SIZE, "%s%s", r->prefix, key);
    return buffer;
}

int64_t k3_meta_find(const k3_meta_reader * r, const char * key) {
    char buffer[KEY_SIZE];
    return gguf_find_key(r->gguf, full_key(r, key, buffer));
}

bool k3_meta_is_int(enum gguf_type type) {
    switch (type) {
        case GGUF_TYPE_UINT8:
        case GGUF_TYPE_INT8:
        case GGUF_TYPE_UINT16:
        case GGUF_TYPE_INT16:
        case GGUF_TYPE_UINT32:
        case GGUF_TYPE_INT32:
        case GGUF_TYPE_UINT64:
        case GGUF_TYPE_INT64: return true;
        default: return false;
    }
}

const char * k3_meta_type_name(const struct gguf_context * gguf, int64_t id, char * buffer, size_t size) {
    enum gguf_type type = gguf_get_kv_type(gguf, id);
    bool is_array       = type == GGUF_TYPE_ARRAY;
    snprintf(buffer, size, "%s%s", is_array ? "array of " : "",
             gguf_type_name(is_array ? gguf_get_arr_type(gguf, id) : type));
    return buffer;
}

static k3_meta_number from_int(int64_t value) { return (k3_meta_number) {true, value, (double) value}; }

static k3_meta_number from_float(double value) { return (k3_meta_number) {false, 0, value}; }

static k3_meta_number from_unsigned(uint64_t value) {
    return (k3_meta_number) {true, value > INT64_MAX ? INT64_MAX : (int64_t) value, (double) value};
}

// `return from(value)` of the element as that C type.
#define RETURN_ELEMENT(type, from)                                                                                     \
    do {                                                                                                               \
        type value;                                                                                                    \
        memcpy(&value, bytes + element * sizeof(value), sizeof(value));                                                \
        return from(value);                                                                                            \
    } while (0)

static k3_meta_number number_at(enum gguf_type type, const char * bytes, uint64_t element) {
    switch (type) {
        case GGUF_TYPE_BOOL:
        case GGUF_TYPE_UINT8: RETURN_ELEMENT(uint8_t, from_int);
        case GGUF_TYPE_INT8: RETURN_ELEMENT(int8_t, from_int);
        case GGUF_TYPE_UINT16: RETURN_ELEMENT(uint16_t, from_int);
        case GGUF_TYPE_INT16: RETURN_ELEMENT(int16_t, from_int);
        case GGUF_TYPE_UINT32: RETURN_ELEMENT(uint32_t, from_int);
        case GGUF_TYPE_INT32: RETURN_ELEMENT(int32_t, from_int);
        case GGUF_TYPE_UINT64: RETURN_ELEMENT(uint64_t, from_unsigned);
        case GGUF_TYPE_INT64: RETURN_ELEMENT(int64_t, from_int);
        case GGUF_TYPE_FLOAT32: RETURN_ELEMENT(float, from_float);
        case GGUF_TYPE_FLOAT64: RETURN_ELEMENT(double, from_float);
        default: return from_float(NAN);
    }
}

k3_meta_number k3_meta_element(const struct gguf_context * gguf, int64_t id, uint64_t element) {
    enum gguf_type type = gguf_get_kv_type(gguf, id);
    bool is_array       = type == GGUF_TYPE_ARRAY;
    if (is_array) {
        type = gguf_get_arr_type(gguf, id);
    }
    if (type == GGUF_TYPE_STRING) {
        return from_float(NAN);
    }
    return number_at(type, is_array ? gguf_get_arr_data(gguf, id) : gguf_get_val_data(gguf, id), element);
}

static void fail_type(k3_meta_reader * r, const char * key, int64_t id, const char * wanted) {
    char name[KEY_SIZE], type[TYPE_NAME_SIZE];
    r->status = k3_fail(r->e, LLAMA_K3_MODEL_KEY_TYPE, "key %s: type: found %s, wanted %s", full_key(r, key, name),
                        k3_meta_type_name(r->gguf, id, type, sizeof(type)), wanted);
}

// Index of a required key, or -1 and the reader's status set.
static int64_t require(k3_meta_reader * r, const char * key, const char * wanted) {
    if (r->status) {
        return -1;
    }
    int64_t id = k3_meta_find(r, key);
    if (id < 0) {
        char name[KEY_SIZE];
        r->status = k3_fail(r->e, LLAMA_K3_MODEL_KEY_MISSING, "key %s: missing, wanted %s", full_key(r, key, name),
                            wanted);
    }
    return id;
}

static void fail_int(k3_meta_reader * r, const char * key, int64_t value, int64_t min, int64_t max) {
    char name[KEY_SIZE], range[64];
    snprintf(range, sizeof(range), min == max ? "%" PRId64 : "%" PRId64 " to %" PRId64, min, max);
    r->status = k3_fail(r->e, LLAMA_K3_MODEL_KEY_VALUE, "key %s: found %" PRId64 ", wanted %s", full_key(r, key, name),
                        value, range);
}

int64_t k3_meta_int(k3_meta_reader * r, const char * key, int64_t min, int64_t max) {
    int64_t id = require(r, key, "an integer");
    if (id < 0) {
        return min;
    }
    if (!k3_meta_is_int(gguf_get_kv_type(r->gguf, id))) {
        fail_type(r, key, id, "an integer");
        return min;
    }
    int64_t value = k3_meta_element(r->gguf, id, 0).i;
    if (value < min || value > max) {
        fail_int(r, key, value, min, max);
        return min;
    }
    return value;
}

int64_t k3_meta_int_or(k3_meta_reader * r, const char * key, int64_t min, int64_t max, int64_t fallback) {
    return k3_meta_find(r, key) < 0 ? fallback : k3_meta_int(r, key, min, max);
}

float k3_meta_float(k3_meta_reader * r, const char * key, double min, double max) {
    int64_t id = require(r, key, "a float");
    if (id < 0) {
        return (float) max;
    }
    enum gguf_type type = gguf_get_kv_type(r->gguf, id);
    if (type != GGUF_TYPE_FLOAT32 && type != GGUF_TYPE_FLOAT64) {
        fail_type(r, key, id, "a float");
        return (float) max;
    }
    double value = k3_meta_element(r->gguf, id, 0).f;
    if (!(value >= min && value <= max)) {  // NaN fails both
        char name[KEY_SIZE];
        r->status = k3_fail(r->e, LLAMA_K3_MODEL_KEY_VALUE, "key %s: found %g, wanted %g to %g", full_key(r, key, name),
                            value, min, max);
        return (float) max;
    }
    return (float) value;
}

float k3_meta_float_or(k3_meta_reader * r, const char * key, double min, double max, float fallback) {
    return k3_meta_find(r, key) < 0 ? fallback : k3_meta_float(r, key, min, max);
}

bool k3_meta_bool_or(k3_meta_reader * r, const char * key, bool fallback) {
    int64_t id = k3_meta_find(r, key);
    if (r->status || id < 0) {
        return fallback;
    }
    if (gguf_get_kv_type(r->gguf, id) != GGUF_TYPE_BOOL) {
        fail_type(r, key, id, "bool");
        return fallback;
    }
    return k3_meta_element(r->gguf, id, 0).i != 0;
}

const char * k3_meta_string(k3_meta_reader * r, const char * key) {
    int64_t id = require(r, key, "a string");
    if (id < 0) {
        return NULL;
    }
    if (gguf_get_kv_type(r->gguf, id) != GGUF_TYPE_STRING) {
        fail_type(r, key, id, "a string");
        return NULL;
    }
    return gguf_get_val_str(r->gguf, id);
}

uint64_t k3_meta_int_array(k3_meta_reader * r, const char * key, int64_t * id) {
    *id = require(r, key, "an array of integers");
    if (*id < 0) {
        return 0;
    }
    if (gguf_get_kv_type(r->gguf, *id) != GGUF_TYPE_ARRAY || !k3_meta_is_int(gguf_get_arr_type(r->gguf, *id))) {
        fail_type(r, key, *id, "an array of integers");
        return 0;
    }
    return gguf_get_arr_n(r->gguf, *id);
}

uint64_t k3_meta_string_array(k3_meta_reader * r, const char * key, int64_t * id) {
    *id = require(r, key, "an array of strings");
    if (*id < 0) {
        return 0;
    }
    if (gguf_get_kv_type(r->gguf, *id) != GGUF_TYPE_ARRAY || gguf_get_arr_type(r->gguf, *id) != GGUF_TYPE_STRING) {
        fail_type(r, key, *id, "an array of strings");
        return 0;
    }
    return gguf_get_arr_n(r->gguf, *id);
}
