/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where ranks outnumber cores, every wait for a rank costs a change of processes. So in an
 * all-reduce in place the first rank that runs on a core does the shares of those that would run
 * there after it, which then find the call done: one change less for each of them, and no core
 * idles while another has work.
 */
#include "runtime/collective/call.h"

#define HELP_MIN_BYTES 3072u /* below, data in postings needs as many turns, and less besides */

uint32_t wefti_call_offer_help(const wefti_call_t *call)
{
    const weft_group_t *group = call->group;
    /* Done would not say any more that a rank has staged its ends. */
    bool whole = call->ends.lead + call->ends.trail == 0;
    return call->op == WEFT_COLLECTIVE_ALL_REDUCE && !group->endpoint->may_spin &&
                   group->size > 2 && call->longest >= HELP_MIN_BYTES && whole
               ? WEFTI_POSTED_HELPS
               : 0;
}

/* True for one rank of all that ask. */
static bool claim(wefti_channel_t *channel, uint32_t number)
{
    uint32_t before = atomic_load_explicit(&channel->claimed, memory_order_relaxed);
    /* relaxed: that all have posted was acquired before; done publishes the work */
    return before != number &&
           atomic_compare_exchange_strong_explicit(&channel->claimed, &before, number,
                                                   memory_order_relaxed, memory_order_relaxed);
}

weft_status_t wefti_call_all_reduce_helping(wefti_call_t *call, wefti_share_fn move_share)
{
    weft_group_t *group = call->group;
    weft_status_t status = WEFT_OK;
    for (uint32_t i = 0; status == WEFT_OK && i < group->size; i++) {
        uint32_t r = (group->rank + i) % group->size;
        wefti_channel_t *channel = group->channels[r];
        if (wefti_group_broken(group)) {
            return wefti_group_check(group);
        }
        if (claim(channel, call->number)) {
            status = move_share(call, r);
            if (status == WEFT_OK) {
                wefti_signal_post(&channel->done.signal, call->number);
            }
        }
    }
    /* What is left is at work on other cores, and soon done: giving this one up takes longer. */
    uint32_t left = WEFTI_TRIES;
    for (uint32_t r = 0; status == WEFT_OK && r < group->size && left > 0; r++) {
        while (!wefti_signal_has_reached(&group->channels[r]->done.signal, call->number) &&
               --left > 0) {
        }
    }
    return status;
}
