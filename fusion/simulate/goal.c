/* SPDX-License-Identifier: Apache-2.0 */
/* GOAL schedules as text, as txt2bin of LogGOPSim and ATLAHS reads them: per rank labelled
 * operations (calc in ns, send and recv in bytes) and what they require. */
#include "fusion/simulate/trace.h"

#include <inttypes.h>

#include "runtime/base/text.h"

static weft_status_t add_line(void *user, uint32_t rank, uint32_t number, const sim_node_t *node)
{
    wefti_text_t *text = &((wefti_text_t *)user)[rank];
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

weft_status_t wefti_sim_write_goal(const sim_world_t *world, const weft_plan_t *plan,
                                   const weft_registry_t *registry, const char *path)
{
    wefti_text_t all, *texts = wefti_alloc(NULL, (world->ranks + 1ul) * sizeof *texts);
    if (texts == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    wefti_text_init(&all, NULL);
    for (uint32_t r = 0; r < world->ranks; r++) {
        wefti_text_init(&texts[r], NULL);
    }
    weft_status_t status = wefti_sim_trace(world, plan, registry, add_line, texts);
    wefti_text_printf(&all, "num_ranks %" PRIu32 "\n", world->ranks);
    for (uint32_t r = 0; r < world->ranks; r++) {
        wefti_text_printf(&all, "\nrank %" PRIu32 " {\n", r);
        wefti_text_add_bytes(&all, texts[r].data, texts[r].length);
        wefti_text_add(&all, "}\n");
        wefti_text_deinit(&texts[r]);
    }
    status = status >= 0 ? wefti_file_write_text(path, &all) : status;
    wefti_text_deinit(&all);
    wefti_free(NULL, texts);
    return status;
}
