/* SPDX-License-Identifier: Apache-2.0 */
/* Which Dropout drops, what it becomes, and what is refused. */
#include "fusion/passes/passes.h"
#include "tests/support/support_text.h"

#include <stdio.h>

static weft_status_t expand(wefti_graph_t *graph, void *user)
{
    (void)user;
    return wefti_pass_expand_dropout(graph, false);
}

static weft_status_t expand_twice(wefti_graph_t *graph, void *user)
{
    CHECK(expand(graph, user));
    return expand(graph, user);
}

/* The ratio by input in four types, by default, and by attribute; %h drops a parameter, on which
 * ranks agree. */
static void training_forms(void **state)
{
    (void)state;
    test_pass(expand_twice, NULL,
              "input %x : f32[3,4]\n"
              "param %w : f32[3,4]\n"
              "const %on : bool[] = 1\n"
              "const %r64 : f64[] = 0.25\n"
              "const %r32 : f32[] = 0.25\n"
              "const %r16 : f16[] = 0.25\n"
              "const %rb16 : bf16[] = 0.25\n"
              "%a = Dropout(%x, %r64, %on)\n"
              "%b, %b.mask = Dropout(%x, %r32, %on)\n"
              "%c = Dropout(%x, %r16, %on)\n"
              "%d, %d.mask = Dropout(%x, %rb16, %on)\n"
              "%e = Dropout(%x, -, %on)\n"
              "%f = Dropout@7(%x) {ratio=0.75}\n"
              "%g = Dropout@11(%x) {ratio=0.125}\n"
              "%h = Dropout(%w, -, %on)\n",
              "input %x : f32[3,4]\n"
              "param %w : f32[3,4]\n"
              "const %on : bool[] = 1\n"
              "const %r64 : f64[] = 0.25\n"
              "const %r32 : f32[] = 0.25\n"
              "const %r16 : f16[] = 0.25\n"
              "const %rb16 : bf16[] = 0.25\n"
              "scalar %seed : i64[] = 0\n"
              "scalar %step : f32[] = 1\n"
              "scalar %rank : i64[] = 0\n"
              "%a = weft::DropoutMask(%x, %seed, %step, %rank) {ratio=0.25, salt=0} : f32[3,4]\n"
              "%b, %b.mask = weft::DropoutMask(%x, %seed, %step, %rank) {ratio=0.25, salt=1} : "
              "f32[3,4], u8[3,4]\n"
              "%c = weft::DropoutMask(%x, %seed, %step, %rank) {ratio=0.25, salt=2} : f32[3,4]\n"
              "%d, %d.mask = weft::DropoutMask(%x, %seed, %step, %rank) {ratio=0.25, salt=3} : "
              "f32[3,4], u8[3,4]\n"
              "%e = weft::DropoutMask(%x, %seed, %step, %rank) {ratio=0.5, salt=4} : f32[3,4]\n"
              "%f = weft::DropoutMask(%x, %seed, %step, %rank) {ratio=0.75, salt=5} : f32[3,4]\n"
              "%g = weft::DropoutMask(%x, %seed, %step, %rank) {ratio=0.125, salt=6} : f32[3,4]\n"
              "%h = weft::DropoutMask(%w, %seed, %step) {ratio=0.5, salt=7} : f32[3,4]\n");
}

static void inference_forms(void **state)
{
    (void)state;
    test_pass(expand, NULL,
              "input %x : f32[3,4]\n"
              "input %fed : f32[1]\n"
              "const %off : bool[] = 0\n"
              "const %r : f32[] = 3\n" /* of no meaning here */
              "%a = Dropout(%x)\n"
              "%b, %mask = Dropout(%x, %r, %off)\n"
              "%c = Dropout(%x, %fed, %off)\n",
              "input %x : f32[3,4]\n"
              "input %fed : f32[1]\n"
              "const %off : bool[] = 0\n"
              "const %r : f32[] = 3\n"
              "%a = Dropout(%x)\n"
              "%b, %mask = Dropout(%x)\n"
              "%c = Dropout(%x)\n");
}

