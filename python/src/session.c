/* SPDX-License-Identifier: Apache-2.0 */
/* Session: a plan bound to a context. How it comes, is locked and goes; the rest is in session_*.c.
 */
#include "python/src/session.h"

#include <errno.h>
#include <stddef.h>
#include <unistd.h>

/* ---- one call at a time ---- */
/*
 * Destroys the C session once it was closed, nobody is in a call and no array looks at its memory
 * (at exit those do not count: nobody reads them any more, and the world is to be left).
 */
static void let_go(wp_session_t *self)
{
    bool idle = self->closed && self->session != NULL &&
                (self->views == 0 || self->state->exiting) &&
                pthread_mutex_trylock(&self->lock) == 0;
    if (!idle) {
        return;
    }
    weft_session_t *session = self->session;
    self->session = NULL;
    pthread_mutex_unlock(&self->lock);
    if (self->context->process != (int64_t)getpid()) {
        return; /* of a forked child's parent */
    }
    Py_BEGIN_ALLOW_THREADS weft_session_destroy(session);
    Py_END_ALLOW_THREADS
}

int wp_session_enter(wp_session_t *self)
{
    int error = pthread_mutex_trylock(&self->lock);
    if (error == EBUSY) {
        Py_BEGIN_ALLOW_THREADS error = pthread_mutex_lock(&self->lock);
        Py_END_ALLOW_THREADS
    }
    if (error != 0) {
        wp_raise_text(self->state, WEFT_ERR_STATE,
                      "the session is in a call of this thread already");
        return -1;
    }
    if (self->closed || self->session == NULL) {
        pthread_mutex_unlock(&self->lock);
        wp_raise_text(self->state, WEFT_ERR_STATE, "the session was closed");
        return -1;
    }
    return 0;
}

void wp_session_leave(wp_session_t *self)
{
    pthread_mutex_unlock(&self->lock);
    let_go(self);
}

int wp_session_end(wp_session_t *self, weft_status_t status)
{
    if (status < 0) {
        wp_raise(self->state, status);
    }
    wp_session_leave(self);
    return status < 0 ? -1 : 0;
}

void wp_session_view_gone(wp_session_t *self)
{
    self->views--;
    let_go(self);
}

static void close_session(wp_session_t *self)
{
    self->closed = true;
    wp_holder_drop(&self->holder);
    let_go(self);
}

static void leave_context(wp_holder_t *holder)
{
    wp_session_t *self = (wp_session_t *)(void *)((char *)holder - offsetof(wp_session_t, holder));
    self->closed = true;
    let_go(self);
}

/* ---- arrays ---- */
wp_binding_t *wp_binding_find(wp_binding_t *bindings, size_t count, PyObject *name)
{
    for (size_t i = 0; i < count; i++) { /* names in calls are interned, mostly */
        if (bindings[i].key == name) {
            return &bindings[i];
        }
    }
    for (size_t i = 0; i < count && PyUnicode_Check(name); i++) {
        if (PyUnicode_Compare(bindings[i].key, name) == 0) {
            return &bindings[i];
        }
    }
    return NULL;
}

/* tensor.new_empty(shape, dtype=): of the device and kind of tensor. */
static PyObject *new_tensor(wp_state_t *state, PyObject *tensor, const weft_tensor_desc_t *desc)
{
    PyObject *dtype = state->torch.dtypes[desc->dtype], *result = NULL;
    if (dtype == NULL) {
        PyErr_Format(PyExc_TypeError, "torch has no type for an output of %s",
                     wp_dtype_name(desc->dtype));
        return NULL;
    }
    PyObject *method = PyObject_GetAttrString(tensor, "new_empty");
    PyObject *shape = method != NULL ? wp_shape_tuple(desc) : NULL;
    PyObject *args = shape != NULL ? PyTuple_Pack(1, shape) : NULL;
    PyObject *keywords = args != NULL ? PyDict_New() : NULL;
    if (keywords != NULL && PyDict_SetItemString(keywords, "dtype", dtype) == 0) {
        result = PyObject_Call(method, args, keywords);
    }
    Py_XDECREF(keywords);
    Py_XDECREF(args);
    Py_XDECREF(shape);
    Py_XDECREF(method);
    return result;
}

