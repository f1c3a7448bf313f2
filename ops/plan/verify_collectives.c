/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives: a range covers its members without a gap, and nothing else. */
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
    int reduces = collective->op == WEFTI_COLLECTIVE_ALL_REDUCE;
    if (!reduces && collective->op != WEFTI_COLLECTIVE_BROADCAST) {
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

static const char *check_members(const weft_plan_t *plan, const wefti_plan_collective_t *collective)
{
    const wefti_plan_buffer_t *range = &plan->buffers[collective->buffer];
    uint64_t next = range->offset_bytes; /* where the next member must begin */
    uint64_t end = next;                 /* of the payload so far */
    uint64_t bytes;
    if (__builtin_mul_overflow(collective->elem_count, weft_dtype_size_bytes(collective->dtype),
                               &bytes) ||
        bytes != range->size_bytes) {
        return "its element count is not its buffer's";
    }
    for (uint32_t i = 0; i < collective->member_count; i++) {
        if (collective->members[i] >= plan->buffer_count) {
            return "a member is no buffer";
        }
        const wefti_plan_buffer_t *member = &plan->buffers[collective->members[i]];
        if (member->kind == WEFTI_BUFFER_RANGE || member->dtype != collective->dtype ||
            member->kind != plan->buffers[collective->members[0]].kind) {
            return "its members differ in kind or dtype";
        }
        if (member->offset_bytes != next) {
            return "its members do not follow one another from its buffer's start";
        }
        end = member->offset_bytes + member->size_bytes;
        next = member->offset_bytes + wefti_plan_padded_bytes(member->size_bytes);
    }
    if (range->kind == WEFTI_BUFFER_RANGE &&
        !in_region(plan->buffers[collective->members[0]].kind)) {
        return "a range covers parameters, gradients or state";
    }
    if (range->kind != WEFTI_BUFFER_RANGE &&
        (collective->member_count != 1 || collective->members[0] != collective->buffer)) {
        return "its only member must be its buffer";
    }
    uint64_t range_end = range->offset_bytes + range->size_bytes;
    return range_end < end || range_end > next ? "its buffer does not end with its last member"
                                               : NULL;
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
