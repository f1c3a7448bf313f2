/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft.DeviceArray: memory of a context's device, which the host need not reach. Collectives take
 * it by its address; data goes in and out by copies, or by DLPack under the driver's own name.
 *
 * A context that is closed before its arrays keeps their memory, as another library may have it.
 */
#include "python/src/device_array.h"
#include "python/src/dlpack.h"

#include <stdlib.h>
#include <string.h>

typedef struct device_array {
    PyObject_HEAD wp_context_t *context; /* owned */
    void *data;                          /* an address of the device */
    void *wrapped;     /* of weft_mem_wrap; NULL: data is from weft_device_alloc */
    PyObject *capsule; /* keeps what is wrapped; NULL */
    weft_dtype_t dtype;
    size_t bytes;
    uint32_t rank;
    int64_t dims[WP_MAX_DIMS];
} device_array_t;

/* ---- memory ---- */

wp_context_t *wp_device_array_context(PyObject *array)
{
    return ((device_array_t *)array)->context;
}

int wp_device_copy(wp_context_t *context, void *to, const void *from, size_t bytes)
{
    weft_context_t *inner = wp_context_open(context);
    if (inner == NULL) {
        return -1;
    }
    weft_context_retain(inner);
    PyThreadState *thread = PyEval_SaveThread();
    weft_status_t status = weft_mem_copy(inner, to, from, bytes);
    weft_context_release(inner);
    PyEval_RestoreThread(thread);
    if (status < 0) {
        wp_raise(context->state, status);
    }
    return status < 0 ? -1 : 0;
}

static device_array_t *array_new(wp_context_t *context, weft_dtype_t dtype, uint32_t rank,
                                 const int64_t *dims)
{
    device_array_t *self = PyObject_New(device_array_t, context->state->device_array_type);
    if (self == NULL) {
        return NULL;
    }
    self->context = (wp_context_t *)Py_NewRef((PyObject *)context);
    self->data = self->wrapped = NULL;
    self->capsule = NULL;
    self->dtype = dtype;
    self->rank = rank;
    self->bytes = weft_dtype_size_bytes(dtype);
    for (uint32_t i = 0; i < rank; i++) {
        self->dims[i] = dims[i];
        self->bytes *= (size_t)dims[i];
    }
    context->borrowed++;
    return self;
}

int wp_device_array_make(wp_context_t *context, wp_array_t *array)
{
    weft_context_t *inner = wp_context_open(context);
    device_array_t *self =
        inner != NULL ? array_new(context, array->dtype, array->rank, array->dims) : NULL;
    if (self == NULL) {
        return -1;
    }
    weft_context_retain(inner);
    PyThreadState *thread = PyEval_SaveThread();
    weft_status_t status = weft_device_alloc(inner, self->bytes > 0 ? self->bytes : 1, &self->data);
    weft_context_release(inner);
    PyEval_RestoreThread(thread);
    if (status < 0) {
        wp_raise(context->state, status);
        Py_DECREF((PyObject *)self);
        return -1;
    }
    array->kind = WP_ON_DEVICE;
    array->object = (PyObject *)self;
    array->data = self->data;
    return 0;
}

/* A copy that waits may hold the library's lock and want the GIL. */
static void give_back(device_array_t *self)
{
    weft_context_t *inner = self->context->context;
    if (inner == NULL || self->data == NULL) {
        return; /* kept */
    }
    weft_context_retain(inner);
    PyThreadState *thread = PyEval_SaveThread();
    if (self->wrapped != NULL) {
        weft_mem_unwrap(inner, self->wrapped);
    } else {
        weft_device_free(inner, self->data);
    }
    weft_context_release(inner);
    PyEval_RestoreThread(thread);
}

static void array_dealloc(PyObject *object)
{
    PyObject *kind, *value, *trace;
    device_array_t *self = (device_array_t *)object;
    PyTypeObject *type = Py_TYPE(object);
    PyErr_Fetch(&kind, &value, &trace);
    give_back(self);
    self->context->borrowed--;
    Py_DECREF((PyObject *)self->context);
    Py_XDECREF(self->capsule);
    PyObject_Free(object);
    Py_DECREF(type);
    PyErr_Restore(kind, value, trace);
}

/* ---- as an argument ---- */

static const char *device_name(const device_array_t *self)
{
    return self->context->context != NULL ? weft_context_device(self->context->context)->ops->name
                                          : "(closed context)";
}