int wp_session_array(wp_session_t *self, const wp_array_t *like, const weft_tensor_desc_t *desc,
                     wp_array_t *out)
{
    wp_array_t kind = {.dtype = desc->dtype};
    if (like != NULL && like->kind == WP_TORCH) {
        PyObject *tensor = new_tensor(self->state, like->object, desc);
        int status =
            tensor != NULL ? wp_array_get(self->state, tensor, "output", WP_WRITE, out) : -1;
        Py_XDECREF(tensor);
        return status;
    }
    return wp_array_new(self->state, &kind, desc->rank, desc->dims, out);
}

/* ---- how it comes ---- */
static const uint32_t input_roles = 1u << WEFT_ROLE_INPUT | 1u << WEFT_ROLE_LABEL;
static const uint32_t output_roles =
    1u << WEFT_ROLE_LOSS | 1u << WEFT_ROLE_LOGITS | 1u << WEFT_ROLE_OUTPUT;
static const uint32_t scalar_roles = 1u << WEFT_ROLE_SCALAR;

/* Fills out with the bindings of these roles. -1: an exception is set. */
static int take_bindings(wp_session_t *self, uint32_t roles, wp_binding_t *out, size_t *out_count)
{
    weft_plan_t *plan = self->plan->plan;
    *out_count = 0;
    for (size_t i = 0; i < weft_plan_binding_count(plan); i++) {
        weft_binding_t from = {.struct_size = sizeof from};
        weft_status_t status = weft_plan_get_binding(plan, i, &from);
        if (status < 0) {
            wp_raise(self->state, status);
            return -1;
        }
        if ((roles & 1u << from.role) == 0) {
            continue;
        }
        wp_binding_t *binding = &out[(*out_count)++];
        binding->name = from.name;
        binding->role = from.role;
        binding->desc = from.desc;
        binding->count = (uint64_t)weft_tensor_elem_count(&from.desc);
        binding->bytes = binding->count * weft_dtype_size_bytes(from.desc.dtype);
        binding->key = PyUnicode_InternFromString(from.name);
        if (binding->key == NULL) {
            return -1;
        }
    }
    return 0;
}

