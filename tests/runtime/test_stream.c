/* SPDX-License-Identifier: Apache-2.0 */
#include "support.h"

#include "support_cards.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

/* Tests run once with inline and once with threaded streams. */
typedef struct fixture {
    weft_context_t *context;
    weft_stream_flags_t flags;
} fixture_t;

static int setup(void **state, weft_stream_flags_t flags)
{
    static fixture_t fixture;
    weft_context_params_t params = WEFT_CONTEXT_PARAMS_INIT;
    params.rank = 0;
    params.world_size = 1;
    fixture.flags = flags;
    *state = &fixture;
    return weft_context_create(&params, &fixture.context);
}

static int setup_inline(void **state)
{
    return setup(state, WEFT_STREAM_INLINE);
}

static int setup_thread(void **state)
{
    return setup(state, WEFT_STREAM_THREAD);
}

static int teardown(void **state)
{
    fixture_t *fixture = *state;
    weft_context_release(fixture->context);
    return 0;
}

static weft_stream_t *make_stream(const fixture_t *fixture, uint32_t capacity)
{
    weft_stream_t *stream = NULL;
    weft_stream_params_t params = WEFT_STREAM_PARAMS_INIT;
    params.name = "test";
    params.flags = fixture->flags;
    params.capacity = capacity;
    assert_int_equal(weft_stream_create(fixture->context, &params, &stream), WEFT_OK);
    return stream;
}

typedef struct trail {
    char text[256];
    size_t length;
} trail_t;

typedef struct mark {
    trail_t *trail;
    char letter;
} mark_t;

static weft_status_t leave_mark(void *user)
{
    mark_t *mark = user;
    mark->trail->text[mark->trail->length++] = mark->letter;
    return WEFT_OK;
}

static weft_status_t not_found(void *user)
{
    (void)user;
    return WEFT_ERR_NOT_FOUND;
}

static weft_status_t note_runner(void *user)
{
    *(pthread_t *)user = pthread_self();
    return WEFT_OK;
}

/* Blocks its stream's thread until the test lets it go on. */
static weft_status_t hold(void *user)
{
    const atomic_int *go = user;
    while (!atomic_load(go)) {
        sched_yield();
    }
    return WEFT_OK;
}

static void test_stream_runs_in_order(void **state)
{
    trail_t trail = {{0}, 0};
    mark_t marks[26];
    weft_stream_t *stream = make_stream(*state, 0);
    for (int i = 0; i < 26; i++) {
        marks[i] = (mark_t){&trail, (char)('a' + i)};
        assert_int_equal(weft_stream_launch_host(stream, leave_mark, &marks[i]), WEFT_OK);
    }
    assert_int_equal(weft_stream_synchronize(stream), WEFT_OK);
    assert_string_equal(trail.text, "abcdefghijklmnopqrstuvwxyz");
    assert_int_equal(weft_stream_query(stream), WEFT_OK);
    weft_stream_destroy(stream);
}

static void test_stream_destroy_finishes_what_was_enqueued(void **state)
{
    trail_t trail = {{0}, 0};
    mark_t mark = {&trail, 'x'};
    weft_stream_t *stream = make_stream(*state, 0);
    assert_int_equal(weft_stream_launch_host(stream, leave_mark, &mark), WEFT_OK);
    weft_stream_destroy(stream);
    assert_string_equal(trail.text, "x");
    weft_stream_destroy(NULL);
}

