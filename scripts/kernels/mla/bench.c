// bench.c - times the fast node of absorbed attention with the product's own kernels and pool, beside the loops that
// bound it: the dot product's peak (bf16 pairs or fp32 FMA) and a plain read of the rows, run in turn.
// SEQUENCES with an m behind: each half as deep as the one before.
//   bench VARIANT TYPE THREADS HEADS POSITION TOKENS SEQUENCES [LATENT WIDTH] [REPEATS]
#include "cpu.h"
#include "node.h"

#include <immintrin.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

static const struct {
    const char * name;
    const struct k3_mla_kernels * mla;
} variants[] = {{"generic", &k3_mla_generic}, {"avx2", &k3_mla_avx2}, {"avx512", &k3_mla_avx512}};
static const struct {
    const char * name;
    enum ggml_type type;
} types[] = {{"f32", GGML_TYPE_F32}, {"f16", GGML_TYPE_F16}, {"bf16", GGML_TYPE_BF16}, {"q8_0", GGML_TYPE_Q8_0}};

static struct k3_cpu cpu;
const struct k3_cpu * k3_cpu(void) { return &cpu; }

static volatile float sink[256];  // keeps the loops from being left out

// ---- ceilings --------------------------------------------------------------------------------------------

enum { PEAK_STEPS = 200000, PEAK_SUMS = 12 };

__attribute__((target("avx512f,avx512bf16"))) static void peak_bf16(const struct k3_task * task) {
    __m512 c[PEAK_SUMS];
#pragma GCC unroll 16
    for (int i = 0; i < PEAK_SUMS; i++) {
        c[i] = _mm512_set1_ps((float) (task->ith + i));
    }
    __m512i x = _mm512_set1_epi16(0x3f80);
    for (int step = 0; step < PEAK_STEPS; step++) {
#pragma GCC unroll 16
        for (int i = 0; i < PEAK_SUMS; i++) {
            c[i] = _mm512_dpbf16_ps(c[i], (__m512bh) x, (__m512bh) x);
        }
        __asm__ volatile("" : "+v"(x));
    }
#pragma GCC unroll 16
    for (int i = 1; i < PEAK_SUMS; i++) {
        c[0] = _mm512_add_ps(c[0], c[i]);
    }
    sink[task->ith] = _mm512_reduce_add_ps(c[0]);
}

__attribute__((target("avx2,fma"))) static void peak_fp32(const struct k3_task * task) {
    __m256 c[PEAK_SUMS];
#pragma GCC unroll 16
    for (int i = 0; i < PEAK_SUMS; i++) {
        c[i] = _mm256_set1_ps((float) (task->ith + i));
    }
    __m256 x = _mm256_set1_ps(1);
    for (int step = 0; step < PEAK_STEPS; step++) {
#pragma GCC unroll 16
        for (int i = 0; i < PEAK_SUMS; i++) {
            c[i] = _mm256_fmadd_ps(x, x, c[i]);
        }
        __asm__ volatile("" : "+x"(x));
    }
#pragma GCC unroll 16
    for (int i = 1; i < PEAK_SUMS; i++) {
        c[0] = _mm256_add_ps(c[0], c[i]);
    }
    sink[task->ith] = c[0][0];
}

struct region {
    const char * data;
    size_t size;  // read of each sequence
    size_t stride;
    int n;
};

__attribute__((target("avx2"))) static void plain_read(const struct k3_task * task) {
    const struct region * r = task->params;
    __m256i a = _mm256_setzero_si256(), b = a;
    for (int s = 0; s < r->n; s++) {
        const size_t first = r->size / (size_t) task->nth * (size_t) task->ith / 128 * 128;
        const char * data  = r->data + (size_t) s * r->stride;
        for (size_t i = first; i + 128 <= first + r->size / (size_t) task->nth; i += 128) {
            __builtin_prefetch(data + i + 4096);
            __builtin_prefetch(data + i + 4160);
            a = _mm256_xor_si256(a, _mm256_load_si256((const __m256i *) (data + i)));
            b = _mm256_xor_si256(b, _mm256_load_si256((const __m256i *) (data + i + 64)));
        }
    }
    sink[task->ith] = (float) _mm256_extract_epi32(_mm256_xor_si256(a, b), 0);
}

