/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Replay on the CPU device. Streams that have no thread of their own are run by the caller in turn:
 * after every kernel of one the others are polled, and when all are blocked the caller waits, by
 * the transport's policy, for the one thing that comes from elsewhere.
 */
#include "runtime/plan/session.h"

#include "runtime/base/error.h"
#include "runtime/base/threads.h"

#include <sched.h>
#include <stdio.h>

#define FAULT_SLICE_NS 10000000ull /* how late a thread notices that another one failed */
#define INLINE_SLICE_NS 500000ull  /* how late an inline stream notices that it can go on */

static uint64_t idle_spin_ns(const weft_session_t *session)
{
    return session->endpoint->may_spin ? session->context->settings.spin_ns : 0;
}

/* Moves inline streams on, since other ranks may need their work before they come here: only the
 * thread that runs the session may. False: there are none. */
static bool progress_inline(const weft_session_t *session, bool is_caller)
{
    return is_caller && wefti_context_progress(session->context);
}

static uint64_t slice_ns(const weft_session_t *session, bool is_caller)
{
    return progress_inline(session, is_caller) ? INLINE_SLICE_NS : FAULT_SLICE_NS;
}

/* Waits for what another thread of this rank posts: that thread watches the other ranks, but an
 * interrupt may be for this one only. */
static weft_status_t block_local(weft_session_t *session, wefti_signal_t *signal, uint32_t target,
                                 bool is_caller)
{
    uint64_t spin_ns = idle_spin_ns(session);
    weft_status_t status = WEFT_OK;
    wefti_local_wait_t wait = {.endpoint = session->endpoint,
                               .signal = signal,
                               .target = target,
                               .what = "another stream of its session"};
    while (status == WEFT_OK && !wefti_signal_await(session->endpoint, signal, target, spin_ns,
                                                    slice_ns(session, is_caller))) {
        wefti_waits_look_local(&wait);
        status = wefti_fault_get(&session->fault);
        status = status == WEFT_OK ? wefti_endpoint_check(session->endpoint) : status;
        spin_ns = 0;
    }
    wefti_waits_end_local(&wait);
    return status;
}

/* Whether cursor is blocked on several things, only one of which is waited for. */
static bool is_blocked_on_lanes(const wefti_cursor_t *cursor)
{
    const wefti_record_t *record = &cursor->records[cursor->next];
    return record->kind == WEFTI_RECORD_SCHEDULE &&
           wefti_run_schedule(record->schedule.bound->run)->resources.lanes > 1;
}

/* Whether another lane of a schedule can go on. */
static bool lanes_moved(const wefti_cursor_t *cursor)
{
    return is_blocked_on_lanes(cursor) &&
           wefti_run_ready(cursor->records[cursor->next].schedule.bound->run);
}

/* A wait for other ranks, and what is looked at meanwhile. */
typedef struct watch {
    weft_session_t *session;
    const wefti_cursor_t *cursor; /* the one whose signal is waited for */
    bool alternatives;            /* something else that this thread runs may go on earlier */
    bool is_caller;               /* this thread, unlike a worker, also runs inline streams */
    uint64_t gone_since_ns;       /* whom it waits for has left the world; 0: no */
} watch_t;

/* True when the calling thread is not the one that posts what cursor is blocked on. */
static bool blocked_on_others(const weft_session_t *session, const wefti_cursor_t *cursor)
{
    const wefti_record_t *record = &cursor->records[cursor->next];
    return cursor->next < cursor->count &&
           (record->kind == WEFTI_RECORD_WAIT || record->kind == WEFTI_RECORD_SCHEDULE) &&
           (record->source == UINT16_MAX || session->on_worker[record->source]);
}

/* Whether another lane, or another stream of the calling thread, can go on. */
static bool others_moved(const weft_session_t *session, const wefti_cursor_t *waiting)
{
    if (session->on_worker[waiting - session->cursors]) {
        return lanes_moved(waiting);
    }
    for (uint32_t i = 0; i < session->plan->stream_count; i++) {
        const wefti_cursor_t *cursor = &session->cursors[i];
        if (session->on_worker[i] || !blocked_on_others(session, cursor)) {
            continue;
        }
        if (lanes_moved(cursor)) {
            return true;
        }
        if (cursor == waiting) {
            continue;
        }
        uint32_t target;
        wefti_signal_t *signal = wefti_cursor_blocked_on(cursor, &target);
        /* relaxed: the cursor looks again, with acquire */
        if (wefti_signal_reached(atomic_load_explicit(&signal->value, memory_order_relaxed),
                                 target)) {
            return true;
        }
    }
    return false;
}

