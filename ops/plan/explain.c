/* SPDX-License-Identifier: Apache-2.0 */
/* What fusion decided and why, for people; explain_json.c has the same for programs. */
#include "ops/plan/explain.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "ops/plan/plan_internal.h"
#include "runtime/base/check.h"
#include "runtime/base/error.h"

#define MEMBERS_SHOWN 12u /* of a bucket; the others are counted */

static void add_bytes(wefti_text_t *out, const char *label, uint64_t bytes)
{
    char buffer[32];
    wefti_text_printf(out, "  %-24s %12" PRIu64 " bytes  (%s)\n", label, bytes,
                      wefti_format_bytes(bytes, buffer));
}

static const char *plural(uint32_t count)
{
    return count == 1 ? "" : "s";
}

/* Do gradients travel in a type that no parameter has? Then in which. */
static const char *wire_type(const weft_plan_t *plan)
{
    uint64_t position = 0;
    uint32_t stream;
    const wefti_plan_collective_t *bucket = wefti_plan_next_bucket(plan, &position, &stream);
    for (uint32_t i = 0; bucket && i < plan->buffer_count; i++) {
        if (plan->buffers[i].kind == WEFTI_BUFFER_PARAM &&
            plan->buffers[i].dtype == bucket->dtype) {
            return NULL;
        }
    }
    return bucket ? weft_dtype_name(bucket->dtype) : NULL;
}

/* What a step is made of, where it is more than one batch and an all-reduce of every gradient. */
static void add_training(wefti_text_t *out, const weft_plan_t *plan)
{
    uint32_t world = plan->world_size;
    wefti_text_add(out, "  optimizer ");
    wefti_text_add_printable(out, plan->optimizer);
    wefti_text_add(out, ", bucket policy ");
    wefti_text_add_printable(out, plan->policy);
    wefti_text_add(out, "\n");
    if (plan->accumulate > 1) {
        wefti_text_printf(out, "  accumulate: %" PRIu32 " micro-batches per rank and step\n",
                          plan->accumulate);
    }
    if (plan->global_micro_batches > 0) {
        wefti_text_printf(
            out,
            "  global micro-batches: %" PRIu32 ", %" PRIu32
            " per rank; summed in one tree that does not depend on the number of ranks\n",
            plan->global_micro_batches, plan->accumulate);
    }
    if (plan->flags & WEFTI_PLAN_SHARDED) {
        int parameters = (plan->flags & WEFTI_PLAN_SHARDED_PARAMETERS) != 0;
        wefti_text_printf(out,
                          "  sharded: each rank updates 1/%" PRIu32
                          " of the parameters and keeps only %sits optimizer state%s%s\n",
                          world, parameters ? "these and " : "",
                          parameters ? "\n  parameters are gathered before each pass that reads "
                                       "them, and dropped after it"
                                     : "",
                          plan->flags & WEFTI_PLAN_DECOUPLED
                              ? "\n  decoupled: updated weights are gathered during the next "
                                "forward pass, or by program flush"
                              : "");
    }
    if (wire_type(plan)) {
        wefti_text_printf(
            out, "  wire: each rank rounds its gradients to %s once and sends them in that type\n",
            wire_type(plan));
    }
    if (plan->clip_norm > 0) {
        wefti_text_printf(out, "  clip: gradients are scaled down to a global norm of at most %g\n",
                          plan->clip_norm);
    }
}

static void add_inference(wefti_text_t *out, const weft_plan_t *plan)
{
    if (plan->flags & WEFTI_PLAN_RANK_DATA) {
        wefti_text_add(out, "  each rank has its own weights\n");
    }
    if (plan->flags & WEFTI_PLAN_SPLIT_BATCH) {
        wefti_text_add(out,
                       "  the batch of rank 0 is scattered, the results are gathered on rank 0\n");
    }
}

static void add_algorithm_files(wefti_text_t *out, const weft_plan_t *plan)
{
    char bytes[32];
    for (uint32_t i = 0; i < plan->algorithm_file_count; i++) {
        const wefti_plan_algorithm_file_t *file = &plan->algorithm_files[i];
        wefti_text_add(out, "  algorithm ");
        wefti_text_add_printable(out, file->algorithm->name);
        wefti_text_printf(out, ": %s, in the plan as file ",
                          wefti_collective_function(file->algorithm->op));
        wefti_text_add_printable(out, file->name);
        wefti_text_printf(out, ", %s\n", wefti_format_bytes(file->size_bytes, bytes));
    }
}

