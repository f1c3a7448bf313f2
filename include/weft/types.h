/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file types.h
 * Element types, collectives, reductions and their order, tensor and node descriptions, allocator,
 * log callback.
 *
 * Structs that begin with struct_size. It is the size of the struct that the caller was compiled
 * with; the struct's _INIT macro sets it. Library and caller may be of different versions:
 * - Parameters: a shorter struct has the defaults for what it lacks. A longer one is valid if the
 *   rest is zero, else the call returns WEFT_ERR_UNSUPPORTED.
 * - Outputs: the library writes the fields that both sides have. struct_size and fields that the
 *   library does not have stay as they are.
 * - A struct_size that no version has, such as 0, is WEFT_ERR_INVALID_ARGUMENT.
 */
#ifndef WEFT_TYPES_H
#define WEFT_TYPES_H

#include <stddef.h>
#include <stdint.h>

#include <weft/attributes.h>
#include <weft/deprecated_names.h>
#include <weft/status.h>

/** Largest number of dimensions of a tensor. */
#define WEFT_MAX_DIMS 8

/** All element types: name, value, bytes per element, text, ONNX TensorProto.DataType. */
#define WEFT_DTYPE_MAP(X)                                                                          \
    X(F64, 1, 8, "f64", 11)                                                                        \
    X(F32, 2, 4, "f32", 1)                                                                         \
    X(F16, 3, 2, "f16", 10)                                                                        \
    X(BF16, 4, 2, "bf16", 16)                                                                      \
    X(I64, 5, 8, "i64", 7)                                                                         \
    X(I32, 6, 4, "i32", 6)                                                                         \
    X(I16, 7, 2, "i16", 5)                                                                         \
    X(I8, 8, 1, "i8", 3)                                                                           \
    X(U64, 9, 8, "u64", 13)                                                                        \
    X(U32, 10, 4, "u32", 12)                                                                       \
    X(U16, 11, 2, "u16", 4)                                                                        \
    X(U8, 12, 1, "u8", 2)                                                                          \
    X(BOOL, 13, 1, "bool", 9)

/** Type of the elements of a tensor. Equivalent to: MPI_Datatype, ncclDataType_t. */
typedef enum weft_dtype {
    WEFT_DTYPE_NONE = 0, /**< no tensor: an optional input or output that is absent */
/** One value of WEFT_DTYPE_MAP. */
#define WEFT_DTYPE_ENUM(name, value, bytes, text, onnx) WEFT_DTYPE_##name = (value), /**< text */
    WEFT_DTYPE_MAP(WEFT_DTYPE_ENUM)
#undef WEFT_DTYPE_ENUM
} weft_dtype_t;

/** Bit of an element type in a mask of types (weft_op_def_t.dtypes). */
#define WEFT_DTYPE_BIT(dtype) (1u << (dtype))

/** How a reducing collective combines elements. Equivalent to: MPI_Op, ncclRedOp_t. */
typedef enum weft_reduction {
    WEFT_REDUCTION_SUM = 0, /**< sum */
    WEFT_REDUCTION_AVG =
        1, /**< sum divided by the number of ranks, once, in the accumulation type */
    WEFT_REDUCTION_PROD = 2, /**< product */
    WEFT_REDUCTION_MIN = 3,  /**< minimum */
    WEFT_REDUCTION_MAX = 4,  /**< maximum */
} weft_reduction_t;

/** What a rank's send or receive buffer holds. */
typedef enum weft_extent {
    WEFT_EXTENT_NOTHING = 0, /**< no elements */
    WEFT_EXTENT_VECTOR = 1,  /**< count elements, which an algorithm may cut anywhere */
    WEFT_EXTENT_BLOCK = 2,   /**< the rank's own block: count elements, or counts[rank] */
    WEFT_EXTENT_BLOCKS = 3,  /**< a block for or from each rank, in rank order */
} weft_extent_t;

/** The ranks that have a buffer. */
typedef enum weft_holder {
    WEFT_HOLDER_ALL = 0,  /**< all ranks */
    WEFT_HOLDER_ROOT = 1, /**< the root; SendRecv: the sender */
    WEFT_HOLDER_PEER = 2, /**< SendRecv: the receiver */
} weft_holder_t;

