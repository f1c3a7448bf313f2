/* SPDX-License-Identifier: Apache-2.0 */
/* A step as nodes of ranks, for other simulators: computing, sending, receiving. */
#ifndef WEFT_FUSION_SIMULATE_TRACE_H
#define WEFT_FUSION_SIMULATE_TRACE_H

#include "fusion/simulate/simulate.h"

typedef enum sim_node_kind { SIM_CALC, SIM_SEND, SIM_RECV } sim_node_kind_t;

typedef struct sim_node {
    sim_node_kind_t kind;
    const char *name;
    uint64_t ns;             /* CALC */
    uint64_t bytes;          /* SEND, RECV: at least 1 */
    uint32_t peer, tag;      /* SEND, RECV */
    const uint32_t *depends; /* numbers of earlier nodes of the rank */
    uint32_t depend_count;
} sim_node_t;

/* number: of the node, from 1, on its rank. */
typedef weft_status_t (*sim_node_fn)(void *user, uint32_t rank, uint32_t number,
                                     const sim_node_t *node);
/* The program "step", rank by rank. A read of another rank's memory becomes a message that its owner
 * sends once it has posted the data; a post that is awaited without data, one of a byte. Memory is
 * that of a rank's nodes, and for each pair of ranks of which one waits for the other four bytes, and
 * eight more while the pairs are found. */
typedef struct sim_tracer sim_tracer_t;
/* Also after an error the caller destroys *out_tracer. */
weft_status_t wefti_sim_tracer_create(const sim_world_t *world, const weft_plan_t *plan,
                                      const weft_registry_t *registry, sim_tracer_t **out_tracer);
void wefti_sim_tracer_destroy(sim_tracer_t *tracer); /* accepts NULL */
weft_status_t wefti_sim_trace_rank(sim_tracer_t *tracer, uint32_t rank, sim_node_fn add,
                                   void *user);

#endif
