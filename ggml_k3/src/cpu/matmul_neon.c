// matmul_neon.c - the table of NEON kernels of matmul.h, for any 64-bit ARM: lanes are rows of the matrix, for few
// tokens and for many. Four rows of Q8_0 or MXFP4 go through their blocks together; a block's weights are unpacked once
// for all tokens.
#include <arm_neon.h>

#include "matmul_float_impl.h"

enum { ROWS = 4 };

struct block {
    int8x16_t low[ROWS], high[ROWS];  // values 0-15 and 16-31; MXFP4 doubled
    float32x4_t scale;
};

K3_INLINE struct block load_block(enum ggml_type type, const uint8_t * const rows[ROWS], int64_t b) {
    const int8x16_t codes = vld1q_s8(k3_mxfp4_doubled);
    struct block w;
    float scale[ROWS];
    for (int r = 0; r < ROWS; r++) {
        if (type == GGML_TYPE_MXFP4) {
            const uint8_t * p  = rows[r] + b * K3_MXFP4_BYTES;
            const uint8x16_t v = vld1q_u8(p + 1);
            w.low[r]           = vqtbl1q_s8(codes, vandq_u8(v, vdupq_n_u8(15)));
            w.high[r]          = vqtbl1q_s8(codes, vshrq_n_u8(v, 4));
            scale[r]           = k3_mxfp4_scale(p[0]);
        } else {
            const uint8_t * p = rows[r] + b * K3_Q8_0_BYTES;
            w.low[r]          = vreinterpretq_s8_u8(vld1q_u8(p + 2));
            w.high[r]         = vreinterpretq_s8_u8(vld1q_u8(p + 18));
            scale[r]          = k3_f16_to_float(p);
        }
    }
    w.scale = vld1q_f32(scale);
    return w;
}

// Dot products of the rows' blocks with q[32]. A sum of two products of 8 bits, |q| <= 127, fits into 16 bits.
K3_INLINE int32x4_t dot_block(const struct block * w, const int8_t * q) {
    const int8x16_t low = vld1q_s8(q), high = vld1q_s8(q + 16);
    int32x4_t sum[ROWS];
    for (int r = 0; r < ROWS; r++) {
        const int16x8_t a = vmull_s8(vget_low_s8(w->low[r]), vget_low_s8(low));
        const int16x8_t b = vmull_s8(vget_low_s8(w->high[r]), vget_low_s8(high));
        sum[r]            = vpaddlq_s16(vmlal_s8(a, vget_high_s8(w->low[r]), vget_high_s8(low)));
        sum[r]            = vpadalq_s16(sum[r], vmlal_s8(b, vget_high_s8(w->high[r]), vget_high_s8(high)));
    }
    return vpaddq_s32(vpaddq_s32(sum[0], sum[1]), vpaddq_s32(sum[2], sum[3]));
}

// sums[t] of the four rows; d and q of an act row: see matmul.h
K3_INLINE void dot_rows(enum ggml_type type, const uint8_t * const rows[ROWS], const struct k3_matmul_args * args,
                        int64_t n_tokens, float32x4_t * sums) {
    for (int64_t t = 0; t < n_tokens; t++) {
        sums[t] = vdupq_n_f32(0);
    }
    for (int64_t b = 0; b < args->k / K3_BLOCK; b++) {
        const struct block w = load_block(type, rows, b);
        for (int64_t t = 0; t < n_tokens; t++) {
            const struct k3_q8 act = k3_q8_parts(args->acts[t], args->k);
            const float32x4_t dot  = vcvtq_f32_s32(dot_block(&w, act.q + b * K3_BLOCK));
            sums[t]                = vfmaq_f32(sums[t], dot, vmulq_n_f32(w.scale, act.d[b]));
        }
    }
}

K3_INLINE void run_blocks(enum ggml_type type, const struct k3_matmul_args * args) {
    for (int64_t first = args->first; first < args->last; first += ROWS) {
        const int n = args->last - first < ROWS ? (int) (args->last - first) : ROWS;
        const uint8_t * rows[ROWS];  // behind the last row it is repeated
        for (int r = 0; r < ROWS; r++) {
            rows[r] = (const uint8_t *) args->w + (size_t) (first + (r < n ? r : n - 1)) * args->row_bytes;
        }
        float32x4_t one, *sums = args->n_tokens == 1 ? &one : args->scratch;
        if (args->n_tokens == 1) {
            dot_rows(type, rows, args, 1, &one);
        } else {
            dot_rows(type, rows, args, args->n_tokens, sums);
        }
        for (int64_t t = 0; t < args->n_tokens; t++) {
            memcpy(args->y[t] + first, &sums[t], (size_t) n * sizeof(float));
        }
    }
}

static size_t scratch(enum ggml_type type, int64_t k, int64_t n_tokens) {
    (void) k;
    return k3_matmul_kind(type) == K3_ACT_F32 ? float_scratch(n_tokens) : (size_t) n_tokens * sizeof(float32x4_t);
}

static void run(const struct k3_matmul_args * args) {
    switch (args->type) {
        case GGML_TYPE_MXFP4: run_blocks(GGML_TYPE_MXFP4, args); break;
        case GGML_TYPE_Q8_0: run_blocks(GGML_TYPE_Q8_0, args); break;
        default: run_float(args); break;
    }
}

const struct k3_matmul_kernels k3_matmul_neon = {k3_matmul_kind, k3_matmul_pack, scratch, run};
