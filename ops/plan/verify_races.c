/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs each program once in memory and watches every access. The arena is cut into segments at all
 * buffers' ends, so ranges, in-place results and reused temporaries need no special case. Streams
 * carry vector clocks, events hand them on; an access that does not come behind the last
 * conflicting one is a race. A temporary must still hold what was written into it by its own name,
 * or by that of the range that it lies in.
 *
 * Programs of one rank follow one another: micro-steps, step, and again. Gradients keep what
 * earlier micro-steps made. A shard counts as all places that it has on any rank; where only a
 * shard was written, the whole is not read before it is gathered, in this step or, decoupled, in
 * the next.
 */
#include "ops/plan/plan_internal.h"

#include <string.h>

#include "ops/op_facts.h"
#include "runtime/base/error.h"

/* Segments visited, which a plan may have by its size; and clock entries kept. Plans of real models
 * need thousands of times less. */
#define WORK_LEAST ((uint64_t)1 << 20)
#define WORK_OF_ITEM ((uint64_t)1 << 10) /* a buffer, or a step */
#define WORK_LIMIT ((uint64_t)1 << 27)
#define CLOCK_LIMIT ((uint64_t)1 << 24)

/* What a segment holds. */
#define WRITTEN (1u << 0) /* something that was made in this step, all of it */
#define SHARD (1u << 1)   /* a shard was written last: on other ranks another part is new */
#define REDUCED (1u << 2) /* by a bucket, and not written since */

typedef struct writer {
    uint32_t buffer; /* under which name; WEFTI_PLAN_NONE: not in this run */
    uint32_t stream;
    uint32_t tick;
} writer_t;

/* What is done with a buffer: one of READ and WRITE, with what else must hold or is done. */
#define READ (1u << 0)
#define WRITE (1u << 1)
#define OWN (1u << 2)    /* only what is this rank's */
#define GLOBAL (1u << 3) /* of gradients: what all ranks have agreed on is read, or written */

typedef struct races {
    const weft_plan_t *plan;
    uint64_t *edges; /* sorted; segment i lies between edges i and i + 1 */
    uint32_t segment_count;
    uint32_t *first, *end;  /* of every buffer, in segments */
    uint32_t *member;       /* by range whose memory is reused: its last tensor, id + 1, or 0 */
    uint32_t *root;         /* by buffer: that of which it is a view, or itself */
    uint32_t *next;         /* by tensor in such a range: the one before it, id + 1, or 0 */
    uint8_t *made;          /* segment holds what a run makes: gradients, temporaries, outputs */
    uint8_t *owned;         /* else padding of ranges: what is there means nothing */
    uint8_t *weights;       /* segment is of a parameter */
    uint8_t *kept;          /* gradients: made in an earlier micro-step, maybe */
    uint8_t *holds;         /* by segment: WRITTEN, SHARD, REDUCED */
    uint8_t *left;          /* what a step leaves to the next */
    uint32_t *place;        /* by segment: where its last writer ran; 0: on all ranks */
    uint32_t at;            /* the place of the step that runs */
    writer_t *writers;      /* by segment */
    uint32_t *reads;        /* by segment and stream: tick of the last read */
    uint32_t *clocks;       /* by stream and stream: what the first knows of the second */
    uint32_t *event_clocks; /* by event and stream; tick 0 is "before everything" */
    uint8_t *recorded;
    uint8_t *written; /* by buffer: the program has written it */
    uint64_t work, work_limit;
} races_t;

/* By the size of the plan, so that a small file is verified in milliseconds. */
static uint64_t work_limit(const weft_plan_t *plan)
{
    uint64_t items = plan->buffer_count;
    for (uint32_t p = 0; p < plan->program_count; p++) {
        for (uint32_t s = 0; s < plan->stream_count; s++) {
            items += plan->programs[p].streams[s].step_count;
        }
    }
    uint64_t limit =
        items < WORK_LIMIT / WORK_OF_ITEM ? WORK_LEAST + items * WORK_OF_ITEM : WORK_LIMIT;
    return limit < WORK_LIMIT ? limit : WORK_LIMIT;
}

