/* SPDX-License-Identifier: Apache-2.0 */
/* Versions of a snapshot: snapshot.c takes them, snapshot_restore.c finds the newest whole one. */
#ifndef WEFT_RUNTIME_CHECKPOINT_SNAPSHOT_H
#define WEFT_RUNTIME_CHECKPOINT_SNAPSHOT_H

#include "runtime/checkpoint/checkpoint.h"

#define WEFTI_SNAPSHOT_VERSIONS 2u

typedef enum wefti_section {
    WEFTI_SECTION_ALL,
    WEFTI_SECTION_OWN,
    WEFTI_SECTION_BEFORE,
    WEFTI_SECTION_COUNT
} wefti_section_t;

typedef struct wefti_version {
    bool complete;
    bool whole; /* every piece of every rank is here, in section ALL */
    uint64_t generation;
    weft_checkpoint_info_t info;
    weft_plan_t *plan;                 /* NULL: nothing is allocated yet */
    uint32_t rank;                     /* this process, in the world of the plan */
    size_t bytes[WEFTI_SECTION_COUNT]; /* of data, section after section */
    uint8_t *data;
    double *scalars;     /* [binding] of those that a checkpoint has */
    wefti_arena_t arena; /* of the rest */
    wefti_state_map_t states;
    wefti_checkpoint_tensors_t tensors;
} wefti_version_t;

struct weft_snapshot {
    uint64_t generation;
    wefti_version_t versions[WEFTI_SNAPSHOT_VERSIONS];
};

/* WEFTI_SECTION_COUNT: this rank does not hold the piece. */
wefti_section_t wefti_version_section(const wefti_version_t *version,
                                      const wefti_state_piece_t *piece);
uint8_t *wefti_version_begin(const wefti_version_t *version, wefti_section_t section);
/* Does it need the shards of other ranks? */
bool wefti_version_is_sharded(const wefti_version_t *version);
/* Is group all ranks of the session's world, between steps? */
weft_status_t wefti_snapshot_check(const weft_session_t *session, const weft_group_t *group);
/* As weft_snapshot_take. */
weft_status_t wefti_snapshot_take(weft_snapshot_t *snapshot, weft_session_t *session,
                                  weft_group_t *group, const weft_checkpoint_info_t *info);

#endif
