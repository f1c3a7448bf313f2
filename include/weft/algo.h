/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file algo.h
 * Collective algorithms as data.
 *
 * An algorithm is a pure function of operator, group size, rank, root, parameters and topology. For
 * one rank it emits copies and reductions between places on any ranks, and the posts and waits that
 * order them. It never sees memory, counts, devices or links. Weft lowers the schedule to the links
 * between the ranks, and `weft verify` proves it for all ranks.
 *
 * Places. Every rank has a send buffer, a receive buffer and scratch, each a row of blocks. Sizes
 * are symbolic: the length of a block is known only when the collective is submitted.
 *
 *     buffer holds  blocks     of the operator's block numbers
 *     VECTOR        B          0..B-1
 *     BLOCK         1          the rank's own number r
 *     BLOCKS        N          0..N-1: those for ranks 0..N-1, or from them
 *
 * WEFT_COLLECTIVE_MAP (types.h) lists what the buffers of each operator hold, and on which ranks
 * they exist. N is the group size. The algorithm chooses B; the vector is cut into B blocks that
 * start on cache lines. Scratch is a row of slots, each as long as the longest block. Scratch of a
 * reducing operator holds unrounded sums (f32 for half types): only reductions write it, and only
 * reductions with finish write a user's buffer.
 *
 * Order. A lane is a sequence of steps. The lanes of a rank run concurrently; all start with the
 * run, and the run ends with the last. weft_schedule_post publishes all earlier steps of its lane;
 * a wait for that phase makes them visible. A run must end only when no other rank accesses the
 * rank's buffers any more. Scratch may be accessed until scratch_sets runs later.
 *
 * Placement. Neighbours in a ring or tree should share a host. An algorithm that sets by_placement
 * sees ranks numbered so that those of a host (and hosts of a rack) follow each other, whatever
 * their placement: rank, root, peer, and the block numbers of ranks in params and steps are such
 * numbers, and Weft translates the steps. params->host_of and rack_of are then by number as well;
 * host_sizes and rail_of are empty. Where ranks are consecutive already, nothing changes. A rank's
 * place depends on the placement alone, so all ranks derive the same numbers, and the same order of
 * sums.
 *
 * All functions of this header are local.
 */
#ifndef WEFT_ALGO_H
#define WEFT_ALGO_H

#include <weft/registry.h>

/** Version of weft_algorithm_t. */
#define WEFT_ALGO_ABI_VERSION 1u

/** The inputs of an algorithm. All pointers are borrowed. */
typedef struct weft_algo_params {
    size_t struct_size;   /**< size of this struct */
    weft_collective_t op; /**< the operator */
    uint32_t group_size;  /**< number of ranks */
    uint32_t rank;        /**< rank of the schedule; resources and eligible must not read it */
    uint32_t root;        /**< rooted operators: the root; SendRecv: the sender */
    uint32_t peer;        /**< SendRecv: the receiver */
    uint32_t in_place;    /**< 1: the buffers overlap as the operator's in-place rule states */
    uint32_t pieces;      /**< pieces for pipelining; 0: the algorithm's default */
    weft_order_t order;   /**< order of reductions */
    const uint32_t *order_sizes; /**< WEFT_ORDER_BLOCKS: ranks of each block */
    uint32_t order_size_count;   /**< length of order_sizes */
    const uint32_t *host_sizes;  /**< ranks of each host, if hosts are runs of consecutive ranks */
    /** Length of host_sizes; 0: one host, or the ranks of a host are not consecutive (host_of). */
    uint32_t host_count;
    /* Appended later: absent in the parameters of older callers (see struct_size). */
    const uint32_t *host_of; /**< [group_size] host of each rank; NULL: see host_sizes */
    uint32_t host_of_count;  /**< number of hosts in host_of; each has a rank */
    /** [group_size] nearest NIC of each rank, numbered alike on all hosts; NULL: one NIC, or
     * unknown. */
    const uint32_t *rail_of;
    /** The algorithm that is called; set by Weft. An algorithm with data of its own is the first
     * member of a larger struct. */
    const struct weft_algorithm *algorithm;
    /** [group_size] rack of each rank, below group_size, equal for ranks of one host; NULL: one
     * rack, or unknown. */
    const uint32_t *rack_of;
} weft_algo_params_t;

