/* SPDX-License-Identifier: Apache-2.0 */
/* What a picture of a plan needs beyond explain --json: buffers, kernels and program step. Lists of
 * fields in place of objects: a page has thousands of them. */
#include "ops/plan/explain.h"

#include "ops/plan/plan_internal.h"

static void add_ids(wefti_json_t *json, const uint32_t *ids, uint32_t count)
{
    wefti_json_begin_array(json, NULL);
    for (uint32_t i = 0; i < count; i++) {
        wefti_json_int(json, NULL, ids[i] == WEFTI_PLAN_NONE ? -1 : (int64_t)ids[i]);
    }
    wefti_json_end_array(json);
}

/* [name, kind, bytes, offset, is its memory reused?]; offset -1: no memory */
static void add_buffers(wefti_json_t *json, const weft_plan_t *plan)
{
    wefti_json_begin_array(json, "buffers");
    for (uint32_t i = 0; i < plan->buffer_count; i++) {
        const wefti_plan_buffer_t *buffer = &plan->buffers[i];
        bool nowhere = wefti_plan_is_nowhere(buffer);
        wefti_json_begin_array(json, NULL);
        wefti_json_string(json, NULL, buffer->name);
        wefti_json_int(json, NULL, buffer->kind);
        wefti_json_int(json, NULL, (int64_t)buffer->size_bytes);
        wefti_json_int(json, NULL, nowhere ? -1 : (int64_t)buffer->offset_bytes);
        wefti_json_int(json, NULL, wefti_plan_passes(buffer));
        wefti_json_end_array(json);
    }
    wefti_json_end_array(json);
}

/* [name, op, phase, predicted ps, inputs, outputs] */
static void add_kernels(wefti_json_t *json, const weft_plan_t *plan)
{
    wefti_json_begin_array(json, "kernels");
    for (uint32_t i = 0; i < plan->kernel_count; i++) {
        const wefti_plan_kernel_t *kernel = &plan->kernels[i];
        wefti_json_begin_array(json, NULL);
        wefti_json_string(json, NULL, kernel->name);
        wefti_json_string(json, NULL, kernel->op);
        wefti_json_int(json, NULL, kernel->phase);
        wefti_json_int(json, NULL, (int64_t)kernel->predicted_ps);
        add_ids(json, kernel->inputs, kernel->input_count);
        add_ids(json, kernel->outputs, kernel->output_count);
        wefti_json_end_array(json);
    }
    wefti_json_end_array(json);
}

/* [name, op, predicted ps, source, buffer, members, kernel of a fused update or -1] */
static void add_collectives(wefti_json_t *json, const weft_plan_t *plan)
{
    wefti_json_begin_array(json, "calls");
    for (uint32_t i = 0; i < plan->collective_count; i++) {
        const wefti_plan_collective_t *call = &plan->collectives[i];
        wefti_json_begin_array(json, NULL);
        wefti_json_string(json, NULL, call->name);
        wefti_json_string(json, NULL, weft_collective_name(call->op));
        wefti_json_int(json, NULL, (int64_t)call->algorithms[0].predicted_ps);
        wefti_json_int(json, NULL, call->source);
        wefti_json_int(json, NULL, call->buffer);
        add_ids(json, call->members, call->member_count);
        wefti_json_int(json, NULL, call->update == WEFTI_PLAN_NONE ? -1 : (int64_t)call->update);
        wefti_json_end_array(json);
    }
    wefti_json_end_array(json);
}

/* By bucket its collective; by stream its steps as in the file: index << 4 | kind. */
static void add_program(wefti_json_t *json, const weft_plan_t *plan)
{
    const wefti_plan_program_t *program = wefti_plan_program(plan, "step");
    const wefti_plan_collective_t *bucket;
    uint64_t position = 0;
    uint32_t stream;
    wefti_json_begin_array(json, "bucket_calls");
    while ((bucket = wefti_plan_next_bucket(plan, &position, &stream)) != NULL) {
        wefti_json_int(json, NULL, bucket - plan->collectives);
    }
    wefti_json_end_array(json);
    wefti_json_begin_array(json, "step");
    for (uint32_t s = 0; program != NULL && s < plan->stream_count; s++) {
        wefti_json_begin_array(json, NULL);
        for (uint32_t i = 0; i < program->streams[s].step_count; i++) {
            const wefti_plan_step_t *step = &program->streams[s].steps[i];
            wefti_json_int(json, NULL, (int64_t)step->index << 4 | step->kind);
        }
        wefti_json_end_array(json);
    }
    wefti_json_end_array(json);
}

static void add_cost(wefti_json_t *json, const char *key, const weft_bucket_cost_t *cost)
{
    wefti_json_begin_object(json, key);
    wefti_json_begin_array(json, "pieces");
    for (uint32_t i = 0; i < cost->piece_count; i++) {
        wefti_json_begin_array(json, NULL);
        wefti_json_int(json, NULL, (int64_t)cost->pieces[i].alpha_ps);
        wefti_json_int(json, NULL, (int64_t)cost->pieces[i].beta_ps_per_kib);
        wefti_json_end_array(json);
    }
    wefti_json_end_array(json);
    wefti_json_begin_array(json, "points");
    for (uint32_t i = 0; i < cost->point_count; i++) {
        wefti_json_begin_array(json, NULL);
        wefti_json_int(json, NULL, (int64_t)cost->points[i].bytes);
        wefti_json_int(json, NULL, (int64_t)cost->points[i].ps);
        wefti_json_end_array(json);
    }
    wefti_json_end_array(json);
    wefti_json_end_object(json);
}

/* What the planner of buckets was given: gradients [name, ready ps, bytes, unit bytes, first with]. */
static void add_planner(wefti_json_t *json, const wefti_plan_forecast_t *forecast)
{
    wefti_json_begin_object(json, "planner");
    wefti_json_int(json, "cap_bytes", (int64_t)forecast->cap_bytes);
    wefti_json_int(json, "ready_ps", (int64_t)forecast->ready_ps);
    wefti_json_int(json, "compute_ps", (int64_t)forecast->compute_ps);
    wefti_json_bool(json, "inline", forecast->progress == WEFTI_FORECAST_INLINE);
    add_cost(json, "cost", &forecast->cost);
    add_cost(json, "alone", &forecast->alone);
    wefti_json_begin_array(json, "gradients");
    for (uint32_t i = 0; i < forecast->gradient_count; i++) {
        const wefti_plan_forecast_gradient_t *gradient = &forecast->gradients[i];
        wefti_json_begin_array(json, NULL);
        wefti_json_string(json, NULL, gradient->name);
        wefti_json_int(json, NULL, (int64_t)gradient->ready_ps);
        wefti_json_int(json, NULL, (int64_t)gradient->bytes);
        wefti_json_int(json, NULL, (int64_t)gradient->unit_bytes);
        wefti_json_int(json, NULL, gradient->first_with);
        wefti_json_end_array(json);
    }
    wefti_json_end_array(json);
    wefti_json_end_object(json);
}

void wefti_plan_explain_page(const weft_plan_t *plan, wefti_json_t *json)
{
    add_buffers(json, plan);
    add_kernels(json, plan);
    add_collectives(json, plan);
    add_program(json, plan);
    add_planner(json, &plan->forecast);
}
