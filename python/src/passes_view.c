/* SPDX-License-Identifier: Apache-2.0 */
/* A flat view of Python's as a weft_graph_view_t. Producers and users are found here, so they
 * always agree with inputs and outputs. */
#include "python/src/passes.h"

#include <stdio.h>
#include <string.h>

/* Largest tensor: sums of a graph's tensors stay below 2^64. */
#define MOST_BYTES (UINT64_MAX >> 12)

/* The order of weft/passes.py, View._flat. */
enum {
    OPS,          /* str per op: "AllReduce" and others of domain weft as "weft.AllReduce" */
    OP_NAMES,     /* or None */
    EFFECTS,      /* or None: those of the definition */
    GROUPS,       /* or None: 0 */
    REDUCTIONS,   /* or None: sum */
    INPUT_BEGIN,  /* [ops + 1] into INPUTS */
    INPUTS,       /* value ids, -1: absent */
    OUTPUT_BEGIN, /* [ops + 1] into OUTPUTS */
    OUTPUTS,
    VALUE_BYTES,
    VALUE_NAMES, /* or None */
    DTYPES,      /* or None: float32 */
    GRAD_OF,     /* or None; -1: no gradient */
    ORDER,       /* or None: 0, 1, .. */
    EDGES,       /* or None; pairs */
    FIELDS,
};

typedef struct reader {
    wp_pass_memory_t *memory;
    PyObject *fields[FIELDS];
    weft_graph_view_t *view;
    weft_view_value_t *values;
    weft_view_op_t *ops;
} reader_t;

static bool given(const reader_t *reader, int field)
{
    return reader->fields[field] != Py_None;
}

/* Buffer field as 32-bit ids; -1 as UINT32_MAX. */
static uint32_t *ids(reader_t *reader, int field, const char *name, bool absent, size_t *count)
{
    uint64_t *wide =
        wp_pass_u64(reader->memory, reader->fields[field], name, UINT32_MAX - 1, absent, count);
    uint32_t *out = wide != NULL ? wp_pass_take(reader->memory, *count, sizeof *out) : NULL;
    for (size_t i = 0; out != NULL && i < *count; i++) {
        out[i] = (uint32_t)wide[i];
    }
    return out;
}

/* The same, of a length that is known. */
static uint32_t *ids_of(reader_t *reader, int field, const char *name, bool absent, size_t expected)
{
    size_t count = 0;
    uint32_t *out = ids(reader, field, name, absent, &count);
    return out != NULL && wp_pass_length(name, count, expected) == 0 ? out : NULL;
}

static const char **names_of(reader_t *reader, int field, const char *name, const char *kind,
                             size_t expected)
{
    size_t count = expected;
    const char **out = given(reader, field)
                           ? wp_pass_texts(reader->memory, reader->fields[field], name, &count)
                           : wp_pass_take(reader->memory, count, sizeof *out);
    if (out == NULL || wp_pass_length(name, count, expected) < 0) {
        return NULL;
    }
    for (size_t i = 0; i < count && !given(reader, field); i++) {
        char *text = wp_pass_take(reader->memory, 24, 1);
        if (text == NULL) {
            return NULL;
        }
        snprintf(text, 24, "%s %zu", kind, i);
        out[i] = text;
    }
    return out;
}

/* ---- operators ---- */
static const weft_registry_t *registry_of(wp_state_t *state)
{
    if (state->registry == NULL) {
        weft_status_t status = weft_registry_create(NULL, &state->registry);
        if (status < 0) {
            wp_raise(state, status);
        }
    }
    return state->registry;
}

static const weft_op_def_t *definition(reader_t *reader, const char *name)
{
    wp_state_t *state = reader->memory->state;
    if (strncmp(name, "weft.", 5) == 0) {
        const weft_registry_t *registry = registry_of(state);
        const weft_op_def_t *found =
            registry != NULL ? weft_registry_find_op(registry, "weft", name + 5, 1) : NULL;
        if (registry != NULL && found == NULL) {
            PyErr_Format(PyExc_ValueError, "ops: Weft has no operator %s", name + 5);
        }
        return found;
    }
    weft_op_def_t *def = wp_pass_take(reader->memory, 1, sizeof *def);
    if (def != NULL) {
        def->domain = "host";
        def->name = name;
        memset(def->in_place, -1, sizeof def->in_place);
    }
    return def;
}

static int read_reductions(reader_t *reader)
{
    PyObject *list = PySequence_List(reader->fields[REDUCTIONS]);
    Py_ssize_t count = list != NULL ? PyList_Size(list) : -1;
    int status =
        count >= 0 ? wp_pass_length("reductions", (size_t)count, reader->view->op_count) : -1;
    for (uint32_t i = 0; status == 0 && i < reader->view->op_count; i++) {
        status = wp_reduction(PyList_GetItem(list, i), &reader->ops[i].reduction);
    }
    Py_XDECREF(list);
    return status;
}

