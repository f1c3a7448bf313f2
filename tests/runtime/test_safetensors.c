/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoint files that are not what they should be: an error with words, never a crash. */
#include "support.h"

#include "support_ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MLP WEFT_SOURCE_DIR "/tests/data/torch_mlp_batch4.onnx"
#define META "\"__metadata__\": {\"weft.format\": \"1\", \"weft.step\": \"3\"}"

static char path[64];
static weft_plan_t *plan;
static uint8_t *good;
static size_t good_bytes;

static void put_file(const void *data, size_t bytes)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
}

/* A file with this header, or with this length said of it, and contents. */
static void put_header(const char *header, uint64_t length, size_t data_bytes)
{
    uint8_t bytes[8192] = {0};
    size_t text = strlen(header);
    length = length > 0 ? length : text;
    for (int i = 0; i < 8; i++) {
        bytes[i] = (uint8_t)(length >> (8 * i));
    }
    assert_true(8 + text + data_bytes <= sizeof bytes);
    memcpy(bytes + 8, header, text);
    put_file(bytes, 8 + text + data_bytes);
}

static void expect(weft_status_t status, const char *words)
{
    weft_status_t found = weft_checkpoint_check(path, plan, NULL, NULL);
    if (found != status || strstr(weft_last_error(), words) == NULL) {
        print_error("%d (%s), expected %d, %s\n", (int)found, weft_last_error(), (int)status,
                    words);
    }
    assert_int_equal(found, status);
    assert_non_null(strstr(weft_last_error(), words));
    assert_non_null(strstr(weft_last_error(), path));
}

static void save(rank_world_t *world)
{
    weft_session_t *session = NULL;
    weft_session_params_t params = WEFT_SESSION_PARAMS_INIT;
    params.context = world->context;
    params.plan = plan;
    RANK_OK(weft_session_create(&params, &session));
    RANK_OK(weft_session_save_checkpoint(session, path, NULL));
    weft_session_destroy(session);
}

static int prepare(void **state)
{
    weft_compile_params_t params = WEFT_COMPILE_PARAMS_INIT;
    (void)state;
    snprintf(path, sizeof path, "/tmp/weft-safetensors-XXXXXX");
    int fd = mkstemp(path);
    params.model_path = MLP;
    params.world_size = 1;
    if (fd < 0 || weft_compile(&params, &plan) < 0) {
        return 1;
    }
    close(fd);
    support_rank_threads(1, save, NULL);
    good = malloc(1 << 20);
    FILE *file = fopen(path, "rb");
    if (good == NULL || file == NULL) {
        return 1;
    }
    good_bytes = fread(good, 1, 1 << 20, file);
    fclose(file);
    return weft_checkpoint_check(path, plan, NULL, NULL) < 0;
}

static int clean(void **state)
{
    (void)state;
    unlink(path);
    free(good);
    weft_plan_release(plan);
    return 0;
}

static void test_lengths(void **state)
{
    (void)state;
    put_file("", 0);
    expect(WEFT_ERR_FORMAT, "not a safetensors file: 0 bytes");
    put_file("1234567", 7);
    expect(WEFT_ERR_FORMAT, "7 bytes");
    put_header("{}", UINT64_MAX, 0);
    expect(WEFT_ERR_FORMAT, "the header length is 18446744073709551615 bytes");
    put_header("{}", 3, 0);
    expect(WEFT_ERR_FORMAT, "truncated");
    put_header("", 0, 0);
    expect(WEFT_ERR_FORMAT, "header: line 1");
    put_header("[]", 0, 0);
    expect(WEFT_ERR_FORMAT, "not a JSON object");
    put_header("{" META "}", 0, 4);
    expect(WEFT_ERR_FORMAT, "4 trailing bytes after the last tensor");
    put_file(good, good_bytes - 1);
    expect(WEFT_ERR_FORMAT, "data_offsets out of range");
}

