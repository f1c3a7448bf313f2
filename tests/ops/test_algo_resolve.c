/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Schedules with sizes, run on numbers: ranks take their tasks in random turns over three runs, and
 * what they receive is compared with the operator's definition. The random order prints its seed.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <weft/status.h>

#include "ops/algo/lower.h"
#include "ops/algo/resolve.h"
#include "ops/algo/table.h"
#include "tests/support/support.h"

#define MAX_RANKS 9u
#define RUNS 3u

static uint64_t seed;

typedef struct rank_state {
    wefti_tasks_t tasks;
    uint64_t *buffer[WEFTI_BUFFER_COUNT][2]; /* both sets */
    uint64_t *recv;                          /* RECV, or where in SEND it lies */
    uint32_t run, at, waited;
    uint64_t phase;
    uint64_t sent[MAX_RANKS];
    uint32_t per_run[MAX_RANKS];
    bool done;
} rank_state_t;

typedef struct machine {
    weft_algo_params_t params;
    wefti_counts_t counts;
    wefti_schedule_t *schedules;
    rank_state_t ranks[MAX_RANKS];
} machine_t;

static uint64_t input(uint32_t run, uint32_t rank, uint64_t i)
{
    return (run * 131u + rank * 7u + 1u) * 1000003u + i * 17u;
}

/* Elements of block b, and where a rank's send buffer has those that go to block b. */
static uint64_t block_elems(const machine_t *m, uint32_t from, uint32_t to)
{
    switch (m->params.op) {
    case WEFT_COLLECTIVE_ALL_GATHER_V:
        return m->counts.counts[from];
    case WEFT_COLLECTIVE_REDUCE_SCATTER_V:
        return m->counts.counts[to];
    case WEFT_COLLECTIVE_ALL_TO_ALL_V:
        return m->counts.counts[from * m->params.group_size + to];
    default:
        return m->counts.elem_count;
    }
}

static uint64_t send_offset(const machine_t *m, uint32_t from, uint32_t to)
{
    uint64_t offset = 0;
    for (uint32_t i = 0; i < to; i++) {
        offset += block_elems(m, from, i);
    }
    return offset;
}

static uint64_t sum_of_inputs(const machine_t *m, uint32_t run, uint64_t i)
{
    uint64_t sum = 0;
    for (uint32_t rank = 0; rank < m->params.group_size; rank++) {
        sum += input(run, rank, i);
    }
    return sum;
}

static void expect_elem(const machine_t *m, uint32_t rank, uint64_t i, uint64_t wanted)
{
    uint64_t is = m->ranks[rank].recv[i];
    if (is != wanted) {
        fail_msg("%s over %u ranks, root %u%s, %llu elements: rank %u, run %u, element %llu is "
                 "%llu, not "
                 "%llu",
                 weft_collective_name(m->params.op), m->params.group_size, m->params.root,
                 m->params.in_place ? ", in place" : "", (unsigned long long)m->counts.elem_count,
                 rank, m->ranks[rank].run, (unsigned long long)i, (unsigned long long)is,
                 (unsigned long long)wanted);
    }
}

