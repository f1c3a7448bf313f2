/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file plan.h
 * A compiled graph: load, save and explain it.
 *
 * A plan is immutable and reference counted. All functions of this header are local; any thread may
 * call them.
 */
#ifndef WEFT_PLAN_H
#define WEFT_PLAN_H

#include <weft/registry.h>

/** A compiled graph for a number of ranks. */
typedef struct weft_plan weft_plan_t;

/** Purpose of a plan. */
typedef enum weft_plan_kind {
    WEFT_PLAN_KIND_TRAINING = 1,  /**< forward, backward and update */
    WEFT_PLAN_KIND_INFERENCE = 2, /**< the graph as it is */
} weft_plan_kind_t;

/** The bits that a plan's results have. */
typedef enum weft_bits {
    WEFT_BITS_CPU = 0,    /**< those of the CPU's exact kernels, on every machine */
    WEFT_BITS_DEVICE = 1, /**< those of the devices that the plan was compiled for */
} weft_bits_t;

/** Facts about a plan. Strings are borrowed from it. */
typedef struct weft_plan_info {
    size_t struct_size;            /**< size of this struct */
    const char *model_name;        /**< name of the ONNX graph */
    uint32_t world_size;           /**< number of ranks */
    int64_t batch;                 /**< samples per rank and micro-batch */
    const char *policy;            /**< bucket policy */
    const char *optimizer;         /**< such as "momentum" */
    uint32_t bucket_count;         /**< buckets per step */
    uint64_t arena_bytes;          /**< memory of the arena, per rank */
    uint64_t live_bytes;           /**< most bytes of values alive at one time */
    uint64_t fusion_copied_bytes;  /**< bytes per step that are copied only to fuse */
    char structure_digest[65];     /**< digest of the structure, hex */
    char weights_digest[65];       /**< digest of the weights, hex */
    weft_plan_kind_t kind;         /**< purpose */
    uint32_t accumulate;           /**< micro-batches of a rank per step, at least 1 */
    uint32_t global_micro_batches; /**< micro-batches of all ranks per step; 0: not fixed */
    int shard_optimizer;           /**< 1: a rank updates its shard and has only that state */
    int decouple;                  /**< 1: weights are gathered during the next forward pass */
    double clip_norm;              /**< bound on the gradients' global norm; 0: none */
    /** Inference, 1: only rank 0 is fed and has results, and batch is that of all ranks. */
    int split_batch;
    int rank_weights; /**< 1: ranks have weights of their own */
    /** 1: weft_session_eval works: training, and the forward pass does not communicate, or only among
     * the batch_ranks ranks that compute a batch. */
    int has_eval;
    /** Ranks that compute one batch together, each with weights of its own (parts of all, or those
     * of its stage): rank r has a part of batch number r / batch_ranks. 1: every rank has a batch of its own. */
    uint64_t batch_ranks;
    weft_bits_t bits;   /**< bits of f32 results; those of half types and doubles are the CPU's */
    const char *device; /**< devices that it was compiled for (weft_compile_params_t::device) */
} weft_plan_info_t;

/** Initial value of weft_plan_info_t. */
#define WEFT_PLAN_INFO_INIT                                                                        \
    WEFT_STRUCT_INIT(weft_plan_info_t, 0, 0, 0, 0, 0, 0, 0, 0, 0, {0}, {0},                        \
                     WEFT_PLAN_KIND_TRAINING, 0, 0, 0, 0, 0, 0, 0, 0, 0, WEFT_BITS_CPU, 0)

/** Purpose of a binding. */
typedef enum weft_binding_role {
    WEFT_BINDING_ROLE_INPUT = 1,  /**< input, set before every step */
    WEFT_BINDING_ROLE_LABEL = 2,  /**< input, set before every step: class indices */
    WEFT_BINDING_ROLE_SCALAR = 3, /**< input: one number with a default, such as "lr" */
    WEFT_BINDING_ROLE_LOSS = 4,   /**< output: the loss */
    WEFT_BINDING_ROLE_LOGITS = 5, /**< output: the logits */
    WEFT_BINDING_ROLE_OUTPUT = 6, /**< another output */
} weft_binding_role_t;

