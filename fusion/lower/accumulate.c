/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What happens to gradients between the kernels that make them and their collective:
 *
 *   micro-step i   gradients, partial sums 0 .. t-1 -> partial sum t     t: trailing ones of i > 0
 *   last one       gradients, all partial sums there are -> the range that is reduced
 *
 * as a binary counter is counted up: the sum is that of the in-order tree of the micro-batches,
 * split at the largest power of two. Partial sum t stands for 2^t micro-batches; each bucket has
 * its own. Partial sum 0 is the gradients of one micro-batch: its kernels write there at once. With
 * another type on the wire the last fold rounds to it, once, and the range that is reduced is apart
 * from the gradients; there is such a fold without micro-steps, too.
 */
#include "fusion/lower/lower.h"

#include <string.h>

#include "runtime/base/error.h"

uint32_t wefti_lower_level_count(const wefti_lowering_t *l)
{
    uint32_t count = 0;
    while (count < 31 && (uint32_t)1 << count < l->params->gradients.accumulate) {
        count++;
    }
    return count;
}

uint64_t wefti_lower_grad_bytes(const wefti_lowering_t *l, uint64_t bytes)
{
    return l->params->gradients.wire == WEFT_DTYPE_BF16 ? bytes / 2 : bytes;
}

weft_dtype_t wefti_lower_grad_dtype(const wefti_lowering_t *l, const wefti_bucket_t *bucket)
{
    return l->params->gradients.wire == WEFT_DTYPE_BF16
               ? WEFT_DTYPE_BF16
               : l->graph->values[bucket->members[0].param].type.dtype;
}

weft_status_t wefti_lower_check_wire(const wefti_lowering_t *l, const wefti_readers_t *readers,
                                     const wefti_bucket_t *bucket)
{
    if (!bucket->gradients || l->params->gradients.wire != WEFT_DTYPE_BF16) {
        return WEFT_OK;
    }
    for (uint32_t i = 0; i < bucket->member_count; i++) {
        const wefti_member_t *member = &bucket->members[i];
        uint32_t value = member->reduced;
        if (value == WEFTI_NONE) {
            continue;
        }
        for (uint32_t r = readers->first[value]; r < readers->first[value + 1]; r++) {
            const wefti_node_t *node = &l->graph->nodes[readers->nodes[r]];
            if (node->phase != WEFTI_PHASE_UPDATE && !wefti_lower_is_square_sum(node)) {
                return wefti_error_field(
                    WEFT_ERR_UNSUPPORTED, "wire",
                    "bf16 is not possible: node '%s' reads gradient '%s' after its reduction",
                    node->name, l->graph->values[member->value].name);
            }
        }
    }
    return WEFT_OK;
}

static bool folds(const wefti_lowering_t *l, const wefti_bucket_t *bucket)
{
    return bucket->gradients &&
           (wefti_lower_level_count(l) > 0 || l->params->gradients.wire == WEFT_DTYPE_BF16);
}

/* Only f32 is summed and rounded. */
static weft_status_t check_types(const wefti_lowering_t *l, const wefti_bucket_t *bucket)
{
    for (uint32_t i = 0; i < bucket->member_count; i++) {
        const wefti_value_t *value = &l->graph->values[bucket->members[i].value];
        if (value->type.dtype != WEFT_DTYPE_F32) {
            return wefti_error(
                WEFT_ERR_UNSUPPORTED,
                "gradient '%s': type must be f32 with accumulate, global_micro_batches or wire: %s",
                value->name, weft_dtype_name(value->type.dtype));
        }
    }
    return WEFT_OK;
}

/* Where each gradient of a micro-batch that folds nothing is written: a region like that of
 * gradients.
 */