/* The definition of every operator, in one place. */
static void check_result(const machine_t *m, uint32_t rank)
{
    uint32_t n = m->params.group_size, run = m->ranks[rank].run, root = m->params.root;
    uint64_t count = m->counts.elem_count, at = 0;
    switch (m->params.op) {
    case WEFT_COLLECTIVE_REDUCE:
        if (rank != root) {
            return;
        } /* fallthrough */
    case WEFT_COLLECTIVE_ALL_REDUCE:
        for (uint64_t i = 0; i < count; i++) {
            expect_elem(m, rank, i, sum_of_inputs(m, run, i));
        }
        return;
    case WEFT_COLLECTIVE_SEND_RECV:
        if (rank != m->params.peer) {
            return;
        } /* fallthrough */
    case WEFT_COLLECTIVE_BROADCAST:
        for (uint64_t i = 0; i < count; i++) {
            expect_elem(m, rank, i, input(run, root, i));
        }
        return;
    case WEFT_COLLECTIVE_SCATTER:
        for (uint64_t i = 0; i < count; i++) {
            expect_elem(m, rank, i, input(run, root, rank * count + i));
        }
        return;
    case WEFT_COLLECTIVE_REDUCE_SCATTER:
    case WEFT_COLLECTIVE_REDUCE_SCATTER_V:
        for (uint64_t i = 0; i < block_elems(m, 0, rank); i++) {
            expect_elem(m, rank, i, sum_of_inputs(m, run, send_offset(m, 0, rank) + i));
        }
        return;
    case WEFT_COLLECTIVE_GATHER:
        if (rank != root) {
            return;
        } /* fallthrough */
    case WEFT_COLLECTIVE_ALL_GATHER:
    case WEFT_COLLECTIVE_ALL_GATHER_V:
        for (uint32_t from = 0; from < n; from++) {
            for (uint64_t i = 0; i < block_elems(m, from, 0); i++) {
                expect_elem(m, rank, at++, input(run, from, i));
            }
        }
        return;
    case WEFT_COLLECTIVE_ALL_TO_ALL:
    case WEFT_COLLECTIVE_ALL_TO_ALL_V:
        for (uint32_t from = 0; from < n; from++) {
            for (uint64_t i = 0; i < block_elems(m, from, rank); i++) {
                expect_elem(m, rank, at++, input(run, from, send_offset(m, from, rank) + i));
            }
        }
        return;
    default:
        return;
    }
}

static uint64_t *place(machine_t *m, uint32_t runner, const wefti_extent_t *range, uint32_t i)
{
    rank_state_t *state = &m->ranks[range->rank + i];
    const wefti_schedule_t *schedule = &m->schedules[0];
    uint32_t sets = range->buffer == WEFTI_SCRATCH  ? schedule->resources.scratch_sets
                    : range->buffer > WEFTI_SCRATCH ? schedule->stage_sets
                                                    : 1;
    uint64_t *base = range->buffer == WEFTI_RECV
                         ? state->recv
                         : state->buffer[range->buffer][m->ranks[runner].run % sets];
    return base + range->offset;
}

static void run_move(machine_t *m, uint32_t rank, const wefti_task_t *task)
{
    const wefti_extent_t *sources = m->ranks[rank].tasks.ranges + task->range;
    const wefti_extent_t *destinations = sources + task->source_count;
    uint64_t *sum = calloc(task->elem_count, sizeof *sum);
    assert_non_null(sum);
    for (uint32_t s = 0; s < task->source_count; s++) {
        for (uint32_t r = 0; r < sources[s].rank_count; r++) {
            const uint64_t *from = place(m, rank, &sources[s], r);
            for (uint64_t i = 0; i < task->elem_count; i++) {
                sum[i] += from[i];
            }
        }
    }
    for (uint32_t d = 0; d < task->destination_count; d++) {
        for (uint32_t r = 0; r < destinations[d].rank_count; r++) {
            memcpy(place(m, rank, &destinations[d], r), sum, task->elem_count * sizeof *sum);
        }
    }
    free(sum);
}

/* False when the task has to wait. */
static bool run_task(machine_t *m, uint32_t rank, const wefti_task_t *task)
{
    rank_state_t *state = &m->ranks[rank];
    uint64_t phases = m->schedules[rank].resources.phases;
    switch (task->op) {
    case WEFTI_DO_POST:
        state->phase = state->run * phases + task->phase;
        return true;
    case WEFTI_DO_SIGNAL:
        state->sent[task->signal.peer]++;
        return true;
    case WEFTI_DO_WAIT:
        for (uint32_t i = 0; state->run >= task->wait.back && i < task->wait.rank_count; i++) {
            uint32_t peer = task->wait.first_rank + i;
            uint64_t target = (state->run - task->wait.back) * phases + task->wait.phase;
            if (peer != rank && m->ranks[peer].phase < target) {
                return false;
            }
        }
        return true;
    case WEFTI_DO_AWAIT: {
        const rank_state_t *peer = &m->ranks[task->signal.peer];
        return state->run < task->signal.back ||
               peer->sent[rank] >=
                   (uint64_t)(state->run - task->signal.back) * peer->per_run[rank] +
                       task->signal.index;
    }
    default:
        run_move(m, rank, task);
        return true;
    }
}

