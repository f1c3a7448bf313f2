/* SPDX-License-Identifier: Apache-2.0 */
/* Builds one node, runs its kernel on every instruction set and demands equal bits. */
#ifndef WEFT_TESTS_OPS_SUPPORT_KERNEL_H
#define WEFT_TESTS_OPS_SUPPORT_KERNEL_H

#include <weft/registry.h>

#include "tests/support/support.h"

#define CASE_TENSORS 9
#define CASE_ATTRS 10

/* Tensors get memory of exactly their size from malloc, so that a sanitizer sees every step
 * outside. */
typedef struct {
    const char *domain, *op;
    int32_t version;
    weft_tensor_desc_t inputs[CASE_TENSORS], outputs[CASE_TENSORS];
    void *in[CASE_TENSORS], *out[CASE_TENSORS];
    uint32_t input_count, output_count, attr_count;
    weft_attr_t attrs[CASE_ATTRS];
    int64_t ints[CASE_ATTRS][2 * WEFT_MAX_DIMS];
} op_case_t;

op_case_t case_make(const char *domain, const char *op, int32_t version);
void case_free(op_case_t *c);
/* Dimensions end at -2. The values are uninitialised. */
#define DIMS(...) ((const int64_t[]){__VA_ARGS__, -2})
#define SCALAR ((const int64_t[]){-2})
float *case_input(op_case_t *c, const int64_t *dims);
void *case_input_typed(op_case_t *c, weft_dtype_t dtype, weft_layout_t layout, const int64_t *dims);
void case_output(op_case_t *c, weft_dtype_t dtype, weft_layout_t layout, const int64_t *dims);
void case_absent_input(op_case_t *c);
void case_ints(op_case_t *c, const char *name, const int64_t *values); /* ends at -2 */
void case_int(op_case_t *c, const char *name, int64_t value);
void case_float(op_case_t *c, const char *name, float value);
void case_string(op_case_t *c, const char *name, const char *value);
weft_node_desc_t case_node(op_case_t *c);
/* Shapes of the outputs by the definition's rule; output_count outputs are added, of layout. */
weft_status_t case_infer(op_case_t *c, uint32_t output_count, weft_layout_t layout);
/* Prepares and runs on one instruction set. */
weft_status_t case_run_isa(op_case_t *c, weft_isa_t isa);
/* Runs on the best instruction set by some threads, and asserts success. */
void case_run_threads(op_case_t *c, uint32_t threads);
/* Runs on all sets the CPU has, asserts success and equal bits; outputs hold the result. */
void case_run(op_case_t *c);
/* Runs with output o on top of input where the definition allows it, and asserts the same bits. */
void case_run_in_place(op_case_t *c);
int64_t case_count(const weft_tensor_desc_t *desc);
const weft_op_def_t *case_def(const op_case_t *c);
const weft_registry_t *case_registry(void);

/* A small generator; the seed is printed once. */
void random_seed(uint64_t seed);
float random_float(float low, float high);
uint32_t random_below(uint32_t limit);
void random_fill(float *x, int64_t count, float low, float high);

/* |got - want| <= bound * max(1, |want|), NaN equals NaN. */
void assert_close(double got, double want, double bound, const char *what, int64_t index);
/* Offset of (n, c, h, w) in a rank-4 tensor of either layout. */
int64_t offset4(const weft_tensor_desc_t *t, int64_t n, int64_t c, int64_t h, int64_t w);
/* d sum(weights * y) / d x[index] of a kernel, by central differences of step. */
double finite_difference(op_case_t *c, uint32_t input, int64_t index, const float *weights,
                         float step);

#endif