/** Initial value of weft_algo_params_t. */
#define WEFT_ALGO_PARAMS_INIT                                                                      \
    WEFT_STRUCT_INIT(weft_algo_params_t, WEFT_COLLECTIVE_ALL_REDUCE, 0, 0, 0, 0, 0, 0,             \
                     WEFT_ORDER_TREE, 0, 0, 0, 0, 0, 0, 0, 0, 0)

/** The resources of a schedule, equal on all ranks. */
typedef struct weft_algo_resources {
    uint32_t lanes;         /**< number of lanes; 0: one */
    uint32_t phases;        /**< highest phase that any lane posts */
    uint32_t blocks;        /**< B above; 0: one; ignored if the operator fixes it */
    uint32_t scratch_slots; /**< slots of scratch, each as long as the longest block */
    uint32_t scratch_sets;  /**< copies of scratch that successive runs alternate; 0: one */
    /** Parts of each block if the operator fixes the blocks, not for V forms; 0: one. Part p of
     * block b then has the block number b * parts + p. */
    uint32_t parts;
    /** 1: build and the builder number ranks by placement: host after host, rack after rack.
     * Ignored if the order of a reduction is promised. See "Placement" above. */
    uint32_t by_placement;
} weft_algo_resources_t;

/** A buffer of a place. */
typedef enum weft_algo_buffer {
    WEFT_ALGO_BUFFER_SEND = 0,    /**< the user's send buffer */
    WEFT_ALGO_BUFFER_RECV = 1,    /**< the user's receive buffer */
    WEFT_ALGO_BUFFER_SCRATCH = 2, /**< scratch of the schedule */
} weft_algo_buffer_t;

/** Blocks block, block + step, ... of a buffer, on one or several consecutive ranks. */
typedef struct weft_place {
    uint32_t rank;             /**< first rank */
    uint32_t rank_count;       /**< number of consecutive ranks; 0: one */
    weft_algo_buffer_t buffer; /**< the buffer */
    uint32_t block;            /**< first block or slot in the buffer */
    uint32_t step;             /**< distance of successive blocks in the buffer */
} weft_place_t;

/** The operator's blocks that a step moves: first, first + step, ... */
typedef struct weft_blocks {
    uint32_t first; /**< first block */
    uint32_t step;  /**< distance of successive blocks */
    uint32_t count; /**< number of blocks */
} weft_blocks_t;

/** Collects the steps of one rank's schedule. */
typedef struct weft_schedule_builder weft_schedule_builder_t;

/** A collective algorithm. */
typedef struct weft_algorithm {
    uint32_t abi_version; /**< WEFT_ALGO_ABI_VERSION */
    weft_collective_t op; /**< the operator */
    const char *name;     /**< such as "ring"; unique for the operator */
    const char *doc;      /**< one line */
    /** NULL, or the reason why the algorithm cannot serve params (such as the order). */
    const char *(*eligible)(const weft_algo_params_t *params);
    /** Fills the resources of the schedule. */
    void (*resources)(const weft_algo_params_t *params, weft_algo_resources_t *out_resources);
    /** Emits the steps of params->rank. */
    void (*build)(const weft_algo_params_t *params, weft_schedule_builder_t *builder);
} weft_algorithm_t;

WEFT_EXTERN_C_BEGIN
/**
 * Emits a post: the lane's counter reaches phase. Called in build.
 * @param[in] builder the builder; NULL: nothing happens
 * @param[in] lane    the lane
 * @param[in] phase   from 1, rising; phases may be skipped
 */
WEFT_API void weft_schedule_post(weft_schedule_builder_t *builder, uint32_t lane, uint32_t phase);
/**
 * Emits a wait until their_lane of each of several ranks has reached phase. A wait of a lane for
 * itself is skipped. Called in build.
 * @param[in] builder    the builder; NULL: nothing happens
 * @param[in] lane       the lane that waits
 * @param[in] first_rank first rank to wait for
 * @param[in] rank_count number of consecutive ranks
 * @param[in] their_lane lane of these ranks
 * @param[in] phase      the phase
 * @param[in] runs_back  0: of this run; 1: of the previous run (true in the first run); at most 2
 */
WEFT_API void weft_schedule_wait(weft_schedule_builder_t *builder, uint32_t lane,
                                 uint32_t first_rank, uint32_t rank_count, uint32_t their_lane,
                                 uint32_t phase, uint32_t runs_back);
