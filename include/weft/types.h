/* SPDX-License-Identifier: Apache-2.0 */
/** @file types.h Element types, reductions, tensor and node descriptions, allocator, log callback. */
#ifndef WEFT_TYPES_H
#define WEFT_TYPES_H

#include <stddef.h>
#include <stdint.h>

#include <weft/attributes.h>
#include <weft/status.h>

#define WEFT_MAX_DIMS 8

/* name, value, bytes per element, text, ONNX TensorProto.DataType */
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

typedef enum weft_dtype {
    WEFT_DTYPE_NONE = 0, /**< no tensor: an optional input or output that is absent */
#define WEFT_DTYPE_ENUM(name, value, bytes, text, onnx) WEFT_DTYPE_##name = (value),
    WEFT_DTYPE_MAP(WEFT_DTYPE_ENUM)
#undef WEFT_DTYPE_ENUM
} weft_dtype_t;

#define WEFT_DTYPE_BIT(dtype) (1u << (dtype))

typedef enum weft_reduction {
    WEFT_SUM = 0,
    WEFT_AVG = 1, /**< divides once, at the end, in the accumulation type */
    WEFT_PROD = 2,
    WEFT_MIN = 3,
    WEFT_MAX = 4,
} weft_reduction_t;

/** How the elements of a rank-4 tensor [N, C, H, W] lie in memory; dims are always in NCHW order. */
typedef enum weft_layout {
    WEFT_LAYOUT_PLAIN = 0,         /**< row-major, the last dimension is contiguous */
    WEFT_LAYOUT_CHANNELS_LAST = 1, /**< rank 4 only: N, H, W, C with C contiguous */
} weft_layout_t;

/** Type, shape and, where it is known, the contents of one tensor. */
typedef struct weft_tensor_desc {
    weft_dtype_t dtype;   /**< WEFT_DTYPE_NONE: the tensor is absent */
    weft_layout_t layout; /**< how it lies in memory */
    uint32_t rank;        /**< number of dimensions, at most WEFT_MAX_DIMS; 0 is a scalar */
    int64_t dims[WEFT_MAX_DIMS]; /**< -1: unknown or symbolic */
    const void *data; /**< contents (plain layout, may be unaligned), or NULL when not constant */
} weft_tensor_desc_t;

typedef enum weft_attr_type {
    WEFT_ATTR_INT = 1,
    WEFT_ATTR_FLOAT = 2,
    WEFT_ATTR_STRING = 3,
    WEFT_ATTR_INTS = 4,
    WEFT_ATTR_FLOATS = 5,
    WEFT_ATTR_STRINGS = 6,
    WEFT_ATTR_TENSOR = 7, /**< a constant, in tensor */
} weft_attr_type_t;

/** One attribute of a node; only the fields of its type are set. */
typedef struct weft_attr {
    const char *name;
    weft_attr_type_t type;
    int64_t i;
    float f;
    const char *s;
    size_t count; /**< elements of ints, floats or strings */
    const int64_t *ints;
    const float *floats;
    const char *const *strings;
    const weft_tensor_desc_t *tensor;
} weft_attr_t;

/** One node as shape rules, cost rules and kernels see it. Everything is borrowed. */
typedef struct weft_node_desc {
    const char *domain; /**< "" is ai.onnx */
    const char *op;
    int32_t version;  /**< opset version of the domain */
    const char *name; /**< for messages */
    uint32_t input_count;
    const weft_tensor_desc_t *inputs;
    uint32_t output_count;
    weft_tensor_desc_t *outputs; /**< written by shape rules, read by all others */
    uint32_t attr_count;
    const weft_attr_t *attrs;
} weft_node_desc_t;

/** Where host memory comes from. All three are called from any thread. */
typedef struct weft_allocator {
    void *(*alloc)(void *user, size_t bytes); /**< NULL when there is none */
    void *(*realloc)(void *user, void *ptr, size_t old_bytes, size_t bytes);
    void (*free)(void *user, void *ptr);
    void *user;
} weft_allocator_t;

typedef enum weft_log_level {
    WEFT_LOG_ERROR = 0, /**< cannot continue */
    WEFT_LOG_WARN = 1,  /**< continues */
    WEFT_LOG_INFO = 2,
    WEFT_LOG_DEBUG = 3, /**< per object */
    WEFT_LOG_TRACE = 4, /**< per operation */
} weft_log_level_t;

/** Receives one line without a newline; called from any thread. */
typedef void (*weft_log_fn)(void *user, weft_log_level_t level, const char *line);

WEFT_EXTERN_C_BEGIN
/** @return bytes per element, 0 for WEFT_DTYPE_NONE or an unknown value. */
WEFT_API size_t weft_dtype_size_bytes(weft_dtype_t dtype);
/** @return "f32" and so on; "none" for anything unknown. */
WEFT_API const char *weft_dtype_name(weft_dtype_t dtype);
/** @return the type called name, or WEFT_DTYPE_NONE. */
WEFT_API weft_dtype_t weft_dtype_from_name(const char *name);
/** @return "sum", "avg", "prod", "min", "max", or "unknown". */
WEFT_API const char *weft_reduction_name(weft_reduction_t reduction);
/** @return the number of elements; -1 if a dimension is unknown or the product overflows. */
WEFT_API int64_t weft_tensor_elem_count(const weft_tensor_desc_t *desc);
/** @return the attribute called name, or NULL. */
WEFT_API const weft_attr_t *weft_node_attr(const weft_node_desc_t *node, const char *name);
/** @return the integer attribute called name, or otherwise. */
WEFT_API int64_t weft_node_attr_int(const weft_node_desc_t *node, const char *name, int64_t otherwise);
/** @return the float attribute called name, or otherwise. */
WEFT_API float weft_node_attr_float(const weft_node_desc_t *node, const char *name, float otherwise);
/** @return the string attribute called name, or otherwise. */
WEFT_API const char *weft_node_attr_string(const weft_node_desc_t *node, const char *name,
                                           const char *otherwise);
WEFT_EXTERN_C_END

#endif
