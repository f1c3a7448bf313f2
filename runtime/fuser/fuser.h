/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inside of fusers.
 *
 *   fuser.c   create, destroy, reset, statistics
 *   step.c    a step as the caller sees it: add, flush, query, wait
 *   names.c   what the fuser knows about tensors: by name, and by the order of the last step
 *   bucket.c  buckets: rank 0 builds and broadcasts them, the others adopt them
 *   run.c     hands buckets to the stream, in one order on all ranks
 *
 * What goes over the stream, the same on all ranks:
 *
  *   first step   header | list of bucket 0 | pieces of bucket 0 |
 *                header | list of bucket 1 | pieces of bucket 1 | .. | header "end" | barrier
 *   later steps  pieces of bucket 0 | pieces of bucket 1 | ..
 *   a piece      [pack] all-reduce [unpack]    pack and unpack only where this rank needs them
 *
 * Rank 0 sends a list when it closes a bucket; the others ask for the next header as soon as they
 * have handed over the bucket before.
 */
#ifndef WEFT_RUNTIME_FUSER_H
#define WEFT_RUNTIME_FUSER_H

#include <weft/fuser.h>

#include "runtime/collective/agree.h"
#include "runtime/collective/bucket.h"
#include "runtime/collective/submit.h"

#define WEFTI_FUSER_NONE UINT32_MAX

typedef struct wefti_fuser_tensor {
    char *name; /* in the fuser's arena */
    uint64_t hash;
    uint64_t count;
    weft_dtype_t dtype;
    weft_reduction_t reduction;
    uint8_t *address; /* of this step */
    bool added;       /* in this step */
    uint64_t listed;  /* elements that are in buckets */
    /* The last of its parts: (bucket, member), from where a chain goes back to the first. */
    uint32_t last_bucket, last_member;
} wefti_fuser_tensor_t;

/* A tensor or a part of one. */
typedef struct wefti_fuser_member {
    uint32_t tensor;
    uint32_t bucket_before, member_before; /* the tensor's part before this one, or NONE */
    const uint8_t *address;                /* of its first element, on rank 0 in the first step */
    uint64_t first, count;                 /* elements of the tensor */
    uint64_t order;                        /* rank 0: when it came */
} wefti_fuser_member_t;

typedef struct wefti_fuser_bucket {
    wefti_bucket_t base; /* a part per member; parts and pieces from when it is closed on */
    uint64_t opened_ns;
    wefti_fuser_member_t *members;
    size_t member_count, member_capacity;
    uint32_t missing; /* members whose tensor was not added in this step yet */
    uint8_t *message; /* first step, rank 0: header and list */
    size_t list_bytes;
} wefti_fuser_bucket_t;

/* What rank 0 sends ahead of each list. */
typedef struct wefti_fuser_header {
    uint32_t magic, end; /* end: no list follows, the step is complete */
    uint64_t list_bytes;
} wefti_fuser_header_t;

typedef enum wefti_fuser_phase {
    WEFTI_FUSER_HEADER = 0, /* first step: to send it, or to ask for it */
    WEFTI_FUSER_HEADER_DUE, /* not rank 0: it was asked for */
    WEFTI_FUSER_LIST,
    WEFTI_FUSER_LIST_DUE,
    WEFTI_FUSER_PIECES,  /* of the bucket at hand */
    WEFTI_FUSER_END,     /* first step, not rank 0: rank 0 has sent its end */
    WEFTI_FUSER_BARRIER, /* first step: so that its errors are known to all ranks at its end */
    WEFTI_FUSER_OVER,
} wefti_fuser_phase_t;

#define WEFTI_FUSER_KINDS 128u /* of open buckets: dtype * 8 + reduction */

struct weft_fuser {
    weft_context_t *context;
    weft_group_t *group; /* a duplicate of the user's */
    weft_stream_t *stream;
    bool owns_stream;
    uint64_t bytes, window_ns;
    uint8_t *buffer; /* a piece */
    bool reachable;  /* buffer is from weft_mem_alloc */
    bool learning;   /* the first step, or the first after a reset */
    bool ending;     /* inside wait: no tensors will come */

