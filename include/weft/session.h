/* SPDX-License-Identifier: Apache-2.0 */
/** @file session.h A plan bound to a context: fed, stepped, read. */
#ifndef WEFT_SESSION_H
#define WEFT_SESSION_H

#include <weft/context.h>
#include <weft/plan.h>

typedef struct weft_session weft_session_t;

typedef struct weft_session_params {
    size_t struct_size;
    weft_context_t *context; /**< retained */
    weft_plan_t *plan;       /**< retained */
    const weft_registry_t *registry; /**< kernels; NULL: the built-in ones */
    int trace; /**< 1: keep a timeline of the last steps */
} weft_session_params_t;

typedef struct weft_session_stats {
    size_t struct_size;
    uint64_t steps;
    double step_ms_p50, step_ms_mean; /**< these and the following: all micro-batches of a step together */
    double compute_ms_p50;
    double comm_ms_p50;         /**< from start to completion of collectives, summed over a step */
    double exposed_comm_ms_p50; /**< the compute stream waits for, or itself executes, communication */
    double overlap_fraction;    /**< 1 - exposed / comm; NaN when communication is inline */
    int inline_progress;
    uint64_t arena_bytes;
    uint64_t scratch_bytes;       /**< kernels' scratch, outside the arena */
    uint64_t fusion_copied_bytes; /**< bytes copied only to fuse, counted while running */
    const char *kernels; /**< "exact" or "onednn": what WEFT_KERNELS asked for; static storage */
    /** Steps in the file that weft_session_write_trace wrote last, from 1; 0: no step. */
    uint64_t timeline_first_step, timeline_last_step;
} weft_session_stats_t;

WEFT_EXTERN_C_BEGIN
/**
 * Binds: ranks agree on the plan's digest, map each other's arenas, resolve kernels, fill in records, run
 * the program init (rank 0's weights reach everybody; where ranks have weights of their own, each reads its own). Collective. Everything
 * a step needs is allocated here.
 * @return WEFT_ERR_MISMATCH naming both digests, WEFT_ERR_NOT_FOUND naming a missing kernel,
 *         WEFT_ERR_NO_MEMORY when there is no room for the arena, WEFT_ERR_INVALID_ARGUMENT when the
 *         context's world is not the plan's
 */
WEFT_API weft_status_t weft_session_create(const weft_session_params_t *params, weft_session_t **out_session);
/** NULL is fine. Not collective. */
WEFT_API void weft_session_destroy(weft_session_t *session);
/** Copies bytes (exactly the input's size) into the input called name. Between steps only. Of a plan that splits the
 * batch (weft_plan_info_t.split_batch) rank 0's inputs alone count, and its outputs alone mean something. */
WEFT_API weft_status_t weft_session_set_input(weft_session_t *session, const char *name, const void *data, size_t bytes);
/**
 * The input's own memory in the arena, for filling in place; valid as long as the session, written between
 * steps. WEFT_ERR_UNSUPPORTED when the host cannot reach device memory.
 */
WEFT_API weft_status_t weft_session_input_memory(weft_session_t *session, const char *name, void **out_data, size_t *out_bytes);
/**
 * Sets a scalar plan input such as "lr", from the next step on. "seed", which plans with Dropout have, starts at 0 and
 * must be the same on all ranks; "rank" is set when the plan is bound (where it accumulates: before every micro-batch), and "step" by
 * every step.
 */
WEFT_API weft_status_t weft_session_set_scalar(weft_session_t *session, const char *name, double value);
/** Reads a scalar plan input: what it was set to last, by weft_session_set_scalar, a checkpoint or the session itself; else its default. */
WEFT_API weft_status_t weft_session_get_scalar(weft_session_t *session, const char *name, double *out_value);
/**
 * Runs program step once, to completion; sets the calling thread's OpenMP thread count. Collective. Of a training plan with
 * accumulate > 1 it runs the last micro-batch of a step: weft_session_micro_step runs those before. Of an inference plan
 * it runs the graph. The scalar "step", where the plan has one, counts from 1; all micro-batches of a step see one number.
 * Where a link between two hosts breaks although both ranks live, every call of the session returns WEFT_ERR_LINK
 * naming it, from the one in flight (on each rank) on; the world goes on. Ranks then tell each other
 * (weft_context_all_gather, say: some may have ended their last step before), destroy the session and create a new
 * one, which uses the path that is left, and go on from a checkpoint or from the start. WEFT_FALLBACK=off leaves none.
 * @return WEFT_ERR_STATE when micro-batches of this step are missing
 */
WEFT_API weft_status_t weft_session_step(weft_session_t *session);
/**
 * Runs forward and backward of one micro-batch that is not the last of its step, and adds its gradients to those of
 * the ones before, to completion: a step of a plan with accumulate K is K - 1 calls of this, each after its inputs were fed,
 * then one of weft_session_step. Collective (ranks may run a micro-batch while others are in another one, but a decoupled plan
 * gathers its weights in the first). Rank r's micro-batch i of a step is number r * K + i of all ranks': the scalar "rank" is set to that.
 * @return WEFT_ERR_STATE when the next micro-batch is the last one, or the plan does not accumulate
 */
