/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The flight recorder: what dumps hold, and when ranks write them without being asked. Ranks are
 * threads; dumps of a rank are written by another thread, as they are when a rank is stuck.
 */
#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <weft/weft.h>

#include "runtime/base/file.h"
#include "runtime/base/json.h"
#include "runtime/base/sync.h"
#include "runtime/context/context.h"
#include "support_cards.h"
#include "support_ranks.h"
#include "tests/support/support.h"

#define CALLS 5000
#define PAUSE_NS 1000000ull

/* ---- reading dumps ---- */

typedef struct dump {
    wefti_json_tree_t tree;
    const wefti_json_node_t *calls; /* array */
} dump_t;

static bool dump_parse(const char *path, dump_t *out)
{
    wefti_mapping_t file;
    if (wefti_file_map(path, &file) < 0) {
        return false;
    }
    bool parsed =
        wefti_json_parse((const char *)file.data, file.size_bytes, NULL, &out->tree) == WEFT_OK;
    wefti_file_unmap(&file);
    RANK_CHECK(parsed);
    out->calls = wefti_json_get(&out->tree, out->tree.nodes, "calls");
    return true;
}

/* Of the world of a rank, to a file of its own. */
static void dump_take(weft_context_t *context, dump_t *out)
{
    char path[] = "/tmp/weft-test-flight-XXXXXX";
    int fd = mkstemp(path);
    RANK_CHECK(fd >= 0);
    close(fd);
    RANK_OK(weft_context_dump(context, path));
    RANK_CHECK(dump_parse(path, out));
    unlink(path);
}

static const char *text_of(const dump_t *dump, const wefti_json_node_t *object, const char *key)
{
    const wefti_json_node_t *value = wefti_json_get(&dump->tree, object, key);
    return value != NULL && value->kind == WEFTI_JSON_STRING ? value->string : "";
}

static double number_of(const dump_t *dump, const wefti_json_node_t *object, const char *key)
{
    const wefti_json_node_t *value = wefti_json_get(&dump->tree, object, key);
    return value != NULL && value->kind == WEFTI_JSON_NUMBER ? value->number : -1;
}

/* The last call that reads so; NULL: none. */
static const wefti_json_node_t *find(const dump_t *dump, const char *call)
{
    const wefti_json_node_t *found = NULL;
    for (const wefti_json_node_t *at = wefti_json_first(&dump->tree, dump->calls); at != NULL;
         at = wefti_json_after(&dump->tree, at)) {
        found = strcmp(text_of(dump, at, "call"), call) == 0 ? at : found;
    }
    return found;
}

static void check_call(const dump_t *dump, const char *call, const char *state)
{
    const wefti_json_node_t *found = find(dump, call);
    if (found == NULL || strcmp(text_of(dump, found, "state"), state) != 0) {
        fprintf(stderr, "%s is not %s in the dump\n", call, state);
        RANK_CHECK(false);
    }
}

/* ---- what dumps hold ---- */

static void reduce(rank_world_t *world, uint64_t count, weft_stream_t *stream)
{
    static _Thread_local float data[64];
    RANK_OK(weft_all_reduce(data, data, count, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, world->group,
                            stream));
}

