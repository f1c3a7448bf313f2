/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Collectives: source and buffer hold as many elements as the operator's blocks come to, lie apart
 * or as its in-place rule says, and the members follow one another without a gap and are all that
 * the whole side covers. Of gradients, and of the weights gathered from their updates, the first
 * and the last member may be covered in part, at multiples of 64 bytes (verify_buffers.c checks
 * that of all ranges); that the rest is covered too is for verify_gradients.c.
 */
#include "ops/plan/plan_internal.h"

#include <string.h>

#include "runtime/base/error.h"
#include "runtime/base/order.h"

static weft_status_t bad_collective(const weft_plan_t *plan, uint32_t index, const char *what)
{
    return wefti_error(WEFT_ERR_FORMAT, "collective %u (%.100s): %s", index,
                       plan->collectives[index].name, what);
}

/* How many blocks of elem_count source and buffer hold; 0: the operator is not for plans. */
static uint32_t block_counts(const weft_plan_t *plan, const wefti_plan_collective_t *collective,
                             uint32_t *out_buffer)
{
    const wefti_collective_t *shape = wefti_collective_of(collective->op);
    uint32_t ranks = wefti_plan_axis(plan, collective).size;
    *out_buffer = wefti_side_blocks(shape->recv, ranks);
    return wefti_collective_has_one_count(collective->op) ? wefti_side_blocks(shape->send, ranks)
                                                          : 0;
}

uint32_t wefti_plan_whole(const weft_plan_t *plan, const wefti_plan_collective_t *collective)
{
    (void)plan;
    return wefti_collective_gathers(collective->op) ? collective->buffer : collective->source;
}

int wefti_plan_reduces_gradients(const weft_plan_t *plan, const wefti_plan_collective_t *collective)
{
    return wefti_collective_reduces(collective->op) && !wefti_collective_rooted(collective->op) &&
           collective->member_count > 0 && collective->group == plan->data_group &&
           plan->buffers[collective->members[0]].kind == WEFTI_BUFFER_GRAD;
}

int wefti_plan_is_shard(const weft_plan_t *plan, uint32_t part, uint32_t whole)
{
    const wefti_plan_buffer_t *shard = &plan->buffers[part], *all = &plan->buffers[whole];
    uint64_t bytes;
    return shard->offset_bytes == all->offset_bytes && shard->dtype == all->dtype &&
           all->rank_stride_bytes == 0 &&
           (shard->rank_stride_bytes == shard->size_bytes ||
            (plan->world_size == 1 && shard->rank_stride_bytes == 0)) &&
           !__builtin_mul_overflow(shard->size_bytes, (uint64_t)plan->world_size, &bytes) &&
           bytes == all->size_bytes;
}

/* Blocks have all ranks. Whatever reduces nothing, or updates what it reduces, has the tree. */
static int is_order_valid(const weft_plan_t *plan, const wefti_plan_collective_t *collective)
{
    wefti_order_setting_t order;
    uint64_t ranks = 0;
    if (wefti_order_parse(collective->order, &order) < 0) {
        return 0;
    }
    for (uint32_t i = 0; order.order == WEFT_ORDER_BLOCKS && i < order.count; i++) {
        ranks += order.sizes[i];
    }
    return order.order == WEFT_ORDER_TREE ||
           (wefti_collective_reduces(collective->op) && collective->update == WEFTI_PLAN_NONE &&
            (order.order == WEFT_ORDER_ANY || ranks == wefti_plan_axis(plan, collective).size));
}

static const char *check_numbers(const weft_plan_t *plan, const wefti_plan_collective_t *collective)
{
    if ((int)collective->reduction < (int)WEFT_REDUCTION_SUM ||
        (int)collective->reduction > (int)WEFT_REDUCTION_MAX) {
        return "unknown reduction";
    }
    if (collective->root >= wefti_plan_axis(plan, collective).size) {
        return "no such root";
    }
    if (collective->divisor != 0 && (collective->reduction != WEFT_REDUCTION_AVG ||
                                     !wefti_collective_reduces(collective->op))) {
        return "only an average has a divisor";
    }
    if (!is_order_valid(plan, collective)) {
        return "invalid reduction order";
    }
    if (collective->algorithm_count == 0 || collective->member_count == 0) {
        return "no algorithm, or no members";
    }
    for (uint32_t i = 0; i < collective->algorithm_count; i++) {
        if (!collective->algorithms[i].name[0]) {
            return "an algorithm has no name";
        }
    }
    return NULL;
}

