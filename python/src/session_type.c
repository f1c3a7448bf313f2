/* SPDX-License-Identifier: Apache-2.0 */
/* The type Session: its methods that are C with their texts. The others are in weft/sessions.py. */
#include "python/src/session.h"

static PyObject *session_close(PyObject *object, PyObject *unused)
{
    (void)unused;
    wp_session_close((wp_session_t *)object);
    return Py_NewRef(Py_None);
}

/* An array over the memory of the input of this name. */
static PyObject *session_view(PyObject *object, PyObject *name)
{
    wp_session_t *self = (wp_session_t *)object;
    wp_binding_t *input = wp_binding_find(self->inputs, self->input_count, name);
    if (input == NULL) {
        PyErr_SetObject(PyExc_KeyError, name);
        return NULL;
    }
    return wp_view_new(self, input);
}

static PyObject *session_plan(PyObject *object, void *closure)
{
    (void)closure;
    return Py_NewRef((PyObject *)((wp_session_t *)object)->plan);
}

static PyObject *session_rank(PyObject *object, void *closure)
{
    (void)closure;
    return PyLong_FromUnsignedLong(((wp_session_t *)object)->context->rank);
}

static PyObject *session_closed(PyObject *object, void *closure)
{
    (void)closure;
    return PyBool_FromLong(((wp_session_t *)object)->closed);
}

static PyObject *session_tables(PyObject *object, void *closure)
{
    (void)closure;
    return Py_NewRef(((wp_session_t *)object)->tables);
}

/* ---- the type ---- */
static const char session_doc[] = "Session(plan, context=None, *, trace=False)\n--\n\n";
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
#define FAST(function) (PyCFunction)(void (*)(void))(function)
static PyMethodDef methods[] = {
    {"step", FAST(wp_session_step), METH_FASTCALL | METH_KEYWORDS, step_doc},
    {"micro_step", FAST(wp_session_micro_step), METH_FASTCALL | METH_KEYWORDS, micro_step_doc},
    {"eval", FAST(wp_session_eval), METH_FASTCALL | METH_KEYWORDS, eval_doc},
    {"feed", FAST(wp_session_feed), METH_FASTCALL | METH_KEYWORDS, feed_doc},
    {"close", session_close, METH_NOARGS,
     "close($self)\n--\n\nGives the session's memory back; other calls raise WeftStateError. Not "
     "collective."},
    {"_view", session_view, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef getters[] = {
    {"plan", session_plan, NULL, "The Plan.", NULL},
    {"_rank", session_rank, NULL, NULL, NULL},
    {"_closed", session_closed, NULL, NULL, NULL},
    {"_tables", session_tables, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_new, wp_session_new}, {Py_tp_dealloc, wp_session_dealloc}, {Py_tp_methods, methods},
    {Py_tp_getset, getters},     {Py_tp_doc, (void *)session_doc},    {0, NULL},
};

static PyType_Spec spec = {
    "weft.Session", sizeof(wp_session_t), 0, Py_TPFLAGS_DEFAULT, slots,
};

int wp_session_init(PyObject *module, wp_state_t *state)
{
    return wp_type_add(module, &spec, &state->session_type) < 0 ? -1 : wp_view_init(module, state);
}
