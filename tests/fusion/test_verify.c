/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compiled plans of every kind, changed at random: whatever the verifier accepts has no race on any
 * rank, stays inside the arena and reduces every gradient once, as found by brute force over the
 * places that each rank really has.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <time.h>
#include <unistd.h>

#include <weft/compile.h>

#include "ops/plan/plan_internal.h"
#include "ops/plan/prove.h"
#include "tests/graph/support_layers.h"
#include "tests/support/support.h"

enum { MAX_STEPS = 512, WORDS = MAX_STEPS / 64, ROUNDS = 250, WORLD = 3 };

static uint64_t state;

static uint32_t below(uint32_t limit)
{
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return (uint32_t)((state * 0x2545f4914f6cdd1dull) >> 33) % limit;
}

/* One run of a program on a rank, in an order that its events allow. */
typedef struct run {
    const weft_plan_t *plan;
    uint32_t rank, count;
    uint32_t stream[MAX_STEPS];
    const wefti_plan_step_t *step[MAX_STEPS];
    uint64_t before[MAX_STEPS][WORDS]; /* bit a of before[b]: a comes before b */
} run_t;

static int comes_before(const run_t *run, uint32_t a, uint32_t b)
{
    return (int)(run->before[b][a / 64] >> (a % 64) & 1);
}

static void add_before(run_t *run, uint32_t a, uint32_t b)
{
    for (uint32_t w = 0; w < WORDS; w++) {
        run->before[b][w] |= run->before[a][w];
    }
    run->before[b][a / 64] |= 1ull << (a % 64);
}

static void make_run(run_t *run, const wefti_plan_program_t *program)
{
    uint32_t at[WEFTI_PLAN_MAX_STREAMS] = {0}, last[WEFTI_PLAN_MAX_STREAMS];
    uint32_t *recorded = malloc((run->plan->event_count + 1) * sizeof *recorded);
    int moved = 1;
    memset(recorded, 0xff, (run->plan->event_count + 1) * sizeof *recorded);
    memset(last, 0xff, sizeof last);
    memset(run->before, 0, sizeof run->before);
    run->count = 0;
    while (moved) {
        moved = 0;
        for (uint32_t s = 0; s < run->plan->stream_count; s++) {
            for (; at[s] < program->streams[s].step_count; at[s]++, moved = 1) {
                const wefti_plan_step_t *step = &program->streams[s].steps[at[s]];
                uint32_t own = run->count;
                if (step->kind == WEFTI_STEP_WAIT && recorded[step->index] == UINT32_MAX) {
                    break;
                }
                assert_true(own < MAX_STEPS);
                run->stream[own] = s;
                run->step[own] = step;
                if (last[s] != UINT32_MAX) {
                    add_before(run, last[s], own);
                }
                if (step->kind == WEFTI_STEP_WAIT) {
                    add_before(run, recorded[step->index], own);
                } else if (step->kind == WEFTI_STEP_RECORD) {
                    recorded[step->index] = own;
                }
                last[s] = own;
                run->count++;
            }
        }
    }
    free(recorded);
}

typedef struct span {
    uint64_t begin, end;
    int writes;
} span_t;

static void add_span(const run_t *run, span_t *spans, uint32_t *count, uint32_t buffer, int writes)
{
    const wefti_plan_buffer_t *b = &run->plan->buffers[buffer];
    uint64_t begin = b->offset_bytes + run->rank * b->rank_stride_bytes;
    if (b->size_bytes == 0) {
        return;
    }
    assert_true(*count < 64);
    assert_true(begin + b->size_bytes <= run->plan->arena_bytes);
    spans[(*count)++] = (span_t){begin, begin + b->size_bytes, writes};
}

static void add_kernel(const run_t *run, uint32_t kernel, span_t *spans, uint32_t *count)
{
    const wefti_plan_kernel_t *k = &run->plan->kernels[kernel];
    for (uint32_t i = 0; i < k->input_count; i++) {
        if (k->inputs[i] != WEFTI_PLAN_NONE) {
            add_span(run, spans, count, k->inputs[i], 0);
        }
    }
    for (uint32_t i = 0; i < k->output_count; i++) {
        if (k->outputs[i] != WEFTI_PLAN_NONE) {
            add_span(run, spans, count, k->outputs[i], 1);
        }
    }
}

