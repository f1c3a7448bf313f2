/* SPDX-License-Identifier: Apache-2.0 */
/* Session: a plan bound to a context. How it comes, is locked and goes; the rest is in session_*.c
 * and weft/sessions.py. */
#include "python/src/session.h"

#include <errno.h>
#include <stddef.h>
#include <unistd.h>

/* ---- one call at a time ---- */
static bool is_forked(const wp_session_t *self)
{
    return self->context->process != (int64_t)getpid();
}

/*
 * Destroys the C session once it was closed, nobody is in a call and no array looks at its memory,
 * or that stays without it.
 */
static void let_go(wp_session_t *self)
{
    bool idle = self->closed && self->session != NULL && (self->views == 0 || self->views_stay) &&
                pthread_mutex_trylock(&self->lock) == 0;
    if (!idle) {
        return;
    }
    weft_session_t *session = self->session;
    self->session = NULL;
    pthread_mutex_unlock(&self->lock);
    if (is_forked(self)) {
        return;
    }
    PyThreadState *thread = PyEval_SaveThread();
    weft_session_destroy(session);
    PyEval_RestoreThread(thread);
}

int wp_session_enter(wp_session_t *self)
{
    int error = pthread_mutex_trylock(&self->lock);
    if (error == EBUSY) {
        PyThreadState *thread = PyEval_SaveThread();
        error = pthread_mutex_lock(&self->lock);
        PyEval_RestoreThread(thread);
    }
    if (error != 0) {
        wp_raise_text(self->state, WEFT_ERR_STATE,
                      "this thread is in a call of the session already");
        return -1;
    }
    bool forked = is_forked(self); /* it has no memory of the session */
    if (self->closed || self->session == NULL || forked) {
        wp_session_leave(self);
        wp_raise_text(self->state, WEFT_ERR_STATE,
                      forked ? "this process was forked from a rank, whose session it cannot use"
                             : "the session was closed");
        return -1;
    }
    return 0;
}

void wp_session_leave(wp_session_t *self)
{
    pthread_mutex_unlock(&self->lock);
    let_go(self);
}

int wp_session_end(wp_session_t *self, weft_status_t status)
{
    if (status < 0) {
        wp_raise(self->state, status);
    }
    wp_session_leave(self);
    return status < 0 ? -1 : 0;
}

void wp_session_view_gone(wp_session_t *self)
{
    self->views--;
    let_go(self);
}

void wp_session_close(wp_session_t *self)
{
    self->closed = true;
    if (self->views == 0) { /* else the context still has to know it, when it is left */
        wp_holder_drop(&self->holder);
    }
    let_go(self);
}

static void leave_context(wp_holder_t *holder)
{
    wp_session_t *self = (wp_session_t *)(void *)((char *)holder - offsetof(wp_session_t, holder));
    self->closed = true;
    /* The world is to be left, so the session goes; its inputs' memory stays for arrays over it. */
    self->views_stay = self->views > 0 && weft_context_device(self->context->context) == NULL &&
                       weft_mem_keep(self->context->context) == WEFT_OK;
    let_go(self);
}

/* ---- arrays ---- */
wp_binding_t *wp_binding_find(wp_binding_t *bindings, size_t count, PyObject *name)
{
    for (size_t i = 0; i < count; i++) { /* names in calls are interned, mostly */
        if (bindings[i].key == name) {
            return &bindings[i];
        }
    }
    for (size_t i = 0; i < count && PyUnicode_Check(name); i++) {
        if (PyUnicode_Compare(bindings[i].key, name) == 0) {
            return &bindings[i];
        }
    }
    return NULL;
}

static PyObject *shape_tuple(const weft_tensor_desc_t *desc)
{
    PyObject *shape = PyTuple_New((Py_ssize_t)desc->rank);
    for (uint32_t d = 0; shape != NULL && d < desc->rank; d++) {
        PyObject *dim = PyLong_FromLongLong(desc->dims[d]);
        if (dim == NULL || PyTuple_SetItem(shape, (Py_ssize_t)d, dim) < 0) { /* takes dim over */
            Py_CLEAR(shape);
        }
    }
    return shape;
}

