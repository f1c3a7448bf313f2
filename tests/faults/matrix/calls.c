/* SPDX-License-Identifier: Apache-2.0 */
/* Counts messages: the library's calls of these functions come here. */
#include "tests/faults/matrix/calls.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/socket.h>

#include <weft/attributes.h>

static _Atomic uint64_t left; /* 0: it does not count */
static void (*at_end)(void *user);
static void *at_end_user;

void calls_arm(uint64_t count, void (*act)(void *user), void *user)
{
    at_end = act;
    at_end_user = user;
    atomic_store(&left, count);
}

uint64_t calls_disarm(void)
{
    return atomic_exchange(&left, 0);
}

static void count(void)
{
    uint64_t now = atomic_load(&left);
    while (now > 0 && !atomic_compare_exchange_weak(&left, &now, now - 1)) {
    }
    if (now == 1) {
        at_end(at_end_user);
    }
}

WEFT_API ssize_t send(int fd, const void *data, size_t bytes, int flags)
{
    static ssize_t (*next)(int, const void *, size_t, int);
    if (next == NULL) {
        *(void **)&next = dlsym(RTLD_NEXT, "send");
    }
    ssize_t sent = next(fd, data, bytes, flags);
    count();
    return sent;
}

WEFT_API ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
    static ssize_t (*next)(int, const struct msghdr *, int);
    if (next == NULL) {
        *(void **)&next = dlsym(RTLD_NEXT, "sendmsg");
    }
    ssize_t sent = next(fd, message, flags);
    count();
    return sent;
}
