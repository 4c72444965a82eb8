// select.h - choice of experts by score, shared by the router's forms.
#ifndef K3_SELECT_H
#define K3_SELECT_H

#include <stdint.h>

enum { K3_SELECT_MAX = 4096 };  // experts

// ids of the `n_used` largest scores, descending, ties to the lower id; a NaN is larger than nothing
void k3_select_top(const float * scores, int64_t n_expert, int32_t * ids, int64_t n_used);
// How many different values below K3_SELECT_MAX stand in ids.
uint64_t k3_count_distinct(const int32_t * ids, int64_t n);

#endif
