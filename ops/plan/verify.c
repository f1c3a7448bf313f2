/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a plan must satisfy before anybody trusts it, whoever wrote it: this file checks the whole,
 * buffers and bindings; kernels, collectives, programs and races have files of their own. Later
 * parts index by ids that earlier parts have checked.
 */
#include "ops/plan/plan_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/error.h"

/* A buffer's name in messages. */
static weft_status_t bad_buffer(const weft_plan_t *plan, uint32_t id, const char *what)
{
    return wefti_error(WEFT_ERR_FORMAT, "buffer %u (%.100s): %s", id, plan->buffers[id].name, what);
}

static weft_status_t check_shape(const weft_plan_t *plan, uint32_t id)
{
    const wefti_plan_buffer_t *buffer = &plan->buffers[id];
    size_t elem_bytes = weft_dtype_size_bytes(buffer->dtype);
    uint64_t bytes;
    weft_tensor_desc_t desc = {.dtype = buffer->dtype, .rank = buffer->rank};
    if (buffer->rank > WEFT_MAX_DIMS) {
        return bad_buffer(plan, id, "too many dimensions");
    }
    if (elem_bytes == 0) {
        return bad_buffer(plan, id, "unknown dtype");
    }
    if (buffer->layout != WEFT_LAYOUT_PLAIN &&
        (buffer->layout != WEFT_LAYOUT_CHANNELS_LAST || buffer->rank != 4)) {
        return bad_buffer(plan, id, "unknown layout, or channels-last without four dimensions");
    }
    memcpy(desc.dims, buffer->dims, sizeof desc.dims);
    int64_t count = weft_tensor_elem_count(&desc);
    if (count < 0 || __builtin_mul_overflow((uint64_t)count, elem_bytes, &bytes) ||
        bytes != buffer->size_bytes) {
        return wefti_error(
            WEFT_ERR_FORMAT, "buffer %u (%.100s): %llu bytes, its shape takes %lld elements of %zu",
            id, buffer->name, (unsigned long long)buffer->size_bytes, (long long)count, elem_bytes);
    }
    return WEFT_OK;
}

static weft_status_t check_place(const weft_plan_t *plan, uint32_t id)
{
    const wefti_plan_buffer_t *buffer = &plan->buffers[id];
    if (buffer->offset_bytes % WEFTI_PLAN_ALIGNMENT != 0) {
        return bad_buffer(plan, id, "its offset is no multiple of 64");
    }
    if (buffer->size_bytes > plan->arena_bytes || buffer->offset_bytes > plan->arena_bytes ||
        wefti_plan_padded_bytes(buffer->size_bytes) > plan->arena_bytes - buffer->offset_bytes) {
        return wefti_error(
            WEFT_ERR_FORMAT, "buffer %u (%.100s): %llu bytes at %llu leave the arena of %llu", id,
            buffer->name, (unsigned long long)buffer->size_bytes,
            (unsigned long long)buffer->offset_bytes, (unsigned long long)plan->arena_bytes);
    }
    if ((buffer->kind == WEFTI_BUFFER_PARAM || buffer->kind == WEFTI_BUFFER_CONST) &&
        (buffer->data_offset_bytes > plan->weights_bytes ||
         buffer->size_bytes > plan->weights_bytes - buffer->data_offset_bytes)) {
        return bad_buffer(plan, id, "its contents leave the weights section");
    }
    return WEFT_OK;
}

static weft_status_t check_buffer(const weft_plan_t *plan, uint32_t id)
{
    const wefti_plan_buffer_t *buffer = &plan->buffers[id];
    weft_status_t status = check_shape(plan, id);
    if (status != WEFT_OK) {
        return status;
    }
    if ((int)buffer->kind < (int)WEFTI_BUFFER_PARAM ||
        (int)buffer->kind > (int)WEFTI_BUFFER_RANGE) {
        return bad_buffer(plan, id, "unknown kind");
    }
    if (buffer->kind == WEFTI_BUFFER_RANGE && buffer->rank != 1) {
        return bad_buffer(plan, id, "a range has one dimension");
    }
    if (buffer->kind == WEFTI_BUFFER_SCALAR &&
        (buffer->size_bytes != weft_dtype_size_bytes(buffer->dtype) ||
         !isfinite(buffer->default_value))) {
        return bad_buffer(plan, id, "a scalar is one element with a finite default");
    }
    return check_place(plan, id);
}

typedef struct extent {
    uint64_t begin, end;
    uint32_t id;
    uint32_t class_; /* 0 lasting, 1 output, 2 temporary */
} extent_t;

static int compare_extents(const void *a, const void *b)
{
    const extent_t *left = a, *right = b;
    if (left->begin != right->begin) {
        return left->begin < right->begin ? -1 : 1;
    }
    return left->id < right->id ? -1 : left->id > right->id;
}

