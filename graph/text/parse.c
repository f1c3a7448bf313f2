/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads the text form of a graph: one statement per line, "#" begins a comment.
 *
 *   text       = [header] { value | node | order | output | program }
 *   header     = "graph" NAME ["opset" INT] ["batch" INT]
 *   value      = ("input" | "param" | "const" | "state" | "scalar") %NAME ":" type
 *                ["=" contents] ["of" %NAME] {mark}
 *   node       = ["forward" | "backward" | "comm" | "update"] [out {"," out} "="]
 *                [DOMAIN "::"] OP ["@" VERSION] "(" [in {"," in}] ")"
 *                ["{" NAME "=" attribute {"," ..} "}"] [":" result {"," result}] ["as" NAME]
 *   out, in    = %NAME | "-"                            "-": absent
 *   result     = "-" | [type] {mark}                    without type: as inferred
 *   order      = "order" ref "->" ref                   an ordering that no value expresses
 *   output     = "output" %NAME
 *   program    = "program" NAME ":" [part {"," part}]
 *   part       = ref | ref ".." ref                     a range in the order of the graph
 *   ref        = %NAME | "@" NAME                       a node by its output, or by its name
 *   type       = "?" | ELEMENT "[" [dim {"," dim}] "]" ["nhwc"]
 *   dim        = INT | "?" | NAME                       names on inputs only
 *   mark       = "loss" | "logits" | "label" | "reduced" | "persistent"
 *              | "grad" "(" %NAME ")" | "alias" "(" %NAME ")"
 *   contents   = NUMBER                                 all elements are equal
 *              | "[" [NUMBER {"," NUMBER}] "]"          in row-major order
 *              | "x" HEX                                the bytes
 *              | "..."                                  left out
 *   attribute  = INT | FLOAT | STRING | type ["=" contents]
 *              | "[" [element {"," element}] "]" | "floats[]" | "strings[]"
 *
 * A float attribute has a point or an exponent, unless the operator's definition says float. The
 * default of VERSION is the newest definition, of a node's name ("as") its first output. In a name,
 * blanks and , ( ) { } [ ] = " # % @ \ are written as \xNN, and so is a ':'
 * at its end; "" is the empty name. Values are
 * defined before they are used, except in "alias". An operator of another domain than "" and "weft" that nobody
 * defined needs the types of its outputs and is a fence for every pass.
 */
#include <inttypes.h>
#include <string.h>

#include "graph/text/text.h"
#include "runtime/base/error.h"

#define INVALID(...) wefti_error(WEFT_ERR_INVALID_ARGUMENT, __VA_ARGS__)
#define MAX_ATTRS 1000u

typedef struct marks {
    wefti_value_flags_t flags;
    uint32_t grad_of;
    const char *alias_of; /* resolved at the end of the text */
} marks_t;

/* What follows ":" for one output. */
typedef struct result {
    weft_tensor_desc_t type;
    bool has_type;
    marks_t marks;
} result_t;

typedef struct alias {
    uint32_t value, line;
    const char *of;
} alias_t;

/* One node while its line is read; arrays grow and are used again. */
typedef struct statement {
    const char *domain, *op, *name;
    const char **outputs; /* NULL: absent */
    bool *absent;
    uint32_t *inputs;
    weft_attr_t *attrs;
    result_t *results;
    uint32_t output_count, input_count, attr_count, result_count;
    size_t output_capacity, absent_capacity, input_capacity, attr_capacity, result_capacity;
    int64_t version; /* 0: none given */
    const weft_op_def_t *def;
} statement_t;

typedef struct parser {
    wefti_graph_t *graph;
    wefti_scan_t scan;
    wefti_arena_t words;
    statement_t node;
    alias_t *aliases;
    uint32_t alias_count;
    size_t alias_capacity;
    uint32_t *program; /* nodes */
    size_t program_capacity;
    uint32_t line;
} parser_t;

