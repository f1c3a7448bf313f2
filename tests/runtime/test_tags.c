/* SPDX-License-Identifier: Apache-2.0 */
/* Tags of sends and receives: messages match by tag, whatever the order. */
#include <stdlib.h>
#include <string.h>

#include "support_ranks.h"

#include "runtime/collective/call.h"
#include "tests/support/support.h"

#define MESSAGES 24u
#define TAGS 3u
#define MOST 40000u /* elements: several pieces of a mailbox */

typedef struct message {
    uint32_t tag, turn; /* which of its tag */
    uint64_t count;
} message_t;

static uint32_t below(uint64_t *random, uint32_t bound)
{
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    return (uint32_t)((*random >> 16) % bound);
}

static uint32_t element(const message_t *message, uint32_t from, uint64_t i)
{
    return message->tag << 28 | message->turn << 20 | from << 16 | ((uint32_t)i & 0xffff);
}

/* What every rank sends to the next one, in this order. */
static void draw(uint64_t seed, message_t *list)
{
    static const uint32_t tags[TAGS] = {0, 7, UINT32_MAX - 1};
    static const uint64_t counts[] = {0, 1, 5, 4096, MOST};
    uint32_t turns[TAGS] = {0};
    for (uint32_t i = 0; i < MESSAGES; i++) {
        uint32_t tag = below(&seed, TAGS);
        list[i] = (message_t){tags[tag], turns[tag]++, counts[below(&seed, 5)]};
    }
}

/* Any order that keeps that of each tag. */
static void shuffle(uint64_t seed, message_t *list)
{
    for (uint32_t swap = 0; swap < 8 * MESSAGES; swap++) {
        uint32_t i = below(&seed, MESSAGES - 1);
        if (list[i].tag != list[i + 1].tag) {
            message_t kept = list[i];
            list[i] = list[i + 1];
            list[i + 1] = kept;
        }
    }
}

static void check(const message_t *message, uint32_t from, const uint32_t *got)
{
    for (uint64_t i = 0; i < message->count; i++) {
        RANK_CHECK(got[i] == element(message, from, i));
    }
}

typedef enum way { BLOCKING, STREAM, BATCH, WAYS } way_t;

/* [MESSAGES * MOST], in memory that peers reach, or not. */
static uint32_t *memory_of(rank_world_t *world, bool reached)
{
    void *memory = NULL;
    const size_t bytes = sizeof(uint32_t) * MESSAGES * MOST;
    if (reached) {
        RANK_OK(weft_mem_alloc(world->context, bytes, &memory));
    } else {
        memory = malloc(bytes);
    }
    RANK_CHECK(memory != NULL);
    return memory;
}

static void give_back(rank_world_t *world, bool reached, uint32_t *memory)
{
    if (reached) {
        RANK_OK(weft_mem_free(world->context, memory));
    } else {
        free(memory);
    }
}

static void send_all(rank_world_t *world, const message_t *list, uint32_t first, uint32_t last,
                     uint32_t *memory)
{
    for (uint32_t m = 0; m < MESSAGES; m++) {
        uint32_t *at = memory + (size_t)m * MOST;
        for (uint64_t i = 0; i < list[m].count; i++) {
            at[i] = element(&list[m], world->rank, i);
        }
        for (uint32_t to = first; to < last; to++) {
            RANK_OK(weft_send_tagged(at, list[m].count, WEFT_DTYPE_U32, to, list[m].tag,
                                     world->group, NULL));
        }
    }
}

/* From rank 0, in another order. */
static void receive_all(rank_world_t *world, way_t way, const message_t *list, uint32_t *memory)
{
    weft_stream_t *stream = NULL;
    RANK_OK(weft_stream_create(world->context, NULL, &stream));
    if (way == BATCH) {
        RANK_OK(weft_batch_begin(world->group));
    }
    for (uint32_t m = 0; m < MESSAGES; m++) {
        RANK_OK(weft_recv_tagged(memory + (size_t)m * MOST, list[m].count, WEFT_DTYPE_U32, 0,
                                 list[m].tag, world->group, way == STREAM ? stream : NULL));
    }
    if (way == BATCH) {
        RANK_OK(weft_batch_end(world->group, NULL));
    }
    RANK_OK(weft_stream_synchronize(stream));
    for (uint32_t m = 0; m < MESSAGES; m++) {
        check(&list[m], 0, memory + (size_t)m * MOST);
    }
    weft_stream_destroy(stream);
}

