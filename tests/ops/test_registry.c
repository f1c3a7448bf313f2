/* SPDX-License-Identifier: Apache-2.0 */
/* The operator table and the registry. */
#include "tests/ops/support_kernel.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ops/op_defs.h"
#include "tests/support/support.h"

static int check_def(const weft_op_def_t *def, void *user)
{
    const weft_op_def_t **previous = user;
    assert_non_null(def->doc);
    assert_true(strlen(def->doc) > 3 && strchr(def->doc, '\n') == NULL);
    assert_true(def->infer != NULL || def->rules != NULL);
    assert_non_null(def->cost);
    assert_true(def->dtypes != 0 && def->since_version >= 1);
    for (int i = 0; i < 4; i++) {
        assert_true(def->in_place[i] >= -1 && def->in_place[i] < (int)def->inputs_max);
        assert_true(def->in_place[i] < 0 || i < def->outputs_max);
    }
    for (size_t i = 0; i < def->attr_count; i++) {
        assert_non_null(def->attrs[i].doc);
        assert_true(i == 0 || strcmp(def->attrs[i - 1].name, def->attrs[i].name) != 0);
    }
    if ((def->effects & WEFT_EFFECT_COMMUNICATES) != 0) {
        assert_true(strcmp(def->domain, "weft") == 0 || strcmp(def->domain, "com.microsoft") == 0);
        assert_non_null(def->equivalent);
    }
    assert_int_equal(def->start == NULL, def->wait == NULL);
    if (def->start != NULL) {
        const weft_op_def_t *start =
            weft_registry_find_op(case_registry(), def->domain, def->start, def->since_version);
        const weft_op_def_t *wait =
            weft_registry_find_op(case_registry(), def->domain, def->wait, def->since_version);
        assert_non_null(start);
        assert_non_null(wait);
        assert_int_equal(start->effects, def->effects);
        assert_int_equal(start->ordering, def->ordering);
        assert_ptr_equal(start->infer, def->infer);
        assert_int_equal(wait->effects, WEFT_EFFECT_PURE);
    }
    if (*previous != NULL) {
        int order = strcmp((*previous)->domain, def->domain);
        order = order != 0 ? order : strcmp((*previous)->name, def->name);
        assert_true(order < 0 || (order == 0 && (*previous)->since_version < def->since_version));
    }
    *previous = def;
    return 0;
}

static void test_definitions_are_complete_and_ordered(void **state)
{
    const weft_op_def_t *previous = NULL;
    (void)state;
    weft_op_registry_visit(case_registry(), check_def, &previous);
    assert_non_null(previous);
}

static int stop_at_third(const weft_op_def_t *def, void *user)
{
    (void)def;
    return ++*(int *)user == 3;
}

static void test_a_visit_can_be_stopped(void **state)
{
    int visited = 0;
    (void)state;
    weft_op_registry_visit(case_registry(), stop_at_third, &visited);
    assert_int_equal(visited, 3);
}

/* ops/README.md is the contract: the arity in each signature `domain.Name(inputs) -> outputs` is that
 * of a definition. */
static void test_readme_names_what_exists(void **state)
{
    static char text[65536];
    int signatures = 0;
    FILE *file = fopen(WEFT_SOURCE_DIR "/ops/README.md", "r");
    (void)state;
    assert_non_null(file);
    size_t bytes = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[bytes] = '\0';
    for (char *at = text; (at = strchr(at, '`')) != NULL; at++) {
        char domain[32], op[64], inputs[128], outputs[128];
        if (sscanf(at, "`%31[a-z].%63[A-Za-z](%127[^)]) -> %127[^`]`", domain, op, inputs,
                   outputs) != 4 ||
            strstr(inputs, "..") != NULL) { /* variadic */
            continue;
        }
        const char *full = strcmp(domain, "ms") == 0 ? "com.microsoft" : domain;
        const weft_op_def_t *def = weft_registry_find_op(case_registry(), full, op, 1);
        if (def == NULL) {
            fail_msg("README names %s.%s, which has no definition", domain, op);
        }
        int in = 1, optional = 0, out = 1;
        for (const char *c = inputs; *c != '\0'; c++) {
            in += *c == ',';
            optional += *c == '?';
        }
        for (const char *c = outputs; *c != '\0'; c++) {
            out += *c == ',';
        }
        assert_int_equal(def->inputs_max, in);
        assert_int_equal(def->inputs_min, in - optional);
        assert_int_equal(def->outputs_max, out);
        signatures++;
    }
    assert_true(signatures >= 21);
}