/* Edges are the ends of all buffers; every buffer learns its first segment and that behind it. */
static weft_status_t find_edges(races_t *races)
{
    const weft_plan_t *plan = races->plan;
    size_t count = 0, most = 2 * (size_t)plan->buffer_count;
    wefti_plan_place_t *ends = wefti_alloc(plan->arena.allocator, (most + 1) * sizeof *ends);
    if (!ends) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t i = 0; i < plan->buffer_count; i++) {
        ends[count++] = (wefti_plan_place_t){plan->buffers[i].offset_bytes, i};
        ends[count++] = (wefti_plan_place_t){wefti_plan_buffer_end(plan, &plan->buffers[i]), i};
    }
    weft_status_t status = wefti_plan_sort_places(plan, ends, count);
    for (size_t i = 0; i < count && status == WEFT_OK; i++) {
        uint32_t id = ends[i].id;
        if (ends[i].offset_bytes != races->edges[races->segment_count]) {
            races->edges[++races->segment_count] = ends[i].offset_bytes;
        }
        if (ends[i].offset_bytes == plan->buffers[id].offset_bytes) {
            races->first[id] = races->segment_count;
        }
        races->end[id] = races->segment_count; /* the end is met last */
    }
    wefti_free(plan->arena.allocator, ends);
    return status;
}

/* What the segments of a buffer are, and which range it lies in. */
static void mark_segments(races_t *races, uint32_t id)
{
    const wefti_plan_buffer_t *buffer = &races->plan->buffers[id];
    wefti_buffer_kind_t kind = buffer->kind;
    int weights = kind == WEFTI_BUFFER_PARAM || buffer->whole_offset_bytes != 0;
    int reduced = kind == WEFTI_BUFFER_SHARD && !weights;
    uint32_t first = races->first[id], count = races->end[id] - first;
    if (kind == WEFTI_BUFFER_GRAD || kind == WEFTI_BUFFER_TEMP || kind == WEFTI_BUFFER_OUTPUT ||
        reduced) {
        memset(races->made + first, 1, count);
    }
    if (kind != WEFTI_BUFFER_RANGE) {
        memset(races->owned + first, 1, count);
    }
    if (weights) {
        memset(races->weights + first, 1, count);
    }
    if ((kind == WEFTI_BUFFER_GRAD && !wefti_plan_passes(buffer)) || reduced) {
        memset(races->kept + first, 1, count);
    }
    if (kind != WEFTI_BUFFER_RANGE && buffer->range != 0) {
        races->next[id] = races->member[buffer->range - 1];
        races->member[buffer->range - 1] = id + 1;
    }
}

/* One kernel writes the output, in the place of its input: temporaries of one size. */
static int may_view(const weft_plan_t *plan, const wefti_plan_kernel_t *kernel,
                    const uint32_t *written)
{
    uint32_t from = kernel->input_count > 0 ? kernel->inputs[0] : WEFTI_PLAN_NONE;
    uint32_t to = kernel->output_count == 1 ? kernel->outputs[0] : WEFTI_PLAN_NONE;
    if (from == WEFTI_PLAN_NONE || to == WEFTI_PLAN_NONE || from == to || written[to] != 1) {
        return 0;
    }
    const wefti_plan_buffer_t *in = &plan->buffers[from], *out = &plan->buffers[to];
    return in->kind == WEFTI_BUFFER_TEMP && out->kind == WEFTI_BUFFER_TEMP &&
           in->offset_bytes == out->offset_bytes && in->size_bytes == out->size_bytes &&
           in->layout == WEFT_LAYOUT_PLAIN && out->layout == WEFT_LAYOUT_PLAIN && in->range == 0 &&
           out->range == 0;
}

static weft_status_t find_roots(races_t *races, const weft_registry_t *registry,
                                const uint32_t *written)
{
    const weft_plan_t *plan = races->plan;
    weft_registry_t *own = NULL;
    weft_status_t status = WEFT_OK;
    for (uint32_t i = 0; i < plan->kernel_count && status >= 0; i++) {
        const wefti_plan_kernel_t *kernel = &plan->kernels[i];
        if (!may_view(plan, kernel, written)) {
            continue;
        }
        if (registry == NULL) {
            status = weft_registry_create(plan->arena.allocator, &own);
            registry = own;
        }
        const weft_op_def_t *def = status < 0 ? NULL
                                              : weft_registry_find_op(registry, kernel->domain,
                                                                      kernel->op, kernel->version);
        if (def != NULL && wefti_op_has(def, WEFT_FACT_VIEW)) {
            races->root[kernel->outputs[0]] = races->root[kernel->inputs[0]];
        }
    }
    weft_registry_destroy(own);
    return status;
}

