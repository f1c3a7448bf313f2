/* SPDX-License-Identifier: Apache-2.0 */
/*
 * caller                                     worker
 *   job, then claim = {epoch, parts, 0}        spins, then sleeps on epoch
 *   epoch + 1; wake those who sleep            reads claim
 *   claims parts one by one           <----->  claims parts one by one
 *   waits until done == parts         <-----   done + 1 for each part
 *
 * claim holds the epoch, so a worker that read it long ago cannot claim a part of a later call: its
 * compare-and-swap fails, and what it read of the job is discarded.
 */
#include "runtime/base/parallel.h"

#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>

#include "runtime/base/float_mode.h"
#include "runtime/base/sync.h"
#include "runtime/base/threads.h"

#define PART_BITS 16u
#define PART_MASK 0xffffu
/* Spans the serial kernels between two parallel ones; a wake-up costs 5 to 50 us. */
#define WORKER_SPIN_NS 200000u
/* For what a worker still executes: a part takes as long as the caller's own. */
#define CALLER_SPIN_NS 100000u
#define SPINS_PER_LOOK 64u
#define FOREVER_NS 3600000000000ull

_Static_assert(WEFTI_PARALLEL_PARTS <= PART_MASK, "parts are counted in 16 bits");

typedef struct team {
    _Atomic uint64_t claim; /* epoch << 32 | parts << 16 | next part */
    _Atomic(wefti_part_fn) fn;
    _Atomic(const void *) job;
    uint8_t pad[104];
    wefti_signal_line_t epoch; /* of the last call; workers wait for the next one */
    wefti_signal_line_t done;  /* parts of this call that workers have executed */
    _Atomic bool quit;
    uint32_t worker_count;
    pthread_t workers[WEFTI_PARALLEL_PARTS];
} team_t;

static _Thread_local team_t *own_team;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t team_key;
static bool have_key;

static uint32_t count_of(uint64_t claim)
{
    return (uint32_t)(claim >> PART_BITS) & PART_MASK;
}

static uint32_t next_of(uint64_t claim)
{
    return (uint32_t)claim & PART_MASK;
}

/* The next part of the call whose epoch is given, or -1; fn and job are of that call. */
static int64_t claim_part(team_t *team, uint32_t epoch, wefti_part_fn *out_fn, const void **out_job)
{
    /* acquire: the job, and what the caller wrote before it */
    uint64_t claim = atomic_load_explicit(&team->claim, memory_order_acquire);
    while ((uint32_t)(claim >> 32) == epoch && next_of(claim) < count_of(claim)) {
        *out_fn = atomic_load_explicit(&team->fn, memory_order_relaxed);
        *out_job = atomic_load_explicit(&team->job, memory_order_relaxed);
        if (atomic_compare_exchange_weak_explicit(&team->claim, &claim, claim + 1,
                                                  memory_order_acquire, memory_order_acquire)) {
            return next_of(claim);
        }
    }
    return -1;
}

static uint32_t value_of(const wefti_signal_line_t *line)
{
    return atomic_load_explicit(&line->signal.value, memory_order_acquire);
}

/* Until the value of line differs from value, which it was. */
static void await_change(wefti_signal_line_t *line, uint32_t value, uint64_t spin_ns)
{
    uint64_t end_ns = wefti_now_ns() + spin_ns;
    do {
        for (uint32_t i = 0; i < SPINS_PER_LOOK; i++) {
            if (value_of(line) != value) {
                return;
            }
            wefti_cpu_relax();
        }
    } while (wefti_now_ns() < end_ns);
    while (value_of(line) == value) {
        wefti_signal_sleep(&line->signal, value + 1, FOREVER_NS);
    }
}

static void execute_as_worker(team_t *team, uint32_t epoch)
{
    wefti_part_fn fn;
    const void *job;
    for (int64_t part; (part = claim_part(team, epoch, &fn, &job)) >= 0;) {
        fn(job, part);
        /* Sequentially consistent as in wefti_signal_post: no wake-up is lost. It also releases
         * what the part wrote. */
        wefti_signal_t *done = &team->done.signal;
        atomic_fetch_add_explicit(&done->value, 1, memory_order_seq_cst);
        if (atomic_load_explicit(&done->waiters, memory_order_seq_cst) != 0) {
            wefti_futex_wake_all(&done->value);
        }
    }
}

static void *work(void *context)
{
    team_t *team = context;
    wefti_own_thread_t self;
    wefti_own_thread_begin(&self, &team->epoch.signal);
    wefti_float_mode_begin(); /* not that of the caller, which a thread inherits */
    for (uint32_t epoch = 0;;) {
        wefti_own_thread_idle(&self, epoch + 1);
        await_change(&team->epoch, epoch, WORKER_SPIN_NS);
        wefti_own_thread_busy(&self);
        epoch = value_of(&team->epoch);
        if (atomic_load_explicit(&team->quit, memory_order_acquire)) {
            wefti_own_thread_end(&self);
            return NULL;
        }
        execute_as_worker(team, epoch);
    }
}

