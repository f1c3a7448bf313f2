/* SPDX-License-Identifier: Apache-2.0 */
/* Plan: a compiled graph, loaded, saved, explained. */
#include "python/src/session.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

/* ---- what other files use, too ---- */
PyObject *wp_path_of(PyObject *object, const char *argument)
{
    PyObject *path = NULL;
    if (PyUnicode_FSConverter(object, &path)) {
        return path;
    }
    if (PyErr_ExceptionMatches(PyExc_TypeError)) {
        PyErr_Format(PyExc_TypeError, "%s must be a path, not %R", argument,
                     (PyObject *)Py_TYPE(object));
    }
    return NULL;
}

int wp_dict_add(PyObject *dict, const char *key, PyObject *value)
{
    int status = value != NULL ? PyDict_SetItemString(dict, key, value) : -1;
    Py_XDECREF(value);
    return status;
}

PyObject *wp_shape_tuple(const weft_tensor_desc_t *desc)
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

PyObject *wp_json_loads(const char *text)
{
    PyObject *json = PyImport_ImportModule("json");
    PyObject *loads = json != NULL ? PyObject_GetAttrString(json, "loads") : NULL;
    PyObject *argument = loads != NULL ? PyUnicode_FromString(text) : NULL;
    PyObject *value = argument != NULL ? PyObject_CallFunctionObjArgs(loads, argument, NULL) : NULL;
    Py_XDECREF(argument);
    Py_XDECREF(loads);
    Py_XDECREF(json);
    return value;
}

/* Plugins find the library's functions among global symbols, where Python's imports do not put
 * them. */
static void publish_library(void)
{
    Dl_info library;
    if (dladdr((void *)(uintptr_t)weft_version, &library) != 0 && library.dli_fname != NULL) {
        void *handle = dlopen(library.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_GLOBAL);
        if (handle != NULL) {
            dlclose(handle); /* it stays global */
        }
    }
}

static int load_plugins(wp_state_t *state, PyObject *kernels, weft_registry_t *registry)
{
    bool one = PyUnicode_Check(kernels) || PyBytes_Check(kernels) ||
               PyObject_HasAttrString(kernels, "__fspath__");
    PyObject *list = one ? PyTuple_Pack(1, kernels) : PySequence_Tuple(kernels);
    Py_ssize_t count = list != NULL ? PyTuple_Size(list) : -1;
    publish_library();
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *path = wp_path_of(PyTuple_GetItem(list, i), "kernels");
        weft_status_t status = WEFT_ERR_INVALID_ARGUMENT;
        if (path != NULL) {
            status = weft_registry_load_plugin(registry, PyBytes_AsString(path));
            if (status < 0) {
                wp_raise(state, status);
            }
            Py_DECREF(path);
        }
        if (status < 0) {
            count = -1;
        }
    }
    Py_XDECREF(list);
    return count < 0 ? -1 : 0;
}

int wp_registry_of(wp_state_t *state, PyObject *ops, PyObject *kernels, weft_registry_t **out)
{
    *out = NULL;
    ops = ops == Py_None ? NULL : ops;
    kernels = kernels == Py_None ? NULL : kernels;
    if (ops == NULL && kernels == NULL) {
        return 0;
    }
    weft_registry_t *registry = NULL;
    PyObject *path = ops != NULL ? wp_path_of(ops, "ops") : NULL;
    if (ops != NULL && path == NULL) {
        return -1;
    }
    weft_status_t status = weft_registry_create(NULL, &registry);
    if (status >= 0 && path != NULL) {
        status = weft_registry_load_ops(registry, PyBytes_AsString(path));
    }
    if (status < 0) {
        wp_raise(state, status);
    }
    Py_XDECREF(path);
    if (status < 0 || (kernels != NULL && load_plugins(state, kernels, registry) < 0)) {
        weft_registry_destroy(registry);
        return -1;
    }
    *out = registry;
    return 0;
}

