// log.c - the one sink for messages of this library and of ggml.
#include "log.h"

#include "ggml.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { LINE_SIZE = 2048 };

static llama_k3_log_callback sink;
static void * sink_user;

void llama_k3_log_set(llama_k3_log_callback callback, void * user) {
    sink      = callback;
    sink_user = user;
    k3_log_attach_ggml();
}

void k3_log(int level, const char * format, ...) {
    if (!sink) {
        return;
    }
    char line[LINE_SIZE];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof(line), format, arguments);
    va_end(arguments);
    sink(level, line, sink_user);
}

static int level_of_ggml(enum ggml_log_level level) {
    switch (level) {
        case GGML_LOG_LEVEL_ERROR: return LLAMA_K3_LOG_ERROR;
        case GGML_LOG_LEVEL_WARN: return LLAMA_K3_LOG_WARN;
        case GGML_LOG_LEVEL_INFO: return LLAMA_K3_LOG_INFO;
        default: return LLAMA_K3_LOG_DEBUG;
    }
}

// ggml ends its messages with a newline, this library does not.
static void forward_ggml(enum ggml_log_level level, const char * text, void * user) {
    (void) user;
    int length = (int) strcspn(text, "\n");
    if (length > 0) {
        k3_log(level_of_ggml(level), "ggml: %.*s", length, text);
    }
}

void k3_log_attach_ggml(void) { ggml_log_set(forward_ggml, NULL); }