/* Temporaries that are views of others. */
static weft_status_t find_views(races_t *races, const weft_registry_t *registry,
                                wefti_arena_t *arena)
{
    const weft_plan_t *plan = races->plan;
    uint32_t *written = wefti_arena_array(arena, plan->buffer_count, sizeof *written);
    races->root = wefti_arena_array(arena, plan->buffer_count, sizeof *races->root);
    WEFT_RETURN_IF_NO_MEMORY(written && races->root);
    for (uint32_t i = 0; i < plan->buffer_count; i++) {
        races->root[i] = i;
    }
    for (uint32_t i = 0; i < plan->kernel_count; i++) {
        const wefti_plan_kernel_t *kernel = &plan->kernels[i];
        for (uint32_t o = 0; o < kernel->output_count; o++) {
            if (kernel->outputs[o] != WEFTI_PLAN_NONE) {
                written[kernel->outputs[o]]++;
            }
        }
    }
    return find_roots(races, registry, written);
}

static weft_status_t cut_segments(races_t *races, wefti_arena_t *arena)
{
    const weft_plan_t *plan = races->plan;
    races->edges =
        wefti_arena_array(arena, 2 * (size_t)plan->buffer_count + 2, sizeof *races->edges);
    races->first = wefti_arena_array(arena, plan->buffer_count, sizeof *races->first);
    races->end = wefti_arena_array(arena, plan->buffer_count, sizeof *races->end);
    races->member = wefti_arena_array(arena, plan->buffer_count, sizeof *races->member);
    races->next = wefti_arena_array(arena, plan->buffer_count, sizeof *races->next);
    if (!races->edges || !races->first || !races->end || !races->member || !races->next) {
        return WEFT_ERR_NO_MEMORY;
    }
    races->edges[0] = 0;
    weft_status_t status = find_edges(races);
    if (status != WEFT_OK) {
        return status;
    }
    races->made = wefti_arena_alloc(arena, races->segment_count);
    races->owned = wefti_arena_alloc(arena, races->segment_count);
    races->weights = wefti_arena_alloc(arena, races->segment_count);
    races->kept = wefti_arena_alloc(arena, races->segment_count);
    races->holds = wefti_arena_alloc(arena, races->segment_count);
    races->left = wefti_arena_alloc(arena, races->segment_count);
    races->place = wefti_arena_array(arena, races->segment_count, sizeof *races->place);
    if (!races->made || !races->owned || !races->weights || !races->kept || !races->holds ||
        !races->left || !races->place) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t i = 0; i < plan->buffer_count; i++) {
        races->work += races->end[i] - races->first[i];
        if (races->work > races->work_limit) {
            return wefti_error(WEFT_ERR_UNSUPPORTED, "too many overlapping buffers to verify");
        }
        mark_segments(races, i);
    }
    return WEFT_OK;
}

static weft_status_t prepare(races_t *races, const weft_registry_t *registry, wefti_arena_t *arena)
{
    const weft_plan_t *plan = races->plan;
    weft_status_t status = cut_segments(races, arena);
    size_t streams = plan->stream_count;
    if (status != WEFT_OK) {
        return status;
    }
    if ((uint64_t)plan->event_count * streams > CLOCK_LIMIT ||
        (uint64_t)races->segment_count * streams > CLOCK_LIMIT) {
        return wefti_error(WEFT_ERR_UNSUPPORTED,
                           "too large to verify: %u events and %u memory ranges", plan->event_count,
                           races->segment_count);
    }
    WEFT_RETURN_IF_ERROR(find_views(races, registry, arena));
    races->writers = wefti_arena_array(arena, races->segment_count, sizeof *races->writers);
    races->reads = wefti_arena_array(arena, races->segment_count * streams, sizeof *races->reads);
    races->clocks = wefti_arena_array(arena, streams * streams, sizeof *races->clocks);
    races->event_clocks =
        wefti_arena_array(arena, plan->event_count * streams, sizeof *races->event_clocks);
    races->recorded = wefti_arena_alloc(arena, plan->event_count);
    races->written = wefti_arena_alloc(arena, plan->buffer_count);
    return races->writers && races->reads && races->clocks && races->event_clocks &&
                   races->recorded && races->written
               ? WEFT_OK
               : WEFT_ERR_NO_MEMORY;
}

