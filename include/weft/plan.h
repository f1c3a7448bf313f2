/* SPDX-License-Identifier: Apache-2.0 */
/** @file plan.h A compiled graph: loaded, saved, explained. Plans are immutable and counted. */
#ifndef WEFT_PLAN_H
#define WEFT_PLAN_H

#include <weft/registry.h>

typedef struct weft_plan weft_plan_t;

typedef enum weft_plan_kind {
    WEFT_PLAN_TRAINING = 1,
    WEFT_PLAN_INFERENCE = 2,
} weft_plan_kind_t;

/** Facts about a plan, borrowed from it. */
typedef struct weft_plan_info {
    size_t struct_size;
    const char *model_name;
    uint32_t world_size;
    int64_t batch; /**< samples per rank per (micro-)step */
    const char *policy;
    const char *optimizer;
    uint32_t bucket_count;
    uint64_t arena_bytes;
    uint64_t live_bytes;
    uint64_t fusion_copied_bytes;
    char structure_digest[65]; /**< hex */
    char weights_digest[65];
    weft_plan_kind_t kind;
    uint32_t accumulate;   /**< micro-batches of a rank and step, at least 1 */
    uint32_t global_micro_batches; /**< micro-batches of all ranks per step, if that number is fixed; else 0 */
    int shard_optimizer;   /**< a rank updates, and has the optimizer state of, its shard only */
    int decouple;          /**< weights are gathered under the next step's forward pass */
    double clip_norm;      /**< 0: gradients are not clipped */
    int split_batch;       /**< inference: rank 0 alone is fed and has results; the batch is all ranks' */
    int rank_weights;      /**< inference: ranks have weights of their own */
    int has_eval;          /**< weft_session_eval works: training, and the forward pass does not communicate */
} weft_plan_info_t;

typedef enum weft_binding_role {
    WEFT_ROLE_INPUT = 1,  /**< fed before every step */
    WEFT_ROLE_LABEL = 2,  /**< fed before every step: class indices */
    WEFT_ROLE_SCALAR = 3, /**< one number with a default, such as "lr" */
    WEFT_ROLE_LOSS = 4,
    WEFT_ROLE_LOGITS = 5,
    WEFT_ROLE_OUTPUT = 6,
} weft_binding_role_t;

/** Something that goes into a plan or comes out of it, borrowed from the plan. */
typedef struct weft_binding {
    size_t struct_size;
    const char *name;
    weft_binding_role_t role;
    weft_tensor_desc_t desc; /**< per rank; desc.data is NULL */
    double default_value;    /**< SCALAR */
} weft_binding_t;

WEFT_EXTERN_C_BEGIN
/**
 * Loads and verifies a plan file (mapped; weights are not copied).
 * @param[in] registry definitions to check operators against; NULL: only structure is checked
 * @return WEFT_ERR_NOT_FOUND, WEFT_ERR_FORMAT (what and where), WEFT_ERR_UNSUPPORTED (a newer format)
 */
WEFT_API weft_status_t weft_plan_load(const char *path, const weft_registry_t *registry, weft_plan_t **out_plan);
/** Writes the plan: all or nothing. */
WEFT_API weft_status_t weft_plan_save(const weft_plan_t *plan, const char *path);
WEFT_API void weft_plan_retain(weft_plan_t *plan);
/** Drops a reference; NULL is fine. */
WEFT_API void weft_plan_release(weft_plan_t *plan);
/** Fills info; set struct_size first. */
WEFT_API weft_status_t weft_plan_get_info(const weft_plan_t *plan, weft_plan_info_t *info);
WEFT_API size_t weft_plan_binding_count(const weft_plan_t *plan);
/** Fills binding index; set struct_size first. WEFT_ERR_INVALID_ARGUMENT when out of range. */
WEFT_API weft_status_t weft_plan_get_binding(const weft_plan_t *plan, size_t index, weft_binding_t *binding);
/**
 * Explains buckets, members, bytes, algorithm, streams, memory and copied bytes.
 * @param[in]  json     0: text for people; 1: one JSON object with stable keys
 * @param[out] out_text from malloc; the caller frees it
 */
WEFT_API weft_status_t weft_plan_explain(const weft_plan_t *plan, int json, char **out_text);
/**
 * A table for people: what each bucket policy was predicted to come to when the plan was compiled (buckets,
 * when the last one is done, how much of that is exposed, how far from the optimum). Freed by the caller.
 */
WEFT_API weft_status_t weft_plan_compare(const weft_plan_t *plan, char **out_text);
/**
 * Says when the communication of gradient tensor (its name, or its parameter's) is predicted to run and, where it
 * ends behind the backward pass, why: late, its bucket waits for another member, channel busy, or what ends the
 * bucket (cap, fence, type). Freed by the caller.
 * @return WEFT_ERR_NOT_FOUND if the plan reduces no such gradient
 */
WEFT_API weft_status_t weft_plan_why(const weft_plan_t *plan, const char *tensor, char **out_text);
WEFT_EXTERN_C_END

#endif
