/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file checkpoint.h
 * Training state in one file.
 *
 * A checkpoint is a safetensors file. It holds weights by the names of their parameters and
 * optimizer state as "<parameter>.<slot>" ("fc1.weight.momentum"; adam: "fc1.weight.moment1",
 * "fc1.weight.moment2"). Tensors are whole and in plain layout, whatever the number of ranks, the
 * bucket policy or the sharding of the run that wrote it. A run that differs in these can load it,
 * and so can any reader of safetensors. Its metadata ("weft.step", "weft.seed", ...) hold the
 * fields of weft_checkpoint_info_t, the scalar inputs and a digest of the contents.
 */
#ifndef WEFT_CHECKPOINT_H
#define WEFT_CHECKPOINT_H

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
WEFT_EXTERN_C_END

#endif
