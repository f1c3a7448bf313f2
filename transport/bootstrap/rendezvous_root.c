/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rank 0 of the rendezvous. Any process may connect; only one that has proved to know the secret
 * and contradicts the world can end it.
 */
#include "transport/bootstrap/rendezvous.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <unistd.h>

#include "runtime/base/digest.h"
#include "runtime/base/error.h"
#include "runtime/base/sync.h"

#define SECOND_NS 1000000000ull
#define SLICE_NS (SECOND_NS / 10)
/* Pending connections beyond one for each rank. */
#define SPARE_PENDING 64u
/* After a contradiction, ranks that join within this time still receive the verdict. */
#define GRACE_NS SECOND_NS
/* Joined ranks send a verdict at most. */
#define RANK_BYTES 1024u
/* Events of joined ranks have their number as tag. */
#define MESH_TAG (WEFTI_ACCEPTOR_TAG - 1)

typedef struct joined {
    wefti_wire_t wire; /* closed: the rank has not joined */
    wefti_address_t from;
    wefti_application_t own;
    bool ready;   /* connected to its neighbours */
    bool waiting; /* it said that it tries */
} joined_t;

typedef struct root {
    wefti_rendezvous_t *rendezvous;
    const wefti_job_t *job;
    int epoll_fd;
    wefti_acceptor_t acceptor;
    joined_t *ranks; /* [world_size] */
    uint32_t joined_count, ready_count;
    bool tables_sent, complete;
    weft_status_t failure;
    wefti_verdict_t verdict;
    uint64_t end_ns; /* of the grace */
    char note[200];  /* on a rank that joined and left */
} root_t;

static void disconnect(root_t *root, joined_t *joined)
{
    wefti_wire_deinit(&joined->wire);
    root->joined_count--;
    root->ready_count -= joined->ready;
    joined->ready = false;
}

/* What does not fit into the rank's socket follows by events. */
static void send_to(root_t *root, uint32_t rank, wefti_kind_t kind, const void *head,
                    size_t head_bytes, const void *data, size_t bytes)
{
    wefti_wire_t *wire = &root->ranks[rank].wire;
    if (wefti_wire_send(wire, kind, head, head_bytes, data, bytes) == WEFT_AGAIN) {
        wefti_watch(root->epoll_fd, EPOLL_CTL_MOD, wire->fd, EPOLLIN | EPOLLOUT, rank);
    }
}

/* The world fails: all ranks that joined receive the reason. */
static void fail_with(root_t *root, weft_status_t status, bool again)
{
    if (root->failure != WEFT_OK) {
        return;
    }
    root->failure = status;
    root->verdict = wefti_verdict_of(status);
    root->verdict.again = again;
    for (uint32_t r = 1; r < root->job->world_size; r++) {
        if (root->ranks[r].wire.fd >= 0) {
            send_to(root, r, WEFTI_ERROR, &root->verdict, sizeof root->verdict, NULL, 0);
        }
    }
    /* A rank that has not joined before the timeout does not join in the next second either. */
    uint64_t timeout = root->rendezvous->params->settings->connect_timeout_ns;
    uint64_t grace = timeout != 0 && timeout / 10 < GRACE_NS ? timeout / 10 : GRACE_NS;
    root->end_ns = wefti_now_ns() + (status == WEFT_ERR_TIMEOUT ? 0 : grace);
}

static void fail(root_t *root, weft_status_t status)
{
    fail_with(root, status, false);
}

/* ---- joining ---- */

static weft_status_t check_rank(const root_t *root, const wefti_greeting_t *greeting,
                                const char *at)
{
    uint32_t rank = greeting->rank, world_size = root->job->world_size;
    char other[WEFTI_ADDRESS_TEXT];
    if (greeting->version != WEFTI_BOOTSTRAP_VERSION) {
        return wefti_error(
            WEFT_ERR_MISMATCH,
            "protocol version mismatch: rank %u (%s) uses version %u, rank 0 uses version %u", rank,
            at, greeting->version, WEFTI_BOOTSTRAP_VERSION);
    }
    if (greeting->world_size != world_size) {
        return wefti_error(WEFT_ERR_MISMATCH,
                           "world size mismatch: rank %u (%s) has %u, rank 0 has %u", rank, at,
                           greeting->world_size, world_size);
    }
    if (rank >= world_size) {
        return wefti_error(WEFT_ERR_MISMATCH, "invalid rank from %s: rank %u for world size %u", at,
                           rank, world_size);
    }
    if (rank == 0) {
        return wefti_error(WEFT_ERR_MISMATCH, "duplicate rank 0: the processes at %s and %s",
                           root->rendezvous->place.text, at);
    }
    if (root->ranks[rank].wire.fd >= 0) {
        return wefti_error(WEFT_ERR_MISMATCH, "duplicate rank %u: the processes at %s and %s", rank,
                           wefti_address_text(&root->ranks[rank].from, true, other), at);
    }
    return WEFT_OK;
}