static weft_status_t add_first_level(wefti_lowering_t *l)
{
    weft_status_t status = WEFT_OK;
    l->first_begin = l->arena_cursor;
    l->first_of = wefti_lower_map(l, l->graph->value_count);
    if (l->first_of == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t b = 0; b < l->bucket_count; b++) {
        const wefti_bucket_t *bucket = &l->buckets[b];
        for (uint32_t i = 0; bucket->gradients && bucket->part == 0 && i < bucket->member_count;
             i++) {
            uint32_t value = bucket->members[i].value, own = l->buffer_of[value];
            uint64_t place = l->plan->buffers[own].offset_bytes - l->local_begin;
            WEFT_TRY(status,
                     wefti_lower_add_buffer(l, value, WEFTI_BUFFER_GRAD, l->first_begin + place),
                     fail);
            l->first_of[value] = l->buffer_of[value];
            l->buffer_of[value] = own;
            l->kept_bytes += l->plan->buffers[own].size_bytes;
            wefti_plan_buffer_t *first = &l->plan->buffers[l->first_of[value]];
            first->name = wefti_arena_printf(&l->plan->arena, "%s, a micro-batch", first->name);
            if (first->name == NULL) {
                return WEFT_ERR_NO_MEMORY;
            }
        }
    }
    l->arena_cursor = l->first_begin + l->region_bytes;
fail:
    return status;
}