static void fill(machine_t *m, uint32_t rank)
{
    rank_state_t *state = &m->ranks[rank];
    for (uint64_t i = 0; i < state->tasks.elems[WEFTI_RECV]; i++) {
        state->recv[i] = 0xdeadbeef;
    }
    for (uint64_t i = 0; i < state->tasks.elems[WEFTI_SEND]; i++) {
        state->buffer[WEFTI_SEND][0][i] = input(state->run, rank, i);
    }
}

static void run_machine(machine_t *m)
{
    uint32_t n = m->params.group_size, left = n, idle = 0;
    for (uint32_t rank = 0; rank < n; rank++) {
        fill(m, rank);
    }
    while (left > 0) {
        uint32_t rank = (uint32_t)test_next_random(&seed) % n;
        rank_state_t *state = &m->ranks[rank];
        assert_true(idle < 100000); /* stuck */
        idle++;
        if (state->done) {
            continue;
        }
        if (state->at < state->tasks.task_count) {
            if (run_task(m, rank, &state->tasks.tasks[state->at])) {
                state->at++;
                idle = 0;
            }
            continue;
        }
        check_result(m, rank);
        idle = 0;
        state->at = 0;
        state->done = ++state->run == RUNS;
        left -= state->done;
        if (!state->done) {
            fill(m, rank);
        }
    }
}

/* In place: one buffer, the smaller one inside the larger one as the operator's rule says. */
static void make_buffers(machine_t *m, uint32_t rank)
{
    rank_state_t *state = &m->ranks[rank];
    for (uint32_t b = 0; b < WEFTI_BUFFER_COUNT; b++) {
        for (uint32_t set = 0; set < 2; set++) {
            state->buffer[b][set] = calloc(state->tasks.elems[b] + 1, sizeof(uint64_t));
            assert_non_null(state->buffer[b][set]);
        }
    }
    state->recv = state->buffer[WEFTI_RECV][0];
    const weft_algo_resources_t plain = {0};
    uint32_t alias;
    if (!m->params.in_place || !wefti_in_place_alias(&m->params, &plain, rank, rank, &alias)) {
        return;
    }
    uint64_t own = m->counts.elem_count * rank;
    if (m->counts.counts != NULL) {
        own = 0;
        for (uint32_t i = 0; i < rank; i++) {
            own += m->counts.counts[i];
        }
    }
    switch (m->params.op) {
    case WEFT_COLLECTIVE_ALL_GATHER:
    case WEFT_COLLECTIVE_ALL_GATHER_V:
    case WEFT_COLLECTIVE_GATHER:
        free(state->buffer[WEFTI_SEND][0]);
        state->buffer[WEFTI_SEND][0] = state->recv + own;
        break;
    case WEFT_COLLECTIVE_REDUCE_SCATTER:
    case WEFT_COLLECTIVE_REDUCE_SCATTER_V:
    case WEFT_COLLECTIVE_SCATTER:
        state->recv = state->buffer[WEFTI_SEND][0] + own;
        break;
    default:
        state->recv = state->buffer[WEFTI_SEND][0];
        break;
    }
}

static void free_buffers(rank_state_t *state)
{
    const uint64_t *recv = state->buffer[WEFTI_RECV][0];
    const uint64_t *send = state->buffer[WEFTI_SEND][0];
    bool inside = send >= recv && send <= recv + state->tasks.elems[WEFTI_RECV];
    for (uint32_t b = 0; b < WEFTI_BUFFER_COUNT; b++) {
        for (uint32_t set = 0; set < 2; set++) {
            if (b != WEFTI_SEND || set != 0 || !inside) {
                free(state->buffer[b][set]);
            }
        }
    }
    wefti_tasks_deinit(&state->tasks);
}

