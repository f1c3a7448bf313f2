/* SPDX-License-Identifier: Apache-2.0 */
/* Operators that cut rows into blocks, one for each rank: reduce_scatter, scatter, all_to_all. */
#include "python/src/collectives.h"
#include "python/src/device_array.h"

#include <stdlib.h>
#include <string.h>

static bool given(const PyObject *object)
{
    return object != NULL && object != Py_None;
}

/* Whether ranks can tell each other something before the call itself. */
static bool at_once(const wp_options_t *options)
{
    return !options->async && options->stream == NULL && !wp_group_notes(options->group);
}

/* Rows of a block; -1 with ValueError when the first dimension is not that of whole blocks. */
static int block_rows(const char *function, const wp_array_t *array, uint32_t size,
                      const char *hint, int64_t *out)
{
    char dims[160];
    if (array->rank == 0) {
        PyErr_Format(PyExc_ValueError, "%s: tensor is a scalar: at least 1 dimension is required",
                     function);
        return -1;
    }
    *out = array->dims[0] / (int64_t)size;
    if (array->dims[0] % (int64_t)size != 0) {
        PyErr_Format(PyExc_ValueError,
                     "%s: the first dimension of %s is not divisible by %u ranks%s", function,
                     wp_dims_text(array->rank, array->dims, dims, sizeof dims), (unsigned)size,
                     hint);
        return -1;
    }
    return 0;
}

/* ---- reduce_scatter ---- */
/* call->send becomes a copy with zeros below, so that its first dimension is that of size whole
 * blocks. */
static int pad(wp_state_t *state, wp_call_t *call, uint32_t size)
{
    wp_array_t padded;
    int64_t dims[WP_MAX_DIMS];
    memcpy(dims, call->send.dims, sizeof dims);
    if (dims[0] % (int64_t)size == 0) {
        return 0;
    }
    if (__builtin_add_overflow(dims[0], (int64_t)size - dims[0] % (int64_t)size, &dims[0])) {
        PyErr_SetString(PyExc_OverflowError, "reduce_scatter: too many rows to pad them");
        return -1;
    }
    if (wp_array_new(state, &call->send, call->send.rank, dims, &padded) < 0) {
        return -1;
    }
    memcpy(padded.dims, dims, sizeof dims);
    padded.rank = call->send.rank;
    size_t bytes = weft_dtype_size_bytes(call->send.dtype), used = (size_t)call->send.count * bytes;
    const void *from = call->send.data;
    if (padded.kind == WP_ON_DEVICE) { /* zeroed */
        if (wp_device_copy(wp_device_array_context(padded.object), padded.data, from, used) < 0) {
            wp_array_release(&padded);
            return -1;
        }
        wp_array_release(&call->send);
        call->send = padded;
        return 0;
    }
    PyThreadState *thread = PyEval_SaveThread();
    if (padded.count > 0) {
        if (used > 0) {
            memcpy(padded.data, from, used);
        }
        memset((char *)padded.data + used, 0, (size_t)padded.count * bytes - used);
    }
    PyEval_RestoreThread(thread);
    wp_array_release(&call->send);
    call->send = padded;
    return 0;
}

static PyObject *reduce_scatter(PyObject *module, PyObject *const *args, Py_ssize_t count,
                                PyObject *keywords)
{
    static const char *const names[] = {"tensor", "op",       "group",  "out",
                                        "pad",    "async_op", "stream", NULL};
    PyObject *places[7];
    wp_options_t options;
    wp_call_t call;
    if (wp_parse("reduce_scatter", args, count, keywords, names, 1, 3, places) < 0) {
        return NULL;
    }
    int pads = places[4] != NULL ? PyObject_IsTrue(places[4]) : 0;
    if (pads < 0 || wp_options(module, places[2], places[5], places[6], &options) < 0) {
        return NULL;
    }
    uint32_t size = options.group->size;
    int64_t rows;
    wp_call_begin(&call, WEFT_COLLECTIVE_REDUCE_SCATTER, &options);
    if (wp_call_array(options.state, &call, places[0], "tensor", WP_SHAPE, &call.send) < 0 ||
        wp_call_reduction(&call, places[1]) < 0 ||
        (pads && call.send.rank > 0 && pad(options.state, &call, size) < 0) ||
        block_rows("reduce_scatter", &call.send, size, ": pad=True pads it with zeros", &rows) <
            0) {
        return wp_call_fail(&call);
    }
    int64_t dims[WP_MAX_DIMS];
    memcpy(dims, call.send.dims, sizeof dims);
    dims[0] = rows;
    call.count = call.send.count / size;
    if (wp_call_result(options.state, &call, places[3], call.send.rank, dims, call.count) < 0 ||
        wp_call_overlap(&call, call.send.count, call.count, options.group->rank * call.count) < 0) {
        return wp_call_fail(&call);
    }
    return wp_call_end(&call, &options);
}

