/* SPDX-License-Identifier: Apache-2.0 */
/* weft.compile: the options of `weft compile` as arguments. */
#include "python/src/session.h"

#include <stdlib.h>
#include <string.h>

enum {
    MODEL,
    WORLD,
    BATCH,
    SHAPE,
    LOSS,
    OPTIMIZER,
    LR,
    MOMENTUM,
    WEIGHT_DECAY,
    BUCKET,
    COSTS,
    TOPOLOGY,
    SHARD_OPTIMIZER,
    DECOUPLE,
    ACCUMULATE,
    GLOBAL_MICRO_BATCHES,
    WIRE,
    CLIP,
    GRADS,
    IN_FLIGHT,
    ARENA_LIMIT,
    INFER,
    SPLIT_BATCH,
    OPS,
    KERNELS,
    PROFILE,
    EMIT_ONNX,
    ARGUMENTS,
};

static const char *const names[] = {
    "model",
    "world",
    "batch",
    "shape",
    "loss",
    "optimizer",
    "lr",
    "momentum",
    "weight_decay",
    "bucket",
    "costs",
    "topology",
    "shard_optimizer",
    "decouple",
    "accumulate",
    "global_micro_batches",
    "wire",
    "clip",
    "grads",
    "in_flight",
    "arena_limit",
    "infer",
    "split_batch",
    "ops",
    "kernels",
    "profile",
    "emit_onnx",
    NULL,
};

/* Warnings of the compiler, to be said when the GIL is held again. */
typedef struct notes {
    pthread_mutex_t lock;
    char *lines[16];
    size_t count;
} notes_t;

typedef struct reader {
    wp_state_t *state;
    PyObject **given;
    PyObject *keep; /* list of what params points into */
    weft_compile_params_t params;
    weft_input_shape_t *shapes;
    const char **models;
    notes_t notes;
} reader_t;

