/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/ops/support_hosts.h"

#include "runtime/base/error.h"

static weft_status_t make(uint32_t host_count, const weft_allocator_t *allocator,
                          wefti_topology_t *out)
{
    *out = (wefti_topology_t){.allocator = allocator};
    out->host_sizes = wefti_alloc(allocator, (host_count + 1ul) * sizeof *out->host_sizes);
    return out->host_sizes != NULL ? WEFT_OK : WEFT_ERR_NO_MEMORY;
}

weft_status_t wefti_topology_from_hosts(const uint64_t *host_of_rank, uint32_t rank_count,
                                        const weft_allocator_t *allocator, wefti_topology_t *out)
{
    weft_status_t status = make(rank_count, allocator, out);
    for (uint32_t rank = 0; rank < rank_count && status >= 0; rank++) {
        if (rank == 0 || host_of_rank[rank] != host_of_rank[rank - 1]) {
            out->host_count++;
        }
        out->host_sizes[out->host_count - 1]++;
    }
    out->rank_count = status >= 0 ? rank_count : 0;
    return status;
}

weft_status_t wefti_topology_from_cluster(const wefti_cluster_t *cluster,
                                          const weft_allocator_t *allocator, wefti_topology_t *out)
{
    weft_status_t status = make(cluster->rank_count, allocator, out);
    for (uint32_t rank = 0; rank < cluster->rank_count && status >= 0; rank++) {
        if (rank == 0 || cluster->ranks[rank].host != cluster->ranks[rank - 1].host) {
            out->host_count++;
        }
        out->host_sizes[out->host_count - 1]++;
    }
    out->rank_count = status >= 0 ? cluster->rank_count : 0;
    return status;
}

weft_status_t wefti_topology_decode(const char *text, size_t bytes,
                                    const weft_allocator_t *allocator, wefti_topology_t *out)
{
    wefti_cluster_t cluster;
    *out = (wefti_topology_t){.allocator = allocator};
    weft_status_t status = wefti_cluster_decode(text, bytes, NULL, NULL, allocator, &cluster);
    if (status >= 0) {
        status = wefti_topology_from_cluster(&cluster, allocator, out);
        wefti_cluster_deinit(&cluster);
    }
    return status;
}

void wefti_topology_deinit(wefti_topology_t *topology)
{
    wefti_free(topology->allocator, topology->host_sizes);
    *topology = (wefti_topology_t){0};
}
