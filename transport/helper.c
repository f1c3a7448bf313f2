/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/helper.h"

#include <signal.h>

#include "runtime/base/threads.h"

static void *run(void *user)
{
    wefti_helper_t *helper = user;
    wefti_own_thread_t self;
    pthread_setname_np(pthread_self(), "weft-helper");
    wefti_own_thread_begin(&self, NULL);
    pthread_mutex_lock(&helper->lock);
    while (!wefti_helper_stops(helper)) {
        if (!helper->wanted) {
            pthread_cond_wait(&helper->changed, &helper->lock);
            continue;
        }
        helper->wanted = false;
        pthread_mutex_unlock(&helper->lock);
        helper->work(helper->user);
        pthread_mutex_lock(&helper->lock);
    }
    pthread_mutex_unlock(&helper->lock);
    wefti_own_thread_end(&self);
    return NULL;
}

void wefti_helper_init(wefti_helper_t *helper, void (*work)(void *user), void *user)
{
    *helper = (wefti_helper_t){.work = work, .user = user};
    pthread_mutex_init(&helper->lock, NULL);
    pthread_cond_init(&helper->changed, NULL);
}

/* Signals go to the caller's threads. */
static bool start(wefti_helper_t *helper)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error_number = pthread_create(&helper->thread, NULL, run, helper);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error_number == 0;
}

void wefti_helper_wake(wefti_helper_t *helper)
{
    pthread_mutex_lock(&helper->lock);
    if (!wefti_helper_stops(helper)) {
        helper->wanted = true;
        helper->runs = helper->runs || start(helper);
        pthread_cond_signal(&helper->changed);
    }
    pthread_mutex_unlock(&helper->lock);
}

void wefti_helper_deinit(wefti_helper_t *helper, bool forked)
{
    if (forked) {
        return;
    }
    pthread_mutex_lock(&helper->lock);
    atomic_store_explicit(&helper->stop, true, memory_order_relaxed);
    pthread_cond_signal(&helper->changed);
    pthread_mutex_unlock(&helper->lock);
    if (helper->runs) {
        pthread_join(helper->thread, NULL);
        helper->runs = false;
    }
    pthread_cond_destroy(&helper->changed);
    pthread_mutex_destroy(&helper->lock);
}
