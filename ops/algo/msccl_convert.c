/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Follows the chunks of all ranks through the steps, in an order in which none waits for a later
 * one, and writes down what each rank has to do.
 *
 *   MSCCL                                  here
 *   thread block                           lane (id modulo 16)
 *   depid, deps                            wait for a phase of another lane of the rank
 *   s on one gpu, r on another             post; wait for it, then read where the sender has it
 *   chunk of i that nobody has changed     the send buffer
 *   chunk that holds a part of a sum       scratch, unrounded
 *   chunk that holds the whole sum         the receive buffer, rounded once
 *
 * Only what the file orders is ordered: a dependency that is missing there is a race that the
 * verifier finds. What a receiver reads must stay until it was read. MSCCL's connections keep a
 * copy; here it is read in place, or from a copy (wefti_msccl_way_t.buffered) where the verifier
 * finds that it is overwritten too early.
 */
#include <string.h>

#include "ops/algo/msccl.h"
#include "runtime/base/error.h"

/* What a chunk holds: an input, or the sum of inputs with the same number. 0: nothing. */
typedef struct value {
    uint32_t chunk;  /* number of the input */
    uint32_t lowest; /* of the gpus that contribute */
    uint32_t count;  /* of gpus that contribute */
} value_t;

/* A value and where it is. */
typedef struct held {
    uint32_t value;
    uint32_t key; /* of the place, for last_write; NONE: a copy for one receiver */
    weft_place_t place;
} held_t;

typedef struct converter {
    const wefti_msccl_t *m;
    const wefti_msccl_way_t *way;
    const wefti_collective_t *op;
    const weft_allocator_t *allocator;
    wefti_msccl_program_t *out;
    uint32_t root; /* NONE: not known yet */
    bool reduces;
    size_t words;     /* of a set of gpus */
    uint32_t at;      /* position in the order, from 1 */
    uint32_t step;    /* index */
    size_t open_move; /* action of this step that the next move may extend, + 1 */
    value_t *values;
    size_t value_count, value_capacity;
    uint64_t *sets; /* [value][words] */
    size_t set_capacity;
    held_t *chunks;       /* [chunk_count] */
    held_t *messages;     /* of all sends */
    uint32_t *message_of; /* [step] first one */
    uint32_t *phase_of;   /* [step] 0: none */
    uint32_t *phases;     /* [gpu * lanes + lane] */
    uint32_t *slot_of;    /* [chunk_count] + 1 */
    uint32_t *slots;      /* [gpu] */
    uint32_t *last_write; /* [2 * chunk_count] position in the order, of the first pass */
    held_t *sources;
    size_t source_capacity;
} converter_t;

/* ---- where things are ---- */

static uint32_t chunk_index(const converter_t *c, uint32_t gpu, char buffer, uint32_t offset)
{
    const wefti_msccl_gpu_t *g = &c->m->gpus[gpu];
    return g->first_chunk + offset +
           (buffer == 'i'   ? 0
            : buffer == 'o' ? g->inputs
                            : g->inputs + g->outputs);
}

/* The chunk that a step means: in files that work in place, inputs and outputs are the same. */
static uint32_t find_chunk(const converter_t *c, uint32_t gpu, char buffer, uint32_t offset)
{
    bool scatters = c->op->recv.extent == WEFT_EXTENT_BLOCK;
    if (c->m->in_place && buffer == 'i' && c->op->send.extent == WEFT_EXTENT_BLOCK) {
        return chunk_index(c, gpu, 'o', gpu * c->m->parts + offset);
    }
    if (c->m->in_place && buffer == 'o') {
        return chunk_index(c, gpu, c->op->send.extent == WEFT_EXTENT_BLOCK ? 'o' : 'i',
                           offset + (scatters ? gpu * c->m->parts : 0));
    }
    return chunk_index(c, gpu, buffer, offset);
}

static bool has_buffer(const converter_t *c, wefti_side_t side, uint32_t gpu)
{
    return side.holder == WEFT_HOLDER_ALL || gpu == c->root ||
           (c->root == WEFTI_MSCCL_NONE && side.extent == WEFT_EXTENT_VECTOR &&
            side.holder == c->op->send.holder);
}

static weft_place_t place_of(uint32_t gpu, weft_algo_buffer_t buffer, uint32_t block)
{
    return (weft_place_t){gpu, 1, buffer, block, 1};
}

