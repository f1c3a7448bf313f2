/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether this process can still do something by itself. The threads of the library register; of all
 * others the kernel tells whether they sleep until another thread of the process wakes them.
 */
#ifndef WEFT_RUNTIME_BASE_THREADS_H
#define WEFT_RUNTIME_BASE_THREADS_H

#include <stdbool.h>

#include "runtime/base/sync.h"

/* A thread of the library; usually on its stack. */
typedef struct wefti_own_thread {
    struct wefti_own_thread *next;
    int32_t id;
    const wefti_signal_t *signal; /* that it idles on; NULL: it never begins anything itself */
    _Atomic uint32_t target;      /* of signal, while idle */
    _Atomic uint32_t turns;       /* grows whenever it begins or ends to be idle; odd: it is */
} wefti_own_thread_t;

int32_t wefti_thread_id(void); /* of the caller, as the kernel numbers it */

void wefti_own_thread_begin(wefti_own_thread_t *thread, const wefti_signal_t *signal);
void wefti_own_thread_end(wefti_own_thread_t *thread);

/* Around a sleep until signal reaches target. */
static inline void wefti_own_thread_idle(wefti_own_thread_t *thread, uint32_t target)
{
    atomic_store_explicit(&thread->target, target, memory_order_relaxed);
    /* release: target comes before. Only the thread itself writes it. */
    atomic_store_explicit(&thread->turns,
                          atomic_load_explicit(&thread->turns, memory_order_relaxed) + 1,
                          memory_order_release);
}
static inline void wefti_own_thread_busy(wefti_own_thread_t *thread)
{
    atomic_store_explicit(&thread->turns,
                          atomic_load_explicit(&thread->turns, memory_order_relaxed) + 1,
                          memory_order_relaxed);
}

/*
 * True when at one moment during the call every thread of the process was one for which waits(user,
 * id) is true, or idle, or asleep in a lock, a condition variable or pthread_join without a time
 * limit. False where the kernel does not report that. Costs a few system calls per thread.
 */
bool wefti_threads_rest(bool (*waits)(void *user, int32_t id), void *user);

#endif
