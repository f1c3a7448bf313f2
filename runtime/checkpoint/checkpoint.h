/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checkpoints: which tensors a plan has one of, what the metadata say, and what is digested.
 *
 * Metadata are texts: weft.format (1), weft.step, weft.seed, weft.epoch, weft.sample,
 * weft.sample_count, weft.global_batch, weft.world_size, weft.optimizer, weft.model, weft.lr,
 * weft.scalar.<name>, weft.digest. The digest is SHA-256 over the other "weft." texts by key (key,
 * 0, value, 0), then the tensors by name (name, 0, bytes). A program that changes contents must
 * remove it; one that reorders the file need not.
 */
#ifndef WEFT_RUNTIME_CHECKPOINT_H
#define WEFT_RUNTIME_CHECKPOINT_H

#include <weft/checkpoint.h>

#include "runtime/checkpoint/safetensors.h"
#include "runtime/plan/state_map.h"

#define WEFTI_CHECKPOINT_FORMAT 1u
#define WEFTI_CHECKPOINT_DIGEST "weft.digest"
#define WEFTI_CHECKPOINT_SCALAR "weft.scalar." /* and the scalar's name */

/* What a checkpoint of a plan holds: its parameters and states. */
typedef struct wefti_checkpoint_tensors {
    const wefti_state_t **list; /* by name */
    uint32_t count;
} wefti_checkpoint_tensors_t;

/* Memory is from arena. WEFT_ERR_UNSUPPORTED if the plan does not define checkpoints. */
weft_status_t wefti_checkpoint_tensors(const weft_plan_t *plan, const wefti_state_map_t *map,
                                       wefti_arena_t *arena, wefti_checkpoint_tensors_t *out);
/* The scalar inputs that a checkpoint holds: not what is set by every step. */
bool wefti_checkpoint_has_scalar(const wefti_plan_binding_t *binding);

/* load.c: as weft_checkpoint_check without a plan, and the digest of the contents. */
weft_status_t wefti_checkpoint_check_whole(const char *path, weft_checkpoint_info_t *out_info);

/* Contents are digested by name, so that the order in a file does not matter: metadata that begin
 * with "weft." (but the digest), then each tensor's name and bytes. texts are by key. */
void wefti_checkpoint_digest_texts(wefti_hasher_t *hasher, const wefti_stored_text_t *texts,
                                   uint32_t count);
void wefti_checkpoint_digest_name(wefti_hasher_t *hasher, const char *name);

#endif
