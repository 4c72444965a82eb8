// matmul_stream_avx2.c - y = W x for Q8_0 and MXFP4 and few tokens, at the rate at which the weights come from memory.
//
// GROUP rows of the matrix at a time. First each row by itself, so that memory sees one linear stream: its integer dot
// products, one for each block and token, and its scales go to scratch. Then, lanes being rows, one fma for each block
// adds them up. The vector units are the narrow place: what can be done outside them is. Rows of half a chunk are taken
// two at a time.
#include "matmul_avx2.h"
#include "matmul_impl.h"

// CHUNK blocks of a row are taken at once: PAIRS registers hold half of block i in their low lane and half of block
// i + 4 in their high one.
enum { GROUP = 16, CHUNK = 8, PAIRS = 4, CHUNK_VALUES = CHUNK * K3_BLOCK };

// Memory is asked for LEAD bytes ahead, into L2: less does not last while the sums are made, and the first level has
// too few places for lines under way.
enum { LEAD = 12288 };

// One token's activations.
struct act {
    const float * d;         // [blocks]
    const int8_t * q;        // chunks of 8 x 32 values: low halves of pair 0, high halves, then of the next pair
    const int32_t * offset;  // [blocks], subtracted from MXFP4's dot products: its codes are unpacked as code + 12
    float * dots;            // [GROUP][stride] integer dot products
};

// What all tokens of a call share.
struct rows {
    int64_t blocks, stride;  // of a row; rounded up to a multiple of CHUNK, or PAIRS for `halves`
    void * scales;           // [stride][GROUP], as in the weights: E8M0 or fp16
    bool halves;             // PAIRS blocks in a row, the next row behind them: a chunk is two rows
};

struct halves {
    __m256i low[PAIRS], high[PAIRS];
};

K3_INLINE __m256i load_pair(const uint8_t * low, const uint8_t * high) {
    const __m256i v = _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *) low));
    return _mm256_inserti128_si256(v, _mm_loadu_si128((const __m128i *) high), 1);
}

// The weights of a chunk; MXFP4 as doubled codes plus 12.
K3_INLINE struct halves load_weights(enum ggml_type type, const uint8_t * chunk) {
    const __m256i codes = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
    const __m256i nibble = _mm256_set1_epi8(15);
    struct halves w;
#pragma GCC unroll 4
    for (int i = 0; i < PAIRS; i++) {
        if (type == GGML_TYPE_MXFP4) {
            const uint8_t * a = chunk + i * K3_MXFP4_BYTES + 1;
            const __m256i v   = load_pair(a, a + PAIRS * K3_MXFP4_BYTES);
            w.low[i]          = _mm256_shuffle_epi8(codes, _mm256_and_si256(v, nibble));
            w.high[i]         = _mm256_shuffle_epi8(codes, _mm256_and_si256(_mm256_srli_epi16(v, 4), nibble));
        } else {
            const uint8_t * a = chunk + i * K3_Q8_0_BYTES + 2;
            w.low[i]          = load_pair(a, a + PAIRS * K3_Q8_0_BYTES);
            w.high[i]         = load_pair(a + 16, a + 16 + PAIRS * K3_Q8_0_BYTES);
        }
    }
    return w;
}

// Lanes a0 + a2, b0 + b2, a1 + a3, b1 + b3, each of two numbers of 16 bits or one of 32. Cheaper than an instruction
// that adds neighbours.
K3_INLINE __m256i add_columns_32(__m256i a, __m256i b, bool pairs) {
    const __m256i x = _mm256_unpacklo_epi32(a, b), y = _mm256_unpackhi_epi32(a, b);
    return pairs ? _mm256_add_epi16(x, y) : _mm256_add_epi32(x, y);
}

