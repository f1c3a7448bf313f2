/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The operators of weft.jax as custom calls of XLA: one call moves all tensors of a tree. The
 * attributes are the collective, the reduction and the root, by their numbers in weft/types.h.
 *
 * A call of many bytes goes to a thread, which completes its future, where that thread can gain
 * time: on another core, or while the network moves data. Tokens keep the calls of a program apart.
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <weft/weft.h>

#include "interop/jax/mpi.h"
#include "interop/jax/xla_ffi.h"

/* Most calls of a batch: the group runs as many at once. */
#define BATCH_MAX 64
/* Fewest bytes sent by a call that goes to the thread: it takes some 10 us to wake up. */
#define ASIDE_BYTES (256u << 10)

typedef struct call {
    struct call *next;
    int64_t kind, reduction, root;
    const ffi_api_t *api;
    ffi_buffers_t args, results;
    ffi_future_t *future;
} call_t;

static atomic_uintptr_t communicator;

static struct {
    pthread_mutex_t lock;
    pthread_cond_t more;
    call_t *first, **last; /* calls that wait for the thread */
    bool is_wanted, is_started;
} aside = {
    .lock = PTHREAD_MUTEX_INITIALIZER, .more = PTHREAD_COND_INITIALIZER, .last = &aside.first};

/* Tells which communicator the operators use. Python calls it once, before the first of them. */
WEFT_API void weft_jax_use(mpi_comm_t handle);
void weft_jax_use(mpi_comm_t handle)
{
    cpu_set_t cores;
    aside.is_wanted = weft_mpi_host_count() > 1 ||
                      (sched_getaffinity(0, sizeof cores, &cores) == 0 && CPU_COUNT(&cores) > 1);
    atomic_store(&communicator, handle);
}

static ffi_error_t *fail(const ffi_api_t *api, const char *text)
{
    ffi_error_create_t args = {FFI_ERROR_CREATE_SIZE, NULL, text, FFI_ERROR_UNKNOWN};
    return api->error_create(&args);
}

/* Weft's type of XLA's, and how many of its elements one of XLA's is. */
static weft_dtype_t dtype_of(int ffi, uint64_t *out_parts)
{
    static const struct {
        weft_dtype_t dtype;
        uint64_t parts;
    } types[] = {
        [FFI_PRED] = {WEFT_DTYPE_BOOL, 1}, [FFI_S8] = {WEFT_DTYPE_I8, 1},
        [FFI_S16] = {WEFT_DTYPE_I16, 1},   [FFI_S32] = {WEFT_DTYPE_I32, 1},
        [FFI_S64] = {WEFT_DTYPE_I64, 1},   [FFI_U8] = {WEFT_DTYPE_U8, 1},
        [FFI_U16] = {WEFT_DTYPE_U16, 1},   [FFI_U32] = {WEFT_DTYPE_U32, 1},
        [FFI_U64] = {WEFT_DTYPE_U64, 1},   [FFI_F16] = {WEFT_DTYPE_F16, 1},
        [FFI_F32] = {WEFT_DTYPE_F32, 1},   [FFI_F64] = {WEFT_DTYPE_F64, 1},
        [FFI_BF16] = {WEFT_DTYPE_BF16, 1}, [FFI_C64] = {WEFT_DTYPE_F32, 2},
        [FFI_C128] = {WEFT_DTYPE_F64, 2},
    };
    if (ffi < 0 || (size_t)ffi >= sizeof types / sizeof *types) {
        return WEFT_DTYPE_NONE;
    }
    *out_parts = types[ffi].parts;
    return types[ffi].dtype;
}

static uint64_t elements_of(const ffi_buffer_t *buffer)
{
    uint64_t count = 1;
    for (int64_t i = 0; i < buffer->rank; i++) {
        count *= (uint64_t)buffer->dims[i];
    }
    return count;
}

static weft_status_t issue(const call_t *call, const ffi_buffer_t *send, const ffi_buffer_t *recv,
                           weft_group_t *group)
{
    uint64_t parts = 1;
    weft_dtype_t dtype = dtype_of(send->dtype, &parts);
    uint64_t sent = elements_of(send) * parts, received = elements_of(recv) * parts;
    weft_reduction_t reduction = (weft_reduction_t)call->reduction;
    switch (call->kind) {
    case WEFT_COLLECTIVE_ALL_REDUCE:
        return weft_all_reduce(send->data, recv->data, sent, dtype, reduction, group, NULL);
    case WEFT_COLLECTIVE_REDUCE_SCATTER:
        return weft_reduce_scatter(send->data, recv->data, received, dtype, reduction, group, NULL);
    case WEFT_COLLECTIVE_ALL_GATHER:
        return weft_all_gather(send->data, recv->data, sent, dtype, group, NULL);
    case WEFT_COLLECTIVE_ALL_TO_ALL:
        return weft_all_to_all(send->data, recv->data, sent / weft_group_size(group), dtype, group,
                               NULL);
    default:
        return weft_broadcast(send->data, recv->data, sent, dtype, (uint32_t)call->root, group,
                              NULL);
    }
}