static void run_any_order(rank_world_t *world)
{
    uint64_t seed = *(const uint64_t *)world->user;
    for (uint32_t round = 0; round < 2 * WAYS; round++) {
        message_t list[MESSAGES];
        bool reached = round % 2 != 0;
        uint32_t *memory = memory_of(world, reached);
        draw(seed + round, list);
        if (world->rank == 0) {
            send_all(world, list, 1, world->size, memory);
        } else {
            shuffle(seed + 100 * world->rank + round, list);
            receive_all(world, (way_t)(round / 2), list, memory);
        }
        RANK_OK(weft_barrier(world->group, NULL));
        give_back(world, reached, memory);
    }
}

static void test_messages_match_by_tag(void **state)
{
    (void)state;
    uint64_t seed = test_seed() | 1;
    support_rank_threads(3, run_any_order, &seed);
    assert_true(support_rank_processes_too(2, run_any_order, &seed));
}

/* Rank 0 takes what comes, from whom it comes; every other time one tag only. */
static void run_any_rank(rank_world_t *world)
{
    uint64_t seed = *(const uint64_t *)world->user;
    message_t list[MESSAGES];
    uint32_t *memory = memory_of(world, false);
    uint32_t turns[8][TAGS] = {{0}};
    draw(seed, list);
    if (world->rank != 0) {
        send_all(world, list, 0, 1, memory);
    }
    for (uint32_t m = 0; world->rank == 0 && m < MESSAGES * (world->size - 1);) {
        weft_message_t message = WEFT_MESSAGE_INIT;
        uint32_t tag = below(&seed, 2) == 0 ? WEFT_ANY_TAG : list[below(&seed, MESSAGES)].tag;
        weft_status_t status = weft_probe(WEFT_ANY_RANK, tag, world->group, &message);
        if (status == WEFT_IN_PROGRESS) {
            continue;
        }
        RANK_OK(status);
        RANK_CHECK(message.dtype == WEFT_DTYPE_U32 && message.peer != 0);
        RANK_CHECK(tag == WEFT_ANY_TAG || message.tag == tag);
        RANK_OK(weft_recv_tagged(memory, message.count, WEFT_DTYPE_U32, message.peer, message.tag,
                                 world->group, NULL));
        uint32_t *turn = &turns[message.peer][message.tag % 3]; /* 0, 7 and the last: 0, 1, 2 */
        check(&(message_t){message.tag, (*turn)++, message.count}, message.peer, memory);
        m++;
    }
    RANK_OK(weft_barrier(world->group, NULL));
    RANK_CHECK(weft_probe(WEFT_ANY_RANK, WEFT_ANY_TAG, world->group, NULL) == WEFT_IN_PROGRESS);
    RANK_OK(weft_barrier(world->group, NULL));
    give_back(world, false, memory);
}

static void test_probe_finds_messages_of_any_rank(void **state)
{
    (void)state;
    uint64_t seed = test_seed() | 1;
    support_rank_threads(4, run_any_rank, &seed);
    assert_true(support_rank_processes_too(3, run_any_rank, &seed));
}

/* What ranks sent before they left is found; then nothing more will come, which is an answer. */
static void run_probes_of_ranks_that_left(rank_world_t *world)
{
    uint32_t value = world->rank, sum = 0;
    weft_message_t message = WEFT_MESSAGE_INIT;
    weft_status_t status = WEFT_IN_PROGRESS;
    RANK_OK(weft_barrier(world->group, NULL));
    if (world->rank != 0) {
        RANK_OK(weft_send_tagged(&value, 1, WEFT_DTYPE_U32, 0, 5, world->group, NULL));
        weft_group_leave(world->group); /* weft_group_destroy would wait for rank 0 */
        world->group = NULL;
        return;
    }
    while (status == WEFT_IN_PROGRESS || status == WEFT_OK) {
        status = weft_probe(WEFT_ANY_RANK, 5, world->group, &message);
        if (status == WEFT_OK) {
            RANK_OK(
                weft_recv_tagged(&value, 1, WEFT_DTYPE_U32, message.peer, 5, world->group, NULL));
            sum += value;
        }
    }
    RANK_CHECK(status == WEFT_ERR_PEER_DIED && sum == world->size * (world->size - 1) / 2);
    RANK_CHECK(strstr(weft_last_error(), "has left the world, and no message") != NULL);
    RANK_CHECK(weft_probe(1, 5, world->group, &message) == WEFT_ERR_PEER_DIED);
}

static void test_probes_of_ranks_that_left(void **state)
{
    static const uint32_t hosts[] = {0, 0, 1};
    const wefti_hub_links_t links = {hosts, 7, 10000};
    (void)state;
    support_rank_threads(3, run_probes_of_ranks_that_left, NULL);
    assert_true(support_rank_processes_too(3, run_probes_of_ranks_that_left, NULL));
    support_rank_threads_over(3, run_probes_of_ranks_that_left, NULL, &links);
}

