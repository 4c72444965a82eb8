// snapshot.c - a whole sequence as one block of bytes, in memory (snapshot) or in a file (save, load).
//
// Layout, little-endian: header, then four parts, each padded to 8 bytes:
//   tokens       i32 [position]
//   rows         per MLA layer: [position] rows of row_bytes
//   recurrent    per KDA layer: state, window
//   checkpoints  [n_checkpoints] of { i64 position, recurrent } for `truncate`
// Every part and the header carry a checksum. A block is checked whole before it replaces a sequence.
#include "context.h"
#include "hash.h"

#include "ggml_k3_mutant.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { VERSION = 1, NO_CHECKPOINTS = -1, TOKENS = 0, ROWS, RECURRENT, CHECKPOINTS, N_PARTS };
static const char MAGIC[8] = "LK3STATE";

typedef struct header {
    char magic[8];
    uint32_t version, cache_type;
    uint64_t model_digest;
    uint32_t n_mla, n_kda;
    uint64_t row_bytes, state_bytes, window_bytes;
    int64_t position;
    uint64_t n_checkpoints;
    uint64_t size;  // bytes of the whole block
    uint64_t checksum[N_PARTS];
    uint64_t header_checksum;  // of all fields before it
} header;

struct llama_k3_snapshot {
    uint64_t size;
    uint8_t data[];  // header first; malloc aligns it enough for its 8-byte fields
};

static uint64_t padded(uint64_t n) { return (n + 7) / 8 * 8; }

// Sizes of the parts; false when one overflows.
static bool part_sizes(const header * h, uint64_t size[N_PARTS]) {
    const uint64_t n = (uint64_t) h->position;
    uint64_t recurrent, rows;
    bool ok = n < UINT64_MAX / 16 && k3_add_u64(h->state_bytes, h->window_bytes, &recurrent) &&
              k3_mul_u64(recurrent, h->n_kda, &recurrent) && recurrent < UINT64_MAX - 16 &&
              k3_mul_u64(n, h->row_bytes, &rows) && k3_mul_u64(rows, h->n_mla, &rows) && rows < UINT64_MAX - 16 &&
              k3_mul_u64(h->n_checkpoints, recurrent + sizeof(int64_t), &size[CHECKPOINTS]) &&
              size[CHECKPOINTS] < UINT64_MAX - 16;
    size[TOKENS]      = padded(n * sizeof(int32_t));
    size[ROWS]        = ok ? padded(rows) : 0;
    size[RECURRENT]   = ok ? padded(recurrent) : 0;
    size[CHECKPOINTS] = ok ? padded(size[CHECKPOINTS]) : 0;
    return ok;
}

static bool total_size(const header * h, uint64_t size[N_PARTS], uint64_t * total) {
    *total  = sizeof(header);
    bool ok = part_sizes(h, size);
    for (int i = 0; ok && i < N_PARTS; i++) {
        ok = k3_add_u64(*total, size[i], total);
    }
    return ok && *total < SIZE_MAX / 2;
}

// Index of the first checkpoint at `from` or behind; of none with NO_CHECKPOINTS.
static uint32_t first_checkpoint(const k3_sequence * s, int64_t from) {
    uint32_t first = 0;
    while (first < s->n_checkpoints && (from == NO_CHECKPOINTS || s->checkpoints[first]->position < from)) {
        first++;
    }
    return first;
}

static header header_of(const llama_k3_context * ctx, int32_t seq, int64_t checkpoints_from) {
    const k3_cache * c = &ctx->cache;
    header h           = {
                  .version       = VERSION,
                  .cache_type    = (uint32_t) ctx->params.cache_type,
                  .model_digest  = ctx->model->digest,
                  .n_mla         = (uint32_t) c->n_mla,
                  .n_kda         = (uint32_t) c->n_kda,
                  .row_bytes     = c->row_bytes,
                  .state_bytes   = c->state_bytes,
                  .window_bytes  = c->window_bytes,
                  .position      = c->seq[seq].position,
                  .n_checkpoints = c->seq[seq].n_checkpoints - first_checkpoint(&c->seq[seq], checkpoints_from),
    };
    memcpy(h.magic, MAGIC, sizeof(MAGIC));
    return h;
}

