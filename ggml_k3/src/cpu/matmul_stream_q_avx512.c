// matmul_stream_q_avx512.c - the stream form of y = W x for weights in blocks of 32 with a scale: MXFP4 and Q8_0.
//
// Sixteen rows are finished together, in two phases. First the exact integer dot products of the blocks, row by row. A
// strip of 16 blocks is cut into pieces of 68 bytes; a permutation of a
// piece's bytes puts the scales aside, and a transposition of four pieces makes vectors with one dword of each block,
// so that no sum is across lanes. Then the integers are transposed so that lanes are rows, for the floating-point sum
// over the blocks in ascending order.
#include "matmul_stream_avx512.h"

#include <stdbool.h>
#include <string.h>

enum {
    BLOCK       = 32,     // weights
    STRIP       = 16,     // blocks
    PIECE       = 68,     // bytes: 4 blocks of MXFP4 or 2 of Q8_0
    AHEAD       = 10240,  // bytes, besides two rows, between the prefetch and the use where memory is read row by row
    SHORT       = 2,      // strips of a row up to which matrices are small: the time until the first bytes come counts
    AHEAD_SHORT = 6144,   // AHEAD of those
    PANEL       = 16,     // strips times tokens whose sums, 1 KB each, stay in the level 1 cache
    LONG        = 256,    // rows of a call from which Q8_0 takes one strip at a time ...
    LONG_SHORT  = 1024,   // ... if rows are short
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
    int64_t panel;                   // strips whose sums are made before they are used
    size_t quants;                   // bytes of q in an act row
    const uint8_t * w;               // the first row
    size_t distance;                 // bytes between the prefetch and the use, at the first of sixteen rows
    const uint8_t * ahead;           // what to prefetch next
    const uint8_t * end;             // of the rows
    const struct strip_acts * acts;  // [tokens][strips]
    __m512i * sums;                  // [panel][tokens][16 rows]: integer dot products, lanes in the order of lane_of
    __m512 * y;                      // [tokens], lanes = rows; of packed rows [tokens][packed]
    uint8_t * scales;                // [panel][1 (MXFP4) or 2][4][4][16]: 16 bytes of row i + 4 j at [i][j]
};

// Constants of a type; they fold away, as `type` is a constant wherever these are called.
#define IS_MXFP4(type) ((type) == GGML_TYPE_MXFP4)
#define BLOCK_BYTES(type) (IS_MXFP4(type) ? 17 : 34)
#define PIECE_BLOCKS(type) (IS_MXFP4(type) ? 4 : 2)
#define SCALES(type) (IS_MXFP4(type) ? 1 : 2)       // times 16 bytes for one strip of one row
#define SUM_LINES(type) (IS_MXFP4(type) ? 7 : 14)   // to prefetch with the sums of a strip of two rows ...
#define ADD_LINES(type) (IS_MXFP4(type) ? 12 : 24)  // ... and when a strip of sixteen is added: together 16 strips
#define BIAS(type) (IS_MXFP4(type) ? 12 : 128)

// The lane of a strip's sums that belongs to a block. Pieces are the lanes of a quarter. A piece's last 16 bytes of
// weights are quarter 0, then come the others in order. In Q8_0 two quarters are one block, and a strip has two times
// four pieces: quarters 1 + 2 (first block) and 0 + 3 (second block) of the one, then of the other.
K3_INLINE int lane_of(enum ggml_type type, int block) {
    return IS_MXFP4(type) ? (block + 1) % 4 * 4 + block / 4 : block / 8 * 8 + block % 2 * 4 + block % 8 / 2;
}