/* Sends on streams go on while their rank only probes. */
static void run_probes_while_it_sends(rank_world_t *world)
{
    enum { COUNT = 100 }; /* a mailbox has room for it */
    weft_stream_t *stream = NULL;
    uint32_t *sent = malloc(COUNT * sizeof *sent), *got = malloc(COUNT * sizeof *got);
    RANK_CHECK(sent != NULL && got != NULL);
    RANK_OK(weft_stream_create(world->context, NULL, &stream));
    RANK_OK(weft_barrier(world->group, NULL));
    memset(sent, (int)world->rank + 1, COUNT * sizeof *sent);
    uint32_t to = (world->rank + 1) % world->size;
    RANK_OK(weft_send_tagged(sent, COUNT, WEFT_DTYPE_U32, to, 3, world->group, stream));
    weft_message_t message = WEFT_MESSAGE_INIT;
    weft_status_t status;
    do {
        status = weft_probe(WEFT_ANY_RANK, 3, world->group, &message);
    } while (status == WEFT_IN_PROGRESS);
    RANK_OK(status);
    RANK_OK(weft_recv_tagged(got, COUNT, WEFT_DTYPE_U32, message.peer, 3, world->group, stream));
    RANK_OK(weft_stream_synchronize(stream));
    RANK_CHECK(got[COUNT - 1] == (message.peer + 1) * 0x01010101u);
    weft_stream_destroy(stream);
    free(sent);
    free(got);
}

static void test_probes_while_it_sends(void **state)
{
    (void)state;
    support_rank_threads(2, run_probes_while_it_sends, NULL);
    assert_true(support_rank_processes_too(3, run_probes_while_it_sends, NULL));
}

/* A receive that waits for its tag does not keep back the message of another one. */
static void run_waits_between(rank_world_t *world)
{
    uint32_t peer = 1 - world->rank, value = 0;
    weft_stream_t *stream = NULL;
    RANK_OK(weft_stream_create(world->context, NULL, &stream));
    if (world->rank == 0) {
        uint32_t numbers[] = {50, 51, 70};
        RANK_OK(weft_send_tagged(&numbers[0], 1, WEFT_DTYPE_U32, peer, 5, world->group, NULL));
        RANK_OK(weft_send_tagged(&numbers[1], 1, WEFT_DTYPE_U32, peer, 5, world->group, NULL));
        RANK_OK(weft_context_barrier(world->context)); /* when the other has them */
        RANK_OK(weft_send_tagged(&numbers[2], 1, WEFT_DTYPE_U32, peer, 7, world->group, NULL));
    } else {
        uint32_t later = 0;
        weft_message_t message = WEFT_MESSAGE_INIT;
        RANK_OK(weft_recv_tagged(&later, 1, WEFT_DTYPE_U32, peer, 7, world->group, stream));
        for (uint32_t i = 0; i < 2; i++) {
            weft_status_t status;
            do {
                RANK_CHECK(weft_stream_query(stream) == WEFT_IN_PROGRESS);
                status = weft_probe(peer, 5, world->group, &message);
            } while (status == WEFT_IN_PROGRESS);
            RANK_OK(status);
            RANK_CHECK(message.count == 1 && message.tag == 5);
            RANK_OK(weft_recv_tagged(&value, 1, WEFT_DTYPE_U32, peer, 5, world->group, NULL));
            RANK_CHECK(value == 50 + i && later == 0);
        }
        RANK_OK(weft_context_barrier(world->context));
        RANK_OK(weft_stream_synchronize(stream));
        RANK_CHECK(later == 70);
    }
    weft_stream_destroy(stream);
}

static void test_a_receive_does_not_keep_back_other_tags(void **state)
{
    (void)state;
    support_rank_threads(2, run_waits_between, NULL);
    assert_true(support_rank_processes_too(2, run_waits_between, NULL));
}

