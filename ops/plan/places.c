/* SPDX-License-Identifier: Apache-2.0 */
/* Buffers of plans whose ranks run different kernels: which ranks use them, and what memory a rank
 * needs. */
#include <stdlib.h>

#include "ops/plan/plan_internal.h"
#include "runtime/base/error.h"

/* What is known of a buffer's place: nobody uses it yet. */
#define UNUSED UINT32_MAX

static void use_at(uint32_t *places, uint32_t id, uint32_t place)
{
    if (id != WEFTI_PLAN_NONE) {
        places[id] = places[id] == UNUSED || places[id] == place ? place : 0;
    }
}

/* What is used of a range is used of the tensors that it covers. */
static void use_covered(const weft_plan_t *plan, uint32_t *places, uint32_t range)
{
    uint64_t begin = plan->buffers[range].offset_bytes;
    uint64_t end = begin + plan->buffers[range].size_bytes;
    for (uint32_t b = 0; b < plan->buffer_count && places[range] != UNUSED; b++) {
        const wefti_plan_buffer_t *buffer = &plan->buffers[b];
        bool lasts = buffer->kind == WEFTI_BUFFER_PARAM || buffer->kind == WEFTI_BUFFER_GRAD ||
                     buffer->kind == WEFTI_BUFFER_STATE;
        if (lasts && buffer->offset_bytes < end &&
            buffer->offset_bytes + buffer->size_bytes > begin) {
            use_at(places, b, places[range]);
        }
    }
}

uint32_t *wefti_plan_buffer_places(const weft_plan_t *plan, wefti_arena_t *arena)
{
    uint32_t *places = wefti_arena_array(arena, plan->buffer_count, sizeof *places);
    for (uint32_t b = 0; b < plan->buffer_count && places != NULL; b++) {
        places[b] = UNUSED;
    }
    for (uint32_t i = 0; i < plan->kernel_count && places != NULL; i++) {
        const wefti_plan_kernel_t *kernel = &plan->kernels[i];
        for (uint32_t k = 0; k < kernel->input_count; k++) {
            use_at(places, kernel->inputs[k], kernel->place);
        }
        for (uint32_t k = 0; k < kernel->output_count; k++) {
            use_at(places, kernel->outputs[k], kernel->place);
        }
    }
    for (uint32_t i = 0; i < plan->collective_count && places != NULL; i++) {
        const wefti_plan_collective_t *collective = &plan->collectives[i];
        use_at(places, collective->source,
               wefti_plan_sends(plan, collective) ? collective->root + 1 : collective->place);
        use_at(places, collective->buffer, collective->place);
    }
    for (uint32_t b = 0; b < plan->buffer_count && places != NULL; b++) {
        if (plan->buffers[b].kind == WEFTI_BUFFER_RANGE) {
            use_covered(plan, places, b);
        }
    }
    for (uint32_t b = 0; b < plan->buffer_count && places != NULL; b++) {
        places[b] = places[b] == UNUSED ? 0 : places[b];
    }
    return places;
}

static int by_begin(const void *a, const void *b)
{
    const wefti_plan_span_t *x = a, *y = b;
    return (x->begin > y->begin) - (x->begin < y->begin);
}

weft_status_t wefti_plan_place_spans(const weft_plan_t *plan, uint32_t place, wefti_arena_t *arena,
                                     wefti_plan_span_t **out_spans, uint32_t *out_count)
{
    const uint32_t *places = wefti_plan_buffer_places(plan, arena);
    wefti_plan_span_t *spans = wefti_arena_array(arena, plan->buffer_count, sizeof *spans);
    uint32_t count = 0, kept = 0;
    WEFT_RETURN_IF_NO_MEMORY(places && spans);
    for (uint32_t b = 0; b < plan->buffer_count; b++) {
        const wefti_plan_buffer_t *buffer = &plan->buffers[b];
        if ((places[b] == 0 || places[b] == place) && buffer->size_bytes > 0 &&
            !wefti_plan_is_nowhere(buffer)) {
            spans[count++] = (wefti_plan_span_t){
                buffer->offset_bytes, wefti_plan_padded_bytes(wefti_plan_buffer_end(plan, buffer))};
        }
    }
    qsort(spans, count, sizeof *spans, by_begin);
    for (uint32_t i = 0; i < count; i++) {
        if (kept > 0 && spans[i].begin <= spans[kept - 1].end) {
            spans[kept - 1].end =
                spans[i].end > spans[kept - 1].end ? spans[i].end : spans[kept - 1].end;
        } else {
            spans[kept++] = spans[i];
        }
    }
    *out_spans = spans;
    *out_count = kept;
    return WEFT_OK;
}
