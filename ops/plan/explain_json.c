/* SPDX-License-Identifier: Apache-2.0 */
/* Keys are an interface: scripts read them. README.md lists them; only additions are allowed. */
#include "ops/plan/explain.h"

#include "ops/plan/plan_internal.h"
#include "runtime/base/error.h"

static void add_bucket(wefti_json_t *json, const weft_plan_t *plan,
                       const wefti_plan_collective_t *bucket, uint32_t index, uint32_t stream,
                       wefti_plan_pieces_t *pieces)
{
    uint32_t parts, part = wefti_plan_next_piece(plan, pieces, bucket, &parts);
    wefti_json_begin_object(json, NULL);
    wefti_json_int(json, "index", index);
    wefti_json_string(json, "name", bucket->name);
    wefti_json_string(json, "group", wefti_plan_axis(plan, bucket).name);
    wefti_json_begin_array(json, "members");
    for (uint32_t i = 0; i < bucket->member_count; i++) {
        wefti_json_string(json, NULL, plan->buffers[bucket->members[i]].name);
    }
    wefti_json_end_array(json);
    if (part > 0) {
        wefti_json_int(json, "part", part);
        wefti_json_int(json, "parts", parts);
    }
    wefti_json_begin_array(json, "member_bytes");
    for (uint32_t i = 0; i < bucket->member_count; i++) {
        wefti_json_int(json, NULL, (int64_t)wefti_plan_covered_bytes(plan, bucket, i));
    }
    wefti_json_end_array(json);
    wefti_json_int(json, "bytes", (int64_t)wefti_plan_member_bytes(plan, bucket));
    wefti_json_int(json, "elem_count", (int64_t)bucket->elem_count);
    wefti_json_string(json, "op", weft_collective_name(bucket->op));
    wefti_json_bool(json, "update", bucket->update != WEFTI_PLAN_NONE);
    wefti_json_int(json, "divisor", bucket->divisor);
    wefti_json_string(json, "dtype", weft_dtype_name(bucket->dtype));
    wefti_json_string(json, "reduction", weft_reduction_name(bucket->reduction));
    wefti_json_string(json, "algorithm", bucket->algorithms[0].name);
    wefti_json_begin_array(json, "candidates");
    for (uint32_t i = 0; i < bucket->algorithm_count; i++) {
        wefti_json_string(json, NULL, bucket->algorithms[i].name);
    }
    wefti_json_end_array(json);
    wefti_json_int(json, "predicted_ps", (int64_t)bucket->algorithms[0].predicted_ps);
    wefti_json_string(json, "order", bucket->order);
    wefti_json_string(json, "stream", plan->streams[stream].name);
    wefti_json_string(json, "reason", bucket->reason);
    wefti_json_end_object(json);
}

static void add_streams(wefti_json_t *json, const weft_plan_t *plan)
{
    wefti_json_begin_array(json, "streams");
    for (uint32_t s = 0; s < plan->stream_count; s++) {
        wefti_json_begin_object(json, NULL);
        wefti_json_string(json, "name", plan->streams[s].name);
        wefti_json_bool(json, "communicates", plan->streams[s].communicates != 0);
        wefti_json_begin_object(json, "steps");
        for (uint32_t p = 0; p < plan->program_count; p++) {
            wefti_json_int(json, plan->programs[p].name, plan->programs[p].streams[s].step_count);
        }
        wefti_json_end_object(json);
        wefti_json_end_object(json);
    }
    wefti_json_end_array(json);
}

static void add_memory(wefti_json_t *json, const weft_plan_t *plan,
                       const wefti_plan_summary_t *summary)
{
    wefti_json_int(json, "arena_bytes", (int64_t)plan->arena_bytes);
    wefti_json_int(json, "live_bytes", (int64_t)plan->live_bytes);
    wefti_json_int(json, "param_bytes", (int64_t)summary->param_bytes);
    wefti_json_int(json, "gradient_bytes", (int64_t)summary->gradient_bytes);
    wefti_json_int(json, "partial_bytes", (int64_t)summary->partial_bytes);
    wefti_json_int(json, "state_bytes", (int64_t)summary->state_bytes);
    wefti_json_int(json, "activation_bytes", (int64_t)summary->activation_bytes);
    wefti_json_int(json, "fusion_copied_bytes", (int64_t)plan->fusion_copied_bytes);
}

