// error.c - messages of failed checks and checked size arithmetic.
#include "error.h"

#include "log.h"

#include <stdarg.h>
#include <stdio.h>

enum { MESSAGE_SIZE = 1024 };

// Names in a message may come from a broken file: control characters would garble the caller's terminal.
static void replace_control_characters(char * text) {
    for (; *text; text++) {
        unsigned char c = (unsigned char) *text;
        if (c < 0x20 || c == 0x7f) {
            *text = '?';
        }
    }
}

int k3_fail(k3_error e, int status, const char * format, ...) {
    char message[MESSAGE_SIZE];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof(message), format, arguments);
    va_end(arguments);
    replace_control_characters(message);
    if (e.text && e.size > 0) {
        snprintf(e.text, e.size, "%s", message);
    }
    k3_log(LLAMA_K3_LOG_ERROR, "%s: %s", llama_k3_status_name(status), message);
    return status;
}

bool k3_add_u64(uint64_t a, uint64_t b, uint64_t * out) {
    if (b > UINT64_MAX - a) {
        return false;
    }
    *out = a + b;
    return true;
}

bool k3_mul_u64(uint64_t a, uint64_t b, uint64_t * out) {
    if (a != 0 && b > UINT64_MAX / a) {
        return false;
    }
    *out = a * b;
    return true;
}

typedef struct status_name {
    int status;
    const char * name;
} status_name;

#define STATUS_NAME(status) {status, #status}

static const status_name status_names[] = {
    STATUS_NAME(LLAMA_K3_OK),
    STATUS_NAME(LLAMA_K3_ABORTED),
    STATUS_NAME(LLAMA_K3_ARGUMENT),
    STATUS_NAME(LLAMA_K3_MEMORY),
    STATUS_NAME(LLAMA_K3_BUSY),
    STATUS_NAME(LLAMA_K3_CONTEXT_FULL),
    STATUS_NAME(LLAMA_K3_NON_FINITE),
    STATUS_NAME(LLAMA_K3_COMPUTE),
    STATUS_NAME(LLAMA_K3_FILE_OPEN),
    STATUS_NAME(LLAMA_K3_FILE_MAGIC),
    STATUS_NAME(LLAMA_K3_FILE_VERSION),
    STATUS_NAME(LLAMA_K3_FILE_TRUNCATED),
    STATUS_NAME(LLAMA_K3_FILE_COUNT),
    STATUS_NAME(LLAMA_K3_FILE_STRING),
    STATUS_NAME(LLAMA_K3_FILE_VALUE_TYPE),
    STATUS_NAME(LLAMA_K3_FILE_DUPLICATE),
    STATUS_NAME(LLAMA_K3_FILE_ALIGNMENT),
    STATUS_NAME(LLAMA_K3_FILE_TENSOR_DIMS),
    STATUS_NAME(LLAMA_K3_FILE_TENSOR_TYPE),
    STATUS_NAME(LLAMA_K3_FILE_SIZE),
    STATUS_NAME(LLAMA_K3_FILE_OFFSET),
    STATUS_NAME(LLAMA_K3_SPLIT_KEYS),
    STATUS_NAME(LLAMA_K3_SPLIT_PART),
    STATUS_NAME(LLAMA_K3_MODEL_ARCHITECTURE),
    STATUS_NAME(LLAMA_K3_MODEL_KEY_MISSING),
    STATUS_NAME(LLAMA_K3_MODEL_KEY_TYPE),
    STATUS_NAME(LLAMA_K3_MODEL_KEY_VALUE),
    STATUS_NAME(LLAMA_K3_MODEL_LAYER_KINDS),
    STATUS_NAME(LLAMA_K3_MODEL_VOCABULARY),
    STATUS_NAME(LLAMA_K3_MODEL_TENSOR_MISSING),
    STATUS_NAME(LLAMA_K3_MODEL_TENSOR_EXTRA),
    STATUS_NAME(LLAMA_K3_MODEL_TENSOR_TYPE),
    STATUS_NAME(LLAMA_K3_MODEL_TENSOR_SHAPE),
    STATUS_NAME(LLAMA_K3_STATE_OPEN),
    STATUS_NAME(LLAMA_K3_STATE_FORMAT),
    STATUS_NAME(LLAMA_K3_STATE_CHECKSUM),
    STATUS_NAME(LLAMA_K3_STATE_MODEL),
    STATUS_NAME(LLAMA_K3_STATE_GEOMETRY),
    STATUS_NAME(LLAMA_K3_STATE_WRITE),
};

const char * llama_k3_status_name(int status) {
    for (size_t i = 0; i < sizeof(status_names) / sizeof(status_names[0]); i++) {
        if (status_names[i].status == status) {
            return status_names[i].name;
        }
    }
    return "unknown status";
}
