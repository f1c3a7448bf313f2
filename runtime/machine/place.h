/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which cores, NUMA node and network interface each rank of a host gets. Pure functions of the
 * description, so that they can be tested on machines that nobody has.
 */
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
 * Processors of rank `index` of `count` on a host, among those allowed (NULL: all of the host's);
 * growing, in arena. Every rank gets as many cores, so that none is slower by design: ranks are
 * spread over sockets, NUMA nodes and caches and stay within one of them where that costs at most a
 * quarter of the cores; what does not divide stays free. With more ranks than cores, second
 * hardware threads are given out, and with more ranks than those, they are shared.
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

/*
 * The network interface of each rank (wefti_topo_rank_t.nic): one behind the same switch as the
 * rank's card, on its NUMA node (or one of them), on its socket, or any, in this order; among
 * equals the fastest; ranks with the same choice take turns.
 */
void wefti_place_nics(wefti_cluster_t *cluster);
/* "same PCI switch", "same NUMA node", "one of its NUMA nodes", "same socket", "other socket", or
 * "" where nobody knows.
 */
const char *wefti_place_nic_why(const wefti_cluster_t *cluster, uint32_t rank);

/* Which of its host's interfaces in use each rank has, counted from 0 on every host; into
 * rail_of[rank_count]. Returns how many the host with the most has; 1: nobody knows of several. */
uint32_t wefti_place_rails(const wefti_cluster_t *cluster, uint32_t *rail_of);

/* Of a rank's processors the one for its communication thread: next to the interface, the last
 * one. WEFTI_TOPO_NONE: it has none. */
uint32_t wefti_place_progress_cpu(const wefti_hardware_t *hardware, const wefti_topo_device_t *nic,
                                  const uint32_t *cpus, uint32_t count);
/* Is a processor of the host next to a device? All are where nobody knows. */
bool wefti_place_is_near(const wefti_hardware_t *hardware, const wefti_topo_device_t *device,
                         uint32_t cpu);

#endif