/* Counts of one side: begin[i + 1] - begin[i], checked against the length of the list of ids. */
static uint32_t *read_side(reader_t *reader, int begin_field, const char *begin_name, int field,
                           const char *name, uint32_t **out_ids)
{
    size_t count = 0;
    uint32_t ops = reader->view->op_count;
    uint32_t *begin = ids_of(reader, begin_field, begin_name, false, (size_t)ops + 1);
    *out_ids = begin != NULL ? ids(reader, field, name, true, &count) : NULL;
    if (*out_ids == NULL) {
        return NULL;
    }
    for (uint32_t i = 0; i < ops; i++) {
        if (begin[i] > begin[i + 1]) {
            PyErr_Format(PyExc_ValueError, "%s[%u]: %u is followed by %u: must not fall",
                         begin_name, i, begin[i], begin[i + 1]);
            return NULL;
        }
    }
    if (begin[0] != 0 || begin[ops] != count) {
        PyErr_Format(PyExc_ValueError, "%s goes from %u to %u, expected from 0 to %zu", begin_name,
                     begin[0], begin[ops], count);
        return NULL;
    }
    return begin;
}

static int read_ops(reader_t *reader)
{
    size_t count = 0;
    wp_pass_memory_t *memory = reader->memory;
    const char **kinds = wp_pass_texts(memory, reader->fields[OPS], "ops", &count);
    reader->ops = kinds != NULL ? wp_pass_take(memory, count, sizeof *reader->ops) : NULL;
    if (reader->ops == NULL) {
        return -1;
    }
    reader->view->op_count = (uint32_t)count;
    reader->view->ops = reader->ops;
    const char **names = names_of(reader, OP_NAMES, "op_names", "op", count);
    uint32_t *effects = NULL, *groups = NULL, *inputs, *outputs;
    uint32_t *input_begin =
        names != NULL ? read_side(reader, INPUT_BEGIN, "input_begin", INPUTS, "inputs", &inputs)
                      : NULL;
    uint32_t *output_begin = input_begin != NULL ? read_side(reader, OUTPUT_BEGIN, "output_begin",
                                                             OUTPUTS, "outputs", &outputs)
                                                 : NULL;
    if (output_begin == NULL ||
        (given(reader, EFFECTS) &&
         (effects = ids_of(reader, EFFECTS, "effects", false, count)) == NULL) ||
        (given(reader, GROUPS) &&
         (groups = ids_of(reader, GROUPS, "groups", false, count)) == NULL)) {
        return -1;
    }
    reader->view->op_inputs = inputs;
    reader->view->op_outputs = outputs;
    for (size_t i = 0; i < count; i++) {
        const weft_op_def_t *def = definition(reader, kinds[i]);
        if (def == NULL) {
            return -1;
        }
        reader->ops[i] = (weft_view_op_t){
            .name = names[i],
            .def = def,
            .effects = def->effects | (effects != NULL ? effects[i] : 0),
            .group = groups != NULL ? groups[i] : 0,
            .first_input = input_begin[i],
            .input_count = input_begin[i + 1] - input_begin[i],
            .first_output = output_begin[i],
            .output_count = output_begin[i + 1] - output_begin[i],
        };
    }
    return given(reader, REDUCTIONS) ? read_reductions(reader) : 0;
}

/* ---- values ---- */
static int read_dtypes(reader_t *reader)
{
    PyObject *list = PySequence_List(reader->fields[DTYPES]);
    Py_ssize_t count = list != NULL ? PyList_Size(list) : -1;
    int status =
        count >= 0 ? wp_pass_length("dtypes", (size_t)count, reader->view->value_count) : -1;
    for (uint32_t i = 0; status == 0 && i < reader->view->value_count; i++) {
        status = wp_dtype(reader->memory->state, PyList_GetItem(list, i), &reader->values[i].dtype);
    }
    Py_XDECREF(list);
    return status;
}

static int read_values(reader_t *reader)
{
    size_t count = 0;
    uint32_t *grad_of = NULL;
    wp_pass_memory_t *memory = reader->memory;
    uint64_t *bytes =
        wp_pass_u64(memory, reader->fields[VALUE_BYTES], "value_bytes", MOST_BYTES, false, &count);
    reader->values = bytes != NULL ? wp_pass_take(memory, count, sizeof *reader->values) : NULL;
    if (reader->values == NULL) {
        return -1;
    }
    reader->view->value_count = (uint32_t)count;
    reader->view->values = reader->values;
    const char **names = names_of(reader, VALUE_NAMES, "value_names", "value", count);
    if (names == NULL || (given(reader, GRAD_OF) &&
                          (grad_of = ids_of(reader, GRAD_OF, "grad_of", true, count)) == NULL)) {
        return -1;
    }
    for (size_t i = 0; i < count; i++) {
        reader->values[i] =
            (weft_view_value_t){.name = names[i],
                                .dtype = WEFT_DTYPE_F32,
                                .bytes = bytes[i],
                                .producer = UINT32_MAX,
                                .grad_of = grad_of != NULL ? grad_of[i] : UINT32_MAX};
    }
    return given(reader, DTYPES) ? read_dtypes(reader) : 0;
}

