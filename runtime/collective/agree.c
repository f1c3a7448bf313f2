/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/collective/agree.h"

#include <stdio.h>

#include "runtime/base/error.h"
#include "runtime/collective/submit.h"

typedef struct outcome {
    int32_t status;
    uint32_t agreed; /* text begins with the rank that failed */
    char text[392];
} outcome_t;

weft_status_t wefti_group_all_gather(weft_group_t *group, const void *own, size_t bytes,
                                     void *out_all)
{
    bool before = wefti_group_own_calls(group, true);
    weft_status_t status = weft_all_gather(own, out_all, bytes, WEFT_DTYPE_U8, group, NULL);
    wefti_group_own_calls(group, before);
    return status;
}

static weft_status_t look_for_room(void *user)
{
    weft_group_t *group = user;
    wefti_context_progress(group->context);
    return wefti_group_broken(group) ? wefti_group_check(group) : WEFT_OK;
}

/* The ring is full of calls: until the next one of them has ended. */
static weft_status_t await_room(weft_group_t *group)
{
    wefti_signal_t *completed = &group->calls->completed.signal;
    uint32_t next = atomic_load_explicit(&completed->value, memory_order_relaxed) + 1;
    WEFT_RETURN_IF_ERROR(look_for_room(group));
    return next == group->calls->issued + 1 /* a device is about to end the last one */
               ? WEFT_OK
               : wefti_wait_signal(group->endpoint, completed, next, "a call of a group",
                                   look_for_room, group);
}

weft_status_t wefti_group_meet(weft_group_t *group, weft_status_t status)
{
    char text[WEFTI_REFUSAL_BYTES];
    weft_status_t met;
    snprintf(text, sizeof text, "%s", status < 0 ? weft_last_error() : "");
    do {
        met = status < 0 ? wefti_call_refuse(group, NULL, wefti_error_adopt(status, text))
                         : wefti_group_all_gather(group, NULL, 0, NULL);
    } while (met == WEFT_AGAIN && (met = await_room(group)) == WEFT_OK);
    return met;
}

weft_status_t wefti_group_agree(weft_group_t *group, weft_status_t status)
{
    outcome_t own = {.status = status < 0 ? status : WEFT_OK};
    snprintf(own.text, sizeof own.text, "%s", status < 0 ? weft_last_error() : "");
    own.agreed = status < 0 && wefti_error_is_agreed();
    outcome_t *all = wefti_alloc(group->context->allocator, group->size * sizeof *all);
    if (all == NULL) {
        return wefti_group_fail(group, WEFT_ERR_NO_MEMORY);
    }
    weft_status_t gathered;
    do {
        gathered = wefti_group_all_gather(group, &own, sizeof own, all);
    } while (gathered == WEFT_AGAIN && (gathered = await_room(group)) == WEFT_OK);
    for (uint32_t r = 0; gathered == WEFT_OK && r < group->size; r++) {
        if (all[r].status < 0) {
            all[r].text[sizeof all[r].text - 1] = '\0';
            gathered = wefti_error_agreed((weft_status_t)all[r].status, group->ranks[r],
                                          all[r].agreed != 0, all[r].text);
        }
    }
    wefti_free(group->context->allocator, all);
    return gathered;
}

weft_status_t wefti_group_gather(weft_group_t *group, weft_status_t status, const void *own,
                                 size_t bytes, void *out_all)
{
    const weft_allocator_t *allocator = group->context->allocator;
    void *all = status < 0 ? NULL : wefti_alloc(allocator, group->size * bytes);
    *(void **)out_all = NULL;
    status =
        wefti_group_agree(group, status == WEFT_OK && all == NULL ? WEFT_ERR_NO_MEMORY : status);
    if (status == WEFT_OK) {
        status = wefti_group_all_gather(group, own, bytes, all);
    }
    if (status != WEFT_OK) {
        wefti_free(allocator, all);
        return status;
    }
    *(void **)out_all = all;
    return WEFT_OK;
}
