/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file registry.h
 * Operator definitions and compute kernels.
 *
 * A registry starts with all built-in operators and kernels. A program, or a plugin that
 * `weft run --kernels LIB.so` loads, adds operators and kernels of its own domain. Compiling needs
 * definitions only. A missing kernel is reported when a plan is bound.
 *
 * All functions of this header are local. Threads may read a registry at the same time. Adding to
 * it needs exclusive access.
 */
#ifndef WEFT_REGISTRY_H
#define WEFT_REGISTRY_H

#include <weft/types.h>

/** Version of weft_kernel_t. */
#define WEFT_KERNEL_ABI_VERSION 1u
/** weft_op_def_t.inputs_max, outputs_max: no upper bound. */
#define WEFT_VARIADIC 255u

/** A set of operator definitions, kernels and algorithms. */
typedef struct weft_registry weft_registry_t;

/** Side effects of an operator: WEFT_EFFECT_ bits. */
typedef uint32_t weft_effects_t;
/** The result depends on inputs and attributes only. */
#define WEFT_EFFECT_PURE 0u
/** Communicates with other ranks; keeps its order in the group. */
#define WEFT_EFFECT_COMMUNICATES (1u << 0)
/** Writes inputs in place, as weft_op_def_t.in_place states. */
#define WEFT_EFFECT_UPDATES (1u << 1)
/** May do anything: a fence for every pass. */
#define WEFT_EFFECT_UNKNOWN (1u << 2)
/** The result depends on the seed. */
#define WEFT_EFFECT_RANDOM (1u << 3)

/** The order of an operator that all ranks keep in addition to data dependencies. A host compiler
 * must keep the same order. */
typedef enum weft_ordering {
    /** Data dependencies alone order the operator. */
    WEFT_ORDERING_NONE = 0,
    /**
     * Collectives: all ranks of a group issue them in one order. Collectives of groups that share
     * more than one rank have one order on all shared ranks. weft_pass_order adds the edges.
     */
    WEFT_ORDERING_GROUP = 1,
    /** Send, Recv: operators between the same two ranks match in order. */
    WEFT_ORDERING_PAIR = 2,
} weft_ordering_t;

/** One attribute of an operator: its type and its default. */
typedef struct weft_attr_def {
    const char *name;      /**< name of the attribute */
    weft_attr_type_t type; /**< type of its value */
    uint8_t required;      /**< 1: a node must have it */
    int64_t default_i;     /**< default of WEFT_ATTR_TYPE_INT */
    float default_f;       /**< default of WEFT_ATTR_TYPE_FLOAT */
    const char *default_s; /**< default of WEFT_ATTR_TYPE_STRING; lists: text for documentation */
    const char *doc;       /**< one line */
} weft_attr_def_t;

/** Type and shape of one output, as data. */
typedef struct weft_output_rule {
    int32_t like;       /**< input with the same type and shape; -1: use the fields below */
    weft_dtype_t dtype; /**< WEFT_DTYPE_NONE: the type of input like, or of input 0 */
    uint32_t rank;      /**< number of dimensions, if like is -1 */
    /** Dimension d is dims[d] if of_input[d] is -1, else dimension dims[d] of that input. */
    int64_t dims[WEFT_MAX_DIMS];
    int32_t of_input[WEFT_MAX_DIMS]; /**< see dims */
} weft_output_rule_t;

/** Shape and cost rules of a declared operator (weft_registry_load_ops). */
typedef struct weft_op_rules {
    /** [output_count] rules in order; the last one holds for all further outputs. */
    const weft_output_rule_t *outputs;
    size_t output_count;   /**< length of outputs */
    double flops_per_elem; /**< floating-point operations per element of the first output */
} weft_op_rules_t;

/** What is known about an operator: WEFT_FACT_ bits. A bit that is not set means: not known. */
typedef uint32_t weft_fact_flags_t;
/** An element of an output depends on the attributes, on inputs with one element, and of larger
 * inputs on the element at its own place (after broadcasting); in the same way at every place. */
