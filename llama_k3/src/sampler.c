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

// Order of the candidates: larger logit, ties to the lower id.
static bool before(const candidate * a, const candidate * b) {
    return a->logit != b->logit ? a->logit > b->logit : a->id < b->id;
}

static void sift_down(candidate * heap, int32_t n, int32_t at) {
    const candidate moved = heap[at];
    for (int32_t child = 2 * at + 1; child < n; child = 2 * at + 1) {
        child += child + 1 < n && before(&heap[child + 1], &heap[child]);
        if (!before(&heap[child], &moved)) {
            break;
        }
        heap[at] = heap[child];
        at       = child;
    }
    heap[at] = moved;
}

// A vocabulary has 163,840 entries, of which a draw looks at few: they lie in a heap, and the first ones are taken off
// as they are wanted. Those taken stand at the end of the array, the first one last.
typedef struct ranking {
    candidate * c;
    int32_t n, taken;
} ranking;

static ranking rank(candidate * c, int32_t n) {
    for (int32_t i = n / 2 - 1; i >= 0; i--) {
        sift_down(c, n, i);
    }
    return (ranking) {c, n, 0};
}

// The candidate at place i, counted from 0; i is at most one more than the largest one asked for before.
static candidate * at_rank(ranking * r, int32_t i) {
    if (i == r->taken) {
        const int32_t last  = r->n - 1 - r->taken++;
        const candidate top = r->c[0];
        r->c[0]             = r->c[last];
        sift_down(r->c, last, 0);
        r->c[last] = top;
    }
    return &r->c[r->n - 1 - i];
}

static double weight(const candidate * c, float max, double temperature) {
    return exp(((double) c->logit - (double) max) / temperature);
}

// How many of the first candidates stay: top_k, then the shortest prefix that reaches top_p of their sum, then those
// of at least min_p of the first one; at least one.
static int32_t filter(ranking * r, const llama_k3_sampler_params * p) {
    const int32_t limit = p->top_k > 0 && p->top_k < r->n ? p->top_k : r->n;
    const float max     = r->c[0].logit;
    double total = 0.0, sum = 0.0;
    for (int32_t i = 0; i < limit && p->top_p < 1.0f; i++) {
        total += weight(limit < r->n ? at_rank(r, i) : &r->c[i], max, 1.0);
    }
    for (int32_t i = 0; i < limit; i++) {
        if (i == r->taken && p->top_p >= 1.0f && p->min_p <= 0.0f && limit == r->n) {
            return limit;  // all of them, in any order
        }
        const double w = weight(at_rank(r, i), max, 1.0);
        sum += w;
        if (i > 0 && w < (double) p->min_p) {
            return i;
        }
        if (p->top_p < 1.0f && sum >= (double) p->top_p * total) {
            return i + 1;
        }
    }
    return limit;
}

static int32_t draw(llama_k3_sampler * s, int32_t n) {
    ranking r         = rank(s->candidates, n);
    const float max   = r.c[0].logit;
    const int32_t end = filter(&r, &s->params);
    candidate * kept  = &r.c[n - end];
    double total      = 0.0;
    for (int32_t i = 0; i < end; i++) {
        kept[i].p = weight(&kept[i], max, (double) s->params.temperature);
        total += kept[i].p;
    }
    double left = next_unit(&s->rng) * total;
    for (int32_t i = end - 1; i > 0; i--) {
        left -= kept[i].p;
        if (left < 0.0) {
            return kept[i].id;
        }
    }
    return kept[0].id;
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