/* ---- order ---- */
static int read_order(reader_t *reader)
{
    weft_graph_view_t *view = reader->view;
    size_t count = view->op_count;
    uint32_t *order = given(reader, ORDER) ? ids(reader, ORDER, "order", false, &count)
                                           : wp_pass_take(reader->memory, count, sizeof *order);
    if (order == NULL) {
        return -1;
    }
    for (size_t i = 0; i < count; i++) {
        order[i] = given(reader, ORDER) ? order[i] : (uint32_t)i;
        if (order[i] >= view->op_count) {
            PyErr_Format(PyExc_ValueError, "order[%zu]: op %u does not exist: there are %u", i,
                         order[i], view->op_count);
            return -1;
        }
        reader->ops[order[i]].present = 1;
    }
    view->order = order;
    view->order_count = (uint32_t)count;
    if (given(reader, EDGES)) {
        uint32_t *edges = ids(reader, EDGES, "edges", false, &count);
        if (edges == NULL || count % 2 != 0) {
            return edges != NULL ? wp_pass_length("edges", count, count + 1) : -1;
        }
        view->edges = edges;
        view->edge_count = (uint32_t)(count / 2);
    }
    return 0;
}

static int bad_value(const char *side, uint32_t op, uint32_t value, const char *fault)
{
    PyErr_Format(PyExc_ValueError, "%s of op %u: value %u %s", side, op, value, fault);
    return -1;
}

static int read_producers(reader_t *reader)
{
    const weft_graph_view_t *view = reader->view;
    for (uint32_t i = 0; i < view->op_count; i++) {
        const weft_view_op_t *op = &view->ops[i];
        for (uint32_t k = 0; op->present && k < op->output_count; k++) {
            uint32_t value = view->op_outputs[op->first_output + k];
            if (value == UINT32_MAX) {
                continue;
            }
            if (value >= view->value_count || reader->values[value].producer != UINT32_MAX) {
                return bad_value("outputs", i, value,
                                 value >= view->value_count ? "does not exist"
                                                            : "has two producers");
            }
            reader->values[value].producer = i;
        }
    }
    return 0;
}

/* Users in the order of execution. */
static int read_users(reader_t *reader)
{
    weft_graph_view_t *view = reader->view;
    uint32_t *users, *next, at = 0;
    for (int fill = 0; fill < 2; fill++) {
        for (uint32_t i = 0; fill && i < view->value_count; i++) {
            reader->values[i].first_user = at;
            at += reader->values[i].user_count;
        }
        users = wp_pass_take(reader->memory, at, sizeof *users);
        next = wp_pass_take(reader->memory, view->value_count, sizeof *next);
        if (users == NULL || next == NULL) {
            return -1;
        }
        for (uint32_t i = 0; i < view->order_count; i++) {
            const weft_view_op_t *op = &view->ops[view->order[i]];
            for (uint32_t k = 0; k < op->input_count; k++) {
                uint32_t value = view->op_inputs[op->first_input + k];
                if (value == UINT32_MAX) {
                    continue;
                }
                if (value >= view->value_count) {
                    return bad_value("inputs", view->order[i], value, "does not exist");
                }
                if (fill) {
                    users[reader->values[value].first_user + next[value]++] = view->order[i];
                } else {
                    reader->values[value].user_count++;
                }
            }
        }
    }
    view->users = users;
    return 0;
}

/* An op that stands in the order twice would have its users counted twice. */
static int check_order(const reader_t *reader)
{
    const weft_graph_view_t *view = reader->view;
    uint8_t *seen = wp_pass_take(reader->memory, view->op_count, 1);
    for (uint32_t i = 0; seen != NULL && i < view->order_count; i++) {
        if (seen[view->order[i]]++ != 0) {
            PyErr_Format(PyExc_ValueError, "order[%u]: op %u is a duplicate", i, view->order[i]);
            return -1;
        }
    }
    return seen != NULL ? 0 : -1;
}

int wp_pass_view(wp_pass_memory_t *memory, PyObject *flat, weft_graph_view_t *out)
{
    reader_t reader = {.memory = memory, .view = out};
    if (PyTuple_Size(flat) != FIELDS) {
        PyErr_Format(PyExc_TypeError, "view has %zd fields, expected %d", PyTuple_Size(flat),
                     FIELDS);
        return -1;
    }
    for (int i = 0; i < FIELDS; i++) {
        reader.fields[i] = PyTuple_GetItem(flat, i);
    }
    return read_ops(&reader) < 0 || read_values(&reader) < 0 || read_order(&reader) < 0 ||
                   check_order(&reader) < 0 || read_producers(&reader) < 0 ||
                   read_users(&reader) < 0
               ? -1
               : 0;
}