static weft_status_t grow(parser_t *p, void *array, size_t *capacity, uint32_t count, size_t size)
{
    return wefti_array_reserve(p->graph->arena.allocator, array, capacity, (size_t)count + 1, size);
}

static weft_status_t scan_known_value(parser_t *p, uint32_t *out_value)
{
    weft_status_t status;
    const char *name;
    WEFT_TRY(status, wefti_scan_expect(&p->scan, '%'), fail);
    WEFT_TRY(status, wefti_scan_name(&p->scan, "a value's name", &name), fail);
    *out_value = wefti_graph_find_value(p->graph, name);
    return *out_value == WEFTI_NONE ? INVALID("value '%s' is not defined", name) : WEFT_OK;
fail:
    return status;
}

static weft_status_t scan_alias(parser_t *p, const char **out_name)
{
    weft_status_t status = wefti_scan_expect(&p->scan, '%');
    return status < 0 ? status : wefti_scan_name(&p->scan, "a value's name", out_name);
}

static weft_status_t scan_marks(parser_t *p, marks_t *marks)
{
    static const char *const names[] = {"loss",       "logits", "label", "reduced",
                                        "persistent", "grad",   "alias", NULL};
    weft_status_t status = WEFT_OK;
    int mark;
    *marks = (marks_t){.grad_of = WEFTI_NONE};
    while ((mark = wefti_scan_choice(&p->scan, names)) >= 0) {
        if (mark < WEFTI_TEXT_MARK_COUNT) {
            marks->flags |= wefti_text_marks[mark].flag;
            continue;
        }
        WEFT_TRY(status, wefti_scan_expect(&p->scan, '('), fail);
        WEFT_TRY(status,
                 mark == WEFTI_TEXT_MARK_COUNT ? scan_known_value(p, &marks->grad_of)
                                               : scan_alias(p, &marks->alias_of),
                 fail);
        WEFT_TRY(status, wefti_scan_expect(&p->scan, ')'), fail);
    }
fail:
    return status;
}

/* The graph has one loss, one value of logits and one label. */
static weft_status_t set_marks(parser_t *p, uint32_t value, const marks_t *marks)
{
    uint32_t *const single[] = {&p->graph->loss, &p->graph->logits, &p->graph->label};
    p->graph->values[value].flags = marks->flags;
    p->graph->values[value].grad_of = marks->grad_of;
    for (size_t i = 0; i < sizeof(single) / sizeof(single[0]); i++) {
        if (!(marks->flags & wefti_text_marks[i].flag)) {
            continue;
        }
        if (*single[i] != WEFTI_NONE) {
            return INVALID("duplicate mark '%s': on values '%s' and '%s'", wefti_text_marks[i].name,
                           p->graph->values[*single[i]].name, p->graph->values[value].name);
        }
        *single[i] = value;
    }
    if (!marks->alias_of) {
        return WEFT_OK;
    }
    weft_status_t status =
        grow(p, &p->aliases, &p->alias_capacity, p->alias_count, sizeof(*p->aliases));
    if (status >= 0) {
        p->aliases[p->alias_count++] = (alias_t){value, p->line, marks->alias_of};
    }
    return status;
}

static weft_status_t resolve_aliases(parser_t *p)
{
    for (uint32_t i = 0; i < p->alias_count; i++) {
        uint32_t of = wefti_graph_find_value(p->graph, p->aliases[i].of);
        if (of == WEFTI_NONE) {
            return INVALID("line %" PRIu32 ": value '%s' is not defined", p->aliases[i].line,
                           p->aliases[i].of);
        }
        p->graph->values[p->aliases[i].value].alias_of = of;
    }
    return WEFT_OK;
}

