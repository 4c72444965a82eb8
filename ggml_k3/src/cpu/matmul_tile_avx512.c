// matmul_tile_avx512.c - y = W x for many tokens: tiles of up to 12 rows by 64 tokens in registers.
//
// The activations of up to 64 tokens are interleaved into a panel, [dword of an act row][token], so that a vector holds
// one dword (a float, two bf16 or four bytes) of 16 tokens; one dword of a weight row is broadcast against it. A lane
// is thus one (row, token) and adds up by itself, in the order of matmul.h. F32 and BF16 weights are read where they
// lie; F16, Q8_0 and MXFP4 rows are unpacked a few at a time into a panel that all tokens of a chunk share.
//
//   chunk of tokens: panels of activations            ACT_BYTES
//     panel of rows: unpacked weights                 WEIGHT_BYTES
//       tile of 64 tokens: sums [row][token]          PANEL_ROWS * 256 bytes
//         block of K: its part of the tile's activations stays in L2 while the rows of the panel pass
//           group of rows: sums in registers
#include "matmul_avx512.h"
#include "transpose_avx512.h"

enum {
    LINE         = 64,
    TILE_TOKENS  = 64,
    PANEL_ROWS   = 48,  // at most; a multiple of every kernel's rows
    GROUP_ROWS   = 12,  // rows of unpacked bytes that lie interleaved
    FLOAT_ROWS   = 6,   // of the kernels that read rows of floats or bf16
    GROUP_BYTES  = GROUP_ROWS * 128,
    GROUP_SCALES = GROUP_ROWS * 4,
    BLOCK_BYTES  = 256 << 10,  // of a tile's activations in a block of K
    WEIGHT_BYTES = 256 << 10,
    ACT_BYTES    = 3 << 20,
};

#define UNROLL _Pragma("GCC unroll 16")

// What a kernel gets: the product of a group of rows with the tokens of a tile over a block of K.
struct step {
    const uint8_t * w;           // first row of the group
    size_t row_bytes;            // of floats, BF16: from one row to the next
    int64_t n_rows;              // of floats, BF16: rows that exist; further rows of the group repeat the last one
    const float * w_scales;      // of bytes: [n / 4][GROUP_ROWS][4], fp32 or, for MXFP4, the exponent
    const uint32_t * x;          // [dword][token]
    const int32_t * correction;  // of bytes: [n][token], what the sums start from
    const float * x_scales;      // of bytes: [n][token]
    int64_t n;                   // whole dwords of a row; of bytes: blocks of 32
    bool half;                   // of BF16: one more element follows
    float * acc;                 // [row of the group][token]
    size_t next;                 // of floats, BF16: bytes to the group to come
    const uint8_t * ahead;       // of bytes: weights to have in L2 soon
};

typedef void (*kernel_fn)(const struct step * step);

// How a type is multiplied. Kernels are indexed by the number of vectors of tokens - 1.
struct form {
    int64_t per_dword;      // elements of an act row in a dword
    int64_t panel_element;  // bytes of an unpacked weight; 0: the rows are used as they lie
    int32_t offset;         // of bytes: what unpacked weights have been raised by
    bool split;             // K3_ACT_Q8_SPLIT
    int64_t rows[4];        // of a kernel
    kernel_fn kernel[4];
    void (*unpack)(const uint8_t * row, int64_t k, int64_t in_panel, uint8_t * panel, float * scales);
};

K3_INLINE __m512i broadcast(const void * p) {
    int32_t dword;
    memcpy(&dword, p, sizeof(dword));
    return _mm512_set1_epi32(dword);
}

K3_INLINE __m512 multiply_bf16(__m512 acc, __m512i w, __m512i x) {
    return _mm512_dpbf16_ps(acc, (__m512bh) x, (__m512bh) w);
}

K3_INLINE __m512 multiply_f32(__m512 acc, __m512i w, __m512i x) {
    return _mm512_fmadd_ps(_mm512_castsi512_ps(w), _mm512_castsi512_ps(x), acc);
}

