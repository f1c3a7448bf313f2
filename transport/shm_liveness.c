/* SPDX-License-Identifier: Apache-2.0 */
/* Has a peer's process ended? By pidfd, which cannot be fooled by reused numbers, or else by asking
 * /proc. */
#include "transport/shm.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define POLL_BATCH 64u

void wefti_shm_watch(wefti_shm_peer_t *peer)
{
    peer->pid_fd = -1;
#ifdef SYS_pidfd_open
    peer->pid_fd = (int)syscall(SYS_pidfd_open, peer->pid, 0);
#endif
}

/* A process that has ended but was not waited for still answers kill: its state tells. */
static bool is_zombie(pid_t pid)
{
    char path[48], line[256];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        return false;
    }
    bool zombie = false;
    if (fgets(line, sizeof line, file) != NULL) {
        /* The name before it may hold anything, also parentheses. */
        const char *state = strrchr(line, ')');
        zombie = state != NULL && (strncmp(state, ") Z", 3) == 0 || strncmp(state, ") X", 3) == 0);
    }
    fclose(file);
    return zombie;
}

static bool pid_is_gone(pid_t pid)
{
    return (kill(pid, 0) != 0 && errno == ESRCH) || is_zombie(pid);
}

uint32_t wefti_shm_find_dead(const wefti_shm_peer_t *peers, uint32_t count, uint32_t own)
{
    for (uint32_t first = 0; first < count; first += POLL_BATCH) {
        struct pollfd polls[POLL_BATCH];
        uint32_t batch = count - first < POLL_BATCH ? count - first : POLL_BATCH;
        for (uint32_t i = 0; i < batch; i++) {
            const wefti_shm_peer_t *peer = &peers[first + i];
            bool watched = first + i != own && peer->pid > 0;
            polls[i] = (struct pollfd){.fd = watched ? peer->pid_fd : -1, .events = POLLIN};
            if (watched && peer->pid_fd < 0 && pid_is_gone(peer->pid)) {
                return first + i;
            }
        }
        if (poll(polls, batch, 0) <= 0) {
            continue;
        }
        for (uint32_t i = 0; i < batch; i++) {
            if (polls[i].revents != 0) {
                return first + i;
            }
        }
    }
    return count;
}
