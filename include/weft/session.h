/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file session.h
 * A plan bound to a context: feed inputs, run steps, read outputs.
 *
 * Rules for all calls of this header: one thread at a time uses a session. Data goes in and out
 * between steps only, in plain layout, by copies that are done when the call returns. Collective
 * calls concern all ranks of the world and are blocking. An error while a step runs breaks the
 * session: later calls that read, write or run return the same error.
 *
 * The error of a kernel, or a rank that died, ends the world on all ranks, and the message names the
 * rank. All that live go on with weft_context_shrink, a new session on its context, and a checkpoint
 * or snapshot; the rank whose kernel failed is still one of them.
 *
 * WEFT_ERR_LINK: a link between two hosts broke, but both ranks live. Every call of the session
 * then returns this error, from the call in flight (on each rank) on, and the message names the
 * link. The world continues. Some ranks may have ended their last step before the others, so ranks
 * exchange their state (such as by weft_context_all_gather), destroy the session and create a new
 * one, which uses the remaining path, and continue from a checkpoint or from the start. With
 * WEFT_FALLBACK=off no path remains.
 */
#ifndef WEFT_SESSION_H
#define WEFT_SESSION_H

#include <weft/context.h>
#include <weft/plan.h>

/** A plan bound to a context. */
typedef struct weft_session weft_session_t;

/** Parameters of weft_session_create. */
typedef struct weft_session_params {
    size_t struct_size;              /**< size of this struct */
    weft_context_t *context;         /**< retained */
    weft_plan_t *plan;               /**< retained */
    const weft_registry_t *registry; /**< kernels, borrowed; NULL: the built-in ones */
    int trace;                       /**< 1: keep a timeline of the last steps */
} weft_session_params_t;

/** Defaults of weft_session_params_t; context and plan must be set. */
#define WEFT_SESSION_PARAMS_INIT WEFT_STRUCT_INIT(weft_session_params_t, 0, 0, 0, 0)

/** Measurements of a session. Times cover all micro-batches of a step. */
typedef struct weft_session_stats {
    size_t struct_size;    /**< size of this struct */
    uint64_t steps;        /**< steps run */
    double step_ms_p50;    /**< median time of a step, milliseconds */
    double step_ms_mean;   /**< mean time of a step, milliseconds */
    double compute_ms_p50; /**< median time of kernels per step, milliseconds */
    /** Median per step of the sum of the collectives' times from start to completion, in
     * milliseconds. */
    double comm_ms_p50;
    /** Median time per step in which the compute stream waits for communication or executes it, in
     * milliseconds. */
    double exposed_comm_ms_p50;
    double overlap_fraction;      /**< 1 - exposed / comm; NaN if communication is inline */
    int inline_progress;          /**< 1: the caller's thread executes communication */
    uint64_t arena_bytes;         /**< memory of the arena */
    uint64_t scratch_bytes;       /**< scratch of kernels, outside the arena */
    uint64_t fusion_copied_bytes; /**< bytes copied only to fuse, counted while running */
    const char *kernels;          /**< "exact" or "onednn" (WEFT_KERNELS); static storage */
    /** First step in the file that weft_session_write_trace wrote last, from 1; 0: no step. */
    uint64_t timeline_first_step;
    /** Last step in that file; 0: no step. */
    uint64_t timeline_last_step;
} weft_session_stats_t;

/** Initial value of weft_session_stats_t. */
#define WEFT_SESSION_STATS_INIT                                                                    \
    WEFT_STRUCT_INIT(weft_session_stats_t, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)

WEFT_EXTERN_C_BEGIN
/**
 * Binds a plan to a context. Ranks compare the plan's digest, map each other's arenas, resolve
 * kernels and run the program "init": rank 0's weights are broadcast; if ranks have weights of
 * their own, each rank reads its own. Allocates everything that a step needs. Collective, blocking.
 * @param[in]  params      context, plan and options
 * @param[out] out_session the session; the caller destroys it
 * @return on all ranks: WEFT_ERR_INVALID_ARGUMENT if the world size is not the plan's;
 *         WEFT_ERR_MISMATCH naming both digests; WEFT_ERR_NOT_FOUND naming a missing kernel;
 *         WEFT_ERR_UNSUPPORTED; WEFT_ERR_NO_MEMORY
 */
WEFT_API weft_status_t weft_session_create(const weft_session_params_t *params,
                                           weft_session_t **out_session);
/**
 * Destroys a session. Not collective.
 * @param[in] session NULL: nothing happens
 */
