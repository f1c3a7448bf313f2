/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file context.h
 * A context is one rank's membership in a world of ranks. There are no globals.
 *
 * Ranks are processes, on one host or several, or threads of one process (a hub). Rank, world size
 * and address come from the parameters, or from the launcher's environment. The environment is
 * searched in this order: WEFT_RANK and WEFT_WORLD_SIZE, with WEFT_ADDRESS or, for ranks of one
 * host, WEFT_GROUP (a name); torchrun; PMIx (mpirun, prterun, srun); PMI-1 (hydra); RANK,
 * WORLD_SIZE and MASTER_ADDR. With a launcher, WEFT_ADDRESS replaces its address. If nothing is
 * found, the world has one rank.
 */
#ifndef WEFT_CONTEXT_H
#define WEFT_CONTEXT_H

#include <weft/device.h>

/** One rank's membership in a world. Reference counted. */
typedef struct weft_context weft_context_t;
/** Rendezvous of ranks that are threads of one process. */
typedef struct weft_hub weft_hub_t;

/** Which thread makes progress on communication. */
typedef enum weft_progress {
    /** The setting WEFT_PROGRESS, else WEFT_PROGRESS_AUTO. */
    WEFT_PROGRESS_DEFAULT = 0,
    /** A thread if every rank has a spare core or the world spans hosts, else inline. */
    WEFT_PROGRESS_AUTO = 1,
    /** The caller's thread, inside calls. */
    WEFT_PROGRESS_INLINE = 2,
    /** A thread of the library. */
    WEFT_PROGRESS_THREAD = 3,
} weft_progress_t;

/**
 * Reports whether the user has interrupted the program, as by Ctrl-C.
 *
 * Each thread that has waited for other ranks for some time calls it every 10 to 50 ms, and so do
 * idle threads of the library. It may run on any thread, must be quick and must not call Weft. Once
 * it has returned a value other than 0 it must keep doing so. The wait then ends, and with it the
 * world: all ranks get WEFT_ERR_ABORTED and "rank 1 was interrupted".
 */
typedef int (*weft_interrupt_fn)(void *user);

/** Parameters of weft_context_create. Start from WEFT_CONTEXT_PARAMS_INIT. */
typedef struct weft_context_params {
    size_t struct_size; /**< size of this struct */
    int32_t rank;       /**< this rank; -1: from the environment */
    int32_t world_size; /**< number of ranks; -1: from the environment */
    /**
     * Where ranks meet; NULL: from the environment. Ranks of one host: "unix:@name" (abstract
     * socket) or "unix:/path". Ranks of any hosts: "host:port" (rank 0 listens there;
     * "[v6]:port") or "file:///shared/path".
     */
    const char *address;
    weft_hub_t *hub;          /**< not NULL: ranks are threads and meet here; address is unused */
    weft_device_t *device;    /**< borrowed; NULL: the device that device_name names */
    weft_progress_t progress; /**< which thread makes progress */
    weft_isa_t isa;           /**< instruction set, at most what the CPU has */
    const weft_allocator_t *allocator; /**< copied; NULL: malloc */
    weft_log_fn log;                   /**< receives log lines; NULL: standard error */
    void *log_user;                    /**< first argument of log */
    /**
     * Algorithms (weft_registry_add_algorithm) that groups may use in addition to the built-in
     * ones; NULL: none. Borrowed. All ranks add the same algorithms before they make a group.
     */
    const weft_registry_t *registry;
    weft_interrupt_fn interrupt; /**< ends waits, also that for all ranks to join; NULL: none */
    void *interrupt_user;        /**< argument of interrupt */
    /**
     * If device is NULL: a device that the context opens and closes, as for weft_device_open, or
     * "PLUGIN:A,B,..", of which the ranks of a host take one each in turn. NULL: the setting
     * WEFT_DEVICE, which is the CPU device by default. All ranks are on devices, or none is.
     */
    const char *device_name;
} weft_context_params_t;

/** Defaults of weft_context_params_t. */
#define WEFT_CONTEXT_PARAMS_INIT                                                                   \
    WEFT_STRUCT_INIT(weft_context_params_t, -1, -1, 0, 0, 0, WEFT_PROGRESS_DEFAULT,                \
                     WEFT_ISA_DEFAULT, 0, 0, 0, 0, 0, 0, 0)

WEFT_EXTERN_C_BEGIN
/**
 * Creates the rendezvous of world_size ranks that are threads. Any thread.
 * @param[in]  world_size number of ranks
 * @param[out] out_hub    the hub; the caller destroys it
 * @return WEFT_ERR_INVALID_ARGUMENT, WEFT_ERR_NO_MEMORY
 */
