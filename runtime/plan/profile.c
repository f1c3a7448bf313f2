/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measured times of a plan's kernels and collectives, as JSON that a compile can use: medians over
 * the steps that the timeline still knows, averaged over the ranks.
 */
#include "runtime/plan/session.h"

#include "runtime/base/check.h"
#include "runtime/base/error.h"
#include "runtime/base/file.h"
#include "runtime/base/json.h"

#include <stdlib.h>
#include <string.h>

#define FORMAT 1
/* Of kernels: WEFTI_PHASE_COMM of the IR. Forward and backward come before. */
#define PHASE_COMM 2u

/* What the timeline says of one kernel or collective. */
typedef struct sample {
    const char *name; /* the plan's own string, so equal pointers are equal names */
    uint64_t ns;
} sample_t;

static int by_name_and_time(const void *a, const void *b)
{
    const sample_t *x = a, *y = b;
    if (x->name != y->name) {
        return (uintptr_t)x->name < (uintptr_t)y->name ? -1 : 1;
    }
    return (x->ns > y->ns) - (x->ns < y->ns);
}

/* All kernels and collectives of program step that are still in the histories, sorted. */
static weft_status_t collect(const weft_session_t *session, wefti_arena_t *arena,
                             sample_t **out_samples, size_t *out_count)
{
    size_t count = 0, room = 0;
    for (uint32_t s = 0; s < session->plan->stream_count; s++) {
        room += session->cursors[s].history.capacity;
    }
    sample_t *samples = wefti_arena_array(arena, room, sizeof *samples);
    WEFT_RETURN_IF_NO_MEMORY(samples);
    for (uint32_t s = 0; s < session->plan->stream_count; s++) {
        const wefti_history_t *history = &session->cursors[s].history;
        for (uint64_t i = wefti_history_oldest(history); i < history->count; i++) {
            const wefti_history_entry_t *entry = wefti_history_at(history, i);
            if (entry->kind == WEFTI_HISTORY_KERNEL || entry->kind == WEFTI_HISTORY_COLLECTIVE) {
                samples[count++] = (sample_t){entry->name, entry->end_ns - entry->start_ns};
            }
        }
    }
    qsort(samples, count, sizeof *samples, by_name_and_time);
    *out_samples = samples;
    *out_count = count;
    return WEFT_OK;
}

/* Median of what name took; 0 when it is not there. */
static uint64_t median_of(const sample_t *samples, size_t count, const char *name)
{
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if ((uintptr_t)samples[middle].name < (uintptr_t)name) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    size_t end = low;
    while (end < count && samples[end].name == name) {
        end++;
    }
    return end > low ? samples[low + (end - low) / 2].ns : 0;
}

/* This rank's medians: kernels, collectives, the step; of one that has several micro-batches the
 * last of them, the others are about what their kernels take. */
static weft_status_t measure(const weft_session_t *session, wefti_arena_t *arena, const char *path,
                             uint64_t *out_ns)
{
    const weft_plan_t *plan = session->plan;
    sample_t *samples;
    double before = 0;
    size_t count;
    if (!session->trace || session->context->device != NULL) {
        return wefti_error(WEFT_ERR_STATE,
                           session->trace ? "profile: requires the CPU device"
                                          : "profile: the session was created without a trace");
    }
    if (path == NULL) {
        return wefti_error_null("weft_session_write_profile", "path");
    }
    WEFT_RETURN_IF_NO_MEMORY(out_ns);
    WEFT_RETURN_IF_ERROR(collect(session, arena, &samples, &count));
    for (uint32_t i = 0; i < plan->kernel_count; i++) {
        *out_ns = median_of(samples, count, plan->kernels[i].name);
        before += plan->kernels[i].phase < PHASE_COMM ? (double)*out_ns : 0;
        out_ns++;
    }
    for (uint32_t i = 0; i < plan->collective_count; i++) {
        *out_ns++ = median_of(samples, count, plan->collectives[i].name);
    }
    weft_session_stats_t stats = WEFT_SESSION_STATS_INIT;
    weft_session_get_stats(session, &stats);
    before *= plan->accumulate - 1;
    *out_ns = (uint64_t)(stats.step_ms_p50 * 1e6 > before ? stats.step_ms_p50 * 1e6 - before : 0);
    return WEFT_OK;
}

