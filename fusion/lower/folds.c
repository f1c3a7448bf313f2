/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels and memory of weft::TreeFold (fusion/passes/accumulate.c, wire.c). A fold of the
 * gradients of a bucket is one kernel over the flat range of the bucket; of a split gradient, one
 * per piece.
 *
 *   | gradients | bf16 | partial sum 0 | bucket 0: partial sums 1, 2 .. | bucket 1: .. |
 *
 * Partial sum 0 is laid out like gradients, because kernels write the gradients of a micro-batch
 * there. The fold of a step writes to the memory that the collective reduces: over the gradients,
 * or to the region of bf16.
 */
#include "fusion/lower/lower.h"

#include "runtime/base/error.h"

typedef struct fold {
    uint32_t node, bucket; /* the first piece */
    uint32_t level;        /* of the partial sum; level_count: what the collective reduces */
} fold_t;

struct wefti_folds {
    fold_t *list; /* in the order of the compute stream */
    uint32_t count, level_count;
    uint32_t *level_of; /* by value: of a partial sum, or WEFTI_NONE */
    uint32_t *first_of; /* by value, of a gradient: its partial sum 0, or WEFTI_NONE */
};

uint64_t wefti_lower_grad_bytes(const wefti_lowering_t *l, uint64_t bytes)
{
    return l->params->gradients.wire == WEFT_DTYPE_BF16 ? bytes / 2 : bytes;
}

weft_dtype_t wefti_lower_grad_dtype(const wefti_lowering_t *l, const wefti_bucket_t *bucket)
{
    return l->graph->values[bucket->members[0].sent].type.dtype;
}

bool wefti_lower_is_fold(const wefti_lowering_t *l, uint32_t node)
{
    return node != WEFTI_NONE && l->fold_def != NULL && l->graph->nodes[node].def == l->fold_def;
}

uint32_t wefti_lower_unfolded(const wefti_lowering_t *l, uint32_t value)
{
    const wefti_value_t *at = &l->graph->values[value];
    return wefti_lower_is_fold(l, at->producer)
               ? l->graph->nodes[at->producer].inputs[at->producer_output]
               : value;
}

uint32_t wefti_lower_fold_parts(const wefti_lowering_t *l, uint32_t node)
{
    const weft_attr_t *parts = wefti_node_attr(&l->graph->nodes[node], "parts");
    return parts != NULL && parts->type == WEFT_ATTR_TYPE_INT && parts->i > 0 &&
                   parts->i < UINT32_MAX
               ? (uint32_t)parts->i
               : 1;
}

/* Notes the partial sums that a fold makes, and partial sum 0, which kernels make. */
static void note_sums(wefti_lowering_t *l, uint32_t id, uint32_t level)
{
    struct wefti_folds *folds = l->folds;
    const wefti_node_t *node = &l->graph->nodes[id];
    for (uint32_t k = 0; level != WEFTI_NONE && k < node->output_count; k++) {
        folds->level_of[node->outputs[k]] = level;
        folds->first_of[node->inputs[k]] =
            level == 0 ? node->outputs[k] : folds->first_of[node->inputs[k]];
    }
    for (uint32_t k = node->output_count; k < node->input_count; k++) {
        uint32_t value = node->inputs[k], gradient = node->inputs[k % node->output_count];
        const wefti_value_t *sum = value == WEFTI_NONE ? NULL : &l->graph->values[value];
        if (sum != NULL && (sum->flags & WEFTI_VALUE_PERSISTENT) != 0 &&
            folds->level_of[value] == WEFTI_NONE) {
            folds->level_of[value] = 0;
            folds->first_of[gradient] = value;
        }
        uint32_t count = value == WEFTI_NONE ? 0 : folds->level_of[value] + 1; /* NONE: 0 */
        folds->level_count = count > folds->level_count ? count : folds->level_count;
    }
}

/* The bucket whose gradients the node folds; members are its outputs. */
static weft_status_t find_bucket(const wefti_lowering_t *l, const uint32_t *bucket_of_gradient,
                                 uint32_t id, uint32_t *out_bucket)
{
    const wefti_node_t *node = &l->graph->nodes[id];
    uint32_t b = node->inputs[0] == WEFTI_NONE ? WEFTI_NONE : bucket_of_gradient[node->inputs[0]];
    const wefti_bucket_t *bucket = b == WEFTI_NONE ? NULL : &l->buckets[b];
    bool same = bucket != NULL && bucket->member_count == node->output_count &&
                bucket->parts == wefti_lower_fold_parts(l, id) && node->input_count > 0;
    for (uint32_t i = 0; same && i < bucket->member_count; i++) {
        same = bucket->members[i].value == node->inputs[i];
    }
    *out_bucket = b;
    return same ? WEFT_OK
                : wefti_error(WEFT_ERR_UNSUPPORTED,
                              "node '%s' (%s): does not fold the gradients of one collective",
                              node->name, node->def->name);
}

