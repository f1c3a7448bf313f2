/* SPDX-License-Identifier: Apache-2.0 */
/* Operators declared in a JSON file; README.md has its form. */
#include <math.h>
#include <string.h>

#include "ops/op_defs.h"
#include "ops/op_facts.h"
#include "ops/op_infer.h"
#include "runtime/base/check.h"
#include "runtime/base/error.h"
#include "runtime/base/file.h"
#include "runtime/base/json.h"

#define MAX_ARITY 200.0
#define MAX_VERSION 1e9

typedef struct declare {
    const wefti_json_tree_t *tree;
    const wefti_json_node_t *object; /* of the operator being read */
    wefti_arena_t *arena;
    weft_op_def_t *def;
    weft_op_rules_t *rules;
    weft_op_facts_t *facts;
} declare_t;

static const wefti_json_node_t *get(const declare_t *d, const char *key)
{
    return wefti_json_get(d->tree, d->object, key);
}

static weft_status_t wrong(const char *key, const char *expected)
{
    return wefti_error(WEFT_ERR_FORMAT, "key '%s': expected %s", key, expected);
}

static bool whole(const wefti_json_node_t *node, double low, double high, int64_t *out)
{
    if (node == NULL || node->kind != WEFTI_JSON_NUMBER || !(node->number >= low) ||
        node->number > high || node->number != floor(node->number)) {
        return false;
    }
    *out = (int64_t)node->number;
    return true;
}

static weft_status_t read_text(const declare_t *d, const char *key, const char *absent,
                               const char **out)
{
    const wefti_json_node_t *node = get(d, key);
    *out = absent;
    if (node == NULL) {
        return absent != NULL ? WEFT_OK : wrong(key, "a text");
    }
    if (node->kind != WEFTI_JSON_STRING) {
        return wrong(key, "a text");
    }
    *out = wefti_arena_strdup(d->arena, node->string);
    return *out != NULL ? WEFT_OK : WEFT_ERR_NO_MEMORY;
}

/* 2, or [1, 3], or [1, null]: as many as there are. */
static weft_status_t read_arity(const declare_t *d, const char *key, uint8_t *out_min,
                                uint8_t *out_max)
{
    static const char expected[] = "a number, or [least, most], where most may be null";
    const wefti_json_node_t *node = get(d, key);
    int64_t least, most;
    if (node != NULL && node->kind == WEFTI_JSON_ARRAY && node->count == 2) {
        const wefti_json_node_t *first = wefti_json_first(d->tree, node);
        const wefti_json_node_t *second = wefti_json_after(d->tree, first);
        if (!whole(first, 0, MAX_ARITY, &least)) {
            return wrong(key, expected);
        }
        if (second->kind == WEFTI_JSON_NULL) {
            most = WEFT_VARIADIC;
        } else if (!whole(second, (double)least, MAX_ARITY, &most)) {
            return wrong(key, expected);
        }
    } else if (whole(node, 0, MAX_ARITY, &least)) {
        most = least;
    } else {
        return wrong(key, expected);
    }
    *out_min = (uint8_t)least;
    *out_max = (uint8_t)most;
    return WEFT_OK;
}

/* [8, [0, 1]]: 8, and dimension 1 of input 0. */
static weft_status_t read_shape(const declare_t *d, const wefti_json_node_t *shape,
                                weft_output_rule_t *rule)
{
    if (shape->kind != WEFTI_JSON_ARRAY || shape->count > WEFT_MAX_DIMS) {
        return wrong("shape", "a list of at most 8 dimensions");
    }
    for (const wefti_json_node_t *dim = wefti_json_first(d->tree, shape); dim != NULL;
         dim = wefti_json_after(d->tree, dim)) {
        uint32_t at = rule->rank++;
        int64_t input;
        rule->of_input[at] = -1;
        if (dim->kind == WEFTI_JSON_ARRAY && dim->count == 2) {
            const wefti_json_node_t *first = wefti_json_first(d->tree, dim);
            if (!whole(first, 0, MAX_ARITY, &input) ||
                !whole(wefti_json_after(d->tree, first), 0, WEFT_MAX_DIMS - 1, &rule->dims[at])) {
                return wrong("shape", "[input, dimension]");
            }
            rule->of_input[at] = (int32_t)input;
        } else if (!whole(dim, 0, 9007199254740992.0, &rule->dims[at])) {
            return wrong("shape", "numbers or [input, dimension]");
        }
    }
    return WEFT_OK;
}

