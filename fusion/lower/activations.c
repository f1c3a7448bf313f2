/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Results of kernels that other kernels read, after the regions of regions.c:
 *
 *   | outputs | activations |
 *
 * A view, such as Reshape, has the memory of its input: the kernel moves nothing. Otherwise
 * activations share memory by lifetime. Time is counted in items of the compute stream: item i runs
 * at 2 i + 1. A collective runs from 2 x (number of items that have run when it may begin) to 2 x
 * (the item that waits for it or for a later one). After that wait no other rank accesses this
 * rank's memory for it, so its inputs and outputs live from its begin to its end.
 */
#include "fusion/lower/lower.h"
#include "fusion/lower/offsets.h"
#include "ops/collective.h"
#include "ops/op_facts.h"
#include "runtime/base/error.h"

/* Activations of one storage follow each other in place. */
typedef struct storage {
    uint32_t first, last; /* times */
    uint64_t size_bytes, offset_bytes;
    bool output;         /* has memory of its own: readable after the step */
    uint32_t item_use;   /* the last (odd) time that an item reads its contents, 0: never */
    uint32_t comm_reads; /* how many collectives read its contents */
} storage_t;

typedef struct memory {
    wefti_lowering_t *l;
    storage_t *storages;
    uint32_t storage_count;
    uint32_t *storage_of; /* value -> storage, or WEFTI_NONE */
    uint32_t *last_use;   /* value -> the last time that it is needed */
    uint32_t *item_use;   /* value -> the last (odd) time that an item needs it, 0: never */
    uint32_t *comm_reads; /* value -> how many collectives read it */
    bool *in_place;       /* command on activations -> its result has the memory of its input */
    uint32_t *comm_end;   /* command -> when it is over on all ranks */
} memory_t;

static bool is_output(const wefti_graph_t *graph, uint32_t value)
{
    return (graph->values[value].flags &
            (WEFTI_VALUE_OUTPUT | WEFTI_VALUE_LOSS | WEFTI_VALUE_LOGITS)) != 0 ||
           value == graph->loss || value == graph->logits;
}

static uint32_t item_time(uint32_t item)
{
    return 2 * item + 1;
}

/* Behind everything; gaps between items are even. */
static uint32_t end_time(const wefti_lowering_t *l)
{
    return item_time(l->order->item_count);
}

static void note_use(memory_t *m, uint32_t value, uint32_t time)
{
    m->last_use[value] = time > m->last_use[value] ? time : m->last_use[value];
}

/* The tensors of a command on activations, as values; false for other commands. */
static bool read_command(const wefti_lowering_t *l, uint32_t command, uint32_t *out_from,
                         uint32_t *out_to)
{
    const wefti_command_t *at = &l->order->commands[command];
    const wefti_node_t *node = &l->graph->nodes[at->node];
    if (wefti_lower_command_bucket(l, command) != WEFTI_NONE) {
        return false;
    }
    *out_from = node->inputs[at->part];
    *out_to = node->outputs[at->part];
    return true;
}

/* With a bound on collectives in flight, one is over before the one is issued that would exceed the
 * bound. A plan that reuses the memory of gradients has no micro-batches: program step runs all
 * collectives. */
static void end_passing(memory_t *m)
{
    const wefti_lowering_t *l = m->l;
    const wefti_command_t *commands = l->order->commands;
    uint32_t bound = l->params->in_flight;
    for (uint32_t c = 0; bound > 0 && c + bound < l->order->command_count; c++) {
        uint32_t next = c + bound, ready = commands[next].ready;
        bool first = ready > 0 && commands[next - 1].ready < ready;
        uint32_t end = 2 * ready - (first ? 1 : 0), bucket = wefti_lower_command_bucket(l, c);
        if (bucket != WEFTI_NONE && l->buckets->list[bucket].passing && end < m->comm_end[c]) {
            m->comm_end[c] = end;
        }
    }
}

/* Collectives on activations are issued by every program that has what comes after them. */
static weft_status_t find_ends_by_bound(memory_t *m)
{
    const wefti_order_t *order = m->l->order;
    uint32_t bound = m->l->params->in_flight, count = 0, from, to;
    uint32_t *on_activations = wefti_id_map(&m->l->arena, order->command_count);
    WEFT_RETURN_IF_NO_MEMORY(on_activations);
    for (uint32_t c = 0; c < order->command_count; c++) {
        if (read_command(m->l, c, &from, &to)) {
            on_activations[count++] = c;
        }
    }
    end_passing(m);
    for (uint32_t i = 0; bound > 0 && i + bound < count; i++) {
        uint32_t c = on_activations[i];
        uint32_t end = 2 * order->commands[on_activations[i + bound]].ready;
        m->comm_end[c] = end < m->comm_end[c] ? end : m->comm_end[c];
    }
    return WEFT_OK;
}

