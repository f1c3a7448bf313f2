/* SPDX-License-Identifier: Apache-2.0 */
/* What a session has, by name, like a dict: params, gradients, state, inputs, outputs, scalars. */
#include "python/src/session.h"

typedef struct tensors {
    PyObject_HEAD wp_session_t *session; /* owned */
    wp_tensors_kind_t kind;
} tensors_t;

/* ---- what kinds have in common ---- */
typedef struct item {
    size_t index;
    const char *name;
    weft_tensor_desc_t desc;
} item_t;

static const char *kind_name(wp_tensors_kind_t kind)
{
    static const char *const names[] = {"params", "gradients", "state",
                                        "inputs", "outputs",   "scalars"};
    return names[kind];
}

static size_t item_count(const tensors_t *self)
{
    const wp_session_t *session = self->session;
    switch (self->kind) {
    case WP_TENSORS_PARAMS:
        return weft_session_param_count(session->session);
    case WP_TENSORS_GRADIENTS:
        return session->gradient_count;
    case WP_TENSORS_STATE:
        return weft_session_state_count(session->session);
    case WP_TENSORS_INPUTS:
        return session->input_count;
    case WP_TENSORS_OUTPUTS:
        return session->output_count;
    case WP_TENSORS_SCALARS:
        return session->scalar_count;
    }
    return 0;
}

static wp_binding_t *bindings_of(const tensors_t *self)
{
    wp_session_t *session = self->session;
    return self->kind == WP_TENSORS_INPUTS    ? session->inputs
           : self->kind == WP_TENSORS_OUTPUTS ? session->outputs
                                              : session->scalars;
}

static weft_status_t describe(const tensors_t *self, size_t index, item_t *out)
{
    weft_session_t *session = self->session->session;
    out->index = self->kind == WP_TENSORS_GRADIENTS ? self->session->gradients[index] : index;
    if (self->kind == WP_TENSORS_PARAMS || self->kind == WP_TENSORS_GRADIENTS) {
        return weft_session_param_info(session, out->index, &out->name, &out->desc);
    }
    if (self->kind == WP_TENSORS_STATE) {
        return weft_session_state_info(session, index, &out->name, &out->desc);
    }
    out->name = bindings_of(self)[index].name;
    out->desc = bindings_of(self)[index].desc;
    return WEFT_OK;
}

/* The name of item index as a str; the session is entered. */
static PyObject *name_of(const tensors_t *self, size_t index)
{
    item_t item;
    weft_status_t status = describe(self, index, &item);
    return status < 0 ? wp_raise(self->session->state, status) : PyUnicode_FromString(item.name);
}

