/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Notifies as authors of algorithms use them: between a main stream and side streams of a rank, on
 * the CPU device (inline and with threads) and on a fake card.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <weft/weft.h>

#include "support_fake_card.h"
#include "tests/support/support.h"

#define OK(call) assert_int_equal((call), WEFT_OK)

typedef struct fixture {
    weft_device_t *card; /* NULL: the CPU device */
    weft_context_t *context;
    weft_stream_flags_t flags;
} fixture_t;

static int setup(void **state, bool card, weft_stream_flags_t flags)
{
    fixture_t *fixture = calloc(1, sizeof *fixture);
    weft_context_params_t params = WEFT_CONTEXT_PARAMS_INIT;
    params.rank = 0;
    params.world_size = 1;
    if (fixture == NULL || (card && fake_card_create(&fixture->card) < 0)) {
        return -1;
    }
    params.device = fixture->card;
    fixture->flags = flags;
    *state = fixture;
    return weft_context_create(&params, &fixture->context);
}

static int setup_inline(void **state)
{
    return setup(state, false, WEFT_STREAM_INLINE);
}

static int setup_thread(void **state)
{
    return setup(state, false, WEFT_STREAM_THREAD);
}

static int setup_card(void **state)
{
    return setup(state, true, WEFT_STREAM_INLINE);
}

static int teardown(void **state)
{
    fixture_t *fixture = *state;
    int left = 0;
    weft_context_release(fixture->context);
    if (fixture->card != NULL) {
        left = fake_card_destroy(fixture->card);
    }
    free(fixture);
    return left;
}

static weft_stream_t *stream_of(const fixture_t *fixture)
{
    weft_stream_params_t params = WEFT_STREAM_PARAMS_INIT;
    params.name = "test";
    params.flags = fixture->flags;
    weft_stream_t *stream = NULL;
    OK(weft_stream_create(fixture->context, &params, &stream));
    return stream;
}

static weft_notify_t *notify_of(const fixture_t *fixture)
{
    weft_notify_t *notify = NULL;
    OK(weft_notify_create(fixture->context, &notify));
    return notify;
}

/*
 * Main and three sides, 200 rounds: main counts, the sides copy what it counted, main waits for
 * them. Notifies are made once.
 */
static void test_notify_main_and_sides(void **state)
{
    enum { SIDES = 3, ROUNDS = 200 };
    fixture_t *fixture = *state;
    weft_stream_t *main = stream_of(fixture), *sides[SIDES];
    weft_notify_t *go[SIDES], *joined[SIDES];
    uint64_t *count = NULL, *copies = NULL, numbers[ROUNDS], back[ROUNDS][SIDES];
    OK(weft_device_alloc(fixture->context, sizeof *count, (void **)&count));
    OK(weft_device_alloc(fixture->context, SIDES * sizeof *copies, (void **)&copies));
    for (int s = 0; s < SIDES; s++) {
        sides[s] = stream_of(fixture);
        go[s] = notify_of(fixture);
        joined[s] = notify_of(fixture);
    }
    memset(back, 0, sizeof back);
    for (int round = 0; round < ROUNDS; round++) {
        numbers[round] = (uint64_t)round + 1;
        OK(weft_stream_copy(main, count, &numbers[round], sizeof *count));
        for (int s = 0; s < SIDES; s++) {
            OK(weft_notify_record(go[s], main));
            OK(weft_notify_wait(go[s], sides[s]));
            OK(weft_stream_copy(sides[s], &copies[s], count, sizeof *count));
            OK(weft_notify_record(joined[s], sides[s]));
        }
        for (int s = 0; s < SIDES; s++) {
            OK(weft_notify_wait(joined[s], main));
        }
        OK(weft_stream_copy(main, back[round], copies, sizeof back[round]));
        if (round % 20 == 19) { /* streams hold 1024 things */
            OK(weft_stream_synchronize(main));
        }
    }
    OK(weft_stream_synchronize(main));
    for (int round = 0; round < ROUNDS; round++) {
        for (int s = 0; s < SIDES; s++) {
            assert_int_equal(back[round][s], round + 1);
        }
    }
    for (int s = 0; s < SIDES; s++) {
        OK(weft_stream_synchronize(sides[s]));
        weft_stream_destroy(sides[s]);
        weft_notify_destroy(go[s]);
        weft_notify_destroy(joined[s]);
    }
    weft_stream_destroy(main);
    OK(weft_device_free(fixture->context, count));
    OK(weft_device_free(fixture->context, copies));
}

