/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Progress between hosts. Waiting callers make it themselves: it is fastest when the thread that
 * needs the data receives it. When they sleep or compute, one background thread does.
 *
 *   caller   progress: marks "polled", turns the drivers
 *            yield_progress: takes the mark away, wakes the thread, then sleeps on its own signal
 *   thread   marked: rests 1 ms at most (a timed sleep), and looks again
 *            not marked: sleeps until a socket has something, then turns drivers and overlay
 *
 * So an answer that comes while its caller is looking needs no switch between threads, and the
 * thread costs such a caller a wake-up per millisecond.
 */
#include "transport/hosts.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "runtime/base/error.h"
#include "runtime/base/threads.h"
#include "runtime/machine/machine.h"

#define REST_NS 1000000ull
#define PAUSE_NS 100000
/* Timers of drivers and suspects are checked this often at least. */
#define TICK_MS 100
/* A driver without a descriptor is polled this often. */
#define POLL_MS 1
#define EVENTS 8

void wefti_hosts_progress(wefti_endpoint_t *endpoint)
{
    wefti_hosts_t *hosts = (wefti_hosts_t *)endpoint;
    if (!wefti_endpoint_owned(endpoint)) {
        return;
    }
    /* Relaxed: a hint; the line is written only when it says something new. */
    if (atomic_load_explicit(&hosts->polled, memory_order_relaxed) == 0) {
        atomic_store_explicit(&hosts->polled, 1, memory_order_relaxed);
    }
    wefti_hosts_turn(hosts);
}

void wefti_hosts_yield_progress(wefti_endpoint_t *endpoint)
{
    wefti_hosts_t *hosts = (wefti_hosts_t *)endpoint;
    if (!wefti_endpoint_owned(endpoint) || !hosts->thread_runs) {
        return;
    }
    atomic_store_explicit(&hosts->polled, 0, memory_order_relaxed);
    /* Both sequentially consistent, as the thread's: either it sees that yields has moved and does
     * not rest, or this sees that it rests. */
    atomic_fetch_add_explicit(&hosts->yields, 1, memory_order_seq_cst);
    if (atomic_load_explicit(&hosts->resting, memory_order_seq_cst) != 0) {
        wefti_futex_wake_all(&hosts->yields);
    }
}

void wefti_hosts_back_off(wefti_hosts_t *hosts)
{
    wefti_hosts_yield_progress(&hosts->base);
    nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
}

void wefti_hosts_wake(void *owner)
{
    wefti_hosts_t *hosts = ((wefti_hosts_driver_t *)owner)->hosts;
    if (atomic_load_explicit(&hosts->waiting, memory_order_seq_cst) != 0) {
        (void)eventfd_write(hosts->event_fd, 1); /* full: it is awake anyway */
    }
}

/* Whether all drivers may be slept on now; out_poll: one of them must be asked instead. */
static bool arm_drivers(const wefti_hosts_t *hosts, bool *out_poll)
{
    bool armed = true;
    *out_poll = false;
    for (uint32_t d = 0; d < hosts->driver_count; d++) {
        const wefti_hosts_driver_t *driver = &hosts->drivers[d];
        if (!driver->used) {
            continue;
        }
        *out_poll = *out_poll || driver->ops->poll_fd(driver->state) < 0;
        armed = driver->ops->arm(driver->state) && armed;
    }
    return armed;
}

/* Callers poll the drivers; this thread the overlay. */
static void rest(wefti_hosts_t *hosts, uint32_t yields)
{
    atomic_store_explicit(&hosts->resting, 1, memory_order_seq_cst);
    wefti_futex_wait(&hosts->yields, yields, REST_NS);
    atomic_store_explicit(&hosts->resting, 0, memory_order_relaxed);
    wefti_overlay_progress(hosts->overlay);
}

static void sleep_until_ready(wefti_hosts_t *hosts)
{
    struct epoll_event events[EVENTS];
    bool poll = false;
    atomic_store_explicit(&hosts->waiting, 1, memory_order_seq_cst);
    if (arm_drivers(hosts, &poll)) {
        int count = epoll_wait(hosts->epoll_fd, events, EVENTS, poll ? POLL_MS : TICK_MS);
        for (int i = 0; i < count; i++) {
            uint64_t wakes;
            if (events[i].data.fd == hosts->event_fd) {
                (void)eventfd_read(hosts->event_fd, &wakes);
            }
        }
    }
    atomic_store_explicit(&hosts->waiting, 0, memory_order_relaxed);
}

