// sampler.c - top-k, top-p, min-p and temperature over one row of logits, with a seeded generator.
#include "error.h"

#include <math.h>
#include <stdlib.h>

typedef struct candidate {
    int32_t id;
    float logit;
    double p;
} candidate;

struct llama_k3_sampler {
    llama_k3_sampler_params params;
    uint64_t rng;
    candidate * candidates;  // [capacity]
    int32_t capacity;
};

// splitmix64: one 64-bit word of state, a full period
static uint64_t next_u64(uint64_t * state) {
    uint64_t z = (*state += UINT64_C(0x9E3779B97F4A7C15));
    z          = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z          = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

// uniform in [0, 1)
static double next_unit(uint64_t * state) { return (double) (next_u64(state) >> 11) * 0x1p-53; }

int llama_k3_sampler_new(const llama_k3_sampler_params * params, llama_k3_sampler ** out, char * err, size_t err_size) {
    const k3_error e     = {err, err_size};
    *out                 = NULL;
    const float values[] = {params->temperature, params->top_p, params->min_p};
    const char * names[] = {"temperature", "top_p", "min_p"};
    for (int i = 0; i < 3; i++) {
        if (!isfinite(values[i]) || values[i] < 0.0f) {
            return k3_fail(e, LLAMA_K3_ARGUMENT, "%s: found %g, wanted a number of at least 0", names[i], values[i]);
        }
    }
    if (params->min_p > 1.0f) {
        return k3_fail(e, LLAMA_K3_ARGUMENT, "min_p: found %g, wanted at most 1", params->min_p);
    }
    llama_k3_sampler * s = calloc(1, sizeof(*s));
    if (!s) {
        return k3_fail(e, LLAMA_K3_MEMORY, "sampler: out of memory");
    }
    s->params = *params;
    s->rng    = params->seed;
    *out      = s;
    return LLAMA_K3_OK;
}

void llama_k3_sampler_free(llama_k3_sampler * s) {
    if (s) {
        free(s->candidates);
        free(s);
    }
}

static int by_logit(const void * a, const void * b) {
    const candidate *x = a, *y = b;
    if (x->logit != y->logit) {
        return x->logit > y->logit ? -1 : 1;
    }
    return x->id < y->id ? -1 : 1;
}

// Probabilities of the first n candidates at a temperature; they are sorted by logit.
static void softmax(candidate * c, int32_t n, double temperature) {
    double sum = 0.0;
    for (int32_t i = 0; i < n; i++) {
        c[i].p = exp(((double) c[i].logit - (double) c[0].logit) / temperature);
        sum += c[i].p;
    }
    for (int32_t i = 0; i < n; i++) {
        c[i].p /= sum;
    }
}

// Shortest prefix whose probability reaches top_p; at least one.
static int32_t cut_top_p(const candidate * c, int32_t n, float top_p) {
    double sum = 0.0;
    for (int32_t i = 0; i < n; i++) {
        sum += c[i].p;
        if (sum >= (double) top_p) {
            return i + 1;
        }
    }
    return n;
}

static int32_t cut_min_p(const candidate * c, int32_t n, float min_p) {
    while (n > 1 && c[n - 1].p < (double) min_p * c[0].p) {
        n--;
    }
    return n;
}

static int32_t draw(llama_k3_sampler * s, int32_t n) {
    const llama_k3_sampler_params * p = &s->params;
    candidate * c                     = s->candidates;
    qsort(c, (size_t) n, sizeof(*c), by_logit);
    if (p->top_k > 0 && p->top_k < n) {
        n = p->top_k;
    }
    softmax(c, n, 1.0);
    if (p->top_p < 1.0f) {
        n = cut_top_p(c, n, p->top_p);
    }
    if (p->min_p > 0.0f) {
        n = cut_min_p(c, n, p->min_p);
    }
    softmax(c, n, (double) p->temperature);
    double left = next_unit(&s->rng);
    for (int32_t i = 0; i < n; i++) {
        left -= c[i].p;
        if (left < 0.0) {
            return c[i].id;
        }
    }
    return c[n - 1].id;
}

static int32_t largest(const float * logits, int32_t n) {
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++) {
        if (logits[i] > logits[best]) {
            best = i;
        }
    }
    return best;
}

static int reserve(llama_k3_sampler * s, int32_t n, k3_error e) {
    if (n <= s->capacity) {
        return LLAMA_K3_OK;
    }
    candidate * c = realloc(s->candidates, (size_t) n * sizeof(*c));
    if (!c) {
        return k3_fail(e, LLAMA_K3_MEMORY, "sampler: no memory for %d candidates", n);
    }
    s->candidates = c;
    s->capacity   = n;
    return LLAMA_K3_OK;
}

int llama_k3_sampler_sample(llama_k3_sampler * s, const float * logits, int32_t n, int32_t * token, char * err,
                            size_t err_size) {
    const k3_error e = {err, err_size};
    if (n < 1) {
        return k3_fail(e, LLAMA_K3_ARGUMENT, "logits: found %d values, wanted at least 1", n);
    }
    for (int32_t i = 0; i < n; i++) {
        if (!isfinite(logits[i])) {
            return k3_fail(e, LLAMA_K3_NON_FINITE, "logits: value of token %d is not finite", i);
        }
    }
    if (s->params.temperature <= 0.0f) {
        *token = largest(logits, n);
        return LLAMA_K3_OK;
    }
    int status = reserve(s, n, e);
    if (status) {
        return status;
    }
    for (int32_t i = 0; i < n; i++) {
        s->candidates[i] = (candidate) {.id = i, .logit = logits[i]};
    }
    *token = draw(s, n);
    return LLAMA_K3_OK;
}
