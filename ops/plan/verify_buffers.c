/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Buffers: shapes, places on every rank, contents, who may share memory, and what ranges cover.
 * What lasts is kept, sorted by place, for the parts that ask what a range covers.
 */
#include "ops/plan/plan_internal.h"

#include <math.h>
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
        return wefti_error(WEFT_ERR_FORMAT,
                           "buffer %u (%.100s): size mismatch: %llu bytes, its shape has %lld "
                           "elements of %zu bytes",
                           id, buffer->name, (unsigned long long)buffer->size_bytes,
                           (long long)count, elem_bytes);
    }
    return WEFT_OK;
}

/* A position of a parameter that no rank has whole. */
static weft_status_t check_position(const weft_plan_t *plan, uint32_t id)
{
    const wefti_plan_buffer_t *buffer = &plan->buffers[id];
    return buffer->kind == WEFTI_BUFFER_PARAM && buffer->offset_bytes < 2 * WEFTI_PLAN_NOWHERE &&
                   buffer->size_bytes < WEFTI_PLAN_NOWHERE && buffer->rank_stride_bytes == 0
               ? WEFT_OK
               : bad_buffer(plan, id, "only a sharded parameter has a position in place of memory");
}

/* The last rank's place ends inside the arena, so every rank's does. */
static weft_status_t check_place(const weft_plan_t *plan, uint32_t id)
{
    const wefti_plan_buffer_t *buffer = &plan->buffers[id];
    uint64_t others = plan->world_size - 1, span;
    if (buffer->offset_bytes % WEFTI_PLAN_ALIGNMENT != 0 ||
        buffer->rank_stride_bytes % WEFTI_PLAN_ALIGNMENT != 0) {
        return bad_buffer(plan, id, "its offset or rank stride is no multiple of 64");
    }
    if (wefti_plan_is_nowhere(buffer) && (plan->flags & WEFTI_PLAN_SHARDED_PARAMETERS)) {
        return check_position(plan, id);
    }
    if (buffer->size_bytes > plan->arena_bytes || buffer->offset_bytes > plan->arena_bytes ||
        __builtin_mul_overflow(others, buffer->rank_stride_bytes, &span) ||
        span > plan->arena_bytes - buffer->offset_bytes ||
        wefti_plan_padded_bytes(buffer->size_bytes) >
            plan->arena_bytes - buffer->offset_bytes - span) {
        return wefti_error(WEFT_ERR_FORMAT,
                           "buffer %u (%.100s): out of range: %llu bytes at offset %llu, rank "
                           "stride %llu, arena size %llu",
                           id, buffer->name, (unsigned long long)buffer->size_bytes,
                           (unsigned long long)buffer->offset_bytes,
                           (unsigned long long)buffer->rank_stride_bytes,
                           (unsigned long long)plan->arena_bytes);
    }
    return WEFT_OK;
}

/* All ranks' contents lie inside the weights section. */
static weft_status_t check_contents(const weft_plan_t *plan, uint32_t id)
{
    const wefti_plan_buffer_t *buffer = &plan->buffers[id];
    int own = (plan->flags & WEFTI_PLAN_RANK_DATA) != 0;
    uint64_t others = (own ? wefti_plan_batch_ranks(plan) : plan->world_size) - 1, span;
    int has_contents = buffer->kind == WEFTI_BUFFER_PARAM || buffer->kind == WEFTI_BUFFER_CONST;
    if (!has_contents) {
        return buffer->rank_data_stride_bytes == 0
                   ? WEFT_OK
                   : bad_buffer(plan, id, "it has no contents that could differ by rank");
    }
    if (buffer->data_offset_bytes > plan->weights_bytes ||
        buffer->size_bytes > plan->weights_bytes - buffer->data_offset_bytes ||
        __builtin_mul_overflow(others, buffer->rank_data_stride_bytes, &span) ||
        span > plan->weights_bytes - buffer->data_offset_bytes - buffer->size_bytes) {
        return bad_buffer(plan, id, "its contents leave the weights section");
    }
    if (buffer->rank_data_stride_bytes != 0 && !own) {
        return bad_buffer(plan, id, "its contents differ by rank, but the plan's do not");
    }
    return WEFT_OK;
}