/* What a step of this rank, or its peers meanwhile, touch of the rank's arena. */
static uint32_t find_spans(const run_t *run, uint32_t step, span_t *spans)
{
    uint32_t count = 0;
    if (run->step[step]->kind == WEFTI_STEP_KERNEL) {
        add_kernel(run, run->step[step]->index, spans, &count);
    } else if (run->step[step]->kind == WEFTI_STEP_COLLECTIVE) {
        const wefti_plan_collective_t *c = &run->plan->collectives[run->step[step]->index];
        add_span(run, spans, &count, c->source, 0);
        add_span(run, spans, &count, c->buffer, 1);
        if (c->update != WEFTI_PLAN_NONE) {
            add_kernel(run, c->update, spans, &count);
        }
    }
    return count;
}

static int has_race(const run_t *run)
{
    static span_t spans[MAX_STEPS][64];
    uint32_t counts[MAX_STEPS];
    for (uint32_t b = 0; b < run->count; b++) {
        counts[b] = find_spans(run, b, spans[b]);
        for (uint32_t a = 0; a < b; a++) {
            if (run->stream[a] == run->stream[b] || comes_before(run, a, b)) {
                continue;
            }
            for (uint32_t i = 0; i < counts[a]; i++) {
                for (uint32_t j = 0; j < counts[b]; j++) {
                    const span_t *x = &spans[a][i], *y = &spans[b][j];
                    if ((x->writes || y->writes) && x->begin < y->end && y->begin < x->end) {
                        return 1;
                    }
                }
            }
        }
    }
    return 0;
}

/* Every byte of what updates read must have been reduced once: count by units of four bytes. */
static int reduces_once(const weft_plan_t *plan)
{
    uint8_t *times = calloc(1, (size_t)plan->arena_bytes / 4 + 1);
    const wefti_plan_collective_t *bucket;
    uint64_t position = 0;
    uint32_t stream;
    int good = 1;
    while ((bucket = wefti_plan_next_bucket(plan, &position, &stream)) != NULL) {
        const wefti_plan_buffer_t *source = &plan->buffers[bucket->source];
        for (uint64_t i = 0; i < source->size_bytes; i += 4) {
            good &= ++times[(source->offset_bytes + i) / 4] == 1;
        }
        for (uint32_t m = 0; m < bucket->member_count; m++) {
            good &= plan->buffers[bucket->members[m]].kind == WEFTI_BUFFER_GRAD;
        }
    }
    const wefti_plan_program_t *step = wefti_plan_program(plan, "step");
    for (uint32_t i = 0; i < step->streams[0].step_count; i++) {
        const wefti_plan_step_t *at = &step->streams[0].steps[i];
        const wefti_plan_kernel_t *kernel =
            at->kind == WEFTI_STEP_KERNEL ? &plan->kernels[at->index] : NULL;
        if (!kernel || kernel->phase != 3 || kernel->input_count < 2) {
            continue;
        }
        const wefti_plan_buffer_t *grad = &plan->buffers[kernel->inputs[1]];
        for (uint64_t b = 0; b < grad->size_bytes && grad->kind == WEFTI_BUFFER_GRAD; b += 4) {
            good &= times[(grad->offset_bytes + b) / 4] == 1;
        }
    }
    free(times);
    return good;
}

/* A change that can be taken back. */
typedef struct change {
    void *place;
    uint8_t was[64 * sizeof(wefti_plan_step_t)];
    size_t bytes;
    uint32_t *count, old_count;
} change_t;

static void begin_change(change_t *change, void *place, size_t bytes)
{
    assert_true(bytes <= sizeof change->was);
    *change = (change_t){.place = place, .bytes = bytes};
    memcpy(change->was, place, bytes);
}

static void take_back(change_t *change)
{
    memcpy(change->place, change->was, change->bytes);
    if (change->count) {
        *change->count = change->old_count;
    }
}

