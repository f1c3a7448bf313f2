/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls of torch process groups that nobody waits for later: made at once, if the tensors are as the
 * C library takes them. Whatever else they are, and whatever is wrong with them, is left to the
 * methods in Python: nothing has happened then.
 */
#include "python/src/collectives.h"

#include <string.h>

enum { NAME_ASYNC, NAME_REDUCTION, NAME_ROOT, NAMES };
static PyObject *names[NAMES]; /* attributes of torch's options, interned */

/* A method's arguments: one list of tensors, or output and input; then options. */
typedef struct arguments {
    PyObject *first, *second, *options;
    PyObject *words; /* {hash of a ReduceOp: word} */
} arguments_t;

/* False also where torch's options have no such attribute. */
static bool caller_waits(PyObject *options)
{
    PyObject *async = PyObject_GetAttr(options, names[NAME_ASYNC]);
    Py_XDECREF(async);
    return async == Py_False;
}

static bool take_reduction(const arguments_t *arguments, wp_call_t *call)
{
    PyObject *reduction = PyObject_GetAttr(arguments->options, names[NAME_REDUCTION]);
    Py_hash_t hash = reduction != NULL ? PyObject_Hash(reduction) : -1;
    PyObject *number = hash != -1 ? PyLong_FromSsize_t(hash) : NULL;
    PyObject *word = number != NULL ? PyDict_GetItem(arguments->words, number) : NULL;
    Py_XDECREF(number);
    Py_XDECREF(reduction);
    return word != NULL && wp_reduction(word, &call->reduction) == 0;
}

static bool take_root(const arguments_t *arguments, wp_call_t *call)
{
    PyObject *root = PyObject_GetAttr(arguments->options, names[NAME_ROOT]);
    bool taken = root != NULL && wp_index(root, "root", call->group->size - 1, &call->root) == 0;
    Py_XDECREF(root);
    return taken;
}

/* A dense tensor of a type that also travels as itself: bool does not (weft/torch/layout.py). */
static bool take(wp_state_t *state, PyObject *tensor, wp_array_flags_t flags, wp_array_t *out)
{
    return wp_array_get(state, tensor, "tensor", flags, out) == 0 && out->kind == WP_TORCH &&
           out->dtype != WEFT_DTYPE_BOOL;
}

static bool take_in_place(wp_state_t *state, const arguments_t *arguments, wp_call_t *call)
{
    PyObject *tensors = arguments->first;
    if (!PyList_Check(tensors) || PyList_Size(tensors) != 1 ||
        !take(state, PyList_GetItem(tensors, 0), WP_WRITE | WP_SHAPE, &call->send)) {
        return false;
    }
    call->recv.data = call->send.data;
    call->count = call->send.count;
    return true;
}

/* send_blocks, recv_blocks: how many blocks of call->count the tensors have. */
static bool take_two(wp_state_t *state, const arguments_t *arguments, wp_call_t *call,
                     uint32_t send_blocks, uint32_t recv_blocks)
{
    uint64_t rank = call->group->rank;
    if (!take(state, arguments->second, WP_READ | WP_SHAPE, &call->send) ||
        !take(state, arguments->first, WP_WRITE, &call->recv) ||
        call->recv.dtype != call->send.dtype) {
        return false;
    }
    call->count = call->send.count / send_blocks;
    return call->send.count == call->count * send_blocks &&
           call->recv.count == call->count * recv_blocks &&
           wp_call_overlap(call, call->send.count, call->recv.count, rank * call->count) == 0;
}

static bool fill(wp_state_t *state, const arguments_t *arguments, wp_call_t *call)
{
    uint32_t size = call->group->size;
    switch (call->op) {
    case WEFT_COLLECTIVE_ALL_GATHER:
        return take_two(state, arguments, call, 1, size);
    case WEFT_COLLECTIVE_REDUCE_SCATTER:
        return take_reduction(arguments, call) && take_two(state, arguments, call, size, 1) &&
               call->send.rank > 0 && call->send.dims[0] % size == 0;
    case WEFT_COLLECTIVE_BROADCAST:
        return take_root(arguments, call) && take_in_place(state, arguments, call);
    default:
        return take_reduction(arguments, call) && take_in_place(state, arguments, call);
    }
}

static PyObject *now(PyObject *module, weft_collective_t op, PyObject *args, Py_ssize_t expected)
{
    wp_options_t options = {.state = wp_state_of(module)};
    PyObject *group, *tuple;
    arguments_t arguments = {0};
    wp_call_t call;
    if (!PyArg_ParseTuple(args, "O!O!O!", options.state->group_type, &group, &PyTuple_Type, &tuple,
                          &PyDict_Type, &arguments.words)) {
        return NULL;
    }
    options.group = (wp_group_t *)group;
    if (PyTuple_Size(tuple) != expected || options.group->batch != NULL) {
        Py_RETURN_FALSE;
    }
    arguments.first = PyTuple_GetItem(tuple, 0);
    arguments.second = PyTuple_GetItem(tuple, expected - 2);
    arguments.options = PyTuple_GetItem(tuple, expected - 1);
    wp_call_begin(&call, op, &options);
    if (!caller_waits(arguments.options) || !fill(options.state, &arguments, &call)) {
        PyErr_Clear();
        wp_call_release(&call);
        Py_RETURN_FALSE;
    }
    call.result = Py_NewRef(Py_True);
    return wp_call_end(&call, &options);
}

#define WP_NOW(name, op, expected)                                                                 \
    static PyObject *name(PyObject *module, PyObject *args)                                        \
    {                                                                                              \
        return now(module, WEFT_COLLECTIVE_##op, args, expected);                                  \
    }
WP_NOW(allreduce, ALL_REDUCE, 2)
WP_NOW(broadcast, BROADCAST, 2)
WP_NOW(allgather, ALL_GATHER, 3)
WP_NOW(reduce_scatter, REDUCE_SCATTER, 3)

#define WP_NOW_DOC                                                                                 \
    "(group, arguments, words)\n--\n\n"                                                            \
    "For weft.torch: makes the call of a method's arguments, if the options among them say that\n" \
    "its caller waits, and returns True. False: it is not for here, and nothing has happened."
static PyMethodDef functions[] = {
    {"_torch_allreduce", allreduce, METH_VARARGS, "_torch_allreduce" WP_NOW_DOC},
    {"_torch_broadcast", broadcast, METH_VARARGS, "_torch_broadcast" WP_NOW_DOC},
    {"_torch_allgather", allgather, METH_VARARGS, "_torch_allgather" WP_NOW_DOC},
    {"_torch_reduce_scatter", reduce_scatter, METH_VARARGS, "_torch_reduce_scatter" WP_NOW_DOC},
    {NULL, NULL, 0, NULL},
};

int wp_torch_now_init(PyObject *module, wp_state_t *state)
{
    static const char *const texts[NAMES] = {"asyncOp", "reduceOp", "rootRank"};
    (void)state;
    for (int i = 0; i < NAMES; i++) {
        names[i] = PyUnicode_InternFromString(texts[i]);
        if (names[i] == NULL) {
            return -1;
        }
    }
    return PyModule_AddFunctions(module, functions);
}