/**
 * All collectives, one row each: name, value, operator of the domain weft, function without weft_;
 * what the send buffer holds and who has one, the same of the receive buffer; 1 if it reduces, 1 if
 * it takes counts per rank; the names in MPI and NCCL.
 */
#define WEFT_COLLECTIVE_MAP(X)                                                                     \
    X(ALL_REDUCE, 1, "AllReduce", "all_reduce", VECTOR, ALL, VECTOR, ALL, 1, 0,                    \
      "MPI_Allreduce, ncclAllReduce")                                                              \
    X(BROADCAST, 2, "Broadcast", "broadcast", VECTOR, ROOT, VECTOR, ALL, 0, 0,                     \
      "MPI_Bcast, ncclBroadcast")                                                                  \
    X(REDUCE_SCATTER, 3, "ReduceScatter", "reduce_scatter", BLOCKS, ALL, BLOCK, ALL, 1, 0,         \
      "MPI_Reduce_scatter_block, ncclReduceScatter")                                               \
    X(ALL_GATHER, 4, "AllGather", "all_gather", BLOCK, ALL, BLOCKS, ALL, 0, 0,                     \
      "MPI_Allgather, ncclAllGather")                                                              \
    X(REDUCE, 5, "Reduce", "reduce", VECTOR, ALL, VECTOR, ROOT, 1, 0, "MPI_Reduce, ncclReduce")    \
    X(GATHER, 6, "Gather", "gather", BLOCK, ALL, BLOCKS, ROOT, 0, 0, "MPI_Gather, ncclGather")     \
    X(SCATTER, 7, "Scatter", "scatter", BLOCKS, ROOT, BLOCK, ALL, 0, 0,                            \
      "MPI_Scatter, ncclScatter")                                                                  \
    X(ALL_TO_ALL, 8, "AllToAll", "all_to_all", BLOCKS, ALL, BLOCKS, ALL, 0, 0,                     \
      "MPI_Alltoall, ncclAlltoAll")                                                                \
    X(ALL_GATHER_V, 9, "AllGatherV", "all_gather_v", BLOCK, ALL, BLOCKS, ALL, 0, 1,                \
      "MPI_Allgatherv")                                                                            \
    X(REDUCE_SCATTER_V, 10, "ReduceScatterV", "reduce_scatter_v", BLOCKS, ALL, BLOCK, ALL, 1, 1,   \
      "MPI_Reduce_scatter")                                                                        \
    X(ALL_TO_ALL_V, 11, "AllToAllV", "all_to_all_v", BLOCKS, ALL, BLOCKS, ALL, 0, 1,               \
      "MPI_Alltoallv")                                                                             \
    X(SEND_RECV, 12, "SendRecv", "send_recv", VECTOR, ROOT, VECTOR, PEER, 0, 0,                    \
      "MPI_Send, MPI_Recv, ncclSend, ncclRecv")                                                    \
    X(BARRIER, 13, "Barrier", "barrier", NOTHING, ALL, NOTHING, ALL, 0, 0, "MPI_Barrier")

/** A collective operator. */
typedef enum weft_collective {
    WEFT_COLLECTIVE_NONE = 0, /**< no collective */
/** One value of WEFT_COLLECTIVE_MAP. */
#define WEFT_COLLECTIVE_ENUM(name, value, ...) WEFT_COLLECTIVE_##name = (value),
    WEFT_COLLECTIVE_MAP(WEFT_COLLECTIVE_ENUM)
#undef WEFT_COLLECTIVE_ENUM
} weft_collective_t;

/** The order in which a group's reductions combine ranks; part of the bits of results. */
typedef enum weft_order {
    /** In-order binary tree over ranks, split at the largest power of two. */
    WEFT_ORDER_TREE = 0,
    /** Such a tree inside each block of consecutive ranks, then over the blocks. */
    WEFT_ORDER_BLOCKS = 1,
    /** The fastest order; bits depend on the algorithm and on where ranks are. */
    WEFT_ORDER_ANY = 2,
} weft_order_t;

/** Memory layout of a rank-4 tensor [N, C, H, W]; its dims are always in NCHW order. */
typedef enum weft_layout {
    WEFT_LAYOUT_PLAIN = 0,         /**< row-major, the last dimension is contiguous */
    WEFT_LAYOUT_CHANNELS_LAST = 1, /**< rank 4 only: N, H, W, C with C contiguous */
} weft_layout_t;