/*
 * Memory is shared only among temporaries, and between temporaries and outputs; whether their times
 * overlap is for verify_races. Sorted by where they begin, a buffer meets an earlier one exactly if
 * that one ends behind the begin.
 */
static weft_status_t check_overlap(const weft_plan_t *plan, extent_t *extents, size_t count)
{
    static const uint8_t may_share[3][3] = {{0, 0, 0}, {0, 0, 1}, {0, 1, 1}};
    const extent_t *last[3] = {NULL, NULL, NULL}; /* of each class, the one that ends last so far */
    qsort(extents, count, sizeof *extents, compare_extents);
    for (size_t i = 0; i < count; i++) {
        const extent_t *extent = &extents[i];
        for (int other = 0; other < 3; other++) {
            if (last[other] && last[other]->end > extent->begin &&
                !may_share[extent->class_][other]) {
                return wefti_error(WEFT_ERR_FORMAT, "buffers %u (%.100s) and %u (%.100s) overlap",
                                   last[other]->id, plan->buffers[last[other]->id].name, extent->id,
                                   plan->buffers[extent->id].name);
            }
        }
        if (!last[extent->class_] || extent->end > last[extent->class_]->end) {
            last[extent->class_] = extent;
        }
    }
    return WEFT_OK;
}

/* What a range may cover: what lies in regions. */
static int in_region(wefti_buffer_kind_t kind)
{
    return kind == WEFTI_BUFFER_PARAM || kind == WEFTI_BUFFER_GRAD || kind == WEFTI_BUFFER_STATE;
}

/* The extent that holds offset, or NULL. */
static const extent_t *find_extent(const extent_t *extents, size_t count, uint64_t offset)
{
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (extents[middle].begin <= offset) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low > 0 && extents[low - 1].end > offset ? &extents[low - 1] : NULL;
}

/*
 * A range begins and ends in buffers of a region, cut only at multiples of 64, and between them
 * lies nothing else. Extents are
 * sorted; run numbers are equal for neighbours of one kind and dtype that touch.
 */
static weft_status_t check_ranges(const weft_plan_t *plan, const extent_t *extents, uint32_t *runs,
                                  size_t count)
{
    for (size_t i = 1; i < count; i++) {
        const wefti_plan_buffer_t *a = &plan->buffers[extents[i - 1].id],
                                  *b = &plan->buffers[extents[i].id];
        int joined =
            a->kind == b->kind && a->dtype == b->dtype && extents[i - 1].end == extents[i].begin;
        runs[i] = runs[i - 1] + !joined;
    }
    for (uint32_t i = 0; i < plan->buffer_count; i++) {
        const wefti_plan_buffer_t *range = &plan->buffers[i];
        if (range->kind != WEFTI_BUFFER_RANGE) {
            continue;
        }
        uint64_t end = range->offset_bytes + range->size_bytes;
        const extent_t *first = find_extent(extents, count, range->offset_bytes);
        const extent_t *last = range->size_bytes ? find_extent(extents, count, end - 1) : NULL;
        if (!first || !last || runs[first - extents] != runs[last - extents] ||
            !in_region(plan->buffers[first->id].kind) ||
            plan->buffers[first->id].dtype != range->dtype ||
            (end < last->begin + plan->buffers[last->id].size_bytes &&
             end % WEFTI_PLAN_ALIGNMENT != 0)) {
            return bad_buffer(plan, i,
                              "a range covers parameters, gradients or states of its dtype, cut "
                              "only at multiples of 64");
        }
    }
    return WEFT_OK;
}

/* Ranges may cover what lasts; outputs and temporaries are taken out. */
static weft_status_t check_lasting(const weft_plan_t *plan, extent_t *extents, size_t count)
{
    size_t lasting = 0;
    uint32_t *runs = wefti_alloc(plan->arena.allocator, (count + 1) * sizeof *runs);
    if (!runs) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < count; i++) {
        if (extents[i].class_ == 0) {
            extents[lasting++] = extents[i];
        }
    }
    weft_status_t status = check_ranges(plan, extents, runs, lasting);
    wefti_free(plan->arena.allocator, runs);
    return status;
}

