// check.c - the AVX-512 matmul kernels for few tokens and the packing: bits against scalar code that follows matmul.h
// and against the tile form, no load behind the matrix, no store outside the results.
//
// Not to be compiled with -mavx512vnni at -O3: GCC 12 then takes the scalar (int8_t) w * q for unsigned times signed.
#define _GNU_SOURCE
#include "matmul_avx512.h"

#include <immintrin.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { T = K3_STREAM_TOKENS, GUARD = 16 };  // floats on both sides of the results

static const int codes[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
static double worst;  // error against float64, in parts of the sum of magnitudes
static int failures;

#define FAIL(...)                                                                                                      \
    do {                                                                                                               \
        if (failures++ < 20) printf(__VA_ARGS__);                                                                      \
    } while (0)

static uint32_t rnd(void) {
    static uint64_t state = 88172645463325252ULL;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t) (state >> 16);
}

static float random_float(void) { return (float) (rnd() & 0xffffff) / 8388608.0f - 1.0f; }

// Bytes that end at a page without access; never freed.
static void * fenced(size_t n) {
    const size_t page = 4096, size = (n + page - 1) / page * page;
    uint8_t * p = mmap(0, size + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mprotect(p + size, page, PROT_NONE);
    return p + size - n;
}

static void unfence(void * p, size_t n) {
    const size_t page = 4096, size = (n + page - 1) / page * page;
    munmap((uint8_t *) p + n - size, size + page);
}

static float float_of(enum ggml_type type, const uint8_t * p) {
    uint32_t bits = 0;
    memcpy(&bits, p, type == GGML_TYPE_F32 ? 4 : 2);
    if (type == GGML_TYPE_F16) return _cvtsh_ss((uint16_t) bits);
    if (type == GGML_TYPE_BF16) bits <<= 16;
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

static int same(float a, float b) { return (a != a && b != b) || memcmp(&a, &b, 4) == 0; }

static int is_blocks(enum ggml_type type) { return type == GGML_TYPE_MXFP4 || type == GGML_TYPE_Q8_0; }

static size_t row_size(enum ggml_type type, int64_t k) {
    if (is_blocks(type)) return (size_t) (k / 32 * (type == GGML_TYPE_MXFP4 ? 17 : 34));
    return (size_t) (k * (type == GGML_TYPE_F32 ? 4 : 2));
}

static int64_t place(enum ggml_type type, int64_t block, int i) {  // of a value in q
    return type == GGML_TYPE_Q8_0 ? 32 * block + i : block / 4 * 128 + i / 16 * 64 + block % 4 * 16 + i % 16;
}

// `hard`: scales and magnitudes at the ends of their ranges, -128; 2: NaN scales as well
static void fill_weights(enum ggml_type type, uint8_t * w, size_t n, int hard) {
    static const uint8_t odd[] = {0, 1, 2, 253, 254, 255};
    for (size_t i = 0; i < n; i++) {
        w[i] = (uint8_t) rnd();
    }
    const size_t step = type == GGML_TYPE_MXFP4 ? 17 : type == GGML_TYPE_Q8_0 ? 34 : type == GGML_TYPE_F32 ? 4 : 2;
    for (size_t i = 0; i < n; i += step) {
        if (type == GGML_TYPE_MXFP4) {
            w[i] = hard ? odd[rnd() % (hard == 1 ? 5 : 6)] : (uint8_t) (118 + rnd() % 8);
        } else if (type == GGML_TYPE_Q8_0) {
            w[i + 1] = hard ? w[i + 1] & 0xbf : 0x20 | (w[i + 1] & 0x83);
            if (hard) memset(w + i + 2, 0x80, 5);
        } else if (type == GGML_TYPE_F16) {
            w[i + 1] &= 0xbf;
        } else {
            w[i + step - 1] = (uint8_t) (0x3f - rnd() % 2 + (rnd() & 128));
        }
    }
}

static void fill_acts(float * x, int64_t k, int token, int hard) {
    static const float sizes[] = {3, 1e-30f, 1e20f};
    for (int64_t i = 0; i < k; i++) {
        x[i] = random_float() * (hard ? sizes[token % 3] : 3);
    }
    if (hard && k >= 64) {
        memset(x, 0, 32 * sizeof(float));
        if (token == 3) x[40] = INFINITY;
        if (token == 4) x[33] = NAN;
    }
}

static void check_q8(enum ggml_type type, const float * x, int64_t k, const int8_t * q) {
    const int64_t kp = (k + 127) / 128 * 128, blocks = (kp / 32 + 15) / 16 * 16;
    const float * d     = (const float *) (const void *) (q + kp);
    const int32_t * sum = (const int32_t *) (const void *) (d + blocks);
    for (int64_t b = 0; b < blocks; b++) {
        float largest = 0;
        int good = 1, total = 0, bad = 0;
        for (int64_t i = 32 * b; i < 32 * b + 32 && i < k; i++) {
            good &= isfinite(x[i]) != 0;
            largest = fmaxf(largest, fabsf(x[i]));
        }
        const float scale = good ? largest / 127.0f : NAN;
        for (int i = 0; i < 32 && 32 * b < kp; i++) {
            const int want = 32 * b < k && scale > 0 ? (int) nearbyintf(x[32 * b + i] / scale) : 0;
            bad |= q[place(type, b, i)] != want;
            total += want;
        }
        if (bad || !same(scale, d[b]) || sum[b] != total)
            FAIL("type %d k %d: block %d packed\n", type, (int) k, (int) b);
    }
}

static void check_pack(enum ggml_type type, const float * x, int64_t k, const void * act) {
    if (is_blocks(type)) {
        check_q8(type, x, k, act);
    } else if (type != GGML_TYPE_BF16) {
        if (memcmp(act, x, (size_t) k * 4) != 0) FAIL("type %d k %d packed\n", type, (int) k);
    } else {
        for (int64_t i = 0; i < k; i++) {
            uint32_t bits;
            memcpy(&bits, x + i, 4);
            bits               = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
            const uint16_t got = ((const uint16_t *) act)[i];
            if (x[i] == x[i] && fabsf(x[i]) > 1e-37f && bits != got) FAIL("bf16 packed\n");
        }
    }
}

// A result in the order of matmul.h, and in float64.
static float scalar(enum ggml_type type, const uint8_t * w, int64_t k, const void * act, double * exact,
                    double * size) {
    float y = 0;
    *exact = *size      = 0;
    const int64_t steps = is_blocks(type) ? k / 32 : k;
    for (int64_t b = 0; b < steps; b++) {
        float a, x;
        if (is_blocks(type)) {
            const int8_t * q  = act;
            const uint8_t * p = w + b * (type == GGML_TYPE_MXFP4 ? 17 : 34);
            int sum           = 0;
            for (int i = 0; i < 32; i++) {
                const int weight = type == GGML_TYPE_Q8_0 ? (int8_t) p[2 + i]
                                                          : codes[i < 16 ? p[1 + i] & 15 : p[i - 15] >> 4];
                sum += weight * q[place(type, b, i)];
            }
            const float scale = type == GGML_TYPE_Q8_0 ? float_of(GGML_TYPE_F16, p)
                                : p[0] == 255          ? NAN
                                                       : ldexpf(1, p[0] - 128);
            const float d     = ((const float *) (const void *) (q + (k + 127) / 128 * 128))[b];
            y                 = fmaf((float) sum, scale * d, y);
            a                 = (float) sum;
            x                 = scale * d;
        } else {
            a = float_of(type, w + b * (type == GGML_TYPE_F32 ? 4 : 2));
            x = type == GGML_TYPE_BF16 ? float_of(type, (const uint8_t *) act + 2 * b) : ((const float *) act)[b];
            y = fmaf(a, x, y);
        }
        *exact += (double) a * x;
        *size += fabs((double) a * x);
    }
    return y;
}

static void compare(const struct k3_matmul_args * args, float * const * tile, int64_t rows) {
    for (int64_t t = 0; t < args->n_tokens; t++) {
        for (int64_t r = -GUARD; r < rows + GUARD; r++) {
            const float got    = args->y[t][r];
            const int expected = r >= args->first && r < args->last;
            if (!expected) {
                if (got == got) FAIL("type %d: row %d of %d written\n", args->type, (int) r, (int) rows);
                continue;
            }
            double exact, size;
            const uint8_t * w = (const uint8_t *) args->w + (size_t) r * args->row_bytes;
            const float want  = scalar(args->type, w, args->k, args->acts[t], &exact, &size);
            const int ordered = args->type != GGML_TYPE_BF16;  // scalar has no pairs
            if ((ordered && !same(want, got)) || !same(tile[t][r], got)) {
                FAIL("type %d k %d, %d tokens, row %d of %d: %g, scalar %g, tile %g\n", args->type, (int) args->k,
                     (int) args->n_tokens, (int) r, (int) rows, got, want, tile[t][r]);
            }
            if (size < 1e-30 || !(size < 1e37)) continue;
            const double error = fabs(exact - got) / size;
            if (error > worst) worst = error;
            if (!(error < 2e-6)) FAIL("type %d: error %g\n", args->type, error);
        }
    }
}

static void check(enum ggml_type type, int64_t rows, int64_t k, int hard) {
    const enum k3_act_kind kind = k3_matmul_avx512.kind(type);
    const size_t row_bytes = row_size(type, k), act_bytes = k3_act_size(kind, k);
    const size_t results = (size_t) (rows + 2 * GUARD) * sizeof(float);
    uint8_t * w          = fenced(row_bytes * (size_t) rows);
    float * x            = fenced((size_t) k * sizeof(float));
    void * acts[T];
    float *memory[2][T], *y[2][T];
    fill_weights(type, w, row_bytes * (size_t) rows, hard);
    for (int t = 0; t < T; t++) {
        acts[t] = memset(aligned_alloc(64, act_bytes), 0xff, act_bytes);
        fill_acts(x, k, t, hard);
        k3_matmul_avx512.pack(kind, x, k, acts[t]);
        check_pack(type, x, k, acts[t]);
        for (int i = 0; i < 2; i++) {
            memory[i][t] = malloc(results);
            y[i][t]      = memory[i][t] + GUARD;
        }
    }
    for (int n = 1; n <= T; n++) {
        struct k3_matmul_args args = {type, w, row_bytes, k, 0, rows, n, (const void * const *) acts, NULL, NULL};
        if (n % 3 == 2 && rows > 2) args.first = 1;
        if (n % 3 == 1 && rows > 3) args.last = rows - 2;
        const size_t sizes[2] = {k3_matmul_stream_scratch_avx512(type, k, n),
                                 k3_matmul_tile_scratch_avx512(type, k, n)};
        for (int i = 1; i >= 0; i--) {
            const size_t size = (sizes[i] + 127) / 64 * 64;
            uint8_t * scratch = memset(aligned_alloc(64, size), 0xff, size);
            for (int t = 0; t < n; t++) {
                memset(memory[i][t], 0xff, results);  // NaN
            }
            args.y       = y[i];
            args.scratch = scratch;
            (i == 0 ? k3_matmul_stream_avx512 : k3_matmul_tile_avx512)(&args);
            if (scratch[sizes[i]] != 0xff) FAIL("type %d: scratch too small\n", type);
            free(scratch);
        }
        compare(&args, y[1], rows);
    }
    for (int t = 0; t < T; t++) {
        free(acts[t]);
        free(memory[0][t]);
        free(memory[1][t]);
    }
    unfence(w, row_bytes * (size_t) rows);
    unfence(x, (size_t) k * sizeof(float));
}

int main(void) {
    static const enum ggml_type types[] = {GGML_TYPE_MXFP4, GGML_TYPE_Q8_0, GGML_TYPE_BF16, GGML_TYPE_F16,
                                           GGML_TYPE_F32};
    static const int rows[]             = {1, 2, 3, 15, 16, 17, 33, 100, 300};
    for (int t = 0; t < 5; t++) {
        worst = 0;
        for (int i = 0; i < 9 * 3; i++) {
            const int m = rows[i / 3], many = m > 33;
            for (int blocks = 1; blocks <= 33; blocks += many ? 8 : 1) {
                check(types[t], m, 32 * blocks, i % 3);
            }
            for (int k = 1; k < 100 && !is_blocks(types[t]); k += many ? 9 : 1) {
                check(types[t], m, k, i % 3);
            }
        }
        check(types[t], 20, 3584, 0);
        check(types[t], 20, 7168, 0);
        printf("type %d: error %.1e, failures so far %d\n", types[t], worst, failures);
    }
    return failures != 0;
}
