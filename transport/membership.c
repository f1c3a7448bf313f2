/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/survivors.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>
#include <unistd.h>

#include "runtime/base/digest.h"
#include "runtime/base/error.h"
#include "transport/hosts.h"
#include "transport/socket/fork.h"

#define BACKLOG 4096

/* What ranks tell each other when a world has met. */
typedef struct record {
    uint32_t former, generation, next; /* former: 1 for ranks that had a world before */
    uint8_t key[32];
    wefti_member_t member;
} record_t;

static wefti_identity_t *identity_create(void)
{
    wefti_identity_t *identity = wefti_alloc(NULL, sizeof *identity);
    if (identity != NULL) {
        atomic_init(&identity->references, 1);
        identity->local = identity->tcp = -1;
    }
    return identity;
}

static void stop_listening(wefti_identity_t *identity)
{
    int *const sockets[] = {&identity->local, &identity->tcp};
    for (uint32_t i = 0; i < 2; i++) {
        if (*sockets[i] >= 0) {
            wefti_socket_close(*sockets[i]);
        }
        *sockets[i] = -1;
    }
}

static void identity_release(wefti_identity_t *identity)
{
    if (identity != NULL &&
        atomic_fetch_sub_explicit(&identity->references, 1, memory_order_acq_rel) == 1) {
        stop_listening(identity);
        wefti_forget(identity->key, sizeof identity->key);
        wefti_free(NULL, identity);
    }
}

/* At an abstract address that the kernel chooses. */
static weft_status_t listen_here(wefti_identity_t *identity)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    socklen_t length = sizeof address.sun_family;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || bind(fd, (const struct sockaddr *)&address, length) != 0 ||
        listen(fd, BACKLOG) != 0) {
        weft_status_t status =
            wefti_error_errno(WEFT_ERR_SYSTEM, errno, "cannot listen for survivors of a world");
        if (fd >= 0) {
            close(fd);
        }
        return status;
    }
    length = sizeof address;
    getsockname(fd, (struct sockaddr *)&address, &length);
    size_t bytes = length - offsetof(struct sockaddr_un, sun_path) - 1; /* after the leading zero */
    if (bytes >= sizeof identity->self.name) {
        close(fd);
        return wefti_error(WEFT_ERR_INTERNAL, "the kernel chose a name of %zu bytes", bytes);
    }
    memcpy(identity->self.name, address.sun_path + 1, bytes);
    wefti_socket_guard(fd);
    identity->local = fd;
    return WEFT_OK;
}

static weft_status_t listen_tcp(wefti_identity_t *identity, const wefti_endpoint_address_t *reached)
{
    wefti_address_t bound;
    wefti_endpoint_address_t *address = &identity->self.address;
    weft_status_t status = wefti_address_listen(reached->count == 1 ? &reached->addresses[0] : NULL,
                                                0, BACKLOG, &identity->tcp, &bound);
    if (status != WEFT_OK) {
        return status < 0 ? status : wefti_error(WEFT_ERR_SYSTEM, "no free TCP port to listen on");
    }
    wefti_socket_guard(identity->tcp); /* a forked child that listened would look like this rank */
    *address = *reached;
    for (uint32_t i = 0; i < address->count; i++) {
        address->addresses[i].port = bound.port;
    }
    return WEFT_OK;
}

static weft_status_t listen_for(wefti_identity_t *identity, const wefti_endpoint_t *endpoint)
{
    if (endpoint->ops == &wefti_transport_null) {
        return WEFT_OK;
    }
    if (endpoint->ops == &wefti_transport_hosts) {
        const wefti_hosts_t *hosts = (const wefti_hosts_t *)endpoint;
        return identity->tcp >= 0 ? WEFT_OK
                                  : listen_tcp(identity, wefti_overlay_address(hosts->overlay));
    }
    return identity->local >= 0 ? WEFT_OK : listen_here(identity);
}

/* The lowest rank that had a world before; else rank 0. */
static uint32_t find_former(const record_t *records, uint32_t count)
{
    uint32_t rank = 0;
    while (rank < count && records[rank].former == 0) {
        rank++;
    }
    return rank < count ? rank : 0;
}

