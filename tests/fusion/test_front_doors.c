/* SPDX-License-Identifier: Apache-2.0 */
/* Graphs that bring gradients and collectives, compiled graphs and declared operators, through the
 * interface and without memory. What plans do is tested by the command (cli_front_doors, cli_emit).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <weft/weft.h>

#include "tests/support/support.h"

static const char given[] = WEFT_SOURCE_DIR "/tests/data/given_gradients.onnx";
static const char compiled[] = WEFT_SOURCE_DIR "/tests/data/compiled_graph.onnx";

static weft_compile_params_t params_of(const char *model)
{
    weft_compile_params_t params = WEFT_COMPILE_PARAMS_INIT;
    params.model_path = model;
    if (model == given) {
        params.world_size = 2;
        params.batch = 4;
        params.optimizer = "adam";
    }
    return params;
}

/* "2 4 adam DIGEST": ranks, batch, optimizer and structure; text has 128 bytes. */
static void compile(const weft_compile_params_t *params, char *text)
{
    weft_plan_t *plan;
    weft_plan_info_t info = WEFT_PLAN_INFO_INIT;
    if (weft_compile(params, &plan) < 0) {
        fail_msg("%s", weft_last_error());
    }
    assert_int_equal(weft_plan_get_info(plan, &info), WEFT_OK);
    snprintf(text, 128, "%u %lld %s %.64s", info.world_size, (long long)info.batch, info.optimizer,
             info.structure_digest);
    weft_plan_release(plan);
}

