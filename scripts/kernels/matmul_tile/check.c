// check.c - k3_matmul_tile_avx512 against a scalar form of the order in matmul.h (equal bits) and against float64.
// Weights, act rows and scratch end at a page that may not be read; results are poisoned and fenced.
//
//   gcc -O2 -march=native -I$GGML check.c ../../../ggml_k3/src/cpu/matmul_tile_avx512.c -o check -lm
#include "common.h"

enum { FENCE = 32 };

// `size` bytes that end (aligned to 64, if `align`) at a page without access.
static uint8_t * guarded(size_t size, bool align, void ** base, size_t * mapped) {
    const size_t page = 4096, used = align ? (size + 63) / 64 * 64 : size;
    *mapped = (used + page - 1) / page * page + page;
    *base   = mmap(NULL, *mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mprotect((uint8_t *) *base + *mapped - page, page, PROT_NONE);
    memset(*base, 0xff, *mapped - page);
    return (uint8_t *) *base + *mapped - page - used;
}

static double weight(enum ggml_type type, const uint8_t * row, int64_t i) {
    static const double values[16] = {0, .5, 1, 1.5, 2, 3, 4, 6, -0., -.5, -1, -1.5, -2, -3, -4, -6};
    uint16_t h;
    float x;
    if (type == GGML_TYPE_F32) {
        memcpy(&x, row + 4 * i, 4);
        return x;
    }
    if (type == GGML_TYPE_Q8_0) {
        memcpy(&h, row + i / 32 * 34, 2);
        return (double) _cvtsh_ss(h) * (int8_t) row[i / 32 * 34 + 2 + i % 32];
    }
    if (type == GGML_TYPE_MXFP4) {
        const uint8_t * block = row + i / 32 * 17;
        const int code        = i % 32 < 16 ? block[1 + i % 16] & 15 : block[1 + i % 16] >> 4;
        return block[0] == 255 ? NAN : ldexp(values[code], block[0] - 127);
    }
    memcpy(&h, row + 2 * i, 2);
    const uint32_t bits = (uint32_t) h << 16;
    memcpy(&x, &bits, 4);
    return type == GGML_TYPE_F16 ? _cvtsh_ss(h) : x;
}

static double activation(enum ggml_type type, const void * act, int64_t k, int64_t i) {
    const enum k3_act_kind kind = kind_of(type);
    if (kind == K3_ACT_F32) {
        return ((const float *) act)[i];
    }
    if (kind == K3_ACT_BF16) {
        const uint32_t bits = (uint32_t) ((const uint16_t *) act)[i] << 16;
        float x;
        memcpy(&x, &bits, 4);
        return x;
    }
    const float * d = (const float *) ((const int8_t *) act + (k + 127) / 128 * 128);
    return (double) d[i / 32] * ((const int8_t *) act)[act_index(kind, i)];
}

// The product in the stated order, one element at a time.
static float in_order(enum ggml_type type, const uint8_t * row, const void * act, int64_t k) {
    const enum k3_act_kind kind = kind_of(type);
    float acc                   = 0;
    if (kind == K3_ACT_F32) {
        for (int64_t i = 0; i < k; i++) {
            acc = fmaf((float) weight(type, row, i), ((const float *) act)[i], acc);
        }
        return acc;
    }
    if (kind == K3_ACT_BF16) {
        __m128 sum = _mm_setzero_ps();
        for (int64_t i = 0; i < k; i += 2) {
            uint16_t w[8] = {0}, x[8] = {0};
            memcpy(w, row + 2 * i, k - i < 2 ? 2 : 4);
            memcpy(x, (const uint16_t *) act + i, k - i < 2 ? 2 : 4);
            sum = _mm_dpbf16_ps(sum, (__m128bh) _mm_loadu_si128((void *) x), (__m128bh) _mm_loadu_si128((void *) w));
        }
        return _mm_cvtss_f32(sum);
    }
    const float * d = (const float *) ((const int8_t *) act + (k + 127) / 128 * 128);
    for (int64_t b = 0; b < k / 32; b++) {
        const uint8_t * block = row + b * (type == GGML_TYPE_Q8_0 ? 34 : 17);
        double unit;
        uint16_t h;
        memcpy(&h, block, 2);
        unit        = type == GGML_TYPE_Q8_0 ? (double) _cvtsh_ss(h) : block[0] == 255 ? NAN : ldexp(1, block[0] - 128);
        int32_t dot = 0;
        for (int64_t i = 0; i < 32; i++) {
            // codes: the weight by its unit; ldexp(1, ...) alone is exact, so is this quotient
            const double code = type == GGML_TYPE_Q8_0 ? (double) (int8_t) block[2 + i]
                                : block[0] == 255      ? 0
                                                       : weight(type, row, 32 * b + i) / unit;
            dot += (int32_t) code * ((const int8_t *) act)[act_index(kind, 32 * b + i)];
        }
        acc = fmaf((float) dot, (float) unit * d[b], acc);
    }
    return acc;
}

static int wrong;
static double worst[64];

static void check(enum ggml_type type, int64_t rows, int64_t k, int64_t n_tokens, bool extremes) {
    enum { FIRST = 2, AFTER = 1 };
    const size_t row_bytes = row_size(type, k), act_bytes = k3_act_size(kind_of(type), k);
    void *w_base, *x_base, *s_base;
    size_t w_size, x_size, s_size;
    uint8_t * w = guarded(row_bytes * (size_t) (FIRST + rows), false, &w_base, &w_size);
    uint8_t * x = guarded(act_bytes * (size_t) n_tokens, true, &x_base, &x_size);
    void * s    = guarded(k3_matmul_tile_scratch_avx512(type, k, n_tokens), true, &s_base, &s_size);
    for (int64_t r = 0; r < FIRST + rows; r++) {
        random_row(type, k, w + (size_t) r * row_bytes);
        if (extremes && type == GGML_TYPE_MXFP4) {
            static const uint8_t edge[8]                                 = {0, 1, 2, 3, 250, 253, 254, 255};
            w[(size_t) r * row_bytes + rnd() % (uint64_t) (k / 32) * 17] = edge[rnd() % 8];
        }
    }
    const void ** acts = malloc(sizeof(*acts) * (size_t) n_tokens);
    float ** y         = malloc(sizeof(*y) * (size_t) n_tokens);
    const size_t y_row = FENCE + (size_t) (FIRST + rows + AFTER) + FENCE;
    float * y_all      = malloc(sizeof(float) * y_row * (size_t) n_tokens);
    memset(y_all, 0xff, sizeof(float) * y_row * (size_t) n_tokens);
    for (int64_t t = 0; t < n_tokens; t++) {
        random_act(type, k, x + (size_t) t * act_bytes);
        if (extremes) {
            static const float edge[6]     = {0, 1e-39f, 1e-45f, 1e-30f, 3e38f, NAN};
            float * d                      = (float *) (x + (size_t) t * act_bytes + (k + 127) / 128 * 128);
            d[rnd() % (uint64_t) (k / 32)] = edge[rnd() % 6];
        }
        acts[t] = x + (size_t) (n_tokens - 1 - t) * act_bytes;
        y[t]    = y_all + (size_t) t * y_row + FENCE;
    }
    k3_matmul_tile_avx512(&(struct k3_matmul_args) {.type      = type,
                                                    .w         = w,
                                                    .row_bytes = row_bytes,
                                                    .k         = k,
                                                    .first     = FIRST,
                                                    .last      = FIRST + rows,
                                                    .n_tokens  = n_tokens,
                                                    .acts      = acts,
                                                    .y         = y,
                                                    .scratch   = s});
    double error = 0, norm = 0;
    for (int64_t t = 0; t < n_tokens; t++) {
        for (int64_t r = -FENCE; r < FIRST + rows + AFTER + FENCE; r++) {
            uint32_t bits;
            memcpy(&bits, y[t] + r, 4);
            if (r < FIRST || r >= FIRST + rows) {
                wrong += bits != 0xffffffff;
                continue;
            }
            // every element of small cases, a sample of large ones
            if (rows * n_tokens * k > 2000000 && rnd() % 64) {
                continue;
            }
            const uint8_t * row  = w + (size_t) r * row_bytes;
            const float expected = in_order(type, row, acts[t], k);
            if (memcmp(&expected, y[t] + r, 4) && !(isnan(expected) && isnan(y[t][r]) && bits != 0xffffffff)) {
                if (wrong++ < 5) {
                    printf("type %d rows %d k %d T %d: row %d token %d: %.9g, expected %.9g\n", type, (int) rows,
                           (int) k, (int) n_tokens, (int) r, (int) t, (double) y[t][r], (double) expected);
                }
            }
            double exact = 0;
            for (int64_t i = 0; i < k; i++) {
                exact += weight(type, row, i) * activation(type, acts[t], k, i);
            }
            if (!extremes) {
                error += (exact - (double) y[t][r]) * (exact - (double) y[t][r]);
                norm += exact * exact;
            }
        }
    }
    if (norm > 0 && sqrt(error / norm) > worst[type]) {
        worst[type] = sqrt(error / norm);
    }
    munmap(w_base, w_size);
    munmap(x_base, x_size);
    munmap(s_base, s_size);
    free(acts);
    free(y);
    free(y_all);
}

int main(void) {
    static const struct {
        enum ggml_type type;
        const char * name;
    } types[]                   = {{GGML_TYPE_F32, "F32"},
                                   {GGML_TYPE_F16, "F16"},
                                   {GGML_TYPE_BF16, "BF16"},
                                   {GGML_TYPE_Q8_0, "Q8_0"},
                                   {GGML_TYPE_MXFP4, "MXFP4"}};
    static const int64_t rows[] = {1, 3, 17, 100}, tokens[] = {1, 2, 15, 16, 17, 33, 48, 63, 64, 65, 130, 600};
    static const int64_t whole[]  = {1, 2, 3, 33, 128, 1023, 1056, 7200},
                         blocks[] = {32, 64, 96, 128, 160, 512, 1056, 7200};
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        for (int r = 0; r < 4; r++) {
            for (int k = 0; k < 8; k++) {
                for (int t = 0; t < 12; t++) {
                    const bool bytes = kind_of(types[i].type) >= K3_ACT_Q8;
                    check(types[i].type, rows[r], bytes ? blocks[k] : whole[k], tokens[t], false);
                    if (bytes) {
                        check(types[i].type, rows[r], blocks[k], tokens[t], true);
                    }
                }
            }
        }
        printf("%-5s relative rms error against float64: %.1e\n", types[i].name, worst[types[i].type]);
    }
    printf("%s: %d elements wrong\n", wrong ? "FAILED" : "passed", wrong);
    return wrong != 0;
}
