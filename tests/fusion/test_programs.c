/* SPDX-License-Identifier: Apache-2.0 */
/* Programs, partial sums and the wire type: graph in, graph out. */
#include <stdio.h>
#include <string.h>

#include "fusion/passes/passes.h"
#include "tests/support/support_text.h"

#define VALUES                                                                                     \
    "param %w : f32[2] = [1,2]\n"                                                                  \
    "input %x : f32[2]\n"                                                                          \
    "scalar %lr : f32[] = 0.5\n"
#define STEP                                                                                       \
    VALUES                                                                                         \
    "%y = Mul(%x, %w)\n"                                                                           \
    "backward %g = Relu(%y)\n"

static weft_status_t programs(wefti_graph_t *graph, void *user)
{
    (void)user;
    const wefti_program_params_t params = {.broadcast_weights = true};
    return wefti_pass_programs(graph, &params);
}

static weft_status_t accumulate(wefti_graph_t *graph, void *user)
{
    return wefti_pass_accumulate(graph, *(const uint32_t *)user);
}

static weft_status_t decouple(wefti_graph_t *graph, void *user)
{
    return wefti_pass_decouple(graph, *(const uint32_t *)user);
}

static weft_status_t wire(wefti_graph_t *graph, void *user)
{
    (void)user;
    return wefti_pass_wire(graph);
}

/* The collective moves in front of a kernel that it does not need; weights are broadcast. */
static void test_collectives_are_issued_early(void **state)
{
    (void)state;
    test_pass(programs, NULL,
              STEP "backward %z = Relu(%x)\n"
                   "comm %r = weft::AllReduce(%g) {reduction=\"avg\"} : f32[2] grad(%w)\n"
                   "update %w_new = weft::SGD(%w, %r, %lr)\n"
                   "output %y\noutput %z\n",
              VALUES
              "comm %w.initial = weft::Broadcast(%w) {reason=\"broadcasts the weights of rank 0\"}"
              " as \"initial weights\"\n"
              "%y = Mul(%x, %w)\n"
              "backward %g = Relu(%y)\n"
              "comm %r = weft::AllReduce(%g) {reduction=\"avg\"} : f32[2] grad(%w)\n"
              "backward %z = Relu(%x)\n"
              "update %w_new = weft::SGD(%w, %r, %lr)\n"
              "output %y\noutput %z\n"
              "program init: %w.initial\n"
              "program step: %y .. %w_new\n"
              "program eval: %y, %z\n");
}

static void test_two_micro_batches_have_one_partial_sum(void **state)
{
    uint32_t count = 2;
    (void)state;
    test_pass(accumulate, &count,
              STEP "comm %r = weft::AllReduce(%g) {reduction=\"avg\"} : f32[2] grad(%w)\n"
                   "update %w_new = weft::SGD(%w, %r, %lr)\n",
              STEP "backward %g.micro = Relu(%y) : f32[2] persistent\n"
                   "comm %g.sum = weft::TreeFold(%g, %g.micro) as \"r, sum\"\n"
                   "comm %r = weft::AllReduce(%g.sum) {reduction=\"sum\"} : f32[2] grad(%w)\n"
                   "update %w_new = weft::SGD(%w, %r, %lr)\n"
                   "program micro_step: %y, %g.micro\n");
    test_pass_error(accumulate, &count,
                    STEP "comm %r = weft::AllReduce(%g) {reduction=\"sum\"} : f32[2] grad(%w)\n"
                         "update %w_new = weft::SGD(%w, %r, %lr)\n",
                    WEFT_ERR_UNSUPPORTED, "reduction must be avg");
}

static void test_gradients_are_rounded(void **state)
{
    (void)state;
    test_pass(wire, NULL,
              STEP "comm %r = weft::AllReduce(%g) {reduction=\"sum\"} : f32[2] grad(%w)\n"
                   "update %w_new = weft::SGD(%w, %r, %lr)\n",
              STEP
              "comm %g.bf16 = weft::TreeFold(%g) {type=\"bf16\"} : bf16[2] as \"r, rounding\"\n"
              "comm %r = weft::AllReduce(%g.bf16) {reduction=\"sum\"} : bf16[2] grad(%w)\n"
              "update %w_new = weft::SGD(%w, %r, %lr)\n");
    test_pass_error(wire, NULL,
                    STEP "comm %r = weft::AllReduce(%g) {reduction=\"sum\"} : f32[2] grad(%w)\n"
                         "%n = Relu(%r)\n"
                         "output %n\n",
                    WEFT_ERR_UNSUPPORTED, "reads gradient 'g' after its reduction");
}

