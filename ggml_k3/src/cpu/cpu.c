// cpu.c - chooses the kernels once: by CPUID and XGETBV, or as GGML_K3_CPU says.
#include "cpu.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#if defined(__AVX__) || defined(__AVX2__) || defined(__AVX512F__)
#error "this file decides what the processor has and must not use more than the baseline itself"
#endif

static bool always(void) { return true; }

#if defined(__x86_64__)
#include <cpuid.h>

// State that the operating system saves on a task switch (XCR0).
enum { XCR0_AVX = 0x06, XCR0_AVX512 = 0xE6 };

static uint64_t enabled_state(void) {
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE)) {
        return 0;
    }
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t) high << 32 | low;
}

static bool has_avx2(void) {
    const unsigned wanted1 = bit_AVX | bit_FMA | bit_F16C, wanted7 = bit_AVX2 | bit_BMI2;
    unsigned a, b, c, d;
    if ((enabled_state() & XCR0_AVX) != XCR0_AVX || !__get_cpuid(1, &a, &b, &c, &d) || (c & wanted1) != wanted1) {
        return false;
    }
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & wanted7) == wanted7;
}

static bool has_avx512(void) {
    const unsigned wanted_b = bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL;
    const unsigned wanted_c = bit_AVX512VBMI | bit_AVX512VNNI;
    enum { AVX512_BF16 = 1 << 5 };
    unsigned a, b, c, d;
    if (!has_avx2() || (enabled_state() & XCR0_AVX512) != XCR0_AVX512 || !__get_cpuid_count(7, 0, &a, &b, &c, &d) ||
        (b & wanted_b) != wanted_b || (c & wanted_c) != wanted_c) {
        return false;
    }
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & AVX512_BF16);
}
#endif

#define VARIANT(isa) {#isa, &k3_matmul_##isa, &k3_kda_##isa, &k3_mla_##isa, &k3_rows_##isa}

// Best first.
static const struct variant {
    struct k3_cpu cpu;
    bool (*runs_here)(void);
} variants[] = {
#if defined(__x86_64__)
    {VARIANT(avx512), has_avx512},
    {VARIANT(avx2), has_avx2},
#elif defined(__aarch64__)
    {VARIANT(neon), always},
#endif
    {VARIANT(generic), always},
};

static const struct k3_cpu * choose(void) {
    const char * wanted = getenv("GGML_K3_CPU");
    for (size_t i = 0; i < sizeof(variants) / sizeof(variants[0]); i++) {
        const bool meant = !wanted || !*wanted || strcmp(wanted, variants[i].cpu.name) == 0;
        if (meant && variants[i].runs_here()) {
            return &variants[i].cpu;
        }
    }
    return NULL;
}

const struct k3_cpu * k3_cpu(void) {
    static _Atomic(const struct k3_cpu *) chosen;
    const struct k3_cpu * cpu = atomic_load_explicit(&chosen, memory_order_acquire);
    if (!cpu) {
        cpu = choose();
        atomic_store_explicit(&chosen, cpu, memory_order_release);
    }
    return cpu;
}

const char * ggml_k3_cpu_name(void) {
    const struct k3_cpu * cpu = k3_cpu();
    return cpu ? cpu->name : NULL;
}
