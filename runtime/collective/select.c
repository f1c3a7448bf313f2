/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/collective/select.h"

#include <stdio.h>
#include <string.h>

#include "ops/algo/algorithms.h"
#include "runtime/base/error.h"
#include "runtime/base/hash.h"
#include "runtime/collective/call.h"
#include "runtime/machine/place.h"

/* ---- what a group asks for ---- */

static uint16_t fold(uint64_t digest)
{
    return (uint16_t)(digest ^ digest >> 16 ^ digest >> 32 ^ digest >> 48);
}

uint16_t wefti_select_hash(const char *name)
{
    return fold(wefti_hash_bytes(WEFTI_HASH_START, name, strlen(name)));
}

/* What all this comes to in the signature of calls. */
static void sign(wefti_selection_t *selection)
{
    const weft_algo_params_t *params = &selection->params;
    for (uint32_t op = 1; op < WEFTI_OPS; op++) {
        const weft_algorithm_t *wanted = selection->wanted.algorithm[op];
        uint64_t digest = 0;
        if (params->order == WEFT_ORDER_BLOCKS || wanted != NULL) {
            digest = wefti_hash_bytes(WEFTI_HASH_START, params->order_sizes,
                                      params->order_size_count * sizeof *params->order_sizes);
            digest = wefti_hash_bytes(digest, wanted != NULL ? wanted->name : "",
                                      wanted != NULL ? strlen(wanted->name) : 0);
        }
        selection->digest[op] = digest;
        selection->what[op] = (uint64_t)params->order << WEFTI_WHAT_ORDER_SHIFT |
                              (wanted != NULL ? WEFTI_WHAT_WANTED : 0) |
                              (uint64_t)fold(digest) << WEFTI_WHAT_SELECTION_SHIFT;
    }
}

weft_status_t wefti_select_order(weft_group_t *group, weft_order_t order, const uint32_t *sizes,
                                 uint32_t count)
{
    wefti_selection_t *selection = &group->calls->selection;
    uint32_t *own = NULL;
    if (order == WEFT_ORDER_BLOCKS) {
        own = wefti_alloc(group->context->allocator, count * sizeof *own);
        if (own == NULL) {
            return WEFT_ERR_NO_MEMORY;
        }
        memcpy(own, sizes, count * sizeof *own);
    }
    wefti_free(group->context->allocator, selection->order_sizes);
    selection->order_sizes = own;
    selection->params.order = order;
    selection->params.order_sizes = own;
    selection->params.order_size_count = own != NULL ? count : 0;
    weft_algo_params_t params;
    wefti_select_params(group, WEFT_COLLECTIVE_ALL_REDUCE, 0, &params);
    selection->executors_reduce = wefti_needs_tree(&params) == NULL;
    group->calls->labelled = NULL;
    memset(selection->by_cost, 0, sizeof selection->by_cost);
    sign(selection);
    return WEFT_OK;
}

void wefti_select_algorithm(weft_group_t *group, weft_collective_t op,
                            const weft_algorithm_t *algorithm)
{
    group->calls->selection.wanted.algorithm[op] = algorithm;
    sign(&group->calls->selection);
}

static bool same_ranks(const weft_group_t *a, const weft_group_t *b)
{
    return a->size == b->size && memcmp(a->ranks, b->ranks, a->size * sizeof *a->ranks) == 0;
}

/* Hosts are numbered in the order of their first ranks in the group. sizes: all 0. */
static void find_hosts(weft_group_t *group, uint32_t *host_of, uint32_t *sizes)
{
    weft_algo_params_t *params = &group->calls->selection.params;
    const uint32_t *world_host = group->endpoint->host_of;
    uint32_t count = 0;
    bool runs = true; /* ranks of each host follow each other */
    for (uint32_t r = 0; r < group->size; r++) {
        uint32_t first = 0;
        while (world_host[group->ranks[first]] != world_host[group->ranks[r]]) {
            first++;
        }
        host_of[r] = first < r ? host_of[first] : count++;
        runs = runs && (r == 0 || host_of[r] >= host_of[r - 1]);
        sizes[host_of[r]]++;
    }
    if (count > 1) {
        params->host_of = host_of;
        params->host_of_count = count;
        params->host_sizes = runs ? sizes : NULL;
        params->host_count = runs ? count : 0;
    }
}

/* The NIC next to each rank, if some host has several. */
static weft_status_t find_rails(weft_group_t *group, uint32_t *rail_of)
{
    const weft_context_t *context = group->context;
    uint32_t *of_world =
        wefti_alloc(context->allocator, group->endpoint->world_size * sizeof *of_world);
    WEFT_RETURN_IF_NO_MEMORY(of_world != NULL);
    if (wefti_place_rails(&context->cluster, of_world) > 1) {
        for (uint32_t r = 0; r < group->size; r++) {
            rail_of[r] = of_world[group->ranks[r]];
        }
        group->calls->selection.params.rail_of = rail_of;
    }
    wefti_free(context->allocator, of_world);
    return WEFT_OK;
}

