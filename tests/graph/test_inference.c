/* SPDX-License-Identifier: Apache-2.0 */
/* Graphs that run as they are: prepared, compared over ranks, with their batch split. */
#include "fusion/passes/passes.h"
#include "tests/support/support_text.h"

/* x [batch, 4] -> MatMul with w [4, 3] -> "y". */
#define SMALL(batch, weights, last)                                                                \
    "graph small opset 17\n"                                                                       \
    "input %x : f32[" batch ",4]\n"                                                                \
    "param %w : f32[4,3] = " weights "\n"                                                          \
    "%a = MatMul(%x, %w)\n"                                                                        \
    "%y = " last "(%a)\n"

/* message NULL: the graphs may run together. */
static void expect_compare(const char *a, const char *b, const char *message)
{
    test_graph_t first = test_graph_parse(a), second = test_graph_parse(b);
    const wefti_graph_t *graphs[] = {first.graph, second.graph};
    const char *const labels[] = {"first.onnx", "second.onnx"};
    weft_status_t status = wefti_pass_compare_models(graphs, labels, 2);
    if (message == NULL) {
        CHECK(status);
    } else {
        test_expect_error(status, WEFT_ERR_INVALID_ARGUMENT, message);
    }
    test_graph_close(&first);
    test_graph_close(&second);
}

static void test_only_contents_may_differ(void **state)
{
    static const char relu[] = SMALL("2", "0", "Relu") "output %y\n";
    (void)state;
    expect_compare(relu, SMALL("2", "1", "Relu") "output %y\n", NULL);
    expect_compare(relu, SMALL("2", "0", "Tanh") "output %y\n",
                   "first.onnx has '%y = Relu(%a) : f32[2,3]");
    expect_compare(relu, SMALL("2", "0", "Tanh") "output %y\n",
                   "second.onnx has '%y = Tanh(%a) : f32[2,3]");
    expect_compare(relu, SMALL("3", "0", "Relu") "output %y\n", "f32[3,3]");
    expect_compare(relu, SMALL("2", "0", "Relu") "const %more : f32[1] = 1\noutput %y\n",
                   "'4 tensors'");
    expect_compare(relu,
                   "graph small opset 16\n"
                   "input %x : f32[2,4]\n"
                   "param %w : f32[4,3]\n"
                   "%a = MatMul(%x, %w)\n"
                   "%y = Relu(%a)\n"
                   "output %y\n",
                   "'opset 16'");
    expect_compare(relu, SMALL("2", "0", "Relu") "output %y\noutput %a\n", "1 outputs");
    expect_compare(relu, SMALL("2", "0", "Relu") "output %a\n", "output 0 a");
}

static weft_status_t inference_form(wefti_graph_t *graph, void *user)
{
    (void)user;
    return wefti_pass_inference_form(graph);
}

/* An output that no node produces gets an Identity; weights without a reader are constants; a loss
 * is an operator like others. */
static void test_inference_form(void **state)
{
    (void)state;
    test_pass(inference_form, NULL,
              SMALL("2", "0", "Relu") "param %unread : f32[12] = 0\n"
                                      "output %y\n"
                                      "output %x\n",
              "graph small opset 17 batch 0\n"
              "input %x : f32[2,4]\n"
              "param %w : f32[4,3] = 0\n"
              "const %unread : f32[12] = 0\n"
              "%a = MatMul(%x, %w) : f32[2,3]\n"
              "%y = Relu(%a) : f32[2,3]\n"
              "%Identity_2 = Identity@17(%x) : f32[2,4]\n"
              "output %y\n"
              "output %Identity_2\n");
    test_pass(inference_form, NULL,
              "input %s : f32[2,3] logits\n"
              "input %label : i64[2] label\n"
              "%loss = SoftmaxCrossEntropyLoss(%s, %label) : loss\n"
              "output %loss\n",
              "input %s : f32[2,3]\n"
              "input %label : i64[2]\n"
              "%loss = SoftmaxCrossEntropyLoss(%s, %label)\n"
              "output %loss\n");
}

