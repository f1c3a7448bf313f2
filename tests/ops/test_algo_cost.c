/* SPDX-License-Identifier: Apache-2.0 */
/* Cost tables and topologies as files; what is chosen over sizes and why. */
#include <stdio.h>
#include <string.h>

#include <weft/status.h>

#include "ops/cost/cost.h"
#include "tests/ops/support_hosts.h"
#include "tests/support/support.h"

static const char *const table =
    "{\"format\": 1, \"name\": \"lab \\\"one\\\"\",\n"
    " \"links\": {\"host\": {\"alpha_ns\": 75.5, \"beta_ns_per_byte\": 0.02}, \"net\": "
    "{\"alpha_ns\": 4e3}},\n"
    " \"gamma_ns_per_byte\": 0.25, \"step_ns\": 12, \"unknown\": [1, {\"deep\": null}, true],\n"
    " \"measured\": [{\"op\": \"AllReduce\", \"algorithm\": \"halving-doubling\", \"ranks\": 4,\n"
    "               \"alpha_ns\": 1, \"beta_ns_per_byte\": 0.0001}]}";

static void test_costs_are_read_and_written(void **state)
{
    (void)state;
    wefti_costs_t costs, again;
    wefti_text_t text;
    assert_int_equal(wefti_costs_decode(&costs, table, strlen(table), NULL), WEFT_OK);
    assert_string_equal(costs.name, "lab \"one\"");
    assert_true(costs.level[WEFTI_LEVEL_HOST].alpha_ns == 75.5);
    assert_true(costs.level[WEFTI_LEVEL_NET].alpha_ns == 4000);
    assert_true(costs.gamma_ns_per_byte == 0.25 && costs.step_ns == 12);
    wefti_costs_t defaults;
    wefti_costs_default(&defaults, NULL);
    assert_true(costs.level[WEFTI_LEVEL_NET].beta_ns_per_byte ==
                defaults.level[WEFTI_LEVEL_NET].beta_ns_per_byte); /* left out */
    assert_int_equal(costs.measured_count, 1);
    wefti_text_init(&text, NULL);
    wefti_costs_encode(&costs, &text);
    assert_int_equal(wefti_costs_decode(&again, text.data, text.length, NULL), WEFT_OK);
    assert_memory_equal(again.level, costs.level, sizeof costs.level);
    assert_memory_equal(again.measured, costs.measured, sizeof *costs.measured);
    assert_string_equal(again.name, costs.name);
    assert_int_equal(wefti_costs_digest(&costs), wefti_costs_digest(&again));
    snprintf(again.name, sizeof again.name, "elsewhere");
    assert_int_equal(wefti_costs_digest(&costs), wefti_costs_digest(&again));
    assert_int_not_equal(wefti_costs_digest(&costs), wefti_costs_digest(&defaults));
    again.measured[0].beta_ns_per_byte *= 1.0000001;
    assert_int_not_equal(wefti_costs_digest(&costs), wefti_costs_digest(&again));
    wefti_text_deinit(&text);
    wefti_costs_deinit(&costs);
    wefti_costs_deinit(&again);
}

