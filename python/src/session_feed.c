/* SPDX-License-Identifier: Apache-2.0 */
/* What a call of a session was given: looked at before, and copied inside. */
#include "python/src/session.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- types that fit ---- */
typedef struct whole {
    int bits;
    bool is_signed;
} whole_t;

/* bits 0: not an integer. */
static whole_t whole_of(weft_dtype_t dtype)
{
    bool is_signed = dtype == WEFT_DTYPE_I64 || dtype == WEFT_DTYPE_I32 ||
                     dtype == WEFT_DTYPE_I16 || dtype == WEFT_DTYPE_I8;
    bool is_unsigned = dtype == WEFT_DTYPE_U64 || dtype == WEFT_DTYPE_U32 ||
                       dtype == WEFT_DTYPE_U16 || dtype == WEFT_DTYPE_U8;
    return (whole_t){is_signed || is_unsigned ? 8 * (int)weft_dtype_size_bytes(dtype) : 0,
                     is_signed};
}

/* Every value of from is one of to. */
static bool fits(weft_dtype_t from, weft_dtype_t to)
{
    whole_t a = whole_of(from), b = whole_of(to);
    if (from == to) {
        return true;
    }
    return a.bits > 0 && a.bits < b.bits && (b.is_signed || !a.is_signed);
}

static int64_t read_whole(weft_dtype_t dtype, const uint8_t *from)
{
    union {
        int32_t i32;
        uint32_t u32;
        int16_t i16;
        uint16_t u16;
    } value;
    memcpy(&value, from, weft_dtype_size_bytes(dtype));
    switch (dtype) {
    case WEFT_DTYPE_I32:
        return value.i32;
    case WEFT_DTYPE_U32:
        return value.u32;
    case WEFT_DTYPE_I16:
        return value.i16;
    case WEFT_DTYPE_U16:
        return value.u16;
    case WEFT_DTYPE_I8:
        return (int8_t)from[0];
    default:
        return from[0];
    }
}

/* Widens count integers. The narrow end of a number is its value's in any of these types. */
static void widen(weft_dtype_t to, uint8_t *target, weft_dtype_t from, const uint8_t *source,
                  uint64_t count)
{
    size_t wide = weft_dtype_size_bytes(to), narrow = weft_dtype_size_bytes(from);
    for (uint64_t i = 0; i < count; i++) {
        int64_t value = read_whole(from, source + i * narrow);
        int32_t i32 = (int32_t)value;
        int16_t i16 = (int16_t)value;
        const void *bytes = wide == 8   ? (const void *)&value
                            : wide == 4 ? (const void *)&i32
                                        : &i16;
        memcpy(target + i * wide, bytes, wide);
    }
}

/* ---- checks ---- */
static int wrong_type(const char *what, const char *name, const weft_tensor_desc_t *desc,
                      const wp_array_t *array)
{
    PyErr_Format(PyExc_TypeError, "%s '%s': dtype mismatch: expected %s, got %s; convert it first",
                 what, name, wp_dtype_name(desc->dtype), wp_dtype_name(array->dtype));
    return -1;
}

static int wrong_shape(const char *what, const char *name, const weft_tensor_desc_t *desc,
                       const wp_array_t *array, uint32_t most)
{
    char wanted[160], given[160], more[64] = "";
    wp_dims_text(desc->rank, desc->dims, wanted, sizeof wanted);
    wp_dims_text(array->rank, array->dims, given, sizeof given);
    if (most > 1) {
        PyOS_snprintf(more, sizeof more, " (or %u times the first, all micro-batches)",
                      (unsigned)most);
    }
    PyErr_Format(PyExc_ValueError, "%s '%s': shape mismatch: expected %s%s, got %s", what, name,
                 wanted, more, given);
    return -1;
}

/* How many times desc's first dimension array has, 0 when anything else differs. */
static uint32_t batches_of(const weft_tensor_desc_t *desc, const wp_array_t *array, uint32_t most)
{
    uint32_t batches = 1;
    if (desc->rank != array->rank) {
        return 0;
    }
    for (uint32_t d = 0; d < desc->rank; d++) {
        if (d == 0 && array->dims[0] != desc->dims[0] &&
            array->dims[0] == desc->dims[0] * (int64_t)most) {
            batches = most;
        } else if (array->dims[d] != desc->dims[d]) {
            return 0;
        }
    }
    return batches;
}

