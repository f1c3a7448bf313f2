/* SPDX-License-Identifier: Apache-2.0 */
/* Helpers of the shape and cost rules; kernels use the window and broadcast parts too. */
#ifndef WEFT_OPS_OP_INFER_H
#define WEFT_OPS_OP_INFER_H

#include <stdbool.h>

#include <weft/registry.h>

#define WEFTI_MAX_SPATIAL 3 /* windows have one to three spatial dimensions */

#define WEFTI_BIT_FLOATS                                                                           \
    (WEFT_DTYPE_BIT(WEFT_DTYPE_F64) | WEFT_DTYPE_BIT(WEFT_DTYPE_F32) |                             \
     WEFT_DTYPE_BIT(WEFT_DTYPE_F16) | WEFT_DTYPE_BIT(WEFT_DTYPE_BF16))
#define WEFTI_BIT_SIGNED                                                                           \
    (WEFT_DTYPE_BIT(WEFT_DTYPE_I64) | WEFT_DTYPE_BIT(WEFT_DTYPE_I32) |                             \
     WEFT_DTYPE_BIT(WEFT_DTYPE_I16) | WEFT_DTYPE_BIT(WEFT_DTYPE_I8))
#define WEFTI_BIT_UNSIGNED                                                                         \
    (WEFT_DTYPE_BIT(WEFT_DTYPE_U64) | WEFT_DTYPE_BIT(WEFT_DTYPE_U32) |                             \
     WEFT_DTYPE_BIT(WEFT_DTYPE_U16) | WEFT_DTYPE_BIT(WEFT_DTYPE_U8))
#define WEFTI_BIT_NUMBERS (WEFTI_BIT_FLOATS | WEFTI_BIT_SIGNED | WEFTI_BIT_UNSIGNED)
#define WEFTI_BIT_ALL (WEFTI_BIT_NUMBERS | WEFT_DTYPE_BIT(WEFT_DTYPE_BOOL))

#define WEFTI_IN_PLACE_NONE                                                                        \
    {                                                                                              \
        -1, -1, -1, -1                                                                             \
    }

/* Input index, or NULL when it is absent. */
const weft_tensor_desc_t *wefti_infer_input(const weft_node_desc_t *node, uint32_t index);
/* The first count inputs are there with sane ranks and dimensions. */
weft_status_t wefti_infer_need(const weft_node_desc_t *node, uint32_t count);
/* Sets output index; nothing happens when the node has fewer outputs. */
void wefti_infer_set(weft_node_desc_t *node, uint32_t index, weft_dtype_t dtype, uint32_t rank,
                     const int64_t *dims);
/* Output index gets type and shape of like. */
void wefti_infer_set_like(weft_node_desc_t *node, uint32_t index, const weft_tensor_desc_t *like);
/* The rule of element-wise operators: output 0 is like input 0. */
weft_status_t wefti_infer_same(weft_node_desc_t *node);
/* Is that the type of a parameter or a statistic of x: the type of x, or f32 where that is half? */
bool wefti_infer_parameter_type(const weft_tensor_desc_t *x, weft_dtype_t dtype);
/* Both types are equal, and so are all dimensions that are known. */
weft_status_t wefti_infer_match(const weft_node_desc_t *node, uint32_t a, uint32_t b);
/* *out = a when equal or b is unknown, b when a is unknown; false when they contradict. */
bool wefti_dim_merge(int64_t a, int64_t b, int64_t *out);
/* Numpy broadcasting of two shapes. */
weft_status_t wefti_infer_broadcast(const weft_tensor_desc_t *a, const weft_tensor_desc_t *b,
                                    uint32_t *out_rank, int64_t *out_dims);
/* The index of axis in [-rank, rank); what: its name, for the error. */
weft_status_t wefti_infer_axis(int64_t axis, uint32_t rank, const char *what, uint32_t *out_axis);
/* The dimensions in the list axes, one bit each: input 1, which must be constant, or an attribute. */
weft_status_t wefti_infer_axes(const weft_node_desc_t *node, uint32_t rank, bool from_input,
                               uint32_t *out_mask, bool *out_given);
/* True when desc is a constant list (or scalar) of i64 or i32 of at most max elements. */
bool wefti_const_ints(const weft_tensor_desc_t *desc, int64_t *out, uint32_t max,
                      uint32_t *out_count);