/* Records first, many of them; waits first, as many: each wait consumes one. */
static void test_notify_counts(void **state)
{
    enum { MANY = 500 };
    fixture_t *fixture = *state;
    weft_stream_t *a = stream_of(fixture), *b = stream_of(fixture);
    weft_notify_t *notify = notify_of(fixture);
    for (int i = 0; i < MANY; i++) {
        OK(weft_notify_record(notify, a));
    }
    OK(weft_stream_synchronize(a));
    for (int i = 0; i < MANY; i++) {
        OK(weft_notify_wait(notify, b));
    }
    OK(weft_stream_synchronize(b));
    for (int i = 0; i < MANY; i++) {
        OK(weft_notify_wait(notify, b)); /* nothing is left over from before */
    }
    for (int i = 0; i < MANY - 1; i++) {
        OK(weft_notify_record(notify, a));
    }
    OK(weft_stream_synchronize(a));
    assert_int_equal(weft_stream_query(b), WEFT_IN_PROGRESS);
    OK(weft_notify_record(notify, a));
    OK(weft_stream_synchronize(b));
    weft_stream_destroy(a);
    weft_stream_destroy(b);
    weft_notify_destroy(notify);
}

/* ---- errors ---- */

static weft_status_t refuse(const weft_kernel_call_t *call)
{
    (void)call;
    return WEFT_ERR_NOT_FOUND;
}

static const weft_kernel_t refusing = {
    .abi_version = WEFT_KERNEL_ABI_VERSION, .domain = "", .op = "Refuse", .run = refuse};

/* The stream that records breaks: so does the one that waits, and what it would have done stays. */
static void test_notify_passes_errors_on(void **state)
{
    fixture_t *fixture = *state;
    weft_stream_t *a = stream_of(fixture), *b = stream_of(fixture), *gate = stream_of(fixture);
    weft_notify_t *notify = notify_of(fixture), *open = notify_of(fixture);
    weft_kernel_call_t call = {0};
    uint64_t *memory = NULL, one = 1, back = 0;
    OK(weft_device_alloc(fixture->context, sizeof *memory, (void **)&memory));
    OK(weft_notify_wait(open, a)); /* else a thread refuses the next call already */
    OK(weft_stream_launch(a, &refusing, &call, 0, 0));
    OK(weft_notify_record(notify, a));
    OK(weft_notify_wait(notify, b));
    OK(weft_stream_copy(b, memory, &one, sizeof one));
    OK(weft_notify_record(open, gate));
    assert_int_equal(weft_stream_synchronize(b), WEFT_ERR_NOT_FOUND);
    assert_int_equal(weft_stream_synchronize(a), WEFT_ERR_NOT_FOUND);
    assert_int_equal(weft_notify_record(notify, a), WEFT_ERR_NOT_FOUND);
    OK(weft_mem_copy(fixture->context, &back, memory, sizeof back));
    assert_int_equal(back, 0);
    OK(weft_stream_synchronize(gate));
    weft_stream_destroy(a);
    weft_stream_destroy(b);
    weft_stream_destroy(gate);
    weft_notify_destroy(notify);
    weft_notify_destroy(open);
    OK(weft_device_free(fixture->context, memory));
}

/* What is enqueued keeps what it needs. */
static void test_notify_destroyed_in_use(void **state)
{
    fixture_t *fixture = *state;
    weft_stream_t *a = stream_of(fixture), *b = stream_of(fixture), *gate = stream_of(fixture);
    weft_notify_t *open = notify_of(fixture), *notify = notify_of(fixture);
    uint64_t value = 7, *memory = NULL, back = 0;
    OK(weft_device_alloc(fixture->context, sizeof *memory, (void **)&memory));
    OK(weft_notify_wait(open, a));
    OK(weft_notify_record(notify, a));
    OK(weft_notify_wait(notify, b));
    OK(weft_stream_copy(b, memory, &value, sizeof value));
    weft_notify_destroy(notify);
    assert_int_equal(weft_stream_query(b), WEFT_IN_PROGRESS);
    OK(weft_notify_record(open, gate));
    weft_notify_destroy(open);
    OK(weft_stream_synchronize(b));
    OK(weft_mem_copy(fixture->context, &back, memory, sizeof back));
    assert_int_equal(back, value);
    weft_stream_destroy(a);
    weft_stream_destroy(b);
    weft_stream_destroy(gate);
    OK(weft_device_free(fixture->context, memory));
}

