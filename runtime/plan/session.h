/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of a session. README.md shows which file does what. */
#ifndef WEFT_RUNTIME_SESSION_H
#define WEFT_RUNTIME_SESSION_H

#include <pthread.h>

#include <weft/session.h>

#include "ops/algo/table.h"
#include "ops/plan/plan.h"
#include "runtime/context/context.h"
#include "runtime/plan/history.h"
#include "runtime/interpreter/interpreter.h"
#include "runtime/stream/record.h"
#include "runtime/plan/sweep.h"
#include "runtime/plan/state_map.h"

#define WEFTI_STATS_STEPS 65536u
#define WEFTI_USE_RUNS 2u        /* of a use of a collective: those with an update may take two */
#define WEFTI_MICRO_PROGRAMS 32u /* micro-batches of a step are counted in 32 bits */

/* What one stream runs in one program. */
typedef struct wefti_stream_records {
    wefti_record_t *records;
    uint32_t count;
} wefti_stream_records_t;

typedef struct wefti_bound_program {
    wefti_stream_records_t *streams; /* one per stream of the plan */
    uint32_t epoch;                  /* runs so far */
} wefti_bound_program_t;

/* Where a stream is in the run at hand. Owned by the thread that runs the stream. */
typedef struct wefti_cursor {
    const wefti_record_t *records;
    uint32_t count, next;
    uint32_t wait_next; /* WAIT: signals before it were reached */
    uint32_t epoch;
    uint64_t blocked_since_ns;    /* 0: not blocked */
    uint64_t collective_since_ns; /* start of the collective at hand */
    uint64_t busy_ns;             /* running records other than kernels, in this run */
    uint64_t blocked_ns;          /* waiting, in this run */
    uint64_t comm_ns;             /* collectives from start to completion, in this run */
    uint64_t copied_bytes;        /* by fusion copies, all runs */
    uint64_t run;                 /* number of the run, over all programs */
    uint64_t step;                /* number of the step that the run belongs to; 0: none */
    wefti_history_t history;
    uint8_t pad[64]; /* cursors of different threads keep off each other's lines */
} wefti_cursor_t;

/* A communicating stream's own thread. */
typedef struct wefti_worker {
    wefti_signal_line_t start, done; /* number of the run asked for, and of the last one finished */
    uint32_t asked;                  /* the caller's copy of start */
    weft_session_t *session;
    pthread_t thread;
    _Atomic uint32_t stop;
} wefti_worker_t;

/* The ranks with which this rank runs the collectives of a group. */
typedef struct wefti_bound_group {
    wefti_axis_t axis;
    uint32_t rank;           /* this rank's number in it */
    uint32_t *ranks;         /* [size] in the world */
    uint8_t **bases;         /* [size] their regions, once mapped; NULL: a link that puts */
    const uint32_t *host_of; /* [size] those of others put and signal; NULL: all are on one host */
    uint32_t host_count;
    const uint32_t *rail_of; /* [size] as algorithms have it; NULL: hosts have one NIC each */
    const uint32_t *rack_of; /* [size] likewise; NULL: one rack, or unknown */
} wefti_bound_group_t;

/* Its chunks between device and mirror. */
typedef struct wefti_staged_run {
    wefti_run_hooks_t hooks; /* member 0 */
    struct weft_session *session;
    struct wefti_bound_run *bound;
    uint32_t stream;
    uint32_t out_before; /* pieces that the stream's queue had copied out before it */
} wefti_staged_run_t;

/* What a stream of a staged session has besides its queue. */
typedef struct wefti_staged_stream {
    weft_queue_t *in;      /* copies into the device, which go on beside those out of it */
    uint32_t *counters;    /* on the device: [0] pieces out, [LINE] collectives in */
    uint32_t out, ins;     /* how many of both were enqueued */
    _Atomic uint32_t seen; /* pieces out, as the queue shows the host */
} wefti_staged_stream_t;

/* A collective that the interpreter runs at one place of a program. */
typedef struct wefti_bound_run {
    wefti_run_t
        *run; /* NULL: records do it; uses with equal algorithm and params share one schedule */
    const weft_algorithm_t *algorithm;
    weft_algo_params_t params;
    wefti_run_counters_t counters;
    wefti_run_memory_t memory;
    wefti_run_call_t call;
    const wefti_bound_group_t *group;
    uint64_t *offsets; /* [2 * group size] send, then recv of the call */
    wefti_blocked_t blocked;
    uint32_t send_blocks, recv_blocks; /* of this rank; 0: nothing, 1: a vector or one block */
    bool started;
    wefti_staged_run_t staged; /* exec_staged.c */
} wefti_bound_run_t;

