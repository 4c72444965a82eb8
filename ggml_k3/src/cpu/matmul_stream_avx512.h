// matmul_stream_avx512.h - what the files of the stream form of y = W x share.
#ifndef K3_MATMUL_STREAM_AVX512_H
#define K3_MATMUL_STREAM_AVX512_H

#include "matmul_avx512.h"

#include <immintrin.h>

#define K3_STREAM_INLINE static inline __attribute__((always_inline, unused))

enum { K3_STREAM_ROWS = 16 };  // rows of the matrix that are finished together, one in each lane

// Starts to read what is about to be used into the level 2 cache. Level 1 would hold back the memory, as few of its
// misses can be under way.
K3_STREAM_INLINE void k3_stream_prefetch(const uint8_t * p, size_t bytes) {
    for (size_t i = 0; i < bytes; i += 64) {
        _mm_prefetch((const char *) p + i, _MM_HINT_T1);
    }
}

// lane r of columns[c] = lane c of rows[r], within each of the four quarters
K3_STREAM_INLINE void k3_transpose_4x4(const __m512i rows[4], __m512i columns[4]) {
    const __m512i a = _mm512_unpacklo_epi32(rows[0], rows[1]), b = _mm512_unpacklo_epi32(rows[2], rows[3]);
    const __m512i c = _mm512_unpackhi_epi32(rows[0], rows[1]), d = _mm512_unpackhi_epi32(rows[2], rows[3]);
    columns[0] = _mm512_unpacklo_epi64(a, b);
    columns[1] = _mm512_unpackhi_epi64(a, b);
    columns[2] = _mm512_unpacklo_epi64(c, d);
    columns[3] = _mm512_unpackhi_epi64(c, d);
}

// lane r of columns[c] = lane c of rows[r]
K3_STREAM_INLINE void k3_transpose_16x16(const __m512i rows[16], __m512i columns[16]) {
    __m512i part[16];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        k3_transpose_4x4(rows + 4 * i,
                         part + 4 * i);  // quarter q of part[4 i + c] = column 4 q + c of rows 4 i to 4 i + 3
    }
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) {
        const __m512i a = _mm512_shuffle_i32x4(part[c], part[4 + c], 0x44),
                      b = _mm512_shuffle_i32x4(part[c], part[4 + c], 0xee);
        const __m512i d = _mm512_shuffle_i32x4(part[8 + c], part[12 + c], 0x44);
        const __m512i e = _mm512_shuffle_i32x4(part[8 + c], part[12 + c], 0xee);
        columns[c]      = _mm512_shuffle_i32x4(a, d, 0x88);
        columns[4 + c]  = _mm512_shuffle_i32x4(a, d, 0xdd);
        columns[8 + c]  = _mm512_shuffle_i32x4(b, e, 0x88);
        columns[12 + c] = _mm512_shuffle_i32x4(b, e, 0xdd);
    }
}

// For the types in blocks; the file of k3_matmul_stream_avx512 has the others, which need no scratch.
size_t k3_matmul_stream_q_scratch_avx512(int64_t k, int64_t n_tokens);
void k3_matmul_stream_mxfp4_avx512(const struct k3_matmul_args * args);
void k3_matmul_stream_q8_0_avx512(const struct k3_matmul_args * args);

#endif
