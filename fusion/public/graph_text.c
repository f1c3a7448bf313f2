/* SPDX-License-Identifier: Apache-2.0 */
/* Graphs as text, for tests of passes outside this library. */
#include <weft/graph_text.h>

#include <string.h>

#include <weft/passes.h>

#include "graph/ir.h"
#include "runtime/base/check.h"

struct weft_graph {
    wefti_graph_t *graph;
    wefti_arena_t arena; /* of the view */
    weft_graph_view_t view;
    wefti_text_t text;
};

static weft_status_t update_view(weft_graph_t *graph)
{
    wefti_arena_deinit(&graph->arena);
    return wefti_graph_view(graph->graph, &graph->arena, &graph->view);
}

weft_status_t weft_graph_from_text(const char *text, const weft_registry_t *registry,
                                   weft_graph_t **out_graph)
{
    WEFT_CHECK_OUT(out_graph);
    WEFT_CHECK_ARG(text);
    WEFT_CHECK_ARG(registry);
    weft_graph_t *graph = wefti_alloc(NULL, sizeof(*graph));
    WEFT_RETURN_IF_NO_MEMORY(graph);
    wefti_arena_init(&graph->arena, NULL, 0);
    wefti_text_init(&graph->text, NULL);
    weft_status_t status = wefti_graph_from_text(text, strlen(text), NULL, registry, &graph->graph);
    if (status >= 0) {
        status = update_view(graph);
    }
    if (status < 0) {
        weft_graph_destroy(graph);
        return status;
    }
    *out_graph = graph;
    return WEFT_OK;
}

void weft_graph_destroy(weft_graph_t *graph)
{
    if (graph != NULL) {
        wefti_graph_destroy(graph->graph);
        wefti_arena_deinit(&graph->arena);
        wefti_text_deinit(&graph->text);
        wefti_free(NULL, graph);
    }
}

const weft_graph_view_t *weft_graph_get_view(const weft_graph_t *graph)
{
    WEFT_CHECK_ARG_OR(graph, NULL);
    return &graph->view;
}

weft_status_t weft_graph_apply(weft_graph_t *graph, const weft_edit_list_t *edits)
{
    WEFT_CHECK_ARG(graph);
    WEFT_CHECK_ARG(edits);
    WEFT_RETURN_IF_ERROR(weft_edits_check(&graph->view, edits));
    WEFT_RETURN_IF_ERROR(wefti_graph_apply(graph->graph, edits));
    return update_view(graph);
}

const char *weft_graph_to_text(weft_graph_t *graph)
{
    WEFT_CHECK_ARG_OR(graph, NULL);
    wefti_text_deinit(&graph->text);
    wefti_text_init(&graph->text, NULL);
    wefti_graph_to_text(graph->graph, UINT32_MAX, &graph->text);
    return graph->text.failed ? NULL : graph->text.data;
}
