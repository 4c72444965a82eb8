// kda_avx512.c - the kernel of kda_impl.h for AVX-512. For heads of 64 and 128 the rows of the state stay in registers
// over all tokens of a block: three rows of 128 keys take 24 of the 32, and the sums of one token fill the time that
// the corrections of the one before take.
#include "kda_impl.h"

enum { MAX_ROWS = 4, MAX_VECTORS = 8 };

#define UNROLL _Pragma("GCC unroll 8")
// Keeps the compiler from holding vectors of k and decay in registers that the state needs.
#define RELOAD() __asm__ volatile("" ::: "memory")

// Lanes 4r ... 4r + 3: the sum of x[r], r < rows <= 4.
K3_INLINE vf row_sums(const vf * x, int rows) {
    const vf a = x[0], b = x[rows > 1 ? 1 : 0], c = x[rows > 2 ? 2 : 0], d = x[rows > 3 ? 3 : 0];
    const vf ab   = _mm512_shuffle_f32x4(a, b, 0x44) + _mm512_shuffle_f32x4(a, b, 0xEE);
    const vf cd   = _mm512_shuffle_f32x4(c, d, 0x44) + _mm512_shuffle_f32x4(c, d, 0xEE);
    const vf four = _mm512_shuffle_f32x4(ab, cd, 0x88) + _mm512_shuffle_f32x4(ab, cd, 0xDD);
    const vf two  = four + _mm512_permute_ps(four, 0x4E);
    return two + _mm512_permute_ps(two, 0xB1);
}

// Row r's sum in all lanes.
K3_INLINE vf row_sum(vf sums, int r) {
    switch (r) {
        case 0: return _mm512_shuffle_f32x4(sums, sums, 0x00);
        case 1: return _mm512_shuffle_f32x4(sums, sums, 0x55);
        case 2: return _mm512_shuffle_f32x4(sums, sums, 0xAA);
        default: return _mm512_shuffle_f32x4(sums, sums, 0xFF);
    }
}

// `rows` value rows from `row` on, of `vectors` vectors each, over all tokens of the block.
K3_INLINE void delta_rows(const struct kda_block * block, const int rows, const int vectors, int row, const float * in,
                          float * out) {
    const int dim = vectors * LANES;
    vf s[MAX_ROWS][MAX_VECTORS];
    UNROLL for (int r = 0; r < rows; r++) {
        UNROLL for (int j = 0; j < vectors; j++) { s[r][j] = v_load(in + (row + r) * dim + j * LANES); }
    }
    for (int t = 0; t < block->n; t++) {
        const float *decay = block->decay + t * dim, *k = block->k + t * dim, *q = block->q + t * dim;
        vf u[MAX_ROWS], w[MAX_ROWS];
        UNROLL for (int r = 0; r < rows; r++) { u[r] = w[r] = v_set(0.0f); }
        UNROLL for (int j = 0; j < vectors; j++) {
            const vf decay_j = v_load(decay + j * LANES), k_j = v_load(k + j * LANES);
            UNROLL for (int r = 0; r < rows; r++) {
                s[r][j] = s[r][j] * decay_j;
                u[r]    = v_fma(s[r][j], k_j, u[r]);
            }
        }
        RELOAD();
        const vf u_sums = row_sums(u, rows);
        UNROLL for (int j = 0; j < vectors; j++) {
            const vf q_j = v_load(q + j * LANES);
            UNROLL for (int r = 0; r < rows; r++) { w[r] = v_fma(s[r][j], q_j, w[r]); }
        }
        RELOAD();
        vf d[MAX_ROWS];
        UNROLL for (int r = 0; r < rows; r++) {
            d[r] = _mm512_fnmadd_ps(v_set(block->beta[t]), row_sum(u_sums, r), v_set(block->v[t * dim + row + r]));
        }
        UNROLL for (int j = 0; j < vectors; j++) {
            const vf k_j = v_load(k + j * LANES);
            UNROLL for (int r = 0; r < rows; r++) { s[r][j] = v_fma(k_j, d[r], s[r][j]); }
        }
        RELOAD();
        const vf w_sums = row_sums(w, rows);
        UNROLL for (int r = 0; r < rows; r++) {
            const vf o                  = v_fma(v_set(block->qk[t]), d[r], row_sum(w_sums, r));
            block->o[t * dim + row + r] = _mm512_cvtss_f32(o);
        }
    }
    UNROLL for (int r = 0; r < rows; r++) {
        UNROLL for (int j = 0; j < vectors; j++) { v_store(out + (row + r) * dim + j * LANES, s[r][j]); }
    }
}

static void delta_128(const struct kda_block * block, const float * in, float * out) {
    for (int row = 0; row < 126; row += 3) {
        delta_rows(block, 3, 8, row, in, out);
    }
    delta_rows(block, 2, 8, 126, in, out);
}

static void delta_64(const struct kda_block * block, const float * in, float * out) {
    for (int row = 0; row < 64; row += 4) {
        delta_rows(block, 4, 4, row, in, out);
    }
}

static void run(const struct k3_kda_head * head) {
    kda_run(head, head->dim == 128 ? delta_128 : head->dim == 64 ? delta_64 : kda_delta);
}

const struct k3_kda_kernels k3_kda_avx512 = {.scratch = kda_scratch, .run = run};
