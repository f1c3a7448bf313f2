/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file compile.h
 * Compiles an ONNX model to a plan.
 *
 * All functions of this header are local; any thread may call them. Ranks that compile the same
 * file with the same parameters get the same plan.
 */
#ifndef WEFT_COMPILE_H
#define WEFT_COMPILE_H

#include <weft/plan.h>

/** Fixed shape of one input. */
typedef struct weft_input_shape {
    const char *name;            /**< name of the input */
    uint32_t rank;               /**< number of dimensions */
    int64_t dims[WEFT_MAX_DIMS]; /**< dimensions */
} weft_input_shape_t;

/** What a pass of the compiler did. Strings are valid during the call. */
typedef struct weft_pass_report {
    size_t struct_size;     /**< size of this struct */
    const char *name;       /**< the pass; "import" before the first and "lower" after the last */
    uint32_t nodes_before;  /**< operators of the graph; with rank_models, of rank 0's */
    uint32_t nodes_after;   /**< the same after the pass */
    uint64_t duration_ns;   /**< duration of the pass */
    const char *graph_text; /**< the graph after it, for print_after and stop_after; else NULL */
} weft_pass_report_t;

/** Initial value of weft_pass_report_t. */
#define WEFT_PASS_REPORT_INIT WEFT_STRUCT_INIT(weft_pass_report_t, 0, 0, 0, 0, 0)

/** Receives a report after every pass that ran, in order, on the thread that compiles. */
typedef void (*weft_pass_report_fn)(void *user, const weft_pass_report_t *report);

