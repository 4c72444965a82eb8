// pool.c - persistent threads that run a plan node by node. Barriers spin and then yield their processor: soon where
// there are more threads than processors, and after the time slice of another program where each thread has its own,
// since a processor that is given away comes back only after such a slice. Between plans the threads sleep.
#include "plan.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    FEW_SPINS    = 2000,    // pauses in a barrier, some 20 us
    MANY_SPINS   = 200000,  // some 3 ms
    IDLE_SPINS   = 4000,    // pauses, then yields, between two plans before a thread sleeps: about a millisecond
    THREAD_STACK = 1 << 20,
    THREADS_MASK = 0xFFFF,
};

#if defined(__x86_64__)
#define PAUSE() __builtin_ia32_pause()
#elif defined(__aarch64__)
#define PAUSE() __asm__ volatile("yield")
#else
#define PAUSE() ((void) 0)
#endif

// One run of a plan.
struct job {
    const struct ggml_k3_plan * plan;
    int n_threads;
    bool (*stop)(void * user);
    void * user;
    double * ms;
};

struct worker {
    struct ggml_k3_pool * pool;
    pthread_t thread;
    int index;
    uint8_t * scratch;
};

struct ggml_k3_pool {
    int n_threads;            // with the caller's
    int spins;                // pauses in a barrier before the processor is offered to others
    struct worker * workers;  // [n_threads]; the first is the caller
    uint8_t * work;
    size_t work_size, scratch_size;
    struct job job;
    double waited;  // ms that the caller's thread spent in barriers during the present run
    // Number of the present run, and in the low 16 bits the threads that take part: a change is the workers' signal.
    // Only those read `job`, which stays as it is until they are through.
    _Alignas(64) _Atomic uint64_t run;
    atomic_int sleeping;
    atomic_bool quit;
    pthread_mutex_t mutex;
    pthread_cond_t wake;
    _Alignas(64) atomic_int arrived;
    _Alignas(64) atomic_uint phase;
    _Alignas(64) atomic_uint stop_at;  // threads leave the plan behind this barrier
};

static double now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double) t.tv_sec * 1e3 + (double) t.tv_nsec * 1e-6;
}

// `index`: of the calling thread.
static void barrier(struct ggml_k3_pool * p, int index, int n) {
    enum { UNCOUNTED_SPINS = 200 };  // a wait this short is not worth asking the clock for
    if (n == 1) {
        return;
    }
    const unsigned phase = atomic_load_explicit(&p->phase, memory_order_relaxed);
    if (atomic_fetch_add_explicit(&p->arrived, 1, memory_order_acq_rel) == n - 1) {
        atomic_store_explicit(&p->arrived, 0, memory_order_relaxed);
        atomic_store_explicit(&p->phase, phase + 1, memory_order_release);
        return;
    }
    double start = 0.0;
    for (int spins = 0; atomic_load_explicit(&p->phase, memory_order_acquire) == phase; spins++) {
        if (spins == UNCOUNTED_SPINS && index == 0) {
            start = now_ms();
        }
        if (spins < p->spins) {
            PAUSE();
        } else {
            sched_yield();
        }
    }
    if (start > 0.0) {
        p->waited += now_ms() - start;
    }
}

void k3_task_barrier(const struct k3_task * task) { barrier(task->pool, task->ith, task->nth); }

// One thread's way through the plan.
struct walk {
    struct ggml_k3_pool * pool;
    struct job job;
    int index;
    unsigned n_barriers;  // passed between nodes; the same for all threads at each
    double start;         // of the present section
    enum ggml_k3_section section;
};

// The first thread closes a section's time and asks whether to stop. What it answers counts from the next barrier on.
static void enter_section(struct walk * w, enum ggml_k3_section section) {
    const double now = now_ms();
    w->job.ms[w->section] += now - w->start;
    w->start   = now;
    w->section = section;
    if (w->job.stop && w->job.stop(w->job.user)) {
        atomic_store_explicit(&w->pool->stop_at, w->n_barriers + 1, memory_order_relaxed);
    }
}

