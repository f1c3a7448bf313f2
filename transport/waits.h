/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Records of waits, which all ranks can read. They serve reports of late ranks, and find ranks that
 * wait for each other in different calls.
 *
 *   waits.c      records in the control blocks: posting, reading
 *   deadlock.c   ranks that wait for each other in a circle
 *
 * A thread that waits for longer than WEFTI_WAITS_AFTER_NS posts a record. Calls on inline streams
 * are described by a hook. A shorter wait costs nothing.
 */
#ifndef WEFT_TRANSPORT_WAITS_H
#define WEFT_TRANSPORT_WAITS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/base/sync.h"

typedef struct wefti_endpoint wefti_endpoint_t;

#define WEFTI_WAITS 4u      /* records of one rank: threads and streams that wait */
#define WEFTI_WAIT_RANKS 6u /* of the ranks that one wait is for */
#define WEFTI_WAITS_AFTER_NS 10000000ull

/* ---- control calls: collectives of the whole world by the endpoint's all-gather ---- */

/* name, its public function for messages */
#define WEFTI_CONTROL_MAP(X)                                                                       \
    X(NONE, "a control all-gather")                                                                \
    X(CONTEXT_CREATE, "context_create")                                                            \
    X(CONTEXT_SHRINK, "context_shrink")                                                            \
    X(CONTEXT_GROW, "context_grow")                                                                \
    X(BARRIER, "context_barrier")                                                                  \
    X(ALL_GATHER, "context_all_gather")                                                            \
    X(TOPOLOGY, "context_topology")                                                                \
    X(MEM_ALLOC, "mem_alloc")                                                                      \
    X(MEM_REGISTER, "mem_register")                                                                \
    X(GROUP, "group creation")                                                                     \
    X(GROUP_CREATE_WORLD, "group_create_world")                                                    \
    X(GROUP_SPLIT, "group_split")                                                                  \
    X(GROUP_DUPLICATE, "group_duplicate")                                                          \
    X(GROUP_CREATE_RANKS, "group_create_ranks")                                                    \
    X(GROUP_CREATE, "group_create")                                                                \
    X(GROUP_DESTROY, "group_destroy")                                                              \
    X(FUSER, "fuser_create")                                                                       \
    X(CAPTURE_END, "capture_end")                                                                  \
    X(SESSION_CREATE, "session_create")                                                            \
    X(SESSION_GET_PARAM, "session_get_param")                                                      \
    X(SESSION_SET_PARAM, "session_set_param")                                                      \
    X(SESSION_GET_STATE, "session_get_state")                                                      \
    X(SESSION_SET_STATE, "session_set_state")                                                      \
    X(SESSION_GET_GRADIENT, "session_get_gradient")                                                \
    X(SESSION_DIGEST, "session_param_digest")                                                      \
    X(SESSION_TRACE, "session_write_trace")                                                        \
    X(SESSION_PROFILE, "session_write_profile")                                                    \
    X(SESSION_CHECK, "session_step (WEFT_CHECK)")                                                  \
    X(CHECKPOINT_SAVE, "session_save_checkpoint")                                                  \
    X(CHECKPOINT_LOAD, "session_load_checkpoint")                                                  \
    X(SNAPSHOT_TAKE, "snapshot_take")

typedef enum wefti_control_kind {
#define WEFTI_CONTROL_ENUM(id, text) WEFTI_CONTROL_##id,
    WEFTI_CONTROL_MAP(WEFTI_CONTROL_ENUM)
#undef WEFTI_CONTROL_ENUM
        WEFTI_CONTROL_KINDS
} wefti_control_kind_t;

/* "mem_alloc"; of a number from a peer too. */
const char *wefti_control_name(uint32_t kind);

/*
 * Until the end of the block the calling thread is in a collective of this kind: all control
 * all-gathers, and those that groups make for it, belong to that. Inside another such block, to the
 * outer one's. endpoint: NULL while ranks join. If the ranks turn out to disagree, that is noted: a
 * rank that ends after its error may do so before others have found it.
 */
typedef struct wefti_control_scope {
    wefti_endpoint_t *endpoint;
    uint32_t before;
    uint32_t record; /* 0: none */
    uint32_t errors; /* of the thread at its start */
} wefti_control_scope_t;
/* Who keeps records of the outer ones, where ranks have joined. Functions may be NULL. */
typedef struct wefti_control_log {
    void *user;
    uint32_t (*begin)(void *user, wefti_control_kind_t name); /* returns record */
    /* An all-gather of the world begins, and is over. number: of the first one of the call, which
     * all ranks number alike; 0: a later one. */
    void (*meets)(void *user, uint32_t record, uint32_t number);
    void (*met)(void *user, uint32_t record);
    void (*end)(void *user, uint32_t record);
} wefti_control_log_t;
/* The calling thread begins an all-gather of the world, and has ended it. */
void wefti_control_meets(wefti_endpoint_t *endpoint);
void wefti_control_met(wefti_endpoint_t *endpoint);
/* Of the calling thread. */
uint32_t wefti_control_kind(void);
/* name: what a record of it is called; ways of one kind are compared by their caller. */
wefti_control_scope_t wefti_control_enter(wefti_endpoint_t *endpoint, wefti_control_kind_t kind,
                                          wefti_control_kind_t name);
