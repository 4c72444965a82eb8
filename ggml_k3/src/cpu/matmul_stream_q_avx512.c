// matmul_stream_q_avx512.c - the stream form of y = W x for weights in blocks of 32 with a scale: MXFP4 and Q8_0.
//
// Sixteen rows are finished together, in two phases. First the exact integer dot products of all blocks, row by row,
// so that memory is read as one linear stream. A strip of 16 blocks is cut into pieces of 68 bytes; a permutation of a
// piece's bytes puts the scales aside, and a transposition of four pieces makes vectors with one dword of each block,
// so that no sum is across lanes. Then the integers are transposed so that lanes are rows, for the floating-point sum
// over the blocks in ascending order.
#include "matmul_stream_avx512.h"

enum {
    BLOCK = 32,  // weights
    STRIP = 16,  // blocks
    PIECE = 68,  // bytes: 4 blocks of MXFP4 or 2 of Q8_0
};

// A token's activations of one strip, in the order of the weights' vectors.
struct strip_acts {
    __m512i x[8];
    __m512i start;  // minus what makes the weights unsigned, times the block's sum of activations
};

// What the kernels of one call share.
struct job {
    const struct k3_matmul_args * args;
    int64_t blocks, strips;
    size_t quants;                   // bytes of q in an act row
    const struct strip_acts * acts;  // [tokens][strips]
    __m512i * sums;    // [tokens][16 rows]: integer dot products of a strip, lanes in the order of lane_of
    __m512 * y;        // [tokens], lanes = rows
    uint8_t * scales;  // MXFP4 [4][4][16], Q8_0 [2][4][4][16]: 16 bytes of row i + 4 j at [i][j]
};

// Constants of a type; they fold away, as `type` is a constant wherever these are called.
#define IS_MXFP4(type) ((type) == GGML_TYPE_MXFP4)
#define BLOCK_BYTES(type) (IS_MXFP4(type) ? 17 : 34)
#define PIECE_BLOCKS(type) (IS_MXFP4(type) ? 4 : 2)
#define SCALES(type) (IS_MXFP4(type) ? 1 : 2)  // times 16 bytes for one strip of one row
#define BIAS(type) (IS_MXFP4(type) ? 12 : 128)

// The lane of a strip's sums that belongs to a block. Pieces are the lanes of a quarter. A piece's last 16 bytes of
// weights are quarter 0, then come the others in order. In Q8_0 two quarters are one block, and a strip has two times
// four pieces: quarters 1 + 2 (first block) and 0 + 3 (second block) of the one, then of the other.
K3_STREAM_INLINE int lane_of(enum ggml_type type, int block) {
    return IS_MXFP4(type) ? (block + 1) % 4 * 4 + block / 4 : block / 8 * 8 + block % 2 * 4 + block % 8 / 2;
}

// Byte i of a piece's weights, in the order just described; instead of the last 4, which are not among the first 64
// bytes of the piece, its scales.
K3_STREAM_INLINE __m512i piece_order(enum ggml_type type) {
    uint8_t from[64];
#pragma GCC unroll 64
    for (int i = 0; i < 64; i++) {
        const int at = (i + 48) % 64;
        from[i]      = (uint8_t) (IS_MXFP4(type) ? at + at / 16 + 1 : at + at / 32 * 2 + 2);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        from[12 + i] = (uint8_t) (IS_MXFP4(type) ? 17 * i : i / 2 * 34 + i % 2);
    }
    return _mm512_loadu_si512(from);
}

