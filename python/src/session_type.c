/* SPDX-License-Identifier: Apache-2.0 */
/* The type Session: its methods with their texts, and those that are a line or two. */
#include "python/src/session.h"

/* ---- small methods ---- */
static PyObject *session_close(PyObject *object, PyObject *unused)
{
    (void)unused;
    wp_session_close((wp_session_t *)object);
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
    wp_session_close((wp_session_t *)object);
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
    PyThreadState *thread = PyEval_SaveThread();
    status = weft_session_flush(self->session);
    PyEval_RestoreThread(thread);
    return wp_session_end(self, status) < 0 ? NULL : Py_NewRef(Py_None);
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
    PyThreadState *thread = PyEval_SaveThread();
    status = weft_session_param_digest(self->session, text);
    PyEval_RestoreThread(thread);
    return wp_session_end(self, status) < 0 ? NULL : PyUnicode_FromString(text);
}

static PyObject *session_repr(PyObject *object)
{
    wp_session_t *self = (wp_session_t *)object;
    return PyUnicode_FromFormat("<weft.Session of %R%s>", (PyObject *)self->plan,
                                self->closed ? ", closed" : "");
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
    "step($self, *arrays, **inputs)\n--\n\n"
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
static const char micro_step_doc[] = "micro_step($self, *arrays, **inputs)\n--\n\n"
                                     "Runs forward and backward of one micro-batch that is not the "
                                     "last of its step, and adds up its gradients.\n"
                                     "Returns its loss. Collective. Raises WeftStateError when the "
                                     "next one is the last, or the plan has one only.";
static const char eval_doc[] = "eval($self, *arrays, **inputs)\n--\n\n"
                               "Runs the forward pass of a training plan: no communication, so not "
                               "collective (unless the plan is decoupled).\n"
                               "Labels may be left out, the loss then is of old ones. Returns the "
                               "logits, a new array like the first input, or\n"
                               "the loss where there are none; session.outputs has all outputs. "
                               "Raises WeftStateError where the forward pass\n"
                               "communicates, and for inference.";
static const char feed_doc[] = "feed($self, *arrays, **inputs)\n--\n\n"
                               "Copies any inputs into their memory, and sets scalars, for the "
                               "next step() without arguments. Not collective.";
static const char save_doc[] = "save($self, path, /)\n--\n\n"
                               "Writes the model for evaluation with the trained weights, as ONNX: "
                               "all or nothing. Rank 0 writes; the call\n"
                               "returns at once on others, which may leave it out (unless the plan "
                               "is decoupled: then all call it).\n"
                               "Raises WeftSystemError, WeftNotFoundError (no such directory), "
                               "WeftUnsupportedError (above 2 GiB).";
static const char save_checkpoint_doc[] =
    "save_checkpoint($self, path, *, seed=0, epoch=0, sample=0, sample_count=0, lr=0.0)\n--\n\n"
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
    "load_checkpoint($self, path, /)\n--\n\n"
    "Takes weights, optimizer state, scalars and the number of steps from path, which every rank "
    "reads. Collective.\n"
    "On an error the session is what it was. Returns a dict: seed, epoch, sample, sample_count, "
    "lr, step,\n"
    "global_batch, world, optimizer, tensors.\n"
    "Raises WeftFormatError (what is wrong, or which tensor does not fit), WeftNotFoundError, "
    "WeftMismatchError.";
static const char trace_doc[] = "write_trace($self, path, /)\n--\n\n"
                                "Writes the timeline of all ranks as Chrome trace JSON, on rank 0. "
                                "Collective; needs Session(trace=True).";
static const char profile_doc[] = "write_profile($self, path, /)\n--\n\n"
                                  "Writes measured times for compile(profile=), on rank 0. "
                                  "Collective; needs Session(trace=True).";
static const char stats_doc[] = "stats($self)\n--\n\n"
                                "What steps came to so far, a dict: steps, step_ms_p50, "
                                "step_ms_mean, compute_ms_p50, comm_ms_p50,\n"
                                "exposed_comm_ms_p50, overlap_fraction (NaN when communication is "
                                "inline), inline_progress, arena_bytes,\n"
                                "scratch_bytes, fusion_copied_bytes, kernels. Of this rank.";
static const char flush_doc[] = "flush($self)\n--\n\n"
                                "Brings weights that other ranks have updated to this one, on a "
                                "decoupled plan. Collective. Calls that read\n"
                                "weights do it by themselves.";
static const char digest_doc[] = "param_digest($self)\n--\n\n"
                                 "SHA-256 over all weights in the order of their names, hex: equal "
                                 "where weights are. Collective only on a\n"
                                 "decoupled plan.";
static const char steps_doc[] =
    "set_steps_done($self, steps, /)\n--\n\n"
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
     "close($self)\n--\n\nGives the session's memory back; other calls raise WeftStateError. Not "
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
    {Py_tp_new, wp_session_new},
    {Py_tp_dealloc, wp_session_dealloc},
    {Py_tp_methods, methods},
    {Py_tp_getset, getters},
    {Py_tp_doc, (void *)session_doc},
    {Py_tp_repr, session_repr},
    {0, NULL},
};

static PyType_Spec spec = {
    "weft.Session", sizeof(wp_session_t), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE, slots,
};

int wp_session_init(PyObject *module, wp_state_t *state)
{
    if (wp_type_add(module, &spec, &state->session_type) < 0 ||
        wp_tensors_init(module, state) < 0) {
        return -1;
    }
    return wp_view_init(module, state);
}