static void test_stream_copies_and_launches(void **state)
{
    weft_registry_t *registry = NULL;
    float w[7] = {1, 2, 3, 4, 5, 6, 7}, copy[7] = {0}, x[SUPPORT_INPUTS] = {1, 1}, g[7];
    uint8_t scratch[128];
    void *kernel_state = NULL;
    size_t scratch_bytes = 0;
    weft_tensor_desc_t input = {.dtype = WEFT_DTYPE_F32, .rank = 1, .dims = {7}};
    weft_node_desc_t node = {
        .domain = "test", .op = "Gradient", .input_count = 1, .inputs = &input};
    weft_stream_t *stream = make_stream(*state, 0);
    assert_int_equal(support_registry(true, &registry), WEFT_OK);
    const weft_kernel_t *kernel = weft_registry_find_kernel(registry, "test", "Gradient", 1);
    assert_int_equal(kernel->prepare(&node, NULL, &kernel_state, &scratch_bytes), WEFT_OK);
    assert_true(scratch_bytes <= sizeof(scratch));
    assert_int_equal(weft_stream_copy(stream, copy, w, sizeof(w)), WEFT_OK);
    {
        /* arrays of the call are copied: these are gone before the kernel runs */
        const void *inputs[] = {copy, x};
        void *outputs[] = {g};
        weft_kernel_call_t call = {kernel_state, inputs, outputs, scratch};
        assert_int_equal(weft_stream_launch(stream, kernel, &call, 2, 1), WEFT_OK);
        memset((void *)inputs, 0, sizeof(inputs));
        memset((void *)outputs, 0, sizeof(outputs));
    }
    assert_int_equal(weft_stream_synchronize(stream), WEFT_OK);
    for (int i = 0; i < 7; i++) {
        assert_true(g[i] == w[i] * 0.5f + x[i]);
    }
    assert_int_equal(weft_stream_copy(stream, NULL, w, 4), WEFT_ERR_INVALID_ARGUMENT);
    assert_int_equal(weft_stream_launch(stream, NULL, NULL, 0, 0), WEFT_ERR_INVALID_ARGUMENT);
    weft_stream_destroy(stream);
    kernel->destroy(kernel_state);
    weft_registry_destroy(registry);
}

static void test_event_orders_streams(void **state)
{
    trail_t trail = {{0}, 0};
    mark_t first = {&trail, '1'}, second = {&trail, '2'}, third = {&trail, '3'};
    weft_stream_t *a = make_stream(*state, 0), *b = make_stream(*state, 0);
    weft_event_t *there = NULL, *back = NULL;
    fixture_t *fixture = *state;
    assert_int_equal(weft_event_create(fixture->context, &there), WEFT_OK);
    assert_int_equal(weft_event_create(fixture->context, &back), WEFT_OK);
    for (int round = 0; round < 20; round++) {
        memset(&trail, 0, sizeof(trail));
        assert_int_equal(weft_stream_launch_host(a, leave_mark, &first), WEFT_OK);
        assert_int_equal(weft_event_record(there, a), WEFT_OK);
        assert_int_equal(weft_stream_wait_event(b, there), WEFT_OK);
        assert_int_equal(weft_stream_launch_host(b, leave_mark, &second), WEFT_OK);
        assert_int_equal(weft_event_record(back, b), WEFT_OK);
        assert_int_equal(weft_stream_wait_event(a, back), WEFT_OK);
        assert_int_equal(weft_stream_launch_host(a, leave_mark, &third), WEFT_OK);
        assert_int_equal(weft_stream_synchronize(a), WEFT_OK);
        assert_string_equal(trail.text, "123");
    }
    uint64_t there_ns = 0, back_ns = 0;
    assert_int_equal(weft_event_time_ns(there, &there_ns), WEFT_OK);
    assert_int_equal(weft_event_time_ns(back, &back_ns), WEFT_OK);
    assert_true(0 < there_ns && there_ns <= back_ns);
    weft_event_destroy(there);
    weft_event_destroy(back);
    weft_stream_destroy(a);
    weft_stream_destroy(b);
}

static void test_event_states(void **state)
{
    fixture_t *fixture = *state;
    weft_event_t *event = NULL;
    uint64_t time_ns = 0;
    atomic_int go = 1;
    weft_stream_t *stream = make_stream(fixture, 0);
    assert_int_equal(weft_event_create(fixture->context, &event), WEFT_OK);
    /* never recorded: nothing to wait for, no time */
    assert_int_equal(weft_event_query(event), WEFT_OK);
    assert_int_equal(weft_event_synchronize(event), WEFT_OK);
    assert_int_equal(weft_stream_wait_event(stream, event), WEFT_OK);
    assert_int_equal(weft_event_time_ns(event, &time_ns), WEFT_ERR_STATE);
    atomic_store(&go, fixture->flags == WEFT_STREAM_INLINE);
    assert_int_equal(weft_stream_launch_host(stream, hold, &go), WEFT_OK);
    assert_int_equal(weft_event_record(event, stream), WEFT_OK);
    assert_int_equal(weft_event_time_ns(event, &time_ns), WEFT_ERR_STATE);
    if (fixture->flags == WEFT_STREAM_THREAD) {
        assert_int_equal(weft_event_query(event), WEFT_IN_PROGRESS);
        assert_int_equal(weft_stream_query(stream), WEFT_IN_PROGRESS);
        assert_int_equal(weft_event_wait(event, 0), WEFT_IN_PROGRESS);
        assert_int_equal(weft_event_wait(event, 100000), WEFT_IN_PROGRESS);
        atomic_store(&go, 1);
    }
    assert_int_equal(weft_event_synchronize(event), WEFT_OK);
    assert_int_equal(weft_event_wait(event, 0), WEFT_OK);
    assert_int_equal(weft_event_query(event), WEFT_OK);
    assert_int_equal(weft_event_time_ns(event, &time_ns), WEFT_OK);
    /* destroyed while its record may still be queued */
    assert_int_equal(weft_event_record(event, stream), WEFT_OK);
    weft_event_destroy(event);
    weft_event_destroy(NULL);
    weft_stream_destroy(stream);
}

