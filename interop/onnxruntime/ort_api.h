/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What operators.c uses of ONNX Runtime's C interface for custom operators, version 18. Its tables
 * are append-only: a function keeps its place, which the assertions below and
 * tests/python/test_onnxruntime.py check.
 */
#ifndef WEFT_INTEROP_ONNXRUNTIME_ORT_API_H
#define WEFT_INTEROP_ONNXRUNTIME_ORT_API_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

/* Version of the tables; ONNX Runtime 1.18 is the first that has it. */
#define ORT_VERSION 18
/* The first version that tells a library the execution mode of a session's options. */
#define ORT_VERSION_EXECUTION_MODE 27

enum { ORT_FAIL = 1, ORT_INVALID_ARGUMENT = 2 }; /* codes of a status */
enum { ORT_SEQUENTIAL = 0, ORT_PARALLEL = 1 };   /* execution modes */
enum { ORT_SINGLE = 0, ORT_VARIADIC = 2 };       /* inputs and outputs of an operator */
enum { ORT_MEMORY_DEFAULT = 0, ORT_ANY_TYPE = 0 };
enum { ORT_ATTRIBUTE_INT = 1, ORT_ATTRIBUTE_INTS = 2 };

typedef struct ort_status ort_status_t; /* NULL: success */
typedef struct ort_options ort_options_t;
typedef struct ort_domain ort_domain_t;
typedef struct ort_value ort_value_t;
typedef struct ort_shape ort_shape_t; /* element type and dimensions */
typedef struct ort_kernel_info ort_kernel_info_t;
typedef struct ort_kernel_context ort_kernel_context_t;
typedef struct ort_shape_context ort_shape_context_t;
typedef struct ort_attribute ort_attribute_t;
typedef struct ort_operator ort_operator_t;
typedef void (*ort_unused_fn)(void);

typedef struct ort_api {
    ort_status_t *(*create_status)(int code, const char *message);
    ort_unused_fn unused_1[25];
    ort_status_t *(*create_domain)(const char *name, ort_domain_t **out);
    ort_status_t *(*domain_add)(ort_domain_t *domain, const ort_operator_t *op);
    ort_status_t *(*options_add_domain)(ort_options_t *options, ort_domain_t *domain);
    ort_unused_fn unused_29[22];
    ort_status_t *(*value_data)(ort_value_t *value, void **out);
    ort_unused_fn unused_52[7];
    ort_status_t *(*shape_set_dims)(ort_shape_t *shape, const int64_t *dims, size_t rank);
    ort_status_t *(*shape_type)(const ort_shape_t *shape, int *out_type);
    ort_status_t *(*shape_rank)(const ort_shape_t *shape, size_t *out_rank);
    ort_status_t *(*shape_dims)(const ort_shape_t *shape, int64_t *dims, size_t rank);
    ort_unused_fn unused_63[2];
    ort_status_t *(*value_shape)(const ort_value_t *value, ort_shape_t **out);
    ort_unused_fn unused_66[19];
    ort_status_t *(*kernel_float)(const ort_kernel_info_t *info, const char *name, float *out);
    ort_status_t *(*kernel_int)(const ort_kernel_info_t *info, const char *name, int64_t *out);
    ort_status_t *(*kernel_string)(const ort_kernel_info_t *info, const char *name, char *out,
                                   size_t *size);
    ort_status_t *(*input_count)(const ort_kernel_context_t *context, size_t *out);
    ort_status_t *(*output_count)(const ort_kernel_context_t *context, size_t *out);
    ort_status_t *(*input)(const ort_kernel_context_t *context, size_t index,
                           const ort_value_t **out);
    ort_status_t *(*output)(ort_kernel_context_t *context, size_t index, const int64_t *dims,
                            size_t rank, ort_value_t **out);
    ort_unused_fn unused_92;
    void (*release_status)(ort_status_t *status);
    ort_unused_fn unused_94[5];
    void (*release_shape)(ort_shape_t *shape);
    ort_unused_fn unused_100[62];
    ort_status_t *(*kernel_floats)(const ort_kernel_info_t *info, const char *name, float *out,
                                   size_t *count);
    ort_status_t *(*kernel_ints)(const ort_kernel_info_t *info, const char *name, int64_t *out,
                                 size_t *count);
    ort_unused_fn unused_164[73];
    ort_status_t *(*has_config)(const ort_options_t *options, const char *key, int *out);
    ort_status_t *(*config)(const ort_options_t *options, const char *key, char *out, size_t *size);
    ort_unused_fn unused_239[28];
    ort_status_t *(*inferred_count)(const ort_shape_context_t *context, size_t *out);
    ort_status_t *(*inferred_input)(const ort_shape_context_t *context, size_t index,
                                    ort_shape_t **out);
    ort_status_t *(*inferred_attribute)(const ort_shape_context_t *context, const char *name,
                                        const ort_attribute_t **out);
    ort_status_t *(*infer_output)(const ort_shape_context_t *context, size_t index,
                                  const ort_shape_t *shape);
    ort_unused_fn unused_271;
    ort_status_t *(*read_attribute)(const ort_attribute_t *attribute, int type, void *data,
                                    size_t bytes, size_t *out_bytes);
    ort_unused_fn unused_273[147];
    /* From ORT_VERSION_EXECUTION_MODE on; earlier tables end before it. */
    ort_status_t *(*execution_mode)(const ort_options_t *options, int *out);
} ort_api_t;

