/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Topological order by a heap: of the nodes that are ready the one with the smallest key goes
 * first. With present positions as keys, an order that is already topological comes out unchanged.
 */
#include <string.h>

#include "graph/ir.h"
#include "graph/successors.h"
#include "runtime/base/error.h"

#define CYCLE_NAMES_SHOWN 4

/* Everything of one sort, by node id. */
typedef struct sorter {
    const wefti_graph_t *graph;
    const uint64_t *keys;
    uint32_t *pending; /* predecessors not yet placed */
    wefti_successors_t after;
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

static void add_edges(sorter_t *sorter, const wefti_constraint_t *extra, size_t extra_count)
{
    const wefti_graph_t *graph = sorter->graph;
    for (uint32_t i = 0; i < graph->order_count; i++) {
        uint32_t id = graph->order[i];
        for (uint32_t k = 0; k < graph->nodes[id].input_count; k++) {
            uint32_t value = graph->nodes[id].inputs[k];
            if (value != WEFTI_NONE && graph->values[value].producer != WEFTI_NONE) {
                wefti_successors_add(&sorter->after, graph->values[value].producer, id);
            }
        }
    }
    for (size_t i = 0; i < extra_count; i++) {
        wefti_successors_add(&sorter->after, extra[i].before, extra[i].after);
    }
}

static weft_status_t build_edges(sorter_t *sorter, wefti_arena_t *arena)
{
    weft_status_t status;
    const wefti_graph_t *graph = sorter->graph;
    wefti_constraint_t *extra = NULL;
    size_t extra_count = 0;
    WEFT_TRY(status, wefti_graph_order_edges(graph, &extra, &extra_count), done);
    WEFT_TRY(status, wefti_successors_begin(&sorter->after, graph->node_count, arena), done);
    add_edges(sorter, extra, extra_count);
    WEFT_TRY(status, wefti_successors_fill(&sorter->after, arena), done);
    add_edges(sorter, extra, extra_count);
    for (uint32_t k = 0; k < sorter->after.first[graph->node_count]; k++) {
        sorter->pending[sorter->after.next[k]]++;
    }
done:
    wefti_free(graph->arena.allocator, extra);
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
        for (uint32_t k = sorter->after.first[id];
             sorter->pending[id] && k < sorter->after.first[id + 1]; k++) {
            needs[sorter->after.next[k]] = id;
            start = sorter->after.next[k];
        }
    }
    return start;
}

/* Walking along needs[] from any node that waits ends in a cycle. */
static weft_status_t cycle_error(const sorter_t *sorter)
{
    const wefti_graph_t *graph = sorter->graph;
    uint32_t *met = sorter->heap; /* free to use now */
    uint32_t *needs =
        wefti_alloc(graph->arena.allocator, ((size_t)graph->node_count + 1) * sizeof(uint32_t));
    WEFT_RETURN_IF_NO_MEMORY(needs);
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
        for (uint32_t k = sorter->after.first[id]; k < sorter->after.first[id + 1]; k++) {
            if (--sorter->pending[sorter->after.next[k]] == 0) {
                heap_push(sorter, sorter->after.next[k]);
            }
        }
    }
    return sorter->placed == graph->order_count ? WEFT_OK : cycle_error(sorter);
}

static weft_status_t sort_by(wefti_graph_t *graph, const uint64_t *keys)
{
    weft_status_t status = WEFT_ERR_NO_MEMORY;
    size_t count = (size_t)graph->node_count + 1;
    wefti_arena_t arena;
    wefti_arena_init(&arena, graph->arena.allocator, 0);
    sorter_t sorter = {.graph = graph,
                       .keys = keys,
                       .pending = wefti_arena_array(&arena, count, sizeof(uint32_t)),
                       .heap = wefti_arena_array(&arena, count, sizeof(uint32_t)),
                       .order = wefti_arena_array(&arena, count, sizeof(uint32_t))};
    if (!sorter.pending || !sorter.heap || !sorter.order) {
        goto done;
    }
    WEFT_TRY(status, build_edges(&sorter, &arena), done);
    WEFT_TRY(status, run(&sorter), done);
    memcpy(graph->order, sorter.order, graph->order_count * sizeof(uint32_t));
done:
    wefti_arena_deinit(&arena);
    return status;
}

weft_status_t wefti_graph_reorder(wefti_graph_t *graph, const uint64_t *keys)
{
    wefti_graph_compact_order(graph);
    weft_status_t status = sort_by(graph, keys);
    return status < 0 ? status : wefti_graph_refresh_programs(graph);
}

/* Keys by node. Of nodes with equal keys that are ready the one that was added first goes first. */
static void find_places(const wefti_graph_t *graph, uint64_t *keys)
{
    for (uint32_t i = 0; i < graph->order_count; i++) {
        uint32_t id = graph->order[i], after = graph->nodes[id].after;
        uint32_t by = graph->nodes[id].dead ? graph->nodes[id].replaced_by : WEFTI_NONE;
        if (after != WEFTI_AS_REPLACED) {
            keys[id] = after == WEFTI_NONE         ? (uint64_t)i + 1
                       : after == WEFTI_WHEN_READY ? 0
                                                   : keys[after];
        }
        if (by != WEFTI_NONE && graph->nodes[by].after == WEFTI_AS_REPLACED) {
            keys[by] = keys[id] > keys[by] ? keys[id] : keys[by];
        }
    }
}

weft_status_t wefti_graph_sort(wefti_graph_t *graph)
{
    weft_status_t status;
    const weft_allocator_t *allocator = graph->arena.allocator;
    uint64_t *keys = wefti_alloc(allocator, ((size_t)graph->node_count + 1) * sizeof(*keys));
    WEFT_RETURN_IF_NO_MEMORY(keys);
    find_places(graph, keys);
    WEFT_TRY(status, wefti_graph_reorder(graph, keys), done);
    for (uint32_t i = 0; i < graph->order_count; i++) {
        graph->nodes[graph->order[i]].after = WEFTI_NONE;
    }
done:
    wefti_free(allocator, keys);
    return status;
}