static void test_collectives_are_defined(void **state)
{
    static const char *const names[] = {
        "AllReduce", "ReduceScatter", "AllGather",      "Broadcast", "Reduce", "Gather", "Scatter",
        "AllToAll",  "AllGatherV",    "ReduceScatterV", "AllToAllV", "Send",   "Recv",   "Barrier"};
    (void)state;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        const weft_op_def_t *def = weft_registry_find_op(case_registry(), "weft", names[i], 1);
        assert_non_null(def);
        assert_true((def->effects & WEFT_EFFECT_COMMUNICATES) != 0);
        assert_int_equal(def->inputs_max == WEFT_VARIADIC, i < 4);
    }
}

static void test_collective_shapes(void **state)
{
    op_case_t c = case_make("weft", "AllReduce", 1);
    (void)state;
    case_input(&c, DIMS(3, 4));
    case_input(&c, DIMS(7));
    assert_int_equal(case_infer(&c, 2, WEFT_LAYOUT_PLAIN), WEFT_OK);
    assert_int_equal(c.outputs[1].dims[0], 7);
    case_string(&c, "reduction", "median");
    weft_node_desc_t node = case_node(&c);
    assert_int_equal(case_def(&c)->infer(&node), WEFT_ERR_INVALID_ARGUMENT);
    node.output_count = 1;
    node.attr_count = 0;
    assert_int_equal(case_def(&c)->infer(&node), WEFT_ERR_INVALID_ARGUMENT);
    case_free(&c);

    c = case_make("weft", "AllGather", 1);
    case_input(&c, DIMS(3, 4));
    case_int(&c, "group_size", 5);
    assert_int_equal(case_infer(&c, 1, WEFT_LAYOUT_PLAIN), WEFT_OK);
    assert_int_equal(c.outputs[0].dims[0], 15);
    case_free(&c);

    c = case_make("weft", "ReduceScatter", 1);
    case_input(&c, DIMS(7, 2));
    case_int(&c, "group_size", 4);
    assert_int_equal(case_infer(&c, 1, WEFT_LAYOUT_PLAIN), WEFT_OK);
    assert_int_equal(c.outputs[0].dims[0], 2);
    case_free(&c);
}

static void test_versions_select_the_newest_meaning_that_is_old_enough(void **state)
{
    const weft_registry_t *r = case_registry();
    (void)state;
    assert_int_equal(weft_registry_find_op(r, "", "Pad", 2)->since_version, 2);
    assert_int_equal(weft_registry_find_op(r, "", "Pad", 10)->since_version, 2);
    assert_int_equal(weft_registry_find_op(r, "", "Pad", 17)->since_version, 11);
    assert_int_equal(weft_registry_find_op(r, NULL, "Dropout", 13)->since_version, 12);
    assert_null(weft_registry_find_op(r, "", "Add", 6));
    assert_null(weft_registry_find_op(r, "", "Nothing", 13));
    assert_null(weft_registry_find_op(r, "weft", "Add", 13));
    assert_null(weft_registry_find_op(r, "zzz", "Add", 13));
}

static void test_every_kernel_has_a_definition(void **state)
{
    const size_t count = wefti_compute_kernels(NULL, 0);
    const weft_kernel_t **kernels = calloc(count, sizeof(*kernels));
    (void)state;
    assert_non_null(kernels);
    assert_int_equal(wefti_compute_kernels(kernels, count), count);
    for (size_t i = 0; i < count; i++) {
        const weft_kernel_t *k = kernels[i];
        assert_int_equal(k->abi_version, WEFT_KERNEL_ABI_VERSION);
        assert_true(k->prepare != NULL && k->run != NULL && k->destroy != NULL);
        assert_non_null(weft_registry_find_op(case_registry(), k->domain, k->op, 1000));
        assert_ptr_equal(
            weft_registry_find_kernel_of(case_registry(), k->family, k->domain, k->op, 1000), k);
        /* An alternative stands beside a kernel for every choice. */
        const weft_kernel_t *plain =
            weft_registry_find_kernel(case_registry(), k->domain, k->op, 1000);
        assert_non_null(plain);
        assert_null(plain->family);
        k->destroy(NULL);
    }
    free(kernels);
}