static void change_steps(weft_plan_t *plan, change_t *change)
{
    wefti_plan_program_t *program = &plan->programs[below(plan->program_count)];
    wefti_plan_stream_program_t *stream = &program->streams[below(plan->stream_count)];
    uint32_t at = stream->step_count ? below(stream->step_count) : 0;
    uint32_t rest = stream->step_count - at < 64 ? stream->step_count - at : 64;
    begin_change(change, stream->step_count ? &stream->steps[at] : (void *)&plan->batch,
                 stream->step_count ? rest * sizeof *stream->steps : sizeof plan->batch);
    if (rest < 2) {
        return;
    }
    wefti_plan_step_t moved = stream->steps[at];
    uint32_t to = 1 + below(rest - 1);
    switch (below(3)) {
    case 0: /* later */
        memmove(&stream->steps[at], &stream->steps[at + 1], to * sizeof moved);
        stream->steps[at + to] = moved;
        break;
    case 1: /* gone, where all behind it can be remembered */
        if (stream->step_count - at == rest) {
            change->count = &stream->step_count;
            change->old_count = stream->step_count;
            memmove(&stream->steps[at], &stream->steps[at + 1], (rest - 1) * sizeof moved);
            stream->step_count--;
        }
        break;
    default: /* another event, kernel or collective */
        stream->steps[at].index =
            below(1 + (moved.kind == WEFTI_STEP_KERNEL       ? plan->kernel_count
                       : moved.kind == WEFTI_STEP_COLLECTIVE ? plan->collective_count
                                                             : plan->event_count));
    }
}

static void change_buffer(weft_plan_t *plan, change_t *change)
{
    wefti_plan_buffer_t *buffer = &plan->buffers[below(plan->buffer_count)];
    begin_change(change, buffer, sizeof *buffer);
    switch (below(4)) {
    case 0:
        buffer->offset_bytes += 64ull * (below(64) - 32u);
        break;
    case 1:
        buffer->offset_bytes = plan->buffers[below(plan->buffer_count)].offset_bytes;
        break;
    case 2:
        buffer->rank_stride_bytes += 64ull * (below(8) - 4u);
        break;
    default:
        buffer->kind = (wefti_buffer_kind_t)(1 + below(9));
    }
}

static void change_operand(weft_plan_t *plan, change_t *change)
{
    wefti_plan_kernel_t *kernel = &plan->kernels[below(plan->kernel_count)];
    uint32_t *ids = below(2) && kernel->output_count ? kernel->outputs : kernel->inputs;
    uint32_t count = ids == kernel->inputs ? kernel->input_count : kernel->output_count;
    uint32_t *id = count ? &ids[below(count)] : &kernel->phase;
    begin_change(change, id, sizeof *id);
    if (count) {
        *id = below(plan->buffer_count);
    }
}

static void change_collective(weft_plan_t *plan, change_t *change)
{
    wefti_plan_collective_t *c = &plan->collectives[below(plan->collective_count)];
    begin_change(change, c, sizeof *c);
    switch (below(5)) {
    case 0:
        c->source = below(plan->buffer_count);
        break;
    case 1:
        c->buffer = below(plan->buffer_count);
        break;
    case 2:
        c->op = (weft_collective_t)(1 + below(13));
        break;
    case 3:
        c->update = below(plan->kernel_count);
        break;
    default:
        c->member_count = 1 + below(c->member_count);
    }
}

static void check_accepted(const weft_plan_t *plan, const char *options, uint32_t round)
{
    static run_t run;
    for (uint32_t rank = 0; rank < plan->world_size; rank++) {
        for (uint32_t p = 0; p < plan->program_count; p++) {
            run.plan = plan;
            run.rank = rank;
            make_run(&run, &plan->programs[p]);
            if (has_race(&run)) {
                fail_msg("%s, round %u: accepted, but %s races on rank %u", options, round,
                         plan->programs[p].name, rank);
            }
        }
    }
    if (!reduces_once(plan)) {
        fail_msg("%s, round %u: accepted, but reduces a gradient twice or not", options, round);
    }
}

static void shake(weft_plan_t *plan, const weft_registry_t *registry, const char *options)
{
    static void (*const changes[])(weft_plan_t *, change_t *) = {change_steps, change_buffer,
                                                                 change_operand, change_collective};
    uint32_t accepted = 0;
    check_accepted(plan, options, 0);
    for (uint32_t round = 1; round <= ROUNDS; round++) {
        change_t change;
        wefti_plan_proof_t proof;
        changes[below(4)](plan, &change);
        if (wefti_plan_prove(plan, registry, &proof) == WEFT_OK) {
            check_accepted(plan, options, round);
            accepted++;
        }
        take_back(&change);
    }
    print_message("%-28s %u of %u accepted\n", options, accepted, ROUNDS);
    assert_int_equal(wefti_plan_verify(plan, registry), WEFT_OK); /* as it was */
}

