/* SPDX-License-Identifier: Apache-2.0 */
/* The table of costs: defaults, reading, writing. */
#include <stdio.h>
#include <string.h>

#include "ops/cost/cost.h"
#include "runtime/base/error.h"
#include "runtime/base/file.h"
#include "runtime/base/hash.h"
#include "runtime/base/json.h"

#define FORMAT 1
#define HOUR_NS 3.6e12
#define MAX_KERNEL_POINTS 1024u

static const char *const level_names[] = {"self", "host", "net"};

/*
 * A generic server: a flag reaches a waiting rank on the same socket after 150 ns; a core moves
 * 80 GB/s to and from cache lines of other cores, and twice that of its own; TCP over 10 Gbit/s
 * between hosts. step_ns is what bench_interpreter measures, call_ns what weft tune measures. Two
 * measured machines differ from these by at most a factor of three.
 */
void wefti_costs_default(wefti_costs_t *costs, const weft_allocator_t *allocator)
{
    *costs = (wefti_costs_t){.allocator = allocator,
                             .name = "default",
                             .level = {{0, 0.007}, {150, 0.0125}, {30000, 0.85}},
                             .gamma_ns_per_byte = 0.002,
                             .step_ns = 15,
                             .call_ns = 250};
}

void wefti_costs_set_net(wefti_costs_t *costs, bool rdma)
{
    /* 100 Gbit/s, a write and its completion; else a system call and an interrupt on both ends. */
    costs->level[WEFTI_LEVEL_NET] =
        rdma ? (wefti_link_cost_t){3000, 0.09} : (wefti_link_cost_t){30000, 0.85};
}

void wefti_costs_deinit(wefti_costs_t *costs)
{
    wefti_free(costs->allocator, costs->measured);
    wefti_free(costs->allocator, costs->kernels);
    costs->measured = NULL;
    costs->kernels = NULL;
    costs->kernel_count = costs->kernel_capacity = 0;
    costs->measured_count = costs->measured_capacity = 0;
}

weft_status_t wefti_costs_add(wefti_costs_t *costs, const wefti_measured_cost_t *item)
{
    weft_status_t status =
        wefti_array_reserve(costs->allocator, &costs->measured, &costs->measured_capacity,
                            costs->measured_count + 1, sizeof *item);
    if (status >= 0) {
        costs->measured[costs->measured_count++] = *item;
    }
    return status;
}

static weft_status_t read_within(const wefti_json_tree_t *tree, const wefti_json_node_t *object,
                                 const char *key, double low, double *out)
{
    const wefti_json_node_t *node = wefti_json_get(tree, object, key);
    if (node == NULL) {
        return WEFT_OK;
    }
    if (node->kind != WEFTI_JSON_NUMBER || !(node->number >= low) || node->number > HOUR_NS) {
        return wefti_error(WEFT_ERR_FORMAT, "%s: not a time from %s to 1 hour in nanoseconds", key,
                           low < 0 ? "-1 hour" : "0");
    }
    *out = node->number;
    return WEFT_OK;
}

static weft_status_t read_number(const wefti_json_tree_t *tree, const wefti_json_node_t *object,
                                 const char *key, double *out)
{
    return read_within(tree, object, key, 0, out);
}

static weft_status_t read_count(const wefti_json_tree_t *tree, const wefti_json_node_t *object,
                                const char *key, uint32_t *out)
{
    const wefti_json_node_t *node = wefti_json_get(tree, object, key);
    if (node == NULL) {
        return WEFT_OK;
    }
    if (node->kind != WEFTI_JSON_NUMBER || !(node->number >= 1) || node->number > WEFTI_MAX_GROUP ||
        node->number != (double)(uint32_t)node->number) {
        return wefti_error(WEFT_ERR_FORMAT, "%s: not an integer from 1 to %u", key,
                           WEFTI_MAX_GROUP);
    }
    *out = (uint32_t)node->number;
    return WEFT_OK;
}

/* Sizes are exact in a double up to 2^53. */
static weft_status_t read_bytes(const wefti_json_tree_t *tree, const wefti_json_node_t *object,
                                const char *key, uint64_t *out)
{
    const wefti_json_node_t *node = wefti_json_get(tree, object, key);
    if (node == NULL) {
        return WEFT_OK;
    }
    if (node->kind != WEFTI_JSON_NUMBER || !(node->number >= 0) || node->number > 0x1p53 ||
        node->number != (double)(uint64_t)node->number) {
        return wefti_error(WEFT_ERR_FORMAT, "%s: not a number of bytes", key);
    }
    *out = (uint64_t)node->number;
    return WEFT_OK;
}

