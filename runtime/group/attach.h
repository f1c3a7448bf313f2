/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cross-memory attach: one process reads and writes plain memory of another, through the kernel,
 * in one copy. Whether the system allows that between all ranks of a group is found out by trying
 * when the group is created, so that ranks agree: each reads a word of every peer's memory, and one
 * refusal is enough for the group to stage. Permission that is revoked later is an error of the
 * call that finds it.
 *
 * With Yama's ptrace_scope 1, or in a container that forbids it, ranks stage unless the program
 * calls prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY) before it creates the group.
 */
#ifndef WEFT_RUNTIME_ATTACH_H
#define WEFT_RUNTIME_ATTACH_H

#include "runtime/group/group.h"

/* Something to read in a rank's process, and what is to be found there. */
typedef struct wefti_attach_offer {
    uint64_t address, nonce;
} wefti_attach_offer_t;

/* True when groups of context try to attach; the same on all ranks. */
bool wefti_attach_wanted(const weft_context_t *context);
void wefti_attach_offer(weft_context_t *context, wefti_attach_offer_t *out_offer);
/* True when world_rank's memory can be read here. */
bool wefti_attach_works(const weft_context_t *context, uint32_t world_rank,
                        const wefti_attach_offer_t *offer);

/* Bytes from (or, with to_peer, to) address in the process of group's rank. */
weft_status_t wefti_attach_move(weft_group_t *group, uint32_t rank, uint64_t address, void *own,
                                uint64_t bytes, bool to_peer);

#endif
