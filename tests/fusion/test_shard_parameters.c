/* SPDX-License-Identifier: Apache-2.0 */
/* Sharded parameters: where weights are gathered, as text in, text out. */
#include "fusion/passes/passes.h"
#include "tests/support/support_text.h"

#define FLAT "{flat=64, group_size=2}"
#define VALUES                                                                                     \
    "param %w : f32[2] = [1,2]\n"                                                                  \
    "param %v : f32[2] = [3,4]\n"                                                                  \
    "input %x : f32[2]\n"                                                                          \
    "scalar %lr : f32[] = 0.5\n"
/* The reduce-scatter of one gradient, the update of a shard, and both in the result. */
#define SCATTER(w) "comm %" w "_r = weft::ReduceScatter(%d" w ") " FLAT "\n"
#define UPDATE(w)                                                                                  \
    SCATTER(w)                                                                                     \
    "update %" w "_shard = weft::Shard(%" w ") " FLAT "\n"                                         \
    "update %" w "_shard_new = weft::SGD(%" w "_shard, %" w "_r, %lr)\n"
#define GATHER(w) "update %" w "_new = weft::AllGather(%" w "_shard_new, %" w ") " FLAT "\n"
#define UPDATED(w) SCATTER(w) "update %" w "_shard_new = weft::SGD(%" w "_shard, %" w "_r, %lr)\n"
#define VIEW(w) "comm %" w "_shard = weft::Shard(%" w ") " FLAT "\n"
#define GATHERED(w, pass)                                                                          \
    "comm %" w "_" pass " = weft::AllGather(%" w "_shard, %" w ") " FLAT " as " w "_new_" pass "\n"

static weft_status_t shard_parameters(wefti_graph_t *graph, void *user)
{

    return wefti_pass_shard_parameters(graph, user == NULL ? 2 : *(const uint32_t *)user);
}

/* %v is read last in the forward pass and first in the backward pass: it is gathered once. */
static void test_weights_are_gathered_in_each_pass(void **state)
{
    (void)state;
    test_pass(
        shard_parameters, NULL,
        VALUES "%a = Mul(%x, %w)\n"
               "%b = Mul(%a, %v)\n"
               "backward %dv = Mul(%b, %v)\n"
               "backward %dw = Mul(%dv, %w)\n" UPDATE("v") UPDATE("w") GATHER("v") GATHER("w"),
        VALUES VIEW("v") VIEW("w") GATHERED("w", "forward") "%a = Mul(%x, %w_forward)\n" GATHERED(
            "v", "gathered") "%b = Mul(%a, %v_gathered)\n"
                             "backward %dv = Mul(%b, %v_gathered)\n" GATHERED(
                                 "w",
                                 "backward") "backward %dw = Mul(%dv, %w_backward)\n" UPDATED("v")
                                 UPDATED("w") "order %a -> %w_backward\n");
}

/* A bucket is gathered whole, though the backward pass reads only one member. */
static void test_buckets_are_gathered_whole(void **state)
{
    (void)state;
    test_pass(shard_parameters, NULL,
              VALUES
              "param %u : f32[2] = [5,6]\n"
              "%a = Mul(%x, %w)\n"
              "%b = Add(%a, %v)\n"
              "%c = Mul(%b, %u)\n"
              "backward %du = Mul(%c, %u)\n"
              "backward %dv = Relu(%du)\n"
              "backward %dw = Mul(%dv, %w)\n" UPDATE("u")
                  GATHER("u") "comm %r = weft::ReduceScatter(%dv, %dw) " FLAT "\n"
                              "update %vw = weft::Shard(%v, %w) " FLAT "\n"
                              "update %vw_new = weft::SGD(%vw, %r, %lr)\n"
                              "update %v_new, %w_new = weft::AllGather(%vw_new, %v, %w) " FLAT "\n",
              VALUES "param %u : f32[2] = [5,6]\n" VIEW(
                  "u") "comm %vw = weft::Shard(%v, %w) " FLAT "\n"
                       "comm %v_forward, %w_forward = weft::AllGather(%vw, %v, %w) " FLAT
                       " as v_new_forward\n"
                       "%a = Mul(%x, %w_forward)\n"
                       "%b = Add(%a, %v_forward)\n" GATHERED(
                           "u", "gathered") "%c = Mul(%b, %u_gathered)\n"
                                            "backward %du = Mul(%c, %u_gathered)\n"
                                            "backward %dv = Relu(%du)\n"
                                            "comm %v_backward, %w_backward = weft::AllGather(%vw, "
                                            "%v, %w) " FLAT " as v_new_backward\n"
                                            "backward %dw = Mul(%dv, %w_backward)\n" UPDATED(
                                                "u") "comm %r = weft::ReduceScatter(%dv, %dw) " FLAT
                                                     "\n"
                                                     "update %vw_new = weft::SGD(%vw, %r, %lr)\n"
                                                     "order %b -> %w_backward\n");
}