/* Is the buffer as long as so many blocks? */
static int holds_blocks(const wefti_plan_buffer_t *buffer, uint64_t elem_count, uint32_t blocks)
{
    uint64_t bytes;
    return !__builtin_mul_overflow(elem_count, weft_dtype_size_bytes(buffer->dtype), &bytes) &&
           !__builtin_mul_overflow(bytes, (uint64_t)blocks, &bytes) && bytes == buffer->size_bytes;
}

static int lie_apart(const weft_plan_t *plan, uint32_t a, uint32_t b)
{
    const wefti_plan_buffer_t *x = &plan->buffers[a], *y = &plan->buffers[b];
    return x->size_bytes == 0 || y->size_bytes == 0 ||
           wefti_plan_buffer_end(plan, x) <= y->offset_bytes ||
           wefti_plan_buffer_end(plan, y) <= x->offset_bytes;
}

/* In place: one buffer in which a rank's own block has its place, or that block as a buffer. */
static int places_allowed(const weft_plan_t *plan, const wefti_plan_collective_t *collective)
{
    uint32_t source = collective->source, buffer = collective->buffer;
    if (source == buffer || lie_apart(plan, source, buffer)) {
        return 1;
    }
    return (wefti_collective_gathers(collective->op) &&
            wefti_plan_is_shard(plan, source, buffer)) ||
           (wefti_collective_scatters(collective->op) && wefti_plan_is_shard(plan, buffer, source));
}

static const char *check_buffers(const weft_plan_t *plan, const wefti_plan_collective_t *collective)
{
    if (collective->group > plan->mesh.axis_count) {
        return "no such group";
    }
    uint32_t in_buffer = 0, in_source = block_counts(plan, collective, &in_buffer);
    if (in_source == 0) {
        return "unknown operator";
    }
    if (collective->buffer >= plan->buffer_count || collective->source >= plan->buffer_count) {
        return "no such buffer";
    }
    const wefti_plan_buffer_t *buffer = &plan->buffers[collective->buffer];
    const wefti_plan_buffer_t *source = &plan->buffers[collective->source];
    if (wefti_plan_is_nowhere(buffer) || wefti_plan_is_nowhere(source)) {
        return "no rank has all of its parameters";
    }
    if (collective->group != 0 && (collective->update != WEFTI_PLAN_NONE ||
                                   (source->rank_stride_bytes | buffer->rank_stride_bytes) != 0)) {
        return "shards and updates are of all ranks";
    }
    int sweeps = collective->update != WEFTI_PLAN_NONE; /* its parameters may be of another type */
    if (collective->dtype != source->dtype || (!sweeps && buffer->dtype != source->dtype) ||
        (wefti_collective_reduces(collective->op) && collective->dtype == WEFT_DTYPE_BOOL)) {
        return "its dtype is not its buffer's, or cannot be reduced";
    }
    if (buffer->kind == WEFTI_BUFFER_CONST || buffer->kind == WEFTI_BUFFER_SCALAR ||
        (buffer->kind == WEFTI_BUFFER_INPUT && collective->source != collective->buffer)) {
        return "it writes a constant, an input or a scalar";
    }
    if (source == buffer) { /* in place, a block is part of the whole */
        in_source = in_buffer = in_source > in_buffer ? in_source : in_buffer;
    }
    if (!holds_blocks(buffer, collective->elem_count, in_buffer) ||
        !holds_blocks(source, collective->elem_count, in_source)) {
        return "its element count is not its buffer's";
    }
    return places_allowed(plan, collective) ? NULL : "source and buffer overlap";
}

