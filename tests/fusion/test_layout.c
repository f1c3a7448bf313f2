/* SPDX-License-Identifier: Apache-2.0 */
#include "fusion/passes/passes.h"
#include "tests/support/support_text.h"

static weft_status_t layout(wefti_graph_t *graph, void *user)
{
    (void)user;
    return wefti_pass_layout(graph);
}

/* The input itself stays as the caller knows it; a Reshape runs first and turns it. */
static void test_layout_takes_pools_of_many_channels(void **state)
{
    (void)state;
    test_pass(layout, NULL,
              "input %x : f32[8,32,16,16]\n"
              "%a = MaxPool(%x) {kernel_shape=[2,2]}\n"
              "%b = Relu(%a)\n"
              "%c = AveragePool(%b) {kernel_shape=[2,2]}\n"
              "%d = Flatten(%c)\n",
              "input %x : f32[8,32,16,16]\n"
              "const %x.shape : i64[4] = [8,32,16,16]\n"
              "%Reshape_4 = Reshape(%x, %x.shape) : f32[8,32,16,16]nhwc\n"
              "%a = MaxPool(%Reshape_4) {kernel_shape=[2,2]} : f32[8,32,15,15]nhwc\n"
              "%b = Relu(%a) : f32[8,32,15,15]nhwc\n"
              "%c = AveragePool(%b) {kernel_shape=[2,2]} : f32[8,32,14,14]nhwc\n"
              "%d = Flatten(%c) : f32[8,6272]\n");
}

/* Few channels; no window; windows that do not overlap, which are quick in plain layout; a reader
 * that knows plain layout only; one that broadcasts; one that the caller reads. */
static void test_layout_leaves_what_would_not_gain(void **state)
{
    static const char *const texts[] = {
        "input %x : f32[8,2,16,16]\n"
        "%a = MaxPool(%x) {kernel_shape=[2,2]}\n",
        "input %x : f32[8,64,16,16]\n"
        "%a = Relu(%x)\n",
        "input %x : f32[8,32,16,16]\n"
        "%a = MaxPool(%x) {kernel_shape=[2,2], strides=[2,2], pads=[0,0,0,0]}\n",
        "input %x : f32[8,32,16,16]\n"
        "%a = MaxPool(%x) {kernel_shape=[2,2]}\n"
        "%b = Transpose(%a)\n",
        "input %x : f32[8,32,16,16]\n"
        "param %bias : f32[32,1,1]\n"
        "%a = MaxPool(%x) {kernel_shape=[2,2]}\n"
        "%b = Add(%a, %bias)\n",
        "input %x : f32[8,32,16,16]\n"
        "%a = MaxPool(%x) {kernel_shape=[2,2]}\n"
        "output %a\n"};
    (void)state;
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        test_pass(layout, NULL, texts[i], texts[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layout_takes_pools_of_many_channels),
        cmocka_unit_test(test_layout_leaves_what_would_not_gain),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
