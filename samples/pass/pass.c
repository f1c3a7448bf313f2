/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A compiler pass and its test. A pass reads a view of a graph and answers with a list of edits; it
 * never changes the graph. This one finds all-reduces that repeat an earlier one of the same tensor.
 * The test is "graph in, graph out", in text.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <weft/weft.h>

static int is_all_reduce(const weft_view_op_t *op)
{
    return op->present && strcmp(op->def->domain, "weft") == 0 &&
           strcmp(op->def->name, "AllReduce") == 0 && op->input_count == 1;
}

static int repeats(const weft_graph_view_t *view, const weft_view_op_t *a, const weft_view_op_t *b)
{
    return is_all_reduce(a) && is_all_reduce(b) && a->group == b->group &&
           a->reduction == b->reduction &&
           view->op_inputs[a->first_input] == view->op_inputs[b->first_input];
}

/* Merges every all-reduce into the first one of its tensor. */
static weft_status_t merge_all_reduces(const weft_graph_view_t *view, weft_edit_list_t *edits)
{
    for (uint32_t i = 0; i < view->order_count; i++) {
        for (uint32_t k = 0; k < i; k++) {
            uint32_t first = view->order[k], op = view->order[i];
            if (repeats(view, &view->ops[first], &view->ops[op])) {
                weft_edit_t edit = {.kind = WEFT_EDIT_KIND_MERGE, .op_a = first, .op_b = op};
                weft_status_t status = weft_edit_list_add(edits, &edit);
                if (status < 0) {
                    return status;
                }
                break;
            }
        }
    }
    return WEFT_OK;
}

/* ---- the test ---- */

static const char before[] = "graph example opset 17 batch 0\n"
                             "input %x : f32[1000]\n"
                             "%g = Relu(%x)\n"
                             "%r1 = weft::AllReduce(%g) {reduction=\"sum\"}\n"
                             "%r2 = weft::AllReduce(%g) {reduction=\"max\"}\n"
                             "%r3 = weft::AllReduce(%g) {reduction=\"sum\"}\n"
                             "%y = Add(%r1, %r2)\n"
                             "%z = Add(%y, %r3)\n"
                             "output %z\n";
static const char after[] = "graph example opset 17 batch 0\n"
                            "input %x : f32[1000]\n"
                            "%g = Relu(%x) : f32[1000]\n"
                            "%r1 = weft::AllReduce(%g) {reduction=\"sum\"} : f32[1000]\n"
                            "%r2 = weft::AllReduce(%g) {reduction=\"max\"} : f32[1000]\n"
                            "%y = Add(%r1, %r2) : f32[1000]\n"
                            "%z = Add(%y, %r1) : f32[1000]\n"
                            "output %z\n";

static void check(weft_status_t status)
{
    if (status < 0) {
        fprintf(stderr, "pass: %s\n", weft_last_error());
        exit(1);
    }
}

int main(void)
{
    weft_registry_t *registry;
    weft_graph_t *graph;
    weft_edit_list_t *edits;
    check(weft_registry_create(NULL, &registry));
    check(weft_graph_from_text(before, registry, &graph));
    check(weft_edit_list_create(NULL, &edits));
    check(merge_all_reduces(weft_graph_get_view(graph), edits));
    check(weft_graph_apply(graph, edits)); /* checks the edits first */
    const char *text = weft_graph_to_text(graph);
    int equal = text != NULL && strcmp(text, after) == 0;
    printf("%s%zu merged: %s\n", text != NULL ? text : "", weft_edit_list_count(edits),
           equal ? "as expected" : "not as expected");
    weft_edit_list_destroy(edits);
    weft_graph_destroy(graph);
    weft_registry_destroy(registry);
    return equal ? 0 : 1;
}
