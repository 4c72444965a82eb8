// fast.h - constructors of the fast form, called by those of ggml_k3.h; arguments and results are described there.
// k3_kda_fast and k3_mla_fast stand in kda.h and mla.h.
#ifndef K3_FAST_H
#define K3_FAST_H

#include "ggml_k3.h"

struct ggml_tensor * k3_get_rows_fast(struct ggml_k3_builder * b, struct ggml_tensor * table, struct ggml_tensor * ids);
struct ggml_tensor * k3_norm_fast(struct ggml_k3_builder * b, struct ggml_tensor * x, struct ggml_tensor * weight,
                                  float eps);
struct ggml_tensor * k3_add_fast(struct ggml_k3_builder * b, struct ggml_tensor * x, struct ggml_tensor * y);
struct ggml_tensor * k3_gate_fast(struct ggml_k3_builder * b, struct ggml_tensor * x, struct ggml_tensor * gate);
struct ggml_tensor * k3_glu_fast(struct ggml_k3_builder * b, const struct ggml_k3_glu_params * p,
                                 struct ggml_tensor * gate, struct ggml_tensor * up);
struct ggml_tensor * k3_attn_res_fast(struct ggml_k3_builder * b, struct ggml_tensor ** bank, int n_bank,
                                      struct ggml_tensor * current, struct ggml_tensor * score,
                                      struct ggml_tensor * weight, float eps);
void k3_router_fast(struct ggml_k3_builder * b, const struct ggml_k3_router_params * p, struct ggml_tensor * logits,
                    struct ggml_tensor * bias, struct ggml_tensor ** ids, struct ggml_tensor ** weights);
void k3_matmul_group_fast(struct ggml_k3_builder * b, struct ggml_tensor * const * w, int n, struct ggml_tensor * x,
                          struct ggml_tensor ** y);
struct ggml_tensor * k3_matmul_heads_fast(struct ggml_k3_builder * b, struct ggml_tensor * w, struct ggml_tensor * x,
                                          bool merged);
struct ggml_tensor * k3_experts_fast(struct ggml_k3_builder * b, const struct ggml_k3_experts_weights * w,
                                     const struct ggml_k3_glu_params * glu, struct ggml_tensor * x,
                                     struct ggml_tensor * ids, struct ggml_tensor * weights);

#endif
