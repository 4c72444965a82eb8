// model.h - a loaded model: its mapped files, hyper-parameters and bound weights. Immutable after the load.
#ifndef K3_MODEL_H
#define K3_MODEL_H

#include "hparams.h"
#include "weights.h"

#include <stdatomic.h>

struct k3_part;  // one mapped GGUF file

struct llama_k3_model {
    atomic_int references;  // the caller's and one for each context
    k3_hparams hp;
    k3_weights weights;
    struct k3_part * parts;  // [n_parts], the first holds the metadata
    uint32_t n_parts;
    uint64_t n_tensors, n_params, n_bytes;
    uint64_t digest;
};

void k3_model_retain(struct llama_k3_model * model);

#endif