/** Parameters of weft_compile. Zero means the default. Strings are borrowed for the call. */
typedef struct weft_compile_params {
    size_t struct_size; /**< size of this struct */
    /** A model, or a compiled graph (emit_path), which contains its parameters and accepts no
     * others. */
    const char *model_path;
    uint32_t world_size; /**< number of ranks, at least 1; 0 only for a compiled graph */
    /** Samples per rank and micro-batch (without accumulate: per step); 0: from the file. */
    int64_t batch;
    const weft_input_shape_t *shapes;  /**< [shape_count] shapes of inputs; NULL: from the file */
    uint32_t shape_count;              /**< length of shapes */
    const char *loss;                  /**< loss output; NULL: that of the only loss node */
    const char *optimizer;             /**< "sgd", "momentum" (default), "adam", "adamw", "lamb" */
    double lr;                         /**< scalar "lr"; 0: 0.05, adam, adamw, lamb 0.001 */
    double momentum;                   /**< momentum; 0: 0.9 */
    double weight_decay;               /**< weight decay; 0: none */
    const char *bucket;                /**< see weft_bucket_policy_check; NULL: "auto" */
    const weft_registry_t *registry;   /**< operators; NULL: the built-in ones */
    const weft_allocator_t *allocator; /**< NULL: malloc */
    weft_log_fn log;                   /**< receives log lines; NULL: standard error */
    void *log_user;                    /**< first argument of log */
    const char *costs_path;            /**< measured costs (`weft tune`); NULL: default costs */
    /** Measured times of operators (weft_session_write_profile); NULL: predicted times. */
    const char *profile_path;

    /* Training */
    /** 1: a rank updates its shard of every bucket and keeps only that optimizer state. */
    int shard_optimizer;
    int decouple; /**< 1: weights are gathered in the next forward pass; implies shard_optimizer */
    uint32_t accumulate; /**< micro-batches of a rank per step; 0: 1 */
    /** Micro-batches of all ranks per step, reduced along one tree; 0: not fixed. Weights then have
     * the same bits for 1 rank and for N ranks where global_micro_batches / N is a power of two
     * (other N are refused). Excludes accumulate. */
    uint32_t global_micro_batches;
    /** Type in which gradients travel: "f32" (default) or "bf16". A rank's sum is rounded to bf16;
     * bits then depend on the number of ranks. */
    const char *wire;
    /** Gradients are multiplied by min(1, clip_norm / their global norm). The norm is the output
     * "grad_norm". If it is not finite, every weight becomes NaN. 0: no clipping. */
    double clip_norm;
    /** JSON object that maps a parameter to the tensor of the graph that is its gradient; NULL:
     * tensors named "<param>_grad" or "grad.<param>", if there are any. */
    const char *grads_path;

    /* Schedule and memory */
    uint32_t in_flight;   /**< most collectives issued and not waited for; 0: no bound */
    uint64_t arena_limit; /**< most bytes of the arena, or compiling fails; 0: no bound */

    /* Inference */
    int infer; /**< 1: the graph as it is, with its collectives; excludes training parameters */
    /** 1, with infer: batch is that of all ranks together, a multiple of world_size. Inputs are
     * rank 0's, scattered or (without a batch) broadcast; outputs are gathered on rank 0. */
    int split_batch;
    /** With infer: [rank_model_count] one model per rank; rank_models[0] replaces model_path. Models
     * with collectives must be equal except for initializers. Without collectives they may be
     * different models: rank r runs model r, and every rank has the outputs of all. An input or
     * output whose name several of them have gets the name of the file in front: "text.input" of
     * text.onnx. NULL: model_path on all ranks. */
    const char *const *rank_models;
    uint32_t rank_model_count; /**< 0 or world_size */

    /** JSON file that declares operators for this compilation (weft_registry_load_ops). */
    const char *ops_path;
    /** Output file for the compiled graph as ONNX, which compiles to a plan with the same structure
     * digest; NULL: none. */
    const char *emit_path;
    /** Cluster description (JSON, runtime/machine/README.md) to choose algorithms for. Its number
     * of ranks, if any, is world_size. NULL: one host. */
    const char *topology_path;
    /** Replaces batch 0 if the file leaves the batch open, with a warning; 0: an open batch is an
     * error. */
    int64_t open_batch;

    /* Passes (weft_compile_visit_passes) */
    const char *print_after; /**< pass whose report contains the graph; "all": every pass */
    const char *stop_after;  /**< the last pass that runs: there is no plan, *out_plan is NULL */
    int verify_each;         /**< 1: the graph is verified after every pass */
    weft_pass_report_fn on_pass; /**< receives reports; NULL: none */
    void *on_pass_user;          /**< first argument of on_pass */

    /** Training. 1: a rank keeps only its shard of the weights, of their reduced gradients and of
     * the optimizer state, and gathers the weights of a bucket before each pass; implies
     * shard_optimizer. Without in_flight at most 2 collectives are in flight, which bounds the
     * gathered weights in memory. All ranks evaluate and read weights together. */
    int shard_parameters;
    /** Training. Names of floating-point initializers that are trained whatever the model states:
     * patterns of fnmatch(3) separated by commas, such as "head.*". NULL: none. */
    const char *train;
    /** The same for initializers that are not trained; train takes precedence, so freeze "*" with
     * train "head.*" trains the head alone. Without both, what the exporter marks is trained, or
     * what looks like a parameter by its name and place (`weft check` lists them). NULL: none. */
    const char *freeze;
    /** Training. 1: BatchNormalization and Dropout that the model has in the form for inference, as
     * torch.onnx writes them, compute as in training. */
    int training_form;
    /** Training. Parameters without weight decay: patterns as in train; "1d" matches all with at
     * most one dimension, which are biases and the scales of normalizations. With shard_optimizer
     * their gradients have buckets of their own; with lamb they also have no trust ratio. Requires
     * weight_decay. NULL: all parameters decay. */
    const char *no_decay;

    /** Training. Share of each label that all classes get alike, below 1: the loss of
     * torch.nn.CrossEntropyLoss(label_smoothing). 0: none. */
    double label_smoothing;
    /** Training. How the learning rate changes, from the scalar "lr" on: "constant" (default),
     * "linear", "cosine" or "step". The step computes it, so it is the same on all ranks and
     * continues after a checkpoint. */
    const char *lr_schedule;
    /** linear, cosine: the step, counted from 1, after which the rate is min_lr; 0: scalar
     * "lr_steps", which `weft run` sets. step: from one drop to the next. */
    uint32_t lr_steps;
    uint32_t warmup_steps; /**< first steps, in which the rate rises linearly to "lr"; 0: none */
    double min_lr;         /**< lowest rate of linear, cosine and step; 0: 0 */
    double lr_gamma;       /**< step: factor of each drop; 0: 0.1 */
    /** Training. 1: BatchNormalization takes mean and variance of a step over the batches of all
     * ranks, by one all-reduce per layer and direction, as torch.nn.SyncBatchNorm does; with
     * micro-batches, over those that ranks compute at the same time. 0: each rank takes those of
     * its own batch. Running statistics are averages over ranks in both cases. */
    int sync_batch_norm;
    /** Algorithms of the plan's collectives: "all_reduce=ring" or "AllReduce=ring", several with
     * commas between. An algorithm that cannot run on these ranks and hosts, or not in this order,
     * is an error. Such collectives are not fused with updates. NULL: chosen by cost. */
    const char *algo;
    /** Order in which reductions combine ranks: "tree" (default), "any", which admits all
     * algorithms but gives bits that depend on them, or "blocks:4,4" with the ranks of each
     * block. */
    const char *order;
    /** Number of ranks over which products with weights are divided, and with them attention heads:
     * a rank has its part of the weights, and collectives are inserted where they are needed. It
     * divides world_size, which may be 0: then both are equal. Ranks r with the same
     * r / tensor_parallel compute one batch, and batch is that of all of them together; in
     * training, gradients are averaged over batches. A model that cannot be divided is an error.
     * Sessions, checkpoints and saved models have whole parameters. 0: with infer, the devices of
     * multi-device annotations of the model, if it has any; else every rank has the whole model, as
     * with 1. */
    uint32_t tensor_parallel;
    /** Training. "auto": where no order of operators fits arena_limit, which must be set, the backward
     * pass computes activations again instead of keeping them: those that free the most bytes per
     * time where most memory is needed. Otherwise patterns as in train: operators of the forward
     * pass that run again, by their names or those of their first outputs, as with
     * torch.utils.checkpoint. No bit of a result changes. NULL: all activations are kept. */
    const char *recompute;
    /** Type of weights and activations in products, convolutions and what follows them: "f32"
     * (default), "bf16", or with infer also "f16". Accumulation is f32 in any case. In training
     * weights, gradients of weights, optimizer state and loss are f32; forward and backward pass
     * read a copy of the weights in bf16. With infer the plan contains the weights in that type. */
    const char *precision;
    /** Training with "adam", "adamw" or "lamb". Decay per step of the mean of gradients, below 1; 0:
     * 0.9. */
    double beta1;
    double beta2; /**< the same of their squares; 0: 0.999 */
    /** Training with "adam", "adamw", "lamb" or "adagrad". Added to the divisor of updates; 0: 1e-8,
     * with "adagrad" 1e-10. */
    double epsilon;
    /** Number of stages into which the operators are divided, at equal cost and where the least
     * crosses. It divides world_size, which may be 0: then both are equal. Ranks r with the same
     * r / pipeline compute one batch: rank r has the weights and runs the operators of stage
     * r % pipeline, and batch is that of all of them together. Every rank has the loss and all
     * outputs. In training, gradients are averaged over batches. 0 or 1: every rank has the whole
     * model. */
    uint32_t pipeline;
    /** With pipeline: parts of the batch, a divisor of it, that go through the stages one after the
     * other, so that stages work at the same time: forward and backward of parts in turns (1F1B).
     * In a step of M parts each of N equal stages idles for (N - 1) / (M + N - 1) of the time. The
     * loss is the mean of those of all parts. 0: 1. */
    uint32_t pipeline_micro_batches;
    /** The device that will run the plan: as weft_device_open, or several as "opencl:0,1".
     * Operators, types and attributes that it does not support are an error that lists the nodes.
     * The device is open meanwhile: not before fork() in the parent of ranks. NULL or "cpu": the
     * CPU. */
    const char *device;
} weft_compile_params_t;

