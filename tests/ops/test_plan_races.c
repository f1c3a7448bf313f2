/* SPDX-License-Identifier: Apache-2.0 */
/* Random programs: the vector clocks' verdict against the transitive closure of the order, found by
 * brute force. */
#include "ops/plan/plan_internal.h"
#include "tests/support/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STREAMS 3u
#define BUFFERS 4u
#define MAX_STEPS 24u

static uint64_t state;

static uint32_t below(uint32_t limit)
{
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return (uint32_t)((state * 0x2545f4914f6cdd1dull) >> 33) % limit;
}

/* Steps of all streams in one order that the events allow. */
typedef struct world {
    uint32_t count, events;
    uint32_t stream[MAX_STEPS];
    wefti_plan_step_t step[MAX_STEPS];
    uint32_t reads[MAX_STEPS], writes[MAX_STEPS]; /* of kernels: a buffer, or WEFTI_PLAN_NONE */
    uint8_t before[MAX_STEPS][MAX_STEPS];
} world_t;

static void make_world(world_t *world)
{
    memset(world, 0, sizeof *world);
    world->count = 4 + below(MAX_STEPS - 4);
    for (uint32_t i = 0; i < world->count; i++) {
        uint32_t kind = below(4);
        world->stream[i] = below(STREAMS);
        world->reads[i] = world->writes[i] = WEFTI_PLAN_NONE;
        world->step[i] = (wefti_plan_step_t){WEFTI_STEP_KERNEL, i};
        if (kind == 0) {
            world->step[i] = (wefti_plan_step_t){WEFTI_STEP_RECORD, world->events++};
        } else if (kind == 1 && world->events > 0) {
            world->step[i] = (wefti_plan_step_t){WEFTI_STEP_WAIT, below(world->events)};
        } else {
            world->reads[i] = below(3) ? below(BUFFERS) : WEFTI_PLAN_NONE;
            world->writes[i] = below(2) ? below(BUFFERS) : WEFTI_PLAN_NONE;
        }
    }
}

static int ordered_directly(const world_t *world, uint32_t a, uint32_t b)
{
    return world->stream[a] == world->stream[b] ||
           (world->step[a].kind == WEFTI_STEP_RECORD && world->step[b].kind == WEFTI_STEP_WAIT &&
            world->step[a].index == world->step[b].index);
}

static int conflict(uint32_t write, uint32_t other)
{
    return write != WEFTI_PLAN_NONE && write == other;
}

static int has_race(world_t *world)
{
    for (uint32_t b = 0; b < world->count; b++) {
        for (uint32_t a = b; a-- > 0;) {
            world->before[a][b] = (uint8_t)ordered_directly(world, a, b);
            for (uint32_t via = a + 1; via < b; via++) {
                world->before[a][b] |= world->before[a][via] & world->before[via][b];
            }
        }
    }
    for (uint32_t b = 0; b < world->count; b++) {
        for (uint32_t a = 0; a < b; a++) {
            int touches = conflict(world->writes[a], world->reads[b]) ||
                          conflict(world->writes[a], world->writes[b]) ||
                          conflict(world->writes[b], world->reads[a]);
            if (touches && !world->before[a][b]) {
                return 1;
            }
        }
    }
    return 0;
}

static weft_plan_t *make_plan(world_t *world)
{
    weft_plan_t *plan;
    assert_int_equal(wefti_plan_create(NULL, &plan), WEFT_OK);
    plan->buffer_count = BUFFERS + 1;
    plan->buffers = wefti_arena_array(&plan->arena, BUFFERS + 1, sizeof *plan->buffers);
    for (uint32_t i = 0; i < BUFFERS; i++) { /* state lasts: no question of what it holds */
        plan->buffers[i] = (wefti_plan_buffer_t){
            .name = "b", .kind = WEFTI_BUFFER_STATE, .offset_bytes = 64ull * i, .size_bytes = 64};
    }
    /* A range over buffers 1 and 2 cuts nothing and is used by nobody. */
    plan->buffers[BUFFERS] = (wefti_plan_buffer_t){
        .name = "r", .kind = WEFTI_BUFFER_RANGE, .offset_bytes = 64, .size_bytes = 128};
    plan->kernel_count = world->count;
    plan->kernels = wefti_arena_array(&plan->arena, world->count, sizeof *plan->kernels);
    plan->event_count = world->events;
    plan->stream_count = STREAMS;
    plan->streams = wefti_arena_array(&plan->arena, STREAMS, sizeof *plan->streams);
    plan->program_count = 1;
    plan->programs = wefti_arena_array(&plan->arena, 1, sizeof *plan->programs);
    plan->programs[0].name = "step";
    plan->programs[0].streams =
        wefti_arena_array(&plan->arena, STREAMS, sizeof *plan->programs[0].streams);
    for (uint32_t s = 0; s < STREAMS; s++) {
        plan->streams[s].name = "s";
        plan->programs[0].streams[s].steps =
            wefti_arena_array(&plan->arena, world->count, sizeof(wefti_plan_step_t));
    }
    for (uint32_t i = 0; i < world->count; i++) {
        wefti_plan_stream_program_t *stream = &plan->programs[0].streams[world->stream[i]];
        plan->kernels[i] = (wefti_plan_kernel_t){.name = "k",
                                                 .input_count = 1,
                                                 .output_count = 1,
                                                 .inputs = &world->reads[i],
                                                 .outputs = &world->writes[i]};
        stream->steps[stream->step_count++] = world->step[i];
    }
    return plan;
}

static void test_races_match_brute_force(void **in)
{
    (void)in;
    const char *seed = getenv("WEFT_TEST_SEED");
    uint32_t races = 0, clean = 0;
    state = seed ? strtoull(seed, NULL, 0) : 20261120;
    print_message("seed %llu\n", (unsigned long long)state);
    for (uint32_t round = 0; round < 20000; round++) {
        world_t world;
        make_world(&world);
        weft_plan_t *plan = make_plan(&world);
        int expected = has_race(&world);
        weft_status_t status = wefti_plan_verify_races(plan, NULL);
        if (status != (expected ? WEFT_ERR_FORMAT : WEFT_OK)) {
            fail_msg("round %u: %s, brute force finds %s race", round, weft_status_name(status),
                     expected ? "a" : "no");
        }
        races += expected != 0;
        clean += expected == 0;
        weft_plan_release(plan);
    }
    print_message("%u programs with races, %u without\n", races, clean);
    assert_true(races > 2000 && clean > 2000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_races_match_brute_force),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
