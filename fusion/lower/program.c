/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Events and programs. A bucket's collective waits on the comm stream for an event that follows the
 * kernel that writes its last member. Its first reader on the compute stream waits for an event
 * that follows the collective.
 */
#include "fusion/lower/lower.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/base/error.h"

enum { COMPUTE, COMM, STREAM_COUNT };

static void push(wefti_plan_program_t *program, uint32_t stream, wefti_step_kind_t kind,
                 uint32_t index)
{
    wefti_plan_stream_program_t *steps = &program->streams[stream];
    steps->steps[steps->step_count++] = (wefti_plan_step_t){kind, index};
}

/* An empty program with room for compute and comm steps. */
static weft_status_t begin_program(wefti_lowering_t *l, const char *name, size_t compute,
                                   size_t comm, wefti_plan_program_t **out_program)
{
    wefti_arena_t *arena = &l->plan->arena;
    wefti_plan_program_t *program = &l->plan->programs[l->plan->program_count++];
    program->name = wefti_arena_strdup(arena, name);
    program->streams = wefti_arena_array(arena, STREAM_COUNT, sizeof(*program->streams));
    WEFT_RETURN_IF_NO_MEMORY(program->name && program->streams);
    program->streams[COMPUTE].steps = wefti_arena_array(arena, compute, sizeof(wefti_plan_step_t));
    program->streams[COMM].steps = wefti_arena_array(arena, comm, sizeof(wefti_plan_step_t));
    *out_program = program;
    return program->streams[COMPUTE].steps == NULL || program->streams[COMM].steps == NULL
               ? WEFT_ERR_NO_MEMORY
               : WEFT_OK;
}

/* A collective of a program. */
typedef struct send {
    uint32_t collective; /* in the plan */
    uint32_t after;      /* items that must have run */
    uint32_t reader;     /* first item that needs what it does, or item_count */
    uint32_t node;       /* pieces of one node share a start event */
    uint32_t index;      /* keeps the order of what may start at the same time */
    uint32_t done;       /* event recorded behind it */
} send_t;

/* A program being written. */
typedef struct writer {
    wefti_lowering_t *l;
    wefti_plan_program_t *program;
    const char *name;
    uint32_t *runs; /* by node: itself, its variant, or WEFTI_NONE where the program runs neither */
    send_t *sends;  /* in the order of the comm stream */
    uint32_t send_count;
    uint32_t *waiting; /* item -> the send that it waits for, or WEFTI_NONE */
    uint32_t bound;    /* most sends that are out, or 0; without kernels there is none */
    uint32_t over;     /* sends that compute has waited for, or for one behind them */
} writer_t;

static bool is_needed(const writer_t *w, uint32_t node)
{
    return w->runs[node] != WEFTI_NONE;
}

/* Item reads what all pieces of a command do, or is the first of their updates, one for each. */
static void note_reader(const wefti_lowering_t *l, uint32_t command, uint32_t item,
                        uint32_t *reader)
{
    const wefti_command_t *first = &l->order->commands[command];
    uint32_t bucket = wefti_lower_command_bucket(l, command);
    bool by_piece = bucket != WEFTI_NONE && wefti_lower_item_bucket(l, item) == bucket;
    for (uint32_t part = 0; part < first->parts; part++) {
        uint32_t at = by_piece ? item + part : item;
        reader[command + part] = at < reader[command + part] ? at : reader[command + part];
    }
}

/* For every command the first item of the program that reads a result of it, or item_count. */
static weft_status_t find_readers(const writer_t *w, uint32_t **out_reader)
{
    wefti_lowering_t *l = w->l;
    const wefti_order_t *order = l->order;
    uint32_t *reader = wefti_arena_array(&l->arena, l->plan->collective_count, sizeof(*reader));
    *out_reader = reader;
    WEFT_RETURN_IF_NO_MEMORY(reader);
    for (uint32_t c = 0; c < l->plan->collective_count; c++) {
        reader[c] = order->item_count;
    }
    for (uint32_t n = 0; n < order->node_count; n++) {
        uint32_t id = order->nodes[n], item = order->item_of[id];
        const wefti_node_t *node = &l->graph->nodes[id];
        if (item == WEFTI_NONE || !is_needed(w, id)) {
            continue;
        }
        for (uint32_t j = 0; j < node->input_count; j++) {
            uint32_t value = node->inputs[j];
            uint32_t producer = wefti_producer(l->graph, value);
            uint32_t command = producer == WEFTI_NONE ? WEFTI_NONE : order->command_of[producer];
            if (command != WEFTI_NONE) {
                note_reader(l, command, item, reader);
            }
        }
    }
    for (uint32_t c = 0; c < order->constraint_count; c++) {
        uint32_t command = order->command_of[order->constraints[c].before];
        uint32_t after = order->constraints[c].after, item = order->item_of[after];
        /* A fused bucket may be put off until after it: then its update waits. */
        if (command != WEFTI_NONE && item != WEFTI_NONE && is_needed(w, after) &&
            item >= order->commands[command].ready) {
            note_reader(l, command, item, reader);
        }
    }
    return WEFT_OK;
}

