// rows_generic.c - the kernels of rows_impl.h for plain C.
#include "rows_impl.h"

const struct k3_rows_kernels k3_rows_generic = K3_ROWS_KERNELS;
