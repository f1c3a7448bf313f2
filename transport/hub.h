/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where ranks that are threads of one process meet. One world at a time lives on a hub: when its
 * last rank has left, the hub is as new. What peers may still touch after a rank has left (control
 * blocks, regions) belongs to the hub and lives until then.
 */
#ifndef WEFT_TRANSPORT_HUB_H
#define WEFT_TRANSPORT_HUB_H

#include <pthread.h>

#include "transport/endpoint.h"

/* How the ranks of a hub reach each other: the function table of their endpoints, and its state. */
typedef struct wefti_hub_fabric {
    const wefti_transport_ops_t *ops;
    /* The world has ended, its memory is about to be unmapped. Called with the hub's lock held. */
    void (*ended)(struct wefti_hub_fabric *fabric);
    void (*destroy)(struct wefti_hub_fabric *fabric);
} wefti_hub_fabric_t;
/* In place of direct access to memory, for all worlds on this hub; before any rank joins. The hub
 * destroys the fabric, on failure too. */
weft_status_t wefti_hub_set_fabric(weft_hub_t *hub, wefti_hub_fabric_t *fabric);

/* What belongs to one rank of the current world. */
typedef struct wefti_hub_seat {
    _Alignas(128) wefti_mapped_control_t control;
    wefti_range_t range;        /* its region */
    wefti_endpoint_t *endpoint; /* NULL: not here, or gone */
    bool joined;                /* stays true when it leaves */
} wefti_hub_seat_t;

struct weft_hub {
    uint32_t world_size;
    weft_hub_t *first;    /* the program's hub: this one, or the one that this one succeeds */
    weft_hub_t *next;     /* of the first hub's successors, under the first one's lock */
    uint32_t generation;  /* of a successor */
    pthread_mutex_t lock; /* guards everything below except control blocks and regions */
    pthread_cond_t changed;
    wefti_hub_seat_t *seats; /* [world_size] */
    uint32_t joined_count;   /* ranks of the current world, present or gone */
    uint32_t present_count;  /* of these, not yet gone */
    bool complete;           /* everybody has joined */
    weft_status_t failure;   /* why the world did not come about */
    char failure_text[WEFTI_ERROR_TEXT_BYTES];
    wefti_hub_fabric_t *fabric; /* not changed once a rank has joined */
};

typedef struct wefti_hub_endpoint {
    wefti_endpoint_t base;
    weft_hub_t *hub; /* NULL until this rank has joined */
} wefti_hub_endpoint_t;
_Static_assert(offsetof(wefti_hub_endpoint_t, base) == 0, "the base is member 0");

/* Of a rank that is a thread; else NULL. */
weft_hub_t *wefti_endpoint_hub(wefti_endpoint_t *endpoint);
/* Where the survivors of a hub's ranks meet: the same for all of them. It ends with its world, or
 * with the hub of the program. */
weft_status_t wefti_hub_successor(weft_hub_t *hub, uint32_t generation, uint32_t world_size,
                                  weft_hub_t **out_hub);

static inline weft_hub_t *wefti_hub_of(wefti_endpoint_t *endpoint)
{
    return ((wefti_hub_endpoint_t *)endpoint)->hub;
}

#endif
