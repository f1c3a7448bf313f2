/* SPDX-License-Identifier: Apache-2.0 */
/* The functions of oneDNN, and of the OpenMP that it was built with: its own dependencies are
 * searched as well. */
#include "ops/compute/onednn_program.h"

#include "runtime/base/library.h"

_Static_assert(DNNL_VERSION_MAJOR == 2, "the interface and the name of the file change together");

typedef const dnnl_memory_desc_t *desc_t;

#define ROWS(X)                                                                                    \
    X(int, omp_get_max_threads, (void), ())                                                        \
    X(void, omp_set_num_threads, (int count), (count))                                             \
    X(dnnl_cpu_isa_t, dnnl_get_effective_cpu_isa, (void), ())                                      \
    X(dnnl_status_t, dnnl_engine_create, (dnnl_engine_t * out, dnnl_engine_kind_t kind, size_t n), \
      (out, kind, n))                                                                              \
    X(dnnl_status_t, dnnl_engine_destroy, (dnnl_engine_t engine), (engine))                        \
    X(dnnl_status_t, dnnl_stream_create,                                                           \
      (dnnl_stream_t * out, dnnl_engine_t engine, unsigned flags), (out, engine, flags))           \
    X(dnnl_status_t, dnnl_stream_wait, (dnnl_stream_t stream), (stream))                           \
    X(dnnl_status_t, dnnl_stream_destroy, (dnnl_stream_t stream), (stream))                        \
    X(dnnl_status_t, dnnl_memory_desc_init_by_strides,                                             \
      (dnnl_memory_desc_t * out, int rank, const dnnl_dims_t dims, dnnl_data_type_t type,          \
       const dnnl_dims_t strides),                                                                 \
      (out, rank, dims, type, strides))                                                            \
    X(dnnl_status_t, dnnl_memory_desc_init_by_tag,                                                 \
      (dnnl_memory_desc_t * out, int rank, const dnnl_dims_t dims, dnnl_data_type_t type,          \
       dnnl_format_tag_t tag),                                                                     \
      (out, rank, dims, type, tag))                                                                \
    X(int, dnnl_memory_desc_equal, (desc_t a, desc_t b), (a, b))                                   \
    X(size_t, dnnl_memory_desc_get_size, (desc_t desc), (desc))                                    \
    X(dnnl_status_t, dnnl_memory_create,                                                           \
      (dnnl_memory_t * out, desc_t desc, dnnl_engine_t engine, void *data),                        \
      (out, desc, engine, data))                                                                   \
    X(dnnl_status_t, dnnl_memory_set_data_handle, (dnnl_memory_t memory, void *data),              \
      (memory, data))                                                                              \
    X(dnnl_status_t, dnnl_memory_destroy, (dnnl_memory_t memory), (memory))                        \
    X(dnnl_status_t, dnnl_post_ops_create, (dnnl_post_ops_t * out), (out))                         \
    X(dnnl_status_t, dnnl_post_ops_append_binary,                                                  \
      (dnnl_post_ops_t ops, dnnl_alg_kind_t kind, desc_t desc), (ops, kind, desc))                 \
    X(dnnl_status_t, dnnl_post_ops_destroy, (dnnl_post_ops_t ops), (ops))                          \
    X(dnnl_status_t, dnnl_primitive_attr_create, (dnnl_primitive_attr_t * out), (out))             \
    X(dnnl_status_t, dnnl_primitive_attr_set_output_scales,                                        \
      (dnnl_primitive_attr_t attr, dnnl_dim_t count, int mask, const float *scales),               \
      (attr, count, mask, scales))                                                                 \
    X(dnnl_status_t, dnnl_primitive_attr_set_post_ops,                                             \
      (dnnl_primitive_attr_t attr, const_dnnl_post_ops_t ops), (attr, ops))                        \
    X(dnnl_status_t, dnnl_primitive_attr_set_scratchpad_mode,                                      \
      (dnnl_primitive_attr_t attr, dnnl_scratchpad_mode_t mode), (attr, mode))                     \
    X(dnnl_status_t, dnnl_primitive_attr_destroy, (dnnl_primitive_attr_t attr), (attr))            \
    X(dnnl_status_t, dnnl_primitive_desc_create,                                                   \
      (dnnl_primitive_desc_t * out, const_dnnl_op_desc_t op, const_dnnl_primitive_attr_t attr,     \
       dnnl_engine_t engine, const_dnnl_primitive_desc_t hint),                                    \
      (out, op, attr, engine, hint))                                                               \
    X(dnnl_status_t, dnnl_primitive_desc_query,                                                    \
      (const_dnnl_primitive_desc_t desc, dnnl_query_t what, int index, void *out),                 \
      (desc, what, index, out))                                                                    \
    X(desc_t, dnnl_primitive_desc_query_md,                                                        \
      (const_dnnl_primitive_desc_t desc, dnnl_query_t what, int index), (desc, what, index))       \
    X(dnnl_status_t, dnnl_primitive_desc_destroy, (dnnl_primitive_desc_t desc), (desc))            \
    X(dnnl_status_t, dnnl_primitive_create,                                                        \
      (dnnl_primitive_t * out, const_dnnl_primitive_desc_t desc), (out, desc))                     \
    X(dnnl_status_t, dnnl_primitive_execute,                                                       \
      (const_dnnl_primitive_t primitive, dnnl_stream_t stream, int count,                          \
       const dnnl_exec_arg_t *args),                                                               \
      (primitive, stream, count, args))                                                            \
    X(dnnl_status_t, dnnl_primitive_destroy, (dnnl_primitive_t primitive), (primitive))            \
    X(dnnl_status_t, dnnl_reorder_primitive_desc_create,                                           \
      (dnnl_primitive_desc_t * out, desc_t from, dnnl_engine_t from_engine, desc_t to,             \
       dnnl_engine_t to_engine, const_dnnl_primitive_attr_t attr),                                 \
      (out, from, from_engine, to, to_engine, attr))                                               \
    X(dnnl_status_t, dnnl_matmul_desc_init,                                                        \
      (dnnl_matmul_desc_t * out, desc_t a, desc_t b, desc_t bias, desc_t y), (out, a, b, bias, y)) \
    X(dnnl_status_t, dnnl_dilated_convolution_forward_desc_init,                                   \
      (dnnl_convolution_desc_t * out, dnnl_prop_kind_t prop, dnnl_alg_kind_t kind, desc_t x,       \
       desc_t w, desc_t bias, desc_t y, const dnnl_dims_t strides, const dnnl_dims_t dilates,      \
       const dnnl_dims_t begin, const dnnl_dims_t end),                                            \
      (out, prop, kind, x, w, bias, y, strides, dilates, begin, end))                              \
    X(dnnl_status_t, dnnl_dilated_convolution_backward_data_desc_init,                             \
      (dnnl_convolution_desc_t * out, dnnl_alg_kind_t kind, desc_t dx, desc_t w, desc_t dy,        \
       const dnnl_dims_t strides, const dnnl_dims_t dilates, const dnnl_dims_t begin,              \
       const dnnl_dims_t end),                                                                     \
      (out, kind, dx, w, dy, strides, dilates, begin, end))                                        \
    X(dnnl_status_t, dnnl_dilated_convolution_backward_weights_desc_init,                          \
      (dnnl_convolution_desc_t * out, dnnl_alg_kind_t kind, desc_t x, desc_t dw, desc_t dbias,     \
       desc_t dy, const dnnl_dims_t strides, const dnnl_dims_t dilates, const dnnl_dims_t begin,   \
       const dnnl_dims_t end),                                                                     \
      (out, kind, x, dw, dbias, dy, strides, dilates, begin, end))

WEFTI_LIBRARY_FUNCTIONS(wefti_onednn_load, WEFTI_LIBRARY_ONEDNN, ROWS)
