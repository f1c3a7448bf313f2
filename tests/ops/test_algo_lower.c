/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The schedule of one rank lowered alone is that of the lowering of all ranks, bit by bit, and that
 * of ranks which know only what they waited for is that which the simulator finds: for the cases of
 * the sweep over put links, whose lowering is wrapped here (and proved in test_algo_sweep.c).
 * WEFT_TEST_RANKS: groups up to this size.
 */
#include <stdlib.h>
#include <string.h>

#include <weft/status.h>

#include "ops/algo/lower.h"
#include "ops/algo/sweep.h"
#include "tests/support/support.h"

static uint64_t compared, kept, built; /* schedules; steps of others of one and of all ranks */

weft_status_t __real_wefti_schedules_lower(const weft_algo_params_t *params,
                                           const wefti_links_t *links,
                                           const weft_allocator_t *allocator,
                                           wefti_schedule_t *schedules);
weft_status_t __wrap_wefti_schedules_lower(const weft_algo_params_t *params,
                                           const wefti_links_t *links,
                                           const weft_allocator_t *allocator,
                                           wefti_schedule_t *schedules);
weft_status_t __wrap_wefti_schedules_verify(const weft_algo_params_t *params,
                                            const wefti_schedule_t *schedules,
                                            const wefti_links_t *links,
                                            const weft_allocator_t *allocator,
                                            wefti_verify_stats_t *out_stats);

static bool same_operands(const wefti_schedule_t *a, const wefti_schedule_t *b, size_t step)
{
    uint32_t op = a->steps[step].op;
    if (op != WEFTI_DO_COPY && op != WEFTI_DO_REDUCE && op != WEFTI_DO_PUT) {
        return true;
    }
    uint32_t count = a->steps[step].move.source_count + a->steps[step].move.destination_count;
    return memcmp(a->operands + a->steps[step].move.operand,
                  b->operands + b->steps[step].move.operand, count * sizeof *a->operands) == 0;
}

static void assert_same(const wefti_schedule_t *a, const wefti_schedule_t *b, const char *what)
{
    char left[200], right[200];
    for (size_t i = 0; i < a->step_count && i < b->step_count; i++) {
        if (memcmp(&a->steps[i], &b->steps[i], sizeof a->steps[i]) != 0 ||
            !same_operands(a, b, i)) {
            fail_msg("%s: %s, rank %u of %s, step %zu: %s, not %s", what,
                     weft_collective_name(a->algorithm->op), a->rank, a->algorithm->name, i,
                     wefti_step_text(b, &b->steps[i], left, sizeof left),
                     wefti_step_text(a, &a->steps[i], right, sizeof right));
        }
    }
    assert_int_equal(a->step_count, b->step_count);
    assert_int_equal(a->stage_slots, b->stage_slots);
    assert_int_equal(a->stage_wide_slots, b->stage_wide_slots);
    assert_int_equal(a->stage_sets, b->stage_sets);
    assert_memory_equal(a->lane_begin, b->lane_begin, sizeof a->lane_begin);
    assert_memory_equal(&a->resources, &b->resources, sizeof a->resources);
    compared++;
}

static void compare_with_one(const weft_algo_params_t *params, const wefti_links_t *links,
                             const wefti_schedule_t *all)
{
    weft_algo_params_t own = *params;
    for (own.rank = 0; own.rank < own.group_size; own.rank++) {
        wefti_schedule_t *one;
        if (wefti_schedules_build_lowered(all[0].algorithm, &own, links, NULL, &one) < 0) {
            fail_msg("%s", weft_last_error());
        }
        assert_same(&all[own.rank], &one[own.rank], "alone");
        for (uint32_t r = 0; r < own.group_size; r++) {
            assert_int_equal(one[r].stage_slots, all[r].stage_slots);
            assert_int_equal(one[r].stage_wide_slots, all[r].stage_wide_slots);
            kept += r != own.rank ? one[r].step_count : 0;
            built += r != own.rank ? all[r].step_count : 0;
        }
        wefti_schedules_free(NULL, one, own.group_size);
    }
}

static void compare_over_puts(const weft_algorithm_t *algorithm, const weft_algo_params_t *params,
                              const wefti_links_t *links)
{
    wefti_links_t puts = {.memory_of = links->memory_of};
    wefti_schedule_t *all;
    assert_int_equal(wefti_schedules_build(algorithm, params, NULL, &all), WEFT_OK);
    assert_int_equal(__real_wefti_schedules_lower(params, &puts, NULL, all), WEFT_OK);
    compare_with_one(params, &puts, all);
    wefti_schedules_free(NULL, all, params->group_size);
}

static void compare_with_simulated(const weft_algo_params_t *params, const wefti_links_t *links,
                                   const wefti_schedule_t *all)
{
    wefti_schedule_t *simulated;
    const weft_algorithm_t *algorithm = all[0].algorithm;
    assert_int_equal(wefti_schedules_build(algorithm, params, NULL, &simulated), WEFT_OK);
    simulated[0].algorithm = NULL; /* as that of a user */
    if (__real_wefti_schedules_lower(params, links, NULL, simulated) < 0) {
        fail_msg("%s", weft_last_error());
    }
    for (uint32_t r = 0; r < params->group_size; r++) {
        assert_same(&all[r], &simulated[r], "simulated");
    }
    wefti_schedules_free(NULL, simulated, params->group_size);
}

weft_status_t __wrap_wefti_schedules_lower(const weft_algo_params_t *params,
                                           const wefti_links_t *links,
                                           const weft_allocator_t *allocator,
                                           wefti_schedule_t *schedules)
{
    weft_status_t status = __real_wefti_schedules_lower(params, links, allocator, schedules);
    if (status >= 0) {
        compare_with_simulated(params, links, schedules);
    }
    if (status >= 0 && links->memory_of != NULL) {
        compare_over_puts(schedules[0].algorithm, params, links);
    }
    return status;
}

weft_status_t __wrap_wefti_schedules_verify(const weft_algo_params_t *params,
                                            const wefti_schedule_t *schedules,
                                            const wefti_links_t *links,
                                            const weft_allocator_t *allocator,
                                            wefti_verify_stats_t *out_stats)
{
    (void)params, (void)schedules, (void)links, (void)allocator;
    *out_stats = (wefti_verify_stats_t){0};
    return WEFT_OK;
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SIZES                                                                                      \
    {                                                                                              \
        3, 5, 6                                                                                    \
    }
#else
#define SIZES                                                                                      \
    {                                                                                              \
        2, 3, 5, 6, 8, 12                                                                          \
    }
#endif

static void test_lower_one_rank_alone(void **state)
{
    (void)state;
    const char *most = getenv("WEFT_TEST_RANKS");
    uint32_t few[] = SIZES, end = most != NULL ? (uint32_t)atoi(most) : 0;
    wefti_sweep_t sweep = {.links = WEFTI_SWEEP_ALL};
    for (uint32_t i = 0; i < (end > 0 ? end : sizeof few / sizeof *few); i++) {
        if (wefti_sweep_size(&sweep, end > 0 ? i + 1 : few[i]) < 0) {
            fail_msg("%s", weft_last_error());
        }
    }
    print_message("%llu schedules; kept %llu of %llu steps of others\n",
                  (unsigned long long)compared, (unsigned long long)kept,
                  (unsigned long long)built);
    assert_true(compared > 10000);
    assert_true(kept < built);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_lower_one_rank_alone)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
