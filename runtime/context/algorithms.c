/* SPDX-License-Identifier: Apache-2.0 */
/* The settings that choose algorithms: WEFT_ALGO by name, WEFT_COSTS by predicted time. */
#include "runtime/context/context.h"

#include <string.h>

#include "runtime/base/error.h"
#include "runtime/base/suggest.h"

/* The algorithm in a file; NULL: of another operator. */
static weft_status_t load(weft_context_t *context, weft_collective_t op, const char *path,
                          const weft_algorithm_t **out_algorithm)
{
    const weft_algorithm_t *loaded = NULL;
    pthread_mutex_lock(&context->lock);
    weft_status_t status = context->files != NULL
                               ? WEFT_OK
                               : weft_registry_create(context->allocator, &context->files);
    status = status < 0 ? status : weft_registry_load_algorithm(context->files, path, &loaded);
    pthread_mutex_unlock(&context->lock);
    *out_algorithm = status >= 0 && loaded->op == op ? loaded : NULL;
    return status;
}

weft_status_t wefti_context_find_algorithm(weft_context_t *context, weft_collective_t op,
                                           const char *name, const weft_algorithm_t **out_algorithm)
{
    size_t length = name != NULL ? strlen(name) : 0;
    if (length > 4 && strcmp(name + length - 4, ".xml") == 0) {
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
