/* SPDX-License-Identifier: Apache-2.0 */
/* Why the communication of one gradient ends when it is predicted to end. */
#include "ops/plan/explain.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ops/plan/plan_internal.h"
#include "runtime/base/error.h"
#include "runtime/base/suggest.h"

/* One bucket that covers the gradient, in the time of the comm stream. */
typedef struct passage {
    const wefti_plan_collective_t *bucket;
    uint32_t index, busy_with; /* the bucket before it */
    uint32_t last_member;      /* buffer that is ready last */
    uint64_t ready_ps, start_ps, finish_ps;
} passage_t;

typedef struct search {
    const weft_plan_t *plan;
    wefti_plan_forecast_gradient_t *gradients; /* by name */
    uint32_t buffer;                           /* the gradient asked for */
    uint32_t bucket_count;
    passage_t first, last;
    uint64_t sending_ps; /* in all of its buckets */
    uint32_t found;
} search_t;

static int by_name(const void *a, const void *b)
{
    const wefti_plan_forecast_gradient_t *x = a, *y = b;
    return strcmp(x->name, y->name);
}

static uint64_t ready_of(const search_t *search, uint32_t buffer)
{
    wefti_plan_forecast_gradient_t key = {.name = search->plan->buffers[buffer].name};
    const wefti_plan_forecast_gradient_t *found =
        search->plan->forecast.gradient_count == 0
            ? NULL
            : bsearch(&key, search->gradients, search->plan->forecast.gradient_count, sizeof key,
                      by_name);
    return found != NULL ? found->ready_ps : 0;
}

/* "w" is asked for as "w" or as "w_grad". */
static bool is_asked_for(const char *name, const char *tensor)
{
    size_t length = strlen(tensor);
    return strcmp(name, tensor) == 0 ||
           (strncmp(name, tensor, length) == 0 && strcmp(name + length, "_grad") == 0);
}

/* Plays the comm stream: buckets in order, each when it is ready and the one before is done. */
static void play(search_t *search, const char *tensor)
{
    const wefti_plan_collective_t *bucket;
    uint64_t position = 0, now = 0;
    uint32_t stream;
    while ((bucket = wefti_plan_next_bucket(search->plan, &position, &stream)) != NULL) {
        passage_t passage = {.bucket = bucket, .index = search->bucket_count};
        bool asked = false;
        for (uint32_t i = 0; i < bucket->member_count; i++) {
            uint64_t ready = ready_of(search, bucket->members[i]);
            if (ready >= passage.ready_ps) {
                passage.ready_ps = ready;
                passage.last_member = bucket->members[i];
            }
            if (is_asked_for(search->plan->buffers[bucket->members[i]].name, tensor)) {
                asked = true;
                search->buffer = bucket->members[i];
            }
        }
        passage.busy_with = search->bucket_count > 0 ? search->bucket_count - 1 : 0;
        passage.start_ps = now > passage.ready_ps ? now : passage.ready_ps;
        passage.finish_ps = passage.start_ps + bucket->algorithms[0].predicted_ps;
        now = passage.finish_ps;
        if (asked) {
            search->first = search->found == 0 ? passage : search->first;
            search->last = passage;
            search->sending_ps += bucket->algorithms[0].predicted_ps;
            search->found++;
        }
        search->bucket_count++;
    }
}

static double us(uint64_t ps)
{
    return (double)ps * 1e-6;
}

static void add_head(wefti_text_t *out, const search_t *search)
{
    const wefti_plan_buffer_t *buffer = &search->plan->buffers[search->buffer];
    char bytes[32];
    wefti_text_add_printable(out, buffer->name);
    wefti_text_printf(out, ": %s %s, ", wefti_format_bytes(buffer->size_bytes, bytes),
                      weft_dtype_name(buffer->dtype));
    if (search->found > 1) {
        wefti_text_printf(out, "in %" PRIu32 " pieces, buckets %" PRIu32 " to %" PRIu32,
                          search->found, search->first.index, search->last.index);
    } else if (search->first.bucket->member_count == 1) {
        wefti_text_printf(out, "alone in bucket %" PRIu32, search->first.index);
    } else {
        wefti_text_printf(out, "one of %" PRIu32 " in bucket %" PRIu32,
                          search->first.bucket->member_count, search->first.index);
    }
    wefti_text_printf(out, " of %" PRIu32 "\n", search->bucket_count);
}

