// check.c - a table of matmul.h against a scalar emulation of the order of operations stated there: equal bits for
// ragged rows, every number of columns and tokens. Weights, activations and scratch end at a page that cannot be
// touched; outputs start as NaN. Built once for each table: see README.md.
#include "matmul.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MAX_TOKENS = 67 };

static uint64_t state = 88172645463325252u;

static uint64_t next(void) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static float uniform(void) { return (float) (next() >> 40) / (1 << 23) - 1; }

// size bytes whose end is at a forbidden page, up to `align`
static void * guarded(size_t size, size_t align) {
    const size_t page = (size_t) sysconf(_SC_PAGESIZE), room = (size + page - 1) / page * page;
    uint8_t * p = mmap(NULL, room + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED || mprotect(p + room, page, PROT_NONE)) {
        exit(2);
    }
    return p + (room - (size + align - 1) / align * align);
}

static void release(void * p, size_t size) {
    const size_t page = (size_t) sysconf(_SC_PAGESIZE), room = (size + page - 1) / page * page;
    munmap((void *) ((uintptr_t) p / page * page), room + page);
}

static size_t row_size(enum ggml_type type, int64_t k) {
    switch (type) {
        case GGML_TYPE_F32: return (size_t) k * 4;
        case GGML_TYPE_Q8_0: return (size_t) k / 32 * 34;
        case GGML_TYPE_MXFP4: return (size_t) k / 32 * 17;
        default: return (size_t) k * 2;
    }
}

static float half(const uint8_t * p) {
    const int h = p[0] | p[1] << 8, e = h >> 10 & 31, m = h & 1023;
    const float x = e == 31 ? (m ? NAN : INFINITY) : e ? ldexpf((float) (m + 1024), e - 25) : ldexpf((float) m, -24);
    return h & 0x8000 ? -x : x;
}

static float element(enum ggml_type type, const uint8_t * row, int64_t i) {
    uint32_t bits;
    float x;
    switch (type) {
        case GGML_TYPE_F32: memcpy(&x, row + 4 * i, 4); return x;
        case GGML_TYPE_F16: return half(row + 2 * i);
        default:
            bits = (uint32_t) (row[2 * i] | row[2 * i + 1] << 8) << 16;
            memcpy(&x, &bits, 4);
            return x;
    }
}

static float step(float a, float b, float sum) {
#ifdef FUSED
    return fmaf(a, b, sum);
#else
    const volatile float product = a * b;
    return product + sum;
#endif
}

static float emulate(enum ggml_type type, const uint8_t * row, const void * act, int64_t k) {
    static const int doubled[8] = {0, 1, 2, 3, 4, 6, 8, 12};
    float sum                   = 0;
    if (type != GGML_TYPE_Q8_0 && type != GGML_TYPE_MXFP4) {
        for (int64_t i = 0; i < k; i++) {
            sum = step(element(type, row, i), ((const float *) act)[i], sum);
        }
        return sum;
    }
    const int8_t * q = act;
    const float * d  = (const float *) (q + (k + 127) / 128 * 128);
    for (int64_t b = 0; b < k / 32; b++, q += 32) {
        int dot = 0;
        float scale;
        if (type == GGML_TYPE_Q8_0) {
            scale = half(row + b * 34);
            for (int i = 0; i < 32; i++) {
                dot += (int8_t) row[b * 34 + 2 + i] * q[i];
            }
        } else {
            const uint8_t * block = row + b * 17;
            scale                 = block[0] == 255 ? NAN : ldexpf(1, block[0] - 128);
            for (int i = 0; i < 32; i++) {
                const int code = i < 16 ? block[1 + i] & 15 : block[1 + i - 16] >> 4;
                dot += (code & 8 ? -doubled[code & 7] : doubled[code & 7]) * q[i];
            }
        }
        const volatile float s = scale * d[b];
        sum                    = step((float) dot, s, sum);
    }
    return sum;
}

// Every byte pattern occurs, with scales at the ends of their range now and then.
static void fill(enum ggml_type type, uint8_t * w, size_t size, bool extreme) {
    const size_t block = type == GGML_TYPE_MXFP4 ? 17 : 34;
    for (size_t i = 0; i < size; i++) {
        w[i] = (uint8_t) (next() >> 33);
    }
    if (type == GGML_TYPE_F32) {
        for (size_t i = 0; i < size; i += 4) {
            const float x = uniform();
            memcpy(w + i, &x, 4);
        }
        return;
    }
    if (type == GGML_TYPE_MXFP4 || type == GGML_TYPE_Q8_0) {
        for (size_t i = 0; i < size; i += block) {
            if (type == GGML_TYPE_MXFP4) {
                static const uint8_t ends[8] = {0, 1, 2, 3, 253, 254, 255, 127};
                w[i]                         = extreme ? ends[next() >> 61] : (uint8_t) (120 + (next() >> 61));
            } else if (!extreme) {
                w[i + 1] = (uint8_t) ((w[i + 1] & 0x80) | 0x24 | (w[i + 1] & 7));
            } else if (next() >> 62 == 0) {
                memset(w + i + 2, 0x80, 32);  // -128 throughout
            }
        }
        return;
    }
    for (size_t i = 1; i < size && !extreme; i += 2) {  // exponents near 1
        w[i] = (uint8_t) ((w[i] & 0x83) | (type == GGML_TYPE_BF16 ? 0x3c : 0x34));
    }
}