static void reset(races_t *races)
{
    size_t streams = races->plan->stream_count;
    for (uint32_t i = 0; i < races->segment_count; i++) {
        races->writers[i] = (writer_t){WEFTI_PLAN_NONE, 0, 0};
    }
    memset(races->reads, 0, races->segment_count * streams * sizeof *races->reads);
    memset(races->clocks, 0, streams * streams * sizeof *races->clocks);
    memset(races->recorded, 0, races->plan->event_count);
    memset(races->written, 0, races->plan->buffer_count);
}

/* The name under which a buffer is written: all tensors of one range have one. */
static uint32_t name_of(const races_t *races, uint32_t buffer)
{
    uint32_t root = buffer == WEFTI_PLAN_NONE ? buffer : races->root[buffer];
    uint32_t range = root == WEFTI_PLAN_NONE ? 0 : races->plan->buffers[root].range;
    return range != 0 ? range - 1 : root;
}

/* What is wrong with an access of stream s to one segment of a buffer, or NULL. */
static const char *touch(races_t *races, uint32_t s, uint32_t buffer, uint32_t segment,
                         uint32_t access)
{
    uint32_t streams = races->plan->stream_count;
    const uint32_t *clock = &races->clocks[(size_t)s * streams];
    uint32_t *reads = &races->reads[(size_t)segment * streams];
    writer_t *writer = &races->writers[segment];
    uint8_t *holds = &races->holds[segment];
    wefti_buffer_kind_t kind = races->plan->buffers[buffer].kind;
    if (writer->tick > clock[writer->stream]) {
        return "is used while another stream writes it";
    }
    if (access & READ) {
        int reused = wefti_plan_passes(&races->plan->buffers[buffer]);
        if (!(access & OWN) && (*holds & SHARD)) {
            return "is read where only a shard of it was written";
        }
        if (*holds == 0 && races->made[segment]) {
            return "is read before it is written";
        }
        if (races->place[segment] != 0 && races->place[segment] != races->at) {
            return "is read where it was not written: only ranks of another place have it";
        }
        if ((access & GLOBAL) && (races->kept[segment] ? !(*holds & REDUCED)
                                                       : races->plan->buffers[buffer].range != 0)) {
            return "is read by an update before it is reduced";
        }
        if ((reused || kind == WEFTI_BUFFER_OUTPUT) &&
            name_of(races, writer->buffer) != name_of(races, buffer)) {
            return "is read after its memory was used for something else";
        }
        reads[s] = clock[s];
        return NULL;
    }
    for (uint32_t t = 0; t < streams; t++) {
        if (reads[t] > clock[t]) {
            return "is written while another stream reads it";
        }
    }
    if (writer->tick == clock[s] && writer->stream == s && writer->buffer != buffer) {
        return "shares memory with another output of the same step";
    }
    *writer = (writer_t){buffer, s, clock[s]};
    races->place[segment] = races->at;
    if (races->owned[segment]) {
        uint32_t now = access & OWN ? (*holds & WRITTEN) | SHARD : WRITTEN;
        *holds = (uint8_t)(now | (access & GLOBAL ? REDUCED : 0));
    }
    return NULL;
}

/* Segments first up to end of a buffer. */
static weft_status_t touch_all(races_t *races, const wefti_plan_program_t *program, uint32_t s,
                               uint32_t buffer, uint32_t first, uint32_t end, uint32_t access)
{
    for (uint32_t i = first; i < end; i++) {
        const char *what = touch(races, s, buffer, i, access);
        if (what) {
            return wefti_error(WEFT_ERR_FORMAT,
                               "program %.100s, stream %.100s: buffer %u (%.100s) %s",
                               program->name, races->plan->streams[s].name, buffer,
                               races->plan->buffers[buffer].name, what);
        }
    }
    return WEFT_OK;
}

/* What is read of a range whose memory is reused are its tensors: padding means nothing. */
static weft_status_t read_members(races_t *races, const wefti_plan_program_t *program, uint32_t s,
                                  uint32_t buffer, uint32_t access)
{
    weft_status_t status = WEFT_OK;
    uint32_t first = races->first[buffer], end = races->end[buffer];
    for (uint32_t at = races->member[name_of(races, buffer)]; at != 0 && status == WEFT_OK;
         at = races->next[at - 1]) {
        uint32_t from = races->first[at - 1], to = races->end[at - 1];
        races->work++;
        status = touch_all(races, program, s, buffer, from > first ? from : first,
                           to < end ? to : end, access);
    }
    return status;
}

