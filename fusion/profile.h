/* SPDX-License-Identifier: Apache-2.0 */
/* Measured times of kernels and collectives: `weft run --write-profile` writes them, compile reads
 * them.
 */
#ifndef WEFT_FUSION_PROFILE_H
#define WEFT_FUSION_PROFILE_H

#include "runtime/base/memory.h"

typedef struct wefti_profile_kernel {
    const char *name; /* of the graph's node, or of an update */
    double ns;
} wefti_profile_kernel_t;

typedef struct wefti_profile_collective {
    uint64_t bytes;
    double ns;
} wefti_profile_collective_t;

typedef struct wefti_profile {
    bool known;
    wefti_profile_kernel_t *kernels; /* by name */
    uint32_t kernel_count;
    wefti_profile_collective_t *collectives;
    uint32_t collective_count;
    double compute_ns; /* all kernels of a step */
    double comm_ns;    /* all collectives of a step */
} wefti_profile_t;

/* WEFT_ERR_FORMAT names the place. Everything lives in arena. */
weft_status_t wefti_profile_load(const char *path, wefti_arena_t *arena, wefti_profile_t *out);
/* False when it is not in the profile. */
bool wefti_profile_kernel_ns(const wefti_profile_t *profile, const char *name, double *out_ns);

#endif
