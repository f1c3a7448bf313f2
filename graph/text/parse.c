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
 * A NAME is a word without blanks and , ( ) { } [ ] = " # % @ \ that does not end with ':', or a
 * string, in which \xNN is a byte. A float attribute has a point or an exponent, unless the
 * operator's definition says float. The default of VERSION is the newest definition, of a node's
 * name ("as") its first output. Values are defined before they are used, except in "alias". An
 * operator of another domain than "" and "weft" that nobody defined needs the types of its outputs
 * and is a fence for every pass.
 */
#include <inttypes.h>
#include <string.h>

#include "graph/text/text.h"

#define FAIL(p, ...) WEFTI_SCAN_FAIL(&(p)->scan, __VA_ARGS__)
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

typedef struct statement {
    wefti_node_params_t params;
    uint32_t *inputs;
    weft_attr_t *attrs;
    const char **outputs;
    bool *absent;
    result_t *results; /* NULL: no types are given */
} statement_t;

typedef struct alias {
    uint32_t value, line;
    const char *of;
} alias_t;

typedef struct parser {
    wefti_graph_t *graph;
    wefti_scan_t scan;
    alias_t *aliases;
    size_t alias_count, alias_capacity;
    uint32_t *program; /* nodes */
    size_t program_capacity;
    uint32_t line;
} parser_t;

/* A status of another part becomes the scanner's; true: go on. */
static bool try(parser_t *p, weft_status_t status)
{
    if (status < 0 && p->scan.status >= 0) {
        wefti_scan_fail(&p->scan, status);
    }
    return p->scan.status >= 0;
}

static bool reserve(parser_t *p, void *array, size_t *capacity, size_t count, size_t elem_bytes)
{
    return try(
        p, wefti_array_reserve(p->graph->arena.allocator, array, capacity, count + 1, elem_bytes));
}

static const char *scan_value_name(parser_t *p)
{
    wefti_scan_expect(&p->scan, '%');
    return wefti_scan_name(&p->scan, "a value's name");
}

/* The id of a value that is defined; 0 after a failure. */
static uint32_t scan_value(parser_t *p)
{
    const char *name = scan_value_name(p);
    uint32_t value = wefti_graph_find_value(p->graph, name);
    if (value == WEFTI_NONE) {
        FAIL(p, "value '%s' is not defined", name);
    }
    return p->scan.status < 0 ? 0 : value;
}

static marks_t scan_marks(parser_t *p)
{
    marks_t marks = {.grad_of = WEFTI_NONE};
    int mark;
    while ((mark = wefti_scan_choice(&p->scan, wefti_text_marks)) >= 0) {
        if (mark < WEFTI_TEXT_FLAG_COUNT) {
            marks.flags |= WEFTI_TEXT_FLAG(mark);
            continue;
        }
        wefti_scan_expect(&p->scan, '(');
        if (mark == WEFTI_TEXT_FLAG_COUNT) {
            marks.grad_of = scan_value(p);
        } else {
            marks.alias_of = scan_value_name(p);
        }
        wefti_scan_expect(&p->scan, ')');
    }
    return marks;
}

/* The graph has one loss, one value of logits and one label. */
static void set_marks(parser_t *p, uint32_t id, const marks_t *marks)
{
    wefti_graph_t *graph = p->graph;
    uint32_t *const single[] = {&graph->loss, &graph->logits, &graph->label};
    graph->values[id].flags = marks->flags;
    graph->values[id].grad_of = marks->grad_of;
    for (int i = 0; i < 3; i++) {
        if (!(marks->flags & WEFTI_TEXT_FLAG(i))) {
            continue;
        }
        if (*single[i] != WEFTI_NONE) {
            FAIL(p, "duplicate mark '%s': on values '%s' and '%s'", wefti_text_marks[i],
                 graph->values[*single[i]].name, graph->values[id].name);
        }
        *single[i] = id;
    }
    if (marks->alias_of &&
        reserve(p, &p->aliases, &p->alias_capacity, p->alias_count, sizeof(*p->aliases))) {
        const char *of = wefti_arena_strdup(&graph->arena, marks->alias_of);
        try(p, of ? WEFT_OK : WEFT_ERR_NO_MEMORY);
        p->aliases[p->alias_count++] = (alias_t){id, p->line, of};
    }
}

