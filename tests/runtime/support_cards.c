/* SPDX-License-Identifier: Apache-2.0 */
#include "support_cards.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct card_thread {
    weft_hub_t *hub;
    rank_fn run;
    rank_world_t world;
    bool grouped;
    pthread_t thread;
} card_thread_t;

static const char *plugin_device(void)
{
    const char *name = getenv("WEFT_TEST_DEVICE");
    return name != NULL && *name != '\0' ? name : NULL;
}

bool support_card_is_fake(void)
{
    return plugin_device() == NULL;
}

/* In a child: tests fork, and drivers have threads. */
void support_card_or_skip(void)
{
    int status = 1;
    fflush(NULL);
    pid_t child = support_card_is_fake() ? -1 : fork();
    if (child == 0) {
        weft_device_t *device = NULL;
        weft_status_t opened = weft_device_open(plugin_device(), &device);
        if (opened < 0) {
            printf("skipped: %s\n", weft_last_error());
            fflush(stdout);
        }
        _exit(opened == WEFT_ERR_NOT_FOUND ? 77 : 0); /* other errors are for the tests */
    }
    if (child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) &&
        WEXITSTATUS(status) == 77) {
        exit(77);
    }
}

weft_status_t support_card_open(weft_device_t **out_card)
{
    return support_card_is_fake() ? fake_card_create(out_card)
                                  : weft_device_open(plugin_device(), out_card);
}

int support_card_close(weft_device_t *card)
{
    if (support_card_is_fake()) {
        return fake_card_destroy(card);
    }
    weft_device_close(card);
    return 0;
}

bool support_host_reaches(weft_context_t *context)
{
    const weft_device_t *device = weft_context_device(context);
    return device == NULL || (device->ops->caps & WEFT_DEVICE_HOST_ACCESS) != 0;
}

static void *card_main(void *user)
{
    card_thread_t *rank = user;
    weft_device_t *card = NULL;
    weft_context_params_t params = WEFT_CONTEXT_PARAMS_INIT;
    RANK_OK(support_card_open(&card));
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
    RANK_CHECK(support_card_close(card) == 0);
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