static void test_event_moves_between_streams(void **state)
{
    fixture_t *fixture = *state;
    weft_event_t *event = NULL;
    weft_stream_t *a = make_stream(fixture, 0), *b = make_stream(fixture, 0);
    assert_int_equal(weft_event_create(fixture->context, &event), WEFT_OK);
    for (int i = 0; i < 50; i++) {
        assert_int_equal(weft_event_record(event, a), WEFT_OK);
        assert_int_equal(weft_event_record(event, b), WEFT_OK);
        assert_int_equal(weft_event_synchronize(event), WEFT_OK);
        /* the older record, reached later, must not take the newer one back */
        assert_int_equal(weft_stream_synchronize(a), WEFT_OK);
        assert_int_equal(weft_event_query(event), WEFT_OK);
    }
    weft_event_destroy(event);
    weft_stream_destroy(a);
    weft_stream_destroy(b);
}

/* What waits for a record waits for that one, also when another stream reaches a later one first. */
static void check_recorded_again(weft_context_t *context, weft_stream_t *const *streams)
{
    weft_stream_t *slow = streams[0], *quick = streams[1], *waiting = streams[2];
    weft_event_t *event = NULL;
    weft_notify_t *go = NULL;
    assert_int_equal(weft_event_create(context, &event), WEFT_OK);
    assert_int_equal(weft_notify_create(context, &go), WEFT_OK);
    for (int round = 0; round < 5; round++) {
        assert_int_equal(weft_notify_wait(go, slow), WEFT_OK);
        assert_int_equal(weft_event_record(event, slow), WEFT_OK);
        assert_int_equal(weft_stream_wait_event(waiting, event), WEFT_OK);
        for (int again = 0; again < 3; again++) {
            assert_int_equal(weft_event_record(event, quick), WEFT_OK);
            assert_int_equal(weft_event_synchronize(event), WEFT_OK); /* the latest */
        }
        assert_int_equal(weft_stream_query(waiting), WEFT_IN_PROGRESS);
        assert_int_equal(weft_stream_wait_event(quick, event), WEFT_OK);
        assert_int_equal(weft_stream_synchronize(quick), WEFT_OK);
        assert_int_equal(weft_stream_query(waiting), WEFT_IN_PROGRESS);
        assert_int_equal(weft_notify_record(go, quick), WEFT_OK);
        assert_int_equal(weft_stream_synchronize(waiting), WEFT_OK);
    }
    weft_event_destroy(event);
    weft_notify_destroy(go);
    for (int i = 0; i < 3; i++) {
        weft_stream_destroy(streams[i]);
    }
}

static void test_event_recorded_again_while_waited_for(void **state)
{
    fixture_t *fixture = *state;
    weft_stream_t *streams[3];
    for (int i = 0; i < 3; i++) {
        streams[i] = make_stream(fixture, 0);
    }
    check_recorded_again(fixture->context, streams);
}

