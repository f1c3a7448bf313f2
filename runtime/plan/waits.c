/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What other ranks learn of a session that waits (transport/waits.h): for which ranks, and how many
 * of their signals have come. A rank on another host compares that with what it has sent.
 */
#include "runtime/plan/session.h"

/* Part of a context: its sessions over put links. */
typedef struct sessions {
    pthread_mutex_t lock;
    weft_session_t *first;
} sessions_t;

uint32_t wefti_session_channel(const weft_session_t *session)
{
    return (uint32_t)(session->region_offset / sizeof(wefti_signal_line_t));
}

/* The number of a rank in the group; its size: the rank is not in it. */
static uint32_t place_of(const wefti_bound_group_t *group, uint32_t rank)
{
    uint32_t place = wefti_axis_place(&group->axis, rank);
    return group->ranks[place] == rank ? place : group->axis.size;
}

static uint8_t *own_area(const wefti_bound_run_t *bound)
{
    return bound->memory.bases[bound->group->rank] + bound->memory.area;
}

/* ---- this rank waits ---- */

uint32_t wefti_session_late(const weft_session_t *session, const wefti_cursor_t *cursor)
{
    const wefti_record_t *record = &cursor->records[cursor->next];
    uint32_t target, r = 0, count = session->endpoint->world_size;
    const wefti_signal_t *signal = wefti_cursor_blocked_on(cursor, &target);
    /* relaxed: it may grow meanwhile, but not to where a signal lies that a rank waits for */
    size_t bytes = atomic_load_explicit(&session->endpoint->region_bytes, memory_order_relaxed);
    for (; r < count; r++) {
        uintptr_t base = (uintptr_t)session->endpoint->region_of[r];
        if (r == session->endpoint->rank) {
            continue;
        }
        if (base != 0 && (uintptr_t)signal - base < bytes) {
            break;
        }
        if (record->kind == WEFTI_RECORD_SCHEDULE) {
            const wefti_bound_run_t *bound = record->schedule.bound;
            uint32_t place = place_of(bound->group, r);
            if (place < bound->group->axis.size &&
                wefti_run_arrives_from(&bound->counters, own_area(bound), place, signal)) {
                break;
            }
        }
    }
    return r;
}

static uint32_t came_from(const weft_session_t *session, uint32_t rank)
{
    uint32_t sum = 0;
    for (uint32_t i = 0; i < session->run_slots; i++) {
        const wefti_bound_run_t *bound = &session->runs[i];
        uint32_t place = bound->run != NULL ? place_of(bound->group, rank) : UINT32_MAX;
        if (bound->run != NULL && place < bound->group->axis.size) {
            sum += wefti_run_came(&bound->counters, own_area(bound), place);
        }
    }
    return sum;
}

static void add_rank(const weft_session_t *session, uint32_t rank, wefti_wait_t *out)
{
    for (uint32_t l = 0; l < out->late_count; l++) {
        if (out->late[l] == rank) {
            return;
        }
    }
    if (rank == session->endpoint->rank) {
        return; /* another lane, which waits itself */
    }
    if (rank >= session->endpoint->world_size || out->late_count == WEFTI_WAIT_RANKS) {
        out->kind = WEFTI_WAIT_DATA; /* it may go on without the ranks that are named */
        return;
    }
    out->came[out->late_count] = came_from(session, rank);
    out->late[out->late_count++] = rank;
}

void wefti_session_add_late(const weft_session_t *session, const wefti_cursor_t *cursor,
                            wefti_wait_t *out)
{
    const wefti_record_t *record = &cursor->records[cursor->next];
    uint32_t ranks[WEFTI_MAX_LANES], count = 0;
    out->channel = wefti_session_channel(session);
    out->waiter = session->endpoint->rank;
    if (record->source != UINT16_MAX) {
        return; /* for another stream of the session, which waits itself */
    }
    if (record->kind != WEFTI_RECORD_SCHEDULE) {
        add_rank(session, wefti_session_late(session, cursor), out);
    } else if (!wefti_run_late(record->schedule.bound->run, ranks, &count)) {
        out->kind = WEFTI_WAIT_DATA;
    }
    for (uint32_t i = 0; i < count; i++) {
        add_rank(session, ranks[i], out);
    }
}

/* ---- another rank waits ---- */

static uint32_t signaled_to(const weft_session_t *session, uint32_t rank)
{
    uint32_t sum = 0;
    for (uint32_t i = 0; i < session->run_slots; i++) {
        const wefti_bound_run_t *bound = &session->runs[i];
        uint32_t place = bound->run != NULL ? place_of(bound->group, rank) : UINT32_MAX;
        if (bound->run != NULL && place < bound->group->axis.size) {
            sum += wefti_run_signaled(&bound->counters, place);
        }
    }
    return sum;
}

/* wefti_waits_hooks_t: signals to the rank that waits are on their way. */
static bool has_signaled(void *user, const wefti_wait_t *wait)
{
    const weft_context_t *context = user;
    sessions_t *sessions = wefti_part_find(context, WEFTI_PART_SESSIONS);
    uint32_t l = 0;
    bool has = true;
    while (l < wait->late_count && wait->late[l] != context->endpoint->rank) {
        l++;
    }
    if (sessions == NULL || l == wait->late_count ||
        wait->waiter >= context->endpoint->world_size) {
        return true;
    }
    pthread_mutex_lock(&sessions->lock);
    for (const weft_session_t *each = sessions->first; each != NULL; each = each->next) {
        if (wefti_session_channel(each) == wait->channel) {
            has = signaled_to(each, wait->waiter) != wait->came[l];
        }
    }
    pthread_mutex_unlock(&sessions->lock);
    return has;
}

static void sessions_init(weft_context_t *context, void *part)
{
    pthread_mutex_init(&((sessions_t *)part)->lock, NULL);
    wefti_waits_hook(context->endpoint,
                     &(wefti_waits_hooks_t){.user = context, .has_signaled = has_signaled});
}

static void sessions_deinit(weft_context_t *context, void *part)
{
    (void)context;
    pthread_mutex_destroy(&((sessions_t *)part)->lock);
}

weft_status_t wefti_session_enlist(weft_session_t *session)
{
    static const wefti_part_ops_t ops = {sizeof(sessions_t), sessions_init, sessions_deinit,
                                         wefti_part_never_in_use};
    if (!session->puts) {
        return WEFT_OK;
    }
    sessions_t *sessions = wefti_part_get(session->context, WEFTI_PART_SESSIONS, &ops);
    WEFT_RETURN_IF_NO_MEMORY(sessions);
    pthread_mutex_lock(&sessions->lock);
    session->next = sessions->first;
    sessions->first = session;
    pthread_mutex_unlock(&sessions->lock);
    return WEFT_OK;
}

void wefti_session_delist(weft_session_t *session)
{
    sessions_t *sessions = wefti_part_find(session->context, WEFTI_PART_SESSIONS);
    if (sessions == NULL) {
        return;
    }
    pthread_mutex_lock(&sessions->lock);
    weft_session_t **at = &sessions->first;
    while (*at != NULL && *at != session) {
        at = &(*at)->next;
    }
    if (*at != NULL) {
        *at = session->next;
    }
    pthread_mutex_unlock(&sessions->lock);
}
