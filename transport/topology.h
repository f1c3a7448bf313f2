/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The machine as it is: what hwloc and /sys say about it, put into ops/topo's types; binding of
 * threads, memory and interrupts; and what all ranks tell each other about their machines.
 */
#ifndef WEFT_TRANSPORT_TOPOLOGY_H
#define WEFT_TRANSPORT_TOPOLOGY_H

#include "ops/topo/cluster.h"
#include "ops/topo/place.h"
#include "transport/transport.h"

/* topology_hwloc.c: this machine's cores and, if wanted, devices (that takes longer). */
weft_status_t wefti_hardware_discover(bool devices, wefti_arena_t *arena, wefti_hardware_t *out);
/* Another one's, from a file that lstopo or hwloc wrote; a wefti_hardware_file_fn. Speeds of
 * interfaces are what hwloc-annotate added as "Speed", in Mbit/s. */
weft_status_t wefti_hardware_from_xml(const char *path, wefti_arena_t *arena,
                                      wefti_hardware_t *out);

/*
 * interfaces.c: network interfaces as /sys tells of them, root being "/sys" but in tests. Those of
 * hardware, where hwloc found them before, keep their place; others are added: all that are
 * devices, and without any of these what else is up and leads out of here.
 */
weft_status_t wefti_interfaces_read(const char *root, wefti_arena_t *arena,
                                    wefti_hardware_t *hardware);

/* topology_exchange.c: collective: the world's cluster, from settings->topology or from what ranks
 * find, one of each machine; checked to be the same on all ranks. Initialises *out. */
weft_status_t wefti_cluster_gather(wefti_endpoint_t *endpoint, wefti_cluster_t *out,
                                   wefti_digest_t *out_digest);

/* binding.c: the calling thread's processors, growing, in arena. */
weft_status_t wefti_binding_read(wefti_arena_t *arena, uint32_t **out_cpus, uint32_t *out_count);
/*
 * Binds the calling thread, and what it starts, as rank index of count of this host, within the
 * processors that it has. Nothing is done where bind says so, or where there is only one to choose.
 */
weft_status_t wefti_binding_apply(uint32_t index, uint32_t count, wefti_bind_t bind);
/*
 * Memory at [address, address + bytes), not touched yet, is to come from the NUMA node that the
 * calling thread is bound to. Nothing happens on machines with one node, to threads of several
 * nodes, and where the system refuses. root: "/sys" but in tests.
 */
void wefti_binding_prefer_near(void *address, size_t bytes);
/* That node's number to the system, -1: none. */
int wefti_binding_node(const char *root);

/* interrupts.c: interrupts of network interfaces. root: "" but in tests. */
typedef struct wefti_interrupt {
    uint32_t number;
    char interface[32];
    char name[64];      /* as /proc/interrupts has it: "eth0-TxRx-3" */
    char affinity[256]; /* "0-3"; "" where it cannot be read */
} wefti_interrupt_t;
weft_status_t wefti_interrupts_read(const char *root, const wefti_hardware_t *hardware,
                                    wefti_arena_t *arena, wefti_interrupt_t **out,
                                    uint32_t *out_count);
/*
 * Gives each of them a processor next to its interface, one after the other; among those that are
 * near those in avoid are taken only if there are no others. *out_changed: how many now have
 * another one. WEFT_ERR_SYSTEM where the system forbids it (it takes root).
 */
weft_status_t wefti_interrupts_bind(const char *root, const wefti_hardware_t *hardware,
                                    const uint32_t *avoid, uint32_t avoid_count,
                                    wefti_interrupt_t *interrupts, uint32_t count,
                                    uint32_t *out_changed);

#endif
