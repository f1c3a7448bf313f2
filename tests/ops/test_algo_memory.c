/* SPDX-License-Identifier: Apache-2.0 */
/* Every allocation of building, lowering, verifying, resolving and choosing fails once: an error,
 * and no leak. */
#include <stdlib.h>

#include <weft/status.h>

#include "ops/algo/lower.h"
#include "ops/algo/resolve.h"
#include "ops/algo/simulate.h"
#include "ops/algo/table.h"
#include "ops/cost/cost.h"
#include "tests/ops/support_hosts.h"
#include "tests/support/support.h"

/* A row of the table below. */
typedef struct row {
    weft_collective_t op;
    const char *name;
} row_t;

static weft_status_t all_steps(const weft_allocator_t *allocator, void *user)
{
    const row_t *row = user;
    const weft_algo_params_t params = {.op = row->op, .group_size = 5};
    const weft_algorithm_t *algorithm = wefti_algorithm_find(row->op, row->name);
    const uint32_t memory_of[5] = {0, 0, 1, 1, 2};
    const uint8_t hidden[5] = {0, 1, 0, 0, 1};
    const wefti_links_t links = {memory_of, hidden};
    const wefti_counts_t counts = {100, 4, NULL};
    wefti_schedule_t *schedules;
    wefti_tasks_t tasks;
    weft_status_t status = wefti_schedules_build(algorithm, &params, allocator, &schedules);
    if (status >= 0) {
        status = wefti_schedules_lower(&params, &links, allocator, schedules);
    }
    if (status >= 0) {
        status = wefti_schedules_verify(&params, schedules, &links, allocator, NULL);
    }
    if (status >= 0) {
        status = wefti_schedule_resolve(&params, &schedules[1], &counts, allocator, &tasks);
        if (status >= 0) {
            wefti_tasks_deinit(&tasks);
        }
    }
    wefti_schedules_free(allocator, schedules, params.group_size);
    const wefti_links_t puts = {.memory_of = memory_of};
    if (status >= 0) { /* that of rank 0 alone */
        status = wefti_schedules_build_lowered(algorithm, &params, &puts, allocator, &schedules);
        wefti_schedules_free(allocator, schedules, params.group_size);
    }
    return status;
}

static void test_every_failing_allocation_is_survived(void **state)
{
    row_t rows[] = {{WEFT_COLLECTIVE_ALL_REDUCE, "mesh"},
                    {WEFT_COLLECTIVE_ALL_REDUCE, "halving-doubling"},
                    {WEFT_COLLECTIVE_ALL_GATHER, "bruck"},
                    {WEFT_COLLECTIVE_BARRIER, "dissemination"}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        (void)test_memory_sweep(all_steps, &rows[i]);
    }
}

static weft_status_t choose(const weft_allocator_t *allocator, void *user)
{
    (void)user;
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
        weft_algo_params_t params = {.op = WEFT_COLLECTIVE_ALL_REDUCE,
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
    (void)test_memory_sweep(choose, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_failing_allocation_is_survived),
        cmocka_unit_test(test_choosing_survives_every_failing_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