static int find_bindings(wp_session_t *self)
{
    size_t most = weft_plan_binding_count(self->plan->plan);
    wp_binding_t *all = PyMem_Calloc(most + 1, sizeof *all);
    if (all == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    self->inputs = self->outputs = self->scalars = all;
    if (take_bindings(self, input_roles, all, &self->input_count) < 0) {
        return -1;
    }
    self->outputs = self->scalars = all + self->input_count;
    if (take_bindings(self, output_roles, self->outputs, &self->output_count) < 0) {
        return -1;
    }
    self->scalars = self->outputs + self->output_count;
    if (take_bindings(self, scalar_roles, self->scalars, &self->scalar_count) < 0) {
        return -1;
    }
    for (size_t i = 0; i < self->output_count; i++) {
        wp_binding_t *output = &self->outputs[i];
        self->loss = output->role == WEFT_ROLE_LOSS ? output : self->loss;
        self->logits = output->role == WEFT_ROLE_LOGITS ? output : self->logits;
    }
    return 0;
}

/* Binds: all ranks come here. */
static int bind(wp_session_t *self, weft_context_t *context, bool trace)
{
    weft_plan_info_t info = {.struct_size = sizeof info};
    weft_session_params_t params = {.struct_size = sizeof params,
                                    .context = context,
                                    .plan = self->plan->plan,
                                    .registry = self->plan->registry,
                                    .trace = trace};
    weft_status_t status;
    Py_BEGIN_ALLOW_THREADS status = weft_session_create(&params, &self->session);
    if (status >= 0) {
        status = weft_plan_get_info(self->plan->plan, &info);
    }
    Py_END_ALLOW_THREADS if (status < 0)
    {
        wp_raise(self->state, status);
        return -1;
    }
    self->training = info.kind == WEFT_PLAN_TRAINING;
    self->split = info.split_batch != 0;
    self->accumulate = info.accumulate > 0 ? info.accumulate : 1;
    for (size_t i = 0; i < self->input_count; i++) {
        void *memory = NULL;
        size_t bytes = 0;
        if (weft_session_input_memory(self->session, self->inputs[i].name, &memory, &bytes) >= 0 &&
            bytes == self->inputs[i].bytes) {
            self->inputs[i].memory = memory;
        }
    }
    return 0;
}

static int init_lock(wp_session_t *self)
{
    pthread_mutexattr_t attributes;
    int error = pthread_mutexattr_init(&attributes);
    if (error == 0) {
        pthread_mutexattr_settype(&attributes, PTHREAD_MUTEX_ERRORCHECK);
        error = pthread_mutex_init(&self->lock, &attributes);
        pthread_mutexattr_destroy(&attributes);
    }
    self->has_lock = error == 0;
    if (error != 0) {
        PyErr_NoMemory();
    }
    return error == 0 ? 0 : -1;
}

/* A Plan, or the path of one. A new reference. */
static PyObject *plan_of(wp_state_t *state, PyObject *object)
{
    if (Py_TYPE(object) == state->plan_type) {
        return Py_NewRef(object);
    }
    if (PyUnicode_Check(object) || PyBytes_Check(object) ||
        PyObject_HasAttrString(object, "__fspath__")) {
        PyObject *name = PyUnicode_FromString("load");
        PyObject *plan = name != NULL ? PyObject_CallMethodObjArgs((PyObject *)state->plan_type,
                                                                   name, object, NULL)
                                      : NULL;
        Py_XDECREF(name);
        return plan;
    }
    PyErr_Format(PyExc_TypeError, "plan must be a weft.Plan or a path, not %R",
                 (PyObject *)Py_TYPE(object));
    return NULL;
}

static PyObject *session_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"plan", "context", "trace", NULL};
    PyObject *plan = NULL, *where = NULL;
    int trace = 0;
    wp_state_t *state = wp_state_of_type(type);
    if (state == NULL || !PyArg_ParseTupleAndKeywords(args, keywords, "O|O$p:Session", names, &plan,
                                                      &where, &trace)) {
        return NULL;
    }
    wp_context_t *context = wp_context_of(state, where);
    weft_context_t *world = context != NULL ? wp_context_open(context) : NULL;
    plan = world != NULL ? plan_of(state, plan) : NULL;
    if (plan == NULL) {
        return NULL;
    }
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    wp_session_t *self = (wp_session_t *)alloc(type, 0); /* zeroed */
    if (self == NULL) {
        Py_DECREF(plan);
        return NULL;
    }
    self->state = state;
    self->plan = (wp_plan_t *)plan;
    self->context = (wp_context_t *)Py_NewRef((PyObject *)context);
    if (init_lock(self) < 0 || find_bindings(self) < 0 || bind(self, world, trace != 0) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    wp_context_hold(context, &self->holder, leave_context);
    return (PyObject *)self;
}

static void session_dealloc(PyObject *object)
{
    wp_session_t *self = (wp_session_t *)object;
    PyTypeObject *type = Py_TYPE(object);
    if (self->has_lock) {
        close_session(self); /* views keep the session: there are none */
        pthread_mutex_destroy(&self->lock);
    }
    size_t count = self->input_count + self->output_count + self->scalar_count;
    for (size_t i = 0; i < count; i++) {
        Py_XDECREF(self->inputs[i].key);
    }
    PyMem_Free(self->inputs);
    Py_XDECREF((PyObject *)self->plan);
    Py_XDECREF((PyObject *)self->context);
    freefunc free_object = (freefunc)PyType_GetSlot(type, Py_tp_free);
    free_object(object);
    Py_DECREF(type);
}

/* ---- small methods ---- */
static PyObject *session_close(PyObject *object, PyObject *unused)
{
    (void)unused;
    close_session((wp_session_t *)object);
    return Py_NewRef(Py_None);
}

static PyObject *session_enter_with(PyObject *object, PyObject *unused)
{
    (void)unused;
    return Py_NewRef(object);
}

static PyObject *session_exit_with(PyObject *object, PyObject *const *args, Py_ssize_t count)
{
    (void)args;
    (void)count;
    close_session((wp_session_t *)object);
    return Py_NewRef(Py_None);
}

