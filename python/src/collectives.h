/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the operators share: collectives.c, exchange.c, gather.c, scatter.c. */
#ifndef WEFT_PYTHON_COLLECTIVES_H
#define WEFT_PYTHON_COLLECTIVES_H

#include "python/src/weft_python.h"

#define WP_FUNCTION(function) ((PyCFunction)(void (*)(void))(function))
/* The ends of all operators' signatures and of their documentation. */
#define WP_ASYNC_SIGNATURE "async_op=False, stream=None)\n--\n\n"
#define WP_ASYNC_DOC                                                                               \
    "\n\n"                                                                                         \
    "group None is the world. async_op=True returns a Work whose wait() returns what the\n"        \
    "call would have; stream puts the call on a Stream: what is returned is done after\n"          \
    "stream.synchronize(). Before that arguments must not be written, nor results used.\n"
#define WP_ERRORS_DOC                                                                              \
    "Raises TypeError or ValueError for an argument; the other ranks then get a\n"                 \
    "WeftArgumentError that names this rank, and the group stays usable;\n"                        \
    "WeftMismatchError on all ranks when they call different things; WeftPeerDiedError,\n"         \
    "WeftTimeoutError, WeftAbortedError, WeftLinkError."

/* What all operators take after their own arguments. */
typedef struct wp_options {
    wp_state_t *state;
    wp_group_t *group;
    wp_stream_t *stream;
    bool async;
} wp_options_t;

/* group is borrowed: wp_call_begin comes next, before any object is asked for anything. */
int wp_options(PyObject *module, PyObject *group, PyObject *async, PyObject *stream,
               wp_options_t *out);
/*
 * wp_parse and wp_options in one, for an operator whose parameters end as all do: group is the last
 * that goes by place, async_op and stream the last of all.
 */
int wp_open(PyObject *module, const char *function, PyObject *const *args, Py_ssize_t count,
            PyObject *keywords, const char *const *names, int required, int positional,
            PyObject **places, wp_options_t *out);
void wp_call_begin(wp_call_t *call, weft_collective_t op, const wp_options_t *options);
PyObject *wp_call_end(wp_call_t *call, const wp_options_t *options);
/* The exception that is set is told to the other ranks: wp_call_refuse. */
PyObject *wp_call_fail(wp_call_t *call);
/* wp_array_get for an argument of call: packed where it has strides, also on the device of its
 * context. */
int wp_call_array(wp_state_t *state, const wp_call_t *call, PyObject *object, const char *argument,
                  wp_array_flags_t flags, wp_array_t *out);
/* The reduction, and that dtype has it: after call->send is there. */
int wp_call_reduction(wp_call_t *call, PyObject *op);

/*
 * Memory for the result, into call->recv and call->result: out where it is given, of count elements
 * in whatever shape, else a new array like call->send (dims NULL: of its shape).
 */
int wp_call_result(wp_state_t *state, wp_call_t *call, PyObject *out, uint32_t rank,
                   const int64_t *dims, uint64_t count);
#define WP_OVERLAP_TEXT                                                                            \
    "tensor and out overlap in a way that is not the in-place form of this operator"
/*
 * Whether the memory of send and recv overlaps, but for the one place that the operator works in
 * place: in_place elements into the larger one, in which the smaller one begins.
 */
bool wp_call_overlaps(const wp_call_t *call, uint64_t send_count, uint64_t recv_count,
                      uint64_t in_place);
/* ValueError where it does. */
int wp_call_overlap(const wp_call_t *call, uint64_t send_count, uint64_t recv_count,
                    uint64_t in_place);

/* ---- exchange.c: what ranks tell each other before the data ---- */
/* Type and shape of what a rank gives; rows is the first dimension. A scalar counts as a row. */
typedef struct wp_shape {
    uint32_t dtype;
    uint32_t rank;
    int64_t dims[WP_MAX_DIMS];
} wp_shape_t;

/* Of an array that was got with WP_SHAPE. */
void wp_shape_of(const wp_array_t *array, wp_shape_t *out);
/* Elements of a row. */
uint64_t wp_shape_row(const wp_shape_t *shape);
/*
 * Every rank's number of rows into rows[size]. Where ranks differ in anything else,
 * WeftMismatchError on all of them, named after function; the group is not broken by that. The
 * group is entered.
 */
int wp_exchange_rows(wp_state_t *state, wp_group_t *group, const char *function,
                     const wp_shape_t *own, uint64_t *rows);
/* Root's shape for all. The group is entered. */
int wp_exchange_root(wp_state_t *state, wp_group_t *group, uint32_t root, wp_shape_t *shape);
/* From each rank the number that it has for this one. The group is entered. */
int wp_exchange_counts(wp_state_t *state, wp_group_t *group, const uint64_t *send, uint64_t *recv);

/* ---- gather.c, scatter.c ---- */
int wp_gather_init(PyObject *module);
int wp_scatter_init(PyObject *module);

#endif
