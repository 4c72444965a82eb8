// rows_avx512.c - the kernels of rows_impl.h for AVX-512.
#include "rows_impl.h"

const struct k3_rows_kernels k3_rows_avx512 = K3_ROWS_KERNELS;