/* tensor.new_empty(shape, dtype=): of the device and kind of tensor. */
static PyObject *new_tensor(wp_state_t *state, PyObject *tensor, const weft_tensor_desc_t *desc)
{
    PyObject *dtype = state->torch.dtypes[desc->dtype], *result = NULL;
    if (dtype == NULL) {
        PyErr_Format(PyExc_TypeError, "torch has no dtype for an output of type %s",
                     wp_dtype_name(desc->dtype));
        return NULL;
    }
    PyObject *method = PyObject_GetAttrString(tensor, "new_empty");
    PyObject *shape = method != NULL ? shape_tuple(desc) : NULL;
    PyObject *args = shape != NULL ? PyTuple_Pack(1, shape) : NULL;
    PyObject *keywords = args != NULL ? PyDict_New() : NULL;
    if (keywords != NULL && PyDict_SetItemString(keywords, "dtype", dtype) == 0) {
        result = PyObject_Call(method, args, keywords);
    }
    Py_XDECREF(keywords);
    Py_XDECREF(args);
    Py_XDECREF(shape);
    Py_XDECREF(method);
    return result;
}

int wp_session_array(wp_session_t *self, const wp_array_t *like, const weft_tensor_desc_t *desc,
                     wp_array_t *out)
{
    wp_array_t kind = {.dtype = desc->dtype};
    if (like != NULL && like->kind == WP_TORCH) {
        PyObject *tensor = new_tensor(self->state, like->object, desc);
        int status =
            tensor != NULL ? wp_array_get(self->state, tensor, "output", WP_WRITE, out) : -1;
        Py_XDECREF(tensor);
        return status;
    }
    return wp_array_new(self->state, &kind, desc->rank, desc->dims, out);
}

/* ---- how it comes ---- */
static const uint32_t input_roles = 1u << WEFT_BINDING_ROLE_INPUT | 1u << WEFT_BINDING_ROLE_LABEL;
static const uint32_t output_roles =
    1u << WEFT_BINDING_ROLE_LOSS | 1u << WEFT_BINDING_ROLE_LOGITS | 1u << WEFT_BINDING_ROLE_OUTPUT;
static const uint32_t scalar_roles = 1u << WEFT_BINDING_ROLE_SCALAR;

/* Fills out with the bindings of these roles. -1: an exception is set. */
static int take_bindings(wp_session_t *self, uint32_t roles, wp_binding_t *out, size_t *out_count)
{
    weft_plan_t *plan = self->plan->plan;
    *out_count = 0;
    for (size_t i = 0; i < weft_plan_binding_count(plan); i++) {
        weft_binding_t from = WEFT_BINDING_INIT;
        weft_status_t status = weft_plan_get_binding(plan, i, &from);
        if (status < 0) {
            wp_raise(self->state, status);
            return -1;
        }
        if ((roles & 1u << from.role) == 0) {
            continue;
        }
        wp_binding_t *binding = &out[(*out_count)++];
        binding->name = from.name;
        binding->role = from.role;
        binding->desc = from.desc;
        binding->count = (uint64_t)weft_tensor_elem_count(&from.desc);
        binding->bytes = binding->count * weft_dtype_size_bytes(from.desc.dtype);
        binding->key = PyUnicode_InternFromString(from.name);
        if (binding->key == NULL) {
            return -1;
        }
    }
    return 0;
}