/* Reads a list attribute: absent gives *out_count = 0; longer than max is an error. */
weft_status_t wefti_attr_ints(const weft_node_desc_t *node, const char *name, int64_t *out,
                              uint32_t max, uint32_t *out_count);
/* Elements as a double for cost rules; unknown dimensions count as one. */
double wefti_cost_elems(const weft_tensor_desc_t *desc);
/* Bytes of all inputs and outputs once. */
double wefti_cost_bytes(const weft_node_desc_t *node);
/* One operation per output element. */
void wefti_cost_elementwise(const weft_node_desc_t *node, double *out_flops, double *out_bytes);
/* Moves data only. */
void wefti_cost_copy(const weft_node_desc_t *node, double *out_flops, double *out_bytes);
/* Costs nothing. */
void wefti_cost_free(const weft_node_desc_t *node, double *out_flops, double *out_bytes);

/* The sliding window of convolutions and poolings, everything resolved. */
typedef struct wefti_window {
    uint32_t spatial; /* dimensions after N and C */
    int64_t kernel[WEFTI_MAX_SPATIAL], stride[WEFTI_MAX_SPATIAL], dilation[WEFTI_MAX_SPATIAL];
    int64_t pad_begin[WEFTI_MAX_SPATIAL], pad_end[WEFTI_MAX_SPATIAL];
    int64_t out[WEFTI_MAX_SPATIAL]; /* -1 where the input is unknown */
} wefti_window_t;
/*
 * Reads kernel_shape, strides, dilations, pads, auto_pad and ceil_mode for an input of shape
 * in[0..rank) (N, C, spatial...). kernel: spatial kernel sizes from the weights, or NULL:
 * kernel_shape is required.
 */
weft_status_t wefti_window_resolve(const weft_node_desc_t *node, uint32_t rank, const int64_t *in,
                                   const int64_t *kernel, wefti_window_t *out_window);

/* The same of ConvTranspose: out is the larger side, pads are taken from it. A convolution of the
 * output with these pads has the shape of the input. */
weft_status_t wefti_window_resolve_transposed(const weft_node_desc_t *node, uint32_t rank,
                                              const int64_t *in, const int64_t *kernel,
                                              wefti_window_t *out_window);

#define WEFTI_CONV_ATTRS 4
/* group, strides, dilations and pads as attributes, which point to window and pads. Returns how
 * many. */
uint32_t wefti_window_conv_attrs(const wefti_window_t *window, int64_t group, int64_t *pads,
                                 weft_attr_t *attrs);

/* The pads of a Pad node, begins then ends, two per dimension; *out_known is false when they are
 * not constant. */
weft_status_t wefti_pad_amounts(const weft_node_desc_t *node, int64_t *out_pads, bool *out_known);

/* The range of a Slice node in each dimension of input 0, as in numpy. */
typedef struct wefti_slice_range {
    int64_t first[WEFT_MAX_DIMS], step[WEFT_MAX_DIMS], size[WEFT_MAX_DIMS];
    bool known; /* false: not constant, the sizes come later; size is -1 */
} wefti_slice_range_t;
weft_status_t wefti_slice_resolve(const weft_node_desc_t *node, wefti_slice_range_t *out_slice);
/* The shape that input index gives; -1 where it is not constant. */
weft_status_t wefti_shape_input(const weft_node_desc_t *node, uint32_t index, int64_t *out_dims,
                                uint32_t *out_rank);
#define WEFTI_SPLIT_MAX 255
/* The axis of a Split node, and the size of each output along it; -1: not known. */
weft_status_t wefti_split_sizes(const weft_node_desc_t *node, uint32_t *out_axis,
                                int64_t *out_sizes);

/* The sizes and scales of a Resize or Upsample node whose X is input x_input. */
typedef struct wefti_resize {
    int64_t size[WEFT_MAX_DIMS]; /* of the result; -1: not known */
    double scale[WEFT_MAX_DIMS];
    bool known; /* false: scales or sizes are not constant */
} wefti_resize_t;
weft_status_t wefti_resize_resolve(const weft_node_desc_t *node, uint32_t x_input,
                                   wefti_resize_t *out);