/* Every prefix is refused, and nothing crashes. */
static void test_damaged_files_are_refused(void **state)
{
    (void)state;
    wefti_costs_t costs;
    wefti_topology_t topology;
    char copy[1024];
    for (size_t i = 0; i < strlen(table); i++) {
        memcpy(copy, table, i);
        assert_int_equal(wefti_costs_decode(&costs, copy, i, NULL), WEFT_ERR_FORMAT);
    }
    for (size_t i = 0; i < strlen(table); i++) { /* a byte changed: read or refused */
        memcpy(copy, table, strlen(table) + 1);
        copy[i] = (char)(copy[i] ^ 0x11);
        if (wefti_costs_decode(&costs, copy, strlen(table), NULL) >= 0) {
            wefti_costs_deinit(&costs);
        }
    }
    static const struct {
        const char *text, *why;
    } rows[] = {
        {"", "value is expected"},
        {"[]", "not a cost table"},
        {"{\"format\": 2}", "not a cost table: format is not 1"},
        {"{\"format\": 1} x", "something follows"},
        {"{\"format\": 1,\n\n\"step_ns\": 1e999}", "line 3: a number"},
        {"{\"format\": 1, \"step_ns\": -1}", "step_ns: not a time"},
        {"{\"format\": 1, \"step_ns\": \"7\"}", "step_ns: not a time"},
        {"{\"format\": 1, \"name\": \"\\q\"}", "escape"},
        {"{\"format\": 1, \"measured\": [{\"op\": \"AllGarble\"}]}",
         "op is not the name of a collective"},
        {"{\"format\": 1, \"measured\": [{\"op\": \"Barrier\"}]}",
         "algorithm is missing or not a name"},
        {"{\"format\": 1, \"measured\": [{\"op\": \"Barrier\", \"algorithm\": \"x\", \"ranks\": "
         "0.5}]}",
         "ranks: not an integer"},
        {"{\"format\": 1, \"measured\": [7]}", "op is not the name of a collective"},
        {"{\"format\": 1, \"measured\": [{\"op\": \"Barrier\", \"algorithm\": \"x\", \"ranks\": "
         "2, \"memory\": \"borrowed\"}]}",
         "memory is neither"},
        {"{\"format\": 1, \"measured\": [{\"op\": \"Barrier\", \"algorithm\": \"x\", \"ranks\": "
         "2, \"from_bytes\": 1e99}]}",
         "from_bytes: not a number of bytes"},
        {"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[", "nested too deeply"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_int_equal(wefti_costs_decode(&costs, rows[i].text, strlen(rows[i].text), NULL),
                         WEFT_ERR_FORMAT);
        if (strstr(weft_last_error(), rows[i].why) == NULL) {
            fail_msg("'%s' does not say '%s'", weft_last_error(), rows[i].why);
        }
    }
    assert_int_equal(wefti_costs_load(&costs, "/nonexistent/costs.json", NULL), WEFT_ERR_NOT_FOUND);
    static const char *const hosts[] = {"{\"format\": 1, \"hosts\": []}",
                                        "{\"format\": 1, \"hosts\": [0]}",
                                        "{\"format\": 1, \"hosts\": [1, {\"name\": \"b\"}]}",
                                        "{\"format\": 1, \"hosts\": [60000, 60000]}", "{}"};
    for (size_t i = 0; i < sizeof hosts / sizeof *hosts; i++) {
        assert_int_equal(wefti_topology_decode(hosts[i], strlen(hosts[i]), NULL, &topology),
                         WEFT_ERR_FORMAT);
        assert_null(topology.host_sizes);
    }
}

static const char *const kernels =
    "{\"format\": 1, \"cores\": 8, \"machine\": \"lab\", \"kernels\": [\n"
    " {\"kind\": \"update\", \"threads\": 1, \"size\": 3000, \"ns\": 500},\n"
    " {\"kind\": \"product\", \"threads\": 1, \"size\": 1000, \"ns\": 100},\n"
    " {\"kind\": \"of a later version\", \"threads\": 1, \"size\": 1, \"ns\": 1},\n"
    " {\"kind\": \"product\", \"threads\": 8, \"size\": 1000, \"ns\": 30},\n"
    " {\"kind\": \"product\", \"threads\": 1, \"size\": 3000, \"ns\": 200}]}";

static void assert_kernel(const wefti_costs_t *costs, wefti_kernel_kind_t kind, uint32_t threads,
                          double size, double expected_ns)
{
    double ns = -1;
    assert_true(wefti_costs_kernel_ns(costs, kind, threads, size, &ns));
    if (!(ns > expected_ns * 0.999999 && ns < expected_ns * 1.000001)) {
        fail_msg("%s of %g with %u threads: %g ns, expected %g", wefti_kernel_kind_name(kind), size,
                 threads, ns, expected_ns);
    }
}

static void test_kernel_times_lie_on_what_was_measured(void **state)
{
    (void)state;
    wefti_costs_t costs, again;
    wefti_text_t text;
    double ns;
    assert_int_equal(wefti_costs_decode(&costs, kernels, strlen(kernels), NULL), WEFT_OK);
    for (int round = 0; round < 2; round++) {
        assert_int_equal(costs.kernel_count, 4);
        assert_int_equal(costs.cores, 8);
        assert_string_equal(costs.machine, "lab");
        assert_kernel(&costs, WEFTI_KERNEL_PRODUCT, 1, 1000, 100);
        assert_kernel(&costs, WEFTI_KERNEL_PRODUCT, 1, 10, 100);     /* below the first point */
        assert_kernel(&costs, WEFTI_KERNEL_PRODUCT, 1, 2000, 150);   /* between two */
        assert_kernel(&costs, WEFTI_KERNEL_PRODUCT, 1, 30000, 2000); /* above the last one */
        assert_kernel(&costs, WEFTI_KERNEL_PRODUCT, 8, 1000, 30);
        assert_kernel(&costs, WEFTI_KERNEL_PRODUCT, 64, 1000, 30);
        assert_kernel(&costs, WEFTI_KERNEL_PRODUCT, 2, 1000, 60); /* 20 + 80 / threads */
        assert_kernel(&costs, WEFTI_KERNEL_UPDATE, 8, 3000, 500);
        assert_false(wefti_costs_kernel_ns(&costs, WEFTI_KERNEL_CONV, 1, 1, &ns));
        wefti_text_init(&text, NULL);
        wefti_costs_encode(&costs, &text);
        assert_int_equal(wefti_costs_decode(&again, text.data, text.length, NULL), WEFT_OK);
        assert_int_equal(wefti_costs_digest(&costs), wefti_costs_digest(&again));
        wefti_text_deinit(&text);
        wefti_costs_deinit(&costs);
        costs = again;
    }
    wefti_kernel_point_t point = {WEFTI_KERNEL_PRODUCT, 1, 1000, 90}; /* replaces one */
    assert_int_equal(wefti_costs_add_kernel(&costs, &point), WEFT_OK);
    assert_int_equal(costs.kernel_count, 4);
    assert_kernel(&costs, WEFTI_KERNEL_PRODUCT, 1, 1000, 90);
    wefti_costs_deinit(&costs);
}

/* Every prefix, every changed byte, and entries that are wrong. */
static void test_damaged_kernels_are_refused(void **state)
{
    (void)state;
    wefti_costs_t costs;
    char copy[1024];
    for (size_t i = 0; i < strlen(kernels); i++) {
        memcpy(copy, kernels, strlen(kernels) + 1);
        assert_int_equal(wefti_costs_decode(&costs, copy, i, NULL), WEFT_ERR_FORMAT);
        copy[i] = (char)(copy[i] ^ 0x11);
        if (wefti_costs_decode(&costs, copy, strlen(kernels), NULL) >= 0) {
            wefti_costs_deinit(&costs);
        }
    }
    static const char *const entries[][2] = {
        {"7", "kind is missing"},
        {"{\"kind\": \"move\"}", "threads or ns is missing or 0"},
        {"{\"kind\": \"move\", \"threads\": 1, \"ns\": 1}", "size is not a number above 0"},
        {"{\"kind\": \"move\", \"threads\": 1, \"ns\": 1, \"size\": 0}", "size is not"},
        {"{\"kind\": \"move\", \"threads\": 1, \"ns\": 1, \"size\": 1e300}", "size is not"},
        {"{\"kind\": \"move\", \"threads\": 1, \"ns\": -1, \"size\": 1}", "ns: not a time"},
        {"{\"kind\": \"move\", \"threads\": 0, \"ns\": 1, \"size\": 1}", "threads: not an"},
        {"{\"kind\": \"move\", \"threads\": 1, \"ns\": 1, \"size\": 1}", "cores is missing"},
    };
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++) {
        snprintf(copy, sizeof copy, "{\"format\": 1, \"kernels\": [%s]}", entries[i][0]);
        assert_int_equal(wefti_costs_decode(&costs, copy, strlen(copy), NULL), WEFT_ERR_FORMAT);
        if (strstr(weft_last_error(), entries[i][1]) == NULL) {
            fail_msg("'%s' does not say '%s'", weft_last_error(), entries[i][1]);
        }
    }
}

