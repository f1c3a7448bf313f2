/* SPDX-License-Identifier: Apache-2.0 */
/* Every algorithm over roots, orders, in place and not, of one group size: what tests and `weft
 * verify` prove. */
#ifndef WEFT_OPS_ALGO_SWEEP_H
#define WEFT_OPS_ALGO_SWEEP_H

#include "ops/algo/simulate.h"
#include "ops/algo/table.h"

/* Over which links schedules are proved, besides shared memory. */
typedef enum wefti_sweep_links {
    WEFTI_SWEEP_DIRECT = 0, /* none */
    WEFTI_SWEEP_MIXED = 1,  /* put links between hosts of three ranks, some buffers hidden */
    WEFTI_SWEEP_ALL = 2,    /* that, put links everywhere, and all buffers hidden */
} wefti_sweep_links_t;

typedef struct wefti_sweep {
    const weft_allocator_t *allocator;
    weft_collective_t op;  /* 0: all */
    const char *algorithm; /* NULL: all */
    const uint32_t *root;  /* of those with one; NULL: the first two and the last */
    uint64_t cell_limit;   /* cases with more blocks than this: by symmetry or not; 0: none */
    uint64_t step_limit;   /* of cases by symmetry: those with more are left out; 0: none are */
    wefti_sweep_links_t links;
    uint64_t proved, by_symmetry, left_out, steps, accesses;
    const char *placed;                   /* how the case's ranks lie on hosts, for messages */
    const char *last_op, *last_algorithm; /* of the case at hand, for messages */
} wefti_sweep_t;

/* Proves one case over the sweep's links. */
weft_status_t wefti_sweep_case(wefti_sweep_t *sweep, const weft_algorithm_t *algorithm,
                               const weft_algo_params_t *params);
/* Proves all cases of a group size; the first that fails ends it, its case before the message. */
weft_status_t wefti_sweep_size(wefti_sweep_t *sweep, uint32_t group_size);

#endif