/** Type, shape and, if known, the contents of one tensor. */
typedef struct weft_tensor_desc {
    weft_dtype_t dtype;          /**< WEFT_DTYPE_NONE: the tensor is absent */
    weft_layout_t layout;        /**< order of the elements in memory */
    uint32_t rank;               /**< number of dimensions, at most WEFT_MAX_DIMS; 0: a scalar */
    int64_t dims[WEFT_MAX_DIMS]; /**< elements along each dimension; -1: unknown or symbolic */
    const void *data;            /**< contents, plain layout, any alignment; NULL: not constant */
} weft_tensor_desc_t;

/** Type of an attribute. The values are ours, not ONNX's. */
typedef enum weft_attr_type {
    WEFT_ATTR_TYPE_INT = 1,     /**< one integer, in weft_attr_t.i */
    WEFT_ATTR_TYPE_FLOAT = 2,   /**< one float, in weft_attr_t.f */
    WEFT_ATTR_TYPE_STRING = 3,  /**< one string, in weft_attr_t.s */
    WEFT_ATTR_TYPE_INTS = 4,    /**< a list of integers, in weft_attr_t.ints */
    WEFT_ATTR_TYPE_FLOATS = 5,  /**< a list of floats, in weft_attr_t.floats */
    WEFT_ATTR_TYPE_STRINGS = 6, /**< a list of strings, in weft_attr_t.strings */
    WEFT_ATTR_TYPE_TENSOR = 7,  /**< a constant, in weft_attr_t.tensor */
} weft_attr_type_t;

/** One attribute of a node. Only the fields of its type are set. */
typedef struct weft_attr {
    const char *name;                 /**< unique in the node */
    weft_attr_type_t type;            /**< which of the following fields are set */
    int64_t i;                        /**< value of WEFT_ATTR_TYPE_INT */
    float f;                          /**< value of WEFT_ATTR_TYPE_FLOAT */
    const char *s;                    /**< value of WEFT_ATTR_TYPE_STRING */
    size_t count;                     /**< elements of ints, floats or strings */
    const int64_t *ints;              /**< [count] values of WEFT_ATTR_TYPE_INTS */
    const float *floats;              /**< [count] values of WEFT_ATTR_TYPE_FLOATS */
    const char *const *strings;       /**< [count] values of WEFT_ATTR_TYPE_STRINGS */
    const weft_tensor_desc_t *tensor; /**< value of WEFT_ATTR_TYPE_TENSOR */
} weft_attr_t;

/** One node as shape rules, cost rules and kernels see it. All pointers are borrowed. */
typedef struct weft_node_desc {
    const char *domain;               /**< domain of the operator; "" is ai.onnx */
    const char *op;                   /**< name of the operator */
    int32_t version;                  /**< opset version of the domain */
    const char *name;                 /**< name of the node, for messages */
    uint32_t input_count;             /**< length of inputs */
    const weft_tensor_desc_t *inputs; /**< [input_count] */
    uint32_t output_count;            /**< length of outputs */
    weft_tensor_desc_t *outputs;      /**< [output_count] written by shape rules, read by others */
    uint32_t attr_count;              /**< length of attrs */
    const weft_attr_t *attrs;         /**< [attr_count] */
} weft_node_desc_t;

/** Source of host memory. Any thread may call the functions. */
typedef struct weft_allocator {
    /** Allocates bytes; returns NULL if there is no memory. */
    void *(*alloc)(void *user, size_t bytes);
    /** Resizes an allocation of old_bytes; returns NULL, with ptr intact, if there is no memory. */
    void *(*realloc)(void *user, void *ptr, size_t old_bytes, size_t bytes);
    /** Frees an allocation; ptr may be NULL. */
    void (*free)(void *user, void *ptr);
    void *user; /**< first argument of the functions */
} weft_allocator_t;

/** Instruction set of kernels and reductions. */
typedef enum weft_isa {
    WEFT_ISA_DEFAULT = -1, /**< the setting WEFT_ISA: the best that the CPU has */
    WEFT_ISA_PORTABLE = 0, /**< what every CPU has */
    WEFT_ISA_AVX2 = 1,     /**< AVX2 and FMA */
    WEFT_ISA_AVX512 = 2,   /**< AVX-512 F */
} weft_isa_t;

