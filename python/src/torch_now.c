/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls of torch process groups that nobody waits for later: made at once, if the tensors are as
 * the C library takes them. Whatever else they are, and whatever is wrong with them, is left to the
 * methods in Python: nothing has happened then.
 *
 * A process group has functools.partial objects of these functions as attributes: they cost no
 * frame of Python, and torch's C++ code would take a builtin method for one of its own.
 */
#include "python/src/collectives.h"

#include <string.h>

enum { NAME_ASYNC, NAME_REDUCTION, NAME_ROOT, NAMES };
static PyObject *names[NAMES]; /* attributes of torch's options, interned */

/* What a partial has: the places of a tuple that weft/torch/observed.py makes. */
enum {
    OWN_CALLS,    /* [number of calls] */
    OWN_GROUP,    /* weft.Group */
    OWN_WORDS,    /* {hash of a ReduceOp: word} */
    OWN_KEPT,     /* [works under way, of each process group] */
    OWN_WORKS,    /* those of this one, a dict */
    OWN_PROFILED, /* () -> whether torch's profiler runs */
    OWN_DONE,     /* what a call returns */
    OWN_OWNER,    /* weakref to the process group */
    OWN_METHOD,   /* (process group, ..): all other calls */
    OWN_ITEMS
};

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

static PyObject *of(PyObject *own, int place)
{
    return PyTuple_GetItem(own, place);
}

static bool is_own(const wp_state_t *state, PyObject *own)
{
    return PyTuple_Check(own) && PyTuple_Size(own) == OWN_ITEMS &&
           PyList_Check(of(own, OWN_CALLS)) && PyList_Size(of(own, OWN_CALLS)) == 1 &&
           Py_TYPE(of(own, OWN_GROUP)) == state->group_type && PyDict_Check(of(own, OWN_WORDS)) &&
           PyList_Check(of(own, OWN_KEPT)) && PyWeakref_Check(of(own, OWN_OWNER));
}

/* Whether works of other process groups are under way: they go on while a work is waited for. */
static bool others_work(PyObject *own)
{
    PyObject *kept = of(own, OWN_KEPT);
    for (Py_ssize_t i = 0; i < PyList_Size(kept); i++) {
        PyObject *works = PyList_GetItem(kept, i);
        if (works != of(own, OWN_WORKS) && PyDict_Size(works) != 0) {
            return true;
        }
    }
    return false;
}

static bool profiled(PyObject *own)
{
    PyObject *is = PyObject_CallObject(of(own, OWN_PROFILED), NULL);
    Py_XDECREF(is);
    return is != Py_False;
}

static PyObject *by_method(PyObject *own, PyObject *const *args, Py_ssize_t count,
                           PyObject *keywords)
{
    Py_ssize_t named = keywords != NULL ? PyTuple_Size(keywords) : 0;
    PyObject *tuple = PyTuple_New(count + 1), *dict = PyDict_New(), *result = NULL;
    PyObject *owner = PyWeakref_GetObject(of(own, OWN_OWNER));
    int status = tuple != NULL && dict != NULL ? PyTuple_SetItem(tuple, 0, Py_NewRef(owner)) : -1;
    for (Py_ssize_t i = 0; status == 0 && i < count; i++) {
        status = PyTuple_SetItem(tuple, i + 1, Py_NewRef(args[i]));
    }
    for (Py_ssize_t i = 0; status == 0 && i < named; i++) {
        status = PyDict_SetItem(dict, PyTuple_GetItem(keywords, i), args[count + i]);
    }
    if (status == 0) {
        result = PyObject_Call(of(own, OWN_METHOD), tuple, dict);
    }
    Py_XDECREF(tuple);
    Py_XDECREF(dict);
    return result;
}

static int count_call(PyObject *calls)
{
    PyObject *next = PyLong_FromLong(PyLong_AsLong(PyList_GetItem(calls, 0)) + 1);
    return next != NULL ? PyList_SetItem(calls, 0, next) : -1;
}

static PyObject *now(PyObject *module, weft_collective_t op, PyObject *const *args,
                     Py_ssize_t count, PyObject *keywords, Py_ssize_t expected)
{
    wp_options_t options = {.state = wp_state_of(module)};
    PyObject *own = count > 0 ? args[0] : NULL;
    wp_call_t call;
    if (own == NULL || !is_own(options.state, own)) {
        return PyErr_Format(PyExc_TypeError, "for weft.torch only");
    }
    options.group = (wp_group_t *)of(own, OWN_GROUP);
    args++, count--;
    if (count != expected || keywords != NULL || options.group->batch != NULL || others_work(own) ||
        profiled(own)) {
        PyErr_Clear();
        return by_method(own, args, count, keywords);
    }
    arguments_t arguments = {args[0], args[expected - 2], args[expected - 1], of(own, OWN_WORDS)};
    wp_call_begin(&call, op, &options);
    if (!caller_waits(arguments.options) || !fill(options.state, &arguments, &call)) {
        PyErr_Clear();
        wp_call_release(&call);
        return by_method(own, args, count, NULL);
    }
    call.result = Py_NewRef(of(own, OWN_DONE));
    return count_call(of(own, OWN_CALLS)) < 0 ? wp_call_fail(&call) : wp_call_end(&call, &options);
}

#define WP_NOW(name, op, expected)                                                                 \
    static PyObject *name(PyObject *module, PyObject *const *args, Py_ssize_t count,               \
                          PyObject *keywords)                                                      \
    {                                                                                              \
        return now(module, WEFT_COLLECTIVE_##op, args, count, keywords, expected);                 \
    }
WP_NOW(allreduce, ALL_REDUCE, 2)
WP_NOW(broadcast, BROADCAST, 2)
WP_NOW(allgather, ALL_GATHER, 3)
WP_NOW(reduce_scatter, REDUCE_SCATTER, 3)

#define WP_NOW_ROW(name)                                                                           \
    {                                                                                              \
        "_torch_" #name, WP_FUNCTION(name), METH_FASTCALL | METH_KEYWORDS,                         \
            "(own, ..)\n--\n\n"                                                                    \
            "For weft.torch: makes the call of a method's arguments, if the options among them "   \
            "say that\n"                                                                           \
            "its caller waits; otherwise calls the method."                                        \
    }
static PyMethodDef functions[] = {
    WP_NOW_ROW(allreduce),      WP_NOW_ROW(broadcast), WP_NOW_ROW(allgather),
    WP_NOW_ROW(reduce_scatter), {NULL, NULL, 0, NULL},
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
