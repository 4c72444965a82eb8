// gguf_check.h - structural check of one GGUF file, before ggml's reader sees it: that one answers NULL without a
// reason, and allocates by counts found in the file.
#ifndef K3_GGUF_CHECK_H
#define K3_GGUF_CHECK_H

#include "error.h"

// Limits beyond what any model of this family needs; ggml's reader compares every key and every tensor name with
// all others.
enum { K3_MAX_KEYS = 8192, K3_MAX_TENSORS = 16384, K3_MAX_ARRAY = 1 << 24 };
// Smallest alignment of tensor data that ggml's CPU kernels may assume.
enum { K3_MIN_ALIGNMENT = 32 };

typedef struct k3_gguf_layout {
    uint64_t n_keys, n_tensors;
    uint64_t header_size;  // bytes before the padding that precedes the tensor data
    uint64_t data_offset;  // first byte of the tensor data
} k3_gguf_layout;

// Walks the header once, in time linear in its size and with memory for the names' hashes only. `name` (of the file)
// opens every message. LLAMA_K3_FILE_*.
int k3_gguf_check(const void * bytes, uint64_t size, const char * name, k3_gguf_layout * out, k3_error e);

#endif
