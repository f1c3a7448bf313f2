/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How ranks of one world reach each other: bootstrap, memory that peers reach, liveness, waiting.
 *
 *   control block   one per rank, shared: abort record, departure, all-gathers
  *   region          one per rank: memory on the rank's device, the same size and layout on all
 *                   ranks, so an offset names a place on every rank; region_of[r] + offset is rank
 *                   r's copy, as seen here
 *   link            what two ranks can do with each other's region: load and store it (DIRECT), or
 *                   only put bytes into it and raise counters in it, on lanes (link.c)
 *
 * Backends: shm (processes of one host; memfds passed over a unix socket, pidfds for liveness),
 * inproc (threads of one process meeting at a hub), null (a world of one; the copy to start a new
 * backend from), hosts (processes of several hosts: shm or null inside each, links between them).
 * Dispatch and argument checks sit in transport.c; backends stay short.
 */
#ifndef WEFT_TRANSPORT_TRANSPORT_H
#define WEFT_TRANSPORT_TRANSPORT_H

#include <weft/context.h>

#include "runtime/base/fault.h"
#include "runtime/base/interrupt.h"
#include "runtime/base/log.h"
#include "runtime/base/memory.h"
#include "runtime/base/settings.h"
#include "transport/waits.h"

#include <pthread.h>

/* What a transport can do between two ranks; plans say what their algorithms need. */
#define WEFTI_CAP_DIRECT (1ull << 0) /* map peers' regions, load and store */
#define WEFTI_CAP_PUT (1ull << 1)    /* wefti_put */
#define WEFTI_CAP_SIGNAL (1ull << 2) /* wefti_signal_peer */

/* Lanes of a link. Those of schedules come first; groups write their channels on one of their own.
 */
#define WEFTI_LINK_LANES 32u
#define WEFTI_LANE_CHANNEL 16u

/* Calls that a rank refused without a message to the ranks that they were for. */
#define WEFTI_REFUSALS 4u /* at a time */
typedef enum wefti_refusal_state {
    WEFTI_REFUSAL_NONE = 0, /* or it has made a call like it since */
    WEFTI_REFUSAL_OPEN,     /* ranks that wait for the call end their wait */
    WEFTI_REFUSAL_RETRIED,  /* it is in such a call */
} wefti_refusal_state_t;
typedef struct wefti_refusal {
    uint32_t kind;    /* wefti_wait_kind_t of waits for it: SEND, RECV, STEP */
    uint32_t channel; /* as in their wefti_wait_t */
    uint32_t peer;    /* the rank of the world that waits; UINT32_MAX: any */
    int32_t status;   /* weft_status_t */
    char text[WEFTI_ERROR_TEXT_BYTES];
} wefti_refusal_t;
#define WEFTI_REFUSAL_WORDS (sizeof(wefti_refusal_t) / 8)
_Static_assert(sizeof(wefti_refusal_t) % 8 == 0, "copied by words");
typedef struct wefti_refusal_block {
    _Atomic uint64_t serial; /* 4 * n + state: greater with each change; the words of that n */
    _Atomic uint64_t words[WEFTI_REFUSAL_WORDS];
} wefti_refusal_block_t;

/* Shared between ranks; all of it is zero at first. */
typedef struct wefti_control {
    wefti_fault_t abort;
    uint32_t pid;
    _Atomic uint32_t left;    /* 1: released its context, so the end of its process is no death */
    _Atomic uint32_t gave_up; /* the last attempt that this rank has given up */
    _Atomic uint32_t region;  /* shm.c: whether its region is in use after it has left */
    uint8_t pad[8];
    /* mapped.c: pieces of all-gathers that this rank has published, and its bytes in the last two.
     */
    _Atomic uint32_t gathered;
    uint32_t pad2;
    uint64_t gather_bytes[2];
    uint32_t gather_kind[2]; /* wefti_control_kind_t, likewise */
    /* Of rank 0's block only: pieces that all ranks have published, on which ranks sleep, */
    wefti_signal_t complete;
    _Atomic uint32_t arrived; /* how often a rank has published one, */
    uint32_t pad3;
    /* and of the last two, above its number: the first rank, */
    _Atomic uint64_t first[2];
    _Atomic uint64_t failed[2]; /* and whether a rank has failed */
    uint8_t pad4[48];
    wefti_waits_block_t waits; /* what this rank waits in */
    wefti_fault_t cause;       /* cause.c: the first error of one of its groups */
    wefti_refusal_block_t refusals[WEFTI_REFUSALS]; /* cause.c: its groups go on */
} wefti_control_t;
_Static_assert(offsetof(wefti_control_t, waits) == 640, "control blocks lie in shared memory");

