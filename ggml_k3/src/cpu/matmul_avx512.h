// matmul_avx512.h - the two AVX-512 forms of y = W x that the table k3_matmul_avx512 chooses from. Both add up in the
// order that matmul.h states, so that they give the same bits.
#ifndef K3_MATMUL_AVX512_H
#define K3_MATMUL_AVX512_H

#include "matmul.h"

// Up to this many tokens the stream form is the faster one.
enum { K3_STREAM_TOKENS = 8 };

// Stream: lanes are rows; weights are read once, at the rate of memory. 1 <= n_tokens <= K3_STREAM_TOKENS. Fastest with
// many rows in a call: each call starts the stream from memory anew.
size_t k3_matmul_stream_scratch_avx512(enum ggml_type type, int64_t k, int64_t n_tokens);
void k3_matmul_stream_avx512(const struct k3_matmul_args * args);

// Tile: lanes are tokens; any n_tokens >= 1.
size_t k3_matmul_tile_scratch_avx512(enum ggml_type type, int64_t k, int64_t n_tokens);
void k3_matmul_tile_avx512(const struct k3_matmul_args * args);

#endif
