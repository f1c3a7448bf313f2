/* SPDX-License-Identifier: Apache-2.0 */
/* Whether a process rests: never while its threads wake each other, though each sleeps in turn. */
#include <pthread.h>

#include "runtime/base/threads.h"
#include "tests/support/support.h"

#if defined(__has_feature)
#define CLANG_SANITIZES_THREADS __has_feature(thread_sanitizer)
#else
#define CLANG_SANITIZES_THREADS 0
#endif
#if defined(__SANITIZE_THREAD__) || CLANG_SANITIZES_THREADS
#define OTHER_THREADS 1 /* the sanitizer's own one, which never rests */
#else
#define OTHER_THREADS 0
#endif

#define THREADS 4u
#define LOOKS 3000u

typedef struct ring {
    pthread_mutex_t lock;
    pthread_cond_t changed[THREADS];
    uint32_t turn;
    bool stop;  /* whose turn it is sleeps, too */
    bool leave; /* all end */
} ring_t;

typedef struct place {
    ring_t *ring;
    uint32_t index;
    pthread_t thread;
} place_t;

/* Wakes the next thread and sleeps until its own turn comes. */
static void *pass_on(void *user)
{
    const place_t *place = user;
    ring_t *ring = place->ring;
    pthread_mutex_lock(&ring->lock);
    while (!ring->leave) {
        if (ring->turn == place->index && !ring->stop) {
            ring->turn = (ring->turn + 1) % THREADS;
            pthread_cond_signal(&ring->changed[ring->turn]);
        }
        pthread_cond_wait(&ring->changed[place->index], &ring->lock);
    }
    pthread_mutex_unlock(&ring->lock);
    return NULL;
}

static bool is_caller(void *user, int32_t id)
{
    return id == *(const int32_t *)user;
}

static void wake_all(ring_t *ring, bool leave)
{
    pthread_mutex_lock(&ring->lock);
    ring->stop = !leave;
    ring->leave = leave;
    for (uint32_t i = 0; i < THREADS; i++) {
        pthread_cond_signal(&ring->changed[i]);
    }
    pthread_mutex_unlock(&ring->lock);
}

static void test_threads_that_wake_each_other_do_not_rest(void **state)
{
    ring_t ring = {.lock = PTHREAD_MUTEX_INITIALIZER};
    place_t places[THREADS];
    int32_t self = wefti_thread_id();
    (void)state;
    for (uint32_t i = 0; i < THREADS; i++) {
        pthread_cond_init(&ring.changed[i], NULL);
    }
    for (uint32_t i = 0; i < THREADS; i++) {
        places[i] = (place_t){.ring = &ring, .index = i};
        assert_int_equal(pthread_create(&places[i].thread, NULL, pass_on, &places[i]), 0);
    }
    for (uint32_t i = 0; i < LOOKS; i++) {
        assert_false(wefti_threads_rest(is_caller, &self));
    }
    wake_all(&ring, false);
    while (!OTHER_THREADS && !wefti_threads_rest(is_caller, &self)) {
        wefti_sleep_ns(100000);
    }
    wake_all(&ring, true);
    for (uint32_t i = 0; i < THREADS; i++) {
        pthread_join(places[i].thread, NULL);
        pthread_cond_destroy(&ring.changed[i]);
    }
}

static atomic_int phase;

static void *own_thread(void *user)
{
    wefti_signal_t *signal = user;
    wefti_own_thread_t self;
    wefti_own_thread_begin(&self, signal);
    wefti_own_thread_idle(&self, 1);
    atomic_store(&phase, 1);
    while (!wefti_signal_reached(atomic_load(&signal->value), 1)) {
        wefti_signal_sleep(signal, 1, 1000000);
    }
    wefti_own_thread_busy(&self);
    while (atomic_load(&phase) != 2) {
        wefti_sleep_ns(100000);
    }
    wefti_own_thread_end(&self);
    return NULL;
}

/* A thread of the library rests while it idles, and no longer once it has been asked for work. */
static void test_own_threads_rest_while_idle(void **state)
{
    wefti_signal_t signal = {0};
    pthread_t thread;
    int32_t self = wefti_thread_id();
    (void)state;
    assert_int_equal(pthread_create(&thread, NULL, own_thread, &signal), 0);
    while (atomic_load(&phase) != 1) {
        wefti_sleep_ns(100000);
    }
    assert_int_equal(wefti_threads_rest(is_caller, &self), !OTHER_THREADS);
    wefti_signal_post(&signal, 1);
    assert_false(wefti_threads_rest(is_caller, &self));
    atomic_store(&phase, 2);
    pthread_join(thread, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_threads_that_wake_each_other_do_not_rest),
        cmocka_unit_test(test_own_threads_rest_while_idle),
    };
    return cmocka_run_group_tests_name("base threads", tests, NULL, NULL);
}
