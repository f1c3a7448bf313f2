/* SPDX-License-Identifier: Apache-2.0 */
/* A world of one, and the copy to start a new backend from. */
#include "transport/endpoint.h"

#include <string.h>
#include <unistd.h>

typedef struct null_endpoint {
    wefti_endpoint_t base;
    wefti_range_t range;
} null_endpoint_t;
_Static_assert(offsetof(null_endpoint_t, base) == 0, "the base is member 0");

static weft_status_t null_open(wefti_endpoint_t *endpoint, const wefti_endpoint_params_t *params)
{
    (void)params;
    endpoint->control[0] = wefti_alloc(endpoint->allocator, sizeof(wefti_mapped_control_t));
    if (endpoint->control[0] == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    endpoint->control[0]->pid = (uint32_t)getpid();
    return WEFT_OK;
}

static void null_close(wefti_endpoint_t *endpoint)
{
    null_endpoint_t *null = (null_endpoint_t *)endpoint;
    if (!endpoint->region_kept) {
        wefti_range_unmap(&null->range);
    }
    wefti_free(endpoint->allocator, endpoint->control[0]);
}

static weft_status_t null_region_grow(wefti_endpoint_t *endpoint, size_t bytes, bool later)
{
    null_endpoint_t *null = (null_endpoint_t *)endpoint;
    weft_status_t status = wefti_range_grow(&null->range, endpoint, bytes, later);
    endpoint->region_of[0] = null->range.base;
    return wefti_endpoint_agree(endpoint, status);
}

static weft_status_t null_region_commit(wefti_endpoint_t *endpoint, size_t offset, size_t bytes)
{
    return wefti_range_commit(&((null_endpoint_t *)endpoint)->range, endpoint, offset,
                              offset + bytes);
}

const wefti_transport_ops_t wefti_transport_null = {
    .name = "null",
    .endpoint_bytes = sizeof(null_endpoint_t),
    .open = null_open,
    .close = null_close,
    .region_grow = null_region_grow,
    .region_commit = null_region_commit,
    .region_map = wefti_region_map_unsupported,
    .check_peers = wefti_mapped_all_alive,
    .check_all_peers = wefti_mapped_all_alive,
    WEFTI_TRANSPORT_MAPPED,
};
