/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How ranks that were started somewhere become a world.
 *
 *   wefti_job_probe      rank, world size and address: from arguments, then the variables and
 *                        services of launchers, in a fixed order
 *   wefti_overlay_open   one authenticated rendezvous (rank 0 listens at host:port, or publishes
 *                        its address by a file, PMIx or PMI); then every rank has connections to the
 *                        ranks at distance +-1, +-2, +-4, ...
 *   wefti_overlay_*      control messages in O(log n) messages per rank: all-gather, floods
 *                        (aborts, link faults), departures, deaths
 */
#ifndef WEFT_TRANSPORT_BOOTSTRAP_BOOTSTRAP_H
#define WEFT_TRANSPORT_BOOTSTRAP_BOOTSTRAP_H

#include <stdatomic.h>
#include <sys/types.h>

#include "runtime/base/interrupt.h"
#include "runtime/base/log.h"
#include "runtime/base/memory.h"
#include "runtime/base/settings.h"

#define WEFTI_SECRET_BYTES 64u

typedef struct wefti_job {
    char launcher[24]; /* "arguments", "environment", "torchrun", "pmix", "pmi-1", "plain", "group",
                          "alone" */
    uint32_t rank, world_size;
    /* "unix:@name" or "unix:/path" (one host), "host:port" ("[v6]:port"), "file:///path", "pmix:",
     * "pmi-1:", "" (a world of one) */
    char address[512];
    bool delivered; /* the address came from a launcher: it needs no secret */
    /* ONE: the port is the user's. FIRST: it may belong to another program, so further ones that
     * follow from id are tried. OTHERS: only those, as the port is the launcher's. */
    enum { WEFTI_PORT_ONE, WEFTI_PORT_FIRST, WEFTI_PORT_OTHERS } ports;
    uint8_t id[16]; /* tells jobs apart that could meet at one address; zero: it does not matter */
    uint8_t secret[WEFTI_SECRET_BYTES];
    uint32_t secret_bytes;         /* 0: none */
    struct wefti_service *service; /* of PMIx or PMI-1, until wefti_job_deinit */
} wefti_job_t;

/* Arguments; -1 and NULL: not set. */
typedef struct wefti_job_wish {
    int32_t rank, world_size;
    const char *address;
} wefti_job_wish_t;

/*
 * In this order: arguments and WEFT_RANK, WEFT_WORLD_SIZE, WEFT_ADDRESS; torchrun (RANK,
 * WORLD_SIZE, MASTER_ADDR, TORCHELASTIC_RUN_ID); PMIx; PMI-1 (PMI_FD); RANK, WORLD_SIZE,
 * MASTER_ADDR, MASTER_PORT; WEFT_GROUP (one host); a world of one. Half of a set of variables is an
 * error that names what is missing. The secret: WEFT_SECRET, WEFT_SECRET_FILE.
 */
weft_status_t wefti_job_probe(const wefti_job_wish_t *wish, const wefti_log_t *log,
                              wefti_job_t *out_job);
void wefti_job_deinit(wefti_job_t *job);

typedef struct wefti_overlay wefti_overlay_t;

#define WEFTI_HOST_KEY_BYTES 32u

typedef struct wefti_overlay_params {
    const wefti_job_t *job;
    const wefti_settings_t *settings; /* timeouts, ifname; borrowed */
    const wefti_log_t *log;           /* borrowed */
    const weft_allocator_t *allocator;
    wefti_interrupter_t interrupt; /* of opening; not where a launcher's service waits */
    /* Equal on ranks that share memory; zero: with no other rank. The first ranks of hosts have
     * links among themselves. */
    uint8_t host_key[WEFTI_HOST_KEY_BYTES];
    void *user;
    /* Called by the thread that makes progress, without locks held. received: each flood once. */
    void (*received)(void *user, uint32_t origin, uint32_t kind, const void *data, size_t bytes);
    void (*left)(void *user, uint32_t rank);
    void (*died)(void *user, uint32_t rank, const char *how); /* without having left */
    /* What this rank answers to a question; wefti_free(allocator, ..) frees it. NULL: nothing.
     * relays: the process that asks is connected to this rank. */
    void *(*answer)(void *user, bool relays, uint32_t turn, size_t *out_bytes);
} wefti_overlay_params_t;

#define WEFTI_FLOOD_BYTES 768u

/* Collective. WEFT_ERR_TIMEOUT names the ranks missing; WEFT_ERR_MISMATCH a wrong version, size or
 * a rank that came twice; a wrong secret is an error on both sides. The same on all ranks. */
weft_status_t wefti_overlay_open(const wefti_overlay_params_t *params,
                                 wefti_overlay_t **out_overlay);
/*
 * Numbers count keys of bytes bytes, stride bytes apart: equal ones alike, by the first of them. A
 * key of zeros is equal to no other. firsts, [count], gets where each number was first.
 */
weft_status_t wefti_number_keys(const weft_allocator_t *allocator, const void *keys, size_t stride,
                                size_t bytes, uint32_t count, uint32_t *out_numbers,
                                uint32_t *out_firsts, uint32_t *out_count);
