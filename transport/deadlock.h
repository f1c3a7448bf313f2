/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that wait for each other in a circle, so that none of them can go on. */
#ifndef WEFT_TRANSPORT_DEADLOCK_H
#define WEFT_TRANSPORT_DEADLOCK_H

#include "transport/transport.h"

typedef enum wefti_deadlock {
    WEFTI_DEADLOCK_NONE,
    WEFTI_DEADLOCK_MAYBE,  /* a circle; not all of its ranks have agreed that it is one */
    WEFTI_DEADLOCK_GROUPS, /* all ranks have agreed, and wait in calls of groups */
    WEFTI_DEADLOCK,        /* all ranks have agreed; some wait in calls of the world */
} wefti_deadlock_t;

/* waits.c, under its lock. */
/* A consistent copy, checked; returns its count, 0 while it is being written. */
uint32_t wefti_waits_load(const wefti_waits_block_t *waits, wefti_waits_view_t *out);
void wefti_waits_store(wefti_waits_block_t *waits, uint32_t generation, const wefti_wait_t *list,
                       uint32_t count);
/* When the rank of the block gave up waiting, for whom. Any thread of it. */
void wefti_waits_store_vain(wefti_waits_block_t *waits, uint64_t at_ns, const uint32_t *late,
                            uint32_t count);
/* Posts what this rank waits in now, if that has changed, and copies it. False: something of the
 * rank moves. */
bool wefti_waits_refresh(wefti_endpoint_t *endpoint, wefti_waits_view_t *out);
/* Every thread of the rank waits, idles, or sleeps until one that waits wakes it. */
bool wefti_waits_rest(wefti_endpoint_t *endpoint);

/* deadlock.c, under the lock of waits.c: posts what this rank waits in, looks for a circle, agrees.
 * endpoint->circle has its error: the calls of the circle and, if its ranks went different ways after
 * an error, that error. */
wefti_deadlock_t wefti_deadlock_look(wefti_endpoint_t *endpoint);

#endif
