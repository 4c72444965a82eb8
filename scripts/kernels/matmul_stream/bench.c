// bench.c - rate of the AVX-512 matmul kernels for few tokens beside a plain read of the same bytes, one thread or two.
//
//     bench TYPE ROWS K POOL_MB THREADS [ROWS_PER_CALL]
//
// TYPE: mxfp4, q8_0, bf16, f16, f32. Matrices are taken in turn from a pool, so that POOL_MB decides where they lie.
// Reads and products alternate, medians of 21 are printed; GB/s are bytes of weights.
#define _GNU_SOURCE
#include "matmul_avx512.h"

#include <immintrin.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { REPEATS = 21, MOST = 40 };  // matrices of one measurement

static const struct {
    const char * name;
    enum ggml_type type;
    int block, bytes, scale_at, scale;  // scale_at: of the byte to fix in each block, so that sums stay finite
} types[] = {{"mxfp4", GGML_TYPE_MXFP4, 32, 17, 0, 120},
             {"q8_0", GGML_TYPE_Q8_0, 32, 34, 1, 0x20},
             {"bf16", GGML_TYPE_BF16, 1, 2, 1, 0x3f},
             {"f16", GGML_TYPE_F16, 1, 2, 1, 0x3b},
             {"f32", GGML_TYPE_F32, 1, 4, 3, 0x3f}};

struct bench {
    struct k3_matmul_args args;
    const uint8_t * pool;
    size_t matrix;  // bytes
    int64_t rows, rows_per_call;
    int matrices, first, count, threads;
    void * scratch[2];
    void (*work)(struct bench *, int thread);
    pthread_barrier_t start, end;
};

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double) t.tv_sec + 1e-9 * (double) t.tv_nsec;
}

