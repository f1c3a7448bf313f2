/* SPDX-License-Identifier: Apache-2.0 */
#include "support_headers.h"

#include <ctype.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support.h"

static char *read_text(const char *path)
{
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    char *text = calloc(1, 1 << 18);
    assert_non_null(text);
    size_t bytes = fread(text, 1, (1 << 18) - 1, file);
    assert_true(bytes > 0 && bytes < (1 << 18) - 1);
    fclose(file);
    return text;
}

static void blank_comments(char *text)
{
    for (char *begin = text; (begin = strstr(begin, "/*")) != NULL;) {
        char *end = strstr(begin, "*/");
        assert_non_null(end);
        memset(begin, ' ', (size_t)(end + 2 - begin));
    }
}

static bool is_word(char c)
{
    return isalnum((unsigned char)c) || c == '_';
}

const char *support_last_word(const char *begin, const char *end, char word[64])
{
    while (end > begin && !is_word(end[-1])) {
        end--;
    }
    const char *at = end;
    while (at > begin && is_word(at[-1])) {
        at--;
    }
    snprintf(word, 64, "%.*s", (int)(end - at), at);
    return at;
}

void support_each_header(void (*visit)(const char *text, void *user), void *user)
{
    glob_t headers;
    assert_int_equal(glob(WEFT_SOURCE_DIR "/include/weft/*.h", 0, NULL, &headers), 0);
    for (size_t i = 0; i < headers.gl_pathc; i++) {
        char *text = read_text(headers.gl_pathv[i]);
        blank_comments(text);
        visit(text, user);
        free(text);
    }
    globfree(&headers);
}

typedef struct visitor {
    void (*visit)(const char *declaration, const char *end, void *user);
    void *user;
} visitor_t;

static void visit_declarations(const char *text, void *user)
{
    const visitor_t *visitor = user;
    for (const char *at = text; (at = strstr(at, "\nWEFT_API ")) != NULL;) {
        const char *end = strchr(at, ';');
        assert_non_null(end);
        visitor->visit(at + 10, end, visitor->user);
        at = end;
    }
}

void support_each_declaration(void (*visit)(const char *declaration, const char *end, void *user),
                              void *user)
{
    visitor_t visitor = {visit, user};
    support_each_header(visit_declarations, &visitor);
}
