// run_context.c - drives a context through the public interface, for tests/runtime/test_sanitized.py.
//
//   run_context MODEL.gguf SCRATCH_FILE
//
// Decodes a text straight, then again with a stop after every possible number of polls, through snapshots, copies,
// files and truncation, and compares the logits with the straight run. Prints "ok", or what differs.
#include "llama_k3.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_TOKENS = 40, N_UBATCH = 8, MESSAGE_SIZE = 512 };

// Both runs are fp32; they cut the text differently.
static const float TOLERANCE = 1e-3f;

static char message[MESSAGE_SIZE];

typedef struct run {
    llama_k3_context * ctx;
    int32_t n_vocab;
    int32_t tokens[N_TOKENS];
    float * straight;  // [N_TOKENS][n_vocab]
    float * found;     // likewise
    long polls_left;   // < 0: never stop
    int inner;         // status of a call made from inside a callback
} run;

static void expect(int found, int wanted, const char * what) {
    if (found != wanted) {
        printf("%s: found %s (%s), wanted %s\n", what, llama_k3_status_name(found), message,
               llama_k3_status_name(wanted));
        exit(1);
    }
}

static bool stop(void * user) {
    run * r  = user;
    r->inner = r->ctx ? llama_k3_seq_clear(r->ctx, 0, NULL, 0) : LLAMA_K3_BUSY;
    return r->polls_left >= 0 && r->polls_left-- == 0;
}

static int decode(run * r, int32_t seq, int first, int last) {
    llama_k3_batch_item items[N_TOKENS];
    for (int i = first; i < last; i++) {
        items[i - first] = (llama_k3_batch_item) {.token = r->tokens[i], .seq = seq, .want = true};
    }
    return llama_k3_decode(r->ctx, items, (size_t) (last - first), r->found + (size_t) first * (size_t) r->n_vocab,
                           (size_t) (last - first) * (size_t) r->n_vocab, message, sizeof(message));
}

static void compare(const run * r, int first, int last, const char * what) {
    for (size_t i = (size_t) first * (size_t) r->n_vocab; i < (size_t) last * (size_t) r->n_vocab; i++) {
        if (!(fabsf(r->found[i] - r->straight[i]) <= TOLERANCE)) {
            printf("%s: token %zu: found %g, wanted %g\n", what, i / (size_t) r->n_vocab, r->found[i], r->straight[i]);
            exit(1);
        }
    }
}

static void go_on(run * r, int32_t seq, int first, const char * what) {
    if (llama_k3_seq_position(r->ctx, seq) != first) {
        printf("%s: found position %lld, wanted %d\n", what, (long long) llama_k3_seq_position(r->ctx, seq), first);
        exit(1);
    }
    expect(decode(r, seq, first, N_TOKENS), LLAMA_K3_OK, what);
    compare(r, first, N_TOKENS, what);
}

static void clear(run * r, int32_t seq) {
    expect(llama_k3_seq_clear(r->ctx, seq, message, sizeof(message)), LLAMA_K3_OK, "clear");
}

// Stops a prefill after n polls; what is left continues as the straight run. False when n polls are not reached.
static bool check_stop(run * r, long n) {
    clear(r, 1);
    expect(decode(r, 1, 0, 10), LLAMA_K3_OK, "before the stop");
    r->polls_left      = n;
    const int status   = decode(r, 1, 10, 30);
    const bool stopped = r->polls_left < 0;
    r->polls_left      = -1;
    expect(status, stopped ? LLAMA_K3_ABORTED : LLAMA_K3_OK, "stopped decode");
    expect(r->inner, LLAMA_K3_BUSY, "call from inside a callback");
    const int64_t reached = llama_k3_seq_position(r->ctx, 1);
    if (reached != 10 && reached != 10 + N_UBATCH && reached != 10 + 2 * N_UBATCH && reached != 30) {
        printf("stop after %ld polls: found position %lld, wanted whole micro-batches\n", n, (long long) reached);
        exit(1);
    }
    go_on(r, 1, (int) reached, "after a stop");
    return stopped;
}

