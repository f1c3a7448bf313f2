/* SPDX-License-Identifier: Apache-2.0 */
/* The parameters algo and order: read, checked against the ranks and their hosts, and applied. */
#include <stdio.h>
#include <string.h>

#include "fusion/fusion.h"
#include "fusion/simulate/simulate.h"
#include "ops/algo/table.h"
#include "runtime/base/error.h"
#include "runtime/base/suggest.h"

#define NAME_BYTES 64u

static void add_place(const wefti_plan_place_t *place, weft_algo_params_t *params)
{
    uint32_t seen = 0;
    if (place == NULL || place->host_count < 2) {
        return;
    }
    for (uint32_t r = 0; r < params->group_size;
         r++) { /* hosts are numbered by their first ranks */
        seen = place->host_of[r] >= seen ? place->host_of[r] + 1 : seen;
    }
    if (seen > 1) { /* a part of the ranks, which predictions are made for, may be on one host */
        params->host_of = place->host_of;
        params->host_of_count = seen;
        params->rail_of = place->rail_of;
        params->rack_of = place->rack_of;
    }
}

weft_algo_params_t wefti_rules_params(const wefti_rules_t *rules, weft_collective_t op,
                                      uint32_t ranks, bool in_place)
{
    weft_algo_params_t params = {.struct_size = sizeof params,
                                 .op = op,
                                 .group_size = ranks,
                                 .in_place = in_place,
                                 .order = WEFT_ORDER_TREE};
    if (rules == NULL) {
        return params;
    }
    uint64_t in_blocks = 0;
    for (uint32_t i = 0; i < rules->order.count; i++) {
        in_blocks += rules->order.sizes[i];
    }
    /* Predictions for a part of the ranks are made without blocks. */
    bool blocks = rules->order.order == WEFT_ORDER_BLOCKS;
    if (wefti_collective_reduces(op) && (!blocks || in_blocks == ranks)) {
        params.order = rules->order.order;
        params.order_sizes = blocks ? rules->order.sizes : NULL;
        params.order_size_count = blocks ? rules->order.count : 0;
    }
    add_place(rules->place, &params);
    return params;
}

weft_status_t wefti_rules_of_axis(const wefti_rules_t *rules, const wefti_axis_t *axis,
                                  uint32_t world_size, wefti_arena_t *arena,
                                  const wefti_rules_t **out_rules)
{
    *out_rules = rules;
    if (rules == NULL || rules->place == NULL || rules->place->host_of == NULL) {
        return WEFT_OK;
    }
    const wefti_plan_place_t *world = rules->place;
    wefti_rules_t *own = wefti_arena_memdup(arena, rules, sizeof *own);
    wefti_plan_place_t *place = wefti_arena_memdup(arena, world, sizeof *place);
    uint32_t *host_of = wefti_arena_array(arena, axis->size, sizeof *host_of);
    uint32_t *rail_of = wefti_arena_array(arena, axis->size, sizeof *rail_of);
    uint32_t *rack_of = wefti_arena_array(arena, axis->size, sizeof *rack_of), racks;
    WEFT_RETURN_IF_NO_MEMORY(own && place && host_of && rail_of && rack_of);
    WEFT_RETURN_IF_ERROR(
        wefti_axis_hosts(axis, world_size, world->host_of, host_of, &place->host_count));
    for (uint32_t i = 0; i < axis->size && world->rail_of != NULL; i++) {
        rail_of[i] = world->rail_of[(size_t)i * axis->stride];
    }
    if (world->rack_of != NULL) {
        WEFT_RETURN_IF_ERROR(wefti_axis_hosts(axis, world_size, world->rack_of, rack_of, &racks));
        place->rack_of = racks > 1 ? rack_of : NULL;
    }
    place->host_of = host_of;
    place->rail_of = world->rail_of != NULL ? rail_of : NULL;
    own->place = place;
    if (rules->described != NULL) {
        own->described = wefti_arena_memdup(arena, rules->described, sizeof *own->described);
        WEFT_RETURN_IF_NO_MEMORY(own->described);
        own->described->stride = axis->stride;
    }
    *out_rules = own;
    return WEFT_OK;
}

static void list_candidates(const weft_algo_params_t *params, wefti_text_t *out)
{
    const weft_algorithm_t *algorithm;
    const char *between = "";
    for (size_t i = 0; (algorithm = wefti_algorithm_at(i)) != NULL; i++) {
        if (algorithm->op == params->op && wefti_algorithm_reason(algorithm, params) == NULL) {
            wefti_text_printf(out, "%s%s", between, algorithm->name);
            between = ", ";
        }
    }
}

