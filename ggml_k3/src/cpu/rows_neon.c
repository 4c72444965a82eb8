// rows_neon.c - the kernels of rows_impl.h for NEON.
#include "rows_impl.h"

const struct k3_rows_kernels k3_rows_neon = K3_ROWS_KERNELS;
