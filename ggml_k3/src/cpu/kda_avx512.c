// kda_avx512.c - the kernel of kda_impl.h for AVX-512. For heads of 64 and 128 the rows of the state stay in registers
// over all tokens of a block: three rows of 128 keys take 24 of the 32, and the sums of one token fill the time that
// the corrections of the one before take.
#include "kda_impl.h"

// The order of the instructions matters as much as their number: sums over lanes have a long way to go, and what does
// not wait for them has to stand in between. So rows go in two parts, and the instructions that touch the state are
// `asm volatile`, which the compiler leaves in place and in registers (gcc 12 otherwise spills some of it).
enum { MAX_ROWS = 4, MAX_VECTORS = 8, PART = 2 };

#define UNROLL _Pragma("GCC unroll 8")

K3_INLINE vf load(const float * p) {
    vf v;
    __asm__ volatile("vmovups %1, %0" : "=v"(v) : "m"(*(const float(*)[LANES]) p));
    return v;
}

K3_INLINE void scale(vf * x, vf by) { __asm__ volatile("vmulps %1, %0, %0" : "+v"(*x) : "v"(by)); }
K3_INLINE void add_product(vf * sum, vf a, vf b) {
    __asm__ volatile("vfmadd231ps %2, %1, %0" : "+v"(*sum) : "v"(a), "v"(b));
}

// x[i] = the sum of its lanes, in all lanes, for one or two vectors; v_sum's order
K3_INLINE void spread_sums(vf * x, int n) {
    if (n == 1) {
        x[0] += _mm512_shuffle_f32x4(x[0], x[0], 0x4E);
        x[0] += _mm512_shuffle_f32x4(x[0], x[0], 0xB1);
        x[0] += _mm512_permute_ps(x[0], 0x4E);
        x[0] += _mm512_permute_ps(x[0], 0xB1);
        return;
    }
    vf both = _mm512_shuffle_f32x4(x[0], x[1], 0x44) + _mm512_shuffle_f32x4(x[0], x[1], 0xEE);
    both += _mm512_shuffle_f32x4(both, both, 0xB1);
    both += _mm512_permute_ps(both, 0x4E);
    both += _mm512_permute_ps(both, 0xB1);
    x[0] = _mm512_shuffle_f32x4(both, both, 0x00);
    x[1] = _mm512_shuffle_f32x4(both, both, 0xAA);
}

// The parts of one token. `first` and `last` are rows of s.
K3_INLINE void decay_part(vf s[][MAX_VECTORS], vf * u, int first, int last, int vectors, const float * decay,
                          const float * k) {
    UNROLL for (int j = 0; j < vectors; j++) {
        const vf decay_j = load(decay + j * LANES), k_j = load(k + j * LANES);
        UNROLL for (int r = first; r < last; r++) { scale(&s[r][j], decay_j); }
        UNROLL for (int r = first; r < last; r++) { add_product(&u[r], s[r][j], k_j); }
    }
}

K3_INLINE void update_part(vf s[][MAX_VECTORS], const vf * d, int first, int last, int vectors, const float * k) {
    UNROLL for (int j = 0; j < vectors; j++) {
        const vf k_j = load(k + j * LANES);
        UNROLL for (int r = first; r < last; r++) { add_product(&s[r][j], k_j, d[r]); }
    }
}

K3_INLINE void token(const struct kda_block * block, int t, vf s[][MAX_VECTORS], const int rows, const int vectors,
                     int row) {
    const int dim = vectors * LANES, half = rows < PART ? rows : PART;
    const float * k = block->k + t * dim;
    const float *q = block->q + t * dim, *decay = block->decay + t * dim, *v = block->v + t * dim + row;
    vf u[MAX_ROWS], w[MAX_ROWS], d[MAX_ROWS];
    UNROLL for (int r = 0; r < rows; r++) { u[r] = w[r] = v_set(0.0f); }
    decay_part(s, u, 0, half, vectors, decay, k);
    decay_part(s, u, half, rows, vectors, decay, k);
    spread_sums(u, half);
    if (rows > half) {
        spread_sums(u + half, rows - half);
    }
    UNROLL for (int j = 0; j < vectors; j++) {
        const vf q_j = load(q + j * LANES);
        UNROLL for (int r = 0; r < rows; r++) { add_product(&w[r], s[r][j], q_j); }
    }
    UNROLL for (int r = 0; r < rows; r++) { d[r] = _mm512_fnmadd_ps(v_set(block->beta[t]), u[r], v_set(v[r])); }
    update_part(s, d, 0, half, vectors, k);
    update_part(s, d, half, rows, vectors, k);
    float w_sum[4];
    v_sum4(w[0], w[rows > 1 ? 1 : 0], w[rows > 2 ? 2 : 0], w[rows > 3 ? 3 : 0], w_sum);
    UNROLL for (int r = 0; r < rows; r++) {
        block->o[t * dim + row + r] = _mm512_cvtss_f32(v_fma(v_set(block->qk[t]), d[r], v_set(w_sum[r])));
    }
}

