/* SPDX-License-Identifier: Apache-2.0 */
/* Geometry of a pooling, one or two spatial dimensions, as the kernels walk it. */
#ifndef WEFT_OPS_COMPUTE_POOL_H
#define WEFT_OPS_COMPUTE_POOL_H

#include "ops/compute/support.h"

/* Outputs [from, to) along one dimension for which a tap of the window lies inside the input. */
typedef struct wefti_pool_range {
    int64_t from, to;
} wefti_pool_range_t;

typedef struct wefti_pool_dim {
    int64_t in, out, kernel, stride, dilation, pad;
    wefti_pool_range_t *ranges; /* per tap */
    int64_t *first_tap;         /* per output: the first tap inside the input */
    float *counted;             /* per output: taps that count in a mean */
} wefti_pool_dim_t;

typedef struct wefti_pool {
    int64_t n, c;
    wefti_pool_dim_t y, x; /* rows, columns */
    bool channels_last;
    weft_dtype_t dtype;         /* of MaxPool, where there are no vectors for it; else NONE */
    bool indices, column_major; /* it has these, in this order */
    bool indices_last;          /* they are channels-last */
    weft_isa_t isa;
    uint32_t threads;
    /* The arrays of both dimensions follow. */
} wefti_pool_t;

/*
 * x: the tensor that is pooled, y: the pooled one, both of rank 3 or 4. Makes the state of any
 * pooling kernel; mean: counted as AveragePool wants it.
 */
weft_status_t wefti_pool_create(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                                const weft_tensor_desc_t *x, const weft_tensor_desc_t *y,
                                wefti_pool_t **out_pool);

/* pool_any.c: MaxPool of any type that is ordered as f64, with or without Indices. */
bool wefti_pool_any_takes(weft_dtype_t dtype);
weft_status_t wefti_pool_any_run(const weft_kernel_call_t *call);

#endif