static void refusals(void **state)
{
    static const char *const ratios[] = {"-0.5", "1.0", "2.0", "nan"};
    char text[256];
    (void)state;
    for (int i = 0; i < 4; i++) {
        snprintf(text, sizeof(text), "input %%x : f32[3,4]\n%%a = Dropout@10(%%x) {ratio=%s}\n",
                 ratios[i]);
        test_pass_error(expand, NULL, text, WEFT_ERR_INVALID_ARGUMENT, "at least 0 and below 1");
        snprintf(text, sizeof(text),
                 "input %%x : f32[3,4]\nconst %%on : bool[] = 1\nconst %%r : f32[] = %s\n"
                 "%%a = Dropout(%%x, %%r, %%on)\n",
                 ratios[i]);
        test_pass_error(expand, NULL, text, WEFT_ERR_INVALID_ARGUMENT, "at least 0 and below 1");
    }
    test_pass_error(expand, NULL,
                    "input %x : f32[3,4]\n"
                    "input %mode : bool[]\n"
                    "%a = Dropout(%x, -, %mode)\n",
                    WEFT_ERR_UNSUPPORTED, "training_mode must be a constant");
    test_pass_error(expand, NULL,
                    "input %x : f32[3,4]\n"
                    "input %r : f32[]\n"
                    "const %on : bool[] = 1\n"
                    "%a = Dropout(%x, %r, %on)\n",
                    WEFT_ERR_UNSUPPORTED, "ratio must be a constant");
    test_pass_error(expand, NULL,
                    "input %x : f32[3,4]\n"
                    "const %on : bool[] = 1\n"
                    "%a, %mask = Dropout(%x, -, %on)\n"
                    "output %mask\n",
                    WEFT_ERR_UNSUPPORTED, "readers of the mask");
    test_pass_error(expand, NULL,
                    "input %x : f32[3,4]\n"
                    "input %seed : f32[2]\n"
                    "%a = Dropout@7(%x) {ratio=0.5}\n",
                    WEFT_ERR_UNSUPPORTED,
                    "tensor 'seed': the name is reserved for a scalar input of the plan");
}

static weft_status_t train_with_adam(wefti_graph_t *graph, void *user)
{
    const wefti_optimizer_params_t params = {
        .kind = WEFTI_OPTIMIZER_ADAM, .lr = 0.1, .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8};
    CHECK(expand(graph, user));
    CHECK(wefti_graph_differentiate(graph));
    CHECK(wefti_pass_optimizer(graph, &params, WEFTI_NONE));
    return wefti_graph_sort(graph);
}

/* Dropout and Adam count the same steps; a tensor of the model called "rank" steps aside. */
static void scalars_are_shared(void **state)
{
    (void)state;
    test_pass(train_with_adam, NULL,
              "input %x : f32[3,4]\n"
              "param %w : f32[3,4]\n"
              "input %label : i64[3] label\n"
              "%rank = Mul(%x, %w)\n"
              "%a = Dropout@7(%rank) {ratio=0.5}\n"
              "%b = Dropout@7(%a) {ratio=0.5} : logits\n"
              "%loss = SoftmaxCrossEntropyLoss(%b, %label) : loss\n"
              "output %loss\n",
              "input %x : f32[3,4]\n"
              "param %w : f32[3,4]\n"
              "input %label : i64[3] label\n"
              "scalar %seed : i64[] = 0\n"
              "scalar %step : f32[] = 1\n"
              "scalar %rank : i64[] = 0\n"
              "const %loss_grad : f32[] = 1\n"
              "scalar %lr : f32[] = 0.1\n"
              "state %w_moment1 : f32[3,4] of %w\n"
              "state %w_moment2 : f32[3,4] of %w\n"
              "%rank.model = Mul(%x, %w) : f32[3,4] as rank\n"
              "%a, %a_1 = weft::DropoutMask(%rank.model, %seed, %step, %rank) {ratio=0.5, salt=0} "
              ": f32[3,4], u8[3,4]\n"
              "%b, %b_1 = weft::DropoutMask(%a, %seed, %step, %rank) {ratio=0.5, salt=1} : "
              "f32[3,4] logits, u8[3,4]\n"
              "%loss, %loss_1 = SoftmaxCrossEntropyLoss(%b, %label) : f32[] loss, f32[3,4]\n"
              "backward %b_grad = com.microsoft::SoftmaxCrossEntropyLossGrad(%loss_grad, %loss_1, "
              "%label) : f32[3,4] as loss/grad\n"
              "backward %a_grad = weft::DropoutGrad(%b_grad, %b_1) {ratio=0.5} : f32[3,4] as "
              "b/grad\n"
              "backward %rank.model_grad = weft::DropoutGrad(%a_grad, %a_1) {ratio=0.5} : "
              "f32[3,4] as a/grad\n"
              "backward %w_grad = Mul(%rank.model_grad, %x) : f32[3,4] grad(%w) as rank/grad\n"
              "update %w_new, %w_moment1_new, %w_moment2_new = weft::Adam(%w, %w_grad, "
              "%w_moment1, %w_moment2, %lr, %step) {weight_decay=0.0, beta1=0.9, beta2=0.999, "
              "epsilon=1e-08} : f32[3,4], f32[3,4], f32[3,4] as w/update\n"
              "output %loss\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(training_forms),
        cmocka_unit_test(inference_forms),
        cmocka_unit_test(refusals),
        cmocka_unit_test(scalars_are_shared),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