/* The plan collectives of a node. Those of init are no commands: they are the last of the plan, and
 * have the names of their nodes. */
static void add_sends_of(writer_t *w, uint32_t node, const uint32_t *reader)
{
    const wefti_lowering_t *l = w->l;
    const wefti_order_t *order = l->order;
    uint32_t first = order->command_of[node], end = l->plan->collective_count;
    const char *name = first == WEFTI_NONE ? l->graph->nodes[node].name : NULL;
    if (first != WEFTI_NONE) {
        end = first + order->commands[first].parts;
    } else {
        bool communicates = wefti_node_communicates(&l->graph->nodes[node]);
        first = communicates ? order->command_count : end;
    }
    for (uint32_t c = first; c < end; c++) {
        if (name != NULL && strcmp(l->plan->collectives[c].name, name) != 0) {
            continue;
        }
        uint32_t ready = c < order->command_count ? order->commands[c].ready : 0;
        w->sends[w->send_count] = (send_t){c, ready, reader[c], node, w->send_count, WEFTI_NONE};
        w->send_count++;
    }
}

/* The collectives of a program, in its order. */
static weft_status_t add_sends(writer_t *w, const wefti_program_t *program)
{
    uint32_t *reader = NULL;
    WEFT_RETURN_IF_ERROR(find_readers(w, &reader));
    for (uint32_t i = 0; i < program->node_count; i++) {
        add_sends_of(w, program->nodes[i], reader);
    }
    return WEFT_OK;
}

static int compare_after(const void *a, const void *b)
{
    const send_t *x = a, *y = b;
    return x->after != y->after ? (x->after < y->after ? -1 : 1)
                                : (x->index > y->index) - (x->index < y->index);
}

/* Sorts sends by when they may start. An item waits for the last of those that it reads: one stream
 * runs them in their order. */
static weft_status_t find_waits(writer_t *w)
{
    uint32_t items = w->l->order->item_count;
    qsort(w->sends, w->send_count, sizeof(*w->sends), compare_after);
    w->waiting = wefti_id_map(&w->l->arena, items + 1);
    WEFT_RETURN_IF_NO_MEMORY(w->waiting);
    for (uint32_t s = 0; s < w->send_count; s++) {
        uint32_t before = w->waiting[w->sends[s].reader];
        if (before != WEFTI_NONE) {
            w->sends[before].reader = items;
        }
        w->waiting[w->sends[s].reader] = s;
    }
    return WEFT_OK;
}

static weft_status_t begin_writer(wefti_lowering_t *l, const wefti_program_t *program, writer_t *w)
{
    *w = (writer_t){.l = l, .name = program->name};
    w->sends = wefti_arena_array(&l->arena, l->plan->collective_count, sizeof(*w->sends));
    w->runs = wefti_id_map(&l->arena, l->graph->node_count);
    WEFT_RETURN_IF_NO_MEMORY(w->sends && w->runs);
    for (uint32_t i = 0; i < program->node_count; i++) {
        uint32_t node = program->nodes[i], of = wefti_graph_variant_of(l->graph, node);
        w->runs[of != WEFTI_NONE ? of : node] = node;
        bool ordered = l->order->item_of[node] != WEFTI_NONE ||
                       l->order->command_of[node] != WEFTI_NONE; /* no node of init is */
        w->bound = ordered ? l->params->in_flight : w->bound;
    }
    return WEFT_OK;
}

/* Before a collective that would be too many is issued, compute waits for the oldest that is out.
 */
static bool make_room(writer_t *w, uint32_t index)
{
    uint32_t bound = w->bound;
    if (bound == 0 || index < bound || w->over > index - bound) {
        return false;
    }
    push(w->program, COMPUTE, WEFTI_STEP_WAIT, w->sends[index - bound].done);
    w->over = index - bound + 1;
    return true;
}

static void write_send(writer_t *w, uint32_t index)
{
    send_t *send = &w->sends[index];
    wefti_lowering_t *l = w->l;
    const send_t *last = index > 0 ? &w->sends[index - 1] : NULL;
    bool waited = make_room(w, index);
    bool with_last =
        last != NULL && last->node == send->node && last->after == send->after && !waited;
    if ((send->after > 0 || waited) && !with_last) {
        push(w->program, COMPUTE, WEFTI_STEP_RECORD, l->plan->event_count);
        push(w->program, COMM, WEFTI_STEP_WAIT, l->plan->event_count++);
    }
    push(w->program, COMM, WEFTI_STEP_COLLECTIVE, send->collective);
    bool makes_room = w->bound > 0 && index + w->bound < w->send_count;
    if (send->reader < l->order->item_count || makes_room) {
        send->done = l->plan->event_count++;
        push(w->program, COMM, WEFTI_STEP_RECORD, send->done);
    }
}