/** An input or output of a plan. Strings are borrowed from the plan. */
typedef struct weft_binding {
    size_t struct_size;       /**< size of this struct */
    const char *name;         /**< name of the input or output */
    weft_binding_role_t role; /**< purpose */
    weft_tensor_desc_t desc;  /**< type and shape per rank; desc.data is NULL */
    double default_value;     /**< WEFT_BINDING_ROLE_SCALAR: the default */
} weft_binding_t;

/** Initial value of weft_binding_t. */
#define WEFT_BINDING_INIT                                                                          \
    WEFT_STRUCT_INIT(weft_binding_t, 0, WEFT_BINDING_ROLE_INPUT,                                   \
                     {WEFT_DTYPE_NONE, WEFT_LAYOUT_PLAIN, 0, {0}, 0}, 0)

WEFT_EXTERN_C_BEGIN
/**
 * Loads and verifies a plan file. The file is mapped; weights are not copied. Local.
 * @param[in]  path     the file
 * @param[in]  registry definitions to check operators against; NULL: only structure is checked
 * @param[out] out_plan the plan, with one reference; the caller releases it
 * @return WEFT_ERR_NOT_FOUND, WEFT_ERR_FORMAT naming fault and place, WEFT_ERR_UNSUPPORTED for a
 *         newer format
 */
WEFT_API weft_status_t weft_plan_load(const char *path, const weft_registry_t *registry,
                                      weft_plan_t **out_plan);
/**
 * Writes a plan file: all or nothing. Local.
 * @param[in] plan the plan
 * @param[in] path the file
 * @return WEFT_ERR_SYSTEM, WEFT_ERR_NO_MEMORY
 */
WEFT_API weft_status_t weft_plan_save(const weft_plan_t *plan, const char *path);
/**
 * Adds a reference. Any thread.
 * @param[in] plan NULL: nothing happens
 */
WEFT_API void weft_plan_retain(weft_plan_t *plan);
/**
 * Drops a reference. Any thread.
 * @param[in] plan NULL: nothing happens
 */
WEFT_API void weft_plan_release(weft_plan_t *plan);
/**
 * Returns facts about a plan.
 * @param[in]  plan the plan
 * @param[out] info set struct_size before the call
 * @return WEFT_ERR_INVALID_ARGUMENT
 */
WEFT_API weft_status_t weft_plan_get_info(const weft_plan_t *plan, weft_plan_info_t *info);
/**
 * Returns the number of inputs and outputs of a plan.
 * @param[in] plan the plan
 * @return the number; 0 if plan is NULL
 */
WEFT_API size_t weft_plan_binding_count(const weft_plan_t *plan);
/**
 * Returns an input or output of a plan.
 * @param[in]  plan    the plan
 * @param[in]  index   0 to weft_plan_binding_count - 1
 * @param[out] binding set struct_size before the call
 * @return WEFT_ERR_INVALID_ARGUMENT if there is no such binding
 */
WEFT_API weft_status_t weft_plan_get_binding(const weft_plan_t *plan, size_t index,
                                             weft_binding_t *binding);
/**
 * Explains a plan: buckets, members, bytes, algorithms, streams, memory and copied bytes.
 * @param[in]  plan     the plan
 * @param[in]  format   form of the report
 * @param[out] out_text the caller frees it
 * @return WEFT_ERR_NO_MEMORY
 */
WEFT_API weft_status_t weft_plan_explain(const weft_plan_t *plan, weft_format_t format,
                                         char **out_text);
/**
 * Compares bucket policies by the predictions of compile time: buckets, end of the last one,
 * exposed time, distance from the optimum.
 * @param[in]  plan     the plan
 * @param[out] out_text a table for people; the caller frees it
 * @return WEFT_ERR_NO_MEMORY
 */
WEFT_API weft_status_t weft_plan_compare(const weft_plan_t *plan, char **out_text);
/**
 * Explains one gradient: when its communication is predicted to run and, if that ends after the
 * backward pass, the reason. Reasons are: ready late, its bucket waits for another member, channel
 * busy, or the end of the bucket (cap, fence, type).
 * @param[in]  plan     the plan
 * @param[in]  tensor   name of the gradient or of its parameter
 * @param[out] out_text text for people; the caller frees it
 * @return WEFT_ERR_NOT_FOUND if the plan reduces no such gradient
 */
WEFT_API weft_status_t weft_plan_why(const weft_plan_t *plan, const char *tensor, char **out_text);
WEFT_EXTERN_C_END

#endif
