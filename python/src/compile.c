/* SPDX-License-Identifier: Apache-2.0 */
/* weft.compile: the options of `weft compile` as arguments. */
#include "python/src/session.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_ARGUMENTS 64
#define INDENT 24

/* The arguments are the options that have a name; wp_compile_init fills these tables. */
static const weft_compile_option_t *options[MAX_ARGUMENTS];
static const char *names[MAX_ARGUMENTS + 1];
static char doc[16384];

/* Warnings of the compiler, to be said when the GIL is held again. */
typedef struct notes {
    pthread_mutex_t lock;
    char *lines[16];
    size_t count;
} notes_t;

typedef struct reader {
    wp_state_t *state;
    PyObject **given;
    PyObject *ops, *kernels; /* NULL: not given; borrowed */
    PyObject *keep;          /* list of what params points into */
    weft_compile_params_t params;
    weft_input_shape_t *shapes;
    const char **models;
    notes_t notes;
} reader_t;

static void note(void *user, weft_log_level_t level, const char *line)
{
    notes_t *notes = user;
    if (level > WEFT_LOG_LEVEL_WARN) {
        return;
    }
    pthread_mutex_lock(&notes->lock);
    if (notes->count < sizeof notes->lines / sizeof notes->lines[0]) {
        char *copy = strdup(line);
        if (copy != NULL) {
            notes->lines[notes->count++] = copy;
        }
    }
    pthread_mutex_unlock(&notes->lock);
}

/* Raises the library's last error, with the argument that sets its field where that has another
 * name. */
static PyObject *raise_error(wp_state_t *state, weft_status_t status)
{
    const char *field = weft_last_error_field();
    const weft_compile_option_t *option;
    for (size_t i = 0; field != NULL && (option = weft_compile_option(i)) != NULL; i++) {
        if (option->name != NULL && strcmp(option->field, field) == 0 &&
            strcmp(option->name, field) != 0) {
            return wp_raise_text(state, status, "%s (argument '%s')", weft_last_error(),
                                 option->name);
        }
    }
    return wp_raise(state, status);
}

static int say_notes(const notes_t *notes)
{
    int status = 0;
    for (size_t i = 0; i < notes->count && status == 0; i++) {
        status = PyErr_WarnEx(PyExc_UserWarning, notes->lines[i], 1);
    }
    return status;
}

/* ---- arguments to fields: 0, or -1 with an exception ---- */
/* Takes object over. */
static int keep(reader_t *reader, PyObject *object)
{
    int status = object != NULL ? PyList_Append(reader->keep, object) : -1;
    Py_XDECREF(object);
    return status;
}

/* ---- shapes: {"images": (64, 1, 28, 28), ..} ---- */
static int read_dims(PyObject *name, PyObject *object, weft_input_shape_t *shape)
{
    PyObject *dims = PySequence_Tuple(object);
    Py_ssize_t count = dims != NULL ? PyTuple_Size(dims) : -1;
    if (count > WEFT_MAX_DIMS) {
        PyErr_Format(PyExc_ValueError, "shape of %R has too many dimensions: at most %d", name,
                     WEFT_MAX_DIMS);
        count = -1;
    }
    for (Py_ssize_t d = 0; d < count; d++) {
        uint32_t dim = 0;
        if (wp_index(PyTuple_GetItem(dims, d), "a dimension of shape", INT32_MAX, &dim) < 0) {
            count = -1;
            break;
        }
        shape->dims[d] = dim;
    }
    shape->rank = count > 0 ? (uint32_t)count : 0;
    Py_XDECREF(dims);
    return count < 0 ? -1 : 0;
}