WEFT_API void weft_session_destroy(weft_session_t *session);
/**
 * Copies data into an input. Local. With weft_plan_info_t.split_batch only inputs of rank 0 count.
 * @param[in] session the session
 * @param[in] name    name of the input
 * @param[in] data    the input's elements of this rank; may be NULL if bytes is 0
 * @param[in] bytes   exactly the size of the input
 * @return WEFT_ERR_NOT_FOUND, WEFT_ERR_INVALID_ARGUMENT for another size
 */
WEFT_API weft_status_t weft_session_set_input(weft_session_t *session, const char *name,
                                              const void *data, size_t bytes);
/**
 * Returns the memory of an input in the arena, for filling in place between steps. Local.
 * @param[in]  session   the session
 * @param[in]  name      name of the input
 * @param[out] out_data  the memory, owned by the session
 * @param[out] out_bytes its size
 * @return WEFT_ERR_NOT_FOUND, WEFT_ERR_UNSUPPORTED if the host cannot access device memory
 */
WEFT_API weft_status_t weft_session_input_memory(weft_session_t *session, const char *name,
                                                 void **out_data, size_t *out_bytes);
/**
 * Sets a scalar input such as "lr" from the next step on. Local. "seed" (plans with Dropout) starts
 * at 0 and must be equal on all ranks. The session sets "rank" at bind (with accumulation: before
 * every micro-batch) and "step" in every step.
 * @param[in] session the session
 * @param[in] name    name of the scalar
 * @param[in] value   converted to the scalar's type
 * @return WEFT_ERR_NOT_FOUND
 */
WEFT_API weft_status_t weft_session_set_scalar(weft_session_t *session, const char *name,
                                               double value);
/**
 * Reads a scalar input: the last value set by weft_session_set_scalar, a checkpoint or the session
 * itself, else its default. Local.
 * @param[in]  session   the session
 * @param[in]  name      name of the scalar
 * @param[out] out_value the value
 * @return WEFT_ERR_NOT_FOUND
 */
WEFT_API weft_status_t weft_session_get_scalar(weft_session_t *session, const char *name,
                                               double *out_value);
/**
 * Runs the program "step" once. Collective, blocking. Sets the calling thread's number of OpenMP
 * threads. For a training plan with accumulate > 1 this is the last micro-batch of a step;
 * weft_session_micro_step runs those before. For an inference plan it runs the graph. The scalar
 * "step", if the plan has one, counts from 1 and is the same in all micro-batches of a step.
 * @param[in] session the session
 * @return WEFT_ERR_STATE if micro-batches of this step are missing, WEFT_ERR_PEER_DIED,
 *         WEFT_ERR_TIMEOUT, WEFT_ERR_ABORTED, WEFT_ERR_LINK, or the error of a kernel
 */
WEFT_API weft_status_t weft_session_step(weft_session_t *session);
/**
 * Runs forward and backward of one micro-batch that is not the last of its step, and adds its
 * gradients to those of the micro-batches before. Collective, blocking. A step of a plan with
 * accumulate K is K - 1 calls of this function, each after its inputs were set, then one call of
 * weft_session_step. Ranks may be in different micro-batches at the same time, but a decoupled plan
 * gathers its weights in the first. Micro-batch i of rank r has index r * K + i among those of all
 * ranks; the scalar "rank" is set to that index.
 * @param[in] session the session
 * @return WEFT_ERR_STATE if the next micro-batch is the last one or the plan does not accumulate;
 *         else as weft_session_step
 */
WEFT_API weft_status_t weft_session_micro_step(weft_session_t *session);
/**
 * Returns the number of micro-batches run since the last step. Local.
 * @param[in] session the session
 * @return 0 to accumulate - 1; at the latter the next call is weft_session_step; 0 if session is
 *         NULL
 */
WEFT_API uint32_t weft_session_micro_count(const weft_session_t *session);
/**
 * Gathers the weights that other ranks have updated. Collective, blocking. Only a decoupled plan
 * leaves weights on other ranks after a step; for other plans, and without a step since the last
 * call, nothing happens. Calls that read weights flush first, so they are collective on a decoupled
 * plan: weft_session_eval, weft_session_get_param, weft_session_param_digest and saving. They are
 * also collective if each rank has only a part of the weights: if parameters are sharded
 * (weft_compile_params_t.shard_parameters) or divided (tensor_parallel), or are those of a stage
 * (pipeline).
 * @param[in] session the session
 * @return as weft_session_step
 *
 * Equivalent to: ncclAllGather of the updated weights
 */
