// kda_impl.h - Kimi Delta Attention for one head, for the instruction set of the including file.
//
// Tokens go through in blocks of BLOCK: convolution with SiLU and L2 norm, decay and beta, then the delta rule for the
// whole block, a few value rows of the state at a time, then norm and output gate. Heads of one token, whose states
// come from memory, make up a block together: nothing else is read or written while their states stream by.
#ifndef K3_KDA_IMPL_H
#define K3_KDA_IMPL_H

#include "kda.h"
#include "node.h"
#include "simd.h"

#include <math.h>

enum { BLOCK = 16 };

// A block of tokens: the vectors that the delta rule needs, row t of each is token t.
struct kda_block {
    const struct k3_kda_head * head;
    int64_t dim, first;  // first: token of the segment
    int n;
    const float *q, *k, *decay;    // [n][dim]
    const float * v;               // [n][dim], times beta
    float beta[BLOCK], qk[BLOCK];  // qk: q . k
    float * o;                     // [n][dim]
};

// The delta rule over a block: reads the state `in`, writes `out` (may be the same), fills the block's o.
typedef void (*kda_delta_fn)(const struct kda_block * block, const float * in, float * out);

// ---- functions ---------------------------------------------------------------------------------------------

// x within [low, high]; NaN for NaN
K3_INLINE vf v_clamp(vf x, float low, float high) {
#if defined(__AVX512F__)
    return _mm512_min_ps(v_set(high), _mm512_max_ps(v_set(low), x));
#elif defined(__AVX2__)
    return _mm256_min_ps(v_set(high), _mm256_max_ps(v_set(low), x));
#else
    x = v_select((vi) (x < v_set(low)), v_set(low), x);
    return v_select((vi) (x > v_set(high)), v_set(high), x);
#endif
}

#define LOG2_E 1.44269504f