/* What a rank answers to a process that asks what the ranks of the world do: memory that
 * wefti_free(endpoint->allocator, ..) frees, or NULL. relays: that process asks by this rank. turn:
 * its question is asked again, with the next number, where a host does not answer. */
typedef void *(*wefti_answer_fn)(const wefti_endpoint_t *endpoint, bool relays, uint32_t turn,
                                 size_t *out_bytes);

typedef struct wefti_endpoint_params {
    uint32_t rank, world_size;
    const char *address;         /* shm: "unix:@name" or "unix:/path"; others: see job */
    const struct wefti_job *job; /* transport/bootstrap/bootstrap.h: how ranks find each other; may
                                  * be NULL with a hub, a unix address or a world of one */
    weft_hub_t *hub;             /* inproc */
    const wefti_settings_t *settings; /* borrowed for the endpoint's life */
    const wefti_log_t *log;           /* likewise */
    const weft_allocator_t *allocator;
    const uint32_t *numbers; /* one host's part of a world: the ranks' numbers there; borrowed */
    struct wefti_endpoint *outer; /* likewise: that world's, where waits are posted */
    const char *host_name;        /* likewise; NULL: one host */
    wefti_interrupter_t interrupt;
    wefti_answer_fn answer; /* NULL: none */
} wefti_endpoint_params_t;

/* What went over a link that puts since it was opened; for reports of slow links and tests. */
typedef struct wefti_link_stats {
    uint64_t bytes_sent, bytes_received; /* of puts */
    uint64_t messages_sent, messages_received;
    uint64_t busy_ns; /* while something for this peer was waiting to be sent */
} wefti_link_stats_t;

