/* SPDX-License-Identifier: Apache-2.0 */
/* The module weft._core: its state, and the files that fill it. */
#include "python/src/weft_python.h"

static const char doc[] = "The part of weft that is written in C. Use `import weft`.";

wp_state_t *wp_state_of(PyObject *module)
{
    return PyModule_GetState(module);
}

wp_state_t *wp_state_of_type(PyTypeObject *type)
{
    return PyType_GetModuleState(type);
}

int wp_type_add(PyObject *module, PyType_Spec *spec, PyTypeObject **out_type)
{
    *out_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, spec, NULL);
    return *out_type != NULL ? PyModule_AddType(module, *out_type) : -1;
}

PyObject *wp_type_no_new(PyTypeObject *type, PyObject *args, PyObject *words)
{
    (void)args;
    (void)words;
    return PyErr_Format(PyExc_TypeError, "cannot create instances of %R", type);
}

static int execute(PyObject *module)
{
    static int (*const parts[])(PyObject *, wp_state_t *) = {
        wp_errors_init,  wp_arrays_init, wp_memory_init,          wp_device_array_init,
        wp_context_init, wp_group_init,  wp_collectives_init,     wp_stream_init,
        wp_work_init,    wp_timing_init, wp_torch_operators_init, wp_torch_now_init,
        wp_native_init,
    };
    wp_state_t *state = wp_state_of(module);
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        if (parts[i](module, state) < 0) {
            return -1;
        }
    }
    return PyModule_AddStringConstant(module, "__version__", weft_version());
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, execute},
    {0, NULL},
};

/* The module lives as long as the process: its state is not given back. */
static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "weft._core", doc, sizeof(wp_state_t), NULL, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__core(void);
PyMODINIT_FUNC PyInit__core(void)
{
    return PyModuleDef_Init(&definition);
}
