/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A cluster as data: hosts and their hardware, the placement of ranks, links between hosts. It is
 * read from a file (README.md), discovered (hwloc.c), or gathered from all ranks of a world.
 */
#ifndef WEFT_RUNTIME_MACHINE_CLUSTER_H
#define WEFT_RUNTIME_MACHINE_CLUSTER_H

#include <stdbool.h>

#include "runtime/base/digest.h"
#include "runtime/base/json.h"
#include "runtime/base/memory.h"

#define WEFTI_TOPO_NONE UINT32_MAX /* no such thing, or nobody knows which */
#define WEFTI_TOPO_MAX_HOSTS 8192u
#define WEFTI_TOPO_MAX_RANKS 65536u
#define WEFTI_TOPO_MAX_CORES 65536u /* of a host */
#define WEFTI_TOPO_MAX_CPUS 262144u /* and numbers of its processors */
#define WEFTI_TOPO_MAX_DEVICES 1024u
#define WEFTI_TOPO_MAX_RACKS 65536u
#define WEFTI_CPULIST_BYTES 4096u /* for wefti_cpulist_format: not cut on real machines */

typedef struct wefti_topo_numa {
    uint32_t os_index;
    uint32_t socket; /* WEFTI_TOPO_NONE: it is on several */
    uint64_t memory_bytes;
} wefti_topo_numa_t;

/* Cores are in the machine's order: neighbours share more than others. */
typedef struct wefti_topo_core {
    uint32_t socket, numa;
    uint32_t l2, l3; /* numbers of caches, for who shares one; WEFTI_TOPO_NONE: there is none */
    uint32_t first_cpu, cpu_count; /* in the hardware's cpus[]: its hardware threads */
} wefti_topo_core_t;

/* A network interface, or a card that computes. */
typedef struct wefti_topo_device {
    const char *name;      /* "eth0", "card0" */
    const char *kind;      /* "ethernet", "infiniband", "roce"; "cuda", "opencl", ...; or "" */
    const char *rdma;      /* of a network interface that does RDMA: "mlx5_0"; else "" */
    const char *bus;       /* "0000:3b:00.0", or "" */
    uint64_t bits_per_s;   /* of a network interface; 0: nobody knows */
    uint32_t socket, numa; /* next to which; WEFTI_TOPO_NONE */
    uint32_t pci_switch;   /* equal for devices behind one switch; WEFTI_TOPO_NONE */
    bool down;             /* there, and without a link */
} wefti_topo_device_t;
/* Nothing is known of it. */
#define WEFTI_TOPO_DEVICE_INIT                                                                     \
    (wefti_topo_device_t)                                                                          \
    {                                                                                              \
        .name = "", .kind = "", .rdma = "", .bus = "", .socket = WEFTI_TOPO_NONE,                  \
        .numa = WEFTI_TOPO_NONE, .pci_switch = WEFTI_TOPO_NONE                                     \
    }

/* Hosts that are equal share one of these. */
typedef struct wefti_hardware {
    const char *cpu; /* the model's name, or "" */
    uint32_t socket_count, numa_count, core_count, cpu_count, nic_count, card_count;
    uint64_t l1_bytes, l2_bytes, l3_bytes; /* of one cache; 0: none, or nobody knows */
    wefti_topo_numa_t *numas;
    wefti_topo_core_t *cores; /* none: all that is known is where ranks are */
    uint32_t *cpus;           /* the system's numbers of processors, core by core */
    wefti_topo_device_t *nics, *cards;
} wefti_hardware_t;

typedef struct wefti_topo_host {
    const char *name;
    uint32_t rack; /* WEFTI_TOPO_NONE: not known */
    const wefti_hardware_t *hardware;
    uint32_t rank_count;
    uint32_t *ranks; /* growing */
} wefti_topo_host_t;

typedef struct wefti_topo_rank {
    uint32_t host;
    uint32_t cpu_count; /* 0: not bound, or nobody knows */
    uint32_t *cpus;     /* growing */
    uint32_t card;      /* WEFTI_TOPO_NONE: it computes on the processor */
    uint32_t nic;       /* next to it; WEFTI_TOPO_NONE: there is none */
} wefti_topo_rank_t;

/* Between two hosts: all rails of one direction together. */
typedef struct wefti_topo_link {
    uint32_t hosts[2];   /* WEFTI_TOPO_NONE twice: all that are not said */
    uint64_t bits_per_s; /* 0: nobody knows */
    uint64_t latency_ns; /* one way; 0: nobody knows */
    uint32_t rails;      /* interfaces of a host that work side by side; at least 1 */
} wefti_topo_link_t;

/* The parts of a cluster that have links of their own, from the inside out. */
typedef enum wefti_topo_level {
    WEFTI_TOPO_L3 = 0,     /* cores that share a level 3 cache */
    WEFTI_TOPO_NUMA = 1,   /* cores of a NUMA node */
    WEFTI_TOPO_SOCKET = 2, /* cores of a socket */
    WEFTI_TOPO_HOST = 3,
    WEFTI_TOPO_RACK = 4,
    WEFTI_TOPO_LEVELS = 5,
} wefti_topo_level_t;

/* Two ranks whose innermost common part is of a level are latency_ns apart. All ranks of the part
 * together move bits_per_s across it; of a rack: through its uplink, in each direction. */
typedef struct wefti_topo_cost {
    uint64_t bits_per_s, latency_ns; /* 0: nobody knows */
} wefti_topo_cost_t;