static weft_status_t access_buffer(races_t *races, const wefti_plan_program_t *program, uint32_t s,
                                   uint32_t buffer, uint32_t access)
{
    if (buffer == WEFTI_PLAN_NONE) {
        return WEFT_OK;
    }
    races->work += races->end[buffer] - races->first[buffer];
    if (races->work > races->work_limit) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "programs too long to verify");
    }
    if (races->plan->world_size <= 1) { /* its own is all there is, and nothing is reduced */
        access &= READ | WRITE;
    } else if (races->plan->buffers[buffer].rank_stride_bytes > 0) {
        access |= OWN;
    }
    const wefti_plan_buffer_t *at = &races->plan->buffers[buffer];
    races->written[buffer] |= (access & WRITE) != 0;
    return at->kind == WEFTI_BUFFER_RANGE && at->range != 0 && (access & READ) != 0
               ? read_members(races, program, s, buffer, access)
               : touch_all(races, program, s, buffer, races->first[buffer], races->end[buffer],
                           access);
}

/* Does the kernel write parameters? Then what it takes of gradients must be all ranks'. */
static int updates_weights(const races_t *races, const wefti_plan_kernel_t *kernel)
{
    for (uint32_t i = 0; i < kernel->output_count; i++) {
        uint32_t id = kernel->outputs[i];
        if (id != WEFTI_PLAN_NONE && races->first[id] < races->end[id] &&
            races->weights[races->first[id]]) {
            return 1;
        }
    }
    return 0;
}

/* A view moves nothing: what it is of is read, under either name. */
static int is_view(const races_t *races, const wefti_plan_kernel_t *kernel)
{
    return kernel->output_count == 1 && kernel->outputs[0] != WEFTI_PLAN_NONE &&
           races->root[kernel->outputs[0]] != kernel->outputs[0];
}

static weft_status_t run_kernel(races_t *races, const wefti_plan_program_t *program, uint32_t s,
                                uint32_t index)
{
    const wefti_plan_kernel_t *kernel = &races->plan->kernels[index];
    uint32_t read = updates_weights(races, kernel) ? READ | GLOBAL : READ;
    weft_status_t status = WEFT_OK;
    races->at = kernel->place;
    for (uint32_t i = 0; i < kernel->input_count && status == WEFT_OK; i++) {
        status = access_buffer(races, program, s, kernel->inputs[i], read);
    }
    uint32_t written = is_view(races, kernel) ? 0 : kernel->output_count;
    for (uint32_t i = 0; i < written && status == WEFT_OK; i++) {
        status = access_buffer(races, program, s, kernel->outputs[i], WRITE);
    }
    return status;
}

/* Operands of a sweep's kernel beside the shards of what the collective has anyway. */
static weft_status_t run_update(races_t *races, const wefti_plan_program_t *program, uint32_t s,
                                uint32_t index)
{
    const wefti_plan_kernel_t *kernel = &races->plan->kernels[index];
    weft_status_t status = WEFT_OK;
    for (uint32_t i = 2; i < kernel->input_count && status == WEFT_OK; i++) {
        status = access_buffer(races, program, s, kernel->inputs[i], READ);
    }
    for (uint32_t i = 1; i < kernel->output_count && status == WEFT_OK; i++) {
        status = access_buffer(races, program, s, kernel->outputs[i], WRITE);
    }
    return status;
}

/* Peers read the source and write the buffer while the collective runs, and only then: it ends on a
 * rank when nobody touches that rank's memory any more. */
static weft_status_t run_collective(races_t *races, const wefti_plan_program_t *program, uint32_t s,
                                    uint32_t index)
{
    const wefti_plan_collective_t *collective = &races->plan->collectives[index];
    int one = collective->source == collective->buffer,
        sweeps = collective->update != WEFTI_PLAN_NONE;
    int reduces = wefti_plan_reduces_gradients(races->plan, collective) && !sweeps;
    uint32_t read = READ | (one && wefti_collective_gathers(collective->op) ? OWN : 0);
    uint32_t write = WRITE | (one && wefti_collective_scatters(collective->op) ? OWN : 0) |
                     (reduces ? GLOBAL : 0);
    races->at =
        wefti_plan_sends(races->plan, collective) ? collective->root + 1 : collective->place;
    WEFT_RETURN_IF_ERROR(access_buffer(races, program, s, collective->source, read));
    races->at = collective->place;
    if (sweeps) {
        WEFT_RETURN_IF_ERROR(access_buffer(races, program, s, collective->buffer, READ | OWN));
        WEFT_RETURN_IF_ERROR(run_update(races, program, s, collective->update));
    }
    return access_buffer(races, program, s, collective->buffer, write);
}