/* At the end of the calling thread. */
static void destroy_team(void *context)
{
    team_t *team = context;
    atomic_store_explicit(&team->quit, true, memory_order_release);
    wefti_signal_post(&team->epoch.signal, value_of(&team->epoch) + 1);
    for (uint32_t i = 0; i < team->worker_count; i++) {
        pthread_join(team->workers[i], NULL);
    }
    own_team = NULL;
    free(team);
}

/* A forked child has none of its parent's workers: it makes its own. The memory is lost. */
static void forget_team(void)
{
    own_team = NULL;
    if (have_key) {
        pthread_setspecific(team_key, NULL);
    }
}

static void init_once(void)
{
    have_key = pthread_key_create(&team_key, destroy_team) == 0;
    pthread_atfork(NULL, NULL, forget_team);
}

/* NULL: the caller executes all parts. */
static team_t *get_team(void)
{
    if (own_team != NULL) {
        return own_team;
    }
    pthread_once(&once, init_once);
    team_t *team = NULL;
    if (!have_key || posix_memalign((void **)&team, 128, sizeof *team) != 0) {
        return NULL;
    }
    *team = (team_t){.worker_count = 0};
    if (pthread_setspecific(team_key, team) != 0) {
        free(team);
        return NULL;
    }
    own_team = team;
    return team;
}

/* Signals are for the threads of the application. */
static void add_workers(team_t *team, uint32_t count)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (team->worker_count < count &&
           pthread_create(&team->workers[team->worker_count], NULL, work, team) == 0) {
        team->worker_count++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void wefti_parallel(int64_t parts, wefti_part_fn fn, const void *job)
{
    team_t *team = parts > 1 && parts <= WEFTI_PARALLEL_PARTS ? get_team() : NULL;
    if (team == NULL) {
        for (int64_t part = 0; part < parts; part++) {
            fn(job, part);
        }
        return;
    }
    if (team->worker_count + 1 < parts) {
        add_workers(team, (uint32_t)parts - 1);
    }
    /* Every part of the call before has returned, so nobody reads the job or counts. */
    uint32_t epoch = value_of(&team->epoch) + 1;
    uint32_t by_workers = (uint32_t)parts, done;
    atomic_store_explicit(&team->fn, fn, memory_order_relaxed);
    atomic_store_explicit(&team->job, job, memory_order_relaxed);
    atomic_store_explicit(&team->done.signal.value, 0, memory_order_relaxed);
    atomic_store_explicit(&team->claim, (uint64_t)epoch << 32 | (uint64_t)parts << PART_BITS,
                          memory_order_release);
    wefti_signal_post(&team->epoch.signal, epoch);
    for (int64_t part; (part = claim_part(team, epoch, &fn, &job)) >= 0; by_workers--) {
        fn(job, part);
    }
    while ((done = value_of(&team->done)) != by_workers) {
        await_change(&team->done, done, CALLER_SPIN_NS);
    }
}

typedef struct ranges {
    wefti_range_fn fn;
    const void *job;
    int64_t count, grain, parts;
} ranges_t;

static void run_range(const void *job, int64_t part)
{
    const ranges_t *r = job;
    const int64_t grains = r->count / r->grain, last = r->parts - 1;
    const int64_t from = grains * part / r->parts * r->grain;
    const int64_t to = grains * (part + 1) / r->parts * r->grain;
    r->fn(r->job, (wefti_range_t){from, part == last ? r->count : to, part});
}

void wefti_parallel_for(uint32_t threads, int64_t count, int64_t grain, wefti_range_fn fn,
                        const void *job)
{
    const int64_t most = threads < WEFTI_PARALLEL_PARTS ? (int64_t)threads : WEFTI_PARALLEL_PARTS;
    const int64_t parts = count / grain < most ? count / grain : most;
    const ranges_t ranges = {fn, job, count, grain, parts};
    if (parts > 1) {
        wefti_parallel(parts, run_range, &ranges);
    } else if (count > 0) {
        fn(job, (wefti_range_t){0, count, 0});
    }
}

static void run_steps(const void *job, wefti_range_t steps)
{
    const ranges_t *r = job;
    for (int64_t i = steps.from; i < steps.to; i++) {
        const int64_t from = i * r->grain, left = r->count - from;
        r->fn(r->job,
              (wefti_range_t){from, left < r->grain ? r->count : from + r->grain, steps.part});
    }
}

void wefti_parallel_steps(uint32_t threads, int64_t count, int64_t step, wefti_range_fn fn,
                          const void *job)
{
    const int64_t parts = threads > 1 ? threads : 1, share = (count + parts - 1) / parts;
    const int64_t grain = share < step && share > 0 ? share : step; /* no thread is left idle */
    const ranges_t ranges = {.fn = fn, .job = job, .count = count, .grain = grain};
    wefti_parallel_for(threads, (count + grain - 1) / grain, 1, run_steps, &ranges);
}
