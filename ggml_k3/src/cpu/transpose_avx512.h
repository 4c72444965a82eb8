// transpose_avx512.h - transposes of dwords in registers, for AVX-512.
#ifndef K3_TRANSPOSE_AVX512_H
#define K3_TRANSPOSE_AVX512_H

#include "simd.h"

// lane r of columns[c] = lane c of rows[r], within each of the four quarters
K3_INLINE void k3_transpose_4x4(const __m512i rows[4], __m512i columns[4]) {
    const __m512i a = _mm512_unpacklo_epi32(rows[0], rows[1]), b = _mm512_unpacklo_epi32(rows[2], rows[3]);
    const __m512i c = _mm512_unpackhi_epi32(rows[0], rows[1]), d = _mm512_unpackhi_epi32(rows[2], rows[3]);
    columns[0] = _mm512_unpacklo_epi64(a, b);
    columns[1] = _mm512_unpackhi_epi64(a, b);
    columns[2] = _mm512_unpacklo_epi64(c, d);
    columns[3] = _mm512_unpackhi_epi64(c, d);
}

// lane r of columns[c] = lane c of rows[r]; rows may be columns
K3_INLINE void k3_transpose_16x16(const __m512i rows[16], __m512i columns[16]) {
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

#endif
