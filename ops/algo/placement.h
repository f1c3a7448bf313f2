/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which ranks share a host, in whatever order they were placed, and who of a host does what.
 *
 * The members of a host stand in a row: by the network card they are next to, then by rank. Work
 * on block b falls to member b mod size, so that where hosts are alike, equal members of all hosts
 * talk to each other, each over its own card ("rails").
 */
#ifndef WEFT_OPS_ALGO_PLACEMENT_H
#define WEFT_OPS_ALGO_PLACEMENT_H

#include <stdbool.h>

#include <weft/algo.h>

#define WEFTI_MAX_PLACED_RANKS 4096u
#define WEFTI_LEVELS 3u /* of a placement, from the inside */

typedef struct wefti_placement {
    uint32_t ranks, hosts, own; /* own: the host of params->rank */
    uint32_t *host;             /* [rank] */
    uint32_t *member;           /* [rank]: its place in the row of its host */
    uint32_t *first;            /* [host + 1] of its members in rank */
    uint32_t *rank;             /* the rows, one behind the other */
    uint32_t *run_end;          /* [rank]: the first one behind it on another host */
    uint32_t largest, smallest; /* ranks on a host */
} wefti_placement_t;

/* How many hosts the parameters speak of; 1 also where they say nothing. */
uint32_t wefti_placement_hosts(const weft_algo_params_t *params);
/* The host of a rank, without any memory; hosts are numbered by the parameters. */
uint32_t wefti_placement_host_of(const weft_algo_params_t *params, uint32_t rank);
/* Ranks of each host, hosts of each rack, racks. Returns NULL, or the reason why hosts or racks
 * differ. Without memory it returns NULL, and sizes are 1: building fails then. */
const char *wefti_placement_levels(const weft_algo_params_t *params, uint32_t sizes[WEFTI_LEVELS]);
/* False: no memory. */
bool wefti_placement_init(wefti_placement_t *placement, const weft_algo_params_t *params);
void wefti_placement_deinit(wefti_placement_t *placement);

static inline uint32_t wefti_host_size(const wefti_placement_t *p, uint32_t host)
{
    return p->first[host + 1] - p->first[host];
}

/* Member i of a host. */
static inline uint32_t wefti_member(const wefti_placement_t *p, uint32_t host, uint32_t i)
{
    return p->rank[p->first[host] + i];
}

/* Who of a host works on a block. */
static inline uint32_t wefti_owner(const wefti_placement_t *p, uint32_t host, uint32_t block)
{
    return wefti_member(p, host, block % wefti_host_size(p, host));
}

#endif