static void test_topologies_are_read_and_gathered(void **state)
{
    (void)state;
    const char *text = "{\"format\": 1, \"hosts\": [4, {\"name\": \"b\", \"ranks\": 3}]}";
    const uint64_t hosts[] = {7, 7, 9, 9, 9, 7};
    wefti_topology_t topology;
    assert_int_equal(wefti_topology_decode(text, strlen(text), NULL, &topology), WEFT_OK);
    assert_int_equal(topology.rank_count, 7);
    assert_int_equal(topology.host_count, 2);
    assert_int_equal(topology.host_sizes[0], 4);
    assert_int_equal(topology.host_sizes[1], 3);
    wefti_topology_deinit(&topology);
    assert_int_equal(wefti_topology_from_hosts(hosts, 6, NULL, &topology), WEFT_OK);
    assert_int_equal(topology.host_count, 3); /* rank 5 is no neighbour of the others on its host */
    assert_int_equal(topology.host_sizes[0], 2);
    assert_int_equal(topology.host_sizes[1], 3);
    assert_int_equal(topology.host_sizes[2], 1);
    wefti_topology_deinit(&topology);
}

static wefti_candidate_t choose(const wefti_costs_t *costs, const weft_algo_params_t *params,
                                uint64_t bytes, const char *wanted)
{
    wefti_candidate_t list[WEFTI_MAX_CANDIDATES];
    uint32_t count;
    wefti_counts_t counts = {bytes / 4, 4, NULL};
    if (wefti_cost_choose(costs, params, &counts, &(wefti_choice_t){.wanted = wanted}, list,
                          &count) < 0) {
        fail_msg("%s", weft_last_error());
    }
    for (uint32_t i = 1; i < count; i++) { /* quickest first, then who is out */
        assert_true(list[i].reason != NULL || list[i].predicted_ns >= list[i - 1].predicted_ns);
        assert_true(list[i - 1].reason == NULL || list[i].reason != NULL);
    }
    return list[0];
}