/* [32] bytes that only ranks of this world have. */
const uint8_t *wefti_overlay_key(const wefti_overlay_t *overlay);
/* The address that the connection to rank 0 (or, on rank 0, its listening) goes by: "10.0.0.2". */
const char *wefti_overlay_local_address(const wefti_overlay_t *overlay);
/* Where other ranks reach this one (transport/socket/address.h); the ports are closed by now. */
const struct wefti_endpoint_address *wefti_overlay_address(const wefti_overlay_t *overlay);
/* Who takes part in an all-gather. */
typedef struct wefti_members {
    uint32_t count, own;    /* own: this rank's number among them */
    const uint32_t *ranks;  /* [count] all ranks, or the first ranks of all hosts */
    const uint32_t *starts; /* [count + 1] member i has blocks starts[i] to starts[i + 1] of the
                             * result; NULL: block i */
} wefti_members_t;
typedef struct wefti_gather {
    const wefti_members_t *members; /* NULL: all ranks */
    uint32_t kind;
    const void *send; /* this member's blocks */
    size_t bytes;     /* of a block */
    void *recv;       /* all blocks, in the order of members */
    /* Counts anew whenever the all-gather goes on, here or, as far as is known, elsewhere;
     * UINT64_MAX: no limit. */
    uint64_t timeout_ns;
    weft_status_t (*check)(void *user); /* called now and then; may be NULL. Its error ends the
                                         * wait; WEFT_IN_PROGRESS: it is to be called soon */
    void *user;
} wefti_gather_t;
/*
 * Collective; members, bytes and kind equal on all members (WEFT_ERR_MISMATCH otherwise). The calls
 * of a member are those of all members until other members have one, and from then on those of
 * these. ceil(log2 n) messages for n members.
 */
weft_status_t wefti_overlay_all_gather(wefti_overlay_t *overlay, const wefti_gather_t *gather);
/* WEFT_ERR_INVALID_ARGUMENT if this is more than an all-gather can move. */
weft_status_t wefti_overlay_gather_total(size_t bytes, size_t ranks, size_t *out_total);
/* An all-gather of ranks of a host goes on. Other ranks learn about it, at most once per
 * WEFT_TIMEOUT / 16. Any thread. */
void wefti_overlay_gather_moves(wefti_overlay_t *overlay);
/* When one has, on any rank, as far as is known; by the monotonic clock. */
const _Atomic uint64_t *wefti_overlay_moved(const wefti_overlay_t *overlay);
/* A thread waits in an all-gather: for the part of *out_rank with *out_position, which numbers the
 * parts that a rank sends. Any thread. */
bool wefti_overlay_gather_waits(wefti_overlay_t *overlay, uint32_t *out_rank,
                                uint32_t *out_position);
/* This rank has sent its part with this position. */
bool wefti_overlay_gather_sent(wefti_overlay_t *overlay, uint32_t position);
/* How much later than in a small world ranks may learn that a rank has left. */
uint64_t wefti_overlay_gone_delay(uint32_t world_size);
/* Sends to all ranks, over other ranks; at most WEFTI_FLOOD_BYTES. Never blocks; any thread. */
void wefti_overlay_flood(wefti_overlay_t *overlay, uint32_t kind, const void *data, size_t bytes);
/* Before others use the overlay: a neighbour's process runs under this kernel, so that its end is
 * seen although a forked child keeps its sockets. Of another rank: nothing. */
void wefti_overlay_watch_process(wefti_overlay_t *overlay, uint32_t rank, pid_t pid);

/*
 * Questions about the world, by other processes of the same user or root on this host: a question
 * goes to all ranks, and each may answer. overlay_ask.c
 */
#define WEFTI_ASK_NAME_BYTES 16u
/* Listens for processes that ask; *out_name: the abstract address. */
weft_status_t wefti_overlay_listen(wefti_overlay_t *overlay, char out_name[WEFTI_ASK_NAME_BYTES]);
typedef struct wefti_asked_rank {
    const char *name; /* as wefti_overlay_listen returned it */
    pid_t pid;        /* of the rank, which is on this host */
} wefti_asked_rank_t;
/* Of a turn: the question is not what the ranks do, but their last calls. */
#define WEFTI_ASK_DUMPS 0x80000000u
/*
 * Asks all ranks of a world by some of its ranks: by another one, with a higher turn, where the
 * first does not answer. Calls answered for what each rank answers until that returns true, or time
 * has passed (WEFT_AGAIN). kind: 0 or WEFTI_ASK_DUMPS. Errors: no rank could be asked.
 */
weft_status_t wefti_ask(const wefti_asked_rank_t *ranks, uint32_t count, uint64_t wait_ns,
                        uint32_t kind, bool (*answered)(void *user, const void *data, size_t bytes),
                        void *user);

/* Readable when there is something for progress. */
int wefti_overlay_poll_fd(const wefti_overlay_t *overlay);
/* Receives and forwards; never blocks, and returns at once while another thread is in it. */
void wefti_overlay_progress(wefti_overlay_t *overlay);
/* Sends a goodbye first. In a forked child (forked) only closes descriptors. */
void wefti_overlay_close(wefti_overlay_t *overlay, bool forked);

#endif