// FLOAT_ROWS rows of dwords, 16 * vectors tokens.
K3_INLINE void float_kernel(const struct step * step, const int vectors, __m512 (*multiply)(__m512, __m512i, __m512i)) {
    __m512 acc[FLOAT_ROWS][4];
    const uint8_t * w[FLOAT_ROWS];
    UNROLL for (int r = 0; r < FLOAT_ROWS; r++) {
        w[r] = step->w + (size_t) (r < step->n_rows ? r : step->n_rows - 1) * step->row_bytes;
        UNROLL for (int v = 0; v < vectors; v++) { acc[r][v] = _mm512_loadu_ps(step->acc + 16 * (r * vectors + v)); }
    }
    const uint32_t * x = step->x;
    for (int64_t i = 0; i < step->n; i++, x += 16 * vectors) {
        if (i % (LINE / 4) == 0) {
            UNROLL for (int r = 0; r < FLOAT_ROWS; r++) { __builtin_prefetch(w[r] + 4 * i + step->next, 0, 2); }
        }
        UNROLL for (int r = 0; r < FLOAT_ROWS; r++) {
            const __m512i dword = broadcast(w[r] + 4 * i);
            UNROLL for (int v = 0; v < vectors; v++) {
                acc[r][v] = multiply(acc[r][v], dword, _mm512_load_si512(x + 16 * v));
            }
        }
    }
    if (step->half) {
        UNROLL for (int r = 0; r < FLOAT_ROWS; r++) {
            uint16_t last;
            memcpy(&last, w[r] + 4 * step->n, sizeof(last));
            UNROLL for (int v = 0; v < vectors; v++) {
                acc[r][v] = multiply(acc[r][v], _mm512_set1_epi32(last), _mm512_load_si512(x + 16 * v));
            }
        }
    }
    UNROLL for (int r = 0; r < FLOAT_ROWS; r++) {
        UNROLL for (int v = 0; v < vectors; v++) { _mm512_storeu_ps(step->acc + 16 * (r * vectors + v), acc[r][v]); }
    }
}

static void bf16_kernel_1(const struct step * step) { float_kernel(step, 1, multiply_bf16); }
static void bf16_kernel_2(const struct step * step) { float_kernel(step, 2, multiply_bf16); }
static void bf16_kernel_3(const struct step * step) { float_kernel(step, 3, multiply_bf16); }
static void bf16_kernel_4(const struct step * step) { float_kernel(step, 4, multiply_bf16); }
static void f32_kernel_1(const struct step * step) { float_kernel(step, 1, multiply_f32); }
static void f32_kernel_2(const struct step * step) { float_kernel(step, 2, multiply_f32); }
static void f32_kernel_3(const struct step * step) { float_kernel(step, 3, multiply_f32); }
static void f32_kernel_4(const struct step * step) { float_kernel(step, 4, multiply_f32); }

// The intrinsic makes GCC 12 copy the accumulators.
K3_INLINE __m512i dot_bytes(__m512i acc, __m512i w, __m512i x) {
    __asm__("vpdpbusd %2, %1, %0" : "+v"(acc) : "v"(w), "v"(x));
    return acc;
}

K3_INLINE __m512 scale_product(__m512 x, __m512 w) { return _mm512_mul_ps(x, w); }
// x * 2^w, rounded once: the same as a product, on an execution unit that the dot products leave idle
K3_INLINE __m512 scale_power(__m512 x, __m512 w) { return _mm512_scalef_ps(x, w); }

