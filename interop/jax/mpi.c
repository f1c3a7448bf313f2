/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libweft_mpi.so: the MPI calls of XLA's CPU backend, as calls of Weft. It has the binary interface
 * of MPItrampoline (mpi_names.inc), which jaxlib loads by the variable MPITRAMPOLINE_LIB.
 *
 * XLA calls from many threads, one at a time per communicator. It ignores the results of
 * MPI_Init_thread and MPI_Comm_split, so a failure of these is kept and reported by every later
 * call.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <weft/weft.h>

#include "interop/jax/mpi.h"

/* Bytes of a text that the caller of MPI_Error_string and of MPI_Get_library_version provides. */
enum { ERROR_BYTES = 1024, VERSION_BYTES = 8192 };

/* The value of a constant is its place in the list, far from every rank, count and colour. */
enum {
    CONSTANTS_BEGIN = 0x57000000,
#define CONSTANT(name) MPI_##name,
#define CALL(name)
#define REFUSED(name)
#define DEVICE(name)
#include "interop/jax/mpi_names.inc"
#undef CONSTANT
#undef CALL
#undef REFUSED
#undef DEVICE
    CONSTANTS_END,
};

/* Constants are read as int or as a pointer: 8 bytes serve both on little-endian machines. */
#define CONSTANT(name)                                                                             \
    extern WEFT_API const int64_t MPIABI_##name;                                                   \
    const int64_t MPIABI_##name = MPI_##name == MPI_SUCCESS ? 0 : MPI_##name;
