/* SPDX-License-Identifier: Apache-2.0 */
/* Buckets of reduce-scatters and all-gathers: planned on graphs as text, packed into one tensor. */
#include <string.h>

#include "fusion/passes/passes.h"
#include "tests/support/support_text.h"

static weft_status_t pack(wefti_graph_t *graph, void *user)
{
    (void)user;
    return wefti_pass_pack(graph);
}

/* Every kernel takes 1 us; a collective takes 1 us and 1 ns per byte. */
static weft_status_t bucket(wefti_graph_t *graph, const char *policy_text)
{
    static const wefti_bucket_piece_t piece = {1000000, 1024000};
    const wefti_shard_cost_t cost = {{&piece, 1, NULL, 0}, {&piece, 1, NULL, 0}};
    weft_status_t status;
    wefti_arena_t arena;
    wefti_policy_t policy;
    weft_graph_view_t view = WEFT_GRAPH_VIEW_INIT;
    weft_edit_list_t *edits = NULL;
    uint64_t ready_ns[64], now = 0;
    wefti_arena_init(&arena, NULL, 0);
    WEFT_TRY(status, wefti_policy_parse(policy_text, &arena, &policy), done);
    WEFT_TRY(status, wefti_graph_view(graph, &arena, &view), done);
    for (uint32_t i = 0; i < view.order_count; i++) {
        uint32_t op = view.order[i];
        now += (view.ops[op].effects & WEFT_EFFECT_COMMUNICATES) != 0 ? 0 : 1000;
        ready_ns[op] = now;
    }
    const wefti_bucket_params_t params = {
        .policy = &policy, .ready_ns = ready_ns, .shard_cost = &cost};
    WEFT_TRY(status, wefti_pass_bucket(&view, &params, &edits, NULL), done);
    WEFT_TRY(status, weft_edits_check(&view, edits), done);
    status = wefti_graph_apply(graph, edits);
done:
    weft_edit_list_destroy(edits);
    wefti_arena_deinit(&arena);
    return status;
}

/* Results of every collective, "W0 W1|W2/3" (3 pieces), after the bucketing pass. */
static void expect_buckets(const char *text, const char *policy, const char *expected)
{
    test_graph_t test = test_graph_parse(text);
    const wefti_graph_t *graph = test.graph;
    wefti_text_t got;
    CHECK(bucket(test.graph, policy));
    CHECK(wefti_graph_verify(graph));
    wefti_text_init(&got, NULL);
    for (uint32_t i = 0; i < graph->order_count; i++) {
        const wefti_node_t *node = &graph->nodes[graph->order[i]];
        bool sends = (node->def->effects & WEFT_EFFECT_COMMUNICATES) != 0;
        for (uint32_t k = 0; sends && k < node->output_count; k++) {
            wefti_text_printf(&got, "%s%s",
                              k > 0            ? " "
                              : got.length > 0 ? "|"
                                               : "",
                              graph->values[node->outputs[k]].name);
        }
        if (wefti_node_int(node, "parts") > 1) {
            wefti_text_printf(&got, "/%d", (int)wefti_node_int(node, "parts"));
        }
    }
    if (strcmp(got.data, expected) != 0) {
        fail_msg("%s: %s, expected %s", policy, got.data, expected);
    }
    CHECK(wefti_pass_pack(test.graph));
    CHECK(wefti_graph_verify(graph));
    wefti_text_deinit(&got);
    test_graph_close(&test);
}

/* Four layers: layer i reads W_i from i us on. */
static const char gathers[] = "input %x : f32[16]\n"
                              "input %w0 : f32[8]\n"
                              "input %w1 : f32[8]\n"
                              "input %w2 : f32[8]\n"
                              "input %w3 : f32[8]\n"
                              "%W0 = weft::AllGather(%w0) {group_size=2}\n"
                              "%a = Add(%x, %W0)\n"
                              "%W1 = weft::AllGather(%w1) {group_size=2}\n"
                              "%b = Add(%a, %W1)\n"
                              "%W2 = weft::AllGather(%w2) {group_size=2}\n"
                              "%c = Add(%b, %W2)\n"
                              "%W3 = weft::AllGather(%w3) {group_size=2}\n"
                              "%d = Add(%c, %W3)\n"
                              "output %d\n";

static void test_gathers_are_planned_by_need(void **state)
{
    (void)state;
    /* Needed at 0, 1, 2 and 3 us; 128 bytes each, because blocks are padded. All of them take
     * 1.512 us, for which the first layer waits. The first two take 1.256 us; then the last two are
     * there at 2.512 us, before their layers run. */
    expect_buckets(gathers, "auto", "W0 W1|W2 W3");
    expect_buckets(gathers, "one", "W0 W1 W2 W3");
    expect_buckets(gathers, "none", "W0|W1|W2|W3");
    /* From the last one needed, as all-reduces from the first one ready. */
    expect_buckets(gathers, "bytes:400", "W0|W1 W2 W3");
    expect_buckets(gathers, "bytes:4K,time:1us", "W0 W1|W2 W3");
    expect_buckets(gathers, "percent:50,50", "W0 W1|W2 W3");
    expect_buckets(gathers, "index:0", "W0 W1 W2|W3");
    /* A block of 32 bytes is less than the unit of pieces. */
    expect_buckets(gathers, "bytes:64", "W0|W1|W2|W3");
}

/* Messages about policies name what the buckets have. */
static void test_policies_that_do_not_fit(void **state)
{
    static const struct {
        const char *policy, *message;
    } rows[] = {{"index:4", "position 4 is out of range: the model has tensors 0 to 3"},
                {"percent:20,20,20,20,20", "more shares than tensors: 5 shares, 4 tensors"}};
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        test_graph_t test = test_graph_parse(gathers);
        assert_int_equal(bucket(test.graph, rows[i].policy), WEFT_ERR_INVALID_ARGUMENT);
        assert_non_null(strstr(weft_last_error(), rows[i].message));
        test_graph_close(&test);
    }
}

