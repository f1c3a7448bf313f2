/* SPDX-License-Identifier: Apache-2.0 */
#include "fusion/patterns.h"

#include <fnmatch.h>
#include <string.h>

#include "runtime/base/error.h"

weft_status_t wefti_patterns_read(const char *text, const char *field, wefti_arena_t *arena,
                                  wefti_patterns_t *out)
{
    char *rest = text != NULL ? wefti_arena_strdup(arena, text) : NULL;
    size_t most = text != NULL ? strlen(text) + 1 : 1;
    *out = (wefti_patterns_t){.field = field,
                              .list = wefti_arena_array(arena, most, sizeof *out->list),
                              .used = wefti_arena_array(arena, most, sizeof *out->used)};
    WEFT_RETURN_IF_NO_MEMORY(out->list && out->used && (text == NULL || rest != NULL));
    for (char *pattern; (pattern = strsep(&rest, ",")) != NULL;) {
        if (pattern[0] == '\0') {
            return wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, field, "empty pattern in '%s'",
                                     text);
        }
        out->list[out->count++] = pattern;
    }
    return WEFT_OK;
}

/* A name that contains special characters also matches itself. */
static bool matches(const char *pattern, const char *name)
{
    return name != NULL && (strcmp(pattern, name) == 0 || fnmatch(pattern, name, 0) == 0);
}

bool wefti_patterns_match(const wefti_patterns_t *patterns, const char *name, const char *alias)
{
    bool any = false;
    for (uint32_t i = 0; i < patterns->count; i++) {
        bool match = matches(patterns->list[i], name) || matches(patterns->list[i], alias);
        patterns->used[i] = patterns->used[i] || match;
        any = any || match;
    }
    return any;
}

weft_status_t wefti_patterns_check_used(const wefti_patterns_t *patterns, const char *noun)
{
    for (uint32_t i = 0; i < patterns->count; i++) {
        if (!patterns->used[i]) {
            return wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, patterns->field,
                                     "'%s' matches no %s", patterns->list[i], noun);
        }
    }
    return WEFT_OK;
}
