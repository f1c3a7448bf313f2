/* SPDX-License-Identifier: Apache-2.0 */
/* Parameters of the passes, from tuples that weft/passes.py makes, and the passes themselves. */
#include "python/src/passes.h"

#include <string.h>

#include "python/src/session.h"

/* Longest time: the latest that weft_pass_ready_times writes. Passes clamp or check what is less. */
#define MOST_NS 1000000000000000000ull
#define MOST_PS (UINT64_MAX >> 16)
#define MOST_RANKS 65536u

typedef struct pass_call {
    wp_pass_memory_t *memory;
    const weft_graph_view_t *view;
    PyObject *params;
    weft_edit_list_t *edits; /* result; for check: the argument */
    union {
        weft_bucket_params_t bucket;
        weft_algorithms_params_t algorithms;
        weft_schedule_params_t schedule;
    };
    weft_bucket_forecast_t forecast;
    weft_schedule_report_t report;
    const uint64_t *op_ns;
    uint64_t *ready_ns;
} pass_call_t;

typedef struct pass {
    const char *name;
    Py_ssize_t fields; /* length of params */
    int (*read)(pass_call_t *call);
    weft_status_t (*run)(pass_call_t *call);
    PyObject *(*result)(const pass_call_t *call);
} pass_t;

static PyObject *param(const pass_call_t *call, Py_ssize_t index)
{
    PyObject *object = PyTuple_GetItem(call->params, index);
    return object != Py_None ? object : NULL;
}

/* ---- parameters ---- */
static int read_text(const pass_call_t *call, Py_ssize_t index, const char *name, const char **out)
{
    PyObject *object = param(call, index);
    *out = object != NULL ? wp_pass_text(call->memory, object, name) : NULL;
    return object != NULL && *out == NULL ? -1 : 0;
}

static int read_path(const pass_call_t *call, Py_ssize_t index, const char **out)
{
    PyObject *object = param(call, index);
    PyObject *path = object != NULL ? wp_path_of(object, "costs") : NULL;
    char *copy = NULL;
    if (path != NULL) {
        size_t length = (size_t)PyBytes_Size(path);
        copy = wp_pass_take(call->memory, length + 1, 1);
        if (copy != NULL) {
            memcpy(copy, PyBytes_AsString(path), length);
        }
        Py_DECREF(path);
    }
    *out = copy;
    return object != NULL && copy == NULL ? -1 : 0;
}

/* A time per op. */
static int read_times(const pass_call_t *call, Py_ssize_t index, const char *name,
                      const uint64_t **out)
{
    size_t count = 0;
    PyObject *object = param(call, index);
    if (object == NULL) {
        return 0;
    }
    *out = wp_pass_u64(call->memory, object, name, MOST_NS, false, &count);
    return *out != NULL ? wp_pass_length(name, count, call->view->op_count) : -1;
}

/* Points (bytes, ps), which rise, or pieces (alpha_ps, beta_ps_per_kib). */
static int read_pairs(const pass_call_t *call, PyObject *object, bool points,
                      weft_bucket_cost_t *cost)
{
    size_t count = 0;
    const char *name = points ? "cost.points" : "cost.pieces";
    const uint64_t *pairs = wp_pass_u64(call->memory, object, name, MOST_PS, false, &count);
    if (pairs == NULL) {
        return -1;
    }
    if (count % 2 != 0) {
        return wp_pass_length(name, count, count + 1);
    }
    for (size_t i = 2; points && i < count; i += 2) {
        if (pairs[i] <= pairs[i - 2]) {
            PyErr_Format(PyExc_ValueError, "%s[%zu]: %llu bytes after %llu bytes: must rise", name,
                         i / 2, (unsigned long long)pairs[i], (unsigned long long)pairs[i - 2]);
            return -1;
        }
    }
    if (points) {
        cost->points = (const weft_bucket_point_t *)pairs;
        cost->point_count = (uint32_t)(count / 2);
    } else {
        cost->pieces = (const weft_bucket_piece_t *)pairs;
        cost->piece_count = (uint32_t)(count / 2);
    }
    return 0;
}

