/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a session: step, micro_step, eval. */
#include "python/src/session.h"

/* ---- the loss ---- */
/* Of the last run: without the GIL. NaN where there is none. */
static weft_status_t read_loss(wp_session_t *self, double *out)
{
    const wp_binding_t *loss = self->loss;
    float f32 = 0;
    weft_status_t status;
    if (loss->desc.dtype == WEFT_DTYPE_F64) {
        return weft_session_get_output(self->session, loss->name, out, sizeof *out, NULL);
    }
    status = weft_session_get_output(self->session, loss->name, &f32, sizeof f32, NULL);
    *out = (double)f32;
    return status;
}

static bool has_loss(const wp_session_t *self)
{
    return self->loss != NULL && self->loss->count == 1 &&
           (self->loss->desc.dtype == WEFT_DTYPE_F32 || self->loss->desc.dtype == WEFT_DTYPE_F64);
}

static PyObject *loss_object(const wp_session_t *self, double loss)
{
    return has_loss(self) ? PyFloat_FromDouble(loss) : Py_NewRef(Py_None);
}

/* ---- training ---- */
/* All micro-batches of a step, or its last one: without the GIL. */
static weft_status_t train(wp_session_t *self, const wp_feed_t *feed, double *out_loss)
{
    weft_status_t status = WEFT_OK;
    double sum = 0;
    for (uint32_t i = 0; i < feed->batches && status >= 0; i++) {
        double loss = 0;
        status = wp_feed_copy(self, feed, i);
        if (status >= 0) {
            status = i + 1 < feed->batches ? weft_session_micro_step(self->session)
                                           : weft_session_step(self->session);
        }
        if (status >= 0 && has_loss(self)) {
            status = read_loss(self, &loss);
        }
        sum += loss;
    }
    *out_loss = sum / feed->batches;
    return status;
}

static PyObject *train_step(wp_session_t *self, const wp_feed_t *feed)
{
    double loss = 0;
    weft_status_t status;
    if (wp_session_enter(self) < 0) {
        return NULL;
    }
    if (feed->batches > 1 && weft_session_micro_count(self->session) > 0) {
        wp_session_leave(self);
        return wp_raise_text(self->state, WEFT_ERR_STATE,
                             "all micro-batches of a step are given, of which some have run");
    }
    PyThreadState *thread = PyEval_SaveThread();
    status = train(self, feed, &loss);
    PyEval_RestoreThread(thread);
    return wp_session_end(self, status) < 0 ? NULL : loss_object(self, loss);
}

/* ---- outputs ---- */
static int make_outputs(wp_session_t *self, const wp_array_t *like, wp_array_t *arrays)
{
    for (size_t i = 0; i < self->output_count; i++) {
        if (wp_session_array(self, like, &self->outputs[i].desc, &arrays[i]) < 0) {
            return -1;
        }
    }
    return 0;
}

static weft_status_t infer(wp_session_t *self, const wp_feed_t *feed, const wp_array_t *arrays)
{
    weft_status_t status = wp_feed_copy(self, feed, 0);
    if (status >= 0) {
        status = weft_session_step(self->session);
    }
    for (size_t i = 0; i < self->output_count && status >= 0; i++) {
        status = weft_session_get_output(self->session, self->outputs[i].name, arrays[i].data,
                                         self->outputs[i].bytes, NULL);
    }
    return status;
}

/* The only one, or a dict. */
static PyObject *outputs_object(wp_session_t *self, const wp_array_t *arrays)
{
    if (self->output_count == 1) {
        return Py_NewRef(arrays[0].object);
    }
    PyObject *dict = PyDict_New();
    for (size_t i = 0; i < self->output_count && dict != NULL; i++) {
        if (PyDict_SetItem(dict, self->outputs[i].key, arrays[i].object) < 0) {
            Py_CLEAR(dict);
        }
    }
    return dict;
}

static PyObject *infer_step(wp_session_t *self, const wp_feed_t *feed)
{
    wp_array_t *arrays = PyMem_Calloc(self->output_count + 1, sizeof *arrays);
    PyObject *result = NULL;
    weft_status_t status;
    if (arrays == NULL) {
        return PyErr_NoMemory();
    }
    if (make_outputs(self, wp_feed_like(feed), arrays) == 0 && wp_session_enter(self) == 0) {
        PyThreadState *thread = PyEval_SaveThread();
        status = infer(self, feed, arrays);
        PyEval_RestoreThread(thread);
        result = wp_session_end(self, status) < 0 ? NULL : outputs_object(self, arrays);
    }
    for (size_t i = 0; i < self->output_count; i++) {
        wp_array_release(&arrays[i]);
    }
    PyMem_Free(arrays);
    return result;
}