/* Segments add up to the axis of all parts together. */
static weft_status_t check_parts(const weft_plan_t *plan, uint32_t id)
{
    const wefti_plan_buffer_t *buffer = &plan->buffers[id];
    const wefti_division_t *parts = &buffer->parts;
    const int64_t ranks = wefti_plan_batch_ranks(plan);
    if (parts->count == 0) {
        return WEFT_OK;
    }
    if (buffer->kind != WEFTI_BUFFER_PARAM || buffer->rank_data_stride_bytes == 0 ||
        buffer->size_bytes == 0 || parts->axis >= buffer->rank ||
        buffer->layout != WEFT_LAYOUT_PLAIN) {
        return bad_buffer(plan, id, "it is not a part of a parameter");
    }
    int64_t left = buffer->dims[parts->axis];
    for (uint32_t i = 0; i < parts->count; i++) {
        if (parts->sizes[i] <= 0 || parts->sizes[i] % ranks != 0 ||
            parts->sizes[i] / ranks > left) {
            return bad_buffer(plan, id, "its parts do not add up");
        }
        left -= parts->sizes[i] / ranks;
    }
    return left == 0 ? WEFT_OK : bad_buffer(plan, id, "its parts do not add up");
}

static weft_status_t check_buffer(const weft_plan_t *plan, uint32_t id)
{
    const wefti_plan_buffer_t *buffer = &plan->buffers[id];
    weft_status_t status = check_shape(plan, id);
    if (status != WEFT_OK) {
        return status;
    }
    if ((int)buffer->kind < (int)WEFTI_BUFFER_PARAM ||
        (int)buffer->kind > (int)WEFTI_BUFFER_SHARD) {
        return bad_buffer(plan, id, "unknown kind");
    }
    if ((buffer->kind == WEFTI_BUFFER_RANGE || buffer->kind == WEFTI_BUFFER_SHARD) &&
        buffer->rank != 1) {
        return bad_buffer(plan, id, "a range has one dimension");
    }
    if (!(plan->flags & WEFTI_PLAN_SHARDED_PARAMETERS) &&
        (buffer->kind == WEFTI_BUFFER_SHARD || buffer->range != 0 ||
         buffer->whole_offset_bytes != 0)) {
        return bad_buffer(plan, id, "the plan's parameters are not sharded");
    }
    if (buffer->kind == WEFTI_BUFFER_SCALAR &&
        (buffer->size_bytes != weft_dtype_size_bytes(buffer->dtype) ||
         !isfinite(buffer->default_value))) {
        return bad_buffer(plan, id, "a scalar is one element with a finite default");
    }
    if ((buffer->kind == WEFTI_BUFFER_INPUT || buffer->kind == WEFTI_BUFFER_SCALAR) &&
        buffer->rank_stride_bytes != 0) {
        return bad_buffer(plan, id, "what is fed lies at one place on all ranks");
    }
    if (buffer->kind == WEFTI_BUFFER_PARAM && buffer->rank_stride_bytes != 0) {
        return bad_buffer(plan, id, "a parameter lies at one place on all ranks");
    }
    status = check_place(plan, id);
    status = status == WEFT_OK ? check_contents(plan, id) : status;
    return status == WEFT_OK ? check_parts(plan, id) : status;
}

typedef wefti_plan_extent_t extent_t;

/*
 * Memory is shared only among temporaries, and between temporaries and outputs; whether their times
 * overlap is for verify_races. Sorted by where they begin, a buffer meets an earlier one exactly if
 * that one ends behind the begin.
 */
