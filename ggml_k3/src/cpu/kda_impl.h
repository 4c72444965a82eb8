// kda_impl.h - Kimi Delta Attention for one head, for the instruction set of the including file.
//
// Tokens go through in blocks of BLOCK: inputs into the series, convolution with SiLU and L2 norm in place, decay and
// beta, then the delta rule for the whole block, a few value rows of the state at a time, then norm and output gate.
// Only the delta rule's sums over keys differ between sets (vector width); each works in its own fixed order.
#ifndef K3_KDA_IMPL_H
#define K3_KDA_IMPL_H

#include "kda.h"
#include "node.h"
#include "simd.h"

#include <math.h>

enum { BLOCK = 16 };

// A block of tokens: the vectors that the delta rule needs, row t of each is token t.
struct kda_block {
    int64_t dim;
    int n;
    const float *q, *k, *decay;    // [n][dim]
    const float * v;               // [n][dim], times beta
    float beta[BLOCK], qk[BLOCK];  // qk: q . k
    float * o;                     // [n][dim]
};

// The delta rule over a block: reads the state `in`, writes `out` (may be the same), fills the block's o.
typedef void (*kda_delta_fn)(const struct kda_block * block, const float * in, float * out);

// ---- sums over lanes ---------------------------------------------------------------------------------------

// Sums of the lanes of four vectors, each in v_sum's order.
K3_INLINE void v_sum4(vf a, vf b, vf c, vf d, float sum[4]) {
#if defined(__AVX512F__)
    const vf ab   = _mm512_shuffle_f32x4(a, b, 0x44) + _mm512_shuffle_f32x4(a, b, 0xEE);
    const vf cd   = _mm512_shuffle_f32x4(c, d, 0x44) + _mm512_shuffle_f32x4(c, d, 0xEE);
    const vf four = _mm512_shuffle_f32x4(ab, cd, 0x88) + _mm512_shuffle_f32x4(ab, cd, 0xDD);
    const vf two  = four + _mm512_permute_ps(four, 0x4E);
    const vf one  = two + _mm512_permute_ps(two, 0xB1);
    _mm_storeu_ps(sum, _mm512_castps512_ps128(_mm512_maskz_compress_ps(0x1111, one)));
#elif defined(__AVX2__)
    const vf ab     = _mm256_permute2f128_ps(a, b, 0x20) + _mm256_permute2f128_ps(a, b, 0x31);
    const vf cd     = _mm256_permute2f128_ps(c, d, 0x20) + _mm256_permute2f128_ps(c, d, 0x31);
    const vf two    = _mm256_shuffle_ps(ab, cd, 0x44) + _mm256_shuffle_ps(ab, cd, 0xEE);  // a0 a1 c0 c1, b0 b1 d0 d1
    const vf one    = two + _mm256_permute_ps(two, 0xB1);
    const __m128 lo = _mm256_castps256_ps128(one), hi = _mm256_extractf128_ps(one, 1);
    _mm_storeu_ps(sum, _mm_shuffle_ps(_mm_unpacklo_ps(lo, hi), _mm_unpackhi_ps(lo, hi), 0x44));
#else
    const vf x[4] = {a, b, c, d};
    for (int i = 0; i < 4; i++) {
        sum[i] = (x[i][0] + x[i][2]) + (x[i][1] + x[i][3]);
    }
#endif
}

// ---- delta rule, state in memory: any dim --------------------------------------------------------------------

enum { ROWS = 4 };  // value rows at a time: they share the loads of decay, k and q

K3_INLINE void kda_token(const struct kda_block * b, int t, int64_t row, const float * in, float * out) {
    const int64_t dim   = b->dim;
    const float * decay = b->decay + t * dim;
    const float * k     = b->k + t * dim;
    const float * q     = b->q + t * dim;
    vf u[ROWS] = {{0}, {0}, {0}, {0}}, w[ROWS] = {{0}, {0}, {0}, {0}};
    for (int64_t j = 0; j < dim; j += LANES) {
        const vf decay_j = v_load(decay + j), k_j = v_load(k + j), q_j = v_load(q + j);
#pragma GCC unroll 4
        for (int r = 0; r < ROWS; r++) {
            const vf s = v_load(in + r * dim + j) * decay_j;
            v_store(out + r * dim + j, s);
            u[r] = v_fma(s, k_j, u[r]);
            w[r] = v_fma(s, q_j, w[r]);
        }
    }
    float us[ROWS], ws[ROWS];
    v_sum4(u[0], u[1], u[2], u[3], us);
    v_sum4(w[0], w[1], w[2], w[3], ws);
    vf d[ROWS];
#pragma GCC unroll 4
    for (int r = 0; r < ROWS; r++) {
        const float correction = b->v[t * dim + row + r] - b->beta[t] * us[r];
        d[r]                   = v_set(correction);

        b->o[t * dim + row + r] = ws[r] + b->qk[t] * correction;
    }
    for (int64_t j = 0; j < dim; j += LANES) {
        const vf k_j = v_load(k + j);
#pragma GCC unroll 4
        for (int r = 0; r < ROWS; r++) {
            v_store(out + r * dim + j, v_fma(k_j, d[r], v_load(out + r * dim + j)));
        }
    }
}