typedef struct wefti_transport_ops {
    const char *name;
    size_t endpoint_bytes; /* of the backend's struct, zeroed by the front */
    /* Collective. Fills control[]; the front has filled the common fields. */
    weft_status_t (*open)(wefti_endpoint_t *endpoint, const wefti_endpoint_params_t *params);
    /* Also after a failed open, and in a forked child (then it gives back the child's copies only).
     */
    void (*close)(wefti_endpoint_t *endpoint);
    /* Host memory only: makes the own region bytes long and maps all peers'. later: what is new
     * has addresses only; else memory too, faulted in. Collective. */
    weft_status_t (*region_grow)(wefti_endpoint_t *endpoint, size_t bytes, bool later);
    /* Memory for [offset, offset + bytes) of the own region, faulted in. Any thread. */
    weft_status_t (*region_commit)(wefti_endpoint_t *endpoint, size_t offset, size_t bytes);
    /* Host memory only: puts the own region's [offset, offset + bytes) in place of the pages at
     * address, which then are the same memory. Not where ranks share an address space. */
    weft_status_t (*region_map)(wefti_endpoint_t *endpoint, size_t offset, size_t bytes,
                                void *address);
    /* WEFT_OK, or WEFT_ERR_PEER_DIED naming the rank; cheap enough for the slow part of a wait. */
    weft_status_t (*check_peers)(wefti_endpoint_t *endpoint);
    /* The same of all ranks, also where check_peers looks at some of them in turn. */
    weft_status_t (*check_all_peers)(wefti_endpoint_t *endpoint);

    /* What follows is WEFTI_TRANSPORT_MAPPED (endpoint.h) where the control blocks and regions of
     * all ranks are mapped. */
    uint64_t caps;
    bool mapped; /* progress and yield_progress have nothing to do, and are not called */
    /* As wefti_put_zero_copy and wefti_signal_peer say; the arguments are checked. */
    weft_status_t (*put)(wefti_endpoint_t *endpoint, uint32_t peer, size_t offset, const void *data,
                         size_t bytes, uint32_t lane, wefti_signal_t *in_use);
    weft_status_t (*signal)(wefti_endpoint_t *endpoint, uint32_t peer, size_t offset,
                            uint32_t value, uint32_t lane);
    /* False: not within wefti_endpoint_patience. */
    bool (*flush)(wefti_endpoint_t *endpoint);
    /* Of small data, when ranks join, bind and leave; of no data: a barrier. */
    weft_status_t (*all_gather)(wefti_endpoint_t *endpoint, const void *send, size_t bytes,
                                void *recv);
    /* Whether own is true on any rank. */
    weft_status_t (*any)(wefti_endpoint_t *endpoint, bool own, bool *out_any);
    /* The world ended here: tells ranks whose control blocks are not mapped. */
    void (*aborted)(wefti_endpoint_t *endpoint, weft_status_t status, const char *text);
    /* As wefti_endpoint_progress and wefti_endpoint_yield_progress say. */
    void (*progress)(wefti_endpoint_t *endpoint);
    void (*yield_progress)(wefti_endpoint_t *endpoint);
    /* What this rank and the peer reach each other by, and why: "tcp", "10.0.0.1 eth0 -> ..". */
    void (*describe)(wefti_endpoint_t *endpoint, uint32_t peer, char *name, size_t name_bytes,
                     char *reason, size_t reason_bytes);
    void (*link_stats)(wefti_endpoint_t *endpoint, uint32_t peer, wefti_link_stats_t *out);
    /* waits.h: what this rank waits in has been posted: goes to ranks whose control blocks are not
     * mapped. Under the lock of waits.c. */
    void (*waits_posted)(wefti_endpoint_t *endpoint);
    /* cause in this rank's control block is set, or refusals changed: the same. */
    void (*error_noted)(wefti_endpoint_t *endpoint);
    void (*refusal_changed)(wefti_endpoint_t *endpoint);
    /* So has gave_up. */
    void (*gave_up)(wefti_endpoint_t *endpoint);
    /* This rank has sent its part of the control all-gather that another rank waits for. */
    bool (*control_sent)(wefti_endpoint_t *endpoint, uint32_t number);
    /* Binds the thread that makes progress in the background, if there is one. */
    void (*bind_progress)(wefti_endpoint_t *endpoint, const uint32_t *cpus, uint32_t cpu_count);
} wefti_transport_ops_t;

/* One live allocation; the array is sorted by offset. */
typedef struct wefti_region_block {
    size_t offset, bytes;
} wefti_region_block_t;