/* A rank that is to signal over puts has left the world without: where such signals lie does not
 * say whose they are. */
static weft_status_t look_for_departed(watch_t *watch, uint64_t now)
{
    const weft_session_t *session = watch->session;
    wefti_endpoint_t *endpoint = session->endpoint;
    /* relaxed: it only says that looking is worth its while */
    if (!atomic_load_explicit(&endpoint->departed, memory_order_relaxed)) {
        return WEFT_OK;
    }
    uint32_t target, late = wefti_session_late(session, watch->cursor);
    wefti_signal_t *signal = wefti_cursor_blocked_on(watch->cursor, &target);
    if (late >= endpoint->world_size || !wefti_endpoint_has_left(endpoint, late) ||
        wefti_signal_has_reached(signal, target)) {
        return WEFT_OK;
    }
    watch->gone_since_ns = watch->gone_since_ns != 0 ? watch->gone_since_ns : now;
    if (now - watch->gone_since_ns < WEFTI_ARRIVES_NS) {
        return WEFT_OK;
    }
    /* a rank that aborts the world does so before it leaves */
    WEFT_RETURN_IF_ERROR(wefti_endpoint_check(endpoint));
    return wefti_error(WEFT_ERR_PEER_DIED,
                       "rank %u left the world while rank %u was waiting for it in %s", late,
                       endpoint->rank, watch->cursor->records[watch->cursor->next].name);
}

static weft_status_t poll_watch(void *user)
{
    watch_t *watch = user;
    weft_session_t *session = watch->session;
    progress_inline(session, watch->is_caller);
    if (wefti_session_lost_link(session)) {
        return wefti_session_check_links(session);
    }
    uint64_t now = wefti_now_ns();
    WEFT_RETURN_IF_ERROR(look_for_departed(watch, now));
    return watch->alternatives && others_moved(session, watch->cursor) ? WEFT_AGAIN : WEFT_OK;
}

/* For transport/waits.h. */
static bool describe(void *user, wefti_wait_t *out)
{
    const watch_t *watch = user;
    const weft_session_t *session = watch->session;
    const wefti_cursor_t *waiting = watch->cursor;
    uint32_t target;
    const wefti_signal_t *signal = wefti_cursor_blocked_on(waiting, &target);
    out->kind = WEFTI_WAIT_STEP;
    wefti_session_add_late(session, waiting, out);
    for (uint32_t i = 0; watch->alternatives && i < session->plan->stream_count; i++) {
        const wefti_cursor_t *cursor = &session->cursors[i];
        if (!session->on_worker[i] && cursor != waiting && blocked_on_others(session, cursor)) {
            wefti_session_add_late(session, cursor, out);
        }
    }
    if (out->kind == WEFTI_WAIT_STEP && out->late_count == 0) {
        out->kind = WEFTI_WAIT_LOCAL;
        out->late[out->late_count++] = session->endpoint->rank;
    }
    snprintf(out->text, sizeof out->text, "%s of a session", waiting->records[waiting->next].name);
    return !wefti_signal_has_reached(signal, target) && !others_moved(session, waiting);
}

/* Waits for what cursor is blocked on, or for alternatives. */
static weft_status_t block(weft_session_t *session, const wefti_cursor_t *cursor, bool alternatives)
{
    uint32_t target;
    const wefti_record_t *record = &cursor->records[cursor->next];
    wefti_signal_t *signal = wefti_cursor_blocked_on(cursor, &target);
    bool is_caller = !session->on_worker[cursor - session->cursors];
    if (record->source != UINT16_MAX && !alternatives) {
        return block_local(session, signal, target, is_caller);
    }
    watch_t watch = {
        .session = session, .cursor = cursor, .alternatives = alternatives, .is_caller = is_caller};
    bool watches = alternatives || session->puts || progress_inline(session, is_caller);
    return wefti_wait_signal_described(session->endpoint, signal, target, record->name,
                                       watches ? poll_watch : NULL, describe, &watch);
}

