/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inside of fusers.
 *
 *   fuser.c   create, destroy, reset, statistics
 *   step.c    a step as the caller sees it: add, flush, query, wait
 *   names.c   tensors by name
 *   bucket.c  the log of rank 0, and the buckets that all ranks fill by it
 *   run.c     hands frames and buckets to the stream, in one order on all ranks
 *
 * What goes over the stream, the same on all ranks:
 *
 *   first step   frame | buckets that it closes | frame | .. | last frame | buckets | barrier
 *   later steps  bucket 0 | bucket 1 | ..
 *
 * Rank 0 logs the tensors that it adds and the times at which buckets end. Frames carry the log.
 * All ranks, rank 0 too, fill buckets by what they read in frames, so they have the same buckets in
 * the same order. A bucket goes as pieces: runtime/collective/bucket.h.
 */
#ifndef WEFT_RUNTIME_FUSER_H
#define WEFT_RUNTIME_FUSER_H

#include <assert.h>

#include <weft/fuser.h>

#include "runtime/collective/agree.h"
#include "runtime/collective/bucket.h"
#include "runtime/collective/submit.h"

typedef struct wefti_fuser_tensor {
    struct wefti_fuser_tensor *next;        /* of all, the newest first */
    struct wefti_fuser_tensor *same_slot;   /* names.c */
    struct wefti_fuser_tensor *after;       /* was added after it in the last step */
    struct wefti_fuser_tensor *next_member; /* of its bucket, in the order of rank 0 */
    struct wefti_fuser_bucket *bucket;      /* NULL: no frame had it yet */
    char *name;
    uint64_t hash;
    uint64_t count;
    weft_dtype_t dtype;
    weft_reduction_t reduction;
    uint64_t key;      /* its address on rank 0 in the first step */
    uint8_t *address;  /* in the last step in which it was added */
    uint64_t added_in; /* the number of that step, from 1 on */
} wefti_fuser_tensor_t;

typedef struct wefti_fuser_bucket {
    wefti_bucket_t base; /* a part per member; parts and pieces from its first run on */
    struct wefti_fuser_bucket *next;
    uint64_t opened_ns; /* on the clock of rank 0 */
    wefti_fuser_tensor_t *first, **end;
    wefti_fuser_tensor_t **members; /* as the parts: by key */
    uint32_t missing;               /* members that were not added in this step yet */
} wefti_fuser_bucket_t;

/* An entry of the log: a tensor, if a name follows. */
typedef struct wefti_fuser_entry {
    uint64_t ends_ns; /* buckets opened at or before this time end, ahead of the tensor */
    uint64_t time_ns, count, key;
    uint32_t name_bytes;
    uint16_t dtype, reduction;
} wefti_fuser_entry_t;

#define WEFTI_FUSER_FRAME_BYTES 2040u

typedef struct wefti_fuser_frame {
    uint32_t bytes; /* whole entries */
    uint32_t end;   /* the step is complete */
    uint8_t entries[WEFTI_FUSER_FRAME_BYTES];
} wefti_fuser_frame_t;
static_assert(WEFTI_FUSER_FRAME_BYTES >= sizeof(wefti_fuser_entry_t) + WEFT_FUSER_NAME_BYTES,
              "a frame has room for any entry");

typedef enum wefti_fuser_phase {
    WEFTI_FUSER_FRAME = 0, /* first step: to send a frame, or to ask for it */
    WEFTI_FUSER_FRAME_DUE,
    WEFTI_FUSER_BUCKETS, /* those that are closed */
    WEFTI_FUSER_BARRIER, /* first step: so that its errors are known to all ranks at its end */
    WEFTI_FUSER_OVER,
} wefti_fuser_phase_t;

#define WEFTI_FUSER_SLOTS 1024u

struct weft_fuser {
    weft_context_t *context;
    wefti_bucket_runner_t runner;
    uint64_t bytes, window_ns;
    bool learning; /* the first step, or the first after a reset */
    bool ending;   /* inside wait: no tensors will come */

    /* What a reset drops. */
    wefti_arena_t arena; /* tensors and buckets */
    wefti_fuser_tensor_t *tensors;
    wefti_fuser_tensor_t *slots[WEFTI_FUSER_SLOTS]; /* by hash */
    uint32_t tensor_count;
    wefti_fuser_tensor_t *first_added;            /* in the last step */
    wefti_fuser_bucket_t *buckets, **buckets_end; /* as they run */
    wefti_fuser_bucket_t *open;                   /* the oldest first; one per type and reduction */

    /* This step. */
    uint32_t added, handed_over; /* tensors */
    wefti_fuser_tensor_t **next_added;
    wefti_fuser_phase_t phase;
    wefti_fuser_bucket_t **at; /* what is handed over next */
    wefti_bucket_cursor_t cursor;
    uint32_t reduced_target; /* the stream's count after the last piece */

    uint8_t *log; /* rank 0: entries; those from sent_bytes on are not in a frame yet */
    size_t log_bytes, log_capacity, sent_bytes;
    bool log_ends_with_time;   /* its last entry has no tensor */
    wefti_fuser_frame_t frame; /* that at hand */

    weft_fuser_stats_t stats;
};

static inline uint32_t wefti_fuser_rank(const weft_fuser_t *fuser) /* for messages: in the world */
{
    return fuser->runner.group->ranks[fuser->runner.group->rank];
}

static inline bool wefti_fuser_in_step(const weft_fuser_t *fuser)
{
    return fuser->added > 0 || fuser->ending;
}

static inline bool wefti_fuser_has_added(const weft_fuser_t *fuser,
                                         const wefti_fuser_tensor_t *tensor)
{
    return tensor->added_in == fuser->stats.step_count + 1;
}

/* step.c: WEFT_OK, or what broke the fuser. */
weft_status_t wefti_fuser_check(weft_fuser_t *fuser);

/* names.c */
/* The tensor called name, of length bytes, or NULL. */
wefti_fuser_tensor_t *wefti_fuser_find(const weft_fuser_t *fuser, const char *name, size_t length);
weft_status_t wefti_fuser_new_tensor(weft_fuser_t *fuser, const char *name, size_t length,
                                     wefti_fuser_tensor_t **out_tensor);

/* bucket.c */
/* Rank 0, first step: buckets opened at or before ends_ns end; then tensor, if not NULL, is placed.
 */
weft_status_t wefti_fuser_log(weft_fuser_t *fuser, const wefti_fuser_tensor_t *tensor,
                              uint64_t ends_ns, uint64_t now_ns);
/* Rank 0, first step: when the oldest bucket was opened that is open or that tensors open which no
 * rank has read of; UINT64_MAX: none. */
uint64_t wefti_fuser_oldest(const weft_fuser_t *fuser);
/* Rank 0: as much of the log as fits becomes the frame at hand. */
void wefti_fuser_fill_frame(weft_fuser_t *fuser);
/* All ranks: does what the frame at hand says. It is a peer's and not trusted. */
weft_status_t wefti_fuser_read_frame(weft_fuser_t *fuser);
/* Parts and pieces of a bucket whose members were all added. */
weft_status_t wefti_fuser_cut(weft_fuser_t *fuser, wefti_fuser_bucket_t *bucket);

/* run.c */
/* Hands over what can be; WEFT_OK, or what breaks the fuser. Never blocks. */
weft_status_t wefti_fuser_pump(weft_fuser_t *fuser);
/* Nothing of this step is left to hand over. */
bool wefti_fuser_all_handed_over(const weft_fuser_t *fuser);
/* Ready for the next step. */
void wefti_fuser_rewind(weft_fuser_t *fuser);

#endif