static held_t output_at(const converter_t *c, uint32_t gpu, uint32_t offset)
{
    uint32_t first = c->op->recv.extent == WEFT_EXTENT_BLOCK ? gpu * c->m->parts : 0;
    return (held_t){.key = chunk_index(c, gpu, 'o', offset),
                    .place = place_of(gpu, WEFT_ALGO_BUFFER_RECV, first + offset)};
}

/* In place, the output that an input shares its memory with, or NONE. */
static uint32_t shared_output(const converter_t *c, uint32_t gpu, uint32_t offset)
{
    uint32_t own = gpu * c->m->parts;
    if (!c->way->in_place || !has_buffer(c, c->op->recv, gpu)) {
        return WEFTI_MSCCL_NONE;
    }
    if (c->op->send.extent == WEFT_EXTENT_BLOCK) {
        return own + offset;
    }
    if (c->op->recv.extent == WEFT_EXTENT_BLOCK) {
        return offset - own < c->m->parts ? offset - own : WEFTI_MSCCL_NONE;
    }
    return offset;
}

static held_t input_at(const converter_t *c, uint32_t gpu, uint32_t offset)
{
    uint32_t first = c->op->send.extent == WEFT_EXTENT_BLOCK ? gpu * c->m->parts : 0;
    uint32_t shared = shared_output(c, gpu, offset);
    return (held_t){.key = shared != WEFTI_MSCCL_NONE ? chunk_index(c, gpu, 'o', shared)
                                                      : chunk_index(c, gpu, 'i', offset),
                    .place = place_of(gpu, WEFT_ALGO_BUFFER_SEND, first + offset)};
}

static held_t slot_at(converter_t *c, uint32_t gpu, uint32_t chunk)
{
    if (c->slot_of[chunk] == 0) {
        c->slot_of[chunk] = ++c->slots[gpu];
    }
    return (held_t){.key = c->m->chunk_count + chunk,
                    .place = place_of(gpu, WEFT_ALGO_BUFFER_SCRATCH, c->slot_of[chunk] - 1)};
}

static held_t message_slot(converter_t *c, uint32_t gpu)
{
    return (held_t){.key = WEFTI_MSCCL_NONE,
                    .place = place_of(gpu, WEFT_ALGO_BUFFER_SCRATCH, c->slots[gpu]++)};
}

/* ---- values ---- */

static uint64_t *set_of(const converter_t *c, uint32_t value)
{
    return c->sets + value * c->words;
}

static weft_status_t add_value(converter_t *c, const value_t *value, uint32_t *out)
{
    WEFT_RETURN_IF_ERROR(wefti_array_reserve(c->allocator, &c->values, &c->value_capacity,
                                             c->value_count + 1, sizeof *c->values));
    WEFT_RETURN_IF_ERROR(wefti_array_reserve(c->allocator, &c->sets, &c->set_capacity,
                                             (c->value_count + 1) * c->words, sizeof *c->sets));
    *out = (uint32_t)c->value_count++;
    c->values[*out] = *value;
    memset(set_of(c, *out), 0, c->words * sizeof *c->sets);
    return WEFT_OK;
}

static bool contributes(const converter_t *c, uint32_t value, uint32_t gpu)
{
    return (set_of(c, value)[gpu / 64] >> gpu % 64 & 1) != 0;
}

/* The first gpu that contributes to both, or NONE. */
static uint32_t find_common(const converter_t *c, uint32_t a, uint32_t b)
{
    for (uint32_t w = 0; w < c->words; w++) {
        uint64_t both = set_of(c, a)[w] & set_of(c, b)[w];
        if (both != 0) {
            return 64 * w + (uint32_t)__builtin_ctzll(both);
        }
    }
    return WEFTI_MSCCL_NONE;
}

