/* SPDX-License-Identifier: Apache-2.0 */
/* What a session writes and reads: models, checkpoints, timelines; and its stats. */
#include "python/src/session.h"

#include <stdlib.h>
#include <string.h>

/* ---- the trained model ---- */
/* All weights, in memory of their own: without the GIL. Freed by free_weights, also on failure. */
static weft_status_t copy_weights(weft_session_t *session, weft_named_tensor_t *tensors,
                                  size_t count)
{
    weft_status_t status = WEFT_OK;
    for (size_t i = 0; i < count && status >= 0; i++) {
        weft_named_tensor_t *tensor = &tensors[i];
        status = weft_session_param_info(session, i, &tensor->name, &tensor->desc);
        if (status < 0) {
            return status;
        }
        size_t bytes = (size_t)weft_tensor_elem_count(&tensor->desc) *
                       weft_dtype_size_bytes(tensor->desc.dtype);
        void *data = malloc(bytes + 1);
        tensor->desc.data = data;
        status =
            data != NULL ? weft_session_get_param(session, i, data, bytes) : WEFT_ERR_NO_MEMORY;
    }
    return status;
}

static void free_weights(weft_named_tensor_t *tensors, size_t count)
{
    for (size_t i = 0; i < count && tensors != NULL; i++) {
        free((void *)(uintptr_t)tensors[i].desc.data);
    }
    free(tensors);
}

/* All ranks read the weights, of which each may have a shard; rank 0 writes. */
static weft_status_t save(const wp_session_t *self, const char *path)
{
    size_t count = weft_session_param_count(self->session);
    weft_named_tensor_t *tensors = calloc(count + 1, sizeof *tensors);
    weft_status_t status =
        tensors != NULL ? copy_weights(self->session, tensors, count) : WEFT_ERR_NO_MEMORY;
    if (status >= 0 && self->context->rank == 0) {
        status = weft_model_save(self->plan->plan, tensors, count, path);
    }
    free_weights(tensors, count);
    return status;
}

/* Calls work(self, path, more) without the GIL. */
typedef weft_status_t (*work_fn)(wp_session_t *self, const char *path, void *more);

static PyObject *with_path(PyObject *object, PyObject *where, work_fn work, void *more)
{
    wp_session_t *self = (wp_session_t *)object;
    PyObject *path = wp_path_of(where, "path");
    PyObject *result = NULL;
    weft_status_t status;
    if (path == NULL) {
        return NULL;
    }
    const char *file = PyBytes_AsString(path);
    if (wp_session_enter(self) == 0) {
        PyThreadState *thread = PyEval_SaveThread();
        status = work(self, file, more);
        PyEval_RestoreThread(thread);
        result = wp_session_end(self, status) < 0 ? NULL : Py_NewRef(Py_None);
    }
    Py_DECREF(path);
    return result;
}

static weft_status_t do_save(wp_session_t *self, const char *path, void *more)
{
    (void)more;
    return save(self, path);
}

static weft_status_t do_trace(wp_session_t *self, const char *path, void *more)
{
    (void)more;
    return weft_session_write_trace(self->session, path);
}

static weft_status_t do_profile(wp_session_t *self, const char *path, void *more)
{
    (void)more;
    return weft_session_write_profile(self->session, path);
}

static weft_status_t do_save_checkpoint(wp_session_t *self, const char *path, void *more)
{
    return weft_session_save_checkpoint(self->session, path, more);
}

static weft_status_t do_load_checkpoint(wp_session_t *self, const char *path, void *more)
{
    return weft_session_load_checkpoint(self->session, path, more);
}

PyObject *wp_session_save(PyObject *object, PyObject *path)
{
    return with_path(object, path, do_save, NULL);
}

PyObject *wp_session_write_trace(PyObject *object, PyObject *path)
{
    return with_path(object, path, do_trace, NULL);
}

PyObject *wp_session_write_profile(PyObject *object, PyObject *path)
{
    return with_path(object, path, do_profile, NULL);
}

/* ---- checkpoints ---- */
PyObject *wp_session_save_checkpoint(PyObject *object, PyObject *const *args, Py_ssize_t count,
                                     PyObject *keywords)
{
    static const char *const names[] = {"path",         "seed", "epoch", "sample",
                                        "sample_count", "lr",   NULL};
    PyObject *given[6];
    weft_checkpoint_info_t info = WEFT_CHECKPOINT_INFO_INIT;
    if (wp_parse("save_checkpoint", args, count, keywords, names, 1, 1, given) < 0 ||
        wp_value_u64(given[1], names[1], &info.seed) < 0 ||
        wp_value_u64(given[2], names[2], &info.epoch) < 0 ||
        wp_value_u64(given[3], names[3], &info.sample) < 0 ||
        wp_value_u64(given[4], names[4], &info.sample_count) < 0 ||
        wp_value_number(given[5], names[5], &info.lr) < 0) {
        return NULL;
    }
    return with_path(object, given[0], do_save_checkpoint, &info);
}