/* One step that is not blocked. Accesses of a step carry the tick that it begins with. */
static weft_status_t run_step(races_t *races, const wefti_plan_program_t *program, uint32_t s,
                              const wefti_plan_step_t *step)
{
    uint32_t streams = races->plan->stream_count;
    uint32_t *clock = &races->clocks[(size_t)s * streams];
    clock[s]++;
    if (step->kind == WEFTI_STEP_KERNEL) {
        return run_kernel(races, program, s, step->index);
    }
    if (step->kind == WEFTI_STEP_COLLECTIVE) {
        return run_collective(races, program, s, step->index);
    }
    uint32_t *event = &races->event_clocks[(size_t)step->index * streams];
    if (step->kind == WEFTI_STEP_RECORD) {
        memcpy(event, clock, streams * sizeof *clock);
        races->recorded[step->index] = 1;
        return WEFT_OK;
    }
    for (uint32_t t = 0; t < streams; t++) {
        clock[t] = event[t] > clock[t] ? event[t] : clock[t];
    }
    return WEFT_OK;
}

/* Sessions read an output after the program that wrote it: its memory still holds it then. */
static weft_status_t check_kept(const races_t *races, const wefti_plan_program_t *program)
{
    const weft_plan_t *plan = races->plan;
    for (uint32_t b = 0; b < plan->buffer_count; b++) {
        bool is_read = plan->buffers[b].kind == WEFTI_BUFFER_OUTPUT && races->written[b];
        for (uint32_t i = races->first[b]; is_read && i < races->end[b]; i++) {
            if (races->writers[i].buffer != b) {
                return wefti_error(WEFT_ERR_FORMAT,
                                   "program %.100s: buffer %u (%.100s) is an output whose memory "
                                   "is used for something else before the end",
                                   program->name, b, plan->buffers[b].name);
            }
        }
    }
    return WEFT_OK;
}

/* The order is one of many that the events allow; vector clocks make the verdict the same for all.
 */
static weft_status_t run_program(races_t *races, const wefti_plan_program_t *program)
{
    uint32_t at[WEFTI_PLAN_MAX_STREAMS] = {0};
    int moved = 1;
    reset(races);
    while (moved) {
        moved = 0;
        for (uint32_t s = 0; s < races->plan->stream_count; s++) {
            const wefti_plan_stream_program_t *stream = &program->streams[s];
            for (; at[s] < stream->step_count; at[s]++, moved = 1) {
                const wefti_plan_step_t *step = &stream->steps[at[s]];
                if (step->kind == WEFTI_STEP_WAIT && !races->recorded[step->index]) {
                    break;
                }
                weft_status_t status = run_step(races, program, s, step);
                if (status != WEFT_OK) {
                    return status;
                }
            }
        }
    }
    return check_kept(races, program);
}

/* What a rank forgets before a program: gradients are kept from micro-step to step, and so is what
 * lasts. */
static void forget(races_t *races, int keep_gradients)
{
    for (uint32_t i = 0; i < races->segment_count; i++) {
        if (races->made[i] && !(keep_gradients && races->kept[i])) {
            races->holds[i] = 0;
        }
    }
}

static weft_status_t run_named(races_t *races, const char *name)
{
    const wefti_plan_program_t *program = wefti_plan_program(races->plan, name);
    forget(races, 0);
    return program ? run_program(races, program) : WEFT_OK;
}

static weft_status_t run_step_programs(races_t *races)
{
    const weft_plan_t *plan = races->plan;
    const wefti_plan_program_t *program;
    program = wefti_plan_micro_step(plan, 0);
    if ((plan->flags & WEFTI_PLAN_DECOUPLED) && program &&
        !wefti_plan_gathers_weights(plan, program)) {
        WEFT_RETURN_IF_ERROR(run_named(races, "flush")); /* before the first micro-batch */
    }
    /* A program that folds more first runs later, and what is made only grows: this order finds all
     * that may be read too early. */
    for (uint32_t folds = 0; (program = wefti_plan_micro_step(plan, folds)) != NULL; folds++) {
        forget(races, folds > 0);
        WEFT_RETURN_IF_ERROR(run_program(races, program));
    }
    forget(races, plan->accumulate > 1);
    return run_program(races, wefti_plan_program(plan, "step"));
}

