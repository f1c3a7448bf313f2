/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks in different kinds of calls: all of them get an error at once that names two of them, and
 * what each is in. Ranks that wait for long in programs that are right never do.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/sync.h"
#include "support_ranks.h"

#include "tests/support/support.h"

#define COUNT 8u

/* What ranks have for their calls. */
typedef struct things {
    weft_group_t *second; /* of all ranks */
    weft_group_t *part;   /* of all ranks but the last, or of the last alone */
    weft_stream_t *stream;
    float x[COUNT];
} things_t;

/* ---- kinds ---- */

static weft_status_t call_all_reduce(rank_world_t *world, things_t *things)
{
    return weft_all_reduce(things->x, things->x, COUNT, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM,
                           world->group, NULL);
}

static weft_status_t call_barrier(rank_world_t *world, things_t *things)
{
    (void)things;
    return weft_barrier(world->group, NULL);
}

static weft_status_t call_second(rank_world_t *world, things_t *things)
{
    (void)world;
    return weft_all_reduce(things->x, things->x, COUNT, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM,
                           things->second, NULL);
}

static weft_status_t call_on_stream(rank_world_t *world, things_t *things)
{
    float all[3 * COUNT];
    weft_status_t status =
        weft_all_gather(things->x, all, COUNT, WEFT_DTYPE_F32, things->second, things->stream);
    (void)world;
    return status < 0 ? status : weft_stream_synchronize(things->stream);
}

static weft_status_t call_mem_alloc(rank_world_t *world, things_t *things)
{
    void *memory = NULL;
    (void)things;
    return weft_mem_alloc(world->context, 4096, &memory);
}

static weft_status_t call_context_barrier(rank_world_t *world, things_t *things)
{
    (void)things;
    return weft_context_barrier(world->context);
}

static weft_status_t call_context_all_gather(rank_world_t *world, things_t *things)
{
    uint64_t own = 1, all[16];
    (void)things;
    return weft_context_all_gather(world->context, &own, sizeof own, all);
}

static weft_status_t call_topology(rank_world_t *world, things_t *things)
{
    char *text = NULL;
    (void)things;
    weft_status_t status = weft_context_topology(world->context, WEFT_FORMAT_TEXT, 0, &text);
    free(text);
    return status;
}

static weft_status_t call_duplicate(rank_world_t *world, things_t *things)
{
    weft_group_t *group = NULL;
    (void)things;
    return weft_group_duplicate(world->group, &group);
}

static weft_status_t call_fuser(rank_world_t *world, things_t *things)
{
    weft_fuser_params_t params = WEFT_FUSER_PARAMS_INIT;
    weft_fuser_t *fuser = NULL;
    (void)world;
    return weft_fuser_create(things->second, &params, &fuser);
}

static weft_status_t call_capture(rank_world_t *world, things_t *things)
{
    weft_capture_params_t params = WEFT_CAPTURE_PARAMS_INIT;
    weft_capture_t *capture = NULL;
    weft_status_t status = weft_capture_begin(world->group, &params);
    if (status == WEFT_OK) {
        status = call_all_reduce(world, things);
    }
    return status < 0 ? status : weft_capture_end(world->group, &capture);
}

static weft_status_t call_recv(rank_world_t *world, things_t *things)
{
    return weft_recv(things->x, COUNT, WEFT_DTYPE_F32, (world->rank + 1) % world->size,
                     things->second, NULL);
}

typedef struct kind {
    const char *name; /* what messages call it */
    weft_status_t (*call)(rank_world_t *world, things_t *things);
} kind_t;

static const kind_t kinds[] = {
    {"all_reduce", call_all_reduce},
    {"barrier", call_barrier},
    {"all_reduce", call_second},
    {"all_gather", call_on_stream},
    {"mem_alloc", call_mem_alloc},
    {"context_barrier", call_context_barrier},
    {"context_all_gather", call_context_all_gather},
    {"context_topology", call_topology},
    {"group creation", call_duplicate},
    {"fuser_create", call_fuser},
    {"capture_end", call_capture},
    {"receive", call_recv},
};
#define KINDS (sizeof kinds / sizeof kinds[0])

/* ---- pairs of them ---- */

typedef struct pair {
    const kind_t *odd, *others; /* of one rank; of the others */
    uint32_t victim;
} pair_t;

static void run_pair(rank_world_t *world)
{
    const pair_t *pair = world->user;
    const kind_t *kind = world->rank == pair->victim ? pair->odd : pair->others;
    things_t things = {0};
    RANK_OK(weft_group_duplicate(world->group, &things.second));
    RANK_OK(weft_stream_create(world->context, NULL, &things.stream));
    RANK_OK(weft_context_barrier(world->context));
    weft_status_t status = kind->call(world, &things);
    char victim[32];
    snprintf(victim, sizeof victim, "rank %u", pair->victim);
    if (status != WEFT_ERR_MISMATCH || strstr(weft_last_error(), victim) == NULL ||
        strstr(weft_last_error(), pair->odd->name) == NULL ||
        strstr(weft_last_error(), pair->others->name) == NULL) {
        fprintf(stderr, "rank %u: %s against %s of rank %u: %s\n", world->rank, pair->others->name,
                pair->odd->name, pair->victim, weft_last_error());
    }
    RANK_CHECK(status == WEFT_ERR_MISMATCH);
    RANK_CHECK(strstr(weft_last_error(), victim) != NULL);
    RANK_CHECK(strstr(weft_last_error(), pair->odd->name) != NULL);
    RANK_CHECK(strstr(weft_last_error(), pair->others->name) != NULL);
    weft_stream_destroy(things.stream);
    weft_group_destroy(things.second);
}

static void test_every_pair_of_kinds(void **state)
{
    (void)state;
    setenv("WEFT_TIMEOUT", "300", 1);
    for (uint32_t a = 0; a < KINDS; a++) {
        for (uint32_t b = 0; b < KINDS; b++) {
            pair_t pair = {&kinds[a], &kinds[b], (a + b) % 3};
            if (a != b) {
                uint64_t start = wefti_now_ns();
                support_rank_threads(3, run_pair, &pair);
                if (getenv("VERBOSE"))
                    printf("%s %s %g\n", kinds[a].name, kinds[b].name,
                           (double)(wefti_now_ns() - start) * 1e-9);
            }
        }
    }
    unsetenv("WEFT_TIMEOUT");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_pair_of_kinds),
    };
    return cmocka_run_group_tests_name("runtime waits", tests, NULL, NULL);
}
