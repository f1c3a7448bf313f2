/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of a context: what the objects made from it share. */
#ifndef WEFT_RUNTIME_CONTEXT_H
#define WEFT_RUNTIME_CONTEXT_H

#include <pthread.h>
#include <stdbool.h>

#include <weft/context.h>
#include <weft/plan.h>
#include <weft/stream.h>

#include "ops/cost/cost.h"
#include "runtime/base/log.h"
#include "runtime/base/memory.h"
#include "runtime/base/settings.h"
#include "runtime/flight/flight.h"
#include "runtime/machine/place.h"
#include "transport/membership.h"
#include "transport/transport.h"

/* WEFT_ALGO, looked up. */
typedef struct wefti_wanted {
    const weft_algorithm_t *algorithm[WEFTI_OPS]; /* NULL: by cost */
} wefti_wanted_t;

/*
 * Parts of a context belong to the rooms above, which make them at first use; the context destroys
 * them, the last one first.
 */
typedef enum wefti_part {
    WEFTI_PART_STREAMS,       /* stream/streams.c */
    WEFTI_PART_DEVICE_MEMORY, /* memory/device.c */
    WEFTI_PART_REGISTERED,    /* memory/region.c */
    WEFTI_PART_PROOFS,        /* interpreter/proof.c */
    WEFTI_PART_CHANNELS,      /* group/channel.c */
    WEFTI_PART_SESSIONS,      /* plan/waits.c */
    WEFTI_PARTS,
} wefti_part_t;

typedef struct wefti_part_ops {
    size_t bytes;
    void (*init)(weft_context_t *context, void *part); /* all bytes are zero */
    void (*deinit)(weft_context_t *context, void *part);
    /* Before another device is chosen. True: the context has to keep its device; false: the part
     * has nothing on it, or has released that now. */
    bool (*in_use)(weft_context_t *context, void *part);
} wefti_part_ops_t;

typedef struct wefti_parts {
    const wefti_part_ops_t *ops[WEFTI_PARTS];
    void *_Atomic made[WEFTI_PARTS];
} wefti_parts_t;

struct weft_context {
    _Atomic uint32_t references;
    const weft_allocator_t *allocator; /* NULL, or &own_allocator */
    weft_allocator_t own_allocator;
    wefti_settings_t settings;
    wefti_log_t log;
    char world[128];               /* where its first ranks met; for the flight recorder */
    char launcher[24];             /* what started the ranks */
    wefti_cluster_t cluster;       /* hosts and ranks; of one host alone no hardware is known */
    wefti_digest_t cluster_digest; /* of it */
    wefti_wanted_t wanted;         /* WEFT_ALGO */
    wefti_costs_t costs;           /* WEFT_COSTS */
    wefti_endpoint_t *endpoint;
    wefti_flight_t flight;
    weft_device_t *device;    /* NULL: the CPU device */
    wefti_endpoint_t *memory; /* its region is memory of the device; CPU device: the endpoint */
    _Atomic bool wraps;       /* weft_mem_wrap gave addresses, which the host need not reach */
    const weft_registry_t *registry; /* algorithms of the user's own, or NULL */
    struct wefti_algo_files *files;  /* algorithms that are named by their file */
    bool progress_thread;            /* communicating streams run on threads of their own */
    uint32_t kernel_threads;
    int progress_cpu; /* a core to keep for the progress thread, or -1 */

    wefti_membership_t membership; /* who the ranks are, beyond this world */
    struct wefti_watch *watch;     /* replace.c: of a context that replaces another one, or NULL */

    wefti_parts_t parts;
    bool one_process; /* ranks are threads: any address reaches */

    pthread_mutex_t lock; /* guards the making of parts, and which channels are in use */
    /* Goes on with work of this rank while a thread waits, without blocking; false: none. Set by
     * runtime/stream. */
    bool (*_Atomic progress)(weft_context_t *context);
};

/* parts.c: the part, made at the first call. NULL: out of memory. */
void *wefti_part_get(weft_context_t *context, wefti_part_t part, const wefti_part_ops_t *ops);
/* NULL: not made yet. */
static inline void *wefti_part_find(const weft_context_t *context, wefti_part_t part)
{
    /* acquire pairs with the release of the thread that made it */
    return atomic_load_explicit(&context->parts.made[part], memory_order_acquire);
}
/* For slots of the table: nothing to free; whatever the device is; always. */
void wefti_part_is_plain(weft_context_t *context, void *part);
bool wefti_part_never_in_use(weft_context_t *context, void *part);
bool wefti_part_always_in_use(weft_context_t *context, void *part);
bool wefti_parts_in_use(weft_context_t *context);
void wefti_parts_destroy(weft_context_t *context);

