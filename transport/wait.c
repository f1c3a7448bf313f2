/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The wait policy.
 *
 *   spin     only when every local rank has a core of its own, for spin_ns
 *   yield    a few times: with more ranks than cores this lets the others run, cheaper than a futex;
 *            not while other programs use the core, which then run for milliseconds
 *   sleep    on the futex, in slices; between slices abort word, peers and deadline are checked,
 *            so no watchdog is needed to end a wait
 *
 * Between hosts the waiting thread makes progress while it spins and yields, and hands that over
 * (wefti_endpoint_yield_progress) when it sleeps.
 */
#include "transport/transport.h"

#include <sched.h>
#include <stdio.h>

#include "runtime/base/error.h"
#include "transport/endpoint.h"

#define TIGHT_SPINS 200u
#define SPINS_PER_LOOK 64u
#define SPINS_PER_PROGRESS 8u
#define YIELDS_ALONE 4u
#define YIELDS_MAX 64u
#define SHARED_MIN_NS 20000000ull
#define SHARED_MAX_NS 1000000000ull
/* With a poll function other work may become ready meanwhile, so sleeps start short. */
#define POLL_SLICE_MIN_NS 50000ull
#define POLL_SLICE_MAX_NS 2000000ull
/* Looking at peers costs a system call: not more often than this. */
#define CHECK_EVERY_NS 10000000ull
/* Where ranks share cores, so many that wait may look so often; more of them look less often. */
#define CROWD_FREE 64u
#define SLEEP_MAX_NS 3600000000000ull /* an hour: a bound for a wake-up that got lost */

typedef struct waiting {
    wefti_endpoint_t *endpoint;
    wefti_signal_t *signal;
    uint32_t target;
    const char *what;
    weft_status_t (*poll)(void *user);
    wefti_wait_fn describe;   /* NULL: nothing is known of it */
    void *user;               /* of both */
    const uint64_t *moved_ns; /* when what is waited for last moved, as poll notes; or NULL */
} waiting_t;

/*
 * Of this process: a thread was away from its core for long, so another program uses it, as is
 * believed until that time. A yield is then worse than to sleep, as it gives up the thread's time
 * slice, whereas a thread that is woken soon runs. The longer it has been so, the longer until the
 * next attempt.
 */
static struct {
    _Atomic uint64_t until_ns, for_ns;
} shared_core;

/* Longer than ranks take to move what they wait for, shorter than a time slice. */
uint64_t wefti_wait_away_ns = 1000000;

static bool shares_core(uint64_t now_ns)
{
    return now_ns < atomic_load_explicit(&shared_core.until_ns, memory_order_relaxed);
}

/* Whether a yield, or spins without a pause, took long. */
static bool was_away(uint64_t since_ns, uint64_t now_ns)
{
    if (now_ns - since_ns < wefti_wait_away_ns) {
        return false;
    }
    /* relaxed: a lost update of two threads makes no difference */
    uint64_t until_ns = atomic_load_explicit(&shared_core.until_ns, memory_order_relaxed);
    uint64_t for_ns = atomic_load_explicit(&shared_core.for_ns, memory_order_relaxed);
    for_ns = now_ns < until_ns + for_ns ? for_ns * 2 : SHARED_MIN_NS;
    for_ns = for_ns < SHARED_MAX_NS ? for_ns : SHARED_MAX_NS;
    atomic_store_explicit(&shared_core.for_ns, for_ns, memory_order_relaxed);
    atomic_store_explicit(&shared_core.until_ns, now_ns + for_ns, memory_order_relaxed);
    return true;
}

/* The time after it. Only the yield counts: what progress and poll functions do may take as long. */
static uint64_t timed_yield(void)
{
    uint64_t before = wefti_now_ns();
    sched_yield();
    uint64_t now = wefti_now_ns();
    was_away(before, now);
    return now;
}

/* By how much a rank that waits is to be slower, so that all that wait leave the cores to others. */
static uint32_t crowd(const wefti_endpoint_t *endpoint)
{
    return endpoint->may_spin ? 1 : 1 + endpoint->local_rank_count / CROWD_FREE;
}

static bool reached(const waiting_t *wait)
{
    return wefti_signal_has_reached(wait->signal, wait->target);
}

static weft_status_t poll_once(const waiting_t *wait)
{
    return wait->poll != NULL ? wait->poll(wait->user) : WEFT_OK;
}

