/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file graph_text.h
 * Graphs as text: the input and output of tests of compiler passes.
 *
 * The text has one statement per line. Types of outputs may be left out; the parser infers them.
 *
 *     param %w : f32[1000]
 *     %g = Relu(%w) : f32[1000]
 *     %r = weft::AllReduce(%g) {reduction="avg", group=0} : f32[1000] grad(%w)
 *     output %r
 *
 * `weft compile --print-after PASS` prints graphs in this form; graph/text/parse.c has the grammar.
 * All functions of this header are local. One thread at a time uses a graph.
 */
#ifndef WEFT_GRAPH_TEXT_H
#define WEFT_GRAPH_TEXT_H

#include <weft/graph_view.h>

/** A graph that was read from text. */
typedef struct weft_graph weft_graph_t;

WEFT_EXTERN_C_BEGIN
/**
 * Reads a graph and verifies it.
 * @param[in]  text      terminated; not kept
 * @param[in]  registry  definitions of operators; borrowed until the graph is destroyed
 * @param[out] out_graph the graph; the caller destroys it
 * @return WEFT_ERR_INVALID_ARGUMENT with the line and the cause, WEFT_ERR_UNSUPPORTED for an
 *         unknown operator, WEFT_ERR_NO_MEMORY
 */
WEFT_API weft_status_t weft_graph_from_text(const char *text, const weft_registry_t *registry,
                                            weft_graph_t **out_graph);
/**
 * Destroys a graph, its view and its text.
 * @param[in] graph NULL: nothing happens
 */
WEFT_API void weft_graph_destroy(weft_graph_t *graph);
/**
 * Returns the view of a graph for passes.
 * @param[in] graph the graph
 * @return the view, borrowed until edits are applied or the graph is destroyed; NULL if graph is
 *         NULL
 */
WEFT_API const weft_graph_view_t *weft_graph_get_view(const weft_graph_t *graph);
/**
 * Checks edits against the view and applies them. After a failure the graph can only be destroyed.
 * @param[in] graph the graph
 * @param[in] edits of a pass; not kept
 * @return WEFT_ERR_INVALID_ARGUMENT naming the first edit that may not be applied,
 *         WEFT_ERR_NO_MEMORY
 */
WEFT_API weft_status_t weft_graph_apply(weft_graph_t *graph, const weft_edit_list_t *edits);
/**
 * Returns the text of a graph. Reading it gives the same graph.
 * @param[in] graph the graph
 * @return the text, borrowed until the next call or until the graph is destroyed; NULL: no memory,
 *         or graph is NULL
 */
WEFT_API const char *weft_graph_to_text(weft_graph_t *graph);
WEFT_EXTERN_C_END

#endif
