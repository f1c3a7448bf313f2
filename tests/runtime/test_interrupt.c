/* SPDX-License-Identifier: Apache-2.0 */
/* An interrupted rank: its wait ends, whatever it waits in, and the others are told. */
#include "support.h"

#include "runtime/base/error.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ASKED 3 /* looks until the user has pressed the keys */

typedef struct player {
    weft_context_params_t params;
    pthread_t thread, self; /* self: as that thread knows it */
    int asked;              /* of the thread that waits */
    weft_status_t (*wait)(weft_context_t *context, weft_group_t *group);
    weft_status_t status;
    char message[256];
} player_t;

/* As a binding does it: only the thread that waits for the user is of interest. */
static int pressed(void *user)
{
    player_t *player = user;
    return pthread_equal(pthread_self(), player->self) && ++player->asked >= ASKED;
}

static weft_status_t receive(weft_group_t *group, weft_stream_t *stream)
{
    static __thread float nothing[4];
    return weft_recv(nothing, 4, WEFT_DTYPE_F32, 1 - weft_group_rank(group), group, stream);
}

static weft_status_t wait_in_call(weft_context_t *context, weft_group_t *group)
{
    (void)context;
    return receive(group, NULL);
}

static weft_status_t wait_at_barrier(weft_context_t *context, weft_group_t *group)
{
    /* The other one never comes here: it receives. */
    return weft_group_rank(group) == 1 ? weft_context_barrier(context) : receive(group, NULL);
}

static weft_status_t on_stream(weft_context_t *context, weft_group_t *group,
                               weft_stream_flags_t flags, bool by_event)
{
    weft_stream_params_t params = WEFT_STREAM_PARAMS_INIT;
    params.name = "interrupted";
    params.flags = flags;
    weft_stream_t *stream = NULL;
    weft_event_t *event = NULL;
    weft_status_t status = weft_stream_create(context, &params, &stream);
    status = status < 0 ? status : weft_event_create(context, &event);
    status = status < 0 ? status : receive(group, stream);
    status = status < 0 ? status : weft_event_record(event, stream);
    if (status == WEFT_OK) {
        status = by_event ? weft_event_synchronize(event) : weft_stream_synchronize(stream);
    }
    char message[256]; /* destroying may have something to say, too */
    snprintf(message, sizeof message, "%s", weft_last_error());
    weft_stream_destroy(stream);
    weft_event_destroy(event);
    if (status < 0) {
        wefti_error_adopt(status, message);
    }
    return status;
}

static weft_status_t wait_for_stream(weft_context_t *context, weft_group_t *group)
{
    return on_stream(context, group, WEFT_STREAM_INLINE, false);
}

static weft_status_t wait_for_thread(weft_context_t *context, weft_group_t *group)
{
    return on_stream(context, group, WEFT_STREAM_THREAD, false);
}

static weft_status_t wait_for_event(weft_context_t *context, weft_group_t *group)
{
    return on_stream(context, group, WEFT_STREAM_THREAD, true);
}

static void *play(void *user)
{
    player_t *player = user;
    weft_context_t *context = NULL;
    weft_group_t *group = NULL;
    player->self = pthread_self();
    player->status = weft_context_create(&player->params, &context);
    if (player->status == WEFT_OK && player->wait != NULL) {
        player->status = weft_group_create_world(context, &group);
        if (player->status == WEFT_OK) {
            player->status = player->wait(context, group);
        }
    }
    snprintf(player->message, sizeof player->message, "%s", weft_last_error());
    weft_group_destroy(group);
    weft_context_release(context);
    return NULL;
}

static void play_both(weft_status_t (*wait)(weft_context_t *, weft_group_t *))
{
    weft_hub_t *hub = NULL;
    player_t players[2];
    assert_int_equal(weft_hub_create(2, &hub), WEFT_OK);
    for (int r = 0; r < 2; r++) {
        players[r] = (player_t){.params = WEFT_CONTEXT_PARAMS_INIT, .wait = wait};
        players[r].params.rank = r;
        players[r].params.world_size = 2;
        players[r].params.hub = hub;
        players[r].params.log = support_quiet;
        players[r].params.interrupt = r == 1 ? pressed : NULL;
        players[r].params.interrupt_user = &players[r];
        assert_int_equal(pthread_create(&players[r].thread, NULL, play, &players[r]), 0);
    }
    for (int r = 0; r < 2; r++) {
        pthread_join(players[r].thread, NULL);
    }
    for (int r = 0; r < 2; r++) {
        assert_int_equal(players[r].status, WEFT_ERR_ABORTED);
        assert_non_null(strstr(players[r].message, "rank 1 was interrupted"));
    }
    assert_true(players[1].asked >= ASKED);
    weft_hub_destroy(hub);
}

static void test_interrupt_ends_every_kind_of_wait(void **state)
{
    (void)state;
    play_both(wait_in_call);
    play_both(wait_at_barrier);
    play_both(wait_for_stream);
    play_both(wait_for_thread);
    play_both(wait_for_event);
}

/* Alone where others are to come. */
static void join_alone(int rank, const char *address)
{
    player_t player = {.params = WEFT_CONTEXT_PARAMS_INIT};
    char own[64];
    player.params.rank = rank;
    player.params.world_size = 2;
    player.params.address = address;
    player.params.log = support_quiet;
    player.params.interrupt = pressed;
    player.params.interrupt_user = &player;
    play(&player);
    snprintf(own, sizeof own, "rank %d was interrupted", rank);
    assert_int_equal(player.status, WEFT_ERR_ABORTED);
    assert_non_null(strstr(player.message, own));
    assert_int_equal(player.asked, ASKED);
}

static void test_interrupt_ends_joining(void **state)
{
    char folder[] = "/tmp/weft-interrupt-XXXXXX", address[128];
    (void)state;
    snprintf(address, sizeof address, "unix:@weft-interrupt-%d", (int)getpid());
    join_alone(0, address);
    join_alone(1, address);
    assert_non_null(mkdtemp(folder));
    snprintf(address, sizeof address, "file://%s/meet", folder);
    join_alone(0, address);
    join_alone(1, address);
    snprintf(address, sizeof address, "%s/meet", folder);
    unlink(address);
    assert_int_equal(rmdir(folder), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_interrupt_ends_every_kind_of_wait),
        cmocka_unit_test(test_interrupt_ends_joining),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
