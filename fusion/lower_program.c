/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Events and programs. A bucket's collective waits on the comm stream for an event
 * recorded right behind the kernel that writes its last member; its first reader on the compute
 * stream waits for an event recorded right behind the collective.
 */
#include "fusion/lower.h"

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
    if (program->name == NULL || program->streams == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    program->streams[COMPUTE].steps = wefti_arena_array(arena, compute, sizeof(wefti_plan_step_t));
    program->streams[COMM].steps = wefti_arena_array(arena, comm, sizeof(wefti_plan_step_t));
    *out_program = program;
    return program->streams[COMPUTE].steps == NULL || program->streams[COMM].steps == NULL
               ? WEFT_ERR_NO_MEMORY
               : WEFT_OK;
}

/* Item reads all of bucket and of its pieces, or is the first of their updates, one for each. */
static void note_reader(const wefti_lowering_t *l, uint32_t bucket, uint32_t item, uint32_t *reader)
{
    bool by_piece = l->items[item].bucket == bucket;
    for (uint32_t part = 0; part < l->buckets[bucket].parts; part++) {
        uint32_t first = by_piece ? item + part : item;
        reader[bucket + part] = first < reader[bucket + part] ? first : reader[bucket + part];
    }
}

/* For every bucket the first item of the program that reads a result of it, or item_count. */
static void find_readers(const wefti_lowering_t *l, const bool *needed, uint32_t *reader)
{
    for (uint32_t b = 0; b < l->bucket_count; b++) {
        reader[b] = l->item_count;
    }
    for (uint32_t n = 0; n < l->graph->order_count; n++) {
        uint32_t id = l->graph->order[n], item = l->item_of[id];
        const wefti_node_t *node = &l->graph->nodes[id];
        if (item == WEFTI_NONE || (needed != NULL && !needed[id])) {
            continue;
        }
        for (uint32_t j = 0; j < node->input_count; j++) {
            uint32_t value = node->inputs[j];
            uint32_t producer = value == WEFTI_NONE ? WEFTI_NONE : l->graph->values[value].producer;
            uint32_t bucket = producer == WEFTI_NONE ? WEFTI_NONE : l->bucket_of[producer];
            if (bucket != WEFTI_NONE) {
                note_reader(l, bucket, item, reader);
            }
        }
    }
}

/* Marks the items and buckets that the values asked for need. */
static weft_status_t mark_needed(wefti_lowering_t *l, const uint32_t *roots, uint32_t root_count,
                                 bool *needed)
{
    const wefti_graph_t *graph = l->graph;
    for (uint32_t i = 0; i < root_count; i++) {
        if (roots[i] != WEFTI_NONE && graph->values[roots[i]].producer != WEFTI_NONE) {
            needed[graph->values[roots[i]].producer] = true;
        }
    }
    for (uint32_t n = graph->order_count; n-- > 0;) {
        const wefti_node_t *node = &graph->nodes[graph->order[n]];
        if (!needed[graph->order[n]]) {
            continue;
        }
        if (node->phase == WEFTI_PHASE_UPDATE) {
            return wefti_error(WEFT_ERR_UNSUPPORTED,
                               "%s: an output of the forward pass depends on an update",
                               node->name);
        }
        for (uint32_t j = 0; j < node->input_count; j++) {
            uint32_t producer = node->inputs[j] == WEFTI_NONE
                                    ? WEFTI_NONE
                                    : graph->values[node->inputs[j]].producer;
            if (producer != WEFTI_NONE) {
                needed[producer] = true;
            }
        }
    }
    return WEFT_OK;
}

/* A program being written. */
typedef struct writer {
    wefti_lowering_t *l;
    wefti_plan_program_t *program;
    uint32_t *reader;  /* bucket -> first item that reads it */
    uint32_t *done;    /* bucket -> event recorded behind it */
    uint32_t *waiting; /* item -> the bucket that it waits for, or WEFTI_NONE */
    bool eval;
} writer_t;