static void * allocate(size_t n) {
    const size_t page = (size_t) 2 << 20, size = (n + page) / page * page;
    uint8_t * p = mmap(0, size + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    p += page - (uintptr_t) p % page;
    madvise(p, size, MADV_HUGEPAGE);
    memset(p, 0, size);
    return p;
}

static void read_all(struct bench * b, int thread) {
    const size_t part = b->matrix * (size_t) b->count / (size_t) b->threads / 256 * 256;
    const uint8_t * p = b->pool + b->matrix * (size_t) b->first + part * (size_t) thread;
    __m512i sum[4]    = {_mm512_setzero_si512()};
    for (size_t i = 0; i < part; i += 256) {
        for (int j = 0; j < 4; j++) {
            _mm_prefetch((const char *) p + i + 2048 + 64 * j, _MM_HINT_T0);
            sum[j] = _mm512_xor_si512(sum[j], _mm512_loadu_si512(p + i + 64 * j));
        }
    }
    __asm__ volatile("" ::"v"(sum[0]), "v"(sum[1]), "v"(sum[2]), "v"(sum[3]));
}

static void multiply(struct bench * b, int thread) {
    const int64_t part = b->rows / b->threads, from = part * thread, to = from + part;
    for (int i = 0; i < b->count; i++) {
        for (int64_t row = from; row < to; row += b->rows_per_call) {
            struct k3_matmul_args args = b->args;
            args.w                     = b->pool + (size_t) (b->first + i) * b->matrix;
            args.first                 = row;
            args.last                  = row + b->rows_per_call < to ? row + b->rows_per_call : to;
            args.scratch               = b->scratch[thread];
            k3_matmul_stream_avx512(&args);
        }
    }
}

static void pin(int cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    sched_setaffinity(0, sizeof(set), &set);
}

static void * second_thread(void * data) {
    struct bench * b = data;
    pin(1);
    for (;;) {
        pthread_barrier_wait(&b->start);
        if (b->work == NULL) return NULL;
        b->work(b, 1);
        pthread_barrier_wait(&b->end);
    }
}

static double seconds(struct bench * b, void (*work)(struct bench *, int)) {
    const int times = b->matrix * (size_t) b->matrices < (8u << 20) ? 20 : 1;
    b->work         = work;
    const double t  = now();
    for (int i = 0; i < times; i++) {
        if (b->threads > 1) pthread_barrier_wait(&b->start);
        work(b, 0);
        if (b->threads > 1) pthread_barrier_wait(&b->end);
    }
    return (now() - t) / times;
}

static int by_size(const void * a, const void * b) {
    const double x = *(const double *) a, y = *(const double *) b;
    return (x > y) - (x < y);
}

int main(int argc, char ** argv) {
    static const int tokens[] = {1, 2, 4, 8};
    static double time[5][REPEATS];
    int t = 0;
    while (t < 5 && argc > 5 && strcmp(types[t].name, argv[1]) != 0) {
        t++;
    }
    if (argc < 6 || t == 5) return fprintf(stderr, "bench TYPE ROWS K POOL_MB THREADS [ROWS_PER_CALL]\n"), 1;
    struct bench b   = {.rows = atoi(argv[2]), .threads = atoi(argv[5])};
    const int64_t k  = atoi(argv[3]);
    b.args           = (struct k3_matmul_args) {.type = types[t].type, .k = k};
    b.args.row_bytes = (size_t) (k / types[t].block * types[t].bytes);
    b.matrix         = b.args.row_bytes * (size_t) b.rows;
    b.matrices       = (int) (atof(argv[4]) * 1e6 / (double) b.matrix);
    if (b.matrices < 1) b.matrices = 1;
    b.count         = b.matrices < MOST ? b.matrices : MOST;
    b.rows_per_call = argc > 6 ? atoi(argv[6]) : b.rows;
    uint8_t * pool  = allocate(b.matrix * (size_t) b.matrices);
    for (size_t i = 0; i < b.matrix * (size_t) b.matrices; i++) {
        const int at = (int) (i % (size_t) types[t].bytes);
        pool[i]      = (uint8_t) (at == types[t].scale_at ? types[t].scale : (i * 2654435761u) >> 13);
    }
    b.pool = pool;
    const void * acts[8];
    float * y[8];
    float * x = allocate((size_t) k * sizeof(float));
    for (int i = 0; i < 8; i++) {
        for (int64_t j = 0; j < k; j++) {
            x[j] = (float) (j * 7919 % 1000 - 500 + i) / 300;
        }
        const enum k3_act_kind kind = k3_matmul_avx512.kind(b.args.type);
        void * act                  = allocate(k3_act_size(kind, k));
        k3_matmul_avx512.pack(kind, x, k, act);
        acts[i] = act;
        y[i]    = allocate((size_t) b.rows * sizeof(float));
    }
    b.args.acts = acts;
    b.args.y    = y;
    for (int i = 0; i < 2; i++) {
        b.scratch[i] = allocate(k3_matmul_stream_scratch_avx512(b.args.type, k, 8) + ((size_t) 1 << 20));
    }
    pthread_t thread;
    pthread_barrier_init(&b.start, NULL, 2);
    pthread_barrier_init(&b.end, NULL, 2);
    if (b.threads > 1) pthread_create(&thread, NULL, second_thread, &b);
    pin(0);
    for (int i = 0; i < REPEATS; i++) {
        b.first    = i * 37 % (b.matrices - b.count + 1);
        time[4][i] = seconds(&b, read_all);
        for (int j = 0; j < 4; j++) {
            b.args.n_tokens = tokens[j];
            time[j][i]      = seconds(&b, multiply);
        }
    }
    for (int j = 0; j < 5; j++) {
        qsort(time[j], REPEATS, sizeof(double), by_size);
    }
    const double bytes = (double) b.matrix * b.count, read = time[4][REPEATS / 2];
    printf("%s %dx%d, %d threads: read %.1f GB/s\n", argv[1], (int) b.rows, (int) k, b.threads, bytes / read / 1e9);
    for (int j = 0; j < 4; j++) {
        const double s = time[j][REPEATS / 2], ops = 2.0 * (double) (b.rows * k * tokens[j]) * b.count;
        printf("  N=%d %.1f GB/s (%.0f %% of read) %.0f GOP/s %.1f us\n", tokens[j], bytes / s / 1e9, 100 * read / s,
               ops / s / 1e9, s / b.count * 1e6);
    }
    b.work = NULL;
    if (b.threads > 1) {
        pthread_barrier_wait(&b.start);
        pthread_join(thread, NULL);
    }
    return 0;
}