static void write_text(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static void test_a_file_of_before_gives_a_plan(void **state)
{
    weft_compile_params_t params = params_of(compiled);
    char text[128];
    (void)state;
    compile(&params, text);
    assert_memory_equal(text, "2 4 adam ", 9);
}

static void test_written_and_read_plans_agree(void **state)
{
    char path[] = "/tmp/weft-doors-XXXXXX", first[128], second[128];
    int fd = mkstemp(path);
    weft_compile_params_t params = params_of(given);
    (void)state;
    assert_true(fd >= 0);
    close(fd);
    params.emit_path = path;
    compile(&params, first);
    params = params_of(path);
    compile(&params, second);
    assert_string_equal(first, second);
    unlink(path);
}

static void test_operators_come_from_a_file(void **state)
{
    char path[] = "/tmp/weft-ops-XXXXXX", text[128];
    int fd = mkstemp(path);
    weft_registry_t *registry;
    weft_compile_params_t params = params_of(given);
    (void)state;
    assert_true(fd >= 0);
    close(fd);
    write_text(path, "{\"operators\": [{\"domain\": \"my\", \"name\": \"Foo\", \"version\": 2, "
                     "\"inputs\": [1, null], \"outputs\": 2, \"effects\": \"random\", "
                     "\"types\": [{\"like\": 0}, {\"dtype\": \"i64\", \"shape\": [3, [0, 1]]}], "
                     "\"in_place\": [0], \"flops_per_element\": 4, \"gradient\": \"FooGrad\", "
                     "\"facts\": [\"elementwise\", \"mixes_axis\"], \"linear\": [0, 2]}]}");
    assert_int_equal(weft_registry_create(NULL, &registry), WEFT_OK);
    assert_int_equal(weft_registry_load_ops(registry, path), WEFT_OK);
    assert_null(weft_registry_find_op(registry, "my", "Foo", 1));
    const weft_op_def_t *def = weft_registry_find_op(registry, "my", "Foo", 2);
    assert_non_null(def);
    assert_int_equal(def->inputs_min, 1);
    assert_int_equal(def->inputs_max, WEFT_VARIADIC);
    assert_int_equal(def->effects, WEFT_EFFECT_RANDOM);
    assert_int_equal(def->in_place[0], 0);
    assert_int_equal(def->in_place[1], -1);
    assert_string_equal(def->grad, "FooGrad");
    assert_int_equal(def->facts->flags, WEFT_FACT_ELEMENTWISE);
    assert_int_equal(def->facts->mixing, WEFT_MIXING_AXIS);
    assert_int_equal(def->facts->linear_inputs, 5);
    assert_null(def->infer);
    assert_int_equal(def->rules->output_count, 2);
    assert_int_equal(def->rules->outputs[0].like, 0);
    assert_int_equal(def->rules->outputs[1].of_input[0], -1);
    assert_int_equal(def->rules->outputs[1].dims[0], 3);
    assert_int_equal(def->rules->outputs[1].of_input[1], 0);
    assert_int_equal(weft_registry_load_ops(registry, path), WEFT_ERR_INVALID_ARGUMENT);
    assert_int_equal(weft_registry_load_ops(NULL, path), WEFT_ERR_INVALID_ARGUMENT);
    assert_int_equal(weft_registry_load_ops(registry, "/nowhere/ops.json"), WEFT_ERR_NOT_FOUND);
    weft_registry_destroy(registry);

    /* By the parameter: the caller's registry is left alone. */
    assert_int_equal(weft_registry_create(NULL, &registry), WEFT_OK);
    params.registry = registry;
    params.ops_path = path;
    compile(&params, text);
    assert_null(weft_registry_find_op(registry, "my", "Foo", 2));
    weft_registry_destroy(registry);
    unlink(path);
}

static void test_rules_must_not_be_empty(void **state)
{
    static const weft_op_rules_t none = {0};
    weft_op_def_t def = {.domain = "my", .name = "Foo", .since_version = 1, .rules = &none};
    weft_registry_t *registry;
    (void)state;
    memset(def.in_place, 0xff, sizeof def.in_place);
    assert_int_equal(weft_registry_create(NULL, &registry), WEFT_OK);
    assert_int_equal(weft_registry_add_op(registry, &def), WEFT_ERR_INVALID_ARGUMENT);
    def.rules = NULL;
    assert_int_equal(weft_registry_add_op(registry, &def), WEFT_ERR_INVALID_ARGUMENT);
    weft_registry_destroy(registry);
}

static void fail_every_allocation(weft_compile_params_t params)
{
    test_memory_t memory;
    weft_plan_t *plan;
    params.allocator = &memory.allocator;
    test_memory_init(&memory);
    assert_int_equal(weft_compile(&params, &plan), WEFT_OK);
    weft_plan_release(plan);
    assert_int_equal(memory.live_blocks, 0);
    uint64_t total = memory.requests;
    print_message("%llu allocations\n", (unsigned long long)total);
    for (uint64_t i = 0; i < total; i++) {
        test_memory_fail(&memory, i, UINT64_MAX);
        if (weft_compile(&params, &plan) != WEFT_ERR_NO_MEMORY) {
            fail_msg("allocation %llu of %llu: %s", (unsigned long long)i,
                     (unsigned long long)total, weft_last_error());
        }
        assert_null(plan);
        assert_int_equal(memory.live_blocks, 0);
    }
}

static void test_without_memory(void **state)
{
    char map[] = "/tmp/weft-map-XXXXXX", out[] = "/tmp/weft-out-XXXXXX";
    int fds[] = {mkstemp(map), mkstemp(out)};
    weft_compile_params_t params = params_of(given);
    (void)state;
    assert_true(fds[0] >= 0 && fds[1] >= 0);
    close(fds[0]);
    close(fds[1]);
    write_text(map, "{\"w1\": \"w1_grad\", \"w2\": \"w2_grad\", \"b1\": \"grad.b1\"}");
    params.grads_path = map;
    params.emit_path = out;
    fail_every_allocation(params);
    fail_every_allocation(params_of(compiled));
    unlink(map);
    unlink(out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_file_of_before_gives_a_plan),
        cmocka_unit_test(test_written_and_read_plans_agree),
        cmocka_unit_test(test_operators_come_from_a_file),
        cmocka_unit_test(test_rules_must_not_be_empty),
        cmocka_unit_test(test_without_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