// True: the plan was stopped at this barrier. Then all threads meet once more, so that the next run, which clears
// stop_at, begins when everybody has read it.
static bool meet(struct walk * w) {
    barrier(w->pool, w->index, w->job.n_threads);
    w->n_barriers++;
    const bool stopped = w->n_barriers >= atomic_load_explicit(&w->pool->stop_at, memory_order_relaxed);
    if (stopped) {
        barrier(w->pool, w->index, w->job.n_threads);
    }
    return stopped;
}

static void run_node(const struct walk * w, struct ggml_tensor * t, const struct k3_node * node) {
    const struct k3_task task = {
        .dst     = t,
        .params  = node->info.params,
        .ith     = node->info.single ? 0 : w->index,
        .nth     = node->info.single ? 1 : w->job.n_threads,
        .scratch = w->pool->workers[w->index].scratch,
        .work    = w->pool->work,
        .pool    = w->pool,
    };
    node->info.run(&task);
}

// Single nodes are the first thread's; the others wait for the next shared one.
static void walk_plan(struct walk * w) {
    const struct ggml_k3_plan * plan = w->job.plan;
    bool behind                      = false;  // a single node ran since the last barrier
    for (int i = 0; i < plan->n_nodes; i++) {
        struct ggml_tensor * t      = plan->nodes[i];
        const struct k3_node * node = t->extra;
        if (w->index == 0 && node->section != w->section) {
            enter_section(w, node->section);
        }
        if (node->info.single) {
            behind = true;
            if (w->index == 0) {
                run_node(w, t, node);
            }
            continue;
        }
        if (behind && meet(w)) {
            return;
        }
        behind = false;
        run_node(w, t, node);
        if (meet(w)) {
            return;
        }
    }
    // without a look at stop_at, which may be the next run's by now
    barrier(w->pool, w->index, w->job.n_threads);
}

static void walk_job(struct ggml_k3_pool * p, int index) {
    struct walk w = {.pool = p, .job = p->job, .index = index, .section = GGML_K3_OTHER};
    if (index == 0) {
        w.start = now_ms();
    }
    walk_plan(&w);
    if (index == 0) {
        w.job.ms[w.section] += now_ms() - w.start;
    }
}

// Waits for a run other than `seen`; false when the pool is closing.
static bool wait_for_run(struct ggml_k3_pool * p, uint64_t seen) {
    for (int spins = 0; atomic_load_explicit(&p->run, memory_order_acquire) == seen; spins++) {
        if (atomic_load(&p->quit)) {
            return false;
        }
        if (spins < FEW_SPINS) {
            PAUSE();
        } else if (spins < IDLE_SPINS) {
            sched_yield();
        } else {
            pthread_mutex_lock(&p->mutex);
            atomic_fetch_add(&p->sleeping, 1);
            while (atomic_load(&p->run) == seen && !atomic_load(&p->quit)) {
                pthread_cond_wait(&p->wake, &p->mutex);
            }
            atomic_fetch_sub(&p->sleeping, 1);
            pthread_mutex_unlock(&p->mutex);
        }
    }
    return !atomic_load(&p->quit);
}

static void * work_loop(void * arg) {
    struct worker * w       = arg;
    struct ggml_k3_pool * p = w->pool;
    for (uint64_t seen = 0; wait_for_run(p, seen);) {
        seen = atomic_load_explicit(&p->run, memory_order_acquire);
        if (w->index < (int) (seen & THREADS_MASK)) {
            walk_job(p, w->index);
        }
    }
    return NULL;
}

static void wake_all(struct ggml_k3_pool * p) {
    if (atomic_load(&p->sleeping) > 0) {
        pthread_mutex_lock(&p->mutex);
        pthread_cond_broadcast(&p->wake);
        pthread_mutex_unlock(&p->mutex);
    }
}