/* Partial sums of one bucket above the first; they are there all the time. */
static weft_status_t add_levels(wefti_lowering_t *l, uint32_t index)
{
    weft_status_t status = WEFT_OK;
    wefti_bucket_t *bucket = &l->buckets[index];
    uint64_t bytes = bucket->end_bytes - bucket->begin_bytes;
    uint32_t count = wefti_lower_level_count(l);
    bucket->levels = wefti_lower_map(l, count);
    if (bucket->levels == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t t = 1; t < count; t++) {
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

/* What no collective averages is in no tree: its update would see one micro-batch only. */
static weft_status_t check_updates(const wefti_lowering_t *l)
{
    for (uint32_t i = 0; i < l->order_count; i++) {
        const wefti_node_t *node = &l->graph->nodes[l->order[i]];
        if (node->phase != WEFTI_PHASE_UPDATE || node->input_count < 2 ||
            node->inputs[1] == WEFTI_NONE) {
            continue;
        }
        const wefti_value_t *gradient = &l->graph->values[node->inputs[1]];
        uint32_t producer = gradient->producer;
        uint32_t bucket = producer == WEFTI_NONE ? WEFTI_NONE : l->bucket_of[producer];
        if (bucket == WEFTI_NONE || !l->buckets[bucket].gradients) {
            return wefti_error(
                WEFT_ERR_UNSUPPORTED,
                "gradient '%s': must be all-reduced with accumulate, global_micro_batches or wire",
                gradient->name);
        }
    }
    return WEFT_OK;
}

weft_status_t wefti_lower_levels(wefti_lowering_t *l)
{
    weft_status_t status = WEFT_OK;
    if (l->params->gradients.divisor > 0) {
        WEFT_TRY(status, check_updates(l), fail);
    }
    if (wefti_lower_level_count(l) > 0) {
        WEFT_TRY(status, add_first_level(l), fail);
    }
    for (uint32_t b = 0; b < l->bucket_count; b++) {
        if (folds(l, &l->buckets[b])) {
            WEFT_TRY(status, check_types(l, &l->buckets[b]), fail);
            WEFT_TRY(status, add_levels(l, b), fail);
        }
    }
fail:
    return status;
}

/* An empty fold of count partial sums. */
static weft_status_t describe(wefti_lowering_t *l, const char *name, uint32_t count, bool half,
                              wefti_plan_kernel_t *kernel)
{
    wefti_arena_t *arena = &l->plan->arena;
    *kernel = (wefti_plan_kernel_t){.name = name,
                                    .domain = wefti_arena_strdup(arena, "weft"),
                                    .op = wefti_arena_strdup(arena, "TreeFold"),
                                    .version = 1,
                                    .phase = WEFTI_PHASE_COMM,
                                    .input_count = count + 1,
                                    .output_count = 1,
                                    .attr_count = half ? 1 : 0};
    kernel->inputs = wefti_arena_array(arena, (size_t)count + 1, sizeof(*kernel->inputs));
    kernel->outputs = wefti_arena_array(arena, 1, sizeof(*kernel->outputs));
    kernel->attrs = wefti_arena_array(arena, 1, sizeof(*kernel->attrs));
    if (name == NULL || kernel->domain == NULL || kernel->op == NULL || kernel->inputs == NULL ||
        kernel->outputs == NULL || kernel->attrs == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    if (half) {
        kernel->attrs[0] = (weft_attr_t){.name = wefti_arena_strdup(arena, "type"),
                                         .type = WEFT_ATTR_STRING,
                                         .s = wefti_arena_strdup(arena, "bf16")};
        if (kernel->attrs[0].name == NULL || kernel->attrs[0].s == NULL) {
            return WEFT_ERR_NO_MEMORY;
        }
    }
    return WEFT_OK;
}

/* The fold of gradients and the levels of mask, lowest first, into out. */
static weft_status_t add_fold(wefti_lowering_t *l, uint32_t index, const char *what,
                              uint32_t gradients, uint32_t mask, uint32_t out)
{
    weft_status_t status;
    const wefti_bucket_t *bucket = &l->buckets[index];
    uint32_t count = (uint32_t)__builtin_popcount(mask), at = 1;
    wefti_plan_kernel_t *kernel = &l->plan->kernels[l->plan->kernel_count];
    WEFT_TRY(status,
             describe(l, wefti_arena_printf(&l->plan->arena, "bucket %u, %s", index, what), count,
                      l->plan->buffers[out].dtype == WEFT_DTYPE_BF16, kernel),
             fail);
    kernel->inputs[0] = gradients;
    for (uint32_t t = 0; mask >> t != 0; t++) {
        if ((mask >> t & 1) != 0) {
            kernel->inputs[at++] = bucket->levels[t];
        }
    }
    kernel->outputs[0] = out;
    l->plan->kernel_count++;
fail:
    return status;
}

/* Are all gradients made by kernels, which can write them anywhere? */
static bool made_by_kernels(const wefti_lowering_t *l, const wefti_bucket_t *bucket)
{
    for (uint32_t i = 0; i < bucket->member_count; i++) {
        if (l->item_of[l->graph->values[bucket->members[i].value].producer] == WEFTI_NONE) {
            return false;
        }
    }
    return true;
}

static weft_status_t add_folds(wefti_lowering_t *l, uint32_t index)
{
    weft_status_t status;
    wefti_bucket_t *bucket = &l->buckets[index];
    uint32_t levels = wefti_lower_level_count(l), gradients, out;
    uint64_t bytes = bucket->end_bytes - bucket->begin_bytes;
    char *local = wefti_arena_printf(&l->arena, "bucket %u own gradients", index);
    char *wire = wefti_arena_printf(&l->arena, "bucket %u on the wire", index);
    bucket->folds = wefti_lower_map(l, levels + 1);
    if (local == NULL || wire == NULL || bucket->folds == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    WEFT_TRY(status,
             wefti_lower_add_range(l, local, WEFT_DTYPE_F32, l->local_begin + bucket->begin_bytes,
                                   bytes, &gradients),
             fail);
    out = gradients;
    if (l->params->gradients.wire == WEFT_DTYPE_BF16) {
        WEFT_TRY(
            status,
            wefti_lower_add_range(l, wire, WEFT_DTYPE_BF16,
                                  l->grad_begin + wefti_lower_grad_bytes(l, bucket->begin_bytes),
                                  wefti_lower_grad_bytes(l, bytes), &out),
            fail);
    }
    if (levels > 0) {
        char *first = wefti_arena_printf(&l->arena, "bucket %u, a micro-batch", index);
        if (first == NULL) {
            return WEFT_ERR_NO_MEMORY;
        }
        WEFT_TRY(status,
                 wefti_lower_add_range(l, first, WEFT_DTYPE_F32,
                                       l->first_begin + bucket->begin_bytes, bytes,
                                       &bucket->levels[0]),
                 fail);
    }
    for (uint32_t t = made_by_kernels(l, bucket) ? 1 : 0; t < levels; t++) {
        bucket->folds[t] = l->plan->kernel_count;
        WEFT_TRY(
            status,
            add_fold(l, index, "partial sum", gradients, ((uint32_t)1 << t) - 1, bucket->levels[t]),
            fail);
    }
    bucket->folds[levels] = l->plan->kernel_count;
    WEFT_TRY(status,
             add_fold(l, index, levels > 0 ? "sum" : "rounding", gradients,
                      l->params->gradients.accumulate > 1 ? l->params->gradients.accumulate - 1 : 0,
                      out),
             fail);
fail:
    return status;
}

weft_status_t wefti_lower_folds(wefti_lowering_t *l)
{
    weft_status_t status = WEFT_OK;
    for (uint32_t b = 0; b < l->bucket_count; b++) {
        if (folds(l, &l->buckets[b])) {
            WEFT_TRY(status, add_folds(l, b), fail);
        }
    }
fail:
    return status;
}
