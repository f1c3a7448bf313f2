/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds ranks that can never continue: each of their threads waits for other ranks of the same set.
 *
 *   rank 0: all_reduce, waits for rank 1          rank 1: mem_alloc, waits for rank 0
 *
 * Every rank searches alone. It starts with its own records and follows the ranks that they name. A
 * circle is the largest set of ranks in which every record names a rank of the set. Records may be
 * old, so the ranks of a circle agree in two rounds:
 *
 *   1  The rank has read the records of all other ranks of the circle. Afterwards its own records
 *      are unchanged, and none of its threads can run before one of its waits ends. It posts a
 *      digest of the circle.
 *   2  It has read this digest from all other ranks. Afterwards its own records are unchanged.
 *
 * A wait that has not ended in round 2 had not ended before. So when the last rank came to round 1,
 * all ranks were at rest, each waiting for others of the circle: none of them will ever move. The
 * proof does not depend on time.
 *
 * The circle ends the groups in which its ranks wait. If a rank waits in a call of the world, the
 * circle ends the world.
 *
 * Records of kind DATA are never part of a circle: all ranks are in that call, and will send. Such a
 * record names one of several ranks, any of which may let the call move.
 */
#include "transport/deadlock.h"

#include <stdio.h>
#include <string.h>

#include "runtime/base/error.h"
#include "runtime/base/hash.h"
#include "transport/endpoint.h"

#define MEMBERS 64u
#define NAMED 4u /* ranks of a circle in its message */
/* In a digest: the rank is in round 2. */
#define SECOND_ROUND 1ull

typedef struct member {
    uint32_t rank;
    bool in;
    uint64_t agreed;
    wefti_waits_view_t view;
} member_t;

/* Of the rank at hand; its looks hold the lock of waits.c. */
typedef struct circle {
    member_t members[MEMBERS]; /* 0: this rank */
    uint32_t count;
} circle_t;

static member_t *find(circle_t *circle, uint32_t rank)
{
    for (uint32_t i = 0; i < circle->count; i++) {
        if (circle->members[i].rank == rank) {
            return &circle->members[i];
        }
    }
    return NULL;
}

static void add(circle_t *circle, const wefti_endpoint_t *endpoint, uint32_t rank)
{
    if (rank >= endpoint->world_size || circle->count == MEMBERS || find(circle, rank) != NULL) {
        return;
    }
    const wefti_waits_block_t *waits = &endpoint->control[rank]->waits;
    member_t *member = &circle->members[circle->count];
    /* before the records: what it agreed to may be old, but is not newer than they are */
    member->agreed = atomic_load_explicit(&waits->agreed, memory_order_acquire);
    if (wefti_waits_load(waits, &member->view) > 0 &&
        atomic_load_explicit(&waits->moves, memory_order_relaxed) != member->view.generation) {
        member->rank = rank;
        member->in = true;
        circle->count++;
    }
}

/* The first other rank of the circle that a record names; UINT32_MAX: none, or one of another rank is
 * enough for it to go on. */
static uint32_t next_of(circle_t *circle, const member_t *member, const wefti_wait_t *wait)
{
    bool first_only = wait->kind == WEFTI_WAIT_RECV || wait->kind == WEFTI_WAIT_SEND;
    uint32_t next = UINT32_MAX;
    for (uint32_t l = 0; l < (first_only ? 1 : wait->late_count); l++) {
        const member_t *late = find(circle, wait->late[l]);
        if (late != NULL && late->in && late != member) {
            next = next == UINT32_MAX ? late->rank : next;
        } else if (wait->kind == WEFTI_WAIT_STEP) {
            return UINT32_MAX;
        }
    }
    return next;
}

static bool stays(circle_t *circle, const member_t *member)
{
    bool others = false;
    for (uint32_t w = 0; w < member->view.count; w++) {
        const wefti_wait_t *wait = &member->view.list[w];
        bool for_others = next_of(circle, member, wait) != UINT32_MAX;
        others = others || for_others;
        if (wait->kind == WEFTI_WAIT_DATA || (!for_others && wait->kind != WEFTI_WAIT_LOCAL)) {
            return false;
        }
    }
    return others;
}

