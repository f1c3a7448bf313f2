/* SPDX-License-Identifier: Apache-2.0 */
/* The container of a plan file: header, section table, aligned sections. README.md is its
 * specification. */
#ifndef WEFT_OPS_PLAN_CONTAINER_H
#define WEFT_OPS_PLAN_CONTAINER_H

#include "runtime/base/digest.h"

/* Section i of the arrays below has kind i + 1 in the file. */
#define WEFTI_SECTION_COUNT 3u

/* Bits of the required-features word. */
#define WEFTI_FEATURE_MESH (1ull << 0)   /* collectives of groups, contents per group */
#define WEFTI_FEATURE_PLACES (1ull << 1) /* kernels and collectives that some ranks run */
#define WEFTI_FEATURE_FILES (1ull << 2)  /* algorithms that are in the plan as files */

#define WEFTI_CONTAINER_HEADER_BYTES 128u
#define WEFTI_CONTAINER_ENTRY_BYTES 32u
#define WEFTI_CONTAINER_MAX_SECTIONS 64u

typedef struct wefti_section {
    const uint8_t *data;
    size_t size_bytes;
} wefti_section_t;

/* All or nothing. sections: structure, weights, evaluation model. */
weft_status_t wefti_container_write(const char *path, uint64_t features,
                                    const wefti_section_t *sections,
                                    const wefti_digest_t *structure, const wefti_digest_t *weights);
/* Finds the sections inside data; an absent one is empty. WEFT_ERR_FORMAT, WEFT_ERR_UNSUPPORTED. */
weft_status_t wefti_container_read(const uint8_t *data, size_t size_bytes,
                                   wefti_section_t *out_sections, wefti_digest_t *out_structure,
                                   wefti_digest_t *out_weights);

#endif
