/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file registry.h Operator definitions and compute kernels.
 *
 * A registry starts with everything built in. A program, or a plugin loaded by `weft run --kernels
 * LIB.so`, adds operators and kernels of its own domain. Compiling needs definitions only; a kernel that
 * is missing is named when a plan is bound.
 */
#ifndef WEFT_REGISTRY_H
#define WEFT_REGISTRY_H

#include <weft/types.h>

#define WEFT_KERNEL_ABI_VERSION 1u
#define WEFT_VARIADIC 255u

typedef struct weft_registry weft_registry_t;

typedef uint32_t weft_effects_t;
#define WEFT_EFFECT_PURE 0u
#define WEFT_EFFECT_COMMUNICATES (1u << 0) /**< talks to other ranks; keeps its order in the group */
#define WEFT_EFFECT_UPDATES (1u << 1)      /**< writes inputs in place, as the in-place rule says */
#define WEFT_EFFECT_UNKNOWN (1u << 2)      /**< anything: a fence for every pass */
#define WEFT_EFFECT_RANDOM (1u << 3)       /**< result depends on the seed */

/** Which order an operator keeps on all ranks beyond what its values say; a host compiler must keep it, too. */
typedef enum weft_ordering {
    WEFT_ORDERING_NONE = 0, /**< values alone order it */
    /**
     * Collectives: all ranks of a group issue them in one order, and collectives of groups that share more than one
     * rank have one order on all ranks that they share. weft_pass_order makes edges of that.
     */
    WEFT_ORDERING_GROUP = 1,
    WEFT_ORDERING_PAIR = 2, /**< Send, Recv: those between the same two ranks match in order */
} weft_ordering_t;

/** What an attribute may be and what it is when absent. */
typedef struct weft_attr_def {
    const char *name;
    weft_attr_type_t type;
    uint8_t required;
    int64_t default_i;
    float default_f;
    const char *default_s; /**< for lists: text shown in documentation, such as "[1, 1]" */
    const char *doc;
} weft_attr_def_t;

/** Type and shape of one output, as data. */
typedef struct weft_output_rule {
    int32_t like;       /**< the input whose type and shape it has; -1: what follows */
    weft_dtype_t dtype; /**< WEFT_DTYPE_NONE: that of input like, or of input 0 */
    uint32_t rank;      /**< with like -1 */
    /** Each dimension: of_input[d] -1: dims[d]; else what dimension dims[d] of that input is. */
    int64_t dims[WEFT_MAX_DIMS];
    int32_t of_input[WEFT_MAX_DIMS];
} weft_output_rule_t;

/** What an operator is that was declared and not programmed; see weft_registry_load_ops. */
typedef struct weft_op_rules {
    const weft_output_rule_t *outputs; /**< in order; the last one is that of all further outputs */
    size_t output_count;
    double flops_per_elem; /**< floating-point operations for each element of the first output */
} weft_op_rules_t;

/**
 * One operator: everything the importer, the passes, the documentation and another compiler need.
 * infer fills node->outputs (dtype, rank, dims; and data is left NULL) from inputs and attributes, and
 * returns WEFT_ERR_INVALID_ARGUMENT, with a message that names the cause but not the node, if they
 * contradict each other; where it is NULL, rules say the same as data. Dimensions may be -1 on both sides. cost gives floating-point operations and
 * bytes moved of one execution with known shapes.
 */
typedef struct weft_op_def {
    const char *domain; /**< "" is ai.onnx */
    const char *name;
    int32_t since_version; /**< lowest opset version of the domain with this meaning */
    uint8_t inputs_min, inputs_max;   /**< WEFT_VARIADIC: no upper bound */
    uint8_t outputs_min, outputs_max;
    uint32_t dtypes; /**< WEFT_DTYPE_BIT mask for the first input */
    weft_effects_t effects;
    int8_t in_place[4]; /**< output i may overwrite input in_place[i]; -1: never */
    const weft_attr_def_t *attrs;
    size_t attr_count;
    weft_status_t (*infer)(weft_node_desc_t *node);
    void (*cost)(const weft_node_desc_t *node, double *out_flops, double *out_bytes);
    /**
     * Name of the operator (same domain) that computes this one's gradient, or NULL: no gradient, or a rule
     * built into the differentiator. Its inputs are the gradients of all outputs, then all inputs,
     * then all outputs of this operator; its outputs are the gradients of the inputs, absent where not needed.
     */
    const char *grad;
    const char *equivalent; /**< MPI and NCCL names, for collectives; else NULL */
    const char *doc;        /**< one line */
    weft_ordering_t ordering;
    /**
     * The pair of operators (same domain) that is the same collective in two halves, or NULL: start has its inputs,
     * attributes and outputs, but its outputs are in flight and only wait may read them; wait has them as inputs and,
     * in place, gives what the collective gives. Between the two, anything may run that does not touch the inputs.
     */
    const char *start, *wait;
    const weft_op_rules_t *rules; /**< where infer is NULL: they say what infer and cost would */
} weft_op_def_t;

