/* SPDX-License-Identifier: Apache-2.0 */
/* The table of options: each row is walked through everything that is made of it in C. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fusion/options.h"
#include "graph/onnx/onnx.h"
#include "tests/support/support.h"

#define MODEL WEFT_SOURCE_DIR "/samples/models/mlp.onnx"
#define EACH(option)                                                                               \
    const weft_compile_option_t *(option);                                                         \
    for (size_t i_ = 0; ((option) = weft_compile_option(i_)) != NULL; i_++)

static const weft_compile_option_t *field_row(const char *field)
{
    EACH(option)
    {
        if (strcmp(option->field, field) == 0) {
            return option;
        }
    }
    fail_msg("no row for field %s", field);
    return NULL;
}

static size_t field_bytes(const weft_compile_option_t *option)
{
    switch (option->type) {
    case WEFT_OPTION_TYPE_FLAG:
    case WEFT_OPTION_TYPE_U32:
        return 4;
    case WEFT_OPTION_TYPE_SHAPES:
    case WEFT_OPTION_TYPE_MODELS:
        return sizeof(void *) + 4; /* and the length */
    default:
        return 8;
    }
}

static int by_offset(const void *a, const void *b)
{
    const weft_compile_option_t *const *x = a, *const *y = b;
    return (*x)->offset < (*y)->offset ? -1 : 1;
}

/* In the order of offsets the rows leave no gap that could hold a field. */
static void test_every_field_has_a_row(void **state)
{
    const weft_compile_option_t *rows[64];
    size_t count = 0, end = 0;
    (void)state;
    EACH(option)
    {
        rows[count++] = option;
    }
    qsort(rows, count, sizeof(*rows), by_offset);
    for (size_t i = 0; i < count; i++) {
        size_t alignment = field_bytes(rows[i]) == 4 ? 4 : 8;
        if (rows[i]->offset != (end + alignment - 1) / alignment * alignment) {
            fail_msg("a field between %s and %s has no row",
                     i > 0 ? rows[i - 1]->field : "the start", rows[i]->field);
        }
        end = rows[i]->offset + field_bytes(rows[i]);
    }
    assert_int_equal((end + 7) / 8 * 8, sizeof(weft_compile_params_t));
}

static void test_rows_are_complete(void **state)
{
    char help[1024];
    (void)state;
    for (size_t i = 0; weft_compile_option(i) != NULL; i++) {
        const weft_compile_option_t *option = weft_compile_option(i);
        const char *const others[] = {option->implies, option->needs, option->excludes};
        for (size_t k = 0; k < 3; k++) {
            assert_true(others[k] == NULL || field_row(others[k]) != NULL);
        }
        assert_true((option->needs == NULL && option->excludes == NULL) || option->reason != NULL);
        assert_true(option->name != NULL || option->type == WEFT_OPTION_TYPE_OBJECT ||
                    strcmp(option->field, "open_batch") == 0);
        weft_compile_option_help(i, "--", help, sizeof(help));
        assert_memory_equal(help, option->help, strlen(option->help));
        for (size_t k = 0; option->choices != NULL && option->choices[k] != NULL; k++) {
            assert_non_null(strstr(help, option->choices[k]));
        }
        assert_true(option->by_default == NULL || strstr(help, option->by_default) != NULL);
        assert_true(strlen(help) < 500); /* the command and Python keep 512 bytes */
        for (size_t k = 0; k < i; k++) {
            const weft_compile_option_t *before = weft_compile_option(k);
            bool same = before->name != NULL && option->name != NULL &&
                        strcmp(before->name, option->name) == 0;
            assert_string_not_equal(before->field, option->field);
            assert_true(!same || (option->flags & WEFT_OPTION_FLAG_POSITIONAL) != 0);
        }
    }
    weft_compile_option_help(1000, "--", help, sizeof(help));
    assert_string_equal(help, "");
}