#define WEFT_FACT_ELEMENTWISE (1u << 0)
/** Output 0 has the elements of input 0 in the same order; the shape may differ. */
#define WEFT_FACT_VIEW (1u << 1)
/** Exchanging inputs 0 and 1 does not change the outputs. */
#define WEFT_FACT_COMMUTATIVE (1u << 2)
/** Output 0 is input 0 plus one term per further input. An input may be replaced by its pieces. */
#define WEFT_FACT_ACCUMULATES (1u << 3)
/** The outputs depend on the shapes of the inputs, not on their elements. */
#define WEFT_FACT_READS_SHAPE (1u << 4)
/** Drops elements in training as ONNX Dropout does, and is Identity otherwise. */
#define WEFT_FACT_DROPOUT (1u << 5)
/** Output 0 is a loss of scores (input 0) and labels (input 1). */
#define WEFT_FACT_LOSS (1u << 6)
/** Outputs 1 and 2 are statistics of this execution. Inputs 3 and 4 are their moving averages, of
 * which attribute momentum stays in each step. */
#define WEFT_FACT_STATISTICS (1u << 7)

/** Along which dimensions of input 0 an operator lets elements of different places meet. */
typedef enum weft_mixing {
    WEFT_MIXING_UNKNOWN = 0,   /**< not known */
    WEFT_MIXING_NONE = 1,      /**< none: samples stay independent in every dimension */
    WEFT_MIXING_AXIS = 2,      /**< the dimension of attribute axis */
    WEFT_MIXING_FROM_AXIS = 3, /**< the dimension of attribute axis and all after it */
    WEFT_MIXING_FROM_1 = 4,    /**< all but dimension 0, the batch */
    WEFT_MIXING_FROM_2 = 5,    /**< all but the batch and the channels */
} weft_mixing_t;

/** The arithmetic of inputs 0 and 1, element by element with broadcasting. */
typedef enum weft_arithmetic {
    WEFT_ARITHMETIC_NONE = 0,     /**< something else */
    WEFT_ARITHMETIC_ADD = 1,      /**< input 0 + input 1 */
    WEFT_ARITHMETIC_SUBTRACT = 2, /**< input 0 - input 1 */
    WEFT_ARITHMETIC_MULTIPLY = 3, /**< input 0 * input 1 */
    WEFT_ARITHMETIC_DIVIDE = 4,   /**< input 0 / input 1 */
} weft_arithmetic_t;

/** The rule by which the compiler differentiates an operator. A rule reads the inputs and
 * attributes of the ONNX operators that its comment names. */