/* The sum of sources, which are sorted by the lowest gpu that contributes. */
static weft_status_t add_up(converter_t *c, held_t *sources, uint32_t count, uint32_t *out)
{
    value_t sum = c->values[sources[0].value];
    *out = sources[0].value;
    if (count == 1) {
        return WEFT_OK;
    }
    for (uint32_t i = 1; i < count; i++) {
        held_t source = sources[i];
        uint32_t at = i;
        for (; at > 0 && c->values[sources[at - 1].value].lowest > c->values[source.value].lowest;
             at--) {
            sources[at] = sources[at - 1];
        }
        sources[at] = source;
    }
    sum.lowest = c->values[sources[0].value].lowest;
    sum.count = 0;
    WEFT_RETURN_IF_ERROR(add_value(c, &sum, out));
    for (uint32_t i = 0; i < count; i++) {
        uint32_t value = sources[i].value, common = find_common(c, *out, value);
        if (c->values[value].chunk != sum.chunk) {
            return wefti_msccl_error(c->m, c->step, "adds chunk %u and chunk %u", sum.chunk,
                                     c->values[value].chunk);
        }
        if (common != WEFTI_MSCCL_NONE) {
            return wefti_msccl_error(c->m, c->step,
                                     "adds the contribution of gpu %u to chunk %u twice", common,
                                     sum.chunk);
        }
        for (size_t w = 0; w < c->words; w++) {
            set_of(c, *out)[w] |= set_of(c, value)[w];
        }
        c->values[*out].count += c->values[value].count;
    }
    return WEFT_OK;
}

/* The operator's block that value is a part of, by its length. */
static uint32_t block_of(const converter_t *c, const value_t *value)
{
    bool own = wefti_collective_gathers(c->m->algorithm.op) ||
               wefti_collective_exchanges(c->m->algorithm.op);
    return (own ? value->lowest * c->m->gpus[0].inputs : 0) + value->chunk;
}

/* ---- actions ---- */

static weft_status_t add_action(converter_t *c, uint32_t gpu, const wefti_msccl_action_t *action)
{
    wefti_msccl_list_t *list = &c->out->ranks[gpu];
    WEFT_RETURN_IF_ERROR(wefti_array_reserve(c->allocator, &list->actions, &list->capacity,
                                             list->count + 1, sizeof *list->actions));
    list->actions[list->count++] = *action;
    return WEFT_OK;
}

static bool continues(const weft_place_t *place, uint32_t count, const weft_place_t *next)
{
    return place->rank == next->rank && place->buffer == next->buffer &&
           place->block + count == next->block;
}

/* One more block of the last move; false: it is not the next one in every place. */
static bool extend_move(converter_t *c, uint32_t gpu, const wefti_msccl_action_t *next,
                        const held_t *sources)
{
    if (c->open_move == 0) {
        return false;
    }
    wefti_msccl_action_t *move = &c->out->ranks[gpu].actions[c->open_move - 1];
    uint32_t count = move->blocks.count;
    bool fits = move->op == next->op && move->finish == next->finish &&
                move->sources == next->sources &&
                move->blocks.first + count == next->blocks.first &&
                continues(&move->target, count, &next->target);
    for (uint32_t i = 0; i < move->sources && fits; i++) {
        const weft_place_t *source = &c->out->places[move->source + i];
        bool overlaps = source->rank == move->target.rank &&
                        source->buffer == move->target.buffer &&
                        source->block != move->target.block;
        fits = continues(source, count, &sources[i].place) && !overlaps;
    }
    move->blocks.count += fits;
    return fits;
}

/* Sources into target, which then holds value. */
static weft_status_t move(converter_t *c, uint32_t gpu, uint16_t lane, const held_t *target,
                          const held_t *sources, uint32_t count, uint32_t value)
{
    wefti_msccl_program_t *out = c->out;
    bool final = target->place.buffer == WEFT_ALGO_BUFFER_RECV;
    bool copies = !c->reduces || sources[0].place.buffer == WEFT_ALGO_BUFFER_RECV;
    wefti_msccl_action_t action = {.op = copies ? WEFTI_DO_COPY : WEFTI_DO_REDUCE,
                                   .finish = final,
                                   .lane = lane,
                                   .target = target->place,
                                   .source = (uint32_t)out->place_count,
                                   .sources = count,
                                   .blocks = {block_of(c, &c->values[value]), 1, 1}};
    if (copies && c->reduces && !final) {
        return wefti_msccl_error(c->m, c->step, "uses the result of chunk %u as a part of a sum",
                                 c->values[value].chunk);
    }
    if (target->key != WEFTI_MSCCL_NONE) {
        c->last_write[target->key] = c->at;
    }
    if (extend_move(c, gpu, &action, sources)) {
        return WEFT_OK;
    }
    WEFT_RETURN_IF_ERROR(wefti_array_reserve(c->allocator, &out->places, &out->place_capacity,
                                             out->place_count + count, sizeof *out->places));
    for (uint32_t i = 0; i < count; i++) {
        out->places[out->place_count++] = sources[i].place;
    }
    WEFT_RETURN_IF_ERROR(add_action(c, gpu, &action));
    c->open_move = out->ranks[gpu].count;
    return WEFT_OK;
}

