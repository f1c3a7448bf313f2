/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of plans and sessions share: plan.c, session*.c. */
#ifndef WEFT_PYTHON_SESSION_H
#define WEFT_PYTHON_SESSION_H

#include "python/src/weft_python.h"

/* ---- plan.c ---- */
typedef struct wp_plan {
    PyObject_HEAD weft_plan_t *plan;
    weft_registry_t *registry; /* with operators or kernels of its own; NULL: the built-in ones */
} wp_plan_t;

/* ---- session.c ---- */
/* Something that goes in or comes out. name is borrowed from the plan. */
typedef struct wp_binding {
    const char *name;
    PyObject *key; /* the same as a str, interned */
    weft_binding_role_t role;
    weft_tensor_desc_t desc;
    uint64_t count; /* elements */
    size_t bytes;
    uint8_t *memory; /* of inputs, in the arena; NULL: only weft_session_set_input reaches it */
} wp_binding_t;

typedef struct wp_session wp_session_t;
struct wp_session {
    PyObject_HEAD wp_state_t *state;
    wp_context_t *context; /* owned, as is plan */
    wp_plan_t *plan;
    weft_session_t *session; /* NULL once closed and no view is left */
    pthread_mutex_t lock;    /* one call at a time; error-checking; taken without the GIL */
    bool has_lock, closed;
    bool training, split;
    uint32_t accumulate;
    size_t views;                             /* arrays over inputs' memory that are about */
    bool views_stay;                          /* which stays when the session goes */
    wp_binding_t *inputs, *outputs, *scalars; /* in this order, in one piece of memory */
    size_t input_count, output_count, scalar_count;
    wp_binding_t *loss, *logits; /* among outputs, or NULL */
    PyObject *tables;            /* weft/sessions.py: what is known of tensors; owned */
    wp_holder_t holder;
};

/* Takes the lock for a call: -1 with an exception when the session is closed or this thread has it. With the GIL. */
int wp_session_enter(wp_session_t *self);
/* With the GIL, too. A session that was closed meanwhile goes with it. */
void wp_session_leave(wp_session_t *self);
/* Leaves, then 0, or -1 with the exception of status. */
int wp_session_end(wp_session_t *self, weft_status_t status);
/* What is called name, or NULL. */
wp_binding_t *wp_binding_find(wp_binding_t *bindings, size_t count, PyObject *name);
/* An array for a tensor, like like's kind (NULL: numpy where there is one). */
int wp_session_array(wp_session_t *self, const wp_array_t *like, const weft_tensor_desc_t *desc,
                     wp_array_t *out);
/* Not collective; calls of other threads end first. */
void wp_session_close(wp_session_t *self);
PyObject *wp_session_new(PyTypeObject *type, PyObject *args, PyObject *keywords);
void wp_session_dealloc(PyObject *object);
/* A view is gone: the last one of a closed session takes it along. */
void wp_session_view_gone(wp_session_t *self);

/* ---- session_feed.c ---- */
/* What a call was given for one input or scalar. */
typedef struct wp_fed {
    wp_binding_t *binding;
    wp_array_t array;
    double value; /* scalars */
} wp_fed_t;

typedef struct wp_feed {
    wp_fed_t *fed;
    size_t count;
    uint32_t batches; /* micro-batches in each array, at least 1 */
} wp_feed_t;

typedef enum wp_feed_rule {
    WP_FEED_STEP, /* all inputs, or none */
    WP_FEED_EVAL, /* labels may be left out */
    WP_FEED_SOME, /* any */
} wp_feed_rule_t;

/*
 * Arguments, by place or by name, to inputs and scalars; everything is checked. most: micro-batches that an array may
 * hold, one behind the other. -1: an exception is set, and out is empty.
 */
int wp_feed_get(wp_session_t *self, const char *function, PyObject *const *args, Py_ssize_t count,
                PyObject *keywords, wp_feed_rule_t rule, uint32_t most, wp_feed_t *out);
/* Copies micro-batch index of every array into the inputs, and sets scalars. Without the GIL, the lock held. */
weft_status_t wp_feed_copy(wp_session_t *self, const wp_feed_t *feed, uint32_t index);
/* The first array, NULL without one. */
const wp_array_t *wp_feed_like(const wp_feed_t *feed);
void wp_feed_release(wp_feed_t *feed);
/* Whether array is what "input 'x'" takes; else -1 with TypeError or ValueError, naming both. */
int wp_check_tensor(const char *what, const char *name, const weft_tensor_desc_t *desc,
                    const wp_array_t *array);

/* ---- session_run.c: step, micro_step, eval, feed ---- */
PyObject *wp_session_step(PyObject *object, PyObject *const *args, Py_ssize_t count,
                          PyObject *keywords);
PyObject *wp_session_micro_step(PyObject *object, PyObject *const *args, Py_ssize_t count,
                                PyObject *keywords);
PyObject *wp_session_eval(PyObject *object, PyObject *const *args, Py_ssize_t count,
                          PyObject *keywords);
PyObject *wp_session_feed(PyObject *object, PyObject *const *args, Py_ssize_t count,
                          PyObject *keywords);

/* ---- session_view.c ---- */
/* An array (numpy, or a memoryview) over an input's memory, which keeps the session. */
PyObject *wp_view_new(wp_session_t *session, const wp_binding_t *input);
int wp_view_init(PyObject *module, wp_state_t *state);

#endif
