/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file context.h A context holds everything one rank has; there are no globals.
 *
 * Ranks are processes, on one host or several, or threads of one process (a hub). Who they are and where they meet is
 * said by the parameters, else by whatever started them, looked for in this order: WEFT_RANK, WEFT_WORLD_SIZE and
 * WEFT_ADDRESS; torchrun; PMIx (mpirun, prterun, srun); PMI-1 (hydra); RANK, WORLD_SIZE and MASTER_ADDR; WEFT_GROUP (one
 * host); else a world of one.
 */
#ifndef WEFT_CONTEXT_H
#define WEFT_CONTEXT_H

#include <weft/device.h>

typedef struct weft_context weft_context_t;
/** Where ranks that are threads of one process meet. */
typedef struct weft_hub weft_hub_t;

typedef enum weft_progress {
    WEFT_PROGRESS_DEFAULT = 0, /**< what WEFT_PROGRESS says, else auto */
    WEFT_PROGRESS_AUTO = 1,    /**< a thread where every rank has a core to spare, and between hosts; else inline */
    WEFT_PROGRESS_INLINE = 2,
    WEFT_PROGRESS_THREAD = 3,
} weft_progress_t;

/**
 * For programs whose users press Ctrl-C, and for language bindings: asked every 10 to 50 ms by each thread that has been
 * waiting for other ranks for some while, and by threads of the library that look around. Must be quick and must not
 * call Weft; on which thread it is called, it finds out itself.
 * @return not 0, and the same from then on: the wait ends, and with it the world: WEFT_ERR_ABORTED, "rank 1 was
 * interrupted", on all ranks
 */
typedef int (*weft_interrupt_fn)(void *user);

typedef struct weft_context_params {
    size_t struct_size;
    int32_t rank;         /**< -1: from WEFT_RANK, else 0 */
    int32_t world_size;   /**< -1: from WEFT_WORLD_SIZE, else 1 */
    /**
     * NULL: WEFT_ADDRESS. "unix:@name" (abstract socket) or "unix:/path": ranks of one host; "host:port" (rank 0
     * listens there; "[v6]:port") or "file:///shared/path": ranks of any hosts
     */
    const char *address;
    weft_hub_t *hub;      /**< not NULL: ranks are threads meeting here; address is not used */
    weft_device_t *device; /**< NULL: the CPU device; borrowed */
    weft_progress_t progress;
    int isa;              /**< -1: WEFT_ISA; else 0 portable, 1 AVX2, 2 AVX-512, limited to what the CPU has */
    const weft_allocator_t *allocator;
    weft_log_fn log;
    void *log_user;
    /**
     * NULL, or algorithms (weft_registry_add_algorithm) that calls of groups may run beside the built-in ones.
     * Borrowed; added to before the first group is made, the same ones on all ranks.
     */
    const weft_registry_t *registry;
    weft_interrupt_fn interrupt; /**< NULL: waits end by themselves only; asked while ranks meet, too */
    void *interrupt_user;
} weft_context_params_t;

#define WEFT_CONTEXT_PARAMS_INIT                                                                                       \
    {sizeof(weft_context_params_t), -1, -1, 0, 0, 0, WEFT_PROGRESS_DEFAULT, -1, 0, 0, 0, 0, 0, 0}

WEFT_EXTERN_C_BEGIN
/** A meeting place for world_size ranks as threads. */
WEFT_API weft_status_t weft_hub_create(uint32_t world_size, weft_hub_t **out_hub);
/** After all contexts that used it are released; NULL is fine. */
WEFT_API void weft_hub_destroy(weft_hub_t *hub);

/**
 * Joins the world: every rank calls this, and it returns when all have (or with WEFT_ERR_TIMEOUT naming who
 * is missing). Ranks must agree on world_size and on the settings flagged collective (WEFT_ERR_MISMATCH).
 */
