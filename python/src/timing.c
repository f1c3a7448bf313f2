/* SPDX-License-Identifier: Apache-2.0 */
/* Times collectives as C runs them, for `python -m weft.bench`: what Python adds is the difference.
 */
#include <string.h>
#include <time.h>

#include "python/src/weft_python.h"

enum { ARG_OP, ARG_SEND, ARG_RECV, ARG_TIMES, ARG_CALLS, ARG_REWRITE, ARG_GROUP, ARG_COUNT };

static double now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

/* The operator, and the count that it takes. */
static int set_op(wp_call_t *call, PyObject *name)
{
    uint32_t size = call->group->size;
    for (uint32_t i = 1; i < WP_OPS; i++) {
        const wp_op_t *op = &wp_ops[i];
        if (op->variable || op->send == WEFT_EXTENT_NOTHING || i == WEFT_COLLECTIVE_SEND_RECV ||
            !PyUnicode_Check(name) || PyUnicode_CompareWithASCIIString(name, op->function) != 0) {
            continue;
        }
        uint32_t sends = op->send == WEFT_EXTENT_BLOCKS ? size : 1;
        uint32_t receives = op->recv == WEFT_EXTENT_BLOCKS ? size : 1;
        call->op = (weft_collective_t)i;
        call->count = call->send.count / sends;
        if (call->send.dtype != call->recv.dtype || call->send.count != call->count * sends ||
            call->recv.count != call->count * receives) {
            PyErr_Format(PyExc_ValueError, "%s of %llu elements into %llu with %u ranks",
                         op->function, (unsigned long long)call->send.count,
                         (unsigned long long)call->recv.count, size);
            return -1;
        }
        return 0;
    }
    PyErr_Format(PyExc_ValueError, "unknown operator %R", name);
    return -1;
}

/* blocks times: (rewrite,) barrier, calls calls; times gets us per call. Without the GIL, with the
 * group's lock. */
static weft_status_t time_blocks(const wp_call_t *call, bool rewrite, uint64_t calls, double *times,
                                 uint64_t blocks)
{
    weft_status_t status = WEFT_OK;
    size_t bytes = (size_t)call->send.count * weft_dtype_size_bytes(call->send.dtype);
    for (uint64_t block = 0; status == WEFT_OK && block < blocks; block++) {
        if (rewrite) {
            memset(call->send.data, 0, bytes);
        }
        status = weft_barrier(call->group->group, NULL);
        double start = now_us();
        for (uint64_t i = 0; status == WEFT_OK && i < calls; i++) {
            status = wp_call_issue(call, NULL);
        }
        times[block] = (now_us() - start) / (double)calls;
    }
    return status;
}

static int get_arrays(wp_state_t *state, PyObject *const *args, wp_call_t *call, wp_array_t *times)
{
    bool in_place = args[ARG_RECV] == args[ARG_SEND];
    if (wp_array_get(state, args[ARG_SEND], "send", WP_WRITE, &call->send) < 0 ||
        wp_array_get(state, args[ARG_TIMES], "times", WP_WRITE, times) < 0) {
        return -1;
    }
    if (times->dtype != WEFT_DTYPE_F64) {
        PyErr_Format(PyExc_TypeError, "times must be float64, not %s", wp_dtype_name(times->dtype));
        return -1;
    }
    if (in_place) {
        call->recv.data = call->send.data;
        call->recv.count = call->send.count;
        call->recv.dtype = call->send.dtype;
        return 0;
    }
    return wp_array_get(state, args[ARG_RECV], "recv", WP_WRITE, &call->recv);
}

static PyObject *time_calls(PyObject *module, PyObject *const *args, Py_ssize_t count,
                            PyObject *keywords)
{
    static const char *const names[] = {"op",    "send",    "recv",  "times",
                                        "calls", "rewrite", "group", NULL};
    wp_state_t *state = wp_state_of(module);
    PyObject *given[ARG_COUNT] = {NULL};
    wp_array_t times = {0};
    wp_call_t call = {0};
    PyObject *result = NULL;
    if (wp_parse("_time_calls", args, count, keywords, names, ARG_CALLS, ARG_COUNT, given) < 0) {
        return NULL;
    }
    uint32_t calls = 1;
    int rewrite = given[ARG_REWRITE] == NULL ? 0 : PyObject_IsTrue(given[ARG_REWRITE]);
    if (rewrite < 0 ||
        (given[ARG_CALLS] != NULL && wp_index(given[ARG_CALLS], "calls", UINT32_MAX, &calls) < 0)) {
        return NULL;
    }
    wp_group_t *group = wp_group_of(state, given[ARG_GROUP]);
    if (group == NULL) {
        return NULL;
    }
    call.group = (wp_group_t *)Py_NewRef((PyObject *)group);
    if (get_arrays(state, given, &call, &times) == 0 && set_op(&call, given[ARG_OP]) == 0 &&
        wp_group_enter(state, group) == 0) {
        PyThreadState *thread = PyEval_SaveThread();
        weft_status_t status =
            time_blocks(&call, rewrite == 1, calls == 0 ? 1 : calls, times.data, times.count);
        PyEval_RestoreThread(thread);
        wp_group_exit(group);
        result = status == WEFT_OK ? Py_NewRef(Py_None) : wp_raise(state, status);
    }
    wp_array_release(&times);
    wp_call_release(&call);
    return result;
}

static PyMethodDef methods[] = {
    {"_time_calls", (PyCFunction)(void (*)(void))time_calls, METH_FASTCALL | METH_KEYWORDS,
     "_time_calls(op, send, recv, times, calls=1, rewrite=False, group=None)\n--\n\n"
     "Microseconds per call into times (float64), one number for each block of so many calls that\n"
     "begins after a barrier; rewrite fills send with zeros before. recv may be send (in place).\n"
     "Sums, root 0. Collective; for weft.bench."},
    {NULL, NULL, 0, NULL},
};

int wp_timing_init(PyObject *module, wp_state_t *state)
{
    (void)state;
    return PyModule_AddFunctions(module, methods);
}
