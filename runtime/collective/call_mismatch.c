/* SPDX-License-Identifier: Apache-2.0 */
/* The error of ranks whose calls differ. */
#include "runtime/collective/call_late.h"
#include "runtime/collective/call_meet.h"
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
    uint32_t rank;    /* in the group */
    uint64_t what, count;
    const wefti_fused_list_t *list;  /* of a fused call; else it is something else */
    const wefti_shape_note_t *shape; /* NULL: unknown */
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
        wefti_shape_text(high->count, high->shape, high_text + strlen(high_text), 80);
        wefti_shape_text(low->count, low->shape, low_text + strlen(low_text), 80);
    }
    return wefti_mismatch(&(wefti_caller_t){group->ranks[high->rank], high_name, high_text},
                          &(wefti_caller_t){group->ranks[low->rank], low_name, low_text});
}

/* The higher rank is named first, so that all ranks report the same text. */
static weft_status_t report(const weft_group_t *group, const side_t *high, const side_t *low)
{
    char where[320], text[160];
    if ((high->what & low->what & WEFTI_WHAT_FUSED) != 0 &&
        wefti_fused_difference(low->list, low->rank, high->list, high->rank, where, sizeof where)) {
        return wefti_error(WEFT_ERR_MISMATCH, "batch: ranks submitted different calls, %s: %s",
                           wefti_what_text(low->what, low->count, text), where);
    }
    return differ(group, high, low);
}

static side_t side_of(const weft_group_t *group, uint32_t rank, uint64_t what, uint64_t count,
                      const wefti_call_slot_t *slot)
{
    return (side_t){rank, what, count, (const wefti_fused_list_t *)(const void *)slot->data,
                    wefti_shape_of_slot(group, slot)};
}

weft_status_t wefti_group_mismatch(weft_group_t *group, const wefti_deferred_t *own, uint32_t peer)
{
    const wefti_call_slot_t *theirs = wefti_call_slot_of(group, peer, own->number);
    const wefti_call_slot_t *mine = wefti_call_slot_of(group, group->rank, own->number);
    const side_t ours = side_of(group, group->rank, own->what, own->count, mine);
    const side_t other = side_of(group, peer, theirs->what, theirs->count, theirs);
    bool first = group->rank < peer;
    return wefti_group_fail(group, report(group, first ? &other : &ours, first ? &ours : &other));
}

weft_status_t wefti_meet_mismatch(weft_group_t *group, const wefti_meet_record_t *met)
{
    if (met->sides[1].rank == WEFTI_MEET_NONE) {
        return WEFT_OK;
    }
    side_t sides[2];
    for (uint32_t i = 0; i < 2; i++) {
        const wefti_meet_side_t *from = &met->sides[i];
        const void *data = met->data[i];
        bool shaped = (from->what & WEFTI_WHAT_FUSED) == 0 && from->bytes > 0;
        sides[i] = (side_t){from->rank, from->what, from->count, data, shaped ? data : NULL};
    }
    return wefti_group_fail_here(group, report(group, &sides[1], &sides[0]));
}