// `rows` value rows from `row` on, of `vectors` vectors each, over all tokens of the block.
K3_INLINE void delta_rows(const struct kda_block * block, const int rows, const int vectors, int row, const float * in,
                          float * out) {
    const int dim = vectors * LANES;
    vf s[MAX_ROWS][MAX_VECTORS];
    UNROLL for (int r = 0; r < rows; r++) {
        UNROLL for (int j = 0; j < vectors; j++) { s[r][j] = load(in + (row + r) * dim + j * LANES); }
    }
    int t = 0;
    do {  // a block is never empty
        token(block, t, s, rows, vectors, row);
    } while (++t < block->n);
    UNROLL for (int r = 0; r < rows; r++) {
        UNROLL for (int j = 0; j < vectors; j++) { v_store(out + (row + r) * dim + j * LANES, s[r][j]); }
    }
}

// The same for a block of one token and PART rows. The state comes from memory here, and a row's loads stand among the
// row's arithmetic, which the processor's prefetcher likes much better than a burst of loads for all rows.
K3_INLINE void delta_once(const struct kda_block * block, const int vectors, int row, const float * in, float * out) {
    const int dim      = vectors * LANES;
    const float *decay = block->decay, *k = block->k, *q = block->q;
    vf s[PART][MAX_VECTORS], u[PART], w[PART], d[PART];
    UNROLL for (int r = 0; r < PART; r++) {
        u[r] = w[r] = v_set(0.0f);
        UNROLL for (int j = 0; j < vectors; j++) {
            s[r][j] = v_load(in + (row + r) * dim + j * LANES) * v_load(decay + j * LANES);
            u[r]    = v_fma(s[r][j], v_load(k + j * LANES), u[r]);
            w[r]    = v_fma(s[r][j], v_load(q + j * LANES), w[r]);
        }
    }
    spread_sums(u, PART);
    spread_sums(w, PART);
    UNROLL for (int r = 0; r < PART; r++) {
        d[r] = _mm512_fnmadd_ps(v_set(block->beta[0]), u[r], v_set(block->v[row + r]));
        w[r] = v_fma(v_set(block->qk[0]), d[r], w[r]);
    }
    UNROLL for (int r = 0; r < PART; r++) {
        block->o[row + r] = _mm512_cvtss_f32(w[r]);
        UNROLL for (int j = 0; j < vectors; j++) {
            v_store(out + (row + r) * dim + j * LANES, v_fma(v_load(k + j * LANES), d[r], s[r][j]));
        }
    }
}

static void delta_128(const struct kda_block * block, const float * in, float * out) {
    if (block->n == 1) {
        for (int row = 0; row < 128; row += PART) {
            delta_once(block, 8, row, in, out);
        }
        return;
    }
    for (int row = 0; row < 126; row += 3) {
        delta_rows(block, 3, 8, row, in, out);
        prefetch_behind(block, row, 3);
    }
    delta_rows(block, 2, 8, 126, in, out);
    prefetch_behind(block, 126, 2);
}

static void delta_64(const struct kda_block * block, const float * in, float * out) {
    for (int row = 0; row < 64; row += 4) {
        if (block->n == 1) {
            delta_once(block, 4, row, in, out);
            delta_once(block, 4, row + PART, in, out);
        } else {
            delta_rows(block, 4, 4, row, in, out);
        }
        prefetch_behind(block, row, 4);
    }
}

static void run(const struct k3_kda_head * heads, int n) {
    kda_run(heads, n, heads->dim == 128 ? delta_128 : heads->dim == 64 ? delta_64 : kda_delta);
}

const struct k3_kda_kernels k3_kda_avx512 = {.scratch = kda_scratch, .run = run};