/* WEFT_OK: reached; WEFT_IN_PROGRESS: not within the time; or the status of poll. */
static weft_status_t spin(const waiting_t *wait)
{
    /* Most waits end here: no pause, which costs as much as a cache line's way, and no clock. */
    for (uint32_t i = 0; i < TIGHT_SPINS; i++) {
        if (reached(wait)) {
            return WEFT_OK;
        }
        if (i % SPINS_PER_PROGRESS == 0) {
            wefti_endpoint_progress(wait->endpoint);
        }
    }
    uint64_t now = wefti_now_ns(), end = now + wait->endpoint->settings->spin_ns;
    bool away = false;
    do {
        for (uint32_t i = 0; i < SPINS_PER_LOOK; i++) {
            if (reached(wait)) {
                return WEFT_OK;
            }
            if (i % SPINS_PER_PROGRESS == 0) {
                wefti_endpoint_progress(wait->endpoint);
            }
            wefti_cpu_relax();
        }
        away = was_away(now, wefti_now_ns());
        weft_status_t status = poll_once(wait); /* which may do work of inline streams */
        if (status != WEFT_OK) {
            return status;
        }
        now = wefti_now_ns();
    } while (!away && now < end);
    return WEFT_IN_PROGRESS;
}

static weft_status_t yield(const waiting_t *wait)
{
    wefti_endpoint_t *endpoint = wait->endpoint;
    uint32_t count = endpoint->may_spin ? YIELDS_ALONE : 4 * endpoint->local_rank_count;
    uint64_t now = wefti_now_ns();
    for (uint32_t i = 0; i < count && i < YIELDS_MAX / crowd(endpoint) && !shares_core(now); i++) {
        wefti_endpoint_progress(endpoint);
        now = timed_yield();
        if (reached(wait)) {
            return WEFT_OK;
        }
        weft_status_t status = poll_once(wait);
        if (status != WEFT_OK) {
            return status;
        }
    }
    return WEFT_IN_PROGRESS;
}

/* The rank in whose memory the signal lies, which is the one to post it; world_size: none. */
static uint32_t owner_of(const wefti_endpoint_t *endpoint, const wefti_signal_t *signal)
{
    /* relaxed: it may grow meanwhile, but the signal lies below */
    size_t bytes = atomic_load_explicit(&endpoint->region_bytes, memory_order_relaxed);
    for (uint32_t r = 0; r < endpoint->world_size; r++) {
        uintptr_t base = (uintptr_t)endpoint->region_of[r];
        if (base != 0 && (uintptr_t)signal - base < bytes) {
            return r;
        }
    }
    return endpoint->world_size;
}

static weft_status_t timed_out(const waiting_t *wait)
{
    const wefti_endpoint_t *endpoint = wait->endpoint;
    char left[64] = "", whose[32] = "", facts[200] = "";
    wefti_wait_t known = {0};
    if (wait->describe != NULL && wait->describe(wait->user, &known) && known.late_count > 0 &&
        known.kind != WEFTI_WAIT_LOCAL) {
        return wefti_waits_timed_out(wait->endpoint, &known);
    }
    uint32_t owner = owner_of(endpoint, wait->signal);
    if (owner != endpoint->world_size && owner != endpoint->rank) {
        snprintf(whose, sizeof whose, "rank %u at ", wefti_endpoint_number(endpoint, owner));
        wefti_endpoint_late_facts(wait->endpoint, owner, facts, sizeof facts);
        wefti_waits_gave_up(wait->endpoint, &owner, 1);
    }
    for (uint32_t r = 0; r < endpoint->world_size; r++) {
        if (wefti_endpoint_has_left(endpoint, r)) {
            snprintf(left, sizeof left, " (rank %u has left the world)",
                     wefti_endpoint_number(endpoint, r));
            break;
        }
    }
    return wefti_error(
        WEFT_ERR_TIMEOUT, "rank %u waited %.3g s for %s%s%s%s; timeout (WEFT_TIMEOUT) exceeded",
        wefti_endpoint_number(endpoint, endpoint->rank),
        (double)endpoint->settings->timeout_ns * 1e-9, whose, wait->what, left, facts);
}