static weft_status_t check_overlap(const weft_plan_t *plan, extent_t *extents, size_t count)
{
    static const uint8_t may_share[3][3] = {{0, 0, 0}, {0, 0, 1}, {0, 1, 1}};
    const extent_t *last[3] = {NULL, NULL, NULL}; /* of each class, the one that ends last so far */
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

/* How many extents begin below offset. */
static size_t count_below(const extent_t *extents, size_t count, uint64_t offset)
{
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (extents[middle].begin < offset) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

uint32_t wefti_plan_layout_at(const wefti_plan_layout_t *layout, uint64_t offset)
{
    size_t below = count_below(layout->lasting, layout->lasting_count, offset + 1);
    return below > 0 && layout->lasting[below - 1].end > offset ? layout->lasting[below - 1].id
                                                                : WEFTI_PLAN_NONE;
}

/* Run numbers are equal for neighbours of one kind and dtype that touch, or have one unit of
 * padding between them: gradients that travel as bf16 are half as long, and begin at whole units,
 * too. */
static void number_runs(const weft_plan_t *plan, wefti_plan_layout_t *layout)
{
    for (size_t i = 1; i < layout->lasting_count; i++) {
        extent_t *extent = &layout->lasting[i];
        const wefti_plan_buffer_t *a = &plan->buffers[extent[-1].id],
                                  *b = &plan->buffers[extent->id];
        int joined = a->kind == b->kind && a->dtype == b->dtype &&
                     extent->begin - extent[-1].end <= WEFTI_PLAN_ALIGNMENT;
        extent->run = extent[-1].run + !joined;
    }
}

/*
 * A range begins in a buffer of a region and covers one run of them; behind the last it may go on
 * over padding that is nobody's. Neither it nor a shard of it is cut inside a unit of 64 bytes. A
 * shard's places on all ranks are such a range.
 */
static int range_fits(const weft_plan_t *plan, const wefti_plan_layout_t *layout,
                      const wefti_plan_buffer_t *range)
{
    uint64_t others = range->rank_stride_bytes * (plan->world_size - 1);
    uint64_t begin = range->offset_bytes, end = begin + others + range->size_bytes;
    size_t first = count_below(layout->lasting, layout->lasting_count, begin + 1);
    size_t last = count_below(layout->lasting, layout->lasting_count, end);
    if (range->size_bytes == 0 || first == 0 || layout->lasting[first - 1].end <= begin) {
        return 0;
    }
    const extent_t *head = &layout->lasting[first - 1], *tail = &layout->lasting[last - 1];
    const wefti_plan_buffer_t *buffer = &plan->buffers[tail->id];
    int cut = end < buffer->offset_bytes + buffer->size_bytes || end > tail->end || others != 0;
    size_t passing = count_below(layout->passing, layout->passing_count, end);
    return head->run == tail->run && in_region(buffer->kind) && buffer->dtype == range->dtype &&
           !(cut && range->size_bytes % WEFTI_PLAN_ALIGNMENT != 0) &&
           (passing == 0 || layout->passing[passing - 1].reach <= begin);
}

/* The positions of a shard of parameters, on all ranks together, are a range of parameters. */
static int shard_fits(const weft_plan_t *plan, const wefti_plan_layout_t *layout,
                      const wefti_plan_buffer_t *shard)
{
    uint64_t position = shard->whole_offset_bytes, span;
    const wefti_plan_buffer_t range = {.dtype = shard->dtype,
                                       .offset_bytes = position,
                                       .size_bytes = shard->size_bytes,
                                       .rank_stride_bytes = shard->size_bytes};
    return shard->size_bytes % WEFTI_PLAN_ALIGNMENT == 0 &&
           (position == 0 ||
            (position >= WEFTI_PLAN_NOWHERE && position < 2 * WEFTI_PLAN_NOWHERE &&
             position % WEFTI_PLAN_ALIGNMENT == 0 &&
             !__builtin_mul_overflow(shard->size_bytes, (uint64_t)plan->world_size, &span) &&
             span < WEFTI_PLAN_NOWHERE && range_fits(plan, layout, &range)));
}

static weft_status_t check_ranges(const weft_plan_t *plan, const wefti_plan_layout_t *layout)
{
    for (uint32_t i = 0; i < plan->buffer_count; i++) {
        const wefti_plan_buffer_t *buffer = &plan->buffers[i];
        if (buffer->kind == WEFTI_BUFFER_RANGE && buffer->range == 0 &&
            !range_fits(plan, layout, buffer)) {
            return bad_buffer(plan, i,
                              "a range covers parameters, gradients or states of its dtype, cut "
                              "only at multiples of 64");
        }
        if (buffer->kind == WEFTI_BUFFER_SHARD && !shard_fits(plan, layout, buffer)) {
            return bad_buffer(plan, i, "its positions are no range of sharded parameters");
        }
    }
    return WEFT_OK;
}

/* What is wrong with the range that buffer id lies in, or NULL. end: by range, padded, of the
 * members so far. */
static const char *check_range_of(const weft_plan_t *plan, uint32_t id, uint64_t *end)
{
    const wefti_plan_buffer_t *buffer = &plan->buffers[id];
    uint32_t root = buffer->range - 1;
    int member = buffer->kind == WEFTI_BUFFER_TEMP || buffer->kind == WEFTI_BUFFER_GRAD;
    if (root >= plan->buffer_count || plan->buffers[root].kind != WEFTI_BUFFER_RANGE ||
        plan->buffers[root].range != root + 1) {
        return "the range that it lies in is none";
    }
    const wefti_plan_buffer_t *range = &plan->buffers[root];
    uint64_t begin = buffer->offset_bytes, range_end = range->offset_bytes + range->size_bytes;
    if ((!member && buffer->kind != WEFTI_BUFFER_RANGE) || buffer->rank_stride_bytes != 0 ||
        buffer->dtype != range->dtype || begin < range->offset_bytes ||
        begin + buffer->size_bytes > range_end) {
        return "it does not lie in its range";
    }
    if (member && begin < end[root]) {
        return "tensors of its range overlap, or are not in their order";
    }
    end[root] = member ? begin + wefti_plan_padded_bytes(buffer->size_bytes) : end[root];
    return NULL;
}

/* Ranges whose memory is reused: members lie in them one after another. */
static weft_status_t check_passing_ranges(const weft_plan_t *plan)
{
    const char *what = NULL;
    uint64_t *end =
        wefti_alloc(plan->arena.allocator, ((size_t)plan->buffer_count + 1) * sizeof *end);
    if (!end) {
        return WEFT_ERR_NO_MEMORY;
    }
    memset(end, 0, plan->buffer_count * sizeof *end);
    for (uint32_t i = 0; i < plan->buffer_count && !what; i++) {
        what = plan->buffers[i].range != 0 ? check_range_of(plan, i, end) : NULL;
        if (what) {
            wefti_free(plan->arena.allocator, end);
            return bad_buffer(plan, i, what);
        }
    }
    wefti_free(plan->arena.allocator, end);
    return WEFT_OK;
}

/* What lasts goes to the front, outputs and temporaries behind it; both stay sorted. */
static void split(extent_t *extents, size_t count, extent_t *scratch, wefti_plan_layout_t *layout)
{
    size_t passing = 0;
    layout->lasting = extents;
    for (size_t i = 0; i < count; i++) {
        if (extents[i].class_ == 0) {
            extents[layout->lasting_count++] = extents[i];
        } else {
            scratch[passing++] = extents[i];
        }
    }
    layout->passing = extents + layout->lasting_count;
    layout->passing_count = passing;
    memcpy(layout->passing, scratch, passing * sizeof *scratch);
    for (size_t i = 0; i < passing; i++) {
        extent_t *extent = &layout->passing[i];
        uint64_t before = i > 0 ? extent[-1].reach : 0;
        extent->reach = extent->end > before ? extent->end : before;
    }
}

static extent_t extent_of(const weft_plan_t *plan, uint32_t id)
{
    const wefti_plan_buffer_t *buffer = &plan->buffers[id];
    return (extent_t){
        .begin = buffer->offset_bytes,
        .end = wefti_plan_buffer_end(plan, buffer),
        .id = id,
        .class_ = wefti_plan_passes(buffer)             ? 2
                  : buffer->kind == WEFTI_BUFFER_OUTPUT ? 1
                                                        : 0,
    };
}

/* Of all buffers but those of no bytes and ranges over what lasts, sorted by place. */
static weft_status_t find_extents(const weft_plan_t *plan, extent_t *extents, size_t *out_count)
{
    size_t count = 0;
    wefti_plan_place_t *places =
        wefti_alloc(plan->arena.allocator, ((size_t)plan->buffer_count + 1) * sizeof *places);
    if (!places) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t i = 0; i < plan->buffer_count; i++) {
        const wefti_plan_buffer_t *buffer = &plan->buffers[i];
        if ((buffer->kind != WEFTI_BUFFER_RANGE || buffer->range == i + 1) &&
            buffer->size_bytes > 0) {
            places[count++] = (wefti_plan_place_t){buffer->offset_bytes, i};
        }
    }
    weft_status_t status = wefti_plan_sort_places(plan, places, count);
    for (size_t i = 0; i < count && status == WEFT_OK; i++) {
        extents[i] = extent_of(plan, places[i].id);
    }
    wefti_free(plan->arena.allocator, places);
    *out_count = count;
    return status;
}

weft_status_t wefti_plan_verify_buffers(const weft_plan_t *plan, wefti_plan_layout_t *out_layout)
{
    weft_status_t status = WEFT_OK;
    *out_layout = (wefti_plan_layout_t){0};
    for (uint32_t i = 0; i < plan->buffer_count && status == WEFT_OK; i++) {
        status = check_buffer(plan, i);
    }
    if (status == WEFT_OK && (plan->flags & WEFTI_PLAN_SHARDED_PARAMETERS)) {
        status = check_passing_ranges(plan);
    }
    if (status != WEFT_OK) {
        return status;
    }
    extent_t *extents =
        wefti_alloc(plan->arena.allocator, (2 * (size_t)plan->buffer_count + 1) * sizeof *extents);
    if (!extents) {
        return WEFT_ERR_NO_MEMORY;
    }
    size_t count = 0;
    status = find_extents(plan, extents, &count);
    if (status == WEFT_OK) {
        status = check_overlap(plan, extents, count);
    }
    if (status == WEFT_OK) {
        split(extents, count, extents + plan->buffer_count, out_layout);
        number_runs(plan, out_layout);
        status = check_ranges(plan, out_layout);
    }
    if (status != WEFT_OK) {
        wefti_free(plan->arena.allocator, extents);
        *out_layout = (wefti_plan_layout_t){0};
    }
    return status;
}

void wefti_plan_layout_deinit(const weft_plan_t *plan, wefti_plan_layout_t *layout)
{
    wefti_free(plan->arena.allocator, layout->lasting);
    *layout = (wefti_plan_layout_t){0};
}
