// bench.c - rate of the fused KDA kernels (ggml_k3/src/cpu/kda_*.c, linked, not copied) beside its ceilings.
//
//   ./bench decode|prefill VARIANT THREADS [dim [tokens]]
//
// decode: one token for each of LAYERS layers of 96 heads, states out of cache, against an in-place read and write of
// the same states, interleaved. prefill: one segment through one layer, against the peak of fp32 fma.
#define _GNU_SOURCE
#include "kda.h"

#include <immintrin.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { HEADS = 96, LAYERS = 20, WIDTH = 4, REPEATS = 15 };

static const struct k3_kda_kernels * kernels;
static int64_t dim = 128, tokens = 2048;
static int n_threads;
static float *state, *window, *taps, *inputs, *logits, *out, *weights;
static void * scratch[2];

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double) t.tv_sec + 1e-9 * (double) t.tv_nsec;
}

// Small numbers without a pattern, in huge pages where the system has them.
static float * numbers(size_t n, float scale) {
    const size_t huge = 2 << 20, size = (n * sizeof(float) + 2 * huge) / huge * huge;
    float * p = aligned_alloc(huge, size);
    if (!p) exit(1);
    madvise(p, size, MADV_HUGEPAGE);
    uint32_t seed = 1;
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        p[i] = ((float) (seed >> 8) / (float) (1 << 23) - 1.0f) * scale;
    }
    return p;
}

// Head h of a layer; T tokens, rows of HEADS * dim channels.
static struct k3_kda_head head_of(int64_t layer, int64_t h, int64_t T, int thread) {
    const int64_t all = HEADS * dim, place = layer * HEADS + h;
    struct k3_kda_head a = {.dim              = dim,
                            .conv_width       = WIDTH,
                            .n                = T,
                            .z                = inputs + 3 * T * all + h * dim,
                            .gate             = inputs + 4 * T * all + h * dim,
                            .beta             = logits + h,
                            .z_stride         = all,
                            .gate_stride      = all,
                            .beta_stride      = HEADS,
                            .dt_bias          = weights,
                            .norm             = weights,
                            .a                = -1.0f,
                            .gate_bounded     = true,
                            .gate_lower_bound = -5.0f,
                            .l2_eps           = 1e-6f,
                            .norm_eps         = 1e-5f,
                            .state_in         = state + place * dim * dim,
                            .state_out        = state + place * dim * dim,
                            .out              = out + h * dim,
                            .out_stride       = all,
                            .scratch          = scratch[thread]};
    for (int i = 0; i < 3; i++) {
        a.x[i]         = inputs + i * T * all + h * dim;
        a.x_stride[i]  = all;
        a.conv[i]      = taps + ((layer * 3 + i) * all + h * dim) * WIDTH;
        a.window_in[i] = a.window_out[i] = window + ((layer * 3 + i) * all + h * dim) * (WIDTH - 1);
    }
    return a;
}

// A thread's heads of a layer, as kda.c hands them to the kernel.
static void run_layer(int64_t layer, int64_t T, int thread) {
    enum { CALL = 16 };
    const int64_t end = HEADS * (thread + 1) / n_threads;
    for (int64_t h = HEADS * thread / n_threads; h < end; h += CALL) {
        struct k3_kda_head heads[CALL];
        int n = 0;
        for (; n < CALL && h + n < end; n++) heads[n] = head_of(layer, h + n, T, thread);
        kernels->run(heads, n);
    }
}

static void decode(int thread) {
    for (int64_t layer = 0; layer < LAYERS; layer++) run_layer(layer, 1, thread);
}

static void prefill(int thread) { run_layer(0, tokens, thread); }

static void read_write(int thread) {
    const __m512 m     = _mm512_set1_ps(0.9999f);
    const int64_t size = HEADS * dim * dim;
    for (int64_t layer = 0; layer < LAYERS; layer++) {
        float * s = state + layer * size;
        for (int64_t i = size * thread / n_threads; i < size * (thread + 1) / n_threads; i += 32) {
            const __m512 a = _mm512_load_ps(s + i), b = _mm512_load_ps(s + i + 16);
            _mm512_store_ps(s + i, _mm512_mul_ps(a, m));
            _mm512_store_ps(s + i + 16, _mm512_mul_ps(b, m));
        }
    }
}

enum { PEAK = 4000000 };
static void peak(int thread) {
    (void) thread;
    __m512 x[12];
    const __m512 m = _mm512_set1_ps(0.5f);
#pragma GCC unroll 12
    for (int i = 0; i < 12; i++) x[i] = m;
    for (int n = 0; n < PEAK; n++) {
#pragma GCC unroll 12
        for (int i = 0; i < 12; i++) __asm__("vfmadd231ps %1, %1, %0" : "+v"(x[i]) : "v"(m));
    }
#pragma GCC unroll 12
    for (int i = 0; i < 12; i++) __asm__ volatile("" ::"v"(x[i]));
}