// Lanes a0 + a2, a1 + a3, b0 + b2, b1 + b3
K3_INLINE __m256i add_columns_64(__m256i a, __m256i b) {
    return _mm256_add_epi32(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
}

// Dot products of the chunk's blocks. MXFP4: a sum of four products of codes up to 24 is at most 12192 and fits twice
// into 16 bits. Q8_0: |w| <= 128 takes part as unsigned, its sign goes to q, |q| <= 127; a sum of two products fits
// into 16 bits.
K3_INLINE __m256i dot_chunk(enum ggml_type type, const struct halves * w, const int8_t * q) {
    const __m256i ones = _mm256_set1_epi16(1);
    __m256i sum[PAIRS];
#pragma GCC unroll 4
    for (int i = 0; i < PAIRS; i++) {
        const __m256i low  = _mm256_load_si256((const __m256i *) (q + 64 * i));
        const __m256i high = _mm256_load_si256((const __m256i *) (q + 64 * i + 32));
        if (type == GGML_TYPE_MXFP4) {
            sum[i] = _mm256_add_epi16(_mm256_maddubs_epi16(w->low[i], low), _mm256_maddubs_epi16(w->high[i], high));
        } else {
            const __m256i a = _mm256_maddubs_epi16(_mm256_abs_epi8(w->low[i]), _mm256_sign_epi8(low, w->low[i]));
            const __m256i b = _mm256_maddubs_epi16(_mm256_abs_epi8(w->high[i]), _mm256_sign_epi8(high, w->high[i]));
            sum[i]          = _mm256_add_epi32(_mm256_madd_epi16(a, ones), _mm256_madd_epi16(b, ones));
        }
    }
    if (type == GGML_TYPE_MXFP4) {
        return add_columns_64(_mm256_madd_epi16(add_columns_32(sum[0], sum[1], true), ones),
                              _mm256_madd_epi16(add_columns_32(sum[2], sum[3], true), ones));
    }
    return add_columns_64(add_columns_32(sum[0], sum[1], false), add_columns_32(sum[2], sum[3], false));
}

// Scales and dot products of the chunk that begins with block `first` of row r of the group, or is rows r and r + 1.
K3_INLINE void take_chunk(enum ggml_type type, bool halves, const uint8_t * chunk, const struct rows * rows, int r,
                          int64_t first, const struct act * acts, int n_tokens) {
#pragma GCC unroll 8
    for (int i = 0; i < CHUNK; i++) {
        const int64_t at = halves ? i % PAIRS * GROUP + r + i / PAIRS : (first + i) * GROUP + r;
        if (type == GGML_TYPE_MXFP4) {
            ((uint8_t *) rows->scales)[at] = chunk[i * K3_MXFP4_BYTES];
        } else {
            memcpy((uint16_t *) rows->scales + at, chunk + i * K3_Q8_0_BYTES, sizeof(uint16_t));
        }
    }
    const struct halves w = load_weights(type, chunk);
    for (int t = 0; t < n_tokens; t++) {
        __m256i dot = dot_chunk(type, &w, acts[t].q + first * K3_BLOCK);
        if (type == GGML_TYPE_MXFP4) {
            dot = _mm256_sub_epi32(dot, _mm256_loadu_si256((const __m256i *) (acts[t].offset + first)));
        }
        _mm256_storeu_ps(acts[t].dots + r * rows->stride + first, _mm256_cvtepi32_ps(dot));
    }
}

// `n` rows, from row r of the group on: one, or two that make a chunk.
K3_INLINE void take_rows(enum ggml_type type, bool halves, const uint8_t * row, const struct rows * rows, int r, int n,
                         const struct act * acts, int n_tokens) {
    const size_t block   = type == GGML_TYPE_MXFP4 ? K3_MXFP4_BYTES : K3_Q8_0_BYTES;
    const int64_t blocks = n * rows->blocks, full = blocks / CHUNK * CHUNK, rest = blocks - full;
    for (int64_t first = 0; first < full; first += CHUNK) {
        const uint8_t * chunk = row + (size_t) first * block;
#pragma GCC unroll 5
        for (size_t line = 0; line < block * CHUNK; line += 64) {
            _mm_prefetch((const char *) chunk + LEAD + line, _MM_HINT_T1);
        }
        take_chunk(type, halves, chunk, rows, r, first, acts, n_tokens);
    }
    if (rest) {  // no load may reach behind the row
        uint8_t chunk[CHUNK * K3_Q8_0_BYTES] = {0};
        memcpy(chunk, row + (size_t) full * block, (size_t) rest * block);
        take_chunk(type, halves, chunk, rows, r, full, acts, n_tokens);
    }
}

K3_INLINE void take_group(enum ggml_type type, const uint8_t * row, size_t row_bytes, const struct rows * rows, int n,
                          const struct act * acts, int n_tokens) {
    if (rows->halves) {
        for (int r = 0; r < n; r += 2, row += 2 * row_bytes) {
            take_rows(type, true, row, rows, r, r + 1 < n ? 2 : 1, acts, n_tokens);
        }
        return;
    }
    for (int r = 0; r < n; r++, row += row_bytes) {
        take_rows(type, false, row, rows, r, 1, acts, n_tokens);
    }
}

// out[i] lane r = p[r * stride + i] for eight rows and a chunk of blocks
K3_INLINE void load_transposed(const float * p, int64_t stride, __m256 out[CHUNK]) {
#pragma GCC unroll 8
    for (int r = 0; r < 8; r++) {
        out[r] = _mm256_loadu_ps(p + r * stride);
    }
    k3_transpose(out);
}

// The scales of block b of eight rows. `ordinary`: all E8M0 scales of the group are 2 to 254.
K3_INLINE __m256 load_scales(enum ggml_type type, bool ordinary, const struct rows * rows, int64_t b, int row) {
    if (type != GGML_TYPE_MXFP4) {
        const uint16_t * half = (const uint16_t *) rows->scales + b * GROUP + row;
        return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) half));
    }
    const uint8_t * bytes = (const uint8_t *) rows->scales + b * GROUP + row;
    const __m256i e       = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *) bytes));
    const __m256i normal  = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
    if (ordinary) {
        return _mm256_castsi256_ps(normal);
    }
    // as k3_mxfp4_scale; all ones are NaN too
    const __m256i small = _mm256_sllv_epi32(_mm256_set1_epi32(0x200000), e);
    const __m256i bits  = _mm256_blendv_epi8(normal, small, _mm256_cmpgt_epi32(_mm256_set1_epi32(2), e));
    const __m256i nan   = _mm256_cmpeq_epi32(e, _mm256_set1_epi32(255));
    return _mm256_castsi256_ps(_mm256_or_si256(bits, nan));
}

