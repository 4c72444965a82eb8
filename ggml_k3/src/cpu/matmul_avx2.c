// matmul_avx2.c - the table of AVX2 kernels of matmul.h, and y = W x for F32, F16 and BF16.
#include "matmul_avx2.h"
#include "matmul_float_impl.h"

static bool streams(enum ggml_type type, int64_t n_tokens) {
    return n_tokens <= (type == GGML_TYPE_MXFP4 ? K3_STREAM_MXFP4 : K3_STREAM_Q8_0);
}

static size_t scratch(enum ggml_type type, int64_t k, int64_t n_tokens) {
    if (k3_matmul_kind(type) == K3_ACT_F32) {
        return float_scratch(n_tokens);
    }
    return streams(type, n_tokens) ? k3_matmul_stream_scratch_avx2(k, n_tokens)
                                   : k3_matmul_tile_scratch_avx2(type, k, n_tokens);
}

static void run(const struct k3_matmul_args * args) {
    if (k3_matmul_kind(args->type) == K3_ACT_F32) {
        run_float(args);
    } else if (streams(args->type, args->n_tokens)) {
        k3_matmul_stream_avx2(args);
    } else {
        k3_matmul_tile_avx2(args);
    }
}

const struct k3_matmul_kernels k3_matmul_avx2 = {k3_matmul_kind, k3_matmul_pack, scratch, run};
