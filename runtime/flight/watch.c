/* SPDX-License-Identifier: Apache-2.0 */
/*
 * With WEFT_DUMP, one thread per process dumps what the rank's own threads cannot: on SIGUSR1, and
 * when a group or the world has failed while this rank is busy elsewhere, in the program or a
 * kernel. The handler of the signal writes to an eventfd; a program that has set a handler of its
 * own, or ignores the signal, keeps it.
 */
#include "runtime/flight/flight.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "runtime/base/error.h"

#define LOOK_MS 200

static struct {
    pthread_mutex_t making; /* held while the thread is started and stopped */
    pthread_mutex_t lock;   /* guards list */
    wefti_flight_t *list;
    pthread_t thread;
    _Atomic int event; /* -1: no thread */
    _Atomic pid_t pid; /* of the process that has the thread: forked children have not */
    _Atomic bool stop;
    bool handles; /* SIGUSR1 */
} watcher = {.making = PTHREAD_MUTEX_INITIALIZER, .lock = PTHREAD_MUTEX_INITIALIZER, .event = -1};

/* Async-signal-safe. */
static void on_signal(int signal_number)
{
    (void)signal_number;
    int error_number = errno;
    const uint64_t one = 1;
    int event = atomic_load_explicit(&watcher.event, memory_order_relaxed);
    bool own = getpid() == atomic_load_explicit(&watcher.pid, memory_order_relaxed);
    if (own && event >= 0 && write(event, &one, sizeof one) < 0) {
        /* full: it is awake already */
    }
    errno = error_number;
}

static void dump_all(void)
{
    for (wefti_flight_t *flight = watcher.list; flight != NULL; flight = flight->next) {
        if (wefti_endpoint_owned(flight->endpoint)) {
            wefti_flight_dump_due(flight, "SIGUSR1", 0);
        }
    }
}

/* Whether some rank has recorded an error that this recorder was not dumped for. */
static const char *look(wefti_flight_t *flight)
{
    const wefti_control_t *own = flight->endpoint->control[flight->endpoint->rank];
    const char *reason = NULL;
    if (flight->aborted || own == NULL) {
        return NULL;
    }
    if (atomic_load_explicit(&own->abort.state, memory_order_relaxed) == 2) {
        flight->aborted = true;
        return "the world has ended";
    }
    pthread_mutex_lock(&flight->lock);
    for (uint32_t i = 0; i < WEFTI_FLIGHT_GROUPS; i++) {
        const _Atomic uint32_t *state = flight->faults[i];
        if (state != NULL && atomic_load_explicit(state, memory_order_relaxed) == 2) {
            flight->faults[i] = NULL;
            reason = "a group has failed";
        }
    }
    pthread_mutex_unlock(&flight->lock);
    return reason;
}

static void *watch(void *unused)
{
    (void)unused;
    struct pollfd event = {.fd = watcher.event, .events = POLLIN};
    while (!atomic_load_explicit(&watcher.stop, memory_order_acquire)) {
        uint64_t count = 0;
        poll(&event, 1, LOOK_MS);
        bool asked = read(event.fd, &count, sizeof count) > 0;
        pthread_mutex_lock(&watcher.lock);
        if (asked && !atomic_load_explicit(&watcher.stop, memory_order_acquire)) {
            dump_all();
        }
        for (wefti_flight_t *flight = watcher.list; flight != NULL; flight = flight->next) {
            const char *reason = wefti_endpoint_owned(flight->endpoint) ? look(flight) : NULL;
            if (reason != NULL) {
                wefti_flight_dump_due(flight, reason, WEFTI_FLIGHT_QUIET_NS);
            }
        }
        pthread_mutex_unlock(&watcher.lock);
    }
    return NULL;
}

static void take_signal(void)
{
    struct sigaction before, handler = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigemptyset(&handler.sa_mask);
    if (sigaction(SIGUSR1, NULL, &before) == 0 && (before.sa_flags & SA_SIGINFO) == 0 &&
        before.sa_handler == SIG_DFL) {
        watcher.handles = sigaction(SIGUSR1, &handler, NULL) == 0;
    }
}

static void give_signal_back(void)
{
    struct sigaction now, none = {.sa_handler = SIG_DFL};
    if (watcher.handles && sigaction(SIGUSR1, NULL, &now) == 0 && now.sa_handler == on_signal) {
        sigaction(SIGUSR1, &none, NULL);
    }
    watcher.handles = false;
}

/* All signals go to the program's threads. */
static int start_thread(void)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error_number = pthread_create(&watcher.thread, NULL, watch, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error_number;
}

static weft_status_t start(void)
{
    int event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (event < 0) {
        return wefti_error_errno(WEFT_ERR_SYSTEM, errno, "WEFT_DUMP: eventfd failed");
    }
    atomic_store_explicit(&watcher.event, event, memory_order_relaxed);
    atomic_store_explicit(&watcher.stop, false, memory_order_relaxed);
    int error_number = start_thread();
    if (error_number != 0) {
        atomic_store_explicit(&watcher.event, -1, memory_order_relaxed);
        close(event);
        return wefti_error_errno(WEFT_ERR_SYSTEM, error_number, "WEFT_DUMP: pthread_create failed");
    }
    atomic_store_explicit(&watcher.pid, getpid(), memory_order_relaxed);
    take_signal();
    return WEFT_OK;
}

static void stop(void)
{
    const uint64_t one = 1;
    int event = atomic_load_explicit(&watcher.event, memory_order_relaxed);
    give_signal_back();
    /* a handler that still runs finds no descriptor */
    atomic_store_explicit(&watcher.event, -1, memory_order_relaxed);
    atomic_store_explicit(&watcher.stop, true, memory_order_release);
    if (write(event, &one, sizeof one) < 0) {
        /* then it wakes by itself */
    }
    pthread_join(watcher.thread, NULL);
    close(event);
}

/* In a forked child: what it has inherited is the parent's. */
static void forget(void)
{
    int event = atomic_load_explicit(&watcher.event, memory_order_relaxed);
    if (event >= 0 && atomic_load_explicit(&watcher.pid, memory_order_relaxed) != getpid()) {
        close(event);
        atomic_store_explicit(&watcher.event, -1, memory_order_relaxed);
        watcher.list = NULL;
    }
}

/* Returns whether the list was empty before. */
static bool add(wefti_flight_t *flight)
{
    pthread_mutex_lock(&watcher.lock);
    bool first = watcher.list == NULL;
    flight->next = watcher.list;
    watcher.list = flight;
    pthread_mutex_unlock(&watcher.lock);
    return first;
}

/* Returns whether the list is empty now. */
static bool drop(const wefti_flight_t *flight)
{
    pthread_mutex_lock(&watcher.lock);
    wefti_flight_t **at = &watcher.list;
    while (*at != flight) {
        at = &(*at)->next;
    }
    *at = flight->next;
    bool last = watcher.list == NULL;
    pthread_mutex_unlock(&watcher.lock);
    return last;
}

weft_status_t wefti_flight_watch(wefti_flight_t *flight)
{
    weft_status_t status = WEFT_OK;
    pthread_mutex_lock(&watcher.making);
    forget();
    if (add(flight)) {
        status = start();
    }
    if (status < 0) {
        drop(flight);
    }
    pthread_mutex_unlock(&watcher.making);
    return status;
}

void wefti_flight_unwatch(wefti_flight_t *flight)
{
    pthread_mutex_lock(&watcher.making);
    if (drop(flight)) {
        stop();
    }
    pthread_mutex_unlock(&watcher.making);
}
