// bench.c - rates of a table of matmul.h on one core, in turns with ggml's kernels, a plain read and the peaks of the
// AVX2 units: medians of all turns.
//
//   bench TYPE TOKENS [ROWS COLUMNS [SECONDS]]     TYPE: f32 f16 bf16 q8_0 mxfp4
//
// Weights lie in a pool of 512 MiB, larger than any cache, and are passed over in turn.
#define _GNU_SOURCE
#include "ggml-cpu.h"
#include "matmul.h"

#include <immintrin.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { MAX_TOKENS = 512, MAX_TURNS = 4000, WAYS = 5 };

static const size_t pool_size = (size_t) 512 << 20;
static uint8_t * pool;
static volatile int sink;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double) t.tv_sec + 1e-9 * (double) t.tv_nsec;
}

static void * pages(size_t size) {
    const size_t huge = (size_t) 2 << 20;
    void * p          = aligned_alloc(huge, (size + huge - 1) / huge * huge);
    madvise(p, size, MADV_HUGEPAGE);
    memset(p, 1, size);
    return p;
}

static void plain_read(const uint8_t * p, size_t size) {
    __m256i sum[4] = {0};
    for (size_t i = 0; i + 256 <= size; i += 256) {
#pragma GCC unroll 4
        for (size_t j = 0; j < 4; j++) {
            _mm_prefetch((const char *) p + i + 4096 + 64 * j, _MM_HINT_T0);
        }
#pragma GCC unroll 4
        for (size_t j = 0; j < 4; j++) {
            const __m256i * line = (const __m256i *) (p + i + 64 * j);
            sum[j]               = _mm256_xor_si256(sum[j], _mm256_loadu_si256(line));
            sum[j]               = _mm256_xor_si256(sum[j], _mm256_loadu_si256(line + 1));
        }
    }
    sum[0] = _mm256_xor_si256(_mm256_xor_si256(sum[0], sum[1]), _mm256_xor_si256(sum[2], sum[3]));
    sink   = _mm256_extract_epi32(sum[0], 0);
}

enum { PEAK_STEPS = 20000 };

// 12 fma in flight; 16 operations each
static void peak_fma(void) {
    __m256 sum[12] = {0};
    const __m256 x = _mm256_set1_ps(1), y = x;
    for (int i = 0; i < PEAK_STEPS; i++) {
#pragma GCC unroll 12
        for (int j = 0; j < 12; j++) {
            __asm__ volatile("vfmadd231ps %1, %2, %0" : "+x"(sum[j]) : "x"(x), "x"(y));
        }
    }
#pragma GCC unroll 12
    for (int j = 1; j < 12; j++) {
        sum[0] = _mm256_add_ps(sum[0], sum[j]);
    }
    sink = (int) _mm256_cvtss_f32(sum[0]);
}

// 8 byte products with an addition in 16 bits, or 8 products of 16 bits with an addition in 32
static void peak_int(bool bytes) {
    __m256i sum[8] = {0}, x = _mm256_set1_epi8(1), y = x;
    for (int i = 0; i < PEAK_STEPS; i++) {
#pragma GCC unroll 8
        for (int j = 0; j < 8; j++) {
            __asm__ volatile("" : "+x"(x), "+x"(y));
            sum[j] = bytes ? _mm256_add_epi16(sum[j], _mm256_maddubs_epi16(x, y))
                           : _mm256_add_epi32(sum[j], _mm256_madd_epi16(x, y));
        }
    }
#pragma GCC unroll 8
    for (int j = 1; j < 8; j++) {
        sum[0] = _mm256_add_epi32(sum[0], sum[j]);
    }
    sink = _mm256_extract_epi32(sum[0], 0);
}

// Random weights of ordinary size: no scale or value is subnormal, inf or NaN.
static void fill(enum ggml_type type) {
    const size_t step = type == GGML_TYPE_MXFP4 ? 17 : type == GGML_TYPE_Q8_0 ? 34 : type == GGML_TYPE_F32 ? 4 : 2;
    uint32_t state    = 1;
    for (size_t i = 0; i + step <= pool_size; i += step) {
        for (size_t j = 0; j < step; j++) {
            state       = state * 1664525 + 1013904223;
            pool[i + j] = (uint8_t) (state >> 24);
        }
        uint8_t * top = pool + i + (type == GGML_TYPE_MXFP4 ? 0 : type == GGML_TYPE_F32 ? 3 : 1);
        *top          = type == GGML_TYPE_MXFP4 ? 118 + (*top & 7) : (uint8_t) ((*top & 0x81) | 0x2c);
    }
}

static int by_value(const void * a, const void * b) {
    const double x = *(const double *) a, y = *(const double *) b;
    return (x > y) - (x < y);
}

struct peer {
    struct ggml_tensor *w, *y;
    struct ggml_cgraph * graph;
    struct ggml_cplan plan;
};

