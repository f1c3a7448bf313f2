/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of our own, as an object with the buffer protocol. What weft_mem_alloc gave goes back when
 * all ranks are done with it (allocate.c): the end of an object only says that this rank is.
 */
#include "python/src/memory.h"
#include "python/src/array.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE_BYTES ((size_t)4096)

/* Formats of the struct module; bfloat16, which it does not know, goes as uint16. */
static const char *format_of(weft_dtype_t dtype)
{
    static const char *const formats[] = {
        [WEFT_DTYPE_NONE] = "B", [WEFT_DTYPE_F64] = "d",  [WEFT_DTYPE_F32] = "f",
        [WEFT_DTYPE_F16] = "e",  [WEFT_DTYPE_BF16] = "H", [WEFT_DTYPE_I64] = "q",
        [WEFT_DTYPE_I32] = "i",  [WEFT_DTYPE_I16] = "h",  [WEFT_DTYPE_I8] = "b",
        [WEFT_DTYPE_U64] = "Q",  [WEFT_DTYPE_U32] = "I",  [WEFT_DTYPE_U16] = "H",
        [WEFT_DTYPE_U8] = "B",   [WEFT_DTYPE_BOOL] = "?",
    };
    return formats[dtype];
}

static int memory_buffer(PyObject *self, Py_buffer *view, int flags)
{
    wp_memory_t *memory = (wp_memory_t *)self;
    bool with_format = (flags & PyBUF_FORMAT) == PyBUF_FORMAT;
    view->buf = memory->data;
    view->obj = Py_NewRef(self);
    view->len = (Py_ssize_t)memory->bytes;
    view->readonly = 0;
    view->itemsize = (Py_ssize_t)weft_dtype_size_bytes(memory->dtype);
    view->format = with_format ? (char *)(uintptr_t)format_of(memory->dtype) : NULL;
    view->ndim = (int)memory->rank;
    view->shape = (flags & PyBUF_ND) == PyBUF_ND ? memory->dims : NULL;
    view->strides = (flags & PyBUF_STRIDES) == PyBUF_STRIDES ? memory->strides : NULL;
    view->suboffsets = NULL;
    view->internal = NULL;
    return 0;
}

/* Of a context that was left meanwhile: its memory stays mapped, but these pages are needed no
 * more. */
static void give_pages_back(const wp_memory_t *memory)
{
    size_t bytes = (memory->bytes + PAGE_BYTES - 1) & ~(PAGE_BYTES - 1);
    if (memory->context->process != (int64_t)getpid()) {
        return; /* a forked child may have something else there */
    }
    if (madvise(memory->data, bytes, MADV_REMOVE) != 0) { /* not shared: a world of one */
        madvise(memory->data, bytes, MADV_DONTNEED);
    }
}

static void memory_dealloc(PyObject *self)
{
    wp_memory_t *memory = (wp_memory_t *)self;
    wp_context_t *context = memory->context;
    PyTypeObject *type = Py_TYPE(self);
    if (memory->owner != NULL) {
        Py_DECREF(memory->owner);
    } else if (context == NULL) {
        free(memory->data);
    } else {
        if (context->memories != NULL) {
            wp_memories_gone(context->memories, memory->number);
        } else {
            give_pages_back(memory);
        }
        context->borrowed--;
        Py_DECREF((PyObject *)context);
    }
    PyObject_Free(self);
    Py_DECREF(type);
}

wp_memory_t *wp_memory_new(wp_state_t *state, weft_dtype_t dtype, uint32_t rank,
                           const int64_t *dims)
{
    wp_memory_t *memory = PyObject_New(wp_memory_t, state->memory_type);
    Py_ssize_t bytes = (Py_ssize_t)weft_dtype_size_bytes(dtype);
    if (memory == NULL) {
        return NULL;
    }
    memory->context = NULL;
    memory->owner = NULL;
    memory->data = NULL;
    memory->dtype = dtype;
    memory->rank = rank;
    for (uint32_t i = rank; i-- > 0;) {
        memory->dims[i] = (Py_ssize_t)dims[i];
        memory->strides[i] = bytes;
        bytes *= memory->dims[i];
    }
    memory->bytes = (size_t)bytes;
    return memory;
}

