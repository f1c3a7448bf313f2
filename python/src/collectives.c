/* SPDX-License-Identifier: Apache-2.0 */
/* Operators whose result has the shape of what a rank gives; and what all operators share. */
#include "python/src/collectives.h"
#include "python/src/device_array.h"

#include <string.h>

/* ---- shared ---- */
int wp_options(PyObject *module, PyObject *group, PyObject *async, PyObject *stream,
               wp_options_t *out)
{
    out->state = wp_state_of(module);
    out->stream = NULL;
    out->async = false;
    if (async != NULL && async != Py_False) {
        int truth = PyObject_IsTrue(async);
        if (truth < 0) {
            return -1;
        }
        out->async = truth != 0;
    }
    if (stream != NULL && wp_stream_of(out->state, stream, &out->stream) < 0) {
        return -1;
    }
    out->group =
        wp_group_of(out->state, group); /* last: the truth of an object may end the world */
    if (out->group == NULL) {
        return -1;
    }
    if (out->group->batch != NULL) {
        if (out->async || out->stream != NULL) {
            PyErr_SetString(PyExc_ValueError,
                            "async_op and stream belong to weft.batch, not to the calls in it");
            return -1;
        }
        out->async =
            true; /* what it returns is not there yet, and ranks tell each other nothing first */
    }
    return 0;
}

int wp_open(PyObject *module, const char *function, PyObject *const *args, Py_ssize_t count,
            PyObject *keywords, const char *const *names, int required, int positional,
            PyObject **places, wp_options_t *out)
{
    if (wp_parse(function, args, count, keywords, names, required, positional, places) < 0) {
        return -1;
    }
    int end = positional;
    while (names[end] != NULL) {
        end++;
    }
    return wp_options(module, places[positional - 1], places[end - 2], places[end - 1], out);
}

void wp_call_begin(wp_call_t *call, weft_collective_t op, const wp_options_t *options)
{
    memset(call, 0, sizeof *call);
    call->op = op;
    call->group = (wp_group_t *)Py_NewRef((PyObject *)options->group);
}

PyObject *wp_call_end(wp_call_t *call, const wp_options_t *options)
{
    return wp_call_finish(options->state, call, options->async, options->stream);
}

PyObject *wp_call_fail(wp_call_t *call)
{
    wp_call_refuse(call, false);
    wp_call_release(call);
    return NULL;
}

int wp_call_array(wp_state_t *state, const wp_call_t *call, PyObject *object, const char *argument,
                  wp_array_flags_t flags, wp_array_t *out)
{
    if (wp_array_get(state, object, argument, flags | WP_PACK | WP_DEVICE, out) < 0) {
        return -1;
    }
    if (wp_device_array_check(out, argument, call->group) < 0) {
        wp_array_release(out);
        return -1;
    }
    return 0;
}

int wp_call_reduction(wp_call_t *call, PyObject *op)
{
    if (wp_reduction(op, &call->reduction) < 0) {
        return -1;
    }
    if (call->send.dtype == WEFT_DTYPE_BOOL) {
        PyErr_SetString(PyExc_TypeError,
                        "tensor: bool has no reductions; use uint8 (max is any, min is all)");
        return -1;
    }
    return 0;
}

/* "(3, 4)"; tensors are asked for their shape only now. */
static const char *shape_text(wp_state_t *state, const wp_array_t *array, char *buffer,
                              size_t bytes)
{
    wp_array_t shaped;
    if (array->object == NULL ||
        wp_array_get(state, array->object, "", WP_SHAPE | WP_PACK | WP_DEVICE, &shaped) < 0) {
        PyErr_Clear();
        return "?";
    }
    wp_dims_text(shaped.rank, shaped.dims, buffer, bytes);
    wp_array_release(&shaped);
    return buffer;
}

static int check_out(wp_state_t *state, const wp_call_t *call, uint64_t count)
{
    char dims[160], given[160];
    const wp_array_t *out = &call->recv;
    if (out->dtype != call->send.dtype) {
        PyErr_Format(PyExc_ValueError, "dtype mismatch: out has %s, the result has %s",
                     wp_dtype_name(out->dtype), wp_dtype_name(call->send.dtype));
        return -1;
    }
    if (out->count != count) {
        PyErr_Format(PyExc_ValueError,
                     "out has %llu elements in shape %s, the result has %llu (tensor: shape %s)",
                     (unsigned long long)out->count, shape_text(state, out, dims, sizeof dims),
                     (unsigned long long)count,
                     shape_text(state, &call->send, given, sizeof given));
        return -1;
    }
    return 0;
}

