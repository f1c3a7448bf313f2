/* SPDX-License-Identifier: Apache-2.0 */
/* Fusions of kernels: graph in, graph out. */
#include "fusion/passes/passes.h"
#include "tests/support/support_text.h"

#include <stdio.h>

static weft_status_t fuse(wefti_graph_t *graph, void *user)
{
    (void)user;
    return wefti_pass_fuse_elementwise(graph);
}

/* Bias, activation and residual; a result that another node reads later is an output. */
static void test_chain(void **state)
{
    (void)state;
    test_pass(fuse, NULL,
              "input %x : f32[4,8]\n"
              "param %w : f32[8,8] = ...\n"
              "param %b : f32[8] = ...\n"
              "%p = MatMul(%x, %w)\n"
              "%h = Add(%p, %b)\n"
              "%g = Gelu(%h) {approximate=\"tanh\"}\n"
              "%y = Add(%g, %x)\n"
              "%q = MatMul(%y, %w)\n"
              "%z = MatMul(%h, %w)\n",
              "input %x : f32[4,8]\n"
              "param %w : f32[8,8]\n"
              "param %b : f32[8]\n"
              "%p = MatMul(%x, %w) : f32[4,8]\n"
              "%y, %h = weft::Fused(%p, %b, %x) {steps=[\"Add\",\"Gelu:tanh\",\"Add\"], "
              "operands=[0,1,3,-1,4,2], numbers=[0.0,0.0,0.0,0.0,0.0,0.0], results=[2,0]} : "
              "f32[4,8], f32[4,8] as y/fused\n"
              "%q = MatMul(%y, %w) : f32[4,8]\n"
              "%z = MatMul(%h, %w) : f32[4,8]\n");
}

/* Nodes that read %h before %y stay in front of it, gradients are no members, other shapes and
 * types neither. */
static void test_what_stays(void **state)
{
    static const char text[] = "input %x : f32[4,8]\n"
                               "input %i : i64[8]\n"
                               "param %w : f32[8,8] = ...\n"
                               "param %v : f32[4,8] = ...\n"
                               "%a = Relu(%x) : f32[4,8]\n"
                               "%q = MatMul(%a, %w) : f32[4,8]\n"
                               "%b = Mul(%q, %a) : f32[4,8]\n"
                               "%v_grad = Neg(%b) : f32[4,8] grad(%v)\n"
                               "%c = Neg(%i) : i64[8]\n"
                               "%d = Abs(%c) : i64[8]\n"
                               "%r = ReduceSum(%v_grad) : f32[1,1]\n"
                               "%s = Neg(%r) : f32[1,1]\n"
                               "%t = Add(%s, %q) : f32[4,8]\n";
    (void)state;
    test_pass(fuse, NULL, text, text);
}

/* Add waits for a product. Both its inputs would live as long, in place of one result. */
static void test_memory_does_not_grow(void **state)
{
    static const char text[] = "input %x : f32[4,8]\n"
                               "param %w : f32[8,8] = ...\n"
                               "%a = MatMul(%x, %w) : f32[4,8]\n"
                               "%b = MatMul(%a, %w) : f32[4,8]\n"
                               "%c = Add(%a, %b) : f32[4,8]\n"
                               "%d = MatMul(%x, %w) : f32[4,8]\n"
                               "%e = Add(%c, %d) : f32[4,8]\n";
    (void)state;
    test_pass(fuse, NULL, text, text);
}

static weft_status_t fuse_normalization(wefti_graph_t *graph, void *user)
{
    (void)user;
    return wefti_pass_fuse_normalization(graph);
}

/* The residual and the Relu become part of the operator, ReluGrad of its gradient. */
static void test_normalization_takes_its_neighbours(void **state)
{
    (void)state;
    test_pass(fuse_normalization, NULL,
              "input %x : f32[4,3]\n"
              "input %r : f32[4,3]\n"
              "param %s : f32[3] = ...\n"
              "%y, %m, %v = weft::BatchNormTraining(%x, %s, %s, %s, %s)\n"
              "%a = Add(%r, %y)\n"
              "%z = Relu(%a)\n"
              "%u, %n, %w = weft::BatchNormTraining(%z, %s, %s, %s, %s)\n"
              "%t = Relu(%u)\n"
              "%g = Neg(%t)\n"
              "backward %h = com.microsoft::ReluGrad(%g, %t)\n"
              "backward %dz, %ds, %db = weft::BatchNormGrad(%h, %z, %s, %n, %w)\n",
              "input %x : f32[4,3]\n"
              "input %r : f32[4,3]\n"
              "param %s : f32[3]\n"
              "%z, %m, %v = weft::BatchNormTraining(%x, %s, %s, %s, %s, %r) "
              "{activation=\"Relu\"} : f32[4,3], f32[3], f32[3] as y\n"
              "%t, %n, %w = weft::BatchNormTraining(%z, %s, %s, %s, %s) "
              "{activation=\"Relu\"} : f32[4,3], f32[3], f32[3] as u\n"
              "%g = Neg(%t) : f32[4,3]\n"
              "backward %dz, %ds, %db = weft::BatchNormGrad(%g, %z, %s, %n, %w, %t) : "
              "f32[4,3], f32[3], f32[3]\n");
}