/* ---- scatter ---- */
/* No rank gave out: root tells the shape, and whether it can. */
static PyObject *scatter_shaped(wp_state_t *state, wp_call_t *call, int64_t rows)
{
    wp_group_t *group = call->group;
    wp_shape_t shape;
    PyObject *result = NULL;
    Py_INCREF((PyObject *)group);
    wp_shape_of(&call->send, &shape);
    shape.dims[0] = rows;
    if (wp_group_enter(state, group) < 0) {
        wp_call_release(call);
        goto done;
    }
    if (wp_exchange_root(state, group, call->root, &shape) < 0) {
        wp_call_release(call);
        goto leave;
    }
    call->send.dtype = (weft_dtype_t)shape.dtype;
    call->count = (uint64_t)shape.dims[0] * wp_shape_row(&shape);
    if (wp_call_result(state, call, NULL, shape.rank, shape.dims, 0) < 0) {
        wp_call_refuse(call, true);
        wp_call_release(call);
    } else {
        result = wp_call_finish_entered(state, call);
    }
leave:
    wp_group_exit(group);
done:
    Py_DECREF((PyObject *)group);
    return result;
}

/* Into out, which every rank has. */
static int scatter_into(wp_state_t *state, wp_call_t *call, PyObject *out)
{
    wp_group_t *group = call->group;
    bool root = group->rank == call->root;
    if (wp_call_array(state, call, out, "out", WP_WRITE, &call->recv) < 0) {
        return -1;
    }
    call->count = call->recv.count;
    call->result = Py_NewRef(out);
    if (!root) {
        call->send.dtype = call->recv.dtype;
        return 0;
    }
    if (call->send.dtype != call->recv.dtype || call->send.count != call->count * group->size) {
        PyErr_Format(
            PyExc_ValueError, "size mismatch: out has %llu x %s, a block of tensor has %llu x %s",
            (unsigned long long)call->count, wp_dtype_name(call->recv.dtype),
            (unsigned long long)(call->send.count / group->size), wp_dtype_name(call->send.dtype));
        return -1;
    }
    return wp_call_overlap(call, call->send.count, call->count, call->root * call->count);
}

static PyObject *scatter(PyObject *module, PyObject *const *args, Py_ssize_t count,
                         PyObject *keywords)
{
    static const char *const names[] = {"tensor",   "root",   "group", "out",
                                        "async_op", "stream", NULL};
    PyObject *places[6];
    wp_options_t options;
    wp_call_t call;
    if (wp_open(module, "scatter", args, count, keywords, names, 1, 3, places, &options) < 0) {
        return NULL;
    }
    int64_t rows = 0;
    wp_call_begin(&call, WEFT_COLLECTIVE_SCATTER, &options);
    if (places[1] != NULL && wp_index(places[1], "root", options.group->size - 1, &call.root) < 0) {
        return wp_call_fail(&call);
    }
    if (!given(places[3]) && !at_once(&options)) {
        PyErr_SetString(PyExc_ValueError,
                        "scatter: async_op, stream and batches require out on every rank");
        return wp_call_fail(&call);
    }
    if (options.group->rank == call.root &&
        (wp_call_array(options.state, &call, places[0], "tensor", WP_SHAPE, &call.send) < 0 ||
         block_rows("scatter", &call.send, options.group->size, "", &rows) < 0)) {
        return wp_call_fail(&call);
    }
    if (!given(places[3])) {
        return scatter_shaped(options.state, &call, rows);
    }
    if (scatter_into(options.state, &call, places[3]) < 0) {
        return wp_call_fail(&call);
    }
    return wp_call_end(&call, &options);
}