static void test_whatever_is_accepted_is_right(void **in)
{
    static const struct {
        const char *name, *wire;
        int shard, decouple;
        uint32_t accumulate;
        double clip;
        uint32_t in_flight;
        int infer;
    } rows[] = {
        {"plain", NULL, 0, 0, 1, 0, 0, 0},
        {"sweeps", NULL, 1, 0, 1, 0, 0, 0},
        {"three passes, bf16", "bf16", 1, 0, 1, 0, 0, 0},
        {"decoupled", NULL, 0, 1, 1, 0, 0, 0},
        {"micro-batches, clipped", NULL, 0, 0, 3, 1, 0, 0},
        {"decoupled micro-batches", "bf16", 0, 1, 5, 1, 0, 0},
        {"one in flight", NULL, 0, 1, 1, 0, 1, 0},
        {"inference", NULL, 0, 0, 0, 0, 0, 1},
    };
    const char *seed = getenv("WEFT_TEST_SEED");
    weft_registry_t *registry;
    (void)in;
    state = seed ? strtoull(seed, NULL, 0) : 20261120;
    print_message("seed %llu\n", (unsigned long long)state);
    assert_int_equal(weft_registry_create(NULL, &registry), WEFT_OK);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        weft_compile_params_t params = WEFT_COMPILE_PARAMS_INIT;
        weft_plan_t *plan;
        params.model_path = WEFT_SOURCE_DIR "/samples/models/lenet.onnx";
        params.world_size = WORLD;
        params.batch = 4;
        params.registry = registry;
        params.wire = rows[i].wire;
        params.shard_optimizer = rows[i].shard;
        params.decouple = rows[i].decouple;
        params.accumulate = rows[i].accumulate;
        params.clip_norm = rows[i].clip;
        params.in_flight = rows[i].in_flight;
        params.infer = rows[i].infer;
        params.bucket = rows[i].infer ? NULL : "bytes:64K";
        if (weft_compile(&params, &plan) != WEFT_OK) {
            fail_msg("%s: %s", rows[i].name, weft_last_error());
        }
        shake(plan, registry, rows[i].name);
        weft_plan_release(plan);
    }
    weft_registry_destroy(registry);
}

static uint64_t cpu_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* The quickest of five proofs of a decoupled plan of so many layers, a bucket for each gradient. */
static uint64_t time_of_proof(const weft_registry_t *registry, uint32_t layers)
{
    const layers_shape_t shape = {.layers = layers, .width = 4, .tanhs = 5};
    weft_compile_params_t params = WEFT_COMPILE_PARAMS_INIT;
    char model[] = "/tmp/weft-test-verify-XXXXXX";
    uint64_t least = UINT64_MAX;
    weft_plan_t *plan;
    int fd = mkstemp(model);
    assert_true(fd >= 0);
    close(fd);
    wire_t file = onnx_layers(&shape);
    write_file(model, file.data, file.size);
    wire_free(&file);
    params.model_path = model;
    params.world_size = WORLD;
    params.batch = 2;
    params.decouple = 1;
    params.bucket = "none";
    params.registry = registry;
    weft_status_t status = weft_compile(&params, &plan);
    unlink(model);
    if (status != WEFT_OK) {
        fail_msg("%s", weft_last_error());
    }
    for (int i = 0; i < 5; i++) {
        wefti_plan_proof_t proof;
        uint64_t begin = cpu_ns();
        assert_int_equal(wefti_plan_prove(plan, registry, &proof), WEFT_OK);
        assert_int_equal(proof.buckets, 2 * layers);
        uint64_t took = cpu_ns() - begin;
        least = took < least ? took : least;
    }
    print_message("%u kernels, %u collectives: %.1f ms\n", plan->kernel_count,
                  plan->collective_count, (double)least * 1e-6);
    weft_plan_release(plan);
    return least;
}

/* Eight times the plan takes about eight times as long; squares would take 64 times. */
static void test_time_grows_with_the_plan(void **in)
{
    weft_registry_t *registry;
    (void)in;
    assert_int_equal(weft_registry_create(NULL, &registry), WEFT_OK);
    uint64_t small = time_of_proof(registry, 200), large = time_of_proof(registry, 1600);
    assert_true(large < 24 * small);
    weft_registry_destroy(registry);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_time_grows_with_the_plan),
        cmocka_unit_test(test_whatever_is_accepted_is_right),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
