/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/faults/matrix/elastic.h"

#include <stdio.h>
#include <string.h>

#include "tests/faults/matrix/events.h"

#define LOOK_OPS 16u /* operations between two looks at the target */
#define MAX_RANKS 16u

/* How work in a world ended. */
typedef enum outcome {
    OUTCOME_ERROR,
    OUTCOME_GROWN,
    OUTCOME_STOPPED,
} outcome_t;

static uint32_t read_target(const work_t *work)
{
    char path[4096];
    unsigned target = work->size;
    snprintf(path, sizeof path, "%s/target", work->folder);
    FILE *file = fopen(path, "r");
    if (file != NULL) {
        if (fscanf(file, "%u", &target) != 1) {
            target = work->size;
        }
        fclose(file);
    }
    return target;
}

/* Ranks agree on what rank 0 reads. */
static weft_status_t look(work_t *work, uint32_t *out_target)
{
    uint32_t all[MAX_RANKS], mine = work->rank == 0 ? read_target(work) : 0;
    weft_status_t status = weft_context_all_gather(work->context, &mine, sizeof mine, all);
    *out_target = all[0];
    return status;
}

static weft_status_t grow(work_t *work, uint32_t size, weft_context_t **out_next)
{
    weft_context_params_t params = WEFT_CONTEXT_PARAMS_INIT;
    char address[4096];
    uint32_t generation = weft_context_generation(work->context);
    snprintf(address, sizeof address, "%s.%u", work->address, generation);
    params.world_size = (int32_t)size;
    params.address = address;
    if (work->rank == 0) {
        event_report("grow", "%u\t%u\t%s", work->size, size, address);
    }
    return weft_context_grow(work->context, &params, out_next);
}

/* Works in a world until it ends; out_next: the larger one. */
static outcome_t live(work_t *work, weft_context_t **out_next)
{
    const char *name = "begin";
    uint32_t target = 0;
    uint64_t op = 1;
    int64_t beat_ns = 0;
    weft_status_t status = work_begin(work);
    while (status == WEFT_OK && work->wrong[0] == '\0') {
        if (++op % LOOK_OPS != 0) {
            status = work_run(work, op, &name);
            continue;
        }
        if (event_now_ns() - beat_ns > 200000000) {
            beat_ns = event_now_ns();
            event_report("beat", "%llu", (unsigned long long)op);
        }
        name = "look";
        status = look(work, &target);
        if (status == WEFT_OK && target == 0) {
            return OUTCOME_STOPPED;
        }
        if (status == WEFT_OK && target > work->size) {
            name = "grow";
            status = grow(work, target, out_next);
            if (status == WEFT_OK) {
                return OUTCOME_GROWN;
            }
        }
    }
    event_report("error", "%u\t%s\t%s\t%s", weft_context_generation(work->context), name,
                 weft_status_name(status), weft_last_error());
    return OUTCOME_ERROR;
}

static void enter(work_t *work, const work_t *base, weft_context_t *context)
{
    *work = *base;
    work->context = context;
    work->rank = weft_context_rank(context);
    work->size = weft_context_world_size(context);
    work->seed = base->seed + weft_context_generation(context);
    event_report("world", "%u\t%u\t%u\t%u\t%u", weft_context_generation(context), work->rank,
                 work->size, event_count_entries("/proc/self/fd"),
                 event_count_entries("/proc/self/task") - 2);
}

int elastic_run(work_t *base)
{
    static work_t work, former; /* the former world's objects, which may go late */
    weft_context_params_t params = WEFT_CONTEXT_PARAMS_INIT;
    weft_context_t *context = NULL, *next = NULL;
    outcome_t outcome;
    weft_status_t status = weft_context_create(&params, &context);
    if (status != WEFT_OK) {
        event_report("error", "0\tcontext_create\t%s\t%s", weft_status_name(status),
                     weft_last_error());
        return 0;
    }
    enter(&work, base, context);
    while ((outcome = live(&work, &next)) != OUTCOME_STOPPED) {
        work_end(&former, false);
        former = work;
        if (outcome == OUTCOME_ERROR && former.wrong[0] == '\0') {
            status = weft_context_shrink(former.context, &next);
        }
        if (former.wrong[0] != '\0' || status != WEFT_OK) {
            event_report(status == WEFT_OK ? "wrong" : "lost", "%s\t%s\t%s",
                         weft_status_name(status), weft_last_error(), former.wrong);
            work_end(&former, true);
            return 0;
        }
        /* Now, or when the next world has ended. */
        draw_t d = draw_begin(base->seed + former.rank, weft_context_generation(next));
        if (outcome == OUTCOME_GROWN ||
            draw(&d, 2) == 0) { /* the former, whole, is destroyed by all */
            work_end(&former, false);
            former = (work_t){0};
        }
        enter(&work, base, next);
    }
    work_end(&former, false);
    work_end(&work, false);
    event_report("ended", "0\t0\t1");
    return 0;
}