static void add_row(wefti_json_t *json, const char *name, const char *op, uint64_t bytes, double ns)
{
    wefti_json_begin_object(json, NULL);
    wefti_json_string(json, "name", name);
    wefti_json_string(json, "op", op);
    if (bytes > 0) {
        wefti_json_int(json, "bytes", (int64_t)bytes);
    }
    wefti_json_double(json, "ns", ns);
    wefti_json_end_object(json);
}

/* Of other programs than step nothing may be known: 0. */
static void add_rows(wefti_json_t *json, const weft_plan_t *plan, const double *ns)
{
    wefti_json_begin_array(json, "kernels");
    for (uint32_t i = 0; i < plan->kernel_count; i++, ns++) {
        if (*ns > 0) {
            add_row(json, plan->kernels[i].name, plan->kernels[i].op, 0, *ns);
        }
    }
    wefti_json_end_array(json);
    wefti_json_begin_array(json, "collectives");
    for (uint32_t i = 0; i < plan->collective_count; i++, ns++) {
        const wefti_plan_collective_t *collective = &plan->collectives[i];
        if (*ns > 0 && collective->op == WEFT_COLLECTIVE_ALL_REDUCE &&
            collective->update == WEFTI_PLAN_NONE) { /* a sweep's time is the update's as well */
            add_row(json, collective->name, "AllReduce",
                    collective->elem_count * weft_dtype_size_bytes(collective->dtype), *ns);
        }
    }
    wefti_json_end_array(json);
}

static weft_status_t write_file(const weft_session_t *session, const double *ns, const char *path)
{
    const weft_plan_t *plan = session->plan;
    wefti_text_t text;
    wefti_json_t json;
    weft_session_stats_t stats = WEFT_SESSION_STATS_INIT;
    weft_session_get_stats(session, &stats);
    wefti_text_init(&text, session->allocator);
    wefti_json_init(&json, &text, true);
    wefti_json_begin_object(&json, NULL);
    wefti_json_int(&json, "format", FORMAT);
    wefti_json_string(&json, "model", plan->model_name);
    wefti_json_int(&json, "world", plan->world_size);
    wefti_json_int(&json, "batch", plan->batch);
    wefti_json_int(&json, "steps", (int64_t)stats.steps);
    wefti_json_bool(&json, "inline_progress", stats.inline_progress != 0);
    wefti_json_double(&json, "step_ns", ns[plan->kernel_count + plan->collective_count]);
    add_rows(&json, plan, ns);
    wefti_json_end_object(&json);
    wefti_text_add(&text, "\n");
    wefti_piece_t piece = {text.data, text.length};
    weft_status_t status =
        text.failed ? wefti_error(WEFT_ERR_NO_MEMORY, "out of memory: cannot build the profile")
                    : wefti_file_write(path, &piece, 1);
    wefti_text_deinit(&text);
    return status;
}

static weft_status_t write_profile(weft_session_t *session, wefti_arena_t *arena, const char *path)
{
    wefti_endpoint_t *endpoint = session->endpoint;
    size_t count = (size_t)session->plan->kernel_count + session->plan->collective_count + 1;
    uint64_t *own = wefti_arena_array(arena, count, sizeof *own);
    double *mean = wefti_arena_array(arena, count, sizeof *mean);
    void *gathered;
    weft_status_t status = measure(session, arena, path, mean != NULL ? own : NULL);
    WEFT_RETURN_IF_ERROR(
        wefti_session_gather(endpoint, arena, status, own, count * sizeof *own, &gathered));
    const uint64_t *all = gathered;
    for (size_t i = 0; i < count * endpoint->world_size; i++) {
        mean[i % count] += (double)all[i] / endpoint->world_size;
    }
    return wefti_endpoint_agree(endpoint,
                                endpoint->rank == 0 ? write_file(session, mean, path) : WEFT_OK);
}

weft_status_t weft_session_write_profile(weft_session_t *session, const char *path)
{
    WEFT_CHECK_ARG(session);
    WEFTI_IN_CONTROL(session->endpoint, SESSION_PROFILE);
    WEFT_RETURN_IF_ERROR(wefti_fault_get(&session->fault));
    wefti_arena_t arena;
    wefti_arena_init(&arena, session->allocator, 0);
    weft_status_t status = write_profile(session, &arena, path);
    wefti_arena_deinit(&arena);
    return status;
}