/* The tensors from begin on, as many as a batch takes; tokens are no tensors. */
static weft_status_t run_batch(const call_t *call, int64_t begin, weft_group_t *group)
{
    int64_t end = begin + BATCH_MAX < call->args.size ? begin + BATCH_MAX : call->args.size;
    if (end - begin == 1) {
        return issue(call, call->args.items[begin], call->results.items[begin], group);
    }
    weft_status_t status = weft_batch_begin(group);
    if (status != WEFT_OK) {
        return status;
    }
    for (int64_t i = begin; i < end && status == WEFT_OK; i++) {
        status = issue(call, call->args.items[i], call->results.items[i], group);
    }
    return weft_batch_end(group, NULL); /* also the status of a wrong argument */
}

static int64_t attribute(const ffi_frame_t *frame, const char *name)
{
    const ffi_attributes_t *all = &frame->attributes;
    for (int64_t i = 0; i < all->size; i++) {
        if (all->names[i]->length == strlen(name) &&
            memcmp(all->names[i]->text, name, strlen(name)) == 0) {
            int64_t value;
            memcpy(&value, ((const ffi_scalar_t *)all->items[i])->value, sizeof value);
            return value;
        }
    }
    return 0;
}

/* Whether the first tensor is one; else it is the token. */
static int64_t first_of(const call_t *call)
{
    return call->args.size > 0 && call->args.items[0]->dtype == FFI_TOKEN ? 1 : 0;
}

static ffi_error_t *run_call(const call_t *call)
{
    mpi_comm_t handle = atomic_load(&communicator);
    const char *error = "weft.jax: no world";
    weft_group_t *group = handle != 0 ? weft_mpi_begin(handle, &error) : NULL;
    if (group == NULL) {
        return fail(call->api, error);
    }
    weft_status_t status = WEFT_OK;
    for (int64_t i = first_of(call); i < call->args.size && status == WEFT_OK; i += BATCH_MAX) {
        status = run_batch(call, i, group);
    }
    weft_mpi_end(handle);
    return status == WEFT_OK ? NULL : fail(call->api, weft_last_error());
}

static void *run_aside(void *unused)
{
    (void)unused;
    pthread_setname_np(pthread_self(), "weft-jax");
    for (;;) {
        pthread_mutex_lock(&aside.lock);
        while (aside.first == NULL) {
            pthread_cond_wait(&aside.more, &aside.lock);
        }
        call_t *call = aside.first;
        aside.first = call->next;
        if (aside.first == NULL) {
            aside.last = &aside.first;
        }
        pthread_mutex_unlock(&aside.lock);
        ffi_error_t *error = run_call(call);
        if (error == NULL) {
            call->api->future_set_available(
                &(ffi_future_args_t){sizeof(ffi_future_args_t), NULL, call->future});
        } else {
            call->api->future_set_error(
                &(ffi_future_error_t){sizeof(ffi_future_error_t), NULL, call->future, error});
        }
        free(call);
    }
    return NULL;
}

/* With the lock of aside: whether there is a thread. */
static bool start_aside(void)
{
    pthread_t thread;
    if (!aside.is_started && pthread_create(&thread, NULL, run_aside, NULL) == 0) {
        pthread_detach(thread);
        aside.is_started = true;
    }
    return aside.is_started;
}

static bool is_large(const call_t *call)
{
    uint64_t bytes = 0, parts;
    for (int64_t i = first_of(call); i < call->args.size; i++) {
        const ffi_buffer_t *send = call->args.items[i];
        weft_dtype_t dtype = dtype_of(send->dtype, &parts);
        bytes +=
            dtype == WEFT_DTYPE_NONE ? 0 : elements_of(send) * parts * weft_dtype_size_bytes(dtype);
    }
    return bytes >= ASIDE_BYTES;
}

/* Hands a call to the thread. False: nothing has happened. */
static bool run_later(const call_t *call, ffi_frame_t *frame)
{
    ffi_future_args_t made = {.struct_size = sizeof made};
    if (!aside.is_wanted || frame->api->struct_size < sizeof *frame->api || !is_large(call)) {
        return false;
    }
    call_t *later = malloc(sizeof *later);
    if (later == NULL) {
        return false;
    }
    pthread_mutex_lock(&aside.lock);
    bool can = start_aside() && frame->api->future_create(&made) == NULL;
    if (can) {
        *later = *call;
        later->future = frame->future = made.future;
        *aside.last = later;
        aside.last = &later->next;
        pthread_cond_signal(&aside.more);
    }
    pthread_mutex_unlock(&aside.lock);
    if (!can) {
        free(later);
    }
    return can;
}

/* The handler of XLA's custom call "weft_collective". */
WEFT_API ffi_error_t *weft_jax_collective(ffi_frame_t *frame);
ffi_error_t *weft_jax_collective(ffi_frame_t *frame)
{
    if (frame->extensions != NULL && frame->extensions->type == FFI_EXTENSION_METADATA) {
        ffi_metadata_t *metadata = ((ffi_metadata_extension_t *)frame->extensions)->metadata;
        metadata->version = (ffi_version_t){sizeof metadata->version, NULL, 0, 1};
        metadata->traits = 0;
        return NULL;
    }
    call_t call = {.kind = attribute(frame, "kind"),
                   .reduction = attribute(frame, "reduction"),
                   .root = attribute(frame, "root"),
                   .api = frame->api,
                   .args = frame->args,
                   .results = frame->results};
    return run_later(&call, frame) ? NULL : run_call(&call);
}