int wp_call_result(wp_state_t *state, wp_call_t *call, PyObject *out, uint32_t rank,
                   const int64_t *dims, uint64_t count)
{
    if (out == NULL || out == Py_None) {
        if (wp_array_new(state, &call->send, rank, dims, &call->recv) < 0) {
            return -1;
        }
    } else if (wp_call_array(state, call, out, "out", WP_WRITE, &call->recv) < 0 ||
               check_out(state, call, count) < 0) {
        return -1;
    }
    call->result = Py_NewRef(call->recv.object);
    return 0;
}

bool wp_call_overlaps(const wp_call_t *call, uint64_t send_count, uint64_t recv_count,
                      uint64_t in_place)
{
    uint64_t bytes = weft_dtype_size_bytes(call->send.dtype);
    uintptr_t send = (uintptr_t)call->send.data, recv = (uintptr_t)call->recv.data;
    uintptr_t send_end = send + send_count * bytes, recv_end = recv + recv_count * bytes;
    bool larger_recv = recv_count >= send_count;
    uintptr_t place = (larger_recv ? recv : send) + in_place * bytes;
    return send_count > 0 && recv_count > 0 && send < recv_end && recv < send_end &&
           place != (larger_recv ? send : recv);
}

int wp_call_overlap(const wp_call_t *call, uint64_t send_count, uint64_t recv_count,
                    uint64_t in_place)
{
    if (!wp_call_overlaps(call, send_count, recv_count, in_place)) {
        return 0;
    }
    PyErr_SetString(PyExc_ValueError, WP_OVERLAP_TEXT);
    return -1;
}

/* ---- all_reduce ---- */
static PyObject *all_reduce_(PyObject *module, PyObject *const *args, Py_ssize_t count,
                             PyObject *keywords)
{
    static const char *const names[] = {"tensor", "op", "group", "async_op", "stream", NULL};
    PyObject *places[5];
    wp_options_t options;
    wp_call_t call;
    if (wp_open(module, "all_reduce_", args, count, keywords, names, 1, 3, places, &options) < 0) {
        return NULL;
    }
    wp_call_begin(&call, WEFT_COLLECTIVE_ALL_REDUCE, &options);
    if (wp_call_array(options.state, &call, places[0], "tensor", WP_WRITE | WP_SHAPE, &call.send) <
            0 ||
        wp_call_reduction(&call, places[1]) < 0) {
        return wp_call_fail(&call);
    }
    call.recv.data = call.send.data;
    call.count = call.send.count;
    call.result = Py_NewRef(places[0]);
    return wp_call_end(&call, &options);
}

static PyObject *all_reduce(PyObject *module, PyObject *const *args, Py_ssize_t count,
                            PyObject *keywords)
{
    static const char *const names[] = {"tensor", "op", "group", "out", "async_op", "stream", NULL};
    PyObject *places[6];
    wp_options_t options;
    wp_call_t call;
    if (wp_open(module, "all_reduce", args, count, keywords, names, 1, 3, places, &options) < 0) {
        return NULL;
    }
    wp_call_begin(&call, WEFT_COLLECTIVE_ALL_REDUCE, &options);
    if (wp_call_array(options.state, &call, places[0], "tensor", WP_SHAPE, &call.send) < 0 ||
        wp_call_reduction(&call, places[1]) < 0 ||
        wp_call_result(options.state, &call, places[3], 0, NULL, call.send.count) < 0 ||
        wp_call_overlap(&call, call.send.count, call.send.count, 0) < 0) {
        return wp_call_fail(&call);
    }
    call.count = call.send.count;
    return wp_call_end(&call, &options);
}

/* ---- with a root ---- */
static PyObject *broadcast(PyObject *module, PyObject *const *args, Py_ssize_t count,
                           PyObject *keywords)
{
    static const char *const names[] = {"tensor", "root", "group", "async_op", "stream", NULL};
    PyObject *places[5];
    wp_options_t options;
    wp_call_t call;
    if (wp_open(module, "broadcast", args, count, keywords, names, 1, 3, places, &options) < 0) {
        return NULL;
    }
    wp_call_begin(&call, WEFT_COLLECTIVE_BROADCAST, &options);
    if (places[1] != NULL && wp_index(places[1], "root", options.group->size - 1, &call.root) < 0) {
        return wp_call_fail(&call);
    }
    wp_array_flags_t flags = options.group->rank == call.root ? WP_READ : WP_WRITE;
    if (wp_call_array(options.state, &call, places[0], "tensor", flags | WP_SHAPE, &call.send) <
        0) {
        return wp_call_fail(&call);
    }
    call.recv.data = call.send.data;
    call.count = call.send.count;
    call.result = Py_NewRef(places[0]);
    return wp_call_end(&call, &options);
}

