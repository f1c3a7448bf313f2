/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file checkpoint.h
 * Training state in one file, or in the memory of the ranks.
 *
 * A checkpoint is a safetensors file. It holds weights by the names of their parameters and
 * optimizer state as "<parameter>.<slot>" ("fc1.weight.momentum"; adam: "fc1.weight.moment1",
 * "fc1.weight.moment2"). Tensors are whole and in plain layout, whatever the number of ranks, the
 * bucket policy, the sharding or the parts (weft_compile_params_t.tensor_parallel) of the run that
 * wrote it. A run that differs in these can load it, and so can any reader of safetensors. Its
 * metadata ("weft.step", "weft.seed", ...) hold the fields of weft_checkpoint_info_t, the scalar
 * inputs and a digest of the contents.
 *
 * A snapshot holds the same contents in memory, so that ranks that survive the death of others
 * continue from their last step. Each rank keeps its own part, and with sharded state also the
 * shards of the rank before it (rank r - 1; of rank 0: the last rank).
 */
#ifndef WEFT_CHECKPOINT_H
#define WEFT_CHECKPOINT_H

#include <weft/group.h>
#include <weft/session.h>

/** Position of a training run. Weft stores it; the caller that feeds the data uses it. */
typedef struct weft_checkpoint_info {
    size_t struct_size;    /**< size of this struct */
    uint64_t seed;         /**< seed of the order of the data */
    uint64_t epoch;        /**< complete passes over the data */
    uint64_t sample;       /**< samples of the next pass that all ranks together have consumed */
    uint64_t sample_count; /**< samples of the data set; 0: unknown */
    double lr;             /**< learning rate at the start of a schedule; 0: unknown */
    /* Written by the session; weft_session_save_checkpoint ignores them. */
    uint64_t step;         /**< steps done */
    uint64_t global_batch; /**< samples of all ranks per step */
    uint32_t world_size;   /**< ranks of the run that saved */
    char optimizer[32];    /**< such as "momentum" */
    uint32_t tensor_count; /**< tensors in the file */
} weft_checkpoint_info_t;

/** Initial value of weft_checkpoint_info_t. */
#define WEFT_CHECKPOINT_INFO_INIT                                                                  \
    WEFT_STRUCT_INIT(weft_checkpoint_info_t, 0, 0, 0, 0, 0, 0, 0, 0, {0}, 0)

/** Writes checkpoints of a session, one after the other, while the session goes on. */
typedef struct weft_checkpoint_writer weft_checkpoint_writer_t;

/** Parameters of weft_checkpoint_writer_create. Zero means the default. */
typedef struct weft_checkpoint_writer_params {
    size_t struct_size; /**< size of this struct */
    uint32_t keep;      /**< checkpoints that stay: the newest at path, those before it at path.1 to
                      path.(keep - 1); 0: 1; at most 999; read on rank 0. With 2 or more a file is
                      path.new until it is whole: a file of that name is replaced */
} weft_checkpoint_writer_params_t;

/** Defaults of weft_checkpoint_writer_params_t. */
#define WEFT_CHECKPOINT_WRITER_PARAMS_INIT WEFT_STRUCT_INIT(weft_checkpoint_writer_params_t, 0)

/** Training state of the last two steps in the memory of a process. It outlives sessions, groups
 * and contexts. */
typedef struct weft_snapshot weft_snapshot_t;

/** What a snapshot holds on this rank. */
typedef struct weft_snapshot_info {
    size_t struct_size;    /**< size of this struct */
    uint64_t step;         /**< steps done in the newest complete version */
    uint64_t versions;     /**< complete versions: 0, 1 or 2 */
    uint64_t memory_bytes; /**< memory of all versions */
    uint64_t copied_bytes; /**< of one version: copied from this rank's session */
    uint64_t sent_bytes;   /**< of one version: sent to the next rank */
} weft_snapshot_info_t;

/** Initial value of weft_snapshot_info_t. */
#define WEFT_SNAPSHOT_INFO_INIT WEFT_STRUCT_INIT(weft_snapshot_info_t, 0, 0, 0, 0, 0)

