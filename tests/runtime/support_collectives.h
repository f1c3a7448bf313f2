/* SPDX-License-Identifier: Apache-2.0 */
/* One call of a collective on every rank, compared with an oracle in plain C. */
#ifndef WEFT_TESTS_SUPPORT_COLLECTIVES_H
#define WEFT_TESTS_SUPPORT_COLLECTIVES_H

#include "support_ranks.h"

#define SUPPORT_MAX_RANKS 9u
#define SUPPORT_ROOM ((size_t)2 << 20) /* bytes of each buffer: mind blocks times ranks */

/* A rank's memory for calls. */
typedef struct one_rank {
    rank_world_t *world;
    bool registered;
    uint64_t seed;        /* of the next call's data; every third call has any bits at all */
    uint8_t *send, *recv; /* as calls get them */
    uint8_t *sources[SUPPORT_MAX_RANKS]; /* what every rank sends, in private memory */
    uint8_t *expected;
} one_rank_t;

/* registered: send and recv are memory that peers reach. */
void support_one_init(one_rank_t *one, rank_world_t *world, bool registered, uint64_t seed);
void support_one_deinit(one_rank_t *one);

uint64_t support_mix(uint64_t x);
/* One call on all ranks; in place where the operator can. Blocks of V forms have 0 to count
 * elements. A result that differs ends the process. */
void support_call(one_rank_t *one, weft_collective_t op, uint64_t count, weft_dtype_t dtype,
                  weft_reduction_t reduction, uint32_t root, bool in_place);
/* Registers copies of the built-in algorithms that executors take: groups run copies as schedules.
 * Fixtures: the contexts of ranks that begin in between have them. */
int support_add_schedules(void **state);
int support_remove_schedules(void **state);
/* The copy of algorithm ("mesh as schedule"), or the same one. */
const weft_algorithm_t *support_as_schedule(const weft_algorithm_t *algorithm);
/* A ring of sends and receives. */
void support_exchange(one_rank_t *one, uint64_t count, weft_dtype_t dtype);

#endif