static float value(bool extreme, int64_t k, int64_t i) {
    const uint64_t n = next() >> 58;
    if (extreme && n < 6) {
        const float ends[6] = {0, 1e-44f, -190 * 0x1p-149f, 3e38f, k < 64 ? INFINITY : 1, i % 7 ? -1e-38f : NAN};
        return ends[n];
    }
    return uniform();
}

static bool same(float a, float b) { return memcmp(&a, &b, 4) == 0 || (isnan(a) && isnan(b)); }

static int64_t failures, compared;

static void check(enum ggml_type type, int64_t rows, int64_t k, int64_t n_tokens, bool extreme) {
    const struct k3_matmul_kernels * table = &TABLE;
    const enum k3_act_kind kind            = table->kind(type);
    const size_t row_bytes = row_size(type, k), act_size = k3_act_size(kind, k),
                 scratch = table->scratch(type, k, n_tokens);
    uint8_t * w          = guarded(row_bytes * (size_t) rows, 1);
    fill(type, w, row_bytes * (size_t) rows, extreme);
    float * x           = guarded((size_t) k * 4, 4);
    void * space        = guarded(scratch, 64);
    const int64_t first = rows > 3 ? 2 : 0, last = rows > 17 ? rows - 1 : rows;
    void * acts[MAX_TOKENS];
    float * y[MAX_TOKENS];
    memset(space, 0xff, scratch);
    for (int64_t t = 0; t < n_tokens; t++) {
        acts[t] = guarded(act_size, 64);
        y[t]    = guarded((size_t) rows * 4, 4);
        memset(acts[t], 0xff, act_size);
        memset(y[t], 0xff, (size_t) rows * 4);
        for (int64_t i = 0; i < k; i++) {
            x[i] = value(extreme, k, i);
        }
        table->pack(kind, x, k, acts[t]);
        mprotect((void *) ((uintptr_t) acts[t] / 4096 * 4096), act_size, PROT_READ);
    }
    table->run(
        &(struct k3_matmul_args) {type, w, row_bytes, k, first, last, n_tokens, (const void * const *) acts, y, space});
    for (int64_t t = 0; t < n_tokens; t++) {
        for (int64_t m = 0; m < rows; m++) {
            const uint32_t poison = 0xffffffff;
            const bool inside     = m >= first && m < last;
            const float want      = inside ? emulate(type, w + (size_t) m * row_bytes, acts[t], k) : 0;
            compared++;
            if (inside ? !same(want, y[t][m]) : memcmp(&y[t][m], &poison, 4) != 0) {
                if (failures++ < 10) {
                    printf("type %d rows %d k %d tokens %d extreme %d: y[%d][%d] = %a, wanted %a\n", type, (int) rows,
                           (int) k, (int) n_tokens, extreme, (int) t, (int) m, y[t][m], want);
                }
            }
        }
        release(acts[t], act_size);
        release(y[t], (size_t) rows * 4);
    }
    release(w, row_bytes * (size_t) rows);
    release(x, (size_t) k * 4);
    release(space, scratch);
}

int main(void) {
    static const enum ggml_type types[] = {GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_Q8_0,
                                           GGML_TYPE_MXFP4};
    static const int64_t rows[] = {1, 3, 8, 17, 100}, tokens[] = {1, 2, 3, 5, 7, 8, 9, 16, 17, 64, 65, 67};
    static const int64_t columns[2][8] = {{1, 3, 33, 64, 255, 256, 777, 1056}, {32, 64, 96, 128, 160, 512, 1024, 1056}};
    for (size_t i = 0; i < sizeof(types) / sizeof(*types); i++) {
        for (size_t n = 0; n < 5 * 8 * 12 * 2; n++) {
            const int64_t k = columns[types[i] == GGML_TYPE_Q8_0 || types[i] == GGML_TYPE_MXFP4][n / 2 % 8];
            check(types[i], rows[n / 16 % 5], k, tokens[n / 80], n % 2);
        }
        printf("type %d: %lld compared, %lld wrong\n", types[i], (long long) compared, (long long) failures);
    }
    return failures != 0;
}
