/* SPDX-License-Identifier: Apache-2.0 */
/* Algorithms by levels, on processes: hosts are identities, racks those of a file. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ops/algo/table.h"
#include "runtime/group/group.h"
#include "support_collectives.h"
#include "tests/support/support.h"

static void run_levels(rank_world_t *world)
{
    static const uint64_t counts[] = {0, 1, 7, 1000, 20011};
    static const weft_dtype_t dtypes[] = {WEFT_DTYPE_I32, WEFT_DTYPE_U64, WEFT_DTYPE_I16};
    const weft_algorithm_t *algorithm;
    uint32_t rows = 0;
    one_rank_t one;
    support_one_init(&one, world, true, 3);
    RANK_OK(weft_group_set_order(world->group, WEFT_ORDER_ANY, NULL, 0));
    for (size_t i = 0; (algorithm = wefti_algorithm_at(i)) != NULL; i++) {
        if (strncmp(algorithm->name, "levels-", 7) != 0) {
            continue;
        }
        RANK_OK(weft_group_set_algorithm(world->group, algorithm->op, algorithm->name));
        for (uint32_t c = 0; c < 10; c++) {
            support_call(&one, algorithm->op, counts[c / 2], dtypes[c % 3], WEFT_REDUCTION_SUM, 0,
                         c % 2);
        }
        RANK_CHECK(strncmp(weft_group_last_algorithm(world->group), algorithm->name,
                           strlen(algorithm->name)) == 0);
        RANK_CHECK(strcmp(weft_group_last_path(world->group), "schedule") == 0);
        RANK_OK(weft_group_set_algorithm(world->group, algorithm->op, NULL));
        rows++;
    }
    RANK_CHECK(rows == 9);
    RANK_OK(weft_barrier(world->group, NULL)); /* nobody reads what goes away now */
    support_one_deinit(&one);
}

static void run_on(const char *hosts, const char *topology)
{
    char path[] = "/tmp/weft-levels-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, topology, strlen(topology)), strlen(topology));
    close(fd);
    setenv("WEFT_TOPOLOGY", path, 1);
    setenv("WEFT_TEST_TRANSPORT", "tcp", 1);
    setenv("WEFT_TEST_HOSTS", hosts, 1);
    assert_true(support_rank_processes(8, run_levels, NULL));
    unsetenv("WEFT_TEST_HOSTS");
    unsetenv("WEFT_TEST_TRANSPORT");
    unsetenv("WEFT_TRANSPORT"); /* which the other one has set */
    unsetenv("WEFT_TOPOLOGY");
    remove(path);
}

static void test_hosts_of_consecutive_ranks(void **state)
{
    (void)state;
    run_on("aabbccdd", "{\"format\": 1, \"hosts\": [{\"ranks\": 2, \"rack\": 0},"
                       "{\"ranks\": 2, \"rack\": 0}, {\"ranks\": 2, \"rack\": 1},"
                       "{\"ranks\": 2, \"rack\": 1}]}");
}

static void test_ranks_and_racks_in_turns(void **state)
{
    (void)state;
    run_on("abcdabcd", "{\"format\": 1, \"hosts\": [{\"ranks\": [0, 4], \"rack\": 0},"
                       "{\"ranks\": [1, 5], \"rack\": 1}, {\"ranks\": [2, 6], \"rack\": 0},"
                       "{\"ranks\": [3, 7], \"rack\": 1}]}");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hosts_of_consecutive_ranks),
        cmocka_unit_test(test_ranks_and_racks_in_turns),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