/* Collects all ranks that records lead to, then removes those that may still move. */
static bool find_circle(circle_t *circle, const wefti_endpoint_t *endpoint)
{
    for (uint32_t i = 0; i < circle->count; i++) {
        for (uint32_t w = 0; w < circle->members[i].view.count; w++) {
            const wefti_wait_t *wait = &circle->members[i].view.list[w];
            for (uint32_t l = 0; l < wait->late_count; l++) {
                add(circle, endpoint, wait->late[l]);
            }
        }
    }
    for (bool removed = true; removed;) {
        removed = false;
        for (uint32_t i = 0; i < circle->count; i++) {
            member_t *member = &circle->members[i];
            if (member->in && !stays(circle, member)) {
                member->in = false;
                removed = true;
            }
        }
    }
    return circle->members[0].in;
}

/*
 * What ranks on other hosts wait for may be on its way to them: this rank knows what it has sent.
 * So may what control calls exchange, which goes by sockets to ranks of the own host also. Data is
 * not looked into.
 */
static bool is_awaited(const wefti_endpoint_t *endpoint, const circle_t *circle)
{
    uint32_t own_host = endpoint->host_of[endpoint->rank];
    for (uint32_t i = 1; i < circle->count; i++) {
        const member_t *member = &circle->members[i];
        bool far = endpoint->host_of[member->rank] != own_host;
        for (uint32_t w = 0; member->in && w < member->view.count; w++) {
            const wefti_wait_t *wait = &member->view.list[w];
            bool for_this = false;
            for (uint32_t l = 0; l < wait->late_count; l++) {
                for_this = for_this || wait->late[l] == endpoint->rank;
            }
            bool travels = far || wait->kind == WEFTI_WAIT_CONTROL;
            if (for_this && travels && wefti_waits_has_come(endpoint, wait)) {
                return false;
            }
        }
    }
    return true;
}

/* In the order of ranks, so that all compute the same; 0 is none, the lowest bit is the round. */
static uint64_t digest_of(const circle_t *circle)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < circle->count; i++) {
        const member_t *member = &circle->members[i];
        if (member->in) {
            const uint64_t words[2] = {member->rank + 1ull, member->view.generation};
            sum += wefti_hash_words(words, 2);
        }
    }
    return (sum | 2) & ~SECOND_ROUND;
}

/* All of its ranks are in this round. */
static bool all_agree(const circle_t *circle, uint64_t own, uint64_t digest, uint64_t round)
{
    for (uint32_t i = 0; i < circle->count; i++) {
        uint64_t agreed = i == 0 ? own : circle->members[i].agreed;
        if (circle->members[i].in && agreed != (digest | SECOND_ROUND) &&
            (round != 0 || agreed != digest)) {
            return false;
        }
    }
    return true;
}

/* "rank 0 waits for rank 1 in all_reduce with 4 x f32 (sum), rank 1 for rank 0 in mem_alloc" */
static void explain(circle_t *circle, char *text)
{
    uint32_t at = UINT32_MAX;
    size_t used = 0, bytes = sizeof((wefti_own_circle_t *)NULL)->text;
    for (uint32_t i = 0; i < circle->count; i++) {
        const member_t *member = &circle->members[i];
        at = member->in && member->rank < at ? member->rank : at;
    }
    uint32_t first = at;
    for (uint32_t n = 0; n < NAMED && used < bytes; n++) {
        const member_t *member = find(circle, at);
        uint32_t next = UINT32_MAX, w = 0;
        for (; w < member->view.count; w++) {
            next = next_of(circle, member, &member->view.list[w]);
            if (next != UINT32_MAX) {
                break;
            }
        }
        if (next == UINT32_MAX) {
            break;
        }
        used += (size_t)snprintf(text + used, bytes - used, "%srank %u %s rank %u in %s",
                                 n == 0 ? "" : ", ", at, n == 0 ? "waits for" : "for", next,
                                 member->view.list[w].text);
        at = next;
        if (at == first) {
            break;
        }
    }
    if (used < bytes) {
        snprintf(text + used, bytes - used, ": none of them can continue");
    }
}

/* Every rank waits in calls of groups. Control calls of the world cannot end on their own: their
 * parts could not be matched afterwards. */
static bool is_of_groups(const circle_t *circle)
{
    for (uint32_t i = 0; i < circle->count; i++) {
        const wefti_waits_view_t *view = &circle->members[i].view;
        for (uint32_t w = 0; circle->members[i].in && w < view->count; w++) {
            uint32_t kind = view->list[w].kind;
            if (kind != WEFTI_WAIT_CALL && kind != WEFTI_WAIT_HOST && kind != WEFTI_WAIT_RECV &&
                kind != WEFTI_WAIT_SEND && kind != WEFTI_WAIT_LOCAL) {
                return false;
            }
        }
    }
    return true;
}