// Four pieces of a row, `blocks` of whose blocks are in the row. Lane q of each quarter of v[j] = dword j of piece q's
// quarter; scales: 4 bytes of every piece.
K3_STREAM_INLINE void load_pieces(enum ggml_type type, const uint8_t * p, int blocks, __m512i v[4], uint8_t * scales) {
    const __m512i order = piece_order(type);
    __m512i piece[4];
#pragma GCC unroll 4
    for (int q = 0; q < 4; q++) {
        const int left = blocks - PIECE_BLOCKS(type) * q;
        if (left >= PIECE_BLOCKS(type)) {
            piece[q] = _mm512_permutexvar_epi8(order, _mm512_loadu_si512(p + PIECE * q));
        } else {
            const __mmask64 mask = left > 0 ? ((__mmask64) 1 << left * BLOCK_BYTES(type)) - 1 : 0;
            piece[q]             = _mm512_permutexvar_epi8(order, _mm512_maskz_loadu_epi8(mask, p + PIECE * q));
        }
    }
    k3_transpose_4x4(piece, v);
    _mm_store_si128((void *) scales, _mm512_castsi512_si128(v[3]));
    // The last 4 bytes of piece q are dword q of the 16 bytes at 64 (q + 1).
    __m128i last = _mm512_castsi512_si128(v[3]);
    if (blocks >= PIECE_BLOCKS(type) * 1) last = _mm_blend_epi32(last, _mm_loadu_si128((const void *) (p + 64)), 1);
    if (blocks >= PIECE_BLOCKS(type) * 2) last = _mm_blend_epi32(last, _mm_loadu_si128((const void *) (p + 128)), 2);
    if (blocks >= PIECE_BLOCKS(type) * 3) last = _mm_blend_epi32(last, _mm_loadu_si128((const void *) (p + 192)), 4);
    if (blocks >= PIECE_BLOCKS(type) * 4) last = _mm_blend_epi32(last, _mm_loadu_si128((const void *) (p + 256)), 8);
    v[3] = _mm512_mask_mov_epi32(v[3], 0x000f, _mm512_castsi128_si512(last));
}

// The weights of one strip of a row as unsigned bytes.
K3_STREAM_INLINE void load_strip(enum ggml_type type, const uint8_t * p, int blocks, __m512i w[8], uint8_t * scales) {
    if (IS_MXFP4(type)) {
        const __m512i codes = _mm512_broadcast_i32x4(
            _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
        __m512i v[4];
        load_pieces(type, p, blocks, v, scales);
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) {
            w[j]     = _mm512_permutexvar_epi8(v[j], codes);  // the upper bits of an index do not count: codes repeat
            w[4 + j] = _mm512_permutexvar_epi8(_mm512_srli_epi16(v[j], 4), codes);
        }
    } else {
        load_pieces(type, p, blocks, w, scales);
        load_pieces(type, p + 4 * PIECE, blocks - 8, w + 4, scales + 256);
#pragma GCC unroll 8
        for (int j = 0; j < 8; j++) {
            w[j] = _mm512_xor_si512(w[j], _mm512_set1_epi8((char) 0x80));
        }
    }
}

// acc += the four products of bytes in every lane. An intrinsic makes GCC 12 copy and spill accumulators.
K3_STREAM_INLINE void dot4(__m512i * acc, __m512i w, __m512i x) {
    __asm__("vpdpbusd %2, %1, %0" : "+v"(*acc) : "v"(w), "v"(x));
}

// The integer dot products of one strip of two rows with every token's activations; sums: of the first of the rows.
K3_STREAM_INLINE void two_rows_sums(const struct job * job, enum ggml_type type, const uint8_t * const p[2], int blocks,
                                    int row, const struct strip_acts * acts, __m512i * sums) {
    __m512i w[2][8];
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) {
        load_strip(type, p[i], blocks, w[i], job->scales + (row + i) % 4 * 64 + row / 4 * 16);
    }
    for (int64_t t = 0; t < job->args->n_tokens; t++, acts += job->strips, sums += K3_STREAM_ROWS) {
        __m512i acc[2], other[2];
#pragma GCC unroll 2
        for (int i = 0; i < 2; i++) {
            acc[i]   = IS_MXFP4(type) ? acts->start : _mm512_setzero_si512();
            other[i] = _mm512_setzero_si512();
        }
#pragma GCC unroll 8
        for (int j = 0; j < 8; j++) {
            const __m512i x = acts->x[j];
#pragma GCC unroll 2
            for (int i = 0; i < 2; i++) {
                dot4(IS_MXFP4(type) || j < 4 ? &acc[i] : &other[i], w[i][j], x);
            }
        }
#pragma GCC unroll 2
        for (int i = 0; i < 2; i++) {
            if (!IS_MXFP4(type)) {  // add up the quarters of a block
                const __m512i a = _mm512_shuffle_i32x4(acc[i], other[i], 0x11);
                const __m512i b = _mm512_shuffle_i32x4(acc[i], other[i], 0xee);
                acc[i]          = _mm512_add_epi32(_mm512_add_epi32(a, acts->start), b);
            }
            sums[i] = acc[i];
        }
    }
}

