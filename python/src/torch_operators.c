/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels of torch.ops.weft.*, by torch's stable C interface (torch/csrc/stable/c/shim.h). Its few
 * functions are looked up when torch is there: nothing of torch is needed to build this, and one
 * build serves torch 2.10 and later. weft/torch/operators.py defines the operators, and has kernels
 * in Python for an older torch.
 *
 *   torch.ops.weft.all_reduce_(x, "sum", "tp")
 *     torch's dispatcher --> autograd_*   gradients recorded: Python; else weft::_all_reduce_
 *                        --> kernel_*     inference mode, and the operators with _ in front
 *                              group by name, memory of the tensor, one wp_call_t
 *
 * torch calls kernels without the GIL and without an argument of ours, so the state is static here.
 */
#include "python/src/collectives.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- torch's functions ---- */
typedef uint64_t value_t; /* StableIValue: an argument or result */
typedef struct tensor tensor_t;
typedef struct string string_t;
typedef struct library library_t;
typedef void (*kernel_fn)(value_t *stack, uint64_t inputs, uint64_t outputs);

/* 2.10: what this file was written for; later versions convert where they differ. */
#define TORCH_VERSION 0x020a000000000000ull
#define MOST_DIMS 64
#define TEXT_BYTES 1024

/* X(result, name, parameters): those that torch 2.10 has; test_torch_operators.py compares them
 * with torch's headers. */
#define WP_TORCH_MAP(X)                                                                            \
    X(int32_t, aoti_torch_library_init_impl,                                                       \
      (const char *, const char *, const char *, uint32_t, library_t **))                          \
    X(int32_t, torch_library_impl, (library_t *, const char *, kernel_fn, uint64_t))               \
    X(int32_t, aoti_torch_get_data_ptr, (tensor_t *, void **))                                     \
    X(int32_t, aoti_torch_get_numel, (tensor_t *, int64_t *))                                      \
    X(int32_t, aoti_torch_get_dim, (tensor_t *, int64_t *))                                        \
    X(int32_t, aoti_torch_get_sizes, (tensor_t *, int64_t **))                                     \
    X(int32_t, aoti_torch_get_dtype, (tensor_t *, int32_t *))                                      \
    X(int32_t, aoti_torch_is_contiguous, (tensor_t *, bool *))                                     \
    X(int32_t, aoti_torch_empty_strided,                                                           \
      (int64_t, const int64_t *, const int64_t *, int32_t, int32_t, int32_t, tensor_t **))         \
    X(int32_t, aoti_torch_copy_, (tensor_t *, tensor_t *, int32_t))                                \
    X(int32_t, aoti_torch_delete_tensor_object, (tensor_t *))                                      \
    X(int32_t, aoti_torch_device_type_cpu, (void))                                                 \
    X(void, aoti_torch_check, (bool, const char *, const char *, uint32_t, const char *))          \
    X(int32_t, torch_string_length, (string_t *, size_t *))                                        \
    X(int32_t, torch_string_c_str, (string_t *, const char **))                                    \
    X(int32_t, torch_delete_string, (string_t *))
/* Those that the kernels of autograd need: 2.14. */
#define WP_TORCH_AUTOGRAD_MAP(X)                                                                   \
    X(bool, aoti_torch_grad_mode_is_enabled, (void))                                               \
    X(int32_t, torch_call_dispatcher, (const char *, const char *, value_t *, uint64_t))           \
    X(const char *, torch_exception_get_what_without_backtrace, (void))                            \
    X(int32_t, torch_tensor_to_pyobject, (tensor_t *, void *, void **))                            \
    X(int32_t, torch_tensor_from_pyobject, (void *, tensor_t **))

