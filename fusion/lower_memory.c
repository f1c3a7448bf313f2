/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What kernels make for kernels, behind the regions of lower_regions.c:
 *
 *   | outputs | activations |
 *
 * Activations share memory by lifetime.
 */
#include <string.h>

#include "fusion/lower.h"
#include "fusion/memory.h"
#include "runtime/base/error.h"

/* Activations of one storage follow each other in place. */
typedef struct storage {
    uint32_t first, last;
    uint64_t size_bytes;
    bool output; /* has memory of its own: readable after the step */
} storage_t;

typedef struct memory {
    wefti_lowering_t *l;
    storage_t *storages;
    uint32_t storage_count;
    uint32_t *storage_of; /* value -> storage, or WEFTI_NONE */
    uint32_t *last_use;   /* value -> last item that needs it; item_count: the end of the step */
} memory_t;

static bool is_output(const wefti_graph_t *graph, uint32_t value)
{
    return (graph->values[value].flags &
            (WEFTI_VALUE_OUTPUT | WEFTI_VALUE_LOSS | WEFTI_VALUE_LOGITS)) != 0 ||
           value == graph->loss || value == graph->logits;
}

static void find_last_uses(memory_t *m)
{
    const wefti_lowering_t *l = m->l;
    for (uint32_t i = 0; i < l->item_count; i++) {
        const wefti_node_t *node = &l->graph->nodes[l->items[i].node];
        for (uint32_t j = 0; j < node->output_count; j++) {
            if (node->outputs[j] != WEFTI_NONE) {
                m->last_use[node->outputs[j]] = i; /* nobody may read it, but it is written */
            }
        }
        for (uint32_t j = 0; j < node->input_count; j++) {
            if (node->inputs[j] != WEFTI_NONE) {
                m->last_use[node->inputs[j]] = i;
            }
        }
    }
    /* Peers read what a collective touches until the collective is complete on all ranks: to the
     * end. */
    for (uint32_t b = 0; b < l->bucket_count; b++) {
        for (uint32_t i = 0; i < l->buckets[b].member_count; i++) {
            m->last_use[l->buckets[b].members[i].value] = l->item_count;
        }
    }
    for (uint32_t v = 0; v < l->graph->value_count; v++) {
        if (is_output(l->graph, v)) {
            m->last_use[v] = l->item_count;
        }
    }
}

/* The storage that output index of the node may take over because its contents die here, or
 * WEFTI_NONE. */
static uint32_t in_place_storage(const memory_t *m, const wefti_node_t *node, uint32_t index,
                                 uint32_t item)
{
    const wefti_graph_t *graph = m->l->graph;
    const wefti_value_t *out = &graph->values[node->outputs[index]];
    int from = index < sizeof(node->def->in_place) ? node->def->in_place[index] : -1;
    uint32_t value =
        from < 0 || (uint32_t)from >= node->input_count ? WEFTI_NONE : node->inputs[from];
    const wefti_value_t *in = value == WEFTI_NONE ? NULL : &graph->values[value];
    uint32_t storage = in == NULL ? WEFTI_NONE : m->storage_of[value];
    if (storage == WEFTI_NONE || m->storages[storage].output || m->storages[storage].last != item ||
        is_output(graph, node->outputs[index]) || in->type.layout != out->type.layout ||
        wefti_value_bytes(in) != wefti_value_bytes(out)) {
        return WEFTI_NONE;
    }
    for (uint32_t j = 0; j < node->input_count; j++) {
        if (j != (uint32_t)from && node->inputs[j] != WEFTI_NONE &&
            m->storage_of[node->inputs[j]] == storage) {
            return WEFTI_NONE; /* read twice: the second read would see the result */
        }
    }
    for (uint32_t j = 0; j < node->output_count; j++) {
        if (node->outputs[j] != WEFTI_NONE && m->storage_of[node->outputs[j]] == storage) {
            return WEFTI_NONE; /* another output has it */
        }
    }
    return storage;
}

/* Gives every value that a kernel makes a storage, unless its memory is fixed already. */
static void assign_storages(memory_t *m)
{
    wefti_lowering_t *l = m->l;
    for (uint32_t i = 0; i < l->item_count; i++) {
        const wefti_node_t *node = &l->graph->nodes[l->items[i].node];
        for (uint32_t j = 0; j < node->output_count; j++) {
            uint32_t value = node->outputs[j], storage;
            if (value == WEFTI_NONE || l->buffer_of[value] != WEFTI_NONE) {
                continue;
            }
            storage = in_place_storage(m, node, j, i);
            if (storage == WEFTI_NONE) {
                storage = m->storage_count++;
                m->storages[storage] =
                    (storage_t){.first = i,
                                .size_bytes = wefti_value_bytes(&l->graph->values[value]),
                                .output = is_output(l->graph, value)};
            }
            m->storages[storage].last = m->last_use[value];
            m->storage_of[value] = storage;
        }
    }
}

