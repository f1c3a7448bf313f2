/* SPDX-License-Identifier: Apache-2.0 */
/* What contexts know and tell of where their ranks are. */
#include "support_ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/context/context.h"
#include "tests/support/support.h"

/* Everybody has the same text, in which all ranks are, and the same description. */
static void tell(rank_world_t *world)
{
    char *text = NULL, *again = NULL, *json = NULL, own[64], all[8][64];
    RANK_CHECK(weft_context_topology(world->context, WEFT_FORMAT_TEXT, 80, NULL) ==
               WEFT_ERR_INVALID_ARGUMENT);
    RANK_CHECK(weft_context_topology(NULL, WEFT_FORMAT_TEXT, 80, &text) ==
               WEFT_ERR_INVALID_ARGUMENT);
    RANK_OK(weft_context_topology(world->context, WEFT_FORMAT_TEXT, 80, &text));
    RANK_OK(weft_context_topology(world->context, WEFT_FORMAT_TEXT, 80, &again));
    RANK_CHECK(strcmp(text, again) == 0);
    RANK_OK(weft_context_topology(world->context, WEFT_FORMAT_JSON, 0, &json));
    RANK_CHECK(strstr(json, "\"pairs\"") != NULL && strstr(json, "\"format\": 1") != NULL);
    wefti_cluster_t cluster;
    RANK_OK(wefti_cluster_decode(json, strlen(json), NULL, NULL, NULL, &cluster));
    RANK_CHECK(cluster.rank_count == world->size);
    RANK_CHECK(cluster.host_count == weft_context_host_count(world->context));
    for (uint32_t r = 0; r < world->size; r++) {
        weft_peer_info_t peer = WEFT_PEER_INFO_INIT;
        RANK_OK(weft_context_peer_info(world->context, r, &peer));
        RANK_CHECK(cluster.ranks[r].host == peer.host);
        RANK_CHECK(r == world->rank || strstr(text, peer.transport) != NULL);
    }
    memset(own, 0, sizeof own);
    snprintf(own, sizeof own, "%zu %.50s", strlen(text), text);
    RANK_OK(weft_context_all_gather(world->context, own, sizeof own, all));
    RANK_CHECK(memcmp(all[0], own, sizeof own) == 0);
    wefti_cluster_deinit(&cluster);
    free(text);
    free(again);
    free(json);
}

static void test_all_ranks_tell_the_same(void **state)
{
    (void)state;
    const uint32_t hosts[] = {0, 1, 0, 1};
    const wefti_hub_links_t links = {.host_of = hosts};
    support_rank_threads(3, tell, NULL);
    support_rank_threads_over(4, tell, NULL, &links);
    assert_true(support_rank_processes(2, tell, NULL));
}

/* Others than rank 0 tell of links that no build knows, in texts without an end. */
static void tell_nonsense(rank_world_t *world)
{
    uint8_t own[3 * 161], all[3 * sizeof own];
    char *text = NULL;
    if (world->rank == 0) {
        RANK_OK(weft_context_topology(world->context, WEFT_FORMAT_JSON, 0, &text));
        RANK_CHECK(strstr(text, "\"transport\": \"?\"") != NULL);
        free(text);
        return;
    }
    wefti_endpoint_t *endpoint = world->context->endpoint;
    wefti_cluster_t cluster;
    wefti_digest_t digest;
    WEFTI_IN_CONTROL(endpoint, TOPOLOGY);
    memset(own, 0xff, sizeof own);
    RANK_OK(wefti_cluster_gather(endpoint, &cluster, &digest));
    RANK_OK(wefti_endpoint_agree(endpoint, WEFT_OK));
    RANK_OK(wefti_endpoint_all_gather(endpoint, own, sizeof own, all));
    wefti_cluster_deinit(&cluster);
}

static void test_what_ranks_tell_is_not_trusted(void **state)
{
    (void)state;
    support_rank_threads(3, tell_nonsense, NULL);
}

/* Ranks that take turns on two hosts. */
static void look(rank_world_t *world)
{
    const wefti_cluster_t *cluster = &world->context->cluster;
    char summary[64];
    RANK_CHECK(strcmp(wefti_cluster_summary(cluster, summary, sizeof summary),
                      world->user != NULL ? world->user : "1 host, 3 ranks") == 0);
}

static void test_contexts_know_their_hosts(void **state)
{
    (void)state;
    const uint32_t hosts[] = {0, 1, 0, 1};
    const wefti_hub_links_t links = {.host_of = hosts};
    support_rank_threads(3, look, NULL);
    support_rank_threads_over(4, look, "2 hosts x 2 ranks, round-robin", &links);
    assert_true(support_rank_processes(3, look, NULL));
}

static void see_file(rank_world_t *world)
{
    char summary[64];
    wefti_cluster_summary(&world->context->cluster, summary, sizeof summary);
    RANK_CHECK(strcmp(summary, "2 hosts, 1 + 2 ranks") == 0);
}

static void test_a_file_overrides(void **state)
{
    (void)state;
    char path[] = "/tmp/weft-cluster-XXXXXX";
    static const char text[] = "{\"format\": 1, \"hosts\": [1, 2]}";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    FILE *file = fdopen(fd, "w");
    fputs(text, file);
    fclose(file);
    setenv("WEFT_TOPOLOGY", path, 1);
    support_rank_threads(3, see_file, NULL);
    assert_true(support_rank_processes(3, see_file, NULL));
    unsetenv("WEFT_TOPOLOGY");
    remove(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_ranks_tell_the_same),
        cmocka_unit_test(test_what_ranks_tell_is_not_trusted),
        cmocka_unit_test(test_contexts_know_their_hosts),
        cmocka_unit_test(test_a_file_overrides),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