static void run_case(const weft_algorithm_t *algorithm, const weft_algo_params_t *params,
                     const wefti_counts_t *counts, const wefti_links_t *links)
{
    machine_t m = {.params = *params, .counts = *counts};
    uint32_t n = params->group_size;
    if (wefti_schedules_build(algorithm, params, NULL, &m.schedules) < 0 ||
        wefti_schedules_lower(params, links, NULL, m.schedules) < 0) {
        fail_msg("%s", weft_last_error());
    }
    for (uint32_t rank = 0; rank < n; rank++) {
        rank_state_t *state = &m.ranks[rank];
        if (wefti_schedule_resolve(params, &m.schedules[rank], counts, NULL, &state->tasks) < 0) {
            fail_msg("%s", weft_last_error());
        }
        for (size_t i = 0; i < state->tasks.task_count; i++) {
            if (state->tasks.tasks[i].op == WEFTI_DO_SIGNAL) {
                state->per_run[state->tasks.tasks[i].signal.peer]++;
            }
        }
        make_buffers(&m, rank);
    }
    run_machine(&m);
    for (uint32_t rank = 0; rank < n; rank++) {
        free_buffers(&m.ranks[rank]);
    }
    wefti_schedules_free(NULL, m.schedules, n);
}

static void run_sizes(const weft_algorithm_t *algorithm, weft_algo_params_t *params)
{
    static const uint64_t sizes[] = {0, 1, 3, 8, 61, 200};
    uint64_t variable[MAX_RANKS * MAX_RANKS];
    uint32_t memory_of[MAX_RANKS];
    uint8_t hidden[MAX_RANKS];
    uint32_t n = params->group_size;
    bool uneven = params->op == WEFT_COLLECTIVE_ALL_GATHER_V ||
                  params->op == WEFT_COLLECTIVE_REDUCE_SCATTER_V ||
                  params->op == WEFT_COLLECTIVE_ALL_TO_ALL_V;
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        wefti_counts_t counts = {.elem_count = sizes[s], .elem_bytes = 8};
        for (uint32_t i = 0; i < n * n; i++) {
            variable[i] = (uint32_t)test_next_random(&seed) % (sizes[s] + 1);
        }
        for (uint32_t i = 0; i < n; i++) {
            memory_of[i] = s % 3 == 1 ? i : i / 2;
            hidden[i] = (uint32_t)test_next_random(&seed) % 2;
        }
        counts.counts = uneven ? variable : NULL;
        wefti_links_t links = {s % 3 > 0 ? memory_of : NULL, s % 2 == 1 ? hidden : NULL};
        run_case(algorithm, params, &counts, &links);
    }
}

static void test_every_algorithm_computes_on_numbers(void **state)
{
    (void)state;
    const weft_algorithm_t *algorithm;
    for (size_t i = 0; (algorithm = wefti_algorithm_at(i)) != NULL; i++) {
        for (uint32_t n = 1; n <= MAX_RANKS; n++) {
            for (uint32_t in_place = 0; in_place < 2; in_place++) {
                weft_algo_params_t params = {.op = algorithm->op,
                                             .group_size = n,
                                             .in_place = in_place,
                                             .root = (uint32_t)test_next_random(&seed) % n,
                                             .order = WEFT_ORDER_ANY};
                uint32_t hosts[3] = {1, n / 2, n - 1 - n / 2};
                params.peer = (params.root + 1) % n;
                params.host_sizes = hosts;
                params.host_count = n >= 4 ? 3 : 0;
                if ((params.op == WEFT_COLLECTIVE_SEND_RECV && (n == 1 || in_place)) ||
                    (params.op == WEFT_COLLECTIVE_ALL_TO_ALL_V && in_place) ||
                    algorithm->eligible(&params) != NULL) {
                    continue;
                }
                weft_algo_resources_t resources = {0};
                algorithm->resources(&params, &resources);
                params.pieces = resources.lanes > 1; /* ranks of this test have one lane */
                run_sizes(algorithm, &params);
            }
        }
    }
}