/* A wait whose record cannot come any more. */
static void test_notify_destroyed_while_waited_for(void **state)
{
    fixture_t *fixture = *state;
    weft_stream_t *a = stream_of(fixture), *b = stream_of(fixture);
    weft_notify_t *notify = notify_of(fixture);
    OK(weft_notify_record(notify, a));
    OK(weft_notify_wait(notify, b));
    OK(weft_stream_synchronize(b));
    OK(weft_notify_wait(notify, b));
    assert_int_equal(weft_stream_query(b), WEFT_IN_PROGRESS);
    weft_notify_destroy(notify);
    assert_int_equal(weft_stream_synchronize(b), WEFT_ERR_ABORTED);
    assert_non_null(strstr(weft_last_error(), "notify was destroyed"));
    OK(weft_stream_synchronize(a));
    weft_stream_destroy(a);
    weft_stream_destroy(b);
}

static void test_notify_wrong_arguments(void **state)
{
    fixture_t *fixture = *state;
    void *other_state = NULL;
    assert_int_equal(setup(&other_state, fixture->card != NULL, fixture->flags), 0);
    weft_stream_t *stream = stream_of(fixture), *foreign = stream_of(other_state);
    weft_notify_t *notify = notify_of(fixture), *none = notify;
    weft_event_t *event = NULL;
    assert_int_equal(weft_notify_create(NULL, &none), WEFT_ERR_INVALID_ARGUMENT);
    assert_null(none);
    assert_int_equal(weft_notify_record(NULL, stream), WEFT_ERR_INVALID_ARGUMENT);
    assert_int_equal(weft_notify_record(notify, NULL), WEFT_ERR_INVALID_ARGUMENT);
    assert_int_equal(weft_notify_wait(NULL, stream), WEFT_ERR_INVALID_ARGUMENT);
    assert_int_equal(weft_notify_wait(notify, NULL), WEFT_ERR_INVALID_ARGUMENT);
    assert_int_equal(weft_notify_record(notify, foreign), WEFT_ERR_INVALID_ARGUMENT);
    assert_int_equal(weft_notify_wait(notify, foreign), WEFT_ERR_INVALID_ARGUMENT);
    assert_int_equal(weft_event_create(NULL, &event), WEFT_ERR_INVALID_ARGUMENT);
    assert_int_equal(weft_event_record(NULL, stream), WEFT_ERR_INVALID_ARGUMENT);
    assert_int_equal(weft_event_query(NULL), WEFT_ERR_INVALID_ARGUMENT);
    assert_int_equal(weft_event_synchronize(NULL), WEFT_ERR_INVALID_ARGUMENT);
    assert_int_equal(weft_stream_wait_event(stream, NULL), WEFT_ERR_INVALID_ARGUMENT);
    assert_int_equal(weft_stream_query(NULL), WEFT_ERR_INVALID_ARGUMENT);
    assert_int_equal(weft_stream_synchronize(NULL), WEFT_ERR_INVALID_ARGUMENT);
    assert_int_equal(weft_stream_copy(NULL, stream, stream, 1), WEFT_ERR_INVALID_ARGUMENT);
    OK(weft_stream_synchronize(stream));
    weft_notify_destroy(NULL);
    weft_notify_destroy(notify);
    weft_stream_destroy(stream);
    weft_stream_destroy(foreign);
    assert_int_equal(teardown(&other_state), 0);
}

#define EVERYWHERE(test)                                                                           \
    cmocka_unit_test_setup_teardown(test, setup_inline, teardown),                                 \
        cmocka_unit_test_setup_teardown(test, setup_thread, teardown),                             \
        cmocka_unit_test_setup_teardown(test, setup_card, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        EVERYWHERE(test_notify_main_and_sides),
        EVERYWHERE(test_notify_counts),
        EVERYWHERE(test_notify_passes_errors_on),
        EVERYWHERE(test_notify_destroyed_in_use),
        EVERYWHERE(test_notify_destroyed_while_waited_for),
        EVERYWHERE(test_notify_wrong_arguments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
