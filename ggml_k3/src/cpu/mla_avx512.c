// mla_avx512.c - kernels of attention for AVX-512: those of mla_impl.h in fp32 for F32 and F16 caches.
#include "mla_impl.h"

const struct k3_mla_kernels k3_mla_avx512 = {LANES, mla_scratch, mla_pack, mla_span, mla_fold, mla_finish};