static void parse_header(parser_t *p)
{
    p->graph->name =
        wefti_arena_strdup(&p->graph->arena, wefti_scan_name(&p->scan, "the graph's name"));
    try(p, p->graph->name ? WEFT_OK : WEFT_ERR_NO_MEMORY);
    if (wefti_scan_word(&p->scan, "opset")) {
        p->graph->opset = (int32_t)wefti_scan_int(&p->scan, 0, INT32_MAX);
    }
    if (wefti_scan_word(&p->scan, "batch")) {
        p->graph->batch = wefti_scan_int(&p->scan, 0, INT64_MAX);
    }
}

static void check_unique(parser_t *p, const char *what, const char *name, const char *wanted)
{
    if (strcmp(name, wanted) != 0) {
        FAIL(p, "duplicate definition of %s '%s'", what, wanted);
    }
}

static void parse_value(parser_t *p, wefti_value_kind_t kind)
{
    const char *dim_names[WEFT_MAX_DIMS] = {NULL};
    double default_value = 0;
    uint32_t id, state_of = WEFTI_NONE;
    const char *name = scan_value_name(p);
    wefti_scan_expect(&p->scan, ':');
    weft_tensor_desc_t type =
        wefti_scan_type(&p->scan, kind == WEFTI_VALUE_INPUT ? dim_names : NULL);
    bool has_contents = wefti_scan_accept(&p->scan, '=');
    if (has_contents && kind == WEFTI_VALUE_SCALAR) {
        default_value = wefti_scan_double(&p->scan);
    } else if (has_contents) {
        wefti_scan_contents(&p->scan, &type);
    }
    if (kind == WEFTI_VALUE_STATE && wefti_scan_word(&p->scan, "of")) {
        state_of = scan_value(p);
    }
    marks_t marks = scan_marks(p);
    if (p->scan.status < 0 || !try(p, wefti_graph_add_value(p->graph, name, kind, &type, &id))) {
        return;
    }
    check_unique(p, "value", p->graph->values[id].name, name);
    p->graph->values[id].state_of = state_of;
    p->graph->values[id].default_value = default_value;
    if (kind == WEFTI_VALUE_INPUT) {
        memcpy(p->graph->values[id].dim_names, dim_names, sizeof(dim_names));
    }
    set_marks(p, id, &marks);
}

static void scan_outputs(parser_t *p, statement_t *node)
{
    uint32_t *count = &node->params.output_count;
    node->outputs = wefti_scan_array(&p->scan, '=', sizeof(*node->outputs));
    node->absent = wefti_scan_array(&p->scan, '=', sizeof(*node->absent));
    for (bool more = true; more && p->scan.status >= 0; ++*count) {
        node->absent[*count] = wefti_scan_accept(&p->scan, '-');
        node->outputs[*count] = node->absent[*count] ? NULL : scan_value_name(p);
        more = wefti_scan_accept(&p->scan, ',');
    }
    wefti_scan_expect(&p->scan, '=');
}

static void scan_operator(parser_t *p, wefti_node_params_t *params)
{
    const char *name = wefti_scan_name(&p->scan, "an operator");
    const char *colon = strchr(name, ':');
    if (colon != NULL && (colon[1] != ':' || strchr(colon + 2, ':') != NULL)) {
        FAIL(p, "invalid operator name: %s", name);
    }
    params->domain = "";
    params->op = name;
    for (const char *at = strstr(name, "::"); at; at = strstr(at + 2, "::")) {
        params->op = at + 2;
    }
    if (params->op > name) {
        params->domain = name;
        *(char *)(params->op - 2) = '\0'; /* of the line's words */
    }
    if (wefti_scan_accept(&p->scan, '@')) {
        params->version = (int32_t)wefti_scan_int(&p->scan, 1, INT32_MAX);
    }
    params->def = weft_registry_find_op(p->graph->registry, params->domain, params->op,
                                        params->version ? params->version : INT32_MAX);
}

