// check_model.c - the parts of loading that no single file shows: arguments, progress, stopping, references, digest.
//
//   check_model FILE PART OTHER_DATA OTHER_HEADER
//       FILE: a valid model; PART: a part of a valid split model; OTHER_DATA: FILE with another byte of tensor data;
//       OTHER_HEADER: a valid model with other metadata
#include "llama_k3.h"
#include "model.h"

#include <stdio.h>
#include <string.h>

enum { MESSAGE_SIZE = 256 };

static int failures;

static void expect(bool ok, const char * what) {
    if (!ok) {
        fprintf(stderr, "failed: %s\n", what);
        failures++;
    }
}

static llama_k3_model * load(const char * path, const llama_k3_model_params * params) {
    llama_k3_model * model = NULL;
    char message[MESSAGE_SIZE];
    if (llama_k3_model_load(path, params, &model, message, sizeof(message)) != LLAMA_K3_OK) {
        fprintf(stderr, "%s\n", message);
    }
    return model;
}

static uint64_t digest_of(const char * path) {
    llama_k3_model * model   = load(path, NULL);
    llama_k3_model_info info = {0};
    if (model) {
        llama_k3_model_get_info(model, &info);
    }
    llama_k3_model_free(model);
    return info.digest;
}

static void check_arguments(const char * path) {
    llama_k3_model * model     = NULL;
    char message[MESSAGE_SIZE] = "old";
    expect(llama_k3_model_load(NULL, NULL, &model, message, sizeof(message)) == LLAMA_K3_ARGUMENT, "no path");
    expect(strstr(message, "path") != NULL, "message names the path");
    expect(llama_k3_model_load(path, NULL, NULL, message, sizeof(message)) == LLAMA_K3_ARGUMENT, "no out");
    expect(llama_k3_model_load("missing", NULL, &model, NULL, 0) == LLAMA_K3_FILE_OPEN, "no message buffer");
    expect(model == NULL, "no model on failure");
    char small[8];
    expect(llama_k3_model_load("missing", NULL, &model, small, sizeof(small)) == LLAMA_K3_FILE_OPEN, "small buffer");
    expect(strlen(small) == sizeof(small) - 1, "the message is cut to the buffer");
    model = load(path, NULL);
    strcpy(message, "old");
    llama_k3_model * other = NULL;
    expect(llama_k3_model_load(path, NULL, &other, message, sizeof(message)) == LLAMA_K3_OK && message[0] == '\0',
           "no message on success");
    llama_k3_model_free(other);
    llama_k3_model_free(model);
    llama_k3_model_free(NULL);
}

typedef struct progress_log {
    int calls, stop_at;  // stop_at: the call that answers false; 0: none
    float last;
    bool rising;
} progress_log;

static bool on_progress(float fraction, void * user) {
    progress_log * log = user;
    log->rising        = log->rising && fraction >= log->last && fraction <= 1.0f;
    log->last          = fraction;
    return ++log->calls != log->stop_at;
}

// Stops at every call of the progress callback in turn.
static void check_progress(const char * path, int least_calls) {
    progress_log log             = {.rising = true};
    llama_k3_model_params params = {.progress = on_progress, .progress_user = &log};
    llama_k3_model_free(load(path, &params));
    expect(log.rising && log.last == 1.0f && log.calls >= least_calls, "progress rises to 1");
    int calls = log.calls;
    for (int i = 1; i <= calls; i++) {
        log                    = (progress_log) {.rising = true, .stop_at = i};
        llama_k3_model * model = NULL;
        expect(llama_k3_model_load(path, &params, &model, NULL, 0) == LLAMA_K3_ABORTED && !model,
               "stopped by progress");
    }
}

static void check_references(const char * path) {
    llama_k3_model * model = load(path, NULL);
    if (!model) {
        return;
    }
    k3_model_retain(model);
    llama_k3_model_free(model);
    expect(llama_k3_model_layer_kind(model, 0) == LLAMA_K3_LAYER_KDA, "alive while a reference is held");
    expect(llama_k3_model_layer_kind(model, -1) == -1 && llama_k3_model_layer_kind(model, 1 << 20) == -1,
           "no layer beyond the model");
    llama_k3_model_free(model);
}

static void check_metadata(const char * path) {
    llama_k3_model * model = load(path, NULL);
    if (!model) {
        return;
    }
    uint64_t n = llama_k3_model_meta_count(model);
    llama_k3_meta meta;
    llama_k3_meta_value value;
    bool found = false;
    for (uint64_t i = 0; i < n; i++) {
        expect(llama_k3_model_meta_at(model, i, &meta) == LLAMA_K3_OK, "entry");
        expect(llama_k3_model_meta_value_at(model, i, meta.count, &value) == LLAMA_K3_ARGUMENT, "beyond an entry");
        if (strcmp(meta.key, "general.architecture") == 0) {
            expect(llama_k3_model_meta_value_at(model, i, 0, &value) == LLAMA_K3_OK, "value");
            found = meta.type == LLAMA_K3_META_STRING && !meta.is_array && strcmp(value.s, "kimi-k3") == 0;
        }
    }
    expect(found, "general.architecture among the metadata");
    expect(llama_k3_model_meta_at(model, n, &meta) == LLAMA_K3_ARGUMENT, "beyond the metadata");
    llama_k3_model_free(model);
}

static int errors_logged;

static void on_log(int level, const char * text, void * user) {
    errors_logged += level == LLAMA_K3_LOG_ERROR && strstr(text, "LLAMA_K3_FILE_OPEN") && user == &errors_logged;
}

static void check_log(void) {
    llama_k3_model * model = NULL;
    llama_k3_log_set(on_log, &errors_logged);
    llama_k3_model_load("missing", NULL, &model, NULL, 0);
    llama_k3_log_set(NULL, NULL);
    llama_k3_model_load("missing", NULL, &model, NULL, 0);
    expect(errors_logged == 1, "one error in the log while there is one");
}

int main(int argc, char ** argv) {
    if (argc != 5) {
        fprintf(stderr, "usage: check_model FILE PART OTHER_DATA OTHER_HEADER\n");
        return 2;
    }
    check_arguments(argv[1]);
    check_progress(argv[1], 1);
    check_progress(argv[2], 3);
    check_references(argv[1]);
    check_metadata(argv[1]);
    check_log();
    uint64_t digest = digest_of(argv[1]);
    expect(digest != 0 && digest == digest_of(argv[1]), "the digest is the same twice");
    expect(digest == digest_of(argv[3]), "tensor data are not part of the digest");
    expect(digest != digest_of(argv[4]), "metadata are part of the digest");
    return failures > 0;
}