typedef enum weft_gradient {
    /** Operator weft_op_def_t.grad; else arithmetic or WEFT_FACT_VIEW, if one is set; else none. */
    WEFT_GRADIENT_DEFAULT = 0,
    WEFT_GRADIENT_OF_RESULT = 1,   /**< operator weft_op_facts_t.result_grad(dY, Y): Relu, Tanh */
    WEFT_GRADIENT_PERMUTATION = 2, /**< Transpose */
    WEFT_GRADIENT_GEMM = 3,        /**< Gemm */
    WEFT_GRADIENT_MATRIX_PRODUCT = 4, /**< MatMul */
    WEFT_GRADIENT_CONVOLUTION = 5,    /**< Conv */
    WEFT_GRADIENT_WINDOW_MAXIMUM = 6, /**< MaxPool */
    WEFT_GRADIENT_WINDOW_MEAN = 7,    /**< AveragePool */
    WEFT_GRADIENT_GLOBAL_MEAN = 8,    /**< GlobalAveragePool */
    WEFT_GRADIENT_PADDING = 9,        /**< Pad */
    WEFT_GRADIENT_CROSS_ENTROPY = 10, /**< SoftmaxCrossEntropyLoss */
    WEFT_GRADIENT_DROPOUT = 11,       /**< Dropout */
    /** Operator weft_op_facts_t.result_grad(dY, inputs ..): Clip; input 0 alone has a gradient. */
    WEFT_GRADIENT_OF_INPUTS = 12,
    WEFT_GRADIENT_JOIN = 13,                   /**< Concat */
    WEFT_GRADIENT_SUM = 14,                    /**< ReduceSum */
    WEFT_GRADIENT_MEAN = 15,                   /**< ReduceMean */
    WEFT_GRADIENT_BATCH_NORM = 16,             /**< BatchNormalization */
    WEFT_GRADIENT_CONVOLUTION_TRANSPOSED = 17, /**< ConvTranspose */
    WEFT_GRADIENT_SELECTED = 32,               /**< Gather */
    WEFT_GRADIENT_RANGE = 33,                  /**< Slice */
    WEFT_GRADIENT_PARTS = 34,                  /**< Split */
    WEFT_GRADIENT_CHOICE = 35,                 /**< Where */
    WEFT_GRADIENT_REPEATED = 36,               /**< Expand */
    WEFT_GRADIENT_CONVERSION = 37,             /**< Cast, CastLike */
    WEFT_GRADIENT_ROW_NORM = 38,               /**< LayerNormalization */
    WEFT_GRADIENT_SOFTMAX = 39,           /**< operator result_grad(dY, Y) along an axis: Softmax */
    WEFT_GRADIENT_POWER = 40,             /**< Pow */
    WEFT_GRADIENT_NEGATION = 41,          /**< Neg */
    WEFT_GRADIENT_ZERO = 64,              /**< no input gets a gradient: Sign, Floor */
    WEFT_GRADIENT_EXTREME = 65,           /**< Max, Min; equal inputs share the gradient */
    WEFT_GRADIENT_TOTAL = 66,             /**< Sum */
    WEFT_GRADIENT_AVERAGE = 67,           /**< Mean */
    WEFT_GRADIENT_SLOPE = 68,             /**< PRelu */
    WEFT_GRADIENT_REDUCED_EXTREME = 69,   /**< ReduceMax, ReduceMin; as WEFT_GRADIENT_EXTREME */
    WEFT_GRADIENT_REDUCED_SQUARES = 70,   /**< ReduceSumSquare */
    WEFT_GRADIENT_NORM_1 = 71,            /**< ReduceL1 */
    WEFT_GRADIENT_NORM_2 = 72,            /**< ReduceL2 */
    WEFT_GRADIENT_LOG_SUM = 73,           /**< ReduceLogSum */
    WEFT_GRADIENT_LOG_SUM_EXP = 74,       /**< ReduceLogSumExp */
    WEFT_GRADIENT_SELECTED_SLICES = 75,   /**< GatherND */
    WEFT_GRADIENT_SELECTED_ELEMENTS = 76, /**< GatherElements */
    WEFT_GRADIENT_REPLACED_SLICES = 77,   /**< ScatterND */
    WEFT_GRADIENT_REPLACED_ELEMENTS = 78, /**< ScatterElements */
    WEFT_GRADIENT_RUNNING_SUM = 79,       /**< CumSum */
    WEFT_GRADIENT_TILES = 80,             /**< Tile */
    WEFT_GRADIENT_LARGEST = 81,           /**< TopK */
    WEFT_GRADIENT_TRIANGLE = 82,          /**< Trilu */
    WEFT_GRADIENT_REDUCED_PRODUCT = 83,   /**< ReduceProd */
    WEFT_GRADIENT_SHARED = 96,   /**< all ranks have input 0, output 0 leads to a part on each */
    WEFT_GRADIENT_TRANSFER = 97, /**< rank "root" sends input 0 to rank "to"; gradients go back */
} weft_gradient_t;

/** The measured cost curve that predicts an operator. */
typedef enum weft_cost_curve {
    WEFT_COST_CURVE_MOVE = 0,      /**< moves data; also everything that no other curve fits */
    WEFT_COST_CURVE_PRODUCT = 1,   /**< matrix products */
    WEFT_COST_CURVE_CONV = 2,      /**< convolutions */
    WEFT_COST_CURVE_CONV_GRAD = 3, /**< gradients of convolutions */
    WEFT_COST_CURVE_EXP = 4,       /**< exponentials */
    WEFT_COST_CURVE_POOL = 5,      /**< windows */
    WEFT_COST_CURVE_UPDATE = 6,    /**< optimizer updates */
    WEFT_COST_CURVE_ATTENTION = 7, /**< products, softmax and products by blocks */
    WEFT_COST_CURVE_FUSED = 8,     /**< element-wise operators in one pass over the data */
    WEFT_COST_CURVE_NORM = 9,      /**< normalization of rows or channels */
} weft_cost_curve_t;