static void scan_inputs(parser_t *p, statement_t *node)
{
    wefti_scan_expect(&p->scan, '(');
    node->inputs = wefti_scan_array(&p->scan, ')', sizeof(*node->inputs));
    bool more = !wefti_scan_accept(&p->scan, ')');
    while (more && p->scan.status >= 0) {
        node->inputs[node->params.input_count++] =
            wefti_scan_accept(&p->scan, '-') ? WEFTI_NONE : scan_value(p);
        more = wefti_scan_accept(&p->scan, ',');
        if (!more) {
            wefti_scan_expect(&p->scan, ')');
        }
    }
}

static void scan_attrs(parser_t *p, statement_t *node)
{
    uint32_t *count = &node->params.attr_count;
    node->attrs = wefti_scan_array(&p->scan, '}', sizeof(*node->attrs));
    for (bool more = true; more && p->scan.status >= 0; ++*count) {
        node->attrs[*count] = wefti_scan_attr(&p->scan, node->params.def);
        for (uint32_t i = 0; i < *count; i++) {
            if (strcmp(node->attrs[i].name, node->attrs[*count].name) == 0) {
                FAIL(p, "duplicate attribute '%s'", node->attrs[i].name);
            }
        }
        if (*count == MAX_ATTRS) {
            FAIL(p, "too many attributes: limit %u", MAX_ATTRS);
        }
        more = wefti_scan_accept(&p->scan, ',');
    }
    wefti_scan_expect(&p->scan, '}');
}

static void scan_results(parser_t *p, statement_t *node)
{
    uint32_t expected = node->params.output_count, count = 0;
    node->results = wefti_arena_array(&p->scan.words, expected, sizeof(*node->results));
    try(p, node->results ? WEFT_OK : WEFT_ERR_NO_MEMORY);
    for (bool more = true; more && count < expected && p->scan.status >= 0; count++) {
        result_t *result = &node->results[count];
        *result = (result_t){.marks.grad_of = WEFTI_NONE};
        if (node->absent[count]) {
            wefti_scan_expect(&p->scan, '-');
        } else {
            (void)wefti_scan_ends(&p->scan); /* skips spaces */
            const char *start = p->scan.at;
            result->marks = scan_marks(p);
            result->has_type = p->scan.at == start;
            if (result->has_type) {
                result->type = wefti_scan_type(&p->scan, NULL);
                result->marks = scan_marks(p);
            }
        }
        more = wefti_scan_accept(&p->scan, ',');
        if (more ? count + 1 == expected : count + 1 < expected) {
            FAIL(p, "%s types than outputs: %u outputs", more ? "more" : "fewer", expected);
        }
    }
}

/* A definition for an operator that nobody defined: its outputs have the types of the text. */
static void define_opaque(parser_t *p, statement_t *node)
{
    wefti_node_params_t *params = &node->params;
    bool typed = *params->domain && strcmp(params->domain, "weft") != 0 && node->results;
    for (uint32_t i = 0; typed && i < params->output_count; i++) {
        typed = node->absent[i] || node->results[i].type.dtype != WEFT_DTYPE_NONE;
    }
    if (!typed) {
        FAIL(p, "unknown operator %s%s%s", params->domain, *params->domain ? "::" : "", params->op);
        return;
    }
    weft_output_rule_t *rules =
        wefti_arena_array(&p->graph->arena, params->output_count, sizeof(*rules));
    if (!try(p, rules ? WEFT_OK : WEFT_ERR_NO_MEMORY)) {
        return;
    }
    for (uint32_t i = 0; i < params->output_count; i++) {
        const weft_tensor_desc_t *type = &node->results[i].type;
        rules[i] = (weft_output_rule_t){.like = -1, .dtype = type->dtype, .rank = type->rank};
        memcpy(rules[i].dims, type->dims, sizeof(type->dims));
        memset(rules[i].of_input, -1, sizeof(rules[i].of_input));
    }
    try(p, wefti_graph_define_opaque(p->graph, params->domain, params->op,
                                     params->version ? params->version : 1, params->input_count,
                                     rules, params->output_count, &params->def));
}

/* Where both sides know a dimension, they agree. The text's type holds, for it may be less
 * known. */