/* The constants of types are functions, also. X(name in torch, in Weft, elements, reductions) */
typedef enum kind { ANY = 0, BOOLEAN, PAIRS, BYTES } kind_t;
#define WP_TORCH_DTYPE_MAP(X)                                                                      \
    X(float32, F32, 1, ANY)                                                                        \
    X(float64, F64, 1, ANY)                                                                        \
    X(float16, F16, 1, ANY)                                                                        \
    X(bfloat16, BF16, 1, ANY)                                                                      \
    X(int8, I8, 1, ANY)                                                                            \
    X(int16, I16, 1, ANY)                                                                          \
    X(int32, I32, 1, ANY)                                                                          \
    X(int64, I64, 1, ANY)                                                                          \
    X(uint8, U8, 1, ANY)                                                                           \
    X(uint16, U16, 1, ANY)                                                                         \
    X(uint32, U32, 1, ANY)                                                                         \
    X(uint64, U64, 1, ANY)                                                                         \
    X(bool, U8, 1, BOOLEAN)                                                                        \
    X(complex64, F32, 2, PAIRS)                                                                    \
    X(complex128, F64, 2, PAIRS)                                                                   \
    X(float8_e4m3fn, U8, 1, BYTES)                                                                 \
    X(float8_e5m2, U8, 1, BYTES)

typedef struct dtype {
    weft_dtype_t dtype; /* WEFT_DTYPE_NONE: not one of ours */
    uint64_t width;
    kind_t kind;
} dtype_t;

/* A name and the group that it was resolved to. */
typedef struct entry {
    struct entry *next;
    wp_group_t *group; /* owned */
    uint32_t users;    /* calls under way */
    bool forgotten;    /* not in the list: the last user releases it */
    size_t length;
    char name[];
} entry_t;

static struct {
#define WP_FIELD(result, name, parameters) result(*name) parameters;
    WP_TORCH_MAP(WP_FIELD)
    WP_TORCH_AUTOGRAD_MAP(WP_FIELD)
#undef WP_FIELD
    wp_state_t *state;
    PyObject *find;    /* (name) -> weft.Group */
    PyObject *record;  /* (operator, tensor, reduction, size, name) -> tensor, with its gradient */
    PyObject *written; /* (tensors): their contents changed */
    PyObject *requires_grad;
    dtype_t dtypes[64]; /* by torch's number */
    pthread_mutex_t lock;
    entry_t *entries; /* under lock */
} torch = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- operators ---- */
typedef struct operator_form {
    const char *name, *below; /* below: without autograd */
    weft_collective_t op;
    bool has_out; /* the last argument gets the result */
    bool reduces, in_place;
    bool gathers;  /* the result has the rows of all ranks */
    bool divides;  /* rows are divided between ranks */
    bool scatters; /* the result has the rows of one rank */
} operator_t;

/* X(name, operator, has out, reduces, in place, gathers, divides, scatters) */
#define WP_TORCH_OPERATOR_MAP(X)                                                                   \
    X(all_reduce_, ALL_REDUCE, false, true, true, false, false, false)                             \
    WP_WITH_OUT(X, all_reduce, ALL_REDUCE, true, false, false, false, false)                       \
    WP_WITH_OUT(X, all_gather, ALL_GATHER, false, false, true, false, false)                       \
    WP_WITH_OUT(X, reduce_scatter, REDUCE_SCATTER, true, false, false, true, true)                 \
    WP_WITH_OUT(X, all_to_all, ALL_TO_ALL, false, false, false, true, false)