static weft_status_t block_caller(weft_session_t *session)
{
    wefti_cursor_t *first = NULL;
    uint32_t candidates = 0;
    for (uint32_t i = 0; i < session->plan->stream_count; i++) {
        if (!session->on_worker[i] && blocked_on_others(session, &session->cursors[i])) {
            first = first == NULL ? &session->cursors[i] : first;
            candidates++;
        }
    }
    if (first == NULL) {
        return wefti_error(WEFT_ERR_INTERNAL,
                           "rank %u: deadlock: every stream waits for another stream",
                           session->endpoint->rank);
    }
    return block(session, first, candidates > 1 || is_blocked_on_lanes(first));
}

/* Runs the streams that have no worker. *out_poll_ns: communication run between kernels. */
static weft_status_t run_caller(weft_session_t *session, uint64_t *out_poll_ns)
{
    uint32_t count = session->plan->stream_count;
    uint32_t own = 0;
    for (uint32_t i = 0; i < count; i++) {
        own += !session->on_worker[i];
    }
    for (;;) {
        bool done = true, moved = false, compute_blocked = false;
        if (own > 1) { /* what came while the last kernel ran, and what waits to be sent */
            wefti_endpoint_progress(session->endpoint);
        }
        for (uint32_t i = 0; i < count; i++) {
            wefti_cursor_t *cursor = &session->cursors[i];
            if (session->on_worker[i] || cursor->next == cursor->count) {
                continue;
            }
            uint32_t next = cursor->next;
            uint64_t busy_ns = cursor->busy_ns;
            weft_status_t status = wefti_cursor_advance(session, cursor, own > 1);
            if (status < 0) {
                return status;
            }
            done = done && status == WEFT_OK;
            moved = moved || cursor->next != next;
            if (session->plan->streams[i].communicates) {
                *out_poll_ns += compute_blocked ? 0 : cursor->busy_ns - busy_ns;
            } else {
                compute_blocked = compute_blocked || status == WEFT_IN_PROGRESS;
            }
        }
        if (done) {
            return WEFT_OK;
        }
        if (!moved) {
            WEFT_RETURN_IF_ERROR(block_caller(session));
        }
    }
}

static weft_status_t run_worker_stream(weft_session_t *session, wefti_cursor_t *cursor)
{
    weft_status_t status;
    while ((status = wefti_cursor_advance(session, cursor, false)) == WEFT_IN_PROGRESS) {
        status = block(session, cursor, is_blocked_on_lanes(cursor));
        if (status < 0 && !lanes_moved(cursor)) {
            return status;
        }
    }
    return status;
}

static void *worker_main(void *user)
{
    wefti_worker_t *worker = user;
    weft_session_t *session = worker->session;
    wefti_own_thread_t self;
    wefti_own_thread_begin(&self, &worker->start.signal);
    for (uint32_t run = 1;; run++) {
        wefti_own_thread_idle(&self, run);
        wefti_signal_await(NULL, &worker->start.signal, run, idle_spin_ns(session), UINT64_MAX);
        wefti_own_thread_busy(&self);
        if (atomic_load_explicit(&worker->stop, memory_order_acquire)) {
            wefti_own_thread_end(&self);
            return NULL;
        }
        weft_status_t status =
            run_worker_stream(session, &session->cursors[worker - session->workers]);
        if (status < 0) {
            wefti_session_fail(session, status);
        }
        wefti_signal_post(&worker->done.signal, run);
    }
}

/* Until its stream is done, or has ended because of an error. */
static void await_worker(weft_session_t *session, wefti_worker_t *worker)
{
    uint64_t spin_ns = idle_spin_ns(session);
    wefti_local_wait_t wait = {.endpoint = session->endpoint,
                               .signal = &worker->done.signal,
                               .target = worker->asked,
                               .what = "a stream of its session"};
    while (!wefti_signal_await(session->endpoint, &worker->done.signal, worker->asked, spin_ns,
                               slice_ns(session, true))) {
        spin_ns = 0;
        wefti_waits_look_local(&wait);
        weft_status_t status = wefti_endpoint_check(session->endpoint);
        if (status < 0) {
            wefti_session_fail(session, status); /* ends the worker's waits, too */
        }
    }
    wefti_waits_end_local(&wait);
}