WEFT_API weft_status_t weft_session_flush(weft_session_t *session);
/**
 * Runs the program "eval" once: forward only. Blocking. Not collective unless the plan is decoupled
 * or its parameters are sharded (weft_session_flush), or several ranks compute a batch together
 * (weft_plan_info_t.batch_ranks): then these call it together.
 * @param[in] session the session
 * @return WEFT_ERR_STATE if the plan has none: inference plans, and plans of models that communicate
 *         in their forward pass; else as weft_session_step
 */
WEFT_API weft_status_t weft_session_eval(weft_session_t *session);
/**
 * Copies an output of the last run; before the first run its contents are undefined. Local. With
 * weft_plan_info_t.split_batch only outputs of rank 0 are meaningful.
 * @param[in]  session  the session
 * @param[in]  name     "loss", "logits" or the name of the output
 * @param[out] data     the output's elements; may be NULL if bytes is 0
 * @param[in]  bytes    size of data, at least that of the output
 * @param[out] out_desc type and shape; NULL: not needed
 * @return WEFT_ERR_NOT_FOUND, WEFT_ERR_INVALID_ARGUMENT if data is too small
 */
WEFT_API weft_status_t weft_session_get_output(weft_session_t *session, const char *name,
                                               void *data, size_t bytes,
                                               weft_tensor_desc_t *out_desc);
/**
 * Sets the number of steps done before: the next step has number steps + 1 in the scalar "step".
 * Not collective, but equal on all ranks. weft_session_load_checkpoint does this itself.
 * @param[in] session the session
 * @param[in] steps   steps done
 * @return WEFT_ERR_STATE between the micro-batches of a step
 */
WEFT_API weft_status_t weft_session_set_steps_done(weft_session_t *session, uint64_t steps);
/**
 * Returns the number of trained parameters. Local.
 * @param[in] session the session
 * @return the number; 0 if session is NULL
 */
WEFT_API size_t weft_session_param_count(const weft_session_t *session);
/**
 * Describes a trained parameter. Local.
 * @param[in]  session  the session
 * @param[in]  index    0 to weft_session_param_count - 1
 * @param[out] out_name its name, borrowed from the session; NULL: not needed
 * @param[out] out_desc type and shape in plain layout, without data; NULL: not needed
 * @return WEFT_ERR_INVALID_ARGUMENT if there is no such parameter
 */
WEFT_API weft_status_t weft_session_param_info(const weft_session_t *session, size_t index,
                                               const char **out_name, weft_tensor_desc_t *out_desc);
/**
 * Copies a parameter out. Not collective unless the plan is decoupled or ranks have parts of the
 * parameters (weft_session_flush).
 * @param[in]  session the session
 * @param[in]  index   index of the parameter
 * @param[out] data    the parameter in plain layout; may be NULL if bytes is 0
 * @param[in]  bytes   exactly the size of the parameter
 * @return WEFT_ERR_INVALID_ARGUMENT for another index or size
 */
WEFT_API weft_status_t weft_session_get_param(weft_session_t *session, size_t index, void *data,
                                              size_t bytes);
/**
 * Computes SHA-256 over all parameters in the order of their names, in plain layout. Not collective
 * unless the plan is decoupled or ranks have parts of the parameters (weft_session_flush).
 * @param[in]  session the session
 * @param[out] buffer  65 bytes: the digest in hex and a NUL
 * @return WEFT_ERR_NO_MEMORY; on a decoupled plan as weft_session_flush
 */
WEFT_API weft_status_t weft_session_param_digest(weft_session_t *session, char *buffer);
/**
 * Replaces a parameter. Not collective unless the plan is decoupled (weft_session_flush). All ranks
 * set the same contents, or their weights differ from then on.
 * @param[in] session the session
 * @param[in] index   index of the parameter
 * @param[in] data    the parameter in plain layout; may be NULL if bytes is 0
 * @param[in] bytes   exactly the size of the parameter
 * @return WEFT_ERR_INVALID_ARGUMENT for another index or size
 */
WEFT_API weft_status_t weft_session_set_param(weft_session_t *session, size_t index,
                                              const void *data, size_t bytes);