bool ggml_k3_plan_run(const struct ggml_k3_plan * plan, struct ggml_k3_pool * p, int n_threads,
                      bool (*stop)(void * user), void * user, double * ms) {
    GGML_ASSERT(n_threads >= 1 && n_threads <= p->n_threads);
    GGML_ASSERT(plan->work <= p->work_size && plan->scratch <= p->scratch_size);
    p->job    = (struct job) {.plan = plan, .n_threads = n_threads, .stop = stop, .user = user, .ms = ms};
    p->waited = 0.0;
    atomic_store(&p->stop_at, UINT32_MAX);
    if (n_threads > 1) {
        const uint64_t number = (atomic_load(&p->run) | THREADS_MASK) + 1;
        atomic_store(&p->run, number | (uint64_t) n_threads);
        wake_all(p);
    }
    walk_job(p, 0);
    return atomic_load(&p->stop_at) == UINT32_MAX;
}

double ggml_k3_pool_waited(const struct ggml_k3_pool * p) { return p->waited; }

static void free_memory(struct ggml_k3_pool * p) {
    for (int i = 0; i < p->n_threads; i++) {
        free(p->workers[i].scratch);
    }
    free(p->workers);
    free(p->work);
    free(p);
}

static void stop_threads(struct ggml_k3_pool * p, int n) {
    pthread_mutex_lock(&p->mutex);
    atomic_store(&p->quit, true);
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->mutex);
    for (int i = 1; i < n; i++) {
        pthread_join(p->workers[i].thread, NULL);
    }
    pthread_cond_destroy(&p->wake);
    pthread_mutex_destroy(&p->mutex);
}

static bool start_thread(struct worker * w) {
    pthread_attr_t attr;
    if (pthread_attr_init(&attr) != 0) {
        return false;
    }
    pthread_attr_setstacksize(&attr, THREAD_STACK);
    const bool started = pthread_create(&w->thread, &attr, work_loop, w) == 0;
    pthread_attr_destroy(&attr);
    return started;
}

struct ggml_k3_pool * ggml_k3_pool_new(int n_threads) {
    GGML_ASSERT(n_threads >= 1 && n_threads <= THREADS_MASK);
    struct ggml_k3_pool * p = aligned_alloc(64, (sizeof(*p) + 63) / 64 * 64);
    struct worker * workers = calloc((size_t) n_threads, sizeof(*workers));
    if (!p || !workers) {
        free(p);
        free(workers);
        return NULL;
    }
    memset(p, 0, sizeof(*p));
    p->n_threads = n_threads;
    p->workers   = workers;
    p->spins     = n_threads <= sysconf(_SC_NPROCESSORS_ONLN) ? MANY_SPINS : FEW_SPINS;
    pthread_mutex_init(&p->mutex, NULL);
    pthread_cond_init(&p->wake, NULL);
    for (int i = 0; i < n_threads; i++) {
        workers[i] = (struct worker) {.pool = p, .index = i};
    }
    for (int i = 1; i < n_threads; i++) {
        if (!start_thread(&workers[i])) {
            stop_threads(p, i);
            free_memory(p);
            return NULL;
        }
    }
    return p;
}

void ggml_k3_pool_free(struct ggml_k3_pool * p) {
    if (p) {
        stop_threads(p, p->n_threads);
        free_memory(p);
    }
}

void ggml_k3_pool_abandon(struct ggml_k3_pool * p) {
    if (p) {
        free_memory(p);
    }
}

// Replaces *memory unless it is large enough; whole pages, so that neighbours share no cache line.
static bool grow(uint8_t ** memory, size_t size) {
    enum { PAGE = 4096 };
    if (size > SIZE_MAX - PAGE) {
        return false;
    }
    free(*memory);
    *memory = aligned_alloc(PAGE, (size + PAGE) / PAGE * PAGE);
    return *memory != NULL;
}

bool ggml_k3_pool_reserve(struct ggml_k3_pool * p, size_t work, size_t scratch) {
    if (work > p->work_size || !p->work) {
        p->work_size = 0;
        if (!grow(&p->work, work)) {
            return false;
        }
        p->work_size = work;
    }
    if (scratch > p->scratch_size || !p->workers[0].scratch) {
        p->scratch_size = 0;
        for (int i = 0; i < p->n_threads; i++) {
            if (!grow(&p->workers[i].scratch, scratch)) {
                return false;
            }
        }
        p->scratch_size = scratch;
    }
    return true;
}

size_t ggml_k3_pool_memory(const struct ggml_k3_pool * p) {
    return p->work_size + p->scratch_size * (size_t) p->n_threads;
}