static weft_status_t infer_nothing(weft_node_desc_t *node)
{
    (void)node;
    return WEFT_OK;
}

static weft_status_t prepare_nothing(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                                     void **out_state, size_t *out_scratch_bytes)
{
    (void)node;
    (void)env;
    *out_state = NULL;
    *out_scratch_bytes = 0;
    return WEFT_OK;
}

static weft_status_t run_nothing(const weft_kernel_call_t *call)
{
    (void)call;
    return WEFT_OK;
}

static void destroy_nothing(void *state)
{
    (void)state;
}

static void test_own_operators_and_kernels_can_be_added(void **state)
{
    const weft_op_def_t def = {.domain = "test",
                               .name = "Double",
                               .since_version = 3,
                               .inputs_min = 1,
                               .inputs_max = 1,
                               .outputs_min = 1,
                               .outputs_max = 1,
                               .in_place = {-1, -1, -1, -1},
                               .infer = infer_nothing,
                               .doc = "2 X"};
    weft_op_def_t broken = def;
    weft_kernel_t kernel = {.abi_version = WEFT_KERNEL_ABI_VERSION,
                            .domain = "",
                            .op = "Relu",
                            .since_version = 1,
                            .prepare = prepare_nothing,
                            .run = run_nothing,
                            .destroy = destroy_nothing};
    weft_kernel_t later = kernel, foreign = kernel;
    weft_registry_t *r = NULL;
    (void)state;
    assert_int_equal(weft_registry_create(NULL, &r), WEFT_OK);
    assert_int_equal(weft_registry_add_op(r, &def), WEFT_OK);
    assert_int_equal(weft_registry_add_op(r, &def), WEFT_ERR_INVALID_ARGUMENT);
    assert_non_null(strstr(weft_last_error(), "test.Double"));
    assert_ptr_equal(weft_registry_find_op(r, "test", "Double", 9), &def);
    assert_null(weft_registry_find_op(r, "test", "Double", 2));
    broken.name = "Broken";
    broken.in_place[0] = 1;
    assert_int_equal(weft_registry_add_op(r, &broken), WEFT_ERR_INVALID_ARGUMENT);
    broken.in_place[0] = -1;
    broken.infer = NULL;
    assert_int_equal(weft_registry_add_op(r, &broken), WEFT_ERR_INVALID_ARGUMENT);

    assert_int_equal(weft_registry_add_kernel(r, &kernel), WEFT_OK); /* replaces the built-in one */
    assert_ptr_equal(weft_registry_find_kernel(r, "", "Relu", 14), &kernel);
    later.since_version = 6;
    assert_int_equal(weft_registry_add_kernel(r, &later), WEFT_OK);
    assert_ptr_equal(weft_registry_find_kernel(r, "", "Relu", 14), &later);
    assert_ptr_equal(weft_registry_find_kernel(r, "", "Relu", 5), &kernel);
    foreign.abi_version++;
    assert_int_equal(weft_registry_add_kernel(r, &foreign), WEFT_ERR_UNSUPPORTED);
    weft_registry_destroy(r);
    weft_registry_destroy(NULL);
}

