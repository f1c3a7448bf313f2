/* SPDX-License-Identifier: Apache-2.0 */
/* Pairs of a start and a wait: the collective is issued where the one stands and waited for where
 * the other does. */
#include <stdio.h>
#include <string.h>

#include "fusion/passes/passes.h"
#include "tests/support/support_lower.h"
#include "tests/support/support_text.h"

static weft_plan_t *lower(const wefti_graph_t *graph)
{
    weft_plan_t *plan = NULL;
    wefti_lower_params_t params = {.world_size = 2,
                                   .policy = "none",
                                   .optimizer = "none",
                                   .model_name = "test",
                                   .infer = true};
    if (test_lower(graph, &params, &plan) < 0 || wefti_plan_seal(plan) < 0 ||
        wefti_plan_verify(plan, graph->registry) < 0) {
        fail_msg("%s", weft_last_error());
    }
    return plan;
}

/* "a b record0 c": the compute stream of the step, or the other one: "wait0 AllReduce record1". */
static void describe(const weft_plan_t *plan, bool communicates, char *out, size_t size)
{
    size_t used = 0;
    const wefti_plan_program_t *step = NULL;
    for (uint32_t p = 0; p < plan->program_count; p++) {
        step = strcmp(plan->programs[p].name, "step") == 0 ? &plan->programs[p] : step;
    }
    assert_non_null(step);
    out[0] = '\0';
    for (uint32_t s = 0; s < plan->stream_count; s++) {
        for (uint32_t i = 0; plan->streams[s].communicates == communicates &&
                             i < step->streams[s].step_count && used < size;
             i++) {
            const wefti_plan_step_t *at = &step->streams[s].steps[i];
            const char *space = used > 0 ? " " : "";
            int n = at->kind == WEFTI_STEP_KERNEL ? snprintf(out + used, size - used, "%s%s", space,
                                                             plan->kernels[at->index].name)
                    : at->kind == WEFTI_STEP_RECORD
                        ? snprintf(out + used, size - used, "%srecord", space)
                    : at->kind == WEFTI_STEP_WAIT
                        ? snprintf(out + used, size - used, "%swait", space)
                        : snprintf(out + used, size - used, "%s%s", space,
                                   weft_collective_name(plan->collectives[at->index].op));
            used += (size_t)n;
        }
    }
}

static weft_status_t normalize(wefti_graph_t *graph, void *user)
{
    (void)user;
    return wefti_pass_normalize_collectives(graph, 2, true);
}

/* The streams of the plan of a graph after its pairs were normalized. */
static void expect_streams(const char *text, const char *compute, const char *comm)
{
    char got[256];
    test_graph_t test = test_graph_parse(text);
    CHECK(normalize(test.graph, NULL));
    CHECK(wefti_graph_verify(test.graph));
    weft_plan_t *plan = lower(test.graph);
    describe(plan, false, got, sizeof got);
    assert_string_equal(got, compute);
    describe(plan, true, got, sizeof got);
    assert_string_equal(got, comm);
    weft_plan_release(plan);
    test_graph_close(&test);
}

static void test_a_pair_keeps_its_places(void **state)
{
    (void)state;
    expect_streams("input %x : f32[4,8]\n"
                   "%a = Relu(%x)\n"
                   "%b = Relu(%x)\n"
                   "%start = weft::AllReduceStart(%a)\n"
                   "%c = Relu(%b)\n"
                   "%d = Relu(%c)\n"
                   "%wait = weft::AllReduceWait(%start)\n"
                   "%e = Relu(%d)\n"
                   "%sum = Add(%e, %wait)\n"
                   "output %sum\n",
                   "a b record c d wait e sum", "wait AllReduce record");
}

/* The same without its halves: as soon as it can be, and as late as it can be. */
static void test_without_a_pair_values_decide(void **state)
{
    (void)state;
    expect_streams("input %x : f32[4,8]\n"
                   "%a = Relu(%x)\n"
                   "%b = Relu(%x)\n"
                   "%reduce = weft::AllReduce(%a)\n"
                   "%c = Relu(%b)\n"
                   "%d = Relu(%c)\n"
                   "%e = Relu(%d)\n"
                   "%sum = Add(%e, %reduce)\n"
                   "output %sum\n",
                   "a record b c d e wait sum", "wait AllReduce record");
}

/* Two of one start are waited for at two places: the first of them is where all must be there. */
static void test_several_tensors(void **state)
{
    (void)state;
    expect_streams("input %x : f32[4,8]\n"
                   "%a = Relu(%x)\n"
                   "%b = Relu(%x)\n"
                   "%start1, %start2 = weft::AllReduceStart(%a, %b)\n"
                   "%c = Relu(%x)\n"
                   "%wait1 = weft::AllReduceWait(%start1)\n"
                   "%d = Relu(%c)\n"
                   "%wait2 = weft::AllReduceWait(%start2)\n"
                   "%e = Add(%d, %wait1)\n"
                   "%f = Add(%e, %wait2)\n"
                   "output %f\n",
                   "a b record c wait d e f", "wait AllReduce AllReduce record");
}

static void test_pairs_that_are_refused(void **state)
{
    static const struct {
        const char *nodes, *message;
    } rows[] = {
        {"%start = weft::AllReduceStart(%x)\n"
         "%reader = Relu(%start)\n"
         "%wait = weft::AllReduceWait(%start)\n",
         "'reader' (Relu): reads 'start', which is in flight: missing wait"},
        {"%start = weft::AllReduceStart(%x)\n",
         "'start' (AllReduceStart): only 0 of 1 outputs have a wait"},
        {"%start = weft::BroadcastStart(%x)\n"
         "%wait = weft::AllReduceWait(%start)\n",
         "must be the output of AllReduceStart"},
        {"%start = weft::AllReduceStart(%x)\n"
         "%wait = weft::AllReduceWait(%start)\n"
         "%again = weft::AllReduceWait(%start)\n",
         "duplicate wait for 'start'"},
        {"%start = weft::AllReduceStart(%x)\n"
         "%wait = weft::AllReduceWait(%start)\n"
         "output %start\n",
         "output 'start' is in flight"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char text[512];
        snprintf(text, sizeof text, "input %%x : f32[4,8]\n%s", rows[i].nodes);
        test_pass_error(normalize, NULL, text, WEFT_ERR_INVALID_ARGUMENT, rows[i].message);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_pair_keeps_its_places),
        cmocka_unit_test(test_without_a_pair_values_decide),
        cmocka_unit_test(test_several_tensors),
        cmocka_unit_test(test_pairs_that_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