static int read_cost(const pass_call_t *call, Py_ssize_t index, const weft_bucket_cost_t **out)
{
    PyObject *object = param(call, index), *points, *pieces;
    if (object == NULL) {
        return 0;
    }
    weft_bucket_cost_t *cost = wp_pass_take(call->memory, 1, sizeof *cost);
    if (cost == NULL || !PyTuple_Check(object) ||
        !PyArg_ParseTuple(object, "OO:cost", &points, &pieces)) {
        if (PyErr_Occurred() == NULL) {
            PyErr_SetString(PyExc_TypeError, "cost must be a weft.passes.Cost");
        }
        return -1;
    }
    *out = cost;
    return read_pairs(call, points, true, cost) < 0 || read_pairs(call, pieces, false, cost) < 0
               ? -1
               : 0;
}

/* ---- bucket ---- */
static int read_bucket(pass_call_t *call)
{
    weft_bucket_params_t *params = &call->bucket;
    PyObject *world = param(call, 2);
    *params = (weft_bucket_params_t)WEFT_BUCKET_PARAMS_INIT;
    if (read_text(call, 0, "policy", &params->policy) < 0 ||
        read_times(call, 1, "ready_ns", &params->ready_ns) < 0 ||
        (world != NULL && wp_index(world, "world", MOST_RANKS, &params->world_size) < 0) ||
        read_cost(call, 3, &params->cost) < 0 ||
        read_cost(call, 4, &params->reduce_scatter_cost) < 0 ||
        read_cost(call, 5, &params->all_gather_cost) < 0) {
        return -1;
    }
    return read_path(call, 6, &params->costs_path);
}

static weft_status_t run_bucket(pass_call_t *call)
{
    return weft_pass_bucket(call->view, &call->bucket, &call->edits, &call->forecast);
}

static PyObject *bucket_result(const pass_call_t *call)
{
    const weft_bucket_forecast_t *forecast = &call->forecast;
    PyObject *edits = wp_pass_edits(call->edits);
    return edits == NULL
               ? NULL
               : Py_BuildValue("N(IIKKKKK)", edits, forecast->bucket_count, forecast->optimum_count,
                               forecast->ready_ps, forecast->chosen_ps, forecast->optimum_ps,
                               forecast->lower_bound_ps, forecast->comm_ps);
}

/* ---- algorithms ---- */
static int read_algorithms(pass_call_t *call)
{
    weft_algorithms_params_t *params = &call->algorithms;
    size_t count = 0;
    uint32_t order = 0, *sizes = NULL;
    *params = (weft_algorithms_params_t)WEFT_ALGORITHMS_PARAMS_INIT;
    const uint64_t *wide = wp_pass_u64(call->memory, PyTuple_GetItem(call->params, 0),
                                       "group_sizes", MOST_RANKS, false, &count);
    sizes = wide != NULL ? wp_pass_take(call->memory, count, sizeof *sizes) : NULL;
    if (sizes == NULL ||
        wp_index(PyTuple_GetItem(call->params, 1), "order", WEFT_ORDER_ANY, &order) < 0) {
        return -1;
    }
    for (size_t i = 0; i < count; i++) {
        sizes[i] = (uint32_t)wide[i];
    }
    params->group_sizes = sizes;
    params->group_count = (uint32_t)count;
    params->order = (weft_order_t)order;
    return read_path(call, 2, &params->costs_path);
}

static weft_status_t run_algorithms(pass_call_t *call)
{
    return weft_pass_algorithms(call->view, &call->algorithms, &call->edits);
}

static PyObject *edits_result(const pass_call_t *call)
{
    return wp_pass_edits(call->edits);
}

/* ---- insert_collectives, order, start_wait ---- */
static int read_nothing(pass_call_t *call)
{
    (void)call;
    return 0;
}

static weft_status_t run_insert(pass_call_t *call)
{
    return weft_pass_insert_collectives(call->view, NULL, &call->edits);
}