/* Another rank of the circle that this one agreed to was certain first. It may have gone on since,
 * so the circle cannot be seen any more. */
static bool is_concluded(const wefti_endpoint_t *endpoint)
{
    uint64_t digest = endpoint->circle.digest;
    for (uint32_t r = 0; digest != 0 && r < endpoint->world_size; r++) {
        const wefti_waits_block_t *waits = &endpoint->control[r]->waits;
        if (r != endpoint->rank &&
            atomic_load_explicit(&waits->concluded, memory_order_relaxed) == digest) {
            return true;
        }
    }
    return false;
}

/* One of them may wait for the others since it had an error that they do not know. */
static weft_status_t add_cause(const circle_t *circle, const wefti_endpoint_t *endpoint, char *text,
                               size_t bytes)
{
    size_t used = strlen(text);
    for (uint32_t i = 0; i < circle->count; i++) {
        weft_status_t status = circle->members[i].in
                                   ? wefti_endpoint_add_error_of(endpoint, circle->members[i].rank,
                                                                 text + used, bytes - used)
                                   : WEFT_OK;
        if (status != WEFT_OK) {
            return wefti_error_is_shared(status) ? status : WEFT_ERR_MISMATCH;
        }
    }
    return WEFT_ERR_MISMATCH;
}

static void remember(wefti_endpoint_t *endpoint, circle_t *circle, uint64_t digest)
{
    wefti_own_circle_t *own = &endpoint->circle;
    own->digest = digest;
    own->groups_only = is_of_groups(circle);
    own->ended = false;
    own->view = circle->members[0].view;
    explain(circle, own->text);
    own->status = add_cause(circle, endpoint, own->text, sizeof own->text);
}

static wefti_deadlock_t conclude(wefti_endpoint_t *endpoint)
{
    wefti_own_circle_t *own = &endpoint->circle;
    if (!own->groups_only) {
        return WEFTI_DEADLOCK;
    }
    wefti_waits_block_t *waits = &endpoint->control[endpoint->rank]->waits;
    atomic_store_explicit(&waits->concluded, own->digest, memory_order_relaxed);
    own->digest = 0;
    own->ended = true;
    return WEFTI_DEADLOCK_GROUPS;
}

wefti_deadlock_t wefti_deadlock_look(wefti_endpoint_t *endpoint)
{
    static circle_t circle;
    wefti_waits_block_t *own = &endpoint->control[endpoint->rank]->waits;
    member_t *self = &circle.members[0];
    wefti_waits_view_t now;
    bool waits = wefti_waits_refresh(endpoint, &self->view);
    uint64_t agreed = atomic_load_explicit(&own->agreed, memory_order_relaxed);
    self->rank = endpoint->rank;
    self->in = true;
    circle.count = 1;
    if (is_concluded(endpoint)) {
        return conclude(endpoint);
    }
    if (!waits || !find_circle(&circle, endpoint) || !is_awaited(endpoint, &circle)) {
        atomic_store_explicit(&own->agreed, 0, memory_order_relaxed);
        return WEFTI_DEADLOCK_NONE;
    }
    uint64_t digest = digest_of(&circle);
    /* from here on it counts that the others were looked at before */
    if (!wefti_waits_refresh(endpoint, &now) || now.generation != self->view.generation) {
        return WEFTI_DEADLOCK_MAYBE;
    }
    if ((agreed & ~SECOND_ROUND) != digest) {
        bool rests = wefti_waits_rest(endpoint);
        if (rests) {
            remember(endpoint, &circle, digest);
        }
        atomic_store_explicit(&own->moves, rests ? 0 : now.generation, memory_order_relaxed);
        atomic_store_explicit(&own->agreed, rests ? digest : 0, memory_order_release);
        return rests ? WEFTI_DEADLOCK_MAYBE : WEFTI_DEADLOCK_NONE;
    }
    if (!all_agree(&circle, agreed, digest, 0)) {
        return WEFTI_DEADLOCK_MAYBE;
    }
    agreed = digest | SECOND_ROUND;
    atomic_store_explicit(&own->agreed, agreed, memory_order_release);
    if (!all_agree(&circle, agreed, digest, SECOND_ROUND)) {
        return WEFTI_DEADLOCK_MAYBE;
    }
    return conclude(endpoint);
}