static uint16_t lane_of(const converter_t *c, uint32_t step)
{
    return (uint16_t)(c->m->blocks[c->m->steps[step].block].id % c->m->lanes);
}

static uint32_t gpu_of(const converter_t *c, uint32_t step)
{
    return c->m->blocks[c->m->steps[step].block].gpu;
}

/* This lane goes on when other, a step, is done. */
static weft_status_t wait_for(converter_t *c, uint32_t gpu, uint16_t lane, uint32_t other)
{
    wefti_msccl_action_t action = {.op = WEFTI_DO_WAIT,
                                   .lane = lane,
                                   .rank = gpu_of(c, other),
                                   .their_lane = lane_of(c, other),
                                   .phase = c->phase_of[other]};
    return action.rank == gpu && action.their_lane == lane ? WEFT_OK : add_action(c, gpu, &action);
}

static weft_status_t post(converter_t *c, uint32_t gpu, uint16_t lane, uint32_t *out_phase)
{
    wefti_msccl_action_t action = {.op = WEFTI_DO_POST, .lane = lane};
    action.phase = *out_phase = ++c->phases[gpu * c->m->lanes + lane];
    c->out->phases = action.phase > c->out->phases ? action.phase : c->out->phases;
    return add_action(c, gpu, &action);
}

/* ---- steps ---- */

/* Whether value is the operator's result for one of the gpu's outputs: *out its place. */
static bool is_result(const converter_t *c, uint32_t gpu, uint32_t value, held_t *out)
{
    const value_t *v = &c->values[value];
    uint32_t first = c->op->recv.extent == WEFT_EXTENT_BLOCK ? gpu * c->m->parts : 0;
    if (v->count != c->m->gpu_count || !has_buffer(c, c->op->recv, gpu) ||
        v->chunk - first >= c->m->gpus[gpu].outputs) {
        return false;
    }
    *out = output_at(c, gpu, v->chunk - first);
    return true;
}

/* The sum of sources becomes what a chunk holds. */
static weft_status_t store(converter_t *c, uint32_t chunk, held_t *sources, uint32_t count)
{
    uint32_t gpu = gpu_of(c, c->step), value;
    uint16_t lane = lane_of(c, c->step);
    const wefti_msccl_gpu_t *g = &c->m->gpus[gpu];
    WEFT_RETURN_IF_ERROR(add_up(c, sources, count, &value));
    bool local = count == 1 && sources[0].place.rank == gpu;
    held_t target = {0};
    uint32_t output = chunk - g->first_chunk;
    bool moves = true;
    if (c->reduces && is_result(c, gpu, value, &target)) {
        moves = !(local && sources[0].place.buffer == WEFT_ALGO_BUFFER_RECV);
    } else if (c->reduces && local && sources[0].place.buffer == WEFT_ALGO_BUFFER_SEND) {
        target = sources[0]; /* inputs stay where they are */
        moves = false;
    } else if (!c->reduces && output < g->inputs + g->outputs &&
               (c->m->in_place || output >= g->inputs) && has_buffer(c, c->op->recv, gpu)) {
        /* In place, chunks of vectors and of all-to-all have the numbers of inputs. */
        target = output_at(c, gpu, output < g->inputs ? output : output - g->inputs);
    } else {
        target = slot_at(c, gpu, chunk);
    }
    target.value = value;
    if (moves) {
        WEFT_RETURN_IF_ERROR(move(c, gpu, lane, &target, sources, count, value));
    }
    c->chunks[chunk] = target;
    return WEFT_OK;
}

/* What the receiver of this step will read. */
static weft_status_t send(converter_t *c, uint32_t i, const held_t *held)
{
    uint32_t gpu = gpu_of(c, c->step);
    held_t message = *held;
    bool kept = !c->way->buffered || held->key == WEFTI_MSCCL_NONE ||
                c->last_write[held->key] <= c->at ||
                (c->reduces && held->place.buffer == WEFT_ALGO_BUFFER_RECV);
    if (!kept) {
        message = message_slot(c, gpu);
        message.value = held->value;
        WEFT_RETURN_IF_ERROR(move(c, gpu, lane_of(c, c->step), &message, held, 1, held->value));
    }
    c->messages[c->message_of[c->step] + i] = message;
    return WEFT_OK;
}