#define ORT_PLACE(name, place)                                                                     \
    static_assert(offsetof(ort_api_t, name) == (place) * sizeof(ort_unused_fn), #name)
ORT_PLACE(create_status, 0);
ORT_PLACE(create_domain, 26);
ORT_PLACE(domain_add, 27);
ORT_PLACE(options_add_domain, 28);
ORT_PLACE(value_data, 51);
ORT_PLACE(shape_set_dims, 59);
ORT_PLACE(shape_type, 60);
ORT_PLACE(shape_rank, 61);
ORT_PLACE(shape_dims, 62);
ORT_PLACE(value_shape, 65);
ORT_PLACE(kernel_float, 85);
ORT_PLACE(kernel_int, 86);
ORT_PLACE(kernel_string, 87);
ORT_PLACE(input_count, 88);
ORT_PLACE(output_count, 89);
ORT_PLACE(input, 90);
ORT_PLACE(output, 91);
ORT_PLACE(release_status, 93);
ORT_PLACE(release_shape, 99);
ORT_PLACE(kernel_floats, 162);
ORT_PLACE(kernel_ints, 163);
ORT_PLACE(has_config, 237);
ORT_PLACE(config, 238);
ORT_PLACE(inferred_count, 267);
ORT_PLACE(inferred_input, 268);
ORT_PLACE(inferred_attribute, 269);
ORT_PLACE(infer_output, 270);
ORT_PLACE(read_attribute, 272);
ORT_PLACE(execution_mode, 420);

typedef struct ort_api_base {
    const ort_api_t *(*api)(uint32_t version); /* NULL: the library is older */
    const char *(*version)(void);              /* such as "1.18.0" */
} ort_api_base_t;

/* OrtCustomOp. Functions of a kernel receive what create_kernel has returned. */
struct ort_operator {
    uint32_t version;
    void *(*create_kernel_v1)(const ort_operator_t *op, const ort_api_t *api,
                              const ort_kernel_info_t *info);
    const char *(*name)(const ort_operator_t *op);
    const char *(*provider)(const ort_operator_t *op);
    int (*input_type)(const ort_operator_t *op, size_t index);
    size_t (*input_type_count)(const ort_operator_t *op);
    int (*output_type)(const ort_operator_t *op, size_t index);
    size_t (*output_type_count)(const ort_operator_t *op);
    void (*compute_v1)(void *kernel, ort_kernel_context_t *context);
    void (*destroy_kernel)(void *kernel);
    int (*input_kind)(const ort_operator_t *op, size_t index);
    int (*output_kind)(const ort_operator_t *op, size_t index);
    int (*input_memory)(const ort_operator_t *op, size_t index);
    int (*variadic_inputs_min)(const ort_operator_t *op);
    int (*variadic_inputs_alike)(const ort_operator_t *op);
    int (*variadic_outputs_min)(const ort_operator_t *op);
    int (*variadic_outputs_alike)(const ort_operator_t *op);
    ort_status_t *(*create_kernel)(const ort_operator_t *op, const ort_api_t *api,
                                   const ort_kernel_info_t *info, void **out_kernel);
    ort_status_t *(*compute)(void *kernel, ort_kernel_context_t *context);
    ort_status_t *(*infer_shapes)(const ort_operator_t *op, ort_shape_context_t *context);
    int (*since_version)(const ort_operator_t *op);
    int (*until_version)(const ort_operator_t *op);
    /* Pairs of an input and an output that may share memory; their number. */
    size_t (*in_place)(int **out_inputs, int **out_outputs);
    void (*release_in_place)(int *inputs, int *outputs);
    size_t (*aliases)(int **out_inputs, int **out_outputs);
    void (*release_aliases)(int *inputs, int *outputs);
};

#endif