void wefti_control_leave(wefti_control_scope_t *scope);
#define WEFTI_IN_CONTROL_AS(endpoint, kind, name)                                                  \
    __attribute__((cleanup(wefti_control_leave), unused)) wefti_control_scope_t control_scope =    \
        wefti_control_enter(endpoint, WEFTI_CONTROL_##kind, name)
#define WEFTI_IN_CONTROL(endpoint, kind) WEFTI_IN_CONTROL_AS(endpoint, kind, WEFTI_CONTROL_##kind)

/* WEFT_ERR_MISMATCH: peer is in a control call of another kind than this rank. */
weft_status_t wefti_control_mismatch(const wefti_endpoint_t *endpoint, uint32_t peer,
                                     uint32_t kind);

/* ---- records ---- */

typedef enum wefti_wait_kind {
    WEFTI_WAIT_NONE = 0,
    WEFTI_WAIT_CONTROL, /* for ranks to come to the control all-gather with this number */
    WEFTI_WAIT_CALL,    /* for ranks to come to the call of a group with this number */
    WEFTI_WAIT_HOST,    /* for late[0] to send what its host knows of a call of a group */
    WEFTI_WAIT_LEAVE,   /* for ranks to leave a group after its calls up to this number */
    WEFTI_WAIT_DATA,    /* for data of a call that all its ranks are in: it comes by itself */
    WEFTI_WAIT_STEP,    /* for one of the ranks late to go on with a session's step */
    WEFTI_WAIT_RECV,    /* for late[0] to send piece number */
    WEFTI_WAIT_SEND,    /* for late[0] to take piece number */
    WEFTI_WAIT_LOCAL,   /* for another thread or stream of this rank */
} wefti_wait_kind_t;

#define WEFTI_WAIT_WORLD UINT32_MAX

typedef struct wefti_wait {
    uint32_t kind;       /* wefti_wait_kind_t */
    uint32_t channel;    /* of the group; STEP: of the session; WEFTI_WAIT_WORLD: none */
    uint32_t number;     /* sequence number, by kind */
    uint32_t late_count; /* ranks that this rank waits for */
    uint32_t late[WEFTI_WAIT_RANKS]; /* the first of these ranks, in the world */
    uint64_t since_ns;               /* by the monotonic clock of the reader's host */
    uint32_t waiter; /* this rank, RECV, SEND: in the group; STEP: in the world. CONTROL: 1 if the
                      * all-gather is one of the ranks of a host, for one of the world */
    /* STEP: signals that late[i] has sent to it in the session. RECV, SEND: which of these the wait
     * for late[i] is. */
    uint32_t came[WEFTI_WAIT_RANKS];
    char text[84]; /* "all_reduce with 4 x f32 (sum)" */
} wefti_wait_t;
_Static_assert(sizeof(wefti_wait_t) == 160, "records lie in shared memory and travel");

#define WEFTI_WAIT_WORDS (sizeof(wefti_wait_t) / 8)

/* In the control block of each rank, which alone writes it; zero at first. */
typedef struct wefti_waits_block {
    _Atomic uint32_t generation; /* odd while it is written; another one whenever records change */
    _Atomic uint32_t count;
    _Atomic uint32_t moves; /* the generation in which something of the rank was seen to move */
    /* Its last wait that ended at the deadline: others may reach theirs a moment later. */
    _Atomic uint32_t vain_count;
    _Atomic uint64_t agreed;    /* deadlock.c: the circle that the rank is in; 0: none */
    _Atomic uint64_t concluded; /* the last circle that was certain, and ended groups only */
    _Atomic uint64_t vain_ns;   /* when, by the clock of the reader's host */
    _Atomic uint32_t vain_late[WEFTI_WAIT_RANKS]; /* the ranks that it waited for */
    _Atomic uint64_t words[WEFTI_WAITS][WEFTI_WAIT_WORDS];
} wefti_waits_block_t;
_Static_assert(sizeof(wefti_waits_block_t) == 64 + WEFTI_WAITS * sizeof(wefti_wait_t),
               "shared memory");

/* A copy of a rank's records. */
typedef struct wefti_waits_view {
    uint32_t generation, count;
    wefti_wait_t list[WEFTI_WAITS];
} wefti_waits_view_t;

/* Of one endpoint, under the lock of waits.c. */
typedef struct wefti_own_circle {
    uint64_t digest;         /* the circle that this rank agreed to */
    bool groups_only;        /* all its ranks wait in calls of groups */
    _Atomic bool ended;      /* it is certain: waits in view return the error */
    wefti_waits_view_t view; /* this rank's records then */
    weft_status_t status;    /* of an error before it that is in text, or WEFT_ERR_MISMATCH */
    char text[512];
} wefti_own_circle_t;

/* Copies the records of a rank to list, [WEFTI_WAITS], and returns their number. 0: the rank does not
 * wait, or not for long. The records of ranks on other hosts are those of the last flood. Any
 * thread. */
uint32_t wefti_waits_read(const wefti_endpoint_t *endpoint, uint32_t rank, wefti_wait_t *list);

/*
 * Follows records from the ranks in late to ranks that do not wait: they cause the delay. A rank that
 * waited until its deadline counts as one that waits. text becomes " 3 5". Without such ranks the
 * answer is late. Returns the first rank.
 */
uint32_t wefti_waits_causes(const wefti_endpoint_t *endpoint, const uint32_t *late,
                            uint32_t late_count, char *text, size_t bytes);

/* A wait in a host's part of a world, with the world's numbers: out, which it fills. */
const wefti_wait_t *wefti_waits_in_world(const wefti_endpoint_t *part, const wefti_wait_t *wait,
                                         wefti_wait_t *out);

/* This rank has waited for these ranks until its deadline, and does not any more. In a host's part
 * of a world, as in the next function, ranks have their numbers there. */
void wefti_waits_gave_up(wefti_endpoint_t *endpoint, const uint32_t *late, uint32_t late_count);

/* The error of a wait that reached its deadline: WEFT_ERR_TIMEOUT, naming the causes. The rank has
 * given up. */
weft_status_t wefti_waits_timed_out(wefti_endpoint_t *endpoint, const wefti_wait_t *wait);

/* ---- posting ---- */

/* Describes a wait: fills in all fields. False: the wait has ended. Any thread of the rank may call
 * it, until wefti_waits_end. */
typedef bool (*wefti_wait_fn)(void *user, wefti_wait_t *out);

/* One thread that waits, usually on its stack; all of it is zero at first. */
typedef struct wefti_waiter {
    struct wefti_waiter *next;
    wefti_endpoint_t *endpoint;   /* of the world */
    const wefti_endpoint_t *part; /* the one waited in: that, or a host's part of the world */
    wefti_wait_fn describe;
    void *user;
    int32_t thread;
    bool posted;
    uint64_t first_ns, next_ns, pause_ns; /* when it looked first, when it does again */
    uint64_t far_ns;                      /* when it may tell other hosts again; 0: never did */
} wefti_waiter_t;

/*
 * Called now and then by a thread that has waited for WEFTI_WAITS_AFTER_NS: posts its record and
 * looks for a circle. An error: the group that the thread waits in must end, because its
 * ranks wait for each other. If the circle is not of groups only, the world has ended instead.
 */
weft_status_t wefti_waits_look(wefti_waiter_t *waiter, wefti_endpoint_t *endpoint,
                               wefti_wait_fn describe, void *user, uint64_t now);
/* The same answer for a call that no thread waits in: it is on an inline stream. Any thread. */
weft_status_t wefti_waits_ended(wefti_endpoint_t *endpoint, wefti_wait_fn describe, void *user);
/* The record of a rank that has not mapped the others, which may have mapped it; NULL: none. */
void wefti_waits_post_alone(wefti_endpoint_t *endpoint, const wefti_wait_t *wait);
/* No wait of before is meant by the number of a channel that a new group has. */
void wefti_waits_forget(wefti_endpoint_t *endpoint, uint32_t channel);
/* The wait has ended. Called before the thread does anything that other ranks wait for. */
void wefti_waits_end(wefti_waiter_t *waiter);

/* A wait for another thread or stream of this rank. Fields after the first four are zero at
 * first. */
typedef struct wefti_local_wait {
    wefti_endpoint_t *endpoint;
    const wefti_signal_t *signal;
    uint32_t target;
    const char *what; /* "an event" */
    uint64_t since_ns;
    wefti_waiter_t waiter;
} wefti_local_wait_t;
/* As wefti_waits_look, also when it has not waited for long. */
void wefti_waits_look_local(wefti_local_wait_t *wait);
static inline void wefti_waits_end_local(wefti_local_wait_t *wait)
{
    wefti_waits_end(&wait->waiter);
}

/* Whether this rank has done its part of a wait of a rank on another host. True if unknown. */
bool wefti_waits_has_come(const wefti_endpoint_t *endpoint, const wefti_wait_t *wait);

/* What rooms above know of a rank's waits; both functions get the context. */
typedef struct wefti_waits_hooks {
    void *user;
    /* Describes the calls that block inline streams. Returns their number; -1: a stream may move. */
    int32_t (*streams)(void *user, wefti_wait_t *list, uint32_t room);
    /* The same as wefti_waits_has_come, for calls of groups, and for steps. */
    bool (*has_come)(void *user, const wefti_wait_t *wait);
    bool (*has_signaled)(void *user, const wefti_wait_t *wait);
} wefti_waits_hooks_t;
/* Sets those that are not NULL. Any thread. */
void wefti_waits_hook(wefti_endpoint_t *endpoint, const wefti_waits_hooks_t *hooks);

#endif
