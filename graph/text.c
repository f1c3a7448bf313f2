/* SPDX-License-Identifier: Apache-2.0 */
/* The text form: for people and for golden tests. Names come from files, so odd bytes are escaped.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "graph/ir.h"

#define ELEMENTS_SHOWN 8

static const char *const kind_names[] = {"node", "input", "param", "const", "state", "scalar"};

static void add_name(wefti_text_t *out, const char *name)
{
    for (const unsigned char *at = (const unsigned char *)name; *at; at++) {
        if (*at <= ' ' || *at == '\\' || *at == 127) {
            wefti_text_printf(out, "\\x%02x", *at);
        } else {
            wefti_text_add_bytes(out, at, 1);
        }
    }
}

static void add_value_name(const wefti_graph_t *graph, uint32_t value, wefti_text_t *out)
{
    if (value == WEFTI_NONE) {
        wefti_text_add(out, "-");
        return;
    }
    wefti_text_add(out, "%");
    add_name(out, graph->values[value].name);
}

static void add_type(const wefti_value_t *value, wefti_text_t *out)
{
    const weft_tensor_desc_t *type = &value->type;
    if (type->dtype == WEFT_DTYPE_NONE) {
        wefti_text_add(out, "?");
        return;
    }
    wefti_text_printf(out, "%s[", weft_dtype_name(type->dtype));
    for (uint32_t i = 0; i < type->rank && i < WEFT_MAX_DIMS; i++) {
        wefti_text_add(out, i ? "," : "");
        if (type->dims[i] >= 0) {
            wefti_text_printf(out, "%" PRId64, type->dims[i]);
        } else if (value->dim_names[i]) {
            add_name(out, value->dim_names[i]);
        } else {
            wefti_text_add(out, "?");
        }
    }
    wefti_text_add(out, "]");
    if (type->layout == WEFT_LAYOUT_CHANNELS_LAST) {
        wefti_text_add(out, "nhwc");
    }
}

static void add_attr(const weft_attr_t *attr, wefti_text_t *out)
{
    add_name(out, attr->name);
    wefti_text_add(out, "=");
    switch (attr->type) {
    case WEFT_ATTR_INT:
        wefti_text_printf(out, "%" PRId64, attr->i);
        break;
    case WEFT_ATTR_FLOAT:
        wefti_text_printf(out, "%.9g", (double)attr->f);
        break;
    case WEFT_ATTR_STRING:
        wefti_text_add(out, "\"");
        add_name(out, attr->s);
        wefti_text_add(out, "\"");
        break;
    case WEFT_ATTR_TENSOR:
        wefti_text_add(out, "tensor");
        break;
    case WEFT_ATTR_INTS:
    case WEFT_ATTR_FLOATS:
    case WEFT_ATTR_STRINGS:
        wefti_text_add(out, "[");
        for (size_t i = 0; i < attr->count; i++) {
            wefti_text_add(out, i ? "," : "");
            if (attr->type == WEFT_ATTR_INTS) {
                wefti_text_printf(out, "%" PRId64, attr->ints[i]);
            } else if (attr->type == WEFT_ATTR_FLOATS) {
                wefti_text_printf(out, "%.9g", (double)attr->floats[i]);
            } else {
                add_name(out, attr->strings[i]);
            }
        }
        wefti_text_add(out, "]");
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

/* Small integer constants, which decide shapes, are shown. */
static void add_contents(const weft_tensor_desc_t *type, wefti_text_t *out)
{
    int64_t count = weft_tensor_elem_count(type);
    if (type->dtype != WEFT_DTYPE_I64 || !type->data || count < 0 || count > ELEMENTS_SHOWN) {
        return;
    }
    wefti_text_add(out, " = [");
    for (int64_t i = 0; i < count; i++) {
        int64_t element;
        memcpy(&element, (const uint8_t *)type->data + (size_t)i * sizeof(element),
               sizeof(element));
        wefti_text_printf(out, "%s%" PRId64, i ? "," : "", element);
    }
    wefti_text_add(out, "]");
}

