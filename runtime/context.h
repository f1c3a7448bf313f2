/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of a context: what the objects made from it share. */
#ifndef WEFT_RUNTIME_CONTEXT_H
#define WEFT_RUNTIME_CONTEXT_H

#include <pthread.h>
#include <stdbool.h>

#include <weft/context.h>
#include <weft/stream.h>

#include "runtime/base/log.h"
#include "runtime/base/memory.h"
#include "runtime/base/settings.h"
#include "transport/transport.h"

struct weft_context {
    _Atomic uint32_t references;
    const weft_allocator_t *allocator; /* NULL, or &own_allocator */
    weft_allocator_t own_allocator;
    wefti_settings_t settings;
    wefti_log_t log;
    wefti_endpoint_t *endpoint;
    weft_device_t *device; /* NULL: the CPU device */
    bool progress_thread;  /* communicating streams run on threads of their own */
    uint32_t kernel_threads;
    int progress_cpu; /* a core to keep for the progress thread, or -1 */

    struct wefti_eager *eager; /* groups and peers' memory; NULL until first used */
    bool one_process;          /* ranks are threads: any address reaches */

    pthread_mutex_t lock; /* guards streams: only creating, destroying and walking take it */
    weft_stream_t **streams;
    size_t stream_count, stream_capacity;
};

/* omp_set_num_threads for the calling thread: OpenMP keeps the number per thread. */
void wefti_context_enter_thread(const weft_context_t *context);

#endif
