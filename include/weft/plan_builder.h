/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file plan_builder.h
 * Plans without ONNX, for compilers with a graph of their own: buffers, kernels by name,
 * collectives, and what each stream runs.
 *
 * The caller decides what runs, in which order and on which stream, what travels together, and
 * which temporaries share memory. Weft places buffers, adds the program that sends weights from
 * rank 0, and checks the result as it checks every plan: types, memory, order between streams, and
 * that every gradient is reduced once. Sessions run it; files hold it (weft_plan_save).
 *
 *     weft_plan_builder_create
 *         add_stream, add_event, add_buffer, add_kernel, add_collective    -> numbers
 *         append_kernel, append_collective, append_record, append_wait     -> programs
 *     weft_plan_builder_finish                                             -> weft_plan_t
 *     weft_plan_builder_destroy
 *
 * All ranks must build the same plan: weft_session_create compares digests. All functions of this
 * header are local. One thread at a time uses a builder. Numbers count from 0, in the order of the
 * calls. After a function has failed, the builder is as before.
 */
#ifndef WEFT_PLAN_BUILDER_H
#define WEFT_PLAN_BUILDER_H

#include <weft/plan.h>

/** A plan that is being made. */
typedef struct weft_plan_builder weft_plan_builder_t;

/** Parameters of weft_plan_builder_create. Start from WEFT_PLAN_BUILDER_PARAMS_INIT. */
typedef struct weft_plan_builder_params {
    size_t struct_size;    /**< size of this struct */
    const char *name;      /**< name of the model, copied; NULL: "" */
    uint32_t world_size;   /**< number of ranks */
    weft_plan_kind_t kind; /**< what the plan is for */
    int64_t batch;         /**< samples per rank, for people */
    const char *optimizer; /**< such as "sgd", for people, copied; NULL: "" */
    /** Definitions that operators are checked against, borrowed until the builder is destroyed;
     * NULL: only the structure is checked */
    const weft_registry_t *registry;
} weft_plan_builder_params_t;
/** Defaults of weft_plan_builder_params_t. */
#define WEFT_PLAN_BUILDER_PARAMS_INIT                                                              \
    WEFT_STRUCT_INIT(weft_plan_builder_params_t, 0, 1, WEFT_PLAN_KIND_TRAINING, 0, 0, 0)

/** What a buffer is for. */
typedef enum weft_buffer_kind {
    WEFT_BUFFER_KIND_PARAM = 1,  /**< a weight; training: rank 0's go to all ranks */
    WEFT_BUFFER_KIND_GRAD = 2,   /**< a gradient: of several ranks, reduced once by each step */
    WEFT_BUFFER_KIND_STATE = 3,  /**< state of an optimizer, zero at first */
    WEFT_BUFFER_KIND_INPUT = 4,  /**< fed before a step */
    WEFT_BUFFER_KIND_SCALAR = 5, /**< one number with a default */
    WEFT_BUFFER_KIND_CONST = 6,  /**< contents that do not change */
    WEFT_BUFFER_KIND_TEMP = 7,   /**< written and read within a run */
    WEFT_BUFFER_KIND_OUTPUT = 8, /**< read after a step */
} weft_buffer_kind_t;

/** Parameters of weft_plan_builder_add_buffer. Start from WEFT_PLAN_BUFFER_PARAMS_INIT. */
typedef struct weft_plan_buffer_params {
    size_t struct_size; /**< size of this struct */
    const char *name;   /**< name, copied; of what is fed and read, that of the binding */
    /** Type and shape. data: contents of a weight or constant, borrowed until
     * weft_plan_builder_finish; NULL: zeros. */
    weft_tensor_desc_t desc;
    weft_buffer_kind_t kind; /**< what it is for */
    /** Purpose of what is fed or read; 0: WEFT_BINDING_ROLE_INPUT, _SCALAR or _OUTPUT by kind. */
    weft_binding_role_t role;
    double default_value; /**< WEFT_BUFFER_KIND_SCALAR: the default */
    /** Temporary or output: 1 + the earlier temporary or output, at least as large, in whose memory
     * it lies, also for kernels that work in place; 0: it has memory of its own. */
    uint32_t reuses;
} weft_plan_buffer_params_t;
/** Defaults of weft_plan_buffer_params_t. */
#define WEFT_PLAN_BUFFER_PARAMS_INIT                                                               \
    WEFT_STRUCT_INIT(weft_plan_buffer_params_t, 0,                                                 \
                     {WEFT_DTYPE_NONE, WEFT_LAYOUT_PLAIN, 0, {0}, 0}, WEFT_BUFFER_KIND_TEMP,       \
                     (weft_binding_role_t)0, 0, 0)