/* Results that other nodes read, a residual of another shape, and one that is computed later. */
static void test_normalization_that_stays(void **state)
{
    static const char text[] =
        "input %x : f32[4,3]\n"
        "param %s : f32[3] = ...\n"
        "%y, %m, %v = weft::BatchNormTraining(%x, %s, %s, %s, %s) : f32[4,3], f32[3], f32[3]\n"
        "%z = Relu(%y) : f32[4,3]\n"
        "%n = Neg(%y) : f32[4,3]\n"
        "%h = com.microsoft::ReluGrad(%n, %z) : f32[4,3]\n"
        "%o = Neg(%h) : f32[4,3]\n"
        "%dx, %ds, %db = weft::BatchNormGrad(%h, %x, %s, %m, %v) : f32[4,3], f32[3], f32[3]\n"
        "%a, %k, %l = weft::BatchNormTraining(%o, %s, %s, %s, %s) : f32[4,3], f32[3], f32[3]\n"
        "%b = Add(%a, %s) : f32[4,3]\n"
        "%c, %p, %q = weft::BatchNormTraining(%b, %s, %s, %s, %s) : f32[4,3], f32[3], f32[3]\n"
        "%d = Neg(%b) : f32[4,3]\n"
        "%e = Add(%c, %d) : f32[4,3]\n";
    (void)state;
    test_pass(fuse_normalization, NULL, text, text);
}

static weft_status_t convert_again(wefti_graph_t *graph, void *user)
{
    (void)user;
    return wefti_pass_convert_again(graph);
}

/* Weights, and f32 copies of activations, but no half copies of f32 activations. */
static void test_backward_pass_converts_again(void **state)
{
    (void)state;
    test_pass(convert_again, NULL,
              "input %x : bf16[4,8]\n"
              "param %w : f32[8,8] = ...\n"
              "%h = Cast(%w) {to=16}\n"
              "%y = MatMul(%x, %h)\n"
              "%f = Cast(%y) {to=1}\n"
              "%e = Exp(%f)\n"
              "%n = Cast(%e) {to=16}\n"
              "%m = Neg(%n)\n"
              "backward %a = Mul(%m, %n)\n"
              "backward %b = Mul(%e, %f)\n"
              "backward %c = MatMul(%a, %h)\n",
              "input %x : bf16[4,8]\n"
              "param %w : f32[8,8]\n"
              "%h = Cast(%w) {to=16} : bf16[8,8]\n"
              "%y = MatMul(%x, %h) : bf16[4,8]\n"
              "%f = Cast(%y) {to=1} : f32[4,8]\n"
              "%e = Exp(%f) : f32[4,8]\n"
              "%n = Cast(%e) {to=16} : bf16[4,8]\n"
              "%m = Neg(%n) : bf16[4,8]\n"
              "backward %a = Mul(%m, %n) : bf16[4,8]\n"
              "backward %f/again = Cast(%y) {to=1} : f32[4,8]\n"
              "backward %b = Mul(%e, %f/again) : f32[4,8]\n"
              "backward %h/again = Cast(%w) {to=16} : bf16[8,8]\n"
              "backward %c = MatMul(%a, %h/again) : bf16[4,8]\n");
}

static weft_status_t absorb(wefti_graph_t *graph, void *user)
{
    (void)user;
    return wefti_pass_absorb_transposes(graph);
}

