// rows_avx2.c - the kernels of rows_impl.h for AVX2 with FMA.
#include "rows_impl.h"

const struct k3_rows_kernels k3_rows_avx2 = K3_ROWS_KERNELS;
