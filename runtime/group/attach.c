/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/group/attach.h"

#include <errno.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "runtime/base/error.h"

/* Between two pieces a broken group is noticed; longer ones are no quicker. */
#define PIECE_BYTES ((size_t)1 << 20)
#define EXEC_LOOKS 500u
#define EXEC_LOOK_NS 1000000ull

static pid_t pid_of(const weft_context_t *context, uint32_t world_rank)
{
    return (pid_t)context->endpoint->control[world_rank]->pid;
}

/* Bytes moved, or -1 with errno. */
static ssize_t move(pid_t pid, uint64_t address, void *own, size_t bytes, bool to_peer)
{
    struct iovec here = {own, bytes}, there = {(void *)(uintptr_t)address, bytes};
    ssize_t moved;
    do {
        moved = to_peer ? process_vm_writev(pid, &here, 1, &there, 1, 0)
                        : process_vm_readv(pid, &here, 1, &there, 1, 0);
    } while (moved < 0 && errno == EINTR);
    return moved;
}

bool wefti_attach_wanted(const weft_context_t *context)
{
    const wefti_endpoint_t *endpoint = context->endpoint;
    /* Ranks of one process share an address space; there, and on a device, staging stays. Nor does
     * it matter where every rank is on a host of its own. The same on all ranks. */
    return context->settings.attach != WEFTI_ATTACH_OFF && context->device == NULL &&
           (strcmp(endpoint->ops->name, "shm") == 0 || endpoint->inner != NULL) &&
           endpoint->host_count < endpoint->world_size;
}

void wefti_attach_offer(weft_context_t *context, wefti_attach_offer_t *out_offer)
{
    wefti_channels_t *channels = wefti_channels_of(context);
    /* Not a secret: it distinguishes a rank from another process with the same process id. */
    channels->attach_nonce = (wefti_now_ns() ^ (uint64_t)(uintptr_t)channels << 16) * 2 + 1;
    out_offer->address = (uint64_t)(uintptr_t)&channels->attach_nonce;
    out_offer->nonce = channels->attach_nonce;
}

bool wefti_attach_works(const weft_context_t *context, uint32_t world_rank,
                        const wefti_attach_offer_t *offer)
{
    uint64_t found = 0;
    if (world_rank == context->endpoint->rank) {
        return true;
    }
    /* Process ids of another host mean nothing on this one. */
    if (!wefti_endpoint_direct(context->endpoint, world_rank)) {
        return false;
    }
    return move(pid_of(context, world_rank), offer->address, &found, sizeof found, false) ==
               (ssize_t)sizeof found &&
           found == offer->nonce;
}

static weft_status_t refused(weft_group_t *group, uint32_t rank, int number, bool to_peer)
{
    weft_status_t status = wefti_endpoint_check(group->endpoint);
    /* exec drops the memory of a process a moment before its connections */
    for (uint32_t i = 0; status == WEFT_OK && number == EFAULT && i < EXEC_LOOKS; i++) {
        wefti_sleep_ns(EXEC_LOOK_NS);
        status = wefti_endpoint_check(group->endpoint);
    }
    if (status < 0) {
        return status; /* the peer is gone, or the world is */
    }
    if (number == ESRCH) {
        return wefti_error(WEFT_ERR_PEER_DIED, "rank %u (pid %d) died", group->ranks[rank],
                           (int)pid_of(group->context, group->ranks[rank]));
    }
    return wefti_error_errno(WEFT_ERR_SYSTEM, number, "rank %u: cannot %s the buffer of rank %u",
                             group->ranks[group->rank], to_peer ? "write" : "read",
                             group->ranks[rank]);
}

weft_status_t wefti_attach_move(weft_group_t *group, uint32_t rank, uint64_t address, void *own,
                                uint64_t bytes, bool to_peer)
{
    pid_t pid = pid_of(group->context, group->ranks[rank]);
    uint8_t *at = own;
    while (bytes > 0) {
        size_t piece = bytes < PIECE_BYTES ? (size_t)bytes : PIECE_BYTES;
        ssize_t moved = move(pid, address, at, piece, to_peer);
        if (moved <= 0) {
            return refused(group, rank, moved < 0 ? errno : EFAULT, to_peer);
        }
        if (wefti_group_broken(group)) {
            return wefti_group_check(group);
        }
        address += (uint64_t)moved; /* less than asked for ends at a page that is not there */
        at += moved;
        bytes -= (uint64_t)moved;
    }
    return WEFT_OK;
}
