/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of single elements, whose result is bool: Not, IsNaN. */
#include "ops/compute/own_kernels.h"

#include "ops/compute/support.h"
#include "ops/op_infer.h"
#include "runtime/base/error.h"

typedef void (*test_fn)(const void *x, uint8_t *y, int64_t count);

#define TEST(name, type, expression)                                                               \
    static void name(const void *vx, uint8_t *y, int64_t count)                                    \
    {                                                                                              \
        for (int64_t i = 0; i < count; i++) {                                                      \
            type x = ((const type *)vx)[i];                                                        \
            y[i] = expression;                                                                     \
        }                                                                                          \
    }
TEST(not_bool, uint8_t, !x)
TEST(is_nan_f32, float, x != x)
TEST(is_nan_f64, double, x != x)
TEST(is_nan_f16, uint16_t, (x & 0x7fffu) > 0x7c00u)
TEST(is_nan_bf16, uint16_t, (x & 0x7fffu) > 0x7f80u)

typedef struct {
    test_fn test;
    int64_t count;
} state_t;

static weft_status_t prepare(const weft_node_desc_t *node, const test_fn *tests, void **out_state,
                             size_t *out_scratch_bytes)
{
    WEFT_RETURN_IF_ERROR(wefti_need_known(wefti_infer_input(node, 0), "input", 0));
    WEFT_RETURN_IF_ERROR(wefti_need_known(wefti_node_output(node, 0), "output", 0));
    const weft_tensor_desc_t *x = &node->inputs[0], *y = &node->outputs[0];
    if (tests[x->dtype] == NULL || y->dtype != WEFT_DTYPE_BOOL || !wefti_same_shape(x, y)) {
        return wefti_error(WEFT_ERR_UNSUPPORTED,
                           "%s: no kernel for type %s, or the result is not like the input",
                           node->op, weft_dtype_name(x->dtype));
    }
    state_t *state = wefti_state_alloc(sizeof(*state));
    if (state == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    *state = (state_t){tests[x->dtype], weft_tensor_elem_count(x)};
    *out_state = state;
    *out_scratch_bytes = 0;
    return WEFT_OK;
}

static weft_status_t run(const weft_kernel_call_t *call)
{
    const state_t *s = call->state;
    s->test(call->inputs[0], call->outputs[0], s->count);
    return WEFT_OK;
}

#define PREPARE(name, ...)                                                                         \
    static weft_status_t name(const weft_node_desc_t *node, const weft_kernel_env_t *env,          \
                              void **out_state, size_t *out_scratch_bytes)                         \
    {                                                                                              \
        static const test_fn tests[WEFT_DTYPE_BOOL + 1] = {__VA_ARGS__};                           \
        (void)env;                                                                                 \
        return prepare(node, tests, out_state, out_scratch_bytes);                                 \
    }
PREPARE(prepare_not, [WEFT_DTYPE_BOOL] = not_bool)
PREPARE(prepare_is_nan, [WEFT_DTYPE_F64] = is_nan_f64, [WEFT_DTYPE_F32] = is_nan_f32,
        [WEFT_DTYPE_F16] = is_nan_f16, [WEFT_DTYPE_BF16] = is_nan_bf16)

WEFTI_KERNEL(wefti_kernel_not, "", "Not", prepare_not, run);
WEFTI_KERNEL(wefti_kernel_is_nan, "", "IsNaN", prepare_is_nan, run);
