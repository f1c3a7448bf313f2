/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of the hosts backend: who is where, links and their faults, the thread that makes
 * progress. */
#ifndef WEFT_TRANSPORT_HOSTS_H
#define WEFT_TRANSPORT_HOSTS_H

#include <pthread.h>

#include "transport/bootstrap/bootstrap.h"
#include "transport/endpoint.h"
#include "transport/links.h"

#define WEFTI_HOSTS_DRIVERS 4u
#define WEFTI_HOSTS_FAR UINT32_MAX
#define WEFTI_HOSTS_WHY_BYTES 240u
#define WEFTI_HOSTS_NONE 0xffu /* no driver */

/* Kinds of floods. */
typedef enum wefti_hosts_flood {
    WEFTI_HOSTS_ABORT = 1,
    WEFTI_HOSTS_FAULT = 2,
    WEFTI_HOSTS_WAITS = 3,
    WEFTI_HOSTS_CAUSE = 4,
    WEFTI_HOSTS_GAVE_UP = 5,
    WEFTI_HOSTS_REFUSAL = 6,
} wefti_hosts_flood_t;

/* A link driver; its owner in the callbacks. */
typedef struct wefti_hosts_driver {
    struct wefti_hosts *hosts;
    const wefti_link_driver_t *ops; /* NULL: only other ranks have it */
    void *state;                    /* NULL: not on this rank */
    char reason[160];               /* why not */
    uint8_t *address;               /* this rank's endpoint address */
    bool *peers;  /* [world_size] ranks that it serves, or would if a better link broke */
    bool used;    /* for some peer */
    bool present; /* some rank has it; the same on all ranks, like the sizes */
    uint32_t address_bytes, key_bytes, offer_bytes;
} wefti_hosts_driver_t;

/* What is rarely needed of a rank. */
typedef struct wefti_hosts_peer {
    wefti_control_t control;         /* in use if its memory is elsewhere */
    char why[WEFTI_HOSTS_WHY_BYTES]; /* how the link to it broke */
    /* When its link closed; 0: not. With a text: without a goodbye, so the rank is dead unless it
     * turns out to have left. Without: after a goodbye, which counts unless the world ends
     * otherwise. */
    uint64_t suspect_ns;
    char suspicion[160];
} wefti_hosts_peer_t;

/* hosts_gather.c */
typedef struct wefti_host_gather wefti_host_gather_t;

typedef struct wefti_hosts {
    wefti_endpoint_t base;
    wefti_overlay_t *overlay;
    wefti_settings_t inner_settings;
    uint32_t *local_of;          /* [world_size] the rank's number on this host, or FAR */
    uint32_t *world_of;          /* [local count] */
    uint32_t *firsts;            /* [host_count] the first rank of each host */
    wefti_host_gather_t *gather; /* all-gathers go by hosts; NULL: not yet, or hosts of one rank */
    wefti_hosts_peer_t *peers;   /* [world_size] */
    wefti_hosts_driver_t drivers[WEFTI_HOSTS_DRIVERS];
    uint32_t driver_count;
    _Atomic uint8_t *via; /* [world_size] index of the driver that serves the peer */
    pthread_mutex_t lock; /* faults, changes of via; why, suspect_ns and suspicion of peers */
    _Atomic uint32_t suspect_any;
    _Atomic uint32_t abort_sent;
    struct { /* of the records of this rank that were sent last; under the lock of waits.c */
        uint32_t generation, moves;
        uint64_t agreed, concluded;
    } waits_sent;

    /* hosts_thread.c */
    pthread_t thread;
    bool thread_runs;
    int epoll_fd, event_fd;
    _Atomic uint32_t stop, waiting; /* waiting: in epoll_wait */
    _Atomic uint32_t polled;        /* some thread made progress since the last look */
    _Atomic uint32_t yields, resting;
} wefti_hosts_t;
_Static_assert(offsetof(wefti_hosts_t, base) == 0, "the base is member 0");

/* On another host than this rank. */
static inline bool wefti_hosts_is_far(const wefti_hosts_t *hosts, uint32_t rank)
{
    return hosts->local_of[rank] == WEFTI_HOSTS_FAR;
}

/* When all ranks share one host: the inner endpoint, which becomes the world's. */
wefti_endpoint_t *wefti_hosts_detach_inner(wefti_endpoint_t *endpoint);

/* True when the list (WEFT_TRANSPORT) has the name, or is "auto". */
bool wefti_hosts_allows(const wefti_settings_t *settings, const char *name);

/* hosts.c: some ranks cannot go on together, and all learn why. Returns the status to return: a
 * recorded reason says more than this rank's own. */
weft_status_t wefti_hosts_end_world(wefti_endpoint_t *endpoint, weft_status_t status);

