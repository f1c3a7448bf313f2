/* SPDX-License-Identifier: Apache-2.0 */
#include "interop/onnxruntime/world.h"

#include <pthread.h>

#include <weft/weft.h>

static struct {
    pthread_mutex_t join_lock; /* of context and group, which no call changes */
    pthread_mutex_t call_lock; /* of calls on group */
    weft_context_t *context;
    weft_group_t *group;
} world = {.join_lock = PTHREAD_MUTEX_INITIALIZER, .call_lock = PTHREAD_MUTEX_INITIALIZER};

static weft_status_t create(void)
{
    weft_context_params_t params = WEFT_CONTEXT_PARAMS_INIT;
    weft_status_t status = weft_context_create(&params, &world.context);
    if (status == WEFT_OK) {
        status = weft_group_create_world(world.context, &world.group);
    }
    if (status != WEFT_OK) {
        weft_context_release(world.context);
        world.context = NULL;
    }
    return status;
}

weft_status_t weft_ort_join(uint32_t *out_size, uint32_t *out_rank)
{
    pthread_mutex_lock(&world.join_lock);
    weft_status_t status = world.group == NULL ? create() : WEFT_OK;
    if (status == WEFT_OK) {
        *out_size = weft_group_size(world.group);
        *out_rank = weft_group_rank(world.group);
    }
    pthread_mutex_unlock(&world.join_lock);
    return status;
}

weft_status_t weft_ort_begin(weft_group_t **out_group)
{
    if (pthread_mutex_trylock(&world.call_lock) == 0) {
        *out_group = world.group;
        return WEFT_OK;
    }
    pthread_mutex_lock(&world.call_lock);
    weft_status_t status =
        weft_group_refuse(world.group, WEFT_ERR_STATE,
                          "two collectives at the same time: all ranks need the same order: run "
                          "sessions one after another, in execution mode ORT_SEQUENTIAL",
                          NULL);
    pthread_mutex_unlock(&world.call_lock);
    return status;
}

void weft_ort_end(void)
{
    pthread_mutex_unlock(&world.call_lock);
}

/* The end of the process: ranks that died, or are in other calls, are not waited for. */
__attribute__((destructor)) static void leave(void)
{
    if (pthread_mutex_trylock(&world.call_lock) == 0) { /* else a thread is in a call */
        weft_group_leave(world.group);
        weft_context_release(world.context);
        world.group = NULL;
        world.context = NULL;
        pthread_mutex_unlock(&world.call_lock);
    }
}
