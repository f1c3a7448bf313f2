/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the text form of a graph; parse.c describes it and reads it back. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "graph/text/text.h"
#include "runtime/base/half.h"

const char *const wefti_text_kinds[] = {"node", "input", "param", "const", "state", "scalar", NULL};
const char *const wefti_text_phases[] = {"forward", "backward", "comm", "update", NULL};
const char *const wefti_text_marks[] = {"loss",       "logits", "label", "reduced",
                                        "persistent", "grad",   "alias", NULL};

/* The version of an operator whose text has none: that of the newest definition. */
static int32_t default_version(const weft_registry_t *registry, const char *domain, const char *op)
{
    const weft_op_def_t *def = weft_registry_find_op(registry, domain, op, INT32_MAX);
    return def ? def->since_version : 1;
}

static void add_string(wefti_text_t *out, const char *text)
{
    wefti_text_add(out, "\"");
    for (const unsigned char *at = (const unsigned char *)text; *at; at++) {
        if (*at < ' ' || *at == 127 || *at == '"' || *at == '\\') {
            wefti_text_printf(out, "\\x%02x", *at);
        } else {
            wefti_text_add_bytes(out, at, 1);
        }
    }
    wefti_text_add(out, "\"");
}

/* A name that the parser would not read as one word is written as a string. */
static void add_name(wefti_text_t *out, const char *name)
{
    size_t length = strlen(name);
    bool plain = length > 0 && name[length - 1] != ':' && !strpbrk(name, WEFTI_TEXT_ENDS_NAME);
    for (size_t i = 0; plain && i < length; i++) {
        plain = (unsigned char)name[i] > ' ' && name[i] != 127;
    }
    if (plain) {
        wefti_text_add(out, name);
    } else {
        add_string(out, name);
    }
}

static void add_value_name(const wefti_graph_t *graph, uint32_t value, wefti_text_t *out)
{
    wefti_text_add(out, value == WEFTI_NONE ? "-" : "%");
    if (value != WEFTI_NONE) {
        add_name(out, graph->values[value].name);
    }
}

/* The shortest digits that read back as number. */
static void add_number(wefti_text_t *out, double number, bool is_double)
{
    char digits[32];
    for (int precision = 6; precision <= 17; precision++) {
        snprintf(digits, sizeof(digits), "%.*g", precision, number);
        double back = is_double ? strtod(digits, NULL) : (double)strtof(digits, NULL);
        if (memcmp(&back, &number, sizeof(back)) == 0) {
            break;
        }
    }
    wefti_text_add(out, number != number ? "nan" : digits);
}

/* With a point or an exponent, which an integer has not. */
static void add_float(wefti_text_t *out, float number)
{
    size_t start = out->length;
    add_number(out, (double)number, false);
    if (!out->failed && !strpbrk(out->data + start, ".en")) {
        wefti_text_add(out, ".0");
    }
}

static void add_type(const weft_tensor_desc_t *type, const char *const *dim_names,
                     wefti_text_t *out)
{
    if (type->dtype == WEFT_DTYPE_NONE) {
        wefti_text_add(out, "?");
        return;
    }
    wefti_text_printf(out, "%s[", weft_dtype_name(type->dtype));
    for (uint32_t i = 0; i < type->rank && i < WEFT_MAX_DIMS; i++) {
        const char *name = dim_names ? dim_names[i] : NULL;
        wefti_text_add(out, i ? "," : "");
        if (type->dims[i] >= 0) {
            wefti_text_printf(out, "%" PRId64, type->dims[i]);
        } else if (!name || !*name) {
            wefti_text_add(out, "?");
        } else if (strchr("?0123456789", *name)) {
            add_string(out, name);
        } else {
            add_name(out, name);
        }
    }
    wefti_text_add(out, type->layout == WEFT_LAYOUT_CHANNELS_LAST ? "]nhwc" : "]");
}

