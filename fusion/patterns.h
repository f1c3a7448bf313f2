/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of patterns of names: the parameters train, freeze and no_decay. */
#ifndef WEFT_FUSION_PATTERNS_H
#define WEFT_FUSION_PATTERNS_H

#include <stdbool.h>
#include <stdint.h>

#include <weft/types.h>

#include "runtime/base/memory.h"

typedef struct wefti_patterns {
    const char *field; /* of weft_compile_params_t, for messages */
    char **list;
    bool *used; /* by pattern: it matches a name */
    uint32_t count;
} wefti_patterns_t;

/* text: patterns of fnmatch(3) separated by commas; NULL: none. */
weft_status_t wefti_patterns_read(const char *text, const char *field, wefti_arena_t *arena,
                                  wefti_patterns_t *out);
/* alias: another name, or NULL. */
bool wefti_patterns_match(const wefti_patterns_t *patterns, const char *name, const char *alias);
/* An error if a pattern matches no name; noun: "floating-point initializer of the model". */
weft_status_t wefti_patterns_check_used(const wefti_patterns_t *patterns, const char *noun);

#endif
