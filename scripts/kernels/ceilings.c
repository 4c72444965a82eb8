// What this machine can do at best, to hold measured speed against: reading memory, and multiply-add in F32.
//
//     cc -O3 -march=native -std=gnu11 -pthread ceilings.c -o ceilings && ./ceilings THREADS [MIB] [ROUNDS]
//
// Prints one JSON object: medians of ROUNDS rounds (5), all threads together. Memory is read from a buffer of MIB
// mebibytes (1024), a run of it per thread, far larger than the caches.
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define LANES 16
#define SUMS 12  // independent chains: enough to hide the latency of a multiply-add
#define MAX_THREADS 256
#define FMA_STEPS (1 << 22)

typedef float vec __attribute__((vector_size(LANES * sizeof(float))));
typedef uint64_t words __attribute__((vector_size(64)));

static pthread_barrier_t barrier;
static int n_threads;
static unsigned char * buffer;
static size_t buffer_size;
static int n_rounds;
static volatile double sink[MAX_THREADS];

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double) t.tv_sec + 1e-9 * (double) t.tv_nsec;
}

static void read_memory(int thread) {
    size_t share            = buffer_size / (size_t) n_threads / 256 * 256;
    const unsigned char * p = buffer + share * (size_t) thread;
    words a = {0}, b = {0}, c = {0}, d = {0};
    for (size_t i = 0; i < share; i += 256) {
        const words * w = (const words *) (p + i);
        __builtin_prefetch(p + i + 4096);
        __builtin_prefetch(p + i + 4096 + 64);
        __builtin_prefetch(p + i + 4096 + 128);
        __builtin_prefetch(p + i + 4096 + 192);
        a ^= w[0];
        b ^= w[1];
        c ^= w[2];
        d ^= w[3];
    }
    a ^= b ^ c ^ d;
    sink[thread] = (double) (a[0] ^ a[1] ^ a[2] ^ a[3] ^ a[4] ^ a[5] ^ a[6] ^ a[7]);
}

static void multiply_add(int thread) {
    vec sum[SUMS], x = {0}, y = {0};
    x += 0.999f;
    y += 1e-3f;
#pragma GCC unroll 16
    for (int i = 0; i < SUMS; i++) sum[i] = y * (float) i;
    for (int step = 0; step < FMA_STEPS; step++) {
#pragma GCC unroll 16
        for (int i = 0; i < SUMS; i++) sum[i] = sum[i] * x + y;
    }
#pragma GCC unroll 16
    for (int i = 1; i < SUMS; i++) sum[0] += sum[i];
    sink[thread] = (double) sum[0][thread % LANES];
}

// Seconds of a round, from the first thread's start to the last one's end; of thread 0's clock.
static double timed(void (*work)(int), int thread) {
    pthread_barrier_wait(&barrier);
    double start = now();
    work(thread);
    pthread_barrier_wait(&barrier);
    return now() - start;
}

static int by_value(const void * a, const void * b) {
    double x = *(const double *) a, y = *(const double *) b;
    return (x > y) - (x < y);
}

static double median(double * values, int n) {
    qsort(values, (size_t) n, sizeof(*values), by_value);
    return values[n / 2];
}

static void * run(void * arg) {
    int thread = (int) (intptr_t) arg;
    double read_s[64], fma_s[64];
    for (int round = 0; round < n_rounds; round++) {
        read_s[round] = timed(read_memory, thread);
        fma_s[round]  = timed(multiply_add, thread);
    }
    if (thread == 0) {
        double gb    = 1e-9 * (double) (buffer_size / (size_t) n_threads / 256 * 256 * (size_t) n_threads);
        double gflop = 1e-9 * 2.0 * LANES * SUMS * FMA_STEPS * n_threads;
        printf("{\"threads\": %d, \"read_gb_s\": %.2f, \"fma_gflop_s\": %.1f}\n", n_threads,
               gb / median(read_s, n_rounds), gflop / median(fma_s, n_rounds));
    }
    return NULL;
}

int main(int argc, char ** argv) {
    n_threads = argc > 1 ? atoi(argv[1]) : 1;
    int mib   = argc > 2 ? atoi(argv[2]) : 1024;
    n_rounds  = argc > 3 ? atoi(argv[3]) : 5;
    if (n_threads < 1 || n_threads > MAX_THREADS || mib < 1 || n_rounds < 1 || n_rounds > 64) {
        fprintf(stderr, "usage: %s THREADS (1 .. %d) [MIB] [ROUNDS (1 .. 64)]\n", argv[0], MAX_THREADS);
        return 2;
    }
    buffer_size = (size_t) mib << 20;
    buffer      = aligned_alloc(4096, buffer_size);
    if (!buffer) {
        fprintf(stderr, "error: no memory for %d MiB\n", mib);
        return 1;
    }
    memset(buffer, 1, buffer_size);
    pthread_barrier_init(&barrier, NULL, (unsigned) n_threads);
    pthread_t threads[MAX_THREADS];
    for (int i = 1; i < n_threads; i++) {
        if (pthread_create(&threads[i], NULL, run, (void *) (intptr_t) i)) {
            fprintf(stderr, "error: no thread %d\n", i);
            return 1;
        }
    }
    run((void *) 0);
    for (int i = 1; i < n_threads; i++) pthread_join(threads[i], NULL);
    free(buffer);
    return 0;
}