// `rows` rows of bytes in blocks of 32, 16 * vectors tokens.
K3_INLINE void byte_kernel(const struct step * step, const int rows, const int vectors, const bool split,
                           const int block_bytes, __m512 (*scale)(__m512, __m512)) {
    // in the 128 bytes of four blocks: from one block to the next, from its first half to its second
    const int next = split ? 16 : 32, second = split ? 64 : 16;
    __m512 acc[12][4];
    UNROLL for (int r = 0; r < rows; r++) {
        UNROLL for (int v = 0; v < vectors; v++) { acc[r][v] = _mm512_loadu_ps(step->acc + 16 * (r * vectors + v)); }
    }
    const uint32_t * x         = step->x;
    const int32_t * correction = step->correction;
    const float * x_scales     = step->x_scales;
    const uint8_t * ahead      = step->ahead;
    for (int64_t b = 0; b < step->n; b++) {
        const uint8_t * w = step->w + b / 4 * GROUP_BYTES + b % 4 * next;
        const float * ws  = step->w_scales + b / 4 * GROUP_SCALES + b % 4;
        __m512i dot[12][4];
        UNROLL for (int v = 0; v < vectors; v++) {
            const __m512i start = _mm512_load_si512(correction + 16 * v);
            UNROLL for (int r = 0; r < rows; r++) { dot[r][v] = start; }
        }
        UNROLL for (int d = 0; d < 8; d++) {
            __m512i token[4];
            UNROLL for (int v = 0; v < vectors; v++) { token[v] = _mm512_load_si512(x + 16 * (d * vectors + v)); }
            UNROLL for (int r = 0; r < rows; r++) {
                const __m512i dword = broadcast(w + 128 * r + (d < 4 ? 4 * d : second + 4 * (d - 4)));
                UNROLL for (int v = 0; v < vectors; v++) { dot[r][v] = dot_bytes(dot[r][v], dword, token[v]); }
            }
        }
        UNROLL for (int v = 0; v < vectors; v++) {
            const __m512 xs = _mm512_load_ps(x_scales + 16 * v);
            UNROLL for (int r = 0; r < rows; r++) {
                const __m512 s = scale(xs, _mm512_set1_ps(ws[4 * r]));
                acc[r][v]      = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot[r][v]), s, acc[r][v]);
            }
        }
        UNROLL for (int i = 0; i < rows * block_bytes; i += LINE) { __builtin_prefetch(ahead + i, 0, 2); }
        ahead += rows * block_bytes;
        x += 8 * 16 * vectors;
        correction += 16 * vectors;
        x_scales += 16 * vectors;
    }
    UNROLL for (int r = 0; r < rows; r++) {
        UNROLL for (int v = 0; v < vectors; v++) { _mm512_storeu_ps(step->acc + 16 * (r * vectors + v), acc[r][v]); }
    }
}

static void q8_0_kernel_1(const struct step * step) { byte_kernel(step, 12, 1, false, 34, scale_product); }
static void q8_0_kernel_2(const struct step * step) { byte_kernel(step, 6, 2, false, 34, scale_product); }
static void q8_0_kernel_3(const struct step * step) { byte_kernel(step, 4, 3, false, 34, scale_product); }
static void q8_0_kernel_4(const struct step * step) { byte_kernel(step, 3, 4, false, 34, scale_product); }
static void mxfp4_kernel_1(const struct step * step) { byte_kernel(step, 12, 1, true, 17, scale_power); }
static void mxfp4_kernel_2(const struct step * step) { byte_kernel(step, 6, 2, true, 17, scale_power); }
static void mxfp4_kernel_3(const struct step * step) { byte_kernel(step, 4, 3, true, 17, scale_power); }
static void mxfp4_kernel_4(const struct step * step) { byte_kernel(step, 3, 4, true, 17, scale_power); }

// Where row `in_panel` of unpacked bytes begins, in units of 128 bytes or 4 scales: [group of rows][four blocks][row].
K3_INLINE size_t byte_row(int64_t k, int64_t in_panel) {
    return (size_t) (in_panel / GROUP_ROWS * ((k + 127) / 128) * GROUP_ROWS + in_panel % GROUP_ROWS);
}

static void unpack_q8_0(const uint8_t * row, int64_t k, int64_t in_panel, uint8_t * panel, float * scales) {
    uint8_t * q        = panel + 128 * byte_row(k, in_panel);
    float * s          = scales + 4 * byte_row(k, in_panel);
    const __m256i high = _mm256_set1_epi8((char) 0x80);
    for (int64_t b = 0; b < k / 32; b += 4, q += GROUP_BYTES, s += GROUP_SCALES) {
        uint64_t halves = 0;
        for (int i = 0; i < 4 && b + i < k / 32; i++, row += 34) {
            uint16_t half;
            memcpy(&half, row, sizeof(half));
            halves |= (uint64_t) half << 16 * i;
            const __m256i codes = _mm256_loadu_si256((const __m256i_u *) (row + 2));
            _mm256_store_si256((__m256i *) (q + 32 * i), _mm256_xor_si256(codes, high));
        }
        _mm_store_ps(s, _mm_cvtph_ps(_mm_cvtsi64_si128((long long) halves)));
    }
}