static inline void kda_delta(const struct kda_block * b, const float * in, float * out) {
    for (int64_t row = 0; row < b->dim; row += ROWS) {
        for (int t = 0; t < b->n; t++) {
            kda_token(b, t, row, (t ? out : in) + row * b->dim, out + row * b->dim);
        }
    }
}

// ---- what is prepared for it ---------------------------------------------------------------------------------

// Memory of one call, all [..][dim].
struct kda_work {
    float * taps[3];    // [conv_width]
    float * series[3];  // [conv_width - 1 + BLOCK]: the window, then the block's tokens; replaced by q, k, v in place
    float *decay, *o;   // [BLOCK]
};

static size_t kda_scratch(int64_t dim, int64_t conv_width) {
    return (size_t) (dim * (3 * conv_width + 3 * (conv_width - 1 + BLOCK) + 2 * BLOCK)) * sizeof(float);
}

static struct kda_work kda_layout(const struct k3_kda_head * h) {
    struct kda_work work;
    float * p = h->scratch;
    for (int i = 0; i < 3; i++) {
        work.taps[i]   = p;
        work.series[i] = p + h->conv_width * h->dim;
        p              = work.series[i] + (h->conv_width - 1 + BLOCK) * h->dim;
    }
    work.decay = p;
    work.o     = p + BLOCK * h->dim;
    return work;
}

// [dim][n] to [n][dim] and back
K3_INLINE void transpose_in(const float * from, int64_t dim, int64_t n, float * restrict to) {
    for (int64_t c = 0; c < dim; c++) {
        for (int64_t j = 0; j < n; j++) {
            to[j * dim + c] = from[c * n + j];
        }
    }
}

K3_INLINE void transpose_out(const float * restrict from, int64_t dim, int64_t n, float * to) {
    for (int64_t c = 0; c < dim; c++) {
        for (int64_t j = 0; j < n; j++) {
            to[c * n + j] = from[j * dim + c];
        }
    }
}

// Convolution over the series, then SiLU, in place: row t becomes that of token t.
K3_INLINE void convolve(const float * taps, int64_t dim, int64_t width, int n, float * series) {
    for (int64_t c = 0; c < dim; c += LANES) {
        for (int t = 0; t < n; t++) {
            float * x = series + t * dim + c;
            vf sum    = v_load(x) * v_load(taps + c);
            for (int64_t w = 1; w < width; w++) {
                sum = v_fma(v_load(x + w * dim), v_load(taps + w * dim + c), sum);
            }
            v_store(x, sum * v_sigmoid(sum));
        }
    }
}

// log(1 + y) for y in [0, 1], relative error below 2e-7: 2 artanh(y / (2 + y))
K3_INLINE vf v_log1p(vf y) {
    const vf s = y / (v_set(2.0f) + y), square = s * s;
    vf p = v_set(2.0f / 15);
    p    = v_fma(p, square, v_set(2.0f / 13));
    p    = v_fma(p, square, v_set(2.0f / 11));
    p    = v_fma(p, square, v_set(2.0f / 9));
    p    = v_fma(p, square, v_set(2.0f / 7));
    p    = v_fma(p, square, v_set(2.0f / 5));
    p    = v_fma(p, square, v_set(2.0f / 3));
    p    = v_fma(p, square, v_set(2.0f));
    return p * s;
}

// exp(g)
K3_INLINE vf decay_of(vf z, vf a, bool bounded, vf lower_bound) {
    if (bounded) {
        return v_exp(lower_bound * v_sigmoid(-(a * z)));
    }
    const vf size = (vf) ((vi) z & ~(vi) v_set(-0.0f));
    return v_exp(a * (v_max(z, v_set(0.0f)) + v_log1p(v_exp(-size))));
}

K3_INLINE void decays(const struct k3_kda_head * h, bool bounded, int64_t first, int n, float * decay) {
    const vf a = v_set(h->a), lower_bound = v_set(h->gate_lower_bound);
    for (int64_t c = 0; c < h->dim; c += LANES) {
        for (int t = 0; t < n; t++) {
            const vf z = v_load(h->z + (first + t) * h->z_stride + c) + v_load(h->dt_bias + c);
            v_store(decay + t * h->dim + c, decay_of(z, a, bounded, lower_bound));
        }
    }
}

static void betas(const struct k3_kda_head * h, int64_t first, int n, float * beta) {
    float logit[BLOCK] = {0};
    for (int t = 0; t < n; t++) {
        logit[t] = h->beta[(first + t) * h->beta_stride];
    }
    for (int t = 0; t < BLOCK; t += LANES) {
        v_store(beta + t, v_sigmoid(v_load(logit + t)));
    }
}