int wp_check_tensor(const char *what, const char *name, const weft_tensor_desc_t *desc,
                    const wp_array_t *array)
{
    if (array->dtype != desc->dtype) {
        return wrong_type(what, name, desc, array);
    }
    return batches_of(desc, array, 1) == 1 ? 0 : wrong_shape(what, name, desc, array, 1);
}

static int take_array(wp_session_t *self, wp_feed_t *feed, wp_binding_t *input, PyObject *object,
                      uint32_t most)
{
    wp_fed_t *fed = &feed->fed[feed->count];
    if (wp_array_get(self->state, object, input->name, WP_READ | WP_SHAPE, &fed->array) < 0) {
        return -1;
    }
    fed->binding = input;
    feed->count++;
    if (!fits(fed->array.dtype, input->desc.dtype)) {
        return wrong_type("input", input->name, &input->desc, &fed->array);
    }
    uint32_t batches = batches_of(&input->desc, &fed->array, most);
    if (batches == 0) {
        return wrong_shape("input", input->name, &input->desc, &fed->array, most);
    }
    if (feed->batches != 0 && feed->batches != batches) {
        PyErr_Format(PyExc_ValueError,
                     "input '%s' has %u micro-batch%s, the inputs before it have %u", input->name,
                     (unsigned)batches, batches == 1 ? "" : "es", (unsigned)feed->batches);
        return -1;
    }
    feed->batches = batches;
    return 0;
}

static int take_scalar(wp_feed_t *feed, wp_binding_t *scalar, PyObject *object)
{
    wp_fed_t *fed = &feed->fed[feed->count];
    fed->value = PyFloat_AsDouble(object);
    if (fed->value == -1.0 && PyErr_Occurred() != NULL) {
        if (PyErr_ExceptionMatches(PyExc_TypeError)) {
            PyErr_Format(PyExc_TypeError, "scalar '%s' must be a number, not %R", scalar->name,
                         (PyObject *)Py_TYPE(object));
        }
        return -1;
    }
    fed->binding = scalar;
    feed->count++;
    return 0;
}

static bool was_given(const wp_feed_t *feed, const wp_binding_t *binding)
{
    for (size_t i = 0; i < feed->count; i++) {
        if (feed->fed[i].binding == binding) {
            return true;
        }
    }
    return false;
}

/* "image, label" into buffer. */
static const char *names_text(const wp_binding_t *bindings, size_t count, char *buffer,
                              size_t bytes)
{
    size_t used = 0;
    buffer[0] = '\0';
    for (size_t i = 0; i < count && used < bytes; i++) {
        int written =
            snprintf(buffer + used, bytes - used, "%s%s", i > 0 ? ", " : "", bindings[i].name);
        used += written > 0 ? (size_t)written : bytes;
    }
    return buffer;
}

static int take_named(wp_session_t *self, const char *function, wp_feed_t *feed, PyObject *name,
                      PyObject *object, uint32_t most)
{
    wp_binding_t *input = wp_binding_find(self->inputs, self->input_count, name);
    wp_binding_t *scalar = wp_binding_find(self->scalars, self->scalar_count, name);
    if (input == NULL && scalar == NULL) {
        char inputs[300], scalars[200];
        PyErr_Format(PyExc_TypeError,
                     "%s(): unknown name %R: the plan has inputs (%s) and scalars (%s)", function,
                     name, names_text(self->inputs, self->input_count, inputs, sizeof inputs),
                     names_text(self->scalars, self->scalar_count, scalars, sizeof scalars));
        return -1;
    }
    if (input != NULL && was_given(feed, input)) {
        PyErr_Format(PyExc_TypeError, "%s() got input '%s' twice", function, input->name);
        return -1;
    }
    return input != NULL ? take_array(self, feed, input, object, most)
                         : take_scalar(feed, scalar, object);
}

