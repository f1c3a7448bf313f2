/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Collectives: a range covers its members without a gap, and nothing else. Of gradients the first
 * and the last member may be covered in part, at multiples of 64 bytes (verify.c checks that of all
 * ranges); that the rest is covered too is for verify_gradients.c.
 */
#include "ops/plan/plan_internal.h"

#include <string.h>

#include "runtime/base/error.h"

static weft_status_t bad_collective(const weft_plan_t *plan, uint32_t index, const char *what)
{
    return wefti_error(WEFT_ERR_FORMAT, "collective %u (%.100s): %s", index,
                       plan->collectives[index].name, what);
}

static const char *check_parameters(const weft_plan_t *plan,
                                    const wefti_plan_collective_t *collective)
{
    int reduces = collective->op == WEFT_OP_ALL_REDUCE;
    if (!reduces && collective->op != WEFT_OP_BROADCAST) {
        return "unknown operator";
    }
    if ((int)collective->reduction < (int)WEFT_SUM || (int)collective->reduction > (int)WEFT_MAX) {
        return "unknown reduction";
    }
    if (collective->group != 0 || collective->root >= plan->world_size) {
        return "no such group or root";
    }
    if (collective->buffer >= plan->buffer_count) {
        return "no such buffer";
    }
    if (collective->source != collective->buffer || collective->update != WEFTI_PLAN_NONE) {
        return "only collectives in place, without an update, are known";
    }
    if (collective->dtype != plan->buffers[collective->buffer].dtype ||
        (reduces && collective->dtype == WEFT_DTYPE_BOOL)) {
        return "its dtype is not its buffer's, or cannot be reduced";
    }
    if (strcmp(collective->order, "tree") != 0) {
        return "unknown reduction order";
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

/* Kinds that lie in regions: what a range may cover. */
static int in_region(wefti_buffer_kind_t kind)
{
    return kind == WEFTI_BUFFER_PARAM || kind == WEFTI_BUFFER_GRAD || kind == WEFTI_BUFFER_STATE;
}

/* What is wrong with one member, which must begin at *next, or NULL; then *next is its padded end.
 */
static const char *check_member(const weft_plan_t *plan, const wefti_plan_collective_t *collective,
                                uint32_t index, uint64_t *next)
{
    const wefti_plan_buffer_t *member, *first;
    if (collective->members[index] >= plan->buffer_count) {
        return "a member is no buffer";
    }
    member = &plan->buffers[collective->members[index]];
    first = &plan->buffers[collective->members[0]]; /* itself, or checked before */
    if (member->kind == WEFTI_BUFFER_RANGE || member->dtype != collective->dtype ||
        member->kind != first->kind) {
        return "its members differ in kind or dtype";
    }
    if (index > 0 && member->offset_bytes != *next) {
        return "its members do not follow one another";
    }
    *next = member->offset_bytes + wefti_plan_padded_bytes(member->size_bytes);
    return NULL;
}

/* The range begins in the first member and ends in the last, or NULL. */
static const char *check_ends(const weft_plan_t *plan, const wefti_plan_collective_t *collective,
                              uint64_t padded_end)
{
    const wefti_plan_buffer_t *range = &plan->buffers[collective->buffer];
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
    if (end > padded_end || end < last->offset_bytes ||
        (end == last->offset_bytes && last->size_bytes > 0)) {
        return "its buffer does not end with its last member";
    }
    if (!whole && (collective->op != WEFT_OP_ALL_REDUCE || first->kind != WEFTI_BUFFER_GRAD ||
                   range->kind != WEFTI_BUFFER_RANGE)) {
        return "only gradients are reduced in pieces";
    }
    return NULL;
}

static const char *check_members(const weft_plan_t *plan, const wefti_plan_collective_t *collective)
{
    const wefti_plan_buffer_t *range = &plan->buffers[collective->buffer];
    uint64_t next = 0; /* where the next member must begin */
    uint64_t bytes;
    if (__builtin_mul_overflow(collective->elem_count, weft_dtype_size_bytes(collective->dtype),
                               &bytes) ||
        bytes != range->size_bytes) {
        return "its element count is not its buffer's";
    }
    for (uint32_t i = 0; i < collective->member_count; i++) {
        const char *what = check_member(plan, collective, i, &next);
        if (what) {
            return what;
        }
    }
    if (range->kind == WEFTI_BUFFER_RANGE &&
        !in_region(plan->buffers[collective->members[0]].kind)) {
        return "a range covers parameters, gradients or state";
    }
    if (range->kind != WEFTI_BUFFER_RANGE &&
        (collective->member_count != 1 || collective->members[0] != collective->buffer)) {
        return "its only member must be its buffer";
    }
    return check_ends(plan, collective, next);
}

weft_status_t wefti_plan_verify_collectives(const weft_plan_t *plan)
{
    for (uint32_t i = 0; i < plan->collective_count; i++) {
        const char *what = check_parameters(plan, &plan->collectives[i]);
        if (!what) {
            what = check_members(plan, &plan->collectives[i]);
        }
        if (what) {
            return bad_collective(plan, i, what);
        }
    }
    return WEFT_OK;
}