/* {"like": 0}, {"dtype": "f32", "shape": [..]}, {"like": 0, "dtype": "i64"} */
static weft_status_t read_rule(const declare_t *d, const wefti_json_node_t *object,
                               weft_output_rule_t *rule)
{
    int64_t like = -1;
    const wefti_json_node_t *dtype, *shape, *like_node;
    if (object->kind != WEFTI_JSON_OBJECT) {
        return wrong("types", "a list of objects");
    }
    like_node = wefti_json_get(d->tree, object, "like");
    dtype = wefti_json_get(d->tree, object, "dtype");
    shape = wefti_json_get(d->tree, object, "shape");
    if (like_node != NULL && !whole(like_node, 0, MAX_ARITY, &like)) {
        return wrong("like", "the number of an input");
    }
    if ((like_node != NULL) == (shape != NULL)) {
        return wrong("types", "either \"like\" or \"shape\" for every output");
    }
    rule->like = (int32_t)like;
    if (dtype != NULL) {
        rule->dtype = dtype->kind == WEFTI_JSON_STRING ? weft_dtype_from_name(dtype->string)
                                                       : WEFT_DTYPE_NONE;
        if (rule->dtype == WEFT_DTYPE_NONE) {
            return wrong("dtype", "a type such as f32 or i64");
        }
    }
    return shape != NULL ? read_shape(d, shape, rule) : WEFT_OK;
}