static void test_tensors(void **state)
{
    static const struct {
        const char *tensors, *words;
        size_t data_bytes;
    } cases[] = {
        {"\"a\": 7", "expected dtype, shape and data_offsets", 0},
        {"\"a\": {\"dtype\": \"F32\", \"shape\": []}", "expected dtype", 0},
        {"\"a\": {\"dtype\": 4, \"shape\": [], \"data_offsets\": [0, 4]}", "expected dtype", 4},
        {"\"a\": {\"dtype\": \"F32\", \"dtype\": \"F32\", \"shape\": [], \"data_offsets\": [0, 4]}",
         "expected dtype", 4},
        {"\"a\": {\"dtype\": \"F32\", \"shape\": 4, \"data_offsets\": [0, 4]}", "expected a list",
         4},
        {"\"a\": {\"dtype\": \"F32\", \"shape\": [1,1,1,1,1,1,1,1,1], \"data_offsets\": [0, 4]}",
         "at most 8", 4},
        {"\"a\": {\"dtype\": \"F32\", \"shape\": [-1], \"data_offsets\": [0, 4]}", "whole number",
         4},
        {"\"a\": {\"dtype\": \"F32\", \"shape\": [1.5], \"data_offsets\": [0, 6]}", "whole number",
         6},
        {"\"a\": {\"dtype\": \"F32\", \"shape\": [1e300], \"data_offsets\": [0, 4]}",
         "whole number", 4},
        {"\"a\": {\"dtype\": \"F32\", \"shape\": [4294967296, 4294967296, 4], \"data_offsets\": "
         "[0, 4]}",
         "dtype and shape do not match", 4},
        {"\"a\": {\"dtype\": \"F32\", \"shape\": [2], \"data_offsets\": [0, 4]}",
         "dtype and shape do not match", 4},
        {"\"a\": {\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [4, 0]}",
         "out of range: bytes 4 to 0", 4},
        {"\"a\": {\"dtype\": \"F32\", \"shape\": [2], \"data_offsets\": [0, 8]}",
         "bytes 0 to 8 of 4 bytes", 4},
        {"\"a\": {\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [0, 4, 8]}",
         "expected two whole numbers", 4},
        {"\"a\": {\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [-4, 0]}",
         "expected two whole numbers", 4},
        {"\"a\": {\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [4, 8]}",
         "gap after the preceding", 8},
        {"\"a\": {\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [0, 4]}, "
         "\"b\": {\"dtype\": \"I8\", \"shape\": [2], \"data_offsets\": [3, 5]}",
         "overlaps the preceding tensor", 5},
        {"\"a\": {\"dtype\": \"I8\", \"shape\": [1], \"data_offsets\": [0, 1]}, "
         "\"\\u0061\": {\"dtype\": \"I8\", \"shape\": [1], \"data_offsets\": [1, 2]}",
         "duplicate name", 2},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char header[1024];
        snprintf(header, sizeof header, "{" META ", %s}", cases[i].tensors);
        put_header(header, 0, cases[i].data_bytes);
        expect(WEFT_ERR_FORMAT, cases[i].words);
    }
    put_header("{" META ", \"a\": {\"dtype\": \"F4\", \"shape\": [1], \"data_offsets\": [0, 4]}}",
               0, 4);
    expect(WEFT_ERR_UNSUPPORTED, "unknown dtype \"F4\"");
}

static void test_metadata(void **state)
{
    static const struct {
        const char *metadata, *words;
        weft_status_t status;
    } cases[] = {
        {"[]", "__metadata__: expected one JSON object", WEFT_ERR_FORMAT},
        {"{}, \"__metadata__\": {}", "__metadata__: expected one JSON object", WEFT_ERR_FORMAT},
        {"{\"a\": 1}", "\"a\" is not a string", WEFT_ERR_FORMAT},
        {"{\"a\": \"\", \"a\": \"\"}", "duplicate key \"a\"", WEFT_ERR_FORMAT},
        {"{\"format\": \"pt\"}", "not a checkpoint: no \"weft.format\"", WEFT_ERR_FORMAT},
        {"{\"weft.format\": \"2\"}", "unsupported checkpoint format 2: expected 1",
         WEFT_ERR_UNSUPPORTED},
        {"{\"weft.format\": \"1\"}", "no \"weft.step\"", WEFT_ERR_FORMAT},
        {"{\"weft.format\": \"1\", \"weft.step\": \"-3\"}", "\"weft.step\": invalid number '-3'",
         WEFT_ERR_FORMAT},
        {"{\"weft.format\": \"1\", \"weft.step\": \"\"}", "\"weft.step\": empty", WEFT_ERR_FORMAT},
        {"{\"weft.format\": \"1\", \"weft.step\": \"18446744073709551616\"}", "invalid number",
         WEFT_ERR_FORMAT},
        {"{\"weft.format\": \"1\", \"weft.step\": \"9007199254740993\"}",
         "\"weft.step\": too large", WEFT_ERR_FORMAT},
        {"{\"weft.format\": \"1\", \"weft.step\": \"1\", \"weft.lr\": \"fast\"}",
         "\"weft.lr\": invalid number", WEFT_ERR_FORMAT},
        {"{\"weft.format\": \"1\", \"weft.step\": \"1\", \"weft.optimizer\": \"adam\"}",
         "optimizer mismatch: the checkpoint has \"adam\", the plan \"momentum\"", WEFT_ERR_FORMAT},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char header[1024];
        snprintf(header, sizeof header, "{\"__metadata__\": %s}", cases[i].metadata);
        put_header(header, 0, 0);
        expect(cases[i].status, cases[i].words);
    }
}

/* The good file with from in its header replaced by to, which is as long. */
static void put_changed(const char *from, const char *to)
{
    uint8_t *copy = malloc(good_bytes);
    assert_non_null(copy);
    memcpy(copy, good, good_bytes);
    assert_int_equal(strlen(from), strlen(to));
    uint8_t *found = memmem(copy, good_bytes, from, strlen(from));
    assert_non_null(found);
    memcpy(found, to, strlen(to));
    put_file(copy, good_bytes);
    free(copy);
}