/** Form of a report. */
typedef enum weft_format {
    WEFT_FORMAT_TEXT = 0, /**< text for people */
    WEFT_FORMAT_JSON = 1, /**< one JSON object with stable keys */
} weft_format_t;

/** Severity of a log line. */
typedef enum weft_log_level {
    WEFT_LOG_LEVEL_ERROR = 0, /**< the operation cannot continue */
    WEFT_LOG_LEVEL_WARN = 1,  /**< the operation continues */
    WEFT_LOG_LEVEL_INFO = 2,  /**< one line per decision that a user may ask about */
    WEFT_LOG_LEVEL_DEBUG = 3, /**< one line per object */
    WEFT_LOG_LEVEL_TRACE = 4, /**< one line per operation */
} weft_log_level_t;

/** Receives one log line without a newline. Called from any thread. */
typedef void (*weft_log_fn)(void *user, weft_log_level_t level, const char *line);

WEFT_EXTERN_C_BEGIN
/**
 * Returns the size of an element. Any thread.
 * @param[in] dtype any value
 * @return bytes per element; 0 for WEFT_DTYPE_NONE and unknown values
 *
 * Equivalent to: MPI_Type_size
 */
WEFT_API size_t weft_dtype_size_bytes(weft_dtype_t dtype);
/**
 * Returns the name of an element type. Any thread.
 * @param[in] dtype any value
 * @return such as "f32"; "none" for WEFT_DTYPE_NONE and unknown values; static storage
 */
WEFT_API const char *weft_dtype_name(weft_dtype_t dtype);
/**
 * Finds an element type by its name. Any thread.
 * @param[in] name such as "f32"
 * @return the type; WEFT_DTYPE_NONE if the name is unknown or NULL
 */
WEFT_API weft_dtype_t weft_dtype_from_name(const char *name);
/**
 * Returns the name of a reduction. Any thread.
 * @param[in] reduction any value
 * @return "sum", "avg", "prod", "min", "max" or "unknown"; static storage
 */
WEFT_API const char *weft_reduction_name(weft_reduction_t reduction);
/**
 * Returns the name of a collective. Any thread.
 * @param[in] op any value
 * @return such as "AllReduce", or "unknown"; static storage
 */
WEFT_API const char *weft_collective_name(weft_collective_t op);
/**
 * Returns the number of elements of a tensor. Any thread.
 * @param[in] desc type and shape
 * @return the product of the dimensions; -1 if a dimension is unknown, the product overflows or
 *         desc is NULL
 */
WEFT_API int64_t weft_tensor_elem_count(const weft_tensor_desc_t *desc);
/**
 * Finds an attribute of a node. Any thread.
 * @param[in] node the node
 * @param[in] name name of the attribute
 * @return the attribute, borrowed from node; NULL if it is absent or an argument is NULL
 */
WEFT_API const weft_attr_t *weft_node_attr(const weft_node_desc_t *node, const char *name);
/**
 * Reads an integer attribute of a node. Any thread.
 * @param[in] node      the node
 * @param[in] name      name of the attribute
 * @param[in] otherwise the default
 * @return its value; otherwise if it is absent, has another type, or node or name is NULL
 */
WEFT_API int64_t weft_node_attr_int(const weft_node_desc_t *node, const char *name,
                                    int64_t otherwise);
/**
 * Reads a float attribute of a node. Any thread.
 * @param[in] node      the node
 * @param[in] name      name of the attribute
 * @param[in] otherwise the default
 * @return its value; otherwise if it is absent, has another type, or node or name is NULL
 */
WEFT_API float weft_node_attr_float(const weft_node_desc_t *node, const char *name,
                                    float otherwise);
/**
 * Reads a string attribute of a node. Any thread.
 * @param[in] node      the node
 * @param[in] name      name of the attribute
 * @param[in] otherwise the default; may be NULL
 * @return its value, borrowed from node; otherwise if it is absent, has another type, or node or
 *         name is NULL
 */
WEFT_API const char *weft_node_attr_string(const weft_node_desc_t *node, const char *name,
                                           const char *otherwise);
WEFT_EXTERN_C_END

#endif
