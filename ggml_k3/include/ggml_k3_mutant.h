// ggml_k3_mutant.h - planted faults for the test suite. In a normal build GGML_K3_MUTANT(name) is the constant
// false; with -DLLAMA_K3_MUTANTS=ON it is true when the environment variable LLAMA_K3_MUTANT is that name.
#ifndef GGML_K3_MUTANT_H
#define GGML_K3_MUTANT_H

#include <stdbool.h>

#ifdef LLAMA_K3_MUTANTS
bool ggml_k3_mutant(const char * name);
#define GGML_K3_MUTANT(name) ggml_k3_mutant(name)
#else
#define GGML_K3_MUTANT(name) false
#endif

#endif
