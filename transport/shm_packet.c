/* SPDX-License-Identifier: Apache-2.0 */
/* Packets of one fixed size over a SOCK_SEQPACKET unix socket, with descriptors attached. */
#include "transport/shm.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "runtime/base/error.h"

void wefti_close_fd(int *fd)
{
    if (*fd >= 0) {
        close(*fd);
        *fd = -1;
    }
}

void wefti_shm_close_fds(int fds[WEFTI_SHM_FDS])
{
    for (uint32_t i = 0; i < WEFTI_SHM_FDS; i++) {
        wefti_close_fd(&fds[i]);
    }
}

bool wefti_shm_poll(int fd, short events, uint64_t deadline)
{
    for (;;) {
        uint64_t now = wefti_now_ns();
        uint64_t left_ms = deadline > now ? (deadline - now + 999999) / 1000000 : 0;
        struct pollfd wait = {.fd = fd, .events = events};
        int ready = poll(&wait, 1, left_ms < 1000 ? (int)left_ms : 1000);
        if (ready > 0) {
            return true;
        }
        if (ready == 0 && left_ms == 0) {
            return false;
        }
    }
}

weft_status_t wefti_shm_send(int fd, const wefti_shm_packet_t *packet, const int *fds,
                             uint64_t deadline)
{
    union {
        char bytes[CMSG_SPACE(sizeof(int) * WEFTI_SHM_FDS)];
        struct cmsghdr align;
    } room;
    struct iovec part = {.iov_base = (void *)(uintptr_t)packet, .iov_len = sizeof *packet};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (fds != NULL) {
        memset(&room, 0, sizeof room);
        message.msg_control = room.bytes;
        message.msg_controllen = sizeof room.bytes;
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof(int) * WEFTI_SHM_FDS);
        memcpy(CMSG_DATA(header), fds, sizeof(int) * WEFTI_SHM_FDS);
    }
    for (;;) {
        ssize_t sent = sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent == (ssize_t)sizeof *packet) {
            return WEFT_OK;
        }
        if (sent < 0 && errno == EINTR) {
            continue;
        }
        if (sent < 0 && errno == ETOOMANYREFS && wefti_now_ns() < deadline) {
            /* Too many descriptors under way: the receivers have to take theirs first. */
            nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
            continue;
        }
        if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK) &&
            wefti_shm_poll(fd, POLLOUT, deadline)) {
            continue;
        }
        return WEFT_ERR_PEER_DIED;
    }
}

/* Takes the descriptors that came along; more than we expect are closed by us or by the kernel.
 * Returns how many came. */
static size_t take_fds(struct msghdr *message, int fds[WEFTI_SHM_FDS])
{
    size_t taken = 0;
    for (struct cmsghdr *header = CMSG_FIRSTHDR(message); header != NULL;
         header = CMSG_NXTHDR(message, header)) {
        if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) {
            continue;
        }
        size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; i++, taken++) {
            int fd;
            memcpy(&fd, CMSG_DATA(header) + i * sizeof fd, sizeof fd);
            if (i < WEFTI_SHM_FDS && fds[i] < 0) {
                fds[i] = fd;
            } else {
                close(fd);
            }
        }
    }
    return taken;
}

weft_status_t wefti_shm_receive(int fd, wefti_shm_packet_t *packet, int fds[WEFTI_SHM_FDS])
{
    union {
        char bytes[CMSG_SPACE(sizeof(int) * WEFTI_SHM_FDS)];
        struct cmsghdr align;
    } room;
    struct iovec part = {.iov_base = packet, .iov_len = sizeof *packet};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = room.bytes,
                             .msg_controllen = sizeof room.bytes};
    fds[0] = fds[1] = -1;
    ssize_t got;
    bool retry, reset = false;
    do {
        got = recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        /* The other end closed with packets unread: reported once, before what it has sent. */
        retry = got < 0 && (errno == EINTR || (errno == ECONNRESET && !reset));
        reset = reset || (got < 0 && errno == ECONNRESET);
    } while (retry);
    if (got < 0) {
        return errno == EAGAIN || errno == EWOULDBLOCK ? WEFT_AGAIN : WEFT_ERR_PEER_DIED;
    }
    size_t taken = take_fds(&message, fds);
    weft_status_t status = WEFT_OK;
    if (got == 0) {
        status = WEFT_ERR_PEER_DIED;
    } else if ((message.msg_flags & MSG_CTRUNC) != 0 && taken < WEFTI_SHM_FDS) {
        /* There was room in the message: it is this process that may not open more files. */
        status = wefti_error_errno(WEFT_ERR_SYSTEM, EMFILE,
                                   "cannot receive the descriptors of the world's memory; raise "
                                   "the limit of open files (ulimit -n)");
    } else if (got != (ssize_t)sizeof *packet || packet->magic != WEFTI_SHM_MAGIC ||
               (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) {
        status = WEFT_ERR_FORMAT;
    }
    if (status < 0) {
        wefti_shm_close_fds(fds);
        return status;
    }
    packet->text[sizeof packet->text - 1] = '\0';
    return WEFT_OK;
}
