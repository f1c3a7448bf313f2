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
#include "ops/topo/place.h"
#include "runtime/base/log.h"
#include "runtime/base/memory.h"
#include "runtime/base/settings.h"
#include "transport/transport.h"

/* What weft_device_alloc handed out; sorted by address. */
typedef struct wefti_device_block {
    uint8_t *address;
    size_t bytes;
} wefti_device_block_t;

typedef struct wefti_device_memory {
    wefti_device_block_t *blocks;
    size_t count, capacity;
    weft_queue_t *queue;  /* of copies that wait, from the first one on */
    pthread_mutex_t lock; /* guards all of it */
} wefti_device_memory_t;

typedef struct wefti_proof wefti_proof_t;
typedef struct wefti_stream_listener wefti_stream_listener_t;

/* WEFT_ALGO, looked up. */
typedef struct wefti_wanted {
    const weft_algorithm_t *algorithm[WEFTI_OPS]; /* NULL: by cost */
} wefti_wanted_t;

struct weft_context {
    _Atomic uint32_t references;
    const weft_allocator_t *allocator; /* NULL, or &own_allocator */
    weft_allocator_t own_allocator;
    wefti_settings_t settings;
    wefti_log_t log;
    char launcher[24];             /* what started the ranks */
    wefti_cluster_t cluster;       /* topology.c: hosts and ranks, the same on all ranks; of one
                                    * host's hardware nothing is known until somebody asks */
    wefti_digest_t cluster_digest; /* of it */
    wefti_wanted_t wanted;         /* WEFT_ALGO */
    wefti_costs_t costs;           /* WEFT_COSTS */
    wefti_endpoint_t *endpoint;
    weft_device_t *device; /* NULL: the CPU device */
    wefti_endpoint_t
        *memory; /* whose region is memory of the device; the endpoint on the CPU device */
    wefti_device_memory_t device_memory;
    const weft_registry_t *registry; /* algorithms of the user's own, or NULL */
    bool progress_thread;            /* communicating streams run on threads of their own */
    uint32_t kernel_threads;
    int progress_cpu; /* a core to keep for the progress thread, or -1 */

    wefti_proof_t *proofs; /* proof.c; under lock */
    size_t proof_count, proof_capacity;
    struct wefti_eager *eager; /* groups and peers' memory; NULL until first used */
    bool one_process;          /* ranks are threads: any address reaches */

    pthread_mutex_t lock; /* guards streams: only creating, destroying and walking take it */
    weft_stream_t **streams;
    size_t stream_count, stream_capacity;
    _Atomic uint32_t inline_streams;           /* of them: run by the thread that waits */
    wefti_stream_listener_t *stream_listeners; /* stream.h; under lock */
    /* Moves the inline streams on without blocking; false when there are none. */
    bool (*_Atomic progress_streams)(weft_context_t *context);
};

#define WEFTI_FILL_BYTES 4096u
#define WEFTI_ADDRESS_SPACE ((size_t)1 << 46) /* allocations above are not even tried */
/* memory/device.c: queues bytes of pattern's [WEFTI_FILL_BYTES], which must stay until they ran. */
weft_status_t wefti_device_fill(const weft_device_ops_t *ops, weft_queue_t *queue, void *dst,
                                const void *pattern, size_t bytes);
/* Gives back what the user did not. */
void wefti_device_memory_destroy(weft_context_t *context);

/* algorithms.c: context->wanted of WEFT_ALGO, context->costs of WEFT_COSTS. */
weft_status_t wefti_context_find_algorithms(weft_context_t *context);
/* The net level of a cost table if none was named, by the links between hosts. Collective if there
 * are several hosts. */
weft_status_t wefti_context_find_net(weft_context_t *context);

/* topology.c: which ranks share a host, as the endpoint says. Local. */
weft_status_t wefti_context_guess_cluster(weft_context_t *context);
/* Binds the rank where WEFT_BIND says so, then finds out, with all ranks, what machines they are
 * on, where that matters or WEFT_TOPOLOGY says it. */
weft_status_t wefti_context_find_cluster(weft_context_t *context);
/* The processor for the rank's progress thread: next to its network interface. cpus: the rank's
 * own, growing. */
int wefti_context_progress_cpu(const weft_context_t *context, const uint32_t *cpus, uint32_t count);
/* Says so when a plan was compiled for another placement of ranks than this one. */
void wefti_context_compare_placement(const weft_context_t *context, const weft_plan_t *plan);

/* Staging memory of a group or plan: the setting, and more of it if the world has several hosts. */
size_t wefti_context_staging_bytes(const weft_context_t *context);

/* omp_set_num_threads for the calling thread: OpenMP keeps the number per thread. */
void wefti_context_enter_thread(const weft_context_t *context);

#endif
