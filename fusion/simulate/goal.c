/* SPDX-License-Identifier: Apache-2.0 */
/* GOAL schedules as text, as txt2bin of LogGOPSim and ATLAHS reads them: per rank labelled
 * operations (calc in ns, send and recv in bytes) and what they require. */
#include "fusion/simulate/trace.h"

#include <inttypes.h>

#include "runtime/base/error.h"
#include "runtime/base/text.h"

typedef struct goal {
    sim_tracer_t *tracer;
    uint32_t ranks;
    const sim_progress_t *progress;
    wefti_text_t text; /* of a rank */
} goal_t;

static weft_status_t add_line(void *user, uint32_t rank, uint32_t number, const sim_node_t *node)
{
    wefti_text_t *text = user;
    (void)rank;
    if (node->kind == SIM_CALC) {
        wefti_text_printf(text, "l%" PRIu32 ": calc %" PRIu64 "\n", number, node->ns);
    } else {
        bool sends = node->kind == SIM_SEND;
        wefti_text_printf(text, "l%" PRIu32 ": %s %" PRIu64 "b %s %" PRIu32 " tag %" PRIu32 "\n",
                          number, sends ? "send" : "recv", node->bytes, sends ? "to" : "from",
                          node->peer, node->tag);
    }
    for (uint32_t i = 0; i < node->depend_count; i++) {
        wefti_text_printf(text, "l%" PRIu32 " requires l%" PRIu32 "\n", number, node->depends[i]);
    }
    return text->failed ? WEFT_ERR_NO_MEMORY : WEFT_OK;
}

static weft_status_t make_rank(goal_t *goal, uint32_t rank)
{
    goal->text.length = 0;
    if (rank == 0) {
        wefti_text_printf(&goal->text, "num_ranks %" PRIu32 "\n", goal->ranks);
    }
    wefti_text_printf(&goal->text, "\nrank %" PRIu32 " {\n", rank);
    WEFT_RETURN_IF_ERROR(wefti_sim_trace_rank(goal->tracer, rank, add_line, &goal->text));
    wefti_text_add(&goal->text, "}\n");
    return goal->text.failed ? WEFT_ERR_NO_MEMORY : WEFT_OK;
}

static weft_status_t append_ranks(void *user, wefti_file_stream_t *stream)
{
    goal_t *goal = user;
    for (uint32_t r = 0; r < goal->ranks; r++) {
        WEFT_RETURN_IF_ERROR(make_rank(goal, r));
        WEFT_RETURN_IF_ERROR(wefti_file_append(stream, goal->text.data, goal->text.length));
        wefti_sim_progress(goal->progress, r + 1, goal->ranks);
    }
    return WEFT_OK;
}

weft_status_t wefti_sim_write_goal(const sim_world_t *world, const weft_plan_t *plan,
                                   const weft_registry_t *registry, const char *path,
                                   const sim_progress_t *progress)
{
    weft_status_t status;
    goal_t goal = {.ranks = world->ranks, .progress = progress};
    wefti_text_init(&goal.text, NULL);
    WEFT_TRY(status, wefti_sim_tracer_create(world, plan, registry, &goal.tracer), out);
    WEFT_TRY(status, make_rank(&goal, 0), out);
    uint64_t expected = (uint64_t)goal.text.length * world->ranks;
    WEFT_TRY(status, wefti_file_check_room(path, expected, 1), out);
    wefti_sim_announce(progress, path, expected, 1);
    status = wefti_file_write_stream(path, append_ranks, &goal);
out:
    wefti_sim_tracer_destroy(goal.tracer);
    wefti_text_deinit(&goal.text);
    return status;
}
