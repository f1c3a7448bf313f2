/* SPDX-License-Identifier: Apache-2.0 */
/* How both ends of a connection introduce themselves, and its socket options. */
#include "transport/tcp/tcp.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/error.h"

#define VERSION 2u

tcp_hello_t wefti_tcp_hello_of(const wefti_greeting_t *greeting)
{
    tcp_hello_t hello;
    memcpy(&hello, greeting->job, sizeof hello);
    return hello;
}

static bool accepts(const void *owner, const wefti_greeting_t *greeting)
{
    const tcp_t *tcp = owner;
    const tcp_hello_t hello = wefti_tcp_hello_of(greeting);
    return greeting->version == VERSION && greeting->world_size == tcp->params.world_size &&
           greeting->rank < tcp->params.world_size && greeting->rank != tcp->params.rank &&
           hello.to == tcp->params.rank && hello.index < tcp->sockets &&
           hello.sockets == tcp->sockets && hello.probe <= 1;
}

weft_status_t wefti_tcp_greet(const tcp_t *tcp, int fd, const tcp_hello_t *hello,
                              wefti_handshake_t *out)
{
    const wefti_greeting_t greeting = {.version = VERSION,
                                       .purpose = WEFTI_PURPOSE_DATA,
                                       .rank = tcp->params.rank,
                                       .world_size = tcp->params.world_size};
    weft_status_t status =
        wefti_handshake_init(out, fd, hello != NULL, &greeting, NULL, tcp->params.key,
                             WEFTI_LINK_KEY_BYTES, tcp->params.allocator);
    out->wire.exact = true; /* frames of data follow, and receive.c reads them */
    out->withheld = true;
    out->accepts = accepts;
    out->owner = tcp;
    if (hello != NULL) {
        memcpy(out->greeting[0].job, hello, sizeof *hello);
    }
    return status;
}

/* bbr measures the link while data flows; collectives are silent every other moment, and several of
 * its connections beside each other then get anything between half and all of their share. */
static void set_congestion(const wefti_settings_t *settings, int fd)
{
    char name[16] = {0};
    socklen_t bytes = sizeof name - 1;
    const char *wanted = settings->congestion;
    if (strcmp(wanted, "system") == 0) {
        return;
    }
    if (wanted[0] == 0 || strcmp(wanted, "auto") == 0) {
        if (getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &bytes) != 0 ||
            strncmp(name, "bbr", 3) != 0) {
            return;
        }
        wanted = "cubic";
    }
    /* what is not there or not allowed leaves the system's */
    (void)setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, wanted, (socklen_t)strlen(wanted));
}

weft_status_t wefti_tcp_congestion_check(const wefti_settings_t *settings)
{
    const char *wanted = settings->congestion;
    if (wanted[0] == 0 || strcmp(wanted, "auto") == 0 || strcmp(wanted, "system") == 0) {
        return WEFT_OK;
    }
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int set = setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, wanted, (socklen_t)strlen(wanted));
    int error = errno;
    if (fd >= 0) {
        close(fd);
    }
    return set == 0 ? WEFT_OK
                    : wefti_error_errno(WEFT_ERR_INVALID_ARGUMENT, error,
                                        "WEFT_TCP_CONGESTION=%s (see "
                                        "/proc/sys/net/ipv4/tcp_allowed_congestion_control)",
                                        wanted);
}

void wefti_tcp_socket_tune(const tcp_t *tcp, int fd)
{
    int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    set_congestion(tcp->params.settings, fd);
    uint64_t timeout_ns = tcp->params.settings->link_timeout_ns;
    if (timeout_ns == 0) {
        return;
    }
    /* sent and not acknowledged, or nothing heard although asked: both end the connection after
     * the time-out. Failures leave the kernel's own, longer times. */
    unsigned milliseconds = (unsigned)(timeout_ns / 1000000ull);
    int third = (int)(timeout_ns / 3000000000ull);
    third = third < 1 ? 1 : third;
    int probes = 2;
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &third, sizeof third);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &third, sizeof third);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &milliseconds, sizeof milliseconds);
}
