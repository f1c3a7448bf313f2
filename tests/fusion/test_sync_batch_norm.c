/* SPDX-License-Identifier: Apache-2.0 */
/* Statistics of BatchNormalization over all ranks: graph in, graph out. */
#include "fusion/passes/passes.h"
#include "tests/support/support_text.h"

#include "graph/autodiff/differentiate.h"

static weft_status_t synchronize(wefti_graph_t *graph, void *user)
{
    (void)user;
    weft_status_t status = wefti_graph_differentiate(graph);
    return status == WEFT_OK ? wefti_pass_sync_batch_norm(graph) : status;
}

/* One all-reduce of both moments before the operator, and one before its gradient. */
static void test_both_directions(void **state)
{
    (void)state;
    test_pass(synchronize, NULL,
              "input %x : f32[4,3]\n"
              "input %label : i64[4] label\n"
              "param %scale : f32[3] = ...\n"
              "param %shift : f32[3] = ...\n"
              "param %mean : f32[3] = ...\n"
              "param %var : f32[3] = ...\n"
              "param %w : f32[4,3] = ...\n"
              "%h = Mul(%x, %w)\n"
              "%y = BatchNormalization(%h, %scale, %shift, %mean, %var) {training_mode=1} : "
              "f32[4,3] logits\n"
              "%loss = SoftmaxCrossEntropyLoss(%y, %label) : f32[] loss\n",
              "input %x : f32[4,3]\n"
              "input %label : i64[4] label\n"
              "param %scale : f32[3]\n"
              "param %shift : f32[3]\n"
              "param %mean : f32[3]\n"
              "param %var : f32[3]\n"
              "param %w : f32[4,3]\n"
              "const %loss_grad : f32[] = 1\n"
              "%h = Mul(%x, %w) : f32[4,3]\n"
              "%y/moments = weft::BatchNormMoments(%h) : f64[2,3]\n"
              "comm %\"y/moments of all ranks\" = weft::AllReduce(%y/moments) "
              "{reduction=\"avg\", group=0, reason=\"statistics of all ranks' "
              "batches\"} : f64[2,3]\n"
              "%y, %y_1, %y_2 = weft::BatchNormTraining(%h, %scale, %shift, %mean, "
              "%var, -, %\"y/moments of all ranks\") {epsilon=1e-05, momentum=0.9} : "
              "f32[4,3] logits, f32[3], f32[3]\n"
              "%loss, %loss_1 = SoftmaxCrossEntropyLoss(%y, %label) : f32[] loss, "
              "f32[4,3]\n"
              "backward %y_grad = "
              "com.microsoft::SoftmaxCrossEntropyLossGrad(%loss_grad, %loss_1, %label) "
              ": f32[4,3] as loss/grad\n"
              "backward %y/grad.3/moments = weft::BatchNormMoments(%h, %y_1, %y_grad) : "
              "f64[2,3]\n"
              "comm %\"y/grad.3/moments of all ranks\" = "
              "weft::AllReduce(%y/grad.3/moments) {reduction=\"avg\", group=0, "
              "reason=\"statistics of all ranks' batches\"} : f64[2,3]\n"
              "backward %mean_grad = Identity(%y_1) : f32[3] grad(%mean) as y/grad\n"
              "backward %var_grad = Identity(%y_2) : f32[3] grad(%var) as y/grad.2\n"
              "backward %h_grad, %scale_grad, %shift_grad = "
              "weft::BatchNormGrad(%y_grad, %h, %scale, %y_1, %y_2, -, %\"y/grad.3/moments "
              "of all ranks\") {epsilon=1e-05, frozen=0} : f32[4,3], f32[3] "
              "grad(%scale), f32[3] grad(%shift) as y/grad.3\n"
              "backward %w_grad = Mul(%h_grad, %x) : f32[4,3] grad(%w) as h/grad\n");
}

/* One in evaluation form stays as it is. */
static void test_evaluation_form(void **state)
{
    (void)state;
    static const char text[] = "input %x : f32[4,3]\n"
                               "param %scale : f32[3] = ...\n"
                               "param %shift : f32[3] = ...\n"
                               "const %mean : f32[3] = [0,1,2]\n"
                               "const %var : f32[3] = [1,1,2]\n"
                               "%y = BatchNormalization(%x, %scale, %shift, %mean, %var)\n";
    test_graph_t test = test_graph_parse(text);
    CHECK(wefti_pass_sync_batch_norm(test.graph));
    test_expect_graph(test.graph, text);
    test_graph_close(&test);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_both_directions),
        cmocka_unit_test(test_evaluation_form),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
