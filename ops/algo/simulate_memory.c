/* SPDX-License-Identifier: Apache-2.0 */
/* Buffers of symbols: who may touch them, and what moves do to them. */
#include "ops/algo/simulate.h"

#include <stdio.h>
#include <string.h>

static const char *const buffer_names[] = {"send", "recv", "scratch", "stage", "wide stage"};

/* What a block's length is called: equal names, equal lengths. */
static uint32_t length_name(const wefti_sim_t *sim, uint32_t block)
{
    const wefti_collective_t *op = wefti_collective_of(sim->params->op);
    return op->variable || !wefti_collective_exchanges(sim->params->op)
               ? block
               : block % wefti_part_count(&sim->resources);
}

static uint32_t user_length(const wefti_sim_t *sim, uint32_t rank, uint32_t buffer, uint32_t index)
{
    uint32_t parts = wefti_part_count(&sim->resources), part = index % parts, peer = index / parts;
    uint32_t block = !wefti_collective_exchanges(sim->params->op) ? index
                     : buffer == WEFTI_SEND ? (rank * sim->ranks + peer) * parts + part
                                            : (peer * sim->ranks + rank) * parts + part;
    return length_name(sim, block);
}

/* Which kind of element a buffer holds: sums on their way, or what users see. */
static bool is_wide(const wefti_sim_t *sim, uint32_t buffer)
{
    return wefti_collective_reduces(sim->params->op) &&
           (buffer == WEFTI_SCRATCH || buffer == WEFTI_STAGE_WIDE);
}

static uint32_t slots_of(const wefti_sim_t *sim, uint32_t buffer, uint32_t *out_sets)
{
    const wefti_schedule_t *any = &sim->schedules[0];
    uint32_t stage = 0, wide = 0;
    for (uint32_t rank = 0; rank < sim->ranks; rank++) {
        const wefti_schedule_t *schedule = &sim->schedules[rank];
        stage = stage > schedule->stage_slots ? stage : schedule->stage_slots;
        wide = wide > schedule->stage_wide_slots ? wide : schedule->stage_wide_slots;
    }
    *out_sets = buffer == WEFTI_SCRATCH ? sim->resources.scratch_sets : any->stage_sets;
    return buffer == WEFTI_SCRATCH ? sim->resources.scratch_slots
           : buffer == WEFTI_STAGE ? stage
                                   : wide;
}

weft_status_t wefti_sim_init_memory(wefti_sim_t *sim)
{
    uint64_t total = 0;
    uint32_t slots[WEFTI_BUFFER_COUNT] = {0}, sets[WEFTI_BUFFER_COUNT] = {0};
    for (uint32_t buffer = WEFTI_SCRATCH; buffer < WEFTI_BUFFER_COUNT; buffer++) {
        slots[buffer] = slots_of(sim, buffer, &sets[buffer]);
    }
    for (uint32_t rank = 0; rank < sim->ranks; rank++) {
        for (uint32_t buffer = 0; buffer < WEFTI_BUFFER_COUNT; buffer++) {
            uint32_t first = 0, count = slots[buffer], copies = sets[buffer];
            if (buffer < WEFTI_SCRATCH) {
                copies = 1;
                if (!wefti_buffer_blocks(sim->params, &sim->resources, rank, buffer, &first,
                                         &count)) {
                    count = 0;
                }
            }
            sim->rank[rank].buffer[buffer].base = (uint32_t)total;
            sim->rank[rank].buffer[buffer].first = first;
            sim->rank[rank].buffer[buffer].count = count;
            total += (uint64_t)count * copies;
        }
    }
    if (total > UINT32_MAX / 2) {
        return wefti_sim_error(sim, WEFTI_NOBODY, "too large to simulate");
    }
    sim->cell_count = (size_t)total;
    sim->cells = wefti_alloc(sim->allocator, sim->cell_count * sizeof *sim->cells);
    sim->expected =
        wefti_alloc(sim->allocator, ((size_t)sim->runs * sim->blocks + 1) * sizeof *sim->expected);
    if (sim->cells == NULL || sim->expected == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < sim->cell_count; i++) {
        sim->cells[i].writer = sim->cells[i].channel = sim->cells[i].reader = WEFTI_NOBODY;
    }
    sim->reader_count = 1; /* 0 ends lists */
    return wefti_array_reserve(sim->allocator, &sim->readers, &sim->reader_capacity, 1,
                               sizeof *sim->readers);
}

