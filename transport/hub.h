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

/*
 * Ranks on different simulated hosts: they do not reach each other's memory, only put and signal,
 * through a network that takes its time (network.h).
 */
typedef struct wefti_hub_links {
    const uint32_t *host_of; /* [world_size], copied */
    uint64_t seed;           /* of delays */
    uint64_t max_delay_ns;   /* of each piece of a put and each signal; 0: none, all in order */
} wefti_hub_links_t;
/* Before anybody joins; for all worlds on this hub. */
weft_status_t wefti_hub_hide(weft_hub_t *hub, const wefti_hub_links_t *links);

typedef struct wefti_network wefti_network_t;

struct weft_hub {
    uint32_t world_size;
    pthread_mutex_t lock; /* guards everything below except the contents of controls and ranges */
    pthread_cond_t changed;
    wefti_control_t *controls; /* [world_size] */
    wefti_range_t *ranges;     /* [world_size] */
    bool *joined;              /* [world_size] */
    uint32_t joined_count;     /* ranks of the current world, present or gone */
    uint32_t present_count;    /* of these, not yet gone */
    bool complete;             /* everybody has joined */
    weft_status_t failure;     /* why the world did not come about */
    char failure_text[WEFTI_ABORT_TEXT_BYTES];
    /* All-gather: ranks put their parts into buffer; when all have, everyone copies it out. */
    uint8_t *buffer;
    size_t part_bytes;
    uint32_t arrived, departed;
    bool delivering;
    wefti_endpoint_t **endpoints; /* [world_size] who is there, to hear of broken links */
    wefti_network_t *network;     /* NULL: one host; not changed once somebody has joined */
};

#endif
