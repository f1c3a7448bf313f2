/* SPDX-License-Identifier: Apache-2.0 */
/* What a program asks of a group: the order of its reductions, algorithms by name. */
#include "runtime/collective/recorder.h"
#include "runtime/collective/schedule_cache.h"

#include "runtime/base/check.h"
#include "runtime/base/error.h"

/* Waits for the calls in flight: they were issued under the present order. */
static weft_status_t check_quiet(weft_group_t *group)
{
    WEFT_RETURN_IF_ERROR(wefti_recorder_check(group, "set its order or its algorithms"));
    WEFT_RETURN_IF_ERROR(wefti_group_check_lasting(group));
    return wefti_group_drain(group);
}

weft_status_t weft_group_set_order(weft_group_t *group, weft_order_t order,
                                   const uint32_t *block_sizes, uint32_t count)
{
    WEFT_CHECK_ARG(group);
    WEFT_RETURN_IF_ERROR(check_quiet(group));
    if ((uint32_t)order > WEFT_ORDER_ANY) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "order: invalid value %d: expected a weft_order_t", (int)order);
    }
    if (order == WEFT_ORDER_BLOCKS) {
        if (block_sizes == NULL || count == 0 || count > group->size) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                               "block_sizes: must have 1 to %u sizes for group size %u: %u",
                               group->size, group->size, block_sizes != NULL ? count : 0);
        }
        for (uint32_t i = 0; i < count; i++) {
            if (block_sizes[i] == 0) {
                return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                                   "block_sizes[%u]: must be at least 1: 0", i);
            }
        }
        if (wefti_select_sum(block_sizes, count) != group->size) {
            return wefti_error(
                WEFT_ERR_INVALID_ARGUMENT, "block_sizes: sum to %llu ranks, group size is %u",
                (unsigned long long)wefti_select_sum(block_sizes, count), group->size);
        }
    }
    WEFT_RETURN_IF_ERROR(wefti_select_order(group, order, block_sizes, count));
    wefti_schedules_forget(group); /* built for the former order */
    return WEFT_OK;
}

weft_order_t weft_group_order(const weft_group_t *group)
{
    WEFT_CHECK_ARG_OR(group, WEFT_ORDER_TREE);
    return group->calls->selection.params.order;
}

weft_status_t weft_group_set_algorithm(weft_group_t *group, weft_collective_t op, const char *name)
{
    WEFT_CHECK_ARG(group);
    WEFT_RETURN_IF_ERROR(check_quiet(group));
    if (!wefti_collective_known(op) || op == WEFT_COLLECTIVE_SEND_RECV) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "op: invalid value %d: not a collective with a choice of algorithms",
                           (int)op);
    }
    const weft_algorithm_t *algorithm;
    WEFT_RETURN_IF_ERROR(wefti_context_find_algorithm(group->context, op, name, &algorithm));
    if (name != NULL && algorithm == NULL) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "%s: unknown algorithm \"%s\"",
                           weft_collective_name(op), name);
    }
    wefti_select_algorithm(group, op, algorithm);
    return WEFT_OK;
}
