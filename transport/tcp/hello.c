/* SPDX-License-Identifier: Apache-2.0 */
/* The greeting of both ends of a connection, and its socket options. */
#include "transport/tcp/tcp.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>

#include "runtime/base/error.h"

#define VERSION 2u

tcp_hello_t wefti_tcp_hello_of(const wefti_greeting_t *greeting)
{
    tcp_hello_t hello;
    memcpy(&hello, greeting->job, sizeof hello);
    return hello;
}

bool wefti_tcp_accepts(const void *owner, const wefti_greeting_t *greeting)
{
    const tcp_t *tcp = owner;
    const tcp_hello_t hello = wefti_tcp_hello_of(greeting);
    return greeting->version == VERSION && greeting->world_size == tcp->params.world_size &&
           greeting->rank < tcp->params.world_size && greeting->rank != tcp->params.rank &&
           hello.to == tcp->params.rank && hello.index < tcp->sockets &&
           hello.sockets == tcp->sockets && hello.probe <= 1;
}

wefti_greeting_t wefti_tcp_greeting(const tcp_t *tcp)
{
    return (wefti_greeting_t){.version = VERSION,
                              .purpose = WEFTI_PURPOSE_DATA,
                              .rank = tcp->params.rank,
                              .world_size = tcp->params.world_size};
}

weft_status_t wefti_tcp_greet(const tcp_t *tcp, int fd, const tcp_hello_t *hello,
                              wefti_handshake_t *out)
{
    const wefti_greeting_t greeting = wefti_tcp_greeting(tcp);
    WEFT_RETURN_IF_ERROR(wefti_handshake_init(out, fd, true, &greeting, tcp->params.key,
                                              WEFTI_LINK_KEY_BYTES, tcp->params.allocator));
    out->wire.exact = true; /* the frames of data that follow are for receive.c */
    memcpy(out->greeting[0].job, hello, sizeof *hello);
    return WEFT_OK;
}

/* bbr measures the link while data flows, but collectives pause often: several of its connections
 * then share the link unfairly. */
static bool set_congestion(const wefti_settings_t *settings, int fd)
{
    char name[16] = {0};
    socklen_t bytes = sizeof name - 1;
    const char *wanted = settings->congestion;
    bool is_auto = wanted[0] == 0 || strcmp(wanted, "auto") == 0;
    if (strcmp(wanted, "system") == 0) {
        return true;
    }
    if (is_auto) {
        if (getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &bytes) != 0 ||
            strncmp(name, "bbr", 3) != 0) {
            return true;
        }
        wanted = "cubic";
    }
    return setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, wanted, (socklen_t)strlen(wanted)) == 0 ||
           is_auto;
}

bool wefti_tcp_socket_tune(const tcp_t *tcp, int fd)
{
    int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    uint64_t timeout_ns = tcp->params.settings->link_timeout_ns;
    if (timeout_ns != 0) {
        /* Data without acknowledgement and probes without answer end the connection after the
         * timeout. If an option fails, the kernel's own, longer times apply. */
        unsigned milliseconds = (unsigned)(timeout_ns / 1000000ull);
        int third = timeout_ns < 3000000000ull ? 1 : (int)(timeout_ns / 3000000000ull);
        int probes = 2;
        setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
        setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &third, sizeof third);
        setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &third, sizeof third);
        setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
        setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &milliseconds, sizeof milliseconds);
    }
    return set_congestion(tcp->params.settings, fd);
}