static void *make_progress(void *user)
{
    wefti_hosts_t *hosts = user;
    pthread_setname_np(pthread_self(), "weft-links");
    wefti_thread_be_prompt();
    wefti_own_thread_t self;
    wefti_own_thread_begin(&self, NULL);
    while (atomic_load_explicit(&hosts->stop, memory_order_acquire) == 0) {
        uint32_t yields = atomic_load_explicit(&hosts->yields, memory_order_seq_cst);
        if (atomic_exchange_explicit(&hosts->polled, 0, memory_order_seq_cst) != 0) {
            rest(hosts, yields);
            continue;
        }
        sleep_until_ready(hosts);
        wefti_overlay_progress(hosts->overlay);
        if (atomic_load_explicit(&hosts->polled, memory_order_relaxed) == 0) {
            wefti_hosts_turn(hosts);
        }
        if (atomic_load_explicit(&hosts->suspect_any, memory_order_relaxed) != 0) {
            /* Ends the world when one of them is dead, whether a caller waits or not. */
            wefti_endpoint_check(&hosts->base);
        }
    }
    wefti_own_thread_end(&self);
    return NULL;
}

static weft_status_t watch(wefti_hosts_t *hosts, int fd)
{
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
    if (fd >= 0 && epoll_ctl(hosts->epoll_fd, EPOLL_CTL_ADD, fd, &event) != 0) {
        return wefti_error_errno(WEFT_ERR_SYSTEM, errno, "epoll_ctl failed");
    }
    return WEFT_OK;
}

weft_status_t wefti_hosts_thread_start(wefti_hosts_t *hosts)
{
    hosts->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    hosts->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (hosts->epoll_fd < 0 || hosts->event_fd < 0) {
        return wefti_error_errno(WEFT_ERR_SYSTEM, errno,
                                 "cannot create descriptors for the link progress thread");
    }
    WEFT_RETURN_IF_ERROR(watch(hosts, hosts->event_fd));
    WEFT_RETURN_IF_ERROR(watch(hosts, wefti_overlay_poll_fd(hosts->overlay)));
    for (uint32_t d = 0; d < hosts->driver_count; d++) {
        if (hosts->drivers[d].used) {
            WEFT_RETURN_IF_ERROR(
                watch(hosts, hosts->drivers[d].ops->poll_fd(hosts->drivers[d].state)));
        }
    }
    /* Signals go to the caller's threads. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error_number = pthread_create(&hosts->thread, NULL, make_progress, hosts);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error_number != 0) {
        return wefti_error_errno(WEFT_ERR_SYSTEM, error_number,
                                 "cannot create the link progress thread");
    }
    hosts->thread_runs = true;
    return WEFT_OK;
}

void wefti_hosts_bind_progress(wefti_endpoint_t *endpoint, const uint32_t *cpus, uint32_t cpu_count)
{
    wefti_hosts_t *hosts = (wefti_hosts_t *)endpoint;
    cpu_set_t set;
    CPU_ZERO(&set);
    for (uint32_t i = 0; i < cpu_count; i++) {
        if (cpus[i] < CPU_SETSIZE) {
            CPU_SET(cpus[i], &set);
        }
    }
    if (hosts->thread_runs && CPU_COUNT(&set) > 0) {
        (void)pthread_setaffinity_np(hosts->thread, sizeof set, &set); /* it runs in any case */
    }
}

void wefti_hosts_thread_stop(wefti_hosts_t *hosts, bool forked)
{
    if (hosts->thread_runs && !forked) {
        atomic_store_explicit(&hosts->stop, 1, memory_order_release);
        (void)eventfd_write(hosts->event_fd, 1);
        atomic_store_explicit(&hosts->polled, 0, memory_order_relaxed);
        atomic_fetch_add_explicit(&hosts->yields, 1, memory_order_seq_cst);
        wefti_futex_wake_all(&hosts->yields);
        pthread_join(hosts->thread, NULL);
    }
    hosts->thread_runs = false;
    if (hosts->epoll_fd >= 0) {
        close(hosts->epoll_fd);
    }
    if (hosts->event_fd >= 0) {
        close(hosts->event_fd);
    }
    hosts->epoll_fd = hosts->event_fd = -1;
}
