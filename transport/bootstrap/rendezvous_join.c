/* SPDX-License-Identifier: Apache-2.0 */
/* A joining rank: looks for rank 0 until it is found, then follows its messages. */
#include "transport/bootstrap/rendezvous.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "runtime/base/error.h"
#include "runtime/base/sync.h"

#define SECOND_NS 1000000000ull
#define MILLISECOND_NS 1000000ull
#define CONNECT_NS (3 * SECOND_NS)
#define SLICE_MS 50 /* between two looks at the interrupt */
/* First patience with an address whose port may belong to another program. */
#define SCAN_NS SECOND_NS
#define ANSWER_NS (20 * SECOND_NS)
/* A rank that is not connected by then tells rank 0 that it tries: others keep it waiting. */
#define WAITING_NS (SECOND_NS / 2)
/* The tables of the largest worlds. */
#define TABLE_BYTES 16384u

typedef struct joining {
    wefti_rendezvous_t *rendezvous;
    const wefti_job_t *job;
    wefti_handshake_t shake; /* with rank 0 */
    uint64_t patience_ns;    /* with one address */
    char why[200];           /* of the latest failed attempt */
} joining_t;

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static weft_status_t interrupted(const joining_t *joining)
{
    return wefti_interrupted(&joining->rendezvous->params->interrupt)
               ? wefti_interrupt_error(joining->job->rank)
               : WEFT_OK;
}

/* False: the deadline has passed, or the rank is interrupted, which the caller's loop checks. */
static bool wait_for_socket(const joining_t *joining, uint64_t deadline_ns)
{
    struct pollfd poll_fd = {.fd = joining->shake.wire.fd,
                             .events = joining->shake.connecting ? POLLOUT : POLLIN};
    uint64_t now;
    while ((now = wefti_now_ns()) < deadline_ns &&
           !wefti_interrupted(&joining->rendezvous->params->interrupt)) {
        uint64_t left_ms = (deadline_ns - now) / MILLISECOND_NS + 1;
        if (poll(&poll_fd, 1, (int)least(left_ms, SLICE_MS)) > 0) {
            return true;
        }
    }
    return false;
}

static weft_status_t try_later(joining_t *joining, const wefti_address_t *at, const char *why)
{
    char text[WEFTI_ADDRESS_TEXT];
    snprintf(joining->why, sizeof joining->why, "%s: %s", wefti_address_text(at, true, text), why);
    return WEFT_AGAIN;
}

/* The proof has this rank's endpoint address, which depends on the address that reached rank 0. */
static weft_status_t listen_for_peers(joining_t *joining)
{
    wefti_application_t own;
    wefti_address_t local;
    if (!wefti_address_local(joining->shake.wire.fd, &local)) {
        return wefti_error_errno(WEFT_ERR_SYSTEM, errno, "getsockname failed");
    }
    WEFT_RETURN_IF_ERROR(wefti_rendezvous_listen(joining->rendezvous, &local, &own.address));
    memcpy(own.host_key, joining->rendezvous->params->host_key, sizeof own.host_key);
    wefti_handshake_set_payload(&joining->shake, &own, sizeof own);
    return WEFT_OK;
}

/* WEFT_AGAIN: this job's rank 0 is not there. */
static weft_status_t authenticate(joining_t *joining, const wefti_address_t *at)
{
    const wefti_place_t *place = &joining->rendezvous->place;
    uint64_t last = joining->rendezvous->deadline_ns;
    uint64_t until = wefti_now_ns() + least(joining->patience_ns, CONNECT_NS);
    weft_status_t status;
    while ((status = wefti_handshake_step(&joining->shake)) > 0) {
        if (status == WEFT_IN_PROGRESS) {
            WEFT_RETURN_IF_ERROR(listen_for_peers(joining));
            until = wefti_now_ns() + joining->patience_ns;
        } else if (!wait_for_socket(joining, least(until, last))) {
            return try_later(joining, at,
                             joining->shake.connecting ? strerror(ETIMEDOUT) : "no answer");
        }
    }
    const char *problem = wefti_handshake_problem(&joining->shake, status);
    switch (status) {
    case WEFT_ERR_MISMATCH:
        /* A wrong secret is final at the user's own address; elsewhere it may be another job. */
        if (!place->scanned && place->job->ports == WEFTI_PORT_ONE) {
            return wefti_error(status, "rank %u: %s", joining->job->rank, problem);
        }
        return try_later(joining, at, problem);
    case WEFT_ERR_NOT_FOUND:
    case WEFT_ERR_FORMAT:
    case WEFT_ERR_PEER_DIED:
        return try_later(joining, at, problem);
    default:
        return status;
    }
}