WEFT_EXTERN_C_BEGIN
/**
 * Writes weights, optimizer state, scalar inputs and info to a file on rank 0. The data goes to a
 * temporary file that then replaces path, so path holds either the old or the new checkpoint,
 * complete. Shards are read where they are; weights of a decoupled plan are flushed. Collective,
 * blocking, between steps.
 * @param[in] session the session
 * @param[in] path    the file; read on rank 0, may be NULL on other ranks
 * @param[in] info    position, read on rank 0; NULL: position and seed are 0
 * @return on all ranks the status of rank 0: WEFT_ERR_SYSTEM, WEFT_ERR_NOT_FOUND (no such
 *         directory); WEFT_ERR_STATE between the micro-batches of a step; WEFT_ERR_UNSUPPORTED for
 *         plans that do not train
 */
WEFT_API weft_status_t weft_session_save_checkpoint(weft_session_t *session, const char *path,
                                                    const weft_checkpoint_info_t *info);
/**
 * Loads weights, optimizer state, scalar inputs (except "rank") and the number of steps from a file
 * that every rank reads. All checks precede all changes: on an error the session is unchanged.
 * Collective, blocking, between steps.
 * @param[in]  session  the session
 * @param[in]  path     the file
 * @param[out] out_info set struct_size before the call; NULL: not needed
 * @return WEFT_ERR_FORMAT (a fault of the file, or a tensor that does not fit the plan),
 *         WEFT_ERR_NOT_FOUND, WEFT_ERR_MISMATCH if ranks read different files, WEFT_ERR_STATE
 *         between the micro-batches of a step
 */
WEFT_API weft_status_t weft_session_load_checkpoint(weft_session_t *session, const char *path,
                                                    weft_checkpoint_info_t *out_info);
/**
 * Checks without a session whether a plan can load a file. Damage inside tensors is not detected.
 * Local.
 * @param[in]  path     the file
 * @param[in]  plan     NULL: check the file only
 * @param[in]  registry definitions of the plan's operators; NULL: the built-in ones
 * @param[out] out_info set struct_size before the call; NULL: not needed
 * @return as weft_session_load_checkpoint
 */
WEFT_API weft_status_t weft_checkpoint_check(const char *path, const weft_plan_t *plan,
                                             const weft_registry_t *registry,
                                             weft_checkpoint_info_t *out_info);
/**
 * Finds the newest whole checkpoint among path, path.new (of a writer that was killed), path.1,
 * path.2 and so on, up to the first that is not there (weft_checkpoint_writer_params_t.keep). Reads
 * all of each file until one's digest agrees. Local.
 * @param[in]  path      the newest, if it is whole
 * @param[out] out_path  path of the one that is; weft_last_error() then says what the last one
 *                       before it lacks
 * @param[in]  out_bytes room there
 * @param[out] out_info  set struct_size before the call; NULL: not needed
 * @return WEFT_ERR_NOT_FOUND if there is no file, else as weft_checkpoint_check of the first one
 */
WEFT_API weft_status_t weft_checkpoint_newest(const char *path, char *out_path, size_t out_bytes,
                                              weft_checkpoint_info_t *out_info);
/**
 * Creates a writer. Local.
 * @param[in]  session    must outlive the writer
 * @param[in]  params     NULL: defaults
 * @param[out] out_writer the writer; the caller destroys it
 * @return WEFT_ERR_INVALID_ARGUMENT, WEFT_ERR_NO_MEMORY
 */
WEFT_API weft_status_t weft_checkpoint_writer_create(weft_session_t *session,
                                                     const weft_checkpoint_writer_params_t *params,
                                                     weft_checkpoint_writer_t **out_writer);
/**
 * As weft_session_save_checkpoint, but returns as soon as rank 0 has copied everything; a thread of
 * rank 0 writes the file. Waits first until the checkpoint before is written. Rank 0 keeps memory
 * for all weights and states until the writer is destroyed. Collective, blocking, between steps.
 * @param[in] writer the writer
 * @param[in] path   the file; read on rank 0, may be NULL on other ranks
 * @param[in] info   position, read on rank 0; NULL: position and seed are 0
 * @return the status of the checkpoint before, if that failed and nobody has waited for it: nothing
 *         is started then; else as weft_session_save_checkpoint, of what comes before the file
 */
WEFT_API weft_status_t weft_checkpoint_writer_start(weft_checkpoint_writer_t *writer,
                                                    const char *path,
                                                    const weft_checkpoint_info_t *info);
