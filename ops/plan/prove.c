/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What `weft verify PLAN` proves of a whole plan, with numbers: all that wefti_plan_verify does,
 * and that the streams of all ranks reach their ends when collectives are meetings.
 *
 * A step that may go stays able to go, whatever else goes first: records and arrivals are never
 * taken back. So all orders end in the same place, those of threads and those of a thread that
 * takes streams in turns, and one of them decides for all.
 */
#include "ops/plan/prove.h"

#include <string.h>

#include "ops/plan/plan_internal.h"
#include "runtime/base/error.h"

#define MEETING_LIMIT ((uint64_t)1 << 24) /* steps of all ranks that are simulated */

typedef struct meeting {
    uint32_t collective, arrived;
} meeting_t;

/* One program on all ranks. */
typedef struct ranks {
    const weft_plan_t *plan;
    const wefti_plan_program_t *program;
    uint32_t count;
    uint32_t *at;        /* by rank and stream */
    uint8_t *recorded;   /* by rank and event */
    uint32_t *met;       /* by group and rank: meetings begun */
    size_t most;         /* meetings of one group in a program */
    meeting_t *meetings; /* by group, first rank of it, and number */
    uint64_t *waiting;   /* by rank: 1 + the meeting that it has arrived at and not left */
} ranks_t;

/* The meetings of all ranks, then those of the groups of each axis. */
static size_t row_of(const ranks_t *ranks, uint32_t group, uint32_t first)
{
    return group == 0 ? 0 : 1 + (size_t)(group - 1) * ranks->count + first;
}

/* Ranks of the group that are simulated. */
static uint32_t present(const ranks_t *ranks, const wefti_axis_t *axis, uint32_t first)
{
    uint32_t fit = (ranks->count - first + axis->stride - 1) / axis->stride;
    return fit < axis->size ? fit : axis->size;
}

/* Takes a collective's step as far as it goes: 1 done, 0 others are missing, -1 another collective
 * is met. */
static int meet(ranks_t *ranks, uint32_t rank, uint32_t collective)
{
    uint64_t *waiting = &ranks->waiting[rank];
    uint32_t group = ranks->plan->collectives[collective].group;
    wefti_axis_t axis = wefti_plan_axis(ranks->plan, &ranks->plan->collectives[collective]);
    uint32_t first = wefti_axis_rank(&axis, rank, 0);
    if (*waiting == 0) {
        uint32_t *met = &ranks->met[(size_t)group * ranks->count + rank];
        size_t index = row_of(ranks, group, first) * ranks->most + *met;
        meeting_t *meeting = &ranks->meetings[index];
        if (meeting->arrived > 0 && meeting->collective != collective) {
            return -1;
        }
        meeting->collective = collective;
        meeting->arrived++;
        ++*met;
        *waiting = 1 + index;
    }
    if (ranks->meetings[*waiting - 1].arrived < present(ranks, &axis, first)) {
        return 0;
    }
    *waiting = 0;
    return 1;
}

/* 1 moved, 0 blocked, -1 wrong. */
static int advance(ranks_t *ranks, uint32_t rank, uint32_t stream, wefti_plan_proof_t *proof)
{
    const wefti_plan_stream_program_t *steps = &ranks->program->streams[stream];
    uint32_t *at = &ranks->at[(size_t)rank * ranks->plan->stream_count + stream];
    uint8_t *recorded = &ranks->recorded[(size_t)rank * ranks->plan->event_count];
    int moved = 0;
    for (; *at < steps->step_count; ++*at, moved = 1) {
        const wefti_plan_step_t *step = &steps->steps[*at];
        if (step->kind == WEFTI_STEP_WAIT && !recorded[step->index]) {
            break;
        }
        if (step->kind == WEFTI_STEP_RECORD) {
            recorded[step->index] = 1;
        }
        if (step->kind == WEFTI_STEP_COLLECTIVE &&
            wefti_plan_runs(ranks->plan, ranks->plan->collectives[step->index].place, rank)) {
            int met = meet(ranks, rank, step->index);
            if (met <= 0) {
                return met < 0 ? -1 : moved;
            }
            proof->meetings += rank == 0;
        }
    }
    return moved;
}

static weft_status_t blocked(const ranks_t *ranks, const char *what)
{
    for (uint32_t rank = 0; rank < ranks->count; rank++) {
        for (uint32_t s = 0; s < ranks->plan->stream_count; s++) {
            uint32_t at = ranks->at[(size_t)rank * ranks->plan->stream_count + s];
            if (at < ranks->program->streams[s].step_count) {
                return wefti_error(WEFT_ERR_FORMAT,
                                   "program %.100s: %s: rank %u, stream %.100s, at step %u of %u",
                                   ranks->program->name, what, rank, ranks->plan->streams[s].name,
                                   at, ranks->program->streams[s].step_count);
            }
        }
    }
    return WEFT_OK;
}

static weft_status_t run_ranks(ranks_t *ranks, wefti_plan_proof_t *proof)
{
    uint32_t streams = ranks->plan->stream_count;
    int moved = 1;
    memset(ranks->at, 0, (size_t)ranks->count * streams * sizeof *ranks->at);
    memset(ranks->recorded, 0, (size_t)ranks->count * ranks->plan->event_count);
    memset(ranks->met, 0,
           (ranks->plan->mesh.axis_count + (size_t)1) * ranks->count * sizeof *ranks->met);
    memset(ranks->waiting, 0, ranks->count * sizeof *ranks->waiting);
    while (moved) {
        moved = 0;
        for (uint32_t rank = 0; rank < ranks->count; rank++) {
            for (uint32_t s = 0; s < streams; s++) {
                int found = advance(ranks, rank, s, proof);
                if (found < 0) {
                    return blocked(ranks, "ranks meet in different collectives");
                }
                moved |= found;
            }
        }
    }
    return blocked(ranks, "a deadlock");
}