/* A linear layer of torch, and the gradient of its weight. %u has another reader. */
static void test_products_absorb_transposes(void **state)
{
    (void)state;
    test_pass(absorb, NULL,
              "input %x : f32[2,4,8]\n"
              "input %k : f32[2,4,8]\n"
              "input %dy : f32[8,5]\n"
              "param %w : f32[5,8] = ...\n"
              "param %v : f32[8,8] = ...\n"
              "%t = Transpose(%w) {perm=[1,0]}\n"
              "%u = Transpose(%v) {perm=[1,0]}\n"
              "%y = MatMul(%x, %t)\n"
              "%r = Relu(%u)\n"
              "%z = MatMul(%x, %u)\n"
              "%kt = Transpose(%k) {perm=[0,2,1]}\n"
              "%s = MatMul(%x, %kt)\n"
              "%back = Gemm(%dy, %t) {transB=1}\n"
              "%p = Gemm(%r, %dy) {transA=1}\n"
              "%w_grad = Transpose(%p) {perm=[1,0]} : f32[5,8] grad(%w)\n",
              "input %x : f32[2,4,8]\n"
              "input %k : f32[2,4,8]\n"
              "input %dy : f32[8,5]\n"
              "param %w : f32[5,8]\n"
              "param %v : f32[8,8]\n"
              "%u = Transpose(%v) {perm=[1,0]} : f32[8,8]\n"
              "%y = com.microsoft::FusedMatMul(%x, %w) {transA=0, transB=1} : f32[2,4,5]\n"
              "%r = Relu(%u) : f32[8,8]\n"
              "%z = MatMul(%x, %u) : f32[2,4,8]\n"
              "%s = com.microsoft::FusedMatMul(%x, %k) {transA=0, transB=1} : f32[2,4,4]\n"
              "%back = Gemm(%dy, %w) {transB=0, transA=0} : f32[8,8]\n"
              "%w_grad = Gemm(%dy, %r) {transA=1, transB=0} : f32[5,8] grad(%w) as p\n");
}

static weft_status_t fuse_attention(wefti_graph_t *graph, void *user)
{
    return wefti_pass_fuse_attention(graph, user != NULL);
}

static bool trains = true;

/* What dynamo writes: a scale on both sides, heads and tokens exchanged, rows without keys 0. */
static void test_attention_of_an_export(void **state)
{
    (void)state;
    test_pass(fuse_attention, &trains,
              "input %mask : f32[2,1,1,4]\n"
              "param %x : f32[2,4,3,8] = ...\n"
              "const %c : f32[] = 0.5\n"
              "const %zero : f32[] = 0\n"
              "const %flat : i64[3] = [6,4,8]\n"
              "const %heads : i64[4] = [2,3,8,4]\n"
              "%q = Transpose(%x) {perm=[0,2,1,3]}\n"
              "%k0 = Transpose(%x) {perm=[0,2,1,3]}\n"
              "%k1 = Reshape(%k0, %flat)\n"
              "%k2 = Transpose(%k1) {perm=[0,2,1]}\n"
              "%k3 = Reshape(%k2, %heads)\n"
              "%v = Transpose(%x) {perm=[0,2,1,3]}\n"
              "%q1 = Mul(%q, %c)\n"
              "%k4 = Mul(%k3, %c)\n"
              "%s = MatMul(%q1, %k4)\n"
              "%s1 = Add(%s, %mask)\n"
              "%p = Softmax(%s1) {axis=-1}\n"
              "%n = IsNaN(%p)\n"
              "%p1 = Where(%n, %zero, %p)\n"
              "%y0 = MatMul(%p1, %v)\n"
              "%y = Transpose(%y0) {perm=[0,2,1,3]}\n"
              "%z = Relu(%y) : f32[2,4,3,8] logits\n",
              "input %mask : f32[2,1,1,4]\n"
              "param %x : f32[2,4,3,8]\n"
              "const %c : f32[] = 0.5\n"
              "const %zero : f32[] = 0\n"
              "const %flat : i64[3] = [6,4,8]\n"
              "const %heads : i64[4] = [2,3,8,4]\n"
              "%y, %y/attention_1 = weft::FlashAttention(%x, %x, %x, %mask) {scale=0.25, causal=0, "
              "past=0, tokens_first=15} : f32[2,4,3,8], f32[2,3,4] as y/attention\n"
              "%z = Relu(%y) : f32[2,4,3,8] logits\n");
}

