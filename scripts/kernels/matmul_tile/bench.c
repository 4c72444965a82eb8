// bench.c - rates of k3_matmul_tile_avx512 with two threads, half of the rows each, beside the peak of the instruction
// in the same minute. Weights come from memory: matrices take turns in a pool larger than the cache.
//
//   gcc -O2 -march=native -pthread -I$GGML bench.c ../../../ggml_k3/src/cpu/matmul_tile_avx512.c -o bench -lm
//   chrt -f 50 ./bench bf16|q8_0|mxfp4|f32|f16 rows k tokens...
#include "common.h"

#include <pthread.h>
#include <sched.h>
#include <time.h>

enum { THREADS = 2, ROUNDS = 9, PEAK_STEPS = 400000, POOL = 96 << 20 };

static int64_t rows, columns, n_tokens;
static enum ggml_type type;
static uint8_t * weights;
static const void * acts[4096];
static float * y[4096];
static void * scratch[THREADS];
static bool peak;
static int generation, finished;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double) t.tv_sec + 1e-9 * (double) t.tv_nsec;
}

#define TWELVE(op) op("4") op("5") op("6") op("7") op("8") op("9") op("10") op("11") op("12") op("13") op("14") op("15")
#define FMA(i) "vfmadd231ps %%zmm0, %%zmm0, %%zmm" i "\n"
#define BF16(i) "vdpbf16ps %%zmm0, %%zmm0, %%zmm" i "\n"
#define VNNI(i) "vpdpbusd %%zmm0, %%zmm0, %%zmm" i "\n"
#define CLOBBER                                                                                                        \
    "xmm0", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15"

static void run_peak(void) {
    for (int i = 0; i < PEAK_STEPS; i++) {
        switch (kind_of(type)) {
            case K3_ACT_F32: __asm__ volatile("vpxord %%zmm0, %%zmm0, %%zmm0\n" TWELVE(FMA)::: CLOBBER); break;
            case K3_ACT_BF16: __asm__ volatile("vpxord %%zmm0, %%zmm0, %%zmm0\n" TWELVE(BF16)::: CLOBBER); break;
            default: __asm__ volatile("vpxord %%zmm0, %%zmm0, %%zmm0\n" TWELVE(VNNI)::: CLOBBER); break;
        }
    }
}

static void run_part(int i) {
    if (peak) {
        run_peak();
        return;
    }
    k3_matmul_tile_avx512(&(struct k3_matmul_args) {.type      = type,
                                                    .w         = weights,
                                                    .row_bytes = row_size(type, columns),
                                                    .k         = columns,
                                                    .first     = rows * i / THREADS,
                                                    .last      = rows * (i + 1) / THREADS,
                                                    .n_tokens  = n_tokens,
                                                    .acts      = acts,
                                                    .y         = y,
                                                    .scratch   = scratch[i]});
}

static void pin(int cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    sched_setaffinity(0, sizeof(set), &set);
}

static void * worker(void * unused) {
    (void) unused;
    pin(1);
    for (int seen = 0;; seen++) {
        while (__atomic_load_n(&generation, __ATOMIC_ACQUIRE) == seen) {
            _mm_pause();
        }
        run_part(1);
        __atomic_store_n(&finished, seen + 1, __ATOMIC_RELEASE);
    }
    return NULL;
}

static double timed(void) {
    const double start = now();
    const int g        = generation + 1;
    __atomic_store_n(&generation, g, __ATOMIC_RELEASE);
    run_part(0);
    while (__atomic_load_n(&finished, __ATOMIC_ACQUIRE) != g) {
        _mm_pause();
    }
    return now() - start;
}