/* A chunk that the step reads. */
static weft_status_t read(const converter_t *c, uint32_t gpu, const wefti_msccl_chunks_t *chunks,
                          uint32_t i, held_t *out)
{
    *out = c->chunks[find_chunk(c, gpu, chunks->buffer, chunks->offset + i)];
    return out->value != 0 ? WEFT_OK
                           : wefti_msccl_error(c->m, c->step,
                                               "reads chunk %u of buffer %c, which holds nothing",
                                               chunks->offset + i, chunks->buffer);
}

static weft_status_t reserve_sources(converter_t *c, uint32_t count)
{
    return wefti_array_reserve(c->allocator, &c->sources, &c->source_capacity, count,
                               sizeof *c->sources);
}

/* Sources of chunk i: what came, then what is read here; of joined reductions all. */
static weft_status_t gather_sources(converter_t *c, uint32_t gpu, uint32_t i, uint32_t *out_count)
{
    const wefti_msccl_step_t *step = &c->m->steps[c->step];
    const wefti_msccl_type_info_t *type = &wefti_msccl_types[step->type];
    uint32_t count = 0;
    WEFT_RETURN_IF_ERROR(reserve_sources(c, 2));
    if (type->receives) {
        c->sources[count++] = c->messages[c->message_of[step->peer] + i];
    }
    if (step->type == WEFTI_MSCCL_REDUCE) {
        WEFT_RETURN_IF_ERROR(read(c, gpu, &step->target, i, &c->sources[count++]));
    }
    if (type->reads_source) {
        WEFT_RETURN_IF_ERROR(read(c, gpu, &step->source, i, &c->sources[count++]));
    }
    for (uint32_t s = step->joined; s != WEFTI_MSCCL_NONE; s = c->m->steps[s].joined) {
        if (count > c->m->gpu_count) {
            return wefti_msccl_error(c->m, c->step, "adds more parts than there are gpus: %u",
                                     c->m->gpu_count);
        }
        WEFT_RETURN_IF_ERROR(reserve_sources(c, count + 1));
        WEFT_RETURN_IF_ERROR(read(c, gpu, &c->m->steps[s].source, i, &c->sources[count++]));
    }
    *out_count = count;
    return WEFT_OK;
}

static weft_status_t move_chunks(converter_t *c, uint32_t gpu)
{
    const wefti_msccl_step_t *step = &c->m->steps[c->step];
    const wefti_msccl_type_info_t *type = &wefti_msccl_types[step->type];
    uint32_t count;
    held_t held;
    c->open_move = 0;
    for (uint32_t i = 0; i < step->count && type->writes_target; i++) {
        WEFT_RETURN_IF_ERROR(gather_sources(c, gpu, i, &count));
        WEFT_RETURN_IF_ERROR(store(c,
                                   find_chunk(c, gpu, step->target.buffer, step->target.offset + i),
                                   c->sources, count));
    }
    c->open_move = 0;
    for (uint32_t i = 0; i < step->count && type->sends; i++) {
        if (type->writes_target) {
            WEFT_RETURN_IF_ERROR(read(c, gpu, &step->target, i, &held));
            WEFT_RETURN_IF_ERROR(send(c, i, &held));
            continue;
        }
        WEFT_RETURN_IF_ERROR(gather_sources(c, gpu, i, &count));
        held = c->sources[0];
        if (count > 1) { /* rrs: the sum is nowhere but on its way */
            uint32_t value;
            WEFT_RETURN_IF_ERROR(add_up(c, c->sources, count, &value));
            held = message_slot(c, gpu);
            held.value = value;
            WEFT_RETURN_IF_ERROR(
                move(c, gpu, lane_of(c, c->step), &held, c->sources, count, value));
        }
        WEFT_RETURN_IF_ERROR(send(c, i, &held));
    }
    return WEFT_OK;
}

/* Whether no later step of the thread block receives: its sender waits for the last one. */
static bool is_last_receive(const converter_t *c, uint32_t step)
{
    const wefti_msccl_block_t *block = &c->m->blocks[c->m->steps[step].block];
    bool last = wefti_msccl_types[c->m->steps[step].type].receives;
    for (uint32_t s = step + 1; s < block->first + block->count && last; s++) {
        last = !wefti_msccl_types[c->m->steps[s].type].receives;
    }
    return last;
}