typedef enum wefti_result_kind {
    WEFTI_RESULT_EQUAL,
    WEFTI_RESULT_MOVED,
    WEFTI_RESULT_REDUCED,
} wefti_result_kind_t;

/* The result of a collective at one place of a program: check.c. */
typedef struct wefti_result_check {
    weft_session_t *session;
    const wefti_plan_collective_t *planned;
    wefti_result_kind_t kind;
    const uint8_t *source, *data; /* what this rank contributes; the result */
    size_t bytes;                 /* of the result; of each block or part */
    uint32_t program;
    uint32_t ranks, place; /* of the group; this rank in it */
    uint32_t parts;        /* blocks or parts that are looked at */
    bool any_order;        /* of the reduction */
    size_t window;         /* bytes of a part that are compared */
    const void **sources;  /* [ranks] */
    uint8_t *kept;         /* what the others are sent */
} wefti_result_check_t;

typedef struct wefti_step_times {
    float step_ms, compute_ms, comm_ms, exposed_ms;
} wefti_step_times_t;

struct weft_session {
    weft_session_t *next; /* waits.c */
    weft_context_t *context;
    weft_plan_t *plan;
    weft_registry_t *own_registry; /* when the caller gave none */
    const weft_registry_t *registry;
    const weft_allocator_t *allocator;
    wefti_endpoint_t *endpoint;
    wefti_arena_t arena; /* everything bind makes */
    wefti_fault_t fault;

    size_t region_offset;  /* of the plan's arena; then signals of collectives, then of events */
    size_t signals_offset; /* from region_offset */
    size_t events_offset;
    uint8_t *base; /* own copy of the arena, an address on the device; NULL: not mapped yet */
    bool staged;   /* exec_staged.c: the region is in host memory, a mirror of device_arena */
    uint8_t *device_arena;
    wefti_staged_stream_t *staged_streams;
    wefti_bound_kernel_t *kernels;
    uint32_t *kernel_stream; /* the stream that runs a kernel */
    void **scratch;          /* per stream, on the device */
    size_t *scratch_bytes;
    const weft_algorithm_t **algorithms; /* per collective */
    bool *interpreted;                   /* per collective */
    wefti_order_setting_t *orders;       /* per collective */
    bool interprets;                     /* one of them */
    uint32_t faults_seen;        /* of the endpoint's link faults: earlier ones do not concern it */
    bool puts;                   /* there are ranks that share no memory */
    wefti_bound_group_t *groups; /* [group] of collectives: bind_groups.c */
    wefti_bound_run_t *runs;     /* WEFTI_USE_RUNS for each use of a collective, in their order */
    uint32_t run_slots;
    wefti_sweep_t **sweeps; /* per collective; NULL: no fused update */
    size_t sweep_bytes;     /* their memory */

    wefti_result_check_t *checks; /* NULL: WEFT_CHECK is off */
    uint32_t check_count;
    bool checks_now;    /* in this run */
    uint8_t *exchanged; /* what this rank sends of the checks, then what all ranks send */

    wefti_bound_program_t *programs;
    /* WEFTI_PLAN_NONE where the plan has none */
    uint32_t step_program, eval_program, flush_program;
    uint32_t micro_programs[WEFTI_MICRO_PROGRAMS]; /* [t]: folds with the t newest partial sums */
    uint32_t micro_count;                          /* micro-batches since the last step */
    bool behind;  /* other ranks' shards of the weights are those of the step before */
    bool refused; /* this rank refused a program that others may be in: session_step.c */
    uint64_t run_count;
    uint64_t step_now;       /* number of the step that runs, from 1; 0: init, eval, flush */
    wefti_cursor_t *cursors; /* per stream */
    wefti_worker_t *workers; /* per stream; only those of communicating streams run */
    bool *on_worker;         /* per stream: the thread of its worker exists */
    weft_queue_t **queues;   /* per stream, not on the CPU */
    wefti_history_t *queue_histories; /* of the commands of queues; NULL: no timeline */
    weft_queue_t *copy_queue;         /* inputs and outputs, not on the CPU */

    uint32_t step_scalar, rank_scalar, shard_scalar; /* buffers of "step", "rank" and "shard" */
    wefti_state_map_t states; /* where parameters, gradients and optimizer state lie */
    bool trace;
    uint64_t timeline_first_step, timeline_last_step; /* of the file written last; 0: none */
    uint64_t steps;
    uint64_t steps_before; /* of earlier sessions, by a checkpoint */
    double step_ms_sum;
    wefti_step_times_t *times;                 /* ring of WEFTI_STATS_STEPS */
    wefti_step_times_t run_times, micro_times; /* of the last run; of this step's micro-batches */
};

