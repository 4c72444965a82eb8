// matmul_stream_avx512.h - what the files of the stream form of y = W x share.
#ifndef K3_MATMUL_STREAM_AVX512_H
#define K3_MATMUL_STREAM_AVX512_H

#include "matmul_avx512.h"
#include "transpose_avx512.h"

#include <immintrin.h>

enum { K3_STREAM_ROWS = 16 };  // rows of the matrix that are finished together, one in each lane

// Starts to read what is about to be used into the level 2 cache. Level 1 would hold back the memory, as few of its
// misses can be under way.
K3_INLINE void k3_stream_prefetch(const uint8_t * p, size_t bytes) {
    for (size_t i = 0; i < bytes; i += 64) {
        _mm_prefetch((const char *) p + i, _MM_HINT_T1);
    }
}

// For the types in blocks; the file of k3_matmul_stream_avx512 has the others, which need no scratch.
size_t k3_matmul_stream_q_scratch_avx512(int64_t k, int64_t n_tokens);
void k3_matmul_stream_mxfp4_avx512(const struct k3_matmul_args * args);
void k3_matmul_stream_q8_0_avx512(const struct k3_matmul_args * args);

#endif