// Four blocks of 17 bytes, scale first, become 64 low and 64 high codes.
static void unpack_mxfp4(const uint8_t * row, int64_t k, int64_t in_panel, uint8_t * panel, float * scales) {
    uint8_t * q         = panel + 128 * byte_row(k, in_panel);
    float * s           = scales + 4 * byte_row(k, in_panel);
    const __m512i lane  = _mm512_set_epi8(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 15, 14, 13, 12, 11, 10,
                                          9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2,
                                          1, 0, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    const __m512i block = _mm512_set_epi32(0x34343434, 0x34343434, 0x34343434, 0x34343434, 0x23232323, 0x23232323,
                                           0x23232323, 0x23232323, 0x12121212, 0x12121212, 0x12121212, 0x12121212,
                                           0x01010101, 0x01010101, 0x01010101, 0x01010101);
    const __m512i codes = _mm512_add_epi8(lane, block);  // byte 17 j + 1 + i of the four blocks
    const __m512i exponents = _mm512_castsi128_si512(_mm_set_epi32(51, 34, 17, 0));
    // twice the values of E2M1, plus 12
    const __m512i values    = _mm512_broadcast_i32x4(
        _mm_set_epi8(0, 4, 6, 8, 9, 10, 11, 12, 24, 20, 18, 16, 15, 14, 13, 12));
    for (int64_t b = 0; b < k / 32; b += 4, row += 68, q += GROUP_BYTES, s += GROUP_SCALES) {
        const int64_t bytes = (k / 32 - b) * 17;
        const __mmask64 in  = bytes < 64 ? (1ull << bytes) - 1 : ~0ull;
        const __m512i raw   = _mm512_maskz_loadu_epi8(in, row);
        __m512i nibbles     = _mm512_permutexvar_epi8(codes, raw);
        if (bytes >= 68) {  // the last four lie behind the vector
            nibbles = _mm512_mask_broadcast_i32x4(nibbles, 0xf000, _mm_loadu_si128((const __m128i_u *) (row + 52)));
        }
        _mm512_store_si512(q, _mm512_permutexvar_epi8(nibbles, values));
        _mm512_store_si512(q + 64, _mm512_permutexvar_epi8(_mm512_srli_epi16(nibbles, 4), values));
        const __m512i at    = _mm512_maskz_permutexvar_epi8(0x1111, exponents, raw);
        const __m128i e     = _mm512_castsi512_si128(at);
        const __m128 power  = _mm_cvtepi32_ps(_mm_sub_epi32(e, _mm_set1_epi32(128)));
        const __mmask8 none = _mm_cmpeq_epi32_mask(e, _mm_set1_epi32(255));
        _mm_store_ps(s, _mm_mask_mov_ps(power, none, _mm_set1_ps(__builtin_nanf(""))));
    }
}

// Floats from one unpacked row to the next; not a multiple of 4 KB, where rows would share cache sets.
static int64_t f16_row(int64_t k) { return (k + 15) / 16 * 16 + 16; }

static void unpack_f16(const uint8_t * row, int64_t k, int64_t in_panel, uint8_t * panel, float * scales) {
    (void) scales;
    float * out = (float *) panel + in_panel * f16_row(k);
    for (int64_t i = 0; i < k; i += 16) {
        const __mmask16 in = k - i < 16 ? (__mmask16) ((1u << (k - i)) - 1) : 0xffff;
        _mm512_store_ps(out + i, _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(in, row + 2 * i)));
    }
}

