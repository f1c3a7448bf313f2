/* SPDX-License-Identifier: Apache-2.0 */
/* Signatures of calls as text, and the error of ranks whose calls differ. */
#include "runtime/collective/call_late.h"
#include "runtime/collective/fused.h"

#include <stdio.h>
#include <string.h>

#include "runtime/base/error.h"

#define WHAT_REDUCTION (0xfull << 16)
#define WHAT_ROOT (0xffffull << WEFTI_WHAT_ROOT_SHIFT)

/* "all_reduce": what the function is called, without its prefix. */
static const char *function_name(uint64_t what)
{
    return wefti_collective_function((weft_collective_t)(what & 0xff));
}

/* What follows the name: " with 16 x f32 (sum, root 1)"; hidden: bits of what that need not be
 * told. */
static void arguments_text(uint64_t what, uint64_t count, uint64_t hidden, char *out, size_t bytes)
{
    weft_collective_t value = (weft_collective_t)(what & 0xff);
    const wefti_collective_t *op = wefti_collective_of(value);
    const char *dtype = weft_dtype_name((weft_dtype_t)(what >> 8 & 0xff));
    char notes[80] = "";
    size_t used = 0;
    if (op->reduces && (hidden & WHAT_REDUCTION) == 0) {
        used = (size_t)snprintf(notes, sizeof notes, ", %s",
                                weft_reduction_name((weft_reduction_t)(what >> 16 & 0xf)));
    }
    if (op->rooted && value != WEFT_COLLECTIVE_SEND_RECV && (hidden & WHAT_ROOT) == 0) {
        used += (size_t)snprintf(notes + used, sizeof notes - used, ", root %u",
                                 (unsigned int)(what >> WEFTI_WHAT_ROOT_SHIFT & 0xffff));
    }
    if (wefti_collective_has_shared_counts(value)) {
        used += (size_t)snprintf(notes + used, sizeof notes - used, ", counts %016llx",
                                 (unsigned long long)count);
    }
    if (value == WEFT_COLLECTIVE_BARRIER) {
        out[0] = '\0';
        return;
    }
    if ((what & WEFTI_WHAT_FUSED) != 0 || op->variable) {
        snprintf(out, bytes, " of %s", dtype);
    } else { /* count is a block's where a rank gives one to each */
        bool blocks = op->send.extent == WEFT_EXTENT_BLOCKS;
        snprintf(out, bytes, " with %llu x %s%s", (unsigned long long)count, dtype,
                 blocks ? " per rank" : "");
    }
    size_t end = strlen(out);
    snprintf(out + end, bytes - end, "%s%s%s%s", used > 0 ? " (" : "", used > 0 ? notes + 2 : "",
             used > 0 ? ")" : "", what & WEFTI_WHAT_FUSED ? ", fused calls of a batch" : "");
}

const char *wefti_what_text(uint64_t what, uint64_t count, char *buffer)
{
    size_t used = (size_t)snprintf(buffer, 40, "%s", function_name(what));
    arguments_text(what, count, 0, buffer + used, 160 - used);
    return buffer;
}

typedef struct side { /* of a disagreement */
    uint32_t rank;    /* in the world */
    uint64_t what, count;
} side_t;

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
        hidden =
            (differs & WHAT_REDUCTION ? 0 : WHAT_REDUCTION) | (differs & WHAT_ROOT ? 0 : WHAT_ROOT);
    }
    char high_text[240], low_text[240];
    arguments_text(high->what, high->count, hidden, high_text, 160);
    arguments_text(low->what, low->count, hidden, low_text, 160);
    if ((differs & WEFTI_WHAT_SELECTION_MASK) != 0) {
        wefti_select_text(group->context, high->what, high_text + strlen(high_text), 80);
        wefti_select_text(group->context, low->what, low_text + strlen(low_text), 80);
    }
    return wefti_mismatch(&(wefti_caller_t){high->rank, function_name(high->what), high_text},
                          &(wefti_caller_t){low->rank, function_name(low->what), low_text});
}

weft_status_t wefti_group_mismatch(weft_group_t *group, const wefti_deferred_t *own, uint32_t peer)
{
    const wefti_call_slot_t *theirs = wefti_call_slot_of(group, peer, own->number);
    bool first = group->rank < peer;
    if (own->what & theirs->what & WEFTI_WHAT_FUSED) {
        const wefti_call_slot_t *mine = wefti_call_slot_of(group, group->rank, own->number);
        char where[160], text[160];
        if (wefti_fused_difference(first ? mine : theirs, first ? group->rank : peer,
                                   first ? theirs : mine, first ? peer : group->rank, where,
                                   sizeof where)) {
            wefti_error(WEFT_ERR_MISMATCH, "batch: ranks submitted different calls, %s: %s",
                        wefti_what_text(own->what, own->count, text), where);
            return wefti_group_fail(group, WEFT_ERR_MISMATCH);
        }
    }
    const side_t ours = {group->ranks[group->rank], own->what, own->count};
    const side_t other = {group->ranks[peer], theirs->what, theirs->count};
    /* The higher rank first, so that both sides report the same text. */
    return wefti_group_fail(group, differ(group, first ? &other : &ours, first ? &ours : &other));
}
