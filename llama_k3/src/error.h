// error.h - status plus message. k3_fail() writes the message into the caller's buffer and returns the status, so
// that a failing check reads `return k3_fail(e, LLAMA_K3_..., "tensor %s: found %s, wanted %s", ...)`.
#ifndef K3_ERROR_H
#define K3_ERROR_H

#include "llama_k3.h"

#include <stdint.h>

typedef struct k3_error {
    char * text;  // may be NULL
    size_t size;
} k3_error;

// Also writes the message to the log at error level.
#if defined(__GNUC__)
__attribute__((format(printf, 3, 4)))
#endif
int k3_fail(k3_error e, int status, const char * format, ...);

// Checked size arithmetic: false when the result does not fit.
bool k3_add_u64(uint64_t a, uint64_t b, uint64_t * out);
bool k3_mul_u64(uint64_t a, uint64_t b, uint64_t * out);

#endif