/** Defaults of weft_compile_params_t; model_path and world_size must be set. */
#define WEFT_COMPILE_PARAMS_INIT                                                                   \
    WEFT_STRUCT_INIT(weft_compile_params_t, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,  \
                     0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, \
                     0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)

/** What a field of weft_compile_params_t holds. */
typedef enum weft_option_type {
    WEFT_OPTION_TYPE_FLAG,    /**< int: 0 or 1 */
    WEFT_OPTION_TYPE_U32,     /**< uint32_t */
    WEFT_OPTION_TYPE_I64,     /**< int64_t */
    WEFT_OPTION_TYPE_BYTES,   /**< uint64_t; as text also 512M or 4G */
    WEFT_OPTION_TYPE_F64,     /**< double, finite */
    WEFT_OPTION_TYPE_TEXT,    /**< const char *, one of choices if there are any */
    WEFT_OPTION_TYPE_PATH,    /**< const char *: name of a file */
    WEFT_OPTION_TYPE_SHAPES,  /**< weft_input_shape_t array, its length in the next field */
    WEFT_OPTION_TYPE_MODELS,  /**< array of paths, its length in the next field */
    WEFT_OPTION_TYPE_OPS,     /**< const char *: a file for weft_registry_load_ops */
    WEFT_OPTION_TYPE_PLUGINS, /**< weft_registry_t *, which weft_registry_load_plugin fills */
    WEFT_OPTION_TYPE_OBJECT,  /**< an object or function of the program; has no name */
} weft_option_type_t;