/* A joined rank sent something, or is gone. */
static void receive_from(root_t *root, uint32_t rank)
{
    joined_t *joined = &root->ranks[rank];
    char at[WEFTI_ADDRESS_TEXT];
    wefti_frame_t frame;
    weft_status_t status = wefti_wire_flush(&joined->wire);
    if (status == WEFT_OK) {
        wefti_watch(root->epoll_fd, EPOLL_CTL_MOD, joined->wire.fd, EPOLLIN, rank);
    }
    while (status >= 0 && (status = wefti_wire_receive(&joined->wire, &frame)) == WEFT_OK) {
        if (frame.kind == WEFTI_READY && root->tables_sent) {
            root->ready_count += !joined->ready;
            joined->ready = true;
        } else if (frame.kind == WEFTI_WAITING && root->tables_sent) {
            joined->waiting = true;
        } else if (frame.kind == WEFTI_FAILED) {
            fail(root, wefti_verdict_adopt(&frame, rank));
        } else {
            status = WEFT_ERR_FORMAT;
        }
    }
    if (status == WEFT_AGAIN) {
        return;
    }
    wefti_address_text(&joined->from, true, at);
    if (root->tables_sent && !root->complete) {
        fail(root, wefti_error(WEFT_ERR_PEER_DIED,
                               "rank %u (%s) disconnected while other ranks were still joining",
                               rank, at));
    } else {
        snprintf(root->note, sizeof root->note, "rank %u (%s) joined and disconnected", rank, at);
    }
    disconnect(root, joined);
}

static weft_status_t add_rank(root_t *root, wefti_pending_t *pending)
{
    const wefti_greeting_t *greeting = wefti_handshake_peer(&pending->shake);
    wefti_application_t own;
    char at[WEFTI_ADDRESS_TEXT];
    uint32_t rank = greeting->rank;
    if (rank > 0 && rank < root->job->world_size && root->ranks[rank].wire.fd >= 0) {
        receive_from(root, rank); /* it may be gone, and this process in its place */
        WEFT_RETURN_IF_ERROR(root->failure);
    }
    WEFT_RETURN_IF_ERROR(check_rank(root, greeting, wefti_address_text(&pending->from, true, at)));
    memcpy(&own, pending->shake.payload, sizeof own);
    if (pending->shake.payload_bytes != sizeof own || !wefti_endpoint_address_valid(&own.address)) {
        return wefti_error(WEFT_ERR_FORMAT, "malformed message from rank %u: endpoint address",
                           greeting->rank);
    }
    root->ranks[rank] =
        (joined_t){.wire = wefti_pending_take(pending), .from = pending->from, .own = own};
    wefti_wire_t *wire = &root->ranks[rank].wire;
    wire->in_limit = RANK_BYTES;
    root->joined_count++;
    return wefti_watch(root->epoll_fd, EPOLL_CTL_MOD, wire->fd, EPOLLIN, rank);
}

static void accept_rank(root_t *root, wefti_pending_t *pending)
{
    weft_status_t status = root->failure == WEFT_OK ? add_rank(root, pending) : WEFT_OK;
    if (status < 0) {
        fail(root, status);
    }
    if (pending->shake.wire.fd >= 0) {
        wefti_wire_send(&pending->shake.wire, WEFTI_ERROR, &root->verdict, sizeof root->verdict,
                        NULL, 0);
        wefti_handshake_deinit(&pending->shake);
    }
}

