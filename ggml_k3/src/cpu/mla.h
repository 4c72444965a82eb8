// mla.h - kernels of absorbed attention over the latent cache: one table for each instruction set. The scheme that the
// driver (mla.c) follows is described there.
#ifndef K3_MLA_H
#define K3_MLA_H

#include "ggml.h"

#include <stddef.h>
#include <stdint.h>

// Filled in by the author of the op: see mla.c.
struct k3_mla_kernels;

extern const struct k3_mla_kernels k3_mla_generic, k3_mla_avx2, k3_mla_avx512, k3_mla_neon;

#endif