static bool scales_are_ordinary(const struct rows * rows) {
    __m128i low = _mm_set1_epi8(2), high = _mm_set1_epi8(-2);
    for (int64_t b = 0; b < rows->blocks; b++) {
        const __m128i e = _mm_loadu_si128((const __m128i *) ((const uint8_t *) rows->scales + b * GROUP));
        low             = _mm_min_epu8(low, e);
        high            = _mm_max_epu8(high, e);
    }
    const __m128i both = _mm_and_si128(_mm_cmpeq_epi8(low, _mm_set1_epi8(2)), _mm_cmpeq_epi8(high, _mm_set1_epi8(-2)));
    return _mm_movemask_epi8(both) == 0xffff;
}

// out[GROUP] of one token
K3_INLINE void add_up(enum ggml_type type, bool ordinary, const struct rows * rows, const struct act * act,
                      float out[GROUP]) {
    __m256 sum[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    for (int64_t first = 0; first < rows->blocks; first += CHUNK) {
        const int n = rows->blocks - first < CHUNK ? (int) (rows->blocks - first) : CHUNK;
        __m256 dot[2][CHUNK];
        load_transposed(act->dots + first, rows->stride, dot[0]);
        load_transposed(act->dots + 8 * rows->stride + first, rows->stride, dot[1]);
        for (int i = 0; i < n; i++) {
            const __m256 d = _mm256_broadcast_ss(act->d + first + i);
#pragma GCC unroll 2
            for (int half = 0; half < 2; half++) {
                const __m256 scale = load_scales(type, ordinary, rows, first + i, 8 * half);
                sum[half]          = _mm256_fmadd_ps(dot[half][i], _mm256_mul_ps(scale, d), sum[half]);
            }
        }
    }
    _mm256_storeu_ps(out, sum[0]);
    _mm256_storeu_ps(out + 8, sum[1]);
}

K3_INLINE void run(enum ggml_type type, const struct k3_matmul_args * args, const struct rows * rows,
                   const struct act * acts, int n_tokens) {
    for (int64_t first = args->first; first < args->last; first += GROUP) {
        const int n         = args->last - first < GROUP ? (int) (args->last - first) : GROUP;
        const uint8_t * row = (const uint8_t *) args->w + (size_t) first * args->row_bytes;
        take_group(type, row, args->row_bytes, rows, n, acts, n_tokens);
        const bool ordinary = type != GGML_TYPE_MXFP4 || scales_are_ordinary(rows);
        for (int t = 0; t < n_tokens; t++) {
            float sum[GROUP];
            if (ordinary) {
                add_up(type, true, rows, &acts[t], sum);
            } else {
                add_up(type, false, rows, &acts[t], sum);
            }
            memcpy(args->y[t] + first, sum, (size_t) n * sizeof(float));
        }
    }
}

static int64_t padded_blocks(int64_t k) { return (k / K3_BLOCK + CHUNK - 1) / CHUNK * CHUNK; }

// Scales of GROUP rows; for each token q, offset and the dots of GROUP rows
size_t k3_matmul_stream_scratch_avx2(int64_t k, int64_t n_tokens) {
    const size_t blocks = (size_t) padded_blocks(k);
    return blocks *
           (GROUP * sizeof(uint16_t) + (size_t) n_tokens * (K3_BLOCK + sizeof(int32_t) + GROUP * sizeof(float)));
}

// Fills in a token's act, from its act row and at *space, which moves on. `halves`: the row's blocks twice.
static struct act arrange(const void * act_row, int64_t k, bool halves, uint8_t ** space) {
    const struct k3_q8 a = k3_q8_parts(act_row, k);
    const int64_t blocks = padded_blocks(k);
    int8_t * q           = (int8_t *) *space;
    float * dots         = (float *) (q + blocks * K3_BLOCK);
    int32_t * offset     = (int32_t *) (dots + blocks * GROUP);
    *space               = (uint8_t *) (offset + blocks);
    memset(q, 0, (size_t) (blocks * K3_BLOCK));
    for (int64_t at = 0; at < (halves ? CHUNK : k / K3_BLOCK); at++) {
        const int64_t chunk = at / CHUNK, i = at % CHUNK, b = halves ? at % PAIRS : at;
        int8_t * half = q + chunk * CHUNK_VALUES + i % PAIRS * 64 + i / PAIRS * 16;
        memcpy(half, a.q + b * K3_BLOCK, 16);
        memcpy(half + 32, a.q + b * K3_BLOCK + 16, 16);
    }
    for (int64_t b = 0; b < blocks; b++) {
        offset[b] = 12 * a.sum[halves ? b % PAIRS : b];
    }
    return (struct act) {a.d, q, offset, dots};
}

void k3_matmul_stream_avx2(const struct k3_matmul_args * args) {
    const int n_tokens   = (int) args->n_tokens;
    const size_t block   = args->type == GGML_TYPE_MXFP4 ? K3_MXFP4_BYTES : K3_Q8_0_BYTES;
    const int64_t padded = padded_blocks(args->k);
    struct rows rows     = {args->k / K3_BLOCK, padded, args->scratch, false};
    uint8_t * space      = (uint8_t *) rows.scales + (size_t) (GROUP * padded) * sizeof(uint16_t);
    struct act acts[K3_STREAM_MOST];
    if (rows.blocks == PAIRS && args->row_bytes == PAIRS * block) {
        rows.halves = true;
        rows.stride = PAIRS;
    }
    for (int t = 0; t < n_tokens; t++) {
        acts[t] = arrange(args->acts[t], args->k, rows.halves, &space);
    }
    if (args->type == GGML_TYPE_MXFP4) {
        n_tokens == 1 ? run(GGML_TYPE_MXFP4, args, &rows, acts, 1) : run(GGML_TYPE_MXFP4, args, &rows, acts, n_tokens);
    } else {
        n_tokens == 1 ? run(GGML_TYPE_Q8_0, args, &rows, acts, 1) : run(GGML_TYPE_Q8_0, args, &rows, acts, n_tokens);
    }
}