WEFT_API weft_status_t weft_session_micro_step(weft_session_t *session);
/** Micro-batches run since the last step: 0 to K - 1. Then the next call is weft_session_step. */
WEFT_API uint32_t weft_session_micro_count(const weft_session_t *session);
/**
 * Brings weights that other ranks have updated to this one (an all-gather, as ncclAllGather). Only a plan with decouple leaves
 * them where they are after a step; for others, and when there was no step since the last call, it does nothing.
 * Collective. Calls that read weights flush by themselves, so on a decoupled plan they are collective too:
 * weft_session_eval, weft_session_get_param, weft_session_param_digest and what saves weights. All ranks make such calls in the same
 * order.
 */
WEFT_API weft_status_t weft_session_flush(weft_session_t *session);
/** Runs program eval once: forward only, no communication; plans for inference, and those whose forward pass
 * communicates, have none (WEFT_ERR_STATE). Not collective, unless the plan is decoupled (weft_session_flush). */
WEFT_API weft_status_t weft_session_eval(weft_session_t *session);
/** Copies an output ("loss", "logits" or its name) of the last run; *out_desc may be NULL. bytes is data's room. */
WEFT_API weft_status_t weft_session_get_output(weft_session_t *session, const char *name, void *data, size_t bytes,
                                               weft_tensor_desc_t *out_desc);
/**
 * Says that steps were done before: the next one is number steps + 1 of the scalar "step". The same on all ranks, between steps.
 * Not collective. weft_session_load_checkpoint says it by itself.
 */
WEFT_API weft_status_t weft_session_set_steps_done(weft_session_t *session, uint64_t steps);
/** Number of trained parameters. */
WEFT_API size_t weft_session_param_count(const weft_session_t *session);
/** Describes parameter index: name and shape (plain layout); out_desc->data is NULL. */
WEFT_API weft_status_t weft_session_param_info(const weft_session_t *session, size_t index, const char **out_name,
                                               weft_tensor_desc_t *out_desc);
/** Copies parameter index into data, which has exactly its size. Between steps only. Not collective, unless the plan is decoupled (weft_session_flush). */
WEFT_API weft_status_t weft_session_get_param(weft_session_t *session, size_t index, void *data, size_t bytes);
/** SHA-256, in hex, over all parameters in the order of their names, plain layout; buffer holds 65 bytes. Not collective, unless the plan is decoupled (weft_session_flush). */
WEFT_API weft_status_t weft_session_param_digest(weft_session_t *session, char *buffer);
/**
 * Replaces parameter index by data, which has exactly its size, plain layout. Between steps only. All ranks set the same, or their
 * weights differ from then on; collective on a decoupled plan (weft_session_flush).
 */
WEFT_API weft_status_t weft_session_set_param(weft_session_t *session, size_t index, const void *data, size_t bytes);
/**
 * Copies the gradient of parameter index that the last step used: plain layout, type and shape of the parameter, reduced over
 * ranks, before the update's own factors (of clipping, and 1 / shards where their number is fixed). Where a plan shards its
 * optimizer only the own shard is that; such plans and those that hand gradients over in another type are refused. Not collective.
 * @return WEFT_ERR_STATE before the first step, WEFT_ERR_NOT_FOUND when the parameter has no gradient, WEFT_ERR_UNSUPPORTED
 */
WEFT_API weft_status_t weft_session_get_gradient(weft_session_t *session, size_t index, void *data, size_t bytes);
/** Number of tensors of optimizer state: one per trained parameter and slot of its optimizer, 0 for sgd. */
WEFT_API size_t weft_session_state_count(const weft_session_t *session);
/**
 * Describes state index: its name, "<parameter>.<slot>" (slots are "momentum"; "moment1", "moment2"), borrowed from the session, and
 * the whole tensor's type and shape, wherever its shards are; out_desc->data is NULL. Either output may be NULL.
 */
WEFT_API weft_status_t weft_session_state_info(const weft_session_t *session, size_t index, const char **out_name,
                                               weft_tensor_desc_t *out_desc);
/**
 * Copies all of state index, gathered from the ranks that have its shards, into data, which has exactly its size, plain layout.
 * Between steps only. Every rank calls it and gets the same (as MPI_Allgather); where nothing is sharded it is not collective.
 */
WEFT_API weft_status_t weft_session_get_state(weft_session_t *session, size_t index, void *data, size_t bytes);
/** Replaces state index: data is all of it, the same on all ranks, of which each keeps what it has. Between steps only, not collective. */
WEFT_API weft_status_t weft_session_set_state(weft_session_t *session, size_t index, const void *data, size_t bytes);
WEFT_API weft_status_t weft_session_get_stats(const weft_session_t *session, weft_session_stats_t *stats);
/**
 * Writes the timeline of all ranks as Chrome trace JSON to path on rank 0: the last whole steps that
 * the session remembers. weft_session_stats_t reports their numbers; the file has them under
 * "otherData". Needs a session created with trace. Collective.
 */
WEFT_API weft_status_t weft_session_write_trace(weft_session_t *session, const char *path);
/**
 * Writes measured times as JSON to path on rank 0, for weft_compile_params_t.profile_path: per kernel and
 * collective the median over the steps in the timeline, averaged over ranks, in nanoseconds. Needs a session
 * created with trace, on the CPU device. Collective.
 */
WEFT_API weft_status_t weft_session_write_profile(weft_session_t *session, const char *path);
WEFT_EXTERN_C_END

#endif
