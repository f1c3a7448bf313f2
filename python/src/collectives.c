/* SPDX-License-Identifier: Apache-2.0 */
/* The operators: arguments to a call, its result's memory, and off it goes. */
#include "python/src/weft_python.h"

#include <string.h>

/* What all operators take after their own arguments; read from their places. */
typedef struct options {
    wp_state_t *state;
    wp_group_t *group;
    wp_stream_t *stream;
    bool async;
} options_t;

static int read_options(PyObject *module, PyObject *group, PyObject *async, PyObject *stream,
                        options_t *out)
{
    out->state = wp_state_of(module);
    out->group = wp_group_of(out->state, group);
    out->stream = NULL;
    out->async = false;
    if (out->group == NULL) {
        return -1;
    }
    if (async != NULL && async != Py_False) {
        int truth = PyObject_IsTrue(async);
        if (truth < 0) {
            return -1;
        }
        out->async = truth != 0;
    }
    return stream != NULL ? wp_stream_of(out->state, stream, &out->stream) : 0;
}

static void begin_call(wp_call_t *call, weft_collective_t op, const options_t *options)
{
    memset(call, 0, sizeof *call);
    call->op = op;
    call->group = options->group;
}

static PyObject *finish(wp_call_t *call, const options_t *options)
{
    return wp_call_finish(options->state, call, options->async, options->stream);
}

static PyObject *fail(wp_call_t *call)
{
    wp_call_release(call);
    return NULL;
}

/* ---- all_reduce ---- */
static PyObject *all_reduce_(PyObject *module, PyObject *const *args, Py_ssize_t count,
                             PyObject *keywords)
{
    static const char *const names[] = {"tensor", "op", "group", "async_op", "stream", NULL};
    PyObject *places[5];
    options_t options;
    wp_call_t call;
    if (wp_parse("all_reduce_", args, count, keywords, names, 1, 3, places) < 0 ||
        read_options(module, places[2], places[3], places[4], &options) < 0) {
        return NULL;
    }
    begin_call(&call, WEFT_OP_ALL_REDUCE, &options);
    if (wp_reduction(places[1], &call.reduction) < 0 ||
        wp_array_get(options.state, places[0], "tensor", WP_WRITE, &call.send) < 0) {
        return fail(&call);
    }
    call.recv.data = call.send.data;
    call.count = call.send.count;
    call.result = Py_NewRef(places[0]);
    return finish(&call, &options);
}

/* Memory for a result like call->send with dims (NULL: its own), or out if that fits. */
static int result_memory(wp_state_t *state, wp_call_t *call, PyObject *out, uint32_t rank,
                         const int64_t *dims, uint64_t count)
{
    if (out == NULL || out == Py_None) {
        if (wp_array_new(state, &call->send, rank, dims, &call->recv) < 0) {
            return -1;
        }
    } else {
        if (wp_array_get(state, out, "out", WP_WRITE, &call->recv) < 0) {
            return -1;
        }
        if (call->recv.count != count || call->recv.dtype != call->send.dtype) {
            PyErr_Format(PyExc_ValueError, "out: %llu x %s, the result is %llu x %s",
                         (unsigned long long)call->recv.count, wp_dtype_name(call->recv.dtype),
                         (unsigned long long)count, wp_dtype_name(call->send.dtype));
            return -1;
        }
    }
    call->result = Py_NewRef(call->recv.object);
    return 0;
}

static PyObject *all_reduce(PyObject *module, PyObject *const *args, Py_ssize_t count,
                            PyObject *keywords)
{
    static const char *const names[] = {"tensor", "op", "group", "out", "async_op", "stream", NULL};
    PyObject *places[6];
    options_t options;
    wp_call_t call;
    if (wp_parse("all_reduce", args, count, keywords, names, 1, 3, places) < 0 ||
        read_options(module, places[2], places[4], places[5], &options) < 0) {
        return NULL;
    }
    begin_call(&call, WEFT_OP_ALL_REDUCE, &options);
    wp_array_flags_t flags = places[3] == NULL ? WP_SHAPE : WP_READ;
    if (wp_reduction(places[1], &call.reduction) < 0 ||
        wp_array_get(options.state, places[0], "tensor", flags, &call.send) < 0 ||
        result_memory(options.state, &call, places[3], 0, NULL, call.send.count) < 0) {
        return fail(&call);
    }
    call.count = call.send.count;
    return finish(&call, &options);
}

static PyObject *barrier(PyObject *module, PyObject *const *args, Py_ssize_t count,
                         PyObject *keywords)
{
    static const char *const names[] = {"group", "async_op", "stream", NULL};
    PyObject *places[3];
    options_t options;
    wp_call_t call;
    if (wp_parse("barrier", args, count, keywords, names, 0, 1, places) < 0 ||
        read_options(module, places[0], places[1], places[2], &options) < 0) {
        return NULL;
    }
    begin_call(&call, WEFT_OP_BARRIER, &options);
    return finish(&call, &options);
}

static PyMethodDef functions[] = {
    {"all_reduce", (PyCFunction)(void (*)(void))all_reduce, METH_FASTCALL | METH_KEYWORDS,
     "all_reduce($module, tensor, op='sum', group=None, *, out=None, async_op=False, "
     "stream=None)\n--\n\n"},
    {"all_reduce_", (PyCFunction)(void (*)(void))all_reduce_, METH_FASTCALL | METH_KEYWORDS,
     "all_reduce_($module, tensor, op='sum', group=None, *, async_op=False, stream=None)\n--\n\n"},
    {"barrier", (PyCFunction)(void (*)(void))barrier, METH_FASTCALL | METH_KEYWORDS,
     "barrier($module, group=None, *, async_op=False, stream=None)\n--\n\n"},
    {NULL, NULL, 0, NULL},
};

int wp_collectives_init(PyObject *module, wp_state_t *state)
{
    (void)state;
    return PyModule_AddFunctions(module, functions);
}
