/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A thread for work that nobody waits for, such as answers to weft ps. It is started when it is first
 * needed, and never makes progress for its rank.
 */
#ifndef WEFT_TRANSPORT_HELPER_H
#define WEFT_TRANSPORT_HELPER_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

typedef struct wefti_helper {
    void (*work)(void *user);
    void *user;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    bool runs, wanted; /* under lock */
    _Atomic bool stop;
} wefti_helper_t;

void wefti_helper_init(wefti_helper_t *helper, void (*work)(void *user), void *user);
/* Has work called once more, after this; if there is no thread for it, it is not. Any thread. */
void wefti_helper_wake(wefti_helper_t *helper);
/* For work that takes long: whether it must return soon. */
static inline bool wefti_helper_stops(const wefti_helper_t *helper)
{
    return atomic_load_explicit(&helper->stop, memory_order_relaxed);
}
/* No work from here on. forked: in a child, which has no such thread. */
void wefti_helper_deinit(wefti_helper_t *helper, bool forked);

#endif