// 2^(scale x) for x clamped to [-87, 87], NaN for NaN. With scale = +-LOG2_E: exp(+-x), relative error below 4e-7. v_exp
// without its special cases, which here would cost as much as the rest.
K3_INLINE vf v_exp2(vf x, float scale) {
    const vf magic = v_set(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer in the low bits
    x              = v_clamp(x, -87.0f, 87.0f);
    const vf t     = v_fma(x, v_set(scale), magic);
    const vf f     = v_fma(x, v_set(scale), magic - t);
    // the best 1 + ... of degree 5 within [-0.5, 0.5]
    vf p           = v_set(0.00132646454f);
    p              = v_fma(p, f, v_set(0.00967157659f));
    p              = v_fma(p, f, v_set(0.0555073452f));
    p              = v_fma(p, f, v_set(0.240222411f));
    p              = v_fma(p, f, v_set(0.693146977f));
    p              = v_fma(p, f, v_set(1.0f));
    return p * (vf) (((vi) t - (vi) magic + 127) << 23);
}

// 1 / (1 + y) for y >= 0
K3_INLINE vf v_share(vf y) {
    y = y + v_set(1.0f);
#if defined(__AVX512F__)
    const vf near = _mm512_rcp14_ps(y);  // one step of Newton's method makes 14 bits 24 or so
    return v_fma(near, _mm512_fnmadd_ps(y, near, v_set(1.0f)), near);
#else
    return v_set(1.0f) / y;
#endif
}

// 1 / (1 + exp(-x)), never below 1e-38
K3_INLINE vf v_logistic(vf x) { return v_share(v_exp2(x, -LOG2_E)); }

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

// ---- what is prepared for it ---------------------------------------------------------------------------------

// Memory of one call, all [..][dim].
struct kda_work {
    float * taps[3];    // [conv_width]
    float * window[3];  // [conv_width - 1]
    float * qkv[3];     // [BLOCK]
    float *decay, *o;   // [BLOCK]
};

static size_t kda_scratch(int64_t dim, int64_t conv_width) {
    return (size_t) (dim * (3 * conv_width + 3 * (conv_width - 1) + 5 * BLOCK)) * sizeof(float);
}

static struct kda_work kda_layout(const struct k3_kda_head * h) {
    struct kda_work work;
    float * p = h->scratch;
    for (int i = 0; i < 3; i++) {
        work.taps[i]   = p;
        work.window[i] = work.taps[i] + h->conv_width * h->dim;
        work.qkv[i]    = work.window[i] + (h->conv_width - 1) * h->dim;
        p              = work.qkv[i] + BLOCK * h->dim;
    }
    work.decay = p;
    work.o     = p + BLOCK * h->dim;
    return work;
}

// x[j] = column j of the rows p [LANES][n], n = 3 or 4
K3_INLINE void load_columns(const float * p, const int n, vf * x) {
#if defined(__AVX512F__)
    const vi first = {0, 3, 6, 9, 12, 15, 18, 21, 24, 27, 30}, four = {0, 4, 8, 12, 16, 20, 24, 28};
    if (n == 4) {
        for (int j = 0; j < 4; j++) {
            const __m512i at  = (__m512i) (four + j);
            const __m512 low  = _mm512_permutex2var_ps(v_load(p), at, v_load(p + 16));
            const __m512 high = _mm512_permutex2var_ps(v_load(p + 32), at, v_load(p + 48));
            x[j]              = _mm512_shuffle_f32x4(low, high, 0x44);
        }
        return;
    }
    for (int j = 0; j < 3; j++) {  // lanes from 11 - (j == 2) on come from the third vector
        const __m512 low = _mm512_permutex2var_ps(v_load(p), (__m512i) (first + j), v_load(p + 16));
        const int kept   = j == 2 ? 10 : 11;
        const vi lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, third = 3 * lane + (j - 32 + 16);
        x[j] = _mm512_permutex2var_ps(low, (__m512i) (vi) v_select(lane < kept, (vf) lane, (vf) third), v_load(p + 32));
    }
#else
    float column[4][LANES];
    for (int lane = 0; lane < LANES; lane++) {
        for (int j = 0; j < n; j++) {
            column[j][lane] = p[lane * n + j];
        }
    }
    for (int j = 0; j < n; j++) {
        x[j] = v_load(column[j]);
    }
#endif
}

// The other way round, for n = 3
K3_INLINE void store_columns(float * p, const vf * x) {
#if defined(__AVX512F__)
    const vi lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    for (int i = 0; i < 3; i++) {
        const vi at = lane + 16 * i, row = at / 3, column = at - row * 3;
        const __m512 two = _mm512_permutex2var_ps(x[0], (__m512i) (row + ((column == 1) & 16)), x[1]);
        v_store(p + 16 * i,
                _mm512_mask_permutexvar_ps(two, _mm512_movepi32_mask((__m512i) (column == 2)), (__m512i) row, x[2]));
    }
#else
    float column[3][LANES];
    for (int j = 0; j < 3; j++) {
        v_store(column[j], x[j]);
    }
    for (int lane = 0; lane < LANES; lane++) {
        for (int j = 0; j < 3; j++) {
            p[lane * 3 + j] = column[j][lane];
        }
    }
#endif
}

// [dim][n] to [n][dim] and back
static void transpose_in(const float * from, int64_t dim, int64_t n, float * to) {
    for (int64_t c = 0; c < dim; c++) {
        for (int64_t j = 0; j < n; j++) {
            to[j * dim + c] = from[c * n + j];
        }
    }
}

static void transpose_out(const float * from, int64_t dim, int64_t n, float * to) {
    for (int64_t c = 0; c < dim; c++) {
        for (int64_t j = 0; j < n; j++) {
            to[c * n + j] = from[j * dim + c];
        }
    }
}

// Convolution and SiLU of q, k or v (i) for n tokens from `first` on. Between blocks, taps and window are kept as
// [width][dim] and [width - 1][dim] in `work`.
static void convolve(const struct k3_kda_head * h, const struct kda_work * work, int i, int64_t first, int n,
                     float * out) {
    const int64_t dim = h->dim, width = h->conv_width, past = width - 1;
    float *taps = work->taps[i], *window = work->window[i];
    if (first == 0) {
        transpose_in(h->conv[i], dim, width, taps);
        transpose_in(h->window_in[i], dim, past, window);
    }
    for (int64_t c = 0; c < dim; c += LANES) {
        for (int t = 0; t < n; t++) {
            const vf x = v_load(h->x[i] + (first + t) * h->x_stride[i] + c);
            vf sum     = {0};
            for (int64_t w = 0; w < past; w++) {
                sum = v_fma(v_load(window + w * dim + c), v_load(taps + w * dim + c), sum);
                v_store(window + w * dim + c, w + 1 < past ? v_load(window + (w + 1) * dim + c) : x);
            }
            sum = v_fma(x, v_load(taps + past * dim + c), sum);
            v_store(out + t * dim + c, sum * v_logistic(sum));
        }
    }
    if (first + n == h->n) {
        transpose_out(window, dim, past, h->window_out[i]);
    }
}

// The same for the usual width of 4 and one vector of channels, with taps and window in registers.
K3_INLINE void convolve_4(const struct k3_kda_head * h, const struct kda_work * work, int i, int64_t first, int n,
                          int64_t c, float * out) {
    float *taps = work->taps[i] + 4 * c, *window = work->window[i] + 3 * c;
    vf tap[4], x[4];
    if (first == 0) {
        load_columns(h->conv[i] + 4 * c, 4, tap);
        load_columns(h->window_in[i] + 3 * c, 3, x);
    } else {
        for (int w = 0; w < 4; w++) tap[w] = v_load(taps + w * LANES);
        for (int w = 0; w < 3; w++) x[w] = v_load(window + w * LANES);
    }
    for (int t = 0; t < n; t++) {
        x[3]   = v_load(h->x[i] + (first + t) * h->x_stride[i] + c);
        vf sum = v_fma(x[0], tap[0], v_set(0.0f));
        sum    = v_fma(x[1], tap[1], sum);
        sum    = v_fma(x[2], tap[2], sum);
        sum    = v_fma(x[3], tap[3], sum);
        v_store(out + t * h->dim + c, sum * v_logistic(sum));
        x[0] = x[1];
        x[1] = x[2];
        x[2] = x[3];
    }
    if (first + n == h->n) {
        store_columns(h->window_out[i] + 3 * c, x);
    } else {
        for (int w = 0; w < 4; w++) v_store(taps + w * LANES, tap[w]);
        for (int w = 0; w < 3; w++) v_store(window + w * LANES, x[w]);
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
        return v_exp2(lower_bound * v_share(v_exp2(a * z, LOG2_E)), LOG2_E);
    }
    const vf size = (vf) ((vi) z & ~(vi) v_set(-0.0f));
    const vf g    = a * (v_max(z, v_set(0.0f)) + v_log1p(v_exp2(size, -LOG2_E)));
    return v_select((vi) (g < v_set(-87.0f)), v_set(0.0f), v_exp2(g, LOG2_E));
}

// Decays of one vector of channels.
K3_INLINE void decays(const struct k3_kda_head * h, bool bounded, int64_t first, int n, int64_t c, float * decay) {
    const vf a = v_set(h->a), lower_bound = v_set(h->gate_lower_bound), bias = v_load(h->dt_bias + c);
    for (int t = 0; t < n; t++) {
        const vf z = v_load(h->z + (first + t) * h->z_stride + c) + bias;
        v_store(decay + t * h->dim + c, decay_of(z, a, bounded, lower_bound));
    }
}

static void betas(const struct k3_kda_head * h, int64_t first, int n, float * beta) {
    float logit[BLOCK] = {0};
    for (int t = 0; t < n; t++) {
        logit[t] = h->beta[(first + t) * h->beta_stride];
    }
    for (int t = 0; t < BLOCK; t += LANES) {
        v_store(beta + t, v_logistic(v_load(logit + t)));
    }
}

// L2 norm of q (which also gets 1 / sqrt(dim)) and k, v times beta.
static void normalise(const struct k3_kda_head * h, int n, float * const * qkv, struct kda_block * b) {
    const int64_t dim = h->dim;
    const float root  = 1.0f / sqrtf((float) dim);
    for (int t = 0; t < n; t++) {
        float *q = qkv[0] + t * dim, *k = qkv[1] + t * dim, *v = qkv[2] + t * dim;
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
static void finish(const struct kda_block * b) {
    const struct k3_kda_head * h = b->head;
    const int64_t dim = h->dim, first = b->first;
    for (int t = 0; t < b->n; t++) {
        const float *o = b->o + t * dim, *gate = h->gate + (first + t) * h->gate_stride;
        float * out = h->out + (first + t) * h->out_stride;
        vf square   = {0};
        for (int64_t c = 0; c < dim; c += LANES) {
            square = v_fma(v_load(o + c), v_load(o + c), square);
        }
        float sum[4];
        v_sum4(square, square, square, square, sum);
        const vf scale = v_set(1.0f / sqrtf(sum[0] / (float) dim + h->norm_eps));
        for (int64_t c = 0; c < dim; c += LANES) {
            v_store(out + c, v_load(o + c) * scale * v_load(h->norm + c) * v_logistic(v_load(gate + c)));
        }
    }
}

// ---- prefetching -----------------------------------------------------------------------------------------------

enum { PARTS = 2 * BLOCK };

K3_INLINE void prefetch_row(const float * row, int64_t dim) {
    for (int64_t c = 0; c < dim; c += K3_LINE / (int64_t) sizeof(float)) {
        __builtin_prefetch(row + c);
    }
}

// Half a token of the inputs of the next block and of what the end of this one needs: rows too far apart for a hardware
// prefetcher to see them coming.
K3_INLINE void prefetch_part(const struct kda_block * b, int64_t part) {
    const struct k3_kda_head * h = b->head;
    const int64_t now = b->first + part / 2, t = now + BLOCK;
    if (t >= h->n) {
        return;
    }
    if (part % 2 == 0) {
        for (int i = 0; i < 3; i++) {
            prefetch_row(h->x[i] + t * h->x_stride[i], h->dim);
        }
    } else {
        prefetch_row(h->z + t * h->z_stride, h->dim);
        prefetch_row(h->gate + now * h->gate_stride, h->dim);
        prefetch_row(h->out + now * h->out_stride, h->dim);
    }
}

// Called when the delta rule is through with `rows` rows from `row` on, for a share of the prefetching.
K3_INLINE void prefetch_behind(const struct kda_block * b, int64_t row, int64_t rows) {
    for (int64_t part = PARTS * row / b->dim; part < PARTS * (row + rows) / b->dim; part++) {
        prefetch_part(b, part);
    }
}

// ---- delta rule, state in memory: any dim --------------------------------------------------------------------

enum { ROWS = 4 };  // value rows at a time: they share the loads of decay, k and q

// Token t for `rows` <= ROWS value rows from `row` on.
K3_INLINE void kda_token(const struct kda_block * b, int t, int64_t row, const int rows, const float * in,
                         float * out) {
    const int64_t dim  = b->dim;
    const float *decay = b->decay + t * dim, *k = b->k + t * dim, *q = b->q + t * dim, *v = b->v + t * dim + row;
    vf u[ROWS] = {{0}, {0}, {0}, {0}}, w[ROWS] = {{0}, {0}, {0}, {0}};
    for (int64_t j = 0; j < dim; j += LANES) {
        const vf decay_j = v_load(decay + j), k_j = v_load(k + j), q_j = v_load(q + j);
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
            const vf s = v_load(in + r * dim + j) * decay_j;
            v_store(out + r * dim + j, s);
            u[r] = v_fma(s, k_j, u[r]);
            w[r] = v_fma(s, q_j, w[r]);
        }
    }
    float us[ROWS], ws[ROWS], d[ROWS];
    v_sum4(u[0], u[1], u[2], u[3], us);
    v_sum4(w[0], w[1], w[2], w[3], ws);
    for (int r = 0; r < rows; r++) {
        d[r]                    = v[r] - b->beta[t] * us[r];
        b->o[t * dim + row + r] = ws[r] + b->qk[t] * d[r];
    }
    for (int64_t j = 0; j < dim; j += LANES) {
        const vf k_j = v_load(k + j);
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
            v_store(out + r * dim + j, v_fma(k_j, v_set(d[r]), v_load(out + r * dim + j)));
        }
    }
}

// A state that comes from memory for one token is read row by row, in one stream.
static inline void kda_delta(const struct kda_block * b, const float * in, float * out) {
    for (int64_t row = 0; row < b->dim && b->n == 1; row++) {
        kda_token(b, 0, row, 1, in + row * b->dim, out + row * b->dim);
    }
    for (int64_t row = 0; row < b->dim && b->n > 1; row += ROWS) {
        for (int t = 0; t < b->n; t++) {
            kda_token(b, t, row, ROWS, (t ? out : in) + row * b->dim, out + row * b->dim);
        }
        prefetch_behind(b, row, ROWS);
    }
}

// ---- heads -------------------------------------------------------------------------------------------------------

// The n tokens from `first` on of a head, into the rows of `work` from `row` on.
static void kda_prepare(const struct k3_kda_head * h, const struct kda_work * work, int row, int64_t first, int n,
                        struct kda_block * b) {
    const int64_t dim = h->dim, at = row * dim;
    float * const qkv[3] = {work->qkv[0] + at, work->qkv[1] + at, work->qkv[2] + at};

    *b = (struct kda_block) {.head = h, .dim = dim, .first = first, .n = n, .q = qkv[0], .k = qkv[1], .v = qkv[2]};
    b->decay = work->decay + at;
    b->o     = work->o + at;
    for (int i = 0; i < 3; i++) {
        for (int64_t c = 0; c < dim && h->conv_width == 4; c += LANES) {
            convolve_4(h, work, i, first, n, c, qkv[i]);
        }
        if (h->conv_width != 4) {
            convolve(h, work, i, first, n, qkv[i]);
        }
    }
    for (int64_t c = 0; c < dim; c += LANES) {
        if (h->gate_bounded) {
            decays(h, true, first, n, c, work->decay + at);
        } else {
            decays(h, false, first, n, c, work->decay + at);
        }
    }
    betas(h, first, n, b->beta);
    normalise(h, n, qkv, b);
}

K3_INLINE void kda_tokens(const struct k3_kda_head * h, const struct kda_work * work, kda_delta_fn delta) {
    struct kda_block b;
    for (int64_t first = 0; first < h->n; first += BLOCK) {
        kda_prepare(h, work, 0, first, h->n - first < BLOCK ? (int) (h->n - first) : BLOCK, &b);
        delta(&b, first ? h->state_out : h->state_in, h->state_out);
        finish(&b);
    }
}

// Up to BLOCK heads of one token each.
K3_INLINE void kda_singles(const struct k3_kda_head * h, int n, const struct kda_work * work, kda_delta_fn delta) {
    struct kda_block b[BLOCK];
    for (int i = 0; i < n; i++) {
        kda_prepare(&h[i], work, i, 0, 1, &b[i]);
    }
    for (int i = 0; i < n; i++) {
        delta(&b[i], h[i].state_in, h[i].state_out);
    }
    for (int i = 0; i < n; i++) {
        finish(&b[i]);
    }
}

K3_INLINE void kda_run(const struct k3_kda_head * heads, int n_heads, kda_delta_fn delta) {
    const struct kda_work work = kda_layout(heads);
    for (int i = 0, n; i < n_heads; i += n) {
        for (n = 0; i + n < n_heads && n < BLOCK && heads[i + n].n == 1; n++) {
        }
        if (n) {
            kda_singles(heads + i, n, &work, delta);
        } else {
            kda_tokens(heads + i, &work, delta);
            n = 1;
        }
    }
}

#endif