/* Nothing that lasts may be left in shards. */
static weft_status_t check_gathered(const races_t *races, const char *program)
{
    for (uint32_t i = 0; i < races->segment_count; i++) {
        if ((races->holds[i] & SHARD) && !races->made[i]) {
            return wefti_error(WEFT_ERR_FORMAT,
                               "program %s: the updated shard at offset %llu is not gathered",
                               program, (unsigned long long)races->edges[i]);
        }
    }
    return WEFT_OK;
}

/* Sessions read outputs on every rank. */
static weft_status_t check_outputs(const races_t *races)
{
    const weft_plan_t *plan = races->plan;
    for (uint32_t b = 0; b < plan->buffer_count && plan->place_group != 0; b++) {
        for (uint32_t i = races->first[b];
             plan->buffers[b].kind == WEFTI_BUFFER_OUTPUT && i < races->end[b]; i++) {
            if (races->writers[i].buffer == b && races->place[i] != 0) {
                return wefti_error(WEFT_ERR_FORMAT,
                                   "buffer %u (%.100s): an output that only ranks of place %u have",
                                   b, plan->buffers[b].name, races->place[i]);
            }
        }
    }
    return WEFT_OK;
}

/* A step that leaves shards, the one behind it, and flush instead of that. */
static weft_status_t run_decoupled(races_t *races)
{
    memcpy(races->left, races->holds, races->segment_count);
    WEFT_RETURN_IF_ERROR(run_step_programs(races));
    memcpy(races->holds, races->left, races->segment_count);
    WEFT_RETURN_IF_ERROR(run_named(races, "flush"));
    return check_gathered(races, "flush");
}

/* Where rank 0 gives its weights to everybody, it gives all of them. */
static weft_status_t run_init(races_t *races)
{
    const weft_plan_t *plan = races->plan;
    weft_status_t status = run_named(races, "init");
    int gives = plan->world_size > 1 && !(plan->flags & WEFTI_PLAN_RANK_DATA) &&
                wefti_plan_program(plan, "init") != NULL;
    for (uint32_t b = 0; b < plan->buffer_count && gives && status == WEFT_OK; b++) {
        for (uint32_t i = races->first[b];
             i < races->end[b] && plan->buffers[b].kind == WEFTI_BUFFER_PARAM &&
             !wefti_plan_is_nowhere(&plan->buffers[b]);
             i++) {
            if (!(races->holds[i] & WRITTEN)) {
                return wefti_error(WEFT_ERR_FORMAT,
                                   "program init: buffer %u (%.100s) is not broadcast to all ranks",
                                   b, plan->buffers[b].name);
            }
        }
    }
    return status;
}

weft_status_t wefti_plan_run_races(const weft_plan_t *plan, const weft_registry_t *registry,
                                   uint64_t *out_accesses, uint32_t *out_pieces)
{
    weft_status_t status;
    wefti_arena_t arena;
    races_t races = {.plan = plan, .work_limit = work_limit(plan)};
    wefti_arena_init(&arena, plan->arena.allocator, 0);
    WEFT_TRY(status, prepare(&races, registry, &arena), done);
    WEFT_TRY(status, run_init(&races), done);
    WEFT_TRY(status, run_step_programs(&races), done);
    if (plan->place_group != 0) { /* the second step reads what updates of the first one wrote */
        WEFT_TRY(status, run_step_programs(&races), done);
        WEFT_TRY(status, check_outputs(&races), done);
    }
    if (plan->flags & WEFTI_PLAN_DECOUPLED) {
        WEFT_TRY(status, run_decoupled(&races), done);
    } else {
        WEFT_TRY(status, check_gathered(&races, "step"), done);
    }
    WEFT_TRY(status, run_named(&races, "eval"), done);
    WEFT_TRY(status, check_outputs(&races), done);
    *out_accesses = races.work;
    *out_pieces = races.segment_count;
done:
    wefti_arena_deinit(&arena);
    return status;
}

weft_status_t wefti_plan_verify_races(const weft_plan_t *plan, const weft_registry_t *registry)
{
    uint64_t accesses;
    uint32_t pieces;
    return wefti_plan_run_races(plan, registry, &accesses, &pieces);
}
