/* SPDX-License-Identifier: Apache-2.0 */
/* Contexts: arguments, environment, agreement; and every constructor running out of memory. */
#include "support.h"
#include "tests/support/support.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static weft_context_params_t alone(void)
{
    weft_context_params_t params = WEFT_CONTEXT_PARAMS_INIT;
    params.rank = 0;
    params.world_size = 1;
    return params;
}

static void test_context_refuses_bad_params(void **state)
{
    weft_context_t *context = (weft_context_t *)state;
    weft_context_params_t params = {0};
    assert_int_equal(weft_context_create(&params, &context), WEFT_ERR_INVALID_ARGUMENT);
    assert_null(context);
    params = alone();
    params.rank = 3;
    assert_int_equal(weft_context_create(&params, &context), WEFT_ERR_INVALID_ARGUMENT);
    assert_non_null(strstr(weft_last_error(), "rank 3"));
    params = alone();
    params.isa = 7;
    assert_int_equal(weft_context_create(&params, &context), WEFT_ERR_INVALID_ARGUMENT);
    params = alone();
    params.progress = (weft_progress_t)9;
    assert_int_equal(weft_context_create(&params, &context), WEFT_ERR_INVALID_ARGUMENT);
    weft_device_ops_t ops = {.abi_version = 99};
    weft_device_t device = {&ops};
    params = alone();
    params.device = &device;
    assert_int_equal(weft_context_create(&params, &context), WEFT_ERR_INVALID_ARGUMENT);
    weft_context_release(NULL);
}

static void test_context_reads_the_environment(void **state)
{
    weft_context_t *context = NULL;
    weft_context_params_t params = WEFT_CONTEXT_PARAMS_INIT;
    (void)state;
    assert_int_equal(weft_context_create(&params, &context), WEFT_OK); /* alone by default */
    assert_int_equal(weft_context_world_size(context), 1);
    weft_context_release(context);
    setenv("WEFT_RANK", "1x", 1);
    assert_int_equal(weft_context_create(&params, &context), WEFT_ERR_INVALID_ARGUMENT);
    assert_non_null(strstr(weft_last_error(), "WEFT_RANK"));
    setenv("WEFT_RANK", "2", 1);
    setenv("WEFT_WORLD_SIZE", "2", 1);
    assert_int_equal(weft_context_create(&params, &context), WEFT_ERR_INVALID_ARGUMENT);
    unsetenv("WEFT_RANK");
    unsetenv("WEFT_WORLD_SIZE");
    setenv("WEFT_PROGRESS", "sometimes", 1);
    assert_int_equal(weft_context_create(&params, &context), WEFT_ERR_INVALID_ARGUMENT);
    assert_non_null(strstr(weft_last_error(), "WEFT_PROGRESS"));
    unsetenv("WEFT_PROGRESS");
}

typedef struct warnings {
    uint32_t count;
    char last[256];
} warnings_t;

static void keep_warning(void *user, weft_log_level_t level, const char *line)
{
    warnings_t *warnings = user;
    if (level == WEFT_LOG_LEVEL_WARN) {
        warnings->count++;
        snprintf(warnings->last, sizeof(warnings->last), "%s", line);
    }
}

typedef struct warned {
    weft_context_params_t params;
    warnings_t warnings;
    weft_status_t status;
    pthread_t thread;
} warned_t;

static void *create_and_release(void *user)
{
    warned_t *warned = user;
    weft_context_t *context = NULL;
    warned->status = weft_context_create(&warned->params, &context);
    weft_context_release(context);
    return NULL;
}