// ---- the node --------------------------------------------------------------------------------------------

static void * memory(size_t size) {
    enum { PAGE = 2 << 20 };
    void * p = aligned_alloc(PAGE, (size + PAGE) / PAGE * PAGE);
    madvise(p, (size + PAGE) / PAGE * PAGE, MADV_HUGEPAGE);
    return p;
}

static void fill(float * x, int64_t n, float scale) {
    static uint64_t state = 88172645463325252u;
    for (int64_t i = 0; i < n; i++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        x[i] = ((float) (state >> 40) / (float) (1 << 24) - 0.5f) * 3.46f * scale;
    }
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double) t.tv_sec + (double) t.tv_nsec * 1e-9;
}

static int ascending(const void * a, const void * b) {
    return (*(const double *) a > *(const double *) b) - (*(const double *) a < *(const double *) b);
}

static struct ggml_tensor * tensor(struct ggml_context * ctx, enum ggml_type type, int64_t a, int64_t b, int64_t c,
                                   float scale) {
    struct ggml_tensor * t = ggml_new_tensor_3d(ctx, type, a, b, c);
    t->data                = memory(ggml_nbytes(t));
    if (type == GGML_TYPE_F32) {
        fill(t->data, a * b * c, scale);
    }
    return t;
}

// Rows of small random values; a few thousand distinct ones are enough.
static void fill_cache(struct ggml_tensor * cache) {
    enum { DISTINCT = 4096 };
    const int64_t rows = cache->ne[1] * cache->ne[2];
    float * x          = malloc((size_t) cache->ne[0] * sizeof(float));
    for (int64_t i = 0; i < rows; i++) {
        char * row = (char *) cache->data + (size_t) i * cache->nb[1];
        if (i >= DISTINCT) {
            memcpy(row, row - DISTINCT * cache->nb[1], cache->nb[1]);
            continue;
        }
        fill(x, cache->ne[0], 1);
        if (cache->type == GGML_TYPE_F32) {
            memcpy(row, x, cache->nb[1]);
        } else {
            ggml_get_type_traits(cache->type)->from_float_ref(x, row, cache->ne[0]);
        }
    }
    free(x);
}

static struct ggml_k3_plan plan_of(struct ggml_k3_builder * b, struct ggml_tensor * t) {
    struct ggml_k3_plan plan;
    b->graph = ggml_new_graph_custom(b->ctx, 16, false);
    ggml_build_forward_expand(b->graph, t);
    ggml_k3_plan_init(&plan, b->graph);
    return plan;
}

static double timed(const struct ggml_k3_plan * plan, struct ggml_k3_pool * pool, int n_threads) {
    double ms[GGML_K3_SECTIONS] = {0};
    const double start          = now();
    ggml_k3_plan_run(plan, pool, n_threads, NULL, NULL, ms);
    return now() - start;
}