static void test_families_of_kernels(void **state)
{
    weft_kernel_t kernel = {.abi_version = WEFT_KERNEL_ABI_VERSION,
                            .domain = "",
                            .op = "Gemm",
                            .since_version = 1,
                            .prepare = prepare_nothing,
                            .run = run_nothing,
                            .destroy = destroy_nothing};
    weft_kernel_t fast = kernel, newer = kernel, faster = kernel;
    weft_registry_t *r = NULL;
    (void)state;
    fast.family = faster.family = "fast";
    faster.since_version = 9;
    newer.since_version = 11;
    assert_int_equal(weft_registry_create(NULL, &r), WEFT_OK);
    const weft_kernel_t *exact = weft_registry_find_kernel(r, "", "Gemm", 13);
    const weft_kernel_t *onednn = weft_registry_find_kernel_of(r, "onednn", "", "Gemm", 13);
    assert_null(exact->family);
    assert_string_equal(onednn->family, "onednn");
    assert_ptr_equal(weft_registry_find_kernel_of(r, "unheard of", "", "Gemm", 13), exact);
    assert_ptr_equal(weft_registry_find_kernel_of(r, NULL, "", "Gemm", 13), exact);
    assert_null(weft_registry_find_kernel_of(r, "onednn", "", "Gemm", 0));
    /* Families stand side by side. */
    assert_int_equal(weft_registry_add_kernel(r, &fast), WEFT_OK);
    assert_ptr_equal(weft_registry_find_kernel(r, "", "Gemm", 13), exact);
    assert_ptr_equal(weft_registry_find_kernel_of(r, "onednn", "", "Gemm", 13), onednn);
    assert_ptr_equal(weft_registry_find_kernel_of(r, "fast", "", "Gemm", 13), &fast);
    /* A newer version wins, a family only among those of one version. */
    assert_int_equal(weft_registry_add_kernel(r, &faster), WEFT_OK);
    assert_ptr_equal(weft_registry_find_kernel_of(r, "fast", "", "Gemm", 13), &faster);
    assert_ptr_equal(weft_registry_find_kernel_of(r, "onednn", "", "Gemm", 13), onednn);
    assert_int_equal(weft_registry_add_kernel(r, &newer), WEFT_OK);
    assert_ptr_equal(weft_registry_find_kernel_of(r, "fast", "", "Gemm", 13), &newer);
    assert_ptr_equal(weft_registry_find_kernel_of(r, "fast", "", "Gemm", 10), &faster);
    assert_ptr_equal(weft_registry_find_kernel_of(r, "fast", "", "Gemm", 8), &fast);
    /* A kernel for every choice takes the place of all of its version. */
    assert_int_equal(weft_registry_add_kernel(r, &kernel), WEFT_OK);
    assert_ptr_equal(weft_registry_find_kernel_of(r, "onednn", "", "Gemm", 8), &kernel);
    assert_ptr_equal(weft_registry_find_kernel_of(r, "fast", "", "Gemm", 8), &kernel);
    assert_ptr_equal(weft_registry_find_kernel_of(r, "fast", "", "Gemm", 10), &faster);
    assert_string_equal(weft_registry_find_kernel_of(r, "onednn", "", "Conv", 11)->family,
                        "onednn");
    weft_registry_destroy(r);
}

static void test_plugins_that_are_none_are_named(void **state)
{
    weft_registry_t *r = NULL;
    (void)state;
    assert_int_equal(weft_registry_create(NULL, &r), WEFT_OK);
    assert_int_equal(weft_registry_load_plugin(r, "/nonexistent/lib.so"), WEFT_ERR_NOT_FOUND);
    assert_non_null(strstr(weft_last_error(), "/nonexistent/lib.so"));
    assert_int_equal(weft_registry_load_plugin(r, "libz.so.1"), WEFT_ERR_FORMAT);
    assert_non_null(strstr(weft_last_error(), "weft_plugin_init"));
    weft_registry_destroy(r);
}

static weft_status_t create(const weft_allocator_t *allocator, void *user)
{
    weft_registry_t *r = NULL;
    weft_status_t status = weft_registry_create(allocator, &r);
    (void)user;
    assert_true((status == WEFT_OK) == (r != NULL));
    weft_registry_destroy(r);
    return status;
}

static void test_creation_survives_every_failed_allocation(void **state)
{
    (void)state;
    (void)test_memory_sweep(create, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_definitions_are_complete_and_ordered),
        cmocka_unit_test(test_a_visit_can_be_stopped),
        cmocka_unit_test(test_readme_names_what_exists),
        cmocka_unit_test(test_collectives_are_defined),
        cmocka_unit_test(test_collective_shapes),
        cmocka_unit_test(test_versions_select_the_newest_meaning_that_is_old_enough),
        cmocka_unit_test(test_every_kernel_has_a_definition),
        cmocka_unit_test(test_own_operators_and_kernels_can_be_added),
        cmocka_unit_test(test_families_of_kernels),
        cmocka_unit_test(test_plugins_that_are_none_are_named),
        cmocka_unit_test(test_creation_survives_every_failed_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
