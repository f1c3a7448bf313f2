/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank whose flight recorder cli_ps.py and cli_analyze.py read: four ranks do what SCENE says
 * after calls that all of them make. usage: recorded SCENE
 */
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <weft/weft.h>

static float data[16];
static weft_group_t *made;

static weft_status_t reduce(weft_group_t *group, uint64_t count)
{
    return weft_all_reduce(data, data, count, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, group, NULL);
}

static void wait_for_ever(void)
{
    for (;;) {
        pause();
    }
}

/* late: rank 2 stays in the program. stall: and ranks 1 and 3 are stopped until they are continued.
 * split: the others make a group meanwhile. stopped: in a stopped process. mismatch: it brings more
 * data. chain: it waits for rank 1, which stays in the program. busy: all call for ever. */
static weft_status_t play(const char *scene, uint32_t rank, weft_group_t *world)
{
    uint64_t count = 8;
    bool splits = strcmp(scene, "split") == 0;
    bool stalls = strcmp(scene, "stall") == 0;
    if (rank == 2 && (splits || stalls || strcmp(scene, "late") == 0)) {
        wait_for_ever();
    }
    if (rank % 2 == 1 && stalls) {
        raise(SIGSTOP);
    }
    if (splits) {
        return weft_group_split(world, 0, 0, &made);
    }
    if (rank == 2 && strcmp(scene, "stopped") == 0) {
        raise(SIGSTOP);
    }
    if (rank == 2 && strcmp(scene, "mismatch") == 0) {
        count = 9;
    }
    if (rank == 1 && strcmp(scene, "chain") == 0) {
        wait_for_ever();
    }
    if (rank == 2 && strcmp(scene, "chain") == 0) {
        return weft_recv(data, 3, WEFT_DTYPE_F32, 1, world, NULL);
    }
    while (strcmp(scene, "busy") == 0) {
        weft_status_t status = reduce(world, 8);
        if (status < 0) {
            return status;
        }
    }
    return reduce(world, count);
}

int main(int argc, char **argv)
{
    weft_context_params_t params = WEFT_CONTEXT_PARAMS_INIT;
    weft_context_t *context = NULL;
    weft_group_t *world = NULL, *half = NULL;
    weft_status_t status = weft_context_create(&params, &context);
    if (status == WEFT_OK) {
        status = weft_group_create_world(context, &world);
    }
    uint32_t rank = weft_context_rank(context);
    if (status == WEFT_OK) {
        status = weft_group_split(world, rank % 2, 0, &half);
    }
    for (int i = 0; i < 5 && status == WEFT_OK; i++) {
        status = reduce(world, 4);
    }
    status = status == WEFT_OK ? reduce(half, 3) : status;
    status = status == WEFT_OK && argc > 1 ? play(argv[1], rank, world) : status;
    if (status < 0) {
        fprintf(stderr, "rank %u: %s\n", rank, weft_last_error());
    }
    weft_group_leave(made);
    weft_group_leave(half);
    weft_group_leave(world);
    weft_context_release(context);
    return status < 0;
}