/* After what is wrong, what could run. */
static weft_status_t refuse(const weft_algo_params_t *params, const char *name, const char *why)
{
    wefti_text_t names;
    wefti_text_init(&names, NULL);
    list_candidates(params, &names);
    weft_status_t status = wefti_error_field(
        WEFT_ERR_INVALID_ARGUMENT, "algo", "%s=%s: %s: %u ranks%s; candidates: %s",
        weft_collective_name(params->op), name, why, params->group_size,
        params->host_of != NULL ? " on several hosts" : " on one host",
        names.failed || names.data == NULL ? "" : names.data);
    wefti_text_deinit(&names);
    return status;
}

weft_status_t wefti_rules_check(const weft_algorithm_t *algorithm, const weft_algo_params_t *params)
{
    const char *why = params->group_size > 1 ? wefti_algorithm_reason(algorithm, params) : NULL;
    if (why == NULL) {
        return WEFT_OK;
    }
    weft_algo_params_t unordered = *params;
    char text[160];
    unordered.order = WEFT_ORDER_ANY;
    snprintf(text, sizeof text, "%s%s", why,
             params->order != WEFT_ORDER_ANY &&
                     wefti_algorithm_reason(algorithm, &unordered) == NULL
                 ? " (order any allows it)"
                 : "");
    return refuse(params, algorithm->name, text);
}

static weft_collective_t find_collective(const char *name)
{
    uint32_t op = 1;
    while (op < WEFTI_OPS && !wefti_same_name(name, weft_collective_name((weft_collective_t)op))) {
        op++;
    }
    return op < WEFTI_OPS ? (weft_collective_t)op : WEFT_COLLECTIVE_NONE;
}

/* One "collective=name". Whether it is in place, lowering knows. */
static weft_status_t fix(const weft_compile_params_t *p, char *text, wefti_rules_t *rules)
{
    char *equals = strchr(text, '=');
    if (equals == NULL || equals == text || equals[1] == '\0') {
        return wefti_error_field(
            WEFT_ERR_INVALID_ARGUMENT, "algo",
            "expected a collective and an algorithm, as in all_reduce=ring: %s", text);
    }
    *equals = '\0';
    weft_collective_t op = find_collective(text);
    if (op == WEFT_COLLECTIVE_NONE) {
        return wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, "algo", "unknown collective '%s'",
                                 text);
    }
    if (rules->fixed[op] != NULL) {
        return wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, "algo",
                                 "two algorithms for %s: %s and %s", weft_collective_name(op),
                                 rules->fixed[op]->name, equals + 1);
    }
    const weft_algo_params_t params = wefti_rules_params(rules, op, p->world_size, false);
    const weft_algo_params_t in_place = wefti_rules_params(rules, op, p->world_size, true);
    rules->fixed[op] = weft_registry_find_algorithm(p->registry, op, equals + 1);
    if (rules->fixed[op] == NULL) {
        return refuse(&params, equals + 1, "unknown algorithm");
    }
    return p->world_size > 1 && wefti_algorithm_reason(rules->fixed[op], &in_place) != NULL
               ? wefti_rules_check(rules->fixed[op], &params)
               : WEFT_OK;
}

static weft_status_t read_order(const weft_compile_params_t *p, wefti_rules_t *rules)
{
    uint64_t ranks = 0;
    rules->order_text = p->order;
    if (wefti_order_parse(p->order, &rules->order) < 0) {
        return wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, "order", "%s: %s", weft_last_error(),
                                 p->order);
    }
    for (uint32_t i = 0; i < rules->order.count; i++) {
        ranks += rules->order.sizes[i];
    }
    if (rules->order.order == WEFT_ORDER_BLOCKS && ranks != p->world_size) {
        return wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, "order",
                                 "blocks must have all ranks: %s has %llu, world_size %u", p->order,
                                 (unsigned long long)ranks, p->world_size);
    }
    if (rules->order.order != WEFT_ORDER_TREE && p->global_micro_batches > 0) {
        return wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, "order",
                                 "excludes global_micro_batches: only the tree gives bits that do "
                                 "not depend on the number of ranks: %s",
                                 p->order);
    }
    return WEFT_OK;
}

weft_status_t wefti_rules_read(const weft_compile_params_t *p, const wefti_plan_place_t *place,
                               wefti_rules_t *out_rules)
{
    *out_rules = (wefti_rules_t){.place = place};
    WEFT_RETURN_IF_ERROR(read_order(p, out_rules));
    for (const char *at = p->algo; at != NULL && *at != '\0';) {
        size_t length = strcspn(at, ",");
        char text[NAME_BYTES];
        snprintf(text, sizeof text, "%.*s", (int)(length < NAME_BYTES ? length : NAME_BYTES), at);
        WEFT_RETURN_IF_ERROR(fix(p, text, out_rules));
        at += length + (at[length] == ',');
    }
    return WEFT_OK;
}
