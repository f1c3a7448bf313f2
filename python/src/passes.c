/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft._core._pass: one compiler pass on a flat view, for weft/passes.py, which has the classes.
 *
 *   (lists and buffers of Python) --> copies, checked --> weft_graph_view_t --> pass, without the
 *   GIL --> edits as tuples
 *
 * Everything is copied before it is checked, so other threads cannot change it afterwards. Names
 * are copied too.
 */
#include "python/src/passes.h"

#include <string.h>

/* ---- memory of one call ---- */
void *wp_pass_take(wp_pass_memory_t *memory, size_t count, size_t size)
{
    wp_pass_block_t *block = NULL;
    if (size == 0 || count <= (SIZE_MAX - sizeof *block) / size) {
        block = PyMem_Calloc(1, sizeof *block + count * size);
    }
    if (block == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    block->next = memory->first;
    memory->first = block;
    return block + 1;
}

static void release(wp_pass_memory_t *memory)
{
    while (memory->first != NULL) {
        wp_pass_block_t *next = memory->first->next;
        PyMem_Free(memory->first);
        memory->first = next;
    }
}

/* ---- numbers ---- */

/* Element i as an integer: its magnitude, and whether it is below 0. */
static uint64_t element(const wp_array_t *array, size_t i, bool *negative)
{
    int64_t value = 0;
    *negative = false;
    switch (array->dtype) {
    case WEFT_DTYPE_U8:
    case WEFT_DTYPE_BOOL:
        return ((const uint8_t *)array->data)[i];
    case WEFT_DTYPE_U16:
        return ((const uint16_t *)array->data)[i];
    case WEFT_DTYPE_U32:
        return ((const uint32_t *)array->data)[i];
    case WEFT_DTYPE_U64:
        return ((const uint64_t *)array->data)[i];
    case WEFT_DTYPE_I8:
        value = ((const int8_t *)array->data)[i];
        break;
    case WEFT_DTYPE_I16:
        value = ((const int16_t *)array->data)[i];
        break;
    case WEFT_DTYPE_I32:
        value = ((const int32_t *)array->data)[i];
        break;
    default:
        value = ((const int64_t *)array->data)[i];
        break;
    }
    *negative = value < 0;
    return value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
}

static bool is_integer(weft_dtype_t dtype)
{
    return dtype == WEFT_DTYPE_U8 || dtype == WEFT_DTYPE_U16 || dtype == WEFT_DTYPE_U32 ||
           dtype == WEFT_DTYPE_U64 || dtype == WEFT_DTYPE_I8 || dtype == WEFT_DTYPE_I16 ||
           dtype == WEFT_DTYPE_I32 || dtype == WEFT_DTYPE_I64 || dtype == WEFT_DTYPE_BOOL;
}

static uint64_t *copy_numbers(wp_pass_memory_t *memory, const wp_array_t *array, const char *name,
                              uint64_t most, bool absent)
{
    uint64_t *out = wp_pass_take(memory, array->count, sizeof *out);
    for (size_t i = 0; out != NULL && i < array->count; i++) {
        bool negative;
        uint64_t value = element(array, i, &negative);
        if (absent && negative && value == 1) {
            out[i] = UINT64_MAX;
        } else if (negative || value > most) {
            PyErr_Format(PyExc_ValueError,
                         "%s[%zu]: %s%llu is out of range: must be between %s%llu", name, i,
                         negative ? "-" : "", (unsigned long long)value,
                         absent ? "-1 and " : "0 and ", (unsigned long long)most);
            out = NULL;
        } else {
            out[i] = value;
        }
    }
    return out;
}

uint64_t *wp_pass_u64(wp_pass_memory_t *memory, PyObject *object, const char *name, uint64_t most,
                      bool absent, size_t *out_count)
{
    wp_array_t array = {0};
    uint64_t *out = NULL;
    if (wp_array_get(memory->state, object, name, WP_READ, &array) < 0) {
        return NULL;
    }
    if (array.count > 0 && !is_integer(array.dtype)) {
        PyErr_Format(PyExc_TypeError, "%s must have integers, not %s", name,
                     wp_dtype_name(array.dtype));
    } else if (array.count > WP_PASS_MOST) {
        PyErr_Format(PyExc_ValueError, "%s is too long: %llu elements", name,
                     (unsigned long long)array.count);
    } else {
        *out_count = (size_t)array.count;
        out = copy_numbers(memory, &array, name, most, absent);
    }
    wp_array_release(&array);
    return out;
}

int wp_pass_length(const char *name, size_t count, size_t expected)
{
    if (count != expected) {
        PyErr_Format(PyExc_ValueError, "%s has %zu elements, expected %zu", name, count, expected);
        return -1;
    }
    return 0;
}

/* ---- words ---- */
const char *wp_pass_text(wp_pass_memory_t *memory, PyObject *object, const char *name)
{
    Py_ssize_t length = 0;
    if (!PyUnicode_Check(object)) {
        PyErr_Format(PyExc_TypeError, "%s must be str, not %R", name, (PyObject *)Py_TYPE(object));
        return NULL;
    }
    const char *text = PyUnicode_AsUTF8AndSize(object, &length);
    char *copy = text != NULL ? wp_pass_take(memory, (size_t)length + 1, 1) : NULL;
    if (copy != NULL && strlen(text) != (size_t)length) {
        PyErr_Format(PyExc_ValueError, "%s: %R has a null character", name, object);
        return NULL;
    }
    return copy != NULL ? memcpy(copy, text, (size_t)length) : NULL;
}

const char **wp_pass_texts(wp_pass_memory_t *memory, PyObject *object, const char *name,
                           size_t *out_count)
{
    PyObject *list = PySequence_List(object);
    Py_ssize_t count = list != NULL ? PyList_Size(list) : -1;
    const char **out = count >= 0 ? wp_pass_take(memory, (size_t)count, sizeof *out) : NULL;
    if (count > WP_PASS_MOST) {
        PyErr_Format(PyExc_ValueError, "%s is too long: %zd elements", name, count);
        out = NULL;
    }
    for (Py_ssize_t i = 0; out != NULL && i < count; i++) {
        out[i] = wp_pass_text(memory, PyList_GetItem(list, i), name);
        out = out[i] != NULL ? out : NULL;
    }
    Py_XDECREF(list);
    *out_count = out != NULL ? (size_t)count : 0;
    return out;
}

/* ---- edits to tuples ---- */
static PyObject *id_object(uint32_t id)
{
    return id != UINT32_MAX ? PyLong_FromUnsignedLong(id) : Py_NewRef(Py_None);
}

static PyObject *edit_tuple(const weft_edit_t *edit)
{
    PyObject *members = PyTuple_New((Py_ssize_t)edit->member_count);
    for (uint32_t i = 0; members != NULL && i < edit->member_count; i++) {
        PyObject *member = id_object(edit->members[i]);
        if (member == NULL || PyTuple_SetItem(members, i, member) < 0) {
            Py_CLEAR(members);
        }
    }
    return members == NULL ? NULL
                           : Py_BuildValue("(iNzsINNNzI)", (int)edit->kind, id_object(edit->value),
                                           edit->op_name, weft_reduction_name(edit->reduction),
                                           edit->group, members, id_object(edit->op_a),
                                           id_object(edit->op_b), edit->text, edit->parts);
}

PyObject *wp_pass_edits(const weft_edit_list_t *edits)
{
    size_t count = weft_edit_list_count(edits);
    PyObject *list = PyList_New((Py_ssize_t)count);
    for (size_t i = 0; list != NULL && i < count; i++) {
        PyObject *edit = edit_tuple(weft_edit_list_get(edits, i));
        if (edit == NULL || PyList_SetItem(list, (Py_ssize_t)i, edit) < 0) {
            Py_CLEAR(list);
        }
    }
    return list;
}

/* ---- the function ---- */
static PyObject *run(PyObject *module, PyObject *args)
{
    wp_pass_memory_t memory = {.state = wp_state_of(module)};
    weft_graph_view_t view = WEFT_GRAPH_VIEW_INIT;
    const char *name;
    PyObject *flat, *params, *result = NULL;
    if (!PyArg_ParseTuple(args, "sO!O!:_pass", &name, &PyTuple_Type, &flat, &PyTuple_Type,
                          &params)) {
        return NULL;
    }
    if (wp_pass_view(&memory, flat, &view) == 0) {
        result = wp_pass_run(&memory, name, &view, params);
    }
    release(&memory);
    return result;
}

static PyMethodDef functions[] = {
    {"_pass", run, METH_VARARGS, "_pass(name, view, params)\n--\n\nFor weft.passes."},
    {NULL, NULL, 0, NULL},
};

int wp_passes_init(PyObject *module, wp_state_t *state)
{
    (void)state;
    return PyModule_AddFunctions(module, functions);
}
