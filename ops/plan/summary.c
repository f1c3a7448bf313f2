/* SPDX-License-Identifier: Apache-2.0 */
/* Sums over a verified plan. */
#include "ops/plan/plan_internal.h"

const wefti_plan_collective_t *wefti_plan_next_bucket(const weft_plan_t *plan, uint64_t *position,
                                                      uint32_t *out_stream)
{
    const wefti_plan_program_t *program = wefti_plan_program(plan, "step");
    for (uint64_t at = 0, s = 0; program && s < plan->stream_count; s++) {
        const wefti_plan_stream_program_t *stream = &program->streams[s];
        if (*position >= at + stream->step_count) { /* all of this stream has been seen */
            at += stream->step_count;
            continue;
        }
        for (uint64_t i = *position - at; i < stream->step_count; i++) {
            const wefti_plan_step_t *step = &stream->steps[i];
            if (step->kind == WEFTI_STEP_COLLECTIVE &&
                wefti_plan_reduces_gradients(plan, &plan->collectives[step->index])) {
                *position = at + i + 1;
                *out_stream = (uint32_t)s;
                return &plan->collectives[step->index];
            }
        }
        at += stream->step_count;
        *position = at;
    }
    return NULL;
}

uint64_t wefti_plan_covered_bytes(const weft_plan_t *plan,
                                  const wefti_plan_collective_t *collective, uint32_t member)
{
    const wefti_plan_buffer_t *range = &plan->buffers[wefti_plan_whole(plan, collective)];
    const wefti_plan_buffer_t *buffer = &plan->buffers[collective->members[member]];
    uint64_t begin = range->offset_bytes, end = begin + range->size_bytes;
    uint64_t buffer_end = buffer->offset_bytes + buffer->size_bytes;
    begin = begin > buffer->offset_bytes ? begin : buffer->offset_bytes;
    end = end < buffer_end ? end : buffer_end;
    return end > begin ? end - begin : 0;
}

uint64_t wefti_plan_member_bytes(const weft_plan_t *plan, const wefti_plan_collective_t *collective)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < collective->member_count; i++) {
        bytes += wefti_plan_covered_bytes(plan, collective, i);
    }
    return bytes;
}

/* The buffer that the bucket is a piece of, or WEFTI_PLAN_NONE. */
static uint32_t whole_of(const weft_plan_t *plan, const wefti_plan_collective_t *bucket)
{
    uint32_t member = bucket->members[0];
    return bucket->member_count == 1 &&
                   wefti_plan_covered_bytes(plan, bucket, 0) < plan->buffers[member].size_bytes
               ? member
               : WEFTI_PLAN_NONE;
}

weft_status_t wefti_plan_pieces_init(const weft_plan_t *plan, wefti_plan_pieces_t *out_pieces)
{
    const wefti_plan_collective_t *bucket;
    uint64_t position = 0;
    uint32_t stream, *counts = wefti_alloc(plan->arena.allocator,
                                           2 * ((size_t)plan->buffer_count + 1) * sizeof *counts);
    if (!counts) {
        return WEFT_ERR_NO_MEMORY;
    }
    *out_pieces = (wefti_plan_pieces_t){counts, counts + plan->buffer_count};
    while ((bucket = wefti_plan_next_bucket(plan, &position, &stream)) != NULL) {
        uint32_t whole = whole_of(plan, bucket);
        if (whole != WEFTI_PLAN_NONE) {
            out_pieces->parts[whole]++;
        }
    }
    return WEFT_OK;
}

void wefti_plan_pieces_deinit(const weft_plan_t *plan, wefti_plan_pieces_t *pieces)
{
    wefti_free(plan->arena.allocator, pieces->parts);
}

uint32_t wefti_plan_next_piece(const weft_plan_t *plan, wefti_plan_pieces_t *pieces,
                               const wefti_plan_collective_t *bucket, uint32_t *out_parts)
{
    uint32_t whole = whole_of(plan, bucket);
    *out_parts = whole == WEFTI_PLAN_NONE ? 0 : pieces->parts[whole];
    return whole == WEFTI_PLAN_NONE ? 0 : ++pieces->seen[whole];
}