/* Nor does one whose message is kept for it hide those of other tags. */
static void run_finds_behind(rank_world_t *world)
{
    uint32_t peer = 1 - world->rank, value = 1, got[2] = {0};
    if (world->rank == 0) {
        RANK_OK(weft_send_tagged(&value, 1, WEFT_DTYPE_U32, peer, 5, world->group, NULL));
        RANK_OK(weft_send_tagged(&value, 1, WEFT_DTYPE_U32, peer, 6, world->group, NULL));
        RANK_OK(weft_context_barrier(world->context)); /* when the other has found tag 6 */
        RANK_OK(weft_send_tagged(&value, 1, WEFT_DTYPE_U32, peer, 7, world->group, NULL));
    } else {
        weft_stream_t *stream = NULL;
        weft_message_t message = WEFT_MESSAGE_INIT;
        weft_status_t status;
        RANK_OK(weft_stream_create(world->context, NULL, &stream));
        RANK_OK(weft_recv_tagged(&got[0], 1, WEFT_DTYPE_U32, peer, 7, world->group, stream));
        RANK_OK(weft_recv_tagged(&got[1], 1, WEFT_DTYPE_U32, peer, 5, world->group, stream));
        do {
            status = weft_probe(peer, WEFT_ANY_TAG, world->group, &message);
        } while (status == WEFT_IN_PROGRESS);
        RANK_OK(status);
        RANK_CHECK(message.tag == 6);
        RANK_OK(weft_recv_tagged(&value, 1, WEFT_DTYPE_U32, peer, 6, world->group, NULL));
        RANK_OK(weft_context_barrier(world->context));
        RANK_OK(weft_stream_synchronize(stream));
        weft_stream_destroy(stream);
    }
}

static void test_kept_messages_of_others_do_not_hide_one(void **state)
{
    (void)state;
    support_rank_threads(2, run_finds_behind, NULL);
    assert_true(support_rank_processes_too(2, run_finds_behind, NULL));
}

/* Of a message that a receive on a thread takes at this moment a probe says nothing. */
static void run_probes_beside_a_thread(rank_world_t *world)
{
    weft_stream_params_t params = WEFT_STREAM_PARAMS_INIT;
    weft_stream_t *stream = NULL;
    uint32_t peer = 1 - world->rank, value = 0, answer = 0;
    params.flags = WEFT_STREAM_THREAD;
    RANK_OK(weft_stream_create(world->context, &params, &stream));
    for (uint32_t i = 0; i < 500; i++) {
        if (world->rank == 0) {
            RANK_OK(weft_send_tagged(&i, 1, WEFT_DTYPE_U32, peer, 1, world->group, NULL));
            RANK_OK(weft_recv_tagged(&answer, 1, WEFT_DTYPE_U32, peer, 2, world->group, NULL));
            continue;
        }
        RANK_OK(weft_recv_tagged(&value, 1, WEFT_DTYPE_U32, peer, 1, world->group, stream));
        weft_status_t status;
        do {
            RANK_CHECK(weft_probe(peer, WEFT_ANY_TAG, world->group, NULL) == WEFT_IN_PROGRESS);
            status = weft_stream_query(stream);
        } while (status == WEFT_IN_PROGRESS);
        RANK_OK(status);
        RANK_CHECK(value == i);
        RANK_OK(weft_send_tagged(&answer, 1, WEFT_DTYPE_U32, peer, 2, world->group, NULL));
    }
    weft_stream_destroy(stream);
}

static void test_probes_beside_a_thread_that_receives(void **state)
{
    (void)state;
    support_rank_threads(2, run_probes_beside_a_thread, NULL);
    assert_true(support_rank_processes_too(2, run_probes_beside_a_thread, NULL));
}

/* A receive that this rank refused, and has made since with a kept message, is refused no more:
 * sends of the peer would end with its error. */
static void run_refuses_then_receives(rank_world_t *world)
{
    uint32_t peer = 1 - world->rank, value = 1;
    if (world->rank == 0) {
        RANK_OK(weft_send_tagged(&value, 1, WEFT_DTYPE_U32, peer, 5, world->group, NULL));
        RANK_OK(weft_send_tagged(&value, 1, WEFT_DTYPE_U32, peer, 7, world->group, NULL));
    } else {
        RANK_OK(weft_recv_tagged(&value, 1, WEFT_DTYPE_U32, peer, 7, world->group, NULL));
        RANK_CHECK(weft_recv_tagged(NULL, 1, WEFT_DTYPE_U32, peer, 5, world->group, NULL) ==
                   WEFT_ERR_INVALID_ARGUMENT);
        RANK_CHECK(atomic_load(&world->group->calls->refused));
        RANK_OK(weft_recv_tagged(&value, 1, WEFT_DTYPE_U32, peer, 5, world->group, NULL));
        RANK_CHECK(!atomic_load(&world->group->calls->refused));
    }
}

static void test_kept_messages_of_refused_receives(void **state)
{
    (void)state;
    support_rank_threads(2, run_refuses_then_receives, NULL);
    assert_true(support_rank_processes_too(2, run_refuses_then_receives, NULL));
}