static weft_status_t parse_header(parser_t *p)
{
    weft_status_t status;
    const char *name;
    int64_t opset = p->graph->opset;
    WEFT_TRY(status, wefti_scan_name(&p->scan, "the graph's name", &name), fail);
    p->graph->name = wefti_arena_strdup(&p->graph->arena, name);
    if (!p->graph->name) {
        return WEFT_ERR_NO_MEMORY;
    }
    if (wefti_scan_word(&p->scan, "opset")) {
        WEFT_TRY(status, wefti_scan_int(&p->scan, 0, INT32_MAX, &opset), fail);
        p->graph->opset = (int32_t)opset;
    }
    if (wefti_scan_word(&p->scan, "batch")) {
        WEFT_TRY(status, wefti_scan_int(&p->scan, 0, INT64_MAX, &p->graph->batch), fail);
    }
fail:
    return status;
}

static weft_status_t check_new_name(parser_t *p, uint32_t value, const char *name)
{
    return strcmp(p->graph->values[value].name, name) == 0
               ? WEFT_OK
               : INVALID("duplicate definition of value '%s'", name);
}

static weft_status_t parse_value(parser_t *p, wefti_value_kind_t kind)
{
    weft_status_t status;
    const char *name, *dim_names[WEFT_MAX_DIMS] = {NULL};
    weft_tensor_desc_t type;
    double default_value = 0;
    uint32_t value, state_of = WEFTI_NONE;
    marks_t marks;
    WEFT_TRY(status, wefti_scan_expect(&p->scan, '%'), fail);
    WEFT_TRY(status, wefti_scan_name(&p->scan, "a value's name", &name), fail);
    WEFT_TRY(status, wefti_scan_expect(&p->scan, ':'), fail);
    WEFT_TRY(status, wefti_scan_type(&p->scan, &type, dim_names), fail);
    if (wefti_scan_accept(&p->scan, '=')) {
        WEFT_TRY(status,
                 kind == WEFTI_VALUE_SCALAR ? wefti_scan_double(&p->scan, &default_value)
                                            : wefti_scan_contents(&p->scan, &type),
                 fail);
    }
    if (kind == WEFTI_VALUE_STATE && wefti_scan_word(&p->scan, "of")) {
        WEFT_TRY(status, scan_known_value(p, &state_of), fail);
    }
    WEFT_TRY(status, scan_marks(p, &marks), fail);
    WEFT_TRY(status, wefti_graph_add_value(p->graph, name, kind, &type, &value), fail);
    WEFT_TRY(status, check_new_name(p, value, name), fail);
    p->graph->values[value].state_of = state_of;
    p->graph->values[value].default_value = default_value;
    memcpy(p->graph->values[value].dim_names, dim_names, sizeof(dim_names));
    WEFT_TRY(status, set_marks(p, value, &marks), fail);
fail:
    return status;
}

static weft_status_t scan_outputs(parser_t *p)
{
    weft_status_t status;
    statement_t *node = &p->node;
    do {
        WEFT_TRY(status,
                 grow(p, &node->outputs, &node->output_capacity, node->output_count,
                      sizeof(*node->outputs)),
                 fail);
        WEFT_TRY(status,
                 grow(p, &node->absent, &node->absent_capacity, node->output_count,
                      sizeof(*node->absent)),
                 fail);
        const char **name = &node->outputs[node->output_count];
        *name = NULL;
        node->absent[node->output_count] = wefti_scan_accept(&p->scan, '-');
        if (!node->absent[node->output_count++]) {
            WEFT_TRY(status, wefti_scan_expect(&p->scan, '%'), fail);
            WEFT_TRY(status, wefti_scan_name(&p->scan, "a value's name", name), fail);
        }
    } while (wefti_scan_accept(&p->scan, ','));
    WEFT_TRY(status, wefti_scan_expect(&p->scan, '='), fail);
fail:
    return status;
}