/** What prepare may ask of the place the kernel will run in. */
typedef struct weft_kernel_env {
    size_t struct_size;
    uint32_t isa;          /**< 0 portable, 1 AVX2, 2 AVX-512: the most a kernel may use */
    uint32_t thread_count; /**< threads a kernel may use, at least 1 */
} weft_kernel_env_t;

/** One call of a prepared kernel. Absent optional tensors are NULL. */
typedef struct weft_kernel_call {
    void *state; /**< what prepare made */
    const void *const *inputs;
    void *const *outputs; /**< never read before written, unless in place */
    void *scratch;        /**< scratch_bytes of 64-byte-aligned memory, contents undefined */
} weft_kernel_call_t;

/**
 * A compute kernel. prepare runs once per node, at bind: it looks at shapes, layouts and attributes, makes
 * state (NULL is fine) and says how much scratch it needs; it may allocate. run computes; it must not
 * allocate, lock or block. destroy accepts NULL. in-place outputs share the input's address.
 *
 * An operator may have several kernels: one without a family, and one per family beside it. Whoever binds
 * a node asks for the family wished for; where that kernel's prepare answers WEFT_ERR_UNSUPPORTED, the one
 * without a family takes the node, and the log says so at level info. Built in are the "exact" kernels (no
 * family; the same bits on every instruction set, no allocation) and, for products and convolutions, "onednn".
 */
typedef struct weft_kernel {
    uint32_t abi_version; /**< WEFT_KERNEL_ABI_VERSION */
    const char *domain;
    const char *op;
    int32_t since_version;
    /** WEFT_ERR_UNSUPPORTED, with a message, when shapes, types or layouts do not suit this kernel. */
    weft_status_t (*prepare)(const weft_node_desc_t *node, const weft_kernel_env_t *env, void **out_state,
                             size_t *out_scratch_bytes);
    weft_status_t (*run)(const weft_kernel_call_t *call);
    void (*destroy)(void *state);
    /** Optional one-line name of the implementation chosen for state ("jit:avx512_core"), or NULL. */
    const char *(*implementation)(void *state);
    /**
     * NULL: serves every choice. Else the kernel is an alternative, taken only where this family ("onednn") is
     * asked for, as the setting WEFT_KERNELS does, and only for nodes that its prepare accepts.
     */
    const char *family;
} weft_kernel_t;

/** Called for every definition; return 0 to go on, anything else to stop. */
typedef int (*weft_op_visit_fn)(const weft_op_def_t *def, void *user);

/** What `weft run --kernels LIB.so` looks up as "weft_plugin_init"; adds operators and kernels. */
typedef weft_status_t (*weft_plugin_init_fn)(weft_registry_t *registry);

WEFT_EXTERN_C_BEGIN
/** Creates a registry holding every built-in operator and kernel. @param[in] allocator NULL: malloc. */
WEFT_API weft_status_t weft_registry_create(const weft_allocator_t *allocator, weft_registry_t **out_registry);
/** Releases the registry; NULL is fine. It must outlive plans compiled or bound with it. */
WEFT_API void weft_registry_destroy(weft_registry_t *registry);
/** Adds an operator definition (borrowed until destroy). WEFT_ERR_INVALID_ARGUMENT if it exists. */
WEFT_API weft_status_t weft_registry_add_op(weft_registry_t *registry, const weft_op_def_t *def);
/**
 * Adds a kernel (borrowed until destroy). The last one added for an operator wins: one without a family
 * takes the place of all kernels of that operator and version, one of a family that of its family.
 */
WEFT_API weft_status_t weft_registry_add_kernel(weft_registry_t *registry, const weft_kernel_t *kernel);
/** Visits all definitions, ordered by domain, name and version. */
WEFT_API void weft_op_registry_visit(const weft_registry_t *registry, weft_op_visit_fn visit, void *user);
/** @return the definition with the highest since_version <= version, or NULL. */
WEFT_API const weft_op_def_t *weft_registry_find_op(const weft_registry_t *registry, const char *domain,
                                                    const char *name, int32_t version);
/** @return the kernel without a family that has the highest since_version <= version, or NULL. */
WEFT_API const weft_kernel_t *weft_registry_find_kernel(const weft_registry_t *registry, const char *domain,
                                                        const char *op, int32_t version);
/**
 * @param[in] family the family wished for, or NULL
 * @return among the kernels of family and those without one, that with the highest since_version <= version, of
 *         family where both have it; or NULL.
 */
WEFT_API const weft_kernel_t *weft_registry_find_kernel_of(const weft_registry_t *registry, const char *family,
                                                           const char *domain, const char *op, int32_t version);
/**
 * Adds the operators that a JSON file declares: name, arity, types of outputs by rule, effects, cost and
 * gradient, as README.md of ops says. Enough to compile, explain and verify; running takes kernels.
 * @return WEFT_ERR_NOT_FOUND, WEFT_ERR_FORMAT (what is wrong with which operator), WEFT_ERR_INVALID_ARGUMENT if
 *         one exists
 */
WEFT_API weft_status_t weft_registry_load_ops(weft_registry_t *registry, const char *path);
/** Loads a shared library and calls its weft_plugin_init; it stays loaded until destroy. */
WEFT_API weft_status_t weft_registry_load_plugin(weft_registry_t *registry, const char *path);
WEFT_EXTERN_C_END

#endif
