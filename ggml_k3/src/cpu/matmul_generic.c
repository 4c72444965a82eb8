// matmul_generic.c - kernels of matmul.h in plain C: ROWS rows of the matrix at a time are unpacked into scratch, then
// every token's dot products with them are taken.
#include "matmul_impl.h"

enum { ROWS = 4 };  // as many sums run side by side, each in its own order

static size_t aligned(size_t size) { return (size + 63) / 64 * 64; }

// Scratch: weights as floats [ROWS][k], or as int8 [ROWS][k] and scales [ROWS][k / 32].
static size_t values_size(enum ggml_type type, int64_t k) {
    return aligned(ROWS * (size_t) k * (k3_matmul_kind(type) == K3_ACT_F32 ? sizeof(float) : sizeof(int8_t)));
}

static size_t scratch(enum ggml_type type, int64_t k, int64_t n_tokens) {
    (void) n_tokens;
    return values_size(type, k) + aligned(ROWS * (size_t) (k / K3_BLOCK) * sizeof(float));
}

static void unpack_float(enum ggml_type type, const uint8_t * row, int64_t k, float * out) {
    if (type == GGML_TYPE_F32) {
        memcpy(out, row, (size_t) k * sizeof(float));
        return;
    }
    for (int64_t i = 0; i < k; i++) {
        out[i] = type == GGML_TYPE_BF16 ? k3_bf16_to_float(row + 2 * i) : k3_f16_to_float(row + 2 * i);
    }
}

static void unpack_blocks(enum ggml_type type, const uint8_t * row, int64_t k, int8_t * out, float * scale) {
    for (int64_t b = 0; b < k / K3_BLOCK; b++, out += K3_BLOCK) {
        if (type == GGML_TYPE_Q8_0) {
            const uint8_t * block = row + b * K3_Q8_0_BYTES;
            scale[b]              = k3_f16_to_float(block);
            memcpy(out, block + 2, K3_BLOCK);
            continue;
        }
        const uint8_t * block = row + b * K3_MXFP4_BYTES;
        scale[b]              = k3_mxfp4_scale(block[0]);
        for (int i = 0; i < K3_BLOCK / 2; i++) {
            out[i]                = k3_mxfp4_doubled[block[1 + i] & 15];
            out[i + K3_BLOCK / 2] = k3_mxfp4_doubled[block[1 + i] >> 4];
        }
    }
}

// out[r] = dot product of row r of w [ROWS][k] with x
static void dot_float(const float * w, const float * x, int64_t k, float out[ROWS]) {
    float sum[ROWS] = {0};
    for (int64_t i = 0; i < k; i++) {
        for (int r = 0; r < ROWS; r++) {
            const float product = w[r * k + i] * x[i];
            sum[r]              = sum[r] + product;
        }
    }
    memcpy(out, sum, sizeof(sum));
}

static void dot_blocks(const int8_t * w, const float * scale, const void * act, int64_t k, float out[ROWS]) {
    const struct k3_q8 a = k3_q8_parts(act, k);
    const int64_t blocks = k / K3_BLOCK;
    float sum[ROWS]      = {0};
    for (int64_t b = 0; b < blocks; b++) {
        const int8_t * q = a.q + b * K3_BLOCK;
        for (int r = 0; r < ROWS; r++) {
            const int8_t * v = w + r * k + b * K3_BLOCK;
            int32_t dot      = 0;
            for (int i = 0; i < K3_BLOCK; i++) {
                dot += v[i] * q[i];
            }
            const float both    = scale[r * blocks + b] * a.d[b];
            const float product = (float) dot * both;
            sum[r]              = sum[r] + product;
        }
    }
    memcpy(out, sum, sizeof(sum));
}

static void run(const struct k3_matmul_args * args) {
    const bool floats = k3_matmul_kind(args->type) == K3_ACT_F32;
    void * values     = args->scratch;
    float * scale     = (float *) ((uint8_t *) args->scratch + values_size(args->type, args->k));
    for (int64_t first = args->first; first < args->last; first += ROWS) {
        for (int r = 0; r < ROWS; r++) {  // behind the last row it is repeated
            const int64_t m     = first + r < args->last ? first + r : args->last - 1;
            const uint8_t * row = (const uint8_t *) args->w + (size_t) m * args->row_bytes;
            if (floats) {
                unpack_float(args->type, row, args->k, (float *) values + r * args->k);
            } else {
                unpack_blocks(args->type, row, args->k, (int8_t *) values + r * args->k,
                              scale + r * (args->k / K3_BLOCK));
            }
        }
        const int64_t rows = args->last - first < ROWS ? args->last - first : ROWS;
        for (int64_t t = 0; t < args->n_tokens; t++) {
            float sum[ROWS];
            if (floats) {
                dot_float(values, args->acts[t], args->k, sum);
            } else {
                dot_blocks(values, scale, args->acts[t], args->k, sum);
            }
            memcpy(args->y[t] + first, sum, (size_t) rows * sizeof(float));
        }
    }
}

const struct k3_matmul_kernels k3_matmul_generic = {k3_matmul_kind, k3_matmul_pack, scratch, run};
