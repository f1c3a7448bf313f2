/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From measured times to a cost in pieces: straight lines between some of the points, as few as
 * keep all points within a twentieth. One line from 8 B to 64 MiB would be wrong by half where data
 * leaves a cache.
 */
#include <math.h>

#include "ops/cost/cost.h"
#include "runtime/base/error.h"

#define MAX_POINTS 64u
#define TOLERANCE 0.05

/*
 * Larger calls never take less time; where they seem to, somebody disturbed one of them, and both
 * get their mean (pooling of adjacent violators).
 */
static void make_monotonic(wefti_cost_point_t *points, size_t count)
{
    size_t width[MAX_POINTS], pools = 0;
    double mean[MAX_POINTS];
    for (size_t i = 0; i < count; i++) {
        mean[pools] = points[i].ns;
        width[pools++] = 1;
        while (pools > 1 && mean[pools - 2] > mean[pools - 1]) {
            pools--;
            double sum =
                mean[pools - 1] * (double)width[pools - 1] + mean[pools] * (double)width[pools];
            width[pools - 1] += width[pools];
            mean[pools - 1] = sum / (double)width[pools - 1];
        }
    }
    for (size_t pool = 0, i = 0; pool < pools; pool++) {
        for (size_t j = 0; j < width[pool]; j++) {
            points[i++].ns = mean[pool];
        }
    }
}

static double slope(const wefti_cost_point_t *a, const wefti_cost_point_t *b)
{
    return (b->ns - a->ns) / ((double)b->bytes - (double)a->bytes);
}

/* Whether the line from points[0] to points[last] passes near those between them. */
static bool line_holds(const wefti_cost_point_t *points, size_t last)
{
    double beta = slope(&points[0], &points[last]);
    for (size_t i = 1; i < last; i++) {
        double ns = points[0].ns + beta * ((double)points[i].bytes - (double)points[0].bytes);
        if (fabs(ns - points[i].ns) > TOLERANCE * points[i].ns) {
            return false;
        }
    }
    return true;
}

weft_status_t wefti_costs_add_fit(wefti_costs_t *costs, const wefti_measured_cost_t *key,
                                  const wefti_cost_point_t *points, size_t count)
{
    wefti_cost_point_t own[MAX_POINTS];
    if (count == 0 || count > MAX_POINTS) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "%zu points are none, or more than %u", count,
                           MAX_POINTS);
    }
    for (size_t i = 0; i < count; i++) {
        own[i] = points[i];
        if (!(points[i].ns >= 0) || (i > 0 && points[i].bytes <= points[i - 1].bytes)) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "point %zu is no time or out of order",
                               i);
        }
    }
    make_monotonic(own, count);
    weft_status_t status = WEFT_OK;
    for (size_t from = 0, to; status >= 0 && (from == 0 || from + 1 < count); from = to) {
        wefti_measured_cost_t item = *key;
        item.from_bytes = from == 0 ? 0 : own[from].bytes;
        item.alpha_ns = own[from].ns;
        item.beta_ns_per_byte = 0;
        to = count;
        if (count > 1) {
            for (to = from + 1; to + 1 < count && line_holds(&own[from], to + 1 - from);) {
                to++;
            }
            item.beta_ns_per_byte = slope(&own[from], &own[to]);
            item.alpha_ns -= item.beta_ns_per_byte * (double)own[from].bytes;
        }
        status = wefti_costs_add(costs, &item);
    }
    return status;
}
