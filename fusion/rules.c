/* SPDX-License-Identifier: Apache-2.0 */
/* The parameters algo and order: read, checked against the ranks and their hosts, and applied. */
#include <stdio.h>
#include <string.h>

#include "fusion/fusion.h"
#include "fusion/simulate/simulate.h"
#include "graph/onnx/onnx.h"
#include "ops/algo/msccl.h"
#include "ops/algo/table.h"
#include "runtime/base/error.h"
#include "runtime/base/suggest.h"

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

/* What reading algo needs. */
typedef struct reader {
    const weft_compile_params_t *params;
    const wefti_mesh_t *mesh;
    const wefti_compiled_t *compiled;
    wefti_arena_t *arena;
    wefti_rules_t *rules;
} reader_t;

/* All ranks, or those of an axis. */
static bool is_group(const reader_t *r, uint32_t ranks)
{
    bool found = ranks == r->params->world_size;
    for (uint32_t i = 0; i < r->mesh->axis_count; i++) {
        found = found || ranks == r->mesh->axes[i].size;
    }
    return found;
}

static weft_status_t find_text(const reader_t *r, wefti_rules_file_t *file)
{
    const char *key = wefti_arena_printf(r->arena, WEFTI_RULES_FILE_PROPERTY "%s", file->path);
    WEFT_RETURN_IF_NO_MEMORY(key);
    file->text = wefti_onnx_property(r->compiled->properties, r->compiled->count, key);
    if (file->text != NULL) {
        file->size_bytes = strlen(file->text);
        return WEFT_OK;
    }
    wefti_mapping_t mapping;
    weft_status_t status = wefti_file_map(file->path, &mapping);
    if (status < 0) {
        return wefti_error_field(status, "algo", "%s", weft_last_error());
    }
    char *text = wefti_arena_alloc(r->arena, mapping.size_bytes + 1); /* zeroed */
    if (text != NULL && mapping.size_bytes > 0) {
        memcpy(text, mapping.data, mapping.size_bytes);
    }
    file->text = text;
    file->size_bytes = mapping.size_bytes;
    wefti_file_unmap(&mapping);
    WEFT_RETURN_IF_NO_MEMORY(text);
    return strlen(text) == file->size_bytes
               ? WEFT_OK
               : wefti_error_field(WEFT_ERR_FORMAT, "algo", "%s: not a text file", file->path);
}

static weft_status_t add_file(reader_t *r, const char *path)
{
    wefti_rules_t *rules = r->rules;
    wefti_rules_file_t file = {.path = path};
    if (rules->file_count == WEFTI_PLAN_MAX_ALGORITHM_FILES) {
        return wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, "algo", "too many files: limit %u",
                                 WEFTI_PLAN_MAX_ALGORITHM_FILES);
    }
    WEFT_RETURN_IF_ERROR(find_text(r, &file));
    if (rules->registry == NULL) {
        WEFT_RETURN_IF_ERROR(weft_registry_create(r->params->allocator, &rules->registry));
    }
    weft_status_t status = wefti_registry_load_algorithm(rules->registry, path, file.text,
                                                         file.size_bytes, &file.algorithm);
    if (status < 0) {
        return wefti_error_field(status, "algo", "%s", weft_last_error());
    }
    file.ranks = wefti_msccl_of(file.algorithm)->gpu_count;
    rules->files[rules->file_count++] = file;
    return WEFT_OK;
}

/* The file, after it was added, must be for a group of the plan, in its order. */
static weft_status_t check_file(const reader_t *r, weft_collective_t op)
{
    const wefti_rules_file_t *file = &r->rules->files[r->rules->file_count - 1];
    weft_collective_t own = file->algorithm->op;
    if (op != WEFT_COLLECTIVE_NONE && op != own) {
        return wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, "algo",
                                 "%s: the file is an algorithm of %s, not %s", file->path,
                                 wefti_collective_function(own), wefti_collective_function(op));
    }
    for (const wefti_rules_file_t *other = r->rules->files; other < file; other++) {
        if (other->algorithm->op == own && other->ranks == file->ranks) {
            return wefti_error_field(
                WEFT_ERR_INVALID_ARGUMENT, "algo", "two algorithms for %s of %u ranks: %s and %s",
                weft_collective_name(own), file->ranks, other->path, file->path);
        }
    }
    if (!is_group(r, file->ranks)) {
        char axes[64] = "";
        for (uint32_t i = 0, at = 0; i < r->mesh->axis_count && at < sizeof axes; i++) {
            at += (uint32_t)snprintf(axes + at, sizeof axes - at, " and groups of %u",
                                     r->mesh->axes[i].size);
        }
        return wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, "algo",
                                 "%s: the file describes %u ranks, the plan has %u%s", file->path,
                                 file->ranks, r->params->world_size, axes);
    }
    weft_algo_params_t params = wefti_rules_params(r->rules, own, file->ranks, false);
    params.root = wefti_msccl_of(file->algorithm)->root; /* lowering knows that of the plan */
    return wefti_rules_check(file->algorithm, &params);
}

