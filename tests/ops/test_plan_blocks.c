/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives of an inference plan: how long source and buffer must be for every operator, where
 * they may lie, on which rank, and what contents ranks may have of their own. */
#include "ops/plan/plan_internal.h"
#include "tests/support/support.h"

#include <stdlib.h>
#include <string.h>

enum { X, WEIGHT, PART, WHOLE, BUFFERS };
enum { N = 4, E = 16 }; /* ranks; elements of a block: 64 bytes */

typedef struct fixture {
    weft_plan_t *plan;
    wefti_plan_buffer_t buffers[BUFFERS];
    wefti_plan_kernel_t kernels[2];
    wefti_plan_collective_t collective;
    wefti_plan_algorithm_t algorithm;
    wefti_plan_program_t program;
    wefti_plan_stream_program_t stream;
    wefti_plan_step_t steps[3];
    wefti_plan_stream_t streams[1];
    uint32_t inputs[2], made[1], taken[1], members[1];
    uint8_t weights[N * 64];
} fixture_t;

static void set_buffer(fixture_t *f, uint32_t id, const char *name, wefti_buffer_kind_t kind,
                       uint64_t offset, int64_t elems)
{
    f->buffers[id] = (wefti_plan_buffer_t){.name = name,
                                           .kind = kind,
                                           .dtype = WEFT_DTYPE_F32,
                                           .rank = 1,
                                           .dims = {elems},
                                           .offset_bytes = offset,
                                           .size_bytes = (uint64_t)elems * 4};
}

/* x, weight -> part -> collective -> whole -> nothing; part at 128, whole at 1024. */
static int setup(void **state)
{
    fixture_t *f = calloc(1, sizeof *f);
    assert_int_equal(wefti_plan_create(NULL, &f->plan), WEFT_OK);
    set_buffer(f, X, "x", WEFTI_BUFFER_INPUT, 0, E);
    set_buffer(f, WEIGHT, "w", WEFTI_BUFFER_PARAM, 64, E);
    set_buffer(f, PART, "part", WEFTI_BUFFER_TEMP, 128, E);
    set_buffer(f, WHOLE, "whole", WEFTI_BUFFER_TEMP, 1024, E);
    f->inputs[0] = X;
    f->inputs[1] = WEIGHT;
    f->made[0] = f->members[0] = PART;
    f->taken[0] = WHOLE;
    f->kernels[0] = (wefti_plan_kernel_t){.name = "make",
                                          .domain = "test",
                                          .op = "Make",
                                          .version = 1,
                                          .input_count = 2,
                                          .output_count = 1,
                                          .inputs = f->inputs,
                                          .outputs = f->made};
    f->kernels[1] = (wefti_plan_kernel_t){.name = "take",
                                          .domain = "test",
                                          .op = "Take",
                                          .version = 1,
                                          .input_count = 1,
                                          .inputs = f->taken};
    f->algorithm = (wefti_plan_algorithm_t){"mesh", 1, 0};
    f->collective = (wefti_plan_collective_t){.name = "c",
                                              .op = WEFT_COLLECTIVE_ALL_REDUCE,
                                              .reduction = WEFT_REDUCTION_SUM,
                                              .dtype = WEFT_DTYPE_F32,
                                              .buffer = WHOLE,
                                              .source = PART,
                                              .elem_count = E,
                                              .update = WEFTI_PLAN_NONE,
                                              .order = "tree",
                                              .member_count = 1,
                                              .members = f->members,
                                              .algorithm_count = 1,
                                              .algorithms = &f->algorithm,
                                              .reason = ""};
    f->steps[0] = (wefti_plan_step_t){WEFTI_STEP_KERNEL, 0};
    f->steps[1] = (wefti_plan_step_t){WEFTI_STEP_COLLECTIVE, 0};
    f->steps[2] = (wefti_plan_step_t){WEFTI_STEP_KERNEL, 1};
    f->stream = (wefti_plan_stream_program_t){3, f->steps};
    f->streams[0] = (wefti_plan_stream_t){"compute", 1};
    f->program = (wefti_plan_program_t){"step", &f->stream};
    weft_plan_t *plan = f->plan;
    plan->model_name = plan->policy = plan->optimizer = "";
    plan->kind = WEFT_PLAN_KIND_INFERENCE;
    plan->world_size = N;
    plan->arena_bytes = 2048;
    plan->buffer_count = BUFFERS;
    plan->buffers = f->buffers;
    plan->kernel_count = 2;
    plan->kernels = f->kernels;
    plan->collective_count = 1;
    plan->collectives = &f->collective;
    plan->stream_count = plan->program_count = 1;
    plan->streams = f->streams;
    plan->programs = &f->program;
    plan->weights = f->weights;
    plan->weights_bytes = sizeof f->weights;
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    fixture_t *f = *state;
    weft_plan_release(f->plan);
    free(f);
    return 0;
}