static int find_bindings(wp_session_t *self)
{
    size_t most = weft_plan_binding_count(self->plan->plan);
    wp_binding_t *all = PyMem_Calloc(most + 1, sizeof *all);
    if (all == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    self->inputs = self->outputs = self->scalars = all;
    if (take_bindings(self, input_roles, all, &self->input_count) < 0) {
        return -1;
    }
    self->outputs = self->scalars = all + self->input_count;
    if (take_bindings(self, output_roles, self->outputs, &self->output_count) < 0) {
        return -1;
    }
    self->scalars = self->outputs + self->output_count;
    if (take_bindings(self, scalar_roles, self->scalars, &self->scalar_count) < 0) {
        return -1;
    }
    for (size_t i = 0; i < self->output_count; i++) {
        wp_binding_t *output = &self->outputs[i];
        self->loss = output->role == WEFT_BINDING_ROLE_LOSS ? output : self->loss;
        self->logits = output->role == WEFT_BINDING_ROLE_LOGITS ? output : self->logits;
    }
    return 0;
}

/* Binds: all ranks come here. */
static int bind(wp_session_t *self, bool trace)
{
    weft_context_t *context = wp_context_open(self->context);
    if (context == NULL) {
        return -1;
    }
    weft_plan_info_t info = WEFT_PLAN_INFO_INIT;
    weft_session_params_t params = {.struct_size = sizeof params,
                                    .context = context,
                                    .plan = self->plan->plan,
                                    .registry = self->plan->registry,
                                    .trace = trace};
    weft_status_t status;
    weft_context_retain(context); /* another thread may close it meanwhile */
    PyThreadState *thread = PyEval_SaveThread();
    status = weft_session_create(&params, &self->session);
    if (status >= 0) {
        status = weft_plan_get_info(self->plan->plan, &info);
    }
    weft_context_release(context);
    PyEval_RestoreThread(thread);
    if (status < 0) {
        wp_raise(self->state, status);
    }
    if (status < 0 || wp_context_open(self->context) == NULL) {
        return -1; /* the session, if there is one, goes with self */
    }
    self->training = info.kind == WEFT_PLAN_KIND_TRAINING;
    self->split = info.split_batch != 0;
    self->accumulate = info.accumulate > 0 ? info.accumulate : 1;
    for (size_t i = 0; i < self->input_count; i++) {
        void *memory = NULL;
        size_t bytes = 0;
        if (weft_session_input_memory(self->session, self->inputs[i].name, &memory, &bytes) >= 0 &&
            bytes == self->inputs[i].bytes) {
            self->inputs[i].memory = memory;
        }
    }
    return 0;
}

/* A Plan, or the path of one. A new reference. */
static PyObject *plan_of(wp_state_t *state, PyObject *object)
{
    if (Py_TYPE(object) == state->plan_type) {
        return Py_NewRef(object);
    }
    if (PyUnicode_Check(object) || PyBytes_Check(object) ||
        PyObject_HasAttrString(object, "__fspath__")) {
        PyObject *name = PyUnicode_FromString("load");
        PyObject *plan = name != NULL ? PyObject_CallMethodObjArgs((PyObject *)state->plan_type,
                                                                   name, object, NULL)
                                      : NULL;
        Py_XDECREF(name);
        return plan;
    }
    PyErr_Format(PyExc_TypeError, "plan must be a weft.Plan or a path, not %R",
                 (PyObject *)Py_TYPE(object));
    return NULL;
}

PyObject *wp_session_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"plan", "context", "trace", NULL};
    PyObject *plan = NULL, *where = NULL;
    int trace = 0;
    wp_state_t *state = wp_state_of_type(type);
    if (state == NULL || !PyArg_ParseTupleAndKeywords(args, keywords, "O|O$p:Session", names, &plan,
                                                      &where, &trace)) {
        return NULL;
    }
    plan = plan_of(state, plan); /* first: paths may be objects, whose methods may end the world */
    wp_context_t *context = plan != NULL ? wp_context_of(state, where) : NULL;
    if (context == NULL || wp_context_open(context) == NULL) {
        Py_XDECREF(plan);
        return NULL;
    }
    Py_INCREF((PyObject *)context);
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    wp_session_t *self = (wp_session_t *)alloc(type, 0); /* zeroed */
    if (self == NULL) {
        Py_DECREF((PyObject *)context);
        Py_DECREF(plan);
        return NULL;
    }
    self->state = state;
    self->plan = (wp_plan_t *)plan;
    self->context = context;
    wp_lock_init(&self->lock);
    self->has_lock = true;
    self->tables = PyDict_New();
    if (self->tables == NULL || find_bindings(self) < 0 || bind(self, trace != 0) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    self->holder.lock = &self->lock;
    wp_context_hold(context, &self->holder, leave_context);
    return (PyObject *)self;
}

void wp_session_dealloc(PyObject *object)
{
    wp_session_t *self = (wp_session_t *)object;
    PyTypeObject *type = Py_TYPE(object);
    if (self->has_lock) {
        wp_session_close(self); /* views keep the session: there are none */
        pthread_mutex_destroy(&self->lock);
    }
    size_t count = self->input_count + self->output_count + self->scalar_count;
    for (size_t i = 0; i < count; i++) {
        Py_XDECREF(self->inputs[i].key);
    }
    PyMem_Free(self->inputs);
    Py_XDECREF(self->tables);
    Py_XDECREF((PyObject *)self->plan);
    Py_XDECREF((PyObject *)self->context);
    freefunc free_object = (freefunc)PyType_GetSlot(type, Py_tp_free);
    free_object(object);
    Py_DECREF(type);
}