/* c is ready when its scatter may go with those before it, unless somebody read them. */
static void test_no_reader_waits_for_a_bucket(void **state)
{
    (void)state;
    expect_buckets("input %x : f32[16]\n"
                   "input %w : f32[8]\n"
                   "%W = weft::AllGather(%w) {group_size=2}\n"
                   "%a = Add(%x, %W)\n"
                   "%s = weft::ReduceScatter(%a) {group_size=2}\n"
                   "%b = Relu(%a)\n"
                   "%t = weft::ReduceScatter(%b) {group_size=2}\n"
                   "%c = Add(%s, %t)\n"
                   "%G = weft::AllGather(%c) {group_size=2}\n"
                   "%d = Relu(%G)\n"
                   "%u = weft::ReduceScatter(%d) {group_size=2}\n"
                   "output %u\n",
                   "one", "W|s t|G|u");
}

static void test_blocks_are_split(void **state)
{
    (void)state;
    /* 4,096 bytes a rank: 64 units, and a piece takes as many of both ranks. */
    expect_buckets("input %x : f32[2048]\n"
                   "%a = Relu(%x)\n"
                   "%s = weft::ReduceScatter(%a) {group_size=2}\n"
                   "%b = Relu(%s)\n"
                   "%G = weft::AllGather(%b) {group_size=2}\n"
                   "output %G\n",
                   "bytes:3K", "s/3|G/3");
}

/* Blocks of all gradients for one rank lie side by side. */
static void test_pack_of_a_reduce_scatter(void **state)
{
    (void)state;
    test_pass(pack, NULL,
              "input %a : f32[4,3]\n"
              "input %b : f32[2]\n"
              "%x, %y = weft::ReduceScatter(%a, %b) {group_size=2, reduction=\"avg\"}\n"
              "output %x\n"
              "output %y\n",
              "input %a : f32[4,3]\n"
              "input %b : f32[2]\n"
              "%\"x/pack\" = weft::Pack(%a, %b) {blocks=2}\n"
              "%\"x/packed\" = weft::ReduceScatter(%\"x/pack\") {group_size=2, "
              "reduction=\"avg\"}\n"
              "%x, %y = weft::Unpack(%\"x/packed\") {blocks=1, shapes=[2,2,3,1,1]} as x/unpack\n"
              "output %x\n"
              "output %y\n");
}

static void test_pack_of_an_all_gather(void **state)
{
    (void)state;
    test_pass(pack, NULL,
              "input %a : f32[2,3]\n"
              "input %b : f32[1]\n"
              "%x, %y = weft::AllGather(%a, %b) {group_size=2}\n"
              "output %x\n"
              "output %y\n",
              "input %a : f32[2,3]\n"
              "input %b : f32[1]\n"
              "%\"x/pack\" = weft::Pack(%a, %b) {blocks=1}\n"
              "%\"x/packed\" = weft::AllGather(%\"x/pack\") {group_size=2}\n"
              "%x, %y = weft::Unpack(%\"x/packed\") {blocks=2, shapes=[2,4,3,1,2]} as x/unpack\n"
              "output %x\n"
              "output %y\n");
}

/* Three units of a block in two pieces: one, then two, the last of which is half a unit. */
static void test_pack_of_pieces(void **state)
{
    (void)state;
    test_pass(pack, NULL,
              "input %a : f32[4,20]\n"
              "%x = weft::ReduceScatter(%a) {group_size=2, parts=2, split_reason=\"large\"}\n"
              "output %x\n",
              "input %a : f32[4,20]\n"
              "%\"x/unpack\", %\"x/unpack_1\" = weft::Unpack(%a) {blocks=2, shapes=[1,32,1,48]}\n"
              "%\"x/piece0\" = weft::ReduceScatter(%\"x/unpack\") {group_size=2, "
              "reason=\"large\"}\n"
              "%\"x/piece1\" = weft::ReduceScatter(%\"x/unpack_1\") {group_size=2, "
              "reason=\"large\"}\n"
              "%x = weft::Pack(%\"x/piece0\", %\"x/piece1\") {blocks=1, shape=[2,20]} as x/pack\n"
              "output %x\n");
}

/* Blocks that are not equal or not one per rank, flat ranges, collectives of one tensor. */
static void test_pack_leaves_others(void **state)
{
    static const char text[] = "input %a : f32[5]\n"
                               "input %b : f32[2]\n"
                               "input %c : f32[3,4]\n"
                               "%x, %y = weft::ReduceScatter(%a, %b) {group_size=2}\n"
                               "%z = weft::ReduceScatter(%a, %b) {flat=64, group_size=2}\n"
                               "%w = weft::AllGather(%b) {group_size=2}\n"
                               "%u, %v = weft::ReduceScatter(%c, %c) {group_size=4}\n"
                               "output %x\n"
                               "output %y\n"
                               "output %z\n"
                               "output %w\n"
                               "output %u\n"
                               "output %v\n";
    (void)state;
    test_pass(pack, NULL, text, text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gathers_are_planned_by_need),
        cmocka_unit_test(test_policies_that_do_not_fit),
        cmocka_unit_test(test_no_reader_waits_for_a_bucket),
        cmocka_unit_test(test_blocks_are_split),
        cmocka_unit_test(test_pack_of_a_reduce_scatter),
        cmocka_unit_test(test_pack_of_an_all_gather),
        cmocka_unit_test(test_pack_of_pieces),
        cmocka_unit_test(test_pack_leaves_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