/** What an operator is in the split form of a collective. */
typedef enum weft_half {
    WEFT_HALF_NONE = 0,  /**< the whole */
    WEFT_HALF_START = 1, /**< begins a collective; its outputs are in flight */
    WEFT_HALF_WAIT = 2,  /**< completes a collective */
} weft_half_t;

/** What an operator does with a flat range, which several tensors form side by side. */
typedef enum weft_range_role {
    WEFT_RANGE_ROLE_NONE = 0,          /**< nothing */
    WEFT_RANGE_ROLE_SHARD = 1,         /**< a view of a rank's shard of it */
    WEFT_RANGE_ROLE_UPDATE = 2,        /**< updates parameters by gradients */
    WEFT_RANGE_ROLE_REDUCE_UPDATE = 3, /**< reduces gradients, updates and gathers parameters */
} weft_range_role_t;

/** The other operators that an operator without a kernel is replaced by; the comments name those of
 * ONNX whose inputs and attributes are read. */
typedef enum weft_expansion {
    WEFT_EXPANSION_NONE = 0,          /**< it stays */
    WEFT_EXPANSION_ATTENTION = 1,     /**< Attention */
    WEFT_EXPANSION_EINSUM = 2,        /**< Einsum */
    WEFT_EXPANSION_GROUP_NORM = 3,    /**< GroupNormalization */
    WEFT_EXPANSION_INSTANCE_NORM = 4, /**< InstanceNormalization */
    WEFT_EXPANSION_MEAN_VARIANCE = 5, /**< MeanVarianceNormalization */
    WEFT_EXPANSION_RMS_NORM = 6,      /**< RMSNormalization */
    WEFT_EXPANSION_ROTARY = 7,        /**< RotaryEmbedding */
    /** The operator that result_grad names, on the same inputs. The following ones are operators of
     * ONNX Runtime's training graphs. */
    WEFT_EXPANSION_SAME = 8,
    WEFT_EXPANSION_FLAT_SOFTMAX_GRAD = 9,     /**< SoftmaxGrad, LogSoftmaxGrad */
    WEFT_EXPANSION_GELU_GRAD = 10,            /**< GeluGrad, BiasGeluGrad_dX */
    WEFT_EXPANSION_GATHER_GRAD = 11,          /**< GatherGrad */
    WEFT_EXPANSION_GATHER_ELEMENTS_GRAD = 12, /**< GatherElementsGrad */
    WEFT_EXPANSION_GATHER_ND_GRAD = 13,       /**< GatherNDGrad */
    WEFT_EXPANSION_SLICE_GRAD = 14,           /**< SliceGrad */
    WEFT_EXPANSION_RMS_NORM_GRAD = 15,        /**< SimplifiedLayerNormalizationGrad */
    WEFT_EXPANSION_DIVISION_GRAD = 16,        /**< DivGrad */
    WEFT_EXPANSION_DROPOUT_GRAD = 17,         /**< DropoutGrad */
    WEFT_EXPANSION_CROSS_ENTROPY = 18,        /**< SoftmaxCrossEntropyLossInternal */
    WEFT_EXPANSION_CROSS_ENTROPY_GRAD = 19,   /**< SoftmaxCrossEntropyLossInternalGrad */
    WEFT_EXPANSION_ONE_HOT_ENTROPY_GRAD = 20, /**< SoftmaxCrossEntropyGrad */
    WEFT_EXPANSION_POOL_GRAD = 21,            /**< MaxPoolGrad, from the indices */
    WEFT_EXPANSION_LSTM = 22,                 /**< LSTM */
    WEFT_EXPANSION_GRU = 23,                  /**< GRU */
    WEFT_EXPANSION_RNN = 24,                  /**< RNN */
    WEFT_EXPANSION_FAST_GELU_GRAD = 25,       /**< FastGeluGrad, BiasFastGeluGrad_dX */
    /** Pad, by elements of X; it stays where it pads with a constant */
    WEFT_EXPANSION_PAD = 26,
    WEFT_EXPANSION_GLOBAL_MAX = 27, /**< GlobalMaxPool */
    WEFT_EXPANSION_SWIGLU = 28,     /**< SwiGLU */
    /** Conv, ConvTranspose, MaxPool and AveragePool over three dimensions; others stay */
    WEFT_EXPANSION_VOLUME = 29,
    WEFT_EXPANSION_GROUP_QUERY = 30, /**< GroupQueryAttention of ONNX Runtime */
    /** Gelu and BiasGelu of ONNX Runtime */
    WEFT_EXPANSION_GELU = 31,
    WEFT_EXPANSION_FAST_GELU = 32,       /**< FastGelu of ONNX Runtime: by tanh */
    WEFT_EXPANSION_QUICK_GELU = 33,      /**< QuickGelu of ONNX Runtime */
    WEFT_EXPANSION_SKIP_LAYER_NORM = 34, /**< SkipLayerNormalization of ONNX Runtime */
    WEFT_EXPANSION_SKIP_RMS_NORM = 35,   /**< SkipSimplifiedLayerNormalization of ONNX Runtime */
    WEFT_EXPANSION_FUSED_MATMUL = 36,    /**< FusedMatMul of ONNX Runtime */
    WEFT_EXPANSION_SCALE = 37,           /**< Scale of ONNX Runtime's training graphs */
    /** BatchNormInternal and BatchNormalizationGrad of ONNX Runtime's training graphs */
    WEFT_EXPANSION_BATCH_NORM = 38,
    WEFT_EXPANSION_BATCH_NORM_GRAD = 39,
    WEFT_EXPANSION_AVERAGE_POOL_GRAD = 40, /**< AveragePoolGrad, from the input of AveragePool */
} weft_expansion_t;