static weft_status_t scan_operator(parser_t *p)
{
    weft_status_t status;
    const char *name;
    statement_t *node = &p->node;
    WEFT_TRY(status, wefti_scan_name(&p->scan, "an operator", &name), fail);
    node->domain = "";
    node->op = name;
    for (const char *at = strstr(name, "::"); at; at = strstr(at + 2, "::")) {
        node->op = at + 2;
    }
    if (node->op > name) {
        node->domain = name;
        *(char *)(node->op - 2) = '\0'; /* the arena's */
    }
    if (wefti_scan_accept(&p->scan, '@')) {
        WEFT_TRY(status, wefti_scan_int(&p->scan, 1, INT32_MAX, &node->version), fail);
    }
    node->def = weft_registry_find_op(p->graph->registry, node->domain, node->op,
                                      node->version ? (int32_t)node->version : INT32_MAX);
fail:
    return status;
}

static weft_status_t scan_inputs(parser_t *p)
{
    weft_status_t status;
    statement_t *node = &p->node;
    WEFT_TRY(status, wefti_scan_expect(&p->scan, '('), fail);
    if (wefti_scan_accept(&p->scan, ')')) {
        return WEFT_OK;
    }
    do {
        WEFT_TRY(
            status,
            grow(p, &node->inputs, &node->input_capacity, node->input_count, sizeof(*node->inputs)),
            fail);
        uint32_t *input = &node->inputs[node->input_count++];
        *input = WEFTI_NONE;
        if (!wefti_scan_accept(&p->scan, '-')) {
            WEFT_TRY(status, scan_known_value(p, input), fail);
        }
    } while (wefti_scan_accept(&p->scan, ','));
    WEFT_TRY(status, wefti_scan_expect(&p->scan, ')'), fail);
fail:
    return status;
}

static weft_status_t scan_attrs(parser_t *p)
{
    weft_status_t status;
    statement_t *node = &p->node;
    do {
        WEFT_TRY(
            status,
            grow(p, &node->attrs, &node->attr_capacity, node->attr_count, sizeof(*node->attrs)),
            fail);
        weft_attr_t *attr = &node->attrs[node->attr_count];
        WEFT_TRY(status, wefti_scan_attr(&p->scan, node->def, attr), fail);
        for (uint32_t i = 0; i < node->attr_count; i++) {
            if (strcmp(node->attrs[i].name, attr->name) == 0) {
                return INVALID("duplicate attribute '%s'", attr->name);
            }
        }
        if (node->attr_count++ == MAX_ATTRS) {
            return INVALID("too many attributes: limit %u", MAX_ATTRS);
        }
    } while (wefti_scan_accept(&p->scan, ','));
    WEFT_TRY(status, wefti_scan_expect(&p->scan, '}'), fail);
fail:
    return status;
}

static weft_status_t scan_results(parser_t *p)
{
    weft_status_t status;
    statement_t *node = &p->node;
    do {
        uint32_t index = node->result_count++;
        if (index == node->output_count) {
            return INVALID("more types than outputs: %u outputs", node->output_count);
        }
        WEFT_TRY(status,
                 grow(p, &node->results, &node->result_capacity, index, sizeof(*node->results)),
                 fail);
        result_t *result = &node->results[index];
        memset(result, 0, sizeof(*result));
        result->marks.grad_of = WEFTI_NONE;
        if (node->absent[index]) {
            WEFT_TRY(status, wefti_scan_expect(&p->scan, '-'), fail);
            continue;
        }
        (void)wefti_scan_ends(&p->scan); /* skips spaces */
        const char *start = p->scan.at;
        WEFT_TRY(status, scan_marks(p, &result->marks), fail);
        result->has_type = p->scan.at == start;
        if (result->has_type) {
            WEFT_TRY(status, wefti_scan_type(&p->scan, &result->type, NULL), fail);
            WEFT_TRY(status, scan_marks(p, &result->marks), fail);
        }
    } while (wefti_scan_accept(&p->scan, ','));
    if (node->result_count != node->output_count) {
        return INVALID("fewer types than outputs: %u of %u", node->result_count,
                       node->output_count);
    }
fail:
    return status;
}