static uint8_t * pages(size_t size) {
    const size_t huge = 2 << 20;
    uint8_t * p       = mmap(NULL, size + huge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    p += huge - (uintptr_t) p % huge;
    madvise(p, size, MADV_HUGEPAGE);
    return p;
}

static int by_value(const void * a, const void * b) {
    return (*(const double *) a > *(const double *) b) - (*(const double *) a < *(const double *) b);
}

static double median(double * v, int n) {
    qsort(v, (size_t) n, sizeof(*v), by_value);
    return v[n / 2];
}

static void measure(const uint8_t * pool, int64_t n_matrices, size_t matrix) {
    const double work  = 2.0 * (double) (rows * columns * n_tokens);
    const int calls    = work > 2e9 ? 1 : (int) (2e9 / work) + 1;
    const double lanes = kind_of(type) == K3_ACT_F32 ? 32 : kind_of(type) == K3_ACT_BF16 ? 64 : 128;
    double rate[ROUNDS], ceiling[ROUNDS], share[ROUNDS];
    for (int i = 0; i < THREADS; i++) {
        scratch[i] = pages(k3_matmul_tile_scratch_avx512(type, columns, n_tokens));
    }
    for (int round = -1, turn = 0; round < ROUNDS; round++) {  // the first warms up
        double seconds = 0;
        for (int c = 0; c < calls; c++, turn++) {
            weights = (uint8_t *) pool + (size_t) (turn % n_matrices) * matrix;
            seconds += timed();
        }
        peak                      = true;
        const double peak_seconds = timed();
        peak                      = false;
        if (round >= 0) {
            rate[round]    = work * calls / seconds / 1e9;
            ceiling[round] = THREADS * 12.0 * PEAK_STEPS * lanes / peak_seconds / 1e9;
            share[round]   = 100 * rate[round] / ceiling[round];
        }
    }
    const double r = median(rate, ROUNDS), c = median(ceiling, ROUNDS), s = median(share, ROUNDS);
    printf("%5d x %5d T %4d: %7.1f Gop/s of %6.1f = %5.1f %%, weights %5.1f GB/s\n", (int) rows, (int) columns,
           (int) n_tokens, r, c, s, r * (double) matrix / work);
    fflush(stdout);
}

int main(int argc, char ** argv) {
    static const struct {
        const char * name;
        enum ggml_type type;
    } names[] = {{"f32", GGML_TYPE_F32},
                 {"f16", GGML_TYPE_F16},
                 {"bf16", GGML_TYPE_BF16},
                 {"q8_0", GGML_TYPE_Q8_0},
                 {"mxfp4", GGML_TYPE_MXFP4}};
    for (size_t i = 0; argc > 4 && i < sizeof(names) / sizeof(names[0]); i++) {
        if (!strcmp(argv[1], names[i].name)) {
            type = names[i].type;
        }
    }
    if (argc <= 4) {
        return 1;
    }
    rows                     = atoi(argv[2]);
    columns                  = atoi(argv[3]);
    const size_t matrix      = (size_t) rows * row_size(type, columns);
    const int64_t n_matrices = (int64_t) (POOL / matrix) + 1;
    uint8_t * pool           = pages((size_t) n_matrices * matrix);
    const size_t act         = k3_act_size(kind_of(type), columns);
    random_row(type, columns, pool);
    for (size_t at = row_size(type, columns); at < (size_t) n_matrices * matrix; at += row_size(type, columns)) {
        memcpy(pool + at, pool, row_size(type, columns));
    }
    uint8_t * all_acts = pages(act * 4096);
    float * all_y      = (float *) pages(sizeof(float) * (size_t) rows * 4096);
    for (int t = 0; t < 4096; t++) {
        acts[t] = all_acts + act * (size_t) t;
        y[t]    = all_y + rows * t;
    }
    pthread_t thread;
    pthread_create(&thread, NULL, worker, NULL);
    pin(0);
    printf("%s\n", argv[1]);
    for (int i = 4; i < argc; i++) {
        n_tokens = atoi(argv[i]);
        for (int64_t t = 0; t < n_tokens; t++) {
            random_act(type, columns, all_acts + act * (size_t) t);
        }
        measure(pool, n_matrices, matrix);
    }
    return 0;
}