static void add_head(wefti_text_t *out, const weft_plan_t *plan)
{
    int trains = plan->kind == WEFT_PLAN_KIND_TRAINING;
    char hex[65];
    wefti_text_add(out, "plan of ");
    wefti_text_add_printable(out, plan->model_name[0] ? plan->model_name : "(unnamed model)");
    wefti_text_printf(out, "%s: %" PRIu32 " rank%s, batch %" PRId64 " per rank and %s\n",
                      trains ? "" : ", for inference", plan->world_size, plural(plan->world_size),
                      plan->batch, plan->accumulate > 1 ? "micro-batch" : "step");
    if (trains) {
        add_training(out, plan);
    } else {
        add_inference(out, plan);
    }
    for (uint32_t i = 0; i < plan->mesh.axis_count; i++) {
        const wefti_axis_t *axis = &plan->mesh.axes[i];
        wefti_text_add(out, i == 0 ? "  mesh: " : " x ");
        wefti_text_add_printable(out, axis->name);
        wefti_text_printf(out, " %" PRIu32, axis->size);
        wefti_text_add(out, i + 1 == plan->mesh.axis_count ? "\n" : "");
    }
    if (plan->topology[0] != '\0') {
        wefti_text_add(out, "  compiled for ");
        wefti_text_add_printable(out, plan->topology);
        wefti_text_add(out, "; other placements give the same results\n");
    }
    if (strcmp(plan->device, "cpu") != 0) {
        wefti_text_add(out, "  compiled for device ");
        wefti_text_add_printable(out, plan->device);
        wefti_text_printf(out, "; f32 results have %s\n",
                          plan->bits == WEFT_BITS_CPU ? "the bits of the CPU"
                                                      : "bits of the device's own");
    }
    add_algorithm_files(out, plan);
    wefti_text_printf(out, "  structure %s\n", wefti_digest_hex(&plan->structure_digest, hex));
    wefti_text_printf(out, "  weights   %s\n", wefti_digest_hex(&plan->weights_digest, hex));
}

static void add_members(wefti_text_t *out, const weft_plan_t *plan,
                        const wefti_plan_collective_t *bucket)
{
    for (uint32_t i = 0; i < bucket->member_count; i++) {
        const wefti_plan_buffer_t *member = &plan->buffers[bucket->members[i]];
        char bytes[32];
        if (i == MEMBERS_SHOWN && bucket->member_count > MEMBERS_SHOWN + 1) {
            wefti_text_printf(out, "       and %" PRIu32 " more\n", bucket->member_count - i);
            return;
        }
        uint64_t covered = wefti_plan_covered_bytes(plan, bucket, i);
        wefti_text_printf(out, "       %10s  ", wefti_format_bytes(covered, bytes));
        wefti_text_add_printable(out, member->name);
        if (covered < member->size_bytes) {
            wefti_text_printf(out, "  (of %s)", wefti_format_bytes(member->size_bytes, bytes));
        }
        wefti_text_add(out, "\n");
    }
}

/* What is done with a bucket, where it is not an all-reduce. */
static const char *operator_of(const wefti_plan_collective_t *bucket)
{
    return bucket->update != WEFTI_PLAN_NONE              ? "fused reduce-update-gather, "
           : bucket->op == WEFT_COLLECTIVE_REDUCE_SCATTER ? "reduce-scatter, "
                                                          : "";
}

