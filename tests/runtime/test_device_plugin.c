/* SPDX-License-Identifier: Apache-2.0 */
/* Plugins of devices: found, refused, opened by name, shared by contexts. */
#include "tests/support/support.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <weft/weft.h>

#include "runtime/base/device_plugin.h"

static void expect_error(weft_status_t status, weft_status_t expected, const char *text)
{
    assert_int_equal(status, expected);
    if (strstr(weft_last_error(), text) == NULL) {
        fail_msg("\"%s\" does not have \"%s\" in it", weft_last_error(), text);
    }
}

static void test_plugin_describes_its_devices(void **state)
{
    uint32_t count = 0;
    weft_device_info_t info = WEFT_DEVICE_INFO_INIT;
    (void)state;
    assert_int_equal(weft_device_count("fake", &count), WEFT_OK);
    assert_int_equal(count, 2);
    assert_int_equal(weft_device_describe("fake", 1, &info), WEFT_OK);
    assert_string_equal(info.name, "card number 1");
    assert_string_equal(info.platform, "tests");
    assert_int_equal(info.caps, WEFT_DEVICE_PEER_DIRECT);
    assert_int_equal(info.struct_size, sizeof info);
    expect_error(weft_device_describe("fake", 2, &info), WEFT_ERR_NOT_FOUND, "fake:2");
    assert_int_equal(weft_device_describe(NULL, 0, &info), WEFT_ERR_INVALID_ARGUMENT);
    assert_int_equal(weft_device_describe("fake", 0, NULL), WEFT_ERR_INVALID_ARGUMENT);
    assert_int_equal(weft_device_count("fake", NULL), WEFT_ERR_INVALID_ARGUMENT);
}

static void test_plugin_opens_by_name(void **state)
{
    static const char *const names[] = {"fake", "fake:0", "fake:1", "fake:number 1", "fake:card"};
    weft_device_t *device = NULL;
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        assert_int_equal(weft_device_open(names[i], &device), WEFT_OK);
        assert_non_null(device);
        weft_device_close(device);
    }
    device = (weft_device_t *)&device;
    assert_int_equal(weft_device_open("cpu", &device), WEFT_OK);
    assert_null(device);
    weft_device_close(NULL);
}

static void test_plugin_refuses(void **state)
{
    weft_device_t *device = NULL;
    uint32_t count;
    (void)state;
    expect_error(weft_device_open("fake:2", &device), WEFT_ERR_NOT_FOUND, "no such index");
    expect_error(weft_device_open("fake:99999999999999999999", &device), WEFT_ERR_NOT_FOUND,
                 "no such index");
    expect_error(weft_device_open("fake:blue", &device), WEFT_ERR_NOT_FOUND, "blue");
    expect_error(weft_device_open("fake:", &device), WEFT_ERR_NOT_FOUND, "fake");
    expect_error(weft_device_open("", &device), WEFT_ERR_INVALID_ARGUMENT, "invalid");
    expect_error(weft_device_open("../fake", &device), WEFT_ERR_INVALID_ARGUMENT, "invalid");
    expect_error(weft_device_open("nowhere:0", &device), WEFT_ERR_NOT_FOUND, "libweft_nowhere.so");
    expect_error(weft_device_count("old", &count), WEFT_ERR_UNSUPPORTED, "abi_version 2");
    assert_int_equal(weft_device_open(NULL, &device), WEFT_ERR_INVALID_ARGUMENT);
    assert_int_equal(weft_device_open("fake", NULL), WEFT_ERR_INVALID_ARGUMENT);
    char name[600];
    memset(name, 'a', sizeof name);
    name[sizeof name - 1] = '\0';
    expect_error(weft_device_open(name, &device), WEFT_ERR_INVALID_ARGUMENT, "plugin \"aaaa");
    expect_error(weft_device_count("holes", &count), WEFT_ERR_FORMAT,
                 "weft_device_plugin_t.name is NULL");
    setenv("FAKE_HAS_NO_REDUCE", "1", 1);
    expect_error(weft_device_open("fake:1", &device), WEFT_ERR_FORMAT,
                 "device \"fake:1\": device: weft_device_ops_t.reduce is NULL");
    unsetenv("FAKE_HAS_NO_REDUCE");
    setenv("FAKE_OPENS_NULL", "1", 1);
    expect_error(weft_device_open("fake:1", &device), WEFT_ERR_FORMAT, "opened NULL");
    unsetenv("FAKE_OPENS_NULL");
}

static void test_plugin_lists_are_taken_in_turn(void **state)
{
    static const struct {
        const char *names;
        uint32_t local_rank;
        bool found;
    } cases[] = {{"fake:0,1", 1, true},      {"fake:0,1,7", 2, false}, {"fake:0,1,7", 3, true},
                 {"fake:7,fake:0", 1, true}, {"fake:7,0", 0, false},   {"fake:1", 5, true},
                 {"fake:0,", 1, false}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        weft_device_t *device = NULL;
        weft_status_t status = wefti_device_open_of(cases[i].names, cases[i].local_rank, &device);
        assert_int_equal(status == WEFT_OK, cases[i].found);
        weft_device_close(device);
    }
}