/* Base of every backend's endpoint: member 0. */
struct wefti_endpoint {
    const wefti_transport_ops_t *ops;
    wefti_endpoint_t *host; /* the endpoint that ops work on: this one, or a device side's */
    uint32_t rank, world_size;
    uint64_t caps;                /* what all of this rank's links can do */
    uint64_t host_caps;           /* what those to ranks of this host can do */
    uint32_t local_rank_count;    /* ranks on this machine, for waiting and progress */
    const uint32_t *numbers;      /* as in the params */
    wefti_endpoint_t *outer;      /* likewise */
    const char *host_name;        /* likewise */
    uint32_t host_count;          /* hosts are numbered by their first ranks */
    uint32_t *host_of;            /* [world_size] */
    char (*host_names)[64];       /* [host_count]; NULL: one host, or hosts without names */
    wefti_endpoint_t *inner;      /* hosts: the ranks of this host among themselves, else NULL */
    _Atomic uint32_t link_faults; /* links that broke although both ends live: wefti_link_fault_t */
    struct wefti_link_fault *faults; /* [link_faults], under the backend's lock */
    weft_device_t *device;           /* NULL: host memory */
    const wefti_settings_t *settings;
    const wefti_log_t *log;
    const weft_allocator_t *allocator;
    wefti_interrupter_t interrupt;
    bool (*meanwhile)(void *user); /* as wefti_endpoint_while_waiting says */
    void *meanwhile_user;
    wefti_control_t **control; /* [world_size] */
    uint8_t *
        *region_of; /* [world_size] addresses on this rank's device; NULL until the first alloc,
                     * and for ranks whose memory cannot be loaded and stored from here */
    _Atomic size_t region_bytes; /* committed; it only grows */
    size_t region_fresh_bytes;   /* nothing from here on was ever handed out: it is still zero */
    /* Guards blocks and their counts: one thread allocates, but others may free meanwhile (a
     * program's garbage collector ends a session). */
    pthread_mutex_t blocks_lock;
    wefti_region_block_t *blocks;
    size_t block_count, block_capacity;
    bool region_kept;           /* stays mapped when the endpoint is closed */
    void *verdicts;             /* scratch of wefti_endpoint_agree */
    const uint32_t *owner_word; /* a page of its own that reads 0 in a forked child */
    uint32_t gather_epoch;      /* all-gathers, or pieces of them, that this rank has begun */
    /* One host's part: when an all-gather of the world was last known to go on; else NULL. */
    const _Atomic uint64_t *gather_moved_ns;
    wefti_waits_hooks_t waits_hooks;
    wefti_own_circle_t circle;
    uint64_t world_key; /* of ranks that do not map each other's control blocks, else 0 */
    _Atomic uint64_t late_reported_ns; /* when a late rank was last reported */
    struct wefti_stacks *stacks;       /* with WEFT_LATE_STACKS; else NULL */
    uint32_t free_cores;   /* cores per local rank beyond the first, 0 when ranks share cores */
    bool crowded;          /* ranks outnumber cores, on this machine */
    bool may_spin;         /* false when crowded, or where a progress thread needs the core */
    _Atomic bool departed; /* some rank has left: waits look whether it is theirs */
    _Atomic uint64_t patience_ns; /* as wefti_endpoint_patience returns it */
    wefti_control_log_t control_log;
    uint32_t control_count; /* all-gathers that this rank has begun, for records of control calls */
    wefti_answer_fn answer;
    char ask_name[16]; /* where processes of this host ask about the ranks of others; "": nowhere */
};

/* Chooses the backend (hub: inproc; world of one: null; else shm) and joins the world. Collective.
 */
weft_status_t wefti_endpoint_open(const wefti_endpoint_params_t *params,
                                  wefti_endpoint_t **out_endpoint);
void wefti_endpoint_close(wefti_endpoint_t *endpoint); /* accepts NULL */

/*
 * device_side.c: an endpoint beside host whose region is memory of device; everything else is
 * host's, which must outlive it. Not collective: the region is taken at the first alloc.
 */
weft_status_t wefti_endpoint_device_side(wefti_endpoint_t *host, weft_device_t *device,
                                         wefti_endpoint_t **out_side);
void wefti_endpoint_device_side_close(wefti_endpoint_t *side); /* accepts NULL */

/* False in a forked child, whose context is unusable: one load, so fast paths may ask. */
static inline bool wefti_endpoint_owned(const wefti_endpoint_t *endpoint)
{
    return *endpoint->owner_word != 0;
}

/* Collective calls are made by one thread of a rank at a time; check, abort and waits by any
 * thread. */
weft_status_t wefti_endpoint_all_gather(wefti_endpoint_t *endpoint, const void *send, size_t bytes,
                                        void *recv);
static inline weft_status_t wefti_endpoint_barrier(wefti_endpoint_t *endpoint)
{
    return wefti_endpoint_all_gather(endpoint, NULL, 0, NULL);
}
/*
 * Collective: WEFT_OK when status is WEFT_OK on all ranks, otherwise the lowest failing rank's
 * status with its message on every rank. For steps of bind that may fail on one rank only.
 */
weft_status_t wefti_endpoint_agree(wefti_endpoint_t *endpoint, weft_status_t status);
/* For agreements of other kinds: the error of a rank, whose number goes before text unless ranks
 * had agreed on that error before, */
weft_status_t wefti_error_agreed(weft_status_t status, uint32_t rank, bool agreed,
                                 const char *text);
