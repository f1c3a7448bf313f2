/* SPDX-License-Identifier: Apache-2.0 */
/* Operators on one or two tensors of one type and shape, one line each. Layouts do not matter, all
 * are equal. */
#ifndef WEFT_OPS_COMPUTE_ELEMENTWISE_H
#define WEFT_OPS_COMPUTE_ELEMENTWISE_H

#include "ops/compute/support.h"

/* p: two numbers of the node; b is a where there is one tensor. */
typedef void (*wefti_elementwise_fn)(const void *a, const void *b, const double *p, void *y,
                                     int64_t count);

/* A number of the node: an attribute of type float or int. */
typedef struct wefti_elementwise_number {
    const char *attr;
    float default_value;
} wefti_elementwise_number_t;

/* Loops by type; NULL where there is none. Those of f32 also serve 16-bit floats, and those of i64
 * narrower integers. */
typedef struct wefti_elementwise_loops {
    const wefti_elementwise_fn *f32; /* by instruction set */
    wefti_elementwise_fn f64, i64, boolean;
    bool tests; /* the result is bool */
} wefti_elementwise_loops_t;

typedef struct wefti_elementwise {
    wefti_elementwise_fn loop;
    int64_t count;
    uint32_t tensors, threads;
    weft_isa_t isa;
    weft_dtype_t in, out;
    bool widens; /* the loop is of a wider type */
    double p[2];
} wefti_elementwise_t;

/* numbers: [2], or NULL. Inputs from tensors on are not looked at. */
weft_status_t wefti_elementwise_prepare(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                                        uint32_t tensors, const wefti_elementwise_number_t *numbers,
                                        const wefti_elementwise_loops_t *loops, void **out_state,
                                        size_t *out_scratch_bytes);
/* The numbers of a node into out[2]; those that the operator lacks keep their value. */
void wefti_elementwise_numbers(const weft_node_desc_t *node,
                               const wefti_elementwise_number_t *numbers, double *out);
weft_status_t wefti_elementwise_run(const weft_kernel_call_t *call);

#define WEFTI_ELEMENTWISE_PARAMS                                                                   \
    (const void *va, const void *vb, const double *p, void *vy, int64_t count)
#define WEFTI_ELEMENTWISE_BODY(in, number, out, expression)                                        \
    const in *a_ = va, *b_ = vb;                                                                   \
    out *y = vy;                                                                                   \
    const number p0 = (number)p[0], p1 = (number)p[1];                                             \
    (void)p0, (void)p1;                                                                            \
    WEFTI_INDEPENDENT                                                                              \
    for (int64_t i = 0; i < count; i++) {                                                          \
        const in a = a_[i], b = b_[i];                                                             \
        (void)a, (void)b;                                                                          \
        y[i] = (out)(expression);                                                                  \
    }

/* The clones symbol[isa] of y = expression, of the elements a and b and the numbers p0 and p1.
 * Elements are read first: a branch around a load would keep it from vectorising. */
#define WEFTI_ELEMENTWISE_F32(symbol, out, expression)                                             \
    WEFTI_INLINE void symbol##_body WEFTI_ELEMENTWISE_PARAMS{WEFTI_ELEMENTWISE_BODY(               \
        float, float, out, expression)} WEFTI_CLONES(symbol, WEFTI_ELEMENTWISE_PARAMS,             \
                                                     (va, vb, p, vy, count))
/* A loop over elements of type in. */
#define WEFTI_ELEMENTWISE_LOOP(symbol, in, out, expression)                                        \
    static void symbol WEFTI_ELEMENTWISE_PARAMS                                                    \
    {                                                                                              \
        WEFTI_ELEMENTWISE_BODY(in, double, out, expression)                                        \
    }

#endif
