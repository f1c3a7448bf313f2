/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/base/threads.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "runtime/base/hash.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static wefti_own_thread_t *list; /* under lock */

int32_t wefti_thread_id(void)
{
    return (int32_t)syscall(SYS_gettid);
}

/* A forked child has none of these threads. */
static void forget(void)
{
    pthread_mutex_init(&lock, NULL);
    list = NULL;
}

static void init_once(void)
{
    pthread_atfork(NULL, NULL, forget);
}

void wefti_own_thread_begin(wefti_own_thread_t *thread, const wefti_signal_t *signal)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, init_once);
    thread->id = wefti_thread_id();
    thread->signal = signal;
    atomic_init(&thread->target, 0);
    atomic_init(&thread->turns, 0);
    pthread_mutex_lock(&lock);
    thread->next = list;
    list = thread;
    pthread_mutex_unlock(&lock);
}

void wefti_own_thread_end(wefti_own_thread_t *thread)
{
    pthread_mutex_lock(&lock);
    for (wefti_own_thread_t **at = &list; *at != NULL; at = &(*at)->next) {
        if (*at == thread) {
            *at = thread->next;
            break;
        }
    }
    pthread_mutex_unlock(&lock);
}

/* One that was woken but has not run yet is not idle. */
static bool idles(int32_t id, uint64_t *out_turns)
{
    bool idle = false;
    pthread_mutex_lock(&lock);
    for (const wefti_own_thread_t *thread = list; thread != NULL && !idle; thread = thread->next) {
        if (thread->id != id) {
            continue;
        }
        uint32_t turns = atomic_load_explicit(&thread->turns, memory_order_acquire);
        *out_turns = turns;
        idle = thread->signal == NULL ||
               ((turns & 1) != 0 &&
                !wefti_signal_reached(
                    atomic_load_explicit(&thread->signal->value, memory_order_acquire),
                    atomic_load_explicit(&thread->target, memory_order_relaxed)));
    }
    pthread_mutex_unlock(&lock);
    return idle;
}

/* pthread_join sleeps on a word that processes might share, with the number of the thread in it. */
static bool is_own_thread(unsigned long long id)
{
    char path[48];
    snprintf(path, sizeof path, "/proc/self/task/%llu", id);
    return id != 0 && access(path, F_OK) == 0;
}

/* The text of /proc/self/task/ID/NAME. */
static bool read_fact(int32_t id, const char *name, char *text, size_t bytes)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/self/task/%d/%s", id, name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return false;
    }
    ssize_t length = read(fd, text, bytes - 1);
    close(fd);
    text[length > 0 ? length : 0] = '\0';
    return length > 0;
}

/* "202 0x7f.. 0x80 0x2 0x0 ..": in a futex call, until another thread of this process wakes it.
 * out_turns: how often it has gone to sleep. */
static bool sleeps_for_others(int32_t id, uint64_t *out_turns)
{
    static const char switches[] = "\nvoluntary_ctxt_switches:";
    char text[4096];
    unsigned long long word, operation, value, limit;
    long number;
    if (!read_fact(id, "syscall", text, sizeof text) ||
        sscanf(text, "%ld %llx %llx %llx %llx", &number, &word, &operation, &value, &limit) != 5 ||
        number != SYS_futex || limit != 0) {
        return false;
    }
    unsigned int command = (unsigned int)operation & FUTEX_CMD_MASK;
    if ((command != FUTEX_WAIT && command != FUTEX_WAIT_BITSET && command != FUTEX_LOCK_PI) ||
        ((operation & FUTEX_PRIVATE_FLAG) == 0 && !is_own_thread(value)) ||
        !read_fact(id, "status", text, sizeof text)) {
        return false;
    }
    const char *found = strstr(text, switches);
    *out_turns = found != NULL ? strtoull(found + sizeof switches - 1, NULL, 10) : 0;
    return found != NULL;
}

/* out_digest: of the threads, and of how often each has begun to rest. */
static bool all_rest(bool (*waits)(void *user, int32_t id), void *user, uint64_t *out_digest)
{
    DIR *folder = opendir("/proc/self/task");
    const struct dirent *entry;
    bool rest = folder != NULL;
    *out_digest = 0;
    while (rest && (entry = readdir(folder)) != NULL) {
        int32_t id = (int32_t)strtol(entry->d_name, NULL, 10);
        uint64_t words[2] = {(uint64_t)id, 0};
        rest =
            id <= 0 || waits(user, id) || idles(id, &words[1]) || sleeps_for_others(id, &words[1]);
        *out_digest += wefti_hash_words(words, 2); /* in any order */
    }
    if (folder != NULL) {
        closedir(folder);
    }
    return rest;
}

bool wefti_threads_rest(bool (*waits)(void *user, int32_t id), void *user)
{
    uint64_t before, after;
    /* A thread may wake one that has been looked at, and sleep when its own turn comes. What rests
     * for the same time in both looks did so between them. */
    return all_rest(waits, user, &before) && all_rest(waits, user, &after) && before == after;
}
