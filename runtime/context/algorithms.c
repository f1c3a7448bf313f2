/* SPDX-License-Identifier: Apache-2.0 */
/* The settings that choose algorithms: WEFT_ALGO by name, WEFT_COSTS by predicted time. */
#include "runtime/context/context.h"

#include <stdatomic.h>
#include <string.h>

#include "ops/algo/msccl.h"
#include "runtime/base/error.h"
#include "runtime/base/suggest.h"

struct wefti_algo_files {
    weft_allocator_t allocator;
    _Atomic uint32_t references;
    pthread_mutex_t lock;
    weft_registry_t *registry; /* NULL: none was loaded yet */
};

struct wefti_algo_files *wefti_algo_files_create(const weft_allocator_t *allocator)
{
    struct wefti_algo_files *files = wefti_alloc(allocator, sizeof *files);
    if (files != NULL) {
        files->allocator = allocator != NULL ? *allocator : *wefti_allocator_default();
        atomic_init(&files->references, 1);
        pthread_mutex_init(&files->lock, NULL);
    }
    return files;
}

struct wefti_algo_files *wefti_algo_files_retain(struct wefti_algo_files *files)
{
    atomic_fetch_add_explicit(&files->references, 1, memory_order_relaxed);
    return files;
}

void wefti_algo_files_release(struct wefti_algo_files *files)
{
    /* acq_rel: the last one sees everything the others did */
    if (files != NULL &&
        atomic_fetch_sub_explicit(&files->references, 1, memory_order_acq_rel) == 1) {
        weft_allocator_t allocator = files->allocator;
        weft_registry_destroy(files->registry);
        pthread_mutex_destroy(&files->lock);
        wefti_free(&allocator, files);
    }
}

const weft_algorithm_t *wefti_algo_files_at(struct wefti_algo_files *files, size_t index)
{
    pthread_mutex_lock(&files->lock);
    const weft_algorithm_t *algorithm = wefti_registry_algorithm_at(files->registry, index);
    pthread_mutex_unlock(&files->lock);
    return algorithm;
}

/* The algorithm in a file; NULL: of another operator. */
static weft_status_t load(weft_context_t *context, weft_collective_t op, const char *path,
                          const weft_algorithm_t **out_algorithm)
{
    const weft_algorithm_t *loaded = NULL;
    struct wefti_algo_files *files = context->files;
    pthread_mutex_lock(&files->lock);
    weft_status_t status = files->registry != NULL
                               ? WEFT_OK
                               : weft_registry_create(&files->allocator, &files->registry);
    status = status < 0 ? status : weft_registry_load_algorithm(files->registry, path, &loaded);
    pthread_mutex_unlock(&files->lock);
    *out_algorithm = status >= 0 && loaded->op == op ? loaded : NULL;
    return status;
}

weft_status_t wefti_context_find_algorithm(weft_context_t *context, weft_collective_t op,
                                           const char *name, const weft_algorithm_t **out_algorithm)
{
    if (name != NULL && wefti_msccl_is_path(name)) {
        return load(context, op, name, out_algorithm);
    }
    *out_algorithm = weft_registry_find_algorithm(context->registry, op, name);
    return WEFT_OK;
}

/* One "name" or "collective=name" of WEFT_ALGO. */
static weft_status_t want(weft_context_t *context, char *text)
{
    char *equals = strchr(text, '=');
    const char *name = equals != NULL ? equals + 1 : text;
    bool known = false, found = false;
    if (equals != NULL) {
        *equals = '\0';
    }
    for (uint32_t op = 1; op < WEFTI_OPS; op++) {
        if (equals != NULL && !wefti_same_name(text, weft_collective_name((weft_collective_t)op))) {
            continue;
        }
        const weft_algorithm_t *algorithm;
        WEFT_RETURN_IF_ERROR(
            wefti_context_find_algorithm(context, (weft_collective_t)op, name, &algorithm));
        known = true;
        if (algorithm != NULL) {
            context->wanted.algorithm[op] = algorithm;
            found = true;
        }
    }
    return found    ? WEFT_OK
           : !known ? wefti_error(WEFT_ERR_INVALID_ARGUMENT, "WEFT_ALGO: unknown collective \"%s\"",
                                  text)
                    : wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                                  "WEFT_ALGO: unknown algorithm \"%s\" for %s", name,
                                  equals != NULL ? text : "any collective");
}

weft_status_t wefti_context_find_algorithms(weft_context_t *context)
{
    char text[sizeof context->settings.algo], *rest = text, *one;
    memcpy(text, context->settings.algo, sizeof text);
    while ((one = strsep(&rest, ",")) != NULL) {
        if (rest != NULL || one[0] != '\0') {
            WEFT_RETURN_IF_ERROR(want(context, one));
        }
    }
    if (context->settings.costs[0] == '\0') {
        wefti_costs_default(&context->costs, context->allocator);
        return WEFT_OK;
    }
    weft_status_t status =
        wefti_costs_load(&context->costs, context->settings.costs, context->allocator);
    return status < 0 ? wefti_error_prefix(status, "WEFT_COSTS") : WEFT_OK;
}
