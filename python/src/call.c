/* SPDX-License-Identifier: Apache-2.0 */
/* One call of the C library, whoever makes it: on this thread, or on a stream. */
#include "python/src/weft_python.h"

#include <sched.h>
#include <stdlib.h>

static weft_status_t issue_blocks(const wp_call_t *call, weft_stream_t *stream)
{
    const void *send = call->send.data;
    void *recv = call->recv.data;
    weft_dtype_t dtype = call->send.dtype;
    weft_group_t *group = call->group->group;
    const uint64_t *counts = call->counts;
    if (call->op == WEFT_OP_ALL_GATHER_V) {
        return weft_all_gather_v(send, recv, counts, NULL, dtype, group, stream);
    }
    if (call->op == WEFT_OP_REDUCE_SCATTER_V) {
        return weft_reduce_scatter_v(send, recv, counts, NULL, dtype, call->reduction, group,
                                     stream);
    }
    return weft_all_to_all_v(send, counts, NULL, recv, counts + call->group->size, NULL, dtype,
                             group, stream);
}

weft_status_t wp_call_issue(const wp_call_t *call, weft_stream_t *stream)
{
    const void *send = call->send.data;
    void *recv = call->recv.data;
    uint64_t count = call->count;
    weft_dtype_t dtype = call->send.dtype;
    weft_group_t *group = call->group->group;
    switch (call->op) {
    case WEFT_OP_ALL_REDUCE:
        return weft_all_reduce(send, recv, count, dtype, call->reduction, group, stream);
    case WEFT_OP_REDUCE_SCATTER:
        return weft_reduce_scatter(send, recv, count, dtype, call->reduction, group, stream);
    case WEFT_OP_ALL_GATHER:
        return weft_all_gather(send, recv, count, dtype, group, stream);
    case WEFT_OP_BROADCAST:
        return weft_broadcast(send, recv, count, dtype, call->root, group, stream);
    case WEFT_OP_REDUCE:
        return weft_reduce(send, recv, count, dtype, call->reduction, call->root, group, stream);
    case WEFT_OP_GATHER:
        return weft_gather(send, recv, count, dtype, call->root, group, stream);
    case WEFT_OP_SCATTER:
        return weft_scatter(send, recv, count, dtype, call->root, group, stream);
    case WEFT_OP_ALL_TO_ALL:
        return weft_all_to_all(send, recv, count, dtype, group, stream);
    case WEFT_OP_BARRIER:
        return weft_barrier(group, stream);
    case WEFT_OP_SEND_RECV: /* one side of it */
        return call->recv.object == NULL ? weft_send(send, count, dtype, call->root, group, stream)
                                         : weft_recv(recv, count, dtype, call->root, group, stream);
    default:
        return issue_blocks(call, stream);
    }
}

void wp_call_release(wp_call_t *call)
{
    wp_array_release(&call->send);
    wp_array_release(&call->recv);
    free(call->counts);
    call->counts = NULL;
    Py_CLEAR(call->result);
}

/* The group has as many calls in flight as it can: those on streams go on while somebody waits for
 * them. */
static void make_room(const wp_group_t *group)
{
    wp_stream_t *stream = group->stream;
    if (stream != NULL && pthread_mutex_trylock(&stream->lock) == 0) {
        if (stream->stream != NULL) {
            weft_stream_query(stream->stream);
        }
        pthread_mutex_unlock(&stream->lock);
    }
    sched_yield();
}

/* To completion; without the GIL, the lock held. */
static weft_status_t run(const wp_call_t *call)
{
    weft_status_t status;
    while ((status = wp_call_issue(call, NULL)) == WEFT_AGAIN) {
        make_room(call->group);
    }
    return status;
}

static PyObject *gone(wp_state_t *state)
{
    return wp_raise_text(
        state, WEFT_ERR_STATE,
        "the group is gone: it was destroyed, or its context left (weft.finalize)");
}

int wp_group_enter(wp_state_t *state, wp_group_t *group)
{
    wp_lock(&group->lock);
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

/* Result or exception; what call owns is given back. */
static PyObject *conclude(wp_state_t *state, wp_call_t *call, weft_status_t status)
{
    PyObject *result = call->result;
    call->result = NULL;
    if (status < 0) {
        wp_raise(state, status);
        Py_CLEAR(result);
    } else if (result == NULL) {
        result = Py_NewRef(Py_None);
    }
    wp_call_release(call);
    return result;
}

weft_status_t wp_call_run_entered(const wp_call_t *call)
{
    PyThreadState *thread = PyEval_SaveThread();
    weft_status_t status = run(call);
    PyEval_RestoreThread(thread);
    return status;
}

PyObject *wp_call_finish_entered(wp_state_t *state, wp_call_t *call)
{
    return conclude(state, call, wp_call_run_entered(call));
}

static PyObject *run_here(wp_state_t *state, wp_call_t *call)
{
    wp_group_t *group = call->group;
    Py_INCREF(
        (PyObject *)group); /* the world's goes with finalize, which another thread may call */
    /* Nobody waits for the lock with the GIL: who has it may need that. */
    PyThreadState *thread = PyEval_SaveThread();
    pthread_mutex_lock(&group->lock);
    bool here = group->group != NULL;
    weft_status_t status = here ? run(call) : WEFT_OK;
    pthread_mutex_unlock(&group->lock);
    PyEval_RestoreThread(thread);
    PyObject *result;
    if (here) {
        result = conclude(state, call, status);
    } else {
        wp_call_release(call);
        result = gone(state);
    }
    Py_DECREF((PyObject *)group);
    return result;
}

PyObject *wp_call_finish(wp_state_t *state, wp_call_t *call, bool async, wp_stream_t *stream)
{
    if (call->group->batch != NULL) {
        return wp_batch_add(state, call);
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

/* Until work.c and stream.c have theirs. */
__attribute__((weak)) PyObject *wp_work_start(wp_state_t *state, wp_call_t *call,
                                              wp_stream_t *stream)
{
    (void)stream;
    wp_call_release(call);
    return wp_raise_text(state, WEFT_ERR_UNSUPPORTED, "async_op and stream: not yet");
}

__attribute__((weak)) int wp_stream_of(wp_state_t *state, PyObject *object, wp_stream_t **out)
{
    (void)state;
    *out = NULL;
    return object == Py_None ? 0 : (PyErr_SetString(PyExc_TypeError, "stream"), -1);
}
