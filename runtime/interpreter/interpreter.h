/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs the schedule of one rank: a state machine over all of its lanes that never blocks.
 *
 *   wefti_run_create   builds and lowers the schedule; all memory that runs will need
 *   wefti_run_start    binds one call to it: addresses, sizes, type. Allocates nothing
 *   wefti_run_advance  goes on until done or blocked; chunk after chunk where the call is larger
 *                      than the memory it works in
 *
 * One object serves every size, type and reduction of its (operator, algorithm, root, in place,
 * links), one call at a time. All ranks start the same calls in the same order.
 *
 * Memory of a run. Places are offsets relative to each rank's region:
 *
 *   send[r], recv[r]   the users' buffers, as posted
 *   work               scratch, then staging, each with its sets; at the same offset on every rank
 *   area               the counters that ranks wait for, at the same offset on every rank: per lane
 *                      how far the owner has come, and per (peer, lane) the signals that came
 *
 * Counters are 32 bits, only grow, and wrap. A run moves every lane of every rank on by `phases`,
 * and the signals of (rank, lane) to a peer by their number in one run, whatever the call was:
 * wefti_run_counters_t keeps where they stand between runs of different schedules.
 *
 * Large puts lend their source (wefti_put_zero_copy) where it lies in the rank's region; whoever
 * writes there waits until it is back, and so does the end of a call.
 *
 * A wait that reaches back before the first run of a call is satisfied at once: a call starts when
 * all ranks are known to have finished the one before (they posted this one). Where calls follow
 * each other without call slots, as in plans, calls say so (`follows`), and waits reach back into
 * the last call.
 */
#ifndef WEFT_RUNTIME_INTERPRETER_H
#define WEFT_RUNTIME_INTERPRETER_H

#include "ops/algo/lower.h"
#include "ops/algo/resolve.h"
#include "transport/transport.h"

/* Where the counters of a group stand between runs. Equal on all ranks, but for what concerns
 * single peers. */
typedef struct wefti_run_counters {
    const weft_allocator_t *allocator;
    uint32_t group_size, lanes;       /* lanes: as many as an area has room for */
    uint32_t phase;                   /* what all lanes of all ranks have reached */
    uint32_t posted[WEFTI_MAX_LANES]; /* what this rank's counters really say */
    uint32_t *sent, *arrived;         /* [lane * group_size + peer], in one allocation */
    _Atomic uint32_t *signaled;       /* likewise, of sent: the last one; other threads read it */
} wefti_run_counters_t;

/* Of the area on each rank: 64-byte aligned. Zero at first. A wefti_signal_line_t per lane, then a
 * signal at the start of each line. */
#define WEFTI_ARRIVAL_BYTES 64u
size_t wefti_run_area_bytes(uint32_t group_size, uint32_t lanes);
weft_status_t wefti_run_counters_init(wefti_run_counters_t *counters, uint32_t group_size,
                                      uint32_t lanes, const weft_allocator_t *allocator);
void wefti_run_counters_deinit(wefti_run_counters_t *counters);
/* Whether signal is a counter of this rank's area that peer raises. */
bool wefti_run_arrives_from(const wefti_run_counters_t *counters, const uint8_t *area,
                            uint32_t peer, const wefti_signal_t *signal);
/* Signals over all lanes, modulo 2^32: that this rank has sent to peer, and that have come from it.
 * Any thread. */
uint32_t wefti_run_signaled(const wefti_run_counters_t *counters, uint32_t peer);
uint32_t wefti_run_came(const wefti_run_counters_t *counters, uint8_t *area, uint32_t peer);
/* Makes a used area like new; before any peer can run a schedule on it. */
void wefti_run_area_clear(void *area, uint32_t group_size, uint32_t lanes);

/* What all calls of a group share. Borrowed by runs while they are under way. */
typedef struct wefti_run_memory {
    wefti_endpoint_t *endpoint; /* waits and links */
    const uint32_t *ranks;      /* [group_size] in the world */
    uint8_t *const *bases;      /* [group_size] regions as seen here; NULL: a link that only puts */
    uint64_t limit; /* peers' buffers must lie within; UINT64_MAX: any address is theirs */
    uint64_t area;
    uint64_t work, work_bytes; /* 64-byte aligned */
    wefti_run_counters_t *counters;
    weft_isa_t isa;
    size_t lend_bytes; /* puts of so many bytes and more lend their source; 0: the default */
    bool polls;        /* the caller has other work: it looks again itself, so nothing spins here */
} wefti_run_memory_t;

