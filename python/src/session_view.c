/* SPDX-License-Identifier: Apache-2.0 */
/* Arrays over inputs' own memory, and what keeps that as long as they are about. */
#include "python/src/array.h"
#include "python/src/session.h"

typedef struct view {
    PyObject_HEAD wp_session_t *session; /* owned */
    const wp_binding_t *input;
    Py_ssize_t dims[WP_MAX_DIMS], strides[WP_MAX_DIMS];
} view_t;

/* Formats of the struct module; it has none for bfloat16, whose bits go as uint16. */
static const char *format_of(weft_dtype_t dtype)
{
    static const char *const formats[] = {
        [WEFT_DTYPE_F64] = "d",  [WEFT_DTYPE_F32] = "f", [WEFT_DTYPE_F16] = "e",
        [WEFT_DTYPE_BF16] = "H", [WEFT_DTYPE_I64] = "q", [WEFT_DTYPE_I32] = "i",
        [WEFT_DTYPE_I16] = "h",  [WEFT_DTYPE_I8] = "b",  [WEFT_DTYPE_U64] = "Q",
        [WEFT_DTYPE_U32] = "I",  [WEFT_DTYPE_U16] = "H", [WEFT_DTYPE_U8] = "B",
        [WEFT_DTYPE_BOOL] = "?",
    };
    return formats[dtype];
}

static int view_buffer(PyObject *object, Py_buffer *out, int flags)
{
    view_t *self = (view_t *)object;
    const weft_tensor_desc_t *desc = &self->input->desc;
    out->buf = self->input->memory;
    out->obj = Py_NewRef(object);
    out->len = (Py_ssize_t)self->input->bytes;
    out->readonly = 0;
    out->itemsize = (Py_ssize_t)weft_dtype_size_bytes(desc->dtype);
    out->format =
        (flags & PyBUF_FORMAT) == PyBUF_FORMAT ? (char *)(uintptr_t)format_of(desc->dtype) : NULL;
    out->ndim = (int)desc->rank;
    out->shape = (flags & PyBUF_ND) == PyBUF_ND ? self->dims : NULL;
    out->strides = (flags & PyBUF_STRIDES) == PyBUF_STRIDES ? self->strides : NULL;
    out->suboffsets = NULL;
    out->internal = NULL;
    return 0;
}

static void view_dealloc(PyObject *object)
{
    view_t *self = (view_t *)object;
    PyTypeObject *type = Py_TYPE(object);
    wp_session_view_gone(self->session);
    Py_DECREF((PyObject *)self->session);
    PyObject_Free(object);
    Py_DECREF(type);
}

static PyObject *view_make(wp_session_t *session, const wp_binding_t *input)
{
    view_t *self = PyObject_New(view_t, session->state->view_type);
    if (self == NULL) {
        return NULL;
    }
    Py_ssize_t stride = (Py_ssize_t)weft_dtype_size_bytes(input->desc.dtype);
    self->session = (wp_session_t *)Py_NewRef((PyObject *)session);
    self->input = input;
    session->views++;
    for (uint32_t d = input->desc.rank; d-- > 0;) {
        self->dims[d] = (Py_ssize_t)input->desc.dims[d];
        self->strides[d] = stride;
        stride *= self->dims[d];
    }
    return (PyObject *)self;
}

PyObject *wp_view_new(wp_session_t *session, const wp_binding_t *input)
{
    wp_state_t *state = session->state;
    if (session->closed) {
        return wp_raise_text(state, WEFT_ERR_STATE, "the session was closed");
    }
    if (input->memory == NULL) {
        return wp_raise_text(state, WEFT_ERR_UNSUPPORTED,
                             "input '%s' is in memory that the host cannot reach", input->name);
    }
    PyObject *view = view_make(session, input);
    PyObject *array = NULL;
    if (view != NULL) {
        array = wp_numpy_import(state)
                    ? PyObject_CallFunctionObjArgs(state->numpy.asarray, view, NULL)
                    : PyMemoryView_FromObject(view);
    }
    Py_XDECREF(view);
    return array;
}

static PyType_Slot slots[] = {
    {Py_tp_doc, "An input's own memory in a session, with the buffer protocol."},
    {Py_tp_new, wp_type_no_new},
    {Py_tp_dealloc, view_dealloc},
    {Py_bf_getbuffer, view_buffer},
    {0, NULL},
};

static PyType_Spec spec = {
    "weft._core.InputMemory",
    sizeof(view_t),
    0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    slots,
};

int wp_view_init(PyObject *module, wp_state_t *state)
{
    state->view_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &spec, NULL);
    return state->view_type != NULL ? 0 : -1;
}
