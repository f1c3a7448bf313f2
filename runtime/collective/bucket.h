/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Buckets: tensors that all-reduces reduce together, in one order on all ranks. Fusers and captures
 * decide which; a bucket is cut into pieces, alike on all ranks, and each piece is one call.
 *
 *   parts    |a  |b|c         |d|e|f           elements of tensors, one after the other
 *   pieces   |0    |1  |2     |3               small parts share one, packed in a buffer
 *
 *   a piece  [pack] all-reduce [unpack]        no copies where it is one range of memory
 */
#ifndef WEFT_RUNTIME_COLLECTIVE_BUCKET_H
#define WEFT_RUNTIME_COLLECTIVE_BUCKET_H

#include "runtime/group/group.h"

/* A piece that was packed is still in the cache when it is reduced and unpacked; larger tensors are
 * no better off for being packed. */
#define WEFTI_BUCKET_PIECE_BYTES ((size_t)1 << 20)
#define WEFTI_BUCKET_LARGE_BYTES ((size_t)256 << 10)

typedef struct wefti_bucket_part {
    const uint8_t *send; /* of its first element */
    uint8_t *recv;
    uint64_t at; /* its place in the bucket, elements; it ends where the next one begins */
} wefti_bucket_part_t;

typedef struct wefti_bucket_piece {
    const struct wefti_bucket *bucket;
    uint64_t first, count; /* elements of the bucket */
    uint32_t part;         /* the first one with elements in the piece */
    bool packed;
} wefti_bucket_piece_t;

typedef struct wefti_bucket {
    weft_dtype_t dtype;
    weft_reduction_t reduction;
    size_t elem_bytes;
    uint64_t count; /* elements */
    wefti_bucket_part_t *parts;
    uint32_t part_count;
    wefti_bucket_piece_t *pieces;
    uint32_t piece_count;
    uint8_t *buffer; /* of a packed piece */
} wefti_bucket_t;

/*
 * Cuts into pieces, or only counts them where out is NULL; returns how many. A run is a part, and
 * those after it that continue it in memory on all ranks (continues: by part, may be NULL). Small
 * runs share a packed piece. A large run has pieces of its own, each of most_bytes at most.
 */
uint32_t wefti_bucket_cut(const wefti_bucket_t *bucket, const uint8_t *continues,
                          uint64_t most_bytes, wefti_bucket_piece_t *out);
/* Part i begins where the part before it ends, in both buffers. */
bool wefti_bucket_part_continues(const wefti_bucket_t *bucket, uint32_t i);
/* The piece is one range of memory on this rank. */
bool wefti_bucket_piece_is_range(const wefti_bucket_piece_t *piece);

typedef enum wefti_bucket_phase {
    WEFTI_BUCKET_PACK = 0,
    WEFTI_BUCKET_CALL,
    WEFTI_BUCKET_UNPACK,
} wefti_bucket_phase_t;

/* What of a bucket is handed to a stream next; all zero at its begin. */
typedef struct wefti_bucket_cursor {
    uint32_t piece; /* piece_count: the bucket was handed over */
    wefti_bucket_phase_t phase;
    uint64_t at; /* devices: elements of the piece for which copies were enqueued */
} wefti_bucket_cursor_t;

/* The next phase of a piece, to stream (NULL: at once). WEFT_AGAIN: the stream or the group is
 * full. Never blocks. */
weft_status_t wefti_bucket_advance(const wefti_bucket_t *bucket, wefti_bucket_cursor_t *cursor,
                                   weft_group_t *group, weft_stream_t *stream);

/* What a fuser or a capture runs its buckets on, its own and not shared with other calls. */
typedef struct wefti_bucket_runner {
    weft_group_t *group;   /* a duplicate of the user's */
    weft_stream_t *stream; /* the user's, or its own */
    bool owns_stream;
    bool reachable;  /* buffer is from weft_mem_alloc */
    uint8_t *buffer; /* of one packed piece; may be NULL */
    uint32_t target; /* the stream's count after what was handed over last */
} wefti_bucket_runner_t;

/* Local. stream NULL: an inline stream of this name. */
weft_status_t wefti_bucket_runner_init(wefti_bucket_runner_t *runner, weft_group_t *group,
                                       weft_stream_t *stream, const char *name);
/* Memory for packed pieces. Collective: all ranks have it, or the error of one. */
weft_status_t wefti_bucket_runner_alloc(wefti_bucket_runner_t *runner, size_t bytes);
/* What was handed over so far is all that the runner waits for. */
void wefti_bucket_runner_mark(wefti_bucket_runner_t *runner);
/* Waits until stream, the runner's or another, has done half of what it has: there is room then. */
weft_status_t wefti_bucket_wait_some(const wefti_bucket_runner_t *runner, weft_stream_t *stream,
                                     const char *what);
/* Waits for what was handed over; together: and for all ranks, which make the same call. */
void wefti_bucket_runner_leave(wefti_bucket_runner_t *runner, const char *what, bool together);
/* Frees all but the group; of a half built one, too. */
void wefti_bucket_runner_deinit(wefti_bucket_runner_t *runner);

#endif
