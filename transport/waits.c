/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Records of what ranks wait in. Every rank writes its own control block; ranks of other hosts get
 * what is in it by floods, and keep it in the control block that stands for the rank there.
 */
#include "transport/waits.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "runtime/base/error.h"
#include "runtime/base/sync.h"
#include "runtime/base/threads.h"
#include "transport/deadlock.h"
#include "transport/endpoint.h"

#define LOOK_MIN_NS 10000000ull
#define LOOK_MAX_NS 200000000ull
/* Between hosts it takes messages to all ranks, over all their links. If all ranks post, each gets as
 * many as there are ranks and links of a rank: in larger worlds they post later and less often. */
#define FAR_AFTER_NS 50000000ull
#define FAR_FREE 64u              /* messages to a rank that cost too little to wait for */
#define FAR_MESSAGE_NS 5000000ull /* for each one more */
#define READ_TRIES 100u

/* ---- kinds of control calls ---- */

const char *wefti_control_name(uint32_t kind)
{
    static const char *const names[] = {
#define NAME(id, text) text,
        WEFTI_CONTROL_MAP(NAME)
#undef NAME
    };
    return kind < WEFTI_CONTROL_KINDS ? names[kind] : "an unknown call";
}

static _Thread_local uint32_t kind_of_thread;
static _Thread_local uint32_t record_of_thread; /* of its call, or 0 */
static _Thread_local bool has_met;              /* that call: other ranks, in an all-gather */

uint32_t wefti_control_kind(void)
{
    return kind_of_thread;
}

weft_status_t wefti_control_mismatch(const wefti_endpoint_t *endpoint, uint32_t peer, uint32_t kind)
{
    const char *own_name = wefti_control_name(kind_of_thread);
    const char *name = wefti_control_name(kind);
    uint32_t own = wefti_endpoint_number(endpoint, endpoint->rank);
    peer = wefti_endpoint_number(endpoint, peer);
    /* the higher rank first, so that both sides report the same text */
    return peer > own ? wefti_error(WEFT_ERR_MISMATCH, "rank %u called %s, rank %u called %s", peer,
                                    name, own, own_name)
                      : wefti_error(WEFT_ERR_MISMATCH, "rank %u called %s, rank %u called %s", own,
                                    own_name, peer, name);
}

wefti_control_scope_t wefti_control_enter(wefti_endpoint_t *endpoint, wefti_control_kind_t kind,
                                          wefti_control_kind_t name)
{
    weft_status_t status;
    endpoint = endpoint != NULL ? endpoint->host : NULL;
    wefti_control_scope_t scope = {endpoint, kind_of_thread, 0, wefti_error_count(&status)};
    if (kind_of_thread == WEFTI_CONTROL_NONE) {
        kind_of_thread = kind;
        if (endpoint != NULL && endpoint->control_log.begin != NULL) {
            scope.record = endpoint->control_log.begin(endpoint->control_log.user, name);
        }
        record_of_thread = scope.record;
        has_met = false;
    }
    return scope;
}

void wefti_control_leave(wefti_control_scope_t *scope)
{
    weft_status_t status;
    kind_of_thread = scope->before;
    if (scope->endpoint != NULL && wefti_error_count(&status) != scope->errors &&
        status == WEFT_ERR_MISMATCH) {
        wefti_endpoint_note_error(scope->endpoint, status, weft_last_error());
    }
    if (scope->record != 0) {
        record_of_thread = 0;
        scope->endpoint->control_log.end(scope->endpoint->control_log.user, scope->record);
    }
}

void wefti_control_meets(wefti_endpoint_t *endpoint)
{
    endpoint->control_count++;
    if (record_of_thread != 0 && endpoint->control_log.meets != NULL) {
        endpoint->control_log.meets(endpoint->control_log.user, record_of_thread,
                                    has_met ? 0 : endpoint->control_count);
        has_met = true;
    }
}

void wefti_control_met(wefti_endpoint_t *endpoint)
{
    if (record_of_thread != 0 && endpoint->control_log.met != NULL) {
        endpoint->control_log.met(endpoint->control_log.user, record_of_thread);
    }
}

/* ---- records ---- */

