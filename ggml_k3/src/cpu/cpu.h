// cpu.h - the kernels of the instruction set in use: one table, chosen once.
#ifndef K3_CPU_H
#define K3_CPU_H

#include "kda.h"
#include "matmul.h"
#include "mla.h"
#include "rows.h"

struct k3_cpu {
    const char * name;  // generic, avx2, avx512, neon
    const struct k3_matmul_kernels * matmul;
    const struct k3_kda_kernels * kda;
    const struct k3_mla_kernels * mla;
    const struct k3_rows_kernels * rows;
};

// The best variant that the processor and the operating system run (CPUID and XGETBV), or the one that the
// environment variable GGML_K3_CPU names. NULL when that one is unknown or cannot run here: no fast graph can be built then.
const struct k3_cpu * k3_cpu(void);

#endif
