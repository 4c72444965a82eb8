// gguf_part.c - maps one GGUF file and puts ggml tensors over its data.
#include "gguf_part.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static int map_descriptor(struct k3_part * part, int descriptor, k3_error e) {
    struct stat info;
    if (fstat(descriptor, &info) != 0) {
        return k3_fail(e, LLAMA_K3_FILE_OPEN, "%s: %s", part->path, strerror(errno));
    }
    if (!S_ISREG(info.st_mode)) {
        return k3_fail(e, LLAMA_K3_FILE_OPEN, "%s: found %s, wanted a regular file", part->path,
                       S_ISDIR(info.st_mode) ? "a directory" : "a special file");
    }
    if ((uint64_t) info.st_size > SIZE_MAX) {
        return k3_fail(e, LLAMA_K3_MEMORY, "%s: found %" PRIu64 " bytes, wanted a size that can be mapped", part->path,
                       (uint64_t) info.st_size);
    }
    part->size = (size_t) info.st_size;
    if (part->size == 0) {
        return k3_fail(e, LLAMA_K3_FILE_TRUNCATED, "%s: magic: found an empty file, wanted a GGUF file", part->name);
    }
    void * bytes = mmap(NULL, part->size, PROT_READ, MAP_SHARED, descriptor, 0);
    if (bytes == MAP_FAILED) {
        return k3_fail(e, LLAMA_K3_MEMORY, "%s: mapping %zu bytes: %s", part->path, part->size, strerror(errno));
    }
    part->bytes = bytes;
    return LLAMA_K3_OK;
}

static int map_file(struct k3_part * part, k3_error e) {
    // Not blocking on a named pipe; without effect on regular files.
    int descriptor = open(part->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor < 0) {
        return k3_fail(e, LLAMA_K3_FILE_OPEN, "%s: %s", part->path, strerror(errno));
    }
    int status = map_descriptor(part, descriptor, e);
    close(descriptor);
    return status;
}

// ggml's own tables over the checked header, then the tensors' places in the mapping.
static int place_tensors(struct k3_part * part, k3_error e) {
    struct gguf_init_params params = {.no_alloc = true, .ctx = &part->tensors};
    part->gguf                     = gguf_init_from_buffer(part->bytes, part->size, params);
    if (!part->gguf) {
        return k3_fail(e, LLAMA_K3_MEMORY, "%s: ggml could not read the header", part->name);
    }
    if (gguf_get_data_offset(part->gguf) != part->layout.data_offset) {
        return k3_fail(e, LLAMA_K3_FILE_OFFSET, "%s: tensor data: found at byte %zu by ggml, wanted %" PRIu64,
                       part->name, gguf_get_data_offset(part->gguf), part->layout.data_offset);
    }
    part->buffer = ggml_backend_cpu_buffer_from_ptr(part->bytes, part->size);
    if (!part->buffer) {
        return k3_fail(e, LLAMA_K3_MEMORY, "%s: no memory for a buffer", part->name);
    }
    ggml_backend_buffer_set_usage(part->buffer, GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    char * data = (char *) part->bytes + part->layout.data_offset;
    int id      = 0;
    for (struct ggml_tensor * t = ggml_get_first_tensor(part->tensors); t; t = ggml_get_next_tensor(part->tensors, t)) {
        if (ggml_backend_tensor_alloc(part->buffer, t, data + gguf_get_tensor_offset(part->gguf, id++)) !=
            GGML_STATUS_SUCCESS) {
            return k3_fail(e, LLAMA_K3_MEMORY, "%s: tensor %s: no place in the buffer", part->name, t->name);
        }
    }
    return LLAMA_K3_OK;
}

int k3_part_open(struct k3_part * part, const char * path, k3_error e) {
    *part      = (struct k3_part) {0};
    part->path = strdup(path);
    if (!part->path) {
        return k3_fail(e, LLAMA_K3_MEMORY, "%s: no memory for the path", path);
    }
    const char * slash = strrchr(part->path, '/');
    part->name         = slash ? slash + 1 : part->path;

    int status = map_file(part, e);
    if (!status) {
        status = k3_gguf_check(part->bytes, part->size, part->name, &part->layout, e);
    }
    if (!status) {
        status = place_tensors(part, e);
    }
    if (status) {
        k3_part_close(part);
    }
    return status;
}

static void move_tensors(struct k3_part * part, char * bytes, ggml_backend_buffer_t buffer) {
    for (struct ggml_tensor * t = ggml_get_first_tensor(part->tensors); t; t = ggml_get_next_tensor(part->tensors, t)) {
        t->data   = bytes + ((char *) t->data - (char *) part->bytes);
        t->buffer = buffer;
    }
    ggml_backend_buffer_free(part->buffer);
    munmap(part->bytes, part->size);
    part->buffer = buffer;
    part->bytes  = bytes;
}

int k3_part_copy(struct k3_part * part, bool (*go_on)(size_t n_copied, void * user), void * user, k3_error e) {
    static const size_t PIECE = (size_t) 64 << 20;
    char * bytes              = mmap(NULL, part->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (bytes == MAP_FAILED) {
        return k3_fail(e, LLAMA_K3_MEMORY, "%s: memory for %zu bytes: %s", part->path, part->size, strerror(errno));
    }
#ifdef MADV_HUGEPAGE
    madvise(bytes, part->size, MADV_HUGEPAGE);
#endif
    for (size_t done = 0; done < part->size;) {
        const size_t n = part->size - done < PIECE ? part->size - done : PIECE;
        memcpy(bytes + done, (const char *) part->bytes + done, n);
        madvise((char *) part->bytes + done, n, MADV_DONTNEED);  // PIECE is a multiple of the page size
        done += n;
        if (go_on && !go_on(n, user)) {
            munmap(bytes, part->size);
            return k3_fail(e, LLAMA_K3_ABORTED, "stopped by the progress callback");
        }
    }
    ggml_backend_buffer_t buffer = ggml_backend_cpu_buffer_from_ptr(bytes, part->size);
    if (!buffer) {
        munmap(bytes, part->size);
        return k3_fail(e, LLAMA_K3_MEMORY, "%s: no memory for a buffer", part->name);
    }
    ggml_backend_buffer_set_usage(buffer, GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    move_tensors(part, bytes, buffer);
    return LLAMA_K3_OK;
}

void k3_part_close(struct k3_part * part) {
    ggml_backend_buffer_free(part->buffer);
    if (part->tensors) {
        ggml_free(part->tensors);
    }
    gguf_free(part->gguf);
    if (part->bytes) {
        munmap(part->bytes, part->size);
    }
    free(part->path);
    *part = (struct k3_part) {0};
}