static void hold_calls(rank_world_t *world)
{
    int32_t data[3] = {0};
    weft_stream_t *stream;
    weft_group_t *pair;
    dump_t dump;
    RANK_OK(weft_stream_create(world->context, NULL, &stream));
    reduce(world, 4, NULL);
    reduce(world, 5, stream);
    RANK_OK(weft_stream_synchronize(stream));
    RANK_OK(world->rank == 0 ? weft_send(data, 3, WEFT_DTYPE_I32, 1, world->group, NULL)
                             : weft_recv(data, 3, WEFT_DTYPE_I32, 0, world->group, NULL));
    RANK_OK(weft_group_duplicate(world->group, &pair));
    RANK_OK(weft_batch_begin(pair));
    RANK_OK(weft_broadcast(data, data, 1, WEFT_DTYPE_I32, 0, pair, NULL));
    RANK_OK(weft_broadcast(data, data, 2, WEFT_DTYPE_I32, 0, pair, NULL));
    RANK_OK(weft_batch_end(pair, NULL));
    dump_take(world->context, &dump);
    const wefti_json_node_t *top = dump.tree.nodes;
    RANK_CHECK(number_of(&dump, top, "rank") == world->rank);
    RANK_CHECK(number_of(&dump, top, "world_size") == 2);
    check_call(&dump, "all_reduce with 4 x f32 (sum)", "done");
    check_call(&dump, "all_reduce with 5 x f32 (sum)", "done");
    check_call(&dump,
               world->rank == 0 ? "send of 3 x i32 to rank 1" : "recv of 3 x i32 from rank 0",
               "done");
    check_call(&dump, "broadcast of i32 (root 0), fused calls of a batch", "done");
    const wefti_json_node_t *on_stream = find(&dump, "all_reduce with 5 x f32 (sum)");
    const wefti_json_node_t *first = find(&dump, "all_reduce with 4 x f32 (sum)");
    RANK_CHECK(number_of(&dump, on_stream, "stream") == 1);
    RANK_CHECK(number_of(&dump, on_stream, "seq") == number_of(&dump, first, "seq") + 1);
    RANK_CHECK(number_of(&dump, on_stream, "issued_ns") >= number_of(&dump, first, "issued_ns"));
    RANK_CHECK(wefti_json_get(&dump.tree, top, "groups")->count == 2);
    wefti_json_tree_deinit(&dump.tree);
    weft_group_destroy(pair);
    weft_stream_destroy(stream);
}

static void test_dump_holds_calls(void **state)
{
    (void)state;
    support_rank_threads(2, hold_calls, NULL);
}

/* Number of a control call that all ranks make; -1: it is not one of those. */
static double number_of_control(const dump_t *dump, const char *call)
{
    const wefti_json_node_t *found = find(dump, call);
    RANK_CHECK(found != NULL && strcmp(text_of(dump, found, "state"), "done") == 0);
    return number_of(dump, found, "group") == WEFTI_FLIGHT_CONTROLS ? number_of(dump, found, "seq")
                                                                    : -1;
}

/* Calls that some ranks make alone change no number of those that all make. */
static void hold_control_calls(rank_world_t *world)
{
    weft_group_t *half = NULL, *part = NULL;
    weft_fuser_t *fuser = NULL;
    weft_fuser_params_t in_one_bucket = WEFT_FUSER_PARAMS_INIT;
    float tensor[16] = {0};
    void *memory = NULL;
    dump_t dump;
    in_one_bucket.window_ns = 300000000000ull;
    RANK_OK(weft_group_split(world->group, world->rank / 2, 0, &half));
    if (world->rank < 2) {
        RANK_OK(weft_group_duplicate(half, &part));
    }
    RANK_OK(weft_mem_alloc(world->context, 4096, &memory));
    RANK_OK(weft_context_barrier(world->context));
    RANK_OK(weft_fuser_create(world->group, &in_one_bucket, &fuser));
    for (int step = 0; step < 2; step++) {
        RANK_OK(weft_fuser_add(fuser, tensor, 8, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, "a"));
        RANK_OK(weft_fuser_add(fuser, tensor + 8, 8, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, "b"));
        RANK_OK(weft_fuser_wait(fuser));
    }
    dump_take(world->context, &dump);
    double split = number_of_control(&dump, "group_split");
    double alloc = number_of_control(&dump, "mem_alloc");
    double numbers[3] = {split, alloc, number_of_control(&dump, "context_barrier")}, all[4][3];
    RANK_CHECK(split > 0 && alloc > split && numbers[2] > alloc);
    RANK_CHECK(world->rank >= 2 || number_of_control(&dump, "group_duplicate") < 0);
    RANK_OK(weft_context_all_gather(world->context, numbers, sizeof numbers, all));
    for (uint32_t r = 0; r < world->size; r++) {
        RANK_CHECK(memcmp(all[r], numbers, sizeof numbers) == 0);
    }
    check_call(&dump, "fuser_create", "done");
    check_call(&dump, "all_reduce with 16 x f32 (sum)", "done"); /* the bucket */
    wefti_json_tree_deinit(&dump.tree);
    weft_fuser_destroy(fuser);
    RANK_OK(weft_mem_free(world->context, memory));
    weft_group_destroy(part);
    weft_group_destroy(half);
}