typedef struct wefti_cluster {
    wefti_arena_t arena;
    const char *name;
    uint32_t host_count, rank_count, link_count;
    size_t host_capacity;
    wefti_topo_host_t *hosts; /* [host_capacity]; all else is in the arena */
    wefti_topo_rank_t *ranks;
    wefti_topo_link_t *links;
    wefti_topo_cost_t levels[WEFTI_TOPO_LEVELS];
} wefti_cluster_t;

/* Allocates nothing yet. */
void wefti_cluster_init(wefti_cluster_t *cluster, const weft_allocator_t *allocator);
void wefti_cluster_deinit(wefti_cluster_t *cluster);

/* Reads and checks a host's hardware from another file that the cluster's names ("hwloc"). */
typedef weft_status_t (*wefti_hardware_file_fn)(const char *path, wefti_arena_t *arena,
                                                wefti_hardware_t *out);
/* cluster_read.c. WEFT_ERR_FORMAT names the place. read_file NULL: files that name others are
 * refused. path: of the file, which such names are relative to, or NULL. Initialises *out. */
weft_status_t wefti_cluster_decode(const char *text, size_t bytes, const char *path,
                                   wefti_hardware_file_fn read_file,
                                   const weft_allocator_t *allocator, wefti_cluster_t *out);
weft_status_t wefti_cluster_load(const char *path, wefti_hardware_file_fn read_file,
                                 const weft_allocator_t *allocator, wefti_cluster_t *out);
/* cluster_write.c: the members of a cluster's object, into an object that is open. */
void wefti_cluster_write(const wefti_cluster_t *cluster, wefti_json_t *json);

/* Adds a host without ranks; hardware is borrowed by the arena's life, name is copied. */
weft_status_t wefti_cluster_add_host(wefti_cluster_t *cluster, const char *name,
                                     const wefti_hardware_t *hardware);
/* Places ranks on hosts, in place of any earlier placement. */
weft_status_t wefti_cluster_set_ranks(wefti_cluster_t *cluster, const uint32_t *host_of,
                                      uint32_t rank_count);
/* The same with consecutive ranks on each host, in proportion to its cores. */
weft_status_t wefti_cluster_spread(wefti_cluster_t *cluster, uint32_t rank_count);
/* Are indices within range, and processors on one core each? For hardware from outside. */
weft_status_t wefti_hardware_check(const wefti_hardware_t *hardware);

/* Between two hosts: from the description, else from their network interfaces. */
wefti_topo_link_t wefti_cluster_link(const wefti_cluster_t *cluster, uint32_t a, uint32_t b);
/* The slowest of all pairs of hosts that have ranks, for one number. rails 0: one host only. */
wefti_topo_link_t wefti_cluster_slowest_link(const wefti_cluster_t *cluster);

/* cluster_write.c: of everything but names of hosts and models of processors. */
weft_status_t wefti_cluster_digest(const wefti_cluster_t *cluster, wefti_digest_t *out_digest);
/* For each rank the number of its rack, from 0 in the order of their first ranks; hosts of no rack
 * are in one together. */
weft_status_t wefti_cluster_racks(const wefti_cluster_t *cluster, uint32_t *rack_of,
                                  uint32_t *out_count);
/* Of which ranks share a host, and a rack, however they are numbered: plans record it. */
weft_status_t wefti_cluster_placement_digest(const wefti_cluster_t *cluster,
                                             wefti_digest_t *out_digest);
/* "2 hosts, 4 + 4 ranks", "1 host, 8 ranks", "4 hosts x 8 ranks, round-robin, 2 racks"; returns
 * buffer. */
const char *wefti_cluster_summary(const wefti_cluster_t *cluster, char *buffer, size_t bytes);

/* hardware_json.c: the hardware of one host as JSON text, for sending. */
weft_status_t wefti_hardware_encode(const wefti_hardware_t *hardware, wefti_text_t *out);
weft_status_t wefti_hardware_decode(const char *text, size_t bytes, wefti_arena_t *arena,
                                    wefti_hardware_t *out);

/*
 * hardware.c: sockets, NUMA nodes, caches and cores that divide evenly, numbered as Linux mostly
 * does: first threads of all cores, then second ones (or, adjacent, a core's threads together).
 */
typedef struct wefti_regular {
    uint32_t sockets, numas, l3s, l2s, cores, threads;
    bool adjacent;
} wefti_regular_t;
weft_status_t wefti_hardware_make(const wefti_regular_t *shape, wefti_arena_t *arena,
                                  wefti_hardware_t *out);
/* Is it what wefti_hardware_make makes of *out_shape? */
bool wefti_hardware_is_regular(const wefti_hardware_t *hardware, wefti_regular_t *out_shape);
/* How many things there are at least, if there were count before index was seen. */
static inline uint32_t wefti_topo_count(uint32_t count, uint32_t index)
{
    return index != WEFTI_TOPO_NONE && index >= count ? index + 1 : count;
}
/* The core that has processor cpu, or WEFTI_TOPO_NONE. */
uint32_t wefti_hardware_core_of(const wefti_hardware_t *hardware, uint32_t cpu);
/* Bits per second of the fastest network interface that has a link. */
uint64_t wefti_hardware_fastest(const wefti_hardware_t *hardware);
/* "0-3,8" as growing numbers below limit, in arena. */
weft_status_t wefti_cpulist_parse(const char *text, uint32_t limit, wefti_arena_t *arena,
                                  uint32_t **out_cpus, uint32_t *out_count);
/* The list as text, which ends in ".." if buffer is too small; returns buffer. */
const char *wefti_cpulist_format(const uint32_t *cpus, uint32_t count, char *buffer, size_t bytes);

#endif