/** The type in which an operator computes where the compiler may choose half types (compile
 * parameter precision). Arithmetic and accumulation inside an operator are f32 in each case. */
typedef enum weft_precision {
    WEFT_PRECISION_F32 = 0,  /**< f32: losses, exponentials, sums over many elements */
    WEFT_PRECISION_HALF = 1, /**< the half type: products, convolutions */
    /** the half type where an input other than f32_inputs has it, else f32 */
    WEFT_PRECISION_INPUTS = 2,
} weft_precision_t;

/** An operator, by name. */
typedef struct weft_op_ref {
    const char *domain; /**< "" is ai.onnx */
    const char *name;   /**< NULL: no operator */
} weft_op_ref_t;

/** The layouts that an operator supports for tensors with 4 dimensions. */
typedef struct weft_layout_facts {
    uint32_t inputs;        /**< bit i: input i may be channels-last; else it is plain */
    uint32_t outputs;       /**< bit i: output i may be channels-last; else it is plain */
    uint32_t same;          /**< 1: these tensors all have one layout; 0: each has any */
    float plain_ps;         /**< time per element of such a tensor in plain layout */
    float channels_last_ps; /**< time per element in channels-last layout */
} weft_layout_facts_t;

/**
 * Facts that passes need. Passes never compare names of operators. Zero is the default of every
 * field and means "not known", so that a pass leaves such an operator alone.
 */
