/* SPDX-License-Identifier: Apache-2.0 */
/* Parameters of gradients: accumulate, global_micro_batches, wire and clip_norm. */
#include <string.h>

#include "fusion/fusion.h"
#include "runtime/base/error.h"

/* A float, by which updates divide, counts so far. */
#define MAX_LEAVES (1u << 24)

/*
 * A rank adds its K micro-batches up first. That is a subtree of the in-order tree over all V
 * leaves only if K is a power of two, or if there is only one rank.
 */
static weft_status_t read_leaves(const weft_compile_params_t *p, wefti_gradient_params_t *out)
{
    uint32_t leaves = p->global_micro_batches, ranks = p->world_size;
    out->accumulate = leaves / ranks;
    if (leaves % ranks != 0 || (ranks > 1 && (out->accumulate & (out->accumulate - 1)) != 0)) {
        return wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, "global_micro_batches",
                                 "must be world_size times a power of two, so that each rank sums "
                                 "one subtree: %u, world_size %u",
                                 leaves, ranks);
    }
    out->leaves = leaves;
    return WEFT_OK;
}

weft_status_t wefti_read_gradient_params(const weft_compile_params_t *p,
                                         wefti_gradient_params_t *out)
{
    *out = (wefti_gradient_params_t){.accumulate = p->accumulate,
                                     .wire = strcmp(p->wire, "bf16") == 0 ? WEFT_DTYPE_BF16
                                                                          : WEFT_DTYPE_F32,
                                     .clip_norm = p->clip_norm};
    if (p->global_micro_batches > 0) {
        WEFT_RETURN_IF_ERROR(read_leaves(p, out));
    }
    if (out->accumulate > MAX_LEAVES / p->world_size) {
        return wefti_error_field(
            WEFT_ERR_INVALID_ARGUMENT,
            p->global_micro_batches > 0 ? "global_micro_batches" : "accumulate",
            "too many micro-batches: %u on each of %u ranks, limit %u together", out->accumulate,
            p->world_size, MAX_LEAVES);
    }
    /* Otherwise the collective averages. */
    if (out->accumulate > 1 || out->leaves > 0 || out->wire != WEFT_DTYPE_F32) {
        uint32_t together = p->tensor_parallel > 1 ? p->tensor_parallel
                            : p->pipeline > 1      ? p->pipeline
                                                   : 1; /* ranks of one batch */
        out->divisor = out->accumulate * (p->world_size / together);
    }
    return WEFT_OK;
}