static PyObject *reduce(PyObject *module, PyObject *const *args, Py_ssize_t count,
                        PyObject *keywords)
{
    static const char *const names[] = {"tensor", "root",     "op",     "group",
                                        "out",    "async_op", "stream", NULL};
    PyObject *places[7];
    wp_options_t options;
    wp_call_t call;
    if (wp_open(module, "reduce", args, count, keywords, names, 1, 4, places, &options) < 0) {
        return NULL;
    }
    wp_call_begin(&call, WEFT_COLLECTIVE_REDUCE, &options);
    if (places[1] != NULL && wp_index(places[1], "root", options.group->size - 1, &call.root) < 0) {
        return wp_call_fail(&call);
    }
    bool root = options.group->rank == call.root;
    if (wp_call_array(options.state, &call, places[0], "tensor", WP_SHAPE, &call.send) < 0 ||
        wp_call_reduction(&call, places[2]) < 0) {
        return wp_call_fail(&call);
    }
    if (root && (wp_call_result(options.state, &call, places[4], 0, NULL, call.send.count) < 0 ||
                 wp_call_overlap(&call, call.send.count, call.send.count, 0) < 0)) {
        return wp_call_fail(&call);
    }
    call.count = call.send.count;
    return wp_call_end(&call, &options);
}

/* ---- between two ranks; all ranks ---- */
static PyObject *send_or_recv(PyObject *module, PyObject *const *args, Py_ssize_t count,
                              PyObject *keywords, bool sends)
{
    static const char *const names[] = {"tensor",   "peer",   "group", "tag",
                                        "async_op", "stream", NULL};
    PyObject *places[6];
    wp_options_t options;
    wp_call_t call;
    if (wp_open(module, sends ? "send" : "recv", args, count, keywords, names, 2, 3, places,
                &options) < 0) {
        return NULL;
    }
    wp_call_begin(&call, WEFT_COLLECTIVE_SEND_RECV, &options);
    if (wp_index(places[1], "peer", options.group->size - 1, &call.root) < 0 ||
        (places[3] != NULL && wp_index(places[3], "tag", WEFT_ANY_TAG - 1, &call.tag) < 0)) {
        return wp_call_fail(&call);
    }
    if (call.root == options.group->rank) {
        PyErr_Format(PyExc_ValueError, "peer: %u is this rank", (unsigned)call.root);
        return wp_call_fail(&call);
    }
    wp_array_t *array = sends ? &call.send : &call.recv;
    if (wp_call_array(options.state, &call, places[0], "tensor", (sends ? WP_READ : WP_WRITE),
                      array) < 0) {
        return wp_call_fail(&call);
    }
    call.send.dtype = array->dtype;
    call.count = array->count;
    call.result = sends ? NULL : Py_NewRef(places[0]);
    return wp_call_end(&call, &options);
}

static PyObject *send(PyObject *module, PyObject *const *args, Py_ssize_t count, PyObject *keywords)
{
    return send_or_recv(module, args, count, keywords, true);
}

static PyObject *recv(PyObject *module, PyObject *const *args, Py_ssize_t count, PyObject *keywords)
{
    return send_or_recv(module, args, count, keywords, false);
}

static int get_number(PyObject *object, const char *name, uint32_t most, uint32_t *out)
{
    return object == NULL || object == Py_None ? 0 : wp_index(object, name, most, out);
}

static PyObject *probe(PyObject *module, PyObject *const *args, Py_ssize_t count,
                       PyObject *keywords)
{
    static const char *const names[] = {"peer", "group", "tag", NULL};
    PyObject *places[3];
    wp_state_t *state = wp_state_of(module);
    weft_message_t message = WEFT_MESSAGE_INIT;
    uint32_t peer = WEFT_ANY_RANK, tag = WEFT_ANY_TAG;
    if (wp_parse("probe", args, count, keywords, names, 0, 2, places) < 0) {
        return NULL;
    }
    wp_group_t *group = wp_group_of(state, places[1]);
    if (group == NULL || get_number(places[0], "peer", group->size - 1, &peer) < 0 ||
        get_number(places[2], "tag", WEFT_ANY_TAG - 1, &tag) < 0) {
        return NULL;
    }
    Py_INCREF((PyObject *)group);
    PyObject *result = NULL;
    if (wp_group_enter(state, group) == 0) {
        PyThreadState *thread = PyEval_SaveThread();
        weft_status_t status = weft_probe(peer, tag, group->group, &message);
        PyEval_RestoreThread(thread);
        wp_group_exit(group);
        result = status == WEFT_OK            ? Py_BuildValue("(IIKs)", message.peer, message.tag,
                                                              (unsigned long long)message.count,
                                                              wp_dtype_name(message.dtype))
                 : status == WEFT_IN_PROGRESS ? Py_NewRef(Py_None)
                                              : wp_raise(state, status);
    }
    Py_DECREF((PyObject *)group);
    return result;
}