/*
 * What a caller does around the chunks of a call, elements [at, at + count) of the vector or of each
 * block: before a chunk this rank's data has to be there, after it this rank's results are.
 */
typedef struct wefti_run_hooks {
    weft_status_t (*begin)(struct wefti_run_hooks *hooks, uint64_t at, uint64_t count);
    weft_status_t (*end)(struct wefti_run_hooks *hooks, uint64_t at, uint64_t count);
} wefti_run_hooks_t;

/* One call. */
typedef struct wefti_run_call {
    weft_dtype_t dtype;
    weft_reduction_t reduction; /* of operators that reduce */
    uint32_t divisor;           /* avg; 0: the size of the group */
    wefti_counts_t counts;      /* arrays of V forms must stay as long as the call is under way */
    wefti_displacements_t displacements; /* V forms; likewise */
    const uint64_t *send, *recv; /* [group_size]; the own ones may be any address minus the base;
                                    likewise */
    uint64_t
        chunk;    /* elements of the vector, or of each block; 0: as many as fit the work memory */
    bool follows; /* the last call was of this run with the same type, and peers may still be in
                     it */
    wefti_run_hooks_t *hooks; /* NULL: none */
} wefti_run_call_t;

typedef struct wefti_run wefti_run_t;

/*
 * The schedule of params->rank, lowered to links: what the group's ranks can do with each other's
 * memory. Where it is not just shared, that builds the schedules of all ranks, one after the other,
 * or at once if buffers are hidden or the algorithm is a user's.
 */
weft_status_t wefti_run_create(const weft_algorithm_t *algorithm, const weft_algo_params_t *params,
                               const wefti_links_t *links, const weft_allocator_t *allocator,
                               wefti_run_t **out_run);
/* Another run of the same schedule, which both share. One thread creates and destroys them. */
weft_status_t wefti_run_create_like(const wefti_run_t *like, wefti_run_t **out_run);
void wefti_run_destroy(wefti_run_t *run); /* accepts NULL */
const wefti_schedule_t *wefti_run_schedule(const wefti_run_t *run);

/* Bytes of work memory for chunks of so many elements (0: for all at once); SIZE_MAX: too many. */
size_t wefti_run_work_bytes(const wefti_run_t *run, weft_dtype_t dtype, weft_reduction_t reduction,
                            const wefti_counts_t *counts, uint64_t chunk);
/* Elements of the largest chunk for which work_bytes are enough; 0: not even one element. The same
 * on all ranks. */
uint64_t wefti_run_chunk(const wefti_run_t *run, weft_dtype_t dtype, weft_reduction_t reduction,
                         const wefti_counts_t *counts, size_t work_bytes);

/*
 * WEFT_ERR_NO_MEMORY when not even the smallest chunk fits the work memory, WEFT_ERR_FORMAT when a
 * peer's buffer lies outside its memory.
 */
weft_status_t wefti_group_bad_address(uint32_t world_rank); /* that error */
weft_status_t wefti_run_start(wefti_run_t *run, const wefti_run_memory_t *memory,
                              const wefti_run_call_t *call);
/*
 * WEFT_OK: the call is done on this rank. WEFT_IN_PROGRESS: every lane is blocked, one of them on
 * *out_blocked; where others are blocked too (wefti_run_ready), waiters look in between. What was
 * published is visible and its sleepers are woken, whatever is returned.
 */
weft_status_t wefti_run_advance(wefti_run_t *run, wefti_blocked_t *out_blocked);
/*
 * After an error: waits until puts of this run need their sources no more, before the caller
 * reuses its memory. A link that breaks ends its puts, so this takes long only while a peer does
 * not read. Accepts a run that never started.
 */
void wefti_run_settle(wefti_run_t *run);
/* Whether a lane could go on: cheap, for the poll function of a wait. */
bool wefti_run_ready(const wefti_run_t *run);
/* The ranks in the world that its lanes wait for, which may be this one. False: it waits for nothing
 * that a rank does. While no thread advances it. */
bool wefti_run_late(const wefti_run_t *run, uint32_t ranks[WEFTI_MAX_LANES], uint32_t *out_count);

#endif