static void expect(const fixture_t *f, const char *message)
{
    weft_status_t found = wefti_plan_verify(f->plan, NULL);
    if (message ? found != WEFT_ERR_FORMAT || !strstr(weft_last_error(), message)
                : found != WEFT_OK) {
        fail_msg("%s: %d, \"%s\" does not say \"%s\"", weft_collective_name(f->collective.op),
                 (int)found, found == WEFT_OK ? "" : weft_last_error(), message ? message : "ok");
    }
}

/* What an operator's source and buffer hold of blocks of E. */
static const struct {
    weft_collective_t op;
    int source, buffer; /* 0: not for plans */
} rows[] = {
    {WEFT_COLLECTIVE_ALL_REDUCE, 1, 1},       {WEFT_COLLECTIVE_BROADCAST, 1, 1},
    {WEFT_COLLECTIVE_REDUCE, 1, 1},           {WEFT_COLLECTIVE_REDUCE_SCATTER, N, 1},
    {WEFT_COLLECTIVE_ALL_GATHER, 1, N},       {WEFT_COLLECTIVE_GATHER, 1, N},
    {WEFT_COLLECTIVE_SCATTER, N, 1},          {WEFT_COLLECTIVE_ALL_TO_ALL, N, N},
    {WEFT_COLLECTIVE_ALL_GATHER_V, 0, 0},     {WEFT_COLLECTIVE_ALL_TO_ALL_V, 0, 0},
    {WEFT_COLLECTIVE_REDUCE_SCATTER_V, 0, 0}, {WEFT_COLLECTIVE_SEND_RECV, 0, 0},
    {WEFT_COLLECTIVE_BARRIER, 0, 0},
};

static void test_blocks_of_every_operator(void **state)
{
    fixture_t *f = *state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        f->collective.op = rows[i].op;
        if (rows[i].source == 0) {
            expect(f, "unknown operator");
            continue;
        }
        for (int source = 1; source <= N; source += N - 1) {
            for (int buffer = 1; buffer <= N; buffer += N - 1) {
                set_buffer(f, PART, "part", WEFTI_BUFFER_TEMP, 128, source * E);
                set_buffer(f, WHOLE, "whole", WEFTI_BUFFER_TEMP, 1024, buffer * E);
                expect(f, source == rows[i].source && buffer == rows[i].buffer ? NULL
                                                                               : "element count");
            }
        }
        set_buffer(f, PART, "part", WEFTI_BUFFER_TEMP, 128, rows[i].source * E);
        set_buffer(f, WHOLE, "whole", WEFTI_BUFFER_TEMP, 1024, rows[i].buffer * E);
        f->collective.elem_count = UINT64_MAX / 4 + 1 + E; /* times four it is E again */
        expect(f, "element count");
        f->collective.elem_count = UINT64_MAX / 16 + 1 + E; /* and so times four and N */
        expect(f, "element count");
        f->collective.elem_count = E;
        f->buffers[PART].dtype = WEFT_DTYPE_I32;
        expect(f, "dtype");
        f->buffers[PART].dtype = WEFT_DTYPE_F32;
        expect(f, NULL);
    }
}

/* Halves that overlap, one in place of the other, one buffer for both. */
static void test_places_of_every_operator(void **state)
{
    fixture_t *f = *state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows && rows[i].source > 0; i++) {
        int longer = rows[i].source > rows[i].buffer ? rows[i].source : rows[i].buffer;
        f->collective.op = rows[i].op;
        f->collective.source = PART;
        f->collective.buffer = WHOLE;
        f->members[0] = PART;
        f->taken[0] = WHOLE;
        set_buffer(f, PART, "part", WEFTI_BUFFER_TEMP, 1024, rows[i].source * E);
        set_buffer(f, WHOLE, "whole", WEFTI_BUFFER_TEMP, 1024, rows[i].buffer * E);
        expect(f, "overlap");
        f->buffers[PART].offset_bytes += 64;
        f->buffers[WHOLE].offset_bytes -= 64 * (rows[i].buffer > 1);
        expect(f, rows[i].buffer == 1 ? NULL : "overlap");
        set_buffer(f, PART, "part", WEFTI_BUFFER_TEMP, 128, longer * E);
        f->collective.buffer = f->taken[0] = PART; /* in place */
        expect(f,
               rows[i].op == WEFT_COLLECTIVE_REDUCE_SCATTER || rows[i].op == WEFT_COLLECTIVE_SCATTER
                   ? "only a shard"
                   : NULL);
    }
}