/* Kinds that lie in regions: what a range may cover. */
static int in_region(wefti_buffer_kind_t kind)
{
    return kind == WEFTI_BUFFER_PARAM || kind == WEFTI_BUFFER_GRAD || kind == WEFTI_BUFFER_STATE;
}

/* What is wrong with one member, which must be the first behind *next, or NULL; then *next is its
 * padded end. */
static const char *check_member(const weft_plan_t *plan, const wefti_plan_layout_t *layout,
                                const wefti_plan_collective_t *collective, uint32_t index,
                                uint64_t *next)
{
    const wefti_plan_buffer_t *member = &plan->buffers[collective->members[index]];
    const wefti_plan_buffer_t *first = &plan->buffers[collective->members[0]];
    const wefti_plan_buffer_t *whole = &plan->buffers[wefti_plan_whole(plan, collective)];
    (void)layout;
    if (member->kind == WEFTI_BUFFER_RANGE || member->dtype != whole->dtype ||
        member->kind != first->kind) {
        return "its members differ in kind or dtype";
    }
    /* a unit of padding between them is nobody's */
    if (index > 0 && member->offset_bytes == *next + WEFTI_PLAN_ALIGNMENT &&
        wefti_plan_layout_at(layout, *next) == WEFTI_PLAN_NONE) {
        *next = member->offset_bytes;
    }
    if (member->rank_stride_bytes != 0 || (index > 0 && member->offset_bytes != *next)) {
        return "its members do not follow one another";
    }
    *next = member->offset_bytes + wefti_plan_padded_bytes(member->size_bytes);
    return NULL;
}

/* What is wrong with member index of a range whose memory is reused. Gathered weights lie as their
 * parameters do, so that a rank's shard is a shard of them. */
static const char *check_passing_member(const weft_plan_t *plan, const wefti_plan_layout_t *layout,
                                        const wefti_plan_collective_t *collective, uint32_t index)
{
    const wefti_plan_buffer_t *member = &plan->buffers[collective->members[index]];
    const wefti_plan_buffer_t *whole = &plan->buffers[wefti_plan_whole(plan, collective)];
    int gathers = collective->op == WEFT_COLLECTIVE_ALL_GATHER;
    uint64_t end = whole->offset_bytes + whole->size_bytes;
    if (member->range != whole->range ||
        member->kind != (gathers ? WEFTI_BUFFER_TEMP : WEFTI_BUFFER_GRAD)) {
        return "its members do not lie in its range";
    }
    if (member->offset_bytes >= end ||
        member->offset_bytes + member->size_bytes <= whole->offset_bytes ||
        (index > 0 && collective->members[index - 1] >= collective->members[index])) {
        return "its buffer does not cover its members";
    }
    if (!gathers) {
        return NULL;
    }
    const wefti_plan_buffer_t *shard = &plan->buffers[collective->source];
    uint64_t position = shard->whole_offset_bytes + member->offset_bytes - whole->offset_bytes;
    uint32_t id = shard->kind == WEFTI_BUFFER_SHARD ? wefti_plan_layout_at(layout, position)
                                                    : WEFTI_PLAN_NONE;
    const wefti_plan_buffer_t *param = id == WEFTI_PLAN_NONE ? NULL : &plan->buffers[id];
    return param != NULL && param->kind == WEFTI_BUFFER_PARAM && param->offset_bytes == position &&
                   param->size_bytes == member->size_bytes && param->dtype == member->dtype
               ? NULL
               : "a gathered tensor does not lie where its parameter does";
}

static const char *check_passing_members(const weft_plan_t *plan, const wefti_plan_layout_t *layout,
                                         const wefti_plan_collective_t *collective)
{
    const char *what = NULL;
    int gathers = collective->op == WEFT_COLLECTIVE_ALL_GATHER;
    uint32_t part = gathers ? collective->source : collective->buffer;
    if ((!gathers && collective->op != WEFT_COLLECTIVE_REDUCE_SCATTER) ||
        plan->buffers[part].kind != WEFTI_BUFFER_SHARD ||
        gathers != (plan->buffers[part].whole_offset_bytes != 0)) {
        return "only weights are gathered into memory that is reused, and only gradients reduced";
    }
    for (uint32_t i = 0; i < collective->member_count && !what; i++) {
        what = check_passing_member(plan, layout, collective, i);
    }
    return what;
}