static int read_shapes(reader_t *reader, PyObject *object)
{
    if (!PyDict_Check(object)) {
        PyErr_Format(PyExc_TypeError, "shape must be a dict of inputs' names to shapes, not %R",
                     (PyObject *)Py_TYPE(object));
        return -1;
    }
    Py_ssize_t at = 0;
    PyObject *key, *value;
    object = PyDict_Copy(object); /* dimensions' methods may change the one that was given */
    if (keep(reader, object) < 0) {
        return -1;
    }
    reader->shapes = PyMem_Calloc((size_t)PyDict_Size(object) + 1, sizeof *reader->shapes);
    if (reader->shapes == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    reader->params.shapes = reader->shapes;
    while (PyDict_Next(object, &at, &key, &value)) {
        weft_input_shape_t *shape = &reader->shapes[reader->params.shape_count++];
        if (!PyUnicode_Check(key)) {
            PyErr_Format(PyExc_TypeError, "shape: %R is not the name of an input", key);
            return -1;
        }
        shape->name = PyUnicode_AsUTF8AndSize(key, NULL);
        if (shape->name == NULL || keep(reader, Py_NewRef(key)) < 0 ||
            read_dims(key, value, shape) < 0) {
            return -1;
        }
    }
    return 0;
}

/* ---- the model: a path, a path per rank, or an onnx.ModelProto ---- */
static int read_models(reader_t *reader, PyObject *list)
{
    Py_ssize_t count = PySequence_Size(list);
    if (count < 1) {
        if (count == 0) {
            PyErr_SetString(PyExc_ValueError, "model: the list is empty");
        }
        return -1;
    }
    reader->models = PyMem_Calloc((size_t)count, sizeof *reader->models);
    if (reader->models == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *item = PySequence_GetItem(list, i);
        PyObject *path = item != NULL ? wp_path_of(item, "every model") : NULL;
        Py_XDECREF(item);
        reader->models[i] = path != NULL ? PyBytes_AsString(path) : NULL;
        if (keep(reader, path) < 0) {
            return -1;
        }
    }
    reader->params.model_path = reader->models[0];
    if (count > 1) {
        reader->params.rank_models = reader->models;
        reader->params.rank_model_count = (uint32_t)count;
    }
    return 0;
}

static PyObject *call(PyObject *object, const char *method, PyObject *argument_)
{
    PyObject *function = PyObject_GetAttrString(object, method);
    PyObject *result =
        function != NULL ? PyObject_CallFunctionObjArgs(function, argument_, NULL) : NULL;
    Py_XDECREF(function);
    return result;
}

/* A model that is in memory goes through a file, which goes with its object. */
static int read_proto(reader_t *reader, PyObject *model)
{
    PyObject *module = PyImport_ImportModule("tempfile");
    PyObject *bytes = module != NULL ? call(model, "SerializeToString", NULL) : NULL;
    PyObject *file = bytes != NULL ? call(module, "NamedTemporaryFile", NULL) : NULL;
    PyObject *wrote = file != NULL ? call(file, "write", bytes) : NULL;
    PyObject *flushed = wrote != NULL ? call(file, "flush", NULL) : NULL;
    PyObject *name = flushed != NULL ? PyObject_GetAttrString(file, "name") : NULL;
    PyObject *path = name != NULL ? wp_path_of(name, "model") : NULL;
    int status = path != NULL ? keep(reader, Py_NewRef(file)) : -1;
    if (status == 0) {
        reader->params.model_path = PyBytes_AsString(path);
        status = keep(reader, Py_NewRef(path));
    }
    Py_XDECREF(path);
    Py_XDECREF(name);
    Py_XDECREF(flushed);
    Py_XDECREF(wrote);
    Py_XDECREF(file);
    Py_XDECREF(bytes);
    Py_XDECREF(module);
    return status;
}

static int read_model(reader_t *reader, PyObject *model)
{
    if (PyList_Check(model) || PyTuple_Check(model)) {
        return read_models(reader, model);
    }
    if (PyObject_HasAttrString(model, "SerializeToString")) {
        return read_proto(reader, model);
    }
    PyObject *path = wp_path_of(model, "model");
    reader->params.model_path = path != NULL ? PyBytes_AsString(path) : NULL;
    return keep(reader, path);
}

/* ---- numbers, texts and paths: as text, which the library checks ---- */

/* Takes object over, a str; the text lives as long as the reader. */
static const char *keep_text(reader_t *reader, PyObject *object)
{
    const char *text = object != NULL ? PyUnicode_AsUTF8AndSize(object, NULL) : NULL;
    return keep(reader, object) < 0 ? NULL : text;
}

static const char *text_of(reader_t *reader, const weft_compile_option_t *option, PyObject *object)
{
    bool unicode = PyUnicode_Check(object) != 0, real = option->type == WEFT_OPTION_TYPE_F64;
    const char *expected = real ? "a number" : "an integer";
    PyObject *number = NULL;
    if (option->type == WEFT_OPTION_TYPE_PATH) {
        PyObject *path = wp_path_of(object, option->name);
        const char *text = path != NULL ? PyBytes_AsString(path) : NULL;
        return keep(reader, path) < 0 ? NULL : text;
    }
    if ((option->flags & WEFT_OPTION_FLAG_LIST) != 0 &&
        (PyList_Check(object) || PyTuple_Check(object))) {
        PyObject *comma = PyUnicode_FromString(",");
        PyObject *joined = comma != NULL ? PyUnicode_Join(comma, object) : NULL;
        Py_XDECREF(comma);
        return joined != NULL ? keep_text(reader, joined) : NULL;
    }
    if (unicode &&
        (option->type == WEFT_OPTION_TYPE_TEXT || option->type == WEFT_OPTION_TYPE_BYTES)) {
        return keep_text(reader, Py_NewRef(object));
    }
    if (option->type == WEFT_OPTION_TYPE_TEXT) {
        expected = "a str";
    } else if (!unicode && !PyBytes_Check(object)) { /* float() accepts texts */
        number = real ? PyNumber_Float(object) : PyNumber_Index(object);
    }
    if (number == NULL) {
        if (PyErr_Occurred() == NULL || PyErr_ExceptionMatches(PyExc_TypeError)) {
            PyErr_Format(PyExc_TypeError, "%s must be %s, not %R", option->name, expected,
                         (PyObject *)Py_TYPE(object));
        }
        return NULL;
    }
    const char *text = keep_text(reader, PyObject_Repr(number));
    Py_DECREF(number);
    return text;
}

static int read_argument(reader_t *reader, const weft_compile_option_t *option, PyObject *object)
{
    const char *text = NULL;
    if ((option->flags & WEFT_OPTION_FLAG_POSITIONAL) != 0) {
        return read_model(reader, object);
    }
    if (object == NULL || object == Py_None) {
        return 0;
    }
    if (option->type == WEFT_OPTION_TYPE_SHAPES) {
        return read_shapes(reader, object);
    }
    if (option->type == WEFT_OPTION_TYPE_OPS || option->type == WEFT_OPTION_TYPE_PLUGINS) {
        *(option->type == WEFT_OPTION_TYPE_OPS ? &reader->ops : &reader->kernels) = object;
        return 0;
    }
    if (option->type == WEFT_OPTION_TYPE_FLAG) {
        int flag = PyObject_IsTrue(object);
        if (flag <= 0) {
            return flag;
        }
    } else if ((text = text_of(reader, option, object)) == NULL) {
        return -1;
    }
    weft_status_t status = weft_compile_option_set(&reader->params, option->name, text);
    return status < 0 ? (raise_error(reader->state, status), -1) : 0;
}

static int read_params(reader_t *reader)
{
    weft_compile_params_t *params = &reader->params;
    for (size_t i = 0; names[i] != NULL; i++) {
        if (read_argument(reader, options[i], reader->given[i]) < 0) {
            return -1;
        }
    }
    if (params->world_size == 0 && params->rank_model_count > 0) {
        params->world_size = params->rank_model_count;
    } else if (params->world_size == 0 && params->topology_path == NULL &&
               reader->state->world != NULL) {
        params->world_size = reader->state->world->size;
    }
    params->open_batch = 1;
    return 0;
}

static PyObject *run(reader_t *reader)
{
    weft_plan_t *plan = NULL;
    weft_registry_t *registry = NULL;
    weft_status_t status;
    if (read_params(reader) < 0 ||
        wp_registry_of(reader->state, reader->ops, reader->kernels, &registry) < 0) {
        return NULL;
    }
    reader->params.registry = registry;
    reader->params.log = note;
    reader->params.log_user = &reader->notes;
    PyThreadState *thread = PyEval_SaveThread();
    status = weft_compile(&reader->params, &plan);
    PyEval_RestoreThread(thread);
    if (status < 0) {
        PyObject *error = raise_error(reader->state, status);
        weft_registry_destroy(registry);
        return error;
    }
    PyObject *result = wp_plan_new(reader->state, plan, registry);
    if (result != NULL && say_notes(&reader->notes) < 0) {
        Py_CLEAR(result); /* warnings are errors */
    }
    return result;
}

static PyObject *compile(PyObject *module, PyObject *const *args, Py_ssize_t count,
                         PyObject *keywords)
{
    PyObject *given[MAX_ARGUMENTS];
    if (wp_parse("compile", args, count, keywords, names, 1, 1, given) < 0) {
        return NULL;
    }
    reader_t reader = {.state = wp_state_of(module),
                       .given = given,
                       .keep = PyList_New(0),
                       .params = WEFT_COMPILE_PARAMS_INIT,
                       .notes = {.lock = PTHREAD_MUTEX_INITIALIZER}};
    PyObject *plan = reader.keep != NULL ? run(&reader) : NULL;
    for (size_t i = 0; i < reader.notes.count; i++) {
        free(reader.notes.lines[i]);
    }
    PyMem_Free(reader.shapes);
    PyMem_Free(reader.models);
    Py_XDECREF(reader.keep);
    return plan;
}

/* ---- the docstring, from the table ---- */

static const char intro[] =
    "Compiles an ONNX model into a Plan: a model with a loss into one that trains it on all ranks, "
    "with infer\n"
    "any model into one that runs it. Not collective: ranks may each compile, and get the same "
    "plan "
    "from the\n"
    "same arguments, or one compiles and saves. Arguments are those of the command `weft "
    "compile`:\n\n";

static const char outro[] =
    "\n"
    "model may also be an onnx.ModelProto, and with infer a list of paths, one per rank. shape is "
    "a "
    "dict:\n"
    "{'input': (64, 1, 28, 28), ..}. The default of world is the world of weft.init(), that of "
    "batch "
    "what the\n"
    "file contains, or 1 with a warning. Warnings of the compiler are UserWarnings. Raises "
    "WeftNotFoundError,\n"
    "WeftFormatError, WeftUnsupportedError (operator and node are named), WeftArgumentError (the "
    "field and the\n"
    "argument are named).";

static void WEFT_PRINTF(1, 2) add_doc(const char *format, ...)
{
    size_t used = strlen(doc);
    va_list list;
    va_start(list, format);
    vsnprintf(doc + used, sizeof doc - used, format, list);
    va_end(list);
}

/* Text in lines of at most 100 columns behind the first INDENT. */
static void add_wrapped(const char *text)
{
    size_t column = INDENT;
    while (*text != '\0') {
        size_t length = strcspn(text, " ");
        if (column > INDENT && column + 1 + length > 100) {
            add_doc("\n%*s", INDENT, "");
            column = INDENT;
        }
        add_doc("%s%.*s", column > INDENT ? " " : "", (int)length, text);
        column += length + (column > INDENT);
        text += length + (text[length] == ' ');
    }
    add_doc("\n");
}

static void write_doc(void)
{
    doc[0] = '\0';
    add_doc("compile(model, *");
    for (size_t i = 1; names[i] != NULL; i++) {
        add_doc(", %s=%s", names[i], options[i]->type == WEFT_OPTION_TYPE_FLAG ? "False" : "None");
    }
    add_doc(")\n--\n\n%s", intro);
    for (size_t i = 0, row = 0; names[i] != NULL; row++) {
        if (weft_compile_option(row) == options[i]) {
            char help[512];
            weft_compile_option_help(row, "", help, sizeof help);
            add_doc("%-*s", INDENT, names[i++]);
            add_wrapped(help);
        }
    }
    add_doc("%s", outro);
}

static PyMethodDef functions[] = {
    {"compile", (PyCFunction)(void (*)(void))compile, METH_FASTCALL | METH_KEYWORDS, doc},
    {NULL, NULL, 0, NULL},
};

int wp_compile_init(PyObject *module, wp_state_t *state)
{
    const weft_compile_option_t *option;
    size_t count = 0;
    (void)state;
    for (size_t i = 0; (option = weft_compile_option(i)) != NULL && count < MAX_ARGUMENTS; i++) {
        bool again = option->name != NULL && count > 0 && strcmp(option->name, names[0]) == 0;
        if (option->name != NULL && !again && (option->flags & WEFT_OPTION_FLAG_REPORTED) == 0) {
            options[count] = option;
            names[count++] = option->name;
        }
    }
    write_doc();
    return PyModule_AddFunctions(module, functions);
}