static void write_item(writer_t *w, uint32_t item)
{
    uint32_t node = w->l->order->items[item].node;
    if (w->waiting[item] != WEFTI_NONE) {
        push(w->program, COMPUTE, WEFTI_STEP_WAIT, w->sends[w->waiting[item]].done);
        w->over = w->waiting[item] + 1 > w->over ? w->waiting[item] + 1 : w->over;
    }
    uint32_t variant = w->l->kernels->of_variant[w->runs[node]];
    push(w->program, COMPUTE, WEFTI_STEP_KERNEL,
         variant != WEFTI_NONE ? variant : w->l->kernels->of_item[item]);
}

/* All sends have been added. Events are numbered over all programs, each is recorded by one. */
static weft_status_t write_program(writer_t *w)
{
    wefti_lowering_t *l = w->l;
    uint32_t send = 0;
    WEFT_RETURN_IF_ERROR(find_waits(w));
    WEFT_RETURN_IF_ERROR(begin_program(l, w->name,
                                       (size_t)l->order->item_count + 3 * (size_t)w->send_count,
                                       3 * (size_t)w->send_count, &w->program));
    for (uint32_t i = 0; i <= l->order->item_count; i++) {
        for (; send < w->send_count && w->sends[send].after == i; send++) {
            write_send(w, send);
        }
        if (i < l->order->item_count && is_needed(w, l->order->items[i].node)) {
            write_item(w, i);
        }
    }
    return WEFT_OK;
}

static weft_status_t add_program(wefti_lowering_t *l, const wefti_program_t *program)
{
    writer_t w;
    WEFT_RETURN_IF_ERROR(begin_writer(l, program, &w));
    WEFT_RETURN_IF_ERROR(add_sends(&w, program));
    WEFT_RETURN_IF_ERROR(write_program(&w));
    return WEFT_OK;
}

/* Is it this name, or this name and a number: "micro_step.1"? */
static bool is_named(const wefti_program_t *program, const char *name)
{
    size_t length = strlen(name);
    return strncmp(program->name, name, length) == 0 &&
           (program->name[length] == '\0' || program->name[length] == '.');
}

/* Programs in the order in which a plan has them; one that nothing runs is refused. */
static weft_status_t add_programs(wefti_lowering_t *l)
{
    static const char *const names[] = {WEFTI_PROGRAMS};
    for (size_t n = 0; n < sizeof(names) / sizeof(names[0]); n++) {
        for (uint32_t i = 0; i < l->graph->program_count; i++) {
            if (is_named(&l->graph->programs[i], names[n])) {
                WEFT_RETURN_IF_ERROR(add_program(l, &l->graph->programs[i]));
            }
        }
    }
    return WEFT_OK;
}

static weft_status_t check_names(const wefti_graph_t *graph)
{
    static const char *const names[] = {WEFTI_PROGRAMS};
    for (uint32_t i = 0; i < graph->program_count; i++) {
        bool known = false;
        for (size_t n = 0; n < sizeof(names) / sizeof(names[0]); n++) {
            known = known || is_named(&graph->programs[i], names[n]);
        }
        if (!known) {
            return wefti_error(WEFT_ERR_UNSUPPORTED,
                               "unknown program '%s': expected init, micro_step, step, flush or "
                               "eval",
                               graph->programs[i].name);
        }
    }
    return WEFT_OK;
}

weft_status_t wefti_lower_programs(wefti_lowering_t *l)
{
    static const char *const names[STREAM_COUNT] = {"compute", "comm"};
    wefti_arena_t *arena = &l->plan->arena;
    l->plan->streams = wefti_arena_array(arena, STREAM_COUNT, sizeof(*l->plan->streams));
    l->plan->programs =
        wefti_arena_array(arena, l->graph->program_count, sizeof(*l->plan->programs));
    WEFT_RETURN_IF_NO_MEMORY(l->plan->streams && l->plan->programs);
    if (wefti_graph_find_program(l->graph, "step") == NULL) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "graph has no program 'step'");
    }
    WEFT_RETURN_IF_ERROR(check_names(l->graph));
    for (uint32_t s = 0; s < STREAM_COUNT; s++) {
        l->plan->streams[s] = (wefti_plan_stream_t){wefti_arena_strdup(arena, names[s]), s == COMM};
        WEFT_RETURN_IF_NO_MEMORY(l->plan->streams[s].name);
    }
    l->plan->stream_count = STREAM_COUNT;
    return add_programs(l);
}