static weft_status_t receive_table(joining_t *joining, const wefti_frame_t *frame)
{
    const wefti_mesh_t *mesh = &joining->rendezvous->mesh;
    wefti_table_t table = {.count = 0};
    wefti_endpoint_address_t addresses[WEFTI_MESH_PEERS_MAX];
    if (frame->bytes >= sizeof table && mesh->began_ns == 0) {
        memcpy(&table, frame->body, sizeof table);
    }
    size_t bytes = table.count * sizeof addresses[0];
    bool valid = table.count > 0 && table.count <= WEFTI_MESH_PEERS_MAX &&
                 frame->bytes == sizeof table + bytes;
    if (valid) {
        memcpy(addresses, frame->body + sizeof table, bytes);
    }
    for (uint32_t i = 0; valid && i < table.count; i++) {
        valid = wefti_endpoint_address_valid(&addresses[i]) &&
                table.ranks[i] < joining->job->world_size && table.ranks[i] != joining->job->rank;
    }
    return valid ? wefti_rendezvous_connect(joining->rendezvous, &table, addresses)
                 : wefti_error(WEFT_ERR_FORMAT, "malformed message from rank 0: address table");
}

static void report_failure(joining_t *joining, weft_status_t status)
{
    const wefti_verdict_t verdict = wefti_verdict_of(status);
    wefti_wire_send(&joining->shake.wire, WEFTI_FAILED, &verdict, sizeof verdict, NULL, 0);
}

/* All messages of rank 0. WEFT_OK: go; WEFT_IN_PROGRESS: not yet; WEFT_AGAIN: not our world. */
static weft_status_t receive_from_root(joining_t *joining, bool *failed)
{
    wefti_frame_t frame;
    weft_status_t status = wefti_wire_flush(&joining->shake.wire);
    while (status >= 0 && (status = wefti_wire_receive(&joining->shake.wire, &frame)) == WEFT_OK) {
        if (frame.kind == WEFTI_GO) {
            return WEFT_OK;
        }
        if (frame.kind == WEFTI_ERROR) {
            return wefti_verdict_adopt(&frame, 0);
        }
        if (frame.kind != WEFTI_TABLE) {
            return wefti_error(WEFT_ERR_FORMAT,
                               "protocol error: unexpected message type %u from rank 0",
                               (unsigned int)frame.kind);
        }
        status = receive_table(joining, &frame);
        if (status < 0 && !*failed) {
            *failed = true;
            report_failure(joining, status); /* rank 0 sends the verdict to all ranks, also here */
            status = WEFT_OK;
        }
    }
    if (status == WEFT_ERR_PEER_DIED) {
        return wefti_error(status, "rank 0 (%s) disconnected while other ranks were still joining",
                           joining->rendezvous->place.text);
    }
    return status == WEFT_AGAIN ? WEFT_IN_PROGRESS : status;
}

/* On the connection to rank 0, until all ranks are connected to their neighbours. */
static weft_status_t follow_root(joining_t *joining)
{
    wefti_rendezvous_t *rendezvous = joining->rendezvous;
    wefti_mesh_t *mesh = &rendezvous->mesh;
    wefti_wire_t *wire = &joining->shake.wire;
    bool ready = false, failed = false, waiting = false;
    /* Rank 0 keeps the time from here on, and names the missing ranks. It began before this. */
    uint64_t timeout = rendezvous->params->settings->connect_timeout_ns;
    bool limited = timeout != 0 && timeout <= UINT64_MAX / 4;
    uint64_t patience = limited ? wefti_now_ns() + timeout + SECOND_NS : UINT64_MAX;
    wire->in_limit = TABLE_BYTES;
    for (;;) {
        uint64_t wait_ns = SECOND_NS;
        weft_status_t status = receive_from_root(joining, &failed);
        if (status != WEFT_IN_PROGRESS) {
            return status;
        }
        bool connecting = mesh->began_ns != 0 && !ready && !failed;
        if (limited && mesh->began_ns != 0) { /* then rank 0 does so anew */
            uint64_t until = mesh->deadline_ns + SECOND_NS;
            patience = patience < until ? until : patience;
        }
        if (connecting) {
            status = wefti_mesh_step(mesh, &wait_ns);
            if (status < 0) {
                failed = true;
                report_failure(joining, status);
            } else if (status == WEFT_OK) {
                ready = true;
                wefti_wire_send(wire, WEFTI_READY, NULL, 0, NULL, 0);
            } else if (!waiting && wefti_now_ns() - mesh->began_ns >=
                                       least(WAITING_NS, timeout != 0 ? timeout / 8 : SECOND_NS)) {
                waiting = true;
                wefti_wire_send(wire, WEFTI_WAITING, NULL, 0, NULL, 0);
            }
        }
        if (ready && wefti_mesh_hears(mesh)) {
            return WEFT_OK; /* that rank has the go, so there is one: rank 0 may have stopped */
        }
        if (wefti_now_ns() >= patience) {
            return wefti_error(WEFT_ERR_TIMEOUT,
                               "rank 0 (%s) did not complete the rendezvous before the timeout",
                               rendezvous->place.text);
        }
        WEFT_RETURN_IF_ERROR(interrupted(joining));
        struct pollfd fds[2] = {
            {.fd = wire->fd, .events = (short)(POLLIN | (wefti_wire_unsent(wire) ? POLLOUT : 0))},
            {.fd = connecting && !ready && !failed ? mesh->epoll_fd : -1, .events = POLLIN}};
        poll(fds, 2, (int)least(wait_ns / MILLISECOND_NS + 1, SLICE_MS));
    }
}

