/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of the extension share. Names start with wp_; a file's own are static.
 *
 * One process is one rank. The module has one default context (weft.init); others can be made
 * (weft.Context), each with a world of its own. All state is in the module, none in globals.
 *
 * The way of a call, all of it in C:
 *
 *   all_reduce_(x)   arguments.c   words to places, without a tuple or a dict
 *                    array.c       x to address, count, type (numpy, torch, any buffer, DLPack)
 *                    collectives.c fills a wp_call_t, makes the result (result.c)
 *                    call.c        without the GIL: locks the group, calls weft_all_reduce(..)
 *                    errors.c      its status to an exception
 *                    work.c        async_op=True: the same on the group's stream, as a Work
 */
#ifndef WEFT_PYTHON_H
#define WEFT_PYTHON_H

/*
 * Py_buffer is in the limited API from 3.11 on. CPython 3.9 and 3.10 export the same functions with
 * the same structure, and neither changes any more: one binary serves 3.9 and later. Functions that
 * 3.9 does not export, such as PyModule_AddObjectRef, must not be used; test_package.py checks.
 */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include <weft/weft.h>

#define WP_MAX_DIMS 8
#define WP_ERRORS 16

/* ---- module.c ---- */
typedef struct wp_context wp_context_t;
typedef struct wp_group wp_group_t;
typedef struct wp_stream wp_stream_t;
typedef struct wp_batch wp_batch_t;

struct wp_dlpack_tensor; /* python/src/dlpack.h */

/* Objects of torch that are looked up once, when the first tensor comes along (array.c). */
typedef struct wp_torch {
    PyObject *tensor_type; /* NULL: torch is not imported, as far as we know */
    PyObject *empty_like;
    PyObject *dtypes[16]; /* by weft_dtype_t; NULL where torch has none */
    PyObject *names[9];   /* of methods and attributes, interned (array_torch.c) */
    int (*read)(void *tensor, struct wp_dlpack_tensor *out); /* NULL: torch has none */
} wp_torch_t;

typedef struct wp_numpy {
    bool looked_for; /* and not found, if the others are NULL */
    PyObject *array_type;
    PyObject *empty;
    PyObject *asarray;
    PyObject *dtypes[16]; /* numpy.dtype objects by weft_dtype_t; bf16 only with ml_dtypes */
} wp_numpy_t;

typedef struct wp_state {
    PyObject *errors[WP_ERRORS]; /* exception types by -status (errors.c); [0] is WeftError */
    PyTypeObject *context_type, *group_type, *stream_type, *event_type, *work_type, *memory_type,
        *handle_type, *device_array_type;
    wp_context_t *context;  /* of weft.init; owned; NULL before */
    wp_context_t *contexts; /* all that there are, borrowed */
    wp_group_t *world;      /* its world; owned */
    bool exiting;           /* set at exit, before contexts are closed */
    wp_numpy_t numpy;
    wp_torch_t torch;
    unsigned long main_thread;  /* interrupt.c: the one that signals' handlers run on */
    uint64_t interrupt_next_ns; /* when it looks for signals again; the main thread's */
    PyObject *interrupt;        /* what a handler raised while a call waited; the main thread's */
} wp_state_t;

wp_state_t *wp_state_of(PyObject *module);
/* From one of our types. */
wp_state_t *wp_state_of_type(PyTypeObject *type);

/* Makes the type of spec and adds it to the module, too; *out_type is owned. 0, or -1 with an exception. */
int wp_type_add(PyObject *module, PyType_Spec *spec, PyTypeObject **out_type);
/* tp_new of types without a constructor: TypeError. (3.9 ignores Py_TPFLAGS_DISALLOW_INSTANTIATION.) */
PyObject *wp_type_no_new(PyTypeObject *type, PyObject *args, PyObject *words);

/* Each file adds its types and functions: 0, or -1 with an exception set. */
int wp_errors_init(PyObject *module, wp_state_t *state);
int wp_arrays_init(PyObject *module, wp_state_t *state);
int wp_memory_init(PyObject *module, wp_state_t *state);
int wp_context_init(PyObject *module, wp_state_t *state);
int wp_group_init(PyObject *module, wp_state_t *state);
int wp_collectives_init(PyObject *module, wp_state_t *state);
int wp_stream_init(PyObject *module, wp_state_t *state);
int wp_work_init(PyObject *module, wp_state_t *state);
int wp_timing_init(PyObject *module, wp_state_t *state);
int wp_native_init(PyObject *module, wp_state_t *state);
int wp_device_array_init(PyObject *module, wp_state_t *state);
int wp_torch_operators_init(PyObject *module, wp_state_t *state);
int wp_torch_now_init(PyObject *module, wp_state_t *state);