/* ---- all_to_all ---- */
/* Rows for or from each rank, size numbers; their sum in *out_total. */
static int read_counts(PyObject *object, const char *argument, uint32_t size, uint64_t *out,
                       uint64_t *out_total)
{
    PyObject *list = PySequence_List(object);
    if (list == NULL) {
        return -1;
    }
    int result = 0;
    uint64_t total = 0;
    if (PyList_Size(list) != (Py_ssize_t)size) {
        PyErr_Format(PyExc_ValueError, "%s: expected one count per rank: %zd counts for %u ranks",
                     argument, PyList_Size(list), (unsigned)size);
        result = -1;
    }
    for (uint32_t r = 0; result == 0 && r < size; r++) {
        uint32_t value = 0;
        result = wp_index(PyList_GetItem(list, (Py_ssize_t)r), argument, UINT32_MAX, &value);
        out[r] = value;
        total += value;
    }
    Py_DECREF(list);
    *out_total = total;
    return result;
}

/* What each rank has for this one, told by them. */
static int ask_counts(wp_state_t *state, wp_call_t *call, uint64_t *out_total)
{
    uint32_t size = call->group->size;
    wp_group_t *group = call->group;
    Py_INCREF((PyObject *)group);
    int result = wp_group_enter(state, group);
    if (result == 0) {
        result = wp_exchange_counts(state, group, call->counts, call->counts + size);
        wp_group_exit(group);
    }
    Py_DECREF((PyObject *)group);
    call->told = result < 0;
    *out_total = 0;
    for (uint32_t r = 0; result == 0 && r < size; r++) {
        *out_total += call->counts[size + r];
    }
    return result;
}

