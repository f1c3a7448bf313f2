/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What every transport must do, once: cases that run over whatever fabric a world is made of, as
 * far as its links can.
 *
 *   conformance_world.c  collective calls, regions, barriers
 *   conformance_put.c    puts, signals, lanes, loans, flushes
 *   conformance_end.c    worlds that end: aborts, disagreements, ranks that leave, die or fork
 *   test_conformance.c   the fabrics
 *
 * A case is given its world by an endpoint. It says what it needs by capabilities of the links and
 * traits of the fabric; where something is missing it is skipped, which is said.
 */
#ifndef WEFT_TESTS_TRANSPORT_CONFORMANCE_H
#define WEFT_TESTS_TRANSPORT_CONFORMANCE_H

#include "support.h"

#define NEEDS_DIRECT (1u << 0)    /* of every rank to every other one */
#define NEEDS_PUT (1u << 1)       /* puts and signals */
#define NEEDS_PROCESSES (1u << 2) /* ranks that can die and fork alone */
#define NEEDS_PEERS (1u << 3)     /* more than one rank */
#define NEEDS_THREE (1u << 4)     /* more than two */

typedef struct conform {
    uint64_t seed;
    bool processes;
    uint32_t which; /* of the cases that end worlds: the one to run */
} conform_t;

typedef int (*conform_fn)(wefti_endpoint_t *endpoint, const conform_t *conform);

typedef struct conform_case {
    const char *name;
    conform_fn fn;
    uint32_t needs;
} conform_case_t;

/* The world is whole afterwards: they run one after the other in one world. Ended by fn NULL. */
extern const conform_case_t conform_world_cases[], conform_put_cases[];
/* The world is over afterwards. */
extern const conform_case_t conform_end_cases[];
/* The rank that a case kills, 1 + its number in a world of size; 0: none. */
uint32_t conform_killed(const conform_case_t *end_case, uint32_t size);

/* What of needs endpoint cannot offer, in words; NULL: nothing. The same on all ranks. */
const char *conform_missing(const wefti_endpoint_t *endpoint, const conform_t *conform,
                            uint32_t needs);

static inline wefti_signal_t *conform_signal(wefti_endpoint_t *endpoint, size_t offset)
{
    return (wefti_signal_t *)(void *)(endpoint->region_of[endpoint->rank] + offset);
}

static inline uint8_t conform_byte(uint32_t from, uint32_t to, uint64_t round, size_t i)
{
    return (uint8_t)(from * 31 + to * 17 + round * 101 + i * 7 + (i >> 8));
}

#endif