/* and whether the last error of this thread is such a one. */
bool wefti_error_is_agreed(void);
/*
 * For an attempt that ranks of this world make outside of it, and on which they agree afterwards: a
 * rank that fails says so at once, for those that would wait for it. Attempts have numbers other
 * than 0 that are equal on all ranks. False: another rank was first, so this one's error follows
 * from that rank's.
 */
bool wefti_endpoint_give_up(wefti_endpoint_t *endpoint, uint32_t attempt);
/* Has a rank given it up? */
bool wefti_endpoint_given_up(const wefti_endpoint_t *endpoint, uint32_t attempt);

/*
 * Zeroed memory at the same offset in every rank's region; aligned to 4096. Collective: all ranks
 * ask for the same sizes in the same order, and a difference is WEFT_ERR_MISMATCH. No room:
 * WEFT_ERR_NO_MEMORY on every rank, naming the one that had none. Freeing is local bookkeeping, in
 * any order and on any thread: memory is given out again once all ranks have freed it. False: no
 * block starts there.
 */
weft_status_t wefti_region_alloc(wefti_endpoint_t *endpoint, size_t bytes, size_t *out_offset);
/*
 * The same without memory, which comes by wefti_region_commit, piece by piece: a rank commits
 * before it or a peer touches a piece of its region. Host memory only. Once it is freed and given out
 * again, clearing it brings the rest.
 */
weft_status_t wefti_region_reserve(wefti_endpoint_t *endpoint, size_t bytes, size_t *out_offset);
/* Pages of this rank's region. WEFT_ERR_NO_MEMORY on this rank alone. Local; any thread. */
weft_status_t wefti_region_commit(wefti_endpoint_t *endpoint, size_t offset, size_t bytes);
bool wefti_region_free(wefti_endpoint_t *endpoint, size_t offset);
/* The own region stays mapped when the endpoint is closed, until the process ends; contents stay.
 */
void wefti_region_keep(wefti_endpoint_t *endpoint);
/* The block that offset lies in, on any thread; false: none, or a forked child asks. */
bool wefti_region_find(wefti_endpoint_t *endpoint, size_t offset, wefti_region_block_t *out);

/* True when this rank loads and stores the peer's region (host memory: region_of[peer]). Ranks that
 * do form sets: the relation is symmetric and transitive. */
static inline bool wefti_endpoint_direct(const wefti_endpoint_t *endpoint, uint32_t peer)
{
    return (endpoint->host_caps & WEFTI_CAP_DIRECT) != 0 &&
           endpoint->host_of[peer] == endpoint->host_of[endpoint->rank];
}

/*
 * link.c: writing to a peer's region without loads and stores. Host memory only. Any thread may
 * call these functions; they return at once, whatever the peer does.
 *
 * A put copies bytes from data to offset of the peer's region; any alignment. The caller learns
 * only by a later signal on the same lane that the put has landed. Puts may overtake each other and
 * earlier signals, so the destination must be free when the put is called.
 *
 * Zero copy: data stays in use until the counter in_use has returned to 0
 * (wefti_signal_reached(value, 0)), which is independent of landing and also happens if the link
 * breaks. The waiter makes progress, or sleeps as on any signal. in_use NULL: data is copied, and
 * may be reused on return.
 */
weft_status_t wefti_put_zero_copy(wefti_endpoint_t *endpoint, uint32_t peer, size_t offset,
                                  const void *data, size_t bytes, uint32_t lane,
                                  wefti_signal_t *in_use);
static inline weft_status_t wefti_put(wefti_endpoint_t *endpoint, uint32_t peer, size_t offset,
                                      const void *data, size_t bytes, uint32_t lane)
{
    return wefti_put_zero_copy(endpoint, peer, offset, data, bytes, lane, NULL);
}
/*
 * Raises a counter (value and waiters of a wefti_signal_t at offset of the peer's region, aligned
 * to 8) to value and wakes its waiters, once all earlier puts to this peer on this lane have
 * landed. Signals of one lane to one peer arrive in order. Lanes are independent, so a counter is
 * raised on one lane of one rank only. A value that the counter has reached already changes
 * nothing.
 */
weft_status_t wefti_signal_peer(wefti_endpoint_t *endpoint, uint32_t peer, size_t offset,
                                uint32_t value, uint32_t lane);

