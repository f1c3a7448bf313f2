/* SPDX-License-Identifier: Apache-2.0 */
/* Operators that put ranks' rows one below the other: all_gather, gather. */
#include "python/src/collectives.h"

#include <stdlib.h>
#include <string.h>

static int too_large(const char *function)
{
    PyErr_Format(PyExc_OverflowError, "%s: the result is too large for the address space",
                 function);
    return -1;
}

/* The shape of the result of blocks like array's: its dimensions with the first one times blocks; a
 * scalar is a row. */
static int stacked(const char *function, const wp_array_t *array, uint32_t blocks, int64_t *dims,
                   uint32_t *out_rank)
{
    wp_shape_t shape;
    wp_shape_of(array, &shape);
    memcpy(dims, shape.dims, sizeof shape.dims);
    *out_rank = shape.rank;
    return __builtin_mul_overflow(dims[0], (int64_t)blocks, &dims[0]) ? too_large(function) : 0;
}

/* ---- all_gather ---- */
/* The result's first dimension; -1 on all ranks alike. */
static int sum_rows(const uint64_t *rows, uint32_t size, uint64_t row, int64_t *out_total,
                    bool *out_equal)
{
    bool overflow = false;
    *out_total = 0;
    *out_equal = true;
    for (uint32_t r = 0; r < size; r++) {
        overflow = overflow || rows[r] > INT64_MAX ||
                   __builtin_add_overflow(*out_total, (int64_t)rows[r], out_total);
        *out_equal = *out_equal && rows[r] == rows[0];
    }
    if (overflow || __builtin_mul_overflow((uint64_t)*out_total, row, &(uint64_t){0})) {
        return too_large("all_gather");
    }
    return 0;
}