static void test_notify_wait_consumes_one_record(void **state)
{
    fixture_t *fixture = *state;
    trail_t trail = {{0}, 0};
    mark_t marks[4] = {{&trail, 'a'}, {&trail, 'b'}, {&trail, 'c'}, {&trail, 'd'}};
    weft_notify_t *notify = NULL, *ready = NULL;
    weft_stream_t *a = make_stream(fixture, 0), *b = make_stream(fixture, 0);
    assert_int_equal(weft_notify_create(fixture->context, &notify), WEFT_OK);
    assert_int_equal(weft_notify_create(fixture->context, &ready), WEFT_OK);
    /* the waits are enqueued first: unlike an event's, a notify's record may come later */
    for (int i = 0; i < 4; i += 2) {
        assert_int_equal(weft_notify_wait(notify, b), WEFT_OK);
        assert_int_equal(weft_stream_launch_host(b, leave_mark, &marks[i + 1]), WEFT_OK);
        assert_int_equal(weft_notify_record(ready, b), WEFT_OK);
    }
    assert_int_equal(weft_stream_query(b), WEFT_IN_PROGRESS);
    for (int i = 0; i < 4; i += 2) {
        assert_int_equal(weft_stream_launch_host(a, leave_mark, &marks[i]), WEFT_OK);
        assert_int_equal(weft_notify_record(notify, a), WEFT_OK);
        assert_int_equal(weft_notify_wait(ready, a), WEFT_OK);
    }
    assert_int_equal(weft_stream_synchronize(a), WEFT_OK);
    assert_int_equal(weft_stream_synchronize(b), WEFT_OK);
    assert_string_equal(trail.text, "abcd");
    weft_notify_destroy(notify);
    weft_notify_destroy(ready);
    weft_notify_destroy(NULL);
    weft_stream_destroy(a);
    weft_stream_destroy(b);
}

static void test_stream_full_says_again(void **state)
{
    fixture_t *fixture = *state;
    weft_notify_t *notify = NULL;
    trail_t trail = {{0}, 0};
    mark_t mark = {&trail, 'x'};
    weft_stream_t *stream = make_stream(fixture, 4), *other = make_stream(fixture, 4);
    assert_int_equal(weft_notify_create(fixture->context, &notify), WEFT_OK);
    assert_int_equal(weft_notify_wait(notify, stream), WEFT_OK);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(weft_stream_launch_host(stream, leave_mark, &mark), WEFT_OK);
    }
    assert_int_equal(weft_stream_launch_host(stream, leave_mark, &mark), WEFT_AGAIN);
    assert_int_equal(weft_notify_record(notify, other), WEFT_OK);
    assert_int_equal(weft_stream_synchronize(stream), WEFT_OK);
    assert_int_equal(weft_stream_launch_host(stream, leave_mark, &mark), WEFT_OK);
    assert_int_equal(weft_stream_synchronize(stream), WEFT_OK);
    assert_string_equal(trail.text, "xxxx");
    weft_notify_destroy(notify);
    weft_stream_destroy(stream);
    weft_stream_destroy(other);
}

static void test_stream_error_breaks_dependents(void **state)
{
    fixture_t *fixture = *state;
    weft_event_t *event = NULL;
    trail_t trail = {{0}, 0};
    mark_t mark = {&trail, 'x'};
    weft_stream_t *a = make_stream(fixture, 0), *b = make_stream(fixture, 0);
    assert_int_equal(weft_event_create(fixture->context, &event), WEFT_OK);
    /* inline streams run nothing until somebody waits; threads may be quick to refuse more work */
    weft_stream_t *gate = make_stream(fixture, 0);
    weft_notify_t *notify = NULL;
    assert_int_equal(weft_notify_create(fixture->context, &notify), WEFT_OK);
    assert_int_equal(weft_notify_wait(notify, a), WEFT_OK);
    assert_int_equal(weft_stream_launch_host(a, not_found, NULL), WEFT_OK);
    assert_int_equal(weft_stream_launch_host(a, leave_mark, &mark), WEFT_OK);
    assert_int_equal(weft_event_record(event, a), WEFT_OK);
    assert_int_equal(weft_stream_wait_event(b, event), WEFT_OK);
    assert_int_equal(weft_stream_launch_host(b, leave_mark, &mark), WEFT_OK);
    assert_int_equal(weft_notify_record(notify, gate), WEFT_OK);
    assert_int_equal(weft_stream_synchronize(b), WEFT_ERR_NOT_FOUND);
    assert_int_equal(weft_stream_synchronize(a), WEFT_ERR_NOT_FOUND);
    assert_non_null(strstr(weft_last_error(), "stream \"test\""));
    assert_int_equal(weft_event_query(event), WEFT_ERR_NOT_FOUND);
    assert_int_equal(weft_event_synchronize(event), WEFT_ERR_NOT_FOUND);
    assert_int_equal(weft_stream_query(a), WEFT_ERR_NOT_FOUND);
    assert_int_equal(weft_stream_launch_host(a, leave_mark, &mark), WEFT_ERR_NOT_FOUND);
    assert_string_equal(trail.text, "");
    weft_notify_destroy(notify);
    weft_event_destroy(event);
    weft_stream_destroy(a);
    weft_stream_destroy(b);
    weft_stream_destroy(gate);
}