int wp_array_from_device(PyObject *object, const char *argument, wp_array_flags_t flags,
                         wp_array_t *out)
{
    const device_array_t *self = (device_array_t *)object;
    if (!(flags & WP_DEVICE)) {
        PyErr_Format(PyExc_ValueError,
                     "%s is on device %s: host memory is required: its numpy() copies it", argument,
                     device_name(self));
        return -1;
    }
    if (wp_context_open(self->context) == NULL) {
        return -1;
    }
    out->kind = WP_ON_DEVICE;
    out->data = self->data;
    out->dtype = self->dtype;
    out->rank = self->rank;
    out->count = self->bytes / weft_dtype_size_bytes(self->dtype);
    memcpy(out->dims, self->dims, sizeof out->dims);
    return 0;
}

int wp_device_array_check(const wp_array_t *array, const char *argument, const wp_group_t *group)
{
    if (array->kind == WP_ON_DEVICE && wp_device_array_context(array->object) != group->context) {
        PyErr_Format(PyExc_ValueError, "%s is on the device of another context than the group",
                     argument);
        return -1;
    }
    return 0;
}

/* ---- in and out by copies ---- */

static PyObject *numpy(PyObject *object, PyObject *unused)
{
    device_array_t *self = (device_array_t *)object;
    wp_array_t like = {.kind = WP_NUMPY, .dtype = self->dtype}, host;
    PyObject *result = NULL;
    (void)unused;
    if (wp_array_new(self->context->state, &like, self->rank, self->dims, &host) < 0) {
        return NULL;
    }
    if (wp_device_copy(self->context, host.data, self->data, self->bytes) == 0) {
        result = Py_NewRef(host.object);
    }
    wp_array_release(&host);
    return result;
}

static int check_source(const device_array_t *self, const wp_array_t *source)
{
    char own[160], dims[160];
    bool same = source->rank == self->rank &&
                memcmp(source->dims, self->dims, self->rank * sizeof *self->dims) == 0;
    if (source->dtype != self->dtype || !same) {
        PyErr_Format(PyExc_ValueError, "source is %s of shape %s, the array %s of shape %s",
                     wp_dtype_name(source->dtype),
                     wp_dims_text(source->rank, source->dims, dims, sizeof dims),
                     wp_dtype_name(self->dtype),
                     wp_dims_text(self->rank, self->dims, own, sizeof own));
        return -1;
    }
    if (source->kind == WP_ON_DEVICE && wp_device_array_context(source->object) != self->context) {
        PyErr_SetString(PyExc_ValueError, "source is on the device of another context");
        return -1;
    }
    return 0;
}

static PyObject *copy_(PyObject *object, PyObject *from)
{
    device_array_t *self = (device_array_t *)object;
    wp_array_t source;
    if (from == object) {
        return Py_NewRef(object);
    }
    if (wp_array_get(self->context->state, from, "source", WP_READ | WP_SHAPE | WP_PACK | WP_DEVICE,
                     &source) < 0) {
        return NULL;
    }
    wp_array_pack_in(&source, NULL);
    bool done = check_source(self, &source) == 0 &&
                wp_device_copy(self->context, self->data, source.data, self->bytes) == 0;
    wp_array_release(&source);
    return done ? Py_NewRef(object) : NULL;
}

/* ---- out by DLPack ---- */

/* Behind a struct of either kind: what it points to. */
typedef struct exported {
    union {
        wp_dlpack_t plain;
        wp_dlpack_versioned_t versioned;
    } head;
    int64_t dims[WP_MAX_DIMS];
    PyObject *array; /* owned */
} exported_t;

static void forget(exported_t *exported)
{
    PyGILState_STATE state = PyGILState_Ensure(); /* any thread of the consumer's */
    Py_DECREF(exported->array);
    free(exported);
    PyGILState_Release(state);
}

static void delete_plain(wp_dlpack_t *self)
{
    forget((exported_t *)(void *)self);
}

static void delete_versioned(wp_dlpack_versioned_t *self)
{
    forget((exported_t *)(void *)self);
}

/* Of a capsule that nobody took: then its name is another. */
static void capsule_end(PyObject *capsule)
{
    static const char *const names[] = {"dltensor", "dltensor_versioned"};
    for (int i = 0; i < 2; i++) {
        if (PyCapsule_IsValid(capsule, names[i])) {
            forget(PyCapsule_GetPointer(capsule, names[i]));
        }
    }
}

