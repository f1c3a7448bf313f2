/* SPDX-License-Identifier: Apache-2.0 */
/* The user: what is put in before a run, and what each operator defines must come out. */
#include <stdio.h>
#include <string.h>

#include "ops/algo/simulate.h"

weft_status_t wefti_sim_fill(wefti_sim_t *sim, uint32_t rank, uint32_t run)
{
    weft_status_t status = WEFT_OK;
    uint32_t thread = rank * sim->lanes;
    for (uint32_t buffer = WEFTI_RECV + 1; buffer-- > 0 && status >= 0;) {
        wefti_operand_t at = {.buffer = buffer};
        uint32_t first = sim->rank[rank].buffer[buffer].first;
        for (uint32_t i = 0; i < sim->rank[rank].buffer[buffer].count && status >= 0; i++) {
            wefti_cell_t *cell = wefti_sim_user_cell(sim, rank, buffer, first + i);
            status = wefti_sim_touch_write(sim, thread, cell, &at, rank, first + i);
            cell->value = WEFTI_EXPR_UNDEFINED;
            if (buffer == WEFTI_SEND) {
                cell->value = wefti_expr_make(&sim->exprs, WEFTI_EXPR_INPUT,
                                              run * sim->ranks + rank, first + i);
                if (cell->value == WEFTI_EXPR_NONE) {
                    return WEFT_ERR_NO_MEMORY;
                }
            }
        }
    }
    return status;
}

static uint32_t input(wefti_sim_t *sim, uint32_t run, uint32_t rank, uint32_t block)
{
    return wefti_expr_make(&sim->exprs, WEFTI_EXPR_INPUT, run * sim->ranks + rank, block);
}

/* The group's tree over all ranks' inputs. */
static uint32_t ordered_sum(wefti_sim_t *sim, uint32_t run, uint32_t block)
{
    uint32_t parts = 0, first = 0;
    if (wefti_array_reserve(sim->allocator, &sim->values, &sim->value_capacity, sim->ranks * 2ul,
                            sizeof *sim->values) < 0) {
        return WEFTI_EXPR_NONE;
    }
    for (uint32_t rank = 0; rank < sim->ranks; rank++) {
        sim->values[rank] = input(sim, run, rank, block);
    }
    if (sim->params->order != WEFT_ORDER_BLOCKS) {
        return wefti_expr_tree(&sim->exprs, sim->values, sim->ranks);
    }
    uint32_t *blocks = sim->values + sim->ranks;
    for (; parts < sim->params->order_size_count; parts++) {
        blocks[parts] =
            wefti_expr_tree(&sim->exprs, sim->values + first, sim->params->order_sizes[parts]);
        first += sim->params->order_sizes[parts];
    }
    return wefti_expr_tree(&sim->exprs, blocks, parts);
}

/* Whether value is what the operator defines for this block; WEFTI_EXPR_NONE in *out: no memory. */
static bool is_expected(wefti_sim_t *sim, uint32_t rank, uint32_t run, uint32_t block,
                        uint32_t value, uint32_t *out)
{
    uint32_t *known = &sim->expected[(size_t)run * sim->blocks + block];
    const wefti_collective_t *op = wefti_collective_of(sim->params->op);
    if (!op->reduces) {
        bool one = op->send.holder != WEFT_HOLDER_ALL;
        bool exchanges = wefti_collective_exchanges(sim->params->op);
        uint32_t parts = wefti_part_count(&sim->resources), part = block % parts;
        *out = input(sim, run, one ? sim->params->root : block / parts,
                     exchanges ? rank * parts + part : block);
        return value == *out;
    }
    if (*known == 0 && sim->params->order == WEFT_ORDER_ANY && sim->ranks > 1) {
        const wefti_expr_t *node = &sim->exprs.nodes[value];
        if (node->kind == WEFTI_EXPR_FINISHED &&
            wefti_expr_sums_all(&sim->exprs, node->a, run * sim->ranks, sim->ranks, block)) {
            *known = value; /* all ranks must then have the same one */
        }
    }
    if (*known == 0) {
        uint32_t sum = ordered_sum(sim, run, block);
        *known = sum == WEFTI_EXPR_NONE || sim->ranks == 1
                     ? sum
                     : wefti_expr_make(&sim->exprs, WEFTI_EXPR_FINISHED, sum, 0);
    }
    *out = *known;
    return value == *out;
}

weft_status_t wefti_sim_check(wefti_sim_t *sim, uint32_t rank, uint32_t run)
{
    uint32_t thread = rank * sim->lanes;
    wefti_operand_t at = {.buffer = WEFTI_RECV};
    for (uint32_t i = 0; i < sim->rank[rank].buffer[WEFTI_RECV].count; i++) {
        uint32_t block = sim->rank[rank].buffer[WEFTI_RECV].first + i, expected;
        wefti_cell_t *cell = wefti_sim_user_cell(sim, rank, WEFTI_RECV, block);
        weft_status_t status = wefti_sim_touch_read(sim, thread, cell, &at, rank, block);
        if (status < 0) {
            return status;
        }
        if (!is_expected(sim, rank, run, block, cell->value, &expected)) {
            char is[120], wanted[120];
            if (expected == WEFTI_EXPR_NONE) {
                return WEFT_ERR_NO_MEMORY;
            }
            wefti_expr_text(&sim->exprs, cell->value, sim->ranks, is, sizeof is);
            wefti_expr_text(&sim->exprs, expected, sim->ranks, wanted, sizeof wanted);
            bool same = strcmp(is, wanted) == 0; /* as sums: then of another run, or unfinished */
            return wefti_sim_error(sim, thread, "received block %u is %s%s, not %s", block, is,
                                   same ? " of another run, or not finished" : "", wanted);
        }
    }
    for (uint32_t i = 0; i < sim->rank[rank].buffer[WEFTI_SEND].count; i++) {
        uint32_t block = sim->rank[rank].buffer[WEFTI_SEND].first + i, alias;
        bool shared = sim->params->in_place &&
                      wefti_in_place_alias(sim->params, &sim->resources, rank, block, &alias);
        if (!shared && wefti_sim_user_cell(sim, rank, WEFTI_SEND, block)->value !=
                           input(sim, run, rank, block)) {
            return wefti_sim_error(sim, thread, "block %u of the send buffer was overwritten",
                                   block);
        }
    }
    return WEFT_OK;
}