static void test_help_names_other_options(void **state)
{
    char help[512];
    (void)state;
    for (size_t i = 0; weft_compile_option(i) != NULL; i++) {
        if (strcmp(weft_compile_option(i)->field, "decouple") == 0) {
            weft_compile_option_help(i, "--", help, sizeof(help));
            assert_non_null(strstr(help, "(implies --shard-optimizer)"));
            weft_compile_option_help(i, "", help, sizeof(help));
            assert_non_null(strstr(help, "(implies shard_optimizer)"));
        }
    }
}

/* ---- values ---- */

static weft_compile_params_t defaults(void)
{
    weft_compile_params_t params = WEFT_COMPILE_PARAMS_INIT;
    params.model_path = MODEL;
    params.world_size = 2;
    params.batch = 4;
    params.log = NULL;
    return params;
}

/* A valid value other than the default; NULL: the option takes no text. */
static const char *valid_text(const weft_compile_option_t *option)
{
    switch (option->type) {
    case WEFT_OPTION_TYPE_FLAG:
        return "1";
    case WEFT_OPTION_TYPE_U32:
    case WEFT_OPTION_TYPE_I64:
        return "2";
    case WEFT_OPTION_TYPE_BYTES:
        return "1073741824";
    case WEFT_OPTION_TYPE_F64:
        return "0.25";
    case WEFT_OPTION_TYPE_TEXT:
        return strcmp(option->field, "optimizer") == 0 ? "adam"
               : option->choices != NULL               ? option->choices[1]
               : strcmp(option->field, "bucket") == 0  ? "one"
               : strcmp(option->field, "algo") == 0    ? "all_reduce=mesh"
               : strcmp(option->field, "order") == 0   ? "any"
                                                       : "loss";
    case WEFT_OPTION_TYPE_PATH:
        return MODEL;
    default:
        return NULL;
    }
}

static void expect_refusal(const weft_compile_params_t *params, const char *field,
                           const char *words)
{
    weft_plan_t *plan = NULL;
    assert_int_equal(weft_compile(params, &plan), WEFT_ERR_INVALID_ARGUMENT);
    assert_null(plan);
    if (weft_last_error_field() == NULL || strcmp(weft_last_error_field(), field) != 0 ||
        strstr(weft_last_error(), words) == NULL) {
        fail_msg("'%s' does not name %s and '%s'", weft_last_error(), field, words);
    }
}

static void test_text_is_read_and_written(void **state)
{
    wefti_arena_t arena;
    (void)state;
    wefti_arena_init(&arena, NULL, 0);
    EACH(option)
    {
        weft_compile_params_t params = WEFT_COMPILE_PARAMS_INIT;
        const char *text = valid_text(option), *again = NULL;
        if (option->name == NULL || option->type == WEFT_OPTION_TYPE_MODELS) {
            continue;
        }
        if (text == NULL) {
            assert_int_equal(weft_compile_option_set(&params, option->name, "x"),
                             WEFT_ERR_UNSUPPORTED);
            continue;
        }
        assert_false(wefti_option_is_set(option, &params));
        assert_int_equal(wefti_option_format(option, &params, &arena, &again), WEFT_OK);
        assert_null(again);
        assert_int_equal(weft_compile_option_set(&params, option->name, text), WEFT_OK);
        assert_true(wefti_option_is_set(option, &params));
        assert_int_equal(wefti_option_format(option, &params, &arena, &again), WEFT_OK);
        assert_string_equal(again, text);
    }
    wefti_arena_deinit(&arena);
}

static void test_units_and_names(void **state)
{
    weft_compile_params_t params = WEFT_COMPILE_PARAMS_INIT;
    (void)state;
    assert_int_equal(weft_compile_option_set(&params, "arena_limit", "4K"), WEFT_OK);
    assert_int_equal(params.arena_limit, 4096);
    assert_int_equal(weft_compile_option_set(&params, "infer", NULL), WEFT_OK);
    assert_int_equal(params.infer, 1);
    assert_int_equal(weft_compile_option_set(&params, "infer", "0"), WEFT_OK);
    assert_int_equal(params.infer, 0);
    assert_int_equal(weft_compile_option_set(&params, "weight_decay", "0"), WEFT_OK);
    assert_int_equal(weft_compile_option_set(&params, "bukcet", "one"), WEFT_ERR_NOT_FOUND);
    assert_string_equal(weft_last_error(), "unknown option 'bukcet' (did you mean 'bucket'?)");
    params.struct_size = offsetof(weft_compile_params_t, infer);
    assert_int_equal(weft_compile_option_set(&params, "infer", "1"), WEFT_ERR_INVALID_ARGUMENT);
    assert_int_equal(params.infer, 0);
}

