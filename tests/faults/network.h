/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Simulated hosts in one process: ranks of different hosts do not map each other's memory. What they
 * put and signal is copied, delayed, and delivered by one thread (delays.h), in an order that a real
 * network might choose.
 */
#ifndef WEFT_TESTS_FAULTS_NETWORK_H
#define WEFT_TESTS_FAULTS_NETWORK_H

#include "transport/hub.h"

typedef struct wefti_hub_links {
    const uint32_t *host_of; /* [world_size], copied */
    uint64_t seed;           /* of delays */
    uint64_t max_delay_ns;   /* of each piece of a put and each signal; 0: none, all in order */
} wefti_hub_links_t;
/* Before any rank joins; for all worlds on this hub. */
weft_status_t wefti_hub_hide(weft_hub_t *hub, const wefti_hub_links_t *links);

/*
 * The link to peer breaks now, as if its driver had reported it. WEFT_ERR_UNSUPPORTED where links do
 * not break (mapped memory), or no other driver could replace it.
 */
weft_status_t wefti_fault_break_link(wefti_endpoint_t *endpoint, uint32_t peer, const char *text);

#endif
