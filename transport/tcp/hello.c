/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What both ends say before a connection is used:
 *
 *   who connects                         who listens
 *   hello: world, ranks, socket, nonce ->
 *                                      <- challenge: nonce, HMAC(key, "listener" + hello + nonce)
 *   proof: HMAC(key, "connector" + hello + nonce) ->
 *                                      <- welcome
 *
 * Both nonces are in both proofs, so that nothing recorded is worth anything later; the first
 * word keeps one side's proof from being sent back as the other's. Nobody who lacks the key
 * learns or changes anything. What follows is neither encrypted nor signed: a network on which
 * others rewrite packets is not for this.
 */
#include "transport/tcp/tcp.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/digest.h"
#include "runtime/base/error.h"

static const char magic[8] = {'w', 'e', 'f', 't', '-', 't', 'c', 'p'};
#define BYTE_ORDER_MARK 0x01020304u
#define VERSION 1u

weft_status_t wefti_tcp_random(void *out, size_t bytes)
{
    return wefti_random_bytes(out, bytes);
}

void wefti_tcp_hello_fill(const tcp_t *tcp, uint32_t to, uint32_t index, bool probe,
                          tcp_hello_t *out)
{
    *out = (tcp_hello_t){.byte_order = BYTE_ORDER_MARK,
                         .version = VERSION,
                         .world_size = tcp->params.world_size,
                         .from = tcp->params.rank,
                         .to = to,
                         .index = (uint16_t)index,
                         .sockets = (uint16_t)tcp->sockets,
                         .probe = probe ? 1 : 0};
    memcpy(out->magic, magic, sizeof magic);
}

bool wefti_tcp_hello_good(const tcp_t *tcp, const tcp_hello_t *hello)
{
    return memcmp(hello->magic, magic, sizeof magic) == 0 && hello->byte_order == BYTE_ORDER_MARK &&
           hello->version == VERSION && hello->world_size == tcp->params.world_size &&
           hello->from < tcp->params.world_size && hello->from != tcp->params.rank &&
           hello->to == tcp->params.rank && hello->index < tcp->sockets &&
           hello->sockets == tcp->sockets && hello->probe <= 1;
}

weft_status_t wefti_tcp_prove(const tcp_t *tcp, char side, const tcp_hello_t *hello,
                              const uint8_t *challenge_nonce, uint8_t *out_proof)
{
    uint8_t said[sizeof *hello + TCP_NONCE_BYTES];
    wefti_digest_t proof;
    memcpy(said, hello, sizeof *hello);
    memcpy(said + sizeof *hello, challenge_nonce, TCP_NONCE_BYTES);
    weft_status_t status = wefti_hmac(tcp->params.key, WEFTI_LINK_KEY_BYTES,
                                      side == 'l' ? "weft tcp listener" : "weft tcp connector",
                                      said, sizeof said, &proof);
    if (status == WEFT_OK) {
        memcpy(out_proof, proof.bytes, sizeof proof.bytes);
    }
    return status;
}

bool wefti_tcp_proof_equal(const uint8_t *a, const uint8_t *b)
{
    uint8_t difference = 0;
    for (uint32_t i = 0; i < 32; i++) { /* all of it: how long it takes tells nothing */
        difference |= a[i] ^ b[i];
    }
    return difference == 0;
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