/* Values out of range are refused as text, and as a field of weft_compile. */
static void test_ranges(void **state)
{
    static const char *const wrong[] = {"x", "", "-1", "0", "2", "1.5", "1e300", "nan", "4Q"};
    (void)state;
    EACH(option)
    {
        weft_compile_params_t params = defaults();
        size_t refused = 0;
        bool checked = option->type <= WEFT_OPTION_TYPE_F64 || option->choices != NULL;
        for (size_t i = 0; checked && option->name != NULL && i < 9; i++) {
            if (weft_compile_option_set(&params, option->name, wrong[i]) < 0) {
                assert_string_equal(weft_last_error_field(), option->field);
                assert_non_null(strstr(weft_last_error(), ": must be "));
                refused++;
            }
        }
        assert_true(!checked || option->name == NULL || refused >= 4);
        params = defaults();
        char *field = (char *)&params + option->offset;
        if (option->choices != NULL) {
            memcpy(field, &wrong[0], sizeof(wrong[0]));
            expect_refusal(&params, option->field, option->choices[0]);
        } else if (option->type == WEFT_OPTION_TYPE_F64) {
            memcpy(field, &(double){-1}, sizeof(double));
            expect_refusal(&params, option->field, "must be a number");
        } else if (option->type == WEFT_OPTION_TYPE_I64) {
            memcpy(field, &(int64_t){-1}, sizeof(int64_t));
            expect_refusal(&params, option->field, "must be a whole number");
        } else if (option->type == WEFT_OPTION_TYPE_U32 && option->high < UINT32_MAX) {
            memcpy(field, &(uint32_t){UINT32_MAX}, sizeof(uint32_t));
            expect_refusal(&params, option->field, "must be a whole number");
        }
    }
}

/* Sets a field to something, as only the exclusions look at it. */
static void set_any(weft_compile_params_t *params, const weft_compile_option_t *option)
{
    static const char *const models[] = {MODEL, MODEL};
    static const weft_input_shape_t shape = {"image", 1, {4}};
    if (option->type == WEFT_OPTION_TYPE_MODELS) {
        params->rank_models = models;
        params->rank_model_count = 2;
    } else if (option->type == WEFT_OPTION_TYPE_SHAPES) {
        params->shapes = &shape;
        params->shape_count = 1;
    } else {
        assert_int_equal(weft_compile_option_set(params, option->name, valid_text(option)),
                         WEFT_OK);
    }
}

static void test_exclusions(void **state)
{
    (void)state;
    EACH(option)
    {
        weft_compile_params_t params = defaults();
        bool inference = (option->flags & WEFT_OPTION_FLAG_INFERENCE) != 0;
        if ((option->flags & WEFT_OPTION_FLAG_TRAINING) != 0) {
            set_any(&params, option);
            params.infer = 1;
            expect_refusal(&params, option->field, "only for training");
        }
        if (inference) {
            params = defaults();
            set_any(&params, option);
            expect_refusal(&params, option->field, "requires infer");
        }
        if (option->needs != NULL) {
            params = defaults();
            set_any(&params, option);
            params.infer = inference;
            memset((char *)&params + field_row(option->needs)->offset, 0,
                   field_bytes(field_row(option->needs)));
            expect_refusal(&params, option->field, option->needs);
        }
        if (option->excludes != NULL) {
            params = defaults();
            set_any(&params, option);
            set_any(&params, field_row(option->excludes));
            params.infer =
                inference || (field_row(option->excludes)->flags & WEFT_OPTION_FLAG_INFERENCE) != 0;
            expect_refusal(&params, option->field, option->excludes);
        }
        if (option->implies != NULL) {
            params = defaults();
            set_any(&params, option);
            assert_int_equal(wefti_options_complete(&params), WEFT_OK);
            assert_true(wefti_option_is_set(field_row(option->implies), &params));
        }
    }
}