static weft_status_t convert_step(converter_t *c)
{
    const wefti_msccl_step_t *step = &c->m->steps[c->step];
    const wefti_msccl_type_info_t *type = &wefti_msccl_types[step->type];
    uint32_t gpu = gpu_of(c, c->step);
    uint16_t lane = lane_of(c, c->step);
    if (step->needs != WEFTI_MSCCL_NONE) {
        WEFT_RETURN_IF_ERROR(wait_for(c, gpu, lane, step->needs));
    }
    if (type->receives) {
        WEFT_RETURN_IF_ERROR(wait_for(c, gpu, lane, step->peer));
    }
    if (!step->joins_next) {
        WEFT_RETURN_IF_ERROR(move_chunks(c, gpu));
    }
    return step->needed || type->sends || is_last_receive(c, c->step)
               ? post(c, gpu, lane, &c->phase_of[c->step])
               : WEFT_OK;
}

/* ---- before and after the steps ---- */

static weft_status_t add_input(converter_t *c, uint32_t gpu, uint32_t i)
{
    const value_t value = {i, gpu, 1};
    uint32_t chunk = find_chunk(c, gpu, 'i', i);
    held_t held = input_at(c, gpu, i);
    WEFT_RETURN_IF_ERROR(add_value(c, &value, &held.value));
    set_of(c, held.value)[gpu / 64] |= (uint64_t)1 << gpu % 64;
    c->chunks[chunk] = held;
    if (!c->way->staged) {
        return WEFT_OK;
    }
    held_t slot = slot_at(c, gpu, chunk);
    slot.value = held.value;
    c->chunks[chunk] = slot;
    return move(c, gpu, 0, &slot, &held, 1, held.value);
}

static weft_status_t add_inputs(converter_t *c)
{
    for (uint32_t gpu = 0; gpu < c->m->gpu_count; gpu++) {
        uint32_t phase;
        c->open_move = 0;
        for (uint32_t i = 0; i < c->m->gpus[gpu].inputs && has_buffer(c, c->op->send, gpu); i++) {
            WEFT_RETURN_IF_ERROR(add_input(c, gpu, i));
        }
        if (!c->way->staged) {
            continue;
        }
        WEFT_RETURN_IF_ERROR(post(c, gpu, 0, &phase));
        for (uint16_t lane = 1; lane < c->m->lanes; lane++) {
            const wefti_msccl_action_t wait = {
                .op = WEFTI_DO_WAIT, .lane = lane, .rank = gpu, .phase = phase};
            WEFT_RETURN_IF_ERROR(add_action(c, gpu, &wait));
        }
    }
    return WEFT_OK;
}

static weft_status_t wrong(const converter_t *c, uint32_t gpu, uint32_t output, const char *what,
                           uint32_t other)
{
    return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                       "%s: wrong result: output chunk %u of gpu %u %s "
                       "%u",
                       c->m->path, output, gpu, what, other);
}

/* Compares what an output holds with what the operator defines. */
static weft_status_t check_output(const converter_t *c, uint32_t gpu, uint32_t output,
                                  const held_t *held)
{
    const value_t *is = &c->values[held->value];
    uint32_t parts = c->m->parts, chunk = output, from = c->root;
    if (held->value == 0) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "%s: wrong result: output chunk %u of gpu %u is never written",
                           c->m->path, output, gpu);
    }
    if (c->reduces) {
        chunk += c->op->recv.extent == WEFT_EXTENT_BLOCK ? gpu * parts : 0;
    } else if (c->op->send.extent != WEFT_EXTENT_VECTOR) {
        from = output / parts;
        chunk = output % parts + (wefti_collective_exchanges(c->m->algorithm.op) ? gpu * parts : 0);
    }
    if (is->chunk != chunk) {
        return wrong(c, gpu, output, "holds input chunk", is->chunk);
    }
    if (!c->reduces) {
        return is->lowest == from ? WEFT_OK
                                  : wrong(c, gpu, output, "holds the input of gpu", is->lowest);
    }
    for (uint32_t other = 0; is->count < c->m->gpu_count; other++) {
        if (!contributes(c, held->value, other)) {
            return wrong(c, gpu, output, "lacks the contribution of gpu", other);
        }
    }
    return WEFT_OK;
}