static void check_snapshots(run * r, const char * path) {
    llama_k3_snapshot * s;
    int32_t result;
    int64_t from;
    clear(r, 0);
    expect(decode(r, 0, 0, 17), LLAMA_K3_OK, "prefill");
    expect(llama_k3_seq_snapshot(r->ctx, 0, -1, &s, message, sizeof(message)), LLAMA_K3_OK, "snapshot");
    expect(llama_k3_seq_save(r->ctx, 0, path, message, sizeof(message)), LLAMA_K3_OK, "save");
    go_on(r, 0, 17, "after a snapshot");
    expect(llama_k3_seq_restore(r->ctx, 2, s, message, sizeof(message)), LLAMA_K3_OK, "restore");
    go_on(r, 2, 17, "after restore");
    llama_k3_snapshot_free(s);
    expect(llama_k3_seq_truncate(r->ctx, 0, 30, &result, &from, message, sizeof(message)), LLAMA_K3_OK, "truncate");
    if (result != LLAMA_K3_TRUNCATE_REBUILD || from != 17) {
        printf("truncate: found result %d, position %lld, wanted rebuild from 17\n", result, (long long) from);
        exit(1);
    }
    expect(llama_k3_seq_copy(r->ctx, 0, 1, message, sizeof(message)), LLAMA_K3_OK, "copy");
    go_on(r, 0, 17, "after truncate");
    go_on(r, 1, 17, "after copy");
    expect(llama_k3_seq_load(r->ctx, 1, path, message, sizeof(message)), LLAMA_K3_OK, "load");
    go_on(r, 1, 17, "after load");
}

static void expect_checkpoints(const run * r, int32_t seq, int64_t n, int64_t first, int64_t last) {
    int64_t positions[4] = {0}, found;
    uint64_t ids[4];
    expect(llama_k3_seq_checkpoints(r->ctx, seq, positions, ids, 4, &found, message, sizeof(message)), LLAMA_K3_OK,
           "checkpoints");
    if (found != n || positions[0] != first || positions[n - 1] != last) {
        printf("checkpoints: found %lld, %lld to %lld, wanted %lld, %lld to %lld\n", (long long) found,
               (long long) positions[0], (long long) positions[n - 1], (long long) n, (long long) first,
               (long long) last);
        exit(1);
    }
}

// A sequence with checkpoints at 10, 20 and 30 leaves by way of another block of bytes, and comes back with the last two.
static void check_checkpoints(run * r) {
    llama_k3_snapshot *s, *block;
    int32_t result;
    int64_t from;
    clear(r, 0);
    for (int i = 0; i < 30; i += 10) {
        expect(decode(r, 0, i, i + 10), LLAMA_K3_OK, "prefill");
        expect(llama_k3_seq_checkpoint(r->ctx, 0, message, sizeof(message)), LLAMA_K3_OK, "checkpoint");
    }
    expect(llama_k3_seq_copy(r->ctx, 0, 1, message, sizeof(message)), LLAMA_K3_OK, "copy");
    expect(llama_k3_seq_snapshot(r->ctx, 0, 20, &s, message, sizeof(message)), LLAMA_K3_OK, "snapshot");
    const uint64_t size = llama_k3_snapshot_size(s);
    expect(llama_k3_snapshot_new(size, &block, message, sizeof(message)), LLAMA_K3_OK, "new");
    expect(llama_k3_seq_restore(r->ctx, 2, block, message, sizeof(message)), LLAMA_K3_STATE_FORMAT, "empty block");
    memcpy(llama_k3_snapshot_data(block), llama_k3_snapshot_data(s), size);
    llama_k3_snapshot_free(s);
    expect(llama_k3_seq_restore(r->ctx, 2, block, message, sizeof(message)), LLAMA_K3_OK, "restore");
    llama_k3_snapshot_free(block);
    expect_checkpoints(r, 2, 2, 20, 30);
    expect(llama_k3_seq_drop_checkpoint(r->ctx, 1, 20, message, sizeof(message)), LLAMA_K3_OK, "drop");
    expect(llama_k3_seq_drop_checkpoint(r->ctx, 1, 20, message, sizeof(message)), LLAMA_K3_ARGUMENT, "drop again");
    expect_checkpoints(r, 0, 3, 10, 30);
    expect_checkpoints(r, 1, 2, 10, 30);
    for (int32_t seq = 0; seq < 3; seq++) {
        expect(llama_k3_seq_truncate(r->ctx, seq, 29, &result, &from, message, sizeof(message)), LLAMA_K3_OK,
               "truncate");
        go_on(r, seq, seq == 1 ? 10 : 20, "after a checkpoint");
    }
}