/* Shape rules that gradient operators share with their forward operators. */
weft_status_t wefti_infer_pool(weft_node_desc_t *node);
weft_status_t wefti_infer_batch_norm(weft_node_desc_t *node);

weft_status_t wefti_infer_reduce(weft_node_desc_t *node);

/* The dimensions that a ReduceSum or ReduceMean reduces, one bit each. */
weft_status_t wefti_reduce_axes(const weft_node_desc_t *node, uint32_t *out_mask);

/* Softmax of opset 13 on, or the older form that sees the input as a matrix split at axis. */
weft_status_t wefti_softmax_axis(const weft_node_desc_t *node, int64_t *out_outer,
                                 int64_t *out_length, int64_t *out_inner);

/*
 * op_defs_shard.c: tensors side by side as one flat range that divides into a shard for each rank.
 * Attribute flat is the multiple of bytes at which every tensor begins; the range is padded to a
 * multiple of flat times the number of ranks (attribute group_size).
 */
#define WEFTI_ATTR_FLAT                                                                            \
    {                                                                                              \
        .name = "flat", .type = WEFT_ATTR_TYPE_INT,                                                \
        .doc = "tensors form one flat range, each aligned to this many bytes; 0: apart"            \
    }
#define WEFTI_ATTR_PARTS                                                                           \
    {                                                                                              \
        .name = "parts", .type = WEFT_ATTR_TYPE_INT, .default_i = 1,                               \
        .doc = "pieces of the tensor that are transferred one after another"                       \
    }
/* Output index is a shard of inputs first up to first + count. */
weft_status_t wefti_infer_shard(weft_node_desc_t *node, uint32_t first, uint32_t count,
                                uint32_t index);
/* Input 0 is a shard of the other inputs; output i is like input i + 1. */
weft_status_t wefti_infer_flat_gather(weft_node_desc_t *node);

/* op_rules.c: types of the outputs, by the definition's function or by its rules; what an execution
 * costs. */
weft_status_t wefti_op_infer(const weft_op_def_t *def, weft_node_desc_t *node);
void wefti_op_cost(const weft_op_def_t *def, const weft_node_desc_t *node, double *out_flops,
                   double *out_bytes);

/* The facts of a row. */
#define WEFTI_FACTS(...)                                                                           \
    .facts = &(const weft_op_facts_t)                                                              \
    {                                                                                              \
        .struct_size = sizeof(weft_op_facts_t), __VA_ARGS__                                        \
    }

#define WEFTI_COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* A family's rows; op_defs.c joins them. */
typedef struct wefti_op_family {
    const weft_op_def_t *defs;
    size_t count;
} wefti_op_family_t;
wefti_op_family_t wefti_op_defs_math(void);
wefti_op_family_t wefti_op_defs_fused(void);
wefti_op_family_t wefti_op_defs_reduce(void);
wefti_op_family_t wefti_op_defs_norm(void);
wefti_op_family_t wefti_op_defs_axis(void);
wefti_op_family_t wefti_op_defs_transposed(void);
wefti_op_family_t wefti_op_defs_resize(void);
wefti_op_family_t wefti_op_defs_composed(void);
wefti_op_family_t wefti_op_defs_contrib(void);
wefti_op_family_t wefti_op_defs_training(void);
wefti_op_family_t wefti_op_defs_recurrent(void);
wefti_op_family_t wefti_op_defs_nn(void);
wefti_op_family_t wefti_op_defs_pool(void);
wefti_op_family_t wefti_op_defs_shape(void);
wefti_op_family_t wefti_op_defs_move(void);
wefti_op_family_t wefti_op_defs_grad(void);
wefti_op_family_t wefti_op_defs_optimizer(void);
wefti_op_family_t wefti_op_defs_accumulate(void);
wefti_op_family_t wefti_op_defs_pack(void);
wefti_op_family_t wefti_op_defs_collective(void);
wefti_op_family_t wefti_op_defs_microsoft(void);
wefti_op_family_t wefti_op_defs_shard(void);
wefti_op_family_t wefti_op_defs_logic(void);
wefti_op_family_t wefti_op_defs_index(void);
wefti_op_family_t wefti_op_defs_create(void);
wefti_op_family_t wefti_op_defs_rows(void);
wefti_op_family_t wefti_op_defs_unary(void);

#endif
