/* SPDX-License-Identifier: Apache-2.0 */
/* Which cores and network interface each rank of a host gets. Pure functions of the description, so
 * that any machine can be tested. */
#ifndef WEFT_RUNTIME_MACHINE_PLACE_H
#define WEFT_RUNTIME_MACHINE_PLACE_H

#include "runtime/machine/cluster.h"

typedef enum wefti_bind {
    WEFTI_BIND_AUTO = 0, /* what starts ranks binds them to cores; ranks that join do not */
    WEFTI_BIND_NONE = 1,
    WEFTI_BIND_CORE = 2, /* cores of its own, one hardware thread of each */
    WEFTI_BIND_NUMA = 3, /* all hardware threads of the NUMA nodes that its cores are on */
} wefti_bind_t;

/*
 * Processors of rank index of count on a host, among those allowed (NULL: all), growing, in arena.
 * All ranks get equally many cores, in one socket, NUMA node or cache where that costs at most a
 * quarter of the cores. More ranks than cores share them: first by second hardware threads.
 */
weft_status_t wefti_place_cpus(const wefti_hardware_t *hardware, const uint32_t *allowed,
                               uint32_t allowed_count, uint32_t index, uint32_t count,
                               wefti_bind_t bind, wefti_arena_t *arena, uint32_t **out_cpus,
                               uint32_t *out_count);
/* All ranks of all hosts of a cluster that have no processors yet. */
weft_status_t wefti_place_all(wefti_cluster_t *cluster, wefti_bind_t bind);

/* The socket and the NUMA node that all of the processors are on; WEFTI_TOPO_NONE: on several. */
void wefti_place_locate(const wefti_hardware_t *hardware, const uint32_t *cpus, uint32_t count,
                        uint32_t *out_socket, uint32_t *out_numa);

/* The network interface of each rank: behind the same switch as the rank's card, on its NUMA node
 * (or one of them), on its socket, or any, in this order; then the fastest; then in turn. */
void wefti_place_nics(wefti_cluster_t *cluster);
/* How near it is: "same NUMA node", or "" if that is unknown. */
const char *wefti_place_nic_why(const wefti_cluster_t *cluster, uint32_t rank);

/* For each rank which of its host's interfaces in use it has, counted from 0. Returns how many the
 * host with the most has, at least 1. */
uint32_t wefti_place_rails(const wefti_cluster_t *cluster, uint32_t *rail_of);

/* The last of a rank's processors that is next to the interface (NULL: the last one), for its
 * communication thread. WEFTI_TOPO_NONE: it has no processors. */
uint32_t wefti_place_progress_cpu(const wefti_hardware_t *hardware, const wefti_topo_device_t *nic,
                                  const uint32_t *cpus, uint32_t count);
/* Is a processor of the host next to a device? All are where nobody knows. */
bool wefti_place_is_near(const wefti_hardware_t *hardware, const wefti_topo_device_t *device,
                         uint32_t cpu);

#endif