/* ---- errors.c ---- */
/*
 * Sets the exception of a failed call: its type by status, its text weft_last_error() of this
 * thread, attributes status = "ERR_MISMATCH" and field = weft_last_error_field(). Call with the
 * GIL. Returns NULL.
 */
PyObject *wp_raise(wp_state_t *state, weft_status_t status);
/* The same with a text of our own. */
PyObject *wp_raise_text(wp_state_t *state, weft_status_t status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* The exception of a failed call by itself, of this thread's message; NULL: no memory, and no
 * exception is set. */
PyObject *wp_error_new(wp_state_t *state, weft_status_t status);

/* ---- interrupt.c: Ctrl-C while a call waits ---- */
/* The weft_interrupt_fn of every context; user is the state. */
int wp_interrupted(void *user);
/* With the GIL, after a failed call: raises what a handler raised meanwhile, on the thread that it
 * interrupted. */
bool wp_interrupt_raise(wp_state_t *state);

/* ---- arguments.c ---- */
/*
 * Arguments of a METH_FASTCALL | METH_KEYWORDS function into out[], by place or by name; what is
 * not given stays NULL. names are those of the parameters, NULL-terminated; required of them must
 * be given, and those from positional on go by name only. -1: TypeError is set, worded as Python
 * does.
 */
int wp_parse(const char *function, PyObject *const *args, Py_ssize_t count, PyObject *keywords,
             const char *const *names, int required, int positional, PyObject **out);
/* "sum" avg max min prod (also "mean"), NULL or None: sum. */
int wp_reduction(PyObject *object, weft_reduction_t *out);
/* "float32", numpy.dtype, numpy's scalar type, torch.float32, "f32", float; NULL or None: f32. */
int wp_dtype(wp_state_t *state, PyObject *object, weft_dtype_t *out);
/* "float32", the name that Python users know. */
const char *wp_dtype_name(weft_dtype_t dtype);
/* An integer of 0 .. most; argument names it in the error. */
int wp_index(PyObject *object, const char *argument, uint32_t most, uint32_t *out);
/* A group, or NULL / None: the world, which is an error before weft.init. Borrowed. */
wp_group_t *wp_group_of(wp_state_t *state, PyObject *object);

/* ---- array.c, result.c ---- */
typedef enum wp_kind { WP_BUFFER = 0, WP_NUMPY, WP_TORCH, WP_DLPACK, WP_ON_DEVICE } wp_kind_t;

typedef struct wp_packing wp_packing_t; /* pack.c */

typedef struct wp_array {
    void *data;
    uint64_t count; /* elements */
    weft_dtype_t dtype;
    wp_kind_t kind;
    uint32_t rank; /* dimensions */
    int64_t dims[WP_MAX_DIMS];
    PyObject *object;      /* what was given; owned until wp_array_release */
    Py_buffer *buffer;     /* on the heap, WP_BUFFER and WP_NUMPY */
    PyObject *capsule;     /* WP_DLPACK */
    wp_packing_t *packing; /* object has strides: data is a packed copy; else NULL; owned */
} wp_array_t;

typedef uint32_t wp_array_flags_t;
#define WP_READ 0u
#define WP_WRITE (1u << 0)  /* read-only memory is an error */
#define WP_PACK (1u << 2)   /* memory that is not contiguous is packed; else it is an error */
#define WP_DEVICE (1u << 3) /* a weft.DeviceArray is welcome: data is no address of the host */
#define WP_SHAPE (1u << 1)  /* rank and dims are wanted, too; else they are 0 for torch */

/*
 * Looks at object: contiguous (C order) without WP_PACK, in host memory without WP_DEVICE, of a type that Weft has; else TypeError /
 * ValueError / BufferError naming argument and what it is. The memory stays where it is until
 * wp_array_release.
 */
int wp_array_get(wp_state_t *state, PyObject *object, const char *argument, wp_array_flags_t flags,
                 wp_array_t *out);
/* NULL fields are fine, and twice is. */
void wp_array_release(wp_array_t *array);
/*
 * Copies the elements of an array that was packed into data, or back where they are written: now, or
 * in the order of stream. WEFT_AGAIN (in): there is no room.
 */
weft_status_t wp_array_pack_in(const wp_array_t *array, weft_stream_t *stream);
weft_status_t wp_array_pack_back(const wp_array_t *array, weft_stream_t *stream);
/* A new array of like's kind and type with these dimensions (those of like's object if dims is
 * NULL); uninitialised. */
int wp_array_new(wp_state_t *state, const wp_array_t *like, uint32_t rank, const int64_t *dims,
                 wp_array_t *out);
/* "(3, 4)" into buffer. */
const char *wp_dims_text(uint32_t rank, const int64_t *dims, char *buffer, size_t bytes);

/* ---- context.c, group.c ---- */
/*
 * What of a context keeps it in the world: groups, streams, sessions. When the context is closed,
 * each one's leave is called (with the GIL; streams, then the others, youngest first): it lets go
 * of the C object, takes NULL for it, and waits for nobody but this rank's own work. Its Python
 * object stays, and its methods raise WeftStateError.
 */
typedef struct wp_holder {
    struct wp_holder *next, **link; /* link NULL: in no list */
    void (*leave)(struct wp_holder *);
    bool first;            /* a stream: goes before the others */
    pthread_mutex_t *lock; /* NULL, or its lock, which is open in a forked child (world.c) */
} wp_holder_t;
void wp_context_hold(wp_context_t *context, wp_holder_t *holder, void (*leave)(wp_holder_t *));
/* Fine when it is in no list. */
void wp_holder_drop(wp_holder_t *holder);
/* NULL, with WeftStateError set, when it was closed. */
weft_context_t *wp_context_open(wp_context_t *context);
/* The default context for NULL and None, that of a weft.Context or of a weft.Group. Borrowed. */
wp_context_t *wp_context_of(wp_state_t *state, PyObject *object);
/* The group of all ranks of context, or of the C group, which it takes over. New references.
 * Without the GIL it waits. */
wp_group_t *wp_group_new(wp_context_t *context, weft_group_t *group);
/*
 * The lock of a group: waits without the GIL, if it must. Nobody waits for a lock with the GIL. -1,
 * with WeftStateError: this thread has it, as Python's signal handlers run inside calls that wait.
 */
int wp_lock(wp_state_t *state, pthread_mutex_t *lock);
/* The same without an exception: false. */
bool wp_lock_take(pthread_mutex_t *lock);
void wp_lock_refused(wp_state_t *state);
/* At the end of the program, which a thread that waits in a call would keep from ending: aborts the
 * world if a thread has lock. */
void wp_end_calls(const wp_context_t *context, pthread_mutex_t *lock);
/* One that tells when its own thread takes it twice. */
void wp_lock_init(pthread_mutex_t *lock);

struct wp_context {
    PyObject_HEAD wp_state_t *state;
    wp_context_t *next, **link; /* in state->contexts */
    weft_context_t *context;    /* NULL once it was left */
    uint32_t main_waits; /* of the main thread for streams: signals' handlers run inside of them */
    uint64_t borrowed; /* arrays on its memory (memory.c), which stays when it is left; each refers
                          to this object */
    uint32_t rank, size;
    int64_t process;   /* which made it: a forked child leaves it alone */
    wp_group_t *world; /* owned */
    wp_holder_t *holders;
    struct wp_memories
        *memories; /* allocations and registrations (memory.h); NULL: none yet, or closed */
};

struct wp_group {
    PyObject_HEAD wp_context_t *context; /* owned */
    wp_holder_t holder;
    weft_group_t *group; /* NULL once it was destroyed */
    uint32_t rank, size;
    pthread_mutex_t lock; /* one thread at a time issues calls; taken without the GIL */
    wp_stream_t *stream;  /* of async_op=True calls; made at the first; owned */
    wp_batch_t *batch;    /* open: calls are noted in it (batch.c); under the GIL */
    bool notes;           /* so does the C group, also while that ends; under lock */
    PyObject *kept;       /* list of what captured calls use (native.c); NULL: no capture; owned */
    bool shaped;          /* the next call's shape was set by _set_shape; under lock */
};

/* ---- call.c: one call, whoever makes it ---- */
typedef struct wp_op {
    const char *name, *function; /* "AllToAll", "all_to_all" */
    weft_extent_t send, recv;
    bool variable; /* counts per rank */
} wp_op_t;

enum {
#define WP_ONE_MORE(...) +1
    WP_OPS = 1 WEFT_COLLECTIVE_MAP(WP_ONE_MORE)
#undef WP_ONE_MORE
};
extern const wp_op_t wp_ops[WP_OPS];

typedef struct wp_call {
    weft_collective_t op;
    wp_group_t *group;     /* owned: finalize, in another thread, lets go of the world's */
    wp_array_t send, recv; /* recv.data == send.data: in place */
    uint64_t count;        /* as weft_<op> takes it */
    weft_reduction_t reduction;
    uint32_t root;    /* or the peer of send and recv, */
    uint32_t tag;     /* and their tag */
    uint64_t *counts; /* with *_v: from malloc, freed by wp_call_release; size elements, two times
                         for all_to_all_v */
    PyObject *result; /* what the call returns; owned; NULL: None */
    bool told;        /* its exception comes from a call that all ranks made */
} wp_call_t;

/* Calls of a batch or a capture move no data before its end: ranks tell each other nothing first. */
static inline bool wp_group_notes(const wp_group_t *group)
{
    return group->batch != NULL || group->kept != NULL;
}
/* Issues it: stream NULL runs it to completion. Without the GIL, the group's lock held. */
weft_status_t wp_call_issue(const wp_call_t *call, weft_stream_t *stream);
/* Arrays that are packed are copied, and results in place of them go back: now, or in the order of
 * stream. */
weft_status_t wp_call_pack_in(const wp_call_t *call, weft_stream_t *stream);
static inline bool wp_call_packs(const wp_call_t *call)
{
    return call->send.packing != NULL || call->recv.packing != NULL;
}
weft_status_t wp_call_pack_back(const wp_call_t *call, weft_stream_t *stream);
/* What became of a call that was tried without the GIL. */
typedef struct wp_ran {
    weft_status_t status;
    bool locked; /* false: this thread has the group's lock already */
    bool here;   /* false: the group is gone */
} wp_ran_t;
/* Locks the group, issues the call on this thread, unlocks. Without the GIL: nobody waits for the
 * lock with it, as the thread that has the lock may need the GIL. */
wp_ran_t wp_call_try(const wp_call_t *call);
/* With the GIL. 1: done; 0: try again, there is room now; -1: an exception is set. */
int wp_call_settle(wp_state_t *state, const wp_call_t *call, wp_ran_t ran);
/* Notes it in the batch that is open. */
weft_status_t wp_call_note(const wp_call_t *call);
/*
 * The end of every collective function: runs call (async false), or puts it on stream (NULL: the
 * group's) and returns a Work (async true). Takes over all that call owns, also on failure. Returns
 * NULL with an exception.
 */
PyObject *wp_call_finish(wp_state_t *state, wp_call_t *call, bool async, wp_stream_t *stream);
/* The group's lock, for several calls with nothing between them; WeftStateError when there is no
 * group any more. */
int wp_group_enter(wp_state_t *state, wp_group_t *group);
void wp_group_exit(wp_group_t *group);
/* To completion on this thread, in a group that was entered; with the GIL, which others have
 * meanwhile. -1: an exception. */
int wp_call_run_entered(wp_state_t *state, const wp_call_t *call);
/* And its end, as that of wp_call_finish. */
PyObject *wp_call_finish_entered(wp_state_t *state, wp_call_t *call);
void wp_call_release(wp_call_t *call);
/* The other ranks' call ends with the exception that is set, and stays: this rank cannot make it.
 * entered: the group is. */
void wp_call_refuse(const wp_call_t *call, bool entered);
/* The same without a call: Group.refuse. */
weft_status_t wp_refuse_entered(wp_group_t *group, weft_status_t error, const char *text);

/* ---- work.c, stream.c ---- */
struct wp_stream {
    PyObject_HEAD wp_context_t *context; /* owned */
    wp_holder_t holder;
    weft_stream_t *stream; /* NULL once the context was closed */
    pthread_mutex_t lock;  /* one thread at a time enqueues; after the group's, without the GIL */
    uint32_t users;        /* threads that wait for it without the GIL */
    bool broken;           /* a work of it ended with an error, as will all others */
    uint64_t count;        /* works enqueued; under lock */
    struct wp_work *first,
        *last; /* works that are not known to be done (work.c), in the stream's order; owned */
    weft_event_t *spare[16];
    uint32_t spares;
};
/* Takes over call (moved into the Work). */
PyObject *wp_work_start(wp_state_t *state, wp_call_t *call, wp_stream_t *stream);
/* The stream of a group's asynchronous calls, made at first use. Borrowed. */
wp_stream_t *wp_group_stream(wp_state_t *state, wp_group_t *group);
/* With the GIL, let go meanwhile: calls in flight go on, so that there is room for more. -1: an
 * exception is set. */
int wp_make_room(wp_state_t *state, wp_group_t *group);
/* batch.c: notes call, which is taken over, in its group's open batch; what it returns is not there
 * before the end. */
PyObject *wp_batch_add(wp_state_t *state, wp_call_t *call);
/* native.c: the arrays of a call on a group that is captured into group->kept. -1: an exception. */
int wp_keep(wp_state_t *state, const wp_call_t *call);
/* A stream argument: NULL or None gives NULL in *out. */
int wp_stream_of(wp_state_t *state, PyObject *object, wp_stream_t **out);

#endif