static void add_element(weft_dtype_t dtype, const uint8_t *at, wefti_text_t *out)
{
    size_t size = weft_dtype_size_bytes(dtype);
    float f32;
    double f64;
    uint64_t bits = 0;
    for (size_t i = 0; i < size; i++) {
        bits |= (uint64_t)at[i] << (8 * i);
    }
    int64_t number = (int64_t)(bits << (64 - 8 * size)) >> (64 - 8 * size);
    switch (dtype) {
    case WEFT_DTYPE_F64:
        memcpy(&f64, at, sizeof(f64));
        add_number(out, f64, true);
        break;
    case WEFT_DTYPE_F32:
        memcpy(&f32, at, sizeof(f32));
        add_number(out, (double)f32, false);
        break;
    case WEFT_DTYPE_F16:
        add_number(out, (double)wefti_f16_to_f32((uint16_t)bits), false);
        break;
    case WEFT_DTYPE_BF16:
        add_number(out, (double)wefti_bf16_to_f32((uint16_t)bits), false);
        break;
    case WEFT_DTYPE_I64:
    case WEFT_DTYPE_I32:
    case WEFT_DTYPE_I16:
    case WEFT_DTYPE_I8:
        wefti_text_printf(out, "%" PRId64, number);
        break;
    default:
        wefti_text_printf(out, "%" PRIu64, bits);
        break;
    }
}

static void add_contents(const weft_tensor_desc_t *type, uint32_t max_elements, wefti_text_t *out)
{
    int64_t count = weft_tensor_elem_count(type);
    size_t size = weft_dtype_size_bytes(type->dtype);
    const uint8_t *data = type->data;
    if (!data || count < 0 || size == 0) {
        return;
    }
    wefti_text_add(out, " = ");
    if (count > 0 && memcmp(data, data + size, (size_t)(count - 1) * size) == 0) {
        add_element(type->dtype, data, out);
    } else if (count > max_elements) {
        wefti_text_add(out, "...");
    } else if (count > WEFTI_TEXT_LIST_ELEMENTS) {
        wefti_text_add(out, "x");
        for (size_t i = 0; i < (size_t)count * size; i++) {
            wefti_text_printf(out, "%02x", data[i]);
        }
    } else {
        wefti_text_add(out, "[");
        for (size_t i = 0; i < (size_t)count; i++) {
            wefti_text_add(out, i ? "," : "");
            add_element(type->dtype, data + i * size, out);
        }
        wefti_text_add(out, "]");
    }
}

static void add_list(const weft_attr_t *attr, wefti_text_t *out)
{
    static const char *const names[] = {[WEFT_ATTR_TYPE_FLOATS] = "floats",
                                        [WEFT_ATTR_TYPE_INTS] = "",
                                        [WEFT_ATTR_TYPE_STRINGS] = "strings"};
    wefti_text_printf(out, "%s[", attr->count ? "" : names[attr->type]);
    for (size_t i = 0; i < attr->count; i++) {
        wefti_text_add(out, i ? "," : "");
        if (attr->type == WEFT_ATTR_TYPE_INTS) {
            wefti_text_printf(out, "%" PRId64, attr->ints[i]);
        } else if (attr->type == WEFT_ATTR_TYPE_FLOATS) {
            add_float(out, attr->floats[i]);
        } else {
            add_string(out, attr->strings[i]);
        }
    }
    wefti_text_add(out, "]");
}

static void add_attr(const weft_attr_t *attr, uint32_t max_elements, wefti_text_t *out)
{
    add_name(out, attr->name);
    wefti_text_add(out, "=");
    switch (attr->type) {
    case WEFT_ATTR_TYPE_INT:
        wefti_text_printf(out, "%" PRId64, attr->i);
        break;
    case WEFT_ATTR_TYPE_FLOAT:
        add_float(out, attr->f);
        break;
    case WEFT_ATTR_TYPE_STRING:
        add_string(out, attr->s);
        break;
    case WEFT_ATTR_TYPE_TENSOR:
        add_type(attr->tensor, NULL, out);
        add_contents(attr->tensor, max_elements, out);
        break;
    case WEFT_ATTR_TYPE_INTS:
    case WEFT_ATTR_TYPE_FLOATS:
    case WEFT_ATTR_TYPE_STRINGS:
        add_list(attr, out);
        break;
    }
}