WEFT_API weft_status_t weft_context_create(const weft_context_params_t *params, weft_context_t **out_context);
WEFT_API void weft_context_retain(weft_context_t *context);
/** Leaves the world; NULL is fine. Not collective. */
WEFT_API void weft_context_release(weft_context_t *context);
/**
 * Selects the card of this rank, for programs that learn which one only when they know their rank. A rank has one
 * device; a process with several cards has a rank (a context, on a thread of its own) for each.
 * @param[in] device NULL: the CPU device; borrowed
 * @return WEFT_ERR_STATE once streams, events, memory, groups or sessions were made from the context
 * Equivalent to: cudaSetDevice, aclrtSetDevice
 */
WEFT_API weft_status_t weft_context_set_device(weft_context_t *context, weft_device_t *device);
/** @return the context's device, NULL for the CPU device. */
WEFT_API weft_device_t *weft_context_device(const weft_context_t *context);
WEFT_API uint32_t weft_context_rank(const weft_context_t *context);
WEFT_API uint32_t weft_context_world_size(const weft_context_t *context);

/** How this rank and another one reach each other. Text stays valid as long as the context. */
typedef struct weft_peer_info {
    size_t struct_size;
    uint32_t host;         /**< number of the rank's host; hosts are numbered by their lowest rank */
    char host_name[64];    /**< "" where there are no names */
    char transport[16];    /**< "self", "shm", "inproc", "tcp" or "verbs" */
    char reason[160];      /**< for people: addresses, interfaces, devices, and why it is this transport */
} weft_peer_info_t;
#define WEFT_PEER_INFO_INIT {sizeof(weft_peer_info_t), 0, "", "", ""}
/** @return WEFT_ERR_INVALID_ARGUMENT for a rank that there is not. Local. */
WEFT_API weft_status_t weft_context_peer_info(const weft_context_t *context, uint32_t rank, weft_peer_info_t *out_info);
/** What went between this rank and another one over a link that moves messages; all zero where memory is shared. */
typedef struct weft_link_stats {
    size_t struct_size;
    uint64_t bytes_sent, bytes_received;       /**< of data, without what the transport adds */
    uint64_t messages_sent, messages_received;
    double busy_s; /**< seconds in which something for that rank was waiting to be sent: bytes_sent / busy_s is the link's rate */
} weft_link_stats_t;
#define WEFT_LINK_STATS_INIT {sizeof(weft_link_stats_t), 0, 0, 0, 0, 0}
/**
 * Since the context was created. For finding links that are slower than others; `weft run` prints them by pairs of hosts.
 * @return WEFT_ERR_INVALID_ARGUMENT for a rank that there is not. Local; from any thread.
 */
WEFT_API weft_status_t weft_context_link_stats(const weft_context_t *context, uint32_t rank, weft_link_stats_t *out_stats);
/** @return what started the ranks: "arguments", "environment", "torchrun", "pmix", "pmi-1", "plain", "group", "alone", "hub". */
WEFT_API const char *weft_context_launcher(const weft_context_t *context);
/** @return number of hosts that the world's ranks are on. */
WEFT_API uint32_t weft_context_host_count(const weft_context_t *context);

/**
 * Describes the world: hosts, sockets, NUMA nodes, caches, cores with the ranks that are bound to them, network
 * interfaces, cards, and by what each pair of ranks (with many ranks: each class of pairs) is connected, and why.
 * Collective; takes some 50 ms where nobody has looked at the machines yet.
 * @param[in]  json     0: text for people, in lines of up to width columns; 1: the cluster description that
 *                      WEFT_TOPOLOGY takes, with an array "pairs"
 * @param[in]  width    0: 100
 * @param[out] out_text freed by the caller; the same on all ranks
 * Equivalent to: nothing in MPI; `nvidia-smi topo -m`
 */
WEFT_API weft_status_t weft_context_topology(weft_context_t *context, int json, uint32_t width, char **out_text);

/** Waits for all ranks; host side, for start and end rather than for steps. */
WEFT_API weft_status_t weft_context_barrier(weft_context_t *context);
/** Host-side all-gather of bytes per rank, equal on all ranks; recv holds world_size * bytes. */
WEFT_API weft_status_t weft_context_all_gather(weft_context_t *context, const void *send, size_t bytes, void *recv);
/** Ends the world: every rank's waits return WEFT_ERR_ABORTED with message. */
WEFT_API void weft_context_abort(weft_context_t *context, const char *message);
WEFT_EXTERN_C_END

#endif
