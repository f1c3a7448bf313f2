/* SPDX-License-Identifier: Apache-2.0 */
/* Constant folding: each rule with numbers worked out by hand, what exporters write, and what must
 * not fold. */
#include "tests/support/support_text.h"

static weft_status_t fold(wefti_graph_t *graph, void *user)
{
    (void)user;
    return wefti_graph_fold_constants(graph);
}

static weft_status_t bind_batch_32(wefti_graph_t *graph, void *user)
{
    (void)user;
    return wefti_graph_bind_shapes(graph, 32, NULL, 0);
}

/* x.view(x.size(0), -1) as torch writes it: Shape, Gather, Unsqueeze, Concat, Reshape. */
static void exporters_view(void **state)
{
    (void)state;
    test_pass(bind_batch_32, NULL,
              "input %x : f32[batch,3,4]\n"
              "const %zero : i64[] = 0\n"
              "const %axis : i64[1] = 0\n"
              "const %rest : i64[1] = -1\n"
              "%shape = Shape(%x)\n"
              "%size = Gather(%shape, %zero)\n"
              "%list = Unsqueeze(%size, %axis)\n"
              "%target = Concat(%list, %rest) {axis=0}\n"
              "%y = Reshape(%x, %target)\n",
              "graph graph opset 0 batch 32\n"
              "input %x : f32[32,3,4]\n"
              "const %zero : i64[] = 0\n"
              "const %axis : i64[1] = 0\n"
              "const %rest : i64[1] = -1\n"
              "const %shape : i64[3] = [32,3,4]\n"
              "const %size : i64[] = 32\n"
              "const %list : i64[1] = 32\n"
              "const %target : i64[2] = [32,-1]\n"
              "%y = Reshape(%x, %target) : f32[32,12]\n");
}

static void movement(void **state)
{
    (void)state;
    test_pass(fold, NULL,
              "const %m : i64[2,3] = [1,2,3,4,5,6]\n"
              "const %pick : i64[2] = [2,-3]\n"
              "const %starts : i64[2] = [-1,3]\n"
              "const %ends : i64[2] = [-100,0]\n"
              "const %axes : i64[2] = [0,1]\n"
              "const %steps : i64[2] = [-1,-2]\n"
              "%columns = Gather(%m, %pick) {axis=1}\n"
              "%wide = Concat(%m, %columns) {axis=1}\n"
              "%back = Slice(%wide, %starts, %ends, %axes, %steps)\n"
              "%flat = Flatten(%back)\n"
              "%same = Identity(%flat)\n",
              "const %m : i64[2,3] = [1,2,3,4,5,6]\n"
              "const %pick : i64[2] = [2,-3]\n"
              "const %starts : i64[2] = [-1,3]\n"
              "const %ends : i64[2] = [-100,0]\n"
              "const %axes : i64[2] = [0,1]\n"
              "const %steps : i64[2] = [-1,-2]\n"
              "const %columns : i64[2,2] = [3,1,6,4]\n"
              "const %wide : i64[2,5] = [1,2,3,3,1,4,5,6,6,4]\n"
              "const %back : i64[2,2] = [6,5,3,2]\n" /* rows 1, 0; columns 3, 1 */
              "const %flat : i64[2,2] = [6,5,3,2]\n"
              "const %same : i64[2,2] = [6,5,3,2]\n");
}

static void arithmetic_and_casts(void **state)
{
    (void)state;
    test_pass(fold, NULL,
              "const %a : i64[2,1] = [10,-7]\n"
              "const %b : i64[3] = [2,3,-4]\n"
              "const %half : f32[] = 0.5\n"
              "%sum = Add(%a, %b)\n"
              "%difference = Sub(%a, %b)\n"
              "%product = Mul(%a, %b)\n"
              "%f = Cast(%b) {to=1}\n"
              "%scaled = Mul(%f, %half)\n"
              "%whole = Cast(%scaled) {to=7}\n",
              "const %a : i64[2,1] = [10,-7]\n"
              "const %b : i64[3] = [2,3,-4]\n"
              "const %half : f32[] = 0.5\n"
              "const %sum : i64[2,3] = [12,13,6,-5,-4,-11]\n"
              "const %difference : i64[2,3] = [8,7,14,-9,-10,-3]\n"
              "const %product : i64[2,3] = [20,30,-40,-14,-21,28]\n"
              "const %f : f32[3] = [2,3,-4]\n"
              "const %scaled : f32[3] = [1,1.5,-2]\n"
              "const %whole : i64[3] = [1,1,-2]\n");
}