static const struct form * form_of(enum ggml_type type) {
    static const struct form f32 = {
        .per_dword = 1, .rows = {6, 6, 6, 6}, .kernel = {f32_kernel_1, f32_kernel_2, f32_kernel_3, f32_kernel_4}};
    static const struct form f16  = {.per_dword     = 1,
                                     .panel_element = 4,
                                     .rows          = {6, 6, 6, 6},
                                     .unpack        = unpack_f16,
                                     .kernel        = {f32_kernel_1, f32_kernel_2, f32_kernel_3, f32_kernel_4}};
    static const struct form bf16 = {
        .per_dword = 2, .rows = {6, 6, 6, 6}, .kernel = {bf16_kernel_1, bf16_kernel_2, bf16_kernel_3, bf16_kernel_4}};
    static const struct form q8_0  = {.per_dword     = 4,
                                      .panel_element = 1,
                                      .offset        = 128,
                                      .rows          = {12, 6, 4, 3},
                                      .unpack        = unpack_q8_0,
                                      .kernel        = {q8_0_kernel_1, q8_0_kernel_2, q8_0_kernel_3, q8_0_kernel_4}};
    static const struct form mxfp4 = {.per_dword     = 4,
                                      .panel_element = 1,
                                      .offset        = 12,
                                      .split         = true,
                                      .rows          = {12, 6, 4, 3},
                                      .unpack        = unpack_mxfp4,
                                      .kernel = {mxfp4_kernel_1, mxfp4_kernel_2, mxfp4_kernel_3, mxfp4_kernel_4}};
    switch (type) {
        case GGML_TYPE_F32: return &f32;
        case GGML_TYPE_F16: return &f16;
        case GGML_TYPE_BF16: return &bf16;
        case GGML_TYPE_Q8_0: return &q8_0;
        default: return &mxfp4;
    }
}

static int64_t round_up(int64_t n, int64_t step) { return (n + step - 1) / step * step; }
static int64_t at_most(int64_t n, int64_t limit) { return n < limit ? n : limit; }

// How a call is cut up; a function of type, k and the number of tokens. No result depends on it.
struct plan {
    const struct form * form;
    int64_t k;
    int64_t dwords;       // of the row of a token in a panel, padded to 16
    int64_t blocks;       // K3_ACT_Q8: of sums and scales of a token, padded to 16
    int64_t step;         // elements of a block of K
    int64_t rows;         // of a panel
    int64_t tokens;       // of a chunk
    size_t acts_bytes;    // of a chunk
    size_t panel_bytes;   // of unpacked weights
    size_t scales_bytes;  // of unpacked weights
};

static struct plan plan_of(enum ggml_type type, int64_t k, int64_t n_tokens) {
    const struct form * form = form_of(type);
    const bool bytes         = form->per_dword == 4;
    struct plan plan         = {.form = form, .k = k};
    plan.dwords              = bytes ? round_up(k, 128) / 4 : round_up((k + form->per_dword - 1) / form->per_dword, 16);
    plan.blocks              = bytes ? round_up((k + 127) / 128 * 4, 16) : 0;
    plan.rows                = PANEL_ROWS;
    if (form->panel_element) {
        const int64_t groups = WEIGHT_BYTES / (k * form->panel_element * GROUP_ROWS);
        plan.rows            = groups < 1 ? GROUP_ROWS : at_most(groups * GROUP_ROWS, PANEL_ROWS);
    }
    const int64_t row = bytes ? round_up(k, 128) : f16_row(k) * form->panel_element;
    plan.panel_bytes  = (size_t) (row * plan.rows);
    plan.scales_bytes = bytes ? (size_t) (row / 32 * plan.rows) * sizeof(float) : 0;

    const int64_t token_bytes = 4 * (plan.dwords + 2 * plan.blocks);
    const int64_t tiles       = ACT_BYTES / (token_bytes * TILE_TOKENS);
    plan.tokens               = at_most(n_tokens, tiles < 1 ? TILE_TOKENS : tiles * TILE_TOKENS);
    plan.acts_bytes           = (size_t) (token_bytes * round_up(plan.tokens, LANES));
    // blocks of equal size; 128 elements keep the alignment of every panel
    const int64_t width       = 4 * at_most(round_up(plan.tokens, LANES), TILE_TOKENS);
    const int64_t n           = (plan.dwords * width + BLOCK_BYTES - 1) / BLOCK_BYTES;
    plan.step                 = round_up((k + n - 1) / n, 128);
    return plan;
}

