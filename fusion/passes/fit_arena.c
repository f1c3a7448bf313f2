/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fit-arena: a plan that keeps to arena_limit.
 *
 * Matches the whole graph. Produces another order of execution, as schedule does (schedule_graph.c).
 * Only lowering knows the size of the arena, so fit-arena runs the passes after it and lowering on a
 * copy of the graph. If the plan is too large, it schedules again with less memory for activations,
 * up to 6 times. If no order fits, recompute "auto" computes activations again (recompute.c), with
 * less memory for them from try to try; without it that is an error.
 */
#include "fusion/passes/passes.h"

#include <string.h>

#include "fusion/passes/recompute.h"
#include "fusion/passes/schedule_graph.h"
#include "runtime/base/error.h"

#define MOST_TRIES 8u  /* plans made to get below the limit */
#define MOST_HALVES 8u /* and, if that fails, to find the least that is reachable */

/* The arena of the plan with the chosen set. */
static weft_status_t arena_with(wefti_compiler_t *c, wefti_recompute_t *r, uint64_t *out_bytes)
{
    wefti_graph_t *graph = c->graph, *copy = NULL;
    weft_status_t status = wefti_graph_clone(graph, &copy);
    if (status >= 0) {
        status = wefti_recompute_apply(r, copy);
    }
    if (status >= 0) {
        c->graph = copy;
        status = wefti_compile_arena(c, out_bytes);
        c->graph = graph;
    }
    wefti_graph_destroy(copy);
    return status;
}

typedef struct search {
    wefti_compiler_t *c;
    wefti_recompute_t *recompute;
    uint64_t least; /* of all plans */
} search_t;

static weft_status_t try(search_t *s, uint64_t most_bytes, bool *out_reached, uint64_t *out_bytes)
{
    *out_reached = wefti_recompute_choose(s->recompute, most_bytes);
    weft_status_t status = arena_with(s->c, s->recompute, out_bytes);
    s->least = status >= 0 && *out_bytes < s->least ? *out_bytes : s->least;
    return status;
}

/* First from the size that is missing, which gives up little. Then by halves, without regard to the
 * limit: so the least that an error reports is a limit that can be kept. */
static weft_status_t search(search_t *s, uint64_t peak, uint64_t bytes)
{
    uint64_t limit = s->c->params.arena_limit, most = peak, low = 0, high = peak;
    bool reached = true;
    char text[2][32];
    for (uint32_t i = 0; i < MOST_TRIES && reached; i++) {
        uint64_t above = bytes - limit;
        most = most > above ? most - above : 1;
        WEFT_RETURN_IF_ERROR(try(s, most, &reached, &bytes));
        if (bytes <= limit) {
            return WEFT_OK;
        }
    }
    s->least = UINT64_MAX;
    for (uint32_t i = 0; i < MOST_HALVES; i++) {
        most = low + (high - low) / 2;
        WEFT_RETURN_IF_ERROR(try(s, most, &reached, &bytes));
        if (bytes <= limit) {
            return WEFT_OK;
        }
        high = reached ? most : high;
        low = reached ? low : most;
    }
    wefti_format_bytes(limit, text[0]);
    wefti_format_bytes(s->least, text[1]);
    return wefti_error_field(WEFT_ERR_UNSUPPORTED, "arena_limit",
                             "%s is too small: with recomputation the plan needs %s (%llu bytes); "
                             "reduce batch, or set shard_parameters or accumulate",
                             text[0], text[1], (unsigned long long)s->least);
}

static weft_status_t recompute_to_fit(void *user, const wefti_schedule_params_t *params)
{
    wefti_compiler_t *c = user;
    uint64_t bytes = 0;
    wefti_recompute_t recompute;
    search_t s = {.c = c, .recompute = &recompute};
    WEFT_RETURN_IF_ERROR(wefti_compile_arena(c, &bytes));
    if (bytes <= c->params.arena_limit) {
        return WEFT_OK;
    }
    c->kept_arena_bytes = bytes;
    WEFT_RETURN_IF_ERROR(wefti_recompute_init(c->graph, params, &c->arena, &recompute));
    WEFT_RETURN_IF_ERROR(search(&s, wefti_recompute_peak(&recompute), bytes));
    return wefti_recompute_adopt(c, &recompute);
}

weft_status_t wefti_apply_fit_arena(wefti_compiler_t *c)
{
    wefti_schedule_options_t options = wefti_schedule_options(c);
    if (c->params.recompute != NULL && strcmp(c->params.recompute, "auto") == 0) {
        options.otherwise = recompute_to_fit;
    }
    return wefti_schedule_graph(c->graph, &options);
}