static PyObject *session_flush(PyObject *object, PyObject *unused)
{
    wp_session_t *self = (wp_session_t *)object;
    weft_status_t status;
    (void)unused;
    if (wp_session_enter(self) < 0) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS status = weft_session_flush(self->session);
    Py_END_ALLOW_THREADS return wp_session_end(self, status) < 0 ? NULL : Py_NewRef(Py_None);
}

static PyObject *session_digest(PyObject *object, PyObject *unused)
{
    wp_session_t *self = (wp_session_t *)object;
    char text[65] = "";
    weft_status_t status;
    (void)unused;
    if (wp_session_enter(self) < 0) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS status = weft_session_param_digest(self->session, text);
    Py_END_ALLOW_THREADS return wp_session_end(self, status) < 0 ? NULL
                                                                 : PyUnicode_FromString(text);
}

static PyObject *session_set_steps_done(PyObject *object, PyObject *number)
{
    wp_session_t *self = (wp_session_t *)object;
    PyObject *index = PyNumber_Index(number);
    unsigned long long steps = index != NULL ? PyLong_AsUnsignedLongLong(index) : 0;
    Py_XDECREF(index);
    if (PyErr_Occurred() != NULL || wp_session_enter(self) < 0) {
        return NULL;
    }
    weft_status_t status = weft_session_set_steps_done(self->session, steps);
    return wp_session_end(self, status) < 0 ? NULL : Py_NewRef(Py_None);
}

static PyObject *session_plan(PyObject *object, void *closure)
{
    (void)closure;
    return Py_NewRef((PyObject *)((wp_session_t *)object)->plan);
}

static PyObject *session_micro_count(PyObject *object, void *closure)
{
    wp_session_t *self = (wp_session_t *)object;
    (void)closure;
    if (wp_session_enter(self) < 0) {
        return NULL;
    }
    uint32_t count = weft_session_micro_count(self->session);
    wp_session_leave(self);
    return PyLong_FromUnsignedLong(count);
}

static PyObject *session_tensors(PyObject *object, void *closure)
{
    return wp_tensors_new((wp_session_t *)object, *(const wp_tensors_kind_t *)closure);
}

/* ---- the type ---- */
static const char session_doc[] =
    "Session(plan, context=None, *, trace=False)\n--\n\n"
    "A plan (a Plan, or the path of one) bound to a context (default: weft.init()'s), to be fed, "
    "stepped and read.\n"
    "Collective: all ranks come here with the same plan, agree on it, and rank 0's weights reach "
    "everybody.\n"
    "All memory of the steps is taken here. trace: keep a timeline of the last steps.\n\n"
    "One call of a session runs at a time; other threads' calls wait. Leaves its memory with "
    "close(), at the end of\n"
    "a `with` block, or with its last reference; arrays of inputs keep it.\n\n"
    "Raises WeftMismatchError naming both digests, WeftNotFoundError naming a missing kernel, "
    "WeftArgumentError when\n"
    "the plan is for another number of ranks, WeftNoMemoryError, WeftStateError before "
    "weft.init().";
static const char step_doc[] =
    "step(*inputs, **inputs)\n--\n\n"
    "Runs one step, to completion. Collective.\n\n"
    "Inputs, by place in the order of plan.bindings or by name: contiguous arrays of host memory "
    "of exactly the\n"
    "input's shape and type, this rank's samples; integers may be of a narrower type. All of them, "
    "or none: then\n"
    "what is in the inputs' memory counts (session.inputs). Scalars go by name: step(x, y, "
    "lr=0.1).\n"
    "Where the batch is split (plan.info['split_batch']) rank 0's inputs alone count, for all "
    "ranks.\n\n"
    "Returns the loss of this rank's samples as a float (None where the plan has none). A plan "
    "that accumulates K\n"
    "micro-batches takes all of them in one call, arrays of K times the batch, and returns their "
    "mean loss; or the\n"
    "last one, after K - 1 calls of micro_step(), and returns its loss.\n"
    "A plan for inference returns its output, a new array like the first input (numpy, torch), or "
    "a dict of them\n"
    "where there are several.\n\n"
    "Raises TypeError and ValueError naming the input, what it takes and what came; the errors of "
    "collectives.";
