// mla_generic.c - the kernels of mla_impl.h in the compiler's baseline instruction set.
#include "mla_impl.h"

const struct k3_mla_kernels k3_mla_generic = {LANES, mla_scratch, mla_pack, mla_span, mla_fold, mla_finish};