static void add_recomputed(wefti_json_t *json, const weft_plan_t *plan)
{
    wefti_json_int(json, "kept_arena_bytes", (int64_t)plan->kept_arena_bytes);
    wefti_json_begin_array(json, "recomputed");
    for (uint32_t i = 0; i < plan->recomputed_count; i++) {
        const wefti_plan_recomputed_t *at = &plan->recomputed[i];
        wefti_json_begin_object(json, NULL);
        wefti_json_string(json, "name", at->name);
        wefti_json_double(json, "predicted_us", (double)at->ps * 1e-6);
        wefti_json_int(json, "bytes", (int64_t)at->bytes);
        wefti_json_end_object(json);
    }
    wefti_json_end_array(json);
}

static void add_forecast(wefti_json_t *json, const wefti_plan_forecast_t *forecast)
{
    if (forecast->row_count == 0) {
        return;
    }
    wefti_json_double(json, "ready_us", (double)forecast->ready_ps * 1e-6);
    wefti_json_double(json, "optimum_us", (double)forecast->optimum_ps * 1e-6);
    wefti_json_int(json, "optimum_buckets", forecast->optimum_count);
    wefti_json_double(json, "chosen_us", (double)forecast->chosen_ps * 1e-6);
    wefti_json_double(json, "lower_bound_us", (double)forecast->lower_bound_ps * 1e-6);
    wefti_json_double(json, "step_us",
                      (double)wefti_plan_step_ps(forecast, forecast->chosen_ps) * 1e-6);
    wefti_json_double(json, "step_inline_us",
                      (double)wefti_plan_inline_step_ps(forecast, forecast->comm_ps) * 1e-6);
    wefti_json_double(json, "predicted_step_us",
                      (double)wefti_plan_expected_step_ps(forecast) * 1e-6);
    wefti_json_double(json, "update_us", (double)forecast->update_ps * 1e-6);
    wefti_json_string(json, "costs", wefti_plan_costs(forecast));
    wefti_json_begin_array(json, "costs_off");
    for (size_t i = 0; i < 2; i++) {
        wefti_json_begin_object(json, NULL);
        wefti_json_double(json, "factor", i == 0 ? 1.2 : 2);
        wefti_json_double(json, "step_us",
                          (double)wefti_plan_step_ps(forecast, forecast->chosen_slow_ps[i]) * 1e-6);
        wefti_json_double(json, "step_inline_us",
                          (double)wefti_plan_inline_step_ps(forecast, forecast->comm_slow_ps[i]) *
                              1e-6);
        wefti_json_end_object(json);
    }
    wefti_json_end_array(json);
    wefti_json_begin_array(json, "compare");
    for (uint32_t i = 0; i < forecast->row_count; i++) {
        wefti_json_begin_object(json, NULL);
        wefti_json_string(json, "policy", forecast->rows[i].policy);
        wefti_json_int(json, "buckets", forecast->rows[i].bucket_count);
        wefti_json_double(json, "done_us", (double)forecast->rows[i].finish_ps * 1e-6);
        wefti_json_end_object(json);
    }
    wefti_json_end_array(json);
}

static weft_status_t add_places(wefti_json_t *json, const weft_plan_t *plan)
{
    wefti_plan_place_summary_t *places;
    uint32_t count;
    WEFT_RETURN_IF_ERROR(wefti_plan_summarise_places(plan, &places, &count));
    wefti_json_begin_array(json, "places");
    for (uint32_t i = 0; i < count; i++) {
        wefti_json_begin_object(json, NULL);
        wefti_json_int(json, "kernels", places[i].kernel_count);
        wefti_json_int(json, "weight_bytes", (int64_t)places[i].weight_bytes);
        wefti_json_int(json, "arena_bytes", (int64_t)places[i].arena_bytes);
        wefti_json_end_object(json);
    }
    wefti_json_end_array(json);
    wefti_free(plan->arena.allocator, places);
    return WEFT_OK;
}

