// matmul.c - y = W x, plain and by expert id. Stock ggml converts x to the weight type's dot format (BF16 for BF16,
// Q8_0 for Q8_0 and MXFP4); the reference form keeps x in fp32 and sums in fp64 in a fixed order.
#include "cpu/fast.h"
#include "ggml_k3.h"
#include "ggml_k3_mutant.h"

enum { BLOCK = 256, TOKEN_TILE = 16 };  // elements unpacked at once; tokens that share an unpacked piece

// out[0..n) = elements [first, first + n) of a weight row; first and n are multiples of the type's block
static void unpack(enum ggml_type type, const char * row, int64_t first, int64_t n, float * out) {
    if (type == GGML_TYPE_F32) {
        const float * src = (const float *) row + first;
        for (int64_t i = 0; i < n; i++) {
            out[i] = src[i];
        }
        return;
    }
    ggml_get_type_traits(type)->to_float(row + ggml_row_size(type, first), out, n);
    if (type == GGML_TYPE_MXFP4 && GGML_K3_MUTANT("swap-nibbles")) {
        for (int64_t i = 0; i + 1 < n; i += 2) {
            const float even = out[i];
            out[i]           = out[i + 1];
            out[i + 1]       = even;
        }
    }
}

// y[t] = dot(weight row, x_t) for up to TOKEN_TILE tokens
static void dot_tile(enum ggml_type type, const char * row, int64_t n, const float * const * x, float ** y,
                     int n_tokens) {
    double sum[TOKEN_TILE] = {0};
    float piece[BLOCK];
    for (int64_t first = 0; first < n; first += BLOCK) {
        const int64_t size = n - first < BLOCK ? n - first : BLOCK;
        unpack(type, row, first, size, piece);
        for (int t = 0; t < n_tokens; t++) {
            for (int64_t i = 0; i < size; i++) {
                sum[t] += (double) piece[i] * x[t][first + i];
            }
        }
    }
    for (int t = 0; t < n_tokens; t++) {
        *y[t] = (float) sum[t];
    }
}

static void * at(const struct ggml_tensor * t, int64_t i0, int64_t i1, int64_t i2) {
    return (char *) t->data + (size_t) i0 * t->nb[0] + (size_t) i1 * t->nb[1] + (size_t) i2 * t->nb[2];
}

// Weight rows are dealt to the threads round robin.
static void matmul_reference(struct ggml_tensor * dst, int ith, int nth, void * user) {
    (void) user;
    const struct ggml_tensor *w = dst->src[0], *x = dst->src[1];
    const int64_t n_rows = w->ne[1], n_tokens = x->ne[1];
    for (int64_t batch = 0; batch < x->ne[2]; batch++) {
        for (int64_t row = ith; row < n_rows; row += nth) {
            for (int64_t first = 0; first < n_tokens; first += TOKEN_TILE) {
                const float * xs[TOKEN_TILE];
                float * ys[TOKEN_TILE];
                int n = 0;
                for (; n < TOKEN_TILE && first + n < n_tokens; n++) {
                    xs[n] = at(x, 0, first + n, batch);
                    ys[n] = at(dst, row, first + n, batch);
                }
                dot_tile(w->type, at(w, 0, row, w->ne[2] == 1 ? 0 : batch), w->ne[0], xs, ys, n);
            }
        }
    }
}

static void matmul_id_reference(struct ggml_tensor * dst, int ith, int nth, void * user) {
    (void) user;
    const struct ggml_tensor *w = dst->src[0], *x = dst->src[1], *ids = dst->src[2];
    for (int64_t token = 0; token < ids->ne[1]; token++) {
        for (int64_t slot = 0; slot < ids->ne[0]; slot++) {
            const int32_t expert = *(const int32_t *) at(ids, slot, token, 0);
            const float * xs     = at(x, 0, x->ne[1] == 1 ? 0 : slot, token);
            for (int64_t row = ith; row < w->ne[1]; row += nth) {
                float * y = at(dst, row, slot, token);
                dot_tile(w->type, at(w, 0, row, expert), w->ne[0], &xs, &y, 1);
            }
        }
    }
}

struct ggml_tensor * ggml_k3_matmul(struct ggml_k3_builder * b, struct ggml_tensor * w, struct ggml_tensor * x) {
    if (b->form == GGML_K3_FAST) {
        struct ggml_tensor * y;
        k3_matmul_group_fast(b, &w, 1, x, &y);
        return y;
    }
    if (b->form == GGML_K3_STOCK) {
        return ggml_mul_mat(b->ctx, w, x);
    }
    struct ggml_tensor * args[] = {w, x};
    return ggml_custom_4d(b->ctx, GGML_TYPE_F32, w->ne[1], x->ne[1], x->ne[2], 1, args, 2, matmul_reference,
                          GGML_N_TASKS_MAX, NULL);
}

void ggml_k3_matmul_group(struct ggml_k3_builder * b, struct ggml_tensor * const * w, int n, struct ggml_tensor * x,
                          struct ggml_tensor ** y) {
    GGML_ASSERT(n >= 1 && n <= GGML_K3_MAX_GROUP);
    if (b->form == GGML_K3_FAST) {
        k3_matmul_group_fast(b, w, n, x, y);
        return;
    }
    for (int i = 0; i < n; i++) {
        y[i] = ggml_k3_matmul(b, w[i], x);
    }
}

struct ggml_tensor * ggml_k3_matmul_heads(struct ggml_k3_builder * b, struct ggml_tensor * w, struct ggml_tensor * x,
                                          bool merged) {
    if (b->form == GGML_K3_FAST) {
        return k3_matmul_heads_fast(b, w, x, merged);
    }
    struct ggml_tensor * y = ggml_k3_matmul(b, w, x);
    if (!merged) {
        return y;
    }
    return ggml_cont_2d(b->ctx, ggml_permute(b->ctx, y, 0, 2, 1, 3), y->ne[0] * y->ne[2], y->ne[1]);
}

struct ggml_tensor * ggml_k3_matmul_id(struct ggml_k3_builder * b, struct ggml_tensor * w, struct ggml_tensor * x,
                                       struct ggml_tensor * ids) {
    if (b->form == GGML_K3_STOCK) {
        return ggml_mul_mat_id(b->ctx, w, x, ids);
    }
    GGML_ASSERT(b->form == GGML_K3_REFERENCE);
    struct ggml_tensor * args[] = {w, x, ids};
    return ggml_custom_4d(b->ctx, GGML_TYPE_F32, w->ne[1], ids->ne[0], ids->ne[1], 1, args, 3, matmul_id_reference,
                          GGML_N_TASKS_MAX, NULL);
}