/* Handles all events; waits for one, but not for long. */
static void attend(root_t *root, uint64_t wait_ns)
{
    struct epoll_event events[128];
    const wefti_place_t *place = &root->rendezvous->place;
    int count = epoll_wait(root->epoll_fd, events, 128, (int)(wait_ns / 1000000 + 1));
    for (int i = 0; i < count; i++) {
        uint32_t tag = events[i].data.u32;
        wefti_pending_t *pending = NULL;
        if (tag >= WEFTI_ACCEPTOR_TAG) {
            weft_status_t status = wefti_acceptor_step(&root->acceptor, tag, &pending);
            if (status < 0) {
                fail(root, status);
            } else if (pending != NULL) {
                accept_rank(root, pending);
            }
        } else if (tag != MESH_TAG && root->ranks[tag].wire.fd >= 0) {
            receive_from(root, tag);
        }
    }
    wefti_acceptor_expire(&root->acceptor);
    if (!root->complete && root->failure == WEFT_OK && !wefti_place_held(place)) {
        fail_with(root, wefti_error(WEFT_ERR_MISMATCH, "another rank 0 took over %s", place->text),
                  true);
    }
}

static bool has_joined(const joined_t *joined)
{
    return joined->wire.fd >= 0;
}

static bool is_ready(const joined_t *joined)
{
    return joined->ready;
}

/* One that is not, and did not say that others keep it waiting, keeps others waiting. */
static bool is_busy(const joined_t *joined)
{
    return joined->ready || joined->waiting;
}

/* "3, 5-7": ranks that are not good. */
static uint32_t list_missing(const root_t *root, bool (*good)(const joined_t *joined), char *text,
                             size_t capacity)
{
    uint32_t count = 0, world_size = root->job->world_size;
    size_t used = 0;
    text[0] = '\0';
    for (uint32_t r = 1; r < world_size; r++) {
        uint32_t last = r;
        while (last < world_size && !good(&root->ranks[last])) {
            last++;
        }
        if (last == r) {
            continue;
        }
        count += last - r;
        if (used + 28 < capacity) {
            used +=
                (size_t)snprintf(text + used, capacity - used, last - r > 1 ? "%s%u-%u" : "%s%u",
                                 used > 0 ? ", " : "", r, last - 1);
        } else if (text[used - 1] != '.') {
            used += (size_t)snprintf(text + used, capacity - used, ", ...");
        }
        r = last;
    }
    return count;
}

static weft_status_t timed_out(const root_t *root)
{
    const char *note = root->acceptor.failed[0] != '\0' ? root->acceptor.failed : root->note;
    char names[160];
    double seconds = (double)root->rendezvous->params->settings->connect_timeout_ns * 1e-9;
    uint32_t count =
        list_missing(root, root->tables_sent ? is_busy : has_joined, names, sizeof names);
    if (root->tables_sent) {
        if (count == 0) { /* all of them wait, for rank 0 or for one that stopped later */
            count = list_missing(root, is_ready, names, sizeof names);
        }
        return wefti_error(WEFT_ERR_TIMEOUT,
                           "%u of %u ranks did not connect to their neighbours within %.3g s; "
                           "missing ranks: %s",
                           count, root->job->world_size, seconds, names);
    }
    return wefti_error(WEFT_ERR_TIMEOUT,
                       "%u of %u ranks did not join at %s within %.3g s; missing ranks: %s%s%s%s",
                       count, root->job->world_size, root->rendezvous->place.text, seconds, names,
                       note[0] != '\0' ? " (" : "", note, note[0] != '\0' ? ")" : "");
}

/* Attends until the deadline; false when the world has failed. */
static bool attend_until(root_t *root, uint64_t deadline_ns, uint64_t wait_ns)
{
    uint64_t now = wefti_now_ns();
    if (root->failure == WEFT_OK && now >= deadline_ns) {
        fail(root, timed_out(root));
    }
    if (root->failure == WEFT_OK && wefti_interrupted(&root->rendezvous->params->interrupt)) {
        fail(root, wefti_interrupt_error(0));
    }
    if (root->failure == WEFT_OK) {
        attend(root, deadline_ns - now < wait_ns ? deadline_ns - now : wait_ns);
    }
    return root->failure == WEFT_OK;
}

/* Which ranks are connected to which. */
typedef struct layout {
    uint32_t *host_of; /* [world_size] */
    uint32_t *firsts;  /* [host_count] the first rank of each host */
    uint32_t host_count;
} layout_t;