/* Why the wait cannot succeed any more, or WEFT_OK. */
static weft_status_t look_around(const waiting_t *wait, uint64_t now, uint64_t deadline)
{
    /* In this order: a rank that ended the world did so before it left. */
    const wefti_endpoint_t *endpoint = wait->endpoint;
    bool deserted = wefti_endpoint_deserted(wait->endpoint);
    uint32_t owner = owner_of(endpoint, wait->signal);
    bool left = owner != endpoint->world_size && owner != endpoint->rank &&
                wefti_endpoint_has_left(endpoint, owner);
    weft_status_t status = now >= deadline ? wefti_endpoint_check_all(wait->endpoint)
                                           : wefti_endpoint_check(wait->endpoint);
    if (status < 0) {
        return status;
    }
    if (deserted || left || now >= deadline) {
        /* The caller may know better why; whatever the others left for it was there before. */
        status = poll_once(wait);
        if (status != WEFT_OK) {
            return status;
        }
    }
    if (left || (deserted && endpoint->world_size == 2)) {
        return wefti_error(WEFT_ERR_PEER_DIED,
                           "rank %u is waiting for %s, but rank %u has left the world",
                           wefti_endpoint_number(endpoint, endpoint->rank), wait->what,
                           wefti_endpoint_number(endpoint, left ? owner : 1 - endpoint->rank));
    }
    if (deserted) {
        return wefti_error(WEFT_ERR_PEER_DIED,
                           "rank %u is waiting for %s, but all other ranks have left the world",
                           wefti_endpoint_number(endpoint, endpoint->rank), wait->what);
    }
    return now >= deadline ? timed_out(wait) : WEFT_OK;
}