void wefti_sim_deinit_memory(wefti_sim_t *sim)
{
    wefti_free(sim->allocator, sim->cells);
    wefti_free(sim->allocator, sim->readers);
    wefti_free(sim->allocator, sim->expected);
    wefti_free(sim->allocator, sim->values);
}

wefti_cell_t *wefti_sim_user_cell(wefti_sim_t *sim, uint32_t rank, uint32_t buffer, uint32_t index)
{
    uint32_t block = index;
    if (buffer == WEFTI_SEND && sim->params->in_place &&
        wefti_in_place_alias(sim->params, &sim->resources, rank, index, &block)) {
        buffer = WEFTI_RECV;
    }
    uint32_t base = sim->rank[rank].buffer[buffer].base - sim->rank[rank].buffer[buffer].first;
    return &sim->cells[base + block];
}

/* NULL with the message recorded when index is outside. */
static wefti_cell_t *cell_at(wefti_sim_t *sim, uint32_t thread, uint32_t rank, uint32_t buffer,
                             uint64_t index)
{
    uint32_t first = sim->rank[rank].buffer[buffer].first;
    uint32_t count = sim->rank[rank].buffer[buffer].count;
    if (index < first || index - first >= count) {
        if (count == 0) {
            wefti_sim_error(sim, thread, "rank %u has no %s buffer", rank, buffer_names[buffer]);
        } else {
            wefti_sim_error(
                sim, thread, "block %llu is outside the %s buffer of rank %u, which has %u to %u",
                (unsigned long long)index, buffer_names[buffer], rank, first, first + count - 1);
        }
        return NULL;
    }
    if (buffer < WEFTI_SCRATCH) {
        return wefti_sim_user_cell(sim, rank, buffer, (uint32_t)index);
    }
    uint32_t sets =
        buffer == WEFTI_SCRATCH ? sim->resources.scratch_sets : sim->schedules[0].stage_sets;
    uint32_t set = sim->thread[thread].run % sets;
    return &sim->cells[sim->rank[rank].buffer[buffer].base + set * count + (uint32_t)index];
}

/* Whether what was last written is known to be there. */
static bool write_is_known(const wefti_sim_t *sim, uint32_t thread, const wefti_cell_t *cell)
{
    if (cell->channel == WEFTI_NOBODY) {
        return wefti_sim_knows(sim, thread, cell->writer, cell->write_clock);
    }
    const wefti_channel_t *channel = &sim->channels[cell->channel];
    for (size_t i = channel->landed_count; i-- > 0;) {
        if (channel->landed[i].value >= cell->put_signal &&
            wefti_sim_knows(sim, thread, channel->landed[i].thread, channel->landed[i].clock)) {
            return true;
        }
        if (channel->landed[i].value < cell->put_signal && sim->lanes == 1) {
            break; /* they grow */
        }
    }
    return false;
}

static weft_status_t check_write_known(const wefti_sim_t *sim, uint32_t thread,
                                       const wefti_cell_t *cell, const char *does,
                                       const wefti_operand_t *at, uint32_t rank, uint64_t index)
{
    if (write_is_known(sim, thread, cell)) {
        return WEFT_OK;
    }
    bool put = cell->channel != WEFTI_NOBODY;
    return wefti_sim_error(sim, thread, "data race: %s %s[%llu] of rank %u while rank %u may %s it",
                           does, buffer_names[at->buffer], (unsigned long long)index, rank,
                           sim->thread[cell->writer].rank,
                           put ? "not have finished putting" : "be writing");
}

weft_status_t wefti_sim_touch_read(wefti_sim_t *sim, uint32_t thread, wefti_cell_t *cell,
                                   const wefti_operand_t *at, uint32_t rank, uint64_t index)
{
    uint32_t clock = sim->clocks[(size_t)thread * sim->threads + thread];
    weft_status_t status = check_write_known(sim, thread, cell, "reads", at, rank, index);
    sim->access_total++;
    if (status < 0) {
        return status;
    }
    if (cell->reader == WEFTI_NOBODY || cell->reader == thread) {
        cell->reader = thread;
        cell->read_clock = clock;
        return WEFT_OK;
    }
    uint32_t entry = sim->free_reader;
    if (entry != 0) {
        sim->free_reader = sim->readers[entry].next;
    } else {
        status = wefti_array_reserve(sim->allocator, &sim->readers, &sim->reader_capacity,
                                     sim->reader_count + 1, sizeof *sim->readers);
        if (status < 0) {
            return status;
        }
        entry = (uint32_t)sim->reader_count++;
    }
    sim->readers[entry] = (wefti_reader_t){thread, clock, cell->readers};
    cell->readers = entry;
    return WEFT_OK;
}