static void test_choice_over_sizes_and_machines(void **state)
{
    (void)state;
    static const uint32_t one_each[] = {1, 1, 1, 1, 1, 1, 1, 1}, halves[] = {4, 4};
    static const struct {
        weft_collective_t op;
        uint32_t ranks, host_count;
        const uint32_t *hosts;
        weft_order_t order;
        uint64_t bytes;
        const char *algorithm;
    } rows[] = {
        {WEFT_COLLECTIVE_ALL_REDUCE, 2, 0, NULL, WEFT_ORDER_TREE, 8, "doubling"},
        {WEFT_COLLECTIVE_ALL_REDUCE, 8, 0, NULL, WEFT_ORDER_TREE, 8, "one-shot"},
        {WEFT_COLLECTIVE_ALL_REDUCE, 2, 0, NULL, WEFT_ORDER_TREE, 16 << 20, "mesh"},
        {WEFT_COLLECTIVE_ALL_REDUCE, 8, 0, NULL, WEFT_ORDER_TREE, 16 << 20, "mesh"},
        {WEFT_COLLECTIVE_ALL_REDUCE, 8, 2, halves, WEFT_ORDER_TREE, 8, "hierarchical"},
        {WEFT_COLLECTIVE_ALL_REDUCE, 8, 2, halves, WEFT_ORDER_TREE, 16 << 20, "rails"},
        {WEFT_COLLECTIVE_ALL_REDUCE, 8, 8, one_each, WEFT_ORDER_TREE, 8, "one-shot"},
        {WEFT_COLLECTIVE_ALL_REDUCE, 8, 8, one_each, WEFT_ORDER_TREE, 64 << 20, "halving-doubling"},
        {WEFT_COLLECTIVE_BROADCAST, 8, 8, one_each, WEFT_ORDER_TREE, 64 << 20, "scatter-gather"},
    };
    wefti_costs_t costs;
    wefti_costs_default(&costs, NULL);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        weft_algo_params_t params = {.op = rows[i].op,
                                     .group_size = rows[i].ranks,
                                     .in_place = 1,
                                     .order = rows[i].order,
                                     .host_sizes = rows[i].hosts,
                                     .host_count = rows[i].host_count};
        wefti_candidate_t best = choose(&costs, &params, rows[i].bytes, NULL);
        if (strcmp(best.algorithm->name, rows[i].algorithm) != 0) {
            fail_msg("row %zu: %s, not %s", i, best.algorithm->name, rows[i].algorithm);
        }
        for (params.rank = 0; params.rank < params.group_size; params.rank++) {
            wefti_candidate_t same = choose(&costs, &params, rows[i].bytes, NULL);
            assert_ptr_equal(same.algorithm, best.algorithm);
            assert_true(same.predicted_ns == best.predicted_ns);
        }
    }
}

