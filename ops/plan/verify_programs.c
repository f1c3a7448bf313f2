/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Programs: those that the plan's kind needs and no others; every step exists, an event is recorded
 * at most once per run, and simulating the streams reaches the end of all of them. Collectives of a
 * program lie on one stream, so that all ranks have them in one order; which program may have which
 * is checked, too.
 */
#include "ops/plan/plan_internal.h"

#include <stdio.h>
#include <string.h>

#include "runtime/base/error.h"

static weft_status_t bad_program(const wefti_plan_program_t *program, const char *what)
{
    return wefti_error(WEFT_ERR_FORMAT, "program %.100s: %s", program->name, what);
}

static const char *check_step(const weft_plan_t *plan, const wefti_plan_step_t *step)
{
    uint32_t count;
    switch (step->kind) {
    case WEFTI_STEP_KERNEL:
        count = plan->kernel_count;
        break;
    case WEFTI_STEP_COLLECTIVE:
        count = plan->collective_count;
        break;
    case WEFTI_STEP_RECORD:
    case WEFTI_STEP_WAIT:
        count = plan->event_count;
        break;
    default:
        return "a step has an unknown kind";
    }
    return step->index < count ? NULL : "a step names what does not exist";
}

/* recorded_by[event]: the stream + 1. */
static const char *check_steps(const weft_plan_t *plan, const wefti_plan_program_t *program,
                               uint8_t *recorded_by)
{
    uint32_t collective_stream = WEFTI_PLAN_NONE;
    memset(recorded_by, 0, plan->event_count);
    for (uint32_t s = 0; s < plan->stream_count; s++) {
        for (uint32_t i = 0; i < program->streams[s].step_count; i++) {
            const wefti_plan_step_t *step = &program->streams[s].steps[i];
            const char *what = check_step(plan, step);
            if (what) {
                return what;
            }
            if (step->kind == WEFTI_STEP_RECORD && recorded_by[step->index]) {
                return "an event is recorded twice";
            }
            if (step->kind == WEFTI_STEP_RECORD) {
                recorded_by[step->index] = (uint8_t)(s + 1);
            }
            if (step->kind == WEFTI_STEP_COLLECTIVE && collective_stream != WEFTI_PLAN_NONE &&
                collective_stream != s) {
                return "collectives lie on several streams";
            }
            if (step->kind == WEFTI_STEP_COLLECTIVE) {
                collective_stream = s;
            }
        }
    }
    return NULL;
}

/* Runs every stream as far as it goes, again and again, until nothing moves. done[event] is set by
 * records. */
static const char *simulate(const weft_plan_t *plan, const wefti_plan_program_t *program,
                            const uint8_t *recorded_by, uint8_t *done)
{
    uint32_t at[WEFTI_PLAN_MAX_STREAMS] = {0};
    int moved = 1, finished = 0;
    memset(done, 0, plan->event_count);
    while (moved && !finished) {
        moved = 0;
        finished = 1;
        for (uint32_t s = 0; s < plan->stream_count; s++) {
            const wefti_plan_stream_program_t *stream = &program->streams[s];
            for (; at[s] < stream->step_count; at[s]++, moved = 1) {
                const wefti_plan_step_t *step = &stream->steps[at[s]];
                if (step->kind == WEFTI_STEP_WAIT && recorded_by[step->index] == s + 1) {
                    return "a stream waits for an event of its own";
                }
                if (step->kind == WEFTI_STEP_WAIT && !done[step->index]) {
                    break;
                }
                if (step->kind == WEFTI_STEP_RECORD) {
                    done[step->index] = 1;
                }
            }
            finished &= at[s] == stream->step_count;
        }
    }
    return finished ? NULL : "a wait is never satisfied";
}

/* May the program run this collective? NULL, or why not. */
static const char *check_collective(const weft_plan_t *plan, const wefti_plan_program_t *program,
                                    const wefti_plan_collective_t *collective)
{
    if (strcmp(program->name, "eval") == 0) {
        int gathers = collective->op == WEFT_COLLECTIVE_ALL_GATHER &&
                      plan->buffers[collective->buffer].range != 0;
        int together = (plan->flags & WEFTI_PLAN_RANK_DATA) != 0 &&
                       !wefti_plan_reduces_gradients(plan, collective);
        return gathers || together ? NULL : "it communicates";
    }
    if (strcmp(program->name, "flush") == 0) {
        return collective->op == WEFT_COLLECTIVE_ALL_GATHER &&
                       plan->buffers[collective->members[0]].kind == WEFTI_BUFFER_PARAM
                   ? NULL
                   : "it does more than gather weights";
    }
    if (strcmp(program->name, "step") != 0 &&
        (wefti_plan_reduces_gradients(plan, collective) || collective->update != WEFTI_PLAN_NONE)) {
        return "gradients are reduced by program step only";
    }
    return NULL;
}