static uint64_t min_ns(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static void make_progress(wefti_endpoint_t *endpoint)
{
    if (endpoint != NULL) {
        wefti_endpoint_progress(endpoint);
    }
}

static void sleep_once(wefti_endpoint_t *endpoint, wefti_signal_t *signal, uint32_t target,
                       uint64_t ns)
{
    if (endpoint != NULL) {
        wefti_endpoint_yield_progress(endpoint);
    }
    wefti_signal_sleep(signal, target, ns);
}

/* Of callers without a function of their own. */
static bool describe(void *user, wefti_wait_t *out)
{
    const waiting_t *wait = user;
    const wefti_endpoint_t *endpoint = wait->endpoint;
    uint32_t owner = owner_of(endpoint, wait->signal);
    bool local = owner == endpoint->world_size || owner == endpoint->rank;
    out->kind = local ? WEFTI_WAIT_LOCAL : WEFTI_WAIT_STEP;
    out->channel = WEFTI_WAIT_WORLD;
    out->late[0] = local ? endpoint->rank : owner;
    out->late_count = 1;
    snprintf(out->text, sizeof out->text, "%s", wait->what);
    return !reached(wait);
}

/* Once every few milliseconds. Nothing is posted of waits that poll and do not describe. */
static weft_status_t post(waiting_t *wait, wefti_waiter_t *waiter, uint64_t now, uint64_t since)
{
    wefti_wait_fn fn = wait->describe != NULL ? wait->describe : describe;
    void *user = wait->describe != NULL ? wait->user : wait;
    uint64_t late_ns = wait->endpoint->settings->late_ns;
    if (wait->describe == NULL && wait->poll != NULL) {
        return WEFT_OK;
    }
    weft_status_t status = wefti_waits_look(waiter, wait->endpoint, fn, user, now);
    wefti_wait_t known = {0};
    if (late_ns != 0 && now - since >= late_ns && fn(user, &known)) {
        wefti_endpoint_report_late(wait->endpoint, &known, now - since);
    }
    return status;
}

static uint64_t deadline_since(const waiting_t *wait, uint64_t since_ns)
{
    uint64_t timeout = wait->endpoint->settings->timeout_ns;
    if (wait->moved_ns != NULL && *wait->moved_ns > since_ns) {
        since_ns = *wait->moved_ns;
    }
    return timeout == 0 || timeout > UINT64_MAX - since_ns ? UINT64_MAX : since_ns + timeout;
}

static weft_status_t sleep_posted(waiting_t *wait, wefti_waiter_t *waiter)
{
    uint64_t slower = crowd(wait->endpoint);
    uint64_t slice_max = min_ns(POLL_SLICE_MAX_NS * slower, WEFTI_SLICE_NS);
    uint64_t slice = wait->poll != NULL ? min_ns(POLL_SLICE_MIN_NS * slower * slower, slice_max)
                                        : WEFTI_SLICE_NS;
    uint64_t next_check = 0, since = wefti_now_ns();
    weft_status_t status = WEFT_OK;
    for (;;) {
        uint64_t now = wefti_now_ns(), deadline = deadline_since(wait, since);
        if (now >= next_check || now >= deadline) {
            status = look_around(wait, now, deadline);
            if (status == WEFT_OK && now - since >= WEFTI_WAITS_AFTER_NS) {
                status = post(wait, waiter, now, since);
            }
            next_check = now + CHECK_EVERY_NS * slower;
        }
        if (status == WEFT_OK) {
            status = poll_once(wait);
        }
        /* Whatever else is wrong: what was waited for has come, so this wait succeeded. */
        if (reached(wait)) {
            return WEFT_OK;
        }
        if (status != WEFT_OK) {
            return status;
        }
        sleep_once(wait->endpoint, wait->signal, wait->target,
                   deadline > now ? min_ns(slice, deadline - now) : 0);
        if (wait->poll != NULL) {
            slice = min_ns(slice * 2, slice_max);
        }
    }
}

static weft_status_t sleep_until_reached(waiting_t *wait)
{
    wefti_waiter_t waiter = {0};
    weft_status_t status = sleep_posted(wait, &waiter);
    wefti_waits_end(&waiter);
    return status;
}

static weft_status_t await(waiting_t *wait)
{
    if (!wefti_endpoint_owned(wait->endpoint)) {
        return wefti_endpoint_check(wait->endpoint);
    }
    if (reached(wait)) {
        return WEFT_OK;
    }
    weft_status_t status = poll_once(wait);
    if (status == WEFT_OK) {
        status = wait->endpoint->may_spin ? spin(wait) : WEFT_IN_PROGRESS;
    }
    if (status == WEFT_IN_PROGRESS) {
        status = yield(wait);
    }
    return status == WEFT_IN_PROGRESS ? sleep_until_reached(wait) : status;
}

weft_status_t wefti_wait_signal_described(wefti_endpoint_t *endpoint, wefti_signal_t *signal,
                                          uint32_t target, const char *what,
                                          weft_status_t (*poll)(void *user),
                                          wefti_wait_fn describe_fn, void *user)
{
    waiting_t wait = {endpoint, signal, target, what, poll, describe_fn, user, NULL};
    return await(&wait);
}

weft_status_t wefti_wait_signal_moving(wefti_endpoint_t *endpoint, wefti_signal_t *signal,
                                       uint32_t target, const char *what,
                                       weft_status_t (*poll)(void *user), wefti_wait_fn describe_fn,
                                       void *user, const uint64_t *moved_ns)
{
    waiting_t wait = {endpoint, signal, target, what, poll, describe_fn, user, moved_ns};
    return await(&wait);
}

weft_status_t wefti_wait_signal(wefti_endpoint_t *endpoint, wefti_signal_t *signal, uint32_t target,
                                const char *what, weft_status_t (*poll)(void *user), void *user)
{
    return wefti_wait_signal_described(endpoint, signal, target, what, poll, NULL, user);
}

/* ---- without looking at peers ---- */

static bool spin_and_yield(wefti_endpoint_t *endpoint, const wefti_signal_t *signal,
                           uint32_t target, uint64_t spin_ns)
{
    uint64_t now = wefti_now_ns(), before = now, until = now + spin_ns;
    while (now < until && !was_away(before, now)) {
        for (uint32_t i = 0; i < SPINS_PER_LOOK; i++) {
            if (wefti_signal_has_reached(signal, target)) {
                return true;
            }
            wefti_cpu_relax();
        }
        make_progress(endpoint);
        before = now;
        now = wefti_now_ns();
    }
    for (uint32_t i = 0; i < YIELDS_ALONE && !shares_core(now); i++) {
        make_progress(endpoint);
        now = timed_yield();
        if (wefti_signal_has_reached(signal, target)) {
            return true;
        }
    }
    return false;
}

bool wefti_signal_await(wefti_endpoint_t *endpoint, wefti_signal_t *signal, uint32_t target,
                        uint64_t spin_ns, uint64_t timeout_ns)
{
    if (wefti_signal_has_reached(signal, target) ||
        spin_and_yield(endpoint, signal, target, spin_ns)) {
        return true;
    }
    uint64_t start_ns = wefti_now_ns();
    do {
        uint64_t gone_ns = wefti_now_ns() - start_ns;
        if (gone_ns >= timeout_ns) {
            return false;
        }
        sleep_once(endpoint, signal, target, min_ns(timeout_ns - gone_ns, SLEEP_MAX_NS));
    } while (!wefti_signal_has_reached(signal, target));
    return true;
}