/* A constant that hides later keys is an order; heads of Q share those of K and V. */
static void test_causal_attention(void **state)
{
    (void)state;
    test_pass(fuse_attention, NULL,
              "input %q : f32[1,4,2,8]\n"
              "input %k : f32[1,2,3,8]\n"
              "input %v : f32[1,2,3,8]\n"
              "const %c : f32[] = 4\n"
              "const %order : f32[2,3] = [0,0,-inf,0,0,0]\n"
              "const %joined : i64[4] = [1,2,4,8]\n"
              "const %shares : i64[4] = [1,2,4,3]\n"
              "const %apart : i64[4] = [1,4,2,3]\n"
              "const %result : i64[4] = [1,4,2,8]\n"
              "%q1 = Reshape(%q, %joined)\n"
              "%kt = Transpose(%k) {perm=[0,1,3,2]}\n"
              "%s = MatMul(%q1, %kt)\n"
              "%s1 = Reshape(%s, %apart)\n"
              "%s2 = Div(%s1, %c)\n"
              "%s3 = Add(%order, %s2)\n"
              "%p = Softmax(%s3)\n"
              "%p1 = Reshape(%p, %shares)\n"
              "%y0 = MatMul(%p1, %v)\n"
              "%y = Reshape(%y0, %result) : f32[1,4,2,8] logits\n",
              "input %q : f32[1,4,2,8]\n"
              "input %k : f32[1,2,3,8]\n"
              "input %v : f32[1,2,3,8]\n"
              "const %c : f32[] = 4\n"
              "const %order : f32[2,3] = [0,0,-inf,0,0,0]\n"
              "const %joined : i64[4] = [1,2,4,8]\n"
              "const %shares : i64[4] = [1,2,4,3]\n"
              "const %apart : i64[4] = [1,4,2,3]\n"
              "const %result : i64[4] = [1,4,2,8]\n"
              "%y = weft::FlashAttention(%q, %k, %v) {scale=0.25, causal=1, past=1, "
              "tokens_first=0} : f32[1,4,2,8] logits as y/attention\n");
}

/* Softmax of finite biases is the mean where they hide all keys, so they are no order. */
static void test_order_without_a_first_key(void **state)
{
    static const char inputs[] = "input %q : f32[1,1,2,8]\n"
                                 "input %k : f32[1,1,2,8]\n"
                                 "input %v : f32[1,1,2,8]\n"
                                 "const %order : f32[2,2] = [-3e+38,-3e+38,0,-3e+38]\n";
    char before[1024], after[1024];
    (void)state;
    snprintf(before, sizeof(before),
             "%s%%kt = Transpose(%%k) {perm=[0,1,3,2]}\n%%s = MatMul(%%q, %%kt)\n"
             "%%s1 = Add(%%s, %%order)\n%%p = Softmax(%%s1)\n"
             "%%y = MatMul(%%p, %%v) : f32[1,1,2,8] logits\n",
             inputs);
    snprintf(after, sizeof(after),
             "%s%%y = weft::FlashAttention(%%q, %%k, %%v, %%order) {scale=1, causal=0, past=0, "
             "tokens_first=0} : f32[1,1,2,8] logits as y/attention\n",
             inputs);
    test_pass(fuse_attention, NULL, before, after);
}

/* A bias with a gradient, and scores that another node reads. */
static void test_attention_that_stays(void **state)
{
    static const char biased[] = "param %b : f32[4,4] = ...\n"
                                 "param %q : f32[1,2,4,8] = ...\n"
                                 "param %k : f32[1,2,8,4] = ...\n"
                                 "%s = MatMul(%q, %k) : f32[1,2,4,4]\n"
                                 "%s1 = Add(%s, %b) : f32[1,2,4,4]\n"
                                 "%p = Softmax(%s1) {axis=-1} : f32[1,2,4,4]\n"
                                 "%y = MatMul(%p, %q) : f32[1,2,4,8]\n";
    static const char read[] = "param %q : f32[1,2,4,8] = ...\n"
                               "%kt = Transpose(%q) {perm=[0,1,3,2]} : f32[1,2,8,4]\n"
                               "%s = MatMul(%q, %kt) : f32[1,2,4,4]\n"
                               "%p = Softmax(%s) {axis=-1} : f32[1,2,4,4] logits\n"
                               "%y = MatMul(%p, %q) : f32[1,2,4,8]\n";
    (void)state;
    test_pass(fuse_attention, &trains, biased, biased);
    test_pass(fuse_attention, &trains, read, read);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chain),
        cmocka_unit_test(test_what_stays),
        cmocka_unit_test(test_memory_does_not_grow),
        cmocka_unit_test(test_normalization_takes_its_neighbours),
        cmocka_unit_test(test_normalization_that_stays),
        cmocka_unit_test(test_backward_pass_converts_again),
        cmocka_unit_test(test_products_absorb_transposes),
        cmocka_unit_test(test_attention_of_an_export),
        cmocka_unit_test(test_causal_attention),
        cmocka_unit_test(test_order_without_a_first_key),
        cmocka_unit_test(test_attention_that_stays),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