const char *wefti_type_text(const weft_tensor_desc_t *type, char *buffer)
{
    int at = snprintf(buffer, WEFTI_TYPE_TEXT_BYTES, "%s [", weft_dtype_name(type->dtype));
    for (uint32_t d = 0; d < type->rank && d < WEFT_MAX_DIMS; d++) {
        at += snprintf(buffer + at, WEFTI_TYPE_TEXT_BYTES - (size_t)at, "%s%" PRId64,
                       d > 0 ? ", " : "", type->dims[d]);
    }
    snprintf(buffer + at, WEFTI_TYPE_TEXT_BYTES - (size_t)at, "]");
    return buffer;
}

static void add_relation(const wefti_graph_t *graph, const char *name, uint32_t value,
                         wefti_text_t *out)
{
    if (value != WEFTI_NONE) {
        wefti_text_printf(out, " %s(", name);
        add_value_name(graph, value, out);
        wefti_text_add(out, ")");
    }
}

static void add_marks(const wefti_graph_t *graph, const wefti_value_t *value, wefti_text_t *out)
{
    for (int i = 0; i < WEFTI_TEXT_FLAG_COUNT; i++) {
        if (value->flags & WEFTI_TEXT_FLAG(i)) {
            wefti_text_printf(out, " %s", wefti_text_marks[i]);
        }
    }
    add_relation(graph, "grad", value->grad_of, out);
    add_relation(graph, "alias", value->alias_of, out);
}

static void add_operator(const wefti_graph_t *graph, const wefti_node_t *node, wefti_text_t *out)
{
    if (*node->def->domain) {
        add_name(out, node->def->domain);
        wefti_text_add(out, "::");
    }
    add_name(out, node->def->name);
    if (node->version != default_version(graph->registry, node->def->domain, node->def->name)) {
        wefti_text_printf(out, "@%" PRId32, node->version);
    }
}

static void add_node(const wefti_graph_t *graph, uint32_t id, uint32_t max_elements,
                     wefti_text_t *out)
{
    const wefti_node_t *node = &graph->nodes[id];
    if (node->phase != WEFTI_PHASE_FORWARD) {
        wefti_text_printf(out, "%s ", wefti_text_phases[node->phase]);
    }
    for (uint32_t i = 0; i < node->output_count; i++) {
        wefti_text_add(out, i ? ", " : "");
        add_value_name(graph, node->outputs[i], out);
    }
    wefti_text_add(out, node->output_count ? " = " : "");
    add_operator(graph, node, out);
    wefti_text_add(out, "(");
    for (uint32_t i = 0; i < node->input_count; i++) {
        wefti_text_add(out, i ? ", " : "");
        add_value_name(graph, node->inputs[i], out);
    }
    wefti_text_add(out, ")");
    for (uint32_t i = 0; i < node->attr_count; i++) {
        wefti_text_add(out, i ? ", " : " {");
        add_attr(&node->attrs[i], max_elements, out);
    }
    wefti_text_add(out, node->attr_count ? "}" : "");
    for (uint32_t i = 0; i < node->output_count; i++) {
        wefti_text_add(out, i ? ", " : " : ");
        if (node->outputs[i] == WEFTI_NONE) {
            wefti_text_add(out, "-");
        } else {
            add_type(&graph->values[node->outputs[i]].type, NULL, out);
            add_marks(graph, &graph->values[node->outputs[i]], out);
        }
    }
    uint32_t first = node->output_count ? node->outputs[0] : WEFTI_NONE;
    if (first == WEFTI_NONE || strcmp(graph->values[first].name, node->name) != 0) {
        wefti_text_add(out, " as ");
        add_name(out, node->name);
    }
}

void wefti_graph_node_text(const wefti_graph_t *graph, uint32_t node, wefti_text_t *out)
{
    add_node(graph, node, WEFTI_TEXT_LIST_ELEMENTS, out);
}

void wefti_graph_value_text(const wefti_graph_t *graph, uint32_t value, wefti_text_t *out)
{
    wefti_text_printf(out, "%s ", wefti_text_kinds[graph->values[value].kind]);
    add_value_name(graph, value, out);
    wefti_text_add(out, " : ");
    add_type(&graph->values[value].type, graph->values[value].dim_names, out);
}

