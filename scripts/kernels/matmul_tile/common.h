// common.h - random weights and activations in the formats of matmul.h, written apart from the kernels that they test.
#ifndef MATMUL_TILE_COMMON_H
#define MATMUL_TILE_COMMON_H

#include "../../../ggml_k3/src/cpu/matmul_avx512.h"

#include <immintrin.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static uint64_t seed = 88172645463325252ull;

static inline uint64_t rnd(void) {
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return seed;
}

static inline float uniform(void) { return (float) (rnd() >> 40) * 0x1p-23f - 1; }

static inline uint16_t to_bf16(float x) {
    uint32_t u;
    memcpy(&u, &x, 4);
    return (uint16_t) ((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

static inline enum k3_act_kind kind_of(enum ggml_type type) {
    switch (type) {
        case GGML_TYPE_BF16: return K3_ACT_BF16;
        case GGML_TYPE_Q8_0: return K3_ACT_Q8;
        case GGML_TYPE_MXFP4: return K3_ACT_Q8_SPLIT;
        default: return K3_ACT_F32;
    }
}

static inline size_t row_size(enum ggml_type type, int64_t k) {
    switch (type) {
        case GGML_TYPE_F32: return (size_t) k * 4;
        case GGML_TYPE_Q8_0: return (size_t) k / 32 * 34;
        case GGML_TYPE_MXFP4: return (size_t) k / 32 * 17;
        default: return (size_t) k * 2;
    }
}

// Where element `i` of a row lies among the bytes of an act row.
static inline int64_t act_index(enum k3_act_kind kind, int64_t i) {
    return kind == K3_ACT_Q8 ? i : i / 128 * 128 + i % 32 / 16 * 64 + i % 128 / 32 * 16 + i % 16;
}

static inline void random_row(enum ggml_type type, int64_t k, uint8_t * row) {
    for (int64_t i = 0; i < k; i++) {
        const float x    = uniform();
        const uint16_t h = type == GGML_TYPE_F16 ? _cvtss_sh(x, 0) : to_bf16(x);
        if (type == GGML_TYPE_F32) {
            memcpy(row + 4 * i, &x, 4);
        } else if (type == GGML_TYPE_F16 || type == GGML_TYPE_BF16) {
            memcpy(row + 2 * i, &h, 2);
        } else if (type == GGML_TYPE_Q8_0) {
            const uint16_t scale          = _cvtss_sh((2 + x) * 0.01f, 0);
            row[i / 32 * 34 + 2 + i % 32] = rnd() % 16 ? (uint8_t) rnd() : 0x80;
            memcpy(row + i / 32 * 34, &scale, 2);
        } else {
            row[i / 32 * 17]              = (uint8_t) (118 + rnd() % 6);
            row[i / 32 * 17 + 1 + i % 16] = (uint8_t) rnd();
        }
    }
}

static inline void random_act(enum ggml_type type, int64_t k, void * act) {
    const enum k3_act_kind kind = kind_of(type);
    if (kind == K3_ACT_F32 || kind == K3_ACT_BF16) {
        for (int64_t i = 0; i < k; i++) {
            if (kind == K3_ACT_F32) {
                ((float *) act)[i] = uniform();
            } else {
                ((uint16_t *) act)[i] = to_bf16(uniform());
            }
        }
        return;
    }
    memset(act, 0, k3_act_size(kind, k));
    const int64_t kp = (k + 127) / 128 * 128, blocks = (kp / 32 + 15) / 16 * 16;
    float * d     = (float *) ((int8_t *) act + kp);
    int32_t * sum = (int32_t *) (d + blocks);
    for (int64_t i = 0; i < k; i++) {
        const int8_t q                       = (int8_t) (rnd() % 255 - 127);
        ((int8_t *) act)[act_index(kind, i)] = q;
        d[i / 32]                            = 0.01f * (1.5f + uniform());
        sum[i / 32] += q;
    }
}

#endif
