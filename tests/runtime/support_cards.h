/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks as threads, each with a fake card of its own, and a view of device memory for checks. */
#ifndef WEFT_TESTS_RUNTIME_SUPPORT_CARDS_H
#define WEFT_TESTS_RUNTIME_SUPPORT_CARDS_H

#include "support_fake_card.h"
#include "support_ranks.h"

/* Like support_rank_threads; every card must have got everything back in the end. */
void support_card_threads(uint32_t size, rank_fn run, void *user);
/* The same without a group, which run makes itself if it wants one. */
void support_card_contexts(uint32_t size, rank_fn run, void *user);

#endif