/* The rows of all ranks are known: makes the result and the call, with counts where they differ. */
static int fill_blocks(wp_state_t *state, wp_call_t *call, const wp_shape_t *shape,
                       const uint64_t *rows, bool equal)
{
    uint32_t size = call->group->size;
    uint64_t row = wp_shape_row(shape);
    if (wp_call_result(state, call, NULL, shape->rank, shape->dims, 0) < 0) {
        return -1;
    }
    call->count = call->send.count;
    if (equal) {
        return 0;
    }
    call->op = WEFT_COLLECTIVE_ALL_GATHER_V;
    call->counts = malloc(size * sizeof *call->counts);
    if (call->counts == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (uint32_t r = 0; r < size; r++) {
        call->counts[r] = rows[r] * row;
    }
    return 0;
}

/* Ranks' first dimensions may differ: they tell each other. */
static PyObject *gather_rows(wp_state_t *state, wp_call_t *call)
{
    wp_group_t *group = call->group;
    wp_shape_t shape;
    uint64_t few[16], *rows = group->size <= 16 ? few : malloc(group->size * sizeof *rows);
    PyObject *result = NULL;
    Py_INCREF((PyObject *)group);
    wp_shape_of(&call->send, &shape);
    if (rows == NULL) {
        PyErr_NoMemory();
    }
    if (rows == NULL || wp_group_enter(state, group) < 0) {
        wp_call_release(call);
        goto done;
    }
    bool equal;
    if (wp_exchange_rows(state, group, "all_gather", &shape, rows) < 0 ||
        sum_rows(rows, group->size, wp_shape_row(&shape), &shape.dims[0], &equal) < 0) {
        wp_call_release(call);
    } else if (fill_blocks(state, call, &shape, rows, equal) < 0) {
        wp_call_refuse(call, true);
        wp_call_release(call);
    } else {
        result = wp_call_finish_entered(state, call);
    }
    wp_group_exit(group);
done:
    if (rows != few) {
        free(rows);
    }
    Py_DECREF((PyObject *)group);
    return result;
}

static PyObject *all_gather(PyObject *module, PyObject *const *args, Py_ssize_t count,
                            PyObject *keywords)
{
    static const char *const names[] = {"tensor", "group", "out", "async_op", "stream", NULL};
    PyObject *places[5];
    wp_options_t options;
    wp_call_t call;
    if (wp_open(module, "all_gather", args, count, keywords, names, 1, 2, places, &options) < 0) {
        return NULL;
    }
    bool out = places[2] != NULL && places[2] != Py_None;
    uint32_t size = options.group->size;
    wp_call_begin(&call, WEFT_COLLECTIVE_ALL_GATHER, &options);
    if (wp_call_array(options.state, &call, places[0], "tensor", WP_SHAPE, &call.send) < 0) {
        return wp_call_fail(&call);
    }
    bool now = !options.async && options.stream == NULL && !wp_group_notes(options.group);
    if (!out && now && size > 1) {
        return gather_rows(options.state, &call);
    }
    int64_t dims[WP_MAX_DIMS];
    uint32_t rank = 0;
    call.count = call.send.count;
    if ((!out && stacked("all_gather", &call.send, size, dims, &rank) < 0) ||
        wp_call_result(options.state, &call, places[2], rank, dims, call.count * size) < 0 ||
        wp_call_overlap(&call, call.count, call.count * size, options.group->rank * call.count) <
            0) {
        return wp_call_fail(&call);
    }
    return wp_call_end(&call, &options);
}

/* ---- gather ---- */
static PyObject *gather(PyObject *module, PyObject *const *args, Py_ssize_t count,
                        PyObject *keywords)
{
    static const char *const names[] = {"tensor",   "root",   "group", "out",
                                        "async_op", "stream", NULL};
    PyObject *places[6];
    wp_options_t options;
    wp_call_t call;
    if (wp_open(module, "gather", args, count, keywords, names, 1, 3, places, &options) < 0) {
        return NULL;
    }
    uint32_t size = options.group->size;
    wp_call_begin(&call, WEFT_COLLECTIVE_GATHER, &options);
    if (places[1] != NULL && wp_index(places[1], "root", size - 1, &call.root) < 0) {
        return wp_call_fail(&call);
    }
    bool root = options.group->rank == call.root, out = places[3] != NULL && places[3] != Py_None;
    if (wp_call_array(options.state, &call, places[0], "tensor",
                      (root && !out ? WP_SHAPE : WP_READ), &call.send) < 0) {
        return wp_call_fail(&call);
    }
    call.count = call.send.count;
    if (root) {
        int64_t dims[WP_MAX_DIMS];
        uint32_t rank = 0;
        if ((!out && stacked("gather", &call.send, size, dims, &rank) < 0) ||
            wp_call_result(options.state, &call, places[3], rank, dims, call.count * size) < 0 ||
            wp_call_overlap(&call, call.count, call.count * size, call.root * call.count) < 0) {
            return wp_call_fail(&call);
        }
    }
    return wp_call_end(&call, &options);
}

static PyMethodDef functions[] = {
    {"all_gather", WP_FUNCTION(all_gather), METH_FASTCALL | METH_KEYWORDS,
     "all_gather($module, tensor, group=None, *, out=None, " WP_ASYNC_SIGNATURE
     "The tensors of all ranks, one below the other in the order of ranks, on every rank.\n\n"
     "tensor: shape (n, ...), of the same type and the same other dimensions on every rank;\n"
     "a scalar counts as (1,). Ranks' n may differ unless out, async_op or stream is given,\n"
     "or in a batch: they tell each other first, in one small call. Shapes that differ in\n"
     "more than n are a WeftMismatchError then that does not break the group.\n"
     "out: memory of size * n rows for the result; tensor may lie in it where its rows go.\n"
     "All ranks give out, or none.\n"
     "Returns the result, of shape (sum of n, ...) (or out)." WP_ASYNC_DOC WP_ERRORS_DOC},
    {"gather", WP_FUNCTION(gather), METH_FASTCALL | METH_KEYWORDS,
     "gather($module, tensor, root=0, group=None, *, out=None, " WP_ASYNC_SIGNATURE
     "The tensors of all ranks, one below the other in the order of ranks, on root.\n\n"
     "tensor: shape (n, ...), the same on every rank; a scalar counts as (1,). root: a rank\n"
     "of group.\n"
     "out: root's memory of size * n rows, in which its tensor may lie where it goes;\n"
     "ignored on the others.\n"
     "Returns the result, of shape (size * n, ...) (or out), on root; None on the "
     "others." WP_ASYNC_DOC WP_ERRORS_DOC},
    {NULL, NULL, 0, NULL},
};

int wp_gather_init(PyObject *module)
{
    return PyModule_AddFunctions(module, functions);
}
