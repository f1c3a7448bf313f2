/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/socket/fork.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <unistd.h>

#include "runtime/base/memory.h"

/* A descriptor and its bit change together under the lock, also with regard to fork. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t *guarded; /* bitmap of descriptors */
static size_t word_count;

static void before_fork(void)
{
    pthread_mutex_lock(&lock);
}

static void after_fork(void)
{
    pthread_mutex_unlock(&lock);
}

/* Only functions that are safe in signal handlers. The numbers stay taken, so that whatever the
 * child closes later is what it believes to close. */
static void in_child(void)
{
    int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
    for (size_t i = 0; i < word_count; i++) {
        for (; guarded[i] != 0; guarded[i] &= guarded[i] - 1) {
            int fd = (int)(i * 64) + __builtin_ctzll(guarded[i]);
            if (nothing < 0 || dup3(nothing, fd, O_CLOEXEC) < 0) {
                close(fd);
            }
        }
    }
    if (nothing >= 0) {
        close(nothing);
    }
    pthread_mutex_unlock(&lock);
}

static void install(void)
{
    (void)pthread_atfork(before_fork, after_fork, in_child); /* no memory: children keep them */
}

void wefti_socket_guard(int fd)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    size_t word = (size_t)fd / 64;
    pthread_once(&once, install);
    pthread_mutex_lock(&lock);
    if (wefti_array_reserve(NULL, &guarded, &word_count, word + 1, sizeof *guarded) == WEFT_OK) {
        guarded[word] |= 1ull << (fd % 64);
    }
    pthread_mutex_unlock(&lock);
}

void wefti_socket_close(int fd)
{
    size_t word = (size_t)fd / 64;
    pthread_mutex_lock(&lock);
    if (word < word_count) {
        guarded[word] &= ~(1ull << (fd % 64));
    }
    close(fd);
    pthread_mutex_unlock(&lock);
}