static void take_type(parser_t *p, wefti_value_t *value, const weft_tensor_desc_t *type)
{
    char texts[2][WEFTI_TYPE_TEXT_BYTES];
    bool equal = type->dtype == value->type.dtype && type->rank == value->type.rank;
    for (uint32_t d = 0; equal && d < type->rank; d++) {
        equal =
            type->dims[d] == value->type.dims[d] || type->dims[d] < 0 || value->type.dims[d] < 0;
    }
    if (!equal && type->dtype != WEFT_DTYPE_NONE && value->type.dtype != WEFT_DTYPE_NONE) {
        FAIL(p, "value '%s': type does not match inference: %s, inferred %s", value->name,
             wefti_type_text(type, texts[0]), wefti_type_text(&value->type, texts[1]));
    }
    value->type = *type;
}

static void take_results(parser_t *p, const statement_t *node, uint32_t id)
{
    uint32_t count = node->results ? node->params.output_count : 0;
    bool infer = true; /* "?": shapes are not bound yet */
    for (uint32_t i = 0; i < count; i++) {
        infer = infer && !(node->results[i].has_type && !node->results[i].type.dtype);
    }
    if (infer && !try(p, wefti_graph_infer_node(p->graph, id))) {
        return;
    }
    for (uint32_t i = 0; i < count; i++) {
        uint32_t value = p->graph->nodes[id].outputs[i];
        if (value != WEFTI_NONE) {
            if (node->results[i].has_type) {
                take_type(p, &p->graph->values[value], &node->results[i].type);
            }
            set_marks(p, value, &node->results[i].marks);
        }
    }
}

static void add_node(parser_t *p, statement_t *node)
{
    uint32_t id;
    wefti_node_params_t params = node->params;
    params.inputs = node->inputs;
    params.output_names = node->outputs;
    params.output_absent = node->absent;
    params.attrs = node->attrs;
    if (!params.name && params.output_count) {
        params.name = node->outputs[0];
    }
    if (!try(p, wefti_graph_add_node(p->graph, &params, &id))) {
        return;
    }
    if (node->params.name) {
        check_unique(p, "node", p->graph->nodes[id].name, node->params.name);
    }
    for (uint32_t i = 0; i < params.output_count; i++) {
        if (!node->absent[i]) {
            check_unique(p, "value", p->graph->values[p->graph->nodes[id].outputs[i]].name,
                         node->outputs[i]);
        }
    }
    take_results(p, node, id);
}

static void parse_node(parser_t *p)
{
    statement_t node = {0};
    int phase = wefti_scan_choice(&p->scan, wefti_text_phases);
    node.params.phase = phase < 0 ? WEFTI_PHASE_FORWARD : (wefti_phase_t)phase;
    if (!wefti_scan_ends(&p->scan) && (*p->scan.at == '%' || *p->scan.at == '-')) {
        scan_outputs(p, &node);
    }
    scan_operator(p, &node.params);
    scan_inputs(p, &node);
    if (wefti_scan_accept(&p->scan, '{')) {
        scan_attrs(p, &node);
    }
    if (wefti_scan_accept(&p->scan, ':')) {
        scan_results(p, &node);
    }
    if (wefti_scan_word(&p->scan, "as")) {
        node.params.name = wefti_scan_name(&p->scan, "a node's name");
    }
    if (p->scan.status >= 0 && !node.params.def) {
        define_opaque(p, &node);
    }
    if (p->scan.status >= 0) {
        add_node(p, &node);
    }
}

static uint32_t scan_node(parser_t *p)
{
    if (wefti_scan_accept(&p->scan, '@')) {
        const char *name = wefti_scan_name(&p->scan, "a node's name");
        uint32_t id = wefti_name_index_find(&p->graph->node_names, name);
        if (id == WEFTI_NONE) {
            FAIL(p, "node '%s' is not defined", name);
        }
        return id;
    }
    uint32_t value = scan_value(p);
    uint32_t id = p->scan.status < 0 ? WEFTI_NONE : p->graph->values[value].producer;
    if (id == WEFTI_NONE && p->scan.status >= 0) {
        FAIL(p, "value '%s' is not the output of a node", p->graph->values[value].name);
    }
    return id;
}