/* A definition for an operator that nobody defined: its outputs have the types of the text. */
static weft_status_t define_opaque(parser_t *p)
{
    statement_t *node = &p->node;
    bool typed = *node->domain && strcmp(node->domain, "weft") != 0 && node->result_count > 0;
    for (uint32_t i = 0; i < node->result_count; i++) {
        typed = typed && (node->absent[i] || node->results[i].type.dtype != WEFT_DTYPE_NONE);
    }
    if (!typed) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "unknown operator %s%s%s", node->domain,
                           *node->domain ? "::" : "", node->op);
    }
    weft_output_rule_t *rules =
        wefti_arena_array(&p->graph->arena, node->result_count, sizeof(*rules));
    if (!rules) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t i = 0; i < node->result_count; i++) {
        const weft_tensor_desc_t *type = &node->results[i].type;
        rules[i] = (weft_output_rule_t){.like = -1, .dtype = type->dtype, .rank = type->rank};
        memcpy(rules[i].dims, type->dims, sizeof(type->dims));
        memset(rules[i].of_input, -1, sizeof(rules[i].of_input));
    }
    return wefti_graph_define_opaque(p->graph, node->domain, node->op,
                                     node->version ? (int32_t)node->version : 1, node->input_count,
                                     rules, node->output_count, &node->def);
}

/* Where both sides know a dimension, they agree. The text's type holds, for it may be less known. */
static weft_status_t take_type(wefti_value_t *value, const weft_tensor_desc_t *type)
{
    char texts[2][WEFTI_TYPE_TEXT_BYTES];
    bool equal = type->dtype == value->type.dtype && type->rank == value->type.rank;
    for (uint32_t d = 0; equal && d < type->rank; d++) {
        equal =
            type->dims[d] == value->type.dims[d] || type->dims[d] < 0 || value->type.dims[d] < 0;
    }
    if (!equal && type->dtype != WEFT_DTYPE_NONE && value->type.dtype != WEFT_DTYPE_NONE) {
        return INVALID("value '%s': type does not match inference: %s, inferred %s", value->name,
                       wefti_type_text(type, texts[0]), wefti_type_text(&value->type, texts[1]));
    }
    value->type = *type;
    return WEFT_OK;
}

static weft_status_t take_results(parser_t *p, uint32_t id)
{
    weft_status_t status = WEFT_OK;
    statement_t *node = &p->node;
    bool infer = true; /* "?": shapes are not bound yet */
    for (uint32_t i = 0; i < node->result_count; i++) {
        infer = infer && !(node->results[i].has_type && !node->results[i].type.dtype);
    }
    if (infer) {
        WEFT_TRY(status, wefti_graph_infer_node(p->graph, id), fail);
    }
    for (uint32_t i = 0; i < node->result_count; i++) {
        uint32_t value = p->graph->nodes[id].outputs[i];
        const result_t *result = &node->results[i];
        if (value == WEFTI_NONE) {
            continue;
        }
        if (result->has_type) {
            WEFT_TRY(status, take_type(&p->graph->values[value], &result->type), fail);
        }
        WEFT_TRY(status, set_marks(p, value, &result->marks), fail);
    }
fail:
    return status;
}

static weft_status_t add_node(parser_t *p, wefti_phase_t phase)
{
    weft_status_t status;
    uint32_t id;
    statement_t *node = &p->node;
    if (!node->def) {
        WEFT_TRY(status, define_opaque(p), fail);
    }
    const char *first = node->output_count ? node->outputs[0] : NULL;
    wefti_node_params_t params = {.name = node->name ? node->name : first,
                                  .def = node->def,
                                  .version = (int32_t)node->version,
                                  .phase = phase,
                                  .inputs = node->inputs,
                                  .input_count = node->input_count,
                                  .output_names = node->outputs,
                                  .output_count = node->output_count,
                                  .output_absent = node->absent,
                                  .attrs = node->attrs,
                                  .attr_count = node->attr_count};
    WEFT_TRY(status, wefti_graph_add_node(p->graph, &params, &id), fail);
    if (node->name && strcmp(p->graph->nodes[id].name, node->name) != 0) {
        return INVALID("duplicate definition of node '%s'", node->name);
    }
    for (uint32_t i = 0; i < node->output_count; i++) {
        if (!node->absent[i]) {
            WEFT_TRY(status, check_new_name(p, p->graph->nodes[id].outputs[i], node->outputs[i]),
                     fail);
        }
    }
    WEFT_TRY(status, take_results(p, id), fail);
fail:
    return status;
}

