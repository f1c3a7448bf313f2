/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is on its way: puts and signals are copied, kept for a while, and delivered by one thread in
 * the order of their times. Everything that the rules of a link allow may happen, and nothing else:
 * puts land in pieces and overtake each other, signals overtake those of other lanes, but a signal
 * is never due before anything that was sent on its lane before. For tests: simulated hosts
 * (network.c) and rules around other transports (hook.c).
 */
#ifndef WEFT_TESTS_FAULTS_DELAYS_H
#define WEFT_TESTS_FAULTS_DELAYS_H

#include "transport/transport.h"

typedef struct wefti_delays wefti_delays_t;

typedef struct wefti_parcel {
    uint32_t from, to, lane; /* ranks */
    bool is_signal;
    uint32_t value;       /* of a signal */
    uintptr_t place;      /* whatever deliver makes of it: an address, an offset */
    size_t bytes;         /* of data; pieces have their own place and bytes */
    wefti_signal_t *lent; /* not NULL: data is read when it is delivered, and not before */
} wefti_parcel_t;

/* How long a parcel takes. */
typedef struct wefti_delay {
    uint64_t fixed_ns;
    uint64_t random_ns;        /* at most, by the seed and how many were sent on its lane before */
    uint64_t rate_bytes_per_s; /* of the link, which carries one after the other; 0: no limit */
    bool uneven;               /* some lanes are slower than others */
} wefti_delay_t;

/* By the queue's thread, with no lock held. */
typedef void (*wefti_deliver_fn)(void *user, const wefti_parcel_t *parcel, const void *data);

weft_status_t wefti_delays_create(uint32_t world_size, uint64_t seed, wefti_deliver_fn deliver,
                                  void *user, wefti_delays_t **out_delays);
void wefti_delays_destroy(wefti_delays_t *delays); /* accepts NULL; what is on its way is lost */
/* data is copied, unless it is lent. By any thread; returns at once. */
weft_status_t wefti_delays_send(wefti_delays_t *delays, const wefti_parcel_t *parcel,
                                const void *data, const wefti_delay_t *delay);
/* Returns when everything that from has sent was delivered or lost. */
void wefti_delays_flush(wefti_delays_t *delays, uint32_t from);
/*
 * Loses what is on its way between two ranks, both ways; returns when nothing of it is being
 * delivered any more. then (may be NULL) runs before anything is sent after that; it must not call
 * the queue.
 */
void wefti_delays_lose(wefti_delays_t *delays, uint32_t a, uint32_t b, void (*then)(void *user),
                       void *user);
/* Loses everything: the memory it goes to will be gone. Accepts NULL. */
void wefti_delays_clear(wefti_delays_t *delays);
/* What from sent to the other rank and got from it. */
void wefti_delays_stats(wefti_delays_t *delays, uint32_t from, uint32_t to,
                        wefti_link_stats_t *out);

#endif