// ---- two pinned threads ----------------------------------------------------------------------------------

static void (*job)(int);
static volatile int ready, started, done, quit;

static void pin(int cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    sched_setaffinity(0, sizeof(set), &set);
}

static void * second(void * unused) {
    pin(1);
    ready = 1;
    for (int n = 0;;) {
        while (__atomic_load_n(&started, __ATOMIC_ACQUIRE) == n) {
            if (quit) return unused;
            _mm_pause();
        }
        n++;
        job(1);
        __atomic_store_n(&done, n, __ATOMIC_RELEASE);
    }
}

static double seconds(void (*f)(int)) {
    const double start = now();
    job                = f;
    if (n_threads == 2) __atomic_store_n(&started, started + 1, __ATOMIC_RELEASE);
    f(0);
    while (n_threads == 2 && __atomic_load_n(&done, __ATOMIC_ACQUIRE) != started) _mm_pause();
    return now() - start;
}

static int ascending(const void * a, const void * b) {
    const double x = *(const double *) a, y = *(const double *) b;
    return (x > y) - (x < y);
}

int main(int argc, char ** argv) {
    if (argc < 4) return 1;
    const int is_decode = !strcmp(argv[1], "decode");
    kernels = !strcmp(argv[2], "generic") ? &k3_kda_generic : !strcmp(argv[2], "avx2") ? &k3_kda_avx2 : &k3_kda_avx512;
    n_threads = atoi(argv[3]);
    if (argc > 4) dim = atoi(argv[4]);
    if (argc > 5) tokens = atoi(argv[5]);
    const int64_t all = HEADS * dim, T = is_decode ? 1 : tokens, layers = is_decode ? LAYERS : 1;
    state   = numbers((size_t) (layers * all * dim), 1.0f);
    window  = numbers((size_t) (layers * 3 * all * (WIDTH - 1)), 1.0f);
    taps    = numbers((size_t) (layers * 3 * all * WIDTH), 0.6f);
    inputs  = numbers((size_t) (5 * T * all), 1.0f);
    logits  = numbers((size_t) (T * HEADS), 1.0f);
    out     = numbers((size_t) (T * all), 1.0f);
    weights = numbers((size_t) all, 1.0f);
    for (int i = 0; i < 2; i++) scratch[i] = numbers(kernels->scratch(dim, WIDTH) / sizeof(float), 0.0f);
    pthread_t thread;
    if (n_threads == 2) pthread_create(&thread, NULL, second, NULL);
    while (n_threads == 2 && !ready) nanosleep(&(struct timespec) {0, 100000}, NULL);
    pin(0);
    double op[REPEATS], ceiling[REPEATS];
    const int repeats = is_decode ? REPEATS : 7;
    for (int i = 0; i < repeats; i++) {
        ceiling[i] = seconds(is_decode ? read_write : peak);
        op[i]      = seconds(is_decode ? decode : prefill);
    }
    qsort(op, (size_t) repeats, sizeof(double), ascending);
    qsort(ceiling, (size_t) repeats, sizeof(double), ascending);
    const double t = op[repeats / 2], c = ceiling[repeats / 2];
    if (is_decode) {
        const double states = 8.0 * LAYERS * (double) (all * dim);
        const double others = 4.0 * LAYERS * (double) (3 * all * (WIDTH + 2 * (WIDTH - 1)));
        printf("decode %s %d threads: %.1f us/layer; states %.1f GB/s, with taps and windows %.1f; in-place r+w %.1f: "
               "%.0f %%, %.0f %%\n",
               argv[2], n_threads, t / LAYERS * 1e6, states / t / 1e9, (states + others) / t / 1e9, states / c / 1e9,
               100 * c / t, 100 * c / t * (states + others) / states);
    } else {
        const double flops = 7.0 * (double) (tokens * all * dim);  // 3 fma and a product for each element of the state
        const double most  = 32.0 * 12 * PEAK * n_threads / c;
        printf("prefill %s %d threads: %.0f tokens/s per layer, %.3f us per token and head; delta rule alone %.0f of "
               "%.0f GFLOP/s fma peak; its issue slots %.0f %%\n",
               argv[2], n_threads, (double) tokens / t, t * n_threads / (double) (tokens * HEADS) * 1e6,
               flops / t / 1e9, most / 1e9, 100 * 8.0 / 7 * flops / t / most);
    }
    quit = 1;
    if (n_threads == 2) pthread_join(thread, NULL);
    return 0;
}