static void test_dump_holds_control_calls(void **state)
{
    (void)state;
    support_rank_threads(4, hold_control_calls, NULL);
}

/* On a card, with a stream and without. */
static void hold_device_calls(rank_world_t *world)
{
    weft_stream_t *stream;
    float *data = NULL;
    dump_t dump;
    RANK_OK(weft_device_alloc(world->context, 64 * sizeof *data, (void **)&data));
    RANK_OK(weft_stream_create(world->context, NULL, &stream));
    RANK_OK(
        weft_all_reduce(data, data, 32, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, world->group, stream));
    RANK_OK(weft_stream_synchronize(stream));
    RANK_OK(
        weft_all_reduce(data, data, 64, WEFT_DTYPE_F32, WEFT_REDUCTION_MAX, world->group, NULL));
    dump_take(world->context, &dump);
    check_call(&dump, "all_reduce with 32 x f32 (sum)", "done");
    check_call(&dump, "all_reduce with 64 x f32 (max)", "done");
    RANK_CHECK(number_of(&dump, find(&dump, "all_reduce with 32 x f32 (sum)"), "stream") > 0);
    wefti_json_tree_deinit(&dump.tree);
    weft_stream_destroy(stream);
    RANK_OK(weft_device_free(world->context, data));
}

static void test_dump_holds_device_calls(void **state)
{
    (void)state;
    support_card_threads(2, hold_device_calls, NULL);
}

static void hold_the_last(rank_world_t *world)
{
    dump_t dump;
    for (int i = 0; i < CALLS; i++) {
        reduce(world, 1 + (uint64_t)(i == CALLS - 1), NULL);
    }
    dump_take(world->context, &dump);
    RANK_CHECK(dump.calls->count > WEFTI_FLIGHT_CALLS - 32 &&
               dump.calls->count <= WEFTI_FLIGHT_CALLS);
    check_call(&dump, "all_reduce with 2 x f32 (sum)", "done");
    wefti_json_tree_deinit(&dump.tree);
}

static void test_dump_holds_the_last_calls(void **state)
{
    (void)state;
    support_rank_threads(1, hold_the_last, NULL);
}

/* Rank 1 looks at rank 0, which waits for it. */
static void come_late(rank_world_t *world)
{
    weft_context_t *_Atomic *waits = world->user;
    bool seen = false;
    if (world->rank == 0) {
        atomic_store(waits, world->context);
        reduce(world, 7, NULL);
        return;
    }
    while (atomic_load(waits) == NULL) {
        wefti_sleep_ns(PAUSE_NS);
    }
    while (!seen) {
        dump_t dump;
        dump_take(*waits, &dump);
        const wefti_json_node_t *call = find(&dump, "all_reduce with 7 x f32 (sum)");
        seen = call != NULL && strcmp(text_of(&dump, call, "state"), "waiting") == 0 &&
               number_of(&dump, call, "awaits") == 1;
        wefti_json_tree_deinit(&dump.tree);
    }
    reduce(world, 7, NULL);
}

static void test_waiting_call_names_the_late_rank(void **state)
{
    weft_context_t *_Atomic waits = NULL;
    (void)state;
    support_rank_threads(2, come_late, &waits);
}

/* ---- dumps that ranks write by themselves ---- */

typedef struct folder {
    char path[64];
    weft_context_t *_Atomic late;
    _Atomic uint32_t ready;
} folder_t;

static void folder_make(folder_t *folder)
{
    *folder = (folder_t){.path = "/tmp/weft-test-flight-XXXXXX"};
    assert_non_null(mkdtemp(folder->path));
    setenv("WEFT_DUMP", folder->path, 1);
}