/* For backends and drivers, on any thread: a zero-copy put takes parts from in_use before it
 * returns, so that it lies below 0, and gives them back when data is no longer needed. */
static inline void wefti_source_acquire(wefti_signal_t *in_use, uint32_t parts)
{
    /* relaxed: the release comes after it by other means */
    atomic_fetch_sub_explicit(&in_use->value, parts, memory_order_relaxed);
}
/* Wakes the waiters when all parts are back; in_use may be gone right after. */
void wefti_source_release(wefti_signal_t *in_use, uint32_t parts);

/*
 * Moves what is on its way in both directions, as far as it goes without blocking. Every loop that
 * looks at a counter calls it, since nothing else may be receiving; where regions are mapped it
 * costs a load. By any thread.
 */
static inline void wefti_endpoint_progress(wefti_endpoint_t *endpoint)
{
    if (!endpoint->ops->mapped) {
        endpoint->ops->progress(endpoint->host);
    }
}

/* The caller stops polling (it sleeps, or computes for long): another thread must make progress. */
static inline void wefti_endpoint_yield_progress(wefti_endpoint_t *endpoint)
{
    if (!endpoint->ops->mapped) {
        endpoint->ops->yield_progress(endpoint->host);
    }
}

/*
 * A link that broke between two live ranks. Its data in flight is lost, so every group with both
 * ranks fails once with WEFT_ERR_LINK and text. Later puts take another path, or fail if
 * WEFT_FALLBACK is off. All ranks receive each fault once. A signal may arrive over the other path
 * although earlier puts are lost; the fault is recorded before it, so check link_faults before
 * acting on a signal. Puts after wefti_endpoint_flush take the other path around each fault that was
 * recorded before it.
 */
typedef struct wefti_link_fault {
    uint32_t ranks[2]; /* the lower one first */
    char driver[12];   /* that the link was of */
    char text[240];    /* names the link */
} wefti_link_fault_t;
/* The first one from index *at on; moves *at behind it. False: no more. */
bool wefti_endpoint_link_fault(wefti_endpoint_t *endpoint, uint32_t *at, wefti_link_fault_t *out);

/* For backends, under a lock of theirs, once per break: notes a fault for link_fault to find. */
weft_status_t wefti_endpoint_note_fault(wefti_endpoint_t *endpoint,
                                        const wefti_link_fault_t *fault);

/* All zero where regions are mapped. */
void wefti_endpoint_link_stats(wefti_endpoint_t *endpoint, uint32_t peer, wefti_link_stats_t *out);

/*
 * late.c: who keeps this rank waiting. True when a wait of so long is to be reported now: longer
 * than WEFT_LATE, and no other one was for as long.
 */
bool wefti_endpoint_reports_late(wefti_endpoint_t *endpoint, uint64_t waited_ns);
/* "; rank 3 is on host b", and, where its link is measurably slower than those to others, "; the
 * tcp link to rank 3 runs at 11.9 MB/s, others at 118 MB/s"; may be empty. */
void wefti_endpoint_late_facts(wefti_endpoint_t *endpoint, uint32_t rank, char *text, size_t bytes);
/*
 * This rank has waited in wait for waited_ns, which may be less than WEFT_LATE. The lowest rank that
 * waits so reports for the world: who waits, for whom, and what those do instead. Where ranks wait
 * for each other's data each reports for itself, since each knows its own link.
 */
void wefti_endpoint_report_late(wefti_endpoint_t *endpoint, const wefti_wait_t *wait,
                                uint64_t waited_ns);
/* Bytes a second that the link to peer carried while it was busy; 0: not enough to say. */
double wefti_endpoint_link_rate(wefti_endpoint_t *endpoint, uint32_t peer);

/* "shm", "tcp", "verbs", "inproc" or "self", and a reason for people; never fails. */
void wefti_endpoint_describe(wefti_endpoint_t *endpoint, uint32_t peer, char *name,
                             size_t name_bytes, char *reason, size_t reason_bytes);