weft_status_t wefti_sim_touch_write(wefti_sim_t *sim, uint32_t thread, wefti_cell_t *cell,
                                    const wefti_operand_t *at, uint32_t rank, uint64_t index)
{
    weft_status_t status = check_write_known(sim, thread, cell, "writes", at, rank, index);
    uint32_t reader = WEFTI_NOBODY;
    sim->access_total++;
    if (status < 0) {
        return status;
    }
    if (!wefti_sim_knows(sim, thread, cell->reader, cell->read_clock)) {
        reader = cell->reader;
    }
    for (uint32_t entry = cell->readers; entry != 0;) {
        wefti_reader_t *one = &sim->readers[entry];
        uint32_t next = one->next;
        if (!wefti_sim_knows(sim, thread, one->thread, one->clock)) {
            reader = one->thread;
        }
        one->next = sim->free_reader;
        sim->free_reader = entry;
        entry = next;
    }
    cell->readers = 0;
    if (reader != WEFTI_NOBODY) {
        return wefti_sim_error(
            sim, thread, "data race: writes %s[%llu] of rank %u while rank %u may be reading it",
            buffer_names[at->buffer], (unsigned long long)index, rank, sim->thread[reader].rank);
    }
    cell->reader = WEFTI_NOBODY;
    cell->channel = WEFTI_NOBODY;
    cell->writer = thread;
    cell->write_clock = sim->clocks[(size_t)thread * sim->threads + thread];
    return WEFT_OK;
}

static uint64_t index_of(const wefti_operand_t *operand, uint32_t i)
{
    return (uint64_t)operand->block + (uint64_t)operand->step * i;
}

/* Reads block i of a source on one rank. */
static weft_status_t read_one(wefti_sim_t *sim, uint32_t thread, const wefti_step_t *step,
                              const wefti_operand_t *source, uint32_t rank, uint32_t i,
                              uint32_t *out_value)
{
    uint64_t index = index_of(source, i);
    uint32_t length = length_name(sim, step->move.first + step->move.step * i);
    wefti_cell_t *cell = cell_at(sim, thread, rank, source->buffer, index);
    if (cell == NULL) {
        return WEFT_ERR_INVALID_ARGUMENT;
    }
    weft_status_t status = wefti_sim_touch_read(sim, thread, cell, source, rank, index);
    if (status < 0) {
        return status;
    }
    if (cell->value == WEFTI_EXPR_UNDEFINED) {
        return wefti_sim_error(sim, thread, "reads %s[%llu] of rank %u, which was never written",
                               buffer_names[source->buffer], (unsigned long long)index, rank);
    }
    uint32_t is = source->buffer < WEFTI_SCRATCH
                      ? user_length(sim, rank, source->buffer, (uint32_t)index)
                      : cell->length;
    if (is != length) {
        return wefti_sim_error(
            sim, thread,
            "length mismatch: %s[%llu] of rank %u has the length of block %u, expected block %u",
            buffer_names[source->buffer], (unsigned long long)index, rank, is, length);
    }
    *out_value = cell->value;
    return WEFT_OK;
}

static weft_status_t check_put_rule(wefti_sim_t *sim, uint32_t thread, const wefti_step_t *step,
                                    wefti_cell_t *cell)
{
    cell->put_target |= step->op == WEFTI_DO_PUT;
    cell->repeatable_output |=
        step->op == WEFTI_DO_REDUCE && (step->flags & WEFTI_STEP_REPEATABLE) != 0;
    if (cell->put_target && cell->repeatable_output) {
        return wefti_sim_error(sim, thread,
                               "put into the output of a reduction that may be repeated");
    }
    return WEFT_OK;
}

static weft_status_t write_one(wefti_sim_t *sim, uint32_t thread, const wefti_step_t *step,
                               const wefti_operand_t *destination, uint32_t rank, uint32_t i,
                               uint32_t value)
{
    uint64_t index = index_of(destination, i);
    uint32_t length = length_name(sim, step->move.first + step->move.step * i);
    wefti_cell_t *cell = cell_at(sim, thread, rank, destination->buffer, index);
    if (cell == NULL) {
        return WEFT_ERR_INVALID_ARGUMENT;
    }
    weft_status_t status = wefti_sim_touch_write(sim, thread, cell, destination, rank, index);
    if (status >= 0) {
        status = check_put_rule(sim, thread, step, cell);
    }
    if (status < 0) {
        return status;
    }
    if (destination->buffer < WEFTI_SCRATCH &&
        user_length(sim, rank, destination->buffer, (uint32_t)index) != length) {
        return wefti_sim_error(
            sim, thread, "length mismatch: %s[%llu] of rank %u has another length than block %u",
            buffer_names[destination->buffer], (unsigned long long)index, rank, length);
    }
    if (step->op == WEFTI_DO_PUT) {
        cell->channel = thread * sim->ranks + rank;
        cell->put_signal = (uint32_t)sim->channels[cell->channel].sent.count + 1;
    }
    cell->value = value;
    cell->length = length;
    return WEFT_OK;
}