/* Once per context, on rank 0 only; names that resemble no setting belong to the user. */
static void test_context_warns_of_a_misspelt_variable(void **state)
{
    warned_t ranks[2];
    weft_hub_t *hub = NULL;
    (void)state;
    setenv("WEFT_PROGRES", "thread", 1);
    setenv("WEFT_MY_OWN_DATA_FOLDER", "/data", 1);
    assert_int_equal(weft_hub_create(2, &hub), WEFT_OK);
    for (int r = 0; r < 2; r++) {
        ranks[r] = (warned_t){.params = WEFT_CONTEXT_PARAMS_INIT};
        ranks[r].params.rank = r;
        ranks[r].params.world_size = 2;
        ranks[r].params.hub = hub;
        ranks[r].params.log = keep_warning;
        ranks[r].params.log_user = &ranks[r].warnings;
        assert_int_equal(pthread_create(&ranks[r].thread, NULL, create_and_release, &ranks[r]), 0);
    }
    for (int r = 0; r < 2; r++) {
        pthread_join(ranks[r].thread, NULL);
        assert_int_equal(ranks[r].status, WEFT_OK);
    }
    weft_hub_destroy(hub);
    assert_int_equal(ranks[0].warnings.count, 1);
    assert_non_null(strstr(ranks[0].warnings.last,
                           "unknown variable WEFT_PROGRES: did you mean WEFT_PROGRESS?"));
    assert_int_equal(ranks[1].warnings.count, 0);
    unsetenv("WEFT_PROGRES");
    ranks[0].params = alone();
    ranks[0].params.log = keep_warning;
    ranks[0].params.log_user = &ranks[0].warnings;
    ranks[0].warnings.count = 0;
    create_and_release(&ranks[0]);
    assert_int_equal(ranks[0].status, WEFT_OK);
    assert_int_equal(ranks[0].warnings.count, 0);
    unsetenv("WEFT_MY_OWN_DATA_FOLDER");
}

typedef struct talker {
    weft_context_params_t params;
    uint32_t seen[4];
    weft_status_t status, aborted;
    char message[256];
    pthread_t thread;
} talker_t;

static void *talk(void *user)
{
    talker_t *talker = user;
    weft_context_t *context = NULL;
    talker->status = weft_context_create(&talker->params, &context);
    if (talker->status == WEFT_OK) {
        uint32_t own = weft_context_rank(context) * 10;
        weft_context_retain(context);
        weft_context_release(context);
        talker->status = weft_context_all_gather(context, &own, sizeof(own), talker->seen);
    }
    if (talker->status == WEFT_OK) {
        talker->status = weft_context_barrier(context);
    }
    if (talker->status == WEFT_OK) {
        if (weft_context_rank(context) == 2) {
            weft_context_abort(context, "rank two has had enough");
        }
        talker->aborted = weft_context_barrier(context);
        snprintf(talker->message, sizeof(talker->message), "%s", weft_last_error());
    }
    weft_context_release(context);
    return NULL;
}

static void test_context_ranks_talk_and_abort(void **state)
{
    talker_t talkers[4];
    weft_hub_t *hub = NULL;
    (void)state;
    assert_int_equal(weft_hub_create(4, &hub), WEFT_OK);
    for (int r = 0; r < 4; r++) {
        talkers[r] = (talker_t){.params = WEFT_CONTEXT_PARAMS_INIT};
        talkers[r].params.rank = r;
        talkers[r].params.world_size = 4;
        talkers[r].params.hub = hub;
        assert_int_equal(pthread_create(&talkers[r].thread, NULL, talk, &talkers[r]), 0);
    }
    for (int r = 0; r < 4; r++) {
        pthread_join(talkers[r].thread, NULL);
    }
    for (int r = 0; r < 4; r++) {
        assert_int_equal(talkers[r].status, WEFT_OK);
        for (uint32_t i = 0; i < 4; i++) {
            assert_int_equal(talkers[r].seen[i], 10 * i);
        }
        assert_int_equal(talkers[r].aborted, WEFT_ERR_ABORTED);
        assert_non_null(strstr(talkers[r].message, "rank two has had enough"));
    }
    weft_hub_destroy(hub);
}

/* Everything a rank can make, in a world of one. */
typedef struct everything {
    weft_plan_t *plan;
    weft_registry_t *registry;
    weft_stream_flags_t flags;
} everything_t;