static const char *folder_file(const folder_t *folder, uint32_t rank, char *out, size_t bytes)
{
    char host[64] = "";
    gethostname(host, sizeof host - 1);
    snprintf(out, bytes, "%s/weft-rank%u-%s-%d.json", folder->path, rank, host, getpid());
    return out;
}

/* There is a dump of rank now. */
static void folder_expect(const folder_t *folder, uint32_t rank)
{
    char path[300];
    assert_int_equal(access(folder_file(folder, rank, path, sizeof path), F_OK), 0);
}

/* Waits for the dump of rank whose reason is, or begins so; any: "". */
static void folder_await(const folder_t *folder, uint32_t rank, const char *reason)
{
    char path[300];
    folder_file(folder, rank, path, sizeof path);
    for (bool found = false; !found; wefti_sleep_ns(PAUSE_NS)) {
        dump_t dump;
        if (dump_parse(path, &dump)) {
            found = strncmp(text_of(&dump, dump.tree.nodes, "reason"), reason, strlen(reason)) == 0;
            wefti_json_tree_deinit(&dump.tree);
        }
    }
}

static void folder_clear(const folder_t *folder)
{
    DIR *directory = opendir(folder->path);
    for (struct dirent *entry; (entry = readdir(directory)) != NULL;) {
        char path[400];
        snprintf(path, sizeof path, "%s/%s", folder->path, entry->d_name);
        unlink(path);
    }
    closedir(directory);
    rmdir(folder->path);
    unsetenv("WEFT_DUMP");
}

/* Rank 1 is in no call when rank 0 ends the world. */
static void end_the_world(rank_world_t *world)
{
    folder_t *folder = world->user;
    if (world->rank == 0) {
        weft_context_abort(world->context, "enough");
        folder_await(folder, 0, "enough");
        atomic_store(&folder->ready, 1);
        return;
    }
    folder_await(folder, 1, "");
    while (atomic_load(&folder->ready) == 0) {
        wefti_sleep_ns(PAUSE_NS);
    }
}

static void test_abort_dumps_all_ranks(void **state)
{
    folder_t folder;
    (void)state;
    folder_make(&folder);
    support_rank_threads(2, end_the_world, &folder);
    folder_clear(&folder);
}

static void disagree(rank_world_t *world)
{
    float data[4] = {0};
    RANK_CHECK(weft_all_reduce(data, data, 3 + world->rank, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM,
                               world->group, NULL) == WEFT_ERR_MISMATCH);
    folder_await(world->user, world->rank, "rank 1 called");
}

static void test_mismatch_dumps_all_ranks(void **state)
{
    folder_t folder;
    (void)state;
    folder_make(&folder);
    support_rank_threads(2, disagree, &folder);
    folder_clear(&folder);
}

/* Rank 0's call comes after rank 1 has ended the world: it has no record. */
static void call_too_late(rank_world_t *world)
{
    float data[4] = {0};
    if (world->rank == 1) {
        weft_context_abort(world->context, "enough");
    }
    weft_status_t status = WEFT_OK;
    while (status == WEFT_OK && world->rank == 0) {
        status =
            weft_all_reduce(data, data, 1, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, world->group, NULL);
    }
}

static void test_failed_ranks_have_dumped_when_they_end(void **state)
{
    folder_t folder;
    (void)state;
    folder_make(&folder);
    support_rank_threads(2, call_too_late, NULL);
    folder_expect(&folder, 0);
    folder_expect(&folder, 1);
    folder_clear(&folder);
}

static void signal_ranks(rank_world_t *world)
{
    reduce(world, 1, NULL);
    if (world->rank == 0) {
        kill(getpid(), SIGUSR1);
    }
    folder_await(world->user, world->rank, "SIGUSR1");
}