PyObject *wp_memory_heap(wp_state_t *state, weft_dtype_t dtype, uint32_t rank, const int64_t *dims)
{
    wp_memory_t *memory = wp_memory_new(state, dtype, rank, dims);
    if (memory == NULL) {
        return NULL;
    }
    memory->data = malloc(memory->bytes > 0 ? memory->bytes : 1);
    if (memory->data == NULL) {
        Py_DECREF((PyObject *)memory);
        return PyErr_NoMemory();
    }
    return (PyObject *)memory;
}

PyObject *wp_memory_array(wp_state_t *state, wp_memory_t *memory)
{
    return wp_numpy_import(state)
               ? PyObject_CallFunctionObjArgs(state->numpy.asarray, (PyObject *)memory, NULL)
               : PyMemoryView_FromObject((PyObject *)memory);
}

/* ---- what a context keeps ---- */

static void give_registrations_back(wp_memories_t *memories)
{
    while (memories->registrations != NULL) {
        wp_registration_t *registration = memories->registrations;
        memories->registrations = registration->next;
        weft_mem_unregister(memories->context->context, registration->array.data);
        wp_array_release(&registration->array);
        free(registration);
    }
}

/* The context is closed: registered memory becomes private again; arrays keep what they have. */
static void leave(wp_holder_t *holder)
{
    wp_memories_t *memories = (wp_memories_t *)holder;
    memories->context->memories = NULL;
    give_registrations_back(memories);
    free(memories->allocations);
    free(memories);
}

wp_memories_t *wp_memories_of(wp_context_t *context)
{
    static_assert(offsetof(wp_memories_t, holder) == 0, "leave casts");
    wp_memories_t *memories = context->memories;
    if (wp_context_open(context) == NULL || memories != NULL) {
        return context->context != NULL ? memories : NULL;
    }
    memories = calloc(1, sizeof *memories);
    if (memories == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    memories->context = context;
    context->memories = memories;
    wp_context_hold(context, &memories->holder, leave);
    return memories;
}

bool wp_memories_open(wp_context_t *context)
{
    if (wp_context_open(context) == NULL) {
        return false;
    }
    if (context->memories == NULL) { /* which goes before the context does */
        wp_raise_text(context->state, WEFT_ERR_STATE, "the context is being closed");
    }
    return context->memories != NULL;
}

void wp_memories_gone(wp_memories_t *memories, uint64_t number)
{
    size_t low = 0, high = memories->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (memories->allocations[middle].number < number) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    if (low < memories->count && memories->allocations[low].number == number) {
        memories->allocations[low].gone = true;
    }
}

static const char memory_doc[] = "Memory of weft.empty, or of a result where there is no numpy: "
                                 "has the buffer protocol, so that\n"
                                 "memoryview(m) and numpy.asarray(m) show it without a copy.";

static PyType_Slot memory_slots[] = {
    {Py_tp_doc, (void *)(uintptr_t)memory_doc},
    {Py_tp_new, wp_type_no_new},
    {Py_tp_dealloc, memory_dealloc},
    {Py_bf_getbuffer, memory_buffer},
    {0, NULL},
};

static PyType_Spec memory_spec = {
    "weft.Memory", sizeof(wp_memory_t), 0, Py_TPFLAGS_DEFAULT, memory_slots,
};

int wp_memory_init(PyObject *module, wp_state_t *state)
{
    state->memory_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &memory_spec, NULL);
    if (state->memory_type == NULL || wp_allocate_init(module) < 0) {
        return -1;
    }
    return wp_register_init(module);
}
