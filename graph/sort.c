/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Topological order by a heap: of the nodes that are ready the one with the smallest key goes
 * first. With present positions as keys, an order that is already topological comes out unchanged.
 */
#include <string.h>

#include "graph/ir.h"
#include "runtime/base/error.h"

#define CYCLE_NAMES_SHOWN 4

/* Everything of one sort, by node id. */
typedef struct sorter {
    const wefti_graph_t *graph;
    const uint64_t *keys;
    uint32_t *pending;    /* predecessors not yet placed */
    uint32_t *first_next; /* successors of node i: next[first_next[i] .. first_next[i + 1]) */
    uint32_t *next;
    uint32_t *heap;
    uint32_t heap_count;
    uint32_t *order;
    uint32_t placed;
} sorter_t;

static bool runs_before(const sorter_t *sorter, uint32_t a, uint32_t b)
{
    uint64_t key_a = sorter->keys[a], key_b = sorter->keys[b];
    return key_a != key_b ? key_a < key_b : a < b;
}

static void heap_push(sorter_t *sorter, uint32_t node)
{
    uint32_t at = sorter->heap_count++;
    while (at > 0 && runs_before(sorter, node, sorter->heap[(at - 1) / 2])) {
        sorter->heap[at] = sorter->heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    sorter->heap[at] = node;
}

static uint32_t heap_pop(sorter_t *sorter)
{
    uint32_t top = sorter->heap[0];
    uint32_t last = sorter->heap[--sorter->heap_count];
    uint32_t at = 0;
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child >= sorter->heap_count) {
            break;
        }
        if (child + 1 < sorter->heap_count &&
            runs_before(sorter, sorter->heap[child + 1], sorter->heap[child])) {
            child++;
        }
        if (!runs_before(sorter, sorter->heap[child], last)) {
            break;
        }
        sorter->heap[at] = sorter->heap[child];
        at = child;
    }
    sorter->heap[at] = last;
    return top;
}

/* The live node that makes input index of node, or WEFTI_NONE. */
static uint32_t producer_of(const wefti_graph_t *graph, const wefti_node_t *node, uint32_t index)
{
    uint32_t value = node->inputs[index];
    return value == WEFTI_NONE ? WEFTI_NONE : graph->values[value].producer;
}

/* Calls for every edge twice: first to count (next NULL), then to fill. */
static void visit_edges(sorter_t *sorter, const wefti_constraint_t *extra, size_t extra_count,
                        uint32_t *fill)
{
    const wefti_graph_t *graph = sorter->graph;
    for (uint32_t i = 0; i < graph->order_count; i++) {
        uint32_t id = graph->order[i];
        const wefti_node_t *node = &graph->nodes[id];
        for (uint32_t k = 0; k < node->input_count; k++) {
            uint32_t before = producer_of(graph, node, k);
            if (before == WEFTI_NONE) {
                continue;
            }
            if (fill) {
                sorter->next[fill[before]++] = id;
            } else {
                sorter->first_next[before + 1]++;
                sorter->pending[id]++;
            }
        }
    }
    for (size_t i = 0; i < extra_count; i++) {
        if (fill) {
            sorter->next[fill[extra[i].before]++] = extra[i].after;
        } else {
            sorter->first_next[extra[i].before + 1]++;
            sorter->pending[extra[i].after]++;
        }
    }
}

static weft_status_t build_edges(sorter_t *sorter)
{
    weft_status_t status;
    const wefti_graph_t *graph = sorter->graph;
    const weft_allocator_t *allocator = graph->arena.allocator;
    wefti_constraint_t *extra = NULL;
    uint32_t *fill = NULL;
    size_t extra_count = 0;
    WEFT_TRY(status, wefti_graph_order_edges(graph, &extra, &extra_count), done);
    visit_edges(sorter, extra, extra_count, NULL);
    uint64_t total = 0;
    for (uint32_t i = 0; i < graph->node_count; i++) {
        total += sorter->first_next[i + 1];
        if (total > UINT32_MAX) {
            status = wefti_error(WEFT_ERR_UNSUPPORTED, "graph has too many edges");
            goto done;
        }
        sorter->first_next[i + 1] += sorter->first_next[i];
    }
    sorter->next = wefti_alloc(allocator, (size_t)total * sizeof(uint32_t));
    fill = wefti_alloc(allocator, ((size_t)graph->node_count + 1) * sizeof(uint32_t));
    if (!sorter->next || !fill) {
        status = WEFT_ERR_NO_MEMORY;
        goto done;
    }
    memcpy(fill, sorter->first_next, graph->node_count * sizeof(uint32_t));
    visit_edges(sorter, extra, extra_count, fill);
done:
    wefti_free(allocator, fill);
    wefti_free(allocator, extra);
    return status;
}