static weft_status_t run_order(pass_call_t *call)
{
    return weft_pass_order(call->view, NULL, &call->edits);
}

static weft_status_t run_start_wait(pass_call_t *call)
{
    return weft_pass_start_wait(call->view, NULL, &call->edits);
}

/* ---- ready_times ---- */
static int read_ready_times(pass_call_t *call)
{
    call->ready_ns = wp_pass_take(call->memory, call->view->op_count, sizeof *call->ready_ns);
    return call->ready_ns != NULL ? read_times(call, 0, "op_ns", &call->op_ns) : -1;
}

static weft_status_t run_ready_times(pass_call_t *call)
{
    return weft_pass_ready_times(call->view, call->op_ns, call->ready_ns);
}

static PyObject *ready_times_result(const pass_call_t *call)
{
    return PyBytes_FromStringAndSize((const char *)call->ready_ns,
                                     (Py_ssize_t)(call->view->op_count * sizeof *call->ready_ns));
}

/* ---- schedule ---- */
static int read_flags(const pass_call_t *call, Py_ssize_t index, const char *name,
                      const uint8_t **out)
{
    size_t count = 0;
    PyObject *object = param(call, index);
    if (object == NULL) {
        return 0;
    }
    const uint64_t *wide = wp_pass_u64(call->memory, object, name, UINT8_MAX, false, &count);
    uint8_t *flags = wide != NULL ? wp_pass_take(call->memory, count, 1) : NULL;
    for (size_t i = 0; flags != NULL && i < count; i++) {
        flags[i] = wide[i] != 0;
    }
    *out = flags;
    return flags != NULL ? wp_pass_length(name, count, call->view->value_count) : -1;
}

static int read_schedule(pass_call_t *call)
{
    weft_schedule_params_t *params = &call->schedule;
    *params = (weft_schedule_params_t)WEFT_SCHEDULE_PARAMS_INIT;
    if (read_times(call, 0, "op_ns", &params->op_ns) < 0 ||
        read_flags(call, 1, "kept", &params->kept) < 0 ||
        read_flags(call, 2, "to_end", &params->to_end) < 0 ||
        wp_index(PyTuple_GetItem(call->params, 3), "in_flight", INT32_MAX, &params->in_flight) <
            0) {
        return -1;
    }
    return wp_value_u64(param(call, 4), "most_live_bytes", &params->most_live_bytes);
}

static weft_status_t run_schedule(pass_call_t *call)
{
    return weft_pass_schedule(call->view, &call->schedule, &call->edits, &call->report);
}

static PyObject *schedule_result(const pass_call_t *call)
{
    const weft_schedule_cost_t *a = &call->report.given, *b = &call->report.chosen;
    PyObject *edits = wp_pass_edits(call->edits);
    return edits == NULL ? NULL
                         : Py_BuildValue("N(KKKI)(KKKI)i", edits, a->finish_ps, a->exposed_ps,
                                         a->peak_bytes, a->in_flight, b->finish_ps, b->exposed_ps,
                                         b->peak_bytes, b->in_flight, call->report.changed);
}

/* ---- check ---- */
static int read_id(PyObject *object, const char *name, uint32_t *out)
{
    *out = UINT32_MAX;
    return object == Py_None ? 0 : wp_index(object, name, UINT32_MAX - 1, out);
}