// L2 norm of q (which also gets 1 / sqrt(dim)) and k, v times beta.
static void normalise(const struct k3_kda_head * h, int n, float * const * series, struct kda_block * b) {
    const int64_t dim = h->dim;
    const float root  = 1.0f / sqrtf((float) dim);
    for (int t = 0; t < n; t++) {
        float *q = series[0] + t * dim, *k = series[1] + t * dim, *v = series[2] + t * dim;
        vf qq = {0}, kk = {0}, qk = {0};
        for (int64_t c = 0; c < dim; c += LANES) {
            const vf q_c = v_load(q + c), k_c = v_load(k + c);
            qq = v_fma(q_c, q_c, qq);
            kk = v_fma(k_c, k_c, kk);
            qk = v_fma(q_c, k_c, qk);
        }
        float sum[4];
        v_sum4(qq, kk, qk, qk, sum);
        const float q_scale = root / sqrtf(sum[0] + h->l2_eps), k_scale = 1.0f / sqrtf(sum[1] + h->l2_eps);
        b->qk[t]      = sum[2] * q_scale * k_scale;
        const vf beta = v_set(b->beta[t]);
        for (int64_t c = 0; c < dim; c += LANES) {
            v_store(q + c, v_load(q + c) * v_set(q_scale));
            v_store(k + c, v_load(k + c) * v_set(k_scale));
            v_store(v + c, v_load(v + c) * beta);
        }
    }
}

// Head norm and output gate.
static void finish(const struct k3_kda_head * h, const struct kda_block * b, int64_t first) {
    const int64_t dim = h->dim;
    float scale[BLOCK];
    for (int t = 0; t < b->n; t++) {
        vf square = {0};
        for (int64_t c = 0; c < dim; c += LANES) {
            const vf o = v_load(b->o + t * dim + c);
            square     = v_fma(o, o, square);
        }
        float sum[4];
        v_sum4(square, square, square, square, sum);
        scale[t] = 1.0f / sqrtf(sum[0] / (float) dim + h->norm_eps);
    }
    for (int64_t c = 0; c < dim; c += LANES) {
        for (int t = 0; t < b->n; t++) {
            const vf gate = v_sigmoid(v_load(h->gate + (first + t) * h->gate_stride + c));
            const vf o    = v_load(b->o + t * dim + c) * v_set(scale[t]) * v_load(h->norm + c);
            v_store(h->out + (first + t) * h->out_stride + c, o * gate);
        }
    }
}

// ---- one head of a segment -----------------------------------------------------------------------------------

static void kda_open(const struct k3_kda_head * h, struct kda_work * work) {
    for (int i = 0; i < 3; i++) {
        if (h->conv_width == 4) {
            transpose_in(h->conv[i], h->dim, 4, work->taps[i]);
            transpose_in(h->window_in[i], h->dim, 3, work->series[i]);
        } else {
            transpose_in(h->conv[i], h->dim, h->conv_width, work->taps[i]);
            transpose_in(h->window_in[i], h->dim, h->conv_width - 1, work->series[i]);
        }
    }
}

static void kda_close(const struct k3_kda_head * h, const struct kda_work * work) {
    for (int i = 0; i < 3; i++) {
        if (h->conv_width == 4) {
            transpose_out(work->series[i], h->dim, 3, h->window_out[i]);
        } else {
            transpose_out(work->series[i], h->dim, h->conv_width - 1, h->window_out[i]);
        }
    }
}

static void kda_prepare(const struct k3_kda_head * h, const struct kda_work * work, int64_t first,
                        struct kda_block * b) {
    const int64_t dim = h->dim, past = h->conv_width - 1;
    for (int i = 0; i < 3; i++) {
        for (int t = 0; t < b->n; t++) {
            memcpy(work->series[i] + (past + t) * dim, h->x[i] + (first + t) * h->x_stride[i],
                   (size_t) dim * sizeof(float));
        }
        if (h->conv_width == 4) {
            convolve(work->taps[i], dim, 4, b->n, work->series[i]);
        } else {
            convolve(work->taps[i], dim, h->conv_width, b->n, work->series[i]);
        }
    }
    if (h->gate_bounded) {
        decays(h, true, first, b->n, work->decay);
    } else {
        decays(h, false, first, b->n, work->decay);
    }
    betas(h, first, b->n, b->beta);
    normalise(h, b->n, work->series, b);
}

K3_INLINE void kda_run(const struct k3_kda_head * h, kda_delta_fn delta) {
    struct kda_work work = kda_layout(h);
    struct kda_block b   = {
          .dim = h->dim, .q = work.series[0], .k = work.series[1], .v = work.series[2], .decay = work.decay, .o = work.o};
    kda_open(h, &work);
    for (int64_t first = 0; first < h->n; first += BLOCK) {
        b.n = h->n - first < BLOCK ? (int) (h->n - first) : BLOCK;
        kda_prepare(h, &work, first, &b);
        delta(&b, first ? h->state_out : h->state_in, h->state_out);
        finish(h, &b, first);
        for (int i = 0; i < 3; i++) {
            memmove(work.series[i], work.series[i] + b.n * h->dim,
                    (size_t) ((h->conv_width - 1) * h->dim) * sizeof(float));
        }
    }
    kda_close(h, &work);
}

#endif