static void add_root_value(const wefti_graph_t *graph, uint32_t id, uint32_t max_elements,
                           wefti_text_t *out)
{
    const wefti_value_t *value = &graph->values[id];
    wefti_graph_value_text(graph, id, out);
    if (value->kind == WEFTI_VALUE_SCALAR) {
        wefti_text_add(out, " = ");
        add_number(out, value->default_value, true);
    } else {
        add_contents(&value->type, max_elements, out);
    }
    if (value->kind == WEFTI_VALUE_STATE) {
        wefti_text_add(out, " of ");
        add_value_name(graph, value->state_of, out);
    }
    add_marks(graph, value, out);
    wefti_text_add(out, "\n");
}

/* A node goes by its first output, or by its name if it has none. */
static void add_node_name(const wefti_graph_t *graph, uint32_t id, wefti_text_t *out)
{
    const wefti_node_t *node = &graph->nodes[id];
    for (uint32_t i = 0; i < node->output_count; i++) {
        if (node->outputs[i] != WEFTI_NONE) {
            add_value_name(graph, node->outputs[i], out);
            return;
        }
    }
    wefti_text_add(out, "@");
    add_name(out, node->name);
}

static void add_constraint(const wefti_graph_t *graph, const wefti_constraint_t *constraint,
                           wefti_text_t *out)
{
    uint32_t before = wefti_graph_live_node(graph, constraint->before);
    uint32_t after = wefti_graph_live_node(graph, constraint->after);
    if (before != WEFTI_NONE && after != WEFTI_NONE) {
        wefti_text_add(out, "order ");
        add_node_name(graph, before, out);
        wefti_text_add(out, " -> ");
        add_node_name(graph, after, out);
        wefti_text_add(out, "\n");
    }
}

/* "program eval: %a .. %d, %f": the nodes of %a to %d in the order of the graph, and that of %f. */
static void add_program(const wefti_graph_t *graph, const wefti_program_t *program,
                        wefti_text_t *out)
{
    uint32_t at = 0;
    wefti_text_add(out, "program ");
    add_name(out, program->name);
    wefti_text_add(out, ":");
    for (uint32_t i = 0, end; i < program->node_count; i = end) {
        while (at < graph->order_count && graph->order[at] != program->nodes[i]) {
            at++;
        }
        for (end = i; end < program->node_count && at < graph->order_count &&
                      graph->order[at] == program->nodes[end];) {
            end++;
            at++;
        }
        end = end > i ? end : i + 1; /* not in the order: left to the verifier */
        wefti_text_add(out, i > 0 ? ", " : " ");
        add_node_name(graph, program->nodes[i], out);
        if (end > i + 1) {
            wefti_text_add(out, end > i + 2 ? " .. " : ", ");
            add_node_name(graph, program->nodes[end - 1], out);
        }
    }
    wefti_text_add(out, "\n");
}

void wefti_graph_to_text(const wefti_graph_t *graph, uint32_t max_elements, wefti_text_t *out)
{
    wefti_text_add(out, "graph ");
    add_name(out, graph->name);
    wefti_text_printf(out, " opset %" PRId32 " batch %" PRId64 "\n", graph->opset, graph->batch);
    for (uint32_t i = 0; i < graph->value_count; i++) {
        if (graph->values[i].kind != WEFTI_VALUE_NODE) {
            add_root_value(graph, i, max_elements, out);
        }
    }
    for (uint32_t i = 0; i < graph->order_count; i++) {
        add_node(graph, graph->order[i], max_elements, out);
        wefti_text_add(out, "\n");
    }
    for (uint32_t i = 0; i < graph->constraint_count; i++) {
        add_constraint(graph, &graph->constraints[i], out);
    }
    for (uint32_t i = 0; i < graph->output_count; i++) {
        wefti_text_add(out, "output ");
        add_value_name(graph, graph->outputs[i], out);
        wefti_text_add(out, "\n");
    }
    for (uint32_t i = 0; i < graph->program_count; i++) {
        add_program(graph, &graph->programs[i], out);
    }
}