/* A rank's own block of what is gathered, or scattered, as a buffer of its own. */
static void test_own_blocks(void **state)
{
    fixture_t *f = *state;
    f->collective.op = WEFT_COLLECTIVE_ALL_GATHER;
    set_buffer(f, PART, "part", WEFTI_BUFFER_TEMP, 1024, E);
    set_buffer(f, WHOLE, "whole", WEFTI_BUFFER_TEMP, 1024, N * E);
    f->buffers[PART].rank_stride_bytes = 64;
    expect(f, NULL);
    f->buffers[PART].rank_stride_bytes = 128;
    expect(f, "overlap");
    f->buffers[PART].rank_stride_bytes = 64;
    f->buffers[PART].offset_bytes = 1024 - 64;
    expect(f, "overlap");
    f->buffers[PART].offset_bytes = 2048 - 4 * 64;
    expect(f, NULL); /* behind it on every rank */
    f->buffers[PART].offset_bytes = 2048 - 3 * 64;
    expect(f, "arena size");
    f->buffers[PART].offset_bytes = 0; /* of ranks 0 and 1 the input and the weights */
    expect(f, "overlap");
    set_buffer(f, PART, "part", WEFTI_BUFFER_TEMP, 1024, N * E);
    set_buffer(f, WHOLE, "whole", WEFTI_BUFFER_TEMP, 1024, E);
    f->buffers[WHOLE].rank_stride_bytes = 64;
    f->collective.op = WEFT_COLLECTIVE_REDUCE_SCATTER;
    expect(f, NULL);
    f->collective.op = WEFT_COLLECTIVE_SCATTER;
    expect(f, NULL);
    f->collective.op = WEFT_COLLECTIVE_ALL_GATHER;
    expect(f, "element count");
}

static void test_what_is_written(void **state)
{
    fixture_t *f = *state;
    f->buffers[WHOLE].kind = WEFTI_BUFFER_CONST;
    expect(f, "writes a constant");
    f->buffers[WHOLE].kind = WEFTI_BUFFER_INPUT;
    expect(f, "writes a constant");
    f->buffers[WHOLE].kind = WEFTI_BUFFER_TEMP;
    f->collective.op = WEFT_COLLECTIVE_BROADCAST;
    f->collective.root = N;
    expect(f, "root");
    f->collective.root = N - 1;
    expect(f, NULL);
    f->steps[0] = (wefti_plan_step_t){WEFTI_STEP_COLLECTIVE, 0};
    expect(f, "read before it is written");
}

static void test_parts_add_up_to_a_whole(void **state)
{
    fixture_t *f = *state;
    int64_t sizes[] = {E * N / 2, E * N / 2};
    wefti_division_t *parts = &f->buffers[WEIGHT].parts;
    *parts = (wefti_division_t){0, 2, sizes};
    f->plan->flags = WEFTI_PLAN_RANK_DATA;
    expect(f, "not a part of a parameter");
    f->buffers[WEIGHT].rank_data_stride_bytes = 64;
    expect(f, NULL);
    parts->axis = 1;
    expect(f, "not a part of a parameter");
    parts->axis = 0;
    sizes[0] += N;
    expect(f, "do not add up");
    sizes[0] = -sizes[0];
    expect(f, "do not add up");
    sizes[0] = E * N / 2 - 1;
    expect(f, "do not add up");
    parts->count = 1;
    sizes[0] = E * N;
    expect(f, NULL);
}

static void test_contents_by_rank(void **state)
{
    fixture_t *f = *state;
    f->buffers[WEIGHT].rank_data_stride_bytes = 64;
    expect(f, "the plan's do not");
    f->plan->flags = WEFTI_PLAN_RANK_DATA;
    expect(f, NULL);
    f->plan->weights_bytes--;
    expect(f, "weights section");
    f->plan->weights_bytes++;
    f->buffers[WEIGHT].rank_data_stride_bytes = UINT64_MAX / 3 + 65;
    expect(f, "weights section");
    f->buffers[WEIGHT].rank_data_stride_bytes = 0;
    f->buffers[PART].rank_data_stride_bytes = 64;
    expect(f, "no contents");
    f->buffers[PART].rank_data_stride_bytes = 0;
    f->plan->flags = WEFTI_PLAN_SHARDED;
    expect(f, "another kind");
    f->plan->flags = WEFTI_PLAN_SPLIT_BATCH;
    expect(f, NULL);
    f->plan->accumulate = 2;
    expect(f, "micro-batches");
}

int main(void)
{
#define CASE(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        CASE(test_blocks_of_every_operator),
        CASE(test_places_of_every_operator),
        CASE(test_own_blocks),
        CASE(test_what_is_written),
        CASE(test_contents_by_rank),
        CASE(test_parts_add_up_to_a_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
