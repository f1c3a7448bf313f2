/* SPDX-License-Identifier: Apache-2.0 */
/* What both sides of the rendezvous need. */
#include "transport/bootstrap/meet.h"

#include <string.h>

#include "runtime/base/digest.h"
#include "runtime/base/error.h"

#define INTERFACES_MAX 16u

static void add_address(wefti_card_t *card, const wefti_address_t *address)
{
    for (uint32_t i = 0; i < card->count; i++) {
        if (wefti_address_same_host(&card->addresses[i], address)) {
            return;
        }
    }
    if (card->count < WEFTI_CARD_ADDRESSES) {
        card->addresses[card->count++] = *address;
    }
}

/* The address this rank was seen by first: it is known to work. Loopback last, for ranks of this
 * host, unless the whole world is here. */
static weft_status_t choose_addresses(const wefti_meeting_t *meeting, const wefti_address_t *local,
                                      wefti_card_t *card)
{
    const char *patterns = meeting->settings->ifname;
    wefti_interface_t found[INTERFACES_MAX];
    uint32_t count = 0;
    *card = (wefti_card_t){0};
    if (meeting->place.loopback && local->loopback) {
        add_address(card, local);
        return WEFT_OK;
    }
    weft_status_t status = wefti_address_interfaces(patterns, found, INTERFACES_MAX, &count);
    if (status < 0) {
        return status;
    }
    if (count == 0 && patterns[0] != '\0') {
        return wefti_error(
            WEFT_ERR_INVALID_ARGUMENT,
            "rank %u: WEFT_IFNAME=%s matches no network interface that is up and has an address",
            meeting->rank, patterns);
    }
    for (uint32_t i = 0; i < count; i++) {
        if (!local->loopback && wefti_address_same_host(local, &found[i].address)) {
            add_address(card, local);
        }
    }
    if (patterns[0] == '\0' && !local->loopback && local->family != 0) {
        add_address(card, local); /* whatever interface it is of */
    }
    for (uint32_t i = 0; i < count; i++) {
        add_address(card, &found[i].address);
    }
    if (card->count == 0) {
        add_address(card, local);
    }
    return WEFT_OK;
}

weft_status_t wefti_meet_listen(wefti_meeting_t *meeting, const wefti_address_t *local,
                                wefti_card_t *out_card)
{
    wefti_address_t bound;
    weft_status_t status = choose_addresses(meeting, local, out_card);
    if (status < 0) {
        return status;
    }
    /* Not on more addresses than others are told of, where that is one. */
    status = wefti_mesh_listen(&meeting->mesh,
                               out_card->count == 1 ? &out_card->addresses[0] : NULL, &bound);
    if (status < 0) {
        return status;
    }
    for (uint32_t i = 0; i < out_card->count; i++) {
        out_card->addresses[i].port = bound.port;
    }
    meeting->local = out_card->addresses[0];
    return WEFT_OK;
}

weft_status_t wefti_meet_world_key(const wefti_meeting_t *meeting, const uint8_t *seed,
                                   uint8_t *out_key)
{
    wefti_digest_t key;
    weft_status_t status = wefti_hmac(meeting->place.secret, meeting->place.secret_bytes,
                                      "weft world", seed, 32, &key);
    memcpy(out_key, key.bytes, sizeof key.bytes);
    return status;
}
