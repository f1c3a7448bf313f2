/* SPDX-License-Identifier: Apache-2.0 */
/* Links between hosts as reports show them: what went over them, and which are slow. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <pthread.h>

#include "runtime/base/error.h"
#include "runtime/context/context.h"
#include "tools/links_report.h"
#include "tests/faults/hook.h"
#include "tests/faults/network.h"
#include "tests/support/support.h"

#define RANKS 4u
#define COUNT 400000u

static const uint32_t host_of[RANKS] = {5, 5, 2, 7}; /* numbered 0, 0, 1, 2 */

static void mark(const double *rates, uint32_t count, const char *expected)
{
    host_link_t links[8] = {0};
    links_report_t report = {links, count};
    for (uint32_t i = 0; i < count; i++) {
        links[i].rate_bytes_per_s = rates[i];
    }
    wefti_links_mark_slow(&report);
    for (uint32_t i = 0; i < count; i++) {
        assert_int_equal(links[i].slow, expected[i] == 's');
    }
}

static void test_slow_links_are_marked(void **state)
{
    (void)state;
    mark((double[]){1e8}, 1, "-"); /* nothing to compare with */
    mark((double[]){1e8, 1e7}, 2, "-s");
    mark((double[]){1e8, 6e7, 9e7}, 3, "---");
    mark((double[]){1e8, 4e7, 9e7}, 3, "-s-");
    mark((double[]){1e8, 1e7, 9e7, 1.1e7, 1.2e8}, 5, "-s-s-");
    mark((double[]){1e8, 0, 1e7}, 3, "--s"); /* 0: not known */
    mark(NULL, 0, "");
}

typedef struct seat {
    weft_hub_t *hub;
    uint32_t rank;
    const char *rules;
    links_report_t report;
    char json[800];
    weft_status_t status;
} seat_t;

static void print(seat_t *seat, const weft_context_t *context)
{
    wefti_text_t text;
    wefti_json_t json;
    wefti_text_init(&text, NULL);
    wefti_json_init(&json, &text, false);
    wefti_json_begin_object(&json, NULL);
    wefti_links_print_json(&seat->report, context, &json);
    wefti_json_end_object(&json);
    snprintf(seat->json, sizeof seat->json, "%s", text.data);
    wefti_text_deinit(&text);
}

static void *be_rank(void *user)
{
    seat_t *seat = user;
    weft_context_t *context = NULL;
    weft_group_t *group = NULL;
    wefti_hook_rules_t rules;
    float *x = calloc(COUNT * (size_t)RANKS, sizeof *x);
    weft_context_params_t params = WEFT_CONTEXT_PARAMS_INIT;
    params.rank = (int32_t)seat->rank;
    params.world_size = RANKS;
    params.hub = seat->hub;
    WEFT_TRY(seat->status, weft_context_create(&params, &context), out);
    WEFT_TRY(seat->status, wefti_hook_parse(seat->rules, &rules), out);
    WEFT_TRY(seat->status, wefti_hook_attach(context->endpoint, &rules), out);
    WEFT_TRY(seat->status, weft_group_create_world(context, &group), out);
    WEFT_TRY(seat->status, weft_group_set_algorithm(group, WEFT_COLLECTIVE_ALL_TO_ALL, "mesh"),
             out);
    WEFT_TRY(seat->status, weft_all_to_all(x, x, COUNT, WEFT_DTYPE_F32, group, NULL), out);
    WEFT_TRY(seat->status, wefti_links_gather(context, &seat->report), out);
    print(seat, context);
out:
    weft_group_destroy(group);
    weft_context_release(context);
    free(x);
    return NULL;
}

static void test_links_are_added_up_by_hosts(void **state)
{
    (void)state;
    weft_hub_t *hub;
    seat_t seats[RANKS];
    pthread_t threads[RANKS];
    wefti_hub_links_t links = {.host_of = host_of, .seed = 1};
    assert_int_equal(weft_hub_create(RANKS, &hub), WEFT_OK);
    assert_int_equal(wefti_hub_hide(hub, &links), WEFT_OK);
    for (uint32_t r = 0; r < RANKS; r++) { /* between the hosts 1 and 2 */
        seats[r] = (seat_t){.hub = hub, .rank = r, .rules = "rate:2-3:10M;rate:*-*:150M"};
        assert_int_equal(pthread_create(&threads[r], NULL, be_rank, &seats[r]), 0);
    }
    for (uint32_t r = 0; r < RANKS; r++) {
        pthread_join(threads[r], NULL);
    }
    for (uint32_t r = 0; r < RANKS; r++) {
        const links_report_t *report = &seats[r].report;
        assert_int_equal(seats[r].status, WEFT_OK);
        assert_int_equal(report->count, 3);
        for (uint32_t i = 0; i < 3; i++) {
            const host_link_t *link = &report->links[i];
            bool slow = link->hosts[0] == 1 && link->hosts[1] == 2;
            uint64_t pairs = link->hosts[0] == 0 ? 4 : 2; /* of ranks, both ways */
            assert_int_equal(link->slow, slow);
            assert_true(link->bytes >= pairs * COUNT * 4 && link->bytes < pairs * COUNT * 5);
            assert_true(link->rate_bytes_per_s > 5e6);
            assert_true(!slow || link->rate_bytes_per_s < 1.2e7);
        }
        assert_non_null(strstr(seats[r].json, "\"links\""));
        assert_non_null(strstr(seats[r].json, "\"hosts\""));
        assert_non_null(strstr(seats[r].json, "\"slow\":"));
        wefti_links_free(&seats[r].report);
    }
    weft_hub_destroy(hub);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_slow_links_are_marked),
        cmocka_unit_test(test_links_are_added_up_by_hosts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