/* "registered" (the default) or "plain". */
static weft_status_t read_memory(const wefti_json_tree_t *tree, const wefti_json_node_t *object,
                                 bool *out_plain)
{
    const wefti_json_node_t *node = wefti_json_get(tree, object, "memory");
    if (node == NULL) {
        return WEFT_OK;
    }
    *out_plain = node->kind == WEFTI_JSON_STRING && strcmp(node->string, "plain") == 0;
    if (!*out_plain &&
        (node->kind != WEFTI_JSON_STRING || strcmp(node->string, "registered") != 0)) {
        return wefti_error(WEFT_ERR_FORMAT, "measured: memory is neither 'registered' nor 'plain'");
    }
    return WEFT_OK;
}

static weft_status_t read_measured(wefti_costs_t *costs, const wefti_json_tree_t *tree,
                                   const wefti_json_node_t *node)
{
    wefti_measured_cost_t item = {.hosts = 1};
    const wefti_json_node_t *op = wefti_json_get(tree, node, "op");
    const wefti_json_node_t *algorithm = wefti_json_get(tree, node, "algorithm");
    if (op == NULL || op->kind != WEFTI_JSON_STRING ||
        (item.op = wefti_collective_from_name(op->string)) == 0) {
        return wefti_error(WEFT_ERR_FORMAT, "measured: op is not the name of a collective");
    }
    if (algorithm == NULL || algorithm->kind != WEFTI_JSON_STRING ||
        strlen(algorithm->string) >= sizeof item.algorithm) {
        return wefti_error(WEFT_ERR_FORMAT, "measured: algorithm is missing or not a name");
    }
    memcpy(item.algorithm, algorithm->string, strlen(algorithm->string));
    weft_status_t status = read_count(tree, node, "ranks", &item.ranks);
    if (status >= 0 && item.ranks == 0) {
        status = wefti_error(WEFT_ERR_FORMAT, "measured: ranks is missing");
    }
    if (status >= 0) {
        status = read_count(tree, node, "hosts", &item.hosts);
    }
    if (status >= 0) {
        status = read_memory(tree, node, &item.plain);
    }
    if (status >= 0) {
        status = read_bytes(tree, node, "from_bytes", &item.from_bytes);
    }
    if (status >= 0) {
        status = read_within(tree, node, "alpha_ns", -HOUR_NS, &item.alpha_ns);
    }
    if (status >= 0) {
        status = read_number(tree, node, "beta_ns_per_byte", &item.beta_ns_per_byte);
    }
    return status >= 0 ? wefti_costs_add(costs, &item) : status;
}

static weft_status_t read_links(wefti_costs_t *costs, const wefti_json_tree_t *tree)
{
    const wefti_json_node_t *links = wefti_json_get(tree, tree->nodes, "links");
    weft_status_t status = WEFT_OK;
    for (int level = 0; level < WEFTI_LEVEL_COUNT && status >= 0; level++) {
        const wefti_json_node_t *node = wefti_json_get(tree, links, level_names[level]);
        status = read_number(tree, node, "alpha_ns", &costs->level[level].alpha_ns);
        if (status >= 0) {
            status =
                read_number(tree, node, "beta_ns_per_byte", &costs->level[level].beta_ns_per_byte);
        }
    }
    return status;
}

static weft_status_t read_kernel(wefti_costs_t *costs, const wefti_json_tree_t *tree,
                                 const wefti_json_node_t *node)
{
    wefti_kernel_point_t point = {.kind = WEFTI_KERNEL_PRODUCT};
    const wefti_json_node_t *kind = wefti_json_get(tree, node, "kind");
    const wefti_json_node_t *size = wefti_json_get(tree, node, "size");
    weft_status_t status;
    if (kind == NULL || kind->kind != WEFTI_JSON_STRING) {
        return wefti_error(WEFT_ERR_FORMAT, "kernels: kind is missing or not a string");
    }
    while (point.kind < WEFTI_KERNEL_KINDS &&
           strcmp(kind->string, wefti_kernel_kind_name(point.kind)) != 0) {
        point.kind++;
    }
    WEFT_TRY(status, read_count(tree, node, "threads", &point.threads), out);
    WEFT_TRY(status, read_number(tree, node, "ns", &point.ns), out);
    if (point.threads == 0 || !(point.ns > 0)) {
        return wefti_error(WEFT_ERR_FORMAT, "kernels: threads or ns is missing or 0");
    }
    if (size == NULL || size->kind != WEFTI_JSON_NUMBER || !(size->number > 0) ||
        size->number > 0x1p53) {
        return wefti_error(WEFT_ERR_FORMAT, "kernels: size is not a number above 0");
    }
    point.size = size->number;
    /* A later version may know more kinds. */
    status = point.kind < WEFTI_KERNEL_KINDS ? wefti_costs_add_kernel(costs, &point) : WEFT_OK;
out:
    return status;
}

