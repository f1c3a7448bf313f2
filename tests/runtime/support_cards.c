/* SPDX-License-Identifier: Apache-2.0 */
#include "support_cards.h"

#include <pthread.h>
#include <stdlib.h>

typedef struct card_thread {
    weft_hub_t *hub;
    rank_fn run;
    rank_world_t world;
    bool grouped;
    pthread_t thread;
} card_thread_t;

static void *card_main(void *user)
{
    card_thread_t *rank = user;
    weft_device_t *card = NULL;
    weft_context_params_t params = WEFT_CONTEXT_PARAMS_INIT;
    RANK_OK(fake_card_create(&card));
    params.rank = (int32_t)rank->world.rank;
    params.world_size = (int32_t)rank->world.size;
    params.hub = rank->hub;
    params.device = card;
    RANK_OK(weft_context_create(&params, &rank->world.context));
    if (rank->grouped) {
        RANK_OK(weft_group_create_world(rank->world.context, &rank->world.group));
    }
    rank->run(&rank->world);
    weft_group_destroy(rank->world.group);
    weft_context_release(rank->world.context);
    RANK_CHECK(fake_card_destroy(card) == 0);
    return NULL;
}

static void run_threads(uint32_t size, rank_fn run, void *user, bool grouped)
{
    weft_hub_t *hub = NULL;
    card_thread_t *ranks = calloc(size, sizeof *ranks);
    RANK_CHECK(ranks != NULL);
    RANK_OK(weft_hub_create(size, &hub));
    for (uint32_t r = 0; r < size; r++) {
        ranks[r] = (card_thread_t){
            .hub = hub, .run = run, .world = {NULL, NULL, r, size, user}, .grouped = grouped};
        RANK_CHECK(pthread_create(&ranks[r].thread, NULL, card_main, &ranks[r]) == 0);
    }
    for (uint32_t r = 0; r < size; r++) {
        pthread_join(ranks[r].thread, NULL);
    }
    weft_hub_destroy(hub);
    free(ranks);
}

void support_card_threads(uint32_t size, rank_fn run, void *user)
{
    run_threads(size, run, user, true);
}

void support_card_contexts(uint32_t size, rank_fn run, void *user)
{
    run_threads(size, run, user, false);
}
