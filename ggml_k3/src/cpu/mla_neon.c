// mla_neon.c - the kernels of mla_impl.h for AArch64.
#include "mla_impl.h"

const struct k3_mla_kernels k3_mla_neon = {LANES, mla_scratch, mla_pack, mla_span, mla_fold, mla_finish};