static void add_algorithm_files(wefti_json_t *json, const weft_plan_t *plan)
{
    wefti_json_begin_array(json, "algorithm_files");
    for (uint32_t i = 0; i < plan->algorithm_file_count; i++) {
        const wefti_plan_algorithm_file_t *file = &plan->algorithm_files[i];
        wefti_json_begin_object(json, NULL);
        wefti_json_string(json, "file", file->name);
        wefti_json_string(json, "algorithm", file->algorithm->name);
        wefti_json_string(json, "op", weft_collective_name(file->algorithm->op));
        wefti_json_int(json, "bytes", (int64_t)file->size_bytes);
        wefti_json_end_object(json);
    }
    wefti_json_end_array(json);
}

weft_status_t wefti_plan_explain_json(const weft_plan_t *plan, wefti_text_t *out)
{
    const wefti_plan_collective_t *bucket;
    wefti_plan_summary_t summary;
    wefti_json_t json;
    uint64_t position = 0;
    uint32_t stream;
    char hex[65];
    wefti_plan_pieces_t pieces;
    weft_status_t status = wefti_plan_pieces_init(plan, &pieces);
    if (status != WEFT_OK) {
        return status;
    }
    wefti_plan_summarise(plan, &summary);
    wefti_json_init(&json, out, true);
    wefti_json_begin_object(&json, NULL);
    wefti_json_string(&json, "model", plan->model_name);
    wefti_json_int(&json, "world", plan->world_size);
    wefti_json_int(&json, "batch", plan->batch);
    wefti_json_string(&json, "policy", plan->policy);
    wefti_json_string(&json, "optimizer", plan->optimizer);
    wefti_json_string(&json, "kind",
                      plan->kind == WEFT_PLAN_KIND_TRAINING ? "training" : "inference");
    wefti_json_int(&json, "accumulate", plan->accumulate);
    wefti_json_int(&json, "global_micro_batches", plan->global_micro_batches);
    wefti_json_bool(&json, "sharded", (plan->flags & WEFTI_PLAN_SHARDED) != 0);
    wefti_json_bool(&json, "decoupled", (plan->flags & WEFTI_PLAN_DECOUPLED) != 0);
    wefti_json_bool(&json, "rank_weights", (plan->flags & WEFTI_PLAN_RANK_DATA) != 0);
    wefti_json_bool(&json, "split_batch", (plan->flags & WEFTI_PLAN_SPLIT_BATCH) != 0);
    wefti_json_begin_array(&json, "mesh");
    for (uint32_t i = 0; i < plan->mesh.axis_count; i++) {
        wefti_json_begin_object(&json, NULL);
        wefti_json_string(&json, "axis", plan->mesh.axes[i].name);
        wefti_json_int(&json, "size", plan->mesh.axes[i].size);
        wefti_json_int(&json, "stride", plan->mesh.axes[i].stride);
        wefti_json_end_object(&json);
    }
    wefti_json_end_array(&json);
    status = add_places(&json, plan);
    wefti_json_double(&json, "clip_norm", plan->clip_norm);
    wefti_json_string(&json, "topology", plan->topology);
    wefti_json_string(&json, "device", plan->device);
    wefti_json_string(&json, "bits", plan->bits == WEFT_BITS_CPU ? "cpu" : "device");
    wefti_json_begin_array(&json, "buckets");
    for (uint32_t i = 0; (bucket = wefti_plan_next_bucket(plan, &position, &stream)) != NULL; i++) {
        add_bucket(&json, plan, bucket, i, stream, &pieces);
    }
    wefti_json_end_array(&json);
    wefti_plan_explain_collectives_json(plan, &json);
    add_algorithm_files(&json, plan);
    add_forecast(&json, &plan->forecast);
    add_streams(&json, plan);
    wefti_json_int(&json, "events", plan->event_count);
    wefti_json_int(&json, "kernels", plan->kernel_count);
    add_memory(&json, plan, &summary);
    add_recomputed(&json, plan);
    wefti_plan_explain_parameters_json(plan->parameters, plan->parameter_count, &json);
    wefti_json_string(&json, "structure_digest", wefti_digest_hex(&plan->structure_digest, hex));
    wefti_json_string(&json, "weights_digest", wefti_digest_hex(&plan->weights_digest, hex));
    wefti_json_end_object(&json);
    wefti_text_add(out, "\n");
    wefti_plan_pieces_deinit(plan, &pieces);
    return status;
}