/* Padding behind the members is nobody's: no other buffer begins below the end. */
static int only_padding(const wefti_plan_layout_t *layout, uint64_t begin, uint64_t end)
{
    size_t low = 0, high = layout->lasting_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (layout->lasting[middle].begin < begin) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low == layout->lasting_count || layout->lasting[low].begin >= end;
}

/* The range begins in the first member and ends in the last, or in padding behind it, or NULL. */
static const char *check_ends(const weft_plan_t *plan, const wefti_plan_layout_t *layout,
                              const wefti_plan_collective_t *collective, uint64_t padded_end)
{
    const wefti_plan_buffer_t *range = &plan->buffers[wefti_plan_whole(plan, collective)];
    const wefti_plan_buffer_t *first = &plan->buffers[collective->members[0]],
                              *last =
                                  &plan->buffers[collective->members[collective->member_count - 1]];
    uint64_t begin = range->offset_bytes, end = range->offset_bytes + range->size_bytes;
    uint64_t first_end = first->offset_bytes + first->size_bytes,
             last_end = last->offset_bytes + last->size_bytes;
    int whole = begin == first->offset_bytes && end >= last_end;
    if (begin < first->offset_bytes || (begin > first->offset_bytes && begin >= first_end)) {
        return "its buffer does not begin with its first member";
    }
    if ((end > padded_end && !only_padding(layout, padded_end, end)) || end < last->offset_bytes ||
        (end == last->offset_bytes && last->size_bytes > 0)) {
        return "its buffer does not end with its last member";
    }
    int may_cut =
        wefti_plan_reduces_gradients(plan, collective) ||
        (collective->op == WEFT_COLLECTIVE_ALL_GATHER && first->kind == WEFTI_BUFFER_PARAM);
    return whole || (may_cut && range->kind == WEFTI_BUFFER_RANGE)
               ? NULL
               : "only gradients are reduced in pieces";
}

/* Of what is no range: source, buffer, or both. */
static const char *check_single(const wefti_plan_collective_t *collective)
{
    for (uint32_t i = 0; i < collective->member_count; i++) {
        if (collective->members[i] != collective->buffer &&
            collective->members[i] != collective->source) {
            return "its only member must be its buffer";
        }
    }
    return NULL;
}

static const char *check_members(const weft_plan_t *plan, const wefti_plan_layout_t *layout,
                                 const wefti_plan_collective_t *collective)
{
    const wefti_plan_buffer_t *range = &plan->buffers[wefti_plan_whole(plan, collective)];
    uint64_t next = 0; /* where the next member must begin */
    for (uint32_t i = 0; i < collective->member_count; i++) {
        if (collective->members[i] >= plan->buffer_count) {
            return "a member is no buffer";
        }
    }
    if (range->kind != WEFTI_BUFFER_RANGE) {
        return check_single(collective);
    }
    if (range->rank_stride_bytes != 0) {
        return "its whole lies at another place on every rank";
    }
    if (range->range != 0) {
        return check_passing_members(plan, layout, collective);
    }
    for (uint32_t i = 0; i < collective->member_count; i++) {
        const char *what = check_member(plan, layout, collective, i, &next);
        if (what) {
            return what;
        }
    }
    if (!in_region(plan->buffers[collective->members[0]].kind)) {
        return "a range covers parameters, gradients or state";
    }
    return check_ends(plan, layout, collective, next);
}

weft_status_t wefti_plan_verify_collectives(const weft_plan_t *plan,
                                            const wefti_plan_layout_t *layout)
{
    for (uint32_t i = 0; i < plan->collective_count; i++) {
        const wefti_plan_collective_t *collective = &plan->collectives[i];
        const char *what = check_buffers(plan, collective);
        if (!what) {
            what = check_numbers(plan, collective);
        }
        if (!what) {
            what = check_members(plan, layout, collective);
        }
        if (what) {
            return bad_collective(plan, i, what);
        }
    }
    return WEFT_OK;
}
