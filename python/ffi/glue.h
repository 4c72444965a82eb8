// glue.h - what the Python extension has beside llama_k3.h: the callbacks that Python code answers, and the abort
// callback that asks Python only now and then. gen_ffi.py hands this file to cffi as well.
#include <stdbool.h>
#include <stdint.h>

// Of one context: Python is asked again at `next_poll_ns` of the monotonic clock; `owner` is its cffi handle.
typedef struct k3_py_poll_state {
    uint64_t next_poll_ns;
    void * owner;
} k3_py_poll_state;

// A llama_k3_abort_callback; user: a k3_py_poll_state.
static bool k3_py_abort(void * user);