static void test_stream_wait_ends_with_the_world(void **state)
{
    fixture_t *fixture = *state;
    weft_notify_t *notify = NULL;
    weft_stream_t *stream = make_stream(fixture, 0);
    assert_int_equal(weft_notify_create(fixture->context, &notify), WEFT_OK);
    assert_int_equal(weft_notify_wait(notify, stream), WEFT_OK);
    weft_context_abort(fixture->context, "enough");
    assert_int_equal(weft_stream_synchronize(stream), WEFT_ERR_ABORTED);
    assert_non_null(strstr(weft_last_error(), "enough"));
    weft_stream_destroy(stream); /* does not wait for what will never come */
    weft_notify_destroy(notify);
}

/* Many streams and threads at once, for the sanitizers. */
typedef struct chain {
    const fixture_t *fixture;
    uint64_t sum;
} chain_t;

static weft_status_t add_one(void *user)
{
    (*(uint64_t *)user)++;
    return WEFT_OK;
}

static void *chain_main(void *user)
{
    chain_t *chain = user;
    weft_stream_t *streams[3];
    weft_event_t *event = NULL;
    intptr_t bad = 0;
    weft_stream_params_t params = WEFT_STREAM_PARAMS_INIT;
    params.name = "chain";
    params.flags = chain->fixture->flags;
    params.capacity = 256;
    bad |= weft_event_create(chain->fixture->context, &event);
    for (int i = 0; i < 3; i++) {
        bad |= weft_stream_create(chain->fixture->context, &params, &streams[i]);
    }
    for (int i = 0; i < 90 && !bad; i++) {
        weft_stream_t *from = streams[i % 3], *to = streams[(i + 1) % 3];
        bad |= weft_stream_launch_host(from, add_one, &chain->sum);
        bad |= weft_event_record(event, from);
        bad |= weft_stream_wait_event(to, event);
        bad |= i % 10 == 9 ? weft_event_synchronize(event) : 0;
    }
    for (int i = 0; i < 3; i++) {
        bad |= weft_stream_synchronize(streams[i]);
        weft_stream_destroy(streams[i]);
    }
    weft_event_destroy(event);
    return (void *)bad;
}

static void test_stream_chains_from_many_threads(void **state)
{
    chain_t chains[3];
    pthread_t threads[3];
    for (int i = 0; i < 3; i++) {
        chains[i] = (chain_t){*state, 0};
        assert_int_equal(pthread_create(&threads[i], NULL, chain_main, &chains[i]), 0);
    }
    for (int i = 0; i < 3; i++) {
        void *bad = NULL;
        pthread_join(threads[i], &bad);
        assert_null(bad);
        assert_int_equal(chains[i].sum, 90);
    }
}

static void test_stream_refuses_bad_arguments(void **state)
{
    fixture_t *fixture = *state;
    weft_stream_t *stream = NULL;
    weft_stream_params_t params = WEFT_STREAM_PARAMS_INIT;
    params.flags = 1u << 7;
    assert_int_equal(weft_stream_create(fixture->context, &params, &stream),
                     WEFT_ERR_INVALID_ARGUMENT);
    params = (weft_stream_params_t){0};
    assert_int_equal(weft_stream_create(fixture->context, &params, &stream),
                     WEFT_ERR_INVALID_ARGUMENT);
    assert_null(stream);
    assert_int_equal(weft_stream_create(fixture->context, NULL, &stream), WEFT_OK);
    assert_int_equal(weft_stream_launch_host(stream, NULL, NULL), WEFT_ERR_INVALID_ARGUMENT);
    weft_stream_destroy(stream);
}

/* By itself a stream is on a thread where the context's calls are. */
static void test_stream_goes_as_the_context_does(void **state)
{
    for (int threaded = 0; threaded < 2; threaded++) {
        weft_context_params_t params = WEFT_CONTEXT_PARAMS_INIT;
        weft_stream_params_t stream_params = WEFT_STREAM_PARAMS_INIT;
        stream_params.name = "auto";
        stream_params.flags = WEFT_STREAM_AUTO;
        weft_context_t *context = NULL;
        weft_stream_t *stream = NULL;
        pthread_t runner = pthread_self();
        (void)state;
        params.rank = 0;
        params.world_size = 1;
        params.progress = threaded ? WEFT_PROGRESS_THREAD : WEFT_PROGRESS_INLINE;
        assert_int_equal(weft_context_create(&params, &context), WEFT_OK);
        assert_int_equal(weft_stream_create(context, &stream_params, &stream), WEFT_OK);
        assert_int_equal(weft_stream_launch_host(stream, note_runner, &runner), WEFT_OK);
        assert_int_equal(weft_stream_synchronize(stream), WEFT_OK);
        assert_int_equal(pthread_equal(runner, pthread_self()) != 0, !threaded);
        weft_stream_destroy(stream);
        weft_context_release(context);
    }
}

