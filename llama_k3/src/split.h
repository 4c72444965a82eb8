// split.h - opens all files of a model. A split model is PREFIX-00001-of-0000N.gguf and so on; the metadata lie in
// the first part, the others hold the split.* keys and tensors.
#ifndef K3_SPLIT_H
#define K3_SPLIT_H

#include "gguf_part.h"

// `path` may name any part. `progress` (may be NULL) is called with fractions up to 1. The caller closes the parts
// and frees the array; on failure there is nothing to free.
int k3_split_open(const char * path, const llama_k3_model_params * params, struct k3_part ** parts, uint32_t * n_parts,
                  k3_error e);
void k3_split_close(struct k3_part * parts, uint32_t n_parts);

#endif