/* Counts above 2^31, and sizes that overflow. */
static void test_large_counts_resolve_or_are_refused(void **state)
{
    (void)state;
    const weft_algorithm_t *mesh = wefti_algorithm_find(WEFT_COLLECTIVE_ALL_REDUCE, "mesh");
    weft_algo_params_t params = {.op = WEFT_COLLECTIVE_ALL_REDUCE, .group_size = 4, .in_place = 1};
    wefti_schedule_t *schedules;
    wefti_tasks_t tasks;
    assert_int_equal(wefti_schedules_build(mesh, &params, NULL, &schedules), WEFT_OK);
    wefti_counts_t counts = {.elem_count = (1ull << 33) + 5, .elem_bytes = 4};
    assert_int_equal(wefti_schedule_resolve(&params, &schedules[3], &counts, NULL, &tasks),
                     WEFT_OK);
    assert_int_equal(tasks.task_count, 5);
    assert_int_equal(tasks.tasks[2].elem_count, counts.elem_count - 3 * ((1ull << 31) + 16));
    assert_int_equal(tasks.ranges[tasks.tasks[2].range].offset, 3 * ((1ull << 31) + 16));
    assert_int_equal(tasks.elems[WEFTI_RECV], counts.elem_count);
    wefti_tasks_deinit(&tasks);
    counts.elem_count = UINT64_MAX - 7;
    assert_int_equal(wefti_schedule_resolve(&params, &schedules[3], &counts, NULL, &tasks),
                     WEFT_ERR_INVALID_ARGUMENT);
    assert_non_null(strstr(weft_last_error(), "overflow"));
    wefti_schedules_free(NULL, schedules, 4);
}

/* An algorithm of somebody else that nobody verified. */
static void test_blocks_outside_are_refused(void **state)
{
    (void)state;
    const uint64_t even[] = {4, 4, 4, 4};
    static const weft_collective_t ops[] = {WEFT_COLLECTIVE_ALL_GATHER,
                                            WEFT_COLLECTIVE_ALL_GATHER_V};
    for (size_t i = 0; i < 2; i++) {
        const weft_algorithm_t *mesh = wefti_algorithm_find(ops[i], "mesh");
        weft_algo_params_t params = {.op = ops[i], .group_size = 4};
        wefti_counts_t counts = {.elem_count = 4, .elem_bytes = 4, .counts = even};
        for (uint32_t what = 0; what < 4; what++) {
            wefti_schedule_t *schedules;
            wefti_tasks_t tasks;
            assert_int_equal(wefti_schedules_build(mesh, &params, NULL, &schedules), WEFT_OK);
            wefti_step_t *step = schedules[1].steps;
            while (step->op != WEFTI_DO_COPY) {
                step++;
            }
            step->move.first = what == 0 ? 4 : step->move.first;
            step->move.count = what == 1 ? UINT32_MAX : step->move.count;
            schedules[1].operands[step->move.operand].block += what == 2 ? UINT32_MAX / 2 : 0;
            schedules[1].operands[step->move.operand + 1].block += what == 3 ? 3 : 0;
            assert_int_equal(wefti_schedule_resolve(&params, &schedules[1], &counts, NULL, &tasks),
                             WEFT_ERR_INVALID_ARGUMENT);
            assert_non_null(strstr(weft_last_error(), "rank 1, step 1: block out of range"));
            wefti_schedules_free(NULL, schedules, 4);
        }
    }
}

/* Elements that tasks write into users' buffers, each destination counted. */
static uint64_t moved_elems(const wefti_tasks_t *tasks)
{
    uint64_t moved = 0;
    for (size_t i = 0; i < tasks->task_count; i++) {
        const wefti_task_t *task = &tasks->tasks[i];
        if (task->op != WEFTI_DO_COPY && task->op != WEFTI_DO_REDUCE) {
            continue;
        }
        const wefti_extent_t *to = tasks->ranges + task->range + task->source_count;
        for (uint32_t d = 0; d < task->destination_count; d++) {
            moved += to[d].buffer == WEFTI_RECV ? task->elem_count * to[d].rank_count : 0;
        }
    }
    return moved;
}