static void check_small_blocks(run * r) {
    llama_k3_snapshot * s;
    for (uint64_t size = 0; size < 200; size += 7) {
        expect(llama_k3_snapshot_new(size, &s, message, sizeof(message)), LLAMA_K3_OK, "new");
        if (llama_k3_snapshot_position(s) != -1) {
            printf("a block of zeros: found position %lld, wanted -1\n", (long long) llama_k3_snapshot_position(s));
            exit(1);
        }
        expect(llama_k3_seq_restore(r->ctx, 0, s, message, sizeof(message)), LLAMA_K3_STATE_FORMAT, "small block");
        llama_k3_snapshot_free(s);
    }
    expect(llama_k3_snapshot_new(UINT64_MAX, &s, message, sizeof(message)), LLAMA_K3_MEMORY, "huge block");
}

static void check_arguments(run * r) {
    llama_k3_batch_item item = {.token = r->n_vocab, .seq = 0, .want = false};
    expect(llama_k3_decode(r->ctx, &item, 1, NULL, 0, message, sizeof(message)), LLAMA_K3_ARGUMENT, "token too large");
    item = (llama_k3_batch_item) {.token = 0, .seq = 3, .want = false};
    expect(llama_k3_decode(r->ctx, &item, 1, NULL, 0, message, sizeof(message)), LLAMA_K3_ARGUMENT, "no such sequence");
    item = (llama_k3_batch_item) {.token = 0, .seq = 0, .want = true};
    expect(llama_k3_decode(r->ctx, &item, 1, r->found, 3, message, sizeof(message)), LLAMA_K3_ARGUMENT, "no room");
    expect(llama_k3_decode(r->ctx, &item, 0, NULL, 0, NULL, 0), LLAMA_K3_OK, "no tokens");
    llama_k3_snapshot * s;
    expect(llama_k3_seq_snapshot(r->ctx, 0, -2, &s, message, sizeof(message)), LLAMA_K3_ARGUMENT, "checkpoints_from");
    expect(llama_k3_seq_checkpoint(r->ctx, 3, message, sizeof(message)), LLAMA_K3_ARGUMENT, "no such sequence");
}

int main(int argc, char ** argv) {
    if (argc != 3) {
        printf("usage: run_context MODEL.gguf SCRATCH_FILE\n");
        return 2;
    }
    llama_k3_model * model;
    llama_k3_model_info info;
    run r = {.polls_left = -1};
    expect(llama_k3_model_load(argv[1], NULL, &model, message, sizeof(message)), LLAMA_K3_OK, "load");
    llama_k3_model_get_info(model, &info);
    llama_k3_context_params params;
    llama_k3_context_default_params(&params);
    params.n_ctx      = 64;
    params.n_seq_max  = 3;
    params.n_ubatch   = N_UBATCH;
    params.cache_type = LLAMA_K3_CACHE_F32;
    params.abort      = stop;
    params.abort_user = &r;
    expect(llama_k3_context_new(model, &params, &r.ctx, message, sizeof(message)), LLAMA_K3_OK, "context");
    llama_k3_model_free(model);  // the context holds its own reference

    r.n_vocab  = info.n_vocab;
    r.straight = calloc((size_t) N_TOKENS * (size_t) r.n_vocab, sizeof(float));
    r.found    = calloc((size_t) N_TOKENS * (size_t) r.n_vocab, sizeof(float));
    for (int i = 0; i < N_TOKENS; i++) {
        r.tokens[i] = (i * 37 + 11) % r.n_vocab;
    }
    expect(decode(&r, 0, 0, N_TOKENS), LLAMA_K3_OK, "straight run");
    memcpy(r.straight, r.found, (size_t) N_TOKENS * (size_t) r.n_vocab * sizeof(float));

    long n = 0;
    while (check_stop(&r, n)) {
        n += n < 20 ? 1 : 97;
    }
    if (n < 3 * info.n_layer) {
        printf("polls: found %ld in three micro-batches, wanted at least one a layer (%d)\n", n, 3 * info.n_layer);
        return 1;
    }
    check_snapshots(&r, argv[2]);
    check_checkpoints(&r);
    check_small_blocks(&r);
    check_arguments(&r);
    free(r.straight);
    free(r.found);
    expect(llama_k3_context_free(r.ctx), LLAMA_K3_OK, "free");
    printf("ok\n");
    return 0;
}