/* needs[id]: a node that was not placed and that id waits for. Returns one that waits, or
 * WEFTI_NONE. */
static uint32_t find_waiting(const sorter_t *sorter, uint32_t *needs)
{
    const wefti_graph_t *graph = sorter->graph;
    uint32_t start = WEFTI_NONE;
    for (uint32_t i = 0; i < graph->node_count; i++) {
        needs[i] = WEFTI_NONE;
    }
    for (uint32_t i = 0; i < graph->order_count; i++) {
        uint32_t id = graph->order[i];
        for (uint32_t k = sorter->first_next[id];
             sorter->pending[id] && k < sorter->first_next[id + 1]; k++) {
            needs[sorter->next[k]] = id;
            start = sorter->next[k];
        }
    }
    return start;
}

/* Walking along needs[] from any node that waits ends in a cycle. */
static weft_status_t cycle_error(const sorter_t *sorter)
{
    const wefti_graph_t *graph = sorter->graph;
    uint32_t *met = sorter->heap; /* has done its work */
    uint32_t *needs =
        wefti_alloc(graph->arena.allocator, ((size_t)graph->node_count + 1) * sizeof(uint32_t));
    if (!needs) {
        return WEFT_ERR_NO_MEMORY;
    }
    uint32_t at = find_waiting(sorter, needs);
    memset(met, 0, graph->node_count * sizeof(*met));
    while (at != WEFTI_NONE && !met[at]) {
        met[at] = 1;
        at = needs[at];
    }
    wefti_text_t names;
    wefti_text_init(&names, graph->arena.allocator);
    uint32_t first = at;
    for (uint32_t shown = 0; at != WEFTI_NONE && shown < CYCLE_NAMES_SHOWN; shown++) {
        wefti_text_printf(&names, "%s'%s'", shown ? " needs " : ": ", graph->nodes[at].name);
        at = needs[at];
        if (at == first) {
            wefti_text_printf(&names, " needs '%s'", graph->nodes[first].name);
            break;
        }
    }
    weft_status_t status =
        wefti_error(WEFT_ERR_INVALID_ARGUMENT, "graph has a cycle%s", names.data ? names.data : "");
    wefti_text_deinit(&names);
    wefti_free(graph->arena.allocator, needs);
    return status;
}

static weft_status_t run(sorter_t *sorter)
{
    const wefti_graph_t *graph = sorter->graph;
    for (uint32_t i = 0; i < graph->order_count; i++) {
        if (sorter->pending[graph->order[i]] == 0) {
            heap_push(sorter, graph->order[i]);
        }
    }
    while (sorter->heap_count) {
        uint32_t id = heap_pop(sorter);
        sorter->order[sorter->placed++] = id;
        for (uint32_t k = sorter->first_next[id]; k < sorter->first_next[id + 1]; k++) {
            if (--sorter->pending[sorter->next[k]] == 0) {
                heap_push(sorter, sorter->next[k]);
            }
        }
    }
    return sorter->placed == graph->order_count ? WEFT_OK : cycle_error(sorter);
}

weft_status_t wefti_graph_sort_by(wefti_graph_t *graph, const uint64_t *keys)
{
    weft_status_t status = WEFT_ERR_NO_MEMORY;
    const weft_allocator_t *allocator = graph->arena.allocator;
    size_t ids_bytes = ((size_t)graph->node_count + 1) * sizeof(uint32_t);
    sorter_t sorter = {.graph = graph, .keys = keys};
    sorter.pending = wefti_alloc(allocator, ids_bytes);
    sorter.first_next = wefti_alloc(allocator, ids_bytes);
    sorter.heap = wefti_alloc(allocator, ids_bytes);
    sorter.order = wefti_alloc(allocator, ids_bytes);
    if (!sorter.pending || !sorter.first_next || !sorter.heap || !sorter.order) {
        goto done;
    }
    WEFT_TRY(status, build_edges(&sorter), done);
    WEFT_TRY(status, run(&sorter), done);
    memcpy(graph->order, sorter.order, graph->order_count * sizeof(uint32_t));
done:
    wefti_free(allocator, sorter.pending);
    wefti_free(allocator, sorter.first_next);
    wefti_free(allocator, sorter.next);
    wefti_free(allocator, sorter.heap);
    wefti_free(allocator, sorter.order);
    return status;
}

weft_status_t wefti_graph_sort(wefti_graph_t *graph)
{
    const weft_allocator_t *allocator = graph->arena.allocator;
    uint64_t *keys = wefti_alloc(allocator, ((size_t)graph->node_count + 1) * sizeof(*keys));
    if (!keys) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t i = 0; i < graph->order_count; i++) {
        keys[graph->order[i]] = i;
    }
    weft_status_t status = wefti_graph_sort_by(graph, keys);
    wefti_free(allocator, keys);
    return status;
}