weft_status_t wefti_plan_verify_buffers(const weft_plan_t *plan)
{
    weft_status_t status = WEFT_OK;
    extent_t *extents =
        wefti_alloc(plan->arena.allocator, (size_t)plan->buffer_count * sizeof *extents);
    size_t count = 0;
    if (!extents) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t i = 0; i < plan->buffer_count && status == WEFT_OK; i++) {
        const wefti_plan_buffer_t *buffer = &plan->buffers[i];
        status = check_buffer(plan, i);
        if (status == WEFT_OK && buffer->kind != WEFTI_BUFFER_RANGE && buffer->size_bytes > 0) {
            extents[count++] = (extent_t){
                .begin = buffer->offset_bytes,
                .end = buffer->offset_bytes + wefti_plan_padded_bytes(buffer->size_bytes),
                .id = i,
                .class_ = buffer->kind == WEFTI_BUFFER_TEMP     ? 2
                          : buffer->kind == WEFTI_BUFFER_OUTPUT ? 1
                                                                : 0,
            };
        }
    }
    if (status == WEFT_OK) {
        status = check_overlap(plan, extents, count);
    }
    if (status == WEFT_OK) {
        status = check_lasting(plan, extents, count);
    }
    wefti_free(plan->arena.allocator, extents);
    return status;
}

static weft_status_t check_binding(const weft_plan_t *plan, uint32_t index)
{
    const wefti_plan_binding_t *binding = &plan->bindings[index];
    const char *what = NULL;
    wefti_buffer_kind_t kind = WEFTI_BUFFER_OUTPUT;
    switch (binding->role) {
    case WEFT_ROLE_INPUT:
    case WEFT_ROLE_LABEL:
        kind = WEFTI_BUFFER_INPUT;
        break;
    case WEFT_ROLE_SCALAR:
        kind = WEFTI_BUFFER_SCALAR;
        break;
    case WEFT_ROLE_LOSS:
    case WEFT_ROLE_LOGITS:
    case WEFT_ROLE_OUTPUT:
        break;
    default:
        what = "unknown role";
    }
    if (!what && binding->buffer >= plan->buffer_count) {
        what = "no such buffer";
    } else if (!what && plan->buffers[binding->buffer].kind != kind) {
        what = "its buffer is of another kind";
    } else if (!what && !binding->name[0]) {
        what = "it has no name";
    }
    /* What is fed and what is read are two sets of names, and one output may be known in several
     * roles; the limit on bindings keeps the square small. */
    for (uint32_t i = 0; !what && i < index; i++) {
        const wefti_plan_binding_t *other = &plan->bindings[i];
        int both_fed = binding->role <= WEFT_ROLE_SCALAR && other->role <= WEFT_ROLE_SCALAR;
        if ((both_fed || binding->role == other->role) && strcmp(other->name, binding->name) == 0) {
            what = "its name is taken";
        }
    }
    return what
               ? wefti_error(WEFT_ERR_FORMAT, "binding %u (%.100s): %s", index, binding->name, what)
               : WEFT_OK;
}

static weft_status_t check_whole(const weft_plan_t *plan)
{
    if (plan->world_size == 0 || plan->world_size > WEFTI_PLAN_MAX_WORLD) {
        return wefti_error(WEFT_ERR_FORMAT, "world size %u", plan->world_size);
    }
    if (plan->batch < 0) {
        return wefti_error(WEFT_ERR_FORMAT, "batch %lld", (long long)plan->batch);
    }
    if (plan->arena_bytes > INT64_MAX || plan->arena_bytes > SIZE_MAX) {
        return wefti_error(WEFT_ERR_FORMAT, "arena of %llu bytes",
                           (unsigned long long)plan->arena_bytes);
    }
    if (plan->stream_count == 0 || plan->stream_count > WEFTI_PLAN_MAX_STREAMS) {
        return wefti_error(WEFT_ERR_FORMAT, "%u streams, must be 1 to %u", plan->stream_count,
                           WEFTI_PLAN_MAX_STREAMS);
    }
    if (plan->program_count > WEFTI_PLAN_MAX_PROGRAMS ||
        plan->binding_count > WEFTI_PLAN_MAX_BINDINGS) {
        return wefti_error(WEFT_ERR_FORMAT, "%u programs and %u bindings are too many",
                           plan->program_count, plan->binding_count);
    }
    return WEFT_OK;
}

weft_status_t wefti_plan_verify(const weft_plan_t *plan, const weft_registry_t *registry)
{
    weft_status_t status;
    WEFT_TRY(status, check_whole(plan), fail);
    WEFT_TRY(status, wefti_plan_verify_buffers(plan), fail);
    for (uint32_t i = 0; i < plan->binding_count; i++) {
        WEFT_TRY(status, check_binding(plan, i), fail);
    }
    WEFT_TRY(status, wefti_plan_verify_kernels(plan, registry), fail);
    WEFT_TRY(status, wefti_plan_verify_collectives(plan), fail);
    WEFT_TRY(status, wefti_plan_verify_programs(plan), fail);
    WEFT_TRY(status, wefti_plan_verify_gradients(plan), fail);
    WEFT_TRY(status, wefti_plan_verify_races(plan), fail);
fail:
    return status;
}