WEFT_API weft_status_t weft_hub_create(uint32_t world_size, weft_hub_t **out_hub);
/**
 * Destroys a hub, after all contexts that used it are released. Local.
 * @param[in] hub NULL: nothing happens
 */
WEFT_API void weft_hub_destroy(weft_hub_t *hub);

/**
 * Joins the world. Collective, blocking: returns when all ranks have joined.
 * @param[in]  params      rank, world size, address and options
 * @param[out] out_context the context, with one reference; the caller releases it
 * @return WEFT_ERR_TIMEOUT naming the missing ranks; WEFT_ERR_MISMATCH if ranks disagree about
 *         world_size or a collective setting; WEFT_ERR_INVALID_ARGUMENT naming the field
 *         (weft_last_error_field) or the setting; WEFT_ERR_NO_MEMORY; WEFT_ERR_SYSTEM
 *
 * Equivalent to: MPI_Init, ncclCommInitRank
 */
WEFT_API weft_status_t weft_context_create(const weft_context_params_t *params,
                                           weft_context_t **out_context);
/**
 * Adds a reference. Any thread.
 * @param[in] context NULL: nothing happens
 */
WEFT_API void weft_context_retain(weft_context_t *context);
/**
 * Drops a reference; the last one leaves the world. Any thread; not collective.
 * @param[in] context NULL: nothing happens
 *
 * Equivalent to: MPI_Finalize, ncclCommDestroy
 */
WEFT_API void weft_context_release(weft_context_t *context);
/**
 * Selects the device of this rank, for programs that choose it by their rank. Local. A rank has one
 * device. A process with several devices has one rank (a context, on a thread of its own) for each.
 * @param[in] context the context
 * @param[in] device  borrowed; NULL: the CPU device
 * @return WEFT_ERR_STATE after streams, events, memory, groups or sessions were created from the
 *         context; WEFT_ERR_INVALID_ARGUMENT for a table of another abi_version
 *
 * Equivalent to: cudaSetDevice, aclrtSetDevice
 */
WEFT_API weft_status_t weft_context_set_device(weft_context_t *context, weft_device_t *device);
/**
 * Returns the device of a context. Any thread.
 * @param[in] context the context
 * @return the device, borrowed; NULL for the CPU device or if context is NULL
 */
WEFT_API weft_device_t *weft_context_device(const weft_context_t *context);
/**
 * Returns the rank of the caller in the world. Any thread.
 * @param[in] context the context
 * @return 0 to world size - 1; UINT32_MAX if context is NULL
 *
 * Equivalent to: MPI_Comm_rank(MPI_COMM_WORLD)
 */
WEFT_API uint32_t weft_context_rank(const weft_context_t *context);
/**
 * Returns the number of ranks in the world. Any thread.
 * @param[in] context the context
 * @return at least 1; 0 if context is NULL
 *
 * Equivalent to: MPI_Comm_size(MPI_COMM_WORLD)
 */
WEFT_API uint32_t weft_context_world_size(const weft_context_t *context);

/** The connection between this rank and another one. */
typedef struct weft_peer_info {
    size_t struct_size; /**< size of this struct */
    uint32_t host;      /**< index of the peer's host; hosts are ordered by their lowest rank */
    char host_name[64]; /**< "" if hosts have no names */
    char transport[16]; /**< "self", "shm", "inproc", "tcp" or "verbs" */
    char reason[160];   /**< for people: addresses, interfaces, devices, reason for the transport */
} weft_peer_info_t;
/** Initial value of weft_peer_info_t. */
#define WEFT_PEER_INFO_INIT WEFT_STRUCT_INIT(weft_peer_info_t, 0, "", "", "")
/**
 * Describes the connection to another rank. Local; any thread.
 * @param[in]  context  the context
 * @param[in]  rank     the other rank
 * @param[out] out_info set struct_size before the call
 * @return WEFT_ERR_INVALID_ARGUMENT if rank is not in the world
 */
WEFT_API weft_status_t weft_context_peer_info(const weft_context_t *context, uint32_t rank,
                                              weft_peer_info_t *out_info);
/** Traffic between this rank and another one over a message link; all 0 over shared memory. */
typedef struct weft_link_stats {
    size_t struct_size;         /**< size of this struct */
    uint64_t bytes_sent;        /**< payload sent, without transport headers */
    uint64_t bytes_received;    /**< payload received */
    uint64_t messages_sent;     /**< messages sent */
    uint64_t messages_received; /**< messages received */
    /** Seconds in which data for that rank waited to be sent; the link sends bytes_sent / busy_s
     * bytes per second. */
    double busy_s;
} weft_link_stats_t;
/** Initial value of weft_link_stats_t. */
#define WEFT_LINK_STATS_INIT WEFT_STRUCT_INIT(weft_link_stats_t, 0, 0, 0, 0, 0)
/**
 * Returns the traffic with another rank since the context was created. `weft run` prints it by
 * pairs of hosts, to find slow links. Local; any thread.
 * @param[in]  context   the context
 * @param[in]  rank      the other rank
 * @param[out] out_stats set struct_size before the call
 * @return WEFT_ERR_INVALID_ARGUMENT if rank is not in the world
 */
