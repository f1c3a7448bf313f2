/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Why a rank left or died: the first error that it had in one of its groups. Ranks that wait for it
 * elsewhere report that, too, and not only the consequence.
 */
#include "transport/transport.h"

#include <stdio.h>
#include <string.h>

#include "transport/endpoint.h"

#define MARK " had an error before: "

static void note(wefti_endpoint_t *endpoint, wefti_fault_t *fault, weft_status_t status,
                 const char *text)
{
    const wefti_control_t *own = endpoint->control[endpoint->rank];
    /* relaxed: a world that has ended tells all ranks why */
    if (status == WEFT_ERR_LINK || !wefti_endpoint_owned(endpoint) ||
        atomic_load_explicit(&own->abort.state, memory_order_relaxed) != 0) {
        return;
    }
    if (wefti_fault_set(fault, status, text)) {
        endpoint->ops->error_noted(endpoint, fault);
    }
}

void wefti_endpoint_note_error(wefti_endpoint_t *endpoint, weft_status_t status, const char *text)
{
    note(endpoint, &endpoint->control[endpoint->rank]->cause, status, text);
}

void wefti_endpoint_note_refusal(wefti_endpoint_t *endpoint, weft_status_t status, const char *text)
{
    note(endpoint, &endpoint->control[endpoint->rank]->refusal, status, text);
}

/* That r is gone: it has left, or text begins with its number. */
static bool is_gone(const wefti_endpoint_t *endpoint, uint32_t r, const char *text)
{
    unsigned first = 0;
    return wefti_endpoint_has_left(endpoint, r) ||
           (sscanf(text, "rank %u", &first) == 1 && first == wefti_endpoint_number(endpoint, r));
}

weft_status_t wefti_endpoint_add_error_of(const wefti_endpoint_t *endpoint, uint32_t rank,
                                          char *text, size_t bytes)
{
    const wefti_control_t *control = endpoint->control[rank];
    weft_status_t status = control != NULL ? wefti_fault_get(&control->cause) : WEFT_OK;
    status = control != NULL && status == WEFT_OK ? wefti_fault_get(&control->refusal) : status;
    if (status != WEFT_OK) {
        const char *error = weft_last_error(), *before = strstr(error, MARK);
        snprintf(text, bytes, "; rank %u" MARK "%s", wefti_endpoint_number(endpoint, rank),
                 before != NULL ? before + strlen(MARK) : error);
    }
    return status;
}

void wefti_endpoint_add_cause(const wefti_endpoint_t *endpoint, char *text, size_t bytes)
{
    if (strstr(text, MARK) != NULL) {
        return;
    }
    for (uint32_t r = 0; r < endpoint->world_size; r++) {
        size_t used = strlen(text);
        if (r != endpoint->rank && endpoint->control[r] != NULL && is_gone(endpoint, r, text) &&
            wefti_endpoint_add_error_of(endpoint, r, text + used, bytes - used) != WEFT_OK) {
            return;
        }
    }
}
