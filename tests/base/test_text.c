/* SPDX-License-Identifier: Apache-2.0 */
/* Text, JSON, settings and files. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/error.h"
#include "runtime/base/file.h"
#include "runtime/base/json.h"
#include "runtime/base/settings.h"
#include "tests/support/support.h"
#include "tests/support/support_comma.h"

static void test_text_grows_and_is_handed_over(void **in)
{
    (void)in;
    wefti_text_t text;
    wefti_text_init(&text, NULL);
    for (int i = 0; i < 1000; i++) {
        wefti_text_printf(&text, "%d,", i);
    }
    char *taken = wefti_text_take(&text);
    assert_int_equal(strlen(taken), 10 * 2 + 90 * 3 + 900 * 4);
    assert_string_equal(taken + strlen(taken) - 4, "999,");
    free(taken);
    taken = wefti_text_take(&text); /* nothing added */
    assert_string_equal(taken, "");
    free(taken);
}

static void test_format_bytes(void **in)
{
    (void)in;
    char buffer[32];
    assert_string_equal(wefti_format_bytes(312, buffer), "312 B");
    assert_string_equal(wefti_format_bytes(1536, buffer), "1.5 KiB");
    assert_string_equal(wefti_format_bytes(1048575, buffer), "1.0 MiB");
    assert_string_equal(wefti_format_bytes(UINT64_MAX, buffer), "16.0 EiB");
}

static char *json_of_string(const char *value)
{
    wefti_text_t text;
    wefti_json_t json;
    wefti_text_init(&text, NULL);
    wefti_json_init(&json, &text, false);
    wefti_json_string(&json, NULL, value);
    return wefti_text_take(&text);
}

