/* SPDX-License-Identifier: Apache-2.0 */
/* Values that FNV's authors publish for FNV-1a in 64 bits. */
#include <string.h>

#include "runtime/base/hash.h"
#include "tests/support/support.h"

static void test_hash_is_fnv_1a(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint64_t hash;
    } known[] = {
        {"", 0xcbf29ce484222325u}, {"a", 0xaf63dc4c8601ec8cu}, {"foobar", 0x85944171f73967e8u}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        const char *text = known[i].text;
        assert_true(wefti_hash_text(WEFTI_HASH_START, text) == known[i].hash);
        assert_true(wefti_hash_bytes(WEFTI_HASH_START, text, strlen(text)) == known[i].hash);
    }
}

/* Words that differ in their uppermost bit differ below after one more word. */
static void test_hash_of_words_mixes_upper_bits(void **state)
{
    (void)state;
    uint64_t a[] = {1, 2, 3}, b[] = {1 | (uint64_t)1 << 63, 2, 3};
    assert_true((uint32_t)wefti_hash_words(a, 3) != (uint32_t)wefti_hash_words(b, 3));
    assert_true(wefti_hash_words(a, 0) == WEFTI_HASH_START);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hash_is_fnv_1a),
        cmocka_unit_test(test_hash_of_words_mixes_upper_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