static const char *check_collectives(const weft_plan_t *plan, const wefti_plan_program_t *program)
{
    for (uint32_t s = 0; s < plan->stream_count; s++) {
        for (uint32_t i = 0; i < program->streams[s].step_count; i++) {
            const wefti_plan_step_t *step = &program->streams[s].steps[i];
            const char *what =
                step->kind == WEFTI_STEP_COLLECTIVE
                    ? check_collective(plan, program, &plan->collectives[step->index])
                    : NULL;
            if (what) {
                return what;
            }
        }
    }
    return NULL;
}

const wefti_plan_program_t *wefti_plan_micro_step(const weft_plan_t *plan, uint32_t folds)
{
    char name[32] = "micro_step";
    if (folds > 0) {
        snprintf(name, sizeof name, "micro_step.%u", folds);
    }
    return wefti_plan_program(plan, name);
}

/* How many of the micro-steps' programs a step runs: micro-batch i folds as many sums as i + 1 has
 * trailing zeros, and the last one is of program step. */
static uint32_t micro_programs(const weft_plan_t *plan)
{
    uint32_t count = 0;
    while (count < 31 && (1u << count) < plan->accumulate) {
        count++;
    }
    return count;
}

static weft_status_t missing(const char *name)
{
    return wefti_error(WEFT_ERR_FORMAT, "missing program '%s'", name);
}

/* The programs that such a plan needs, each once, and no others. */
static weft_status_t check_names(const weft_plan_t *plan)
{
    int trains = plan->kind == WEFT_PLAN_KIND_TRAINING;
    uint32_t wanted = 0, micro = trains ? micro_programs(plan) : 0;
    int common = trains && !(plan->flags & WEFTI_PLAN_RANK_DATA); /* weights of rank 0 */
    const char *needed[] = {"step", common ? "init" : NULL,
                            plan->flags & WEFTI_PLAN_DECOUPLED ? "flush" : NULL};
    for (size_t i = 0; i < sizeof needed / sizeof needed[0]; i++) {
        if (needed[i] && !wefti_plan_program(plan, needed[i])) {
            return missing(needed[i]);
        }
        wanted += needed[i] != NULL;
    }
    for (uint32_t folds = 0; folds < micro; folds++) {
        if (!wefti_plan_micro_step(plan, folds)) {
            return wefti_error(WEFT_ERR_FORMAT, "missing micro_step program for %u folds", folds);
        }
        wanted++;
    }
    for (uint32_t i = 0; i < plan->program_count; i++) {
        if (wefti_plan_program(plan, plan->programs[i].name) != &plan->programs[i]) {
            return bad_program(&plan->programs[i], "is there twice");
        }
    }
    /* Where the forward pass communicates, nobody can evaluate alone. */
    wanted += wefti_plan_program(plan, trains ? "eval" : "init") != NULL;
    return wanted == plan->program_count
               ? WEFT_OK
               : wefti_error(WEFT_ERR_FORMAT,
                             "unexpected programs: %u programs, a plan of this kind has %u",
                             plan->program_count, wanted);
}

weft_status_t wefti_plan_verify_programs(const weft_plan_t *plan)
{
    weft_status_t status = check_names(plan);
    /* Every event is recorded somewhere, so a file cannot make us allocate more than it is long. */
    uint64_t steps = 0;
    uint8_t *scratch;
    if (status != WEFT_OK) {
        return status;
    }
    for (uint32_t p = 0; p < plan->program_count; p++) {
        for (uint32_t s = 0; s < plan->stream_count; s++) {
            steps += plan->programs[p].streams[s].step_count;
        }
    }
    if (plan->event_count > steps) {
        return wefti_error(WEFT_ERR_FORMAT, "too many events: %u events in %llu steps",
                           plan->event_count, (unsigned long long)steps);
    }
    scratch = wefti_alloc(plan->arena.allocator, 2 * (size_t)plan->event_count);
    if (!scratch) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t p = 0; p < plan->program_count && status == WEFT_OK; p++) {
        const wefti_plan_program_t *program = &plan->programs[p];
        const char *what = check_steps(plan, program, scratch);
        if (!what) {
            what = simulate(plan, program, scratch, scratch + plan->event_count);
        }
        if (!what) {
            what = check_collectives(plan, program);
        }
        status = what ? bad_program(program, what) : WEFT_OK;
    }
    wefti_free(plan->arena.allocator, scratch);
    return status;
}
