/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plans that are verified are bound to ranks, which are threads, and run: a plan that passes verification
 * binds, or is refused on all ranks, and stays within its memory.
 */
#include <pthread.h>
#include <stdlib.h>

#include <weft/session.h>

#include "ops/plan/container.h"
#include "ops/plan/plan_internal.h"
#include "tests/support/support_fuzz.h"

enum { RANKS = 2, MOST_BYTES = 1 << 22 };

/* One rank of the worlds of one and two ranks; the thread is woken for each plan. */
typedef struct rank {
    weft_context_t *context[RANKS]; /* by world size - 1 */
    weft_status_t status;
} rank_t;

static rank_t ranks[RANKS];
static pthread_barrier_t barrier;
static weft_plan_t *plan;

static void join_world(uint32_t rank, uint32_t world_size)
{
    static weft_hub_t *hubs[RANKS];
    if (rank == 0) {
        fuzz_check(weft_hub_create(world_size, &hubs[world_size - 1]) == WEFT_OK, "no hub");
    }
    if (world_size > 1) {
        pthread_barrier_wait(&barrier);
    }
    weft_context_params_t params = WEFT_CONTEXT_PARAMS_INIT;
    params.rank = (int32_t)rank;
    params.world_size = (int32_t)world_size;
    params.hub = hubs[world_size - 1];
    fuzz_check(weft_context_create(&params, &ranks[rank].context[world_size - 1]) == WEFT_OK,
               "no context");
}

static void bind(uint32_t rank)
{
    weft_session_t *session = NULL;
    weft_session_params_t params = WEFT_SESSION_PARAMS_INIT;
    params.context = ranks[rank].context[plan->world_size - 1];
    params.plan = plan;
    params.registry = fuzz_registry();
    ranks[rank].status = weft_session_create(&params, &session);
    fuzz_check((ranks[rank].status == WEFT_OK) == (session != NULL), "status and session disagree");
    fuzz_check(ranks[rank].status != WEFT_ERR_INTERNAL, "an error of our own");
    weft_session_destroy(session);
}

static void *second_rank(void *unused)
{
    join_world(1, 2);
    for (;;) {
        pthread_barrier_wait(&barrier);
        bind(1);
        pthread_barrier_wait(&barrier);
    }
    return unused;
}

static void start(void)
{
    pthread_t thread;
    join_world(0, 1);
    (void)fuzz_registry();
    fuzz_check(pthread_barrier_init(&barrier, NULL, RANKS) == 0 &&
                   pthread_create(&thread, NULL, second_rank, NULL) == 0,
               "no thread");
    join_world(0, 2);
}

void fuzz_one(const uint8_t *data, size_t size)
{
    wefti_section_t sections[WEFTI_SECTION_COUNT];
    wefti_digest_t structure, weights;
    static bool started;
    if (!started) {
        start();
        started = true;
    }
    if (wefti_container_read(data, size, sections, &structure, &weights) != WEFT_OK) {
        return;
    }
    fuzz_check(wefti_plan_create(NULL, &plan) == WEFT_OK, "no plan");
    if (wefti_plan_decode_structure(plan, sections[0].data, sections[0].size_bytes) == WEFT_OK &&
        wefti_plan_load_algorithms(plan) == WEFT_OK) {
        plan->weights = sections[1].data;
        plan->weights_bytes = sections[1].size_bytes;
        fuzz_check(wefti_plan_seal(plan) == WEFT_OK, "cannot be sealed");
        if (wefti_plan_verify(plan, fuzz_registry()) == WEFT_OK && plan->world_size <= RANKS &&
            plan->arena_bytes <= MOST_BYTES) {
            bool both = plan->world_size == RANKS;
            if (both) {
                pthread_barrier_wait(&barrier);
            }
            bind(0);
            if (both) {
                pthread_barrier_wait(&barrier);
                fuzz_check((ranks[0].status == WEFT_OK) == (ranks[1].status == WEFT_OK),
                           "ranks disagree about a plan");
            }
        }
    }
    weft_plan_release(plan);
}