/* The comm stream runs in order: a collective is over when an item waits for it or for a later
 * one. */
static weft_status_t find_comm_ends(memory_t *m)
{
    const wefti_lowering_t *l = m->l;
    const wefti_order_t *order = l->order;
    for (uint32_t c = 0; c < order->command_count; c++) {
        m->comm_end[c] = end_time(l);
    }
    for (uint32_t i = order->item_count; i-- > 0;) {
        const wefti_node_t *node = &l->graph->nodes[order->items[i].node];
        uint32_t bucket = wefti_lower_item_bucket(l, i);
        if (bucket != WEFTI_NONE) { /* the update of one piece waits for it alone */
            m->comm_end[l->buckets->list[bucket].command] = 2 * i;
            continue;
        }
        for (uint32_t j = 0; j < node->input_count; j++) {
            uint32_t value = node->inputs[j];
            uint32_t producer = wefti_producer(l->graph, value);
            uint32_t command = producer == WEFTI_NONE ? WEFTI_NONE : order->command_of[producer];
            for (uint32_t part = 0; command != WEFTI_NONE && part < order->commands[command].parts;
                 part++) {
                m->comm_end[command + part] = 2 * i;
            }
        }
    }
    weft_status_t status = find_ends_by_bound(m);
    for (uint32_t c = order->command_count; c-- > 1;) {
        if (m->comm_end[c] < m->comm_end[c - 1]) {
            m->comm_end[c - 1] = m->comm_end[c];
        }
    }
    return status;
}

