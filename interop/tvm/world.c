/* SPDX-License-Identifier: Apache-2.0 */
#include "interop/tvm/world.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include <weft/weft.h>

/* What an address of workers that are threads begins with. */
#define THREADS "threads:"

/* Where the workers of a ThreadedSession meet. The first to come creates it, the last frees it. */
struct hub {
    hub_t *next;
    weft_hub_t *weft;
    uint32_t user_count;
    char name[];
};

static struct {
    pthread_mutex_t lock; /* of all hubs */
    hub_t *hubs;
    pthread_once_t once;
    pthread_key_t key; /* of the world of a thread, which is left at the thread's end */
} process = {.lock = PTHREAD_MUTEX_INITIALIZER, .once = PTHREAD_ONCE_INIT};

/* As the key's value, for a fast look at it. */
static _Thread_local world_t *thread_world;

static hub_t *hub_create(const char *name, uint32_t size)
{
    size_t name_bytes = strlen(name) + 1;
    hub_t *hub = calloc(1, sizeof *hub + name_bytes);
    if (hub == NULL || weft_hub_create(size, &hub->weft) != WEFT_OK) {
        free(hub);
        return NULL;
    }
    memcpy(hub->name, name, name_bytes);
    hub->next = process.hubs;
    process.hubs = hub;
    return hub;
}

static hub_t *hub_enter(const char *name, uint32_t size)
{
    pthread_mutex_lock(&process.lock);
    hub_t *hub = process.hubs;
    while (hub != NULL && strcmp(hub->name, name) != 0) {
        hub = hub->next;
    }
    if (hub == NULL) {
        hub = hub_create(name, size);
    }
    if (hub != NULL) {
        hub->user_count++;
    }
    pthread_mutex_unlock(&process.lock);
    return hub;
}

static void hub_leave(hub_t *hub)
{
    if (hub == NULL) {
        return;
    }
    pthread_mutex_lock(&process.lock);
    if (--hub->user_count == 0) {
        hub_t **at = &process.hubs;
        while (*at != hub) {
            at = &(*at)->next;
        }
        *at = hub->next;
        weft_hub_destroy(hub->weft);
        free(hub);
    }
    pthread_mutex_unlock(&process.lock);
}

/* Not collective: workers end one by one, and one that waits for others may have died. */
static void leave(void *user)
{
    world_t *world = user;
    if (world->group != world->all) {
        weft_group_leave(world->group);
    }
    weft_group_leave(world->all);
    weft_context_release(world->context);
    hub_leave(world->hub);
    free(world);
    thread_world = NULL;
}

/* The main thread's values of keys are not destroyed where a process calls exit. */
static void leave_at_exit(void)
{
    if (thread_world != NULL) {
        leave(thread_world);
    }
}

static void create_key(void)
{
    pthread_key_create(&process.key, leave);
    atexit(leave_at_exit);
}

/* Groups are of one size: the second worker that is first in its group ends the first group. */
static weft_status_t split(world_t *world, bool is_first)
{
    uint32_t size = weft_context_world_size(world->context), group_size = 1;
    uint8_t mine = is_first, *firsts = malloc(size);
    if (firsts == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    weft_status_t status = weft_context_all_gather(world->context, &mine, 1, firsts);
    while (status == WEFT_OK && group_size < size && !firsts[group_size]) {
        group_size++;
    }
    free(firsts);
    if (status != WEFT_OK) {
        return status;
    }
    if (group_size == size) {
        world->group = world->all;
        return WEFT_OK;
    }
    uint32_t rank = weft_context_rank(world->context);
    return weft_group_split(world->all, rank / group_size, rank, &world->group);
}

static weft_status_t join(world_t *world, weft_context_params_t *params, bool is_first)
{
    if (strncmp(params->address, THREADS, strlen(THREADS)) == 0) {
        world->hub = hub_enter(params->address, (uint32_t)params->world_size);
        if (world->hub == NULL) {
            return WEFT_ERR_NO_MEMORY;
        }
        params->hub = world->hub->weft;
        params->address = NULL;
    }
    weft_status_t status = weft_context_create(params, &world->context);
    if (status == WEFT_OK) {
        status = weft_group_create_world(world->context, &world->all);
    }
    return status == WEFT_OK ? split(world, is_first) : status;
}

weft_status_t world_join(uint32_t rank, uint32_t size, const char *address, bool is_first)
{
    pthread_once(&process.once, create_key);
    if (thread_world != NULL) {
        leave(thread_world);
    }
    world_t *world = calloc(1, sizeof *world);
    if (world == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    weft_context_params_t params = WEFT_CONTEXT_PARAMS_INIT;
    params.rank = (int32_t)rank;
    params.world_size = (int32_t)size;
    params.address = address;
    weft_status_t status = join(world, &params, is_first);
    if (status != WEFT_OK) {
        leave(world);
        world = NULL;
    }
    thread_world = world;
    pthread_setspecific(process.key, world);
    return status;
}

world_t *world_of_thread(void)
{
    return thread_world;
}