/* Ranks without a number get the next ones, in their order. */
static void take_records(wefti_membership_t *out, record_t *records, uint32_t rank)
{
    const record_t *first = &records[find_former(records, out->count)];
    uint32_t next = first->next;
    for (uint32_t r = 0; r < out->count; r++) {
        out->members[r] = records[r].member;
        if (records[r].former == 0) {
            out->members[r].number = next++;
        }
    }
    out->next = next;
    out->generation = first->generation;
    wefti_identity_t *identity = out->identity;
    identity->self = out->members[rank];
    memcpy(identity->key, first->key, sizeof identity->key);
}

weft_status_t wefti_membership_join(wefti_endpoint_t *endpoint, const wefti_membership_t *former,
                                    uint32_t generation, wefti_membership_t *out)
{
    uint32_t count = endpoint->world_size;
    record_t own = {.generation = generation};
    record_t *records = wefti_alloc(endpoint->allocator, count * sizeof *records);
    *out = (wefti_membership_t){.count = count};
    out->members = wefti_alloc(NULL, count * sizeof *out->members);
    if (former != NULL) {
        out->identity = former->identity;
        atomic_fetch_add_explicit(&out->identity->references, 1, memory_order_relaxed);
    } else {
        out->identity = identity_create();
    }
    weft_status_t status = records != NULL && out->members != NULL && out->identity != NULL
                               ? listen_for(out->identity, endpoint)
                               : WEFT_ERR_NO_MEMORY;
    if (status >= 0 && former == NULL) {
        status = wefti_random_bytes(own.key, sizeof own.key);
    }
    WEFT_TRY(status, wefti_endpoint_agree(endpoint, status), out);
    if (former != NULL) {
        own.former = 1;
        own.next = atomic_load_explicit(&former->identity->next, memory_order_relaxed);
        memcpy(own.key, former->identity->key, sizeof own.key);
    }
    own.member = out->identity->self;
    WEFT_TRY(status, wefti_endpoint_all_gather(endpoint, &own, sizeof own, records), out);
    take_records(out, records, endpoint->rank);
out:
    wefti_forget(&own, sizeof own);
    wefti_free(endpoint->allocator, records);
    if (status < 0) {
        identity_release(out->identity);
        wefti_free(NULL, out->members);
        *out = (wefti_membership_t){0};
    }
    return status;
}

void wefti_membership_commit(const wefti_membership_t *membership)
{
    /* relaxed: read by the thread that shrinks, grows or releases contexts of this rank */
    wefti_identity_t *identity = membership->identity;
    atomic_store_explicit(&identity->generation, membership->generation, memory_order_relaxed);
    atomic_store_explicit(&identity->next, membership->next, memory_order_relaxed);
    atomic_store_explicit(&identity->left, false, memory_order_relaxed);
}

void wefti_membership_leave(wefti_membership_t *membership)
{
    wefti_identity_t *identity = membership->identity;
    if (identity != NULL && atomic_load_explicit(&identity->generation, memory_order_relaxed) ==
                                membership->generation) {
        stop_listening(identity);
        atomic_store_explicit(&identity->left, true, memory_order_relaxed);
    }
    identity_release(identity);
    wefti_free(NULL, membership->members);
    *membership = (wefti_membership_t){0};
}

uint32_t wefti_membership_number(const wefti_membership_t *membership, uint32_t rank)
{
    return membership->members[rank].number;
}

weft_status_t wefti_membership_latest(const wefti_membership_t *membership, uint32_t *out_latest)
{
    const wefti_identity_t *identity = membership->identity;
    uint32_t latest = atomic_load_explicit(&identity->generation, memory_order_relaxed);
    *out_latest = latest;
    if (latest != membership->generation &&
        !atomic_load_explicit(&identity->left, memory_order_relaxed)) {
        return wefti_error(WEFT_ERR_STATE,
                           "the context's world of generation %u has been replaced by that of "
                           "generation %u; use the context of the latter",
                           membership->generation, latest);
    }
    return WEFT_OK;
}

weft_status_t wefti_membership_check(const wefti_membership_t *membership)
{
    uint32_t latest;
    WEFT_RETURN_IF_ERROR(wefti_membership_latest(membership, &latest));
    return latest == membership->generation
               ? WEFT_OK
               : wefti_error(WEFT_ERR_STATE,
                             "the context's world of generation %u has been replaced by that of "
                             "generation %u, which this rank has left; it can only grow",
                             membership->generation, latest);
}
