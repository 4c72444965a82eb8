// glue.c - stands before the code that cffi generates (it is not compiled on its own): see glue.h.
#include "glue.h"
#include "llama_k3.h"

#include <time.h>

enum { K3_PY_POLL_INTERVAL_NS = 50 * 1000 * 1000 };

// Takes the GIL and lets Python's signal handlers run; true when one of them raised. Defined by cffi.
static bool k3_py_poll(void * owner);

static bool k3_py_abort(void * user) {
    k3_py_poll_state * state = user;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    const uint64_t now_ns = (uint64_t) now.tv_sec * 1000000000u + (uint64_t) now.tv_nsec;
    if (now_ns < state->next_poll_ns) return false;
    state->next_poll_ns = now_ns + K3_PY_POLL_INTERVAL_NS;
    return k3_py_poll(state->owner);
}