typedef struct weft_op_facts {
    size_t struct_size;      /**< size of this struct */
    weft_fact_flags_t flags; /**< WEFT_FACT_ bits */
    /** Bit i: the outputs are proportional to input i while the other inputs stay the same. */
    uint32_t linear_inputs;
    uint32_t shape_inputs;        /**< bit i: input i is the shape of output 0 */
    weft_mixing_t mixing;         /**< see weft_mixing_t */
    weft_arithmetic_t arithmetic; /**< see weft_arithmetic_t */
    weft_gradient_t gradient;     /**< see weft_gradient_t */
    weft_cost_curve_t cost_curve; /**< see weft_cost_curve_t */
    weft_collective_t collective; /**< the collective that it executes */
    weft_half_t half;             /**< of that collective */
    /** Operator of domain weft that an import replaces this one by; "": there is none, and an
     * import refuses it; NULL: it stays. */
    const char *imported_as;
    /** Gradient operator of WEFT_GRADIENT_OF_RESULT and WEFT_GRADIENT_OF_INPUTS, or the operator of
     * WEFT_EXPANSION_SAME. It has the attributes of this operator if its definition has any. */
    weft_op_ref_t result_grad;
    weft_op_ref_t evaluation;   /**< runs outside training in its place, on as many inputs */
    weft_layout_facts_t layout; /**< see weft_layout_facts_t */
    weft_range_role_t range;    /**< see weft_range_role_t */
    weft_expansion_t expansion; /**< see weft_expansion_t */
    weft_precision_t precision; /**< see weft_precision_t */
    /** Bit i: input i stays f32 where the others have the half type; bit 31: input 31 and all after
     * it. */
    uint32_t f32_inputs;
} weft_op_facts_t;

/** Initial value of weft_op_facts_t: nothing is known. */
#define WEFT_OP_FACTS_INIT                                                                         \
    WEFT_STRUCT_INIT(weft_op_facts_t, 0, 0, 0, WEFT_MIXING_UNKNOWN, WEFT_ARITHMETIC_NONE,          \
                     WEFT_GRADIENT_DEFAULT, WEFT_COST_CURVE_MOVE, WEFT_COLLECTIVE_NONE,            \
                     WEFT_HALF_NONE, 0, {0, 0}, {0, 0}, {0, 0, 0, 0, 0}, WEFT_RANGE_ROLE_NONE,     \
                     WEFT_EXPANSION_NONE, WEFT_PRECISION_F32, 0)

/** One operator: all facts that the importer, the passes, the documentation and another compiler
 * need. */
typedef struct weft_op_def {
    const char *domain;           /**< "" is ai.onnx */
    const char *name;             /**< name in the domain */
    int32_t since_version;        /**< lowest opset version of the domain with this meaning */
    uint8_t inputs_min;           /**< fewest inputs */
    uint8_t inputs_max;           /**< most inputs; WEFT_VARIADIC: no bound */
    uint8_t outputs_min;          /**< fewest outputs */
    uint8_t outputs_max;          /**< most outputs; WEFT_VARIADIC: no bound */
    uint32_t dtypes;              /**< WEFT_DTYPE_BIT mask for the first input */
    weft_effects_t effects;       /**< side effects */
    int8_t in_place[4];           /**< output i may overwrite input in_place[i]; -1: never */
    const weft_attr_def_t *attrs; /**< [attr_count] attributes */
    size_t attr_count;            /**< length of attrs */
    /**
     * Infers type and shape: fills dtype, rank and dims of node->outputs and leaves data NULL.
     * Dimensions may be -1 on both sides. Returns WEFT_ERR_INVALID_ARGUMENT if inputs and
     * attributes contradict each other; the message names the cause but not the node. NULL: rules
     * apply.
     */
    weft_status_t (*infer)(weft_node_desc_t *node);
    /** Gives floating-point operations and bytes moved of one execution with known shapes. */
    void (*cost)(const weft_node_desc_t *node, double *out_flops, double *out_bytes);
    /**
     * Name of the operator (same domain) that computes the gradient. NULL: no gradient, or a rule
     * built into the differentiator. Its inputs are the gradients of all outputs, then all inputs,
     * then all outputs of this operator. Its outputs are the gradients of the inputs; an output is
     * absent if it is not needed.
     */
    const char *grad;
    const char *equivalent;   /**< MPI and NCCL names of a collective, else NULL */
    const char *doc;          /**< one line */
    weft_ordering_t ordering; /**< order that all ranks keep */
    /**
     * The split form of a collective (same domain): start and wait, or NULL. start has the
     * collective's inputs, attributes and outputs; only wait may read these outputs. wait returns
     * them in place. Operators that do not touch the inputs may run between the two.
     */
    const char *start;
    const char *wait;             /**< see start */
    const weft_op_rules_t *rules; /**< shape and cost rules where infer is NULL */
    const weft_op_facts_t *facts; /**< facts for passes; NULL: nothing is known */
} weft_op_def_t;