WEFT_API weft_status_t weft_context_link_stats(const weft_context_t *context, uint32_t rank,
                                               weft_link_stats_t *out_stats);
/**
 * Returns where rank and world size came from. Any thread.
 * @param[in] context the context
 * @return "arguments", "environment", "torchrun", "pmix", "pmi-1", "plain", "group", "alone" or
 *         "hub"; "unknown" if context is NULL; static storage
 */
WEFT_API const char *weft_context_launcher(const weft_context_t *context);
/**
 * Returns the number of hosts of the world. Any thread.
 * @param[in] context the context
 * @return at least 1; 0 if context is NULL
 */
WEFT_API uint32_t weft_context_host_count(const weft_context_t *context);

/**
 * Describes the world: hosts, sockets, NUMA nodes, caches, cores with the ranks bound to them,
 * network interfaces, devices, and the connection of each pair of ranks (with many ranks: of each
 * class of pairs) with its reason. Collective, blocking; the first call takes about 50 ms.
 * @param[in]  context  the context
 * @param[in]  format   WEFT_FORMAT_JSON: the cluster description that WEFT_TOPOLOGY takes, with an
 *                      array "pairs"
 * @param[in]  width    most columns of the text; 0: 100
 * @param[out] out_text the same on all ranks; the caller frees it
 * @return WEFT_ERR_NO_MEMORY, or the error that ended the world
 *
 * Equivalent to: nvidia-smi topo -m
 */
WEFT_API weft_status_t weft_context_topology(weft_context_t *context, weft_format_t format,
                                             uint32_t width, char **out_text);

/**
 * Waits until all ranks have called it. Collective, blocking, on the host; meant for start and end
 * of a program rather than for steps.
 * @param[in] context the context
 * @return the error that ended the world
 *
 * Equivalent to: MPI_Barrier(MPI_COMM_WORLD)
 */
WEFT_API weft_status_t weft_context_barrier(weft_context_t *context);
/**
 * Gathers bytes of every rank on all ranks. Collective, blocking, on the host.
 * @param[in]  context the context
 * @param[in]  send    bytes of this rank; may be NULL if bytes is 0
 * @param[in]  bytes   bytes per rank, equal on all ranks
 * @param[out] recv    world size * bytes: the contributions in rank order; may be NULL if bytes is
 *                     0
 * @return the error that ended the world
 *
 * Equivalent to: MPI_Allgather
 */
WEFT_API weft_status_t weft_context_all_gather(weft_context_t *context, const void *send,
                                               size_t bytes, void *recv);
/**
 * Ends the world: waits of all ranks return WEFT_ERR_ABORTED. Any thread.
 * @param[in] context NULL: nothing happens
 * @param[in] message the message that all ranks get; NULL: a default
 *
 * Equivalent to: MPI_Abort without the exit, ncclCommAbort
 */
WEFT_API void weft_context_abort(weft_context_t *context, const char *message);
/**
 * Writes the flight recorder of this rank as JSON: its last 4096 calls, of groups, sends and
 * receives, steps of sessions, each with group, sequence number, signature, stream, state and
 * times. Recording is always on. `weft analyze` compares the dumps of all ranks. With the setting
 * WEFT_DUMP, every rank writes one when a call fails or the world ends, and on SIGUSR1; the
 * program need not be in a call then. Local; any thread.
 * @param[in] context the context
 * @param[in] path    file, replaced if it exists; a folder: weft-rank3-HOST-PID.json in it; NULL:
 *                    the same in the folder of WEFT_DUMP
 * @return WEFT_ERR_INVALID_ARGUMENT if path is NULL and WEFT_DUMP is not set;
 *         WEFT_ERR_NOT_FOUND without the folder of the file; WEFT_ERR_SYSTEM if it cannot be
 *         written; WEFT_ERR_NO_MEMORY; in a forked child WEFT_ERR_STATE
 *
 * Equivalent to: ncclCommDump, torch.distributed's NCCL flight recorder
 */
WEFT_API weft_status_t weft_context_dump(weft_context_t *context, const char *path);