/* Outputs that are somewhere else by now: inputs of this gpu that are its outputs, too. */
static weft_status_t finish_output(converter_t *c, uint32_t gpu, uint32_t output)
{
    const held_t held = c->chunks[find_chunk(c, gpu, 'o', output)];
    held_t target = output_at(c, gpu, output);
    WEFT_RETURN_IF_ERROR(check_output(c, gpu, output, &held));
    const value_t *value = &c->values[held.value];
    bool there = held.place.buffer == WEFT_ALGO_BUFFER_RECV;
    bool shared =
        !c->reduces && value->lowest == gpu && shared_output(c, gpu, value->chunk) == output;
    return there || shared ? WEFT_OK : move(c, gpu, 0, &target, &held, 1, held.value);
}

static weft_status_t finish_outputs(converter_t *c)
{
    for (uint32_t gpu = 0; gpu < c->m->gpu_count; gpu++) {
        c->open_move = 0;
        for (uint32_t i = 0; i < c->m->gpus[gpu].outputs && has_buffer(c, c->op->recv, gpu); i++) {
            WEFT_RETURN_IF_ERROR(finish_output(c, gpu, i));
        }
    }
    return WEFT_OK;
}

/* A run ends when its receivers have read everything. */
static weft_status_t wait_for_receivers(converter_t *c)
{
    for (uint32_t b = 0; b < c->m->block_count; b++) {
        const wefti_msccl_block_t *block = &c->m->blocks[b];
        uint32_t last = WEFTI_MSCCL_NONE;
        for (uint32_t s = 0; s < block->count; s++) {
            uint32_t forward = c->m->steps[block->first + s].forward;
            last = forward != WEFTI_MSCCL_NONE ? forward : last;
        }
        if (last != WEFTI_MSCCL_NONE) {
            WEFT_RETURN_IF_ERROR(
                wait_for(c, block->gpu, (uint16_t)(block->id % c->m->lanes), last));
        }
    }
    return WEFT_OK;
}

/* ---- the whole ---- */

/* Of rooted operators: the gpu whose input chunk 0 arrives, or where the sum does. */
static uint32_t find_root(const converter_t *c)
{
    for (uint32_t gpu = 0; gpu < c->m->gpu_count; gpu++) {
        uint32_t value = c->chunks[find_chunk(c, gpu, 'o', 0)].value;
        const value_t *v = &c->values[value];
        if (value != 0 && !c->reduces && v->lowest != gpu) {
            return v->lowest;
        }
        if (value != 0 && c->reduces && v->count == c->m->gpu_count) {
            return gpu;
        }
    }
    return 0; /* the check of outputs reports what is wrong */
}

static void reset(converter_t *c)
{
    const wefti_msccl_t *m = c->m;
    uint32_t sends = 0;
    memset(c->chunks, 0, m->chunk_count * sizeof *c->chunks);
    memset(c->slot_of, 0, m->chunk_count * sizeof *c->slot_of);
    memset(c->slots, 0, m->gpu_count * sizeof *c->slots);
    memset(c->phases, 0, m->gpu_count * m->lanes * sizeof *c->phases);
    memset(c->phase_of, 0, m->step_count * sizeof *c->phase_of);
    for (size_t s = 0; s < m->step_count; s++) {
        c->message_of[s] = sends;
        sends += wefti_msccl_types[m->steps[s].type].sends ? m->steps[s].count : 0;
    }
    for (uint32_t gpu = 0; gpu < m->gpu_count; gpu++) {
        c->out->ranks[gpu].count = 0;
    }
    c->out->place_count = 0;
    c->out->phases = c->out->slots = 0;
    c->value_count = 1; /* 0 is nothing */
    c->at = 0;
}

static weft_status_t pass(converter_t *c)
{
    reset(c);
    WEFT_RETURN_IF_ERROR(add_inputs(c));
    for (size_t i = 0; i < c->m->step_count; i++) {
        c->at = (uint32_t)i + 1;
        c->step = c->m->order[i];
        WEFT_RETURN_IF_ERROR(convert_step(c));
    }
    return WEFT_OK;
}