static uint64_t steps_of(const weft_plan_t *plan, const wefti_plan_program_t *program)
{
    uint64_t steps = 0;
    for (uint32_t s = 0; s < plan->stream_count; s++) {
        steps += program->streams[s].step_count;
    }
    return steps;
}

/* All ranks, or as many as fit: they run the same programs. */
static weft_status_t simulate_ranks(const weft_plan_t *plan, wefti_plan_proof_t *proof)
{
    weft_status_t status = WEFT_ERR_NO_MEMORY;
    wefti_arena_t arena;
    uint64_t most = 0; /* steps of one program */
    for (uint32_t p = 0; p < plan->program_count; p++) {
        uint64_t steps = steps_of(plan, &plan->programs[p]);
        most = steps > most ? steps : most;
    }
    uint64_t fit = MEETING_LIMIT / (most + plan->event_count + plan->stream_count + 1);
    fit = fit / (plan->mesh.axis_count + 1);
    fit = fit < 2 ? 2 : fit;
    proof->simulated_ranks = fit < plan->world_size ? (uint32_t)fit : plan->world_size;
    size_t count = proof->simulated_ranks;
    ranks_t ranks = {.plan = plan, .count = proof->simulated_ranks, .most = most + 1};
    size_t groups = plan->mesh.axis_count + (size_t)1;
    size_t rows = row_of(&ranks, plan->mesh.axis_count + 1, 0);
    wefti_arena_init(&arena, plan->arena.allocator, 0);
    ranks.at = wefti_arena_array(&arena, count * plan->stream_count, sizeof *ranks.at);
    ranks.recorded = wefti_arena_array(&arena, count * plan->event_count, 1);
    ranks.met = wefti_arena_array(&arena, groups * count, sizeof *ranks.met);
    ranks.waiting = wefti_arena_array(&arena, count, sizeof *ranks.waiting);
    ranks.meetings = wefti_arena_array(&arena, rows * ranks.most, sizeof *ranks.meetings);
    if (ranks.at && ranks.recorded && ranks.met && ranks.waiting && ranks.meetings) {
        status = WEFT_OK;
    }
    for (uint32_t p = 0; p < plan->program_count && status == WEFT_OK; p++) {
        ranks.program = &plan->programs[p];
        memset(ranks.meetings, 0, rows * ranks.most * sizeof *ranks.meetings);
        status = run_ranks(&ranks, proof);
    }
    wefti_arena_deinit(&arena);
    return status;
}

static void count_steps(const weft_plan_t *plan, wefti_plan_proof_t *proof)
{
    for (uint32_t p = 0; p < plan->program_count; p++) {
        proof->steps += steps_of(plan, &plan->programs[p]);
        for (uint32_t s = 0; s < plan->stream_count; s++) {
            const wefti_plan_stream_program_t *stream = &plan->programs[p].streams[s];
            for (uint32_t i = 0; i < stream->step_count; i++) {
                proof->waits += stream->steps[i].kind == WEFTI_STEP_WAIT;
            }
        }
    }
}

/* Gradients that are reduced; partial sums and what is cast for the wire are none of them. */
static weft_status_t count_gradients(const weft_plan_t *plan, wefti_plan_proof_t *proof)
{
    wefti_plan_summary_t summary;
    const wefti_plan_collective_t *bucket;
    uint64_t position = 0;
    uint32_t stream;
    uint8_t *seen = wefti_alloc(plan->arena.allocator, (size_t)plan->buffer_count + 1);
    if (!seen) {
        return WEFT_ERR_NO_MEMORY;
    }
    memset(seen, 0, plan->buffer_count);
    wefti_plan_summarise(plan, &summary);
    proof->buckets = summary.bucket_count;
    proof->bucket_bytes = summary.bucket_bytes;
    while ((bucket = wefti_plan_next_bucket(plan, &position, &stream)) != NULL) {
        for (uint32_t i = 0; i < bucket->member_count; i++) {
            proof->gradients += !seen[bucket->members[i]];
            seen[bucket->members[i]] = 1;
        }
    }
    wefti_free(plan->arena.allocator, seen);
    return WEFT_OK;
}

/* Bytes that temporaries and outputs have in common with others. */
static weft_status_t count_shared(const weft_plan_t *plan, wefti_plan_proof_t *proof)
{
    wefti_plan_layout_t layout;
    weft_status_t status = wefti_plan_verify_buffers(plan, &layout);
    uint64_t reach = 0;
    for (size_t i = 0; status == WEFT_OK && i < layout.passing_count; i++) {
        const wefti_plan_extent_t *extent = &layout.passing[i];
        uint64_t until = reach < extent->end ? reach : extent->end;
        proof->shared_bytes += until > extent->begin ? until - extent->begin : 0;
        reach = extent->reach;
    }
    wefti_plan_layout_deinit(plan, &layout);
    return status;
}

weft_status_t wefti_plan_prove(const weft_plan_t *plan, const weft_registry_t *registry,
                               wefti_plan_proof_t *out_proof)
{
    *out_proof = (wefti_plan_proof_t){0};
    WEFT_RETURN_IF_ERROR(wefti_plan_verify(plan, registry));
    WEFT_RETURN_IF_ERROR(
        wefti_plan_run_races(plan, registry, &out_proof->accesses, &out_proof->pieces));
    WEFT_RETURN_IF_ERROR(simulate_ranks(plan, out_proof));
    WEFT_RETURN_IF_ERROR(count_shared(plan, out_proof));
    WEFT_RETURN_IF_ERROR(count_gradients(plan, out_proof));
    count_steps(plan, out_proof);
    return WEFT_OK;
}
