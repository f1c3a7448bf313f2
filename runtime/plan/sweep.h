/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One sweep over a rank's shard of a bucket: block by block, small enough to stay in cache, all
 * ranks' gradients are reduced, the rank's own parameters and states are updated, and the new
 * parameters are written to all ranks. Every element goes through what an all-reduce and an update
 * of the whole would do to it, so the bits are theirs; memory is passed over once.
 *
 * It runs when all ranks' gradients are ready and no rank reads parameters any more, and all ranks
 * wait for each other before parameters are read again: the records around it ensure both.
 */
#ifndef WEFT_RUNTIME_SWEEP_H
#define WEFT_RUNTIME_SWEEP_H

#include <weft/registry.h>

#include "ops/reduce/reduce.h"

#define WEFTI_SWEEP_BLOCK_BYTES 8192u /* of gradients; four to six times that is in use */

/* A kernel that is ready to run. */
typedef struct wefti_bound_kernel {
    const weft_kernel_t *kernel;
    void *state;
    size_t scratch_bytes;
} wefti_bound_kernel_t;

/* What one input or output of the update is in the first block. */
typedef struct wefti_sweep_operand {
    uint8_t *begin;      /* NULL: absent */
    uint32_t elem_bytes; /* what it goes on by from element to element; 0: stays where it is */
} wefti_sweep_operand_t;

typedef struct wefti_sweep {
    uint64_t elem_count, block_elems; /* of the shard, of all blocks but the last */
    weft_reduce_t reduce;             /* of a block: of all ranks, into reduced */
    const uint8_t **gradients;        /* [ranks]: the shard, as each rank has it */
    void *reduced;                    /* one block; where the update finds its gradients */
    uint8_t **copies;                 /* [ranks - 1]: other ranks' parameters */
    const uint8_t *params;            /* own: where the update leaves them */
    uint32_t param_bytes;             /* of one */
    wefti_bound_kernel_t block, last;
    wefti_sweep_operand_t *operands; /* inputs, then outputs */
    uint32_t input_count, output_count;
    void *scratch;
    void *memory;         /* of reduced and scratch */
    const void **sources; /* [ranks], of the block at hand */
    const void **inputs;  /* likewise */
    void **outputs;
} wefti_sweep_t;

weft_status_t wefti_sweep_run(const wefti_sweep_t *sweep, weft_isa_t isa);

#endif