static weft_status_t read_kernels(wefti_costs_t *costs, const wefti_json_tree_t *tree)
{
    const wefti_json_node_t *kernels = wefti_json_get(tree, tree->nodes, "kernels");
    const wefti_json_node_t *item = wefti_json_first(tree, kernels);
    weft_status_t status = read_count(tree, tree->nodes, "cores", &costs->cores);
    for (; item != NULL && status >= 0; item = wefti_json_after(tree, item)) {
        if (costs->kernel_count == MAX_KERNEL_POINTS) {
            return wefti_error(WEFT_ERR_FORMAT, "kernels: more than %u entries", MAX_KERNEL_POINTS);
        }
        status = read_kernel(costs, tree, item);
    }
    if (status >= 0 && costs->kernel_count > 0 && costs->cores == 0) {
        status = wefti_error(WEFT_ERR_FORMAT, "cores is missing");
    }
    return status;
}

static weft_status_t read_costs(wefti_costs_t *costs, const wefti_json_tree_t *tree)
{
    const wefti_json_node_t *format = wefti_json_get(tree, tree->nodes, "format");
    if (format == NULL || format->kind != WEFTI_JSON_NUMBER || format->number != FORMAT) {
        return wefti_error(WEFT_ERR_FORMAT, "not a cost table: format is not %d", FORMAT);
    }
    const wefti_json_node_t *name = wefti_json_get(tree, tree->nodes, "name");
    if (name != NULL && name->kind == WEFTI_JSON_STRING) {
        snprintf(costs->name, sizeof costs->name, "%s", name->string);
    }
    const wefti_json_node_t *machine = wefti_json_get(tree, tree->nodes, "machine");
    if (machine != NULL && machine->kind == WEFTI_JSON_STRING) {
        snprintf(costs->machine, sizeof costs->machine, "%s", machine->string);
    }
    weft_status_t status = read_links(costs, tree);
    if (status >= 0) {
        status = read_kernels(costs, tree);
    }
    if (status >= 0) {
        status = read_number(tree, tree->nodes, "gamma_ns_per_byte", &costs->gamma_ns_per_byte);
    }
    if (status >= 0) {
        status = read_number(tree, tree->nodes, "step_ns", &costs->step_ns);
    }
    if (status >= 0) {
        status = read_number(tree, tree->nodes, "call_ns", &costs->call_ns);
    }
    const wefti_json_node_t *measured = wefti_json_get(tree, tree->nodes, "measured");
    const wefti_json_node_t *item = wefti_json_first(tree, measured);
    for (; item != NULL && status >= 0; item = wefti_json_after(tree, item)) {
        status = read_measured(costs, tree, item);
    }
    return status;
}

weft_status_t wefti_costs_decode(wefti_costs_t *costs, const char *text, size_t bytes,
                                 const weft_allocator_t *allocator)
{
    wefti_json_tree_t tree;
    wefti_costs_default(costs, allocator);
    weft_status_t status = wefti_json_parse(text, bytes, allocator, &tree);
    if (status < 0) {
        return status;
    }
    status = read_costs(costs, &tree);
    wefti_json_tree_deinit(&tree);
    if (status < 0) {
        wefti_costs_deinit(costs);
    }
    return status;
}

weft_status_t wefti_costs_load(wefti_costs_t *costs, const char *path,
                               const weft_allocator_t *allocator)
{
    wefti_mapping_t mapping;
    wefti_costs_default(costs, allocator);
    weft_status_t status = wefti_file_map(path, &mapping);
    if (status < 0) {
        return status;
    }
    status = wefti_costs_decode(costs, (const char *)mapping.data, mapping.size_bytes, allocator);
    wefti_file_unmap(&mapping);
    return status < 0 ? wefti_error_prefix(status, "%s", path) : status;
}