/* ---- compiled graphs ---- */

static void expect_property(const weft_compile_option_t *option, const char *path, const char *text)
{
    wefti_onnx_property_t *properties;
    uint32_t count;
    wefti_arena_t arena;
    wefti_arena_init(&arena, NULL, 0);
    assert_int_equal(wefti_onnx_properties(path, &arena, &properties, &count), WEFT_OK);
    const char *found = wefti_onnx_property(properties, count, option->name);
    if (found == NULL || strcmp(found, text) != 0) {
        fail_msg("property %s is %s, not %s", option->name, found != NULL ? found : "missing",
                 text);
    }
    wefti_arena_deinit(&arena);
}

/* Written with the option, a graph compiles again without it, and refuses others. */
static void test_recorded_options_go_through_a_file(void **state)
{
    char path[64], digest[65];
    (void)state;
    snprintf(path, sizeof(path), "/tmp/weft-options-%d.onnx", (int)getpid());
    EACH(option)
    {
        weft_compile_params_t params = defaults(), again = WEFT_COMPILE_PARAMS_INIT;
        weft_plan_info_t info = WEFT_PLAN_INFO_INIT;
        weft_plan_t *plan = NULL;
        if ((option->flags & WEFT_OPTION_FLAG_RECORDED) == 0 ||
            (option->flags & WEFT_OPTION_FLAG_INFERENCE) != 0) {
            continue; /* the model has a loss; tests/tools/cli_emit.py has others */
        }
        if (option->needs != NULL) {
            set_any(&params, field_row(option->needs));
        }
        set_any(&params, option);
        params.emit_path = path;
        if (weft_compile(&params, &plan) < 0) {
            fail_msg("%s: %s", option->field, weft_last_error());
        }
        assert_int_equal(weft_plan_get_info(plan, &info), WEFT_OK);
        snprintf(digest, sizeof(digest), "%s", info.structure_digest);
        weft_plan_release(plan);
        expect_property(option, path, valid_text(option));
        again.model_path = path;
        if (weft_compile(&again, &plan) < 0) {
            fail_msg("%s again: %s", option->field, weft_last_error());
        }
        assert_int_equal(weft_plan_get_info(plan, &info), WEFT_OK);
        assert_string_equal(info.structure_digest, digest);
        weft_plan_release(plan);
        if (option->choices != NULL) {
            memcpy((char *)&again + option->offset, &option->choices[0], sizeof(void *));
            expect_refusal(&again, option->field, "is not compiled again");
        } else if (option->type == WEFT_OPTION_TYPE_F64) {
            memcpy((char *)&again + option->offset, &(double){0.5}, sizeof(double));
            expect_refusal(&again, option->field, "is not compiled again");
        } else if (option->type == WEFT_OPTION_TYPE_U32) {
            memcpy((char *)&again + option->offset, &(uint32_t){3}, sizeof(uint32_t));
            expect_refusal(&again, option->field, "is not compiled again");
        }
    }
    EACH(contained)
    { /* the file of the last turn */
        weft_compile_params_t params = WEFT_COMPILE_PARAMS_INIT;
        params.model_path = path;
        if ((contained->flags & WEFT_OPTION_FLAG_IN_GRAPH) != 0 &&
            contained->type != WEFT_OPTION_TYPE_MODELS) { /* they replace model_path */
            set_any(&params, contained);
            expect_refusal(&params, contained->field, "must not be set");
        }
    }
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_field_has_a_row),
        cmocka_unit_test(test_rows_are_complete),
        cmocka_unit_test(test_help_names_other_options),
        cmocka_unit_test(test_text_is_read_and_written),
        cmocka_unit_test(test_units_and_names),
        cmocka_unit_test(test_ranges),
        cmocka_unit_test(test_exclusions),
        cmocka_unit_test(test_recorded_options_go_through_a_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