/* Elements as users see them stay so in a copy; only reductions convert. */
static weft_status_t check_types(const wefti_sim_t *sim, uint32_t thread, const wefti_step_t *step,
                                 const wefti_operand_t *operands)
{
    uint32_t sources = step->move.source_count;
    bool finish = (step->flags & WEFTI_STEP_FINISH) != 0;
    if (step->op == WEFTI_DO_REDUCE && !wefti_collective_reduces(sim->params->op)) {
        return wefti_sim_error(sim, thread, "%s does not reduce",
                               weft_collective_name(sim->params->op));
    }
    for (uint32_t i = 0; i < step->move.destination_count; i++) {
        bool wide = is_wide(sim, operands[sources + i].buffer);
        if (step->op != WEFTI_DO_REDUCE && wide != is_wide(sim, operands[0].buffer)) {
            return wefti_sim_error(sim, thread,
                                   "copy between partial sums and elements of a user buffer");
        }
        if (step->op == WEFTI_DO_REDUCE && wide == finish) {
            return wefti_sim_error(sim, thread,
                                   wide ? "stores a final result among partial sums"
                                        : "stores a partial sum in a user buffer");
        }
    }
    if (step->op == WEFTI_DO_PUT && (step->flags & WEFTI_STEP_FINISH)) {
        return wefti_sim_error(sim, thread, "a put cannot round a partial sum");
    }
    return WEFT_OK;
}

static weft_status_t combine(wefti_sim_t *sim, uint32_t thread, const wefti_step_t *step,
                             uint32_t count, uint32_t *out_value)
{
    uint32_t value = sim->values[0];
    if (step->op == WEFTI_DO_REDUCE) {
        for (uint32_t i = 0; i < count; i++) {
            if (sim->exprs.nodes[sim->values[i]].kind == WEFTI_EXPR_FINISHED) {
                return wefti_sim_error(sim, thread, "reduces a final result again");
            }
        }
        value = wefti_expr_tree(&sim->exprs, sim->values, count);
        if ((step->flags & WEFTI_STEP_FINISH) && sim->ranks > 1 && value != WEFTI_EXPR_NONE) {
            value = wefti_expr_make(&sim->exprs, WEFTI_EXPR_FINISHED, value, 0);
        }
    }
    *out_value = value;
    return value == WEFTI_EXPR_NONE ? WEFT_ERR_NO_MEMORY : WEFT_OK;
}

weft_status_t wefti_sim_move(wefti_sim_t *sim, uint32_t thread, const wefti_step_t *step)
{
    const wefti_schedule_t *schedule = &sim->schedules[sim->thread[thread].rank];
    const wefti_operand_t *operands = schedule->operands + step->move.operand;
    const wefti_operand_t *destinations = operands + step->move.source_count;
    weft_status_t status = check_types(sim, thread, step, operands);
    for (uint32_t i = 0; i < step->move.count && status >= 0; i++) {
        uint32_t count = 0, value = 0;
        for (uint32_t s = 0; s < step->move.source_count && status >= 0; s++) {
            status = wefti_array_reserve(sim->allocator, &sim->values, &sim->value_capacity,
                                         count + operands[s].rank_count, sizeof *sim->values);
            for (uint32_t r = 0; r < operands[s].rank_count && status >= 0; r++) {
                status = read_one(sim, thread, step, &operands[s], operands[s].rank + r, i,
                                  &sim->values[count++]);
            }
        }
        if (status >= 0) {
            status = combine(sim, thread, step, count, &value);
        }
        for (uint32_t d = 0; d < step->move.destination_count && status >= 0; d++) {
            for (uint32_t r = 0; r < destinations[d].rank_count && status >= 0; r++) {
                status = write_one(sim, thread, step, &destinations[d], destinations[d].rank + r, i,
                                   value);
            }
        }
    }
    return status;
}