int main(int argc, char ** argv) {
    if (argc < 8) {
        fprintf(stderr, "bench VARIANT TYPE THREADS HEADS POSITION TOKENS SEQUENCES [LATENT WIDTH] [REPEATS]\n");
        return 1;
    }
    enum ggml_type type = GGML_TYPE_COUNT;
    for (size_t i = 0; i < sizeof(variants) / sizeof(*variants); i++) {
        cpu.mla = strcmp(argv[1], variants[i].name) == 0 ? variants[i].mla : cpu.mla;
    }
    for (size_t i = 0; i < sizeof(types) / sizeof(*types); i++) {
        type = strcmp(argv[2], types[i].name) == 0 ? types[i].type : type;
    }
    const int n_threads  = atoi(argv[3]);
    const int64_t n_head = atoll(argv[4]), position = atoll(argv[5]), n = atoll(argv[6]), n_seq = atoll(argv[7]);
    const int64_t n_latent = argc > 9 ? atoll(argv[8]) : 512, width = argc > 9 ? atoll(argv[9]) : 576;
    const int repeats = argc > 10 ? atoi(argv[10]) : 9;

    struct ggml_context * ctx  = ggml_init((struct ggml_init_params) {.mem_size = 1 << 20, .no_alloc = true});
    struct ggml_tensor * cache = tensor(ctx, type, width, position + n, n_seq, 1);
    fill_cache(cache);
    const struct ggml_k3_mla_input in = {.q_latent = tensor(ctx, GGML_TYPE_F32, n_latent, n * n_seq, n_head, 1),
                                         .q_shared = tensor(ctx, GGML_TYPE_F32, width - n_latent, n * n_seq, n_head, 1),
                                         .latent   = tensor(ctx, GGML_TYPE_F32, n_latent, n * n_seq, 1, 1),
                                         .shared   = tensor(ctx, GGML_TYPE_F32, width - n_latent, n * n_seq, 1, 1)};
    const bool mixed                  = strchr(argv[7], 'm');
    double visible                    = 0;
    struct ggml_k3_segment * segments = calloc((size_t) n_seq, sizeof(*segments));
    for (int64_t i = 0; i < n_seq; i++) {
        segments[i] = (struct ggml_k3_segment) {
            .first = i * n, .n = n, .position = mixed ? position >> i : position, .seq = (int32_t) i};
        visible += (double) n * ((double) segments[i].position + (double) (n + 1) / 2);
    }
    const struct ggml_k3_batch batch = {.segments = segments, .n_segments = (int) n_seq};
    struct ggml_k3_arena arena       = {.data = malloc(1 << 14), .size = 1 << 14};
    struct ggml_k3_builder b         = {.ctx = ctx, .form = GGML_K3_FAST, .arena = &arena, .batch = &batch};

    struct ggml_tensor * out       = k3_mla_fast(&b, 0.06f, &in, cache);
    out->data                      = memory(ggml_nbytes(out));
    const struct ggml_k3_plan node = plan_of(&b, out);
    const bool bf16      = strcmp(argv[1], "avx512") == 0 && (type == GGML_TYPE_BF16 || type == GGML_TYPE_Q8_0);
    const int64_t one[4] = {1, 1, 1, 1};
    struct region region = {cache->data, (size_t) (position + n) * cache->nb[1], cache->nb[2], (int) n_seq};
    const struct k3_node_info peak_info = {.run = bf16 ? peak_bf16 : peak_fp32};
    const struct k3_node_info read_info = {.run = plain_read, .params = &region, .params_size = sizeof(region)};
    const struct ggml_k3_plan peak      = plan_of(&b, k3_node_add(&b, GGML_TYPE_F32, one, &cache, 1, &peak_info));
    const struct ggml_k3_plan read      = plan_of(&b, k3_node_add(&b, GGML_TYPE_F32, one, &cache, 1, &read_info));

    struct ggml_k3_pool * pool = ggml_k3_pool_new(n_threads);
    ggml_k3_pool_reserve(pool, node.work, node.scratch);
    double * seconds = calloc((size_t) repeats * 3, sizeof(double));
    timed(&node, pool, n_threads);
    for (int i = 0; i < repeats; i++) {
        seconds[i]               = timed(&peak, pool, n_threads);
        seconds[repeats + i]     = timed(&node, pool, n_threads);
        seconds[2 * repeats + i] = timed(&read, pool, n_threads);
    }
    for (int i = 0; i < 3; i++) {
        qsort(seconds + i * repeats, (size_t) repeats, sizeof(double), ascending);
    }
    const double top  = (double) n_threads * PEAK_STEPS * PEAK_SUMS * (bf16 ? 64 : 16) / seconds[repeats / 2];
    const double time = seconds[repeats + repeats / 2], work = 2.0 * (double) (n_head * (width + n_latent)) * visible;
    printf("%s %s %dt  %3d heads  %6d + %dx%d  %9.3f ms  %.4f us/pos  %6.1f GF/s  %5.1f %% of %.0f  %5.1f %% of read"
           "  (work %.1f MB)\n",
           argv[1], argv[2], n_threads, (int) n_head, (int) position, (int) n_seq, (int) n, time * 1e3,
           time * 1e6 / visible, work / time * 1e-9, work / time / top * 100, top * 1e-9,
           seconds[2 * repeats + repeats / 2] / time * 100, (double) node.work / (1 << 20));
    ggml_k3_pool_free(pool);
    return 0;
}