/* What torch writes around masks and positions: all of it becomes one constant. */
static void exporters_mask(void **state)
{
    (void)state;
    test_pass(fold, NULL,
              "const %zero : i64[] = 0\n"
              "const %three : i64[] = 3\n"
              "const %one : i64[] = 1\n"
              "const %shape : i64[2] = [3,3]\n"
              "const %column : i64[2] = [3,1]\n"
              "const %low : f32[] = -10\n"
              "const %none : f32[] = 0\n"
              "const %two : f32[] = 2\n"
              "param %weight : f32[2] = [1,2]\n"
              "%computed = Neg(%weight)\n"
              "%position = Range(%zero, %three, %one)\n"
              "%row = Reshape(%position, %column)\n"
              "%causal = LessOrEqual(%position, %row)\n"
              "%wide = Expand(%causal, %shape)\n"
              "%same = Equal(%position, %row)\n"
              "%other = Not(%same)\n"
              "%past = And(%wide, %other)\n"
              "%mask = Where(%past, %none, %low)\n"
              "%angle = CastLike(%position, %low)\n"
              "%largest = Max(%angle, %two)\n"
              "%typed = CastLike(%two, %computed)\n",
              "const %zero : i64[] = 0\n"
              "const %three : i64[] = 3\n"
              "const %one : i64[] = 1\n"
              "const %shape : i64[2] = [3,3]\n"
              "const %column : i64[2] = [3,1]\n"
              "const %low : f32[] = -10\n"
              "const %none : f32[] = 0\n"
              "const %two : f32[] = 2\n"
              "param %weight : f32[2] = [1,2]\n"
              "const %position : i64[3] = [0,1,2]\n"
              "const %row : i64[3,1] = [0,1,2]\n"
              "const %causal : bool[3,3] = [1,0,0,1,1,0,1,1,1]\n"
              "const %wide : bool[3,3] = [1,0,0,1,1,0,1,1,1]\n"
              "const %same : bool[3,3] = [1,0,0,0,1,0,0,0,1]\n"
              "const %other : bool[3,3] = [0,1,1,1,0,1,1,1,0]\n"
              "const %past : bool[3,3] = [0,0,0,1,0,0,1,1,0]\n"
              "const %mask : f32[3,3] = [-10,-10,-10,0,-10,-10,0,0,-10]\n"
              "const %angle : f32[3] = [0,1,2]\n"
              "const %largest : f32[3] = [2,2,2]\n"
              "const %typed : f32[] = 2\n"
              "%computed = Neg(%weight)\n");
}

/* Parameters, errors of kernels, and what exceeds the bounds. */
static void what_does_not_fold(void **state)
{
    static const char text[] = "param %p : f32[1] = 1\n"
                               "const %big : i64[1] = 9223372036854775807\n"
                               "const %one : i64[1] = 1\n"
                               "const %none : i64[1] = 0\n"
                               "const %many : i64[2] = [1024,2048]\n"
                               "%trained = Identity(%p)\n"
                               "%outside = Gather(%one, %big)\n"
                               "%divided = Div(%one, %none)\n"
                               "%more = Expand(%one, %many)\n";
    (void)state;
    test_pass(fold, NULL, text, text);
}

/* Dimensions whose product overflows although there are no elements. */
static void hostile_dimensions(void **state)
{
    weft_tensor_desc_t type = {.dtype = WEFT_DTYPE_I64,
                               .rank = 4,
                               .dims = {INT64_MAX, INT64_MAX, 0, 2},
                               .data = "01234567"};
    uint32_t x, node;
    (void)state;
    test_graph_t test = test_graph_parse("const %none : i64[1] = 0\n");
    CHECK(wefti_graph_add_value(test.graph, "x", WEFTI_VALUE_CONST, &type, &x));
    static const char *const ops[] = {"Gather", "Shape", "Identity"};
    for (int i = 0; i < 3; i++) {
        const weft_attr_t axis = {.name = "axis", .type = WEFT_ATTR_TYPE_INT, .i = 2};
        wefti_node_params_t params = {.op = ops[i],
                                      .inputs = (const uint32_t[]){x, 0},
                                      .input_count = i == 0 ? 2 : 1,
                                      .output_count = 1,
                                      .attrs = &axis,
                                      .attr_count = i == 0};
        CHECK(wefti_graph_add_node(test.graph, &params, &node));
    }
    CHECK(wefti_graph_fold_constants(test.graph));
    test_graph_close(&test);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exporters_view),       cmocka_unit_test(movement),
        cmocka_unit_test(arithmetic_and_casts), cmocka_unit_test(exporters_mask),
        cmocka_unit_test(what_does_not_fold),   cmocka_unit_test(hostile_dimensions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