/**
 * Creates a world of the ranks that are left. A rank that dies ends its world: every call of the
 * others fails, for good. Then every survivor calls this function. They agree on who is left, also
 * if more ranks die meanwhile, and join a new world, which has a context of its own:
 *
 *   - Ranks are 0 to n - 1 in the order of the former ranks; weft_context_member tells which
 *     process is which.
 *   - Settings, device, log, allocator, registry and interrupt function are those of the former
 *     context. A WEFT_ORDER of blocks becomes the tree.
 *   - The former context and all that was made from it (groups, streams, events, memory, sessions,
 *     fusers, captures) keep the former world's error. They are destroyed or released as usual, in
 *     any order, before or after the new ones; until then they keep their memory and connections.
 *
 * Collective over the ranks that live, blocking. The former world ends with the first call, if it
 * has not ended yet: calls of ranks that still wait in it return WEFT_ERR_ABORTED. A rank counts as
 * lost when its process has ended or it has released its context. So do ranks of a host that does
 * not answer for 5 seconds (WEFT_LINK_TIMEOUT if that is less). A rank that lives but does not
 * call is waited for until WEFT_TIMEOUT; then the others leave it behind if they are more than half
 * of the ranks that may live, or half of them with the lowest one. If a rank dies after this call
 * has returned on some ranks and not yet on others, the former find the new world broken and call
 * weft_context_shrink on it, where they meet the latter.
 *
 * Not over WEFT_ADDRESS again: the survivors know each other. Ranks on other hosts must reach the
 * ports that this rank listens on (WEFT_IFNAME selects interfaces).
 * @param[in]  context     a context whose world has ended, or not; it stays valid
 * @param[out] out_context the new context, with one reference; the caller releases it
 * @return WEFT_ERR_TIMEOUT naming the ranks that live but did not call; WEFT_ERR_STATE if the
 *         context has been shrunk or grown into another one (call it on that one; after a rank has
 *         released that one, its former context can grow, but not shrink), or in a forked child;
 *         WEFT_ERR_NO_MEMORY; WEFT_ERR_SYSTEM
 *
 * Equivalent to: MPIX_Comm_revoke and MPIX_Comm_shrink of MPI_COMM_WORLD (ULFM)
 */
WEFT_API weft_status_t weft_context_shrink(weft_context_t *context, weft_context_t **out_context);
/**
 * Creates a larger world: the ranks of this one, which keep their numbers, and ranks that join.
 * Collective over the world, blocking, between any two calls that all ranks agree on. The processes
 * that join call weft_context_create with the same address and world_size, the same secret
 * (WEFT_SECRET) and the remaining ranks, before or after.
 *
 * The new world has a context of its own, as after weft_context_shrink. The former world continues
 * until its contexts are released: groups and calls of it still work, and it is whole if growing
 * fails, for instance because a rank did not join. When all its ranks have released the new context,
 * it can grow again.
 * @param[in]  context     the world to grow
 * @param[in]  params      where to meet: world_size, more than now; address, or hub for ranks that
 *                         are threads, of that many ranks; rank is -1 or this rank; interrupt ends
 *                         this call only; other fields are unused, as the context has them
 * @param[out] out_context the new context, with one reference; the caller releases it
 * @return on all ranks: WEFT_ERR_INVALID_ARGUMENT naming the field; WEFT_ERR_MISMATCH if ranks
 *         passed different sizes or addresses, or a joining rank contradicts them;
 *         WEFT_ERR_STATE if a rank is still in a world that this one was grown or shrunk into;
 *         WEFT_ERR_TIMEOUT naming the ranks that did not join; WEFT_ERR_ABORTED if a rank's interrupt
 *         ended the call; the error that ended the world
 *
 * Equivalent to: MPI_Comm_spawn or MPI_Comm_accept, then MPI_Intercomm_merge
 */
WEFT_API weft_status_t weft_context_grow(weft_context_t *context,
                                         const weft_context_params_t *params,
                                         weft_context_t **out_context);
/**
 * Identifies the process of a rank over worlds: a number that it keeps when the world shrinks or
 * grows. In the first world it is the rank; processes that join later get the next numbers, and no
 * number is used twice. Local; any thread.
 * @param[in] context the context
 * @param[in] rank    a rank of the context
 * @return the member number; UINT32_MAX if rank is not in the world or context is NULL
 */
WEFT_API uint32_t weft_context_member(const weft_context_t *context, uint32_t rank);
/**
 * Returns how many times the world has been replaced by a smaller or larger one. It grows with each
 * and is the same on all ranks. Local; any thread.
 * @param[in] context the context
 * @return 0 for a world that weft_context_create joined; 0 if context is NULL
 */
WEFT_API uint32_t weft_context_generation(const weft_context_t *context);
WEFT_EXTERN_C_END

#endif
