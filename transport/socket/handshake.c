/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/socket/handshake.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "runtime/base/digest.h"
#include "runtime/base/error.h"
#include "transport/socket/fork.h"

_Static_assert(sizeof(wefti_digest_t) + WEFTI_PAYLOAD_MAX <= WEFTI_UNAUTHENTICATED_BYTES,
               "proofs come from unauthenticated peers");

static bool accept_all(const void *owner, const wefti_greeting_t *greeting)
{
    (void)owner;
    (void)greeting;
    return true;
}

weft_status_t wefti_handshake_init(wefti_handshake_t *shake, int fd, bool initiator,
                                   const wefti_greeting_t *own, const uint8_t *key,
                                   size_t key_bytes, const weft_allocator_t *allocator)
{
    *shake = (wefti_handshake_t){
        .initiator = initiator, .accepts = accept_all, .key = key, .key_bytes = key_bytes};
    wefti_wire_init(&shake->wire, fd, WEFTI_UNAUTHENTICATED_BYTES, allocator);
    wefti_socket_guard(fd);
    wefti_greeting_t *greeting = &shake->greeting[initiator ? 0 : 1];
    *greeting = *own;
    if (initiator) {
        memcpy(shake->job, own->job, sizeof shake->job);
        memset(greeting->job, 0, sizeof greeting->job);
    }
    weft_status_t status = wefti_random_bytes(greeting->nonce, sizeof greeting->nonce);
    if (status < 0) {
        wefti_handshake_deinit(shake);
    }
    return status;
}

weft_status_t wefti_handshake_connect(wefti_handshake_t *shake, const wefti_address_t *to,
                                      const wefti_greeting_t *own, const uint8_t *key,
                                      size_t key_bytes, const weft_allocator_t *allocator)
{
    int fd;
    weft_status_t status = wefti_address_connect(to, &fd);
    if (status != WEFT_OK) {
        return status;
    }
    status = wefti_handshake_init(shake, fd, true, own, key, key_bytes, allocator);
    shake->connecting = true;
    return status;
}

void wefti_handshake_deinit(wefti_handshake_t *shake)
{
    wefti_wire_deinit(&shake->wire);
}

void wefti_handshake_set_payload(wefti_handshake_t *shake, const void *payload, uint32_t bytes)
{
    assert(bytes <= WEFTI_PAYLOAD_MAX);
    memcpy(shake->payload, payload, bytes);
    shake->payload_bytes = bytes;
}

/* What either end proves: that it knows the key, for these two greetings and this payload. */
static weft_status_t make_proof(const wefti_handshake_t *shake, bool initiator, wefti_digest_t *out)
{
    uint8_t said[sizeof shake->greeting + WEFTI_PAYLOAD_MAX];
    memcpy(said, shake->greeting, sizeof shake->greeting);
    memcpy(said + sizeof shake->greeting, shake->payload, shake->payload_bytes);
    return wefti_hmac(shake->key, shake->key_bytes, initiator ? "weft guest" : "weft host", said,
                      sizeof shake->greeting + shake->payload_bytes, out);
}

static weft_status_t send_frame(wefti_handshake_t *shake, wefti_kind_t kind, const void *body,
                                size_t bytes)
{
    weft_status_t status = wefti_wire_send(&shake->wire, kind, body, bytes, NULL, 0);
    return status == WEFT_AGAIN ? WEFT_OK : status; /* the rest follows when there is room */
}

static weft_status_t refuse(wefti_handshake_t *shake)
{
    char text[sizeof shake->why];
    snprintf(text, sizeof text,
             "rank %u and rank %u have different secrets; set the same WEFT_SECRET or "
             "WEFT_SECRET_FILE on all ranks",
             shake->greeting[0].rank, shake->greeting[1].rank);
    send_frame(shake, WEFTI_REFUSED, text, strlen(text));
    return WEFT_ERR_MISMATCH;
}

static weft_status_t read_refusal(wefti_handshake_t *shake, const wefti_frame_t *frame)
{
    char *text = shake->why;
    size_t bytes = frame->bytes < sizeof shake->why - 1 ? frame->bytes : sizeof shake->why - 1;
    memcpy(text, frame->body, bytes);
    text[bytes] = '\0';
    for (size_t i = 0; i < bytes; i++) {
        text[i] = text[i] < ' ' || text[i] > '~' ? '?' : text[i]; /* it may be a terminal escape */
    }
    return WEFT_ERR_MISMATCH;
}

/* The initiator's after the answer, and the acceptor's after the initiator's. */
static weft_status_t send_proof(wefti_handshake_t *shake)
{
    wefti_digest_t mac;
    WEFT_RETURN_IF_ERROR(make_proof(shake, shake->initiator, &mac));
    weft_status_t status =
        wefti_wire_send(&shake->wire, shake->initiator ? WEFTI_PROOF : WEFTI_WELCOME, &mac,
                        sizeof mac, shake->payload, shake->initiator ? shake->payload_bytes : 0);
    return status == WEFT_AGAIN ? WEFT_OK : status;
}