static void encode_kernels(const wefti_costs_t *costs, wefti_json_t *json)
{
    if (costs->kernel_count == 0) {
        return;
    }
    wefti_json_int(json, "cores", costs->cores);
    wefti_json_begin_array(json, "kernels");
    for (size_t i = 0; i < costs->kernel_count; i++) {
        const wefti_kernel_point_t *point = &costs->kernels[i];
        wefti_json_begin_object(json, NULL);
        wefti_json_string(json, "kind", wefti_kernel_kind_name(point->kind));
        wefti_json_int(json, "threads", point->threads);
        wefti_json_double(json, "size", point->size);
        wefti_json_double(json, "ns", point->ns);
        wefti_json_end_object(json);
    }
    wefti_json_end_array(json);
}

void wefti_costs_encode(const wefti_costs_t *costs, wefti_text_t *out)
{
    wefti_json_t json;
    wefti_json_init(&json, out, true);
    wefti_json_begin_object(&json, NULL);
    wefti_json_int(&json, "format", FORMAT);
    wefti_json_string(&json, "name", costs->name);
    if (costs->machine[0] != '\0') {
        wefti_json_string(&json, "machine", costs->machine);
    }
    wefti_json_begin_object(&json, "links");
    for (int level = 0; level < WEFTI_LEVEL_COUNT; level++) {
        wefti_json_begin_object(&json, level_names[level]);
        wefti_json_double(&json, "alpha_ns", costs->level[level].alpha_ns);
        wefti_json_double(&json, "beta_ns_per_byte", costs->level[level].beta_ns_per_byte);
        wefti_json_end_object(&json);
    }
    wefti_json_end_object(&json);
    wefti_json_double(&json, "gamma_ns_per_byte", costs->gamma_ns_per_byte);
    wefti_json_double(&json, "step_ns", costs->step_ns);
    wefti_json_double(&json, "call_ns", costs->call_ns);
    encode_kernels(costs, &json);
    wefti_json_begin_array(&json, "measured");
    for (size_t i = 0; i < costs->measured_count; i++) {
        const wefti_measured_cost_t *item = &costs->measured[i];
        wefti_json_begin_object(&json, NULL);
        wefti_json_string(&json, "op", weft_collective_name(item->op));
        wefti_json_string(&json, "algorithm", item->algorithm);
        wefti_json_int(&json, "ranks", item->ranks);
        wefti_json_int(&json, "hosts", item->hosts);
        wefti_json_string(&json, "memory", item->plain ? "plain" : "registered");
        wefti_json_int(&json, "from_bytes", (int64_t)item->from_bytes);
        wefti_json_double(&json, "alpha_ns", item->alpha_ns);
        wefti_json_double(&json, "beta_ns_per_byte", item->beta_ns_per_byte);
        wefti_json_end_object(&json);
    }
    wefti_json_end_array(&json);
    wefti_json_end_object(&json);
}

static uint64_t add_bits(uint64_t hash, uint64_t bits)
{
    for (int i = 0; i < 8; i++) {
        hash = wefti_hash_step(hash, bits >> (8 * i) & 0xff);
    }
    return hash;
}

static uint64_t add_number(uint64_t hash, double number)
{
    uint64_t bits;
    number += 0.0; /* -0 is 0 */
    memcpy(&bits, &number, sizeof bits);
    return add_bits(hash, bits);
}

uint64_t wefti_costs_digest(const wefti_costs_t *costs)
{
    uint64_t hash = WEFTI_HASH_START;
    for (int level = 0; level < WEFTI_LEVEL_COUNT; level++) {
        hash = add_number(hash, costs->level[level].alpha_ns);
        hash = add_number(hash, costs->level[level].beta_ns_per_byte);
    }
    hash = add_number(hash, costs->gamma_ns_per_byte);
    hash = add_number(hash, costs->step_ns);
    hash = add_number(hash, costs->call_ns);
    for (size_t i = 0; i < costs->measured_count; i++) {
        const wefti_measured_cost_t *item = &costs->measured[i];
        for (const char *at = item->algorithm; *at != '\0'; at++) {
            hash = add_bits(hash, (unsigned char)*at);
        }
        hash = add_bits(hash, (uint64_t)item->op << 1 | item->plain);
        hash = add_bits(hash, (uint64_t)item->ranks << 32 | item->hosts);
        hash = add_bits(hash, item->from_bytes);
        hash = add_number(hash, item->alpha_ns);
        hash = add_number(hash, item->beta_ns_per_byte);
    }
    return hash;
}