weft_status_t wefti_exec_host_run(weft_session_t *session, wefti_bound_program_t *program)
{
    uint32_t count = session->plan->stream_count;
    uint64_t start_ns = wefti_now_ns();
    uint64_t poll_ns = 0;
    for (uint32_t i = 0; i < count; i++) {
        wefti_cursor_begin(&session->cursors[i], &program->streams[i], program->epoch,
                           session->run_count, session->step_now);
    }
    /* A stream with nothing to do (eval has no communication) does not wake its thread. */
    for (uint32_t i = 0; i < count; i++) {
        if (session->on_worker[i] && program->streams[i].count > 0) {
            wefti_signal_post(&session->workers[i].start.signal, ++session->workers[i].asked);
        }
    }
    weft_status_t status = run_caller(session, &poll_ns);
    if (status < 0) {
        wefti_session_fail(session, status); /* which also ends the workers' waits */
    }
    uint64_t own_end_ns = wefti_now_ns();
    for (uint32_t i = 0; i < count; i++) {
        if (session->on_worker[i]) {
            await_worker(session, &session->workers[i]);
        }
    }
    if ((status = wefti_fault_get(&session->fault)) < 0) {
        return status;
    }
    uint64_t end_ns = wefti_now_ns();
    uint64_t exposed_ns = poll_ns + (end_ns - own_end_ns), comm_ns = 0;
    for (uint32_t i = 0; i < count; i++) {
        const wefti_cursor_t *cursor = &session->cursors[i];
        comm_ns += cursor->comm_ns;
        /* a stream that computes and communicates hides nothing */
        exposed_ns += session->plan->streams[i].communicates && count > 1 ? 0 : cursor->blocked_ns;
    }
    uint64_t step_ns = end_ns - start_ns;
    exposed_ns = exposed_ns < step_ns ? exposed_ns : step_ns;
    session->run_times =
        (wefti_step_times_t){(float)step_ns * 1e-6f, (float)(step_ns - exposed_ns) * 1e-6f,
                             (float)comm_ns * 1e-6f, (float)exposed_ns * 1e-6f};
    return WEFT_OK;
}

static weft_status_t start_worker(weft_session_t *session, uint32_t stream)
{
    wefti_worker_t *worker = &session->workers[stream];
    worker->session = session;
    int error = pthread_create(&worker->thread, NULL, worker_main, worker);
    if (error != 0) {
        return wefti_error_errno(WEFT_ERR_SYSTEM, error, "stream \"%s\": cannot create its thread",
                                 session->plan->streams[stream].name);
    }
    session->on_worker[stream] = true;
    if (session->context->progress_cpu >= 0) {
        cpu_set_t cpus;
        CPU_ZERO(&cpus);
        CPU_SET(session->context->progress_cpu, &cpus);
        pthread_setaffinity_np(worker->thread, sizeof(cpus), &cpus); /* only for speed */
    }
    return WEFT_OK;
}

weft_status_t wefti_exec_host_open(weft_session_t *session)
{
    for (uint32_t i = 0; i < session->plan->stream_count && session->context->progress_thread;
         i++) {
        if (session->plan->streams[i].communicates) {
            WEFT_RETURN_IF_ERROR(start_worker(session, i));
        }
    }
    return WEFT_OK;
}

void wefti_exec_host_close(weft_session_t *session)
{
    for (uint32_t i = 0; session->on_worker != NULL && i < session->plan->stream_count; i++) {
        wefti_worker_t *worker = &session->workers[i];
        if (session->on_worker[i] && wefti_endpoint_owned(session->endpoint)) { /* not in a child */
            /* release: the worker sees stop once it sees the start it waits for */
            atomic_store_explicit(&worker->stop, 1, memory_order_release);
            wefti_signal_post(&worker->start.signal, worker->asked + 1);
            pthread_join(worker->thread, NULL);
        }
    }
}