    wefti_arena_t names;
    wefti_fuser_tensor_t *tensors;
    size_t tensor_count, tensor_capacity;
    uint32_t *slots; /* open addressing: tensor + 1; a power of two, at most half full */
    size_t slot_count;
    uint32_t *order; /* tensors as they were added in the last step: a guess at the next name */
    size_t order_capacity;
    uint32_t added; /* in this step */

    wefti_fuser_bucket_t **buckets; /* as they run */
    size_t bucket_count, bucket_capacity;
    wefti_fuser_bucket_t *open[WEFTI_FUSER_KINDS]; /* first step, rank 0 */
    uint32_t open_count;

    wefti_fuser_phase_t phase;
    size_t at_bucket; /* what is handed over next */
    wefti_bucket_cursor_t cursor;
    uint32_t target;             /* the stream's count after what was handed over last */
    uint32_t reduced_target;     /* the same for the last piece */
    wefti_fuser_header_t header; /* rank 0: that of the end; else the one at hand */
    uint8_t *list;               /* not rank 0: the list at hand */
    size_t list_capacity;

    weft_fuser_stats_t stats;
};

static inline uint32_t wefti_fuser_rank(const weft_fuser_t *fuser) /* for messages: in the world */
{
    return fuser->group->ranks[fuser->group->rank];
}

/* A step was begun and is not over. */
static inline bool wefti_fuser_in_step(const weft_fuser_t *fuser)
{
    return fuser->added > 0 || fuser->ending;
}

/* step.c: WEFT_OK, or what broke the fuser. */
weft_status_t wefti_fuser_check(weft_fuser_t *fuser);

/* names.c */
/* The tensor called name, or WEFTI_FUSER_NONE. */
uint32_t wefti_fuser_find(const weft_fuser_t *fuser, const char *name, size_t length);
/* A new one; name is of length bytes. */
weft_status_t wefti_fuser_new_tensor(weft_fuser_t *fuser, const char *name, size_t length,
                                     uint32_t *out_tensor);
/* Forgets all tensors. */
void wefti_fuser_forget(weft_fuser_t *fuser);

/* bucket.c */
/* Rank 0, first step: an added tensor goes into the open bucket of its kind. */
weft_status_t wefti_fuser_place(weft_fuser_t *fuser, uint32_t tensor, uint64_t now_ns);
/* Rank 0: closes open buckets that were opened at or before time_ns, oldest first. */
weft_status_t wefti_fuser_close(weft_fuser_t *fuser, uint64_t time_ns);
/* Not rank 0: the bucket that list describes; list is a peer's and not trusted. */
weft_status_t wefti_fuser_adopt(weft_fuser_t *fuser, const uint8_t *list, size_t bytes);
/* The end of a first step: every tensor that was added here is in rank 0's buckets. */
weft_status_t wefti_fuser_check_listed(const weft_fuser_t *fuser);
void wefti_fuser_end_header(wefti_fuser_header_t *header);
bool wefti_fuser_header_is_good(const wefti_fuser_header_t *header);
void wefti_fuser_bucket_free(weft_fuser_t *fuser, wefti_fuser_bucket_t *bucket); /* NULL is fine */

/* run.c */
/* Hands over what can be; WEFT_OK, or what breaks the fuser. Never blocks. */
weft_status_t wefti_fuser_pump(weft_fuser_t *fuser);
/* Nothing of this step is left to hand over. */
bool wefti_fuser_all_handed_over(const weft_fuser_t *fuser);
/* Records that this rank did not add tensor. */
weft_status_t wefti_fuser_missing(const weft_fuser_t *fuser, const wefti_fuser_tensor_t *tensor);
/* Ready for the next step. */
void wefti_fuser_rewind(weft_fuser_t *fuser);

#endif