static void add_root_value(const wefti_graph_t *graph, uint32_t id, wefti_text_t *out)
{
    const wefti_value_t *value = &graph->values[id];
    wefti_text_printf(out, "%s ", kind_names[value->kind]);
    add_value_name(graph, id, out);
    wefti_text_add(out, " : ");
    add_type(value, out);
    if (value->kind == WEFTI_VALUE_CONST) {
        add_contents(&value->type, out);
    } else if (value->kind == WEFTI_VALUE_SCALAR) {
        wefti_text_printf(out, " = %.9g", value->default_value);
    } else if (value->kind == WEFTI_VALUE_STATE) {
        wefti_text_add(out, " of ");
        add_value_name(graph, value->state_of, out);
    }
    wefti_text_add(out, "\n");
}

static void add_output_type(const wefti_graph_t *graph, const wefti_value_t *value,
                            wefti_text_t *out)
{
    add_type(value, out);
    wefti_text_add(out, value->flags & WEFTI_VALUE_PERSISTENT ? " persistent" : "");
    if (value->alias_of != WEFTI_NONE) {
        wefti_text_add(out, " as ");
        add_value_name(graph, value->alias_of, out);
    }
}

static void add_node(const wefti_graph_t *graph, const wefti_node_t *node, wefti_text_t *out)
{
    for (uint32_t i = 0; i < node->output_count; i++) {
        wefti_text_add(out, i ? ", " : "");
        add_value_name(graph, node->outputs[i], out);
    }
    wefti_text_printf(out, "%s%s%s%s(", node->output_count ? " = " : "", node->def->domain,
                      *node->def->domain ? "::" : "", node->def->name);
    for (uint32_t i = 0; i < node->input_count; i++) {
        wefti_text_add(out, i ? ", " : "");
        add_value_name(graph, node->inputs[i], out);
    }
    wefti_text_add(out, ")");
    for (uint32_t i = 0; i < node->attr_count; i++) {
        wefti_text_add(out, i ? ", " : " {");
        add_attr(&node->attrs[i], out);
    }
    wefti_text_add(out, node->attr_count ? "}" : "");
    for (uint32_t i = 0; i < node->output_count; i++) {
        wefti_text_add(out, i ? ", " : " : ");
        if (node->outputs[i] == WEFTI_NONE) {
            wefti_text_add(out, "-");
        } else {
            add_output_type(graph, &graph->values[node->outputs[i]], out);
        }
    }
}

/* A node of a program goes by its first output, or by its name if it has none. */
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

/* "program eval: %a .. %d, %f": the nodes of %a to %d in the order of the graph, and that of %f. */
static void add_program(const wefti_graph_t *graph, const wefti_program_t *program,
                        wefti_text_t *out)
{
    uint32_t at = 0;
    wefti_text_printf(out, "program %s:", program->name);
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

void wefti_graph_node_text(const wefti_graph_t *graph, uint32_t node, wefti_text_t *out)
{
    add_node(graph, &graph->nodes[node], out);
}

void wefti_graph_value_text(const wefti_graph_t *graph, uint32_t value, wefti_text_t *out)
{
    wefti_text_printf(out, "%s ", kind_names[graph->values[value].kind]);
    add_value_name(graph, value, out);
    wefti_text_add(out, " : ");
    add_type(&graph->values[value], out);
}

void wefti_graph_to_text(const wefti_graph_t *graph, wefti_text_t *out)
{
    wefti_text_add(out, "graph ");
    add_name(out, graph->name);
    wefti_text_printf(out, " opset %d batch %" PRId64 "\n", graph->opset, graph->batch);
    for (uint32_t i = 0; i < graph->value_count; i++) {
        if (graph->values[i].kind != WEFTI_VALUE_NODE) {
            add_root_value(graph, i, out);
        }
    }
    for (uint32_t i = 0; i < graph->order_count; i++) {
        add_node(graph, &graph->nodes[graph->order[i]], out);
        wefti_text_add(out, "\n");
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
