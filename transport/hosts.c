/* SPDX-License-Identifier: Apache-2.0 */
/* A world of several hosts: shm or null inside each, links between them. */
#include "transport/endpoint.h"
#include "transport/links.h"

#include "runtime/base/error.h"

static weft_status_t hosts_open(wefti_endpoint_t *endpoint, const wefti_endpoint_params_t *params)
{
    (void)endpoint;
    return wefti_error(WEFT_ERR_UNSUPPORTED, "address \"%s\": only unix:@name and unix:/path",
                       params->address != NULL ? params->address : "");
}

static void hosts_close(wefti_endpoint_t *endpoint)
{
    (void)endpoint;
}

const wefti_transport_ops_t wefti_transport_hosts = {
    .abi_version = WEFTI_TRANSPORT_ABI_VERSION,
    .name = "hosts",
    .endpoint_bytes = sizeof(wefti_endpoint_t),
    .open = hosts_open,
    .close = hosts_close,
    .flush = wefti_flush_direct,
};