static void add_causes(wefti_text_t *out, const search_t *search)
{
    const passage_t *last = &search->last;
    const wefti_plan_forecast_t *forecast = &search->plan->forecast;
    uint64_t own = ready_of(search, search->buffer);
    uint64_t alone = own + search->sending_ps;
    if (alone > forecast->ready_ps) {
        wefti_text_printf(out, "    late: sent at once, its bucket would end at %.1f us\n",
                          us(alone));
    }
    if (last->ready_ps > own) {
        wefti_text_printf(out, "    its bucket waits another %.1f us for ",
                          us(last->ready_ps - own));
        wefti_text_add_printable(out, search->plan->buffers[last->last_member].name);
        wefti_text_add(out, "\n");
    }
    const passage_t *first = &search->first; /* pieces wait for each other anyway */
    if (first->start_ps > first->ready_ps) {
        wefti_text_printf(out,
                          "    the channel is busy for another %.1f us, with bucket %" PRIu32 "\n",
                          us(first->start_ps - first->ready_ps), first->busy_with);
    }
}

/* The error for a tensor that no bucket has: the closest gradient, and all of them. */
static weft_status_t no_gradient(const weft_plan_t *plan, const char *tensor)
{
    const wefti_plan_collective_t *bucket;
    wefti_suggestion_t near = {.word = tensor};
    uint64_t position = 0;
    char list[512] = "";
    size_t used = 0;
    uint32_t stream, last = UINT32_MAX;
    while ((bucket = wefti_plan_next_bucket(plan, &position, &stream)) != NULL) {
        for (uint32_t i = 0; i < bucket->member_count; i++) {
            const char *name = plan->buffers[bucket->members[i]].name;
            wefti_suggestion_offer(&near, name);
            if (bucket->members[i] != last && used < sizeof list) { /* once for all its pieces */
                used += (size_t)snprintf(list + used, sizeof list - used, "%s%.100s",
                                         used > 0 ? ", " : "", name);
            }
            last = bucket->members[i];
        }
    }
    if (used >= sizeof list) {
        memcpy(list + sizeof list - 5, " ...", 5);
    }
    return near.best != NULL
               ? wefti_error(WEFT_ERR_NOT_FOUND,
                             "no gradient '%s' (did you mean '%s'?); the plan's gradients: %s",
                             tensor, near.best, list)
               : wefti_error(WEFT_ERR_NOT_FOUND, "no gradient '%s'; the plan's gradients: %s",
                             tensor, used > 0 ? list : "none");
}

weft_status_t wefti_plan_explain_why(const weft_plan_t *plan, const char *tensor, wefti_text_t *out)
{
    const wefti_plan_forecast_t *forecast = &plan->forecast;
    search_t search = {.plan = plan};
    size_t bytes = forecast->gradient_count * sizeof *search.gradients;
    search.gradients = wefti_alloc(plan->arena.allocator, bytes + 1);
    if (search.gradients == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    if (bytes > 0) {
        memcpy(search.gradients, forecast->gradients, bytes);
        qsort(search.gradients, forecast->gradient_count, sizeof *search.gradients, by_name);
    }
    play(&search, tensor);
    if (search.found == 0) {
        wefti_free(plan->arena.allocator, search.gradients);
        return no_gradient(plan, tensor);
    }
    add_head(out, &search);
    if (forecast->row_count == 0) {
        wefti_text_add(out, "  the plan has no predictions\n");
    } else {
        uint64_t finish = search.last.finish_ps, ready = forecast->ready_ps;
        wefti_text_printf(out,
                          "  ready at %.1f us; sent from %.1f to %.1f us; the last gradient is "
                          "ready at %.1f us\n",
                          us(ready_of(&search, search.buffer)), us(search.first.start_ps),
                          us(finish), us(ready));
        if (finish > ready) {
            wefti_text_printf(out, "  exposed for %.1f us\n", us(finish - ready));
            add_causes(out, &search);
        } else {
            wefti_text_printf(out, "  hidden: the backward pass runs for another %.1f us\n",
                              us(ready - finish));
        }
    }
    wefti_text_add(out, "  its bucket: ");
    wefti_text_add_printable(out, search.last.bucket->reason);
    wefti_text_add(out, "\n");
    wefti_free(plan->arena.allocator, search.gradients);
    return WEFT_OK;
}