/** Part of a step that a kernel belongs to. */
typedef enum weft_plan_phase {
    WEFT_PLAN_PHASE_FORWARD = 0,  /**< forward pass, and all of inference */
    WEFT_PLAN_PHASE_BACKWARD = 1, /**< backward pass */
    WEFT_PLAN_PHASE_UPDATE = 3,   /**< updates of weights, by gradients that were reduced */
} weft_plan_phase_t;

/** An operand that is absent. */
#define WEFT_PLAN_NO_BUFFER UINT32_MAX

/** Parameters of weft_plan_builder_add_kernel; all is copied. Start from
 * WEFT_PLAN_KERNEL_PARAMS_INIT. */
typedef struct weft_plan_kernel_params {
    size_t struct_size;       /**< size of this struct */
    const char *name;         /**< name of the node; NULL: that of the operator */
    const char *domain;       /**< domain of the operator; NULL: "", ai.onnx */
    const char *op;           /**< name of the operator, of which the session finds a kernel */
    int32_t version;          /**< opset version of the domain */
    weft_plan_phase_t phase;  /**< part of a step */
    const uint32_t *inputs;   /**< [input_count] buffers, or WEFT_PLAN_NO_BUFFER */
    const uint32_t *outputs;  /**< [output_count] buffers, or WEFT_PLAN_NO_BUFFER */
    const weft_attr_t *attrs; /**< [attr_count] attributes, without tensors */
    uint32_t input_count;     /**< length of inputs */
    uint32_t output_count;    /**< length of outputs */
    uint32_t attr_count;      /**< length of attrs */
} weft_plan_kernel_params_t;
/** Defaults of weft_plan_kernel_params_t. */
#define WEFT_PLAN_KERNEL_PARAMS_INIT                                                               \
    WEFT_STRUCT_INIT(weft_plan_kernel_params_t, 0, 0, 0, 1, WEFT_PLAN_PHASE_FORWARD, 0, 0, 0, 0,   \
                     0, 0)

/** Parameters of weft_plan_builder_add_collective; all is copied. Start from
 * WEFT_PLAN_COLLECTIVE_PARAMS_INIT. */
typedef struct weft_plan_collective_params {
    size_t struct_size;         /**< size of this struct */
    const char *name;           /**< name, such as "bucket 0"; NULL: that of op */
    weft_collective_t op;       /**< an operator with one count, of all ranks */
    weft_reduction_t reduction; /**< of those that reduce */
    uint32_t root;              /**< of those with a root */
    /** Buffers that ranks contribute. Several of one kind and type form a bucket: an all-reduce,
     * reduce or broadcast in place, of weights, gradients or states, which Weft places side by
     * side in this order. */
    const uint32_t *sends;
    uint32_t send_count; /**< length of sends */
    /** Buffer that receives; WEFT_PLAN_NO_BUFFER: in place. */
    uint32_t recv;
    /** Algorithms that may run it, comma-separated; NULL: every built-in one that can. */
    const char *algorithms;
    const char *reason; /**< why this bucket, for people; NULL: none */
} weft_plan_collective_params_t;
/** Defaults of weft_plan_collective_params_t. */
#define WEFT_PLAN_COLLECTIVE_PARAMS_INIT                                                           \
    WEFT_STRUCT_INIT(weft_plan_collective_params_t, 0, WEFT_COLLECTIVE_ALL_REDUCE,                 \
                     WEFT_REDUCTION_SUM, 0, 0, 0, WEFT_PLAN_NO_BUFFER, 0, 0)

WEFT_EXTERN_C_BEGIN
/**
 * Creates an empty builder.
 * @param[in]  params      what the plan is for
 * @param[out] out_builder the caller destroys it
 * @return WEFT_ERR_INVALID_ARGUMENT, WEFT_ERR_NO_MEMORY
 */
WEFT_API weft_status_t weft_plan_builder_create(const weft_plan_builder_params_t *params,
                                                weft_plan_builder_t **out_builder);
/**
 * Destroys a builder. Plans that it has made stay.
 * @param[in] builder NULL: nothing happens
 */
WEFT_API void weft_plan_builder_destroy(weft_plan_builder_t *builder);
/**
 * Adds a stream. Collectives of a program are on one stream, kernels on any.
 * @param[in]  builder    the builder
 * @param[in]  name       name, such as "compute", copied
 * @param[out] out_stream its number
 * @return WEFT_ERR_INVALID_ARGUMENT after 64 streams; WEFT_ERR_STATE after
 *         weft_plan_builder_finish; WEFT_ERR_NO_MEMORY
 */
WEFT_API weft_status_t weft_plan_builder_add_stream(weft_plan_builder_t *builder, const char *name,
                                                    uint32_t *out_stream);
/**
 * Adds an event, which one stream records at most once in a program and others wait for.
 * @param[in]  builder   the builder
 * @param[out] out_event its number
 * @return WEFT_ERR_STATE after weft_plan_builder_finish
 */
WEFT_API weft_status_t weft_plan_builder_add_event(weft_plan_builder_t *builder,
                                                   uint32_t *out_event);