#define CALL(name)
#define REFUSED(name)                                                                              \
    WEFT_API void MPIABI_##name(void);                                                             \
    void MPIABI_##name(void)                                                                       \
    {                                                                                              \
        refuse("MPI_" #name);                                                                      \
    }
#define DEVICE(name)                                                                               \
    WEFT_API int MPIXABI_##name(void);                                                             \
    int MPIXABI_##name(void)                                                                       \
    {                                                                                              \
        return 0;                                                                                  \
    }

static _Noreturn void refuse(const char *name)
{
    fprintf(stderr, "libweft_mpi.so: %s is not implemented: only calls of XLA's CPU backend are\n",
            name);
    abort();
}

#include "interop/jax/mpi_names.inc"

extern WEFT_API const int mpiabi_version_major, mpiabi_version_minor, mpiabi_version_patch;
const int mpiabi_version_major = 2, mpiabi_version_minor = 10, mpiabi_version_patch = 0;
extern WEFT_API const int mpiwrapper_version_major, mpiwrapper_version_minor,
    mpiwrapper_version_patch;
const int mpiwrapper_version_major = 2, mpiwrapper_version_minor = 10, mpiwrapper_version_patch = 0;
WEFT_API void mpiwrapper_export_fortran_constants_(void);
void mpiwrapper_export_fortran_constants_(void)
{
}

/* Handles of the interface. */
typedef uintptr_t mpi_datatype_t;
typedef uintptr_t mpi_op_t;
typedef uintptr_t mpi_request_t;
typedef struct mpi_status mpi_status_t; /* XLA passes MPI_STATUS_IGNORE */

/* One message of a communicator that MPI_Wait will move. */
typedef struct message {
    void *data;
    uint64_t bytes;
    uint32_t peer;
    bool is_send;
} message_t;

/* What a handle of a communicator points to. */
typedef struct comm {
    pthread_mutex_t lock; /* of all fields */
    weft_group_t *group;  /* NULL: creation failed, or MPI_Finalize was called */
    char *error;          /* why creation failed */
    message_t *messages;  /* issued since the last MPI_Wait */
    uint32_t message_count, message_capacity;
    int waited;               /* the result of the last messages */
    struct comm *next, *prev; /* list of process.comms, under process.lock */
} comm_t;

static struct {
    pthread_mutex_t lock; /* of all fields but is_finalized; splits of the world */
    weft_context_t *context;
    comm_t world;
    atomic_bool is_finalized;
} process = {
    .lock = PTHREAD_MUTEX_INITIALIZER,
    .world = {.lock = PTHREAD_MUTEX_INITIALIZER, .next = &process.world, .prev = &process.world},
};

/* The last failure of the thread, for MPI_Error_string. */
static _Thread_local char last_error[ERROR_BYTES];

static int fail(const char *text)
{
    snprintf(last_error, sizeof last_error, "%s", text);
    return MPI_ERR_OTHER;
}

static int result_of(weft_status_t status)
{
    return status == WEFT_OK ? 0 : fail(status < 0 ? weft_last_error() : weft_status_text(status));
}

static comm_t *comm_of(mpi_comm_t handle)
{
    return handle == MPI_COMM_WORLD ? &process.world : (comm_t *)handle;
}

/* Locks a communicator. If it has no group, the call ends with *out_result and nothing is locked. */
static comm_t *begin_call(mpi_comm_t handle, int *out_result)
{
    comm_t *comm = comm_of(handle);
    pthread_mutex_lock(&comm->lock);
    if (comm->group != NULL) {
        return comm;
    }
    *out_result = 0;
    if (!atomic_load_explicit(&process.is_finalized, memory_order_relaxed)) {
        *out_result = fail(comm->error != NULL ? comm->error : "MPI_Init_thread was not called");
    }
    pthread_mutex_unlock(&comm->lock);
    return NULL;
}

static int end_call(comm_t *comm, weft_status_t status)
{
    pthread_mutex_unlock(&comm->lock);
    return result_of(status);
}

weft_group_t *weft_mpi_begin(mpi_comm_t handle, const char **out_error)
{
    int result = 0;
    comm_t *comm = begin_call(handle, &result);
    *out_error = comm == NULL && result == 0 ? "MPI_Finalize was called" : last_error;
    return comm == NULL ? NULL : comm->group;
}

void weft_mpi_end(mpi_comm_t handle)
{
    pthread_mutex_unlock(&comm_of(handle)->lock);
}

uint32_t weft_mpi_host_count(void)
{
    pthread_mutex_lock(&process.lock);
    uint32_t count = process.context != NULL ? weft_context_host_count(process.context) : 1;
    pthread_mutex_unlock(&process.lock);
    return count;
}

/* ---- types and reductions ---- */

typedef struct type {
    mpi_datatype_t mpi;
    weft_dtype_t weft;
    uint64_t parts; /* elements of Weft's type: a complex number has two */
} type_t;

static const type_t TYPES[] = {
    {MPI_FLOAT, WEFT_DTYPE_F32, 1},
    {MPI_DOUBLE, WEFT_DTYPE_F64, 1},
    {MPI_BYTE, WEFT_DTYPE_U8, 1},
    {MPI_INT8_T, WEFT_DTYPE_I8, 1},
    {MPI_INT16_T, WEFT_DTYPE_I16, 1},
    {MPI_INT32_T, WEFT_DTYPE_I32, 1},
    {MPI_INT64_T, WEFT_DTYPE_I64, 1},
    {MPI_UINT8_T, WEFT_DTYPE_U8, 1},
    {MPI_UINT16_T, WEFT_DTYPE_U16, 1},
    {MPI_UINT32_T, WEFT_DTYPE_U32, 1},
    {MPI_UINT64_T, WEFT_DTYPE_U64, 1},
    {MPI_C_COMPLEX, WEFT_DTYPE_F32, 2},
    {MPI_C_DOUBLE_COMPLEX, WEFT_DTYPE_F64, 2},
};

static const type_t *type_of(mpi_datatype_t mpi)
{
    for (size_t i = 0; i < sizeof TYPES / sizeof *TYPES; i++) {
        if (TYPES[i].mpi == mpi) {
            return &TYPES[i];
        }
    }
    refuse("this MPI_Datatype");
}

static weft_reduction_t reduction_of(mpi_op_t op)
{
    switch (op) {
    case MPI_SUM:
        return WEFT_REDUCTION_SUM;
    case MPI_PROD:
        return WEFT_REDUCTION_PROD;
    case MPI_MIN:
        return WEFT_REDUCTION_MIN;
    case MPI_MAX:
        return WEFT_REDUCTION_MAX;
    default:
        refuse("this MPI_Op");
    }
}

/* XLA converts its counts, which are size_t, to int: more than 2^31 - 1 elements arrive as less. */
static int check_count(int count)
{
    return count >= 0 ? 0 : fail("invalid count: more than 2147483647 elements in one MPI call");
}

/* The parts of a complex number are only added one by one. */
static int check_reduction(int count, mpi_op_t op, const type_t *type)
{
    if (type->parts != 1 && op != MPI_SUM) {
        return fail("unsupported reduction: complex numbers have sums only");
    }
    return check_count(count);
}

/* ---- start and end ---- */

static weft_status_t create_world(void)
{
    weft_context_params_t params = WEFT_CONTEXT_PARAMS_INIT;
    weft_status_t status = weft_context_create(&params, &process.context);
    if (status == WEFT_OK) {
        status = weft_group_create_world(process.context, &process.world.group);
    }
    return status;
}

/* Python tells how many processes JAX has: 0 before it knows. MPI_Init_thread asks. */
typedef int (*process_count_t)(void);
static _Atomic(process_count_t) process_count;

WEFT_API void weft_jax_expect(process_count_t count);
void weft_jax_expect(process_count_t count)
{
    atomic_store(&process_count, count);
}

/* Without a launcher each process is a world of its own, in which rank 0 would reduce alone. */
static int check_world_size(int expected)
{
    char text[ERROR_BYTES];
    uint32_t size = weft_group_size(process.world.group);
    if (expected == 0 || (uint32_t)expected == size) {
        return 0;
    }
    snprintf(text, sizeof text,
             "JAX has %d processes, Weft's world has %u ranks: start all processes by weft run, "
             "mpirun or srun",
             expected, size);
    return fail(text);
}

WEFT_API int MPIABI_Init_thread(int *argc, char ***argv, int required, int *provided);
int MPIABI_Init_thread(int *argc, char ***argv, int required, int *provided)
{
    int result = 0;
    (void)argc, (void)argv, (void)required;
    *provided = MPI_THREAD_MULTIPLE;
    process_count_t count = atomic_load(&process_count);
    int expected = count != NULL ? count() : 0;
    pthread_mutex_lock(&process.lock);
    pthread_mutex_lock(&process.world.lock);
    if (process.context == NULL && !process.is_finalized) { /* weft.jax calls it before XLA */
        result = result_of(create_world());
        if (result != 0) {
            weft_context_release(process.context);
            process.context = NULL;
        }
    }
    if (process.context != NULL) {
        result = check_world_size(expected);
    }
    if (result != 0) {
        free(process.world.error);
        process.world.error = strdup(last_error);
    }
    pthread_mutex_unlock(&process.world.lock);
    pthread_mutex_unlock(&process.lock);
    return result;
}

WEFT_API int MPIABI_Is_thread_main(int *flag);
int MPIABI_Is_thread_main(int *flag)
{
    *flag = 1; /* any thread may create communicators */
    return 0;
}

/* The end of a program: ranks that died, or are in other calls, are not waited for. */
WEFT_API int MPIABI_Finalize(void);
int MPIABI_Finalize(void)
{
    pthread_mutex_lock(&process.lock);
    atomic_store_explicit(&process.is_finalized, true, memory_order_relaxed);
    comm_t *comm = &process.world;
    do {
        pthread_mutex_lock(&comm->lock);
        weft_group_leave(comm->group);
        comm->group = NULL;
        pthread_mutex_unlock(&comm->lock);
        comm = comm->next;
    } while (comm != &process.world);
    weft_context_release(process.context);
    process.context = NULL;
    pthread_mutex_unlock(&process.lock);
    return 0;
}

WEFT_API int MPIABI_Get_library_version(char *version, int *length);
int MPIABI_Get_library_version(char *version, int *length)
{
    *length = snprintf(version, VERSION_BYTES, "Weft %s", weft_version());
    return 0;
}

WEFT_API int MPIABI_Error_string(int code, char *text, int *length);
int MPIABI_Error_string(int code, char *text, int *length)
{
    *length = snprintf(text, ERROR_BYTES, "%s", code == 0 ? "success" : last_error);
    return 0;
}

/* ---- communicators ---- */

WEFT_API int MPIABI_Comm_rank(mpi_comm_t handle, int *rank);
int MPIABI_Comm_rank(mpi_comm_t handle, int *rank)
{
    int result;
    *rank = 0;
    comm_t *comm = begin_call(handle, &result);
    if (comm == NULL) {
        return result;
    }
    *rank = (int)weft_group_rank(comm->group);
    return end_call(comm, WEFT_OK);
}

WEFT_API int MPIABI_Comm_size(mpi_comm_t handle, int *size);
int MPIABI_Comm_size(mpi_comm_t handle, int *size)
{
    int result;
    *size = 1;
    comm_t *comm = begin_call(handle, &result);
    if (comm == NULL) {
        return result;
    }
    *size = (int)weft_group_size(comm->group);
    return end_call(comm, WEFT_OK);
}

/* Not collective: XLA frees communicators when a process ends. */
WEFT_API int MPIABI_Comm_free(mpi_comm_t *handle);
int MPIABI_Comm_free(mpi_comm_t *handle)
{
    if (*handle == MPI_COMM_NULL || *handle == MPI_COMM_WORLD) {
        return 0;
    }
    comm_t *comm = comm_of(*handle);
    *handle = MPI_COMM_NULL;
    pthread_mutex_lock(&process.lock);
    comm->prev->next = comm->next;
    comm->next->prev = comm->prev;
    pthread_mutex_unlock(&process.lock);
    weft_group_leave(comm->group);
    pthread_mutex_destroy(&comm->lock);
    free(comm->messages);
    free(comm->error);
    free(comm);
    return 0;
}

/*
 * XLA passes the rank that it expects as key. If one rank gets another rank than that, all ranks of
 * the world fail with its text: those that got theirs would wait for it in their first call.
 */
static weft_status_t compare_ranks(const weft_group_t *group, int key, weft_group_t *world,
                                   char text[ERROR_BYTES])
{
    uint32_t mine = 0, wrong = 0; /* rank in the world + 1 */
    if (group != NULL && (int)weft_group_rank(group) != key) {
        mine = weft_group_rank(world) + 1;
        snprintf(text, ERROR_BYTES,
                 "communicator: process %u has rank %u of %u where XLA expects rank %d: Weft's "
                 "world has %u ranks; start all processes by weft run, mpirun or srun, with one "
                 "CPU device each; all must use the same sets of devices in the same order",
                 weft_group_rank(world), weft_group_rank(group), weft_group_size(group), key,
                 weft_group_size(world));
    }
    weft_status_t status =
        weft_all_reduce(&mine, &wrong, 1, WEFT_DTYPE_U32, WEFT_REDUCTION_MAX, world, NULL);
    if (status == WEFT_OK && wrong != 0) {
        status = weft_broadcast(text, text, ERROR_BYTES, WEFT_DTYPE_U8, wrong - 1, world, NULL);
        if (status == WEFT_OK) {
            process.world.error = strdup(text); /* the world stays broken */
            return WEFT_ERR_STATE;
        }
    }
    snprintf(text, ERROR_BYTES, "%s", weft_last_error());
    return status;
}

static weft_status_t split_world(uint32_t color, int key, comm_t *comm)
{
    char text[ERROR_BYTES] = "MPI_Init_thread was not called";
    weft_status_t status = WEFT_ERR_STATE;
    weft_group_t *world = process.world.group;
    if (process.world.error != NULL) {
        snprintf(text, sizeof text, "%s", process.world.error);
    } else if (world != NULL) {
        status = weft_group_split(world, color, key, &comm->group);
        snprintf(text, sizeof text, "%s", weft_last_error());
        status = status == WEFT_OK ? compare_ranks(comm->group, key, world, text) : status;
    }
    if (status != WEFT_OK) {
        weft_group_leave(comm->group);
        comm->group = NULL;
        comm->error = strdup(text);
        fail(text);
    }
    return status;
}

/* Communicators of one world are created one after another. */
WEFT_API int MPIABI_Comm_split(mpi_comm_t handle, int color, int key, mpi_comm_t *out_handle);
int MPIABI_Comm_split(mpi_comm_t handle, int color, int key, mpi_comm_t *out_handle)
{
    *out_handle = MPI_COMM_NULL;
    if (handle != MPI_COMM_WORLD) {
        refuse("MPI_Comm_split of a communicator other than MPI_COMM_WORLD");
    }
    comm_t *comm = calloc(1, sizeof *comm);
    if (comm == NULL) {
        return fail("out of memory: no communicator");
    }
    pthread_mutex_init(&comm->lock, NULL);
    pthread_mutex_lock(&process.lock);
    uint32_t group_color = color == MPI_UNDEFINED ? WEFT_COLOR_NONE : (uint32_t)color;
    weft_status_t status = split_world(group_color, key, comm);
    comm->next = &process.world;
    comm->prev = process.world.prev;
    comm->prev->next = comm;
    comm->next->prev = comm;
    pthread_mutex_unlock(&process.lock);
    *out_handle = (mpi_comm_t)comm;
    if (status == WEFT_OK && comm->group == NULL) { /* MPI_UNDEFINED: no communicator */
        return MPIABI_Comm_free(out_handle);
    }
    return status == WEFT_OK ? 0 : MPI_ERR_OTHER;
}

/* ---- collectives ---- */

WEFT_API int MPIABI_Allreduce(const void *send, void *recv, int count, mpi_datatype_t datatype,
                              mpi_op_t op, mpi_comm_t handle);
int MPIABI_Allreduce(const void *send, void *recv, int count, mpi_datatype_t datatype, mpi_op_t op,
                     mpi_comm_t handle)
{
    const type_t *type = type_of(datatype);
    weft_reduction_t reduction = reduction_of(op);
    int result = check_reduction(count, op, type);
    comm_t *comm = result == 0 ? begin_call(handle, &result) : NULL;
    if (comm == NULL) {
        return result;
    }
    return end_call(comm, weft_all_reduce(send, recv, (uint64_t)count * type->parts, type->weft,
                                          reduction, comm->group, NULL));
}

WEFT_API int MPIABI_Allgather(const void *send, int send_count, mpi_datatype_t send_type,
                              void *recv, int recv_count, mpi_datatype_t recv_type,
                              mpi_comm_t handle);
int MPIABI_Allgather(const void *send, int send_count, mpi_datatype_t send_type, void *recv,
                     int recv_count, mpi_datatype_t recv_type, mpi_comm_t handle)
{
    const type_t *type = type_of(send_type);
    if (recv_type != send_type || recv_count != send_count) {
        refuse("MPI_Allgather with different send and receive types or counts");
    }
    int result = check_count(send_count);
    comm_t *comm = result == 0 ? begin_call(handle, &result) : NULL;
    if (comm == NULL) {
        return result;
    }
    return end_call(comm, weft_all_gather(send, recv, (uint64_t)send_count * type->parts,
                                          type->weft, comm->group, NULL));
}

WEFT_API int MPIABI_Reduce_scatter(const void *send, void *recv, const int *counts,
                                   mpi_datatype_t datatype, mpi_op_t op, mpi_comm_t handle);
int MPIABI_Reduce_scatter(const void *send, void *recv, const int *counts, mpi_datatype_t datatype,
                          mpi_op_t op, mpi_comm_t handle)
{
    const type_t *type = type_of(datatype);
    weft_reduction_t reduction = reduction_of(op);
    int result = check_reduction(counts[0], op, type);
    comm_t *comm = result == 0 ? begin_call(handle, &result) : NULL;
    if (comm == NULL) {
        return result;
    }
    for (uint32_t i = 1; i < weft_group_size(comm->group); i++) {
        if (counts[i] != counts[0]) {
            refuse("MPI_Reduce_scatter with different counts");
        }
    }
    return end_call(comm, weft_reduce_scatter(send, recv, (uint64_t)counts[0] * type->parts,
                                              type->weft, reduction, comm->group, NULL));
}

/* ---- messages ---- */

static weft_status_t issue(const message_t *message, weft_group_t *group)
{
    return message->is_send
               ? weft_send(message->data, message->bytes, WEFT_DTYPE_U8, message->peer, group, NULL)
               : weft_recv(message->data, message->bytes, WEFT_DTYPE_U8, message->peer, group,
                           NULL);
}

/* All messages at once, so that no order of sends and receives is a deadlock. */
static weft_status_t exchange(const message_t *messages, uint32_t count, weft_group_t *group)
{
    if (count == 1) {
        return issue(messages, group);
    }
    weft_status_t status = weft_batch_begin(group);
    if (status != WEFT_OK) {
        return status;
    }
    for (uint32_t i = 0; i < count && status == WEFT_OK; i++) {
        status = issue(&messages[i], group);
    }
    if (status == WEFT_AGAIN) { /* more messages than a batch takes */
        weft_batch_cancel(group);
        return status;
    }
    return weft_batch_end(group, NULL); /* also the status of a wrong argument */
}

static weft_status_t add_message(comm_t *comm, const message_t *message)
{
    if (comm->message_count == comm->message_capacity) {
        uint32_t capacity = comm->message_capacity == 0 ? 8 : 2 * comm->message_capacity;
        message_t *messages = realloc(comm->messages, capacity * sizeof *messages);
        if (messages == NULL) {
            return WEFT_ERR_NO_MEMORY;
        }
        comm->messages = messages;
        comm->message_capacity = capacity;
    }
    comm->messages[comm->message_count++] = *message;
    return WEFT_OK;
}

static message_t message_of(const void *data, int count, mpi_datatype_t type, int peer,
                            bool is_send)
{
    if (type != MPI_BYTE) {
        refuse("a message of another type than MPI_BYTE");
    }
    return (message_t){(void *)(uintptr_t)data, (uint64_t)count, (uint32_t)peer, is_send};
}

/* The message moves in the first MPI_Wait for a request of its communicator. */
static int start_message(const message_t *message, int count, mpi_comm_t handle,
                         mpi_request_t *request)
{
    *request = MPI_REQUEST_NULL;
    int result = check_count(count);
    comm_t *comm = result == 0 ? begin_call(handle, &result) : NULL;
    if (comm == NULL) {
        return result;
    }
    weft_status_t status = add_message(comm, message);
    pthread_mutex_unlock(&comm->lock);
    if (status != WEFT_OK) {
        return fail("out of memory: no message");
    }
    *request = handle;
    return 0;
}

/* Messages of one communicator match in order: XLA uses one tag. */
WEFT_API int MPIABI_Isend(const void *data, int count, mpi_datatype_t type, int peer, int tag,
                          mpi_comm_t handle, mpi_request_t *request);
int MPIABI_Isend(const void *data, int count, mpi_datatype_t type, int peer, int tag,
                 mpi_comm_t handle, mpi_request_t *request)
{
    (void)tag;
    message_t message = message_of(data, count, type, peer, true);
    return start_message(&message, count, handle, request);
}

WEFT_API int MPIABI_Irecv(void *data, int count, mpi_datatype_t type, int peer, int tag,
                          mpi_comm_t handle, mpi_request_t *request);
int MPIABI_Irecv(void *data, int count, mpi_datatype_t type, int peer, int tag, mpi_comm_t handle,
                 mpi_request_t *request)
{
    (void)tag;
    message_t message = message_of(data, count, type, peer, false);
    return start_message(&message, count, handle, request);
}

WEFT_API int MPIABI_Wait(mpi_request_t *request, mpi_status_t *status);
int MPIABI_Wait(mpi_request_t *request, mpi_status_t *status)
{
    int result = 0;
    (void)status;
    if (*request == MPI_REQUEST_NULL) {
        return 0;
    }
    comm_t *comm = begin_call(*request, &result);
    *request = MPI_REQUEST_NULL;
    if (comm == NULL) {
        return result;
    }
    if (comm->message_count > 0) {
        comm->waited = result_of(exchange(comm->messages, comm->message_count, comm->group));
        comm->message_count = 0;
    }
    result = comm->waited;
    pthread_mutex_unlock(&comm->lock);
    return result;
}

WEFT_API int MPIABI_Sendrecv(const void *send, int send_count, mpi_datatype_t send_type, int to,
                             int send_tag, void *recv, int recv_count, mpi_datatype_t recv_type,
                             int from, int recv_tag, mpi_comm_t handle, mpi_status_t *status);
int MPIABI_Sendrecv(const void *send, int send_count, mpi_datatype_t send_type, int to,
                    int send_tag, void *recv, int recv_count, mpi_datatype_t recv_type, int from,
                    int recv_tag, mpi_comm_t handle, mpi_status_t *status)
{
    (void)send_tag, (void)recv_tag, (void)status;
    message_t messages[2] = {message_of(recv, recv_count, recv_type, from, false),
                             message_of(send, send_count, send_type, to, true)};
    int result = check_count(send_count < recv_count ? send_count : recv_count);
    comm_t *comm = result == 0 ? begin_call(handle, &result) : NULL;
    if (comm == NULL) {
        return result;
    }
    return end_call(comm, exchange(messages, 2, comm->group));
}