static struct peer make_peer(enum ggml_type type, int64_t rows, int64_t k, int64_t n_tokens, const float * x) {
    struct ggml_context * ctx  = ggml_init((struct ggml_init_params) {(size_t) 256 << 20, NULL, false});
    struct ggml_tensor * input = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, k, n_tokens);
    memcpy(input->data, x, (size_t) (k * n_tokens) * sizeof(float));
    struct peer p = {.w = ggml_new_tensor_2d(ctx, type, k, rows), .graph = ggml_new_graph(ctx)};
    p.y           = ggml_mul_mat(ctx, p.w, input);
    ggml_build_forward_expand(p.graph, p.y);
    struct ggml_threadpool_params params = ggml_threadpool_params_default(1);
    p.plan                               = ggml_graph_plan(p.graph, 1, ggml_threadpool_new(&params));
    p.plan.work_data                     = malloc(p.plan.work_size + 64);
    return p;
}

int main(int argc, char ** argv) {
    static const char * names[]         = {"f32", "f16", "bf16", "q8_0", "mxfp4"};
    static const enum ggml_type types[] = {GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_Q8_0,
                                           GGML_TYPE_MXFP4};
    enum ggml_type type                 = GGML_TYPE_COUNT;
    for (int i = 0; i < 5 && argc > 2; i++) {
        type = strcmp(argv[1], names[i]) ? type : types[i];
    }
    if (type == GGML_TYPE_COUNT) {
        return 1;
    }
    const int64_t n = atoi(argv[2]), rows = argc > 4 ? atoi(argv[3]) : 3072, k = argc > 4 ? atoi(argv[4]) : 3584;
    const double seconds = argc > 5 ? atof(argv[5]) : 4;
    const size_t size = ggml_row_size(type, k) * (size_t) rows, matrices = pool_size / size;
    const struct k3_matmul_kernels * table = &TABLE;
    pool                                   = pages(pool_size + 4096);
    fill(type);
    float * x = malloc((size_t) (n * k) * sizeof(float));
    for (int64_t i = 0; i < n * k; i++) {
        x[i] = (float) (i * 2654435761u % 1000003) / 500000 - 1;
    }
    void * acts[MAX_TOKENS];
    float * y[MAX_TOKENS];
    for (int64_t t = 0; t < n; t++) {
        acts[t] = pages(k3_act_size(table->kind(type), k));
        y[t]    = malloc((size_t) rows * sizeof(float));
    }
    struct k3_matmul_args args = {type, pool, ggml_row_size(type, k),      k, 0,
                                  rows, n,    (const void * const *) acts, y, pages(table->scratch(type, k, n) + 64)};
    struct peer peer           = make_peer(type, rows, k, n, x);
    static double rate[WAYS][MAX_TURNS];
    int turns          = 0;
    const double start = now(), gb = (double) size * 1e-9, ops = 2e-9 * (double) (rows * k * n);
    for (size_t at = 0; turns < MAX_TURNS && now() - start < seconds; turns++, at = (at + 1) % matrices) {
        const double t0 = now();
        plain_read(pool + at * size, size);
        const double t1 = now();
        at              = (at + matrices / 3) % matrices;
        args.w          = pool + at * size;
        for (int64_t t = 0; t < n; t++) {
            table->pack(table->kind(type), x + t * k, k, acts[t]);
        }
        table->run(&args);
        const double t2 = now();
        at              = (at + matrices / 3) % matrices;
        peer.w->data    = pool + at * size;
        ggml_graph_compute(peer.graph, &peer.plan);
        const double t3 = now();
        peak_fma();
        const double t4 = now();
        peak_int(type == GGML_TYPE_MXFP4);
        const double t5 = now();
        rate[0][turns]  = gb / (t1 - t0);
        rate[1][turns]  = t2 - t1;
        rate[2][turns]  = t3 - t2;
        rate[3][turns]  = 12 * 16e-9 * PEAK_STEPS / (t4 - t3);
        rate[4][turns]  = 8 * (type == GGML_TYPE_MXFP4 ? 64e-9 : 32e-9) * PEAK_STEPS / (t5 - t4);
    }
    for (int i = 0; i < WAYS; i++) {
        qsort(rate[i], (size_t) turns, sizeof(double), by_value);
    }
    const double ours = rate[1][turns / 2], theirs = rate[2][turns / 2];
    printf("%-5s N=%-3d turns %-4d read %4.1f GB/s | ours %5.1f GB/s %6.1f GF/s | ggml %5.1f GB/s %6.1f GF/s | %.2fx | "
           "peak fma %.0f int %.0f\n",
           argv[1], (int) n, turns, rate[0][turns / 2], gb / ours, ops / ours, gb / theirs, ops / theirs, theirs / ours,
           rate[3][turns / 2], rate[4][turns / 2]);
    return 0;
}
