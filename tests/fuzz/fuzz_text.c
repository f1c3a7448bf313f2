/* SPDX-License-Identifier: Apache-2.0 */
/* The text form under fuzzing: what the parser accepts is a valid graph, and prints the same after it
 * was read again. */
#include <stdlib.h>
#include <string.h>

#include "graph/ir.h"
#include "tests/support/support_fuzz.h"

static char *print(const wefti_graph_t *graph)
{
    wefti_text_t text;
    wefti_text_init(&text, NULL);
    wefti_graph_to_text(graph, UINT32_MAX, &text);
    return wefti_text_take(&text);
}

void fuzz_one(const uint8_t *data, size_t size)
{
    wefti_graph_t *graph, *again;
    const weft_registry_t *registry = fuzz_registry();
    weft_status_t status = wefti_graph_from_text((const char *)data, size, NULL, registry, &graph);
    fuzz_check((status == WEFT_OK) == (graph != NULL), "status and graph disagree");
    fuzz_check(status != WEFT_ERR_INTERNAL, "an error of our own");
    if (graph == NULL) {
        return;
    }
    fuzz_check(wefti_graph_verify(graph) == WEFT_OK, "a graph from text breaks a rule");
    char *text = print(graph);
    fuzz_check(wefti_graph_from_text(text, strlen(text), NULL, registry, &again) == WEFT_OK, text);
    char *second = print(again);
    fuzz_check(strcmp(text, second) == 0, "the text changes when it is read again");
    free(text);
    free(second);
    wefti_graph_destroy(graph);
    wefti_graph_destroy(again);
}