static weft_status_t check_proof(wefti_handshake_t *shake, const wefti_frame_t *frame)
{
    wefti_digest_t expected, mac;
    memcpy(&mac, frame->body, sizeof mac);
    if (!shake->initiator) {
        shake->payload_bytes = frame->bytes - (uint32_t)sizeof mac;
        memcpy(shake->payload, frame->body + sizeof mac, shake->payload_bytes);
    }
    WEFT_RETURN_IF_ERROR(make_proof(shake, !shake->initiator, &expected));
    if (!wefti_digest_equal(&mac, &expected)) {
        if (!shake->initiator) {
            return refuse(shake);
        }
        snprintf(shake->why, sizeof shake->why,
                 "authentication failed: the process at the address of rank %u does not know the "
                 "secret",
                 shake->greeting[1].rank);
        return WEFT_ERR_MISMATCH;
    }
    shake->proven = true;
    return WEFT_OK;
}

static weft_status_t read_as_initiator(wefti_handshake_t *shake, const wefti_frame_t *frame)
{
    bool answered = shake->greeting[1].version != 0;
    if (frame->kind == WEFTI_ANSWER && frame->bytes == sizeof(wefti_greeting_t) && !answered) {
        memcpy(&shake->greeting[1], frame->body, sizeof shake->greeting[1]);
        if (shake->greeting[1].version == 0 ||
            shake->greeting[1].purpose != shake->greeting[0].purpose) {
            return WEFT_ERR_FORMAT;
        }
        if (memcmp(shake->greeting[1].job, shake->job, sizeof shake->job) != 0) {
            return WEFT_ERR_NOT_FOUND;
        }
        return send_proof(shake);
    }
    if (frame->kind == WEFTI_WELCOME && frame->bytes == sizeof(wefti_digest_t) && answered) {
        return check_proof(shake, frame);
    }
    if (frame->kind == WEFTI_DEFERRED && answered &&
        shake->greeting[0].purpose == WEFTI_PURPOSE_DATA) {
        return WEFT_ERR_STATE;
    }
    return frame->kind == WEFTI_REFUSED ? read_refusal(shake, frame) : WEFT_ERR_FORMAT;
}

static weft_status_t read_as_acceptor(wefti_handshake_t *shake, const wefti_frame_t *frame)
{
    bool greeted = shake->greeting[0].version != 0;
    if (frame->kind == WEFTI_HELLO && frame->bytes == sizeof(wefti_greeting_t) && !greeted) {
        memcpy(&shake->greeting[0], frame->body, sizeof shake->greeting[0]);
        if (shake->greeting[0].version == 0 ||
            shake->greeting[0].purpose != shake->greeting[1].purpose ||
            !shake->accepts(shake->owner, &shake->greeting[0])) {
            return WEFT_ERR_FORMAT;
        }
        return send_frame(shake, WEFTI_ANSWER, &shake->greeting[1], sizeof shake->greeting[1]);
    }
    if (frame->kind == WEFTI_PROOF && frame->bytes >= sizeof(wefti_digest_t) &&
        frame->bytes <= sizeof(wefti_digest_t) + WEFTI_PAYLOAD_MAX && greeted) {
        weft_status_t status = check_proof(shake, frame);
        return status == WEFT_OK && !shake->withheld ? send_proof(shake) : status;
    }
    return WEFT_ERR_FORMAT;
}

weft_status_t wefti_handshake_step(wefti_handshake_t *shake)
{
    if (shake->connecting) {
        int error_number = wefti_address_connected(shake->wire.fd);
        if (error_number == EINPROGRESS) {
            return WEFT_AGAIN;
        }
        shake->connecting = false;
        shake->wire.error = error_number;
        return error_number == 0 ? WEFT_IN_PROGRESS : WEFT_ERR_PEER_DIED;
    }
    weft_status_t status = wefti_wire_flush(&shake->wire);
    if (shake->initiator && !shake->hello_sent) {
        shake->hello_sent = true;
        status = send_frame(shake, WEFTI_HELLO, &shake->greeting[0], sizeof shake->greeting[0]);
    }
    while (status >= 0 && !shake->proven) {
        wefti_frame_t frame;
        status = wefti_wire_receive(&shake->wire, &frame);
        if (status != WEFT_OK) {
            return status;
        }
        status =
            shake->initiator ? read_as_initiator(shake, &frame) : read_as_acceptor(shake, &frame);
    }
    return status < 0 ? status : WEFT_OK;
}

const char *wefti_handshake_problem(const wefti_handshake_t *shake, weft_status_t status)
{
    switch (status) {
    case WEFT_ERR_MISMATCH:
        return shake->why;
    case WEFT_ERR_NOT_FOUND:
        return "rank 0 of another job";
    case WEFT_ERR_PEER_DIED:
        return shake->wire.error != 0 ? strerror(shake->wire.error) : "connection closed";
    default:
        return "not a rank of Weft";
    }
}

weft_status_t wefti_handshake_welcome(wefti_handshake_t *shake)
{
    return send_proof(shake);
}

weft_status_t wefti_handshake_defer(wefti_handshake_t *shake)
{
    return send_frame(shake, WEFTI_DEFERRED, NULL, 0);
}

int wefti_handshake_detach(wefti_handshake_t *shake)
{
    int fd = shake->wire.fd;
    shake->wire.fd = -1;
    wefti_handshake_deinit(shake);
    return fd;
}