static void add_bucket(wefti_text_t *out, const weft_plan_t *plan,
                       const wefti_plan_collective_t *bucket, uint32_t index, uint32_t stream,
                       const wefti_plan_summary_t *summary, wefti_plan_pieces_t *pieces)
{
    uint32_t parts, part = wefti_plan_next_piece(plan, pieces, bucket, &parts);
    uint64_t all_bytes = summary->bucket_bytes;
    uint64_t bytes = wefti_plan_member_bytes(plan, bucket);
    char text[32];
    double share = all_bytes ? 100.0 * (double)bytes / (double)all_bytes : 0.0;
    wefti_text_printf(out, "  %3" PRIu32 "  %10s  %5.1f%%  ", index,
                      wefti_format_bytes(bytes, text), share);
    if (part > 0) {
        wefti_text_printf(out, "piece %" PRIu32 "/%" PRIu32, part, parts);
    } else {
        wefti_text_printf(out, "%3" PRIu32 " tensor%s", bucket->member_count,
                          bucket->member_count == 1 ? " " : "s");
    }
    wefti_text_printf(out, "  %s%s %s", operator_of(bucket), weft_reduction_name(bucket->reduction),
                      weft_dtype_name(bucket->dtype));
    if (bucket->divisor > 0) {
        wefti_text_printf(out, "/%" PRIu32, bucket->divisor);
    }
    wefti_plan_explain_group(out, plan, bucket);
    wefti_text_add(out, "  order=");
    wefti_text_add_printable(out, bucket->order);
    wefti_text_add(out, "  algorithm ");
    wefti_text_add_printable(out, bucket->algorithms[0].name);
    for (uint32_t i = 1; i < bucket->algorithm_count; i++) {
        wefti_text_add(out, i == 1 ? " (else " : ", ");
        wefti_text_add_printable(out, bucket->algorithms[i].name);
        wefti_text_add(out, i + 1 == bucket->algorithm_count ? ")" : "");
    }
    wefti_text_add(out, "  stream ");
    wefti_text_add_printable(out, plan->streams[stream].name);
    wefti_text_add(out, "\n");
    if (bucket->reason && bucket->reason[0]) {
        wefti_text_add(out, "       why: ");
        wefti_text_add_printable(out, bucket->reason);
        wefti_text_add(out, "\n");
    }
    add_members(out, plan, bucket);
}

static void add_buckets(wefti_text_t *out, const weft_plan_t *plan,
                        const wefti_plan_summary_t *summary, wefti_plan_pieces_t *pieces)
{
    const wefti_plan_collective_t *bucket;
    uint64_t position = 0;
    uint32_t stream;
    char text[32];
    wefti_text_printf(out, "\nbuckets of a step: %" PRIu32 ", %s of gradients\n",
                      summary->bucket_count, wefti_format_bytes(summary->bucket_bytes, text));
    for (uint32_t i = 0; (bucket = wefti_plan_next_bucket(plan, &position, &stream)) != NULL; i++) {
        add_bucket(out, plan, bucket, i, stream, summary, pieces);
    }
}

static void add_streams(wefti_text_t *out, const weft_plan_t *plan)
{
    wefti_text_printf(out, "\nstreams: %" PRIu32 ", events: %" PRIu32 "\n", plan->stream_count,
                      plan->event_count);
    for (uint32_t s = 0; s < plan->stream_count; s++) {
        wefti_text_printf(out, "  %" PRIu32 " ", s);
        wefti_text_add_printable(out, plan->streams[s].name);
        wefti_text_add(out, plan->streams[s].communicates ? " (communicates):" : ":");
        for (uint32_t p = 0; p < plan->program_count; p++) {
            wefti_text_add(out, p ? ", " : " ");
            wefti_text_add_printable(out, plan->programs[p].name);
            wefti_text_printf(out, " %" PRIu32 " steps", plan->programs[p].streams[s].step_count);
        }
        wefti_text_add(out, "\n");
    }
}

static weft_status_t add_places(wefti_text_t *out, const weft_plan_t *plan)
{
    wefti_plan_place_summary_t *places;
    uint32_t count;
    char text[2][32];
    weft_status_t status = wefti_plan_summarise_places(plan, &places, &count);
    for (uint32_t i = 0; i < count && status == WEFT_OK; i++) {
        wefti_text_add(out, i == 0 ? "\nplaces\n  " : "  ");
        wefti_text_add_printable(out, plan->mesh.axes[plan->place_group - 1].name);
        wefti_text_printf(
            out, " %" PRIu32 ": %" PRIu32 " kernels, %s of weights, %s of the arena\n", i,
            places[i].kernel_count, wefti_format_bytes(places[i].weight_bytes, text[0]),
            wefti_format_bytes(places[i].arena_bytes, text[1]));
    }
    wefti_free(plan->arena.allocator, places);
    return status;
}

static void add_memory(wefti_text_t *out, const weft_plan_t *plan,
                       const wefti_plan_summary_t *summary)
{
    wefti_text_add(out, "\nmemory of a rank\n");
    add_bytes(out, "parameters", summary->param_bytes);
    if (plan->kind == WEFT_PLAN_KIND_TRAINING) {
        add_bytes(out, "gradients", summary->gradient_bytes - summary->partial_bytes);
        add_bytes(out, "optimizer state", summary->state_bytes);
    }
    if (summary->partial_bytes > 0) {
        add_bytes(out, "partial gradients", summary->partial_bytes);
    }
    add_bytes(out,
              plan->flags & WEFTI_PLAN_SHARDED_PARAMETERS ? "activations, gathered" : "activations",
              summary->activation_bytes);
    add_bytes(out, "live at once", plan->live_bytes);
    add_bytes(out, "arena", plan->arena_bytes);
    add_bytes(out, "copied for fusion", plan->fusion_copied_bytes);
}