// The integer dot products of one strip of up to sixteen rows. Meanwhile a piece of the next rows is prefetched.
K3_STREAM_INLINE void strip_sums(const struct job * job, enum ggml_type type, const uint8_t * w, int rows, int blocks,
                                 const struct strip_acts * acts, const uint8_t * next) {
    const size_t stride = job->args->row_bytes;
    for (int row = 0; row < rows; row += 2, w += 2 * stride, next += 2 * STRIP * BLOCK_BYTES(type)) {
        const uint8_t * p[2] = {w, row + 1 < rows ? w + stride : w};
        for (int i = 0; i < 2 * STRIP * BLOCK_BYTES(type); i += 64) {
            _mm_prefetch((const char *) next + i, _MM_HINT_T1);
        }
        two_rows_sums(job, type, p, blocks, row, acts, job->sums + row);
    }
}

// The scales of a strip as floats, lanes = rows. MXFP4: 2^(e - 128), as the codes are doubled; NaN for e = 255.
K3_STREAM_INLINE void load_scales(enum ggml_type type, const uint8_t * scales, __m512 scale[STRIP]) {
    for (int h = 0; h < SCALES(type); h++) {
        const __m512i * bytes = (const __m512i *) (const void *) (scales + 256 * h);
        __m512i v[4];
        k3_transpose_4x4(bytes, v);
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) {
            if (IS_MXFP4(type)) {
#pragma GCC unroll 4
                for (int i = 0; i < 4; i++) {
                    __m512i e          = i < 3 ? _mm512_slli_epi32(v[j], 23 - 8 * i) : _mm512_srli_epi32(v[j], 1);
                    e                  = _mm512_and_si512(e, _mm512_set1_epi32(0x7f800000));
                    const __m512 twice = _mm512_castsi512_ps(_mm512_max_epi32(e, _mm512_set1_epi32(0x00400000)));
                    scale[4 * j + i]   = _mm512_fnmadd_ps(twice, _mm512_set1_ps(0.5f), twice);  // inf - inf = NaN
                }
            } else {
                scale[8 * h + 2 * j]     = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(v[j]));
                scale[8 * h + 2 * j + 1] = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(v[j], 16)));
            }
        }
    }
}

// y += the blocks of one strip, lanes = rows
K3_STREAM_INLINE __m512 add_strip(enum ggml_type type, const __m512i sums[K3_STREAM_ROWS], const __m512 scale[STRIP],
                                  const float * d, int blocks, __m512 y) {
    __m512i column[STRIP];
    k3_transpose_16x16(sums, column);
#pragma GCC unroll 16
    for (int b = 0; b < STRIP; b++) {
        if (b < blocks) {
            const __m512 factor = _mm512_mul_ps(scale[b], _mm512_set1_ps(d[b]));
            y                   = _mm512_fmadd_ps(_mm512_cvtepi32_ps(column[lane_of(type, b)]), factor, y);
        }
    }
    return y;
}

// One strip of up to sixteen rows.
K3_STREAM_INLINE void add_strips(const struct job * job, enum ggml_type type, const uint8_t * w, int rows,
                                 int64_t strip, int blocks, const uint8_t * next) {
    strip_sums(job, type, w, rows, blocks, job->acts + strip, next);
    __m512 scale[STRIP];
    load_scales(type, job->scales, scale);
    const size_t offset = job->quants + (size_t) strip * STRIP * sizeof(float);
    for (int64_t t = 0; t < job->args->n_tokens; t++) {
        const float * d = (const float *) (const void *) ((const char *) job->args->acts[t] + offset);
        job->y[t]       = add_strip(type, job->sums + t * K3_STREAM_ROWS, scale, d, blocks, job->y[t]);
    }
}

// The results of up to sixteen rows.
K3_STREAM_INLINE void sixteen_rows(const struct job * job, enum ggml_type type, const uint8_t * w, int64_t first,
                                   int rows, const uint8_t * next) {
    const struct k3_matmul_args * args = job->args;
    for (int64_t t = 0; t < args->n_tokens; t++) {
        job->y[t] = _mm512_setzero_ps();
    }
    for (int64_t s = 0; s < job->blocks / STRIP; s++) {
        add_strips(job, type, w, rows, s, STRIP, next);
        w += STRIP * BLOCK_BYTES(type);
        next += K3_STREAM_ROWS * STRIP * BLOCK_BYTES(type);
    }
    const int rest = (int) (job->blocks % STRIP);
    if (rest > 0) add_strips(job, type, w, rows, job->strips - 1, rest, next);
    for (int64_t t = 0; t < args->n_tokens; t++) {
        _mm512_mask_storeu_ps(args->y[t] + first, (__mmask16) ((1 << rows) - 1), job->y[t]);
    }
}