/**
 * Copies the gradient of a parameter that the last step used: reduced over ranks, before the
 * factors of the update (clipping; the number of global micro-batches if that is fixed). Local,
 * unless ranks have parts of the parameters (weft_compile_params_t.tensor_parallel, pipeline).
 * @param[in]  session the session
 * @param[in]  index   index of the parameter
 * @param[out] data    the gradient in plain layout, with type and shape of the parameter; not NULL
 * @param[in]  bytes   exactly the size of the parameter
 * @return WEFT_ERR_STATE before the first step; WEFT_ERR_NOT_FOUND if there is no gradient (frozen
 *         parameters, running statistics of BatchNormalization);
 *         WEFT_ERR_INVALID_ARGUMENT for another index or size; WEFT_ERR_UNSUPPORTED if the plan
 *         shards its optimizer or hands gradients over in another type
 */
WEFT_API weft_status_t weft_session_get_gradient(weft_session_t *session, size_t index, void *data,
                                                 size_t bytes);
/**
 * Returns the number of tensors of optimizer state: one per trained parameter and slot of its
 * optimizer. Local.
 * @param[in] session the session
 * @return the number, 0 for sgd; 0 if session is NULL
 */
WEFT_API size_t weft_session_state_count(const weft_session_t *session);
/**
 * Describes a tensor of optimizer state. Local.
 * @param[in]  session  the session
 * @param[in]  index    0 to weft_session_state_count - 1
 * @param[out] out_name "<parameter>.<slot>" (slots: "momentum"; "moment1", "moment2"), borrowed
 *                      from the session; NULL: not needed
 * @param[out] out_desc type and shape of the whole tensor, wherever its shards are, without data;
 *                      NULL: not needed
 * @return WEFT_ERR_INVALID_ARGUMENT if there is no such state
 */
WEFT_API weft_status_t weft_session_state_info(const weft_session_t *session, size_t index,
                                               const char **out_name, weft_tensor_desc_t *out_desc);
/**
 * Copies a whole tensor of optimizer state, gathered from the ranks that have its shards. Every
 * rank calls it and receives the same; if nothing is sharded, it is not collective.
 * @param[in]  session the session
 * @param[in]  index   index of the state
 * @param[out] data    the tensor in plain layout; not NULL
 * @param[in]  bytes   exactly the size of the tensor
 * @return WEFT_ERR_INVALID_ARGUMENT for another index or size, WEFT_ERR_UNSUPPORTED if no single
 *         update writes all of it; if the state is sharded, an error of one rank is that of all
 *
 * Equivalent to: MPI_Allgather of the shards
 */
WEFT_API weft_status_t weft_session_get_state(weft_session_t *session, size_t index, void *data,
                                              size_t bytes);
/**
 * Replaces a tensor of optimizer state. Not collective: every rank passes the whole tensor and
 * keeps its shard.
 * @param[in] session the session
 * @param[in] index   index of the state
 * @param[in] data    the whole tensor in plain layout, equal on all ranks
 * @param[in] bytes   exactly the size of the tensor
 * @return as weft_session_get_state
 */
WEFT_API weft_status_t weft_session_set_state(weft_session_t *session, size_t index,
                                              const void *data, size_t bytes);
/**
 * Returns measurements of the steps so far. Local.
 * @param[in]  session the session
 * @param[out] stats   set struct_size before the call
 * @return WEFT_ERR_INVALID_ARGUMENT, WEFT_ERR_NO_MEMORY
 */
WEFT_API weft_status_t weft_session_get_stats(const weft_session_t *session,
                                              weft_session_stats_t *stats);
/**
 * Writes the timeline of all ranks as Chrome trace JSON to a file on rank 0: the last whole steps
 * that the session remembers. weft_session_stats_t reports their numbers, and the file holds them
 * under "otherData". Collective, blocking.
 * @param[in] session created with trace
 * @param[in] path    the file, not NULL on any rank
 * @return WEFT_ERR_STATE without trace, WEFT_ERR_SYSTEM
 */
WEFT_API weft_status_t weft_session_write_trace(weft_session_t *session, const char *path);
/**
 * Writes measured times as JSON to a file on rank 0, for weft_compile_params_t.profile_path: per
 * kernel and collective the median over the steps in the timeline, averaged over ranks, in
 * nanoseconds. Collective, blocking.
 * @param[in] session created with trace, on the CPU device
 * @param[in] path    the file, not NULL on any rank
 * @return WEFT_ERR_STATE without trace or on an accelerator, WEFT_ERR_SYSTEM
 */
WEFT_API weft_status_t weft_session_write_profile(weft_session_t *session, const char *path);
WEFT_EXTERN_C_END

#endif
