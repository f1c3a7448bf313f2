/* SPDX-License-Identifier: Apache-2.0 */
/* Partial sums of micro-batches in plans: proved as they are compiled, and refused when they are
 * not those of the tree. */
#include <string.h>

#include "fusion/fusion.h"
#include "tests/support/support.h"

static weft_plan_t *compile(uint32_t world, uint32_t accumulate, const char *wire, int shard)
{
    weft_compile_params_t params = WEFT_COMPILE_PARAMS_INIT;
    weft_plan_t *plan = NULL;
    params.model_path = WEFT_SOURCE_DIR "/samples/models/lenet.onnx";
    params.world_size = world;
    params.batch = 2;
    params.accumulate = accumulate;
    params.wire = wire;
    params.shard_optimizer = shard;
    params.bucket = "bytes:100K";
    if (weft_compile(&params, &plan) < 0) {
        fail_msg("%s", weft_last_error());
    }
    return plan;
}

static wefti_plan_kernel_t *kernel_of(weft_plan_t *plan, const char *name, uint32_t inputs)
{
    for (uint32_t k = 0; k < plan->kernel_count; k++) {
        if (strcmp(plan->kernels[k].name, name) == 0 && plan->kernels[k].input_count >= inputs) {
            return &plan->kernels[k];
        }
    }
    fail_msg("no kernel %s", name);
    return NULL;
}

static void expect_refused(const weft_plan_t *plan, const char *says)
{
    assert_int_equal(wefti_plan_verify(plan, NULL), WEFT_ERR_FORMAT);
    if (strstr(weft_last_error(), says) == NULL) {
        fail_msg("\"%s\" does not say \"%s\"", weft_last_error(), says);
    }
}

static void test_trees_of_all_sizes_are_proved(void **state)
{
    (void)state;
    for (uint32_t accumulate = 1; accumulate <= 17; accumulate++) {
        for (int half = 0; half < 2; half++) {
            weft_plan_t *plan = compile(2, accumulate, half ? "bf16" : "f32", accumulate % 3 == 0);
            assert_int_equal(wefti_plan_verify(plan, NULL), WEFT_OK);
            assert_int_equal(plan->accumulate, accumulate);
            weft_plan_release(plan);
        }
    }
}

static void swap(uint32_t *a, uint32_t *b)
{
    uint32_t kept = *a;
    *a = *b;
    *b = kept;
}

static void test_other_trees_are_refused(void **state)
{
    weft_plan_t *plan = compile(2, 8, NULL, 0);
    wefti_plan_kernel_t *last = kernel_of(plan, "bucket 0, sum", 4);
    wefti_plan_kernel_t *second = kernel_of(plan, "bucket 0, partial sum", 3);
    wefti_plan_kernel_t *update = kernel_of(plan, "update of bucket 0", 4);
    (void)state;
    swap(&last->inputs[1], &last->inputs[2]); /* the same sum, in another order */
    expect_refused(plan, "order of the tree");
    swap(&last->inputs[1], &last->inputs[2]);
    swap(&second->inputs[1], &second->inputs[2]);
    expect_refused(plan, "order of the tree");
    swap(&second->inputs[1], &second->inputs[2]);
    last->input_count--; /* half of the micro-batches are lost */
    expect_refused(plan, "is not reduced");
    last->input_count++;
    plan->accumulate = 7;
    expect_refused(plan, "micro-batches");
    plan->accumulate = 8;
    for (uint32_t a = 0; a < update->attr_count; a++) {
        if (strcmp(update->attrs[a].name, "divisor") == 0) {
            assert_int_equal(update->attrs[a].i, 16);
            update->attrs[a].i = 8;
            expect_refused(plan, "it divides by 8");
            update->attrs[a].i = 16;
        }
    }
    assert_int_equal(wefti_plan_verify(plan, NULL), WEFT_OK);
    weft_plan_release(plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_trees_of_all_sizes_are_proved),
        cmocka_unit_test(test_other_trees_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