// A token's activations in the order of the weights.
K3_STREAM_INLINE void order_acts(enum ggml_type type, const int8_t * act, int64_t k, struct strip_acts * strips) {
    const size_t quants = (size_t) (k + 127) / 128 * 128;
    const int64_t n     = (k + BLOCK * STRIP - 1) / (BLOCK * STRIP);
    const int32_t * sum = (const int32_t *) (const void *) (act + quants) + STRIP * n;  // behind q and d
    for (int64_t s = 0; s < n; s++, sum += STRIP) {
#pragma GCC unroll 2
        for (int h = 0; h < 2; h++) {  // low and high nibbles, or the halves of a strip
            __m512i piece[4];
#pragma GCC unroll 4
            for (int q = 0; q < 4; q++) {
                const size_t at = (size_t) s * 512 + (size_t) (IS_MXFP4(type) ? 128 * q + 64 * h : 256 * h + 64 * q);
                piece[q]        = at < quants ? _mm512_load_si512(act + at) : _mm512_setzero_si512();
                piece[q]        = _mm512_shuffle_i32x4(piece[q], piece[q], 0x93);  // the last quarter first
            }
            k3_transpose_4x4(piece, strips[s].x + 4 * h);
        }
        int32_t start[STRIP];
#pragma GCC unroll 16
        for (int b = 0; b < STRIP; b++) {
            start[lane_of(type, b)] = -BIAS(type) * sum[b];
        }
        strips[s].start = _mm512_loadu_si512(start);
    }
}

K3_STREAM_INLINE void stream(const struct k3_matmul_args * args, enum ggml_type type) {
    const size_t n           = (size_t) args->n_tokens;
    const int64_t strips     = (args->k + BLOCK * STRIP - 1) / (BLOCK * STRIP);
    struct strip_acts * acts = args->scratch;
    __m512i * sums           = (__m512i *) (void *) (acts + n * (size_t) strips);
    const struct job job     = {.args   = args,
                                .blocks = args->k / BLOCK,
                                .strips = strips,
                                .quants = (size_t) (args->k + 127) / 128 * 128,
                                .acts   = acts,
                                .sums   = sums,
                                .y      = (__m512 *) (void *) (sums + n * K3_STREAM_ROWS),
                                .scales = (uint8_t *) (void *) (sums + n * K3_STREAM_ROWS + n)};
    for (size_t t = 0; t < n; t++) {
        order_acts(type, args->acts[t], args->k, acts + t * (size_t) strips);
    }
    const size_t group = K3_STREAM_ROWS * args->row_bytes;
    const uint8_t * w  = (const uint8_t *) args->w + (size_t) args->first * args->row_bytes;
    for (int64_t row = args->first; row < args->last; row += K3_STREAM_ROWS, w += group) {
        const int64_t left = args->last - row;
        const int rows     = left < K3_STREAM_ROWS ? (int) left : K3_STREAM_ROWS;
        if (row == args->first) k3_stream_prefetch(w, (size_t) rows * args->row_bytes);
        sixteen_rows(&job, type, w, row, rows, left > K3_STREAM_ROWS ? w + group : w);
    }
}

size_t k3_matmul_stream_q_scratch_avx512(int64_t k, int64_t n_tokens) {
    const size_t n = (size_t) n_tokens, strips = (size_t) (k + BLOCK * STRIP - 1) / (BLOCK * STRIP);
    return n * strips * sizeof(struct strip_acts) + n * (K3_STREAM_ROWS + 1) * sizeof(__m512i) + 512;
}

void k3_matmul_stream_mxfp4_avx512(const struct k3_matmul_args * args) { stream(args, GGML_TYPE_MXFP4); }
void k3_matmul_stream_q8_0_avx512(const struct k3_matmul_args * args) { stream(args, GGML_TYPE_Q8_0); }