static void add_recomputed(wefti_text_t *out, const weft_plan_t *plan)
{
    uint64_t ps = 0;
    char text[2][32];
    for (uint32_t i = 0; i < plan->recomputed_count; i++) {
        ps += plan->recomputed[i].ps;
    }
    if (plan->recomputed_count == 0) {
        return;
    }
    wefti_format_bytes(plan->kept_arena_bytes, text[0]);
    wefti_format_bytes(plan->arena_bytes, text[1]);
    wefti_text_printf(out,
                      "\nrecomputed in the backward pass: %" PRIu32 " operators, %.1f us per "
                      "micro-batch; arena %s, %s without\n",
                      plan->recomputed_count, (double)ps * 1e-6, text[1], text[0]);
    for (uint32_t i = 0; i < plan->recomputed_count; i++) {
        const wefti_plan_recomputed_t *at = &plan->recomputed[i];
        wefti_format_bytes(at->bytes, text[0]);
        wefti_text_printf(out, "  %10.1f us %12s  ", (double)at->ps * 1e-6, text[0]);
        wefti_text_add_printable(out, at->name);
        wefti_text_add(out, "\n");
    }
}

weft_status_t wefti_plan_explain_text(const weft_plan_t *plan, wefti_text_t *out)
{
    wefti_plan_summary_t summary;
    wefti_plan_pieces_t pieces;
    weft_status_t status = wefti_plan_pieces_init(plan, &pieces);
    if (status != WEFT_OK) {
        return status;
    }
    wefti_plan_summarise(plan, &summary);
    add_head(out, plan);
    if (plan->kind == WEFT_PLAN_KIND_TRAINING) {
        add_buckets(out, plan, &summary, &pieces);
    }
    wefti_plan_explain_collectives(plan, out);
    wefti_plan_explain_forecast(&plan->forecast, out);
    status = add_places(out, plan);
    add_streams(out, plan);
    add_memory(out, plan, &summary);
    add_recomputed(out, plan);
    wefti_plan_explain_parameters(plan->parameters, plan->parameter_count, out);
    wefti_plan_pieces_deinit(plan, &pieces);
    return status;
}

weft_status_t weft_plan_explain(const weft_plan_t *plan, weft_format_t format, char **out_text)
{
    WEFT_CHECK_OUT(out_text);
    WEFT_CHECK_ARG(plan);
    WEFT_CHECK_FORMAT(format);
    wefti_text_t text;
    wefti_text_init(&text, NULL); /* the default allocator is malloc: the caller frees */
    weft_status_t status = format == WEFT_FORMAT_JSON ? wefti_plan_explain_json(plan, &text)
                                                      : wefti_plan_explain_text(plan, &text);
    if (status != WEFT_OK) {
        wefti_text_deinit(&text);
        return status;
    }
    *out_text = wefti_text_take(&text);
    return *out_text ? WEFT_OK : WEFT_ERR_NO_MEMORY;
}

weft_status_t weft_plan_compare(const weft_plan_t *plan, char **out_text)
{
    WEFT_CHECK_OUT(out_text);
    WEFT_CHECK_ARG(plan);
    wefti_text_t text;
    wefti_text_init(&text, NULL);
    wefti_plan_explain_policies(&plan->forecast, &text);
    *out_text = wefti_text_take(&text);
    return *out_text ? WEFT_OK : WEFT_ERR_NO_MEMORY;
}

weft_status_t weft_plan_why(const weft_plan_t *plan, const char *tensor, char **out_text)
{
    WEFT_CHECK_OUT(out_text);
    WEFT_CHECK_ARG(plan);
    WEFT_CHECK_ARG(tensor);
    wefti_text_t text;
    wefti_text_init(&text, NULL);
    weft_status_t status = wefti_plan_explain_why(plan, tensor, &text);
    if (status != WEFT_OK) {
        wefti_text_deinit(&text);
        return status;
    }
    *out_text = wefti_text_take(&text);
    return *out_text ? WEFT_OK : WEFT_ERR_NO_MEMORY;
}