/* ---- methods ---- */
PyObject *wp_session_step(PyObject *object, PyObject *const *args, Py_ssize_t count,
                          PyObject *keywords)
{
    wp_session_t *self = (wp_session_t *)object;
    wp_feed_t feed;
    uint32_t most = self->training ? self->accumulate : 1;
    if (wp_feed_get(self, "step", args, count, keywords, WP_FEED_STEP, most, &feed) < 0) {
        return NULL;
    }
    PyObject *result = self->training ? train_step(self, &feed) : infer_step(self, &feed);
    wp_feed_release(&feed);
    return result;
}

PyObject *wp_session_micro_step(PyObject *object, PyObject *const *args, Py_ssize_t count,
                                PyObject *keywords)
{
    wp_session_t *self = (wp_session_t *)object;
    wp_feed_t feed;
    double loss = 0;
    weft_status_t status;
    if (wp_feed_get(self, "micro_step", args, count, keywords, WP_FEED_STEP, 1, &feed) < 0) {
        return NULL;
    }
    if (wp_session_enter(self) < 0) {
        wp_feed_release(&feed);
        return NULL;
    }
    PyThreadState *thread = PyEval_SaveThread();
    status = wp_feed_copy(self, &feed, 0);
    if (status >= 0) {
        status = weft_session_micro_step(self->session);
    }
    if (status >= 0 && has_loss(self)) {
        status = read_loss(self, &loss);
    }
    PyEval_RestoreThread(thread);
    PyObject *result = wp_session_end(self, status) < 0 ? NULL : loss_object(self, loss);
    wp_feed_release(&feed);
    return result;
}

/* Forward only; out: the logits' array, or none. */
static PyObject *evaluate(wp_session_t *self, const wp_feed_t *feed, wp_array_t *out)
{
    double loss = 0;
    weft_status_t status;
    if (wp_session_enter(self) < 0) {
        return NULL;
    }
    PyThreadState *thread = PyEval_SaveThread();
    status = wp_feed_copy(self, feed, 0);
    if (status >= 0) {
        status = weft_session_eval(self->session);
    }
    if (status >= 0 && out->object != NULL) {
        status = weft_session_get_output(self->session, self->logits->name, out->data,
                                         self->logits->bytes, NULL);
    } else if (status >= 0 && has_loss(self)) {
        status = read_loss(self, &loss);
    }
    PyEval_RestoreThread(thread);
    if (wp_session_end(self, status) < 0) {
        return NULL;
    }
    return out->object != NULL ? Py_NewRef(out->object) : loss_object(self, loss);
}

PyObject *wp_session_eval(PyObject *object, PyObject *const *args, Py_ssize_t count,
                          PyObject *keywords)
{
    wp_session_t *self = (wp_session_t *)object;
    wp_feed_t feed;
    wp_array_t out = {.data = NULL};
    PyObject *result = NULL;
    if (wp_feed_get(self, "eval", args, count, keywords, WP_FEED_EVAL, 1, &feed) < 0) {
        return NULL;
    }
    if (self->logits == NULL ||
        wp_session_array(self, wp_feed_like(&feed), &self->logits->desc, &out) == 0) {
        result = evaluate(self, &feed, &out);
    }
    wp_array_release(&out);
    wp_feed_release(&feed);
    return result;
}

PyObject *wp_session_feed(PyObject *object, PyObject *const *args, Py_ssize_t count,
                          PyObject *keywords)
{
    wp_session_t *self = (wp_session_t *)object;
    wp_feed_t feed;
    weft_status_t status;
    int ended = -1;
    if (wp_feed_get(self, "feed", args, count, keywords, WP_FEED_SOME, 1, &feed) < 0) {
        return NULL;
    }
    if (wp_session_enter(self) == 0) {
        PyThreadState *thread = PyEval_SaveThread();
        status = wp_feed_copy(self, &feed, 0);
        PyEval_RestoreThread(thread);
        ended = wp_session_end(self, status);
    }
    wp_feed_release(&feed);
    return ended < 0 ? NULL : Py_NewRef(Py_None);
}
