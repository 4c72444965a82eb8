// log.h - the one sink for messages; silent unless the caller installed a callback.
#ifndef K3_LOG_H
#define K3_LOG_H

#include "llama_k3.h"

#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
void k3_log(int level, const char * format, ...);

// Routes ggml's own messages to the same callback (ggml prints to stderr otherwise). Called on every model load.
void k3_log_attach_ggml(void);

#endif
