/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parts of a kernel on several threads. Every calling thread has workers of its own, made when it
 * first needs them, as OpenMP has; but here no thread spins for longer than a fraction of a
 * millisecond, and the caller takes over each part that no worker has begun. On a machine busy with
 * other work a call thus takes little longer than on one thread.
 */
#ifndef WEFT_RUNTIME_BASE_PARALLEL_H
#define WEFT_RUNTIME_BASE_PARALLEL_H

#include <stdint.h>

#define WEFTI_PARALLEL_PARTS 1024u /* more threads than this are not used */

typedef void (*wefti_part_fn)(const void *job, int64_t part);

/*
 * Calls fn for every part from 0 to parts - 1, and returns when all calls have returned. Which
 * thread executes a part is left open, so results must depend on the number of the part only. fn
 * itself must not call this. Allocates only when it needs more workers than any call before from
 * this thread; where a worker cannot be created, the other threads execute its parts.
 */
void wefti_parallel(int64_t parts, wefti_part_fn fn, const void *job);

/* Elements [from, to) of a loop. No two ranges that run at the same time have the same part. */
typedef struct wefti_range {
    int64_t from, to, part;
} wefti_range_t;
typedef void (*wefti_range_fn)(const void *job, wefti_range_t range);

/*
 * Calls fn for ranges that together are [0, count), on up to threads threads; part is below
 * threads. A range has at least grain elements, unless it is the only one, and begins at a multiple
 * of grain. Where ranges end depends on threads, so the result of an element must not depend on its
 * range.
 */
void wefti_parallel_for(uint32_t threads, int64_t count, int64_t grain, wefti_range_fn fn,
                        const void *job);
/* The same, where a thread gets at most step elements at a time: those that fit into its cache. */
void wefti_parallel_steps(uint32_t threads, int64_t count, int64_t step, wefti_range_fn fn,
                          const void *job);

#endif
