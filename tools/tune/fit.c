/* SPDX-License-Identifier: Apache-2.0 */
/* From measured times to a table of costs. */
#include <string.h>

#include "runtime/base/error.h"
#include "tools/tune/tune.h"

/* The points that were measured, in front. */
static size_t pack(const wefti_cost_point_t *points, wefti_cost_point_t *out)
{
    size_t count = 0;
    for (size_t i = 0; i < TUNE_SIZES; i++) {
        /* Sizes that round to the same block are one. */
        if (points[i].ns > 0 && (count == 0 || points[i].bytes > out[count - 1].bytes)) {
            out[count++] = points[i];
        }
    }
    return count;
}

weft_status_t wefti_tune_add(wefti_costs_t *costs, const tune_run_t *run)
{
    const weft_algorithm_t *algorithm;
    wefti_cost_point_t points[TUNE_SIZES];
    weft_status_t status = WEFT_OK;
    for (uint32_t op = 1; op < WEFTI_OPS; op++) {
        for (uint32_t a = 0; status == WEFT_OK && a < TUNE_ALGORITHMS &&
                             (algorithm = wefti_tune_algorithm((weft_collective_t)op, a)) != NULL;
             a++) {
            size_t count = pack(run->result->points[op][a], points);
            wefti_measured_cost_t key = {.op = algorithm->op,
                                         .ranks = run->bench.ranks,
                                         .hosts = run->host_count > 1 ? run->host_count : 1,
                                         .plain = run->bench.memory == MEMORY_PLAIN};
            size_t length = strlen(algorithm->name);
            if (count > 0 && length < sizeof key.algorithm) {
                memcpy(key.algorithm, algorithm->name, length);
                status = wefti_costs_add_fit(costs, &key, points, count);
            }
        }
    }
    return status;
}

void wefti_tune_set_links(wefti_costs_t *costs, const tune_result_t *result)
{
    if (result->host_alpha > 0) {
        costs->level[WEFTI_LEVEL_SELF].beta_ns_per_byte = result->self_beta;
        costs->level[WEFTI_LEVEL_HOST].alpha_ns = result->host_alpha;
        costs->level[WEFTI_LEVEL_HOST].beta_ns_per_byte = result->host_beta;
        costs->gamma_ns_per_byte = result->gamma;
    }
}

/*
 * Calls of the smallest size take a times the link's alpha, b times the interpreter's step and c
 * times the start of an interpreted call, plus the cost of a few bytes. Least squares of the
 * relative error over all algorithms. Each coefficient has a lower bound, since waits may hide
 * steps, which would then seem free.
 */
typedef struct equations {
    double square[3][3], right[3];
    uint32_t count;
} equations_t;

static void add_equation(equations_t *e, const double factors[3], double rest_ns,
                         double measured_ns)
{
    double weight = 1 / (measured_ns * measured_ns);
    for (int i = 0; i < 3; i++) {
        for (int j = 0; j < 3; j++) {
            e->square[i][j] += weight * factors[i] * factors[j];
        }
        e->right[i] += weight * factors[i] * rest_ns;
    }
    e->count++;
}

/* Gauss-Seidel, with values below the least set to it: the problem is convex. */
static void solve(const equations_t *e, double out[3])
{
    static const double least[] = {20, 5, 0}; /* ns */
    for (uint32_t round = 0; round < 1000; round++) {
        for (int i = 0; i < 3; i++) {
            double rest = e->right[i];
            for (int j = 0; j < 3; j++) {
                rest -= j != i ? e->square[i][j] * out[j] : 0;
            }
            double value = e->square[i][i] > 0 ? rest / e->square[i][i] : least[i];
            out[i] = value > least[i] ? value : least[i];
        }
    }
}

/* What the algorithm is predicted to take with these two costs and the table's others. */
static weft_status_t predict(const wefti_costs_t *costs, const weft_algorithm_t *algorithm,
                             uint32_t ranks, uint64_t bytes, double alpha_ns, double step_ns,
                             double *out_ns)
{
    weft_algo_params_t params = {.struct_size = sizeof params,
                                 .op = algorithm->op,
                                 .group_size = ranks,
                                 .order = WEFT_ORDER_ANY};
    wefti_counts_t counts = {.elem_count = bytes / 4, .elem_bytes = 4};
    wefti_costs_t own = *costs;
    own.level[WEFTI_LEVEL_HOST].alpha_ns = alpha_ns;
    own.step_ns = step_ns;
    return wefti_cost_predict(&own, algorithm, &params, &counts, out_ns);
}

static weft_status_t add_smallest(equations_t *e, const wefti_costs_t *costs,
                                  const weft_algorithm_t *algorithm, uint32_t ranks,
                                  const wefti_cost_point_t *points)
{
    const double far = 1e4; /* what is on the longest way stays on it */
    bool executor = wefti_cost_has_executor(algorithm);
    wefti_cost_point_t packed[TUNE_SIZES];
    double none, alphas, steps;
    if (pack(points, packed) == 0) {
        return WEFT_OK;
    }
    uint64_t bytes = packed[0].bytes;
    WEFT_RETURN_IF_ERROR(predict(costs, algorithm, ranks, bytes, 0, 0, &none));
    WEFT_RETURN_IF_ERROR(predict(costs, algorithm, ranks, bytes, far, 0, &alphas));
    WEFT_RETURN_IF_ERROR(predict(costs, algorithm, ranks, bytes, far, far / 100, &steps));
    double factors[3] = {(alphas - none) / far, (steps - alphas) / (far / 100), 1};
    if (executor) { /* steps of its own kind, and its first wait is the agreement */
        factors[1] = factors[2] = 0;
    } else {
        factors[0] += 1;
    }
    add_equation(e, factors, packed[0].ns - none, packed[0].ns);
    return WEFT_OK;
}

weft_status_t wefti_tune_set_steps(wefti_costs_t *costs, const tune_run_t *run)
{
    const weft_algorithm_t *algorithm;
    equations_t e = {0};
    weft_status_t status = WEFT_OK;
    for (uint32_t op = 1; op < WEFTI_OPS; op++) {
        for (uint32_t a = 0; status == WEFT_OK && a < TUNE_ALGORITHMS &&
                             (algorithm = wefti_tune_algorithm((weft_collective_t)op, a)) != NULL;
             a++) {
            status =
                add_smallest(&e, costs, algorithm, run->bench.ranks, run->result->points[op][a]);
        }
    }
    if (status < 0 || e.count < 6) {
        return status; /* too few: the defaults stay */
    }
    double found[3] = {costs->level[WEFTI_LEVEL_HOST].alpha_ns, costs->step_ns, costs->call_ns};
    solve(&e, found);
    costs->level[WEFTI_LEVEL_HOST].alpha_ns = found[0];
    costs->step_ns = found[1];
    costs->call_ns = found[2];
    return WEFT_OK;
}