/* Blocks of different lengths. call->send is there; counts into call, the result's memory made. */
static int uneven(wp_state_t *state, wp_call_t *call, PyObject *send_counts, PyObject *recv_counts,
                  PyObject *out)
{
    uint32_t size = call->group->size;
    uint64_t sent = 0, received = 0;
    wp_shape_t shape;
    wp_shape_of(&call->send, &shape);
    call->op = WEFT_COLLECTIVE_ALL_TO_ALL_V;
    call->counts = malloc((size_t)2 * size * sizeof *call->counts);
    if (call->counts == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    if (read_counts(send_counts, "send_counts", size, call->counts, &sent) < 0) {
        return -1;
    }
    if (call->send.rank == 0 || sent != (uint64_t)shape.dims[0]) {
        PyErr_Format(PyExc_ValueError, "send_counts: the sum is %llu rows, but tensor has %lld",
                     (unsigned long long)sent, (long long)shape.dims[0]);
        return -1;
    }
    if (given(recv_counts)
            ? read_counts(recv_counts, "recv_counts", size, call->counts + size, &received) < 0
            : ask_counts(state, call, &received) < 0) {
        return -1;
    }
    uint64_t row = wp_shape_row(&shape);
    uint64_t count = 0;
    bool overflow = __builtin_mul_overflow(received, row, &count);
    for (uint32_t i = 0; i < 2 * size; i++) {
        call->counts[i] *= row;
    }
    if (overflow) {
        PyErr_SetString(PyExc_OverflowError,
                        "all_to_all: the result is too large for the address space");
    }
    shape.dims[0] = (int64_t)received;
    if (overflow || wp_call_result(state, call, out, shape.rank, shape.dims, received * row) < 0 ||
        wp_call_overlap(call, call->send.count, received * row, UINT32_MAX) < 0) {
        return -1;
    }
    return 0;
}

static PyObject *all_to_all(PyObject *module, PyObject *const *args, Py_ssize_t count,
                            PyObject *keywords)
{
    static const char *const names[] = {"tensor",      "group",    "out",    "send_counts",
                                        "recv_counts", "async_op", "stream", NULL};
    PyObject *places[7];
    wp_options_t options;
    wp_call_t call;
    if (wp_open(module, "all_to_all", args, count, keywords, names, 1, 2, places, &options) < 0) {
        return NULL;
    }
    int64_t rows = 0;
    wp_call_begin(&call, WEFT_COLLECTIVE_ALL_TO_ALL, &options);
    if (given(places[4]) && !given(places[3])) {
        PyErr_SetString(PyExc_ValueError, "recv_counts: send_counts is required as well");
        return wp_call_fail(&call);
    }
    if (given(places[3]) && !given(places[4]) && wp_group_notes(options.group)) {
        PyErr_SetString(PyExc_ValueError,
                        "in a batch or capture, send_counts requires recv_counts");
        return wp_call_fail(&call);
    }
    if (wp_call_array(options.state, &call, places[0], "tensor", WP_SHAPE, &call.send) < 0) {
        return wp_call_fail(&call);
    }
    if (given(places[3])) {
        if (uneven(options.state, &call, places[3], places[4], places[2]) < 0) {
            return wp_call_fail(&call);
        }
        return wp_call_end(&call, &options);
    }
    if (block_rows("all_to_all", &call.send, options.group->size, "", &rows) < 0 ||
        wp_call_result(options.state, &call, places[2], 0, NULL, call.send.count) < 0 ||
        wp_call_overlap(&call, call.send.count, call.send.count, 0) < 0) {
        return wp_call_fail(&call);
    }
    call.count = call.send.count / options.group->size;
    return wp_call_end(&call, &options);
}

static PyMethodDef functions[] = {
    {"reduce_scatter", WP_FUNCTION(reduce_scatter), METH_FASTCALL | METH_KEYWORDS,
     "reduce_scatter($module, tensor, op='sum', group=None, *, out=None, "
     "pad=False, " WP_ASYNC_SIGNATURE
     "The reduction over all ranks of their tensors, cut into a block of rows for each rank.\n\n"
     "tensor: shape (n, ...), the same on every rank; n divisible by the ranks of group.\n"
     "Read only.\n"
     "op: 'sum', 'avg', 'max', 'min', 'prod'.\n"
     "pad: n need not be divisible: rows of zeros are appended (to a copy), and every rank\n"
     "gets ceil(n / size) rows; those of the result that are beyond n are zeros.\n"
     "out: memory for the block, may be this rank's block of tensor.\n"
     "Returns this rank's block, number rank, of shape (n / size, ...) (or out)." WP_ASYNC_DOC
         WP_ERRORS_DOC},
    {"scatter", WP_FUNCTION(scatter), METH_FASTCALL | METH_KEYWORDS,
     "scatter($module, tensor, root=0, group=None, *, out=None, " WP_ASYNC_SIGNATURE
     "root's tensor, cut into a block of rows for each rank.\n\n"
     "tensor: on root shape (n, ...), n divisible by the ranks of group; ignored on the\n"
     "others, who pass None.\n"
     "root: a rank of group.\n"
     "out: memory for the block; all ranks give it, or none: then root tells the others the\n"
     "shape first. async_op, stream and batches need it.\n"
     "Returns this rank's block, of shape (n / size, ...) (or out); a new one is a numpy\n"
     "array but on root, where it is like tensor." WP_ASYNC_DOC WP_ERRORS_DOC},
    {"all_to_all", WP_FUNCTION(all_to_all), METH_FASTCALL | METH_KEYWORDS,
     "all_to_all($module, tensor, group=None, *, out=None, send_counts=None, "
     "recv_counts=None, " WP_ASYNC_SIGNATURE
     "Block d of this rank's rows goes to rank d; block s of the result came from rank s.\n\n"
     "tensor: shape (n, ...), the same on every rank, n divisible by the ranks of group; or\n"
     "cut by send_counts.\n"
     "send_counts: rows for each rank, n in all: blocks of different lengths, also from rank\n"
     "to rank.\n"
     "recv_counts: rows from each rank; None: they tell each other first. All ranks give it,\n"
     "or none.\n"
     "out: memory for the result; may be tensor itself where there are no counts.\n"
     "Returns the result, of tensor's shape, or (sum of recv_counts, ...) (or out)." WP_ASYNC_DOC
         WP_ERRORS_DOC},
    {NULL, NULL, 0, NULL},
};

int wp_scatter_init(PyObject *module)
{
    return PyModule_AddFunctions(module, functions);
}