PyObject *wp_plan_new(wp_state_t *state, weft_plan_t *plan, weft_registry_t *registry)
{
    wp_plan_t *self = PyObject_New(wp_plan_t, state->plan_type);
    if (self == NULL) {
        weft_plan_release(plan);
        weft_registry_destroy(registry);
        return NULL;
    }
    self->state = state;
    self->plan = plan;
    self->registry = registry;
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

/* ---- facts ---- */
static int get_info(const wp_plan_t *self, weft_plan_info_t *out)
{
    *out = (weft_plan_info_t){.struct_size = sizeof *out};
    weft_status_t status = weft_plan_get_info(self->plan, out);
    if (status < 0) {
        wp_raise(self->state, status);
        return -1;
    }
    return 0;
}

static const char *kind_name(const weft_plan_info_t *info)
{
    return info->kind == WEFT_PLAN_KIND_INFERENCE ? "inference" : "training";
}

static PyObject *text_or_none(const char *text)
{
    return text != NULL ? PyUnicode_FromString(text) : Py_NewRef(Py_None);
}

static PyObject *plan_info(PyObject *object, void *closure)
{
    weft_plan_info_t info;
    (void)closure;
    PyObject *dict = get_info((wp_plan_t *)object, &info) < 0 ? NULL : PyDict_New();
    if (dict == NULL) {
        return NULL;
    }
    if (wp_dict_add(dict, "model", text_or_none(info.model_name)) < 0 ||
        wp_dict_add(dict, "kind", PyUnicode_FromString(kind_name(&info))) < 0 ||
        wp_dict_add(dict, "world", PyLong_FromUnsignedLong(info.world_size)) < 0 ||
        wp_dict_add(dict, "batch", PyLong_FromLongLong(info.batch)) < 0 ||
        wp_dict_add(dict, "optimizer", text_or_none(info.optimizer)) < 0 ||
        wp_dict_add(dict, "policy", text_or_none(info.policy)) < 0 ||
        wp_dict_add(dict, "accumulate", PyLong_FromUnsignedLong(info.accumulate)) < 0 ||
        wp_dict_add(dict, "global_micro_batches",
                    PyLong_FromUnsignedLong(info.global_micro_batches)) < 0 ||
        wp_dict_add(dict, "sharded", PyBool_FromLong(info.shard_optimizer)) < 0 ||
        wp_dict_add(dict, "decoupled", PyBool_FromLong(info.decouple)) < 0 ||
        wp_dict_add(dict, "clip_norm", PyFloat_FromDouble(info.clip_norm)) < 0 ||
        wp_dict_add(dict, "split_batch", PyBool_FromLong(info.split_batch)) < 0 ||
        wp_dict_add(dict, "rank_weights", PyBool_FromLong(info.rank_weights)) < 0 ||
        wp_dict_add(dict, "has_eval", PyBool_FromLong(info.has_eval)) < 0 ||
        wp_dict_add(dict, "device", text_or_none(info.device)) < 0 ||
        wp_dict_add(dict, "bits",
                    PyUnicode_FromString(info.bits == WEFT_BITS_CPU ? "cpu" : "device")) < 0 ||
        wp_dict_add(dict, "buckets", PyLong_FromUnsignedLong(info.bucket_count)) < 0 ||
        wp_dict_add(dict, "arena_bytes", PyLong_FromUnsignedLongLong(info.arena_bytes)) < 0 ||
        wp_dict_add(dict, "live_bytes", PyLong_FromUnsignedLongLong(info.live_bytes)) < 0 ||
        wp_dict_add(dict, "fusion_copied_bytes",
                    PyLong_FromUnsignedLongLong(info.fusion_copied_bytes)) < 0 ||
        wp_dict_add(dict, "structure_digest", PyUnicode_FromString(info.structure_digest)) < 0 ||
        wp_dict_add(dict, "weights_digest", PyUnicode_FromString(info.weights_digest)) < 0) {
        Py_CLEAR(dict);
    }
    return dict;
}

static const char *role_name(weft_binding_role_t role)
{
    static const char *const names[] = {"", "input", "label", "scalar", "loss", "logits", "output"};
    return (size_t)role < sizeof names / sizeof names[0] ? names[role] : "";
}

static PyObject *describe_binding(const weft_binding_t *binding)
{
    PyObject *dict = PyDict_New();
    if (dict == NULL) {
        return NULL;
    }
    if (wp_dict_add(dict, "name", PyUnicode_FromString(binding->name)) < 0 ||
        wp_dict_add(dict, "role", PyUnicode_FromString(role_name(binding->role))) < 0 ||
        wp_dict_add(dict, "dtype", PyUnicode_FromString(wp_dtype_name(binding->desc.dtype))) < 0 ||
        wp_dict_add(dict, "shape", wp_shape_tuple(&binding->desc)) < 0 ||
        (binding->role == WEFT_BINDING_ROLE_SCALAR &&
         wp_dict_add(dict, "default", PyFloat_FromDouble(binding->default_value)) < 0)) {
        Py_CLEAR(dict);
    }
    return dict;
}

static PyObject *plan_bindings(PyObject *object, void *closure)
{
    wp_plan_t *self = (wp_plan_t *)object;
    size_t count = weft_plan_binding_count(self->plan);
    PyObject *list = PyList_New(0);
    (void)closure;
    for (size_t i = 0; list != NULL && i < count; i++) {
        weft_binding_t binding = WEFT_BINDING_INIT;
        weft_status_t status = weft_plan_get_binding(self->plan, i, &binding);
        PyObject *item = status < 0 ? wp_raise(self->state, status) : describe_binding(&binding);
        if (item == NULL || PyList_Append(list, item) < 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(item);
    }
    return list;
}

static PyObject *plan_world(PyObject *object, void *closure)
{
    weft_plan_info_t info;
    (void)closure;
    return get_info((wp_plan_t *)object, &info) < 0 ? NULL
                                                    : PyLong_FromUnsignedLong(info.world_size);
}

static PyObject *plan_batch(PyObject *object, void *closure)
{
    weft_plan_info_t info;
    (void)closure;
    return get_info((wp_plan_t *)object, &info) < 0 ? NULL : PyLong_FromLongLong(info.batch);
}

static PyObject *plan_repr(PyObject *object)
{
    weft_plan_info_t info;
    if (get_info((wp_plan_t *)object, &info) < 0) {
        return NULL;
    }
    return PyUnicode_FromFormat("<weft.Plan %s: %s on %u rank%s, batch %lld, digest %.16s>",
                                info.model_name != NULL ? info.model_name : "", kind_name(&info),
                                info.world_size, info.world_size == 1 ? "" : "s",
                                (long long)info.batch, info.structure_digest);
}

/* ---- files and texts ---- */
static PyObject *plan_load(PyObject *type, PyObject *const *args, Py_ssize_t count,
                           PyObject *keywords)
{
    static const char *const names[] = {"path", "ops", "kernels", NULL};
    wp_state_t *state = wp_state_of_type((PyTypeObject *)type); /* which has no subclasses */
    PyObject *given[3];
    weft_registry_t *registry = NULL;
    weft_plan_t *plan = NULL;
    weft_status_t status;
    if (state == NULL || wp_parse("Plan.load", args, count, keywords, names, 1, 1, given) < 0 ||
        wp_registry_of(state, given[1], given[2], &registry) < 0) {
        return NULL;
    }
    PyObject *path = wp_path_of(given[0], "path");
    if (path == NULL) {
        weft_registry_destroy(registry);
        return NULL;
    }
    const char *file = PyBytes_AsString(path);
    PyThreadState *thread = PyEval_SaveThread();
    status = weft_plan_load(file, registry, &plan);
    PyEval_RestoreThread(thread);
    Py_DECREF(path);
    if (status < 0) {
        weft_registry_destroy(registry);
        return wp_raise(state, status);
    }
    return wp_plan_new(state, plan, registry);
}

static PyObject *plan_save(PyObject *object, PyObject *where)
{
    wp_plan_t *self = (wp_plan_t *)object;
    PyObject *path = wp_path_of(where, "path");
    if (path == NULL) {
        return NULL;
    }
    const char *file = PyBytes_AsString(path);
    weft_status_t status;
    PyThreadState *thread = PyEval_SaveThread();
    status = weft_plan_save(self->plan, file);
    PyEval_RestoreThread(thread);
    Py_DECREF(path);
    return status < 0 ? wp_raise(self->state, status) : Py_NewRef(Py_None);
}

/* A text of the library, which is freed here. */
static PyObject *take_text(wp_plan_t *self, weft_status_t status, char *text, bool json)
{
    if (status < 0) {
        return wp_raise(self->state, status);
    }
    PyObject *value = json ? wp_json_loads(text)
                           : PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace");
    free(text);
    return value;
}

static PyObject *plan_explain(PyObject *object, PyObject *const *args, Py_ssize_t count,
                              PyObject *keywords)
{
    static const char *const names[] = {"json", NULL};
    wp_plan_t *self = (wp_plan_t *)object;
    PyObject *given[1];
    char *text = NULL;
    weft_status_t status;
    if (wp_parse("explain", args, count, keywords, names, 0, 1, given) < 0) {
        return NULL;
    }
    int json = given[0] != NULL ? PyObject_IsTrue(given[0]) : 0;
    if (json < 0) {
        return NULL;
    }
    PyThreadState *thread = PyEval_SaveThread();
    status = weft_plan_explain(self->plan, json ? WEFT_FORMAT_JSON : WEFT_FORMAT_TEXT, &text);
    PyEval_RestoreThread(thread);
    return take_text(self, status, text, json != 0);
}

static PyObject *plan_compare(PyObject *object, PyObject *unused)
{
    wp_plan_t *self = (wp_plan_t *)object;
    char *text = NULL;
    (void)unused;
    weft_status_t status = weft_plan_compare(self->plan, &text);
    return take_text(self, status, text, false);
}

static PyObject *plan_why(PyObject *object, PyObject *tensor)
{
    wp_plan_t *self = (wp_plan_t *)object;
    char *text = NULL;
    if (!PyUnicode_Check(tensor)) {
        PyErr_Format(PyExc_TypeError, "tensor must be a str, not %R", (PyObject *)Py_TYPE(tensor));
        return NULL;
    }
    const char *name = PyUnicode_AsUTF8AndSize(tensor, NULL);
    if (name == NULL) {
        return NULL;
    }
    weft_status_t status = weft_plan_why(self->plan, name, &text);
    return take_text(self, status, text, false);
}

/* ---- the type ---- */
static const char plan_doc[] = "A compiled graph: what weft.compile() and Plan.load() return, what "
                               "Session() runs. It never changes.";

static const char load_doc[] = "load($type, path, *, ops=None, kernels=None)\n--\n\n"
                               "Loads and checks a plan file, by save() or `weft compile`.\n\n"
                               "ops: JSON file that declares operators of the plan which Weft does "
                               "not know; kernels: plugin (.so), or\n"
                               "several, that has their kernels.\n"
                               "Raises WeftNotFoundError, WeftFormatError (what is wrong and "
                               "where), WeftUnsupportedError (a newer format).";
static const char save_doc[] =
    "save($self, path, /)\n--\n\nWrites the plan to a file: all or nothing. "
    "Any rank may, and one is enough.";
static const char explain_doc[] = "explain($self, json=False)\n--\n\n"
                                  "Says what was made of the model: buckets and their members, "
                                  "bytes, algorithms, streams, memory, copied bytes.\n"
                                  "A text for people, or with json a dict with stable keys.";
static const char compare_doc[] = "compare($self)\n--\n\n"
                                  "A table for people: what each bucket policy was predicted to "
                                  "come to when the plan was compiled.";
static const char why_doc[] =
    "why($self, tensor, /)\n--\n\n"
    "Says when the communication of a gradient (its name, or its parameter's) is predicted to run "
    "and, where it ends\n"
    "behind the backward pass, why. Raises WeftNotFoundError if the plan reduces no such gradient.";
static const char info_doc[] =
    "Facts, a new dict: model, kind ('training' or 'inference'), world, batch (samples per rank "
    "and micro-batch),\n"
    "optimizer, policy, accumulate, global_micro_batches, sharded, decoupled, clip_norm, "
    "split_batch, "
    "rank_weights, has_eval, device,\n"
    "bits ('cpu': f32 results are those of the CPU's exact kernels; 'device': those of the "
    "device),\n"
    "buckets, arena_bytes, live_bytes, fusion_copied_bytes, structure_digest, weights_digest.";
static const char bindings_doc[] = "What goes in and comes out, a new list of dicts: name, role "
                                   "('input', 'label', 'scalar', 'loss', 'logits',\n"
                                   "'output'), dtype, shape (per rank), and of scalars default. "
                                   "Inputs are in the order of Session.step().";

static PyMethodDef methods[] = {
    {"load", (PyCFunction)(void (*)(void))plan_load, METH_CLASS | METH_FASTCALL | METH_KEYWORDS,
     load_doc}, /* with METH_METHOD it would have no __doc__ */
    {"save", plan_save, METH_O, save_doc},
    {"explain", (PyCFunction)(void (*)(void))plan_explain, METH_FASTCALL | METH_KEYWORDS,
     explain_doc},
    {"compare", plan_compare, METH_NOARGS, compare_doc},
    {"why", plan_why, METH_O, why_doc},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef getters[] = {
    {"info", plan_info, NULL, info_doc, NULL},
    {"bindings", plan_bindings, NULL, bindings_doc, NULL},
    {"world", plan_world, NULL, "Ranks that the plan is for.", NULL},
    {"batch", plan_batch, NULL, "Samples of a rank per step (per micro-batch).", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_new, wp_type_no_new},
    {Py_tp_dealloc, plan_dealloc},
    {Py_tp_repr, plan_repr},
    {Py_tp_methods, methods},
    {Py_tp_getset, getters},
    {Py_tp_doc, (void *)plan_doc},
    {0, NULL},
};

static PyType_Spec spec = {
    "weft.Plan", sizeof(wp_plan_t), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE, slots,
};

int wp_plan_init(PyObject *module, wp_state_t *state)
{
    return wp_type_add(module, &spec, &state->plan_type) < 0 ? -1 : wp_compile_init(module, state);
}