/*
 * Waits until everything that this rank has put and signalled has landed, or never will. Before
 * memory that it went to is used for something else, and before the rank leaves. False: a peer did
 * not answer within wefti_endpoint_patience, so the memory must not get another use.
 */
bool wefti_endpoint_flush(wefti_endpoint_t *endpoint);

/*
 * How long leaving may wait for a peer: destroying a group, flushing, closing. As long as any wait
 * (WEFT_TIMEOUT) until a peer did not answer; from then on WEFTI_FAREWELL_NS in all, so that
 * whatever a program destroys after that, it ends.
 */
#define WEFTI_FAREWELL_NS 750000000ull
uint64_t wefti_endpoint_patience(const wefti_endpoint_t *endpoint);
/* A peer did not answer, or what this rank shared with it is broken. Any thread. */
void wefti_endpoint_lose_patience(wefti_endpoint_t *endpoint);
/* A wait under wefti_endpoint_patience was in vain after waited_ns. Any thread. */
void wefti_endpoint_spend_patience(wefti_endpoint_t *endpoint, uint64_t waited_ns);

/*
 * What threads that wait in all-gathers and barriers do meanwhile, since other ranks may need it to
 * come there too: fn moves on what this rank has under way. It does not block, and is false when
 * there is nothing. Set before others use the endpoint.
 */
void wefti_endpoint_while_waiting(wefti_endpoint_t *endpoint, bool (*fn)(void *user), void *user);
static inline bool wefti_endpoint_meanwhile(const wefti_endpoint_t *endpoint)
{
    return endpoint->meanwhile != NULL && endpoint->meanwhile(endpoint->meanwhile_user);
}

/* Writes the abort record of every rank (first writer wins) and wakes everybody who waits here;
 * text "": names this rank. */
void wefti_endpoint_abort(wefti_endpoint_t *endpoint, weft_status_t status, const char *text);
/* The same by a rank whose program shrinks the world; whether some rank has ended it so. */
void wefti_endpoint_abort_to_shrink(wefti_endpoint_t *endpoint);
bool wefti_endpoint_shrinks(const wefti_endpoint_t *endpoint);
/* WEFT_OK; the abort record, adopted as this thread's message; or WEFT_ERR_PEER_DIED, or
 * WEFT_ERR_ABORTED when this rank is interrupted (which then abort). */
weft_status_t wefti_endpoint_check(wefti_endpoint_t *endpoint);
/* The same after a look at every rank: before a wait ends with its deadline. */
weft_status_t wefti_endpoint_check_all(wefti_endpoint_t *endpoint);
/* An error of a group of this rank: ranks that it leaves waiting elsewhere will report it. The
 * first one counts. */
void wefti_endpoint_note_error(wefti_endpoint_t *endpoint, weft_status_t status, const char *text);
/*
 * A call that this rank cannot make, though others may wait for it: reported likewise, while there
 * is no error. Ranks that wait for it get its error (wefti_endpoint_refused), unless this rank
 * retries: RETRIED when it makes a call like it, NONE when that has ended well. Of two calls with
 * one kind, channel and peer the last one is kept. False: there are too many others.
 */
bool wefti_endpoint_note_refusal(wefti_endpoint_t *endpoint, const wefti_refusal_t *refusal);
/* kind CALL: sends and receives; peer UINT32_MAX: with every peer. Returns whether refusals of the
 * channel are left. */
bool wefti_endpoint_retry_refusal(wefti_endpoint_t *endpoint, uint32_t kind, uint32_t channel,
                                  uint32_t peer, wefti_refusal_state_t state);
/* The error, with its rank, of a call that a rank refused and this wait is for; else WEFT_OK. */
weft_status_t wefti_endpoint_refused(const wefti_endpoint_t *endpoint, const wefti_wait_t *wait);
/* cause.c, for error messages of other hosts. False: it was being written. */
bool wefti_refusal_load(const wefti_refusal_block_t *block, uint64_t *out_serial,
                        wefti_refusal_t *out);
void wefti_refusal_store(wefti_refusal_block_t *block, uint64_t serial,
                         const wefti_refusal_t *refusal);