static void write_parts(const llama_k3_context * ctx, int32_t seq, const header * h, uint8_t * const part[N_PARTS]) {
    const k3_cache * c    = &ctx->cache;
    const k3_sequence * s = &c->seq[seq];
    if (s->position > 0) {
        memcpy(part[TOKENS], s->tokens, (size_t) s->position * sizeof(*s->tokens));
    }
    uint8_t * out = part[ROWS];
    for (int32_t i = 0; i < ctx->model->hp.n_layer; i++) {
        if (c->latent[i]) {
            const size_t n = (size_t) s->position * c->row_bytes;
            memcpy(out, k3_cache_rows(c, i, seq), n);
            out += n;
        }
    }
    k3_cache_recurrent_read(c, seq, part[RECURRENT]);
    out = part[CHECKPOINTS];
    for (uint64_t i = s->n_checkpoints - h->n_checkpoints; i < s->n_checkpoints; i++) {
        memcpy(out, &s->checkpoints[i]->position, sizeof(int64_t));
        memcpy(out + sizeof(int64_t), s->checkpoints[i]->data, s->checkpoints[i]->size);
        out += sizeof(int64_t) + s->checkpoints[i]->size;
    }
}

static void find_parts(uint8_t * data, const uint64_t size[N_PARTS], uint8_t * part[N_PARTS]) {
    part[0] = data + sizeof(header);
    for (int i = 1; i < N_PARTS; i++) {
        part[i] = part[i - 1] + size[i - 1];
    }
}

static uint64_t header_checksum(const header * h) { return k3_hash64(0, h, offsetof(header, header_checksum)); }

static int take(const llama_k3_context * ctx, int32_t seq, int64_t checkpoints_from, llama_k3_snapshot ** out,
                k3_error e) {
    header h = header_of(ctx, seq, checkpoints_from);
    uint64_t size[N_PARTS];
    uint8_t * part[N_PARTS];
    llama_k3_snapshot * s = total_size(&h, size, &h.size) ? calloc(1, sizeof(*s) + h.size) : NULL;
    if (!s) {
        return k3_fail(e, LLAMA_K3_MEMORY, "sequence %d: no memory for a snapshot of %llu bytes", seq,
                       (unsigned long long) h.size);
    }
    s->size = h.size;
    find_parts(s->data, size, part);
    write_parts(ctx, seq, &h, part);
    for (int i = 0; i < N_PARTS; i++) {
        h.checksum[i] = k3_hash64((uint64_t) i, part[i], size[i]);
    }
    h.header_checksum = header_checksum(&h);
    memcpy(s->data, &h, sizeof(h));
    *out = s;
    return LLAMA_K3_OK;
}

static int geometry_error(k3_error e, const char * name, uint64_t found, uint64_t wanted) {
    return k3_fail(e, LLAMA_K3_STATE_GEOMETRY, "saved sequence: %s: found %llu, wanted %llu", name,
                   (unsigned long long) found, (unsigned long long) wanted);
}

// The header alone: format, model, geometry, size.
static int check_header(const llama_k3_context * ctx, const header * h, uint64_t found_size, k3_error e) {
    if (memcmp(h->magic, MAGIC, sizeof(MAGIC)) != 0) {
        return k3_fail(e, LLAMA_K3_STATE_FORMAT, "saved sequence: found no magic %.8s", MAGIC);
    }
    if (h->version != VERSION) {
        return k3_fail(e, LLAMA_K3_STATE_FORMAT, "saved sequence: found version %u, wanted %d", h->version, VERSION);
    }
    if (h->header_checksum != header_checksum(h)) {
        return k3_fail(e, LLAMA_K3_STATE_CHECKSUM, "saved sequence: header: found checksum %016llx, wanted %016llx",
                       (unsigned long long) h->header_checksum, (unsigned long long) header_checksum(h));
    }
    if (h->model_digest != ctx->model->digest) {
        return k3_fail(e, LLAMA_K3_STATE_MODEL, "saved sequence: found model %016llx, wanted %016llx",
                       (unsigned long long) h->model_digest, (unsigned long long) ctx->model->digest);
    }
    const header want = header_of(ctx, 0, NO_CHECKPOINTS);
    if (h->cache_type != want.cache_type) {
        return geometry_error(e, "cache type", h->cache_type, want.cache_type);
    }
    if (h->n_mla != want.n_mla || h->n_kda != want.n_kda) {
        return geometry_error(e, "KDA layers", h->n_kda, want.n_kda);
    }
    if (h->row_bytes != want.row_bytes || h->state_bytes != want.state_bytes || h->window_bytes != want.window_bytes) {
        return geometry_error(e, "row bytes", h->row_bytes, want.row_bytes);
    }
    uint64_t size[N_PARTS], total;
    if (h->position < 0 || !total_size(h, size, &total) || total != h->size || found_size != total) {
        return k3_fail(e, LLAMA_K3_STATE_FORMAT, "saved sequence: found %llu bytes, wanted %llu",
                       (unsigned long long) found_size, (unsigned long long) h->size);
    }
    if (h->position > (int64_t) ctx->params.n_ctx) {
        return k3_fail(e, LLAMA_K3_CONTEXT_FULL, "saved sequence: %lld tokens found, n_ctx %u wanted at most",
                       (long long) h->position, ctx->params.n_ctx);
    }
    return LLAMA_K3_OK;
}