static void test_signal_dumps_all_ranks(void **state)
{
    folder_t folder;
    struct sigaction after;
    (void)state;
    folder_make(&folder);
    support_rank_threads(2, signal_ranks, &folder);
    folder_clear(&folder);
    assert_int_equal(sigaction(SIGUSR1, NULL, &after), 0);
    assert_true(after.sa_handler == SIG_DFL); /* given back */
}

static _Atomic int signals;

static void count_signal(int number)
{
    (void)number;
    atomic_fetch_add(&signals, 1);
}

static void raise_own(rank_world_t *world)
{
    (void)world;
    raise(SIGUSR1);
}

static void test_handler_of_the_program_stays(void **state)
{
    folder_t folder;
    struct sigaction own = {.sa_handler = count_signal}, after;
    (void)state;
    sigaction(SIGUSR1, &own, NULL);
    folder_make(&folder);
    support_rank_threads(1, raise_own, &folder);
    assert_int_equal(atomic_load(&signals), 1);
    assert_int_equal(sigaction(SIGUSR1, NULL, &after), 0);
    assert_true(after.sa_handler == count_signal);
    assert_int_equal(rmdir(folder.path), 0); /* empty: nothing was dumped */
    unsetenv("WEFT_DUMP");
    signal(SIGUSR1, SIG_DFL);
}

static void fork_and_raise(rank_world_t *world)
{
    int how = 0;
    (void)world;
    pid_t pid = fork();
    if (pid == 0) {
        raise(SIGUSR1);
        _exit(0);
    }
    RANK_CHECK(waitpid(pid, &how, 0) == pid);
    RANK_CHECK(WIFSIGNALED(how) && WTERMSIG(how) == SIGUSR1);
}

static void test_forked_children_have_no_handler(void **state)
{
    folder_t folder;
    (void)state;
    folder_make(&folder);
    support_rank_threads(1, fork_and_raise, NULL);
    assert_int_equal(rmdir(folder.path), 0); /* empty: nothing was dumped */
    unsetenv("WEFT_DUMP");
}

static void *dump_again(void *user)
{
    for (int i = 0; i < 20; i++) {
        dump_t dump;
        dump_take(user, &dump);
        wefti_json_tree_deinit(&dump.tree);
    }
    return NULL;
}

/* Another thread dumps meanwhile. */
static void make_groups(rank_world_t *world)
{
    pthread_t thread;
    RANK_CHECK(pthread_create(&thread, NULL, dump_again, world->context) == 0);
    for (int i = 0; i < 20; i++) {
        weft_group_t *group;
        RANK_OK(weft_group_duplicate(world->group, &group));
        weft_group_destroy(group);
    }
    pthread_join(thread, NULL);
}

static void test_dumps_while_groups_are_made(void **state)
{
    (void)state;
    support_rank_threads(1, make_groups, NULL);
}

static void refuse(rank_world_t *world)
{
    RANK_CHECK(weft_context_dump(world->context, NULL) == WEFT_ERR_INVALID_ARGUMENT);
    RANK_CHECK(strcmp(weft_last_error_field(), "path") == 0);
    RANK_CHECK(weft_context_dump(world->context, "/nowhere/at/all") == WEFT_ERR_NOT_FOUND);
}

static void test_dump_refuses_paths(void **state)
{
    (void)state;
    support_rank_threads(1, refuse, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dump_holds_calls),
        cmocka_unit_test(test_dump_holds_control_calls),
        cmocka_unit_test(test_dump_holds_device_calls),
        cmocka_unit_test(test_dump_holds_the_last_calls),
        cmocka_unit_test(test_waiting_call_names_the_late_rank),
        cmocka_unit_test(test_abort_dumps_all_ranks),
        cmocka_unit_test(test_mismatch_dumps_all_ranks),
        cmocka_unit_test(test_failed_ranks_have_dumped_when_they_end),
        cmocka_unit_test(test_signal_dumps_all_ranks),
        cmocka_unit_test(test_handler_of_the_program_stays),
        cmocka_unit_test(test_forked_children_have_no_handler),
        cmocka_unit_test(test_dumps_while_groups_are_made),
        cmocka_unit_test(test_dump_refuses_paths),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