static void test_json_escapes_strings(void **in)
{
    (void)in;
    static const char *const cases[][2] = {
        {"plain", "\"plain\""},
        {"a\"b\\c", "\"a\\\"b\\\\c\""},
        {"\n\t\r\x01\x7f", "\"\\n\\t\\u000d\\u0001\\u007f\""},
        {"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", "\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\""},
        {"\xc2\x9b\xc2\xa0", "\"\\u009b\xc2\xa0\""},   /* C1 */
        {"\xc3", "\"\\ufffd\""},                       /* cut short */
        {"\x80z", "\"\\ufffdz\""},                     /* no first byte */
        {"\xc0\xaf", "\"\\ufffd\\ufffd\""},            /* overlong */
        {"\xed\xa0\x80", "\"\\ufffd\\ufffd\\ufffd\""}, /* surrogate */
        {"\xf5\x80\x80\x80", "\"\\ufffd\\ufffd\\ufffd\\ufffd\""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char *text = json_of_string(cases[i][0]);
        assert_string_equal(text, cases[i][1]);
        free(text);
    }
    char *null = json_of_string(NULL);
    assert_string_equal(null, "null");
    free(null);
}

static void test_printable_text_drives_no_terminal(void **in)
{
    (void)in;
    static const char *const cases[][2] = {
        {"plain \xc3\xa9\xf0\x9f\x98\x80", "plain \xc3\xa9\xf0\x9f\x98\x80"},
        {"\x1b[2J\n\t\x7f", "?[2J???"},
        {"\xc2\x9b"
         "2J",
         "?2J"},
        {"\xc2", "?"},
        {"\xe2\x82", "??"},
        {"\xed\xa0\x80z", "???z"},
        {"\xff\xc0\xaf", "???"},
        {"", ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        wefti_text_t text;
        wefti_text_init(&text, NULL);
        wefti_text_add_printable(&text, cases[i][0]);
        char *taken = wefti_text_take(&text);
        assert_string_equal(taken, cases[i][1]);
        free(taken);
    }
}

static void test_json_nests(void **in)
{
    (void)in;
    wefti_text_t text;
    wefti_json_t json;
    wefti_text_init(&text, NULL);
    wefti_json_init(&json, &text, false);
    wefti_json_begin_object(&json, NULL);
    wefti_json_begin_array(&json, "list");
    wefti_json_int(&json, NULL, INT64_MIN);
    wefti_json_double(&json, NULL, 0.1);
    wefti_json_double(&json, NULL, 1.0 / 3.0);
    wefti_json_double(&json, NULL, (double)NAN);
    wefti_json_begin_object(&json, NULL);
    wefti_json_end_object(&json);
    wefti_json_end_array(&json);
    wefti_json_bool(&json, "yes", true);
    wefti_json_string(&json, "nothing", NULL);
    wefti_json_end_object(&json);
    char *taken = wefti_text_take(&text);
    assert_string_equal(taken,
                        "{\"list\": [-9223372036854775808, 0.1, 0.33333333333333331, null, {}], "
                        "\"yes\": true, \"nothing\": null}");
    free(taken);
}

static void test_json_fails_when_too_deep(void **in)
{
    (void)in;
    wefti_text_t text;
    wefti_json_t json;
    wefti_text_init(&text, NULL);
    wefti_json_init(&json, &text, true);
    for (int i = 0; i < 100; i++) {
        wefti_json_begin_array(&json, NULL);
    }
    assert_null(wefti_text_take(&text));
}

static void test_settings_have_defaults(void **in)
{
    (void)in;
    size_t count;
    const wefti_setting_def_t *defs = wefti_setting_defs(&count);
    wefti_settings_t settings;
    for (size_t i = 0; i < count; i++) {
        assert_true(strncmp(defs[i].name, "WEFT_", 5) == 0 && strlen(defs[i].help) > 10);
        unsetenv(defs[i].name);
    }
    assert_int_equal(wefti_settings_load(&settings), WEFT_OK);
    assert_int_equal(settings.isa, wefti_isa_detect());
    assert_int_equal(settings.progress, WEFT_PROGRESS_AUTO);
    assert_true(settings.timeout_ns == 600ull * 1000000000ull);
    assert_int_equal(settings.log_level, WEFT_LOG_LEVEL_WARN);
    assert_int_equal(settings.threads, 0);
}

static void test_settings_parse_or_name_the_variable(void **in)
{
    (void)in;
    static const struct {
        const char *name, *value;
        int good;
    } cases[] = {
        {"WEFT_ISA", "portable", 1},
        {"WEFT_ISA", "AVX2", 0},
        {"WEFT_PROGRESS", "thread", 1},
        {"WEFT_PROGRESS", "both", 0},
        {"WEFT_TIMEOUT", "0.5", 1},
        {"WEFT_TIMEOUT", "-1", 0},
        {"WEFT_TIMEOUT", "nan", 0},
        {"WEFT_TIMEOUT", "1e30", 0},
        {"WEFT_TIMEOUT", "5s", 0},
        {"WEFT_SPIN_US", "0", 1},
        {"WEFT_RESERVE_BYTES", "2G", 1},
        {"WEFT_RESERVE_BYTES", "2g", 0},
        {"WEFT_RESERVE_BYTES", "-1", 0},
        {"WEFT_RESERVE_BYTES", "99999999999999999999", 0},
        {"WEFT_RESERVE_BYTES", "16777216T", 0},
        {"WEFT_RESERVE_BYTES", "1MB", 0},
        {"WEFT_LATE_STACKS", "on", 1},
        {"WEFT_LATE_STACKS", "1", 1},
        {"WEFT_LATE_STACKS", "2", 0},
        {"WEFT_FALLBACK", "1", 0},
        {"WEFT_LOG", "debug", 1},
        {"WEFT_LOG", "loud", 0},
        {"WEFT_THREADS", "4", 1},
        {"WEFT_THREADS", "4097", 0},
        {"WEFT_THREADS", "two", 0},
        {"WEFT_THREADS", " 4", 0},
        {"WEFT_THREADS", "+4", 0},
        {"WEFT_THREADS", "-0", 0},
        {"WEFT_VERBS_GID_INDEX", "-1", 1},
        {"WEFT_VERBS_GID_INDEX", "-", 0},
        {"WEFT_VERBS_GID_INDEX", "-2", 0},
        {"WEFT_THREADS", "", 1}, /* empty is unset */
        {"WEFT_KERNELS", "onednn", 1},
        {"WEFT_KERNELS", "fast", 0},
        {"WEFT_ALGO", "AllReduce=ring,AllGather=bruck", 1},
        {"WEFT_ORDER", "any", 1},
        {"WEFT_ORDER", "blocks:4,3", 1},
        {"WEFT_ORDER", "blocks:4,", 0},
        {"WEFT_ORDER", "blocks:", 0},
        {"WEFT_ORDER", "blocks:4,0", 0},
        {"WEFT_ORDER", "blocks:4x", 0},
        {"WEFT_ORDER", "blocks:99999999999999999999", 0},
        {"WEFT_ORDER", "Tree", 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        wefti_settings_t settings = {.threads = 77};
        setenv(cases[i].name, cases[i].value, 1);
        weft_status_t status = wefti_settings_load(&settings);
        if (cases[i].good ? status != WEFT_OK : status != WEFT_ERR_INVALID_ARGUMENT) {
            fail_msg("%s=%s: %s", cases[i].name, cases[i].value, weft_status_name(status));
        }
        if (!cases[i].good) {
            assert_non_null(strstr(weft_last_error(), cases[i].name));
            assert_int_equal(settings.threads, 77); /* untouched */
        } else if (strcmp(cases[i].value, "0.5") == 0) {
            assert_true(settings.timeout_ns == 500000000);
        } else if (strcmp(cases[i].name, "WEFT_LATE_STACKS") == 0) {
            assert_int_equal(settings.late_stacks, 1);
        } else if (strcmp(cases[i].value, "2G") == 0) {
            assert_true(settings.reserve_bytes == 2ull << 30);
        } else if (strcmp(cases[i].value, "blocks:4,3") == 0) {
            assert_int_equal(settings.order.order, WEFT_ORDER_BLOCKS);
            assert_int_equal(settings.order.count, 2);
            assert_int_equal(settings.order.sizes[1], 3);
        }
        unsetenv(cases[i].name);
    }
}

static void test_settings_in_a_locale_with_a_decimal_comma(void **in)
{
    (void)in;
    wefti_settings_t settings;
    setenv("WEFT_TIMEOUT", "0.5", 1);
    decimal_comma = true;
    weft_status_t status = wefti_settings_load(&settings);
    decimal_comma = false;
    unsetenv("WEFT_TIMEOUT");
    assert_int_equal(status, WEFT_OK);
    assert_true(settings.timeout_ns == 500000000);
}

typedef struct directory {
    char path[64], file[96];
} directory_t;

static int setup(void **out)
{
    static directory_t directory;
    snprintf(directory.path, sizeof directory.path, "/tmp/weft-test-file-XXXXXX");
    if (!mkdtemp(directory.path)) {
        return -1;
    }
    snprintf(directory.file, sizeof directory.file, "%s/file", directory.path);
    *out = &directory;
    return 0;
}

static int teardown(void **in)
{
    directory_t *directory = *in;
    unlink(directory->file);
    return rmdir(directory->path); /* fails if a temporary file stayed behind */
}

static void test_file_is_written_and_mapped(void **in)
{
    directory_t *directory = *in;
    const wefti_piece_t pieces[] = {{"con", 3}, {NULL, 0}, {"tents", 5}};
    wefti_mapping_t mapping;
    struct stat facts;
    mode_t mask = umask(027);
    assert_int_equal(wefti_file_write(directory->file, pieces, 3), WEFT_OK);
    umask(mask);
    assert_int_equal(stat(directory->file, &facts), 0);
    assert_int_equal(facts.st_mode & 0777, 0640);
    assert_int_equal(wefti_file_map(directory->file, &mapping), WEFT_OK);
    assert_int_equal(mapping.size_bytes, 8);
    assert_memory_equal(mapping.data, "contents", 8);
    /* Replacing a file leaves those who have mapped it with the old contents. */
    assert_int_equal(wefti_file_write(directory->file, pieces, 0), WEFT_OK);
    wefti_file_release_pages(&mapping);
    assert_memory_equal(mapping.data, "contents", 8);
    wefti_file_unmap(&mapping);
    assert_int_equal(wefti_file_map(directory->file, &mapping), WEFT_OK); /* empty */
    assert_null(mapping.data);
    wefti_file_release_pages(&mapping);
    wefti_file_unmap(&mapping);
}

static void test_file_errors_name_the_path(void **in)
{
    directory_t *directory = *in;
    const wefti_piece_t piece = {"x", 1};
    wefti_mapping_t mapping = {(const uint8_t *)"", 1};
    assert_int_equal(wefti_file_map(directory->file, &mapping), WEFT_ERR_NOT_FOUND);
    assert_non_null(strstr(weft_last_error(), directory->file));
    assert_null(mapping.data);
    assert_int_equal(wefti_file_map(directory->path, &mapping), WEFT_ERR_SYSTEM);
    assert_int_equal(wefti_file_write("/nonexistent/x", &piece, 1), WEFT_ERR_NOT_FOUND);
    assert_int_equal(wefti_file_write("", &piece, 1), WEFT_ERR_INVALID_ARGUMENT);
    assert_int_equal(wefti_file_write(directory->path, &piece, 1), WEFT_ERR_SYSTEM);
    assert_int_equal(wefti_file_write("/dev/null", &piece, 1), WEFT_ERR_SYSTEM);
    assert_int_equal(wefti_file_check_place("/nonexistent/x"), WEFT_ERR_NOT_FOUND);
    assert_non_null(strstr(weft_last_error(), "/nonexistent/x"));
    assert_int_equal(wefti_file_check_place(""), WEFT_ERR_INVALID_ARGUMENT);
    assert_int_equal(wefti_file_check_place("/dev/null"), WEFT_ERR_SYSTEM);
    assert_int_equal(wefti_file_check_place(directory->file), WEFT_OK);
    assert_int_not_equal(access(directory->file, F_OK), 0); /* only asked */
    assert_int_equal(mkfifo(directory->file, 0600), 0);     /* must not block */
    assert_int_equal(wefti_file_map(directory->file, &mapping), WEFT_ERR_SYSTEM);
}

static void test_file_that_does_not_fit_leaves_the_old_one(void **in)
{
    directory_t *directory = *in;
    const wefti_piece_t small = {"old", 3};
    const wefti_piece_t large = {calloc(1, 65536), 65536};
    struct rlimit limit, before;
    wefti_mapping_t mapping;
    assert_int_equal(wefti_file_write(directory->file, &small, 1), WEFT_OK);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    limit = before;
    limit.rlim_cur = 4096;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    weft_status_t status = wefti_file_write(directory->file, &large, 1);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(status, WEFT_ERR_SYSTEM); /* and no signal */
    assert_int_equal(wefti_file_map(directory->file, &mapping), WEFT_OK);
    assert_memory_equal(mapping.data, "old", 3);
    wefti_file_unmap(&mapping);
    free((void *)(uintptr_t)large.data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text_grows_and_is_handed_over),
        cmocka_unit_test(test_format_bytes),
        cmocka_unit_test(test_json_escapes_strings),
        cmocka_unit_test(test_printable_text_drives_no_terminal),
        cmocka_unit_test(test_json_nests),
        cmocka_unit_test(test_json_fails_when_too_deep),
        cmocka_unit_test(test_settings_have_defaults),
        cmocka_unit_test(test_settings_parse_or_name_the_variable),
        cmocka_unit_test(test_settings_in_a_locale_with_a_decimal_comma),
        cmocka_unit_test_setup_teardown(test_file_is_written_and_mapped, setup, teardown),
        cmocka_unit_test_setup_teardown(test_file_errors_name_the_path, setup, teardown),
        cmocka_unit_test_setup_teardown(test_file_that_does_not_fit_leaves_the_old_one, setup,
                                        teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