/**
 * Waits until the checkpoint that was started is written. Collective, blocking.
 * @param[in] writer the writer
 * @return on all ranks the status of rank 0's file, once; WEFT_OK if there is none to wait for
 */
WEFT_API weft_status_t weft_checkpoint_writer_wait(weft_checkpoint_writer_t *writer);
/**
 * Destroys a writer, after its file is written. Local.
 * @param[in] writer NULL: nothing happens
 */
WEFT_API void weft_checkpoint_writer_destroy(weft_checkpoint_writer_t *writer);
/**
 * Creates an empty snapshot. Local.
 * @param[out] out_snapshot the snapshot; the caller destroys it
 * @return WEFT_ERR_NO_MEMORY
 */
WEFT_API weft_status_t weft_snapshot_create(weft_snapshot_t **out_snapshot);
/**
 * Destroys a snapshot. Local.
 * @param[in] snapshot NULL: nothing happens
 */
WEFT_API void weft_snapshot_destroy(weft_snapshot_t *snapshot);
/**
 * Copies weights, optimizer state, scalar inputs, the number of steps and info into the snapshot,
 * and sends this rank's shards to the next rank. The version of the step before is kept, because
 * ranks may have ended different steps when one dies. Weights of a decoupled plan are flushed.
 * Allocates in the first two calls for a plan only. Collective, blocking, between steps.
 * @param[in] snapshot the snapshot; one thread at a time uses it
 * @param[in] session  the session
 * @param[in] group    all ranks of the session's world, in their order (weft_group_create_world)
 * @param[in] info     position in the data; NULL: position and seed are 0
 * @return on all ranks, naming the rank: WEFT_ERR_INVALID_ARGUMENT if group is another one;
 *         WEFT_ERR_STATE between the micro-batches of a step; WEFT_ERR_UNSUPPORTED for plans that
 *         do not train; WEFT_ERR_NO_MEMORY; else as weft_session_step and weft_send. After an error
 *         the version of the last complete call remains.
 */
WEFT_API weft_status_t weft_snapshot_take(weft_snapshot_t *snapshot, weft_session_t *session,
                                          weft_group_t *group, const weft_checkpoint_info_t *info);
/**
 * Sets a session of the same model to the newest version that the ranks of its world hold together,
 * then takes it (weft_snapshot_take). The session may be of another plan, another number of ranks
 * and another context than the one that was taken; ranks may have other numbers than then, and a
 * rank with an empty snapshot receives everything. Nothing is lost if rank r or rank r + 1 of the
 * old world is left for every r, or any rank if nothing was sharded. Collective, blocking, between
 * steps.
 * @param[in]  snapshot the snapshot
 * @param[in]  session  the session; after an error its contents are undefined, the snapshot's are
 *                      those before the call
 * @param[in]  group    all ranks of the session's world, in their order
 * @param[out] out_info set struct_size before the call; NULL: not needed
 * @return on all ranks: WEFT_ERR_NOT_FOUND if no version is left, naming the ranks that are
 *         missing; WEFT_ERR_FORMAT if the session is one of another model; else as
 *         weft_snapshot_take
 */
WEFT_API weft_status_t weft_snapshot_restore(weft_snapshot_t *snapshot, weft_session_t *session,
                                             weft_group_t *group, weft_checkpoint_info_t *out_info);
/**
 * Gives every rank the whole newest version, so that any of them may leave: where a world continues
 * on fewer ranks than are left. Needs memory for all weights and states. Collective, blocking.
 * @param[in] snapshot the snapshot
 * @param[in] group    all ranks of its world, in their order
 * @return on all ranks: WEFT_ERR_STATE if a rank holds no part of it; else as weft_snapshot_restore
 */
WEFT_API weft_status_t weft_snapshot_gather(weft_snapshot_t *snapshot, weft_group_t *group);
/**
 * Describes what a snapshot holds on this rank. Local.
 * @param[in]  snapshot the snapshot
 * @param[out] info     set struct_size before the call
 * @return WEFT_ERR_INVALID_ARGUMENT
 */
WEFT_API weft_status_t weft_snapshot_get_info(const weft_snapshot_t *snapshot,
                                              weft_snapshot_info_t *info);
WEFT_EXTERN_C_END

#endif
