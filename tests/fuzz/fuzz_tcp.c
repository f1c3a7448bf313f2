/* SPDX-License-Identifier: Apache-2.0 */
/* Frames of the tcp driver, as a connection that is up receives them. */
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "tests/support/support_fuzz.h"
#include "transport/tcp/tcp.h"

enum { REGION_BYTES = 4096, GUARD_BYTES = 64 };

static uint8_t region[GUARD_BYTES + REGION_BYTES + GUARD_BYTES] __attribute__((aligned(64)));
static uint8_t in[TCP_IN_BYTES];
static tcp_t tcp;
static tcp_peer_t peer;
static uint32_t goodbyes;

static void leaving(void *owner, uint32_t rank)
{
    (void)owner;
    goodbyes += rank == 1;
}

static void broken(void *owner, uint32_t rank, bool died, const char *text)
{
    (void)owner;
    (void)rank;
    (void)died;
    (void)text;
}

static void wake(void *owner)
{
    (void)owner;
}

static void open_connection(int fd)
{
    static const wefti_settings_t settings;
    int epoll_fd = tcp.epoll_fd;
    memset(&tcp, 0, sizeof tcp);
    memset(&peer, 0, sizeof peer);
    tcp.epoll_fd = epoll_fd > 0 ? epoll_fd : epoll_create1(EPOLL_CLOEXEC);
    tcp.params = (wefti_link_params_t){
        .world_size = 2, .settings = &settings, .broken = broken, .leaving = leaving, .wake = wake};
    tcp.sockets = 2;
    tcp.base = region + GUARD_BYTES;
    atomic_init(&tcp.region_bytes, REGION_BYTES);
    atomic_init(&tcp.last_made, &peer);
    peer.tcp = &tcp;
    peer.rank = 1;
    pthread_mutex_init(&peer.lock, NULL);
    for (uint32_t i = 0; i < tcp.sockets; i++) {
        peer.connections[i] =
            (tcp_connection_t){.source.fd = -1, .peer = &peer, .index = i, .in = in};
    }
    tcp_connection_t *connection = &peer.connections[0];
    connection->source = (tcp_source_t){fd, wefti_tcp_connection_ready};
    connection->step = TCP_UP;
    connection->ready = true;
    fuzz_check(wefti_tcp_watch(&tcp, &connection->source, EPOLLIN), "epoll_ctl");
    peer.state = TCP_PEER_LEFT; /* its faults are not reported, and it is not probed */
}

void fuzz_one(const uint8_t *data, size_t size)
{
    int ends[2];
    fuzz_sockets(data, size, ends);
    open_connection(ends[0]);
    tcp_connection_t *connection = &peer.connections[0];
    for (size_t i = 0; i < 8 && connection->step == TCP_UP && !connection->paused; i++) {
        (void)wefti_tcp_receive(connection);
        fuzz_check(connection->in_from <= connection->in_to && connection->in_to <= TCP_IN_BYTES,
                   "the buffer overflows");
    }
    if (connection->paused) {
        memset(peer.stripes_landed, 0x7f, sizeof peer.stripes_landed);
        (void)wefti_tcp_receive_resume(&tcp);
    }
    for (size_t i = 0; i < GUARD_BYTES; i++) {
        fuzz_check(region[i] == 0 && region[sizeof region - 1 - i] == 0,
                   "written beside the region");
    }
    wefti_tcp_peer_disconnect(&peer, TCP_PEER_LEFT);
    wefti_wire_buffer_trim(NULL, &connection->queue);
    wefti_free(NULL, connection->queue.bytes);
    wefti_free(NULL, connection->copied.bytes);
    pthread_mutex_destroy(&peer.lock);
    close(ends[1]);
}
