// kda_generic.c - the kernel of kda_impl.h for plain C.
#include "kda_impl.h"

static void run(const struct k3_kda_head * heads, int n) { kda_run(heads, n, kda_delta); }

const struct k3_kda_kernels k3_kda_generic = {.scratch = kda_scratch, .run = run};
