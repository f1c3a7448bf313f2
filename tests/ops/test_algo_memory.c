/* SPDX-License-Identifier: Apache-2.0 */
/* Every allocation of building, lowering, verifying, resolving and choosing fails once: an error,
 * and no leak. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include <weft/status.h>

#include "ops/algo/lower.h"
#include "ops/algo/resolve.h"
#include "ops/algo/simulate.h"
#include "ops/algo/table.h"
#include "ops/cost/cost.h"
#include "ops/topo/topology.h"

typedef struct budget {
    long left; /* allocations until one fails */
    long live;
} budget_t;

static void *budget_alloc(void *user, size_t bytes)
{
    budget_t *budget = user;
    void *ptr = budget->left-- > 0 ? malloc(bytes) : NULL;
    budget->live += ptr != NULL;
    return ptr;
}

static void *budget_realloc(void *user, void *ptr, size_t old_bytes, size_t bytes)
{
    budget_t *budget = user;
    (void)old_bytes;
    if (budget->left-- <= 0) {
        return NULL;
    }
    budget->live += ptr == NULL;
    return realloc(ptr, bytes);
}

static void budget_free(void *user, void *ptr)
{
    ((budget_t *)user)->live -= ptr != NULL;
    free(ptr);
}

static weft_status_t all_steps(const weft_algorithm_t *algorithm, const weft_algo_params_t *params,
                               const weft_allocator_t *allocator)
{
    uint8_t put[25], hidden[5] = {0, 1, 0, 0, 1};
    for (uint32_t i = 0; i < 25; i++) {
        put[i] = i / 5 / 2 != i % 5 / 2;
    }
    const wefti_links_t links = {put, hidden};
    const wefti_counts_t counts = {100, 4, NULL};
    wefti_schedule_t *schedules;
    wefti_tasks_t tasks;
    weft_status_t status = wefti_schedules_build(algorithm, params, allocator, &schedules);
    if (status >= 0) {
        status = wefti_schedules_lower(params, &links, allocator, schedules);
    }
    if (status >= 0) {
        status = wefti_schedules_verify(params, schedules, &links, allocator, NULL);
    }
    if (status >= 0) {
        status = wefti_schedule_resolve(params, &schedules[1], &counts, allocator, &tasks);
        if (status >= 0) {
            wefti_tasks_deinit(&tasks);
        }
    }
    wefti_schedules_free(allocator, schedules, params->group_size);
    return status;
}

static void test_every_failing_allocation_is_survived(void **state)
{
    (void)state;
    static const struct {
        weft_collective_t op;
        const char *name;
    } rows[] = {{WEFT_OP_ALL_REDUCE, "mesh"},
                {WEFT_OP_ALL_REDUCE, "halving-doubling"},
                {WEFT_OP_ALL_GATHER, "bruck"},
                {WEFT_OP_BARRIER, "dissemination"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        weft_algo_params_t params = {.op = rows[i].op, .group_size = 5};
        const weft_algorithm_t *algorithm = wefti_algorithm_find(rows[i].op, rows[i].name);
        budget_t budget = {0};
        const weft_allocator_t allocator = {budget_alloc, budget_realloc, budget_free, &budget};
        weft_status_t status = WEFT_ERR_NO_MEMORY;
        for (long allowed = 0; status < 0; allowed++) {
            budget.left = allowed;
            status = all_steps(algorithm, &params, &allocator);
            assert_int_equal(budget.live, 0);
            assert_true(status == WEFT_OK || status == WEFT_ERR_NO_MEMORY);
            assert_true(allowed < 20000);
        }
    }
}

static weft_status_t choose(const weft_allocator_t *allocator)
{
    static const char costs_text[] = "{\"format\": 1, \"measured\": [{\"op\": \"AllReduce\","
                                     "\"algorithm\": \"mesh\", \"ranks\": 3}]}";
    static const char hosts_text[] = "{\"format\": 1, \"hosts\": [2, 3]}";
    wefti_candidate_t list[WEFTI_MAX_CANDIDATES];
    uint32_t count;
    wefti_costs_t costs;
    wefti_topology_t topology;
    const wefti_counts_t counts = {100, 4, NULL};
    weft_status_t status =
        wefti_topology_decode(hosts_text, sizeof hosts_text - 1, allocator, &topology);
    if (status < 0) {
        return status;
    }
    status = wefti_costs_decode(&costs, costs_text, sizeof costs_text - 1, allocator);
    if (status >= 0) {
        weft_algo_params_t params = {.op = WEFT_OP_ALL_REDUCE,
                                     .group_size = topology.rank_count,
                                     .host_sizes = topology.host_sizes,
                                     .host_count = topology.host_count};
        status = wefti_cost_choose(&costs, &params, &counts, NULL, list, &count);
        wefti_costs_deinit(&costs);
    }
    wefti_topology_deinit(&topology);
    return status;
}

static void test_choosing_survives_every_failing_allocation(void **state)
{
    (void)state;
    budget_t budget = {0};
    const weft_allocator_t allocator = {budget_alloc, budget_realloc, budget_free, &budget};
    weft_status_t status = WEFT_ERR_NO_MEMORY;
    for (long allowed = 0; status < 0; allowed++) {
        budget.left = allowed;
        status = choose(&allocator);
        assert_int_equal(budget.live, 0);
        assert_true(status == WEFT_OK || status == WEFT_ERR_NO_MEMORY);
        assert_true(allowed < 20000);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_failing_allocation_is_survived),
        cmocka_unit_test(test_choosing_survives_every_failing_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
