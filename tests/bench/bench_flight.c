/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the flight recorder adds to a call: writing its record and its end. Each batch of records is
 * timed as a whole; nanoseconds per record of the median batch. "small" calls have no end of their
 * own, "large" ones look at the clock twice; "world" is what steps and control calls cost. One line
 * of JSON each.
 *
 * usage: bench_flight [BATCHES]
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <weft/weft.h>

#include "runtime/context/context.h"

#define RECORDS 10000u

typedef enum form { FORM_SMALL, FORM_LARGE, FORM_WORLD, FORMS } form_t;
static const char *const names[FORMS] = {"small", "large", "world"};

static void record(wefti_flight_t *flight, wefti_flight_writer_t *writer, form_t form)
{
    for (uint32_t i = 0; i < RECORDS; i++) {
        uint64_t count = form == FORM_SMALL ? 8 : 1u << 20;
        uint32_t serial =
            form == FORM_WORLD
                ? wefti_flight_enter(flight, WEFTI_FLIGHT_SESSION_STEP, i)
                : wefti_flight_begin(writer, WEFTI_FLIGHT_COLLECTIVE, 0, WEFT_COLLECTIVE_ALL_REDUCE,
                                     count, i, WEFTI_FLIGHT_NO_RANK);
        wefti_flight_end(flight->image, serial, WEFT_OK);
    }
}

static int by_value(const void *a, const void *b)
{
    const double *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

int main(int argc, char **argv)
{
    uint32_t batches = argc > 1 ? (uint32_t)atoi(argv[1]) : 200, rank = 0;
    double *ns = calloc(batches + 1u, sizeof *ns);
    weft_context_params_t params = WEFT_CONTEXT_PARAMS_INIT;
    weft_context_t *context = NULL;
    if (ns == NULL || batches == 0 || weft_context_create(&params, &context) < 0) {
        fprintf(stderr, "bench_flight: %s\n", weft_last_error());
        return 1;
    }
    wefti_flight_writer_t writer = wefti_flight_add_group(&context->flight, &rank, 1, 0, 7, NULL);
    for (form_t form = 0; form < FORMS; form++) {
        for (uint32_t i = 0; i < batches; i++) {
            uint64_t start = wefti_now_ns();
            record(&context->flight, &writer, form);
            ns[i] = (double)(wefti_now_ns() - start) / RECORDS;
        }
        qsort(ns, batches, sizeof *ns, by_value);
        printf("{\"name\": \"flight_record\", \"call\": \"%s\", \"records\": %u, \"min_ns\": %.1f, "
               "\"median_ns\": %.1f, \"p90_ns\": %.1f}\n",
               names[form], RECORDS * batches, ns[0], ns[batches / 2], ns[batches * 9 / 10]);
    }
    wefti_flight_remove_group(&context->flight, &writer);
    weft_context_release(context);
    free(ns);
    return 0;
}
