/* SPDX-License-Identifier: Apache-2.0 */
/* The world of a worker of Disco: one per thread that runs a worker. */
#ifndef WEFT_INTEROP_TVM_WORLD_H
#define WEFT_INTEROP_TVM_WORLD_H

#include <stdbool.h>

#include <weft/group.h>

typedef struct hub hub_t;

typedef struct world {
    weft_context_t *context;
    weft_group_t *all;   /* all workers */
    weft_group_t *group; /* the worker's group of the session; all, if there is only one */
    hub_t *hub;          /* NULL: workers are processes */
} world_t;

/*
 * Joins the workers of a session; collective. The world belongs to the calling thread and replaces
 * its former one. It is left when the thread or the process ends.
 * @param[in] address  where to meet, as weft_context_params_t; "threads:NAME": in this process
 * @param[in] is_first whether this worker is the first one of its group
 */
weft_status_t world_join(uint32_t rank, uint32_t size, const char *address, bool is_first);

/* The world of the calling thread; NULL: none. */
world_t *world_of_thread(void);

#endif