static weft_status_t make_everything(const weft_allocator_t *allocator, void *user)
{
    const everything_t *all = user;
    weft_context_params_t params = alone();
    weft_context_t *context = NULL;
    weft_session_t *session = NULL;
    weft_stream_t *stream = NULL;
    weft_event_t *event = NULL;
    weft_notify_t *notify = NULL;
    weft_stream_params_t stream_params = WEFT_STREAM_PARAMS_INIT;
    stream_params.flags = all->flags;
    stream_params.capacity = 8;
    params.allocator = allocator;
    params.progress = all->flags ? WEFT_PROGRESS_THREAD : WEFT_PROGRESS_INLINE;
    params.log = support_quiet;
    weft_status_t status = weft_context_create(&params, &context);
    if (status >= 0) {
        weft_session_params_t session_params = WEFT_SESSION_PARAMS_INIT;
        session_params.context = context;
        session_params.plan = all->plan;
        session_params.registry = all->registry;
        session_params.trace = 1;
        status = weft_session_create(&session_params, &session);
    }
    if (status >= 0) {
        status = weft_session_step(session);
    }
    if (status >= 0) {
        status = weft_stream_create(context, &stream_params, &stream);
    }
    if (status >= 0) {
        status = weft_event_create(context, &event);
    }
    if (status >= 0) {
        status = weft_notify_create(context, &notify);
    }
    if (status >= 0) {
        status = weft_event_record(event, stream);
    }
    weft_notify_destroy(notify);
    weft_event_destroy(event);
    weft_stream_destroy(stream);
    weft_session_destroy(session);
    weft_context_release(context);
    return status;
}

static void test_constructors_survive_running_out_of_memory(void **state)
{
    everything_t all = {0};
    training_t training = {.world = 1, .buckets = 2};
    (void)state;
    assert_int_equal(support_plan(&training, false, &all.plan), WEFT_OK);
    assert_int_equal(support_registry(true, &all.registry), WEFT_OK);
    for (all.flags = 0; all.flags < 2; all.flags++) {
        assert_true(test_memory_sweep(make_everything, &all) > 5);
    }
    weft_plan_release(all.plan);
    weft_registry_destroy(all.registry);
}

static void test_context_is_unusable_in_a_forked_child(void **state)
{
    weft_context_params_t params = alone();
    weft_context_t *context = NULL;
    weft_plan_t *plan = NULL;
    weft_registry_t *registry = NULL;
    weft_session_t *session = NULL;
    weft_stream_t *stream = NULL;
    weft_stream_params_t stream_params = WEFT_STREAM_PARAMS_INIT;
    stream_params.flags = WEFT_STREAM_THREAD;
    training_t training = {.world = 1, .buckets = 2};
    (void)state;
    params.progress = WEFT_PROGRESS_THREAD;
    assert_int_equal(weft_context_create(&params, &context), WEFT_OK);
    assert_int_equal(support_plan(&training, false, &plan), WEFT_OK);
    assert_int_equal(support_registry(true, &registry), WEFT_OK);
    weft_session_params_t session_params = WEFT_SESSION_PARAMS_INIT;
    session_params.context = context;
    session_params.plan = plan;
    session_params.registry = registry;
    assert_int_equal(weft_session_create(&session_params, &session), WEFT_OK);
    assert_int_equal(weft_stream_create(context, &stream_params, &stream), WEFT_OK);
    pid_t pid = fork();
    if (pid == 0) {
        bool told = weft_session_step(session) < 0 && weft_last_error()[0] != '\0';
        weft_stream_destroy(stream); /* must not wait for threads that are not here */
        weft_session_destroy(session);
        weft_context_release(context);
        _exit(told ? 0 : 1);
    }
    int wait_status = 1;
    assert_int_equal(waitpid(pid, &wait_status, 0), pid);
    assert_int_equal(wait_status, 0);
    assert_int_equal(weft_session_step(session), WEFT_OK); /* and the parent goes on */
    weft_stream_destroy(stream);
    weft_session_destroy(session);
    weft_plan_release(plan);
    weft_registry_destroy(registry);
    weft_context_release(context);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_context_is_unusable_in_a_forked_child),
        cmocka_unit_test(test_context_refuses_bad_params),
        cmocka_unit_test(test_context_reads_the_environment),
        cmocka_unit_test(test_context_warns_of_a_misspelt_variable),
        cmocka_unit_test(test_context_ranks_talk_and_abort),
        cmocka_unit_test(test_constructors_survive_running_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
