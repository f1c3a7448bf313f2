/* SPDX-License-Identifier: Apache-2.0 */
/* Rates of moves that share links: max-min fair. */
#include <math.h>
#include <string.h>

#include "fusion/simulate/simulate.h"
#include "tests/support/support.h"

enum { MOST_FLOWS = 64, MOST_LINKS = 8 };

typedef struct network {
    sim_flows_t flows;
    sim_flow_t list[MOST_FLOWS];
    double rates[MOST_LINKS], loads[MOST_LINKS], spare[MOST_LINKS];
    uint32_t ended[MOST_FLOWS], ended_count, count;
} network_t;

static void set_up(network_t *n, size_t link_count, const double *rates)
{
    memset(n, 0, sizeof *n);
    memcpy(n->rates, rates, link_count * sizeof *rates);
    n->flows = (sim_flows_t){.rates = n->rates,
                             .loads = n->loads,
                             .spare = n->spare,
                             .link_count = link_count,
                             .flows = n->list};
}

/* links: ends with -1. */
static void add(network_t *n, double bytes, double most, double weight, const int *links)
{
    sim_flow_t *flow = &n->list[n->count];
    *flow = (sim_flow_t){.bytes = bytes, .most = most};
    for (; *links >= 0; links++) {
        flow->hops[flow->hop_count++] = (sim_hop_t){(uint32_t)*links, weight};
    }
    assert_int_equal(wefti_sim_flow_begin(&n->flows, n->count++), WEFT_OK);
}

static weft_status_t note(void *user, uint32_t flow)
{
    network_t *n = user;
    n->ended[n->ended_count++] = flow;
    return WEFT_OK;
}

static void check_rate(const network_t *n, uint32_t flow, double rate)
{
    assert_float_equal(n->list[flow].rate, rate, 1e-9 * rate);
}

static void test_a_flow_that_another_link_slows_leaves_its_share(void **state)
{
    network_t n;
    (void)state;
    set_up(&n, 2, (double[]){10, 2});
    add(&n, 100, 0, 1, (int[]){0, 1, -1}); /* both share link 1, one unit each */
    add(&n, 100, 0, 1, (int[]){1, -1});
    add(&n, 90, 0, 1, (int[]){0, -1}); /* has 9 of link 0, not 5 */
    assert_float_equal(wefti_sim_flows_next(&n.flows, 0), 10, 1e-9);
    check_rate(&n, 0, 1);
    check_rate(&n, 1, 1);
    check_rate(&n, 2, 9);
    assert_int_equal(wefti_sim_flows_advance(&n.flows, 0, 10, note, &n), WEFT_OK);
    assert_int_equal(n.ended_count, 1);
    assert_int_equal(n.ended[0], 2);
    assert_float_equal(wefti_sim_flows_next(&n.flows, 10), 100, 1e-9); /* 90 bytes are left */
    wefti_free(NULL, n.flows.active);
}

static void test_a_flow_with_a_rate_of_its_own_leaves_its_share(void **state)
{
    network_t n;
    (void)state;
    set_up(&n, 1, (double[]){10});
    add(&n, 1, 1, 1, (int[]){0, -1});
    add(&n, 1, 0, 2, (int[]){0, -1}); /* stands for two flows */
    add(&n, 1, 0, 1, (int[]){0, -1});
    add(&n, 1, 7, 1, (int[]){-1});
    add(&n, 1, 0, 1, (int[]){-1}); /* nothing limits it */
    assert_float_equal(wefti_sim_flows_next(&n.flows, 5), 5, 0);
    check_rate(&n, 0, 1);
    check_rate(&n, 1, 3);
    check_rate(&n, 2, 3);
    check_rate(&n, 3, 7);
    assert_true(isinf(n.list[4].rate));
    wefti_free(NULL, n.flows.active);
}

static void test_a_flow_alone_has_the_whole_link(void **state)
{
    network_t n;
    (void)state;
    set_up(&n, 2, (double[]){4, 0}); /* a rate of 0: no limit */
    add(&n, 8, 0, 0.25, (int[]){0, 1, -1});
    assert_float_equal(wefti_sim_flows_next(&n.flows, 0), 2, 1e-9);
    wefti_free(NULL, n.flows.active);
}

/* No link is above its rate, and no flow could have more without one that has no more than it. */
static void test_random_networks_are_max_min_fair(void **state)
{
    uint64_t seed = 7;
    (void)state;
    for (uint32_t trial = 0; trial < 200; trial++) {
        network_t n;
        double rates[MOST_LINKS], used[MOST_LINKS] = {0}, largest[MOST_LINKS] = {0};
        for (size_t l = 0; l < MOST_LINKS; l++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            rates[l] = 1 + (double)(seed >> 60);
        }
        set_up(&n, MOST_LINKS, rates);
        for (uint32_t f = 0; f < 40; f++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            int first = (int)(seed >> 61), second = (int)(seed >> 58 & 7);
            add(&n, 100, 0, 1 + (double)(seed >> 56 & 3),
                first == second ? (int[]){first, -1} : (int[]){first, second, -1});
        }
        (void)wefti_sim_flows_next(&n.flows, 0);
        for (uint32_t f = 0; f < n.count; f++) {
            for (uint32_t h = 0; h < n.list[f].hop_count; h++) {
                uint32_t link = n.list[f].hops[h].link;
                used[link] += n.list[f].rate * n.list[f].hops[h].weight;
                largest[link] = fmax(largest[link], n.list[f].rate);
            }
        }
        for (uint32_t f = 0; f < n.count; f++) {
            bool limited = false;
            for (uint32_t h = 0; h < n.list[f].hop_count; h++) {
                uint32_t link = n.list[f].hops[h].link;
                assert_true(used[link] <= rates[link] * (1 + 1e-6));
                limited = limited || (used[link] >= rates[link] * (1 - 1e-6) &&
                                      n.list[f].rate >= largest[link] * (1 - 1e-6));
            }
            assert_true(limited);
        }
        wefti_free(NULL, n.flows.active);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_flow_that_another_link_slows_leaves_its_share),
        cmocka_unit_test(test_a_flow_with_a_rate_of_its_own_leaves_its_share),
        cmocka_unit_test(test_a_flow_alone_has_the_whole_link),
        cmocka_unit_test(test_random_networks_are_max_min_fair),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