/** The environment that a kernel will run in. */
typedef struct weft_kernel_env {
    size_t struct_size;    /**< size of this struct, set by the caller */
    weft_isa_t isa;        /**< highest instruction set that a kernel may use, not the default */
    uint32_t thread_count; /**< threads that a kernel may use, at least 1 */
} weft_kernel_env_t;

/** Initial value of weft_kernel_env_t: portable, one thread. */
#define WEFT_KERNEL_ENV_INIT WEFT_STRUCT_INIT(weft_kernel_env_t, WEFT_ISA_PORTABLE, 1)

/** One call of a prepared kernel. Absent optional tensors are NULL. */
typedef struct weft_kernel_call {
    void *state;               /**< result of prepare */
    const void *const *inputs; /**< addresses of the inputs */
    void *const *outputs;      /**< addresses of the outputs; undefined contents unless in place */
    void *scratch;             /**< scratch memory, aligned to 64 bytes, undefined contents */
} weft_kernel_call_t;

/**
 * A compute kernel.
 *
 * An operator may have several kernels: one without a family and one per family. The caller that
 * binds a node asks for a family. If that kernel's prepare returns WEFT_ERR_UNSUPPORTED, the kernel
 * without a family takes the node, and the log reports it at level info. Built in are the "exact"
 * kernels (no family; same bits on every instruction set, no allocation) and, for matrix products
 * and convolutions, "onednn".
 */
typedef struct weft_kernel {
    uint32_t abi_version;  /**< WEFT_KERNEL_ABI_VERSION */
    const char *domain;    /**< domain of the operator */
    const char *op;        /**< name of the operator */
    int32_t since_version; /**< lowest opset version that the kernel implements */
    /**
     * Runs once per node, at bind: reads shapes, layouts and attributes, creates the state (may be
     * NULL) and returns the bytes of scratch that run needs. May allocate. Returns
     * WEFT_ERR_UNSUPPORTED, with a message, if shapes, types or layouts do not suit this kernel.
     */
    weft_status_t (*prepare)(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                             void **out_state, size_t *out_scratch_bytes);
    /** Computes. Must not allocate, lock or block. In-place outputs have the input's address. */
    weft_status_t (*run)(const weft_kernel_call_t *call);
    /** Destroys the state; accepts NULL. */
    void (*destroy)(void *state);
    /** Optional: names the implementation in one line, such as "jit:avx512_core"; or NULL. */
    const char *(*implementation)(void *state);
    /**
     * NULL: the kernel serves every request. Else it is an alternative ("onednn") that serves only
     * requests for this family, such as the setting WEFT_KERNELS, and nodes that prepare accepts.
     */
    const char *family;
} weft_kernel_t;

/** Called for each definition; returns 0 to continue, another value to stop. */
typedef int (*weft_op_visit_fn)(const weft_op_def_t *def, void *user);

/** Entry point "weft_plugin_init" of a plugin; adds operators and kernels to registry. */
typedef weft_status_t (*weft_plugin_init_fn)(weft_registry_t *registry);

WEFT_EXTERN_C_BEGIN
/**
 * Creates a registry with all built-in operators and kernels. Any thread.
 * @param[in]  allocator    copied; NULL: malloc
 * @param[out] out_registry the registry; the caller destroys it
 * @return WEFT_ERR_NO_MEMORY
 */
WEFT_API weft_status_t weft_registry_create(const weft_allocator_t *allocator,
                                            weft_registry_t **out_registry);
/**
 * Destroys a registry and unloads its plugins. Plans compiled or bound with it must be gone.
 * @param[in] registry NULL: nothing happens
 */
