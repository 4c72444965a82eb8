// kda_avx2.c - the kernel of kda_impl.h for AVX2 with FMA.
#include "kda_impl.h"

static void run(const struct k3_kda_head * heads, int n) { kda_run(heads, n, kda_delta); }

const struct k3_kda_kernels k3_kda_avx2 = {.scratch = kda_scratch, .run = run};