/* All inputs, or none: a forgotten one would be what it was before. */
static int check_given(wp_session_t *self, const char *function, const wp_feed_t *feed,
                       wp_feed_rule_t rule)
{
    if (rule == WP_FEED_SOME || wp_feed_like(feed) == NULL) {
        return 0;
    }
    for (size_t i = 0; i < self->input_count; i++) {
        const wp_binding_t *input = &self->inputs[i];
        if (!was_given(feed, input) &&
            !(rule == WP_FEED_EVAL && input->role == WEFT_BINDING_ROLE_LABEL)) {
            PyErr_Format(PyExc_TypeError, "%s() is missing input '%s'", function, input->name);
            return -1;
        }
    }
    return 0;
}

int wp_feed_get(wp_session_t *self, const char *function, PyObject *const *args, Py_ssize_t count,
                PyObject *keywords, wp_feed_rule_t rule, uint32_t most, wp_feed_t *out)
{
    Py_ssize_t named = keywords != NULL ? PyTuple_Size(keywords) : 0;
    int status = 0;
    *out = (wp_feed_t){.fed = NULL};
    if ((size_t)count > self->input_count) {
        PyErr_Format(PyExc_TypeError, "%s() takes %zu input%s but %zd were given", function,
                     self->input_count, self->input_count == 1 ? "" : "s", count);
        return -1;
    }
    if (count + named > 0) {
        out->fed = PyMem_Calloc((size_t)(count + named), sizeof *out->fed);
        if (out->fed == NULL) {
            PyErr_NoMemory();
            return -1;
        }
    }
    for (Py_ssize_t i = 0; i < count && status == 0; i++) {
        status = take_array(self, out, &self->inputs[i], args[i], most);
    }
    for (Py_ssize_t i = 0; i < named && status == 0; i++) {
        status =
            take_named(self, function, out, PyTuple_GetItem(keywords, i), args[count + i], most);
    }
    if (status == 0) {
        status = check_given(self, function, out, rule);
    }
    if (status < 0) {
        wp_feed_release(out);
    }
    out->batches = out->batches > 0 ? out->batches : 1;
    return status;
}

const wp_array_t *wp_feed_like(const wp_feed_t *feed)
{
    for (size_t i = 0; i < feed->count; i++) {
        if (feed->fed[i].array.object != NULL) {
            return &feed->fed[i].array;
        }
    }
    return NULL;
}

void wp_feed_release(wp_feed_t *feed)
{
    for (size_t i = 0; i < feed->count; i++) {
        wp_array_release(&feed->fed[i].array);
    }
    PyMem_Free(feed->fed);
    *feed = (wp_feed_t){.fed = NULL};
}

/* ---- into the inputs ---- */
static weft_status_t copy_array(wp_session_t *self, const wp_fed_t *fed, uint32_t index)
{
    const wp_binding_t *input = fed->binding;
    const wp_array_t *array = &fed->array;
    size_t bytes = input->count * weft_dtype_size_bytes(array->dtype);
    const uint8_t *from = (const uint8_t *)array->data + index * bytes;
    if (input->count == 0) {
        return WEFT_OK;
    }
    if (array->dtype == input->desc.dtype) {
        if (input->memory == NULL) {
            return weft_session_set_input(self->session, input->name, from, bytes);
        }
        if (from != input->memory) { /* else it was written where it belongs */
            memmove(input->memory, from, bytes);
        }
        return WEFT_OK;
    }
    if (input->memory != NULL) {
        widen(input->desc.dtype, input->memory, array->dtype, from, input->count);
        return WEFT_OK;
    }
    uint8_t *wide = malloc(input->bytes);
    if (wide == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    widen(input->desc.dtype, wide, array->dtype, from, input->count);
    weft_status_t status = weft_session_set_input(self->session, input->name, wide, input->bytes);
    free(wide);
    return status;
}

weft_status_t wp_feed_copy(wp_session_t *self, const wp_feed_t *feed, uint32_t index)
{
    weft_status_t status = WEFT_OK;
    for (size_t i = 0; i < feed->count && status >= 0; i++) {
        const wp_fed_t *fed = &feed->fed[i];
        if (fed->binding->role != WEFT_BINDING_ROLE_SCALAR) {
            status = copy_array(self, fed, index);
        } else if (index == 0) {
            status = weft_session_set_scalar(self->session, fed->binding->name, fed->value);
        }
    }
    return status;
}
