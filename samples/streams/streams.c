/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams and events on their own, without a plan: a producer fills blocks, a consumer sums them
 * up, with two blocks in flight. Events say "full" and "free"; the host only enqueues.
 *
 *   producer   fill 0 | full 0 | fill 1 | full 1 | wait free 0 | fill 2 ...
 *   consumer   wait full 0 | sum 0 | free 0 | wait full 1 | sum 1 | free 1 ...
 */
#include <stdio.h>
#include <stdlib.h>

#include <weft/weft.h>

#define BLOCKS 2
#define ROUNDS 100
#define ELEMS 1000

typedef struct block {
    double values[ELEMS];
    int round;
    double *total;
} block_t;

static weft_status_t fill(void *user)
{
    block_t *block = user;
    for (int i = 0; i < ELEMS; i++) {
        block->values[i] = block->round + 1;
    }
    block->round += BLOCKS;
    return WEFT_OK;
}

static weft_status_t sum(void *user)
{
    block_t *block = user;
    for (int i = 0; i < ELEMS; i++) {
        *block->total += block->values[i];
    }
    return WEFT_OK;
}

/* Every call can fail; a sample stops at the first one that does. */
static void check(weft_status_t status)
{
    if (status < 0) {
        fprintf(stderr, "streams: %s\n", weft_last_error());
        exit(2);
    }
}

int main(void)
{
    weft_context_params_t params = WEFT_CONTEXT_PARAMS_INIT;
    weft_stream_params_t producer_params = WEFT_STREAM_PARAMS_INIT;
    weft_stream_params_t consumer_params = WEFT_STREAM_PARAMS_INIT;
    static block_t blocks[BLOCKS];
    double total = 0;
    uint64_t first_ns, last_ns;
    weft_context_t *context;
    weft_stream_t *producer, *consumer;
    weft_event_t *start, *full[BLOCKS], *empty[BLOCKS];

    params.rank = 0;
    params.world_size = 1;
    check(weft_context_create(&params, &context));
    producer_params.name = "producer";
    producer_params.flags = WEFT_STREAM_THREAD;
    consumer_params.name = "consumer";
    check(weft_stream_create(context, &producer_params, &producer));
    check(weft_stream_create(context, &consumer_params, &consumer));
    check(weft_event_create(context, &start));
    for (int i = 0; i < BLOCKS; i++) {
        blocks[i].round = i;
        blocks[i].total = &total;
        check(weft_event_create(context, &full[i]));
        check(weft_event_create(context, &empty[i]));
    }

    check(weft_event_record(start, producer));
    for (int round = 0; round < ROUNDS; round++) {
        int i = round % BLOCKS;
        check(weft_stream_wait_event(producer, empty[i])); /* nothing in the first rounds */
        check(weft_stream_launch_host(producer, fill, &blocks[i]));
        check(weft_event_record(full[i], producer));
        check(weft_stream_wait_event(consumer, full[i]));
        check(weft_stream_launch_host(consumer, sum, &blocks[i]));
        check(weft_event_record(empty[i], consumer));
    }
    check(weft_stream_synchronize(consumer)); /* runs the inline stream, too */

    check(weft_event_time_ns(start, &first_ns));
    check(weft_event_time_ns(empty[(ROUNDS - 1) % BLOCKS], &last_ns));
    printf("%d blocks in %.1f us, total %.0f\n", ROUNDS, (double)(last_ns - first_ns) / 1e3, total);

    for (int i = 0; i < BLOCKS; i++) {
        weft_event_destroy(full[i]);
        weft_event_destroy(empty[i]);
    }
    weft_event_destroy(start);
    weft_stream_destroy(consumer);
    weft_stream_destroy(producer);
    weft_context_release(context);
    return total == ELEMS * (ROUNDS * (ROUNDS + 1) / 2) ? 0 : 1;
}
