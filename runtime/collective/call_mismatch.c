/* SPDX-License-Identifier: Apache-2.0 */
/* The error of ranks whose calls differ. */
#include "runtime/collective/call_late.h"
#include "runtime/collective/fused.h"

#include <stdio.h>
#include <string.h>

#include "runtime/base/error.h"

static const char *own_call(uint64_t what)
{
    uint32_t kind = wefti_what_control(what);
    return kind != 0 ? wefti_control_name(kind) : NULL;
}

const char *wefti_call_text(const wefti_call_t *call, char *buffer)
{
    const char *own = own_call(call->what);
    return own != NULL ? own : wefti_what_text(call->what, call->posted_count, buffer);
}

typedef struct side { /* of a disagreement */
    uint32_t rank;    /* in the world */
    uint64_t what, count;
    const wefti_call_slot_t *slot;
} side_t;

/* The name of what a side called, and in text what follows it. */
static const char *name_side(const side_t *side, uint64_t hidden, char *text, size_t bytes)
{
    const char *own = own_call(side->what);
    text[0] = '\0';
    if (own == NULL) {
        wefti_what_arguments(side->what, side->count, hidden, text, bytes);
    }
    return own != NULL ? own : wefti_what_function(side->what);
}

weft_status_t wefti_mismatch(const wefti_caller_t *high, const wefti_caller_t *low)
{
    bool same = strcmp(high->function, low->function) == 0;
    return wefti_error(WEFT_ERR_MISMATCH, "rank %u called %s%s, rank %u%s%s%s", high->rank,
                       high->function, high->arguments, low->rank, same ? "" : " called ",
                       same ? "" : low->function, low->arguments);
}

/* What they have in common is said once, if at all. */
static weft_status_t differ(const weft_group_t *group, const side_t *high, const side_t *low)
{
    uint64_t differs = high->what ^ low->what;
    uint64_t hidden = 0;
    if ((differs & 0xff) == 0) {
        hidden = (differs & WEFTI_WHAT_REDUCTION_MASK ? 0 : WEFTI_WHAT_REDUCTION_MASK) |
                 (differs & WEFTI_WHAT_ROOT_MASK ? 0 : WEFTI_WHAT_ROOT_MASK);
    }
    char high_text[240], low_text[240];
    const char *high_name = name_side(high, hidden, high_text, 160);
    const char *low_name = name_side(low, hidden, low_text, 160);
    if ((differs & WEFTI_WHAT_SELECTION_MASK) != 0) {
        wefti_select_text(group->context, high->what, high_text + strlen(high_text), 80);
        wefti_select_text(group->context, low->what, low_text + strlen(low_text), 80);
    }
    if ((differs & ~WEFTI_WHAT_FLAGS_MASK) == 0 && high->count != low->count &&
        ((high->count ^ low->count) & WEFTI_COUNT_MASK) == 0) {
        wefti_shape_text(group, high->count, high->slot, high_text + strlen(high_text), 80);
        wefti_shape_text(group, low->count, low->slot, low_text + strlen(low_text), 80);
    }
    return wefti_mismatch(&(wefti_caller_t){high->rank, high_name, high_text},
                          &(wefti_caller_t){low->rank, low_name, low_text});
}

weft_status_t wefti_group_mismatch(weft_group_t *group, const wefti_deferred_t *own, uint32_t peer)
{
    const wefti_call_slot_t *theirs = wefti_call_slot_of(group, peer, own->number);
    const wefti_call_slot_t *mine = wefti_call_slot_of(group, group->rank, own->number);
    bool first = group->rank < peer;
    if (own->what & theirs->what & WEFTI_WHAT_FUSED) {
        char where[320], text[160];
        if (wefti_fused_difference(first ? mine : theirs, first ? group->rank : peer,
                                   first ? theirs : mine, first ? peer : group->rank, where,
                                   sizeof where)) {
            wefti_error(WEFT_ERR_MISMATCH, "batch: ranks submitted different calls, %s: %s",
                        wefti_what_text(own->what, own->count, text), where);
            return wefti_group_fail(group, WEFT_ERR_MISMATCH);
        }
    }
    const side_t ours = {group->ranks[group->rank], own->what, own->count, mine};
    const side_t other = {group->ranks[peer], theirs->what, theirs->count, theirs};
    /* The higher rank first, so that both sides report the same text. */
    return wefti_group_fail(group, differ(group, first ? &other : &ours, first ? &ours : &other));
}
