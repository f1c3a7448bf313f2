/* SPDX-License-Identifier: Apache-2.0 */
/* Operators on one or two f32 tensors of equal shape, one line each. Layouts do not matter, all are
 * equal. */
#ifndef WEFT_OPS_COMPUTE_ELEMENTWISE_H
#define WEFT_OPS_COMPUTE_ELEMENTWISE_H

#include "ops/compute/support.h"

/* p: two numbers of the node; b is a where there is one tensor. */
typedef void (*wefti_elementwise_fn)(const float *a, const float *b, const float *p, float *y,
                                     int64_t count);

/* A number of the node: an attribute of type float. */
typedef struct wefti_elementwise_number {
    const char *attr;
    float default_value;
} wefti_elementwise_number_t;

typedef struct wefti_elementwise {
    wefti_elementwise_fn loop;
    int64_t count;
    uint32_t tensors;
    float p[2];
} wefti_elementwise_t;

/* numbers: [2], or NULL. Inputs from tensors on are not looked at. */
weft_status_t wefti_elementwise_prepare(const weft_node_desc_t *node, uint32_t tensors,
                                        const wefti_elementwise_number_t *numbers,
                                        wefti_elementwise_fn loop, void **out_state,
                                        size_t *out_scratch_bytes);
weft_status_t wefti_elementwise_run(const weft_kernel_call_t *call);

/* The clones symbol_loop[isa] of y = expression, of the elements a and b and the numbers p0 and
 * p1. Elements are read first: a branch around a load would keep it from vectorising. */
#define WEFTI_ELEMENTWISE_LOOP(symbol, expression)                                                 \
    WEFTI_INLINE void symbol##_loop_body(const float *a_, const float *b_, const float *p,         \
                                         float *y, int64_t count)                                  \
    {                                                                                              \
        const float p0 = p[0], p1 = p[1];                                                          \
        (void)p0, (void)p1;                                                                        \
        WEFTI_INDEPENDENT                                                                          \
        for (int64_t i = 0; i < count; i++) {                                                      \
            const float a = a_[i], b = b_[i];                                                      \
            (void)b;                                                                               \
            y[i] = (expression);                                                                   \
        }                                                                                          \
    }                                                                                              \
    WEFTI_CLONES(symbol##_loop,                                                                    \
                 (const float *a, const float *b, const float *p, float *y, int64_t count),        \
                 (a, b, p, y, count))

/* The kernel of an operator: tensors inputs (1 or 2), numbers or NULL. */
#define WEFTI_ELEMENTWISE(symbol, space, name, tensors, numbers, expression)                       \
    WEFTI_ELEMENTWISE_LOOP(symbol, expression);                                                    \
    static weft_status_t symbol##_prepare(const weft_node_desc_t *node,                            \
                                          const weft_kernel_env_t *env, void **out_state,          \
                                          size_t *out_scratch_bytes)                               \
    {                                                                                              \
        return wefti_elementwise_prepare(node, tensors, numbers,                                   \
                                         symbol##_loop[wefti_kernel_isa(env)], out_state,          \
                                         out_scratch_bytes);                                       \
    }                                                                                              \
    WEFTI_KERNEL(symbol, space, name, symbol##_prepare, wefti_elementwise_run)

#endif