/* exec_fault.c: stores the first error and ends the world. Returns status. Any thread. */
weft_status_t wefti_session_fail(weft_session_t *session, weft_status_t status);

/* WEFT_OK, or WEFT_ERR_LINK: a link of the world broke since the session was made. */
weft_status_t wefti_session_check_links(weft_session_t *session);
/* The quick half of it. */
static inline bool wefti_session_lost_link(const weft_session_t *session)
{
    return session->puts && atomic_load_explicit(&session->endpoint->link_faults,
                                                 memory_order_relaxed) > session->faults_seen;
}

/* Where rank's copy of a buffer is in the plan's arena. */
static inline uint64_t wefti_session_offset(const wefti_plan_buffer_t *buffer, uint32_t rank)
{
    return buffer->offset_bytes + rank * buffer->rank_stride_bytes;
}

/* This rank's copy of a buffer. */
static inline uint8_t *wefti_session_buffer(const weft_session_t *session, uint32_t id)
{
    return session->base +
           wefti_session_offset(&session->plan->buffers[id], session->endpoint->rank);
}

/* bind_kernels.c: scratch for the kernels of all records. */
weft_status_t wefti_bind_scratch(weft_session_t *session);
void wefti_unbind_kernels(weft_session_t *session);
/* bind_sweep.c: checks the updates of collectives, and prepares those that run as sweeps. */
weft_status_t wefti_bind_updates(weft_session_t *session);
void wefti_unbind_updates(weft_session_t *session);
/* bind_groups.c: the groups of the plan, once puts is known; their regions, once mapped. */
weft_status_t wefti_bind_groups(weft_session_t *session);
void wefti_bind_group_memory(weft_session_t *session);
static inline const wefti_bound_group_t *wefti_session_group(const weft_session_t *session,
                                                             const wefti_plan_collective_t *planned)
{
    return &session->groups[planned->group];
}
/* bind_algorithms.c */
weft_algo_params_t wefti_bind_algo_params(const weft_session_t *session, uint32_t collective);
weft_status_t wefti_bind_algorithms(weft_session_t *session);
/* Algorithms for ranks on several hosts by their cost, the least first: those that can run before
 * those with a reason why not. */
weft_status_t wefti_bind_cheapest(const weft_session_t *session, const weft_algo_params_t *params,
                                  const wefti_counts_t *counts, const wefti_choice_t *choice,
                                  wefti_candidate_t list[WEFTI_MAX_CANDIDATES],
                                  uint32_t *out_count);
/* bind_schedules.c: makes the runs, and adds what memory of the region they need to *bytes, which
 * are those before it; then tells them where the session's region is. */
weft_status_t wefti_bind_schedules(weft_session_t *session, size_t *bytes);
void wefti_bind_run_memory(weft_session_t *session);
void wefti_unbind_schedules(weft_session_t *session);
/* WEFT_IN_PROGRESS: blocked. */
weft_status_t wefti_bound_run_advance(wefti_bound_run_t *bound);
/* bind_records.c */
size_t wefti_bind_signal_bytes(weft_session_t *session);
/* How often all programs together use a collective. */
uint32_t wefti_bind_count_collectives(const weft_plan_t *plan);
weft_status_t wefti_bind_records(weft_session_t *session);

/* check.c: around a run. */
void wefti_checks_begin(weft_session_t *session);
weft_status_t wefti_checks_compare(weft_session_t *session, uint32_t program);
/* exec.c: one program, to completion, on the device at hand. */
weft_status_t wefti_exec_run(weft_session_t *session, uint32_t program);
/* exec_host.c */
weft_status_t wefti_exec_host_open(weft_session_t *session);
void wefti_exec_host_close(weft_session_t *session);
weft_status_t wefti_exec_host_run(weft_session_t *session, wefti_bound_program_t *program);
/* cursor.c: runs records until done (OK), blocked (IN_PROGRESS), or, with one_kernel, after one
 * kernel (AGAIN). */
void wefti_cursor_begin(wefti_cursor_t *cursor, const wefti_stream_records_t *records,
                        uint32_t epoch, uint64_t run, uint64_t step);
weft_status_t wefti_cursor_advance(weft_session_t *session, wefti_cursor_t *cursor,
                                   bool one_kernel);
