// fill.c - fills a sequence at once, so that decode can be measured at any depth without a prefill.
#include "context.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// A prime, so that the repetition of these rows falls into step with nothing.
enum { DISTINCT_ROWS = 1021 };
// Magnitude of KDA state entries; keys have length one and values are a few tenths.
#define STATE_SCALE 0.05f

// splitmix64
static uint64_t next_random(uint64_t * state) {
    uint64_t z = *state += UINT64_C(0x9E3779B97F4A7C15);
    z          = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z          = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

// Uniform of standard deviation `scale`.
static void fill_values(float * out, int64_t n, float scale, uint64_t * random) {
    const float width = scale * 2.0f * sqrtf(3.0f) / (float) (1 << 24);
    for (int64_t i = 0; i < n; i++) {
        out[i] = width * ((float) (next_random(random) >> 40) - (float) (1 << 23));
    }
}

static void fill_rows(const k3_cache * c, int32_t layer, int32_t seq, int64_t n, float * values, uint64_t * random) {
    const int64_t width = k3_row_width(c->hp), distinct = n < DISTINCT_ROWS ? n : DISTINCT_ROWS;
    uint8_t * rows = k3_cache_rows(c, layer, seq);
    fill_values(values, width * distinct, 1.0f, random);
    ggml_quantize_chunk(c->row_type, values, rows, 0, distinct, width, NULL);
    for (int64_t done = distinct; done < n; done += distinct) {
        const int64_t count = n - done < distinct ? n - done : distinct;
        memcpy(rows + (uint64_t) done * c->row_bytes, rows, (size_t) count * c->row_bytes);
    }
}

static int fill_sequence(k3_cache * c, int32_t seq, int64_t n, uint64_t seed, k3_error e) {
    float * values = malloc(sizeof(float) * DISTINCT_ROWS * (size_t) k3_row_width(c->hp));
    int status     = k3_cache_reserve_tokens(c, seq, n, e);
    if (!values || status) {
        free(values);
        return status ? status : k3_fail(e, LLAMA_K3_MEMORY, "sequence %d: no memory to fill it", seq);
    }
    k3_cache_clear(c, seq);
    for (int32_t i = 0; n > 0 && i < c->hp->n_layer; i++) {
        if (c->latent[i]) {
            fill_rows(c, i, seq, n, values, &seed);
        } else {
            fill_values((float *) k3_cache_half(c, c->state[i], seq, c->state_bytes),
                        (int64_t) (c->state_bytes / sizeof(float)), STATE_SCALE, &seed);
            fill_values((float *) k3_cache_half(c, c->window[i], seq, c->window_bytes),
                        (int64_t) (c->window_bytes / sizeof(float)), 1.0f, &seed);
        }
    }
    for (int64_t i = 0; i < n; i++) {
        c->seq[seq].tokens[i] = (int32_t) (next_random(&seed) % (uint64_t) c->hp->n_vocab);
    }
    c->seq[seq].position = n;
    free(values);
    return LLAMA_K3_OK;
}

int llama_k3_seq_fill(llama_k3_context * ctx, int32_t seq, int64_t n, uint64_t seed, char * err, size_t err_size) {
    const k3_error e = {err, err_size};
    int status       = k3_context_enter(ctx, e);
    if (status) {
        return status;
    }
    status = k3_context_check_seq(ctx, seq, e);
    if (!status && (n < 0 || n > (int64_t) ctx->params.n_ctx)) {
        status = k3_fail(e, LLAMA_K3_ARGUMENT, "tokens to fill: found %lld, wanted 0 to n_ctx %u", (long long) n,
                         ctx->params.n_ctx);
    }
    status = status ? status : fill_sequence(&ctx->cache, seq, n, seed, e);
    k3_context_leave(ctx);
    return status;
}
