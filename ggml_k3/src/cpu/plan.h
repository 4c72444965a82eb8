// plan.h - what a fast node carries in its tensor's `extra`.
#ifndef K3_PLAN_H
#define K3_PLAN_H

#include "node.h"

struct k3_node {
    struct k3_node_info info;
    enum ggml_k3_section section;
    _Alignas(16) uint8_t params[];  // the op's own, in the arena of the graph
};

#endif