// Dwords [0, n) from `offset` bytes into the rows of up to 16 tokens -> out[dword][token], `width` tokens apart;
// missing tokens are zeros. n is a multiple of 16. `split` puts the 32 dwords of four blocks into the blocks' order.
static void interleave(const void * const * acts, int64_t n_tokens, size_t offset, int64_t n, bool split, int64_t width,
                       uint32_t * out) {
    for (int64_t d = 0; d < n; d += 16) {
        __m512i m[16];
        UNROLL for (int t = 0; t < 16; t++) {
            const __mmask16 in = t < n_tokens ? 0xffff : 0;
            m[t] = _mm512_maskz_loadu_epi32(in, (const uint8_t *) acts[t < n_tokens ? t : 0] + offset + 4 * d);
        }
        k3_transpose_16x16(m, m);
        UNROLL for (int i = 0; i < 16; i++) {
            const int64_t to = split ? d / 32 * 32 + i / 4 * 8 + d % 32 / 4 + i % 4 : d + i;
            _mm512_store_si512(out + to * width, m[i]);
        }
    }
}

// The panel of a tile: [dword][token], then of bytes [block][token] of corrections and of scales.
static void pack_tile(const struct plan * plan, const void * const * acts, int64_t n_tokens, uint32_t * out) {
    const int64_t width = round_up(n_tokens, LANES);
    uint32_t *sums = out + plan->dwords * width, *scales = sums + plan->blocks * width;
    for (int64_t t = 0; t < n_tokens; t += LANES) {
        const int64_t n      = at_most(n_tokens - t, LANES);
        const size_t sums_at = (size_t) plan->dwords * 4 + (size_t) plan->blocks * 4;
        interleave(acts + t, n, 0, plan->dwords, plan->form->split, width, out + t);
        interleave(acts + t, n, (size_t) plan->dwords * 4, plan->blocks, false, width, scales + t);
        interleave(acts + t, n, sums_at, plan->blocks, false, width, sums + t);
    }
    for (int64_t i = 0; i < plan->blocks * width; i++) {
        sums[i] = (uint32_t) ((int32_t) sums[i] * -plan->form->offset);
    }
    if (plan->form->per_dword == 2 && plan->k % 2) {
        for (int64_t t = 0; t < width; t++) {
            out[plan->k / 2 * width + t] &= 0xffff;
        }
    }
}

// acc[row][token] -> y[token][row]
static void store_tile(const float * acc, int64_t width, int64_t n_rows, int64_t n_tokens, float * const * y,
                       int64_t first_row) {
    for (int64_t r = 0; r < n_rows; r += 16) {
        const __mmask16 rows = n_rows - r < 16 ? (__mmask16) ((1u << (n_rows - r)) - 1) : 0xffff;
        for (int64_t t = 0; t < n_tokens; t += LANES) {
            __m512i m[16];
            UNROLL for (int i = 0; i < 16; i++) { m[i] = _mm512_load_si512(acc + (r + i) * width + t); }
            k3_transpose_16x16(m, m);
            UNROLL for (int i = 0; i < 16; i++) {
                if (t + i < n_tokens) {
                    _mm512_mask_storeu_epi32(y[t + i] + first_row + r, rows, m[i]);
                }
            }
        }
    }
}

// A panel of rows and the tokens of one tile.
struct tile {
    const uint8_t * w;  // first row of the panel
    size_t row_bytes;
    const uint8_t * panel;  // unpacked
    const float * scales;
    int64_t n_rows;
    const uint32_t * acts;
    int64_t width;  // tokens, padded to 16
    float * acc;
    const uint8_t * ahead;
};