static PyObject *checkpoint_dict(const weft_checkpoint_info_t *info)
{
    PyObject *dict = PyDict_New();
    if (dict == NULL) {
        return NULL;
    }
    if (wp_dict_add(dict, "seed", PyLong_FromUnsignedLongLong(info->seed)) < 0 ||
        wp_dict_add(dict, "epoch", PyLong_FromUnsignedLongLong(info->epoch)) < 0 ||
        wp_dict_add(dict, "sample", PyLong_FromUnsignedLongLong(info->sample)) < 0 ||
        wp_dict_add(dict, "sample_count", PyLong_FromUnsignedLongLong(info->sample_count)) < 0 ||
        wp_dict_add(dict, "lr", PyFloat_FromDouble(info->lr)) < 0 ||
        wp_dict_add(dict, "step", PyLong_FromUnsignedLongLong(info->step)) < 0 ||
        wp_dict_add(dict, "global_batch", PyLong_FromUnsignedLongLong(info->global_batch)) < 0 ||
        wp_dict_add(dict, "world", PyLong_FromUnsignedLong(info->world_size)) < 0 ||
        wp_dict_add(dict, "optimizer", PyUnicode_FromString(info->optimizer)) < 0 ||
        wp_dict_add(dict, "tensors", PyLong_FromUnsignedLong(info->tensor_count)) < 0) {
        Py_CLEAR(dict);
    }
    return dict;
}

PyObject *wp_session_load_checkpoint(PyObject *object, PyObject *path)
{
    weft_checkpoint_info_t info = WEFT_CHECKPOINT_INFO_INIT;
    PyObject *done = with_path(object, path, do_load_checkpoint, &info);
    if (done == NULL) {
        return NULL;
    }
    Py_DECREF(done);
    return checkpoint_dict(&info);
}

/* ---- stats ---- */
PyObject *wp_session_stats(PyObject *object, PyObject *unused)
{
    wp_session_t *self = (wp_session_t *)object;
    weft_session_stats_t s = WEFT_SESSION_STATS_INIT;
    (void)unused;
    if (wp_session_enter(self) < 0) {
        return NULL;
    }
    weft_status_t status = weft_session_get_stats(self->session, &s);
    PyObject *dict = wp_session_end(self, status) < 0 ? NULL : PyDict_New();
    if (dict == NULL) {
        return NULL;
    }
    if (wp_dict_add(dict, "steps", PyLong_FromUnsignedLongLong(s.steps)) < 0 ||
        wp_dict_add(dict, "step_ms_p50", PyFloat_FromDouble(s.step_ms_p50)) < 0 ||
        wp_dict_add(dict, "step_ms_mean", PyFloat_FromDouble(s.step_ms_mean)) < 0 ||
        wp_dict_add(dict, "compute_ms_p50", PyFloat_FromDouble(s.compute_ms_p50)) < 0 ||
        wp_dict_add(dict, "comm_ms_p50", PyFloat_FromDouble(s.comm_ms_p50)) < 0 ||
        wp_dict_add(dict, "exposed_comm_ms_p50", PyFloat_FromDouble(s.exposed_comm_ms_p50)) < 0 ||
        wp_dict_add(dict, "overlap_fraction", PyFloat_FromDouble(s.overlap_fraction)) < 0 ||
        wp_dict_add(dict, "inline_progress", PyBool_FromLong(s.inline_progress)) < 0 ||
        wp_dict_add(dict, "arena_bytes", PyLong_FromUnsignedLongLong(s.arena_bytes)) < 0 ||
        wp_dict_add(dict, "scratch_bytes", PyLong_FromUnsignedLongLong(s.scratch_bytes)) < 0 ||
        wp_dict_add(dict, "fusion_copied_bytes",
                    PyLong_FromUnsignedLongLong(s.fusion_copied_bytes)) < 0 ||
        wp_dict_add(dict, "timeline_first_step",
                    PyLong_FromUnsignedLongLong(s.timeline_first_step)) < 0 ||
        wp_dict_add(dict, "timeline_last_step", PyLong_FromUnsignedLongLong(s.timeline_last_step)) <
            0 ||
        wp_dict_add(dict, "kernels", PyUnicode_FromString(s.kernels != NULL ? s.kernels : "")) <
            0) {
        Py_CLEAR(dict);
    }
    return dict;
}