/* A list of all names. */
static PyObject *names_of(const tensors_t *self)
{
    PyObject *list = wp_session_enter(self->session) < 0 ? NULL : PyList_New(0);
    if (list == NULL) {
        return NULL;
    }
    size_t count = item_count(self);
    for (size_t i = 0; i < count && list != NULL; i++) {
        PyObject *name = name_of(self, i);
        if (name == NULL || PyList_Append(list, name) < 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(name);
    }
    wp_session_leave(self->session);
    return list;
}

/* 1: found; 0: there is none; -1: an exception is set. */
static int find(const tensors_t *self, PyObject *key, item_t *out)
{
    const char *name = PyUnicode_Check(key) ? PyUnicode_AsUTF8AndSize(key, NULL) : NULL;
    int found = 0;
    if (name == NULL) {
        PyErr_Clear(); /* what is no text is no name */
        return 0;
    }
    if (wp_session_enter(self->session) < 0) {
        return -1;
    }
    size_t count = item_count(self);
    for (size_t i = 0; i < count && found == 0; i++) {
        weft_status_t status = describe(self, i, out);
        if (status < 0) {
            wp_raise(self->session->state, status);
            found = -1;
        } else {
            found = PyUnicode_CompareWithASCIIString(key, out->name) == 0;
        }
    }
    wp_session_leave(self->session);
    out->name = name; /* of the key, which outlives the session */
    return found;
}

/* ---- reading and writing: without the GIL ---- */
static weft_status_t read_item(const tensors_t *self, const item_t *item, void *data, size_t bytes)
{
    weft_session_t *session = self->session->session;
    switch (self->kind) {
    case WP_TENSORS_PARAMS:
        return weft_session_get_param(session, item->index, data, bytes);
    case WP_TENSORS_GRADIENTS:
        return weft_session_get_gradient(session, item->index, data, bytes);
    case WP_TENSORS_STATE:
        return weft_session_get_state(session, item->index, data, bytes);
    default:
        return weft_session_get_output(session, item->name, data, bytes, NULL);
    }
}

static weft_status_t write_item(const tensors_t *self, const item_t *item, const void *data,
                                size_t bytes)
{
    weft_session_t *session = self->session->session;
    return self->kind == WP_TENSORS_PARAMS
               ? weft_session_set_param(session, item->index, data, bytes)
               : weft_session_set_state(session, item->index, data, bytes);
}

static size_t bytes_of(const weft_tensor_desc_t *desc)
{
    return (size_t)weft_tensor_elem_count(desc) * weft_dtype_size_bytes(desc->dtype);
}

static PyObject *get_copy(const tensors_t *self, const item_t *item)
{
    wp_array_t array;
    PyObject *result = NULL;
    weft_status_t status;
    if (wp_session_array(self->session, NULL, &item->desc, &array) < 0) {
        return NULL;
    }
    if (wp_session_enter(self->session) == 0) {
        PyThreadState *thread = PyEval_SaveThread();
        status = read_item(self, item, array.data, bytes_of(&item->desc));
        PyEval_RestoreThread(thread);
        result = wp_session_end(self->session, status) < 0 ? NULL : Py_NewRef(array.object);
    }
    wp_array_release(&array);
    return result;
}

static PyObject *get_scalar(const tensors_t *self, const item_t *item)
{
    double value = 0;
    if (wp_session_enter(self->session) < 0) {
        return NULL;
    }
    weft_status_t status = weft_session_get_scalar(self->session->session, item->name, &value);
    return wp_session_end(self->session, status) < 0 ? NULL : PyFloat_FromDouble(value);
}

static PyObject *get_item(const tensors_t *self, const item_t *item)
{
    if (self->kind == WP_TENSORS_SCALARS) {
        return get_scalar(self, item);
    }
    if (self->kind == WP_TENSORS_INPUTS) {
        return wp_view_new(self->session, &bindings_of(self)[item->index]);
    }
    return get_copy(self, item);
}

static int set_fed(const tensors_t *self, const item_t *item, PyObject *value)
{
    PyObject *keywords = PyTuple_New(1);
    PyObject *key = bindings_of(self)[item->index].key, *done = NULL;
    if (keywords != NULL && PyTuple_SetItem(keywords, 0, Py_NewRef(key)) == 0) {
        done = wp_session_feed((PyObject *)self->session, &value, 0, keywords);
    }
    Py_XDECREF(keywords);
    Py_XDECREF(done);
    return done != NULL ? 0 : -1;
}

static int set_copy(const tensors_t *self, const item_t *item, PyObject *value)
{
    static const char *const what[] = {"parameter", "", "state"};
    wp_array_t array;
    weft_status_t status;
    int ended = -1;
    if (wp_array_get(self->session->state, value, item->name, WP_READ | WP_SHAPE, &array) < 0) {
        return -1;
    }
    if (wp_check_tensor(what[self->kind], item->name, &item->desc, &array) == 0 &&
        wp_session_enter(self->session) == 0) {
        PyThreadState *thread = PyEval_SaveThread();
        status = write_item(self, item, array.data, bytes_of(&item->desc));
        PyEval_RestoreThread(thread);
        ended = wp_session_end(self->session, status);
    }
    wp_array_release(&array);
    return ended;
}

/* ---- the mapping ---- */
static Py_ssize_t tensors_length(PyObject *object)
{
    tensors_t *self = (tensors_t *)object;
    if (wp_session_enter(self->session) < 0) {
        return -1;
    }
    size_t count = item_count(self);
    wp_session_leave(self->session);
    return (Py_ssize_t)count;
}

static PyObject *tensors_subscript(PyObject *object, PyObject *key)
{
    tensors_t *self = (tensors_t *)object;
    item_t item;
    int found = find(self, key, &item);
    if (found == 0) {
        PyErr_SetObject(PyExc_KeyError, key);
    }
    return found > 0 ? get_item(self, &item) : NULL;
}

static int tensors_assign(PyObject *object, PyObject *key, PyObject *value)
{
    tensors_t *self = (tensors_t *)object;
    item_t item;
    if (value == NULL || self->kind == WP_TENSORS_GRADIENTS || self->kind == WP_TENSORS_OUTPUTS) {
        PyErr_Format(PyExc_TypeError, "a session's %s cannot be %s", kind_name(self->kind),
                     value == NULL ? "deleted" : "set");
        return -1;
    }
    int found = find(self, key, &item);
    if (found <= 0) {
        if (found == 0) {
            PyErr_SetObject(PyExc_KeyError, key);
        }
        return -1;
    }
    bool fed = self->kind == WP_TENSORS_INPUTS || self->kind == WP_TENSORS_SCALARS;
    return fed ? set_fed(self, &item, value) : set_copy(self, &item, value);
}

static int tensors_contains(PyObject *object, PyObject *key)
{
    item_t item;
    return find((tensors_t *)object, key, &item);
}

static PyObject *tensors_iter(PyObject *object)
{
    PyObject *names = names_of((tensors_t *)object);
    PyObject *iterator = names != NULL ? PyObject_GetIter(names) : NULL;
    Py_XDECREF(names);
    return iterator;
}

static PyObject *tensors_keys(PyObject *object, PyObject *unused)
{
    (void)unused;
    return names_of((tensors_t *)object);
}

/* A list of what there is of every name: its value, or (name, value). */
static PyObject *collect(PyObject *object, bool with_names)
{
    PyObject *names = names_of((tensors_t *)object), *list = names != NULL ? PyList_New(0) : NULL;
    Py_ssize_t count = list != NULL ? PyList_Size(names) : 0;
    for (Py_ssize_t i = 0; i < count && list != NULL; i++) {
        PyObject *name = PyList_GetItem(names, i), *value = tensors_subscript(object, name);
        PyObject *entry =
            value != NULL && with_names ? PyTuple_Pack(2, name, value) : Py_XNewRef(value);
        if (entry == NULL || PyList_Append(list, entry) < 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(entry);
        Py_XDECREF(value);
    }
    Py_XDECREF(names);
    return list;
}

static PyObject *tensors_values(PyObject *object, PyObject *unused)
{
    (void)unused;
    return collect(object, false);
}

static PyObject *tensors_items(PyObject *object, PyObject *unused)
{
    (void)unused;
    return collect(object, true);
}

static PyObject *tensors_get(PyObject *object, PyObject *const *args, Py_ssize_t count,
                             PyObject *keywords)
{
    static const char *const names[] = {"key", "default", NULL};
    PyObject *given[2];
    item_t item;
    if (wp_parse("get", args, count, keywords, names, 1, 2, given) < 0) {
        return NULL;
    }
    int found = find((tensors_t *)object, given[0], &item);
    if (found > 0) {
        return get_item((tensors_t *)object, &item);
    }
    return found < 0 ? NULL : Py_NewRef(given[1] != NULL ? given[1] : Py_None);
}

/* Every name is looked for before anything is set. */
static PyObject *tensors_update(PyObject *object, PyObject *mapping)
{
    PyObject *items = PyMapping_Items(mapping);
    Py_ssize_t count = items != NULL ? PyList_Size(items) : -1;
    int status = items != NULL ? 0 : -1;
    for (Py_ssize_t i = 0; i < count && status == 0; i++) {
        PyObject *key = PyTuple_GetItem(PyList_GetItem(items, i), 0);
        int found = key != NULL ? tensors_contains(object, key) : -1;
        if (found == 0) {
            PyErr_SetObject(PyExc_KeyError, key);
        }
        status = found > 0 ? 0 : -1;
    }
    for (Py_ssize_t i = 0; i < count && status == 0; i++) {
        PyObject *item = PyList_GetItem(items, i);
        status = tensors_assign(object, PyTuple_GetItem(item, 0), PyTuple_GetItem(item, 1));
    }
    Py_XDECREF(items);
    return status < 0 ? NULL : Py_NewRef(Py_None);
}

static PyObject *tensors_repr(PyObject *object)
{
    PyObject *names = names_of((tensors_t *)object);
    PyObject *text = names != NULL
                         ? PyUnicode_FromFormat("<weft.Session %s: %R>",
                                                kind_name(((tensors_t *)object)->kind), names)
                         : NULL;
    Py_XDECREF(names);
    return text;
}

/* ---- the type ---- */
PyObject *wp_tensors_new(wp_session_t *session, wp_tensors_kind_t kind)
{
    tensors_t *self = PyObject_New(tensors_t, session->state->tensors_type);
    if (self != NULL) {
        self->session = (wp_session_t *)Py_NewRef((PyObject *)session);
        self->kind = kind;
    }
    return (PyObject *)self;
}

static void tensors_dealloc(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    Py_DECREF((PyObject *)((tensors_t *)object)->session);
    PyObject_Free(object);
    Py_DECREF(type);
}

static PyMethodDef methods[] = {
    {"keys", tensors_keys, METH_NOARGS,
     "keys($self)\n--\n\nA list of all names, in the session's order."},
    {"values", tensors_values, METH_NOARGS, "values($self)\n--\n\nA list of all values."},
    {"items", tensors_items, METH_NOARGS, "items($self)\n--\n\nA list of all (name, value)."},
    {"get", (PyCFunction)(void (*)(void))tensors_get, METH_FASTCALL | METH_KEYWORDS,
     "get($self, key, default=None)\n--\n\nThe value called key, or default."},
    {"update", tensors_update, METH_O,
     "update($self, mapping, /)\n--\n\n"
     "Sets all of a mapping's values. KeyError, before anything is set, for a name that there is "
     "not."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "What a session has, by name, like a dict whose names are fixed."},
    {Py_tp_new, wp_type_no_new},
    {Py_tp_dealloc, tensors_dealloc},
    {Py_tp_repr, tensors_repr},
    {Py_tp_iter, tensors_iter},
    {Py_tp_methods, methods},
    {Py_mp_length, tensors_length},
    {Py_mp_subscript, tensors_subscript},
    {Py_mp_ass_subscript, tensors_assign},
    {Py_sq_contains, tensors_contains},
    {0, NULL},
};

static PyType_Spec spec = {
    "weft.Tensors", sizeof(tensors_t), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE, slots,
};

/* isinstance(session.params, collections.abc.Mapping) */
static int register_mapping(PyTypeObject *type)
{
    PyObject *module = PyImport_ImportModule("collections.abc");
    PyObject *mapping = module != NULL ? PyObject_GetAttrString(module, "Mapping") : NULL;
    PyObject *name = mapping != NULL ? PyUnicode_FromString("register") : NULL;
    PyObject *done = name != NULL ? PyObject_CallMethodObjArgs(mapping, name, type, NULL) : NULL;
    Py_XDECREF(name);
    Py_XDECREF(mapping);
    Py_XDECREF(module);
    Py_XDECREF(done);
    return done != NULL ? 0 : -1;
}

int wp_tensors_init(PyObject *module, wp_state_t *state)
{
    state->tensors_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &spec, NULL);
    return state->tensors_type != NULL ? register_mapping(state->tensors_type) : -1;
}
