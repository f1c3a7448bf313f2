/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plans on cards of several hosts: collectives go through a mirror in host memory, in chunks. Every
 * size of chunk gives the weights that are computed directly; a card that fails ends all ranks.
 */
#include "support.h"
#include "tests/support/support.h"

#include <string.h>

#include "runtime/plan/session.h"

#define WORLD 5u

static const uint32_t hosts[] = {0, 1, 0, 2, 2};

static void test_staged_chunks_of_any_size(void **state)
{
    static const size_t sizes[] = {1, 64, 1000, 4096, (size_t)1 << 20};
    static const support_mode_t modes[] = {SUPPORT_WHOLE, SUPPORT_SHARDED, SUPPORT_DECOUPLED};
    outcome_t outcomes[WORLD];
    char expected[65];
    (void)state;
    for (uint32_t i = 0; i < 15; i++) {
        training_t training = {.world = 2 + i % (WORLD - 1),
                               .steps = 3,
                               .buckets = 1 + i % 3,
                               .streams = 1 + i % 2,
                               .mode = modes[i % 3],
                               .reads = i % 4 == 0,
                               .progress = i % 5 == 0 ? WEFT_PROGRESS_INLINE : WEFT_PROGRESS_THREAD,
                               .card = true,
                               .host_of = hosts};
        wefti_staged_chunk_bytes = sizes[i % 5];
        support_run_threads(&training, outcomes);
        support_expect(&training, expected);
        for (uint32_t r = 0; r < training.world; r++) {
            if (outcomes[r].status < 0) {
                fail_msg("case %u, rank %u: %s", i, r, outcomes[r].message);
            }
            assert_string_equal(outcomes[r].digest, expected);
        }
    }
    wefti_staged_chunk_bytes = (size_t)1 << 20;
}

/* Wherever it fails, nothing waits for ever, and all ranks get an error or none does. */
static void test_staged_failing_card(void **state)
{
    outcome_t outcomes[2];
    (void)state;
    wefti_staged_chunk_bytes = 2048;
    for (int after = 1; after < 700; after += after < 40 ? 4 : 61) {
        training_t training = {.world = 2,
                               .steps = 3,
                               .buckets = 2,
                               .card = true,
                               .card_fails = after,
                               .host_of = hosts,
                               .quiet = true,
                               .progress =
                                   after % 8 < 4 ? WEFT_PROGRESS_INLINE : WEFT_PROGRESS_THREAD};
        support_run_threads(&training, outcomes);
        if (outcomes[0].status < 0 && outcomes[1].status == WEFT_OK) {
            /* it failed after its part of the last step was done */
            assert_true(outcomes[0].status == WEFT_ERR_NO_MEMORY);
        }
        if (outcomes[0].status >= 0 && outcomes[1].status != WEFT_OK) {
            fail_msg("card fails after %d: %s", after, outcomes[1].message);
        }
    }
    wefti_staged_chunk_bytes = (size_t)1 << 20;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_staged_chunks_of_any_size),
        cmocka_unit_test(test_staged_failing_card),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