/* Absent: every output is like input 0. */
static weft_status_t read_types(const declare_t *d)
{
    const wefti_json_node_t *types = get(d, "types");
    size_t count = types != NULL ? types->count : 1;
    weft_output_rule_t *rules;
    if (types != NULL && (types->kind != WEFTI_JSON_ARRAY || count == 0)) {
        return wrong("types", "a list of at least one object");
    }
    rules = wefti_arena_array(d->arena, count, sizeof(*rules));
    if (rules == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    size_t at = 0;
    for (const wefti_json_node_t *item = types != NULL ? wefti_json_first(d->tree, types) : NULL;
         item != NULL; item = wefti_json_after(d->tree, item)) {
        weft_status_t status = read_rule(d, item, &rules[at++]);
        if (status < 0) {
            return status;
        }
    }
    d->rules->outputs = rules;
    d->rules->output_count = count;
    return WEFT_OK;
}

/* Absent: unknown, a fence. */
static weft_status_t read_effects(const declare_t *d)
{
    static const struct {
        const char *name;
        weft_effects_t effects;
    } known[] = {{"pure", WEFT_EFFECT_PURE},
                 {"random", WEFT_EFFECT_RANDOM},
                 {"unknown", WEFT_EFFECT_UNKNOWN}};
    const char *name;
    weft_status_t status = read_text(d, "effects", "unknown", &name);
    for (size_t i = 0; status == WEFT_OK && i < WEFTI_COUNT(known); i++) {
        if (strcmp(known[i].name, name) == 0) {
            d->def->effects = known[i].effects;
            return WEFT_OK;
        }
    }
    return status < 0 ? status : wrong("effects", "\"pure\", \"random\" or \"unknown\"");
}

/* [0, null]: output 0 may overwrite input 0. */
static weft_status_t read_places(const declare_t *d)
{
    const wefti_json_node_t *list = get(d, "in_place");
    int at = 0;
    for (int i = 0; i < 4; i++) {
        d->def->in_place[i] = -1;
    }
    if (list == NULL) {
        return WEFT_OK;
    }
    if (list->kind != WEFTI_JSON_ARRAY || list->count > 4) {
        return wrong("in_place", "a list of at most 4 inputs, or null");
    }
    for (const wefti_json_node_t *item = wefti_json_first(d->tree, list); item != NULL;
         item = wefti_json_after(d->tree, item), at++) {
        int64_t input = -1;
        if (item->kind != WEFTI_JSON_NULL && !whole(item, 0, 100, &input)) {
            return wrong("in_place", "a list of at most 4 inputs, or null");
        }
        d->def->in_place[at] = (int8_t)input;
    }
    return WEFT_OK;
}

static weft_status_t read_numbers(const declare_t *d)
{
    int64_t version = 1;
    const wefti_json_node_t *flops = get(d, "flops_per_element");
    if (get(d, "version") != NULL && !whole(get(d, "version"), 1, MAX_VERSION, &version)) {
        return wrong("version", "a number of at least 1");
    }
    d->def->since_version = (int32_t)version;
    if (flops != NULL &&
        (flops->kind != WEFTI_JSON_NUMBER || !(flops->number >= 0) || flops->number > 1e12)) {
        return wrong("flops_per_element", "a number of at least 0");
    }
    d->rules->flops_per_elem = flops != NULL ? flops->number : 0;
    return WEFT_OK;
}

/* Names of flags and of a mixing; the inputs in which the operator is linear. */
static weft_status_t read_facts(const declare_t *d)
{
    const wefti_json_node_t *facts = get(d, "facts"), *linear = get(d, "linear");
    int64_t input;
    if ((facts != NULL && facts->kind != WEFTI_JSON_ARRAY) ||
        (linear != NULL && linear->kind != WEFTI_JSON_ARRAY)) {
        return wrong(facts != NULL && facts->kind != WEFTI_JSON_ARRAY ? "facts" : "linear",
                     "a list");
    }
    for (const wefti_json_node_t *item = facts != NULL ? wefti_json_first(d->tree, facts) : NULL;
         item != NULL; item = wefti_json_after(d->tree, item)) {
        if (item->kind != WEFTI_JSON_STRING || !wefti_op_fact_set(d->facts, item->string)) {
            return wrong("facts", "elementwise, view, commutative, accumulates, reads_shape, "
                                  "dropout, loss and at most one of mixes_none, mixes_axis, "
                                  "mixes_from_axis, mixes_from_1, mixes_from_2");
        }
    }
    for (const wefti_json_node_t *item = linear != NULL ? wefti_json_first(d->tree, linear) : NULL;
         item != NULL; item = wefti_json_after(d->tree, item)) {
        if (!whole(item, 0, 31, &input)) {
            return wrong("linear", "numbers of inputs, at most 31");
        }
        d->facts->linear_inputs |= 1u << input;
    }
    d->facts->struct_size = sizeof(*d->facts);
    d->def->facts = d->facts;
    return WEFT_OK;
}

/* A misspelt key is an error, not a default. */
static weft_status_t check_keys(const declare_t *d)
{
    static const char *const known[] = {"domain",   "name",  "version",           "inputs",
                                        "outputs",  "types", "effects",           "in_place",
                                        "gradient", "doc",   "flops_per_element", "facts",
                                        "linear"};
    for (const wefti_json_node_t *item = wefti_json_first(d->tree, d->object); item != NULL;
         item = wefti_json_after(d->tree, item)) {
        bool found = false;
        for (size_t i = 0; i < WEFTI_COUNT(known); i++) {
            found = found || strcmp(known[i], item->key) == 0;
        }
        if (!found) {
            return wefti_error(WEFT_ERR_FORMAT, "unknown key '%s'", item->key);
        }
    }
    return WEFT_OK;
}

static weft_status_t read_op(const declare_t *d)
{
    weft_op_def_t *def = d->def;
    WEFT_RETURN_IF_ERROR(check_keys(d));
    WEFT_RETURN_IF_ERROR(read_text(d, "domain", NULL, &def->domain));
    WEFT_RETURN_IF_ERROR(read_text(d, "doc", "declared by a file", &def->doc));
    WEFT_RETURN_IF_ERROR(read_text(d, "gradient", "", &def->grad));
    WEFT_RETURN_IF_ERROR(read_arity(d, "inputs", &def->inputs_min, &def->inputs_max));
    WEFT_RETURN_IF_ERROR(read_arity(d, "outputs", &def->outputs_min, &def->outputs_max));
    WEFT_RETURN_IF_ERROR(read_types(d));
    WEFT_RETURN_IF_ERROR(read_effects(d));
    WEFT_RETURN_IF_ERROR(read_places(d));
    WEFT_RETURN_IF_ERROR(read_numbers(d));
    WEFT_RETURN_IF_ERROR(read_facts(d));
    def->grad = def->grad[0] != '\0' ? def->grad : NULL;
    def->dtypes = WEFTI_BIT_ALL;
    def->rules = d->rules;
    if (def->domain[0] == '\0' || strcmp(def->domain, "ai.onnx") == 0 ||
        strcmp(def->domain, "weft") == 0) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "domain '%s' is reserved", def->domain);
    }
    return WEFT_OK;
}