/* Slices of a call touch what the call touches, no more and no less, and slots suffice. */
static void check_slices(const weft_algo_params_t *params, const wefti_schedule_t *schedule,
                         const wefti_counts_t *counts, uint64_t chunk, wefti_tasks_t *tasks)
{
    wefti_slice_t slice;
    uint64_t moved = 0, reach[2 * MAX_RANKS] = {0}, whole_reach[2 * MAX_RANKS];
    assert_int_equal(wefti_slice_init(params, schedule, counts, &slice), WEFT_OK);
    assert_int_equal(wefti_tasks_resolve(tasks, params, schedule, counts, NULL, &slice), WEFT_OK);
    uint64_t total = slice.elem_count, whole = moved_elems(tasks);
    memcpy(whole_reach, tasks->reach, 2 * params->group_size * sizeof *whole_reach);
    slice.slot_elems = wefti_slice_slot_elems(params, schedule, counts, chunk);
    for (slice.at = 0; slice.at < total; slice.at += chunk) {
        slice.elem_count = total - slice.at < chunk ? total - slice.at : chunk;
        assert_int_equal(wefti_tasks_resolve(tasks, params, schedule, counts, NULL, &slice),
                         WEFT_OK);
        moved += moved_elems(tasks);
        for (uint32_t i = 0; i < 2 * params->group_size; i++) {
            uint64_t end = tasks->reach[i] > 0 ? slice.at + tasks->reach[i] : 0;
            reach[i] = end > reach[i] ? end : reach[i];
            assert_true(end <= whole_reach[i] || counts->counts == NULL);
        }
        for (size_t i = 0; i < tasks->task_count; i++) {
            const wefti_task_t *task = &tasks->tasks[i];
            const wefti_extent_t *ranges = tasks->ranges + task->range;
            for (uint32_t o = 0; o < task->source_count + (uint32_t)task->destination_count; o++) {
                assert_true(ranges[o].buffer < WEFTI_SCRATCH ||
                            ranges[o].offset + task->elem_count <= tasks->elems[ranges[o].buffer]);
            }
        }
    }
    if (!wefti_collective_is_vector(params->op)) { /* of these each slice has shards of its own */
        assert_int_equal(moved, whole);
    }
    for (uint32_t i = 0; i < 2 * params->group_size && !wefti_collective_is_vector(params->op);
         i++) {
        assert_int_equal(reach[i], whole_reach[i]);
    }
}

static void test_slices_touch_what_the_call_touches(void **state)
{
    (void)state;
    test_memory_t memory;
    const weft_algorithm_t *algorithm;
    uint64_t lengths[MAX_RANKS * MAX_RANKS];
    test_memory_init(&memory);
    for (size_t i = 0; (algorithm = wefti_algorithm_at(i)) != NULL; i++) {
        for (uint32_t n = 2; n <= MAX_RANKS; n++) {
            weft_algo_params_t params = {.op = algorithm->op,
                                         .group_size = n,
                                         .rank = (uint32_t)test_next_random(&seed) % n,
                                         .root = (uint32_t)test_next_random(&seed) % n,
                                         .order = WEFT_ORDER_ANY};
            params.peer = (params.root + 1) % n;
            wefti_schedule_t schedule;
            wefti_tasks_t tasks = {.allocator = &memory.allocator};
            if (algorithm->eligible(&params) != NULL) {
                continue;
            }
            assert_int_equal(wefti_schedule_build(algorithm, &params, NULL, &schedule), WEFT_OK);
            assert_int_equal(wefti_schedule_check(&params, &schedule), WEFT_OK);
            assert_int_equal(wefti_tasks_reserve(&tasks, &params, &schedule), WEFT_OK);
            bool uneven = params.op == WEFT_COLLECTIVE_ALL_GATHER_V ||
                          params.op == WEFT_COLLECTIVE_REDUCE_SCATTER_V ||
                          params.op == WEFT_COLLECTIVE_ALL_TO_ALL_V;
            uint64_t before = memory.requests;
            for (uint32_t size = 1; size < 400; size = size * 3 + 1) {
                for (uint32_t j = 0; j < n * n; j++) {
                    lengths[j] = (uint32_t)test_next_random(&seed) % (size + 1);
                }
                wefti_counts_t counts = {size, 8, uneven ? lengths : NULL};
                check_slices(&params, &schedule, &counts,
                             1 + (uint32_t)test_next_random(&seed) % size, &tasks);
            }
            assert_int_equal(memory.requests, before); /* what was reserved was enough */
            wefti_tasks_deinit(&tasks);
            wefti_schedule_deinit(&schedule);
        }
    }
}