/* The error of a send is for the receive with its tag, and kept for it. */
static void run_keeps_refusals(rank_world_t *world)
{
    uint32_t peer = 1 - world->rank, value = 0;
    static const char text[] = "rank 0: Send: data is NULL";
    for (uint32_t round = 0; round < 2; round++) {
        if (world->rank == 0) {
            uint32_t sent = 70;
            RANK_CHECK(weft_send_tagged(NULL, 1, WEFT_DTYPE_U32, peer, 5, world->group, NULL) ==
                       WEFT_ERR_INVALID_ARGUMENT);
            RANK_OK(weft_send_tagged(&sent, 1, WEFT_DTYPE_U32, peer, 7, world->group, NULL));
        } else {
            weft_message_t message = WEFT_MESSAGE_INIT;
            RANK_OK(weft_recv_tagged(&value, 1, WEFT_DTYPE_U32, peer, 7, world->group, NULL));
            RANK_CHECK(value == 70);
            RANK_OK(weft_probe(peer, WEFT_ANY_TAG, world->group, &message));
            RANK_CHECK(message.tag == 5 && message.dtype == WEFT_DTYPE_NONE);
            weft_stream_t *stream = NULL;
            weft_status_t status;
            if (round == 0) {
                status = weft_recv_tagged(&value, 1, WEFT_DTYPE_U32, peer, 5, world->group, NULL);
            } else {
                RANK_OK(weft_stream_create(world->context, NULL, &stream));
                RANK_OK(weft_recv_tagged(&value, 1, WEFT_DTYPE_U32, peer, 5, world->group, stream));
                status = weft_stream_synchronize(stream);
            }
            RANK_CHECK(status == WEFT_ERR_INVALID_ARGUMENT);
            RANK_CHECK(strstr(weft_last_error(), text) != NULL);
            weft_stream_destroy(stream);
        }
        RANK_OK(weft_barrier(world->group, NULL)); /* the group goes on */
    }
}

static void test_errors_of_sends_are_for_their_tag(void **state)
{
    (void)state;
    support_rank_threads(2, run_keeps_refusals, NULL);
    assert_true(support_rank_processes_too(2, run_keeps_refusals, NULL));
}

/* Messages that are kept are compared with their receive, too; what nobody receives is freed. */
static void run_wrong_length(rank_world_t *world)
{
    uint32_t peer = 1 - world->rank, values[4] = {0};
    if (world->rank == 0) {
        RANK_OK(weft_send_tagged(values, 4, WEFT_DTYPE_U32, peer, 1, world->group, NULL));
        RANK_OK(weft_send_tagged(values, 3, WEFT_DTYPE_U32, peer, 2, world->group, NULL));
        RANK_OK(weft_send_tagged(values, 2, WEFT_DTYPE_U32, peer, 3, world->group, NULL));
        RANK_CHECK(weft_probe(0, 0, world->group, NULL) == WEFT_ERR_INVALID_ARGUMENT);
        RANK_CHECK(weft_probe(2, 0, world->group, NULL) == WEFT_ERR_INVALID_ARGUMENT);
    } else {
        RANK_OK(weft_recv_tagged(values, 2, WEFT_DTYPE_U32, peer, 3, world->group, NULL));
        weft_status_t status =
            weft_recv_tagged(values, 2, WEFT_DTYPE_U32, peer, 2, world->group, NULL);
        RANK_CHECK(status == WEFT_ERR_MISMATCH);
        RANK_CHECK(strcmp(weft_last_error(), "rank 0 called send with 3 x u32, rank 1 recv with 2 "
                                             "x u32") == 0);
        RANK_CHECK(weft_probe(peer, 1, world->group, NULL) == WEFT_ERR_MISMATCH);
    }
}

static void test_kept_messages_of_another_length(void **state)
{
    (void)state;
    support_rank_threads(2, run_wrong_length, NULL);
    assert_true(support_rank_processes_too(2, run_wrong_length, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_messages_match_by_tag),
        cmocka_unit_test(test_probe_finds_messages_of_any_rank),
        cmocka_unit_test(test_probes_of_ranks_that_left),
        cmocka_unit_test(test_probes_while_it_sends),
        cmocka_unit_test(test_a_receive_does_not_keep_back_other_tags),
        cmocka_unit_test(test_kept_messages_of_others_do_not_hide_one),
        cmocka_unit_test(test_probes_beside_a_thread_that_receives),
        cmocka_unit_test(test_kept_messages_of_refused_receives),
        cmocka_unit_test(test_errors_of_sends_are_for_their_tag),
        cmocka_unit_test(test_kept_messages_of_another_length),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
