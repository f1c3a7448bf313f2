/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The same dance by hand, with streams for lanes and notifies for posts and waits: what a schedule
 * saves its author from. A notify resets itself, for each wait consumes one record, so the loop
 * needs no new objects and nothing is set back between rounds. The memory is of the device that the
 * context has; the calls are the same on a card.
 *
 *   main    barrier | go 1, go 2, go 3 | own block | wait joined 1, 2, 3 | barrier
 *   side i  wait go i | copy the block of peer (rank + i) % n | joined i
 *
 * Notifies order streams of one rank. Between ranks it takes a barrier here, of all with all, where
 * the schedule has handshakes of two.
 */
#include "by_hand.h"

#include <stdlib.h>

typedef struct side {
    weft_stream_t *stream;
    weft_notify_t *go, *joined;
} side_t;

/* The first error is returned; what comes after it is cleaning up. */
static weft_status_t first_of(weft_status_t a, weft_status_t b)
{
    return a < 0 ? a : b;
}

static weft_status_t open_sides(weft_context_t *context, side_t *sides, uint32_t size)
{
    weft_status_t status = WEFT_OK;
    weft_stream_params_t params = WEFT_STREAM_PARAMS_INIT;
    params.name = "side";
    for (uint32_t i = 1; i < size; i++) {
        status = first_of(status, weft_stream_create(context, &params, &sides[i].stream));
        status = first_of(status, weft_notify_create(context, &sides[i].go));
        status = first_of(status, weft_notify_create(context, &sides[i].joined));
    }
    return status;
}

static void close_sides(side_t *sides, uint32_t size)
{
    for (uint32_t i = 1; i < size; i++) {
        weft_stream_destroy(sides[i].stream);
        weft_notify_destroy(sides[i].go);
        weft_notify_destroy(sides[i].joined);
    }
}

static weft_status_t enqueue_round(weft_group_t *group, weft_stream_t *main, const side_t *sides,
                                   uint8_t *const *blocks, uint8_t *recv, size_t bytes)
{
    uint32_t size = weft_group_size(group), rank = weft_group_rank(group);
    weft_status_t status = weft_barrier(group, main); /* all blocks are there */
    for (uint32_t i = 1; i < size && status == WEFT_OK; i++) {
        uint32_t peer = (rank + i) % size;
        status = weft_notify_record(sides[i].go, main);
        status = first_of(status, weft_notify_wait(sides[i].go, sides[i].stream));
        status = first_of(
            status, weft_stream_copy(sides[i].stream, recv + peer * bytes, blocks[peer], bytes));
        status = first_of(status, weft_notify_record(sides[i].joined, sides[i].stream));
    }
    status = first_of(status, weft_stream_copy(main, recv + rank * bytes, blocks[rank], bytes));
    for (uint32_t i = 1; i < size && status == WEFT_OK; i++) {
        status = weft_notify_wait(sides[i].joined, main);
    }
    return first_of(status, weft_barrier(group, main)); /* all blocks were read */
}

weft_status_t gather_by_hand(weft_group_t *group, uint8_t *block, uint8_t *recv, size_t bytes,
                             uint32_t rounds)
{
    uint32_t size = weft_group_size(group);
    weft_context_t *context = weft_group_context(group);
    weft_stream_t *main = NULL;
    side_t *sides = calloc(size, sizeof *sides);
    uint8_t **blocks = calloc(size, sizeof *blocks);
    weft_status_t status = sides != NULL && blocks != NULL ? WEFT_OK : WEFT_ERR_NO_MEMORY;
    if (status == WEFT_OK) {
        /* The ranks are threads of one process: an address is good everywhere. */
        status = weft_context_all_gather(context, &block, sizeof block, blocks);
        status = first_of(status, weft_stream_create(context, NULL, &main));
        status = first_of(status, open_sides(context, sides, size));
    }
    for (uint32_t round = 0; round < rounds && status == WEFT_OK; round++) {
        status = enqueue_round(group, main, sides, blocks, recv, bytes);
        status = first_of(status, weft_stream_synchronize(main));
    }
    if (sides != NULL) {
        close_sides(sides, size);
    }
    weft_stream_destroy(main);
    free(blocks);
    free(sides);
    return status;
}
