// mutant.c - selects the planted fault in a build with LLAMA_K3_MUTANTS; empty otherwise.
#include "ggml_k3_mutant.h"

#ifdef LLAMA_K3_MUTANTS
#include <stdlib.h>
#include <string.h>

bool ggml_k3_mutant(const char * name) {
    const char * chosen = getenv("LLAMA_K3_MUTANT");
    return chosen != NULL && strcmp(chosen, name) == 0;
}
#else
typedef int ggml_k3_no_mutants;  // ISO C wants a declaration in every translation unit
#endif
