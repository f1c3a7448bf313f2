/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A command queue cannot wait for a word in memory, but for a user event. The watcher is a thread
 * per device that completes these events:
 *
 *   wait(counter, value)   user event (gate) <- barrier <- later commands of the queue
 *                               ^
 *   watcher                     completes it once counter has reached value
 *
 * It polls while there are gates: at once for a while after a signal of this device was submitted,
 * then ever less often, as those of other ranks write to memory only.
 */
#include "devices/opencl/opencl.h"

#include <sched.h>
#include <stdlib.h>
#include <time.h>

#define POLLS 400u           /* before the watcher begins to sleep */
#define SLEEP_MIN_NS 20000l  /* between two looks, then */
#define SLEEP_MAX_NS 500000l /* and at most */

static bool is_reached(cl_device_t *device, const cl_gate_t *gate)
{
    uint32_t value = 0;
    const cl_place_t *counter = &gate->counter;
    if (counter->host != NULL) { /* acquire: what was done before the signal is visible */
        value = __atomic_load_n((const uint32_t *)counter->host, __ATOMIC_ACQUIRE);
    } else if (clEnqueueReadBuffer(device->copies, counter->memory, CL_TRUE, counter->offset,
                                   sizeof value, &value, 0, NULL, NULL) != CL_SUCCESS) {
        return false;
    }
    return (int32_t)(value - gate->value) >= 0;
}

static void ring(cl_watch_t *watch)
{
    watch->bells++;
    pthread_cond_broadcast(&watch->change);
}

/* A gate that this round has not looked at. */
static cl_gate_t **find_next(cl_watch_t *watch)
{
    cl_gate_t **at = &watch->gates;
    while (*at != NULL && (*at)->round == watch->round) {
        at = &(*at)->next;
    }
    return at;
}

/* Looks at every gate once. The lock is held, but not where OpenCL is called; only this thread takes
 * gates out of the list. */
static bool look(cl_device_t *device)
{
    cl_watch_t *watch = &device->watch;
    cl_gate_t *gate;
    bool any = false;
    watch->round++;
    while ((gate = *find_next(watch)) != NULL) {
        gate->round = watch->round;
        pthread_mutex_unlock(&watch->lock);
        bool reached = is_reached(device, gate);
        pthread_mutex_lock(&watch->lock);
        if (!reached && !gate->dropped) {
            continue;
        }
        cl_int status = gate->dropped ? -1 : CL_COMPLETE;
        pthread_mutex_unlock(&watch->lock);
        clSetUserEventStatus(gate->event, status);
        cl_release_event(gate->event);
        pthread_mutex_lock(&watch->lock);
        cl_gate_t **at = &watch->gates;
        while (*at != gate) {
            at = &(*at)->next;
        }
        *at = gate->next;
        free(gate);
        ring(watch); /* cl_watch_leave may wait */
        any = true;
    }
    return any;
}

static void sleep_for(cl_watch_t *watch, long ns)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += ns;
    if (until.tv_nsec >= 1000000000l) {
        until.tv_nsec -= 1000000000l;
        until.tv_sec++;
    }
    pthread_cond_timedwait(&watch->change, &watch->lock, &until);
}

static void *watch_main(void *user)
{
    cl_device_t *device = user;
    cl_watch_t *watch = &device->watch;
    uint32_t polls = 0, bells = 0;
    long sleep_ns = SLEEP_MIN_NS;
    pthread_mutex_lock(&watch->lock);
    while (!watch->stop) {
        if (look(device) || bells != watch->bells) {
            bells = watch->bells;
            polls = 0;
            sleep_ns = SLEEP_MIN_NS;
        } else if (watch->gates == NULL) {
            pthread_cond_wait(&watch->change, &watch->lock);
        } else if (polls++ < POLLS) {
            pthread_mutex_unlock(&watch->lock);
            sched_yield();
            pthread_mutex_lock(&watch->lock);
        } else {
            sleep_for(watch, sleep_ns);
            sleep_ns = 2 * sleep_ns < SLEEP_MAX_NS ? 2 * sleep_ns : SLEEP_MAX_NS;
        }
    }
    pthread_mutex_unlock(&watch->lock);
    return NULL;
}

void cl_watch_add(cl_device_t *device, cl_gate_t *gate)
{
    cl_watch_t *watch = &device->watch;
    pthread_mutex_lock(&watch->lock);
    gate->next = watch->gates;
    gate->round = watch->round;
    watch->gates = gate;
    ring(watch);
    pthread_mutex_unlock(&watch->lock);
}

void cl_watch_drop(cl_device_t *device, const weft_queue_t *queue)
{
    cl_watch_t *watch = &device->watch;
    pthread_mutex_lock(&watch->lock);
    for (cl_gate_t *gate = watch->gates; gate != NULL; gate = gate->next) {
        gate->dropped = gate->dropped || gate->queue == queue;
    }
    ring(watch);
    pthread_mutex_unlock(&watch->lock);
}

void cl_watch_leave(cl_device_t *device, const weft_queue_t *queue)
{
    cl_watch_t *watch = &device->watch;
    pthread_mutex_lock(&watch->lock);
    cl_gate_t *gate = watch->gates;
    while (gate != NULL) {
        if (gate->queue == queue) {
            pthread_cond_wait(&watch->change, &watch->lock);
            gate = watch->gates;
        } else {
            gate = gate->next;
        }
    }
    pthread_mutex_unlock(&watch->lock);
}

void cl_watch_ring(cl_device_t *device)
{
    cl_watch_t *watch = &device->watch;
    pthread_mutex_lock(&watch->lock);
    ring(watch);
    pthread_mutex_unlock(&watch->lock);
}

weft_status_t cl_watch_open(cl_device_t *device)
{
    cl_watch_t *watch = &device->watch;
    if (pthread_create(&watch->thread, NULL, watch_main, device) != 0) {
        return cl_fail(WEFT_ERR_SYSTEM, "device %s: cannot create a thread", device->name);
    }
    watch->started = true;
    return WEFT_OK;
}

void cl_watch_close(cl_device_t *device)
{
    cl_watch_t *watch = &device->watch;
    if (watch->started) {
        pthread_mutex_lock(&watch->lock);
        watch->stop = true;
        pthread_cond_broadcast(&watch->change);
        pthread_mutex_unlock(&watch->lock);
        pthread_join(watch->thread, NULL);
    }
    pthread_cond_destroy(&watch->change);
    pthread_mutex_destroy(&watch->lock);
}
