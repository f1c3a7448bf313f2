/* SPDX-License-Identifier: Apache-2.0 */
/** @file compile.h From an ONNX model to a plan. */
#ifndef WEFT_COMPILE_H
#define WEFT_COMPILE_H

#include <weft/plan.h>

/** Fixed shape of one input. */
typedef struct weft_input_shape {
    const char *name;
    uint32_t rank;
    int64_t dims[WEFT_MAX_DIMS];
} weft_input_shape_t;

/** Zero and NULL mean the default. */
typedef struct weft_compile_params {
    size_t struct_size;
    /** A model, or a compiled graph (emit_path), whose parameters then need not be given and cannot be others. */
    const char *model_path;
    uint32_t world_size;     /**< at least 1; 0 only for a compiled graph */
    int64_t batch;           /**< samples per rank and micro-batch (without accumulate: per step); 0: what the file says */
    const weft_input_shape_t *shapes;
    uint32_t shape_count;
    const char *loss;        /**< loss output; NULL: the only loss node's */
    const char *optimizer;   /**< "sgd", "momentum" (default), "adam" */
    double lr;               /**< default of the scalar input "lr"; 0: 0.05, adam 0.001 */
    double momentum;         /**< 0: 0.9 */
    double weight_decay;
    const char *bucket;      /**< policy, default "auto"; see weft_bucket_policy_check */
    const weft_registry_t *registry; /**< NULL: the built-in operators */
    const weft_allocator_t *allocator;
    weft_log_fn log;
    void *log_user;
    const char *costs_path;  /**< measured costs of collectives (`weft tune`); NULL: the defaults */
    const char *profile_path; /**< measured times (weft_session_write_profile); NULL: predicted ones */

    /* Training */
    int shard_optimizer; /**< a rank updates its shard of every bucket and keeps only that state */
    int decouple;        /**< implies shard_optimizer; weights are gathered under the next forward pass */
    uint32_t accumulate; /**< micro-batches of a rank per step; 0: 1 */
    /** Micro-batches of all ranks per step, reduced along one tree: weights have the same bits for 1
     * rank and for N ranks where global_micro_batches / N is a power of two (other N are refused).
     * 0: not fixed. Excludes accumulate. */
    uint32_t global_micro_batches;
    const char *wire;    /**< type in which gradients travel: "f32" (default), "bf16", to which a rank's sum is rounded;
                          * bits then depend on the number of ranks */
    double clip_norm;    /**< gradients are scaled by min(1, clip_norm / their global norm), which is the output
                          * "grad_norm"; 0: not. Not finite: every weight becomes NaN */
    const char *grads_path; /**< JSON object parameter -> tensor of the graph that is its gradient; NULL:
                             * tensors named "<param>_grad" or "grad.<param>", if there are any */

    /* Schedule and memory */
    uint32_t in_flight;   /**< most collectives issued and not yet waited for; 0: no bound */
    uint64_t arena_limit; /**< most arena bytes; 0: no bound. A plan that cannot hold it is refused */

    /* Inference */
    int infer;       /**< no gradients: the graph as it is, with its collectives; excludes what is for training */
    int split_batch; /**< with infer: batch is that of all ranks together, a multiple of world_size; inputs are
                      * rank 0's, scattered or (without a batch) broadcast, and outputs are gathered there */
    const char *const *rank_models; /**< with infer: one model per rank, equal except for initializers; NULL: model_path */
    uint32_t rank_model_count;      /**< 0, or world_size; rank_models[0] stands for model_path */

    const char *ops_path;  /**< JSON declaring operators that Weft does not know (weft_registry_load_ops), for
                            * this compile alone; NULL: none */
    const char *emit_path; /**< where the compiled graph is written as ONNX, which gives the same plan again;
                            * NULL: nowhere */
    const char *topology_path; /**< description of the cluster (JSON, ops/topo/README.md) that algorithms are chosen
                                * for; its ranks, if it says any, are world_size; NULL: one host */
    int64_t open_batch;        /**< stands for batch (0) where the file leaves that open, with a warning; 0: that is an
                                * error */
} weft_compile_params_t;

#define WEFT_COMPILE_PARAMS_INIT                                                                   \
    {sizeof(weft_compile_params_t), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,               \
     0,                             0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}

WEFT_EXTERN_C_BEGIN
/**
 * Imports, differentiates, inserts and fuses collectives, assigns streams and events, plans memory and
 * verifies. Deterministic: the same file and parameters give the same structure digest everywhere.
 * With infer nothing is differentiated: inputs, outputs and collectives are the graph's own, weft_session_step runs it.
 * Models of several ranks must be equal but for initializers' contents; of a difference both sides are named.
 * @return WEFT_ERR_NOT_FOUND, WEFT_ERR_FORMAT, WEFT_ERR_UNSUPPORTED (operator and node are named),
 *         WEFT_ERR_INVALID_ARGUMENT (parameter is named)
 */
WEFT_API weft_status_t weft_compile(const weft_compile_params_t *params, weft_plan_t **out_plan);
/**
 * Checks a bucket policy's spelling: "auto[:CAP]", "mgwfbp[:CAP]", "bytes:25M[,time:5ms]", "index:0,4,9",
 * "percent:60,40", "one", "none". auto: the fewest buckets whose communication ends within 0.1 % of the
 * optimum, by predicted times; mgwfbp: the merge rule of that name. bytes and caps take K, M, G (powers of
 * 1024). index: positions in readiness order of the last gradient of every
 * bucket but the final one. percent: shares of bytes that sum to 100.
 */
WEFT_API weft_status_t weft_bucket_policy_check(const char *policy);

/**
 * Looks at a model before it is compiled: operators (is there a definition, a gradient, a kernel?), inputs as declared
 * and as compiled, and whether weft_compile takes it with these parameters (world_size 0: 2) or why not.
 * @param[in] json 0: text for people
 * @param[out] out_text freed by the caller
 * @param[out] out_compiles 1 if it does
 * @return an error only if the file cannot be read as a model at all
 */
WEFT_API weft_status_t weft_model_check(const weft_compile_params_t *params, int json, char **out_text,
                                        int *out_compiles);

/** A trained tensor to be stored by weft_model_save. */
typedef struct weft_named_tensor {
    const char *name;
    weft_tensor_desc_t desc; /**< plain layout, desc.data holds the contents */
} weft_named_tensor_t;

/**
 * Writes the evaluation model of a plan with the given weights as an ONNX file: all or nothing.
 * Every trained parameter must be given once. Refuses files above 2 GiB (WEFT_ERR_UNSUPPORTED).
 */
WEFT_API weft_status_t weft_model_save(const weft_plan_t *plan, const weft_named_tensor_t *tensors,
                                       size_t tensor_count, const char *path);
WEFT_EXTERN_C_END

#endif