static void test_stream_on_a_card(void **state)
{
    weft_context_params_t params = WEFT_CONTEXT_PARAMS_INIT;
    weft_context_t *context = NULL;
    weft_stream_t *a = NULL, *b = NULL;
    weft_event_t *event = NULL;
    weft_notify_t *notify = NULL;
    void *memory = NULL;
    uint64_t time_ns;
    (void)state;
    params.rank = 0;
    params.world_size = 1;
    assert_int_equal(support_card_open(&params.device), WEFT_OK);
    weft_device_t *card = params.device;
    assert_int_equal(card->ops->mem_alloc(card, 4096, &memory), WEFT_OK);
    assert_int_equal(weft_context_create(&params, &context), WEFT_OK);
    assert_int_equal(weft_stream_create(context, NULL, &a), WEFT_OK);
    assert_int_equal(weft_stream_create(context, NULL, &b), WEFT_OK);
    assert_int_equal(weft_event_create(context, &event), WEFT_OK);
    assert_int_equal(weft_notify_create(context, &notify), WEFT_OK);
    for (uint64_t i = 1; i < 20; i++) {
        uint64_t there[4] = {i, 2 * i, 3 * i, 4 * i}, back[4] = {0};
        assert_int_equal(weft_stream_copy(a, memory, there, sizeof(there)), WEFT_OK);
        assert_int_equal(weft_event_record(event, a), WEFT_OK);
        assert_int_equal(weft_stream_wait_event(b, event), WEFT_OK);
        assert_int_equal(weft_stream_copy(b, back, memory, sizeof(back)), WEFT_OK);
        assert_int_equal(weft_notify_record(notify, b), WEFT_OK);
        assert_int_equal(weft_notify_wait(notify, a), WEFT_OK);
        assert_int_equal(weft_event_synchronize(event), WEFT_OK);
        assert_int_equal(weft_event_query(event), WEFT_OK);
        assert_int_equal(weft_stream_synchronize(b), WEFT_OK);
        assert_memory_equal(there, back, sizeof(there));
        assert_int_equal(weft_stream_synchronize(a), WEFT_OK);
    }
    weft_stream_t *streams[3] = {NULL};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(weft_stream_create(context, NULL, &streams[i]), WEFT_OK);
    }
    check_recorded_again(context, streams);
    assert_int_equal(weft_event_time_ns(event, &time_ns), WEFT_ERR_UNSUPPORTED);
    assert_int_equal(weft_stream_launch_host(a, add_one, &time_ns), WEFT_ERR_UNSUPPORTED);
    weft_event_destroy(event);
    weft_notify_destroy(notify);
    weft_stream_destroy(a);
    weft_stream_destroy(b);
    weft_context_release(context);
    card->ops->mem_free(card, memory);
    assert_int_equal(support_card_close(card), 0);
}

#define BOTH(test)                                                                                 \
    cmocka_unit_test_setup_teardown(test, setup_inline, teardown),                                 \
        cmocka_unit_test_setup_teardown(test, setup_thread, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        BOTH(test_stream_runs_in_order),
        BOTH(test_stream_destroy_finishes_what_was_enqueued),
        BOTH(test_stream_copies_and_launches),
        BOTH(test_event_orders_streams),
        BOTH(test_event_states),
        BOTH(test_event_moves_between_streams),
        BOTH(test_event_recorded_again_while_waited_for),
        BOTH(test_notify_wait_consumes_one_record),
        BOTH(test_stream_full_says_again),
        BOTH(test_stream_error_breaks_dependents),
        BOTH(test_stream_wait_ends_with_the_world),
        BOTH(test_stream_chains_from_many_threads),
        BOTH(test_stream_refuses_bad_arguments),
        cmocka_unit_test(test_stream_goes_as_the_context_does),
        cmocka_unit_test(test_stream_on_a_card),
    };
    support_card_or_skip();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