/* Adds a buffer whose memory nothing else has. */
static void add_lasting(wefti_plan_summary_t *summary, const wefti_plan_buffer_t *buffer)
{
    int shard = buffer->kind == WEFTI_BUFFER_SHARD, weights = buffer->whole_offset_bytes != 0;
    if (wefti_plan_is_nowhere(buffer) || wefti_plan_passes(buffer)) {
        return;
    }
    summary->param_bytes +=
        buffer->kind == WEFTI_BUFFER_PARAM || (shard && weights) ? buffer->size_bytes : 0;
    summary->gradient_bytes +=
        buffer->kind == WEFTI_BUFFER_GRAD || (shard && !weights) ? buffer->size_bytes : 0;
    summary->state_bytes += buffer->kind == WEFTI_BUFFER_STATE ? buffer->size_bytes : 0;
}

void wefti_plan_summarise(const weft_plan_t *plan, wefti_plan_summary_t *out_summary)
{
    wefti_plan_summary_t summary = {0};
    const wefti_plan_collective_t *bucket;
    uint64_t position = 0;
    uint32_t stream;
    uint64_t reduced = 0; /* of the gradients that last */
    for (uint32_t i = 0; i < plan->buffer_count; i++) {
        add_lasting(&summary, &plan->buffers[i]);
    }
    uint64_t lasting = summary.param_bytes + summary.gradient_bytes + summary.state_bytes;
    summary.activation_bytes = plan->live_bytes > lasting ? plan->live_bytes - lasting : 0;
    while ((bucket = wefti_plan_next_bucket(plan, &position, &stream)) != NULL) {
        summary.bucket_count++;
        summary.bucket_bytes += wefti_plan_member_bytes(plan, bucket);
        reduced += plan->buffers[bucket->source].range == 0
                       ? wefti_plan_member_bytes(plan, bucket)
                       : plan->buffers[bucket->buffer].size_bytes;
    }
    summary.partial_bytes = summary.bucket_count > 0 ? summary.gradient_bytes - reduced : 0;
    *out_summary = summary;
}

weft_status_t wefti_plan_summarise_places(const weft_plan_t *plan,
                                          wefti_plan_place_summary_t **out_places,
                                          uint32_t *out_count)
{
    uint32_t count = plan->place_group == 0 ? 0 : plan->mesh.axes[plan->place_group - 1].size;
    wefti_plan_place_summary_t *places =
        wefti_alloc(plan->arena.allocator, (count + (size_t)1) * sizeof *places);
    wefti_arena_t arena;
    wefti_arena_init(&arena, plan->arena.allocator, 0);
    const uint32_t *of = count == 0 ? NULL : wefti_plan_buffer_places(plan, &arena);
    if (!places || (count > 0 && !of)) {
        wefti_free(plan->arena.allocator, places);
        wefti_arena_deinit(&arena);
        return WEFT_ERR_NO_MEMORY;
    }
    weft_status_t status = WEFT_OK;
    for (uint32_t p = 0; p < count && status == WEFT_OK; p++) {
        wefti_plan_span_t *spans = NULL;
        uint32_t span_count = 0;
        places[p] = (wefti_plan_place_summary_t){0};
        status = wefti_plan_place_spans(plan, p + 1, &arena, &spans, &span_count);
        for (uint32_t i = 0; i < span_count; i++) {
            places[p].arena_bytes += spans[i].end - spans[i].begin;
        }
        for (uint32_t i = 0; i < plan->kernel_count; i++) {
            places[p].kernel_count += plan->kernels[i].place == p + 1;
        }
        for (uint32_t b = 0; b < plan->buffer_count; b++) {
            const wefti_plan_buffer_t *buffer = &plan->buffers[b];
            int loaded = buffer->kind == WEFTI_BUFFER_PARAM || buffer->kind == WEFTI_BUFFER_CONST;
            places[p].weight_bytes +=
                loaded && (of[b] == 0 || of[b] == p + 1) ? buffer->size_bytes : 0;
        }
    }
    wefti_arena_deinit(&arena);
    if (status != WEFT_OK) {
        wefti_free(plan->arena.allocator, places);
        return status;
    }
    *out_places = places;
    *out_count = count;
    return WEFT_OK;
}