typedef struct split {
    const char *whole;
    uint32_t world_size;
} split_t;

static weft_status_t split_batch(wefti_graph_t *graph, void *user)
{
    const split_t *split = user;
    test_graph_t whole = test_graph_parse(split->whole);
    weft_status_t status = wefti_pass_split_batch(graph, whole.graph, split->world_size);
    test_graph_close(&whole);
    return status;
}

static void test_the_batch_is_split(void **state)
{
    (void)state;
    test_pass(split_batch, &(split_t){SMALL("6", "0", "Relu") "output %y\n", 3},
              SMALL("2", "0", "Relu") "output %y\n",
              "graph small opset 17 batch 0\n"
              "input %x : f32[6,4]\n"
              "param %w : f32[4,3] = 0\n"
              "%x.share = weft::Scatter(%x) {root=0, reason=\"scatters rank 0's batch over the "
              "ranks\", group_size=3} : f32[2,4] as \"Scatter of x\"\n"
              "%a = MatMul(%x.share, %w) : f32[2,3]\n"
              "%y.share = Relu(%a) : f32[2,3] as y\n"
              "%y = weft::Gather(%y.share) {root=0, reason=\"gathers the results on rank 0\", "
              "group_size=3} : f32[6,3] as \"Gather of y.share\"\n"
              "output %y\n");
}

/* What has no batch is rank 0's on all ranks; one rank alone splits nothing. */
static void test_what_has_no_batch(void **state)
{
    static const char share[] = "input %x : f32[2,3]\n"
                                "input %shift : f32[3]\n"
                                "%y = Add(%x, %shift)\n"
                                "output %y\n";
    static const char whole[] = "input %x : f32[4,3]\n"
                                "input %shift : f32[3]\n"
                                "%y = Add(%x, %shift)\n"
                                "output %y\n";
    (void)state;
    test_pass(split_batch, &(split_t){whole, 1}, share, share);
    test_pass(split_batch, &(split_t){whole, 2}, share,
              "input %x : f32[4,3]\n"
              "input %shift : f32[3]\n"
              "%x.share = weft::Scatter(%x) {root=0, reason=\"scatters rank 0's batch over the "
              "ranks\", group_size=2} : f32[2,3] as \"Scatter of x\"\n"
              "%shift.share = weft::Broadcast(%shift) {root=0, reason=\"broadcasts the input of "
              "rank 0\"} : f32[3] as \"Broadcast of shift\"\n"
              "%y.share = Add(%x.share, %shift.share) : f32[2,3] as y\n"
              "%y = weft::Gather(%y.share) {root=0, reason=\"gathers the results on rank 0\", "
              "group_size=2} : f32[4,3] as \"Gather of y.share\"\n"
              "output %y\n");
}

static void test_what_cannot_be_split(void **state)
{
    (void)state;
    test_pass_error(split_batch,
                    &(split_t){"input %x : f32[4,3]\n"
                               "%y = Transpose(%x) {perm=[1,0]}\n"
                               "output %y\n",
                               2},
                    "input %x : f32[2,3]\n"
                    "%y = Transpose(%x) {perm=[1,0]}\n"
                    "output %y\n",
                    WEFT_ERR_UNSUPPORTED, "not the first dimension of output 'y'");
    test_pass_error(split_batch,
                    &(split_t){"input %x : f32[3,4]\n"
                               "%y = Transpose(%x) {perm=[1,0]}\n"
                               "output %y\n",
                               2},
                    "input %x : f32[3,2]\n"
                    "%y = Transpose(%x) {perm=[1,0]}\n"
                    "output %y\n",
                    WEFT_ERR_UNSUPPORTED, "not the first dimension of input 'x'");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_only_contents_may_differ), cmocka_unit_test(test_inference_form),
        cmocka_unit_test(test_the_batch_is_split),       cmocka_unit_test(test_what_has_no_batch),
        cmocka_unit_test(test_what_cannot_be_split),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
