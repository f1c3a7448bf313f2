/* SPDX-License-Identifier: Apache-2.0 */
/*
 * With WEFT_DUMP, one thread per process dumps what the rank's own threads cannot: on SIGUSR1, and
 * when a group or the world has failed while this rank is busy elsewhere, in the program or a
 * kernel. The handler of the signal wakes it; a handler may still run while the thread ends. A
 * program that has set a handler of its own, or ignores the signal, keeps it; a forked child has
 * neither the thread nor the handler.
 */
#include "runtime/flight/flight.h"

#include <errno.h>
#include <signal.h>
#include <string.h>

#include "runtime/base/error.h"

#define LOOK_NS 200000000ull

static struct {
    pthread_mutex_t making; /* held while the thread is started and stopped */
    pthread_mutex_t lock;   /* guards list */
    wefti_flight_t *list;
    pthread_t thread;
    _Atomic uint32_t wake; /* 1 after SIGUSR1 and stop: a futex word */
    _Atomic bool stop;
    bool handles; /* SIGUSR1 */
} watcher = {.making = PTHREAD_MUTEX_INITIALIZER, .lock = PTHREAD_MUTEX_INITIALIZER};

/* Async-signal-safe. */
static void post(void)
{
    atomic_store_explicit(&watcher.wake, 1, memory_order_release);
    wefti_futex_wake_all(&watcher.wake);
}

static void on_signal(int signal_number)
{
    (void)signal_number;
    int error_number = errno;
    post();
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
        reason = wefti_flight_take_fault(flight, i) ? "a group has failed" : reason;
    }
    pthread_mutex_unlock(&flight->lock);
    return reason;
}

/* Until somebody posts (true), or it is time to look. Posts until now count as one. */
static bool wait_a_while(void)
{
    wefti_futex_wait(&watcher.wake, 0, LOOK_NS);
    return atomic_exchange_explicit(&watcher.wake, 0, memory_order_acquire) != 0;
}

static void look_and_dump(wefti_flight_t *flight)
{
    const char *reason = look(flight);
    if (reason != NULL) {
        wefti_flight_dump_due(flight, reason, WEFTI_FLIGHT_QUIET_NS);
    }
}

static void *watch(void *unused)
{
    (void)unused;
    while (!atomic_load_explicit(&watcher.stop, memory_order_acquire)) {
        bool asked = wait_a_while();
        pthread_mutex_lock(&watcher.lock);
        if (asked && !atomic_load_explicit(&watcher.stop, memory_order_acquire)) {
            dump_all();
        }
        for (wefti_flight_t *flight = watcher.list; flight != NULL; flight = flight->next) {
            if (wefti_endpoint_owned(flight->endpoint)) {
                look_and_dump(flight);
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

/* In a forked child: the thread, and what it watches, are the parent's. */
static void forget(void)
{
    pthread_mutex_init(&watcher.making, NULL);
    pthread_mutex_init(&watcher.lock, NULL);
    watcher.list = NULL;
    give_signal_back();
}

static void init_once(void)
{
    pthread_atfork(NULL, NULL, forget);
}

static weft_status_t start(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, init_once);
    atomic_store_explicit(&watcher.wake, 0, memory_order_relaxed); /* 1 by an earlier stop */
    atomic_store_explicit(&watcher.stop, false, memory_order_relaxed);
    int error_number = start_thread();
    if (error_number != 0) {
        return wefti_error_errno(WEFT_ERR_SYSTEM, error_number, "WEFT_DUMP: pthread_create failed");
    }
    take_signal();
    return WEFT_OK;
}

static void stop(void)
{
    give_signal_back();
    atomic_store_explicit(&watcher.stop, true, memory_order_release);
    post();
    pthread_join(watcher.thread, NULL);
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
    look_and_dump(flight); /* at what has happened since the thread looked */
    pthread_mutex_unlock(&watcher.making);
}