/* One all-gather at a time is not issued before the kernels that read its result. */
static void test_in_flight_bounds_what_is_gathered_ahead(void **state)
{
    uint32_t in_flight = 1;
    (void)state;
    test_pass(
        shard_parameters, &in_flight,
        VALUES "%a = Mul(%x, %w)\n"
               "%b = Mul(%a, %v)\n"
               "backward %dv = Mul(%b, %a)\n"
               "backward %dw = Mul(%dv, %x)\n" UPDATE("v") UPDATE("w") GATHER("v") GATHER("w"),
        VALUES VIEW("v") VIEW("w") GATHERED("w", "forward") "%a = Mul(%x, %w_forward)\n" GATHERED(
            "v", "forward") "%b = Mul(%a, %v_forward)\n"
                            "backward %dv = Mul(%b, %a)\n"
                            "backward %dw = Mul(%dv, %x)\n" UPDATED("v")
                                UPDATED("w") "order %a -> %v_forward\n");
}

/* Weights that another node reads after their update stay whole. */
static void test_other_readers_keep_weights_whole(void **state)
{
    (void)state;
    test_pass(shard_parameters, NULL,
              VALUES "%a = Mul(%x, %w)\n"
                     "backward %dw = Mul(%a, %w)\n" UPDATE("w") GATHER("w") "output %w_new\n",
              VALUES "%a = Mul(%x, %w)\n"
                     "backward %dw = Mul(%a, %w)\n"
                     "comm %w_r = weft::ReduceScatter(%dw) {flat=64, group_size=2, "
                     "shard_reason=\"weights are whole on all ranks: w is read after its "
                     "update\"}\n"
                     "update %w_shard = weft::Shard(%w) " FLAT "\n"
                     "update %w_shard_new = weft::SGD(%w_shard, %w_r, %lr)\n" GATHER(
                         "w") "output %w_new\n");
}

/* Programs of micro-batches gather what their kernels read. */
static void test_programs_get_their_gathers(void **state)
{
    (void)state;
    test_pass(shard_parameters, NULL,
              VALUES "%a = Mul(%x, %w)\n"
                     "backward %dw = Mul(%a, %w)\n" UPDATE("w")
                         GATHER("w") "program micro_step: %a, %dw\n",
              VALUES VIEW("w")
                  GATHERED("w", "gathered") "%a = Mul(%x, %w_gathered)\n"
                                            "backward %dw = Mul(%a, %w_gathered)\n" UPDATED(
                                                "w") "program micro_step: %w_shard .. %dw\n");
}

/* One bucket whole because a node reads its reduced gradient, one of which ranks have shards. */
static void test_whole_and_sharded_buckets_share_a_plan(void **state)
{
    (void)state;
    test_graph_t test = test_graph_parse(
        VALUES "%a = Mul(%x, %w)\n"
               "%b = Mul(%a, %v)\n"
               "backward %dv = Mul(%b, %v)\n"
               "backward %da = Mul(%a, %v)\n"
               "backward %dw = Mul(%da, %w)\n"
               "comm %v_r = weft::AllReduce(%dv) {reduction=\"avg\"} : f32[2] grad(%v)\n"
               "comm %w_r = weft::AllReduce(%dw) {reduction=\"avg\"} : f32[2] grad(%w)\n"
               "update %v_new = weft::SGD(%v, %v_r, %lr)\n"
               "update %w_new = weft::SGD(%w, %w_r, %lr)\n"
               "output %b\n"
               "output %v_r\n");
    const wefti_lower_params_t params = {.world_size = 2,
                                         .policy = "none",
                                         .optimizer = "sgd",
                                         .model_name = "test",
                                         .shard = true,
                                         .in_flight = 1};
    const wefti_shard_params_t shard = wefti_shard_params(&params);
    const wefti_fuse_params_t fuse = wefti_fuse_params(&params);
    const wefti_program_params_t programs = wefti_program_params(&params);
    weft_plan_t *plan = NULL;
    uint32_t whole = 0, sharded = 0;
    assert_int_equal(wefti_pass_shard(test.graph, &shard), WEFT_OK);
    assert_int_equal(wefti_pass_shard_parameters(test.graph, params.in_flight), WEFT_OK);
    assert_int_equal(wefti_pass_fuse_updates(test.graph, &fuse), WEFT_OK);
    assert_int_equal(wefti_pass_programs(test.graph, &programs), WEFT_OK);
    if (wefti_lower(test.graph, &params, &plan) < 0 || wefti_plan_seal(plan) < 0 ||
        wefti_plan_verify(plan, test.registry) < 0) {
        fail_msg("%s", weft_last_error());
    }
    for (uint32_t i = 0; i < plan->buffer_count; i++) {
        if (plan->buffers[i].kind == WEFTI_BUFFER_PARAM) {
            bool nowhere = plan->buffers[i].offset_bytes >= WEFTI_PLAN_NOWHERE;
            assert_string_equal(plan->buffers[i].name, nowhere ? "w" : "v");
            sharded += nowhere;
            whole += !nowhere;
        }
    }
    assert_int_equal(whole, 1);
    assert_int_equal(sharded, 1);
    weft_plan_release(plan);
    test_graph_close(&test);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_weights_are_gathered_in_each_pass),
        cmocka_unit_test(test_buckets_are_gathered_whole),
        cmocka_unit_test(test_in_flight_bounds_what_is_gathered_ahead),
        cmocka_unit_test(test_other_readers_keep_weights_whole),
        cmocka_unit_test(test_programs_get_their_gathers),
        cmocka_unit_test(test_whole_and_sharded_buckets_share_a_plan),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
