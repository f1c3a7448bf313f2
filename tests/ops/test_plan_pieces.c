/* SPDX-License-Identifier: Apache-2.0 */
/* A gradient reduced in pieces: what a plan may say of it, and what it may not. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ops/plan/plan_internal.h"
#include "tests/support/support.h"

enum { W, B, GRAD_W, GRAD_B, PIECE_0, PIECE_1, PIECE_2, ALL_PARAMS, BUFFERS };
enum { COLLECTIVES = 4, W_ELEMS = 80, W_BYTES = 320 }; /* five units of 64 bytes: 1, 2 and 2 */

typedef struct fixture {
    wefti_plan_buffer_t buffers[BUFFERS];
    wefti_plan_kernel_t kernel;
    uint32_t inputs[2], outputs[2], members[COLLECTIVES][2];
    wefti_plan_collective_t collectives[COLLECTIVES];
    wefti_plan_algorithm_t algorithm;
    wefti_plan_stream_t streams[2];
    wefti_plan_program_t programs[3];
    wefti_plan_stream_program_t of_stream[3][2];
    wefti_plan_step_t init[1], compute[2], comm[4];
    uint8_t weights[W_BYTES + 64];
    weft_plan_t *plan;
} fixture_t;

static void set_buffer(fixture_t *f, uint32_t id, const char *name, wefti_buffer_kind_t kind,
                       uint64_t offset, uint64_t bytes)
{
    f->buffers[id] = (wefti_plan_buffer_t){.name = name,
                                           .kind = kind,
                                           .dtype = WEFT_DTYPE_F32,
                                           .rank = 1,
                                           .dims = {(int64_t)(bytes / 4)},
                                           .offset_bytes = offset,
                                           .size_bytes = bytes};
}

static void set_collective(fixture_t *f, uint32_t id, weft_collective_t op, uint32_t buffer,
                           uint32_t first, uint32_t count)
{
    f->members[id][0] = first;
    f->members[id][1] = first + 1;
    f->collectives[id] = (wefti_plan_collective_t){.name = "bucket",
                                                   .op = op,
                                                   .reduction = WEFT_REDUCTION_AVG,
                                                   .dtype = WEFT_DTYPE_F32,
                                                   .buffer = buffer,
                                                   .source = buffer,
                                                   .update = WEFTI_PLAN_NONE,
                                                   .elem_count = f->buffers[buffer].size_bytes / 4,
                                                   .order = "tree",
                                                   .member_count = count,
                                                   .members = f->members[id],
                                                   .algorithm_count = 1,
                                                   .algorithms = &f->algorithm,
                                                   .reason = "because"};
}

static void set_programs(fixture_t *f)
{
    static const char *const names[] = {"init", "step", "eval"};
    f->streams[0] = (wefti_plan_stream_t){"compute", 0};
    f->streams[1] = (wefti_plan_stream_t){"comm", 1};
    f->init[0] = (wefti_plan_step_t){WEFTI_STEP_COLLECTIVE, 3};
    f->compute[0] = (wefti_plan_step_t){WEFTI_STEP_KERNEL, 0};
    f->compute[1] = (wefti_plan_step_t){WEFTI_STEP_RECORD, 0};
    f->comm[0] = (wefti_plan_step_t){WEFTI_STEP_WAIT, 0};
    for (uint32_t i = 0; i < 3; i++) {
        f->comm[i + 1] = (wefti_plan_step_t){WEFTI_STEP_COLLECTIVE, i};
        f->programs[i] = (wefti_plan_program_t){names[i], f->of_stream[i]};
    }
    f->of_stream[0][1] = (wefti_plan_stream_program_t){1, f->init};
    f->of_stream[1][0] = (wefti_plan_stream_program_t){2, f->compute};
    f->of_stream[1][1] = (wefti_plan_stream_program_t){4, f->comm};
}

/* | w 320 | b 64 | grad.w 320 | grad.b 64 |: piece 0 and 1 are of grad.w, piece 2 is its rest and
 * grad.b. */