/* text: "; rank 3 had an error before: .." and that error's status; WEFT_OK and no text: none. */
weft_status_t wefti_endpoint_add_error_of(const wefti_endpoint_t *endpoint, uint32_t rank,
                                          char *text, size_t bytes);
/* Adds to a text that a rank has left or died what error that rank had before, if any. */
void wefti_endpoint_add_cause(const wefti_endpoint_t *endpoint, char *text, size_t bytes);
/* True when the rank has released its context: it posts nothing more, but what it sent may still be
 * on its way. */
bool wefti_endpoint_has_left(const wefti_endpoint_t *endpoint, uint32_t rank);
/* What a rank sent before it left has arrived this long after. */
#define WEFTI_ARRIVES_NS 50000000ull
/* True when every other rank has, so nothing will be posted any more; endpoint->departed says
 * afterwards whether one has. */
bool wefti_endpoint_deserted(wefti_endpoint_t *endpoint);

/*
 * Waits until signal has reached target: spins (unless ranks outnumber cores), yields a few times,
 * then sleeps on the futex in slices, checking abort, peers and deadline. what names the thing
 * waited for in a time-out's message. poll, if not NULL, is called between tries (inline progress);
 * any status but WEFT_OK ends the wait with it: an error, or WEFT_AGAIN when the caller can go on
 * with something else.
 */
weft_status_t wefti_wait_signal(wefti_endpoint_t *endpoint, wefti_signal_t *signal, uint32_t target,
                                const char *what, weft_status_t (*poll)(void *user), void *user);
/* The same for callers with a poll function that know more than what and whose the signal is, for
 * the records of waits.h: describe, of user. */
weft_status_t wefti_wait_signal_described(wefti_endpoint_t *endpoint, wefti_signal_t *signal,
                                          uint32_t target, const char *what,
                                          weft_status_t (*poll)(void *user), wefti_wait_fn describe,
                                          void *user);
/* The same, with a deadline that counts from moved_ns, which poll sets, if that is later. */
weft_status_t wefti_wait_signal_moving(wefti_endpoint_t *endpoint, wefti_signal_t *signal,
                                       uint32_t target, const char *what,
                                       weft_status_t (*poll)(void *user), wefti_wait_fn describe,
                                       void *user, const uint64_t *moved_ns);
/*
 * The same without looking at peers or for errors, for what this process posts: spins spin_ns,
 * yields, then sleeps. False when timeout_ns (UINT64_MAX: never) passed first. endpoint: makes its
 * progress meanwhile, for signals that need data of other hosts; NULL: there is none.
 */
bool wefti_signal_await(wefti_endpoint_t *endpoint, wefti_signal_t *signal, uint32_t target,
                        uint64_t spin_ns, uint64_t timeout_ns);

/* A thread that a yield kept from its core for so long shares it with other programs (wait.c); tests
 * set it, as yields may take any time. */
extern uint64_t wefti_wait_away_ns;

/*
 * Looks at a signal that another rank posts, before the caller counts as blocked. Most waits end
 * while a line travels between two cores: no pause, which takes as long as that.
 */
#define WEFTI_TRIES 400u
#define WEFTI_TRIES_PER_PROGRESS 16u /* between hosts progress is a system call */

static inline uint32_t wefti_endpoint_tries(const wefti_endpoint_t *endpoint)
{
    return endpoint->may_spin ? WEFTI_TRIES : 1;
}

static inline bool wefti_signal_has_reached(const wefti_signal_t *signal, uint32_t target)
{
    /* acquire: what the poster wrote before is visible */
    return wefti_signal_reached(atomic_load_explicit(&signal->value, memory_order_acquire), target);
}

static inline bool wefti_signal_comes_soon(wefti_endpoint_t *endpoint, const wefti_signal_t *signal,
                                           uint32_t target)
{
    uint32_t tries = wefti_endpoint_tries(endpoint);
    for (uint32_t i = 0; i < tries; i++) {
        if (wefti_signal_has_reached(signal, target)) {
            return true;
        }
        if (i % WEFTI_TRIES_PER_PROGRESS == 0) {
            wefti_endpoint_progress(endpoint);
        }
    }
    return wefti_signal_has_reached(signal, target);
}

#endif