static inline bool wefti_context_progress(weft_context_t *context)
{
    /* acquire: the function finds the part of the context that it works on */
    return atomic_load_explicit(&context->progress, memory_order_acquire)(context);
}

/* context.c: a context without a world: settings, log and registry are the caller's to set. NULL:
 * out of memory. It is released as any other. */
weft_context_t *wefti_context_new(const weft_allocator_t *allocator);
/* Whether the host may load from and store to memory of the context's device. */
static inline bool wefti_context_host_reaches(const weft_context_t *context)
{
    return context->device == NULL || (context->device->ops->caps & WEFT_DEVICE_HOST_ACCESS) != 0;
}

/* Which device a context gets. */
typedef struct wefti_device_wish {
    weft_device_t *device; /* the program's, or NULL: the CPU device */
    const char *names;     /* not NULL: the device that this names instead */
} wefti_device_wish_t;
/* Joins a world. params: rank, world size, where to meet, interrupt. former, generation: as
 * wefti_membership_join describes. Collective. */
weft_status_t wefti_context_join(weft_context_t *context, const wefti_endpoint_params_t *params,
                                 const wefti_device_wish_t *device,
                                 const wefti_membership_t *former, uint32_t generation);

/* replace.c: weft_context_grow. grown: what this rank does in the new world before that replaces the
 * former one, or NULL; where it fails on one rank the world does not grow. Each rank may have done
 * it when others fail. */
typedef weft_status_t (*wefti_grown_fn)(void *user, weft_context_t *context);
weft_status_t wefti_context_grow(weft_context_t *context, const weft_context_params_t *params,
                                 wefti_grown_fn grown, void *user, weft_context_t **out_context);

/* replace.c: what ends waits while a context replaces another one, beside the program's interrupt.
 */
typedef struct wefti_watch {
    wefti_interrupter_t program;
    pthread_mutex_t lock;      /* other */
    wefti_interrupter_t other; /* until the context has replaced the former one */
} wefti_watch_t;

/* algorithms.c: context->wanted of WEFT_ALGO, context->costs of WEFT_COSTS. */
weft_status_t wefti_context_find_algorithms(weft_context_t *context);
/* Algorithms of XML files, shared with the contexts that replace this one: groups keep their
 * choice. NULL: no memory. */
struct wefti_algo_files *wefti_algo_files_create(const weft_allocator_t *allocator);
struct wefti_algo_files *wefti_algo_files_retain(struct wefti_algo_files *files);
void wefti_algo_files_release(struct wefti_algo_files *files); /* accepts NULL */
/* Any thread. NULL: there are no more. */
const weft_algorithm_t *wefti_algo_files_at(struct wefti_algo_files *files, size_t index);
/* The algorithm of a name, or of an XML file; NULL: the name is unknown. */
weft_status_t wefti_context_find_algorithm(weft_context_t *context, weft_collective_t op,
                                           const char *name,
                                           const weft_algorithm_t **out_algorithm);
/* gather_cluster.c: which ranks share a host, as the endpoint reports. Local. Initialises *out. */
weft_status_t wefti_cluster_guess(const wefti_endpoint_t *endpoint, wefti_cluster_t *out,
                                  wefti_digest_t *out_digest);
/* Collective: the world's cluster, from settings->topology or from what one rank of each machine
 * finds; checked to be the same on all ranks. Initialises *out. */
weft_status_t wefti_cluster_gather(wefti_endpoint_t *endpoint, wefti_cluster_t *out,
                                   wefti_digest_t *out_digest);
/* topology.c: binds the rank where WEFT_BIND says so, then finds out, with all ranks, what machines
 * they are on, where that matters or WEFT_TOPOLOGY says it. */
weft_status_t wefti_context_find_cluster(weft_context_t *context);
/* Says so when a plan was compiled for another placement of ranks than this one. */
void wefti_context_compare_placement(const weft_context_t *context, const weft_plan_t *plan);

/* Staging memory of a group or plan: the setting, or by where the ranks of the world are. */
size_t wefti_context_staging_bytes(const weft_context_t *context);

#endif
