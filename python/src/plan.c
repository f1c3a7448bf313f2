/* SPDX-License-Identifier: Apache-2.0 */
/* Plan: what owns a compiled graph and its registry. Its methods are in weft/plans.py. */
#include "python/src/context.h"

/* _plan(address, registry's or 0): a Plan that takes them over. */
static PyObject *plan_new(PyObject *module, PyObject *args)
{
    wp_state_t *state = wp_state_of(module);
    unsigned long long plan, registry;
    if (!PyArg_ParseTuple(args, "KK:_plan", &plan, &registry)) {
        return NULL;
    }
    wp_plan_t *self = PyObject_New(wp_plan_t, state->plan_type);
    if (self != NULL) {
        self->plan = (weft_plan_t *)(uintptr_t)plan;
        self->registry = (weft_registry_t *)(uintptr_t)registry;
    }
    return (PyObject *)self;
}

static void plan_dealloc(PyObject *object)
{
    wp_plan_t *self = (wp_plan_t *)object;
    PyTypeObject *type = Py_TYPE(object);
    weft_plan_release(self->plan);
    weft_registry_destroy(self->registry); /* after all plans made with it */
    PyObject_Free(object);
    Py_DECREF(type);
}

static PyObject *get_registry(PyObject *object, void *unused)
{
    (void)unused;
    return PyLong_FromVoidPtr(((wp_plan_t *)object)->registry);
}

static PyMethodDef functions[] = {
    {"_plan", plan_new, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef attributes[] = {
    {"_registry", get_registry, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_new, wp_type_no_new},
    {Py_tp_dealloc, plan_dealloc},
    {Py_tp_getset, attributes},
    {0, NULL},
};

static PyType_Spec spec = {"weft.Plan", sizeof(wp_plan_t), 0, Py_TPFLAGS_DEFAULT, slots};

int wp_plan_init(PyObject *module, wp_state_t *state)
{
    return wp_type_add(module, &spec, &state->plan_type) < 0
               ? -1
               : PyModule_AddFunctions(module, functions);
}