// Positions of the checkpoints ascend and lie inside the sequence.
static int check_checkpoints(const header * h, const uint8_t * in, k3_error e) {
    const uint64_t step = sizeof(int64_t) + h->n_kda * (h->state_bytes + h->window_bytes);
    int64_t last        = 0;
    for (uint64_t i = 0; i < h->n_checkpoints; i++, in += step) {
        int64_t position;
        memcpy(&position, in, sizeof(position));
        if (position <= last || position > h->position) {
            return k3_fail(e, LLAMA_K3_STATE_FORMAT,
                           "saved sequence: checkpoint %llu: found position %lld, wanted %lld to %lld",
                           (unsigned long long) i, (long long) position, (long long) last + 1, (long long) h->position);
        }
        last = position;
    }
    return LLAMA_K3_OK;
}

static int check_parts(const llama_k3_context * ctx, const header * h, uint8_t * const part[N_PARTS],
                       const uint64_t size[N_PARTS], k3_error e) {
    static const char * names[N_PARTS] = {"tokens", "rows", "recurrent state", "checkpoints"};
    for (int i = 0; i < N_PARTS; i++) {
        const uint64_t found = k3_hash64((uint64_t) i, part[i], size[i]);
        if (found != h->checksum[i]) {
            return k3_fail(e, LLAMA_K3_STATE_CHECKSUM, "saved sequence: %s: found checksum %016llx, wanted %016llx",
                           names[i], (unsigned long long) found, (unsigned long long) h->checksum[i]);
        }
    }
    const int32_t * tokens = (const int32_t *) (const void *) part[TOKENS];
    for (int64_t i = 0; i < h->position; i++) {
        if (tokens[i] < 0 || tokens[i] >= ctx->model->hp.n_vocab) {
            return k3_fail(e, LLAMA_K3_STATE_FORMAT, "saved sequence: token %lld: found %d, wanted 0 to %d",
                           (long long) i, tokens[i], ctx->model->hp.n_vocab - 1);
        }
    }
    return check_checkpoints(h, part[CHECKPOINTS], e);
}

static int put(llama_k3_context * ctx, int32_t seq, const llama_k3_snapshot * snapshot, k3_error e) {
    header h;
    if (snapshot->size < sizeof(h)) {
        return k3_fail(e, LLAMA_K3_STATE_FORMAT, "saved sequence: found %llu bytes, wanted at least %zu",
                       (unsigned long long) snapshot->size, sizeof(h));
    }
    memcpy(&h, snapshot->data, sizeof(h));
    int status = check_header(ctx, &h, snapshot->size, e);
    if (status) {
        return status;
    }
    uint64_t size[N_PARTS], total;
    uint8_t * part[N_PARTS];
    total_size(&h, size, &total);
    find_parts((uint8_t *) (uintptr_t) snapshot->data, size, part);
    status = check_parts(ctx, &h, part, size, e);
    status = status ? status : k3_cache_reserve_tokens(&ctx->cache, seq, h.position, e);
    if (status) {
        return status;
    }
    k3_cache * c = &ctx->cache;
    k3_cache_clear(c, seq);
    const uint8_t * in = part[ROWS];
    for (int32_t i = 0; i < ctx->model->hp.n_layer; i++) {
        if (c->latent[i]) {
            const size_t n = (size_t) h.position * c->row_bytes;
            memcpy(k3_cache_rows(c, i, seq), in, n);
            in += n;
        }
    }
    if (h.position > 0) {
        memcpy(c->seq[seq].tokens, part[TOKENS], (size_t) h.position * sizeof(int32_t));
    }
    const int32_t target = GGML_K3_MUTANT("restore-other-sequence") ? (seq + 1) % (int32_t) c->n_seq : seq;
    k3_cache_recurrent_write(c, target, part[RECURRENT]);
    c->seq[seq].position = h.position;
    in                   = part[CHECKPOINTS];
    for (uint64_t i = 0; !status && i < h.n_checkpoints; i++) {
        int64_t position;
        memcpy(&position, in, sizeof(position));
        status = k3_cache_checkpoint_add(c, seq, position, in + sizeof(position), e);
        in += sizeof(position) + k3_cache_recurrent_bytes(c);
    }
    return status ? status : k3_cache_checkpoint(c, seq, e);
}

