// mla_bf16.h - kernels of attention with the bf16 dot product of AVX-512, for BF16 and Q8_0 caches with rows of an
// even width: see k3_mla_kernels.
#ifndef K3_MLA_BF16_H
#define K3_MLA_BF16_H

#include "mla.h"

size_t k3_mla_bf16_scratch(enum ggml_type type, int64_t n_latent, int64_t width);
void k3_mla_bf16_pack(const struct k3_mla_panel * panel, void * scratch);
void k3_mla_bf16_span(const struct k3_mla_panel * panel, int64_t first, int64_t last, void * scratch,
                      const struct k3_mla_part * part);

#endif