/* What was measured quickest on 2, 4 and 8 ranks of one host: hand-written code, at every size. */
static void test_built_in_costs_choose_what_was_measured_best(void **state)
{
    (void)state;
    static const uint32_t ranks[] = {2, 4, 8};
    wefti_costs_t costs;
    wefti_candidate_t list[WEFTI_MAX_CANDIDATES];
    uint32_t count;
    wefti_costs_default(&costs, NULL);
    for (int op = WEFT_COLLECTIVE_ALL_REDUCE; op <= WEFT_COLLECTIVE_ALL_TO_ALL; op++) {
        for (size_t i = 0; i < 3; i++) {
            for (uint32_t k = 0; k < 12; k++) {
                weft_algo_params_t params = {.op = (weft_collective_t)op, .group_size = ranks[i]};
                wefti_counts_t counts = {.elem_count = 1ull << (2 * k), .elem_bytes = 4};
                wefti_choice_t choice = {.executors = true, .plain = k % 2 != 0};
                assert_int_equal(wefti_cost_choose(&costs, &params, &counts, &choice, list, &count),
                                 WEFT_OK);
                if (!list[0].executor) {
                    fail_msg("%s, %u ranks, %u bytes: %s", weft_collective_name(params.op),
                             ranks[i], 4u << (2 * k), list[0].algorithm->name);
                }
            }
        }
    }
}

/* A call that is interpreted is agreed on first; a plan's collective is not. */
static void test_calls_cost_more_than_parts_of_plans(void **state)
{
    (void)state;
    wefti_costs_t costs;
    wefti_candidate_t call[WEFTI_MAX_CANDIDATES], part[WEFTI_MAX_CANDIDATES];
    uint32_t count;
    weft_algo_params_t params = {.op = WEFT_COLLECTIVE_ALL_GATHER, .group_size = 4};
    wefti_counts_t counts = {.elem_count = 1000, .elem_bytes = 4};
    wefti_choice_t eager = {.wanted = "bruck"}, planned = {.wanted = "bruck", .planned = true};
    wefti_costs_default(&costs, NULL);
    assert_int_equal(wefti_cost_choose(&costs, &params, &counts, &eager, call, &count), WEFT_OK);
    assert_int_equal(wefti_cost_choose(&costs, &params, &counts, &planned, part, &count), WEFT_OK);
    double more = call[0].predicted_ns - part[0].predicted_ns;
    double expected = costs.call_ns + costs.level[WEFTI_LEVEL_HOST].alpha_ns;
    assert_true(more > expected - 1e-6 && more < expected + 1e-6);
    eager.plain = true;
    assert_int_equal(wefti_cost_choose(&costs, &params, &counts, &eager, part, &count), WEFT_OK);
    assert_true(part[0].predicted_ns > call[0].predicted_ns);
}

static void test_large_groups_take_few_steps(void **state)
{
    (void)state;
    static const uint32_t hosts[] = {500, 500};
    weft_algo_params_t params = {.op = WEFT_COLLECTIVE_ALL_REDUCE, .group_size = 1000};
    assert_string_equal(wefti_cost_few_steps(&params)->name, "halving-doubling");
    params.host_sizes = hosts;
    params.host_count = 2;
    assert_string_equal(wefti_cost_few_steps(&params)->name, "hierarchical");
    params.op = WEFT_COLLECTIVE_SEND_RECV;
    assert_null(wefti_cost_few_steps(&params));
}