/* One "collective=name", "collective=file" or "file". Whether it is in place, lowering knows. */
static weft_status_t fix(reader_t *r, char *text)
{
    const weft_compile_params_t *p = r->params;
    wefti_rules_t *rules = r->rules;
    char *equals = strchr(text, '='), *name = equals != NULL ? equals + 1 : text;
    if (equals != NULL) {
        *equals = '\0';
    }
    weft_collective_t op = equals != NULL ? find_collective(text) : WEFT_COLLECTIVE_NONE;
    if (equals != NULL && op == WEFT_COLLECTIVE_NONE && equals != text) {
        *equals = wefti_msccl_is_path(name) ? '=' : '\0'; /* of the path */
        name = *equals == '=' ? text : name;
    }
    bool is_path = wefti_msccl_is_path(name);
    if (!is_path && (equals == NULL || equals == text || name[0] == '\0')) {
        return wefti_error_field(
            WEFT_ERR_INVALID_ARGUMENT, "algo",
            "expected a collective and an algorithm, as in all_reduce=ring, or a file of MSCCL: "
            "%s%s%s",
            text, equals == NULL ? "" : "=", equals == NULL ? "" : name);
    }
    if (!is_path && op == WEFT_COLLECTIVE_NONE) {
        return wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, "algo", "unknown collective '%s'",
                                 text);
    }
    if (is_path) {
        WEFT_RETURN_IF_ERROR(add_file(r, name));
        op = op != WEFT_COLLECTIVE_NONE ? op : r->rules->files[rules->file_count - 1].algorithm->op;
    }
    const weft_algorithm_t *former = rules->fixed[op];
    for (uint32_t i = 0; i < rules->file_count && !is_path && former == NULL; i++) {
        former = rules->files[i].algorithm->op == op ? rules->files[i].algorithm : NULL;
    }
    if (former != NULL) {
        return wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, "algo",
                                 "two algorithms for %s: %s and %s", weft_collective_name(op),
                                 former->name, name);
    }
    if (is_path) {
        return check_file(r, op);
    }
    const weft_algo_params_t params = wefti_rules_params(rules, op, p->world_size, false);
    const weft_algo_params_t in_place = wefti_rules_params(rules, op, p->world_size, true);
    rules->fixed[op] = weft_registry_find_algorithm(p->registry, op, name);
    if (rules->fixed[op] == NULL) {
        return refuse(&params, name, "unknown algorithm");
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
                               const wefti_mesh_t *mesh, const wefti_compiled_t *compiled,
                               wefti_arena_t *arena, wefti_rules_t *out_rules)
{
    *out_rules = (wefti_rules_t){.place = place};
    reader_t reader = {p, mesh, compiled, arena, out_rules};
    WEFT_RETURN_IF_ERROR(read_order(p, out_rules));
    for (const char *at = p->algo; at != NULL && *at != '\0';) {
        size_t length = strcspn(at, ",");
        char *text = wefti_arena_printf(arena, "%.*s", (int)length, at);
        WEFT_RETURN_IF_NO_MEMORY(text);
        WEFT_RETURN_IF_ERROR(fix(&reader, text));
        at += length + (at[length] == ',');
    }
    return WEFT_OK;
}

void wefti_rules_deinit(wefti_rules_t *rules)
{
    weft_registry_destroy(rules->registry);
    rules->registry = NULL;
}

const weft_algorithm_t *wefti_rules_fixed(const wefti_rules_t *rules, weft_collective_t op,
                                          uint32_t ranks)
{
    for (uint32_t i = 0; rules != NULL && i < rules->file_count; i++) {
        if (rules->files[i].algorithm->op == op && rules->files[i].ranks == ranks) {
            return rules->files[i].algorithm;
        }
    }
    return rules != NULL ? rules->fixed[op] : NULL;
}

static bool is_used(const weft_plan_t *plan, const weft_algorithm_t *algorithm)
{
    bool used = false;
    for (uint32_t i = 0; i < plan->collective_count; i++) {
        const wefti_plan_collective_t *collective = &plan->collectives[i];
        used = used || (collective->op == algorithm->op &&
                        strcmp(collective->algorithms[0].name, algorithm->name) == 0);
    }
    return used;
}

weft_status_t wefti_rules_give_files(wefti_rules_t *rules, weft_plan_t *plan)
{
    wefti_arena_t *arena = &plan->arena;
    plan->algorithm_files =
        wefti_arena_array(arena, rules->file_count, sizeof *plan->algorithm_files);
    WEFT_RETURN_IF_NO_MEMORY(plan->algorithm_files);
    for (uint32_t i = 0; i < rules->file_count; i++) {
        const wefti_rules_file_t *file = &rules->files[i];
        if (!is_used(plan, file->algorithm)) {
            return wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, "algo",
                                     "%s: the plan has no %s of %u ranks", file->path,
                                     weft_collective_name(file->algorithm->op), file->ranks);
        }
        const char *slash = strrchr(file->path, '/');
        const char *name = wefti_arena_strdup(arena, slash != NULL ? slash + 1 : file->path);
        const char *text = wefti_arena_memdup(arena, file->text, file->size_bytes);
        WEFT_RETURN_IF_NO_MEMORY(name && text);
        plan->algorithm_files[plan->algorithm_file_count++] =
            (wefti_plan_algorithm_file_t){.name = name,
                                          .text = text,
                                          .size_bytes = file->size_bytes,
                                          .algorithm = file->algorithm};
    }
    plan->algorithms = rules->registry;
    rules->registry = NULL;
    return WEFT_OK;
}