static void note(void *user, weft_log_level_t level, const char *line)
{
    notes_t *notes = user;
    if (level > WEFT_LOG_WARN) {
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

/* " (argument 'world')": the argument that sets the field of the last error, where it has another
 * name; "" elsewhere. */
static const char *argument_note(char *out, size_t bytes)
{
    static const char *const arguments[][2] = {
        {"model_path", "model"},    {"rank_models", "model"}, {"world_size", "world"},
        {"shapes", "shape"},        {"costs_path", "costs"},  {"topology_path", "topology"},
        {"clip_norm", "clip"},      {"grads_path", "grads"},  {"profile_path", "profile"},
        {"emit_path", "emit_onnx"},
    };
    const char *field = weft_last_error_field();
    out[0] = '\0';
    for (size_t i = 0; field != NULL && i < sizeof arguments / sizeof *arguments; i++) {
        if (strcmp(field, arguments[i][0]) == 0) {
            PyOS_snprintf(out, bytes, " (argument '%s')", arguments[i][1]);
        }
    }
    return out;
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
static PyObject *argument(const reader_t *reader, int index)
{
    PyObject *object = reader->given[index];
    return object == Py_None ? NULL : object;
}

static int path_argument(reader_t *reader, int index, const char **out)
{
    return wp_value_path(reader->given[index], names[index], reader->keep, out);
}

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

static int read_shapes(reader_t *reader)
{
    PyObject *object = argument(reader, SHAPE);
    if (object == NULL) {
        return 0;
    }
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

static int read_model(reader_t *reader)
{
    PyObject *model = reader->given[MODEL];
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

/* Where nothing is said: as many as there are models, else as many as there are ranks. */
static int read_world(reader_t *reader)
{
    weft_compile_params_t *params = &reader->params;
    if (argument(reader, WORLD) != NULL) {
        return wp_value_count(reader->given[WORLD], names[WORLD], 1024, &params->world_size);
    }
    if (params->rank_model_count > 0) {
        params->world_size = params->rank_model_count;
    } else if (params->topology_path == NULL && reader->state->world != NULL) {
        params->world_size = reader->state->world->size;
    }
    return 0;
}

static int read_params(reader_t *reader)
{
    weft_compile_params_t *params = &reader->params;
    uint32_t batch = 0;
    if (read_model(reader) < 0 || path_argument(reader, TOPOLOGY, &params->topology_path) < 0 ||
        read_world(reader) < 0 ||
        wp_value_count(reader->given[BATCH], names[BATCH], INT32_MAX, &batch) < 0 ||
        read_shapes(reader) < 0 ||
        wp_value_text(reader->given[LOSS], names[LOSS], &params->loss) < 0 ||
        wp_value_text(reader->given[OPTIMIZER], names[OPTIMIZER], &params->optimizer) < 0 ||
        wp_value_number(reader->given[LR], names[LR], false, &params->lr) < 0 ||
        wp_value_number(reader->given[MOMENTUM], names[MOMENTUM], false, &params->momentum) < 0 ||
        wp_value_number(reader->given[WEIGHT_DECAY], names[WEIGHT_DECAY], true,
                        &params->weight_decay) < 0 ||
        wp_value_text(reader->given[BUCKET], names[BUCKET], &params->bucket) < 0 ||
        path_argument(reader, COSTS, &params->costs_path) < 0 ||
        wp_value_flag(reader->given[SHARD_OPTIMIZER], names[SHARD_OPTIMIZER],
                      &params->shard_optimizer) < 0 ||
        wp_value_flag(reader->given[DECOUPLE], names[DECOUPLE], &params->decouple) < 0 ||
        wp_value_count(reader->given[ACCUMULATE], names[ACCUMULATE], 65536, &params->accumulate) <
            0 ||
        wp_value_count(reader->given[GLOBAL_MICRO_BATCHES], names[GLOBAL_MICRO_BATCHES], 65536,
                       &params->global_micro_batches) < 0 ||
        wp_value_text(reader->given[WIRE], names[WIRE], &params->wire) < 0 ||
        wp_value_number(reader->given[CLIP], names[CLIP], false, &params->clip_norm) < 0 ||
        path_argument(reader, GRADS, &params->grads_path) < 0 ||
        wp_value_count(reader->given[IN_FLIGHT], names[IN_FLIGHT], 65536, &params->in_flight) < 0 ||
        wp_value_size(reader->given[ARENA_LIMIT], names[ARENA_LIMIT], &params->arena_limit) < 0 ||
        wp_value_flag(reader->given[INFER], names[INFER], &params->infer) < 0 ||
        wp_value_flag(reader->given[SPLIT_BATCH], names[SPLIT_BATCH], &params->split_batch) < 0 ||
        path_argument(reader, PROFILE, &params->profile_path) < 0 ||
        path_argument(reader, EMIT_ONNX, &params->emit_path) < 0) {
        return -1;
    }
    params->batch = batch;
    params->open_batch = 1;
    return 0;
}

static PyObject *run(reader_t *reader)
{
    weft_plan_t *plan = NULL;
    weft_registry_t *registry = NULL;
    weft_status_t status;
    if (read_params(reader) < 0 ||
        wp_registry_of(reader->state, reader->given[OPS], reader->given[KERNELS], &registry) < 0) {
        return NULL;
    }
    reader->params.registry = registry;
    reader->params.log = note;
    reader->params.log_user = &reader->notes;
    PyThreadState *thread = PyEval_SaveThread();
    status = weft_compile(&reader->params, &plan);
    PyEval_RestoreThread(thread);
    if (status < 0) {
        char note_text[64];
        PyObject *error = wp_raise_text(reader->state, status, "%s%s", weft_last_error(),
                                        argument_note(note_text, sizeof note_text));
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
    PyObject *given[ARGUMENTS];
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

static const char doc[] =
    "compile(model, *, world=None, batch=None, shape=None, loss=None, optimizer=None, lr=None, "
    "momentum=None, "
    "weight_decay=None, bucket=None, costs=None, topology=None, shard_optimizer=False, "
    "decouple=False, "
    "accumulate=None, global_micro_batches=None, wire=None, clip=None, grads=None, in_flight=None, "
    "arena_limit=None, infer=False, "
    "split_batch=False, ops=None, kernels=None, profile=None, emit_onnx=None)\n--\n\n"
    "Compiles an ONNX model into a Plan: a model with a loss into one that trains it on all ranks, "
    "with infer any\n"
    "model into one that runs it. Not collective: ranks may each compile, and get the same plan "
    "from the same\n"
    "arguments, or one compiles and saves. Arguments are those of the command `weft compile`:\n\n"
    "model            path of an ONNX file, or of a graph that emit_onnx wrote (whose arguments "
    "then are the\n"
    "                 default and cannot be others); an onnx.ModelProto; with infer also a list of "
    "paths, one per\n"
    "                 rank, of models that are equal except for initializers\n"
    "world            ranks that the plan is for; default those of weft.init()'s world, without "
    "one there is none\n"
    "batch            samples per rank and step (per micro-batch with accumulate); default what "
    "the file says, 1\n"
    "                 with a warning where it leaves that open\n"
    "shape            {'input': (64, 1, 28, 28), ..}: shapes of inputs that the file leaves open\n"
    "loss             the loss output, where there are several loss nodes\n"
    "optimizer        'sgd', 'momentum' (default), 'adam'\n"
    "lr               default of the scalar input 'lr': 0.05, adam 0.001\n"
    "momentum         0.9; weight_decay 0\n"
    "bucket           'auto[:CAP]' (default: the fewest buckets within 0.1 % of the predicted "
    "optimum),\n"
    "                 'mgwfbp[:CAP]', 'bytes:25M[,time:5ms]', 'index:0,4,9', 'percent:60,40', "
    "'one', 'none'\n"
    "costs            file of measured costs of collectives, by `weft tune`\n"
    "topology         file that describes hosts, ranks and links\n"
    "shard_optimizer  a rank updates its shard of the weights and keeps only that optimizer state\n"
    "decouple         updated weights are gathered under the next forward pass (implies "
    "shard_optimizer)\n"
    "accumulate       micro-batches of a rank per step\n"
    "global_micro_batches\n"
    "                 micro-batches of all ranks per step: weights have the same bits for 1 rank "
    "and "
    "for N ranks\n"
    "                 where global_micro_batches / N is a power of two\n"
    "wire             type in which gradients travel: 'f32' (default), 'bf16'\n"
    "clip             gradients are scaled down where their global norm is above this\n"
    "grads            JSON file: which tensors of the graph are the gradients of what\n"
    "in_flight        most collectives issued and not yet waited for\n"
    "arena_limit      most bytes of the arena, a number or a text such as '64M'\n"
    "infer            no training: the graph as it is, with its collectives\n"
    "split_batch      with infer: batch is that of all ranks; rank 0's is scattered, its results "
    "are gathered\n"
    "ops, kernels     JSON file that declares operators; plugin(s) that have kernels\n"
    "profile          measured times, by Session.write_profile() or `weft run --write-profile`\n"
    "emit_onnx        where the compiled graph is written as ONNX, too\n\n"
    "Warnings of the compiler are UserWarnings. Raises WeftNotFoundError, WeftFormatError, "
    "WeftUnsupportedError\n"
    "(operator and node are named), WeftArgumentError (the argument is named).";

static PyMethodDef functions[] = {
    {"compile", (PyCFunction)(void (*)(void))compile, METH_FASTCALL | METH_KEYWORDS, doc},
    {NULL, NULL, 0, NULL},
};

int wp_compile_init(PyObject *module, wp_state_t *state)
{
    (void)state;
    return PyModule_AddFunctions(module, functions);
}