// All of K for a tile.
static void run_tile(const struct plan * plan, const struct tile * tile) {
    const struct form * form    = plan->form;
    const bool bytes            = form->per_dword == 4;
    const int64_t rows          = form->rows[tile->width / LANES - 1];
    const kernel_fn kernel      = form->kernel[tile->width / LANES - 1];
    const int32_t * corrections = (const int32_t *) tile->acts + plan->dwords * tile->width;
    const float * x_scales      = (const float *) corrections + plan->blocks * tile->width;
    const uint8_t * ahead       = tile->ahead;
    memset(tile->acc, 0, (size_t) (round_up(tile->n_rows, rows) * tile->width) * sizeof(float));
    for (int64_t k = 0; k < plan->k; k += plan->step) {
        const int64_t n  = at_most(plan->k - k, plan->step);
        struct step step = {
            .x          = tile->acts + k / form->per_dword * tile->width,
            .correction = corrections + k / 32 * tile->width,
            .x_scales   = x_scales + k / 32 * tile->width,
            .n          = bytes ? n / 32 : n / form->per_dword,
            .half       = !bytes && n % form->per_dword,
        };
        for (int64_t r = 0; r < tile->n_rows; r += rows) {
            step.acc    = tile->acc + r * tile->width;
            step.n_rows = tile->n_rows - r;
            if (bytes) {
                const size_t row = byte_row(plan->k, r) + (size_t) k / 128 * GROUP_ROWS;
                step.w           = tile->panel + 128 * row;
                step.w_scales    = tile->scales + 4 * row;
                step.ahead       = ahead;
                ahead += tile->row_bytes * (size_t) (n * rows) / (size_t) plan->k;
            } else if (form->panel_element) {
                step.row_bytes = (size_t) f16_row(plan->k) * 4;
                step.w         = tile->panel + (size_t) r * step.row_bytes + 4 * k;
            } else {
                step.row_bytes = tile->row_bytes;
                step.w         = tile->w + (size_t) r * step.row_bytes + 4 * k / form->per_dword;
            }
            step.next = FLOAT_ROWS * step.row_bytes;
            kernel(&step);
        }
    }
}

size_t k3_matmul_tile_scratch_avx512(enum ggml_type type, int64_t k, int64_t n_tokens) {
    const struct plan plan = plan_of(type, k, n_tokens);
    return plan.acts_bytes + plan.panel_bytes + plan.scales_bytes + PANEL_ROWS * TILE_TOKENS * sizeof(float);
}

void k3_matmul_tile_avx512(const struct k3_matmul_args * args) {
    const struct plan plan   = plan_of(args->type, args->k, args->n_tokens);
    const struct form * form = plan.form;
    uint8_t * acts           = args->scratch;
    uint8_t * panel          = acts + plan.acts_bytes;
    float * scales           = (float *) (panel + plan.panel_bytes);
    struct tile tile         = {.row_bytes = args->row_bytes, .panel = panel, .scales = scales};
    tile.acc                 = (float *) (panel + plan.panel_bytes + plan.scales_bytes);
    const size_t token_bytes = 4 * (size_t) (plan.dwords + 2 * plan.blocks);

    for (int64_t chunk = 0; chunk < args->n_tokens; chunk += plan.tokens) {
        const int64_t n_tokens = at_most(args->n_tokens - chunk, plan.tokens);
        for (int64_t t = 0; t < n_tokens; t += TILE_TOKENS) {
            pack_tile(&plan, args->acts + chunk + t, at_most(n_tokens - t, TILE_TOKENS),
                      (uint32_t *) (acts + token_bytes * (size_t) t));
        }
        for (int64_t r = args->first; r < args->last; r += plan.rows) {
            tile.w      = (const uint8_t *) args->w + args->row_bytes * (size_t) r;
            tile.n_rows = at_most(args->last - r, plan.rows);
            tile.ahead  = tile.w + args->row_bytes * (size_t) plan.rows;
            for (int64_t i = 0; form->unpack && i < tile.n_rows; i++) {
                form->unpack(tile.w + args->row_bytes * (size_t) i, plan.k, i, panel, scales);
            }
            for (int64_t t = 0; t < n_tokens; t += TILE_TOKENS) {
                const int64_t n = at_most(n_tokens - t, TILE_TOKENS);
                tile.acts       = (const uint32_t *) (acts + token_bytes * (size_t) t);
                tile.width      = round_up(n, LANES);
                run_tile(&plan, &tile);
                store_tile(tile.acc, tile.width, tile.n_rows, n, args->y + chunk + t, r);
            }
        }
    }
}