static int setup(void **state)
{
    fixture_t *f = calloc(1, sizeof *f);
    uint64_t grads = W_BYTES + 64;
    assert_int_equal(wefti_plan_create(NULL, &f->plan), WEFT_OK);
    set_buffer(f, W, "w", WEFTI_BUFFER_PARAM, 0, W_BYTES);
    set_buffer(f, B, "b", WEFTI_BUFFER_PARAM, W_BYTES, 40);
    set_buffer(f, GRAD_W, "grad.w", WEFTI_BUFFER_GRAD, grads, W_BYTES);
    set_buffer(f, GRAD_B, "grad.b", WEFTI_BUFFER_GRAD, grads + W_BYTES, 40);
    set_buffer(f, PIECE_0, "0", WEFTI_BUFFER_RANGE, grads, 64);
    set_buffer(f, PIECE_1, "1", WEFTI_BUFFER_RANGE, grads + 64, 128);
    set_buffer(f, PIECE_2, "2", WEFTI_BUFFER_RANGE, grads + 192, 192);
    set_buffer(f, ALL_PARAMS, "all", WEFTI_BUFFER_RANGE, 0, W_BYTES + 64);
    f->buffers[B].data_offset_bytes = W_BYTES;
    f->algorithm = (wefti_plan_algorithm_t){"mesh", 1, 1000};
    set_collective(f, 0, WEFT_COLLECTIVE_ALL_REDUCE, PIECE_0, GRAD_W, 1);
    set_collective(f, 1, WEFT_COLLECTIVE_ALL_REDUCE, PIECE_1, GRAD_W, 1);
    set_collective(f, 2, WEFT_COLLECTIVE_ALL_REDUCE, PIECE_2, GRAD_W, 2);
    set_collective(f, 3, WEFT_COLLECTIVE_BROADCAST, ALL_PARAMS, W, 2);
    f->inputs[0] = W;
    f->inputs[1] = B;
    f->outputs[0] = GRAD_W;
    f->outputs[1] = GRAD_B;
    f->kernel = (wefti_plan_kernel_t){.name = "back",
                                      .domain = "test",
                                      .op = "Back",
                                      .version = 1,
                                      .phase = 1,
                                      .input_count = 2,
                                      .output_count = 2,
                                      .inputs = f->inputs,
                                      .outputs = f->outputs};
    set_programs(f);
    f->plan->model_name = f->plan->policy = f->plan->optimizer = "test";
    f->plan->world_size = 2;
    f->plan->arena_bytes = f->plan->live_bytes = 2 * grads;
    f->plan->buffer_count = BUFFERS;
    f->plan->buffers = f->buffers;
    f->plan->kernel_count = 1;
    f->plan->kernels = &f->kernel;
    f->plan->collective_count = COLLECTIVES;
    f->plan->collectives = f->collectives;
    f->plan->stream_count = 2;
    f->plan->streams = f->streams;
    f->plan->event_count = 1;
    f->plan->program_count = 3;
    f->plan->programs = f->programs;
    f->plan->weights = f->weights;
    f->plan->weights_bytes = sizeof f->weights;
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

static void expect(const fixture_t *f, weft_status_t status, const char *message)
{
    weft_status_t found = wefti_plan_verify(f->plan, NULL);
    if (found != status || (found < 0 && !strstr(weft_last_error(), message))) {
        fail_msg("%d, \"%s\" does not say \"%s\"", (int)found, weft_last_error(), message);
    }
}

/* Moves a piece, its elements following. */
static void move_piece(fixture_t *f, uint32_t piece, uint64_t offset, uint64_t bytes)
{
    uint64_t grads = f->buffers[GRAD_W].offset_bytes;
    set_buffer(f, PIECE_0 + piece, "p", WEFTI_BUFFER_RANGE, grads + offset, bytes);
    f->collectives[piece].elem_count = bytes / 4;
}

static void test_pieces_that_cover_all_are_accepted(void **state)
{
    fixture_t *f = *state;
    expect(f, WEFT_OK, "");
    move_piece(f, 2, 192, 128 + 40); /* without the padding */
    expect(f, WEFT_OK, "");
    move_piece(f, 1, 128, 64); /* any order of the steps */
    move_piece(f, 0, 64, 64);
    expect(f, WEFT_ERR_FORMAT, "grad.w is not reduced from byte 0 to its end");
    f->plan->world_size = 1; /* alone nothing is to be averaged */
    expect(f, WEFT_OK, "");
}

static void test_pieces_that_leave_or_repeat_bytes_are_refused(void **state)
{
    fixture_t *f = *state;
    move_piece(f, 1, 64, 64);
    expect(f, WEFT_ERR_FORMAT, "grad.w is not reduced from byte 128 to its end");
    move_piece(f, 1, 64, 192);
    expect(f, WEFT_ERR_FORMAT, "grad.w is reduced twice");
    move_piece(f, 1, 64, 124); /* a cut inside a unit */
    expect(f, WEFT_ERR_FORMAT, "cut only at multiples of 64");
    move_piece(f, 1, 64, 128);
    move_piece(f, 2, 192, 128);
    expect(f, WEFT_ERR_FORMAT, "does not end with its last member");
    f->collectives[2].member_count = 1;
    expect(f, WEFT_ERR_FORMAT, "grad.b is not reduced from byte 0 to its end");
    f->comm[3].index = 1;
    expect(f, WEFT_ERR_FORMAT, "is reduced twice");
}

static void test_pieces_name_exactly_what_they_cover(void **state)
{
    fixture_t *f = *state;
    f->members[1][0] = GRAD_B; /* lies behind the range */
    expect(f, WEFT_ERR_FORMAT, "does not begin with its first member");
    f->members[1][0] = GRAD_W;
    f->collectives[1].member_count = 2;
    expect(f, WEFT_ERR_FORMAT, "does not end with its last member");
    f->collectives[1].member_count = 1;
    f->collectives[2].member_count = 1;
    expect(f, WEFT_ERR_FORMAT, "does not end with its last member");
    f->collectives[2].member_count = 2;
    set_buffer(f, ALL_PARAMS, "all", WEFTI_BUFFER_RANGE, 64, W_BYTES);
    f->collectives[3].elem_count = W_BYTES / 4;
    expect(f, WEFT_ERR_FORMAT, "only gradients are reduced in pieces");
    set_buffer(f, ALL_PARAMS, "all", WEFTI_BUFFER_RANGE, 0, 256);
    f->collectives[3].elem_count = 64;
    f->collectives[3].member_count = 1;
    expect(f, WEFT_ERR_FORMAT, "only gradients are reduced in pieces");
}

/* Whatever is cut wherever: accepted exactly if each byte is covered once, by brute force. */
static void test_pieces_at_random_against_brute_force(void **state)
{
    fixture_t *f = *state;
    unsigned seed = (unsigned)time(NULL), accepted = 0;
    print_message("seed %u\n", seed);
    srand(seed);
    for (int round = 0; round < 20000; round++) {
        uint32_t covered[6] = {0};
        int good = 1;
        for (uint32_t p = 0; p < 3; p++) {
            uint32_t begin = (uint32_t)rand() % 6, units = 1 + (uint32_t)rand() % (6 - begin);
            move_piece(f, p, 64 * begin, 64 * units);
            f->members[p][0] = begin < 5 ? GRAD_W : GRAD_B;
            f->members[p][1] = GRAD_B;
            f->collectives[p].member_count = begin < 5 && begin + units == 6 ? 2 : 1;
            for (uint32_t u = begin; u < begin + units; u++) {
                good &= ++covered[u] == 1;
            }
        }
        for (uint32_t u = 0; u < 6; u++) {
            good &= covered[u] == 1;
        }
        accepted += (unsigned)good;
        if ((wefti_plan_verify(f->plan, NULL) == WEFT_OK) != good) {
            fail_msg("round %d: %s", round, good ? weft_last_error() : "accepted");
        }
    }
    assert_true(accepted > 10);
}

static void test_pieces_are_explained(void **state)
{
    fixture_t *f = *state;
    static const char *const text_has[] = {"piece 1/2", "piece 2/2", "2 tensors",
                                           "64 B  grad.w  (of 320 B)"};
    static const char *const json_has[] = {"\"part\": 1",   "\"part\": 2",    "\"parts\": 2",
                                           "\"bytes\": 64", "\"bytes\": 128", "\"bytes\": 168"};
    char *text;
    assert_int_equal(weft_plan_explain(f->plan, WEFT_FORMAT_TEXT, &text), WEFT_OK);
    for (size_t i = 0; i < sizeof text_has / sizeof *text_has; i++) {
        if (!strstr(text, text_has[i])) {
            fail_msg("no \"%s\" in:\n%s", text_has[i], text);
        }
    }
    free(text);
    assert_int_equal(weft_plan_explain(f->plan, WEFT_FORMAT_JSON, &text), WEFT_OK);
    for (size_t i = 0; i < sizeof json_has / sizeof *json_has; i++) {
        if (!strstr(text, json_has[i])) {
            fail_msg("no %s in:\n%s", json_has[i], text);
        }
    }
    assert_null(strstr(text, "\"part\": 3"));
    free(text);
}

int main(void)
{
#define CASE(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        CASE(test_pieces_that_cover_all_are_accepted),
        CASE(test_pieces_that_leave_or_repeat_bytes_are_refused),
        CASE(test_pieces_name_exactly_what_they_cover),
        CASE(test_pieces_at_random_against_brute_force),
        CASE(test_pieces_are_explained),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