/* Racks are numbered by their first ranks in the group. */
static weft_status_t find_racks(weft_group_t *group, uint32_t *rack_of)
{
    const weft_context_t *context = group->context;
    uint32_t count;
    uint32_t *of_world =
        wefti_alloc(context->allocator, group->endpoint->world_size * sizeof *of_world);
    WEFT_RETURN_IF_NO_MEMORY(of_world != NULL);
    weft_status_t status = wefti_cluster_racks(&context->cluster, of_world, &count);
    bool several = false;
    for (uint32_t r = 0; r < group->size && status >= 0 && count > 1; r++) {
        while (of_world[group->ranks[rack_of[r]]] != of_world[group->ranks[r]]) {
            rack_of[r]++;
        }
        several = several || rack_of[r] != 0;
    }
    group->calls->selection.params.rack_of = several ? rack_of : NULL;
    wefti_free(context->allocator, of_world);
    return status;
}

weft_status_t wefti_select_init(weft_group_t *group, const weft_group_t *parent)
{
    wefti_selection_t *selection = &group->calls->selection;
    weft_algo_params_t *params = &selection->params;
    uint32_t n = group->size;
    params->struct_size = sizeof *params;
    params->group_size = n;
    selection->lists = wefti_alloc(group->context->allocator, 4ul * n * sizeof *selection->lists);
    WEFT_RETURN_IF_NO_MEMORY(selection->lists != NULL);
    find_hosts(group, selection->lists, selection->lists + n);
    if (params->host_of != NULL && group->context->cluster.ranks != NULL) {
        WEFT_RETURN_IF_ERROR(find_rails(group, selection->lists + 2 * n));
        WEFT_RETURN_IF_ERROR(find_racks(group, selection->lists + 3 * n));
    }
    weft_algo_params_t all_reduce;
    wefti_select_params(group, WEFT_COLLECTIVE_ALL_REDUCE, 0, &all_reduce);
    group->calls->slot_bytes = wefti_cost_slot_bytes(&group->context->costs, &all_reduce);
    if (parent != NULL) {
        const wefti_selection_t *theirs = &parent->calls->selection;
        bool tree = theirs->params.order == WEFT_ORDER_BLOCKS && !same_ranks(group, parent);
        selection->wanted = theirs->wanted;
        return wefti_select_order(group, tree ? WEFT_ORDER_TREE : theirs->params.order,
                                  theirs->params.order_sizes, theirs->params.order_size_count);
    }
    const wefti_order_setting_t *order = &group->context->settings.order;
    selection->wanted = group->context->wanted;
    if (order->order == WEFT_ORDER_BLOCKS &&
        wefti_select_sum(order->sizes, order->count) != group->size) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "WEFT_ORDER: block sizes sum to %llu ranks, world size is %u",
                           (unsigned long long)wefti_select_sum(order->sizes, order->count),
                           group->size);
    }
    return wefti_select_order(group, order->order, order->sizes, order->count);
}

bool wefti_select_has_executors(const weft_group_t *group, weft_collective_t op)
{
    return group->put_peer_count == 0 &&
           (group->calls->selection.executors_reduce || !wefti_collective_reduces(op));
}

void wefti_select_deinit(weft_group_t *group)
{
    wefti_free(group->context->allocator, group->calls->selection.order_sizes);
    wefti_free(group->context->allocator, group->calls->selection.lists);
}

void wefti_select_params(const weft_group_t *group, weft_collective_t op, uint32_t root,
                         weft_algo_params_t *out_params)
{
    *out_params = group->calls->selection.params;
    out_params->op = op;
    out_params->root = root;
}

/* ---- text ---- */

static const weft_algorithm_t *find_signed(const weft_context_t *context, uint64_t what)
{
    weft_collective_t op = (weft_collective_t)(what & 0xff);
    const weft_algorithm_t *algorithm;
    for (uint32_t list = 0; list < 3; list++) {
        for (size_t i = 0;
             (algorithm = list == 0   ? wefti_algorithm_at(i)
                          : list == 1 ? wefti_registry_algorithm_at(context->registry, i)
                                      : wefti_algo_files_at(context->files, i)) != NULL;
             i++) {
            if (algorithm->op == op &&
                wefti_select_hash(algorithm->name) == what >> WEFTI_WHAT_SELECTION_SHIFT) {
                return algorithm;
            }
        }
    }
    return NULL;
}

const char *wefti_select_text(const weft_context_t *context, uint64_t what, char *buffer,
                              size_t bytes)
{
    static const char *const orders[] = {"tree", "blocks", "any", "?"};
    weft_order_t order = (weft_order_t)(what >> WEFTI_WHAT_ORDER_SHIFT & 3);
    size_t used = 0;
    buffer[0] = '\0';
    if (what & WEFTI_WHAT_WANTED) {
        const weft_algorithm_t *algorithm = find_signed(context, what);
        used = (size_t)snprintf(buffer, bytes, " by %s",
                                algorithm != NULL ? algorithm->name
                                                  : "an algorithm unknown to this rank");
    }
    if (order == WEFT_ORDER_BLOCKS && used < bytes) {
        snprintf(buffer + used, bytes - used, ", order blocks (digest %04x)",
                 (unsigned)(what >> WEFTI_WHAT_SELECTION_SHIFT));
    } else if (order != WEFT_ORDER_TREE && used < bytes) {
        snprintf(buffer + used, bytes - used, ", order %s", orders[order]);
    }
    return buffer;
}