weft_status_t wefti_lower_find_folds(wefti_lowering_t *l)
{
    weft_status_t status = WEFT_OK;
    const wefti_graph_t *graph = l->graph;
    struct wefti_folds *folds = wefti_arena_alloc(&l->arena, sizeof(*folds));
    uint32_t *bucket_of_gradient = wefti_lower_map(l, graph->value_count);
    if (folds == NULL || bucket_of_gradient == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    l->folds = folds;
    folds->list = wefti_arena_array(&l->arena, l->order_count, sizeof(*folds->list));
    folds->level_of = wefti_lower_map(l, graph->value_count);
    folds->first_of = wefti_lower_map(l, graph->value_count);
    if (folds->list == NULL || folds->level_of == NULL || folds->first_of == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t b = 0; b < l->bucket_count; b++) {
        const wefti_bucket_t *bucket = &l->buckets[b];
        for (uint32_t i = 0; bucket->gradients && bucket->part == 0 && i < bucket->member_count;
             i++) {
            bucket_of_gradient[bucket->members[i].value] = b;
        }
    }
    for (uint32_t i = 0; i < l->order_count; i++) {
        uint32_t id = l->order[i];
        const wefti_node_t *node = &graph->nodes[id];
        if (!wefti_lower_is_fold(l, id)) {
            continue;
        }
        fold_t *fold = &folds->list[folds->count++];
        fold->node = id;
        fold->level = WEFTI_NONE;
        WEFT_TRY(status, find_bucket(l, bucket_of_gradient, id, &fold->bucket), fail);
        if (wefti_graph_outside_step(graph, id)) {
            fold->level = node->input_count / node->output_count - 1;
        }
        note_sums(l, id, fold->level);
        for (uint32_t part = 0; part < l->buckets[fold->bucket].parts; part++) {
            l->buckets[fold->bucket + part].folded = true;
        }
    }
fail:
    return status;
}

/* A region like that of gradients. */
static weft_status_t add_first_level(wefti_lowering_t *l)
{
    weft_status_t status = WEFT_OK;
    l->first_begin = l->arena_cursor;
    for (uint32_t b = 0; b < l->bucket_count; b++) {
        const wefti_bucket_t *bucket = &l->buckets[b];
        for (uint32_t i = 0; bucket->gradients && bucket->part == 0 && i < bucket->member_count;
             i++) {
            uint32_t gradient = bucket->members[i].value, sum = l->folds->first_of[gradient];
            const wefti_plan_buffer_t *own = &l->plan->buffers[l->buffer_of[gradient]];
            if (sum == WEFTI_NONE) {
                return wefti_error(WEFT_ERR_UNSUPPORTED, "gradient '%s': no partial sum",
                                   l->graph->values[gradient].name);
            }
            WEFT_TRY(status,
                     wefti_lower_add_buffer(l, sum, WEFTI_BUFFER_GRAD,
                                            l->first_begin + own->offset_bytes - l->local_begin),
                     fail);
            l->kept_bytes += own->size_bytes;
        }
    }
    l->arena_cursor = l->first_begin + l->grad_region_bytes;
fail:
    return status;
}

/* Partial sums of one bucket above the first; they are there all the time. */
static weft_status_t add_levels(wefti_lowering_t *l, uint32_t index)
{
    weft_status_t status = WEFT_OK;
    wefti_bucket_t *bucket = &l->buckets[index];
    uint64_t bytes = bucket->end_bytes - bucket->begin_bytes;
    bucket->levels = wefti_lower_map(l, l->folds->level_count);
    if (bucket->levels == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t t = 1; t < l->folds->level_count; t++) {
        char *name = wefti_arena_printf(&l->arena, "bucket %u, sum of %u micro-batches", index,
                                        (uint32_t)1 << t);
        if (name == NULL) {
            return WEFT_ERR_NO_MEMORY;
        }
        WEFT_TRY(status,
                 wefti_lower_add_range(l, name, WEFT_DTYPE_F32, l->arena_cursor, bytes,
                                       &bucket->levels[t]),
                 fail);
        l->plan->buffers[bucket->levels[t]].kind = WEFTI_BUFFER_GRAD;
        l->kept_bytes += bytes;
        WEFT_TRY(status, wefti_lower_advance(l, bytes), fail);
    }
fail:
    return status;
}

weft_status_t wefti_lower_levels(wefti_lowering_t *l)
{
    weft_status_t status = WEFT_OK;
    if (l->folds->level_count > 0) {
        WEFT_TRY(status, add_first_level(l), fail);
    }
    for (uint32_t b = 0; b < l->bucket_count; b++) {
        if (l->buckets[b].folded) {
            WEFT_TRY(status, add_levels(l, b), fail);
        }
    }
    for (uint32_t i = 0; i < l->folds->count; i++) { /* in the range of their bucket */
        const fold_t *fold = &l->folds->list[i];
        const wefti_node_t *node = &l->graph->nodes[fold->node];
        for (uint32_t k = 0; fold->level != WEFTI_NONE && fold->level > 0 && k < node->output_count;
             k++) {
            l->buffer_of[node->outputs[k]] = l->buckets[fold->bucket].levels[fold->level];
        }
    }
fail:
    return status;
}

/* The buffers of one piece: what kernels write, what is reduced, partial sum 0. */
static weft_status_t add_ranges(wefti_lowering_t *l, uint32_t index, uint32_t *out_gradients,
                                uint32_t *out_reduced)
{
    weft_status_t status;
    wefti_bucket_t *bucket = &l->buckets[index];
    uint64_t bytes = bucket->end_bytes - bucket->begin_bytes;
    char *local = wefti_arena_printf(&l->arena, "bucket %u own gradients", index);
    char *wire = wefti_arena_printf(&l->arena, "bucket %u on the wire", index);
    char *first = wefti_arena_printf(&l->arena, "bucket %u, a micro-batch", index);
    if (local == NULL || wire == NULL || first == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    WEFT_TRY(status, wefti_lower_grad_range(l, local, index, false, out_gradients), fail);
    *out_reduced = *out_gradients;
    if (wefti_lower_grad_dtype(l, bucket) == WEFT_DTYPE_BF16) {
        WEFT_TRY(status, wefti_lower_grad_range(l, wire, index, true, out_reduced), fail);
    }
    if (l->folds->level_count > 0) {
        status =
            wefti_lower_add_range(l, first, WEFT_DTYPE_F32, l->first_begin + bucket->begin_bytes,
                                  bytes, &bucket->levels[0]);
    }
fail:
    return status;
}

/* One piece of a fold. */
static weft_status_t add_fold(wefti_lowering_t *l, const fold_t *fold, uint32_t index,
                              uint32_t gradients, uint32_t reduced)
{
    const wefti_bucket_t *bucket = &l->buckets[index];
    const wefti_node_t *node = &l->graph->nodes[fold->node];
    uint32_t levels = l->folds->level_count, groups = node->input_count / node->output_count;
    const char *what = fold->level != WEFTI_NONE ? "partial sum" : levels > 0 ? "sum" : "rounding";
    wefti_plan_kernel_t *kernel = &l->plan->kernels[l->plan->kernel_count];
    char *name = wefti_arena_printf(&l->arena, "bucket %u, %s", index, what);
    weft_status_t status =
        name == NULL ? WEFT_ERR_NO_MEMORY : wefti_lower_describe_kernel(l, node, name, kernel);
    if (status < 0) {
        return status;
    }
    kernel->input_count = groups;
    kernel->output_count = 1;
    kernel->inputs[0] = gradients;
    for (uint32_t g = 1; g < groups; g++) {
        uint32_t sum = node->inputs[(size_t)g * node->output_count];
        uint32_t level = sum == WEFTI_NONE ? WEFTI_NONE : l->folds->level_of[sum];
        if (level == WEFTI_NONE) {
            return wefti_error(WEFT_ERR_UNSUPPORTED,
                               "node '%s' (%s): input %u must be a partial sum", node->name,
                               node->def->name, g * node->output_count);
        }
        kernel->inputs[g] = bucket->levels[level];
    }
    kernel->outputs[0] = fold->level != WEFTI_NONE ? bucket->levels[fold->level] : reduced;
    l->items[l->item_of[fold->node] + bucket->part].kernel = l->plan->kernel_count++;
    return WEFT_OK;
}

weft_status_t wefti_lower_folds(wefti_lowering_t *l)
{
    weft_status_t status = WEFT_OK;
    uint32_t gradients = 0, reduced = 0;
    for (uint32_t b = 0; b < l->bucket_count; b++) {
        if (!l->buckets[b].folded) {
            continue;
        }
        WEFT_TRY(status, add_ranges(l, b, &gradients, &reduced), fail);
        for (uint32_t i = 0; i < l->folds->count; i++) {
            const fold_t *fold = &l->folds->list[i];
            if (fold->bucket == b - l->buckets[b].part) {
                WEFT_TRY(status, add_fold(l, fold, b, gradients, reduced), fail);
            }
        }
    }
fail:
    return status;
}