static void test_tensors_that_do_not_fit_the_plan(void **state)
{
    char first[128] = "";
    const char *name = (const char *)memmem(good, good_bytes, ".weight.momentum\"", 17);
    (void)state;
    assert_non_null(name);
    while (name[-1] != '"') {
        name--;
    }
    snprintf(first, sizeof first, "%.*s", (int)(strchr(name, '"') - name), name);
    char other[128], words[256];
    snprintf(other, sizeof other, "%s", first);
    other[strlen(other) - 1] = '~'; /* behind all others of that prefix */
    put_changed(first, other);
    snprintf(words, sizeof words, "tensor \"%s\": in the plan but not in the checkpoint", first);
    expect(WEFT_ERR_FORMAT, words);
    other[0] = '!'; /* before all others */
    put_changed(first, other);
    snprintf(words, sizeof words, "tensor \"%s\": not in the plan", other);
    expect(WEFT_ERR_FORMAT, words);
    put_changed("\"F32\"", "\"I32\"");
    expect(WEFT_ERR_FORMAT, "the checkpoint has i32 [");
    put_changed("\"shape\": [", "\"shape\":[ "); /* only other spelling */
    assert_int_equal(weft_checkpoint_check(path, plan, NULL, NULL), WEFT_OK);
    assert_int_equal(weft_checkpoint_check("/nowhere/file", plan, NULL, NULL), WEFT_ERR_NOT_FOUND);
    assert_int_equal(weft_checkpoint_check("/tmp", plan, NULL, NULL), WEFT_ERR_SYSTEM);
    assert_int_equal(weft_checkpoint_check(NULL, plan, NULL, NULL), WEFT_ERR_INVALID_ARGUMENT);
}

static void load_damaged(rank_world_t *world)
{
    weft_session_t *session = NULL;
    weft_session_params_t params = WEFT_SESSION_PARAMS_INIT;
    params.context = world->context;
    params.plan = plan;
    char before[65], after[65];
    RANK_OK(weft_session_create(&params, &session));
    RANK_OK(weft_session_param_digest(session, before));
    RANK_CHECK(weft_session_load_checkpoint(session, path, NULL) == WEFT_ERR_FORMAT);
    RANK_CHECK(strstr(weft_last_error(), "digest mismatch") != NULL);
    RANK_OK(weft_session_param_digest(session, after));
    RANK_CHECK(strcmp(before, after) == 0);
    weft_session_destroy(session);
}

static void test_damaged_contents_are_not_loaded(void **state)
{
    (void)state;
    good[good_bytes - 1] ^= 1;
    put_file(good, good_bytes);
    good[good_bytes - 1] ^= 1;
    support_rank_threads(1, load_damaged, NULL);
    put_changed("\"weft.step\": \"0\"", "\"weft.step\": \"5\"");
    support_rank_threads(1, load_damaged, NULL);
}

/* Bytes of the header changed, moved and cut at random. */
static void test_random_damage(void **state)
{
    uint64_t random = support_seed();
    size_t header = good_bytes < 4000 ? good_bytes : 4000;
    uint8_t *copy = malloc(good_bytes);
    (void)state;
    assert_non_null(copy);
    for (int i = 0; i < 400; i++) {
        size_t bytes = good_bytes;
        memcpy(copy, good, good_bytes);
        for (uint64_t n = test_next_random(&random) % 4 + 1; n > 0; n--) {
            size_t at = test_next_random(&random) % header;
            static const char interesting[] = "\"\\{}[],:0129-u. ";
            switch (test_next_random(&random) % 4) {
            case 0:
                copy[at] = (uint8_t)test_next_random(&random);
                break;
            case 1:
                copy[at] = (uint8_t)interesting[test_next_random(&random) % 16];
                break;
            case 2:
                memmove(copy + at, copy + at + 1, good_bytes - at - 1);
                break;
            default:
                bytes = test_next_random(&random) % 8 == 0 ? at : bytes;
                break;
            }
        }
        put_file(copy, bytes);
        weft_status_t status = weft_checkpoint_check(path, plan, NULL, NULL);
        assert_true(status >= 0 || strlen(weft_last_error()) > strlen(path));
    }
    free(copy);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lengths),
        cmocka_unit_test(test_tensors),
        cmocka_unit_test(test_metadata),
        cmocka_unit_test(test_tensors_that_do_not_fit_the_plan),
        cmocka_unit_test(test_damaged_contents_are_not_loaded),
        cmocka_unit_test(test_random_damage),
    };
    setenv("WEFT_THREADS", "1", 1); /* ranks are threads already */
    return cmocka_run_group_tests(tests, prepare, clean);
}