static PyObject *export(device_array_t *self, bool versioned, const weft_mem_handle_t *handle)
{
    exported_t *exported = calloc(1, sizeof *exported);
    if (exported == NULL) {
        return PyErr_NoMemory();
    }
    wp_dlpack_tensor_t *tensor =
        versioned ? &exported->head.versioned.tensor : &exported->head.plain.tensor;
    exported->head.plain.deleter = delete_plain;
    if (versioned) {
        exported->head.versioned = (wp_dlpack_versioned_t){.major = 1, .deleter = delete_versioned};
    }
    memcpy(exported->dims, self->dims, sizeof exported->dims);
    exported->array = Py_NewRef((PyObject *)self);
    tensor->data = handle->handle;
    tensor->byte_offset = handle->offset_bytes;
    tensor->device_type = handle->dlpack_type;
    tensor->device_id = handle->dlpack_index;
    tensor->rank = (int32_t)self->rank;
    tensor->dims = exported->dims;
    wp_dlpack_set_dtype(tensor, self->dtype);
    PyObject *capsule =
        PyCapsule_New(exported, versioned ? "dltensor_versioned" : "dltensor", capsule_end);
    if (capsule == NULL) {
        forget(exported);
    }
    return capsule;
}

/* The host may have the memory itself: it lies in the host's, and is not another library's. */
static bool host_reaches(const device_array_t *self)
{
    const weft_device_t *device = weft_context_device(self->context->context);
    return self->wrapped == NULL && (device->ops->caps & WEFT_DEVICE_HOST_ACCESS) != 0;
}

/* Item index of a pair of integers; otherwise where there is no pair, or an exception already. */
static long item_of(PyObject *pair, Py_ssize_t index, long otherwise)
{
    if (pair == Py_None || PyErr_Occurred() != NULL) {
        return otherwise;
    }
    PyObject *item = PySequence_GetItem(pair, index);
    long value = item != NULL ? PyLong_AsLong(item) : -1;
    Py_XDECREF(item);
    return value;
}

/* numpy().__dlpack__(..): a copy. Consumers of DLPack before 1.0 do not know versioned capsules. */
static PyObject *export_copy(PyObject *object, bool versioned)
{
    PyObject *host = numpy(object, NULL);
    PyObject *capsule = host == NULL ? NULL
                        : versioned  ? wp_dlpack_export_of(host)
                                     : PyObject_CallMethod(host, "__dlpack__", NULL);
    Py_XDECREF(host);
    return capsule;
}

static PyObject *dlpack(PyObject *object, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"stream", "max_version", "dl_device", "copy", NULL};
    device_array_t *self = (device_array_t *)object;
    PyObject *stream = Py_None, *version = Py_None, *device = Py_None, *copy = Py_None;
    weft_mem_handle_t handle = WEFT_MEM_HANDLE_INIT;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "|$OOOO:__dlpack__", names, &stream, &version,
                                     &device, &copy) ||
        wp_context_open(self->context) == NULL) {
        return NULL;
    }
    weft_status_t status = weft_mem_get_handle(self->context->context, self->data, &handle);
    if (status < 0) {
        return wp_raise(self->context->state, status);
    }
    int copies = copy == Py_None ? -1 : PyObject_IsTrue(copy);
    long major = item_of(version, 0, 0), type = item_of(device, 0, handle.dlpack_type);
    long index = item_of(device, 1, handle.dlpack_index);
    if (PyErr_Occurred() != NULL || wp_context_open(self->context) == NULL) {
        return NULL; /* methods of the arguments may have closed the context */
    }
    if (type == WP_DLPACK_CPU && (copies == 1 || (copies < 0 && !host_reaches(self)))) {
        return export_copy(object, major >= 1);
    }
    if (type == WP_DLPACK_CPU && host_reaches(self)) {
        handle = (weft_mem_handle_t){.handle = self->data, .dlpack_type = WP_DLPACK_CPU};
    } else if (type != handle.dlpack_type || index != handle.dlpack_index || copies == 1) {
        PyErr_Format(PyExc_BufferError,
                     "an array on device %s is exported as DLPack device (%d, %d), or to the host "
                     "(1) by a copy: device (%ld, %ld)%s was asked for",
                     device_name(self), (int)handle.dlpack_type, (int)handle.dlpack_index, type,
                     index,
                     copies == 1   ? " and a copy"
                     : copies == 0 ? " without a copy"
                                   : "");
        return NULL;
    }
    return export(self, major >= 1, &handle);
}

