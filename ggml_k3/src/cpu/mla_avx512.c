// mla_avx512.c - kernels of attention for AVX-512: those of mla_impl.h in fp32 for F32 and F16 caches, those of
// mla_bf16_avx512.c for BF16 and Q8_0.
#include "mla_bf16.h"
#include "mla_impl.h"

static bool in_bf16(enum ggml_type type, int64_t width) {
    return (type == GGML_TYPE_BF16 || type == GGML_TYPE_Q8_0) && width % 2 == 0;
}

static size_t scratch_size(enum ggml_type type, int64_t n_latent, int64_t width) {
    return in_bf16(type, width) ? k3_mla_bf16_scratch(type, n_latent, width) : mla_scratch(type, n_latent, width);
}

static void pack(const struct k3_mla_panel * panel, void * scratch) {
    if (in_bf16(panel->type, panel->width)) {
        k3_mla_bf16_pack(panel, scratch);
    } else {
        mla_pack(panel, scratch);
    }
}

static void span(const struct k3_mla_panel * panel, int64_t first, int64_t last, void * scratch,
                 const struct k3_mla_part * part) {
    if (in_bf16(panel->type, panel->width)) {
        k3_mla_bf16_span(panel, first, last, scratch, part);
    } else {
        mla_span(panel, first, last, scratch, part);
    }
}

const struct k3_mla_kernels k3_mla_avx512 = {LANES, scratch_size, pack, span, mla_fold, mla_finish};