WEFT_API void weft_registry_destroy(weft_registry_t *registry);
/**
 * Adds an operator definition.
 * @param[in] registry the registry
 * @param[in] def      borrowed until the registry is destroyed
 * @return WEFT_ERR_INVALID_ARGUMENT if the definition exists or is incomplete, WEFT_ERR_UNSUPPORTED
 *         if facts has fields that this library does not know
 */
WEFT_API weft_status_t weft_registry_add_op(weft_registry_t *registry, const weft_op_def_t *def);
/**
 * Adds a kernel. The kernel added last for an operator wins: a kernel without a family replaces all
 * kernels of that operator and version, a kernel of a family replaces that of its family.
 * @param[in] registry the registry
 * @param[in] kernel   borrowed until the registry is destroyed
 * @return WEFT_ERR_INVALID_ARGUMENT if a function is missing, WEFT_ERR_UNSUPPORTED for another
 *         abi_version
 */
WEFT_API weft_status_t weft_registry_add_kernel(weft_registry_t *registry,
                                                const weft_kernel_t *kernel);
/**
 * Calls visit for all definitions, ordered by domain, name and version. NULL arguments: nothing
 * happens.
 * @param[in] registry the registry
 * @param[in] visit    called on the calling thread
 * @param[in] user     passed to visit
 */
WEFT_API void weft_op_registry_visit(const weft_registry_t *registry, weft_op_visit_fn visit,
                                     void *user);
/**
 * Finds an operator definition.
 * @param[in] registry the registry
 * @param[in] domain   NULL: ""
 * @param[in] name     name of the operator
 * @param[in] version  opset version of the domain
 * @return the definition with the highest since_version <= version, owned by the registry; NULL if
 *         there is none or an argument is NULL
 */
WEFT_API const weft_op_def_t *weft_registry_find_op(const weft_registry_t *registry,
                                                    const char *domain, const char *name,
                                                    int32_t version);
/**
 * Finds the kernel without a family of an operator.
 * @param[in] registry the registry
 * @param[in] domain   NULL: ""
 * @param[in] op       name of the operator
 * @param[in] version  opset version of the domain
 * @return the kernel with the highest since_version <= version, owned by the registry; NULL if
 *         there is none or an argument is NULL
 */
WEFT_API const weft_kernel_t *weft_registry_find_kernel(const weft_registry_t *registry,
                                                        const char *domain, const char *op,
                                                        int32_t version);
/**
 * Finds a kernel of an operator, of a given family if possible.
 * @param[in] registry the registry
 * @param[in] family   the preferred family; NULL: none
 * @param[in] domain   NULL: ""
 * @param[in] op       name of the operator
 * @param[in] version  opset version of the domain
 * @return the kernel with the highest since_version <= version among those of family and those
 *         without a family; of family if both have that version; NULL if there is none or an
 *         argument is NULL
 */
WEFT_API const weft_kernel_t *weft_registry_find_kernel_of(const weft_registry_t *registry,
                                                           const char *family, const char *domain,
                                                           const char *op, int32_t version);
/**
 * Adds the operators that a JSON file declares: name, arity, types of outputs by rule, effects,
 * cost and gradient. ops/README.md describes the file. Declared operators can be compiled,
 * explained and verified; running them needs kernels.
 * @param[in] registry the registry
 * @param[in] path     the JSON file
 * @return WEFT_ERR_NOT_FOUND, WEFT_ERR_FORMAT naming operator and cause, WEFT_ERR_INVALID_ARGUMENT
 *         if an operator exists
 */
WEFT_API weft_status_t weft_registry_load_ops(weft_registry_t *registry, const char *path);
/**
 * Loads a shared library and calls its weft_plugin_init. The library stays loaded until the
 * registry is destroyed.
 * @param[in] registry the registry
 * @param[in] path     the library, as for dlopen
 * @return WEFT_ERR_NOT_FOUND, WEFT_ERR_FORMAT if the entry point is missing, or the status of
 *         weft_plugin_init
 */
WEFT_API weft_status_t weft_registry_load_plugin(weft_registry_t *registry, const char *path);
WEFT_EXTERN_C_END

#endif