/**
 * Adds a buffer.
 * @param[in]  builder    the builder
 * @param[in]  params     name, type, shape and purpose
 * @param[out] out_buffer its number
 * @return WEFT_ERR_INVALID_ARGUMENT, WEFT_ERR_STATE, WEFT_ERR_NO_MEMORY
 */
WEFT_API weft_status_t weft_plan_builder_add_buffer(weft_plan_builder_t *builder,
                                                    const weft_plan_buffer_params_t *params,
                                                    uint32_t *out_buffer);
/**
 * Adds a kernel: an operator on buffers. weft_plan_builder_append_kernel has a program run it.
 * @param[in]  builder    the builder
 * @param[in]  params     operator and operands
 * @param[out] out_kernel its number
 * @return WEFT_ERR_INVALID_ARGUMENT, WEFT_ERR_STATE, WEFT_ERR_NO_MEMORY
 */
WEFT_API weft_status_t weft_plan_builder_add_kernel(weft_plan_builder_t *builder,
                                                    const weft_plan_kernel_params_t *params,
                                                    uint32_t *out_kernel);
/**
 * Adds a collective of all ranks. weft_plan_builder_append_collective has a program run it.
 * @param[in]  builder        the builder
 * @param[in]  params         operator and buffers
 * @param[out] out_collective its number
 * @return WEFT_ERR_INVALID_ARGUMENT, WEFT_ERR_STATE, WEFT_ERR_NO_MEMORY
 */
WEFT_API weft_status_t weft_plan_builder_add_collective(weft_plan_builder_t *builder,
                                                        const weft_plan_collective_params_t *params,
                                                        uint32_t *out_collective);
/**
 * Has a stream of a program run a kernel next.
 * @param[in] builder the builder
 * @param[in] program "step", which every plan has; "eval": weft_session_eval
 * @param[in] stream  number of a stream
 * @param[in] kernel  number of a kernel; one program may run it once
 * @return WEFT_ERR_INVALID_ARGUMENT, WEFT_ERR_STATE, WEFT_ERR_NO_MEMORY
 */
WEFT_API weft_status_t weft_plan_builder_append_kernel(weft_plan_builder_t *builder,
                                                       const char *program, uint32_t stream,
                                                       uint32_t kernel);
/**
 * Has a stream of a program run a collective next.
 * @param[in] builder    the builder
 * @param[in] program    as in weft_plan_builder_append_kernel
 * @param[in] stream     number of a stream, the same for all collectives of a program
 * @param[in] collective number of a collective
 * @return WEFT_ERR_INVALID_ARGUMENT, WEFT_ERR_STATE, WEFT_ERR_NO_MEMORY
 */
WEFT_API weft_status_t weft_plan_builder_append_collective(weft_plan_builder_t *builder,
                                                           const char *program, uint32_t stream,
                                                           uint32_t collective);
/**
 * Has a stream of a program record an event next.
 * @param[in] builder the builder
 * @param[in] program as in weft_plan_builder_append_kernel
 * @param[in] stream  number of a stream
 * @param[in] event   number of an event
 * @return WEFT_ERR_INVALID_ARGUMENT, WEFT_ERR_STATE, WEFT_ERR_NO_MEMORY
 *
 * Equivalent to: cudaEventRecord
 */
WEFT_API weft_status_t weft_plan_builder_append_record(weft_plan_builder_t *builder,
                                                       const char *program, uint32_t stream,
                                                       uint32_t event);
/**
 * Has a stream of a program wait for an event that another stream records.
 * @param[in] builder the builder
 * @param[in] program as in weft_plan_builder_append_kernel
 * @param[in] stream  number of a stream
 * @param[in] event   number of an event
 * @return WEFT_ERR_INVALID_ARGUMENT, WEFT_ERR_STATE, WEFT_ERR_NO_MEMORY
 *
 * Equivalent to: cudaStreamWaitEvent
 */
WEFT_API weft_status_t weft_plan_builder_append_wait(weft_plan_builder_t *builder,
                                                     const char *program, uint32_t stream,
                                                     uint32_t event);
/**
 * Places all buffers, adds program init where weights are sent from rank 0, and verifies the plan.
 * The builder is of no further use, whatever the result, but to be destroyed.
 * @param[in]  builder  the builder
 * @param[out] out_plan the plan, with one reference; the caller releases it
 * @return WEFT_ERR_FORMAT with what the plan does wrong, such as a read of memory that another
 *         stream writes; WEFT_ERR_INVALID_ARGUMENT, WEFT_ERR_STATE if it was called before,
 *         WEFT_ERR_UNSUPPORTED, WEFT_ERR_NO_MEMORY
 */
WEFT_API weft_status_t weft_plan_builder_finish(weft_plan_builder_t *builder,
                                                weft_plan_t **out_plan);
WEFT_EXTERN_C_END

#endif