static void parse_order(parser_t *p)
{
    wefti_graph_t *graph = p->graph;
    uint32_t before = scan_node(p);
    if (!wefti_scan_word(&p->scan, "->")) {
        wefti_scan_unexpected(&p->scan, "'->'");
    }
    uint32_t after = scan_node(p);
    if (p->scan.status >= 0 && reserve(p, &graph->constraints, &graph->constraint_capacity,
                                       graph->constraint_count, sizeof(*graph->constraints))) {
        graph->constraints[graph->constraint_count++] = (wefti_constraint_t){before, after};
    }
}

/* The order of the graph is that of ids, for nothing was removed or sorted. */
static void parse_program(parser_t *p)
{
    uint32_t count = 0;
    const char *name = wefti_scan_name(&p->scan, "a program's name");
    wefti_scan_expect(&p->scan, ':');
    while (!wefti_scan_ends(&p->scan)) {
        if (count) {
            wefti_scan_expect(&p->scan, ',');
        }
        uint32_t first = scan_node(p), last = first;
        if (wefti_scan_word(&p->scan, "..")) {
            last = scan_node(p);
        }
        if (last < first || (count && first <= p->program[count - 1])) {
            FAIL(p, "program '%s': nodes are not in the order of the graph", name);
        }
        for (; p->scan.status >= 0 && first <= last &&
               reserve(p, &p->program, &p->program_capacity, count, sizeof(*p->program));
             first++) {
            p->program[count++] = first;
        }
    }
    if (p->scan.status >= 0) {
        try(p, wefti_graph_add_program(p->graph, name, p->program, count));
    }
}

static void parse_statement(parser_t *p)
{
    static const char *const others[] = {"graph", "order", "output", "program", NULL};
    int kind = wefti_scan_choice(&p->scan, wefti_text_kinds + 1); /* "node" is not written */
    if (kind >= 0) {
        parse_value(p, (wefti_value_kind_t)(kind + 1));
        return;
    }
    switch (wefti_scan_choice(&p->scan, others)) {
    case 0:
        parse_header(p);
        break;
    case 1:
        parse_order(p);
        break;
    case 2: {
        uint32_t value = scan_value(p);
        if (p->scan.status >= 0) {
            try(p, wefti_graph_add_output(p->graph, value));
        }
        break;
    }
    case 3:
        parse_program(p);
        break;
    default:
        parse_node(p);
        break;
    }
}

static weft_status_t parse_lines(parser_t *p, const char *text, const char *end)
{
    for (p->line = 1; text < end; p->line++) {
        const char *next = memchr(text, '\n', (size_t)(end - text));
        p->scan.at = text;
        p->scan.end = next ? next : end;
        if (!wefti_scan_ends(&p->scan)) {
            parse_statement(p);
            if (!wefti_scan_ends(&p->scan)) {
                wefti_scan_unexpected(&p->scan, "the end of the line");
            }
        }
        wefti_arena_deinit(&p->scan.words);
        if (p->scan.status < 0) {
            return wefti_error_prefix(p->scan.status, "line %" PRIu32, p->line);
        }
        text = next ? next + 1 : end;
    }
    for (size_t i = 0; i < p->alias_count; i++) {
        const alias_t *alias = &p->aliases[i];
        uint32_t of = wefti_graph_find_value(p->graph, alias->of);
        if (of == WEFTI_NONE) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                               "line %" PRIu32 ": value '%s' is not defined", alias->line,
                               alias->of);
        }
        p->graph->values[alias->value].alias_of = of;
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
    WEFT_TRY(status, wefti_graph_create(allocator, registry, 0, &p.graph), done);
    wefti_arena_init(&p.scan.words, allocator, 0);
    p.scan.kept = &p.graph->arena;
    p.graph->defer_inference = true;
    WEFT_TRY(status, parse_lines(&p, text, text + length), done);
    p.graph->defer_inference = false;
    WEFT_TRY(status, wefti_graph_verify(p.graph), done);
    *out_graph = p.graph;
    p.graph = NULL;
done:
    wefti_free(allocator, p.aliases);
    wefti_free(allocator, p.program);
    wefti_graph_destroy(p.graph);
    return status;
}