static weft_status_t lay_out(const root_t *root, layout_t *layout)
{
    const weft_allocator_t *allocator = root->rendezvous->params->allocator;
    uint32_t count = root->job->world_size;
    layout->host_of = wefti_alloc(allocator, count * sizeof *layout->host_of);
    layout->firsts = wefti_alloc(allocator, count * sizeof *layout->firsts);
    WEFT_RETURN_IF_NO_MEMORY(layout->host_of != NULL && layout->firsts != NULL);
    return wefti_number_keys(allocator, root->ranks[0].own.host_key, sizeof *root->ranks,
                             WEFTI_HOST_KEY_BYTES, count, layout->host_of, layout->firsts,
                             &layout->host_count);
}

static void neighbours_of(const root_t *root, const layout_t *layout, uint32_t rank,
                          wefti_table_t *table)
{
    uint32_t host = layout->host_of[rank], world_size = root->job->world_size;
    table->count = wefti_mesh_neighbours(NULL, world_size, rank, table->ranks, 0);
    if (layout->firsts[host] == rank) {
        table->count = wefti_mesh_neighbours(layout->firsts, layout->host_count, host, table->ranks,
                                             table->count);
    }
}

/* Sends each rank the addresses of its neighbours, and connects this rank to its own. */
static weft_status_t send_tables_of(root_t *root, const layout_t *layout)
{
    wefti_endpoint_address_t addresses[WEFTI_MESH_PEERS_MAX];
    wefti_table_t table = {.count = 0};
    WEFT_RETURN_IF_ERROR(wefti_random_bytes(table.seed, sizeof table.seed));
    root->tables_sent = true;
    for (uint32_t r = root->job->world_size; r-- > 0;) { /* this rank's own come last */
        neighbours_of(root, layout, r, &table);
        for (uint32_t i = 0; i < table.count; i++) {
            addresses[i] = root->ranks[table.ranks[i]].own.address;
        }
        if (r > 0) {
            send_to(root, r, WEFTI_TABLE, &table, sizeof table, addresses,
                    table.count * sizeof *addresses);
        }
    }
    return wefti_rendezvous_connect(root->rendezvous, &table, addresses);
}

static weft_status_t send_tables(root_t *root)
{
    const weft_allocator_t *allocator = root->rendezvous->params->allocator;
    layout_t layout = {.host_count = 0};
    weft_status_t status = lay_out(root, &layout);
    status = status == WEFT_OK ? send_tables_of(root, &layout) : status;
    wefti_free(allocator, layout.host_of);
    wefti_free(allocator, layout.firsts);
    WEFT_RETURN_IF_ERROR(status);
    return wefti_watch(root->epoll_fd, EPOLL_CTL_ADD, root->rendezvous->mesh.epoll_fd, EPOLLIN,
                       MESH_TAG);
}

static void connect_ranks(root_t *root)
{
    wefti_mesh_t *mesh = &root->rendezvous->mesh;
    bool connected = false;
    weft_status_t status = send_tables(root);
    while (status >= 0 && !(connected && root->ready_count == root->job->world_size - 1)) {
        uint64_t wait_ns = SLICE_NS;
        if (!connected) {
            status = wefti_mesh_step(mesh, &wait_ns);
            connected = status == WEFT_OK;
            if (connected) {
                epoll_ctl(root->epoll_fd, EPOLL_CTL_DEL, mesh->epoll_fd, NULL);
            }
            if (connected || status < 0) {
                continue;
            }
        }
        if (!attend_until(root, mesh->deadline_ns, wait_ns < SLICE_NS ? wait_ns : SLICE_NS)) {
            return;
        }
    }
    if (status < 0) {
        fail(root, status);
    }
}

/* Sends the rest of what is queued; after a failure, waits for ranks that are still to join. */
static void finish(root_t *root)
{
    uint64_t until = wefti_now_ns() + SECOND_NS;
    for (;;) {
        uint64_t now = wefti_now_ns();
        bool wait = root->failure != WEFT_OK && now < root->end_ns &&
                    root->joined_count < root->job->world_size - 1;
        for (uint32_t r = 1; r < root->job->world_size && !wait; r++) {
            wait = root->ranks[r].wire.fd >= 0 && wefti_wire_unsent(&root->ranks[r].wire);
        }
        if (!wait || now >= until) {
            return;
        }
        attend(root, SECOND_NS / 100);
    }
}

