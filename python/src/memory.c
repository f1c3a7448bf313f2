/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of our own, as an object with the buffer protocol. */
#include "python/src/memory.h"

#include <string.h>

typedef struct memory {
    PyObject_HEAD void *data;
    size_t bytes;
    weft_dtype_t dtype;
    uint32_t rank;
    Py_ssize_t dims[WP_MAX_DIMS], strides[WP_MAX_DIMS];
} memory_t;

/* Formats of the struct module; bfloat16 goes as uint16. */
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

static int memory_buffer(PyObject *self, Py_buffer *view, int flags)
{
    memory_t *memory = (memory_t *)self;
    view->buf = memory->data;
    view->obj = Py_NewRef(self);
    view->len = (Py_ssize_t)memory->bytes;
    view->readonly = 0;
    view->itemsize = (Py_ssize_t)weft_dtype_size_bytes(memory->dtype);
    view->format =
        (flags & PyBUF_FORMAT) == PyBUF_FORMAT ? (char *)(uintptr_t)format_of(memory->dtype) : NULL;
    view->ndim = (int)memory->rank;
    view->shape = (flags & PyBUF_ND) == PyBUF_ND ? memory->dims : NULL;
    view->strides = (flags & PyBUF_STRIDES) == PyBUF_STRIDES ? memory->strides : NULL;
    view->suboffsets = NULL;
    view->internal = NULL;
    return 0;
}

static void memory_dealloc(PyObject *self)
{
    memory_t *memory = (memory_t *)self;
    PyTypeObject *type = Py_TYPE(self);
    PyMem_Free(memory->data);
    PyObject_Free(self);
    Py_DECREF(type);
}

PyObject *wp_memory_heap(wp_state_t *state, weft_dtype_t dtype, uint32_t rank, const int64_t *dims)
{
    memory_t *memory = PyObject_New(memory_t, state->memory_type);
    Py_ssize_t bytes = (Py_ssize_t)weft_dtype_size_bytes(dtype);
    if (memory == NULL) {
        return NULL;
    }
    memory->dtype = dtype;
    memory->rank = rank;
    for (uint32_t i = rank; i-- > 0;) {
        memory->dims[i] = (Py_ssize_t)dims[i];
        memory->strides[i] = bytes;
        bytes *= memory->dims[i];
    }
    memory->bytes = (size_t)bytes;
    memory->data = PyMem_Malloc(memory->bytes);
    if (memory->data == NULL) {
        Py_DECREF(memory);
        return PyErr_NoMemory();
    }
    return (PyObject *)memory;
}

static PyType_Slot memory_slots[] = {
    {Py_tp_doc, "Memory with the buffer protocol: memoryview(m), numpy.asarray(m)."},
    {Py_tp_dealloc, memory_dealloc},
    {Py_bf_getbuffer, memory_buffer},
    {0, NULL},
};

static PyType_Spec memory_spec = {
    "weft.Memory", sizeof(memory_t), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    memory_slots,
};

int wp_memory_init(PyObject *module, wp_state_t *state)
{
    state->memory_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &memory_spec, NULL);
    return state->memory_type != NULL ? 0 : -1;
}