/** Properties of an option: WEFT_OPTION_FLAG_ bits. */
typedef uint32_t weft_option_flags_t;
/** Excludes infer. */
#define WEFT_OPTION_FLAG_TRAINING (1u << 0)
/** Requires infer. */
#define WEFT_OPTION_FLAG_INFERENCE (1u << 1)
/** A compiled graph records it as property weft.NAME. */
#define WEFT_OPTION_FLAG_RECORDED (1u << 2)
/** A compiled graph contains its effect and excludes it. */
#define WEFT_OPTION_FLAG_IN_GRAPH (1u << 3)
/** 0 is a value; for other numbers it only means the default. */
#define WEFT_OPTION_FLAG_ZERO (1u << 4)
/** The command and Python take it without its name. */
#define WEFT_OPTION_FLAG_POSITIONAL (1u << 5)
/** For on_pass: C programs and the command. */
#define WEFT_OPTION_FLAG_REPORTED (1u << 6)
/** A text of entries separated by commas: the command takes it several times, Python a list. */
#define WEFT_OPTION_FLAG_LIST (1u << 7)

/** One field of weft_compile_params_t as an option of programs. Unused texts are NULL. */
typedef struct weft_compile_option {
    const char *field;         /**< name of the field: what messages name */
    size_t offset;             /**< offset of the field in weft_compile_params_t */
    weft_option_type_t type;   /**< what the field holds */
    weft_option_flags_t flags; /**< WEFT_OPTION_FLAG_ bits */
    /** Keyword of weft.compile in Python, and option --NAME of the command with '-' for '_'; NULL:
     * only in C. */
    const char *name;
    const char *arg;            /**< placeholder of the value; with a FLAG: of the value of needs */
    char letter;                /**< short option of the command; 0: none */
    double low;                 /**< least value; a F64 is above it (or 0 with ZERO) */
    double high;                /**< greatest value; a F64 is below it; 0: no bound */
    const char *const *choices; /**< all texts allowed, ended by NULL */
    const char *by_default;     /**< the default, for people; NULL: nothing, or described in help */
    const char *implies;        /**< field that it sets too */
    const char *needs;          /**< field without which it is an error */
    const char *excludes;       /**< field with which it is an error */
    const char *reason;         /**< why it needs or excludes that field */
    const char *help;           /**< what it does: one sentence, lower case */
} weft_compile_option_t;

WEFT_EXTERN_C_BEGIN
/**
 * The options of weft_compile: one for each field of weft_compile_params_t. The command, the Python
 * package, the properties of compiled graphs and docs/options.md all come from this table.
 * @param[in] index from 0
 * @return a constant; NULL after the last one
 */
WEFT_API const weft_compile_option_t *weft_compile_option(size_t index);
/**
 * The help text of an option with its choices, its default, and the options that it implies, needs
 * and excludes.
 * @param[in]  index  as for weft_compile_option
 * @param[in]  prefix before names of options: "--" writes them as the command does, "" as keywords
 * @param[out] out    [bytes] the text, cut where it is too long; "" for an index after the last one
 * @param[in]  bytes  length of out
 */
WEFT_API void weft_compile_option_help(size_t index, const char *prefix, char *out, size_t bytes);
/**
 * Sets a field from text, as the command does for `--name text`.
 * @param[in,out] params the parameters; keeps a pointer to text for TEXT and PATH
 * @param[in]     name   weft_compile_option_t::name
 * @param[in]     text   the value; NULL with a FLAG: 1
 * @return WEFT_ERR_NOT_FOUND for an unknown name, WEFT_ERR_UNSUPPORTED for an option that is not
 *         text or a number, WEFT_ERR_INVALID_ARGUMENT naming the field and what is allowed
 */
WEFT_API weft_status_t weft_compile_option_set(weft_compile_params_t *params, const char *name,
                                               const char *text);