/* What a blocked cursor waits for. */
wefti_signal_t *wefti_cursor_blocked_on(const wefti_cursor_t *cursor, uint32_t *out_target);
/* exec_device.c */
weft_status_t wefti_exec_device_open(weft_session_t *session);
void wefti_exec_device_close(weft_session_t *session);
weft_status_t wefti_exec_device_run(weft_session_t *session, wefti_bound_program_t *program);
/* The session's queues: that of each stream, then, if it is staged, that of its copies in. */
uint32_t wefti_exec_device_queue_count(const weft_session_t *session);
/* Before the first run, for a timeline. */
weft_status_t wefti_exec_device_profile(weft_session_t *session);
/* Later commands of a stream's queues are those of a record, in a timeline. */
void wefti_exec_device_label(const weft_session_t *session, uint32_t stream, const char *name);
/* After a run: what its queues did, into their histories. */
void wefti_exec_device_remember(weft_session_t *session);
/* Until queue is done; an error where the world ends first. */
weft_status_t wefti_session_drain(weft_session_t *session, weft_queue_t *queue);
/* Until queue, which may wait for other, has shown the host target or more in seen. */
weft_status_t wefti_session_await(weft_session_t *session, weft_queue_t *queue, weft_queue_t *other,
                                  const _Atomic uint32_t *seen, uint32_t target);
/* exec_staged.c: whether the session is staged, with the endpoint that it uses. Collective. */
weft_status_t wefti_staged_choose(weft_session_t *session);
/* The arena on the device, and its addresses in all records. */
weft_status_t wefti_staged_open(weft_session_t *session);
void wefti_staged_close(weft_session_t *session);
/* Where the device has what the mirror has at address; other addresses stay. */
static inline void *wefti_staged_address(const weft_session_t *session, const void *address)
{
    size_t offset = (size_t)((uintptr_t)address - (uintptr_t)session->base);
    return session->device_arena != NULL && address != NULL && offset < session->plan->arena_bytes
               ? session->device_arena + offset
               : (void *)(uintptr_t)address;
}
/* Of a stream that is staged: records for its queue, and the end of what is there. */
bool wefti_staged_enqueues(const weft_session_t *session, const wefti_record_t *record);
weft_status_t wefti_staged_enqueue(weft_session_t *session, const wefti_cursor_t *cursor,
                                   const wefti_record_t *record);
weft_status_t wefti_staged_drain(weft_session_t *session, const wefti_cursor_t *cursor);
/* Of a chunk; tests make it smaller. */
extern size_t wefti_staged_chunk_bytes;
/* Elements of a chunk of a call on n ranks, of the vector or of each block. */
uint64_t wefti_staged_chunk(weft_collective_t op, weft_dtype_t dtype, uint32_t n);
/* Before a collective starts: its data is on its way to the mirror. */
weft_status_t wefti_staged_start(weft_session_t *session, const wefti_cursor_t *cursor,
                                 wefti_bound_run_t *bound);
/* After it: later commands of the stream's queue wait for its result. */
weft_status_t wefti_staged_finish(weft_session_t *session, const wefti_cursor_t *cursor,
                                  const wefti_bound_run_t *bound);
/* Copies between host and arena, to completion, on either kind of device. */
weft_status_t wefti_session_copy(weft_session_t *session, void *dst, const void *src, size_t bytes);
/* The error of a caller's buffer whose size is not the tensor's. kind: "input", "parameter", ... */
weft_status_t wefti_session_bad_size(const char *kind, const char *name, uint64_t tensor_bytes,
                                     size_t buffer_bytes);

/* waits.c: of sessions over put links */
weft_status_t wefti_session_enlist(weft_session_t *session);
void wefti_session_delist(weft_session_t *session);
/* The rank that is to signal what cursor waits for; world_size: unknown. */
uint32_t wefti_session_late(const weft_session_t *session, const wefti_cursor_t *cursor);
/* Adds the ranks that may let a blocked cursor go on to a wait of kind STEP, or makes it one of DATA:
 * not only ranks may. */
void wefti_session_add_late(const weft_session_t *session, const wefti_cursor_t *cursor,
                            wefti_wait_t *out);
/* In records of waits. Equal on all ranks, since they allocate together. */
uint32_t wefti_session_channel(const weft_session_t *session);

/* agree.c: all ranks' copies of own, in arena. Collective: an error of one rank is that of all. */
weft_status_t wefti_session_gather(wefti_endpoint_t *endpoint, wefti_arena_t *arena,
                                   weft_status_t status, const void *own, size_t bytes,
                                   void **out_all);
/* session_step.c: what reads weights calls this first. Collective where the plan is decoupled. */
weft_status_t wefti_session_gather_weights(weft_session_t *session);
/* session_io.c */
/* The buffer of a scalar; WEFTI_PLAN_NONE: the plan has none of this name. */
uint32_t wefti_session_find_scalar(const weft_session_t *session, const char *name);
weft_status_t wefti_session_write_scalar(weft_session_t *session, uint32_t buffer, double value);
/* The first contents of weights, constants and scalars. */
weft_status_t wefti_session_load(weft_session_t *session);

#endif