static void test_more_bytes_never_take_less_time(void **state)
{
    (void)state;
    const weft_algorithm_t *algorithm;
    wefti_costs_t costs;
    wefti_costs_default(&costs, NULL);
    for (size_t i = 0; (algorithm = wefti_algorithm_at(i)) != NULL; i++) {
        uint64_t ones[25];
        static const uint32_t hosts[] = {2, 3};
        weft_algo_params_t params = {.op = algorithm->op,
                                     .group_size = 5,
                                     .peer = 1,
                                     .order = WEFT_ORDER_ANY,
                                     .host_sizes = hosts,
                                     .host_count = 2};
        static const uint32_t host_of[] = {0, 1, 2, 3}, rack_of[] = {0, 0, 1, 1};
        if (wefti_algorithm_reason(algorithm, &params) != NULL) { /* it needs racks */
            params.group_size = params.host_of_count = 4;
            params.host_of = host_of;
            params.rack_of = rack_of;
            params.host_count = 0;
        }
        double before = 0;
        for (uint64_t elems = 1; elems <= 1 << 20; elems *= 4) {
            for (size_t j = 0; j < 25; j++) {
                ones[j] = elems;
            }
            wefti_counts_t counts = {elems, 4, ones};
            double ns;
            assert_int_equal(wefti_cost_predict(&costs, algorithm, &params, &counts, &ns), WEFT_OK);
            /* How lanes that take turns meet depends on which blocks are empty. */
            assert_true(ns >= before * (strncmp(algorithm->name, "levels-", 7) == 0 ? 0.9 : 1));
            assert_true(ns > 0);
            before = ns;
        }
    }
}

/* Pieces may come in any order; each holds from its size on. */
static void test_measured_costs_in_pieces(void **state)
{
    (void)state;
    static const char *const pieces =
        "{\"format\": 1, \"measured\": ["
        "{\"op\": \"AllReduce\", \"algorithm\": \"mesh\", \"ranks\": 2, \"from_bytes\": 4096, "
        "\"alpha_ns\": 1000, \"beta_ns_per_byte\": 0.5},"
        "{\"op\": \"AllReduce\", \"algorithm\": \"mesh\", \"ranks\": 2, \"alpha_ns\": 200},"
        "{\"op\": \"AllReduce\", \"algorithm\": \"mesh\", \"ranks\": 2, \"memory\": \"plain\", "
        "\"alpha_ns\": 7}]}";
    static const struct {
        uint64_t bytes;
        bool plain;
        double ns;
    } rows[] = {{8, false, 200},     {4092, false, 200}, {4096, false, 3048},
                {8192, false, 5096}, {8, true, 7},       {8192, true, 7}};
    wefti_costs_t costs;
    wefti_candidate_t list[WEFTI_MAX_CANDIDATES];
    uint32_t count;
    weft_algo_params_t params = {.op = WEFT_COLLECTIVE_ALL_REDUCE, .group_size = 2};
    assert_int_equal(wefti_costs_decode(&costs, pieces, strlen(pieces), NULL), WEFT_OK);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        wefti_counts_t counts = {rows[i].bytes / 4, 4, NULL};
        wefti_choice_t choice = {.wanted = "mesh", .plain = rows[i].plain};
        assert_int_equal(wefti_cost_choose(&costs, &params, &counts, &choice, list, &count),
                         WEFT_OK);
        assert_true(list[0].measured && list[0].predicted_ns == rows[i].ns);
    }
    wefti_costs_deinit(&costs);
}

