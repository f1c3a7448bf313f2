/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels of weft::TreeFold, over flat ranges. The fold of a step writes to the memory that the
 * collective reduces: over the gradients, or to the region of bf16. */
#include "fusion/lower/lower.h"

#include "runtime/base/error.h"

/* The buffers of one piece: what kernels write, what is reduced, partial sum 0. */
typedef struct ranges {
    uint32_t gradients, reduced, first;
} ranges_t;

static weft_status_t add_ranges(wefti_lowering_t *l, uint32_t index, ranges_t *out)
{
    const wefti_bucket_t *bucket = &l->buckets->list[index];
    const wefti_place_t *place = &l->regions->places[index];
    uint64_t bytes = wefti_lower_range_bytes(l, index);
    char *local = wefti_arena_printf(&l->arena, "bucket %u own gradients", index);
    char *wire = wefti_arena_printf(&l->arena, "bucket %u on the wire", index);
    char *first = wefti_arena_printf(&l->arena, "bucket %u, a micro-batch", index);
    WEFT_RETURN_IF_NO_MEMORY(local && wire && first);
    WEFT_RETURN_IF_ERROR(wefti_lower_grad_range(l, local, index, false, &out->gradients));
    out->reduced = out->gradients;
    if (wefti_lower_grad_dtype(l, bucket) == WEFT_DTYPE_BF16) {
        WEFT_RETURN_IF_ERROR(wefti_lower_grad_range(l, wire, index, true, &out->reduced));
    }
    return l->folds->level_count == 0
               ? WEFT_OK
               : wefti_lower_add_range(l, first, WEFT_DTYPE_F32,
                                       l->regions->first_begin + place->begin_bytes, bytes,
                                       &out->first);
}

/* One piece of a fold. */
static weft_status_t add_fold(wefti_lowering_t *l, const wefti_fold_t *fold, uint32_t index,
                              const ranges_t *ranges, wefti_kernels_t *kernels)
{
    const wefti_node_t *node = &l->graph->nodes[fold->node];
    const uint32_t *levels = l->regions->places[index].levels;
    uint32_t groups = node->input_count / node->output_count;
    const char *what = fold->level != WEFTI_NONE   ? "partial sum"
                       : l->folds->level_count > 0 ? "sum"
                                                   : "rounding";
    wefti_plan_kernel_t *kernel = &l->plan->kernels[l->plan->kernel_count];
    char *name = wefti_arena_printf(&l->arena, "bucket %u, %s", index, what);
    weft_status_t status =
        name == NULL ? WEFT_ERR_NO_MEMORY : wefti_lower_describe_kernel(l, node, name, kernel);
    if (status < 0) {
        return status;
    }
    kernel->place = wefti_lower_place_of(l, fold->node);
    kernel->input_count = groups;
    kernel->output_count = 1;
    kernel->inputs[0] = ranges->gradients;
    for (uint32_t g = 1; g < groups; g++) {
        uint32_t sum = node->inputs[(size_t)g * node->output_count];
        uint32_t level = sum == WEFTI_NONE ? WEFTI_NONE : l->folds->level_of[sum];
        if (level == WEFTI_NONE) {
            return wefti_error(WEFT_ERR_UNSUPPORTED,
                               "node '%s' (%s): input %u must be a partial sum", node->name,
                               node->def->name, g * node->output_count);
        }
        kernel->inputs[g] = level == 0 ? ranges->first : levels[level];
    }
    kernel->outputs[0] = fold->level == WEFTI_NONE ? ranges->reduced
                         : fold->level == 0        ? ranges->first
                                                   : levels[fold->level];
    kernels->of_item[l->order->item_of[fold->node] + l->buckets->list[index].part] =
        l->plan->kernel_count++;
    return WEFT_OK;
}

weft_status_t wefti_lower_folds(wefti_lowering_t *l, wefti_kernels_t *kernels)
{
    for (uint32_t b = 0; b < l->buckets->count; b++) {
        ranges_t ranges = {0};
        if (!l->folds->has[b]) {
            continue;
        }
        WEFT_RETURN_IF_ERROR(add_ranges(l, b, &ranges));
        for (uint32_t i = 0; i < l->folds->count; i++) {
            const wefti_fold_t *fold = &l->folds->list[i];
            if (fold->bucket == b - l->buckets->list[b].part) {
                WEFT_RETURN_IF_ERROR(add_fold(l, fold, b, &ranges, kernels));
            }
        }
    }
    return WEFT_OK;
}