static const char micro_step_doc[] = "micro_step(*inputs, **inputs)\n--\n\n"
                                     "Runs forward and backward of one micro-batch that is not the "
                                     "last of its step, and adds up its gradients.\n"
                                     "Returns its loss. Collective. Raises WeftStateError when the "
                                     "next one is the last, or the plan has one only.";
static const char eval_doc[] = "eval(*inputs, **inputs)\n--\n\n"
                               "Runs the forward pass of a training plan: no communication, so not "
                               "collective (unless the plan is decoupled).\n"
                               "Labels may be left out, the loss then is of old ones. Returns the "
                               "logits, a new array like the first input, or\n"
                               "the loss where there are none; session.outputs has all outputs. "
                               "Raises WeftStateError where the forward pass\n"
                               "communicates, and for inference.";
static const char feed_doc[] = "feed(*inputs, **inputs)\n--\n\n"
                               "Copies any inputs into their memory, and sets scalars, for the "
                               "next step() without arguments. Not collective.";
static const char save_doc[] = "save(path, /)\n--\n\n"
                               "Writes the model for evaluation with the trained weights, as ONNX: "
                               "all or nothing. Rank 0 writes; the call\n"
                               "returns at once on others, which may leave it out (unless the plan "
                               "is decoupled: then all call it).\n"
                               "Raises WeftSystemError, WeftNotFoundError (no such directory), "
                               "WeftUnsupportedError (above 2 GiB).";
static const char save_checkpoint_doc[] =
    "save_checkpoint(path, *, seed=0, epoch=0, sample=0, sample_count=0, lr=0.0)\n--\n\n"
    "Writes weights, optimizer state, scalars and the number of steps, as safetensors, on rank 0: "
    "path holds the old\n"
    "checkpoint or the new one, complete. Can be loaded by runs with another number of ranks. "
    "Collective.\n\n"
    "seed of the order of data; epoch: passes that are complete; sample: samples of the next one "
    "that all ranks have\n"
    "consumed; sample_count of a pass; lr that a schedule started from: stored for whoever feeds "
    "the data.\n"
    "Raises on all ranks what rank 0 met: WeftSystemError, WeftNotFoundError; WeftStateError "
    "inside a step,\n"
    "WeftUnsupportedError for plans that do not train.";
static const char load_checkpoint_doc[] =
    "load_checkpoint(path, /)\n--\n\n"
    "Takes weights, optimizer state, scalars and the number of steps from path, which every rank "
    "reads. Collective.\n"
    "On an error the session is what it was. Returns a dict: seed, epoch, sample, sample_count, "
    "lr, step,\n"
    "global_batch, world, optimizer, tensors.\n"
    "Raises WeftFormatError (what is wrong, or which tensor does not fit), WeftNotFoundError, "
    "WeftMismatchError.";
static const char trace_doc[] = "write_trace(path, /)\n--\n\n"
                                "Writes the timeline of all ranks as Chrome trace JSON, on rank 0. "
                                "Collective; needs Session(trace=True).";
static const char profile_doc[] = "write_profile(path, /)\n--\n\n"
                                  "Writes measured times for compile(profile=), on rank 0. "
                                  "Collective; needs Session(trace=True).";
static const char stats_doc[] = "stats()\n--\n\n"
                                "What steps came to so far, a dict: steps, step_ms_p50, "
                                "step_ms_mean, compute_ms_p50, comm_ms_p50,\n"
                                "exposed_comm_ms_p50, overlap_fraction (NaN when communication is "
                                "inline), inline_progress, arena_bytes,\n"
                                "scratch_bytes, fusion_copied_bytes, kernels. Of this rank.";
static const char flush_doc[] = "flush()\n--\n\n"
                                "Brings weights that other ranks have updated to this one, on a "
                                "decoupled plan. Collective. Calls that read\n"
                                "weights do it by themselves.";
static const char digest_doc[] = "param_digest()\n--\n\n"
                                 "SHA-256 over all weights in the order of their names, hex: equal "
                                 "where weights are. Collective only on a\n"
                                 "decoupled plan.";
static const char steps_doc[] =
    "set_steps_done(steps, /)\n--\n\n"
    "Says that steps were done before, for the scalar 'step'. The same on all ranks.";