/* What updates write is what they read: their outputs are names of the same memory. */
static weft_status_t alias_updates(memory_t *m)
{
    wefti_lowering_t *l = m->l;
    for (uint32_t n = 0; n < l->graph->order_count; n++) {
        const wefti_node_t *node = &l->graph->nodes[l->graph->order[n]];
        for (uint32_t j = 0;
             (node->def->effects & WEFT_EFFECT_UPDATES) != 0 && j < node->output_count; j++) {
            int from = j < sizeof(node->def->in_place) ? node->def->in_place[j] : -1;
            if (from < 0 || node->outputs[j] == WEFTI_NONE) {
                continue;
            }
            if ((uint32_t)from >= node->input_count || node->inputs[from] == WEFTI_NONE ||
                l->buffer_of[node->inputs[from]] == WEFTI_NONE) {
                return wefti_error(WEFT_ERR_UNSUPPORTED,
                                   "%s updates something that is neither parameter nor state",
                                   node->name);
            }
            l->buffer_of[node->outputs[j]] = l->buffer_of[node->inputs[from]];
        }
    }
    return WEFT_OK;
}

static weft_status_t place_activations(memory_t *m)
{
    weft_status_t status = WEFT_OK;
    wefti_lowering_t *l = m->l;
    const weft_allocator_t *allocator = l->arena.allocator;
    wefti_memory_item_t *items = wefti_arena_array(&l->arena, m->storage_count, sizeof(*items));
    wefti_memory_item_t *shared = wefti_arena_array(&l->arena, m->storage_count, sizeof(*shared));
    uint32_t *index = wefti_arena_array(&l->arena, m->storage_count, sizeof(*index));
    uint64_t peak = 0, total = 0, begin;
    uint32_t shared_count = 0;
    if (items == NULL || shared == NULL || index == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t s = 0; s < m->storage_count; s++) {
        const storage_t *storage = &m->storages[s];
        items[s] = (wefti_memory_item_t){storage->size_bytes, storage->first, storage->last,
                                         l->arena_cursor};
        if (storage->output) {
            WEFT_TRY(status, wefti_lower_advance(l, storage->size_bytes), fail);
        } else {
            index[s] = shared_count;
            shared[shared_count++] = items[s];
        }
    }
    WEFT_TRY(status, wefti_memory_peak(items, m->storage_count, allocator, &peak), fail);
    WEFT_TRY(status,
             wefti_memory_assign(shared, shared_count, WEFTI_PLAN_ALIGNMENT, allocator, &total),
             fail);
    begin = l->arena_cursor;
    if (total > 0) {
        WEFT_TRY(status, wefti_lower_advance(l, total), fail);
    }
    for (uint32_t i = 0; i < l->item_count; i++) {
        const wefti_node_t *node = &l->graph->nodes[l->items[i].node];
        for (uint32_t j = 0; j < node->output_count; j++) {
            uint32_t value = node->outputs[j];
            uint32_t s = value == WEFTI_NONE ? WEFTI_NONE : m->storage_of[value];
            if (s != WEFTI_NONE) {
                bool output = m->storages[s].output;
                WEFT_TRY(status,
                         wefti_lower_add_buffer(l, value,
                                                output ? WEFTI_BUFFER_OUTPUT : WEFTI_BUFFER_TEMP,
                                                output ? items[s].offset_bytes
                                                       : begin + shared[index[s]].offset_bytes),
                         fail);
            }
        }
    }
    l->plan->live_bytes = l->kept_bytes + peak;
fail:
    return status;
}

/* Collectives on single tensors that are not gradients: their result is the same memory. */
static void alias_collectives(wefti_lowering_t *l)
{
    for (uint32_t b = 0; b < l->bucket_count; b++) {
        wefti_member_t *member = &l->buckets[b].members[0];
        if (!l->buckets[b].gradients && member->reduced != WEFTI_NONE) {
            l->buffer_of[member->reduced] = l->buffer_of[member->value];
        }
    }
}

weft_status_t wefti_lower_memory(wefti_lowering_t *l)
{
    weft_status_t status;
    memory_t m = {.l = l};
    const wefti_graph_t *graph = l->graph;
    /* Every value once, ranges of parameters, gradients and states per bucket, and of all
     * parameters. */
    size_t capacity =
        (size_t)graph->value_count * 2 + (size_t)l->bucket_count * (l->state_count + 4) + 1;
    m.storages = wefti_arena_array(&l->arena, graph->value_count, sizeof(*m.storages));
    m.storage_of = wefti_arena_array(&l->arena, graph->value_count, sizeof(*m.storage_of));
    m.last_use = wefti_arena_array(&l->arena, graph->value_count, sizeof(*m.last_use));
    l->buffer_of = wefti_arena_array(&l->arena, graph->value_count, sizeof(*l->buffer_of));
    l->plan->buffers = wefti_arena_array(&l->plan->arena, capacity, sizeof(*l->plan->buffers));
    if (m.storages == NULL || m.storage_of == NULL || m.last_use == NULL || l->buffer_of == NULL ||
        l->plan->buffers == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    memset(l->buffer_of, 0xff, graph->value_count * sizeof(*l->buffer_of));
    memset(m.storage_of, 0xff, graph->value_count * sizeof(*m.storage_of));
    WEFT_TRY(status, wefti_lower_regions(l), fail);
    WEFT_TRY(status, alias_updates(&m), fail);
    find_last_uses(&m);
    assign_storages(&m);
    WEFT_TRY(status, place_activations(&m), fail);
    alias_collectives(l);
    l->plan->arena_bytes = l->arena_cursor;
fail:
    return status;
}
