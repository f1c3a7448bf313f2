/* SPDX-License-Identifier: Apache-2.0 */
/* One call of the C library, whoever makes it: on this thread, or on a stream. */
#include "python/src/stream.h"

#include <stdlib.h>

const wp_op_t wp_ops[WP_OPS] = {{"", "batch", WEFT_EXTENT_NOTHING, WEFT_EXTENT_NOTHING, false},
#define WP_OP(op, value, name, function, send, sender, recv, receiver, reduces, variable, like)    \
    [value] = {(name), (function), WEFT_EXTENT_##send, WEFT_EXTENT_##recv, (variable)},
                                WEFT_COLLECTIVE_MAP(WP_OP)
#undef WP_OP
};

static weft_status_t issue_blocks(const wp_call_t *call, weft_stream_t *stream)
{
    const void *send = call->send.data;
    void *recv = call->recv.data;
    weft_dtype_t dtype = call->send.dtype;
    weft_group_t *group = call->group->group;
    const uint64_t *counts = call->counts;
    if (call->op == WEFT_COLLECTIVE_ALL_GATHER_V) {
        return weft_all_gather_v(send, recv, counts, NULL, dtype, group, stream);
    }
    if (call->op == WEFT_COLLECTIVE_REDUCE_SCATTER_V) {
        return weft_reduce_scatter_v(send, recv, counts, NULL, dtype, call->reduction, group,
                                     stream);
    }
    return weft_all_to_all_v(send, counts, NULL, recv, counts + call->group->size, NULL, dtype,
                             group, stream);
}

static weft_status_t issue_plain(const wp_call_t *call, weft_stream_t *stream)
{
    const void *send = call->send.data;
    void *recv = call->recv.data;
    uint64_t count = call->count;
    weft_dtype_t dtype = call->send.dtype;
    weft_group_t *group = call->group->group;
    switch (call->op) {
    case WEFT_COLLECTIVE_ALL_REDUCE:
        return weft_all_reduce(send, recv, count, dtype, call->reduction, group, stream);
    case WEFT_COLLECTIVE_REDUCE_SCATTER:
        return weft_reduce_scatter(send, recv, count, dtype, call->reduction, group, stream);
    case WEFT_COLLECTIVE_ALL_GATHER:
        return weft_all_gather(send, recv, count, dtype, group, stream);
    case WEFT_COLLECTIVE_BROADCAST:
        return weft_broadcast(send, recv, count, dtype, call->root, group, stream);
    case WEFT_COLLECTIVE_REDUCE:
        return weft_reduce(send, recv, count, dtype, call->reduction, call->root, group, stream);
    case WEFT_COLLECTIVE_GATHER:
        return weft_gather(send, recv, count, dtype, call->root, group, stream);
    case WEFT_COLLECTIVE_SCATTER:
        return weft_scatter(send, recv, count, dtype, call->root, group, stream);
    case WEFT_COLLECTIVE_ALL_TO_ALL:
        return weft_all_to_all(send, recv, count, dtype, group, stream);
    case WEFT_COLLECTIVE_BARRIER:
        return weft_barrier(group, stream);
    case WEFT_COLLECTIVE_SEND_RECV: /* one side of it */
        return call->recv.object == NULL
                   ? weft_send_tagged(send, count, dtype, call->root, call->tag, group, stream)
                   : weft_recv_tagged(recv, count, dtype, call->root, call->tag, group, stream);
    default:
        return issue_blocks(call, stream);
    }
}

/* Ranks compare shapes where each of them gives a tensor of the same one. */
static bool compares_shape(const wp_call_t *call)
{
    switch (call->op) {
    case WEFT_COLLECTIVE_ALL_REDUCE:
    case WEFT_COLLECTIVE_REDUCE_SCATTER:
    case WEFT_COLLECTIVE_ALL_GATHER:
    case WEFT_COLLECTIVE_BROADCAST:
    case WEFT_COLLECTIVE_REDUCE:
    case WEFT_COLLECTIVE_ALL_TO_ALL:
        return true;
    default:
        return false;
    }
}

/* Their order does not matter: both are copies, or send alone is given. */
weft_status_t wp_call_pack_back(const wp_call_t *call, weft_stream_t *stream)
{
    weft_status_t status = wp_array_pack_back(&call->send, stream);
    return status == WEFT_OK ? wp_array_pack_back(&call->recv, stream) : status;
}

weft_status_t wp_call_pack_in(const wp_call_t *call, weft_stream_t *stream)
{
    weft_status_t status = wp_array_pack_in(&call->send, stream);
    return status == WEFT_OK ? wp_array_pack_in(&call->recv, stream) : status;
}

static weft_status_t issue(const wp_call_t *call, weft_stream_t *stream)
{
    if (!call->group->shaped) {
        weft_group_set_shape(call->group->group, call->send.dims,
                             compares_shape(call) ? call->send.rank : 0);
    }
    call->group->shaped = false;
    return issue_plain(call, stream);
}

weft_status_t wp_call_issue(const wp_call_t *call, weft_stream_t *stream)
{
    if (call->group->notes) { /* another thread's batch would have it when its memory is gone */
        return weft_batch_begin(call->group->group); /* which says so */
    }
    weft_status_t status = wp_call_pack_in(call, stream); /* after WEFT_AGAIN: the same again */
    status = status == WEFT_OK ? issue(call, stream) : status;
    return status == WEFT_OK ? wp_call_pack_back(call, stream) : status;
}

weft_status_t wp_call_note(const wp_call_t *call)
{
    return issue(call, NULL);
}

void wp_call_release(wp_call_t *call)
{
    wp_array_release(&call->send);
    wp_array_release(&call->recv);
    free(call->counts);
    call->counts = NULL;
    Py_CLEAR(call->result);
    wp_group_t *group = call->group;
    call->group = NULL;
    Py_XDECREF((PyObject *)group);
}

static PyObject *gone(wp_state_t *state)
{
    return wp_raise_text(
        state, WEFT_ERR_STATE,
        "the group is gone: it was destroyed, or its context left (weft.finalize)");
}

int wp_group_enter(wp_state_t *state, wp_group_t *group)
{
    if (wp_lock(state, &group->lock) < 0) {
        return -1;
    }
    if (group->group != NULL) {
        return 0;
    }
    pthread_mutex_unlock(&group->lock);
    gone(state);
    return -1;
}

void wp_group_exit(wp_group_t *group)
{
    pthread_mutex_unlock(&group->lock);
}

int wp_call_run_entered(wp_state_t *state, const wp_call_t *call)
{
    for (;;) {
        PyThreadState *thread = PyEval_SaveThread();
        weft_status_t status = wp_call_issue(call, NULL);
        PyEval_RestoreThread(thread);
        if (status == WEFT_OK) {
            return 0;
        }
        if (status != WEFT_AGAIN) {
            wp_raise(state, status);
            return -1;
        }
        if (wp_make_room(state, call->group) < 0) {
            return -1;
        }
    }
}

weft_status_t wp_refuse_entered(wp_group_t *group, weft_status_t error, const char *text)
{
    weft_status_t status;
    do {
        PyThreadState *thread = PyEval_SaveThread();
        status = weft_group_refuse(group->group, error, text, NULL);
        PyEval_RestoreThread(thread);
    } while (status == WEFT_AGAIN && wp_make_room(group->context->state, group) == 0);
    return status;
}

/* "all_reduce: tensor is not contiguous", as UTF-8; NULL without memory. */
static PyObject *text_of(const wp_call_t *call, PyObject *error)
{
    const char *function = wp_ops[call->op].function;
    PyObject *text = error != NULL ? PyUnicode_FromFormat("%s: %S", function, error) : NULL;
    PyObject *bytes = text != NULL ? PyUnicode_AsUTF8String(text) : NULL;
    Py_XDECREF(text);
    return bytes;
}

void wp_call_refuse(const wp_call_t *call, bool entered)
{
    wp_group_t *group = call->group;
    PyObject *kind, *value, *trace;
    if (group->size == 1 || call->told || call->op == WEFT_COLLECTIVE_SEND_RECV) {
        return;
    }
    weft_status_t error =
        PyErr_ExceptionMatches(PyExc_MemoryError) ? WEFT_ERR_NO_MEMORY : WEFT_ERR_INVALID_ARGUMENT;
    PyErr_Fetch(&kind, &value, &trace);
    PyErr_NormalizeException(&kind, &value, &trace);
    PyObject *bytes = text_of(call, value);
    const char *text = bytes != NULL ? PyBytes_AsString(bytes) : NULL;
    if (text == NULL) {
        text = wp_ops[call->op].function;
    }
    if (group->batch != NULL) {
        wp_batch_note_refusal(group->batch, error, text);
    } else if (entered || wp_group_enter(group->context->state, group) == 0) {
        if (!group->notes) { /* another thread's batch */
            wp_refuse_entered(group, error, text);
        }
        if (!entered) {
            wp_group_exit(group);
        }
    }
    Py_XDECREF(bytes);
    PyErr_Restore(kind, value, trace);
}

/* What the call returns, or NULL when there is an exception; all else that it owns is given back.
 */
static PyObject *conclude(wp_call_t *call, bool failed)
{
    PyObject *result = failed ? NULL : Py_NewRef(call->result != NULL ? call->result : Py_None);
    wp_call_release(call);
    return result;
}

PyObject *wp_call_finish_entered(wp_state_t *state, wp_call_t *call)
{
    return conclude(call, wp_call_run_entered(state, call) < 0);
}

wp_ran_t wp_call_try(const wp_call_t *call)
{
    wp_group_t *group = call->group;
    wp_ran_t ran = {WEFT_OK, pthread_mutex_lock(&group->lock) == 0, false};
    if (ran.locked) {
        ran.here = group->group != NULL;
        ran.status = ran.here ? wp_call_issue(call, NULL) : WEFT_OK;
        pthread_mutex_unlock(&group->lock);
    }
    return ran;
}

int wp_call_settle(wp_state_t *state, const wp_call_t *call, wp_ran_t ran)
{
    if (ran.status == WEFT_AGAIN) {
        return wp_make_room(state, call->group);
    }
    if (ran.status == WEFT_OK && ran.here) {
        return 1;
    }
    if (!ran.locked) {
        wp_lock_refused(state);
    } else if (!ran.here) {
        gone(state);
    } else {
        wp_raise(state, ran.status);
    }
    return -1;
}

/* The common way: lock and call in one go without the GIL. */
static PyObject *run_here(wp_state_t *state, wp_call_t *call)
{
    for (;;) {
        PyThreadState *thread = PyEval_SaveThread();
        wp_ran_t ran = wp_call_try(call);
        PyEval_RestoreThread(thread);
        int done = wp_call_settle(state, call, ran);
        if (done != 0) {
            return conclude(call, done < 0);
        }
    }
}

PyObject *wp_call_finish(wp_state_t *state, wp_call_t *call, bool async, wp_stream_t *stream)
{
    if (call->group->batch != NULL) {
        return wp_batch_add(state, call);
    }
    if (call->group->kept != NULL && wp_keep(state, call) < 0) {
        wp_call_release(call);
        return NULL;
    }
    if (!async && stream == NULL) {
        return run_here(state, call);
    }
    PyObject *result = Py_NewRef(call->result != NULL ? call->result : Py_None);
    PyObject *work = wp_work_start(state, call, stream);
    if (work == NULL || async) {
        Py_DECREF(result);
        return work;
    }
    Py_DECREF(work); /* which lives until it is done, and its memory with it */
    return result;
}