static void find_last_uses(memory_t *m)
{
    const wefti_lowering_t *l = m->l;
    uint32_t from, to;
    for (uint32_t i = 0; i < l->order->item_count; i++) {
        const wefti_node_t *node = &l->graph->nodes[l->order->items[i].node];
        for (uint32_t j = 0; j < node->output_count; j++) {
            if (node->outputs[j] != WEFTI_NONE) {
                note_use(m, node->outputs[j], item_time(i)); /* it is written, whoever reads it */
            }
        }
        for (uint32_t j = 0; j < node->input_count; j++) {
            if (node->inputs[j] != WEFTI_NONE) {
                note_use(m, node->inputs[j], item_time(i));
                m->item_use[node->inputs[j]] = item_time(i);
            }
        }
    }
    for (uint32_t c = 0; c < l->order->command_count; c++) {
        if (read_command(l, c, &from, &to)) {
            note_use(m, from, m->comm_end[c]);
            note_use(m, to, m->comm_end[c]);
            m->comm_reads[from]++;
        }
    }
    for (uint32_t v = 0; v < l->graph->value_count; v++) {
        if (is_output(l->graph, v)) {
            m->last_use[v] = end_time(l);
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
    if (storage == WEFTI_NONE || m->storages[storage].output ||
        m->storages[storage].last != item_time(item) || is_output(graph, node->outputs[index]) ||
        in->type.layout != out->type.layout || wefti_value_bytes(in) != wefti_value_bytes(out)) {
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

/* A value begins in a storage: a new one, one whose contents are dead, or, shared, as another name of
 * its contents. */
static void enter_storage(memory_t *m, uint32_t value, uint32_t storage, bool shared)
{
    storage_t *at = &m->storages[storage];
    uint32_t last = m->last_use[value], item_use = m->item_use[value];
    at->last = shared && at->last > last ? at->last : last;
    at->item_use = shared && at->item_use > item_use ? at->item_use : item_use;
    at->comm_reads = m->comm_reads[value] + (shared ? at->comm_reads : 0);
    m->storage_of[value] = storage;
}

/* The storage of the input that a node views, while its contents are needed, or WEFTI_NONE. */
static uint32_t viewed_storage(const memory_t *m, uint32_t node, uint32_t index)
{
    const wefti_graph_t *graph = m->l->graph;
    const wefti_node_t *at = &graph->nodes[node];
    bool views = index == 0 && wefti_node_is_view(graph, at) && !is_output(graph, at->outputs[0]) &&
                 m->l->order->variant_of[node] == WEFTI_NONE;
    uint32_t storage = views ? m->storage_of[at->inputs[0]] : WEFTI_NONE;
    return storage != WEFTI_NONE && !m->storages[storage].output ? storage : WEFTI_NONE;
}

static uint32_t new_storage(memory_t *m, uint32_t value, uint32_t first)
{
    m->storages[m->storage_count] =
        (storage_t){.first = first,
                    .size_bytes = wefti_value_bytes(&m->l->graph->values[value]),
                    .output = is_output(m->l->graph, value)};
    return m->storage_count++;
}

/* May the result of a collective take the memory of its input? No kernel reads that once it began,
 * and it is no output, input or weight. */
static bool runs_in_place(const memory_t *m, uint32_t command, uint32_t from, uint32_t to)
{
    const wefti_command_t *at = &m->l->order->commands[command];
    const wefti_graph_t *graph = m->l->graph;
    const weft_op_facts_t facts = wefti_op_facts(graph->nodes[at->node].def);
    uint32_t storage = m->storage_of[from];
    return wefti_collective_is_vector((weft_collective_t)facts.collective) &&
           storage != WEFTI_NONE && !m->storages[storage].output && !is_output(graph, to) &&
           m->storages[storage].comm_reads == 1 && m->storages[storage].item_use <= 2 * at->ready;
}

static void assign_command(memory_t *m, uint32_t command)
{
    uint32_t from, to, storage;
    if (!read_command(m->l, command, &from, &to) || m->l->buffers->of[to] != WEFTI_NONE) {
        return;
    }
    m->in_place[command] = runs_in_place(m, command, from, to);
    storage = m->in_place[command] ? m->storage_of[from]
                                   : new_storage(m, to, 2 * m->l->order->commands[command].ready);
    enter_storage(m, to, storage, false);
}

static void assign_item(memory_t *m, uint32_t item)
{
    const wefti_lowering_t *l = m->l;
    const wefti_node_t *node = &l->graph->nodes[l->order->items[item].node];
    for (uint32_t j = 0; j < node->output_count; j++) {
        uint32_t value = node->outputs[j], storage, viewed;
        if (value == WEFTI_NONE || l->buffers->of[value] != WEFTI_NONE ||
            l->buckets->shard_of[value] != WEFTI_NONE || l->ranges->has[value]) {
            continue;
        }
        viewed = viewed_storage(m, l->order->items[item].node, j);
        storage = viewed != WEFTI_NONE ? viewed : in_place_storage(m, node, j, item);
        if (storage == WEFTI_NONE) {
            storage = new_storage(m, value, item_time(item));
        }
        enter_storage(m, value, storage, viewed != WEFTI_NONE);
    }
}

/* Gives every value that a kernel or a collective makes a storage, unless its memory is fixed
 * already. */
static void assign_storages(memory_t *m)
{
    const wefti_lowering_t *l = m->l;
    uint32_t command = 0;
    for (uint32_t i = 0; i <= l->order->item_count; i++) {
        for (; command < l->order->command_count && l->order->commands[command].ready <= i;
             command++) {
            assign_command(m, command);
        }
        if (i < l->order->item_count) {
            assign_item(m, i);
        }
    }
}

/* What updates write is what they read: their outputs are names of the same memory. So are gathered
 * weights. */
static weft_status_t alias_updates(memory_t *m)
{
    wefti_lowering_t *l = m->l;
    for (uint32_t n = 0; n < l->order->node_count; n++) {
        const wefti_node_t *node = &l->graph->nodes[l->order->nodes[n]];
        bool overwrites =
            (node->def->effects & WEFT_EFFECT_UPDATES) != 0 || wefti_node_is_flat_gather(node);
        for (uint32_t j = 0; overwrites && j < node->output_count; j++) {
            uint32_t from = wefti_node_overwrites(node, j);
            if (from == WEFTI_NONE || node->outputs[j] == WEFTI_NONE ||
                l->buckets->shard_of[node->outputs[j]] != WEFTI_NONE ||
                wefti_lower_is_copy(l->graph, node)) {
                continue;
            }
            if (node->inputs[from] == WEFTI_NONE ||
                l->buffers->of[node->inputs[from]] == WEFTI_NONE) {
                return wefti_error(
                    WEFT_ERR_UNSUPPORTED,
                    "node '%s' (%s): updates a tensor that is neither a parameter nor a state",
                    node->name, node->def->name);
            }
            l->buffers->of[node->outputs[j]] = l->buffers->of[node->inputs[from]];
        }
    }
    return WEFT_OK;
}

/* Ranges follow the storages of values. */
static void add_ranges(memory_t *m, const wefti_ranges_t *ranges)
{
    for (uint32_t r = 0; r < ranges->count; r++) {
        const wefti_range_t *range = &ranges->list[r];
        m->storages[m->storage_count++] = (storage_t){
            .first = range->first, .last = range->last, .size_bytes = range->size_bytes};
    }
}

static void take_ranges(const memory_t *m, wefti_ranges_t *ranges)
{
    for (uint32_t r = 0; r < ranges->count; r++) {
        ranges->list[r].offset_bytes =
            m->storages[m->storage_count - ranges->count + r].offset_bytes;
    }
}

static weft_status_t place_activations(memory_t *m)
{
    wefti_lowering_t *l = m->l;
    const weft_allocator_t *allocator = l->arena.allocator;
    wefti_memory_item_t *items = wefti_arena_array(&l->arena, m->storage_count, sizeof(*items));
    wefti_memory_item_t *shared = wefti_arena_array(&l->arena, m->storage_count, sizeof(*shared));
    uint32_t *index = wefti_arena_array(&l->arena, m->storage_count, sizeof(*index));
    uint64_t peak = 0, total = 0, begin;
    uint32_t shared_count = 0;
    WEFT_RETURN_IF_NO_MEMORY(items && shared && index);
    for (uint32_t s = 0; s < m->storage_count; s++) {
        const storage_t *storage = &m->storages[s];
        items[s] = (wefti_memory_item_t){storage->size_bytes, storage->first, storage->last,
                                         l->buffers->cursor};
        if (storage->output) {
            WEFT_RETURN_IF_ERROR(wefti_lower_advance(l, storage->size_bytes));
        } else {
            index[s] = shared_count;
            shared[shared_count++] = items[s];
        }
    }
    WEFT_RETURN_IF_ERROR(wefti_memory_peak(items, m->storage_count, allocator, &peak));
    WEFT_RETURN_IF_ERROR(
        wefti_memory_assign(shared, shared_count, WEFTI_PLAN_ALIGNMENT, allocator, &total));
    begin = l->buffers->cursor;
    if (total > 0) {
        WEFT_RETURN_IF_ERROR(wefti_lower_advance(l, total));
    }
    for (uint32_t s = 0; s < m->storage_count; s++) {
        m->storages[s].offset_bytes =
            m->storages[s].output ? items[s].offset_bytes : begin + shared[index[s]].offset_bytes;
    }
    l->plan->live_bytes = l->regions->kept_bytes + peak;
    return WEFT_OK;
}

static weft_status_t add_buffer(memory_t *m, uint32_t value)
{
    const storage_t *storage;
    if (value == WEFTI_NONE || m->storage_of[value] == WEFTI_NONE) {
        return WEFT_OK;
    }
    storage = &m->storages[m->storage_of[value]];
    return wefti_lower_add_buffer(m->l, value,
                                  storage->output ? WEFTI_BUFFER_OUTPUT : WEFTI_BUFFER_TEMP,
                                  storage->offset_bytes);
}

/* A collective in place names one buffer twice. */
static weft_status_t add_buffers(memory_t *m)
{
    wefti_lowering_t *l = m->l;
    uint32_t from, to;
    for (uint32_t i = 0; i < l->order->item_count; i++) {
        const wefti_node_t *node = &l->graph->nodes[l->order->items[i].node];
        for (uint32_t j = 0; j < node->output_count; j++) {
            WEFT_RETURN_IF_ERROR(add_buffer(m, node->outputs[j]));
        }
    }
    for (uint32_t c = 0; c < l->order->command_count; c++) {
        if (!read_command(l, c, &from, &to)) {
            continue;
        }
        if (m->in_place[c]) {
            l->buffers->of[to] = l->buffers->of[from];
        } else {
            WEFT_RETURN_IF_ERROR(add_buffer(m, to));
        }
    }
    return WEFT_OK;
}

weft_status_t wefti_lower_activations(wefti_lowering_t *l, wefti_ranges_t *ranges)
{
    memory_t m = {.l = l};
    size_t values = l->graph->value_count, commands = l->order->command_count;
    m.storages = wefti_arena_array(&l->arena, values + 2 * commands, sizeof(*m.storages));
    m.storage_of = wefti_id_map(&l->arena, values);
    m.last_use = wefti_arena_array(&l->arena, values, sizeof(*m.last_use));
    m.item_use = wefti_arena_array(&l->arena, values, sizeof(*m.item_use));
    m.comm_reads = wefti_arena_array(&l->arena, values, sizeof(*m.comm_reads));
    m.comm_end = wefti_arena_array(&l->arena, commands, sizeof(*m.comm_end));
    m.in_place = wefti_arena_array(&l->arena, commands, sizeof(*m.in_place));
    WEFT_RETURN_IF_NO_MEMORY(m.storages && m.storage_of && m.last_use && m.item_use &&
                             m.comm_reads && m.comm_end && m.in_place);
    WEFT_RETURN_IF_ERROR(alias_updates(&m));
    WEFT_RETURN_IF_ERROR(find_comm_ends(&m));
    find_last_uses(&m);
    WEFT_RETURN_IF_ERROR(wefti_lower_find_ranges(l, m.comm_end, ranges));
    assign_storages(&m);
    add_ranges(&m, ranges);
    WEFT_RETURN_IF_ERROR(place_activations(&m));
    take_ranges(&m, ranges);
    WEFT_RETURN_IF_ERROR(add_buffers(&m));
    WEFT_RETURN_IF_ERROR(wefti_lower_place_ranges(l, ranges));
    l->plan->arena_bytes = l->buffers->cursor;
    return WEFT_OK;
}
