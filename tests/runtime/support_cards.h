/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks as threads, each with a card of its own: a fake one, or the device that WEFT_TEST_DEVICE
 * names, as WEFT_DEVICE does. Tests whose points a real device has not are skipped on it.
 */
#ifndef WEFT_TESTS_RUNTIME_SUPPORT_CARDS_H
#define WEFT_TESTS_RUNTIME_SUPPORT_CARDS_H

#include "support_fake_card.h"
#include "support_ranks.h"

/* Ends the program with exit status 77 and the reason if there is no device of that name. */
void support_card_or_skip(void);
weft_status_t support_card_open(weft_device_t **out_card);
/* Fails (returns how many are left) when queues or memory of a fake card were not given back. */
int support_card_close(weft_device_t *card);
bool support_card_is_fake(void);
/* The host may access memory of the context's device. */
bool support_host_reaches(weft_context_t *context);
/* Like support_rank_threads; every card must have got everything back in the end. */
void support_card_threads(uint32_t size, rank_fn run, void *user);
/* The same without a group, which run makes itself if it wants one. */
void support_card_contexts(uint32_t size, rank_fn run, void *user);

#endif