static int snapshot(llama_k3_context * ctx, int32_t seq, int64_t checkpoints_from, llama_k3_snapshot ** out,
                    k3_error e) {
    int status = k3_context_check_seq(ctx, seq, e);
    if (status) {
        return status;
    }
    if (checkpoints_from < NO_CHECKPOINTS) {
        return k3_fail(e, LLAMA_K3_ARGUMENT, "checkpoints_from: found %lld, wanted a position or %d",
                       (long long) checkpoints_from, NO_CHECKPOINTS);
    }
    status = checkpoints_from == NO_CHECKPOINTS ? k3_cache_checkpoint(&ctx->cache, seq, e) : LLAMA_K3_OK;
    return status ? status : take(ctx, seq, checkpoints_from, out, e);
}

int llama_k3_seq_snapshot(llama_k3_context * ctx, int32_t seq, int64_t checkpoints_from, llama_k3_snapshot ** out,
                          char * err, size_t err_size) {
    const k3_error e = {err, err_size};
    int status       = k3_context_enter(ctx, e);
    if (status) {
        return status;
    }
    *out   = NULL;
    status = snapshot(ctx, seq, checkpoints_from, out, e);
    k3_context_leave(ctx);
    return status;
}

int llama_k3_seq_restore(llama_k3_context * ctx, int32_t seq, const llama_k3_snapshot * snapshot, char * err,
                         size_t err_size) {
    const k3_error e = {err, err_size};
    int status       = k3_context_enter(ctx, e);
    if (status) {
        return status;
    }
    status = k3_context_check_seq(ctx, seq, e);
    status = status ? status : put(ctx, seq, snapshot, e);
    k3_context_leave(ctx);
    return status;
}

void llama_k3_snapshot_free(llama_k3_snapshot * snapshot) { free(snapshot); }

int llama_k3_snapshot_new(uint64_t size, llama_k3_snapshot ** out, char * err, size_t err_size) {
    const k3_error e = {err, err_size};
    *out             = size < SIZE_MAX / 2 ? calloc(1, sizeof(**out) + size) : NULL;
    if (!*out) {
        return k3_fail(e, LLAMA_K3_MEMORY, "snapshot: no memory for %llu bytes", (unsigned long long) size);
    }
    (*out)->size = size;
    return LLAMA_K3_OK;
}

uint8_t * llama_k3_snapshot_data(llama_k3_snapshot * snapshot) { return snapshot->data; }

int64_t llama_k3_snapshot_position(const llama_k3_snapshot * snapshot) {
    header h;
    if (snapshot->size < sizeof(h) || memcmp(snapshot->data, MAGIC, sizeof(MAGIC)) != 0) {
        return -1;
    }
    memcpy(&h, snapshot->data, sizeof(h));
    return h.position;
}

uint64_t llama_k3_snapshot_size(const llama_k3_snapshot * snapshot) { return snapshot->size; }

// ---- files -----------------------------------------------------------------------------------------------

enum { IO_CHUNK = 1 << 26 };  // some systems refuse transfers of 2 GiB and more in one call

static bool write_all(int fd, const uint8_t * data, uint64_t size) {
    while (size > 0) {
        const ssize_t n = write(fd, data, size < IO_CHUNK ? size : IO_CHUNK);
        if (n < 0 && errno != EINTR) {
            return false;
        }
        data += n > 0 ? n : 0;
        size -= n > 0 ? (uint64_t) n : 0;
    }
    return true;
}

static bool read_all(int fd, uint8_t * data, uint64_t size) {
    while (size > 0) {
        const ssize_t n = read(fd, data, size < IO_CHUNK ? size : IO_CHUNK);
        if (n == 0 || (n < 0 && errno != EINTR)) {
            return false;
        }
        data += n > 0 ? n : 0;
        size -= n > 0 ? (uint64_t) n : 0;
    }
    return true;
}

// The temporary file beside a target. Its name is always the same, so that what a killed process left is used up by
// the next save; the lock keeps two savers apart. -1 with errno, EAGAIN while another one is at work.
static int open_temp(const char * temp) {
    struct stat opened, named;
    const int fd = open(temp, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666);
    if (fd < 0) {
        return -1;
    }
    bool ok   = flock(fd, LOCK_EX | LOCK_NB) == 0;
    int cause = errno;
    // the other one may have renamed its file since it was opened here
    if (ok && (fstat(fd, &opened) != 0 || lstat(temp, &named) != 0 || opened.st_ino != named.st_ino)) {
        ok    = false;
        cause = EAGAIN;
    }
    if (ok && ftruncate(fd, 0) != 0) {
        ok    = false;
        cause = errno;
    }
    if (!ok) {
        close(fd);
        errno = cause;
        return -1;
    }
    return fd;
}

