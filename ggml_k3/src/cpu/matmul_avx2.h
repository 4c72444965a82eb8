// matmul_avx2.h - the forms of y = W x for Q8_0 and MXFP4 that the table k3_matmul_avx2 chooses from. Both add up in
// the order that matmul.h states, so that they give the same bits.
#ifndef K3_MATMUL_AVX2_H
#define K3_MATMUL_AVX2_H

#include "matmul.h"

// Up to this many tokens the stream form is the faster one.
enum { K3_STREAM_MXFP4 = 11, K3_STREAM_Q8_0 = 20, K3_STREAM_MOST = K3_STREAM_Q8_0 };

// Stream: lanes are rows of the matrix; weights are read once, at the rate of memory. 1 <= n_tokens <= K3_STREAM_MOST.
size_t k3_matmul_stream_scratch_avx2(int64_t k, int64_t n_tokens);
void k3_matmul_stream_avx2(const struct k3_matmul_args * args);

// Tile: lanes are tokens; any n_tokens >= 1.
size_t k3_matmul_tile_scratch_avx2(enum ggml_type type, int64_t k, int64_t n_tokens);
void k3_matmul_tile_avx2(const struct k3_matmul_args * args);

#endif
