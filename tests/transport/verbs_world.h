/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks with nothing but a verbs driver each, in this process; the test does what hosts.c does. */
#ifndef WEFT_TESTS_TRANSPORT_VERBS_WORLD_H
#define WEFT_TESTS_TRANSPORT_VERBS_WORLD_H

#include "support.h"

#include "transport/verbs/verbs.h"
#include "verbs_nic.h"

#define VERBS_RANKS 4u
#define VERBS_REGION ((size_t)8 << 20)

typedef struct verbs_rank {
    void *driver; /* NULL: not open */
    wefti_link_params_t params;
    wefti_settings_t settings; /* the world's; on real devices: every second rank takes another */
    uint8_t *region;           /* VERBS_REGION, its own mapping */
    uint32_t breaks;           /* that it was told of */
    uint32_t broken_peer;
    char text[WEFTI_VERBS_TEXT_BYTES];
} verbs_rank_t;

typedef struct verbs_world {
    uint32_t size;
    wefti_settings_t settings;
    uint32_t host_of[VERBS_RANKS];
    wefti_log_t log;
    uint32_t warnings;
    const weft_allocator_t *allocator; /* NULL: the default one */
    verbs_rank_t ranks[VERBS_RANKS];
    size_t grown;
} verbs_world_t;

/* The model of the NIC may be changed between init and open. */
void verbs_world_init(verbs_world_t *world, uint32_t size);
/* Opens, joins, offers: WEFT_OK, or the first rank's failure. */
weft_status_t verbs_world_open(verbs_world_t *world);
weft_status_t verbs_world_grow(verbs_world_t *world, size_t to);
/* And checks that nothing is left of it. */
void verbs_world_close(verbs_world_t *world);
/* Every rank makes progress once. True: something moved. */
bool verbs_world_turn(verbs_world_t *world);
/* Until nothing is on its way any more; fails the test when that never comes. */
void verbs_world_flush(verbs_world_t *world);
wefti_signal_t *verbs_counter(verbs_world_t *world, uint32_t rank, size_t offset);

#endif
