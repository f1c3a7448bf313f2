/* SPDX-License-Identifier: Apache-2.0 */
/* HMAC-SHA256 against values of another implementation; comparison, random bytes. */
#include <string.h>

#include "runtime/base/digest.h"
#include "tests/support/support.h"

/* The values are Python's: hmac.new(key, label + b"\0" + data, "sha256").hexdigest(). */
static void expect(const void *key, size_t key_bytes, const char *label, const char *data,
                   const char *hex)
{
    wefti_digest_t mac;
    char text[65];
    assert_int_equal(wefti_hmac(key, key_bytes, label, data, strlen(data), &mac), WEFT_OK);
    assert_string_equal(wefti_digest_hex(&mac, text), hex);
}

static void test_hmac_vectors(void **state)
{
    uint8_t long_key[131];
    uint8_t block_key[64];
    (void)state;
    memset(long_key, 0xaa, sizeof long_key);
    memset(block_key, 0x42, sizeof block_key);
    expect("", 0, "", "", "6620b31f2924b8c01547745f41825d322336f83ebb13d723678789d554d8a3ef");
    expect("Jefe", 4, "weft", "what do ya want for nothing?",
           "65f1fc6ce57831ee676fe45d0a2a5988d83e23484e55f500579a6a807d74f943");
    expect(block_key, sizeof block_key, "a label", "Hi There",
           "3bb8f0169ead9cebe82d19e76fe890b702aa35771ab63e1db781846b37b2e5bf");
    expect(long_key, sizeof long_key, "x", "Test Using Larger Than Block-Size Key - Hash Key First",
           "1cc893009f99d83afe9a3d819f679ce7055e2156d3c8448416a486a70f592909");
}

static void test_digest_equality(void **state)
{
    wefti_digest_t a, b;
    (void)state;
    memset(&a, 7, sizeof a);
    b = a;
    assert_true(wefti_digest_equal(&a, &b));
    b.bytes[31] ^= 1;
    assert_false(wefti_digest_equal(&a, &b));
}

static void test_random_bytes_differ(void **state)
{
    uint8_t a[300] = {0}, b[300] = {0};
    (void)state;
    assert_int_equal(wefti_random_bytes(a, sizeof a), WEFT_OK);
    assert_int_equal(wefti_random_bytes(b, sizeof b), WEFT_OK);
    assert_memory_not_equal(a, b, sizeof a);
    wefti_forget(a, sizeof a);
    memset(b, 0, sizeof b);
    assert_memory_equal(a, b, sizeof a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hmac_vectors),
        cmocka_unit_test(test_digest_equality),
        cmocka_unit_test(test_random_bytes_differ),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