static weft_status_t add_op(const wefti_json_tree_t *tree, const wefti_json_node_t *object,
                            size_t index, weft_registry_t *registry)
{
    weft_status_t status;
    wefti_arena_t *arena = wefti_registry_arena(registry);
    declare_t d = {.tree = tree,
                   .object = object,
                   .arena = arena,
                   .def = wefti_arena_alloc(arena, sizeof(*d.def)),
                   .rules = wefti_arena_alloc(arena, sizeof(*d.rules)),
                   .facts = wefti_arena_alloc(arena, sizeof(*d.facts))};
    if (d.def == NULL || d.rules == NULL || d.facts == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    if (object->kind != WEFTI_JSON_OBJECT) {
        return wefti_error(WEFT_ERR_FORMAT, "operator %zu: expected an object", index);
    }
    WEFT_TRY(status, read_text(&d, "name", NULL, &d.def->name), fail);
    WEFT_TRY(status, read_op(&d), fail);
    status = weft_registry_add_op(registry, d.def);
fail:
    return status < 0 ? wefti_error_prefix(status, "operator %zu (%s)", index,
                                           d.def->name != NULL ? d.def->name : "?")
                      : WEFT_OK;
}

/* {"operators": [..]} */
static weft_status_t add_all(const wefti_json_tree_t *tree, weft_registry_t *registry)
{
    const wefti_json_node_t *top = &tree->nodes[0];
    const wefti_json_node_t *list =
        top->kind == WEFTI_JSON_OBJECT ? wefti_json_get(tree, top, "operators") : NULL;
    weft_status_t status = WEFT_OK;
    size_t index = 0;
    if (list == NULL || list->kind != WEFTI_JSON_ARRAY) {
        return wefti_error(WEFT_ERR_FORMAT, "expected {\"operators\": [..]}");
    }
    for (const wefti_json_node_t *item = wefti_json_first(tree, list);
         item != NULL && status == WEFT_OK; item = wefti_json_after(tree, item)) {
        status = add_op(tree, item, index++, registry);
    }
    return status;
}

weft_status_t weft_registry_load_ops(weft_registry_t *registry, const char *path)
{
    WEFT_CHECK_ARG(registry);
    WEFT_CHECK_ARG(path);
    weft_status_t status;
    wefti_mapping_t file = {0};
    wefti_json_tree_t tree = {0};
    status = wefti_file_map(path, &file);
    if (status < 0) {
        return status;
    }
    WEFT_TRY(status, wefti_json_parse((const char *)file.data, file.size_bytes, NULL, &tree), done);
    status = add_all(&tree, registry);
done:
    wefti_json_tree_deinit(&tree);
    wefti_file_unmap(&file);
    return status < 0 ? wefti_error_prefix(status, "operators of %s", path) : WEFT_OK;
}