static weft_status_t reserve(converter_t *c)
{
    const wefti_msccl_t *m = c->m;
    uint64_t sends = 1;
    for (size_t s = 0; s < m->step_count; s++) {
        sends += wefti_msccl_types[m->steps[s].type].sends ? m->steps[s].count : 0;
    }
    const value_t nothing = {0};
    uint32_t ignored;
    c->out->ranks = wefti_alloc(c->allocator, m->gpu_count * sizeof *c->out->ranks);
    c->chunks = wefti_alloc(c->allocator, (m->chunk_count + 1) * sizeof *c->chunks);
    c->messages = wefti_alloc(c->allocator, sends * sizeof *c->messages);
    c->message_of = wefti_alloc(c->allocator, (m->step_count + 1) * sizeof *c->message_of);
    c->phase_of = wefti_alloc(c->allocator, (m->step_count + 1) * sizeof *c->phase_of);
    c->phases = wefti_alloc(c->allocator, m->gpu_count * m->lanes * sizeof *c->phases);
    c->slot_of = wefti_alloc(c->allocator, (m->chunk_count + 1) * sizeof *c->slot_of);
    c->slots = wefti_alloc(c->allocator, m->gpu_count * sizeof *c->slots);
    c->last_write = wefti_alloc(c->allocator, (2 * m->chunk_count + 1) * sizeof *c->last_write);
    WEFT_RETURN_IF_NO_MEMORY(c->out->ranks && c->chunks && c->messages && c->message_of &&
                             c->phase_of && c->phases && c->slot_of && c->slots && c->last_write);
    return add_value(c, &nothing, &ignored);
}

static weft_status_t convert(converter_t *c)
{
    WEFT_RETURN_IF_ERROR(reserve(c));
    bool rooted = wefti_collective_rooted(c->m->algorithm.op);
    if (rooted || c->way->buffered) { /* what is overwritten later, and the root, come to light */
        wefti_msccl_way_t first = *c->way;
        const wefti_msccl_way_t *way = c->way;
        first.buffered = false;
        c->root = WEFTI_MSCCL_NONE;
        c->way = &first;
        WEFT_RETURN_IF_ERROR(pass(c));
        c->root = find_root(c);
        c->way = way;
    }
    if (rooted && c->way->buffered) { /* places depend on the root */
        wefti_msccl_way_t first = *c->way;
        const wefti_msccl_way_t *way = c->way;
        first.buffered = false;
        c->way = &first;
        memset(c->last_write, 0, 2 * c->m->chunk_count * sizeof *c->last_write);
        WEFT_RETURN_IF_ERROR(pass(c));
        c->way = way;
    }
    WEFT_RETURN_IF_ERROR(pass(c));
    WEFT_RETURN_IF_ERROR(finish_outputs(c));
    WEFT_RETURN_IF_ERROR(wait_for_receivers(c));
    for (uint32_t gpu = 0; gpu < c->m->gpu_count; gpu++) {
        c->out->slots = c->slots[gpu] > c->out->slots ? c->slots[gpu] : c->out->slots;
    }
    return WEFT_OK;
}

weft_status_t wefti_msccl_convert(wefti_msccl_t *msccl, const wefti_msccl_way_t *way,
                                  wefti_msccl_program_t *out_program)
{
    converter_t c = {.m = msccl,
                     .way = way,
                     .op = wefti_collective_of(msccl->algorithm.op),
                     .allocator = msccl->allocator,
                     .out = out_program,
                     .root = WEFTI_MSCCL_NONE,
                     .reduces = wefti_collective_reduces(msccl->algorithm.op),
                     .words = (msccl->gpu_count + 63) / 64};
    weft_status_t status = convert(&c);
    msccl->root = wefti_collective_rooted(msccl->algorithm.op) && status >= 0 ? c.root : 0;
    wefti_free(c.allocator, c.values);
    wefti_free(c.allocator, c.sets);
    wefti_free(c.allocator, c.chunks);
    wefti_free(c.allocator, c.messages);
    wefti_free(c.allocator, c.message_of);
    wefti_free(c.allocator, c.phase_of);
    wefti_free(c.allocator, c.phases);
    wefti_free(c.allocator, c.slot_of);
    wefti_free(c.allocator, c.slots);
    wefti_free(c.allocator, c.last_write);
    wefti_free(c.allocator, c.sources);
    return status;
}

void wefti_msccl_program_deinit(const wefti_msccl_t *msccl, wefti_msccl_program_t *program)
{
    for (uint32_t gpu = 0; program->ranks != NULL && gpu < msccl->gpu_count; gpu++) {
        wefti_free(msccl->allocator, program->ranks[gpu].actions);
    }
    wefti_free(msccl->allocator, program->ranks);
    wefti_free(msccl->allocator, program->places);
    *program = (wefti_msccl_program_t){0};
}