/**
 * Compiles a model: imports, differentiates, inserts and fuses collectives, assigns streams and
 * events, plans memory and verifies. Deterministic: the same file and parameters give the same
 * structure digest everywhere. With infer the inputs, outputs and collectives are those of the
 * graph, and weft_session_step runs it. A message about models of several ranks that must be equal, and
 * are not, names both sides. Local; any thread.
 * @param[in]  params   the model and options
 * @param[out] out_plan the plan, with one reference; the caller releases it
 * @return WEFT_ERR_NOT_FOUND, WEFT_ERR_FORMAT, WEFT_ERR_UNSUPPORTED naming operator and node,
 *         WEFT_ERR_INVALID_ARGUMENT naming the field (weft_last_error_field), WEFT_ERR_NO_MEMORY
 */
WEFT_API weft_status_t weft_compile(const weft_compile_params_t *params, weft_plan_t **out_plan);
/** A pass of the compiler. */
typedef struct weft_pass_info {
    const char *name;    /**< "differentiate", for example */
    const char *summary; /**< what it does, in a few words */
    int training;        /**< 1: runs in training */
    int inference;       /**< 1: runs in inference */
} weft_pass_info_t;

/** Called for a pass. A return value other than 0 ends the visit. */
typedef int (*weft_pass_visit_fn)(const weft_pass_info_t *pass, void *user);
/**
 * Calls visit for all passes of weft_compile, in the order in which they run. Whether a pass runs
 * also depends on the parameters.
 * @param[in] visit called on the calling thread
 * @param[in] user  passed to visit
 */
WEFT_API void weft_compile_visit_passes(weft_pass_visit_fn visit, void *user);

/**
 * Checks the syntax of a bucket policy. Policies:
 * - "auto[:CAP]": the fewest buckets whose communication ends within 0.1 % of the optimum, by
 *   predicted times
 * - "mgwfbp[:CAP]": the merge rule MG-WFBP (S. Shi, X. Chu, B. Li, "MG-WFBP: Efficient Data
 *   Communication for Distributed Synchronous SGD Algorithms", 2019)
 * - "bytes:25M[,time:5ms]": at most this size and this time
 * - "index:0,4,9": positions, in order of readiness, of the last gradient of every bucket but the
 *   last
 * - "percent:60,40": shares of bytes that sum to 100
 * - "one", "none": one bucket; one per gradient
 *
 * CAP and sizes take K, M and G (powers of 1024).
 * @param[in] policy the policy
 * @return WEFT_ERR_INVALID_ARGUMENT naming the fault
 */
WEFT_API weft_status_t weft_bucket_policy_check(const char *policy);

/**
 * Examines a model before it is compiled: operators (definition, gradient, kernel), inputs as
 * declared and as compiled, and whether weft_compile accepts it with these parameters or why not.
 * Local.
 * @param[in]  params       as for weft_compile; world_size 0 means 2
 * @param[in]  format       form of the report
 * @param[out] out_text     the report; the caller frees it
 * @param[out] out_compiles 1 if weft_compile accepts the model, else 0
 * @return an error only if the file cannot be read as a model
 */
WEFT_API weft_status_t weft_model_check(const weft_compile_params_t *params, weft_format_t format,
                                        char **out_text, int *out_compiles);

/** A trained tensor for weft_model_save. */
typedef struct weft_named_tensor {
    const char *name;        /**< name of the parameter */
    weft_tensor_desc_t desc; /**< plain layout; desc.data holds the contents */
} weft_named_tensor_t;

/**
 * Writes the evaluation model of a plan with given weights as an ONNX file: all or nothing. Local.
 * @param[in] plan         a training plan
 * @param[in] tensors      [tensor_count] every trained parameter once; NULL if there are none
 * @param[in] tensor_count length of tensors
 * @param[in] path         the file
 * @return WEFT_ERR_UNSUPPORTED above 2 GiB, WEFT_ERR_STATE if the plan has no evaluation model,
 *         WEFT_ERR_INVALID_ARGUMENT for a missing or unknown tensor, WEFT_ERR_SYSTEM
 */
WEFT_API weft_status_t weft_model_save(const weft_plan_t *plan, const weft_named_tensor_t *tensors,
                                       size_t tensor_count, const char *path);
WEFT_EXTERN_C_END

#endif
