/* SPDX-License-Identifier: Apache-2.0 */
/* Libraries loaded at run time: functions found, functions missing, no such file. */
#include <string.h>

#include "runtime/base/library.h"
#include "tests/support/support.h"

/* What stands in for oneDNN and verbs here: a library that every program has, and none. */
#define MATHS "libm.so.6"
#define NOWHERE "libweft-is-not-installed.so.1"

void *__real_dlopen(const char *file, int flags);
void *__wrap_dlopen(const char *file, int flags);
void *__wrap_dlopen(const char *file, int flags)
{
    const bool maths = strcmp(file, wefti_libraries[WEFTI_LIBRARY_ONEDNN].file) == 0;
    return __real_dlopen(maths ? MATHS : NOWHERE, flags);
}

typedef struct slots {
    double (*root)(double);
    double (*power)(double, double);
} slots_t;

static void test_functions_are_found(void **state)
{
    static const char *const symbols[] = {"sqrt", "pow"};
    wefti_library_state_t library = {PTHREAD_MUTEX_INITIALIZER, false};
    slots_t slots = {NULL, NULL};
    (void)state;
    assert_int_equal(wefti_library_load(WEFTI_LIBRARY_ONEDNN, symbols, 2, &slots, &library),
                     WEFT_OK);
    assert_true(library.loaded);
    assert_true(slots.root(16) == 4 && slots.power(2, 5) == 32);
    /* A second call does nothing: these would not be found. */
    static const char *const none[] = {"weft_none", "weft_none"};
    assert_int_equal(wefti_library_load(WEFTI_LIBRARY_ONEDNN, none, 2, &slots, &library), WEFT_OK);
    assert_true(slots.root(16) == 4);
    assert_int_equal(wefti_library_probe(WEFTI_LIBRARY_ONEDNN), WEFT_OK);
}

static void test_a_missing_function_is_named(void **state)
{
    static const char *const symbols[] = {"sqrt", "weft_none"};
    wefti_library_state_t library = {PTHREAD_MUTEX_INITIALIZER, false};
    slots_t slots;
    (void)state;
    assert_int_equal(wefti_library_load(WEFTI_LIBRARY_ONEDNN, symbols, 2, &slots, &library),
                     WEFT_ERR_NOT_FOUND);
    assert_false(library.loaded);
    assert_string_equal(weft_last_error(), "oneDNN: libdnnl.so.2 has no function weft_none; "
                                           "install libdnnl2");
}

static void test_a_missing_library_is_named(void **state)
{
    static const char *const symbols[] = {"ibv_open_device"};
    wefti_library_state_t library = {PTHREAD_MUTEX_INITIALIZER, false};
    void *slot;
    (void)state;
    for (int i = 0; i < 2; i++) { /* tried again each time */
        assert_int_equal(wefti_library_load(WEFTI_LIBRARY_VERBS, symbols, 1, &slot, &library),
                         WEFT_ERR_NOT_FOUND);
        assert_string_equal(weft_last_error(),
                            "verbs: cannot load libibverbs.so.1: " NOWHERE ": cannot open shared "
                            "object file: No such file or directory; install libibverbs1");
    }
    assert_int_equal(wefti_library_probe(WEFTI_LIBRARY_VERBS), WEFT_ERR_NOT_FOUND);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_functions_are_found),
        cmocka_unit_test(test_a_missing_function_is_named),
        cmocka_unit_test(test_a_missing_library_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