static PyObject *dlpack_device(PyObject *object, PyObject *unused)
{
    const device_array_t *self = (device_array_t *)object;
    (void)unused;
    if (wp_context_open(self->context) == NULL) {
        return NULL;
    }
    const weft_device_ops_t *ops = weft_context_device(self->context->context)->ops;
    return Py_BuildValue("(ii)", (int)ops->dlpack_type, (int)ops->dlpack_index);
}

/* ---- in by DLPack ---- */

/* Memory of the context's device by the driver's name of it. */
static device_array_t *wrap(wp_context_t *context, const wp_dlpack_tensor_t *tensor,
                            const wp_array_t *array)
{
    device_array_t *self = array_new(context, array->dtype, array->rank, array->dims);
    uint64_t end = 0;
    if (self == NULL) {
        return NULL;
    }
    if (tensor->data == NULL ||
        __builtin_add_overflow(tensor->byte_offset, (uint64_t)self->bytes, &end) || end == 0) {
        PyErr_SetString(PyExc_ValueError, "array has no memory to wrap");
        Py_DECREF((PyObject *)self);
        return NULL;
    }
    weft_status_t status = weft_mem_wrap(context->context, tensor->data, end, &self->wrapped);
    if (status < 0) {
        wp_raise(context->state, status);
        Py_DECREF((PyObject *)self);
        return NULL;
    }
    self->data = (char *)self->wrapped + tensor->byte_offset;
    return self;
}

static PyObject *from_dlpack(PyObject *module, PyObject *const *args, Py_ssize_t count,
                             PyObject *keywords)
{
    static const char *const names[] = {"array", "context", NULL};
    wp_state_t *state = wp_state_of(module);
    PyObject *places[2];
    wp_array_t array = {0};
    bool writable;
    if (wp_parse("from_dlpack", args, count, keywords, names, 1, 2, places) < 0) {
        return NULL;
    }
    wp_context_t *context = wp_context_of(state, places[1]);
    if (context == NULL || wp_context_open(context) == NULL) {
        return NULL;
    }
    Py_INCREF((PyObject *)context); /* an array's methods may end the world */
    PyObject *capsule = NULL;
    device_array_t *self = NULL;
    long type = wp_dlpack_device_of(places[0]);
    const weft_device_t *device = type >= 0 && wp_context_open(context) != NULL
                                      ? weft_context_device(context->context)
                                      : NULL;
    if (PyErr_Occurred() == NULL && (device == NULL || type != device->ops->dlpack_type)) {
        PyErr_Format(PyExc_ValueError,
                     "array has DLPack device type %ld, the context is on %s: expected type %d; "
                     "weft.empty(..).copy_(..) copies from the host",
                     type, device != NULL ? device->ops->name : "the CPU",
                     device != NULL ? (int)device->ops->dlpack_type : WP_DLPACK_CPU);
    } else if (PyErr_Occurred() == NULL) {
        capsule = wp_dlpack_export_of(places[0]);
    }
    const wp_dlpack_tensor_t *tensor =
        capsule != NULL ? wp_dlpack_tensor_of(capsule, &writable) : NULL;
    if (tensor != NULL && wp_dlpack_fill(tensor, writable, "array", WP_WRITE, &array) == 0 &&
        wp_context_open(context) != NULL) {
        self = wrap(context, tensor, &array);
    }
    if (self != NULL) {
        self->capsule = Py_NewRef(capsule);
    }
    Py_XDECREF(capsule);
    Py_DECREF((PyObject *)context);
    return (PyObject *)self;
}

/* ---- attributes ---- */

static PyObject *get_shape(PyObject *object, void *unused)
{
    const device_array_t *self = (device_array_t *)object;
    (void)unused;
    PyObject *shape = PyTuple_New((Py_ssize_t)self->rank);
    for (uint32_t i = 0; shape != NULL && i < self->rank; i++) {
        PyObject *dim = PyLong_FromLongLong(self->dims[i]);
        if (dim == NULL || PyTuple_SetItem(shape, (Py_ssize_t)i, dim) < 0) {
            Py_CLEAR(shape);
        }
    }
    return shape;
}

