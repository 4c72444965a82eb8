// mla_avx2.c - the kernels of mla_impl.h for AVX2 with FMA and F16C.
#include "mla_impl.h"

const struct k3_mla_kernels k3_mla_avx2 = {LANES, mla_scratch, mla_pack, mla_span, mla_fold, mla_finish};
