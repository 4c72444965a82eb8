// gguf_part.h - one mapped GGUF file: its bytes, metadata and tensors, whose data lie in the mapping.
#ifndef K3_GGUF_PART_H
#define K3_GGUF_PART_H

#include "error.h"
#include "gguf_check.h"

#include "ggml-backend.h"
#include "ggml.h"
#include "gguf.h"

struct k3_part {
    const char * name;  // last component of `path`, for messages
    char * path;
    void * bytes;  // the mapping, read-only, or the copy
    size_t size;
    k3_gguf_layout layout;
    struct gguf_context * gguf;
    struct ggml_context * tensors;
    ggml_backend_buffer_t buffer;  // over the whole mapping
};

// Opens, checks and maps; on failure the part is left empty. The pages come into memory as they are used. A file that
// shrinks while it is mapped ends the process (SIGBUS), as with every mapping.
int k3_part_open(struct k3_part * part, const char * path, k3_error e);
// Puts a copy of the file, in huge pages where the system gives them, in the place of the mapping. `go_on` (may be
// NULL) is told how many bytes were copied now and then, and stops the copying with false. LLAMA_K3_MEMORY,
// LLAMA_K3_ABORTED: the part is as it was.
int k3_part_copy(struct k3_part * part, bool (*go_on)(size_t n_copied, void * user), void * user, k3_error e);
// Also of an empty (zeroed) part.
void k3_part_close(struct k3_part * part);

#endif