// 0, or the errno of what failed; the temporary file is gone then.
static int write_and_rename(const llama_k3_snapshot * s, const char * temp, const char * path) {
    const int fd = open_temp(temp);
    if (fd < 0) {
        return errno;
    }
    int cause = write_all(fd, s->data, s->size) && fsync(fd) == 0 && rename(temp, path) == 0 ? 0 : errno;
    if (cause) {
        unlink(temp);
    }
    return close(fd) != 0 && !cause ? errno : cause;
}

static int write_file(const llama_k3_snapshot * s, const char * path, k3_error e) {
    struct stat st;
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode)) {  // renaming would put a file in a device's place
        return k3_fail(e, LLAMA_K3_STATE_WRITE, "%s: found no regular file, wanted one or a new name", path);
    }
    const size_t n = strlen(path) + sizeof(".tmp");
    char * temp    = malloc(n);
    if (!temp) {
        return k3_fail(e, LLAMA_K3_MEMORY, "%s: out of memory", path);
    }
    snprintf(temp, n, "%s.tmp", path);
    const int cause = write_and_rename(s, temp, path);
    free(temp);
    return cause ? k3_fail(e, LLAMA_K3_STATE_WRITE, "%s: not written: %s", path, strerror(cause)) : LLAMA_K3_OK;
}

// Opens the file and reads its header, so that a foreign file costs no allocation of its size.
static int open_file(const llama_k3_context * ctx, const char * path, int * out, uint64_t * size, k3_error e) {
    struct stat st;
    header h;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a FIFO is opened at once, and refused
    if (fd < 0) {
        return k3_fail(e, LLAMA_K3_STATE_OPEN, "%s: not readable: %s", path, strerror(errno));
    }
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        close(fd);
        return k3_fail(e, LLAMA_K3_STATE_OPEN, "%s: found no regular file, wanted one", path);
    }
    *size      = (uint64_t) st.st_size;
    int status = LLAMA_K3_OK;
    if (*size < sizeof(h) || !read_all(fd, (uint8_t *) &h, sizeof(h))) {
        status = k3_fail(e, LLAMA_K3_STATE_FORMAT, "%s: found %llu bytes, wanted at least %zu", path,
                         (unsigned long long) *size, sizeof(h));
    }
    status = status ? status : check_header(ctx, &h, *size, e);
    if (status || lseek(fd, 0, SEEK_SET) != 0) {
        close(fd);
        return status ? status : k3_fail(e, LLAMA_K3_STATE_OPEN, "%s: not seekable", path);
    }
    *out = fd;
    return LLAMA_K3_OK;
}

static int load_file(llama_k3_context * ctx, int32_t seq, const char * path, k3_error e) {
    int fd;
    uint64_t size;
    int status = open_file(ctx, path, &fd, &size, e);
    if (status) {
        return status;
    }
    llama_k3_snapshot * s = malloc(sizeof(*s) + size);
    if (!s) {
        status = k3_fail(e, LLAMA_K3_MEMORY, "%s: no memory for %llu bytes", path, (unsigned long long) size);
    } else {
        s->size = size;
        status  = read_all(fd, s->data, size) ? put(ctx, seq, s, e)
                                              : k3_fail(e, LLAMA_K3_STATE_OPEN, "%s: not read whole", path);
    }
    free(s);
    close(fd);
    return status;
}

int llama_k3_seq_save(llama_k3_context * ctx, int32_t seq, const char * path, char * err, size_t err_size) {
    const k3_error e      = {err, err_size};
    llama_k3_snapshot * s = NULL;
    int status            = k3_context_enter(ctx, e);
    if (status) {
        return status;
    }
    status = k3_context_check_seq(ctx, seq, e);
    status = status ? status : take(ctx, seq, 0, &s, e);
    status = status ? status : write_file(s, path, e);
    free(s);
    k3_context_leave(ctx);
    return status;
}

int llama_k3_seq_load(llama_k3_context * ctx, int32_t seq, const char * path, char * err, size_t err_size) {
    const k3_error e = {err, err_size};
    int status       = k3_context_enter(ctx, e);
    if (status) {
        return status;
    }
    status = k3_context_check_seq(ctx, seq, e);
    status = status ? status : load_file(ctx, seq, path, e);
    k3_context_leave(ctx);
    return status;
}
