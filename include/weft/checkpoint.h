/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file checkpoint.h Training state in one file, and back.
 *
 * A checkpoint is a file in the safetensors format: weights by the names of their parameters, optimizer state as
 * "<parameter>.<slot>" ("fc1.weight.momentum", with adam "fc1.weight.moment1" and ".moment2"), whole tensors in plain
 * layout, whatever the number of ranks, the bucket policy or the shards of the run that wrote it. So it can be loaded by
 * a run that differs in these, and read by whatever reads safetensors. Its metadata ("weft.step", "weft.seed", ...)
 * hold the numbers below, the scalar inputs and a digest of the contents.
 */
#ifndef WEFT_CHECKPOINT_H
#define WEFT_CHECKPOINT_H

#include <weft/session.h>

/** Where training stands. Weft stores it; whoever feeds the data makes use of it. */
typedef struct weft_checkpoint_info {
    size_t struct_size;
    uint64_t seed;         /**< of the order of the data */
    uint64_t epoch;        /**< passes over the data that are complete */
    uint64_t sample;       /**< samples of the next pass that all ranks together have consumed */
    uint64_t sample_count; /**< samples of a whole data set; 0: not told */
    double lr;             /**< learning rate that a schedule started from; 0: not told */
    /* What follows the session knows: not read by save. */
    uint64_t step;         /**< steps done */
    uint64_t global_batch; /**< samples of all ranks per step */
    uint32_t world_size;   /**< of the run that saved */
    char optimizer[32];    /**< "momentum" */
    uint32_t tensor_count;
} weft_checkpoint_info_t;

WEFT_EXTERN_C_BEGIN
/**
 * Writes weights, optimizer state, scalar inputs and info to path on rank 0: to a temporary file beside it, which then takes
 * its place, so path holds the old checkpoint or the new one, complete. Shards are read where they lie; weights of a
 * decoupled plan are flushed. Collective, between steps; path and info of rank 0 count.
 * @param[in] info NULL: position and seed are zero
 * @return on all ranks what rank 0 met: WEFT_ERR_SYSTEM, WEFT_ERR_NOT_FOUND (no such directory);
 *         WEFT_ERR_STATE between the micro-batches of a step, WEFT_ERR_UNSUPPORTED for plans that do not train
 */
WEFT_API weft_status_t weft_session_save_checkpoint(weft_session_t *session, const char *path,
                                                    const weft_checkpoint_info_t *info);
/**
 * Takes weights, optimizer state, scalar inputs (but "rank") and the number of steps from path, which every rank reads.
 * Everything is checked before anything is changed: on an error the session is what it was. Collective, between steps.
 * @param[out] out_info set struct_size first; may be NULL
 * @return WEFT_ERR_FORMAT (what is wrong with the file, or which tensor does not fit the plan), WEFT_ERR_NOT_FOUND,
 *         WEFT_ERR_MISMATCH when ranks read different files
 */
WEFT_API weft_status_t weft_session_load_checkpoint(weft_session_t *session, const char *path,
                                                    weft_checkpoint_info_t *out_info);
/**
 * Says without a session what loading path into plan would say, but for damage inside tensors. Not collective.
 * @param[in]  plan     NULL: only the file is looked at
 * @param[in]  registry definitions of the plan's operators; NULL: the built-in ones
 * @param[out] out_info set struct_size first; may be NULL
 */
WEFT_API weft_status_t weft_checkpoint_check(const char *path, const weft_plan_t *plan, const weft_registry_t *registry,
                                             weft_checkpoint_info_t *out_info);
WEFT_EXTERN_C_END

#endif
