/* SPDX-License-Identifier: Apache-2.0 */
/* Where ranks are as runs of consecutive ranks on hosts; cluster.h has all that is known. */
#ifndef WEFT_TESTS_OPS_SUPPORT_HOSTS_H
#define WEFT_TESTS_OPS_SUPPORT_HOSTS_H

#include "runtime/machine/cluster.h"

typedef struct wefti_topology {
    const weft_allocator_t *allocator;
    uint32_t rank_count, host_count;
    uint32_t *host_sizes; /* [host] ranks on it */
} wefti_topology_t;

/* From the host of every rank. Ranks of one host that are not neighbours count as several hosts. */
weft_status_t wefti_topology_from_hosts(const uint64_t *host_of_rank, uint32_t rank_count,
                                        const weft_allocator_t *allocator, wefti_topology_t *out);
weft_status_t wefti_topology_from_cluster(const wefti_cluster_t *cluster,
                                          const weft_allocator_t *allocator, wefti_topology_t *out);
/* Of a cluster's description. WEFT_ERR_FORMAT names the place. */
weft_status_t wefti_topology_decode(const char *text, size_t bytes,
                                    const weft_allocator_t *allocator, wefti_topology_t *out);
void wefti_topology_deinit(wefti_topology_t *topology);

#endif