/* One attempt at one address. WEFT_AGAIN: this job's rank 0 is not there. */
static weft_status_t try_address(joining_t *joining, const wefti_address_t *at)
{
    const wefti_place_t *place = &joining->rendezvous->place;
    wefti_greeting_t greeting = {.version = WEFTI_BOOTSTRAP_VERSION,
                                 .purpose = WEFTI_PURPOSE_MEET,
                                 .rank = joining->job->rank,
                                 .world_size = joining->job->world_size};
    memcpy(greeting.job, place->id, sizeof greeting.job);
    weft_status_t status =
        wefti_handshake_connect(&joining->shake, at, &greeting, place->secret, place->secret_bytes,
                                joining->rendezvous->params->allocator);
    if (status != WEFT_OK) {
        return status < 0 ? status : try_later(joining, at, strerror(errno));
    }
    status = authenticate(joining, at);
    status = status == WEFT_OK ? follow_root(joining) : status;
    wefti_handshake_deinit(&joining->shake);
    return status;
}

static weft_status_t try_place(joining_t *joining)
{
    wefti_place_t *place = &joining->rendezvous->place;
    weft_status_t status = wefti_place_find(place);
    if (status != WEFT_OK) {
        snprintf(joining->why, sizeof joining->why, "%s", place->why);
        return status;
    }
    status = WEFT_AGAIN;
    for (uint32_t i = 0; i < place->count && status == WEFT_AGAIN; i++) {
        WEFT_RETURN_IF_ERROR(interrupted(joining));
        if (wefti_now_ns() < joining->rendezvous->deadline_ns) {
            status = try_address(joining, &place->candidates[i]);
        }
    }
    return status;
}

weft_status_t wefti_rendezvous_try(wefti_rendezvous_t *rendezvous)
{
    joining_t joining = {
        .rendezvous = rendezvous, .job = rendezvous->params->job, .patience_ns = 2 * SECOND_NS};
    return try_place(&joining);
}

weft_status_t wefti_rendezvous_join(wefti_rendezvous_t *rendezvous)
{
    joining_t joining = {.rendezvous = rendezvous, .job = rendezvous->params->job};
    uint64_t pause_ns = 2 * MILLISECOND_NS;
    for (uint32_t round = 0;; round++) {
        bool scan = joining.job->ports != WEFTI_PORT_ONE;
        joining.patience_ns = scan && round < 5 ? SCAN_NS << round : ANSWER_NS;
        weft_status_t status = try_place(&joining);
        if (status != WEFT_AGAIN) {
            return status;
        }
        uint64_t now = wefti_now_ns();
        if (now >= rendezvous->deadline_ns) {
            return wefti_error(
                WEFT_ERR_TIMEOUT,
                "rank %u: rank 0 not found at %s within %.3g s; missing ranks: 0%s%s%s",
                joining.job->rank, rendezvous->place.text,
                (double)rendezvous->params->settings->connect_timeout_ns * 1e-9,
                joining.why[0] != '\0' ? " (" : "", joining.why, joining.why[0] != '\0' ? ")" : "");
        }
        WEFT_RETURN_IF_ERROR(interrupted(&joining));
        /* Ranks back off by different times. */
        uint64_t back_off_ns = least(pause_ns + pause_ns * (joining.job->rank % 16) / 16,
                                     rendezvous->deadline_ns - now);
        nanosleep(&(struct timespec){.tv_sec = (time_t)(back_off_ns / SECOND_NS),
                                     .tv_nsec = (long)(back_off_ns % SECOND_NS)},
                  NULL);
        pause_ns = pause_ns < 60 * MILLISECOND_NS ? 2 * pause_ns : pause_ns;
    }
}