static weft_status_t parse_node(parser_t *p, int phase, bool has_outputs)
{
    weft_status_t status;
    statement_t *node = &p->node;
    node->output_count = node->input_count = node->attr_count = node->result_count = 0;
    node->version = 0;
    node->name = NULL;
    if (has_outputs) {
        WEFT_TRY(status, scan_outputs(p), fail);
    }
    WEFT_TRY(status, scan_operator(p), fail);
    WEFT_TRY(status, scan_inputs(p), fail);
    if (wefti_scan_accept(&p->scan, '{')) {
        WEFT_TRY(status, scan_attrs(p), fail);
    }
    if (wefti_scan_accept(&p->scan, ':')) {
        WEFT_TRY(status, scan_results(p), fail);
    }
    if (wefti_scan_word(&p->scan, "as")) {
        WEFT_TRY(status, wefti_scan_name(&p->scan, "a node's name", &node->name), fail);
    }
    WEFT_TRY(status, add_node(p, phase < 0 ? WEFTI_PHASE_FORWARD : (wefti_phase_t)phase), fail);
fail:
    return status;
}

static weft_status_t scan_node_ref(parser_t *p, uint32_t *out_node)
{
    weft_status_t status;
    const char *name;
    if (wefti_scan_accept(&p->scan, '@')) {
        WEFT_TRY(status, wefti_scan_name(&p->scan, "a node's name", &name), fail);
        *out_node = wefti_name_index_find(&p->graph->node_names, name);
        return *out_node == WEFTI_NONE ? INVALID("node '%s' is not defined", name) : WEFT_OK;
    }
    uint32_t value;
    WEFT_TRY(status, scan_known_value(p, &value), fail);
    *out_node = p->graph->values[value].producer;
    if (*out_node == WEFTI_NONE) {
        return INVALID("value '%s' is not the output of a node", p->graph->values[value].name);
    }
fail:
    return status;
}

static weft_status_t parse_order(parser_t *p)
{
    weft_status_t status;
    wefti_graph_t *graph = p->graph;
    wefti_constraint_t constraint;
    WEFT_TRY(status, scan_node_ref(p, &constraint.before), fail);
    if (!wefti_scan_word(&p->scan, "->")) {
        return wefti_scan_unexpected(&p->scan, "'->'");
    }
    WEFT_TRY(status, scan_node_ref(p, &constraint.after), fail);
    WEFT_TRY(status,
             grow(p, &graph->constraints, &graph->constraint_capacity, graph->constraint_count,
                  sizeof(constraint)),
             fail);
    graph->constraints[graph->constraint_count++] = constraint;
fail:
    return status;
}

/* The order of the graph is that of ids, for nothing was removed or sorted. */
static weft_status_t parse_program(parser_t *p)
{
    weft_status_t status;
    const char *name;
    uint32_t count = 0, first, last;
    WEFT_TRY(status, wefti_scan_name(&p->scan, "a program's name", &name), fail);
    WEFT_TRY(status, wefti_scan_expect(&p->scan, ':'), fail);
    while (!wefti_scan_ends(&p->scan)) {
        WEFT_TRY(status, count ? wefti_scan_expect(&p->scan, ',') : WEFT_OK, fail);
        WEFT_TRY(status, scan_node_ref(p, &first), fail);
        last = first;
        if (wefti_scan_word(&p->scan, "..")) {
            WEFT_TRY(status, scan_node_ref(p, &last), fail);
        }
        if (last < first || (count && first <= p->program[count - 1])) {
            return INVALID("program '%s': nodes are not in the order of the graph", name);
        }
        for (; first <= last; first++, count++) {
            WEFT_TRY(status, grow(p, &p->program, &p->program_capacity, count, sizeof(*p->program)),
                     fail);
            p->program[count] = first;
        }
    }
    WEFT_TRY(status, wefti_graph_add_program(p->graph, name, p->program, count), fail);
fail:
    return status;
}