static PyObject *get_dtype(PyObject *object, void *unused)
{
    (void)unused;
    return PyUnicode_FromString(wp_dtype_name(((device_array_t *)object)->dtype));
}

static PyObject *get_nbytes(PyObject *object, void *unused)
{
    (void)unused;
    return PyLong_FromSize_t(((device_array_t *)object)->bytes);
}

static PyObject *get_device(PyObject *object, void *unused)
{
    const device_array_t *self = (device_array_t *)object;
    (void)unused;
    return wp_context_open(self->context) != NULL ? PyUnicode_FromString(device_name(self)) : NULL;
}

static PyObject *get_context(PyObject *object, void *unused)
{
    (void)unused;
    return Py_NewRef((PyObject *)((device_array_t *)object)->context);
}

static PyObject *repr(PyObject *object)
{
    const device_array_t *self = (device_array_t *)object;
    char dims[160];
    return PyUnicode_FromFormat(
        "<weft.DeviceArray %s of shape %s on %s>", wp_dtype_name(self->dtype),
        wp_dims_text(self->rank, self->dims, dims, sizeof dims), device_name(self));
}

static PyMethodDef methods[] = {
    {"numpy", numpy, METH_NOARGS,
     "numpy($self)\n--\n\n"
     "A copy in host memory: a numpy array, or a memoryview without numpy. Not ordered with "
     "streams: synchronize\n"
     "them first."},
    {"copy_", copy_, METH_O,
     "copy_($self, source, /)\n--\n\n"
     "Takes over the elements of source, an array of the host or of this device, of the same type "
     "and shape. Not\n"
     "ordered with streams. Returns the array."},
    {"__dlpack__", (PyCFunction)(void (*)(void))dlpack, METH_VARARGS | METH_KEYWORDS,
     "__dlpack__($self, *, stream=None, max_version=None, dl_device=None, copy=None)\n--\n\n"
     "A capsule with the driver's name of the memory (OpenCL: a cl_mem and an offset). With\n"
     "dl_device=(1, 0) one of host memory: the memory itself if the host reaches it, else a copy."},
    {"__dlpack_device__", dlpack_device, METH_NOARGS,
     "__dlpack_device__($self)\n--\n\n"
     "DLPack's device type, 4 for OpenCL, and the number of the device."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef attributes[] = {
    {"shape", get_shape, NULL, "Dimensions.", NULL},
    {"dtype", get_dtype, NULL, "Type of the elements, such as 'float32'.", NULL},
    {"nbytes", get_nbytes, NULL, "Bytes of all elements.", NULL},
    {"device", get_device, NULL, "Name of the device, such as 'opencl:0'.", NULL},
    {"context", get_context, NULL, "The Context whose device it is.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static const char type_doc[] =
    "An array in memory of a context's device (weft.empty, weft.from_dlpack): collectives of "
    "groups of that context\n"
    "read and write it. Contiguous. The host gets at it by copies.";

static PyType_Slot slots[] = {
    {Py_tp_doc, (void *)(uintptr_t)type_doc},
    {Py_tp_repr, repr},
    {Py_tp_new, wp_type_no_new},
    {Py_tp_dealloc, array_dealloc},
    {Py_tp_methods, methods},
    {Py_tp_getset, attributes},
    {0, NULL},
};

static PyType_Spec spec = {"weft.DeviceArray", sizeof(device_array_t), 0, Py_TPFLAGS_DEFAULT,
                           slots};

static PyMethodDef functions[] = {
    {"from_dlpack", (PyCFunction)(void (*)(void))from_dlpack, METH_FASTCALL | METH_KEYWORDS,
     "from_dlpack($module, array, context=None)\n--\n\n"
     "A DeviceArray on the memory of another library's array, which it keeps, without a copy. "
     "array is on the device\n"
     "of context, by DLPack: for OpenCL (kDLOpenCL) a cl_mem of the cl_context that weft's own "
     "arrays have.\n"
     "Raises ValueError (another device), WeftUnsupportedError (another cl_context), "
     "WeftArgumentError."},
    {NULL, NULL, 0, NULL},
};

int wp_device_array_init(PyObject *module, wp_state_t *state)
{
    return wp_type_add(module, &spec, &state->device_array_type) < 0
               ? -1
               : PyModule_AddFunctions(module, functions);
}