/*
 * hosts_gather.c: all-gathers of the world. begin: from the next one on, once all ranks of the host
 * have joined, its ranks exchange their parts in shared memory and its first rank exchanges these
 * with those of the other hosts. Functions of the transport.
 */
weft_status_t wefti_hosts_gather_begin(wefti_hosts_t *hosts);
void wefti_hosts_gather_end(wefti_hosts_t *hosts);
weft_status_t wefti_hosts_all_gather(wefti_endpoint_t *endpoint, const void *send, size_t bytes,
                                     void *recv);
weft_status_t wefti_hosts_any(wefti_endpoint_t *endpoint, bool own, bool *out_any);
bool wefti_hosts_control_sent(wefti_endpoint_t *endpoint, uint32_t number);

/* hosts_group.c: the key of wefti_overlay_params_t. */
weft_status_t wefti_hosts_key(const wefti_settings_t *settings, uint8_t key[WEFTI_HOST_KEY_BYTES]);
/* Fills host_of, host_names, local_of, world_of; the rendezvous address of the ranks
 * of this host (64 bytes) and their number. Collective. */
weft_status_t wefti_hosts_group(wefti_hosts_t *hosts, char *out_address, uint32_t *out_local_count);

/* hosts_drivers.c. Collective. */
weft_status_t wefti_hosts_links_open(wefti_hosts_t *hosts);
/* All ranks' regions go from..to now. Collective. */
weft_status_t wefti_hosts_links_grow(wefti_hosts_t *hosts, size_t from, size_t to);
void wefti_hosts_links_close(wefti_hosts_t *hosts, bool forked);
/* The first driver from number first on that may serve the rank. */
uint8_t wefti_hosts_next_driver(const wefti_hosts_t *hosts, uint32_t rank, uint32_t first);

/* hosts_links.c */
weft_status_t wefti_hosts_put(wefti_endpoint_t *endpoint, uint32_t peer, size_t offset,
                              const void *data, size_t bytes, uint32_t lane,
                              wefti_signal_t *in_use);
weft_status_t wefti_hosts_signal(wefti_endpoint_t *endpoint, uint32_t peer, size_t offset,
                                 uint32_t value, uint32_t lane);
bool wefti_hosts_flush(wefti_endpoint_t *endpoint);
void wefti_hosts_describe(wefti_endpoint_t *endpoint, uint32_t peer, char *name, size_t name_bytes,
                          char *reason, size_t reason_bytes);
void wefti_hosts_link_stats(wefti_endpoint_t *endpoint, uint32_t peer, wefti_link_stats_t *out);
/* One progress call to every driver. */
void wefti_hosts_turn(wefti_hosts_t *hosts);

/* hosts_faults.c: the error of a put whose link is broken. */
weft_status_t wefti_hosts_broken_error(wefti_hosts_t *hosts, uint32_t peer);
/* Callbacks of drivers and overlay. */
void wefti_hosts_broken(void *owner, uint32_t peer, bool died, const char *text);
void wefti_hosts_arriving(void *owner, uint32_t peer);
void wefti_hosts_leaving(void *owner, uint32_t peer);
void wefti_hosts_received(void *owner, uint32_t origin, uint32_t kind, const void *data,
                          size_t bytes);
void wefti_hosts_left(void *owner, uint32_t rank);
void wefti_hosts_died(void *owner, uint32_t rank, const char *how);
void wefti_hosts_aborted(wefti_endpoint_t *endpoint, weft_status_t status, const char *text);
void wefti_hosts_waits_posted(wefti_endpoint_t *endpoint);
void wefti_hosts_error_noted(wefti_endpoint_t *endpoint);
void wefti_hosts_refusal_changed(wefti_endpoint_t *endpoint);
void wefti_hosts_gave_up(wefti_endpoint_t *endpoint);
/* WEFT_ERR_PEER_DIED when a suspect has not turned out to have left. */
weft_status_t wefti_hosts_check_suspects(wefti_hosts_t *hosts);

/* hosts_thread.c */
weft_status_t wefti_hosts_thread_start(wefti_hosts_t *hosts);
void wefti_hosts_thread_stop(wefti_hosts_t *hosts, bool forked);
void wefti_hosts_progress(wefti_endpoint_t *endpoint);
void wefti_hosts_yield_progress(wefti_endpoint_t *endpoint);
void wefti_hosts_wake(void *owner);
void wefti_hosts_bind_progress(wefti_endpoint_t *endpoint, const uint32_t *cpus,
                               uint32_t cpu_count);
/* Sleeps for a moment; the thread makes progress. */
void wefti_hosts_back_off(wefti_hosts_t *hosts);

#endif