static weft_status_t parse_output(parser_t *p)
{
    uint32_t value;
    weft_status_t status = scan_known_value(p, &value);
    return status < 0 ? status : wefti_graph_add_output(p->graph, value);
}

static weft_status_t parse_statement(parser_t *p)
{
    static const char *const others[] = {"graph", "order", "output", "program", NULL};
    wefti_scan_t *scan = &p->scan;
    int kind = wefti_scan_choice(scan, wefti_text_kinds + 1); /* "node" is not written */
    if (kind >= 0) {
        return parse_value(p, (wefti_value_kind_t)(kind + 1));
    }
    switch (wefti_scan_choice(scan, others)) {
    case 0:
        return parse_header(p);
    case 1:
        return parse_order(p);
    case 2:
        return parse_output(p);
    case 3:
        return parse_program(p);
    default:
        break;
    }
    int phase = wefti_scan_choice(scan, wefti_text_phases);
    bool has_outputs = !wefti_scan_ends(scan) && (*scan->at == '%' || *scan->at == '-');
    return parse_node(p, phase, has_outputs);
}

static weft_status_t parse_lines(parser_t *p, const char *text, size_t length)
{
    const char *end = text + length;
    for (p->line = 1; text < end; p->line++) {
        const char *next = memchr(text, '\n', (size_t)(end - text));
        p->scan.at = text;
        p->scan.end = next ? next : end;
        weft_status_t status = WEFT_OK;
        if (!wefti_scan_ends(&p->scan)) {
            status = parse_statement(p);
        }
        if (status >= 0 && !wefti_scan_ends(&p->scan)) {
            status = wefti_scan_unexpected(&p->scan, "the end of the line");
        }
        if (status < 0) {
            return wefti_error_prefix(status, "line %" PRIu32, p->line);
        }
        text = next ? next + 1 : end;
    }
    return WEFT_OK;
}

weft_status_t wefti_graph_from_text(const char *text, size_t length,
                                    const weft_allocator_t *allocator,
                                    const weft_registry_t *registry, wefti_graph_t **out_graph)
{
    weft_status_t status;
    parser_t p = {0};
    *out_graph = NULL;
    if (length >= UINT32_MAX) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "text of a graph too long: %zu bytes", length);
    }
    wefti_arena_init(&p.words, allocator, 0);
    WEFT_TRY(status, wefti_graph_create(allocator, registry, 0, &p.graph), done);
    p.graph->defer_inference = true;
    p.scan.words = &p.words;
    p.scan.kept = &p.graph->arena;
    WEFT_TRY(status, parse_lines(&p, text, length), done);
    WEFT_TRY(status, resolve_aliases(&p), done);
    p.graph->defer_inference = false;
    WEFT_TRY(status, wefti_graph_verify(p.graph), done);
    *out_graph = p.graph;
    p.graph = NULL;
done:
    wefti_free(p.words.allocator, p.node.outputs);
    wefti_free(p.words.allocator, p.node.absent);
    wefti_free(p.words.allocator, p.node.inputs);
    wefti_free(p.words.allocator, p.node.attrs);
    wefti_free(p.words.allocator, p.node.results);
    wefti_free(p.words.allocator, p.aliases);
    wefti_free(p.words.allocator, p.program);
    wefti_graph_destroy(p.graph);
    wefti_arena_deinit(&p.words);
    return status;
}
