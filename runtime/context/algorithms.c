/* SPDX-License-Identifier: Apache-2.0 */
/* The settings that choose algorithms: WEFT_ALGO by name, WEFT_COSTS by predicted time. */
#include "runtime/context/context.h"

#include <string.h>

#include "runtime/base/error.h"
#include "runtime/base/suggest.h"

/* One "name" or "collective=name" of WEFT_ALGO. */
static weft_status_t want(weft_context_t *context, const char *text)
{
    const char *name = strchr(text, '=');
    char op_name[32] = "";
    bool found = false;
    if (name != NULL && (size_t)(name - text) < sizeof op_name) {
        memcpy(op_name, text, (size_t)(name - text));
        bool known = false;
        for (uint32_t op = 1; op < WEFTI_OPS && !known; op++) {
            known = wefti_same_name(op_name, weft_collective_name((weft_collective_t)op));
        }
        if (!known) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "WEFT_ALGO: unknown collective \"%s\"",
                               op_name);
        }
    }
    const char *wanted = name != NULL ? name + 1 : text;
    for (uint32_t op = 1; op < WEFTI_OPS; op++) {
        const weft_algorithm_t *algorithm =
            weft_registry_find_algorithm(context->registry, (weft_collective_t)op, wanted);
        if (algorithm != NULL &&
            (name == NULL ||
             wefti_same_name(op_name, weft_collective_name((weft_collective_t)op)))) {
            context->wanted.algorithm[op] = algorithm;
            found = true;
        }
    }
    return found ? WEFT_OK
                 : wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                               "WEFT_ALGO: unknown algorithm \"%s\" for %s", wanted,
                               name != NULL ? op_name : "any collective");
}

weft_status_t wefti_context_find_algorithms(weft_context_t *context)
{
    char text[sizeof context->settings.algo];
    weft_status_t status = WEFT_OK;
    memcpy(text, context->settings.algo, sizeof text);
    for (char *at = text; *at != '\0' && status == WEFT_OK;) {
        char *end = strchr(at, ',');
        char *next = end != NULL ? end + 1 : at + strlen(at);
        if (end != NULL) {
            *end = '\0';
        }
        status = want(context, at);
        at = next;
    }
    if (context->settings.costs[0] == '\0') {
        wefti_costs_default(&context->costs, context->allocator);
    } else if (status == WEFT_OK) {
        status = wefti_costs_load(&context->costs, context->settings.costs, context->allocator);
        status = status < 0 ? wefti_error_prefix(status, "WEFT_COSTS") : status;
    }
    return status;
}

weft_status_t wefti_context_find_net(weft_context_t *context)
{
    wefti_endpoint_t *endpoint = context->endpoint;
    uint32_t n = endpoint->world_size;
    uint8_t rdma = 1, *all;
    if (endpoint->host_count <= 1) {
        return WEFT_OK;
    }
    for (uint32_t r = 0; r < n; r++) {
        char name[32], reason[8];
        wefti_endpoint_describe(endpoint, r, name, sizeof name, reason, sizeof reason);
        bool crosses = endpoint->host_of[r] != endpoint->host_of[endpoint->rank];
        rdma = rdma && (!crosses || strcmp(name, "verbs") == 0);
    }
    all = wefti_alloc(context->allocator, n);
    if (all == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    weft_status_t status = wefti_endpoint_all_gather(endpoint, &rdma, 1, all);
    for (uint32_t r = 0; r < n && status >= 0; r++) {
        rdma = rdma && all[r];
    }
    if (status >= 0 && context->settings.costs[0] == '\0') {
        wefti_costs_set_net(&context->costs, rdma);
    }
    wefti_free(context->allocator, all);
    return status;
}