static int read_edit(const pass_call_t *call, PyObject *object, weft_edit_t *edit)
{
    int kind = 0;
    size_t count = 0;
    PyObject *value, *name, *reduction, *group, *members, *op_a, *op_b, *text, *parts;
    if (!PyTuple_Check(object) ||
        !PyArg_ParseTuple(object, "iOOOOOOOOO:edit", &kind, &value, &name, &reduction, &group,
                          &members, &op_a, &op_b, &text, &parts)) {
        if (PyErr_Occurred() == NULL) {
            PyErr_SetString(PyExc_TypeError, "an edit must be one of weft.passes");
        }
        return -1;
    }
    edit->kind = (weft_edit_kind_t)kind;
    if (read_id(value, "value", &edit->value) < 0 ||
        wp_reduction(reduction, &edit->reduction) < 0 ||
        wp_index(group, "group", UINT32_MAX - 1, &edit->group) < 0 ||
        read_id(op_a, "op", &edit->op_a) < 0 || read_id(op_b, "op", &edit->op_b) < 0 ||
        wp_index(parts, "parts", UINT32_MAX - 1, &edit->parts) < 0 ||
        (name != Py_None &&
         (edit->op_name = wp_pass_text(call->memory, name, "op_name")) == NULL) ||
        (text != Py_None && (edit->text = wp_pass_text(call->memory, text, "text")) == NULL)) {
        return -1;
    }
    uint64_t *wide = wp_pass_u64(call->memory, members, "members", UINT32_MAX - 1, false, &count);
    uint32_t *ids = wide != NULL ? wp_pass_take(call->memory, count, sizeof *ids) : NULL;
    for (size_t i = 0; ids != NULL && i < count; i++) {
        ids[i] = (uint32_t)wide[i];
    }
    edit->members = ids;
    edit->member_count = (uint32_t)count;
    return ids != NULL ? 0 : -1;
}

static int read_check(pass_call_t *call)
{
    PyObject *list = PySequence_List(PyTuple_GetItem(call->params, 0));
    Py_ssize_t count = list != NULL ? PyList_Size(list) : -1;
    weft_status_t status = count >= 0 ? weft_edit_list_create(NULL, &call->edits) : WEFT_OK;
    int result = count >= 0 && status == WEFT_OK ? 0 : -1;
    for (Py_ssize_t i = 0; result == 0 && i < count; i++) {
        weft_edit_t edit = {0};
        result = read_edit(call, PyList_GetItem(list, i), &edit);
        status = result == 0 ? weft_edit_list_add(call->edits, &edit) : status;
        result = status < 0 ? -1 : result;
    }
    if (status < 0) {
        wp_raise(call->memory->state, status);
    }
    Py_XDECREF(list);
    return result;
}

static weft_status_t run_check(pass_call_t *call)
{
    return weft_edits_check(call->view, call->edits);
}

static PyObject *check_result(const pass_call_t *call)
{
    (void)call;
    return Py_NewRef(Py_None);
}

/* ---- the table ---- */
static const pass_t passes[] = {
    {"insert_collectives", 0, read_nothing, run_insert, edits_result},
    {"bucket", 7, read_bucket, run_bucket, bucket_result},
    {"algorithms", 3, read_algorithms, run_algorithms, edits_result},
    {"order", 0, read_nothing, run_order, edits_result},
    {"start_wait", 0, read_nothing, run_start_wait, edits_result},
    {"schedule", 5, read_schedule, run_schedule, schedule_result},
    {"ready_times", 1, read_ready_times, run_ready_times, ready_times_result},
    {"check", 1, read_check, run_check, check_result},
};

PyObject *wp_pass_run(wp_pass_memory_t *memory, const char *name, const weft_graph_view_t *view,
                      PyObject *params)
{
    const pass_t *pass = NULL;
    pass_call_t call = {.memory = memory,
                        .view = view,
                        .params = params,
                        .forecast = WEFT_BUCKET_FORECAST_INIT,
                        .report = WEFT_SCHEDULE_REPORT_INIT};
    PyObject *result = NULL;
    for (size_t i = 0; i < sizeof passes / sizeof passes[0]; i++) {
        pass = strcmp(passes[i].name, name) == 0 ? &passes[i] : pass;
    }
    if (pass == NULL || PyTuple_Size(params) != pass->fields) {
        PyErr_Format(PyExc_ValueError, "unknown pass, or wrong number of parameters: %s", name);
        return NULL;
    }
    if (pass->read(&call) == 0) {
        PyThreadState *thread = PyEval_SaveThread();
        weft_status_t status = pass->run(&call);
        PyEval_RestoreThread(thread);
        result = status < 0 ? wp_raise(memory->state, status) : pass->result(&call);
    }
    weft_edit_list_destroy(call.edits);
    return result;
}