// Byte i of a piece's weights, in the order just described; instead of the last 4, which are not among the first 64
// bytes of the piece, its scales.
K3_INLINE __m512i piece_order(enum ggml_type type) {
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
K3_INLINE void load_pieces(enum ggml_type type, const uint8_t * p, int blocks, __m512i v[4], uint8_t * scales) {
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
#pragma GCC unroll 4
    for (int q = 0; q < 4; q++) {
        if (blocks >= PIECE_BLOCKS(type) * (q + 1)) {
            last = _mm_mask_loadu_epi32(last, (__mmask8) (1 << q), p + 64 * (q + 1));
        }
    }
    v[3] = _mm512_mask_mov_epi32(v[3], 0x000f, _mm512_castsi128_si512(last));
}

// The weights of one strip of a row as unsigned bytes.
K3_INLINE void load_strip(enum ggml_type type, const uint8_t * p, int blocks, __m512i w[8], uint8_t * scales) {
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
K3_INLINE void dot4(__m512i * acc, __m512i w, __m512i x) {
    __asm__("vpdpbusd %2, %1, %0" : "+v"(*acc) : "v"(w), "v"(x));
}

// The integer dot products of one strip of two rows with every token's activations. slot: of the strip in its panel.
K3_INLINE void two_rows_sums(const struct job * job, enum ggml_type type, const uint8_t * const p[2], int blocks,
                             int row, int64_t strip, int64_t slot) {
    const struct strip_acts * acts = job->acts + strip;
    __m512i * sums                 = job->sums + slot * job->args->n_tokens * K3_STREAM_ROWS + row;
    uint8_t * scales               = job->scales + slot * SCALES(type) * 256 + row / 4 * 16;
    __m512i w[2][8];
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) {
        load_strip(type, p[i], blocks, w[i], scales + (row + i) % 4 * 64);
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

// Goes on with the linear prefetch.
K3_INLINE void prefetch_lines(struct job * job, int lines) {
    if (job->ahead < job->end) k3_stream_prefetch(job->ahead, 64 * (size_t) lines);
    job->ahead += 64 * lines;
}

// The integer dot products of a panel of up to sixteen rows, strips `from` to `to`.
K3_INLINE void panel_sums(struct job * job, enum ggml_type type, const uint8_t * w, int rows, int64_t from,
                          int64_t to) {
    const size_t stride = job->args->row_bytes, bytes = STRIP * BLOCK_BYTES(type);
    w += (size_t) from * bytes;
    for (int row = 0; row < rows; row += 2, w += 2 * stride) {
        const uint8_t * p[2] = {w, row + 1 < rows ? w + stride : w};
        for (int64_t s = from; s < to; s++, p[0] += bytes, p[1] += bytes) {
            const int64_t blocks = job->blocks - s * STRIP;
            if (blocks >= STRIP) {
                prefetch_lines(job, SUM_LINES(type));
                two_rows_sums(job, type, p, STRIP, row, s, s - from);
            } else {
                prefetch_lines(job, (int) blocks * BLOCK_BYTES(type) / 32);
                two_rows_sums(job, type, p, (int) blocks, row, s, s - from);
            }
        }
    }
}

// The scales of a strip as floats, lanes = rows. MXFP4: 2^(e - 128), as the codes are doubled; NaN for e = 255.
K3_INLINE void load_scales(enum ggml_type type, const uint8_t * scales, __m512 scale[STRIP]) {
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

// y + the blocks of one strip, lanes = rows; y[i]: part i of `packed` of the blocks, each with the activations d
K3_INLINE void add_blocks(enum ggml_type type, const __m512i sums[K3_STREAM_ROWS], const __m512 scale[STRIP],
                          const float * d, int blocks, int packed, __m512 * y) {
    __m512i column[STRIP];
    __m512 part[4];
    const int each = STRIP / packed;
    k3_transpose_16x16(sums, column);
#pragma GCC unroll 4
    for (int i = 0; i < packed; i++) {
        part[i] = y[i];
    }
#pragma GCC unroll 16
    for (int b = 0; b < STRIP; b++) {
        if (b < blocks) {
            const __m512 factor = _mm512_mul_ps(scale[b], _mm512_set1_ps(d[b % each]));
            part[b / each]      = _mm512_fmadd_ps(_mm512_cvtepi32_ps(column[lane_of(type, b)]), factor, part[b / each]);
        }
    }
#pragma GCC unroll 4
    for (int i = 0; i < packed; i++) {
        y[i] = part[i];
    }
}

// Adds one strip of up to sixteen rows to the tokens' results.
K3_INLINE void add_strip(const struct job * job, enum ggml_type type, int64_t strip, int64_t slot, int blocks,
                         int packed) {
    const int64_t n = job->args->n_tokens;
    __m512 scale[STRIP];
    load_scales(type, job->scales + slot * SCALES(type) * 256, scale);
    const size_t offset = job->quants + (size_t) strip * STRIP * sizeof(float);
    for (int64_t t = 0; t < n; t++) {
        const float * d = (const float *) (const void *) ((const char *) job->args->acts[t] + offset);
        add_blocks(type, job->sums + (slot * n + t) * K3_STREAM_ROWS, scale, d, blocks, packed, job->y + t * packed);
    }
}

// Lane r of y[i] is row packed * r + i. `rows`: of the job.
K3_INLINE void store_packed(const __m512 * y, int packed, int rows, float * to) {
    const __m512i even = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const __m512i odd  = _mm512_add_epi32(even, _mm512_set1_epi32(8));
    __m512 out[4];
    if (packed == 1) {
        out[0] = y[0];
    } else if (packed == 2) {
        out[0] = _mm512_permutex2var_ps(y[0], even, y[1]);
        out[1] = _mm512_permutex2var_ps(y[0], odd, y[1]);
    } else {
        const __m512 a = _mm512_permutex2var_ps(y[0], even, y[2]), b = _mm512_permutex2var_ps(y[0], odd, y[2]);
        const __m512 c = _mm512_permutex2var_ps(y[1], even, y[3]), d = _mm512_permutex2var_ps(y[1], odd, y[3]);
        out[0] = _mm512_permutex2var_ps(a, even, c);
        out[1] = _mm512_permutex2var_ps(a, odd, c);
        out[2] = _mm512_permutex2var_ps(b, even, d);
        out[3] = _mm512_permutex2var_ps(b, odd, d);
    }
#pragma GCC unroll 4
    for (int i = 0; i < packed; i++) {
        const int left = packed * rows - 16 * i;
        _mm512_mask_storeu_ps(to + 16 * i, left >= 16 ? 0xffff : (__mmask16) ((1 << (left > 0 ? left : 0)) - 1),
                              out[i]);
    }
}

// The results of up to sixteen rows of a matrix whose rows are packed, one strip each.
K3_INLINE void sixteen_packed(struct job * job, enum ggml_type type, const uint8_t * w, int64_t first, int rows,
                              int packed) {
    for (int64_t i = 0; i < job->args->n_tokens * packed; i++) {
        job->y[i] = _mm512_setzero_ps();
    }
    panel_sums(job, type, w, rows, 0, 1);
    prefetch_lines(job, ADD_LINES(type));
    add_strip(job, type, 0, 0, STRIP, packed);
    for (int64_t t = 0; t < job->args->n_tokens; t++) {
        store_packed(job->y + t * packed, packed, rows, job->args->y[t] + first);
    }
}

// The results of up to sixteen rows.
K3_INLINE void sixteen_rows(struct job * job, enum ggml_type type, const uint8_t * w, int64_t first, int rows) {
    const struct k3_matmul_args * args = job->args;
    for (int64_t t = 0; t < args->n_tokens; t++) {
        job->y[t] = _mm512_setzero_ps();
    }
    for (int64_t from = 0; from < job->strips; from += job->panel) {
        const int64_t to = from + job->panel < job->strips ? from + job->panel : job->strips;
        panel_sums(job, type, w, rows, from, to);
        for (int64_t s = from; s < to; s++) {
            const int64_t blocks = job->blocks - s * STRIP;
            if (blocks >= STRIP) {
                prefetch_lines(job, ADD_LINES(type));
                add_strip(job, type, s, s - from, STRIP, 1);
            } else {
                add_strip(job, type, s, s - from, (int) blocks, 1);
            }
        }
    }
    for (int64_t t = 0; t < args->n_tokens; t++) {
        _mm512_mask_storeu_ps(args->y[t] + first, (__mmask16) ((1 << rows) - 1), job->y[t]);
    }
}

static int64_t strips_of(int64_t k) { return (k + BLOCK * STRIP - 1) / (BLOCK * STRIP); }

// A token's activations in the order of the weights.
K3_INLINE void order_acts(enum ggml_type type, const int8_t * act, int64_t k, struct strip_acts * strips) {
    const size_t quants = (size_t) (k + 127) / 128 * 128;
    const int64_t n     = strips_of(k);
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

// The most strips of a panel.
static int64_t panel_strips(int64_t strips, int64_t n_tokens) { return strips * n_tokens <= PANEL ? strips : 1; }

// The strips of a panel of this call. All: memory is read row by row, little ahead. One, where the sums of all would
// need too much cache: it is read sixteen rows ahead, which costs a call the time of its first sixteen rows. For Q8_0
// that is the faster way when the rows are many.
K3_INLINE int64_t choose_panel(const struct k3_matmul_args * args, enum ggml_type type, int64_t strips) {
    const bool many = args->last - args->first >= (strips <= SHORT ? LONG_SHORT : LONG);
    return !IS_MXFP4(type) && many ? 1 : panel_strips(strips, args->n_tokens);
}

// Memory is read ahead from here on, and the activations are put in order. most: results of a token in y.
K3_INLINE struct job start_job(const struct k3_matmul_args * args, enum ggml_type type, int64_t panel, int most) {
    const int64_t n = args->n_tokens, strips = strips_of(args->k);
    const uint8_t * w        = (const uint8_t *) args->w + (size_t) args->first * args->row_bytes;
    struct strip_acts * acts = args->scratch;
    __m512i * sums           = (__m512i *) (void *) (acts + n * strips);
    __m512 * y               = (__m512 *) (void *) (sums + panel * n * K3_STREAM_ROWS);
    struct job job           = {.args   = args,
                                .blocks = args->k / BLOCK,
                                .strips = strips,
                                .panel  = panel,
                                .quants = (size_t) (args->k + 127) / 128 * 128,
                                .w      = w,
                                .ahead  = w,
                                .end    = (const uint8_t *) args->w + (size_t) args->last * args->row_bytes,
                                .acts   = acts,
                                .sums   = sums,
                                .y      = y,
                                .scales = (uint8_t *) (void *) (y + n * most)};
    job.distance             = panel < strips ? K3_STREAM_ROWS * args->row_bytes
                                              : (strips <= SHORT ? AHEAD_SHORT : AHEAD) + 2 * args->row_bytes;
    prefetch_lines(&job, (int) (job.distance / 64));
    for (int64_t t = 0; t < n; t++) {
        order_acts(type, args->acts[t], args->k, acts + t * strips);
    }
    return job;
}

K3_INLINE void stream(const struct k3_matmul_args * args, enum ggml_type type) {
    const size_t stride = args->row_bytes;
    struct job job      = start_job(args, type, choose_panel(args, type, strips_of(args->k)), 1);
    const uint8_t * w   = job.w;
    for (int64_t row = args->first; row < args->last; row += K3_STREAM_ROWS, w += K3_STREAM_ROWS * stride) {
        const int64_t left = args->last - row;
        job.ahead          = w + job.distance;
        sixteen_rows(&job, type, w, row, left < K3_STREAM_ROWS ? (int) left : K3_STREAM_ROWS);
    }
}

// ---- short rows: one strip, of 2 or 4 rows that lie one behind the other if they are shorter ----------------

enum { WIDE = STRIP * BLOCK, WIDE_ACT = WIDE + 8 * STRIP, MOST_PACKED = 4 };  // k of such a row; bytes of its act row

static bool is_short(int64_t k) { return k == WIDE || k == WIDE / 2 || k == WIDE / 4; }

// The activations once for each of the rows.
static void repeat_act(const int8_t * act, int64_t k, int8_t * wide) {
    const size_t n = (size_t) k, scales = n / BLOCK * sizeof(float);
    for (size_t i = 0; i < WIDE / n; i++) {
        memcpy(wide + i * n, act, n);
        memcpy(wide + WIDE + i * scales, act + n, scales);
        memcpy(wide + WIDE + STRIP * sizeof(float) + i * scales, act + n + STRIP * sizeof(float), scales);
    }
}

// As `stream`; args->last - args->first is a multiple of `packed`, and rows lie one behind the other.
K3_INLINE void stream_packed(const struct k3_matmul_args * args, enum ggml_type type, int packed) {
    const int64_t n = args->n_tokens, rows = (args->last - args->first) / packed;
    const void * acts[K3_STREAM_TOKENS];
    int8_t * memory           = args->scratch;
    struct k3_matmul_args all = *args;
    for (int64_t t = 0; t < n; t++) {
        acts[t] = args->acts[t];
        if (packed > 1) {
            repeat_act(args->acts[t], args->k, memory);
            acts[t] = memory;
            memory += WIDE_ACT;
        }
    }
    all.row_bytes     = args->row_bytes * (size_t) packed;
    all.w             = (const uint8_t *) args->w + (size_t) args->first * args->row_bytes;
    all.k             = WIDE;
    all.first         = 0;
    all.last          = rows;
    all.acts          = acts;
    all.scratch       = memory;
    struct job job    = start_job(&all, type, 1, packed);
    const uint8_t * w = job.w;
    for (int64_t row = 0; row < rows; row += K3_STREAM_ROWS, w += K3_STREAM_ROWS * all.row_bytes) {
        job.ahead = w + job.distance;
        sixteen_packed(&job, type, w, args->first + row * packed,
                       rows - row < K3_STREAM_ROWS ? (int) (rows - row) : K3_STREAM_ROWS, packed);
    }
}

// Functions of their own: in one, GCC 12 keeps less in registers.
#define STREAM(name, type)                                                                                             \
    static __attribute__((noinline)) void name##_any(const struct k3_matmul_args * args) { stream(args, type); }       \
    static __attribute__((noinline)) void name##_1(const struct k3_matmul_args * args) {                               \
        stream_packed(args, type, 1);                                                                                  \
    }                                                                                                                  \
    static __attribute__((noinline)) void name##_2(const struct k3_matmul_args * args) {                               \
        stream_packed(args, type, 2);                                                                                  \
    }                                                                                                                  \
    static __attribute__((noinline)) void name##_4(const struct k3_matmul_args * args) {                               \
        stream_packed(args, type, 4);                                                                                  \
    }                                                                                                                  \
    static void (*const name[])(const struct k3_matmul_args *) = {name##_any, name##_1, name##_2, name##_4};
STREAM(mxfp4, GGML_TYPE_MXFP4)
STREAM(q8_0, GGML_TYPE_Q8_0)

// As many rows as can be packed, then the others. run: any rows, and those with 1, 2, 4 packed.
static void stream_any(const struct k3_matmul_args * args, size_t block_bytes,
                       void (*const run[4])(const struct k3_matmul_args * args)) {
    struct k3_matmul_args rest = *args;
    if (is_short(args->k) && args->row_bytes == (size_t) args->k / BLOCK * block_bytes) {
        const int64_t packed       = WIDE / args->k;
        struct k3_matmul_args even = *args;
        even.last = rest.first = args->first + (args->last - args->first) / packed * packed;
        run[packed == 4 ? 3 : packed](&even);
    }
    if (rest.first < rest.last) run[0](&rest);
}

size_t k3_matmul_stream_q_scratch_avx512(int64_t k, int64_t n_tokens) {
    const size_t n = (size_t) n_tokens, strips = (size_t) strips_of(k), most = is_short(k) ? MOST_PACKED : 1;
    const size_t panel = (size_t) panel_strips((int64_t) strips, n_tokens);
    return (is_short(k) ? n * WIDE_ACT : 0) + n * strips * sizeof(struct strip_acts) +
           (panel * K3_STREAM_ROWS + most) * n * sizeof(__m512i) + panel * 512;
}

void k3_matmul_stream_mxfp4_avx512(const struct k3_matmul_args * args) {
    stream_any(args, BLOCK_BYTES(GGML_TYPE_MXFP4), mxfp4);
}

void k3_matmul_stream_q8_0_avx512(const struct k3_matmul_args * args) {
    stream_any(args, BLOCK_BYTES(GGML_TYPE_Q8_0), q8_0);
}