/* ---- contexts ---- */

typedef struct member {
    weft_hub_t *hub;
    const char *device;
    int32_t rank;
    weft_status_t status;
    char text[256];
    pthread_t thread;
} member_t;

static void *member_main(void *user)
{
    member_t *member = user;
    weft_context_t *context = NULL;
    weft_context_params_t params = WEFT_CONTEXT_PARAMS_INIT;
    params.rank = member->rank;
    params.world_size = 2;
    params.hub = member->hub;
    params.device_name = member->device;
    member->status = weft_context_create(&params, &context);
    snprintf(member->text, sizeof member->text, "%s", weft_last_error());
    if (member->status == WEFT_OK) {
        const weft_device_t *device = weft_context_device(context);
        assert_true((device != NULL) == (strcmp(member->device, "cpu") != 0));
    }
    weft_context_release(context);
    return NULL;
}

static void join(const char *first, const char *second, weft_status_t expected, const char *text)
{
    member_t members[2] = {{.device = first, .rank = 0}, {.device = second, .rank = 1}};
    weft_hub_t *hub = NULL;
    assert_int_equal(weft_hub_create(2, &hub), WEFT_OK);
    for (int i = 0; i < 2; i++) {
        members[i].hub = hub;
        assert_int_equal(pthread_create(&members[i].thread, NULL, member_main, &members[i]), 0);
    }
    for (int i = 0; i < 2; i++) {
        pthread_join(members[i].thread, NULL);
    }
    weft_hub_destroy(hub);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(members[i].status, expected);
        assert_true(text == NULL || strstr(members[i].text, text) != NULL);
    }
}

static void test_plugin_contexts_open_devices(void **state)
{
    (void)state;
    join("fake:0,1", "fake:0,1", WEFT_OK, NULL);
    join("cpu", "cpu", WEFT_OK, NULL);
    join("fake:0", "cpu", WEFT_ERR_MISMATCH, "all ranks must be on devices");
    join("fake:0", "fake:5", WEFT_ERR_NOT_FOUND, NULL); /* all hear of it */
}

/* The setting, and a device that its opener has closed while a context uses it. */
static void test_plugin_device_lives_as_long_as_it_is_used(void **state)
{
    weft_context_t *context = NULL;
    weft_context_params_t params = WEFT_CONTEXT_PARAMS_INIT;
    void *memory = NULL;
    (void)state;
    params.rank = 0;
    params.world_size = 1;
    setenv("WEFT_DEVICE", "fake:1", 1);
    assert_int_equal(weft_context_create(&params, &context), WEFT_OK);
    unsetenv("WEFT_DEVICE");
    assert_non_null(weft_context_device(context));
    assert_int_equal(weft_context_set_device(context, NULL), WEFT_OK);
    weft_context_release(context);
    assert_int_equal(weft_device_open("fake", &params.device), WEFT_OK);
    assert_int_equal(weft_context_create(&params, &context), WEFT_OK);
    weft_device_close(params.device);
    assert_int_equal(weft_device_alloc(context, 100, &memory), WEFT_OK);
    weft_context_release(context);
}

/* A plugin's device and its memory, kept beyond the context. */
static void test_plugin_memory_is_kept(void **state)
{
    weft_context_t *context = NULL;
    weft_context_params_t params = WEFT_CONTEXT_PARAMS_INIT;
    weft_queue_t *queue = NULL;
    uint32_t word = 7, back = 0;
    void *memory = NULL;
    (void)state;
    params.rank = 0;
    params.world_size = 1;
    params.device_name = "fake:1";
    assert_int_equal(weft_context_create(&params, &context), WEFT_OK);
    weft_device_t *device = weft_context_device(context);
    assert_int_equal(weft_device_alloc(context, 100, &memory), WEFT_OK);
    assert_int_equal(weft_mem_copy(context, memory, &word, sizeof word), WEFT_OK);
    assert_int_equal(weft_mem_keep(context), WEFT_OK);
    assert_int_equal(weft_mem_keep(context), WEFT_OK);
    weft_context_release(context);
    assert_int_equal(device->ops->queue_create(device, &queue), WEFT_OK);
    assert_int_equal(device->ops->copy(queue, &back, memory, sizeof back), WEFT_OK);
    while (device->ops->query(queue) == WEFT_IN_PROGRESS) {
    }
    assert_int_equal(back, word);
    device->ops->queue_destroy(queue);
    device->ops->mem_free(device, memory);
    weft_device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plugin_describes_its_devices),
        cmocka_unit_test(test_plugin_opens_by_name),
        cmocka_unit_test(test_plugin_refuses),
        cmocka_unit_test(test_plugin_lists_are_taken_in_turn),
        cmocka_unit_test(test_plugin_contexts_open_devices),
        cmocka_unit_test(test_plugin_device_lives_as_long_as_it_is_used),
        cmocka_unit_test(test_plugin_memory_is_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