#define WP_WITH_OUT(X, name, op, ...)                                                              \
    X(name, op, false, __VA_ARGS__) X(name##_out, op, true, __VA_ARGS__)

enum {
#define WP_INDEX(name, ...) INDEX_##name,
    WP_TORCH_OPERATOR_MAP(WP_INDEX)
#undef WP_INDEX
        OPERATORS
};

static const operator_t operators[OPERATORS] = {
#define WP_ROW(name, op, ...) {#name, "weft::_" #name, WEFT_COLLECTIVE_##op, __VA_ARGS__},
    WP_TORCH_OPERATOR_MAP(WP_ROW)
#undef WP_ROW
};

/* Whether the kernel makes the tensor that it returns. */
static bool returns(const operator_t *form)
{
    return !form->in_place && !form->has_out;
}

/* Whether the caller passes the group's size: the result's shape depends on it. */
static bool has_size(const operator_t *form)
{
    return form->gathers || form->scatters;
}

/* Arguments of a kernel; owned until close_call. */
typedef struct arguments {
    tensor_t *tensor, *packed; /* packed: a contiguous copy; NULL: not needed */
    tensor_t *out;             /* what a call makes: its result, or what goes into given; or NULL */
    tensor_t *given;           /* the caller's, for the result; NULL: none */
    bool strided;              /* given is not contiguous */
    string_t *reduction, *name;
    int64_t size; /* of the group, as the caller has it; 0: no such argument */
    entry_t *entry;
    char text[TEXT_BYTES]; /* what is wrong; empty: nothing */
} arguments_t;

/* ---- errors ---- */
static int raise_again(void *value)
{
    PyErr_SetObject((PyObject *)Py_TYPE((PyObject *)value), value);
    Py_DECREF((PyObject *)value);
    return -1;
}

/*
 * The exception that is set as a text: C++ code makes a RuntimeError of it. What a signal's handler
 * has raised (KeyboardInterrupt) is also raised again once Python goes on.
 */
static void take_text(char *text)
{
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    PyObject *name = type != NULL ? PyObject_GetAttrString(type, "__name__") : NULL;
    PyObject *whole = name != NULL ? PyUnicode_FromFormat("%U: %S", name, value) : NULL;
    PyObject *bytes = whole != NULL ? PyUnicode_AsUTF8String(whole) : NULL;
    const char *chars = bytes != NULL ? PyBytes_AsString(bytes) : NULL;
    snprintf(text, TEXT_BYTES, "%s", chars != NULL ? chars : "out of memory");
    if (value != NULL && !PyErr_GivenExceptionMatches(value, PyExc_Exception) &&
        Py_AddPendingCall(raise_again, Py_NewRef(value)) < 0) {
        Py_DECREF(value);
    }
    PyErr_Clear();
    Py_XDECREF(bytes);
    Py_XDECREF(whole);
    Py_XDECREF(name);
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(trace);
}

/* Throws torch's exception of C++ through this frame: call it last. */
static void throw_text(const char *text)
{
    torch.aoti_torch_check(false, "torch.ops.weft", __FILE__, __LINE__, text);
}

/* ---- groups by name ---- */
static entry_t *entry_new(const char *name, size_t length, wp_group_t *group)
{
    entry_t *entry = calloc(1, sizeof *entry + length);
    if (entry == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    entry->group = (wp_group_t *)Py_NewRef((PyObject *)group);
    entry->length = length;
    memcpy(entry->name, name, length);
    return entry;
}

/* With the GIL. */
static void entry_free(entry_t *entry)
{
    if (entry != NULL) {
        Py_DECREF((PyObject *)entry->group);
        free(entry);
    }
}

/* Under the lock. */
static entry_t **place_of(const char *name, size_t length)
{
    entry_t **place = &torch.entries;
    while (*place != NULL &&
           ((*place)->length != length || memcmp((*place)->name, name, length) != 0)) {
        place = &(*place)->next;
    }
    return place;
}

/* Puts entry (NULL: none) in place of name's. With the GIL. */
static void replace(const char *name, size_t length, entry_t *entry)
{
    pthread_mutex_lock(&torch.lock);
    entry_t **place = place_of(name, length), *former = *place;
    if (former != NULL) {
        *place = former->next;
        former->forgotten = true;
        former = former->users == 0 ? former : NULL;
    }
    if (entry != NULL) {
        entry->next = torch.entries;
        entry->users = 1;
        torch.entries = entry;
    }
    pthread_mutex_unlock(&torch.lock);
    entry_free(former);
}

/* Asks Python, as name is new or its group is gone. */
static entry_t *resolve(const char *name, size_t length, char *text)
{
    PyGILState_STATE gil = PyGILState_Ensure();
    PyObject *object = PyUnicode_DecodeUTF8(name, (Py_ssize_t)length, "replace");
    PyObject *found =
        object != NULL ? PyObject_CallFunctionObjArgs(torch.find, object, NULL) : NULL;
    wp_group_t *group = found != NULL ? wp_group_of(torch.state, found) : NULL;
    entry_t *entry = group != NULL ? entry_new(name, length, group) : NULL;
    if (entry != NULL) {
        replace(name, length, entry);
    } else {
        take_text(text);
    }
    Py_XDECREF(found);
    Py_XDECREF(object);
    PyGILState_Release(gil);
    return entry;
}

static entry_t *entry_of(string_t *string, char *text)
{
    const char *name = "";
    size_t length = 0;
    torch.torch_string_c_str(string, &name);
    torch.torch_string_length(string, &length);
    pthread_mutex_lock(&torch.lock);
    entry_t *entry = *place_of(name, length);
    if (entry != NULL && entry->group->group != NULL) {
        entry->users++;
    } else {
        entry = NULL;
    }
    pthread_mutex_unlock(&torch.lock);
    return entry != NULL ? entry : resolve(name, length, text);
}

static void entry_release(entry_t *entry)
{
    pthread_mutex_lock(&torch.lock);
    bool last = --entry->users == 0 && entry->forgotten;
    pthread_mutex_unlock(&torch.lock);
    if (last) {
        PyGILState_STATE gil = PyGILState_Ensure();
        entry_free(entry);
        PyGILState_Release(gil);
    }
}

/* ---- one call ---- */
/* An argument is wrong: the other ranks' call ends with that, also. */
static void refuse(arguments_t *arguments, const wp_call_t *call, PyObject *type, const char *why)
{
    PyGILState_STATE gil = PyGILState_Ensure();
    PyErr_SetString(type, why);
    wp_call_refuse(call, false);
    take_text(arguments->text);
    PyGILState_Release(gil);
}

/* The reduction by its name, on elements of kind. false: there is none. */
static bool reduction_of(string_t *string, kind_t kind, weft_reduction_t *out)
{
    static const struct {
        const char *name;
        weft_reduction_t reduction, of_booleans;
    } words[] = {
        {"sum", WEFT_REDUCTION_SUM, WEFT_REDUCTION_MAX},
        {"avg", WEFT_REDUCTION_AVG, WEFT_REDUCTION_AVG},
        {"max", WEFT_REDUCTION_MAX, WEFT_REDUCTION_MAX},
        {"min", WEFT_REDUCTION_MIN, WEFT_REDUCTION_MIN},
        {"prod", WEFT_REDUCTION_PROD, WEFT_REDUCTION_MIN},
        {"product", WEFT_REDUCTION_PROD, WEFT_REDUCTION_MIN},
    };
    const char *name = "";
    size_t i = 0;
    torch.torch_string_c_str(string, &name);
    while (i < sizeof words / sizeof words[0] && strcmp(words[i].name, name) != 0) {
        i++;
    }
    if (i == sizeof words / sizeof words[0] || kind == BYTES || (kind == PAIRS && i > 1)) {
        return false;
    }
    *out = kind == BOOLEAN ? words[i].of_booleans : words[i].reduction;
    return kind != BOOLEAN || *out != WEFT_REDUCTION_AVG;
}

static tensor_t *tensor_new(int64_t rank, const int64_t *dims, int32_t dtype)
{
    int64_t strides[MOST_DIMS], step = 1;
    tensor_t *made = NULL;
    for (int64_t i = rank - 1; i >= 0; i--) {
        strides[i] = step;
        step *= dims[i] > 1 ? dims[i] : 1;
    }
    torch.aoti_torch_empty_strided(rank, dims, strides, dtype, torch.aoti_torch_device_type_cpu(),
                                   0, &made);
    return made;
}

/*
 * given takes the result, of count elements of type number: in whatever shape, as weft's functions
 * do; through a tensor of ours where it has strides.
 */
static bool fill_given(arguments_t *arguments, const wp_call_t *call, int32_t number, int64_t count)
{
    int64_t there = 0, rank = 0, *sizes = NULL;
    int32_t type = 0;
    bool contiguous = false;
    char why[128] = "";
    torch.aoti_torch_get_dtype(arguments->given, &type);
    torch.aoti_torch_get_numel(arguments->given, &there);
    torch.aoti_torch_get_dim(arguments->given, &rank);
    torch.aoti_torch_get_sizes(arguments->given, &sizes);
    torch.aoti_torch_is_contiguous(arguments->given, &contiguous);
    if (type != number) {
        snprintf(why, sizeof why, "out is of another type than the tensor");
    } else if (there != count || rank > MOST_DIMS) {
        snprintf(why, sizeof why, "out has %lld elements, and the result %lld", (long long)there,
                 (long long)count);
    }
    if (why[0] != '\0') {
        refuse(arguments, call, PyExc_ValueError, why);
        return false;
    }
    arguments->strided = !contiguous;
    if (!contiguous) {
        arguments->out = tensor_new(rank, sizes, number);
    }
    return true;
}

/* The tensors' side of call: memory, counts, shapes. false: text is set. */
static bool fill(const operator_t *form, arguments_t *arguments, wp_call_t *call)
{
    int64_t count = 0, rank = 0, *sizes = NULL, dims[MOST_DIMS];
    uint32_t ranks = call->group->size;
    int32_t number = 0;
    bool contiguous = false;
    torch.aoti_torch_get_dtype(arguments->tensor, &number);
    torch.aoti_torch_get_numel(arguments->tensor, &count);
    torch.aoti_torch_get_dim(arguments->tensor, &rank);
    torch.aoti_torch_get_sizes(arguments->tensor, &sizes);
    torch.aoti_torch_is_contiguous(arguments->tensor, &contiguous);
    const dtype_t *dtype = &torch.dtypes[number & 63];
    if (dtype->dtype == WEFT_DTYPE_NONE || number > 63 || rank > MOST_DIMS) {
        refuse(arguments, call, PyExc_TypeError, "unsupported type of tensor");
        return false;
    }
    if (form->reduces && !reduction_of(arguments->reduction, dtype->kind, &call->reduction)) {
        refuse(arguments, call, PyExc_ValueError,
               "unsupported reduction: expected sum, avg, max, min or prod; of bool no avg, of"
               " complex numbers sum or avg, of float8 none");
        return false;
    }
    char why[128] = "";
    if (has_size(form) && arguments->size != (int64_t)ranks) {
        snprintf(why, sizeof why, "group size %lld, but the group has %u ranks",
                 (long long)arguments->size, (unsigned)ranks);
    } else if (form->divides && (rank == 0 || sizes[0] % ranks != 0)) {
        snprintf(why, sizeof why, "tensor has %lld rows, which %u ranks cannot divide",
                 rank > 0 ? (long long)sizes[0] : 1ll, (unsigned)ranks);
    }
    if (why[0] != '\0') {
        refuse(arguments, call, PyExc_ValueError, why);
        return false;
    }
    if (rank > 0) {
        memcpy(dims, sizes, (size_t)rank * sizeof dims[0]);
    }
    if (!contiguous) {
        arguments->packed = tensor_new(rank, dims, number);
    }
    if (rank <= WP_MAX_DIMS) {
        call->send.rank = (uint32_t)rank;
        memcpy(call->send.dims, dims, (size_t)rank * sizeof dims[0]);
    }
    uint64_t sent = (uint64_t)count * dtype->width, received = sent;
    if (form->gathers) {
        dims[0] = (rank > 0 ? dims[0] : 1) * ranks;
        rank = rank > 0 ? rank : 1;
        received *= ranks;
    } else if (form->scatters) {
        dims[0] /= ranks;
        received /= ranks;
    }
    call->send.dtype = dtype->dtype;
    call->count = form->divides ? sent / ranks : sent;
    if (form->has_out) {
        if (!fill_given(arguments, call, number, (int64_t)(received / dtype->width))) {
            return false;
        }
    } else if (!form->in_place) {
        arguments->out = tensor_new(rank, dims, number);
    }
    tensor_t *send = contiguous ? arguments->tensor : arguments->packed;
    tensor_t *recv = form->has_out && !arguments->strided ? arguments->given : arguments->out;
    recv = form->in_place ? send : recv;
    if (send == NULL || recv == NULL ||
        (!contiguous && torch.aoti_torch_copy_(send, arguments->tensor, 0) != 0)) {
        refuse(arguments, call, PyExc_MemoryError, "no memory for a tensor");
        return false;
    }
    torch.aoti_torch_get_data_ptr(send, &call->send.data);
    torch.aoti_torch_get_data_ptr(recv, &call->recv.data);
    uint64_t own = form->gathers || form->scatters ? call->group->rank * call->count : 0;
    if (form->has_out && wp_call_overlaps(call, sent, received, own)) {
        refuse(arguments, call, PyExc_ValueError, WP_OVERLAP_TEXT);
        return false;
    }
    return true;
}

static void run(arguments_t *arguments, const wp_call_t *call)
{
    for (;;) {
        wp_ran_t ran = wp_call_try(call);
        if (ran.status == WEFT_OK && ran.here) {
            return;
        }
        PyGILState_STATE gil = PyGILState_Ensure();
        int done = wp_call_settle(torch.state, call, ran);
        if (done < 0) {
            take_text(arguments->text);
        }
        PyGILState_Release(gil);
        if (done < 0) {
            return;
        }
    }
}

/* stack: the tensor, the name of the reduction and the size of the group where the operator has
 * them, the name of the group, the tensor for the result. */
static arguments_t arguments_of(const operator_t *form, const value_t *stack)
{
    arguments_t arguments = {.tensor = (tensor_t *)(uintptr_t)stack[0]};
    size_t next = 1;
    arguments.reduction = form->reduces ? (string_t *)(uintptr_t)stack[next++] : NULL;
    arguments.size = has_size(form) ? (int64_t)stack[next++] : 0;
    arguments.name = (string_t *)(uintptr_t)stack[next++];
    arguments.given = form->has_out ? (tensor_t *)(uintptr_t)stack[next] : NULL;
    return arguments;
}

static void delete_tensor(tensor_t *tensor)
{
    if (tensor != NULL) {
        torch.aoti_torch_delete_tensor_object(tensor);
    }
}

static void release_arguments(arguments_t *arguments)
{
    torch.aoti_torch_delete_tensor_object(arguments->tensor);
    if (arguments->reduction != NULL) {
        torch.torch_delete_string(arguments->reduction);
    }
    torch.torch_delete_string(arguments->name);
    delete_tensor(arguments->given);
}

static void execute(const operator_t *form, value_t *stack, char *text)
{
    arguments_t arguments = arguments_of(form, stack);
    wp_call_t call = {.op = form->op};
    arguments.entry = entry_of(arguments.name, arguments.text);
    if (arguments.entry != NULL) {
        call.group = arguments.entry->group;
        if (fill(form, &arguments, &call)) {
            run(&arguments, &call);
        }
        tensor_t *copied = form->in_place      ? arguments.packed
                           : arguments.strided ? arguments.out
                                               : NULL;
        if (arguments.text[0] == '\0' && copied != NULL &&
            torch.aoti_torch_copy_(form->in_place ? arguments.tensor : arguments.given, copied,
                                   0) != 0) {
            snprintf(arguments.text, TEXT_BYTES,
                     "the result cannot be copied into %s: do several elements share memory?",
                     form->in_place ? "the tensor" : "out");
        }
        entry_release(arguments.entry);
    }
    delete_tensor(arguments.packed);
    if (arguments.text[0] != '\0' || form->has_out) {
        delete_tensor(arguments.out);
    }
    release_arguments(&arguments);
    memcpy(text, arguments.text, strlen(arguments.text) + 1);
    if (returns(form)) {
        stack[0] = (value_t)(uintptr_t)arguments.out;
    }
}

static void kernel(const operator_t *form, value_t *stack)
{
    char text[TEXT_BYTES];
    execute(form, stack, text);
    if (text[0] != '\0') {
        throw_text(text);
    }
}

/* ---- with autograd ---- */
/* The operator below; torch keeps its exceptions' text and takes the arguments over. */
static void call_below(const operator_t *form, value_t *stack)
{
    if (torch.torch_call_dispatcher(form->below, "", stack, TORCH_VERSION) != 0) {
        throw_text(torch.torch_exception_get_what_without_backtrace());
    }
}

static PyObject *text_object(string_t *string)
{
    const char *chars = "";
    size_t length = 0;
    torch.torch_string_c_str(string, &chars);
    torch.torch_string_length(string, &length);
    return PyUnicode_DecodeUTF8(chars, (Py_ssize_t)length, "replace");
}

/* By Python, with the gradient: 0, or -1 with an exception. */
static int record(const operator_t *form, PyObject *object, const arguments_t *arguments,
                  tensor_t **out)
{
    PyObject *reduction =
        form->reduces ? text_object(arguments->reduction) : PyUnicode_FromString("sum");
    PyObject *name = text_object(arguments->name);
    PyObject *result = reduction != NULL && name != NULL
                           ? PyObject_CallFunction(torch.record, "sOOLO", form->name, object,
                                                   reduction, (long long)arguments->size, name)
                           : NULL;
    int status = result == NULL ? -1 : 0;
    if (status == 0 && returns(form) && torch.torch_tensor_from_pyobject(result, out) != 0) {
        PyErr_SetString(PyExc_TypeError, "a tensor was expected");
        status = -1;
    }
    Py_XDECREF(result);
    Py_XDECREF(name);
    Py_XDECREF(reduction);
    return status;
}

/* Whether torch's tensor needs a gradient; -1: an exception. object: the tensor for Python. */
static int needs_gradient(tensor_t *tensor, PyObject **object)
{
    void *made = NULL;
    torch.torch_tensor_to_pyobject(tensor, NULL, &made);
    *object = made;
    PyObject *needed = made != NULL ? PyObject_GetAttr(made, torch.requires_grad) : NULL;
    int result = needed == NULL ? -1 : needed == Py_True;
    Py_XDECREF(needed);
    return result;
}

/* The caller writes to object: autograd counts that. */
static int count_write(PyObject *object)
{
    PyObject *done = PyObject_CallFunction(torch.written, "((O))", object);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

/* Whether the call was made with its gradient recorded, or has failed: then there is a text. */
static bool recorded(const operator_t *form, arguments_t *arguments)
{
    PyGILState_STATE gil = PyGILState_Ensure();
    PyObject *object = NULL, *given = NULL;
    int needed = needs_gradient(arguments->tensor, &object), status = needed < 0 ? -1 : 0;
    if (status == 0 && form->has_out) {
        int also = needs_gradient(arguments->given, &given);
        status = also < 0 ? -1 : 0;
        needed = needed > 0 || also > 0; /* which Python refuses */
    }
    if (status == 0 && needed > 0) {
        status = record(form, object, arguments, &arguments->out);
    } else if (status == 0 && !returns(form)) {
        status = count_write(form->has_out ? given : object);
    }
    if (status < 0) {
        take_text(arguments->text);
    }
    Py_XDECREF(object);
    Py_XDECREF(given);
    PyGILState_Release(gil);
    return status < 0 || needed > 0;
}

static void autograd(const operator_t *form, value_t *stack)
{
    arguments_t arguments = arguments_of(form, stack);
    if (!torch.aoti_torch_grad_mode_is_enabled() || !recorded(form, &arguments)) {
        call_below(form, stack);
        return;
    }
    release_arguments(&arguments);
    stack[0] = (value_t)(uintptr_t)arguments.out;
    if (arguments.text[0] != '\0') {
        throw_text(arguments.text);
    }
}

#define WP_KERNELS(name, ...)                                                                      \
    static void kernel_##name(value_t *stack, uint64_t inputs, uint64_t outputs)                   \
    {                                                                                              \
        (void)inputs;                                                                              \
        (void)outputs;                                                                             \
        kernel(&operators[INDEX_##name], stack);                                                   \
    }                                                                                              \
    static void autograd_##name(value_t *stack, uint64_t inputs, uint64_t outputs)                 \
    {                                                                                              \
        (void)inputs;                                                                              \
        (void)outputs;                                                                             \
        autograd(&operators[INDEX_##name], stack);                                                 \
    }
WP_TORCH_OPERATOR_MAP(WP_KERNELS)

static const kernel_fn kernels[OPERATORS] = {
#define WP_KERNEL(name, ...) kernel_##name,
    WP_TORCH_OPERATOR_MAP(WP_KERNEL)};
static const kernel_fn autograds[OPERATORS] = {
#define WP_AUTOGRAD(name, ...) autograd_##name,
    WP_TORCH_OPERATOR_MAP(WP_AUTOGRAD)};

/* ---- setting up ---- */
/* What torch has: 0 too little, 1 for kernels, 2 for those with autograd. */
static int look_up(void)
{
    void *library = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
    void *found;
    int level = 2;
    if (library == NULL) {
        return 0;
    }
#define WP_LOOK_UP(result, name, parameters)                                                       \
    found = dlsym(library, #name);                                                                 \
    level = found != NULL ? level : least;                                                         \
    memcpy(&torch.name, &found, sizeof found);
    int least = 1;
    WP_TORCH_AUTOGRAD_MAP(WP_LOOK_UP)
    least = 0;
    WP_TORCH_MAP(WP_LOOK_UP)
#undef WP_LOOK_UP
#define WP_DTYPE(name, ours, elements, kinds)                                                      \
    found = dlsym(library, "aoti_torch_dtype_" #name);                                             \
    if (found != NULL) {                                                                           \
        int32_t (*number)(void);                                                                   \
        memcpy(&number, &found, sizeof found);                                                     \
        torch.dtypes[number() & 63] = (dtype_t){WEFT_DTYPE_##ours, (elements), (kinds)};           \
    }
    WP_TORCH_DTYPE_MAP(WP_DTYPE)
#undef WP_DTYPE
    return level;
}

/* The library is torch's to keep, as long as the process lives. */
static int install(const char *key, bool plain, const kernel_fn *functions)
{
    library_t *library = NULL;
    if (torch.aoti_torch_library_init_impl("weft", key, __FILE__, __LINE__, &library) != 0) {
        return -1;
    }
    for (size_t i = 0; i < OPERATORS; i++) {
        const char *name = plain ? operators[i].name : operators[i].below + strlen("weft::");
        if (torch.torch_library_impl(library, name, functions[i], TORCH_VERSION) != 0) {
            return -1;
        }
    }
    return 0;
}

static PyObject *install_operators(PyObject *module, PyObject *args)
{
    static int level = -1; /* torch keeps kernels once per process */
    PyObject *find, *record, *written;
    if (!PyArg_ParseTuple(args, "OOO:_torch_operators", &find, &record, &written)) {
        return NULL;
    }
    if (level < 0) {
        torch.state = wp_state_of(module);
        torch.requires_grad = PyUnicode_InternFromString("requires_grad");
        torch.find = Py_NewRef(find);
        torch.record = Py_NewRef(record);
        torch.written = Py_NewRef(written);
        level = look_up();
        if (level > 0 && (install("CPU", true, kernels) < 0 || install("CPU", false, kernels) < 0 ||
                          (level > 1 && install("AutogradCPU", true, autograds) < 0))) {
            return wp_raise_text(torch.state, WEFT_ERR_UNSUPPORTED,
                                 "torch refused a kernel of torch.ops.weft");
        }
    }
    return PyLong_FromLong(level);
}

static PyObject *forget(PyObject *module, PyObject *object)
{
    (void)module;
    PyObject *bytes = PyUnicode_AsUTF8String(object);
    if (bytes == NULL) {
        return NULL;
    }
    replace(PyBytes_AsString(bytes), (size_t)PyBytes_Size(bytes), NULL);
    Py_DECREF(bytes);
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"_torch_operators", install_operators, METH_VARARGS,
     "_torch_operators(find, record, written)\n--\n\n"
     "Gives torch the kernels of torch.ops.weft. 0: this torch takes none, 1: kernels without\n"
     "autograd, 2: with. For weft.torch.operators."},
    {"_torch_forget", forget, METH_O,
     "_torch_forget(name)\n--\n\nThe group that name stands for is asked for again."},
    {NULL, NULL, 0, NULL},
};

int wp_torch_operators_init(PyObject *module, wp_state_t *state)
{
    (void)state;
    return PyModule_AddFunctions(module, functions);
}