/* Blocks of V forms lie where displacements say, on each rank elsewhere if they say so. */
static void test_displaced_blocks_are_where_they_are(void **state)
{
    (void)state;
    const uint64_t lengths[] = {3, 0, 5, 2};
    uint64_t recv[16];
    for (uint32_t i = 0; i < 16; i++) {
        recv[i] = 100 * (i / 4) + 10 * (i % 4);
    }
    weft_algo_params_t params = {.op = WEFT_COLLECTIVE_ALL_GATHER_V, .group_size = 4, .rank = 2};
    const weft_algorithm_t *mesh = wefti_algorithm_find(params.op, "mesh");
    wefti_schedule_t schedule;
    assert_int_equal(wefti_schedule_build(mesh, &params, NULL, &schedule), WEFT_OK);
    for (uint32_t stride = 0; stride <= 4; stride += 4) {
        wefti_counts_t counts = {0, 4, lengths};
        wefti_displacements_t displacements = {NULL, recv, stride};
        wefti_tasks_t tasks = {0};
        wefti_slice_t slice;
        uint32_t seen = 0;
        assert_int_equal(wefti_slice_init(&params, &schedule, &counts, &slice), WEFT_OK);
        assert_int_equal(slice.elem_count, 5);
        assert_int_equal(
            wefti_tasks_resolve(&tasks, &params, &schedule, &counts, &displacements, &slice),
            WEFT_OK);
        for (size_t i = 0; i < tasks.task_count; i++) {
            const wefti_extent_t *ranges = tasks.ranges + tasks.tasks[i].range;
            for (uint32_t o = 0;
                 o < tasks.tasks[i].source_count + (uint32_t)tasks.tasks[i].destination_count;
                 o++) {
                if (ranges[o].buffer == WEFTI_SEND) {
                    assert_int_equal(ranges[o].offset, 0);
                    continue;
                }
                uint64_t block = ranges[o].offset - stride / 4 * 100 * ranges[o].rank;
                assert_int_equal(block % 10, 0);
                assert_int_equal(tasks.tasks[i].elem_count, lengths[block / 10]);
                seen |= 1u << block / 10;
            }
        }
        assert_int_equal(seen, 13); /* the empty block is left out */
        wefti_tasks_deinit(&tasks);
        recv[3] = UINT64_MAX - 1;
        recv[2 * 4 + 3] = UINT64_MAX - 1;
        tasks = (wefti_tasks_t){0};
        assert_int_equal(
            wefti_tasks_resolve(&tasks, &params, &schedule, &counts, &displacements, &slice),
            WEFT_ERR_INVALID_ARGUMENT);
        assert_non_null(strstr(weft_last_error(), "overflow"));
        wefti_tasks_deinit(&tasks);
        recv[3] = 30;
        recv[2 * 4 + 3] = 230;
    }
    wefti_schedule_deinit(&schedule);
}

int main(void)
{
    const char *given = getenv("WEFT_TEST_SEED");
    seed = given != NULL ? strtoull(given, NULL, 10) : (uint64_t)time(NULL);
    print_message("seed %llu\n", (unsigned long long)seed);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_algorithm_computes_on_numbers),
        cmocka_unit_test(test_large_counts_resolve_or_are_refused),
        cmocka_unit_test(test_blocks_outside_are_refused),
        cmocka_unit_test(test_slices_touch_what_the_call_touches),
        cmocka_unit_test(test_displaced_blocks_are_where_they_are),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
