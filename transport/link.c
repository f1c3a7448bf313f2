/* SPDX-License-Identifier: Apache-2.0 */
/* Writing to a peer's region by put and signal: the checks, and both where regions are mapped. */
#include "transport/transport.h"

#include <string.h>

#include "runtime/base/error.h"
#include "transport/endpoint.h"

/* A counter's value and waiters. */
#define COUNTER_BYTES 8u

static weft_status_t check_place(wefti_endpoint_t *endpoint, const char *what, uint32_t peer,
                                 size_t offset, size_t bytes, uint32_t lane)
{
    if (!wefti_endpoint_owned(endpoint)) {
        return wefti_endpoint_check(endpoint);
    }
    if (peer >= endpoint->world_size || lane >= WEFTI_LINK_LANES) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "%s: out of range: peer %u of %u, lane %u of %u", what, peer,
                           endpoint->world_size, lane, WEFTI_LINK_LANES);
    }
    if (endpoint->device != NULL) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "%s: unsupported on device memory of '%s'", what,
                           endpoint->device->ops->name);
    }
    /* Relaxed: it only grows, and who knows of an offset has it from after the growth. */
    size_t limit = atomic_load_explicit(&endpoint->region_bytes, memory_order_relaxed);
    if (offset > limit || bytes > limit - offset) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "%s: out of range: %zu bytes at offset %zu of rank %u, region size %zu",
                           what, bytes, offset, peer, limit);
    }
    return WEFT_OK;
}

weft_status_t wefti_put_zero_copy(wefti_endpoint_t *endpoint, uint32_t peer, size_t offset,
                                  const void *data, size_t bytes, uint32_t lane,
                                  wefti_signal_t *in_use)
{
    WEFT_RETURN_IF_ERROR(check_place(endpoint, "put", peer, offset, bytes, lane));
    if (bytes == 0) {
        return WEFT_OK;
    }
    if (data == NULL) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "put: data is NULL");
    }
    return endpoint->ops->put(endpoint, peer, offset, data, bytes, lane, in_use);
}

void wefti_source_release(wefti_signal_t *in_use, uint32_t parts)
{
    /* release: data was read before. Waiters are not counted first: the owner may be gone. */
    if (atomic_fetch_add_explicit(&in_use->value, parts, memory_order_release) + parts == 0) {
        wefti_futex_wake_all(&in_use->value);
    }
}

weft_status_t wefti_signal_peer(wefti_endpoint_t *endpoint, uint32_t peer, size_t offset,
                                uint32_t value, uint32_t lane)
{
    WEFT_RETURN_IF_ERROR(check_place(endpoint, "signal", peer, offset, COUNTER_BYTES, lane));
    if (offset % COUNTER_BYTES != 0) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "signal: offset %zu is not a multiple of %u",
                           offset, COUNTER_BYTES);
    }
    return endpoint->ops->signal(endpoint, peer, offset, value, lane);
}

weft_status_t wefti_put_direct(wefti_endpoint_t *endpoint, uint32_t peer, size_t offset,
                               const void *data, size_t bytes, uint32_t lane,
                               wefti_signal_t *in_use)
{
    (void)lane, (void)in_use; /* data is not used after the return */
    memmove(endpoint->region_of[peer] + offset, data, bytes);
    return WEFT_OK;
}

void wefti_link_order(void)
{
    static _Atomic uint32_t order;
    atomic_fetch_add_explicit(&order, 1, memory_order_acq_rel);
}

void wefti_link_raise(wefti_signal_t *signal, uint32_t value)
{
    /* Relaxed: a counter has one writer, which is the one calling this. */
    if (!wefti_signal_reached(atomic_load_explicit(&signal->value, memory_order_relaxed), value)) {
        wefti_signal_post(signal, value);
    }
}

weft_status_t wefti_signal_direct(wefti_endpoint_t *endpoint, uint32_t peer, size_t offset,
                                  uint32_t value, uint32_t lane)
{
    (void)lane;
    wefti_link_raise((wefti_signal_t *)(void *)(endpoint->region_of[peer] + offset), value);
    return WEFT_OK;
}

bool wefti_endpoint_flush(wefti_endpoint_t *endpoint)
{
    return !wefti_endpoint_owned(endpoint) || endpoint->ops->flush(endpoint->host);
}