/* A connection per rank: more than many systems allow a process at first. */
static bool raise_limit(uint32_t world_size, struct rlimit *before)
{
    struct rlimit limit;
    rlim_t need = (rlim_t)world_size + SPARE_PENDING + 512;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= need) {
        return false;
    }
    *before = limit;
    limit.rlim_cur = need < limit.rlim_max ? need : limit.rlim_max;
    return setrlimit(RLIMIT_NOFILE, &limit) == 0;
}

static weft_status_t open_root(root_t *root)
{
    wefti_rendezvous_t *rendezvous = root->rendezvous;
    const wefti_place_t *place = &rendezvous->place;
    static const uint8_t any[16] = {0};
    wefti_address_t local = {0};
    root->ranks =
        wefti_alloc(rendezvous->params->allocator, root->job->world_size * sizeof *root->ranks);
    WEFT_RETURN_IF_NO_MEMORY(root->ranks != NULL);
    for (uint32_t r = 0; r < root->job->world_size; r++) {
        root->ranks[r].wire.fd = -1;
    }
    if (root->epoll_fd < 0) {
        return wefti_error_errno(WEFT_ERR_SYSTEM, errno, "epoll_create1 failed");
    }
    if (!wefti_address_local(place->listener, &local)) {
        return wefti_error_errno(WEFT_ERR_SYSTEM, errno, "getsockname failed");
    }
    if (memcmp(local.bytes, any, sizeof any) == 0) {
        local.family = 0; /* it listens everywhere: no address is better than another one */
    }
    WEFT_RETURN_IF_ERROR(wefti_rendezvous_listen(rendezvous, &local, &root->ranks[0].own.address));
    memcpy(root->ranks[0].own.host_key, rendezvous->params->host_key, WEFTI_HOST_KEY_BYTES);
    root->acceptor = (wefti_acceptor_t){
        .listener = place->listener,
        .epoll_fd = root->epoll_fd,
        .greeting = {.version = WEFTI_BOOTSTRAP_VERSION,
                     .purpose = WEFTI_PURPOSE_MEET,
                     .world_size = root->job->world_size},
        .key = place->secret,
        .key_bytes = place->secret_bytes,
        .log = rendezvous->params->log,
        .allocator = rendezvous->params->allocator,
        .capacity = root->job->world_size + SPARE_PENDING,
        .patience_ns = 20 * SECOND_NS,
    };
    memcpy(root->acceptor.greeting.job, place->id, sizeof place->id);
    return wefti_acceptor_open(&root->acceptor);
}

static weft_status_t run_root(root_t *root)
{
    WEFT_RETURN_IF_ERROR(open_root(root));
    while (root->joined_count < root->job->world_size - 1 &&
           attend_until(root, root->rendezvous->deadline_ns, SLICE_NS)) {
    }
    if (root->failure == WEFT_OK) {
        connect_ranks(root);
    }
    root->complete = root->failure == WEFT_OK;
    for (uint32_t r = 1; r < root->job->world_size && root->complete; r++) {
        send_to(root, r, WEFTI_GO, NULL, 0, NULL, 0);
    }
    finish(root);
    return root->complete ? WEFT_OK : wefti_error_adopt(root->failure, root->verdict.text);
}

weft_status_t wefti_rendezvous_lead(wefti_rendezvous_t *rendezvous)
{
    const wefti_job_t *job = rendezvous->params->job;
    struct rlimit before;
    bool raised = raise_limit(job->world_size, &before);
    root_t root = {.rendezvous = rendezvous, .job = job, .epoll_fd = epoll_create1(EPOLL_CLOEXEC)};
    weft_status_t status = run_root(&root);
    for (uint32_t r = 0; root.ranks != NULL && r < job->world_size; r++) {
        wefti_wire_deinit(&root.ranks[r].wire);
    }
    wefti_free(rendezvous->params->allocator, root.ranks);
    wefti_acceptor_close(&root.acceptor);
    if (root.epoll_fd >= 0) {
        close(root.epoll_fd);
    }
    if (raised) {
        setrlimit(RLIMIT_NOFILE, &before);
    }
    return status;
}