#define FAST(function) (PyCFunction)(void (*)(void))(function)
static PyMethodDef methods[] = {
    {"step", FAST(wp_session_step), METH_FASTCALL | METH_KEYWORDS, step_doc},
    {"micro_step", FAST(wp_session_micro_step), METH_FASTCALL | METH_KEYWORDS, micro_step_doc},
    {"eval", FAST(wp_session_eval), METH_FASTCALL | METH_KEYWORDS, eval_doc},
    {"feed", FAST(wp_session_feed), METH_FASTCALL | METH_KEYWORDS, feed_doc},
    {"save", wp_session_save, METH_O, save_doc},
    {"save_checkpoint", FAST(wp_session_save_checkpoint), METH_FASTCALL | METH_KEYWORDS,
     save_checkpoint_doc},
    {"load_checkpoint", wp_session_load_checkpoint, METH_O, load_checkpoint_doc},
    {"write_trace", wp_session_write_trace, METH_O, trace_doc},
    {"write_profile", wp_session_write_profile, METH_O, profile_doc},
    {"stats", wp_session_stats, METH_NOARGS, stats_doc},
    {"flush", session_flush, METH_NOARGS, flush_doc},
    {"param_digest", session_digest, METH_NOARGS, digest_doc},
    {"set_steps_done", session_set_steps_done, METH_O, steps_doc},
    {"close", session_close, METH_NOARGS,
     "close()\n--\n\nGives the session's memory back; other calls raise WeftStateError. Not "
     "collective."},
    {"__enter__", session_enter_with, METH_NOARGS, NULL},
    {"__exit__", FAST(session_exit_with), METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static const wp_tensors_kind_t kinds[] = {WP_TENSORS_PARAMS,  WP_TENSORS_GRADIENTS,
                                          WP_TENSORS_STATE,   WP_TENSORS_INPUTS,
                                          WP_TENSORS_OUTPUTS, WP_TENSORS_SCALARS};

static PyGetSetDef getters[] = {
    {"plan", session_plan, NULL, "The Plan.", NULL},
    {"micro_count", session_micro_count, NULL,
     "Micro-batches run since the last step: 0 to accumulate - 1. Then the next call is step().",
     NULL},
    {"params", session_tensors, NULL,
     "Trained weights by name: a copy when read, replaced when set (the same on all ranks). "
     "Collective only on a\n"
     "decoupled plan.",
     (void *)&kinds[0]},
    {"gradients", session_tensors, NULL,
     "Gradients that the last step used, by parameter, reduced over ranks, before clipping; read "
     "only.",
     (void *)&kinds[1]},
    {"state", session_tensors, NULL,
     "Optimizer state by '<parameter>.<slot>' ('.momentum'; '.moment1', '.moment2'), whole "
     "tensors. Where a plan\n"
     "shards its optimizer all ranks read it together.",
     (void *)&kinds[2]},
    {"inputs", session_tensors, NULL,
     "Inputs' own memory by name, as arrays: what is written there between steps is what step() "
     "without arguments\n"
     "runs on, without a copy. The arrays keep the session's memory.",
     (void *)&kinds[3]},
    {"outputs", session_tensors, NULL, "Copies of what the last run put out, by name; read only.",
     (void *)&kinds[4]},
    {"scalars", session_tensors, NULL,
     "Scalar inputs such as 'lr' by name, floats; set for the steps to come. 'rank' and 'step' are "
     "set by themselves.",
     (void *)&kinds[5]},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_new, session_new}, {Py_tp_dealloc, session_dealloc}, {Py_tp_methods, methods},
    {Py_tp_getset, getters},  {Py_tp_doc, (void *)session_doc}, {0, NULL},
};

static PyType_Spec spec = {
    "weft.Session", sizeof(wp_session_t), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE, slots,
};

int wp_session_init(PyObject *module, wp_state_t *state)
{
    state->session_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &spec, NULL);
    if (state->session_type == NULL ||
        PyModule_AddObjectRef(module, "Session", (PyObject *)state->session_type) < 0 ||
        wp_tensors_init(module, state) < 0) {
        return -1;
    }
    return wp_view_init(module, state);
}