/* Curves with knees, and a disturbed point: what comes out is near the curve everywhere. */
static void test_fits_follow_what_was_measured(void **state)
{
    (void)state;
    wefti_costs_t costs;
    wefti_candidate_t list[WEFTI_MAX_CANDIDATES];
    uint32_t count;
    weft_algo_params_t params = {.op = WEFT_COLLECTIVE_ALL_REDUCE, .group_size = 2};
    wefti_measured_cost_t key = {WEFT_COLLECTIVE_ALL_REDUCE, "mesh", 2, 1, false, 0, 0, 0};
    wefti_choice_t choice = {.wanted = "mesh"};
    wefti_cost_point_t points[13];
    for (size_t i = 0; i < 13; i++) {
        uint64_t bytes = 4ull << (2 * i);
        double ns = 300 + 0.02 * (double)bytes;
        ns += bytes > 65536 ? 0.03 * (double)(bytes - 65536) : 0;
        ns += bytes > 4u << 20 ? 0.1 * (double)(bytes - (4u << 20)) : 0;
        points[i] = (wefti_cost_point_t){bytes, ns};
    }
    points[1].ns = 320; /* of 16 bytes: seems to take longer than 64 */
    wefti_costs_default(&costs, NULL);
    assert_int_equal(wefti_costs_add_fit(&costs, &key, points, 13), WEFT_OK);
    assert_in_range(costs.measured_count, 3, 8);
    for (size_t i = 0; i < 13; i++) {
        wefti_counts_t counts = {points[i].bytes / 4, 4, NULL};
        assert_int_equal(wefti_cost_choose(&costs, &params, &counts, &choice, list, &count),
                         WEFT_OK);
        double ratio = list[0].predicted_ns / points[i].ns;
        assert_true(list[0].measured && ratio > 0.9 && ratio < 1.1);
    }
    wefti_text_t text; /* and a piece whose line begins below 0 comes back */
    wefti_costs_t again;
    wefti_text_init(&text, NULL);
    wefti_costs_encode(&costs, &text);
    assert_true(costs.measured[costs.measured_count - 1].alpha_ns < 0);
    assert_int_equal(wefti_costs_decode(&again, text.data, text.length, NULL), WEFT_OK);
    assert_int_equal(wefti_costs_digest(&costs), wefti_costs_digest(&again));
    wefti_text_deinit(&text);
    wefti_costs_deinit(&again);
    assert_int_equal(wefti_costs_add_fit(&costs, &key, points, 0), WEFT_ERR_INVALID_ARGUMENT);
    assert_int_equal(wefti_costs_add_fit(&costs, &key, points + 5, 1), WEFT_OK);
    points[3].bytes = points[2].bytes;
    assert_int_equal(wefti_costs_add_fit(&costs, &key, points, 13), WEFT_ERR_INVALID_ARGUMENT);
    wefti_costs_deinit(&costs);
}

static void test_measured_costs_and_overrides_decide(void **state)
{
    (void)state;
    wefti_costs_t costs;
    wefti_candidate_t list[WEFTI_MAX_CANDIDATES];
    uint32_t count;
    wefti_choice_t ring = {.wanted = "ring"}, rings = {.wanted = "rings"};
    wefti_counts_t counts = {1000, 4, NULL};
    weft_algo_params_t params = {.op = WEFT_COLLECTIVE_ALL_REDUCE, .group_size = 4};
    assert_int_equal(wefti_costs_decode(&costs, table, strlen(table), NULL), WEFT_OK);
    wefti_candidate_t best = choose(&costs, &params, 4000, NULL);
    assert_string_equal(best.algorithm->name, "halving-doubling");
    assert_true(best.measured && best.predicted_ns > 1.39 && best.predicted_ns < 1.41);
    params.group_size = 5; /* not measured */
    assert_false(choose(&costs, &params, 4000, NULL).measured);
    assert_string_equal(choose(&costs, &params, 4000, "one-shot").algorithm->name, "one-shot");
    assert_int_equal(wefti_cost_choose(&costs, &params, &counts, &ring, list, &count),
                     WEFT_ERR_UNSUPPORTED);
    assert_non_null(strstr(weft_last_error(), "AllReduce ring: it cannot realise"));
    assert_int_equal(wefti_cost_choose(&costs, &params, &counts, &rings, list, &count),
                     WEFT_ERR_UNSUPPORTED);
    assert_non_null(strstr(weft_last_error(), "no algorithm called rings"));
    params.order = WEFT_ORDER_BLOCKS; /* without sizes */
    assert_int_equal(wefti_cost_choose(&costs, &params, &counts, NULL, list, &count),
                     WEFT_ERR_INVALID_ARGUMENT);
    wefti_costs_deinit(&costs);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_costs_are_read_and_written),
        cmocka_unit_test(test_damaged_files_are_refused),
        cmocka_unit_test(test_kernel_times_lie_on_what_was_measured),
        cmocka_unit_test(test_damaged_kernels_are_refused),
        cmocka_unit_test(test_topologies_are_read_and_gathered),
        cmocka_unit_test(test_choice_over_sizes_and_machines),
        cmocka_unit_test(test_built_in_costs_choose_what_was_measured_best),
        cmocka_unit_test(test_calls_cost_more_than_parts_of_plans),
        cmocka_unit_test(test_large_groups_take_few_steps),
        cmocka_unit_test(test_more_bytes_never_take_less_time),
        cmocka_unit_test(test_measured_costs_in_pieces),
        cmocka_unit_test(test_fits_follow_what_was_measured),
        cmocka_unit_test(test_measured_costs_and_overrides_decide),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