static PyObject *barrier(PyObject *module, PyObject *const *args, Py_ssize_t count,
                         PyObject *keywords)
{
    static const char *const names[] = {"group", "async_op", "stream", NULL};
    PyObject *places[3];
    wp_options_t options;
    wp_call_t call;
    if (wp_open(module, "barrier", args, count, keywords, names, 0, 1, places, &options) < 0) {
        return NULL;
    }
    wp_call_begin(&call, WEFT_COLLECTIVE_BARRIER, &options);
    return wp_call_end(&call, &options);
}

static PyMethodDef functions[] = {
    {"all_reduce", WP_FUNCTION(all_reduce), METH_FASTCALL | METH_KEYWORDS,
     "all_reduce($module, tensor, op='sum', group=None, *, out=None, " WP_ASYNC_SIGNATURE
     "The reduction over all ranks of their tensors, on every rank.\n\n"
     "tensor: of any shape and type, the same on every rank. Read only.\n"
     "op: 'sum', 'avg' (divides once, at the end), 'max', 'min', 'prod'.\n"
     "out: memory of as many elements for the result, may be tensor itself; None: a new\n"
     "array like tensor.\n"
     "Returns the result, of tensor's shape (or out). Its bits depend on the order of ranks\n"
     "only, see Group.set_order." WP_ASYNC_DOC WP_ERRORS_DOC},
    {"all_reduce_", WP_FUNCTION(all_reduce_), METH_FASTCALL | METH_KEYWORDS,
     "all_reduce_($module, tensor, op='sum', group=None, *, " WP_ASYNC_SIGNATURE
     "all_reduce in place: tensor becomes the reduction over all ranks. Returns tensor. The\n"
     "quickest form." WP_ASYNC_DOC WP_ERRORS_DOC},
    {"broadcast", WP_FUNCTION(broadcast), METH_FASTCALL | METH_KEYWORDS,
     "broadcast($module, tensor, root=0, group=None, *, " WP_ASYNC_SIGNATURE
     "root's tensor, on every rank, in place.\n\n"
     "tensor: of any shape and type, the same on every rank. Read on root,\n"
     "written on the others.\n"
     "root: a rank of group. Returns tensor." WP_ASYNC_DOC WP_ERRORS_DOC},
    {"reduce", WP_FUNCTION(reduce), METH_FASTCALL | METH_KEYWORDS,
     "reduce($module, tensor, root=0, op='sum', group=None, *, out=None, " WP_ASYNC_SIGNATURE
     "The reduction over all ranks of their tensors, on root.\n\n"
     "tensor, op: as for all_reduce. root: a rank of group.\n"
     "out: root's memory for the result, may be tensor itself; ignored on the others.\n"
     "Returns the result, of tensor's shape (or out), on root; None on the others." WP_ASYNC_DOC
         WP_ERRORS_DOC},
    {"send", WP_FUNCTION(send), METH_FASTCALL | METH_KEYWORDS,
     "send($module, tensor, peer, group=None, *, tag=0, " WP_ASYNC_SIGNATURE
     "Gives tensor to rank peer of group, which calls recv with as many elements of the same\n"
     "type and the same tag.\n\n"
     "Calls of one tag between the same two ranks match in order. Done when tensor may be\n"
     "overwritten. Returns None." WP_ASYNC_DOC WP_ERRORS_DOC},
    {"recv", WP_FUNCTION(recv), METH_FASTCALL | METH_KEYWORDS,
     "recv($module, tensor, peer, group=None, *, tag=0, " WP_ASYNC_SIGNATURE
     "Takes from rank peer of group what it sends with tag, into tensor: as many elements of\n"
     "the same type. What it has sent before with other tags is kept until it is received.\n"
     "Returns tensor." WP_ASYNC_DOC WP_ERRORS_DOC},
    {"probe", WP_FUNCTION(probe), METH_FASTCALL | METH_KEYWORDS,
     "probe($module, peer=None, group=None, *, tag=None)\n--\n\n"
     "Looks whether a message has come that no recv under way is for. Does not wait.\n\n"
     "peer, tag: of a rank of group, with a tag; None: of any, with any.\n"
     "Returns (peer, tag, elements, dtype) of the first, or None. recv of it, without\n"
     "async_op, does not wait for the peer. Raises WeftPeerDiedError if peer (None: every other\n"
     "rank) has left the world and none of its messages is left, WeftError if the group is "
     "broken."},
    {"barrier", WP_FUNCTION(barrier), METH_FASTCALL | METH_KEYWORDS,
     "barrier($module, group=None, *, " WP_ASYNC_SIGNATURE
     "Waits until all ranks of group are here. Returns None." WP_ASYNC_DOC WP_ERRORS_DOC},
    {NULL, NULL, 0, NULL},
};

int wp_collectives_init(PyObject *module, wp_state_t *state)
{
    (void)state;
    if (PyModule_AddFunctions(module, functions) < 0 || wp_gather_init(module) < 0) {
        return -1;
    }
    return wp_scatter_init(module);
}