static void test_running_statistics_are_not_rounded(void **state)
{
    (void)state;
#define STATISTICS                                                                                 \
    "param %s : f32[2] = [1,2]\n"                                                                  \
    "param %b : f32[2] = [1,2]\n"                                                                  \
    "param %mean : f32[2] = [1,2]\n"                                                               \
    "param %var : f32[2] = [1,2]\n"                                                                \
    "input %x : f32[4,2]\n"                                                                        \
    "%y, %m, %v = weft::BatchNormTraining(%x, %s, %b, %mean, %var)\n"                              \
    "backward %g = Relu(%m)\n"
#define APART                                                                                      \
    STATISTICS                                                                                     \
    "comm %m_all, %v_all = weft::AllReduce(%m, %v) {reduction=\"avg\"} : f32[2] grad(%mean), "     \
    "f32[2] grad(%var)\n"                                                                          \
    "%z = Relu(%m_all)\n"                                                                          \
    "output %z\n"
    test_pass(wire, NULL, APART, APART);
    test_pass_error(wire, NULL,
                    STATISTICS
                    "comm %m_all, %g_all = weft::AllReduce(%m, %g) {reduction=\"avg\"} : "
                    "f32[2] grad(%mean), f32[2] grad(%s)\n",
                    WEFT_ERR_UNSUPPORTED, "reduces gradients with running statistics");
}

#define FLAT "{flat=64, group_size=2}"
#define SHARDED                                                                                    \
    "param %a : f32[2] = [1,2]\n"                                                                  \
    "param %b : f32[2] = [1,2]\n"                                                                  \
    "input %x : f32[2]\n"                                                                          \
    "scalar %lr : f32[] = 0.5\n"
#define GATHER(name, why)                                                                          \
    "comm %" name "/gather/shard = weft::Shard(%" name ") " FLAT "\n"                              \
    "comm %" name "_new = weft::AllGather(%" name "/gather/shard, %" name ") "                     \
    "{flat=64, group_size=2, reason=\"" why "\"} : f32[2] persistent as \"" name "/gather\"\n"
#define UPDATE(name, weights)                                                                      \
    "update %s" name " = weft::Shard(%" weights ") " FLAT "\n"                                     \
    "update %s" name "_new = weft::SGD(%s" name ", %g" name ", %lr)\n"
#define REDUCE                                                                                     \
    "comm %ga = weft::ReduceScatter(%z) " FLAT "\n"                                                \
    "comm %gb = weft::ReduceScatter(%y) " FLAT "\n"

/* Weights that are read first are gathered first. Readers outside of a step, such as eval, have
 * what flush gathered. */
static void test_weights_are_gathered_in_front_of_their_readers(void **state)
{
    static const struct {
        uint32_t accumulate;
        const char *micro, *programs;
    } rows[] = {
        {1, "", "program step: %b/gather/shard .. %sb_new\n"},
        {3, "program micro_step: %y\n",
         "program micro_step: %b/gather/shard .. %y\nprogram step: %y .. %sb_new\n"},
        {4, "program micro_step: %y\n", "program micro_step: %y\nprogram step: %y .. %sb_new\n"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char before[2000], after[2000];
        uint32_t accumulate = rows[i].accumulate;
        snprintf(before, sizeof(before), "%s%s%s",
                 SHARDED "%y = Mul(%x, %b)\n%z = Mul(%y, %a)\n" REDUCE,
                 UPDATE("a", "a") "update %a_new = weft::AllGather(%sa_new, %a) " FLAT
                                  " as \"a/gather\"\n" UPDATE(
                                      "b", "b") "update %b_new = weft::AllGather(%sb_new, %b) " FLAT
                                                " as \"b/gather\"\n"
                                                "output %z\n",
                 rows[i].micro);
        snprintf(before + strlen(before), sizeof(before) - strlen(before),
                 "program step: %%y .. %%b_new\nprogram eval: %%y, %%z\n");
        snprintf(
            after, sizeof(after), "%s%s%s",
            SHARDED GATHER("b", "which are read first by y") GATHER(
                "a",
                "which are read first by z") "%y = Mul(%x, %b_new)\n%z = Mul(%y, %a_new)\n" REDUCE
                UPDATE("a", "a_new") UPDATE("b", "b_new") "output %z\n",
            rows[i].programs, "program eval: %y, %z\nprogram flush: %b/gather/shard .. %a_new\n");
        test_pass(decouple, &accumulate, before, after);
    }
}

static void test_without_shards_nothing_is_gathered(void **state)
{
    static const char graph[] = "param %a : f32[2] = [1,2]\n"
                                "input %x : f32[2]\n"
                                "%y = Mul(%x, %a)\n"
                                "output %y\n"
                                "program step: %y\n";
    uint32_t accumulate = 1;
    (void)state;
    test_pass(decouple, &accumulate, graph, graph);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_collectives_are_issued_early),
        cmocka_unit_test(test_two_micro_batches_have_one_partial_sum),
        cmocka_unit_test(test_gradients_are_rounded),
        cmocka_unit_test(test_running_statistics_are_not_rounded),
        cmocka_unit_test(test_weights_are_gathered_in_front_of_their_readers),
        cmocka_unit_test(test_without_shards_nothing_is_gathered),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