static weft_status_t begin_writer(wefti_lowering_t *l, const char *name, const bool *needed,
                                  writer_t *w)
{
    weft_status_t status;
    size_t buckets = l->bucket_count;
    *w = (writer_t){.l = l, .eval = needed != NULL};
    w->reader = wefti_arena_array(&l->arena, buckets, sizeof(*w->reader));
    w->done = wefti_arena_array(&l->arena, buckets, sizeof(*w->done));
    w->waiting = wefti_arena_array(&l->arena, (size_t)l->item_count + 1, sizeof(*w->waiting));
    if (w->reader == NULL || w->done == NULL || w->waiting == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    WEFT_TRY(status, begin_program(l, name, l->item_count + 2 * buckets, 3 * buckets, &w->program),
             fail);
    find_readers(l, needed, w->reader);
    memset(w->waiting, 0xff, ((size_t)l->item_count + 1) * sizeof(*w->waiting));
    /* One stream runs the buckets in their order: waiting for an item's last one is enough. */
    for (uint32_t b = 0; b < l->bucket_count; b++) {
        uint32_t before = w->waiting[w->reader[b]];
        if (before != WEFTI_NONE) {
            w->reader[before] = l->item_count;
        }
        w->waiting[w->reader[b]] = b;
    }
fail:
    return status;
}

static void write_bucket(writer_t *w, uint32_t bucket)
{
    wefti_lowering_t *l = w->l;
    if (l->buckets[bucket].ready > 0 && l->buckets[bucket].part == 0) {
        push(w->program, COMPUTE, WEFTI_STEP_RECORD, l->plan->event_count);
        push(w->program, COMM, WEFTI_STEP_WAIT, l->plan->event_count++);
    }
    push(w->program, COMM, WEFTI_STEP_COLLECTIVE, bucket);
    if (w->reader[bucket] < l->item_count) {
        w->done[bucket] = l->plan->event_count++;
        push(w->program, COMM, WEFTI_STEP_RECORD, w->done[bucket]);
    }
}

static void write_item(writer_t *w, uint32_t item)
{
    const wefti_item_t *at = &w->l->items[item];
    if (w->waiting[item] != WEFTI_NONE) {
        push(w->program, COMPUTE, WEFTI_STEP_WAIT, w->done[w->waiting[item]]);
    }
    push(w->program, COMPUTE, WEFTI_STEP_KERNEL, w->eval ? at->eval_kernel : at->kernel);
}

/* needed NULL: everything. Events are numbered over all programs, each is recorded by one of them.
 */
static weft_status_t add_program(wefti_lowering_t *l, const char *name, const bool *needed)
{
    weft_status_t status;
    writer_t writer;
    uint32_t bucket = 0;
    WEFT_TRY(status, begin_writer(l, name, needed, &writer), fail);
    for (uint32_t i = 0; i <= l->item_count; i++) {
        /* Buckets are sorted by the number of items that must have run. */
        for (; bucket < l->bucket_count && l->buckets[bucket].ready == i; bucket++) {
            if (needed == NULL || needed[l->buckets[bucket].node]) {
                write_bucket(&writer, bucket);
            }
        }
        if (i < l->item_count && (needed == NULL || needed[l->items[i].node])) {
            write_item(&writer, i);
        }
    }
fail:
    return status;
}

static weft_status_t add_init(wefti_lowering_t *l)
{
    weft_status_t status;
    wefti_plan_program_t *program = NULL;
    WEFT_TRY(status, begin_program(l, "init", 0, l->plan->collective_count, &program), fail);
    for (uint32_t c = l->bucket_count; c < l->plan->collective_count; c++) {
        push(program, COMM, WEFTI_STEP_COLLECTIVE, c);
    }
fail:
    return status;
}

static weft_status_t add_eval(wefti_lowering_t *l)
{
    weft_status_t status;
    const wefti_graph_t *graph = l->graph;
    const uint32_t loss[] = {graph->loss, graph->logits};
    bool *needed = wefti_arena_array(&l->arena, graph->node_count, sizeof(*needed));
    if (needed == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    if (graph->loss != WEFTI_NONE) {
        WEFT_TRY(status, mark_needed(l, loss, 2, needed), fail);
    } else {
        WEFT_TRY(status, mark_needed(l, graph->outputs, graph->output_count, needed), fail);
    }
    WEFT_TRY(status, add_program(l, "eval", needed), fail);
fail:
    return status;
}

weft_status_t wefti_lower_programs(wefti_lowering_t *l)
{
    static const char *const names[STREAM_COUNT] = {"compute", "comm"};
    weft_status_t status;
    wefti_arena_t *arena = &l->plan->arena;
    l->plan->streams = wefti_arena_array(arena, STREAM_COUNT, sizeof(*l->plan->streams));
    l->plan->programs = wefti_arena_array(arena, 3, sizeof(*l->plan->programs));
    if (l->plan->streams == NULL || l->plan->programs == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t s = 0; s < STREAM_COUNT; s++) {
        l->plan->streams[s] = (wefti_plan_stream_t){wefti_arena_strdup(arena, names[s]), s == COMM};
        if (l->plan->streams[s].name == NULL) {
            return WEFT_ERR_NO_MEMORY;
        }
    }
    l->plan->stream_count = STREAM_COUNT;
    WEFT_TRY(status, wefti_lower_collectives(l), fail);
    WEFT_TRY(status, add_init(l), fail);
    WEFT_TRY(status, add_program(l, "step", NULL), fail);
    WEFT_TRY(status, add_eval(l), fail);
fail:
    return status;
}
