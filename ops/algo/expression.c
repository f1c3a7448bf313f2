/* SPDX-License-Identifier: Apache-2.0 */
#include "ops/algo/expression.h"

#include <stdio.h>
#include <string.h>

#define FIRST_TABLE_SIZE 1024u

weft_status_t wefti_exprs_init(wefti_exprs_t *exprs, const weft_allocator_t *allocator)
{
    *exprs = (wefti_exprs_t){.allocator = allocator};
    exprs->table = wefti_alloc(allocator, FIRST_TABLE_SIZE * sizeof *exprs->table);
    exprs->table_size = FIRST_TABLE_SIZE;
    exprs->count = 1;
    if (exprs->table == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    return wefti_array_reserve(allocator, &exprs->nodes, &exprs->capacity, 1, sizeof *exprs->nodes);
}

void wefti_exprs_deinit(wefti_exprs_t *exprs)
{
    wefti_free(exprs->allocator, exprs->nodes);
    wefti_free(exprs->allocator, exprs->table);
    *exprs = (wefti_exprs_t){0};
}

static size_t hash(uint32_t kind, uint32_t a, uint32_t b)
{
    uint64_t key = ((uint64_t)a << 32 | b) * 0x9e3779b97f4a7c15u + kind;
    key ^= key >> 29;
    key *= 0xbf58476d1ce4e5b9u;
    return (size_t)(key ^ key >> 32);
}

static bool grow(wefti_exprs_t *exprs)
{
    size_t size = exprs->table_size * 2;
    uint32_t *table = wefti_alloc(exprs->allocator, size * sizeof *table);
    if (table == NULL) {
        return false;
    }
    for (size_t i = 1; i < exprs->count; i++) {
        const wefti_expr_t *node = &exprs->nodes[i];
        size_t at = hash(node->kind, node->a, node->b) & (size - 1);
        while (table[at] != 0) {
            at = (at + 1) & (size - 1);
        }
        table[at] = (uint32_t)i;
    }
    wefti_free(exprs->allocator, exprs->table);
    exprs->table = table;
    exprs->table_size = size;
    return true;
}

uint32_t wefti_expr_make(wefti_exprs_t *exprs, wefti_expr_kind_t kind, uint32_t a, uint32_t b)
{
    size_t mask = exprs->table_size - 1;
    size_t at = hash(kind, a, b) & mask;
    for (; exprs->table[at] != 0; at = (at + 1) & mask) {
        const wefti_expr_t *node = &exprs->nodes[exprs->table[at]];
        if (node->kind == (uint32_t)kind && node->a == a && node->b == b) {
            return exprs->table[at];
        }
    }
    if (exprs->count >= UINT32_MAX - 1 ||
        wefti_array_reserve(exprs->allocator, &exprs->nodes, &exprs->capacity, exprs->count + 1,
                            sizeof *exprs->nodes) < 0) {
        return WEFTI_EXPR_NONE;
    }
    uint32_t id = (uint32_t)exprs->count++;
    exprs->nodes[id] = (wefti_expr_t){kind, a, b, 0};
    exprs->table[at] = id;
    if (exprs->count * 2 > exprs->table_size && !grow(exprs)) {
        return WEFTI_EXPR_NONE;
    }
    return id;
}

uint32_t wefti_expr_tree(wefti_exprs_t *exprs, const uint32_t *values, uint32_t count)
{
    if (count == 1) {
        return values[0];
    }
    uint32_t half = 1;
    while (half * 2 < count) {
        half *= 2;
    }
    uint32_t left = wefti_expr_tree(exprs, values, half);
    uint32_t right = wefti_expr_tree(exprs, values + half, count - half);
    if (left == WEFTI_EXPR_NONE || right == WEFTI_EXPR_NONE) {
        return WEFTI_EXPR_NONE;
    }
    return wefti_expr_make(exprs, WEFTI_EXPR_SUM, left, right);
}

/* Visits every node below once; a sum met twice adds its inputs twice, so that is no. */
static uint32_t count_inputs(wefti_exprs_t *exprs, uint32_t expr, uint32_t first, uint32_t count,
                             uint32_t block)
{
    uint32_t found = 0;
    for (;;) { /* chains lean to the left: walk down that side, recurse into the other */
        wefti_expr_t *node = &exprs->nodes[expr];
        if (node->mark == exprs->search) {
            return UINT32_MAX / 2;
        }
        node->mark = exprs->search;
        if (node->kind == WEFTI_EXPR_INPUT) {
            bool fits = node->b == block && node->a >= first && node->a - first < count;
            return fits ? found + 1 : UINT32_MAX / 2;
        }
        if (node->kind != WEFTI_EXPR_SUM) {
            return UINT32_MAX / 2;
        }
        uint32_t right = count_inputs(exprs, node->b, first, count, block);
        if (right >= UINT32_MAX / 2) {
            return right;
        }
        found += right;
        expr = node->a;
    }
}

bool wefti_expr_sums_all(wefti_exprs_t *exprs, uint32_t expr, uint32_t first, uint32_t count,
                         uint32_t block)
{
    exprs->search++;
    return count_inputs(exprs, expr, first, count, block) == count;
}

static size_t add_text(const wefti_exprs_t *exprs, uint32_t expr, uint32_t ranks, char *buffer,
                       size_t bytes, size_t used)
{
    const wefti_expr_t *node = &exprs->nodes[expr];
    if (used + 8 >= bytes) {
        return bytes;
    }
    switch (node->kind) {
    case WEFTI_EXPR_INPUT:
        return used +
               (size_t)snprintf(buffer + used, bytes - used, "%u[%u]", node->a % ranks, node->b);
    case WEFTI_EXPR_SUM:
        used += (size_t)snprintf(buffer + used, bytes - used, "(");
        used = add_text(exprs, node->a, ranks, buffer, bytes, used);
        if (used < bytes) {
            used += (size_t)snprintf(buffer + used, bytes - used, " + ");
        }
        used = used < bytes ? add_text(exprs, node->b, ranks, buffer, bytes, used) : used;
        return used < bytes ? used + (size_t)snprintf(buffer + used, bytes - used, ")") : used;
    case WEFTI_EXPR_FINISHED:
        return add_text(exprs, node->a, ranks, buffer, bytes, used);
    default:
        return used + (size_t)snprintf(buffer + used, bytes - used, "nothing");
    }
}

const char *wefti_expr_text(const wefti_exprs_t *exprs, uint32_t expr, uint32_t ranks, char *buffer,
                            size_t bytes)
{
    size_t used = add_text(exprs, expr, ranks, buffer, bytes, 0);
    if (used >= bytes) {
        snprintf(buffer + bytes - 4, 4, "...");
    }
    return buffer;
}
