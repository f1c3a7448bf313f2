/* SPDX-License-Identifier: Apache-2.0 */
/* What all ranks need for the rendezvous. */
#include "transport/bootstrap/rendezvous.h"

#include <stdio.h>
#include <string.h>

#include "runtime/base/digest.h"
#include "runtime/base/error.h"
#include "runtime/base/sync.h"

#define SECOND_NS 1000000000ull
#define INTERFACES_MAX 16u

static void add_address(wefti_endpoint_address_t *out, const wefti_address_t *address)
{
    for (uint32_t i = 0; i < out->count; i++) {
        if (wefti_address_same_host(&out->addresses[i], address)) {
            return;
        }
    }
    if (out->count < WEFTI_ENDPOINT_ADDRESSES) {
        out->addresses[out->count++] = *address;
    }
}

/* The address that reached rank 0 first: it is known to work. Loopback last, for ranks of this
 * host, unless the whole world is here. */
static weft_status_t choose_addresses(const wefti_rendezvous_t *rendezvous,
                                      const wefti_address_t *local, wefti_endpoint_address_t *out)
{
    const char *patterns = rendezvous->params->settings->ifname;
    wefti_interface_t found[INTERFACES_MAX];
    uint32_t count = 0;
    *out = (wefti_endpoint_address_t){0};
    if (rendezvous->place.loopback && local->loopback) {
        add_address(out, local);
        return WEFT_OK;
    }
    WEFT_RETURN_IF_ERROR(wefti_address_interfaces(patterns, found, INTERFACES_MAX, &count));
    if (count == 0 && patterns[0] != '\0') {
        return wefti_error(
            WEFT_ERR_INVALID_ARGUMENT,
            "rank %u: WEFT_IFNAME=%s matches no network interface that is up and has an address",
            rendezvous->params->job->rank, patterns);
    }
    bool allowed = patterns[0] == '\0' && local->family != 0; /* whatever interface it is of */
    for (uint32_t i = 0; i < count; i++) {
        allowed = allowed || wefti_address_same_host(local, &found[i].address);
    }
    if (allowed && !local->loopback) {
        add_address(out, local);
    }
    for (uint32_t i = 0; i < count; i++) {
        add_address(out, &found[i].address);
    }
    if (out->count == 0) {
        add_address(out, local);
    }
    return WEFT_OK;
}

weft_status_t wefti_rendezvous_listen(wefti_rendezvous_t *rendezvous, const wefti_address_t *local,
                                      wefti_endpoint_address_t *out_address)
{
    wefti_address_t bound;
    WEFT_RETURN_IF_ERROR(choose_addresses(rendezvous, local, out_address));
    wefti_mesh_deinit(&rendezvous->mesh); /* of an earlier attempt */
    /* On one address only, if others receive only that one. */
    WEFT_RETURN_IF_ERROR(
        wefti_mesh_listen(&rendezvous->mesh, rendezvous->params,
                          out_address->count == 1 ? &out_address->addresses[0] : NULL, &bound));
    for (uint32_t i = 0; i < out_address->count; i++) {
        out_address->addresses[i].port = bound.port;
    }
    rendezvous->address = *out_address;
    return WEFT_OK;
}

uint64_t wefti_connect_least_ns(const wefti_settings_t *settings)
{
    uint64_t part = settings->connect_timeout_ns / 4;
    return settings->connect_timeout_ns == 0 || part > 5 * SECOND_NS ? 5 * SECOND_NS
           : part < SECOND_NS                                        ? SECOND_NS
                                                                     : part;
}

weft_status_t wefti_rendezvous_connect(wefti_rendezvous_t *rendezvous, const wefti_table_t *table,
                                       const wefti_endpoint_address_t *addresses)
{
    wefti_digest_t key;
    uint64_t least = wefti_now_ns() + wefti_connect_least_ns(rendezvous->params->settings);
    weft_status_t status = wefti_hmac(rendezvous->place.secret, rendezvous->place.secret_bytes,
                                      "weft world", table->seed, sizeof table->seed, &key);
    if (status == WEFT_OK) {
        status =
            wefti_mesh_begin(&rendezvous->mesh, key.bytes, table->ranks, addresses, table->count,
                             rendezvous->deadline_ns > least ? rendezvous->deadline_ns : least);
    }
    wefti_forget(&key, sizeof key);
    return status;
}

wefti_verdict_t wefti_verdict_of(weft_status_t status)
{
    wefti_verdict_t verdict = {.status = status};
    snprintf(verdict.text, sizeof verdict.text, "%s", weft_last_error());
    return verdict;
}

weft_status_t wefti_verdict_adopt(const wefti_frame_t *frame, uint32_t from)
{
    wefti_verdict_t verdict;
    if (frame->bytes != sizeof verdict) {
        return wefti_error(WEFT_ERR_FORMAT, "malformed message from rank %u: error report", from);
    }
    memcpy(&verdict, frame->body, sizeof verdict);
    verdict.text[sizeof verdict.text - 1] = '\0';
    if (verdict.again != 0 && from == 0) { /* only rank 0 can send a rank on to another one */
        return WEFT_AGAIN;
    }
    return wefti_error_adopt(verdict.status < 0 ? (weft_status_t)verdict.status : WEFT_ERR_INTERNAL,
                             verdict.text);
}
