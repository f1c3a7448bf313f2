/* SPDX-License-Identifier: Apache-2.0 */
/* Algorithms that emit nonsense, from a seed: the same for all ranks, and at every call but one
 * kind. */
#ifndef WEFT_TESTS_OPS_SUPPORT_EMITTER_H
#define WEFT_TESTS_OPS_SUPPORT_EMITTER_H

#include <stdbool.h>

#include <weft/algo.h>

#define EMITTER_MAX_RANKS 6u
#define EMITTER_EXCESSES 6u

typedef enum emitter_kind {
    EMITTER_RANDOM = 0, /* steps out of the blue */
    EMITTER_MUTANT = 1, /* a mesh with a few arguments changed, steps left out or doubled */
    EMITTER_IMPURE = 2, /* another mutant at every call */
    EMITTER_EXCESS = 3, /* too much of everything; the seed is which */
} emitter_kind_t;

typedef struct emitter {
    emitter_kind_t kind;
    uint64_t seed;
    _Atomic uint64_t calls;
    bool by_placement; /* asks for it */
    uint32_t host_of[EMITTER_MAX_RANKS], rack_of[EMITTER_MAX_RANKS];
} emitter_t;

/* Also chooses operator, ranks, root and hosts, to which out_params points. */
void emitter_init(emitter_t *emitter, emitter_kind_t kind, uint64_t seed,
                  weft_algorithm_t *out_algorithm, weft_algo_params_t *out_params);
/* Algorithms carry no data of their own: which emitter this process's algorithms belong to. */
void emitter_use(emitter_t *emitter);

#endif
