/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "fusion/fusion.h"
#include "tests/support/support.h"

static void test_policy_accepts_every_form(void **state)
{
    static const struct {
        const char *text;
        wefti_policy_kind_t kind;
        uint64_t cap_bytes, window_ns, first, last;
        uint32_t value_count;
    } rows[] = {
        {"bytes:25M", WEFTI_POLICY_BYTES, 25u << 20, 0, 0, 0, 0},
        {"bytes:64", WEFTI_POLICY_BYTES, 64, 0, 0, 0, 0},
        {"bytes:4K,time:5ms", WEFTI_POLICY_BYTES, 4096, 5000000, 0, 0, 0},
        {"bytes:2G,time:7us", WEFTI_POLICY_BYTES, 2ull << 30, 7000, 0, 0, 0},
        {"bytes:99,time:3ns", WEFTI_POLICY_BYTES, 99, 3, 0, 0, 0},
        {"bytes:99,time:2s", WEFTI_POLICY_BYTES, 99, 2000000000, 0, 0, 0},
        {"index:0,4,9", WEFTI_POLICY_INDEX, 0, 0, 0, 9, 3},
        {"index:7", WEFTI_POLICY_INDEX, 0, 0, 7, 7, 1},
        {"percent:60,40", WEFTI_POLICY_PERCENT, 0, 0, 60, 40, 2},
        {"percent:100", WEFTI_POLICY_PERCENT, 0, 0, 100, 100, 1},
        {"one", WEFTI_POLICY_ONE, 0, 0, 0, 0, 0},
        {"none", WEFTI_POLICY_NONE, 0, 0, 0, 0, 0},
        {"auto", WEFTI_POLICY_AUTO, 0, 0, 0, 0, 0},
        {"auto:8M", WEFTI_POLICY_AUTO, 8u << 20, 0, 0, 0, 0},
        {"mgwfbp", WEFTI_POLICY_MERGE, 0, 0, 0, 0, 0},
        {"mgwfbp:64", WEFTI_POLICY_MERGE, 64, 0, 0, 0, 0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        wefti_arena_t arena;
        wefti_policy_t policy;
        wefti_arena_init(&arena, NULL, 0);
        assert_int_equal(weft_bucket_policy_check(rows[i].text), WEFT_OK);
        assert_int_equal(wefti_policy_parse(rows[i].text, &arena, &policy), WEFT_OK);
        assert_int_equal(policy.kind, rows[i].kind);
        assert_int_equal(policy.cap_bytes, rows[i].cap_bytes);
        assert_int_equal(policy.window_ns, rows[i].window_ns);
        assert_int_equal(policy.value_count, rows[i].value_count);
        if (rows[i].value_count > 0) {
            assert_int_equal(policy.values[0], rows[i].first);
            assert_int_equal(policy.values[policy.value_count - 1], rows[i].last);
        }
        wefti_arena_deinit(&arena);
    }
}

static void test_policy_refuses_with_its_reason(void **state)
{
    static const struct {
        const char *text, *says;
    } rows[] = {
        {"", "unknown policy"},
        {"ones", "unknown policy"},
        {"bytes", "unknown policy"},
        {"Bytes:25M", "unknown policy"},
        {"auto8M", "unknown policy"},
        {"auto:", "expected a size"},
        {"auto:63", "at least 64 bytes"},
        {"auto:8M,time:5ms", "is only for policy bytes"},
        {"bytes:", "expected a size"},
        {"bytes:M", "expected a size"},
        {"bytes:-1", "expected a size"},
        {"bytes: 1", "expected a size"},
        {"bytes:0", "at least 64"},
        {"bytes:0M", "at least 64"},
        {"bytes:63", "the unit in which tensors are split"},
        {"bytes:25MB", "unexpected"},
        {"bytes:25M,", "unexpected"},
        {"bytes:25M,time:5", "with a unit"},
        {"bytes:25M,time:0ms", "above 0"},
        {"bytes:25M,time:", "with a unit"},
        {"bytes:25M,time:5msx", "unexpected"},
        {"bytes:99999999999999999999", "expected a size"},
        {"bytes:99999999999999G", "expected a size"},
        {"index:", "expected numbers"},
        {"index:1,", "expected numbers"},
        {"index:1,,2", "expected numbers"},
        {"index:a", "expected numbers"},
        {"index:4,4", "must increase"},
        {"index:4,1", "must increase"},
        {"index:4294967295", "must be below 4294967295"},
        {"percent:60,41", "sum to 100: 101"},
        {"percent:60", "sum to 100: 60"},
        {"percent:0,100", "between 1 and 100"},
        {"percent:101", "between 1 and 100"},
        {"percent:50,50,", "expected numbers"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        assert_int_equal(weft_bucket_policy_check(rows[i].text), WEFT_ERR_INVALID_ARGUMENT);
        if (strstr(weft_last_error(), rows[i].says) == NULL ||
            strstr(weft_last_error(), "bucket: ") == NULL) {
            fail_msg("\"%s\" gave: %s", rows[i].text, weft_last_error());
        }
    }
    assert_int_equal(weft_bucket_policy_check(NULL), WEFT_ERR_INVALID_ARGUMENT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_policy_accepts_every_form),
        cmocka_unit_test(test_policy_refuses_with_its_reason),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
