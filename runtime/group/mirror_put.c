/* SPDX-License-Identifier: Apache-2.0 */
/* Keeps mirrors up to date. A put that fails breaks the group. */
#include "runtime/group/mirror.h"

/* To all peers over put links: bytes of this rank's channel from offset from, then a counter. */
static void put_to_all(weft_group_t *group, size_t from, size_t bytes, size_t counter,
                       uint32_t value)
{
    const uint8_t *own = (const uint8_t *)group->channels[group->rank];
    weft_status_t status = WEFT_OK;
    for (uint32_t i = 0; i < group->put_peer_count && status == WEFT_OK; i++) {
        status =
            wefti_mirror_send(group, group->put_peers[i], from, own + from, bytes, counter, value);
    }
    if (status < 0) {
        wefti_group_fail(group, status);
    }
}

void wefti_mirror_slot(weft_group_t *group, const wefti_call_slot_t *own, uint32_t number,
                       size_t data_bytes)
{
    /* Which of the two it is: at the same place in every channel and mirror. */
    size_t at = (size_t)((const uint8_t *)own - (const uint8_t *)group->channels[group->rank]);
    size_t from = offsetof(wefti_call_slot_t, what);
    put_to_all(group, at + from, offsetof(wefti_call_slot_t, data) + data_bytes - from, at, number);
}

void wefti_mirror_done(weft_group_t *group, uint32_t number)
{
    put_to_all(group, 0, 0, offsetof(wefti_channel_t, done), number);
}

weft_status_t wefti_mirror_posted(weft_group_t *group, uint32_t peer, wefti_mailbox_t *own,
                                  uint32_t piece, const void *data, size_t bytes)
{
    size_t head = offsetof(wefti_mailbox_t, head) + (piece & 1u) * sizeof own->head[0];
    size_t buffer = sizeof(wefti_mailbox_t) + (piece & 1u) * wefti_mailbox_bytes(&group->layout);
    weft_status_t status = wefti_mirror_put(group, peer, WEFTI_MIRROR_MAILBOX + head,
                                            &own->head[piece & 1u], sizeof own->head[0]);
    /* before it is sent: a rank must not be taken for one that has not sent it */
    wefti_signal_publish(&own->posted.signal, piece);
    if (status == WEFT_OK) {
        status = wefti_mirror_send(group, peer, WEFTI_MIRROR_MAILBOX + buffer, data, bytes,
                                   WEFTI_MIRROR_MAILBOX + offsetof(wefti_mailbox_t, posted), piece);
    }
    return status < 0 ? wefti_group_fail(group, status) : WEFT_OK;
}

weft_status_t wefti_mirror_consumed(weft_group_t *group, uint32_t peer, uint32_t piece)
{
    wefti_signal_publish(&wefti_mailbox_of(group, group->rank, peer)->consumed.signal, piece);
    weft_status_t status = wefti_mirror_send(
        group, peer, 0, NULL, 0, WEFTI_MIRROR_MAILBOX + offsetof(wefti_mailbox_t, consumed), piece);
    return status < 0 ? wefti_group_fail(group, status) : WEFT_OK;
}