/**
 * Emits a copy of blocks without conversion: both places hold the same kind of element. Called in
 * build.
 * @param[in] builder     the builder; NULL: nothing happens
 * @param[in] lane        the lane
 * @param[in] destination one place on one rank
 * @param[in] source      one place on one rank
 * @param[in] blocks      the blocks
 */
WEFT_API void weft_schedule_copy(weft_schedule_builder_t *builder, uint32_t lane,
                                 weft_place_t destination, weft_place_t source,
                                 weft_blocks_t blocks);
/**
 * Emits a reduction of the sources, whose result goes to every destination. Sources combine in the
 * in-order tree over their list: a place of several ranks counts as that many sources, and the list
 * is split at the largest power of two. A single source is only converted. Called in build.
 * @param[in] builder           the builder; NULL: nothing happens
 * @param[in] lane              the lane
 * @param[in] destinations      [destination_count] places
 * @param[in] destination_count 1 to 65535
 * @param[in] sources           [source_count] places
 * @param[in] source_count      1 to 65535
 * @param[in] blocks            the blocks
 * @param[in] finish            1: round and (average) divide, destinations are user buffers; 0:
 *                              destinations are scratch
 */
WEFT_API void weft_schedule_reduce(weft_schedule_builder_t *builder, uint32_t lane,
                                   const weft_place_t *destinations, uint32_t destination_count,
                                   const weft_place_t *sources, uint32_t source_count,
                                   weft_blocks_t blocks, uint32_t finish);

/**
 * Adds an algorithm to those that groups of contexts with this registry
 * (weft_context_params_t.registry) consider. Before it runs for a group size, root, order and
 * in-place case, it is verified as by weft_algorithm_verify and refused with that message if it
 * fails.
 * @param[in] registry  the registry
 * @param[in] algorithm borrowed until the registry is destroyed
 * @return WEFT_ERR_INVALID_ARGUMENT if a slot is empty or the operator has an algorithm of that
 *         name, WEFT_ERR_UNSUPPORTED for another abi_version
 */
WEFT_API weft_status_t weft_registry_add_algorithm(weft_registry_t *registry,
                                                   const weft_algorithm_t *algorithm);
/**
 * Reads an algorithm from an XML file of MSCCL, proves it as weft_algorithm_verify does, both in
 * place and not, and adds it. It serves groups with the number of ranks of the file only. The name
 * is that of the file's algorithm and a digest of its steps, such as "ring-1f3a09c4", so that ranks
 * with different files notice; a file that was loaded before is found again. docs/msccl.md
 * describes what a file may hold.
 * @param[in]  registry      the registry, which owns the algorithm
 * @param[in]  path          the XML file
 * @param[out] out_algorithm NULL, or the algorithm: its operator and name
 * @return WEFT_ERR_NOT_FOUND; WEFT_ERR_FORMAT naming file, line, gpu, thread block, step and cause;
 *         WEFT_ERR_INVALID_ARGUMENT naming a wrong result, a deadlock or a data race
 * Equivalent to: MSCCL_XML_FILES
 */
WEFT_API weft_status_t weft_registry_load_algorithm(weft_registry_t *registry, const char *path,
                                                    const weft_algorithm_t **out_algorithm);
/**
 * Finds an algorithm, built in or added.
 * @param[in] registry added algorithms; NULL: built-in ones only
 * @param[in] op       the operator
 * @param[in] name     name of the algorithm
 * @return the algorithm; NULL if there is none or name is NULL
 */
WEFT_API const weft_algorithm_t *weft_registry_find_algorithm(const weft_registry_t *registry,
                                                              weft_collective_t op,
                                                              const char *name);
/**
 * Proves the schedules of all ranks over shared memory and over links that only put and signal, for
 * all counts: results, reduction order, no deadlock, no race, no access outside a buffer. For tests
 * of algorithms.
 * @param[in] algorithm the algorithm
 * @param[in] params    the case to prove; params->rank is ignored
 * @return WEFT_ERR_INVALID_ARGUMENT naming rank, step and reason; WEFT_ERR_UNSUPPORTED with the
 *         algorithm's reason if it is not eligible
 */
WEFT_API weft_status_t weft_algorithm_verify(const weft_algorithm_t *algorithm,
                                             const weft_algo_params_t *params);
WEFT_EXTERN_C_END

#endif
