/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "runtime/base/json.h"
#include "tests/support/support.h"
#include "tests/support/support_comma.h"

static weft_status_t parse(const char *text, wefti_json_tree_t *tree)
{
    return wefti_json_parse(text, strlen(text), NULL, tree);
}

static void expect_text(const char *text, const char *string)
{
    wefti_json_tree_t tree;
    assert_int_equal(parse(text, &tree), WEFT_OK);
    assert_int_equal(tree.nodes[0].kind, WEFTI_JSON_STRING);
    assert_string_equal(tree.nodes[0].string, string);
    wefti_json_tree_deinit(&tree);
}

static void expect_error(const char *text, const char *words)
{
    wefti_json_tree_t tree;
    assert_int_equal(parse(text, &tree), WEFT_ERR_FORMAT);
    assert_non_null(strstr(weft_last_error(), words));
}

static void test_escapes(void **state)
{
    (void)state;
    expect_text("\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"", "\"\\/\b\f\n\r\t");
    expect_text("\"\\u0041\\u007f\\u0080\\u07FF\\u0800\\uffff\"",
                "A\x7f\xc2\x80\xdf\xbf\xe0\xa0\x80\xef\xbf\xbf");
    expect_text("\"\\ud83d\\ude00 \\uD800\\uDC00 \\udbff\\udfff\"",
                "\xf0\x9f\x98\x80 \xf0\x90\x80\x80 \xf4\x8f\xbf\xbf");
    expect_error("\"\\u0000\"", "other than 0");
    expect_error("\"\\u12g4\"", "four hex digits");
    expect_error("\"\\u12", "four hex digits");
    expect_error("\"\\ud800\"", "half of a surrogate pair");
    expect_error("\"\\ud800\\u0041\"", "half of a surrogate pair");
    expect_error("\"\\udc00\\udc00\"", "half of a surrogate pair");
    expect_error("\"\\x41\"", "not supported");
    expect_error("\"a\nb\"", "does not end");
    expect_error("\"abc", "does not end");
}

static void test_structure(void **state)
{
    wefti_json_tree_t tree;
    (void)state;
    assert_int_equal(
        parse(" {\"a\": [1, 2.5, true, null], \"b\": {\"c\": \"d\"}, \"e\": []} ", &tree), WEFT_OK);
    const wefti_json_node_t *a = wefti_json_get(&tree, tree.nodes, "a");
    assert_int_equal(a->count, 4);
    const wefti_json_node_t *item = wefti_json_after(&tree, wefti_json_first(&tree, a));
    assert_true(item->number > 2.4 && item->number < 2.6);
    const wefti_json_node_t *c = wefti_json_get(&tree, wefti_json_get(&tree, tree.nodes, "b"), "c");
    assert_string_equal(c->string, "d");
    assert_null(wefti_json_get(&tree, tree.nodes, "c"));
    assert_null(wefti_json_first(&tree, wefti_json_get(&tree, tree.nodes, "e")));
    wefti_json_tree_deinit(&tree);
    expect_error("{\"a\" 1}", "a colon");
    expect_error("{\"a\": 1,}", "a name in quotes");
    expect_error("[1 2]", "a comma or the closing bracket");
    expect_error("[1,]", "a value is expected");
    expect_error("[1", "a comma or the closing bracket");
    expect_error("{} {}", "something follows");
    expect_error("\n\n[1e999]", "line 3");
    expect_error("[[[[[[[[[[[[[[[[[[[[", "nested too deeply");
    expect_error("", "a value is expected");
}

/* Ranks send each other JSON, and headers of checkpoints are JSON, in every locale. */
static void test_numbers_in_a_locale_with_a_decimal_comma(void **state)
{
    wefti_json_tree_t tree;
    (void)state;
    decimal_comma = true;
    weft_status_t status = parse("{\"a\": [0,24, 2.5,-1e-1], \"b\":8,\"c\": 1}", &tree);
    decimal_comma = false;
    assert_int_equal(status, WEFT_OK);
    const wefti_json_node_t *a = wefti_json_get(&tree, tree.nodes, "a");
    assert_int_equal(a->count, 4);
    static const double numbers[] = {0, 24, 2.5, -0.1};
    const wefti_json_node_t *node = wefti_json_first(&tree, a);
    for (size_t i = 0; node != NULL; node = wefti_json_after(&tree, node), i++) {
        assert_true(node->number >= numbers[i] && node->number <= numbers[i]);
    }
    assert_true(wefti_json_get(&tree, tree.nodes, "b")->number > 7.9);
    wefti_json_tree_deinit(&tree);
    expect_error("[1.2.3]", "malformed");
    expect_error("[0x10]", "comma or the closing bracket");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_escapes),
        cmocka_unit_test(test_structure),
        cmocka_unit_test(test_numbers_in_a_locale_with_a_decimal_comma),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
