/* SPDX-License-Identifier: Apache-2.0 */
/* Times of kernels from measured points, sorted by kind, threads and size. */
#include "ops/cost/cost.h"

#include <assert.h>
#include <string.h>

static const char *const kind_names[] = {"product", "conv", "conv_grad", "exp",  "attention",
                                         "fused",   "norm", "pool",      "move", "update"};
static_assert(sizeof kind_names / sizeof *kind_names == WEFTI_KERNEL_KINDS, "one name per kind");

const char *wefti_kernel_kind_name(wefti_kernel_kind_t kind)
{
    return kind < WEFTI_KERNEL_KINDS ? kind_names[kind] : NULL;
}

static int compare(const wefti_kernel_point_t *a, const wefti_kernel_point_t *b)
{
    if (a->kind != b->kind) {
        return a->kind < b->kind ? -1 : 1;
    }
    if (a->threads != b->threads) {
        return a->threads < b->threads ? -1 : 1;
    }
    return (a->size > b->size) - (a->size < b->size);
}

weft_status_t wefti_costs_add_kernel(wefti_costs_t *costs, const wefti_kernel_point_t *point)
{
    size_t at = 0;
    weft_status_t status =
        wefti_array_reserve(costs->allocator, &costs->kernels, &costs->kernel_capacity,
                            costs->kernel_count + 1, sizeof *point);
    if (status < 0) {
        return status;
    }
    while (at < costs->kernel_count && compare(&costs->kernels[at], point) < 0) {
        at++;
    }
    if (at == costs->kernel_count || compare(&costs->kernels[at], point) != 0) {
        memmove(&costs->kernels[at + 1], &costs->kernels[at],
                (costs->kernel_count - at) * sizeof *point);
        costs->kernel_count++;
    }
    costs->kernels[at] = *point;
    return WEFT_OK;
}

/* The points of one kind and number of threads. */
typedef struct curve {
    const wefti_kernel_point_t *points;
    size_t count;
} curve_t;

static curve_t next_curve(const wefti_costs_t *costs, wefti_kernel_kind_t kind, size_t from)
{
    size_t end;
    while (from < costs->kernel_count && costs->kernels[from].kind != kind) {
        from++;
    }
    if (from == costs->kernel_count) { /* there may be no array to point into */
        return (curve_t){NULL, 0};
    }
    for (end = from; end < costs->kernel_count && costs->kernels[end].kind == kind &&
                     costs->kernels[end].threads == costs->kernels[from].threads;) {
        end++;
    }
    return (curve_t){costs->kernels + from, end - from};
}

/*
 *   ns            ____ beyond the last point: in proportion to it
 *     |      ____/
 *     |  ___/          between points: straight lines
 *     |_/              below the first point: its time, which is mostly the cost of a call
 *     +------------- size
 */
static double on_curve(const curve_t *curve, double size)
{
    const wefti_kernel_point_t *points = curve->points;
    size_t i = 0;
    while (i < curve->count && points[i].size < size) {
        i++;
    }
    if (i == 0) {
        return points[0].ns;
    }
    if (i == curve->count) {
        return points[i - 1].ns * (size / points[i - 1].size);
    }
    double share = (size - points[i - 1].size) / (points[i].size - points[i - 1].size);
    return points[i - 1].ns + share * (points[i].ns - points[i - 1].ns);
}

/* Between two measured numbers of threads the time is a + b / threads. Only the four operations of
 * arithmetic are used, so that all hosts compute the same bits. */
bool wefti_costs_kernel_ns(const wefti_costs_t *costs, wefti_kernel_kind_t kind, uint32_t threads,
                           double size, double *out_ns)
{
    curve_t curve = next_curve(costs, kind, 0), low;
    if (curve.count == 0) {
        return false;
    }
    for (low = curve; curve.count > 0 && curve.points->threads <= threads;) {
        low = curve;
        curve = next_curve(costs, kind, (size_t)(curve.points - costs->kernels) + curve.count);
    }
    *out_ns = on_curve(&low, size);
    if (curve.count > 0 && low.points->threads < threads) {
        double first = 1.0 / low.points->threads, last = 1.0 / curve.points->threads;
        double share = (first - 1.0 / threads) / (first - last);
        *out_ns += share * (on_curve(&curve, size) - *out_ns);
    }
    return true;
}