void wefti_waits_store(wefti_waits_block_t *waits, uint32_t generation, const wefti_wait_t *list,
                       uint32_t count)
{
    /* odd first: readers that see new words see that */
    atomic_store_explicit(&waits->generation, generation - 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    atomic_store_explicit(&waits->count, count, memory_order_relaxed);
    for (uint32_t i = 0; i < count; i++) {
        uint64_t words[WEFTI_WAIT_WORDS];
        memcpy(words, &list[i], sizeof words);
        for (size_t w = 0; w < WEFTI_WAIT_WORDS; w++) {
            atomic_store_explicit(&waits->words[i][w], words[w], memory_order_relaxed);
        }
    }
    atomic_store_explicit(&waits->generation, generation, memory_order_release);
}

void wefti_waits_store_vain(wefti_waits_block_t *waits, uint64_t at_ns, const uint32_t *late,
                            uint32_t count)
{
    count = count < WEFTI_WAIT_RANKS ? count : WEFTI_WAIT_RANKS;
    atomic_store_explicit(&waits->vain_ns, at_ns, memory_order_relaxed);
    for (uint32_t i = 0; i < count; i++) {
        atomic_store_explicit(&waits->vain_late[i], late[i], memory_order_relaxed);
    }
    /* release: readers of the count see the rest */
    atomic_store_explicit(&waits->vain_count, count, memory_order_release);
}

uint32_t wefti_waits_load(const wefti_waits_block_t *waits, wefti_waits_view_t *out)
{
    for (uint32_t try = 0; try < READ_TRIES; try++) {
        /* acquire: the words of this generation; the fence: not those of a later one */
        uint32_t generation = atomic_load_explicit(&waits->generation, memory_order_acquire);
        uint32_t count = atomic_load_explicit(&waits->count, memory_order_relaxed);
        if ((generation & 1) != 0 || count > WEFTI_WAITS) {
            wefti_cpu_relax();
            continue;
        }
        for (uint32_t i = 0; i < count; i++) {
            uint64_t words[WEFTI_WAIT_WORDS];
            for (size_t w = 0; w < WEFTI_WAIT_WORDS; w++) {
                words[w] = atomic_load_explicit(&waits->words[i][w], memory_order_relaxed);
            }
            memcpy(&out->list[i], words, sizeof words);
            wefti_wait_t *wait = &out->list[i]; /* another process wrote it */
            wait->text[sizeof wait->text - 1] = '\0';
            wait->late_count =
                wait->late_count < WEFTI_WAIT_RANKS ? wait->late_count : WEFTI_WAIT_RANKS;
        }
        atomic_thread_fence(memory_order_acquire);
        if (atomic_load_explicit(&waits->generation, memory_order_relaxed) == generation) {
            out->generation = generation;
            out->count = count;
            return count;
        }
    }
    out->count = 0;
    return 0;
}

uint32_t wefti_waits_read(const wefti_endpoint_t *endpoint, uint32_t rank, wefti_wait_t *list)
{
    wefti_waits_view_t view;
    uint32_t count =
        rank < endpoint->world_size ? wefti_waits_load(&endpoint->control[rank]->waits, &view) : 0;
    memcpy(list, view.list, count * sizeof *list);
    return count;
}

bool wefti_waits_has_come(const wefti_endpoint_t *endpoint, const wefti_wait_t *wait)
{
    const wefti_waits_hooks_t *hooks = &endpoint->waits_hooks;
    switch (wait->kind) {
    case WEFTI_WAIT_CONTROL:
        endpoint = wait->waiter != 0 ? endpoint->inner : endpoint->host;
        return endpoint == NULL ||
               endpoint->ops->control_sent((wefti_endpoint_t *)endpoint, wait->number);
    case WEFTI_WAIT_CALL:
    case WEFTI_WAIT_HOST:
    case WEFTI_WAIT_LEAVE:
    case WEFTI_WAIT_RECV:
    case WEFTI_WAIT_SEND:
        return hooks->has_come == NULL || hooks->has_come(hooks->user, wait);
    case WEFTI_WAIT_STEP:
        return hooks->has_signaled == NULL || hooks->has_signaled(hooks->user, wait);
    default:
        return true;
    }
}

/* ---- one host's part of a world: its waits are posted in the world ---- */

static wefti_endpoint_t *world_of(wefti_endpoint_t *endpoint)
{
    endpoint = endpoint->host;
    return endpoint->outer != NULL ? endpoint->outer : endpoint;
}

/* Numbers of all-gathers are its own. While its ranks join, a wait is in no circle. */
static void to_world(const wefti_endpoint_t *part, wefti_wait_t *wait)
{
    if (part->outer == NULL) {
        return;
    }
    bool known = wait->kind == WEFTI_WAIT_LOCAL || wait->kind == WEFTI_WAIT_CONTROL;
    wait->kind = known ? wait->kind : WEFTI_WAIT_DATA;
    for (uint32_t i = 0; i < wait->late_count; i++) {
        wait->late[i] = wefti_endpoint_number(part, wait->late[i]);
    }
}

const wefti_wait_t *wefti_waits_in_world(const wefti_endpoint_t *part, const wefti_wait_t *wait,
                                         wefti_wait_t *out)
{
    *out = *wait;
    to_world(part, out);
    return out;
}

/* ---- causes ---- */

#define CAUSES 64u

static void add(uint32_t *ranks, uint32_t *count, uint32_t rank)
{
    for (uint32_t i = 0; i < *count; i++) {
        if (ranks[i] == rank) {
            return;
        }
    }
    if (*count < CAUSES) {
        ranks[(*count)++] = rank;
    }
}

static void list_ranks(const uint32_t *ranks, uint32_t count, char *text, size_t bytes)
{
    size_t used = 0;
    text[0] = '\0';
    for (uint32_t i = 0; i < count && used + 12 < bytes; i++) {
        used += (size_t)snprintf(text + used, bytes - used, " %u", ranks[i]);
    }
}

/* While this rank waited, rank did as well, but gave up: adds those that it waited for. */
static bool add_given_up(const wefti_endpoint_t *endpoint, uint32_t rank, uint32_t *ranks,
                         uint32_t *count)
{
    if (rank >= endpoint->world_size) {
        return false;
    }
    const wefti_waits_block_t *waits = &endpoint->control[rank]->waits;
    /* acquire: the ranks are those of this count; another process wrote them */
    uint32_t late_count = atomic_load_explicit(&waits->vain_count, memory_order_acquire);
    uint64_t at_ns = atomic_load_explicit(&waits->vain_ns, memory_order_relaxed);
    if (late_count == 0 || late_count > WEFTI_WAIT_RANKS ||
        wefti_now_ns() - at_ns > endpoint->settings->timeout_ns) {
        return false;
    }
    for (uint32_t l = 0; l < late_count; l++) {
        add(ranks, count, atomic_load_explicit(&waits->vain_late[l], memory_order_relaxed));
    }
    return true;
}

uint32_t wefti_waits_causes(const wefti_endpoint_t *endpoint, const uint32_t *late,
                            uint32_t late_count, char *text, size_t bytes)
{
    uint32_t ranks[CAUSES], count = 0, causes[CAUSES], cause_count = 0;
    for (uint32_t i = 0; i < late_count; i++) {
        add(ranks, &count, late[i]);
    }
    for (uint32_t i = 0; i < count; i++) {
        wefti_wait_t list[WEFTI_WAITS];
        uint32_t waits = wefti_waits_read(endpoint, ranks[i], list);
        for (uint32_t w = 0; w < waits; w++) {
            for (uint32_t l = 0; l < list[w].late_count; l++) {
                add(ranks, &count, list[w].late[l]);
            }
        }
        if (waits == 0 && ranks[i] != endpoint->rank && /* this one waits, or did until now */
            !add_given_up(endpoint, ranks[i], ranks, &count)) {
            add(causes, &cause_count, ranks[i]);
        }
    }
    if (cause_count == 0) {
        list_ranks(late, late_count, text, bytes);
        return late_count > 0 ? late[0] : UINT32_MAX;
    }
    list_ranks(causes, cause_count, text, bytes);
    return causes[0];
}

void wefti_waits_gave_up(wefti_endpoint_t *endpoint, const uint32_t *late, uint32_t late_count)
{
    wefti_endpoint_t *world = world_of(endpoint);
    wefti_wait_t wait = {.late_count =
                             late_count < WEFTI_WAIT_RANKS ? late_count : WEFTI_WAIT_RANKS};
    memcpy(wait.late, late, wait.late_count * sizeof *late);
    to_world(endpoint, &wait);
    if (late_count > 0) {
        wefti_waits_store_vain(&world->control[world->rank]->waits, wefti_now_ns(), wait.late,
                               wait.late_count);
    }
}

weft_status_t wefti_waits_timed_out(wefti_endpoint_t *endpoint, const wefti_wait_t *wait)
{
    char late[200], facts[200];
    wefti_endpoint_t *world = world_of(endpoint);
    wefti_wait_t known = *wait;
    to_world(endpoint, &known);
    wefti_waits_gave_up(world, known.late, known.late_count);
    uint32_t first = wefti_waits_causes(world, known.late, known.late_count, late, sizeof late);
    wefti_endpoint_late_facts(world, first, facts, sizeof facts);
    return wefti_error(
        WEFT_ERR_TIMEOUT,
        "rank %u waited %.3g s in %s; late: rank%s%s; timeout (WEFT_TIMEOUT) exceeded", world->rank,
        (double)endpoint->settings->timeout_ns * 1e-9, wait->text,
        wait->late_count > 0 ? late : " unknown", facts);
}

/* ---- posting ---- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static wefti_waiter_t *waiters; /* of this process, under lock */

/* A forked child has none of these threads. */
static void forget(void)
{
    pthread_mutex_init(&lock, NULL);
    waiters = NULL;
}

static void init_once(void)
{
    pthread_atfork(NULL, NULL, forget);
}

/* Ranks of one world that are threads of this process have the same control blocks, or keys. */
static bool same_world(const wefti_endpoint_t *a, const wefti_endpoint_t *b)
{
    return a->control[0] == b->control[0] || (a->world_key != 0 && a->world_key == b->world_key);
}

static bool is_waiting(void *user, int32_t id)
{
    const wefti_endpoint_t *endpoint = user;
    for (const wefti_waiter_t *waiter = waiters; waiter != NULL; waiter = waiter->next) {
        if (waiter->thread == id && same_world(waiter->endpoint, endpoint)) {
            return true;
        }
    }
    return false;
}

bool wefti_waits_rest(wefti_endpoint_t *endpoint)
{
    return wefti_threads_rest(is_waiting, endpoint);
}

/* Whether a record of this rank was in a circle that ended. Under the lock. */
static bool is_ended(const wefti_endpoint_t *endpoint, const wefti_wait_t *wait)
{
    const wefti_own_circle_t *circle = &endpoint->circle;
    for (uint32_t i = 0; circle->ended && i < circle->view.count; i++) {
        const wefti_wait_t *dead = &circle->view.list[i];
        if (wait->kind != WEFTI_WAIT_LOCAL && wait->kind == dead->kind &&
            wait->channel == dead->channel && wait->number == dead->number) {
            return true;
        }
    }
    return false;
}

/* What the rank waits in, now. False: something of it moves, or there is no room. */
static bool describe_all(wefti_endpoint_t *endpoint, wefti_waits_view_t *out)
{
    bool waits = true;
    out->count = 0;
    for (const wefti_waiter_t *waiter = waiters; waiter != NULL; waiter = waiter->next) {
        if (waiter->endpoint != endpoint) {
            continue;
        }
        if (out->count == WEFTI_WAITS) {
            return false;
        }
        wefti_wait_t *wait = &out->list[out->count];
        memset(wait, 0, sizeof *wait);
        /* A wait that another thread has found to be in a circle is about to end. */
        bool goes_on = !waiter->describe(waiter->user, wait);
        to_world(waiter->part, wait);
        goes_on = goes_on || is_ended(endpoint, wait);
        wait->since_ns = wait->since_ns > waiter->first_ns ? wait->since_ns : waiter->first_ns;
        if (!goes_on) {
            out->count++;
        } else {
            waits = false;
        }
    }
    const wefti_waits_hooks_t *hooks = &endpoint->waits_hooks;
    if (hooks->streams == NULL) {
        return waits;
    }
    memset(&out->list[out->count], 0, (WEFTI_WAITS - out->count) * sizeof *out->list);
    int32_t more = hooks->streams(hooks->user, &out->list[out->count], WEFTI_WAITS - out->count);
    for (int32_t i = 0; i < more; i++) {
        waits = waits && !is_ended(endpoint, &out->list[out->count++]);
    }
    return waits && more >= 0;
}

static bool same_records(const wefti_waits_view_t *a, const wefti_waits_view_t *b)
{
    return a->count == b->count && memcmp(a->list, b->list, a->count * sizeof *a->list) == 0;
}

bool wefti_waits_refresh(wefti_endpoint_t *endpoint, wefti_waits_view_t *out)
{
    wefti_waits_block_t *own = &endpoint->control[endpoint->rank]->waits;
    wefti_waits_view_t posted;
    bool waits = describe_all(endpoint, out);
    wefti_waits_load(own, &posted);
    out->generation = posted.generation;
    if (!same_records(&posted, out)) {
        out->generation += 2;
        wefti_waits_store(own, out->generation, out->list, out->count);
    }
    return waits;
}

void wefti_waits_post_alone(wefti_endpoint_t *endpoint, const wefti_wait_t *wait)
{
    wefti_waits_block_t *own = &endpoint->control[endpoint->rank]->waits;
    uint32_t generation = atomic_load_explicit(&own->generation, memory_order_relaxed);
    wefti_waits_store(own, generation + 2, wait, wait != NULL);
}

/* When to look again: soon while a circle is being agreed on, else ever later. */
static void set_next(wefti_waiter_t *waiter, uint64_t now, bool soon)
{
    uint64_t pause_ns = soon ? LOOK_MIN_NS : 2 * waiter->pause_ns;
    pause_ns = pause_ns < LOOK_MIN_NS ? LOOK_MIN_NS : pause_ns;
    waiter->pause_ns = pause_ns < LOOK_MAX_NS ? pause_ns : LOOK_MAX_NS;
    waiter->next_ns = now + waiter->pause_ns;
}

static void begin(wefti_waiter_t *waiter, wefti_endpoint_t *part, wefti_wait_fn describe,
                  void *user, uint64_t now)
{
    *waiter = (wefti_waiter_t){.next = waiters,
                               .endpoint = world_of(part),
                               .part = part,
                               .describe = describe,
                               .user = user,
                               .thread = wefti_thread_id(),
                               .posted = true,
                               .first_ns = now};
    waiters = waiter;
}

/* How much later than FAR_AFTER_NS, and than the last time, a wait is posted to other hosts. */
static uint64_t far_pause(const wefti_endpoint_t *endpoint)
{
    uint64_t ranks = endpoint->world_size, links = 0;
    uint64_t most = endpoint->settings->timeout_ns / 8;
    for (uint64_t distance = 1; distance < ranks; distance *= 2) {
        links += 2;
    }
    uint64_t pause = ranks * links > FAR_FREE ? (ranks * links - FAR_FREE) * FAR_MESSAGE_NS : 0;
    return most != 0 && most < pause ? most : pause;
}

static bool is_far(const wefti_waiter_t *waiter, uint64_t now)
{
    return now - waiter->first_ns >= FAR_AFTER_NS + far_pause(waiter->endpoint);
}

static weft_status_t end_of(wefti_endpoint_t *endpoint, wefti_wait_fn describe, void *user)
{
    wefti_wait_t wait = {0};
    return describe(user, &wait) && is_ended(endpoint, &wait)
               ? wefti_error_adopt(endpoint->circle.status, endpoint->circle.text)
               : WEFT_OK;
}

/* A rank that the wait is for has refused the call. */
static weft_status_t check_refused(wefti_endpoint_t *part, wefti_wait_fn describe, void *user)
{
    wefti_wait_t wait = {0};
    return part->outer == NULL && describe(user, &wait) ? wefti_endpoint_refused(part, &wait)
                                                        : WEFT_OK;
}

weft_status_t wefti_waits_ended(wefti_endpoint_t *endpoint, wefti_wait_fn describe, void *user)
{
    endpoint = endpoint->host;
    if (endpoint->world_size == 1) {
        return WEFT_OK;
    }
    /* relaxed: asked again soon. The caller may have locks that a look takes after this one. */
    if (!atomic_load_explicit(&endpoint->circle.ended, memory_order_relaxed) ||
        pthread_mutex_trylock(&lock) != 0) {
        return check_refused(endpoint, describe, user);
    }
    weft_status_t status = end_of(endpoint, describe, user);
    pthread_mutex_unlock(&lock);
    return status;
}

void wefti_waits_forget(wefti_endpoint_t *endpoint, uint32_t channel)
{
    wefti_own_circle_t *circle = &endpoint->host->circle;
    pthread_mutex_lock(&lock);
    for (uint32_t i = 0; i < circle->view.count; i++) { /* another rank may end it later */
        if (circle->view.list[i].channel == channel) {
            circle->view.list[i].kind = WEFTI_WAIT_NONE;
        }
    }
    pthread_mutex_unlock(&lock);
}

weft_status_t wefti_waits_look(wefti_waiter_t *waiter, wefti_endpoint_t *endpoint,
                               wefti_wait_fn describe, void *user, uint64_t now)
{
    weft_status_t status = WEFT_OK;
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    wefti_endpoint_t *part = endpoint->host;
    endpoint = world_of(part);
    if (now < waiter->next_ns || endpoint->world_size == 1) {
        return WEFT_OK;
    }
    pthread_once(&once, init_once);
    pthread_mutex_lock(&lock);
    if (!waiter->posted) {
        begin(waiter, part, describe, user, now);
    }
    wefti_deadlock_t found = wefti_deadlock_look(endpoint);
    if (is_far(waiter, now) && now >= waiter->far_ns) {
        endpoint->ops->waits_posted(endpoint);
        waiter->far_ns = now + far_pause(endpoint);
    }
    if (endpoint->circle.ended) {
        status = end_of(endpoint, describe, user);
    }
    weft_status_t circle_status = endpoint->circle.status;
    char text[sizeof endpoint->circle.text];
    memcpy(text, endpoint->circle.text, sizeof text);
    pthread_mutex_unlock(&lock);
    set_next(waiter, now, found >= WEFTI_DEADLOCK_MAYBE);
    if (found == WEFTI_DEADLOCK) {
        wefti_endpoint_abort(endpoint, circle_status, text);
    }
    return status == WEFT_OK ? check_refused(part, describe, user) : status;
}

static bool describe_local(void *user, wefti_wait_t *out)
{
    const wefti_local_wait_t *wait = user;
    out->kind = WEFTI_WAIT_LOCAL;
    out->channel = WEFTI_WAIT_WORLD;
    out->late_count = 1;
    out->late[0] = wait->endpoint->rank;
    out->since_ns = wait->since_ns;
    snprintf(out->text, sizeof out->text, "%s", wait->what);
    return !wefti_signal_has_reached(wait->signal, wait->target);
}

void wefti_waits_look_local(wefti_local_wait_t *wait)
{
    uint64_t now = wefti_now_ns();
    if (wait->since_ns == 0) { /* once: other threads read it as soon as it is posted */
        wait->since_ns = now;
    }
    if (now - wait->since_ns >= WEFTI_WAITS_AFTER_NS) {
        wefti_waits_look(&wait->waiter, wait->endpoint, describe_local, wait, now);
    }
}

void wefti_waits_hook(wefti_endpoint_t *endpoint, const wefti_waits_hooks_t *hooks)
{
    wefti_waits_hooks_t *own = &endpoint->waits_hooks;
    pthread_mutex_lock(&lock);
    own->user = hooks->user;
    own->streams = hooks->streams != NULL ? hooks->streams : own->streams;
    own->has_come = hooks->has_come != NULL ? hooks->has_come : own->has_come;
    own->has_signaled = hooks->has_signaled != NULL ? hooks->has_signaled : own->has_signaled;
    pthread_mutex_unlock(&lock);
}

void wefti_waits_end(wefti_waiter_t *waiter)
{
    if (!waiter->posted) {
        return;
    }
    wefti_endpoint_t *endpoint = waiter->endpoint;
    pthread_mutex_lock(&lock);
    wefti_waiter_t **at = &waiters;
    bool others = false;
    while (*at != waiter) {
        at = &(*at)->next;
    }
    *at = waiter->next;
    for (const wefti_waiter_t *each = waiters; each != NULL; each = each->next) {
        others = others || each->endpoint == endpoint;
    }
    waiter->posted = false;
    wefti_waits_view_t view = {.count = 0};
    if (others) {
        wefti_waits_refresh(endpoint, &view);
    } else {
        wefti_waits_block_t *own = &endpoint->control[endpoint->rank]->waits;
        wefti_waits_store(own, 2 + atomic_load_explicit(&own->generation, memory_order_relaxed),
                          NULL, 0);
    }
    /* It was reported to other hosts, which must not take it for the rank's state for ever. */
    if (waiter->far_ns != 0) {
        endpoint->ops->waits_posted(endpoint);
    }
    pthread_mutex_unlock(&lock);
}
