/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/base/json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/error.h"

#define MAX_DEPTH 16u
#define MAX_BYTES (64u << 20)

typedef struct parser {
    wefti_json_tree_t *tree;
    char *at; /* the text ends with a 0 byte */
} parser_t;

static weft_status_t parse_value(parser_t *p, uint32_t depth, const char *key, uint32_t *out_node);

static weft_status_t wrong(const parser_t *p, const char *what)
{
    unsigned line = 1;
    for (const char *c = p->tree->text; c < p->at; c++) {
        line += *c == '\n';
    }
    return wefti_error(WEFT_ERR_FORMAT, "line %u: %s", line, what);
}

static void skip_space(parser_t *p)
{
    while (*p->at == ' ' || *p->at == '\t' || *p->at == '\n' || *p->at == '\r') {
        p->at++;
    }
}

/* Four hex digits; false when they are not there. */
static bool parse_hex(const char *at, uint32_t *out_value)
{
    *out_value = 0;
    for (int i = 0; i < 4; i++) {
        char c = at[i];
        uint32_t digit;
        if (c >= '0' && c <= '9') {
            digit = (uint32_t)(c - '0');
        } else if ((c | 0x20) >= 'a' && (c | 0x20) <= 'f') {
            digit = (uint32_t)((c | 0x20) - 'a') + 10;
        } else {
            return false;
        }
        *out_value = *out_value * 16 + digit;
    }
    return true;
}

static char *put_utf8(char *to, uint32_t code)
{
    if (code < 0x80) {
        *to++ = (char)code;
        return to;
    }
    static const uint8_t lead[] = {0, 0xc0, 0xe0, 0xf0};
    int more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3; /* bytes behind the first */
    *to++ = (char)(lead[more] | code >> (6 * more));
    while (more-- > 0) {
        *to++ = (char)(0x80u | (code >> (6 * more) & 0x3fu));
    }
    return to;
}

/* "\uXXXX", or two of them that are one character; never longer as UTF-8. */
static weft_status_t parse_unicode(parser_t *p, char **to)
{
    uint32_t code, low;
    if (!parse_hex(p->at + 2, &code) || code == 0) {
        return wrong(p, "\\u and four hex digits of a character other than 0 are expected");
    }
    p->at += 6;
    if (code >= 0xd800 && code < 0xe000) {
        if (code >= 0xdc00 || p->at[0] != '\\' || p->at[1] != 'u' || !parse_hex(p->at + 2, &low) ||
            low < 0xdc00 || low >= 0xe000) {
            return wrong(p, "half of a surrogate pair");
        }
        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
        p->at += 6;
    }
    *to = put_utf8(*to, code);
    return WEFT_OK;
}

/* Strings are resolved where they are. */
static weft_status_t parse_string(parser_t *p, const char **out)
{
    char *to = ++p->at;
    *out = to;
    while (*p->at != '"') {
        if ((unsigned char)*p->at < ' ') {
            return wrong(p, "a string does not end");
        }
        if (*p->at == '\\' && p->at[1] == 'u') {
            WEFT_RETURN_IF_ERROR(parse_unicode(p, &to));
            continue;
        }
        if (*p->at == '\\') {
            static const char from[] = "\"\\/ntrbf", into[] = "\"\\/\n\t\r\b\f";
            const char *found = p->at[1] != '\0' ? strchr(from, p->at[1]) : NULL;
            if (found == NULL) {
                return wrong(p, "an escape that is not supported");
            }
            *to++ = into[found - from];
            p->at += 2;
            continue;
        }
        size_t length = wefti_utf8_length((const unsigned char *)p->at);
        if (length == 0) { /* it would be written as another text */
            return wrong(p, "a string is not UTF-8");
        }
        memmove(to, p->at, length);
        to += length;
        p->at += length;
    }
    p->at++;
    *to = '\0';
    return WEFT_OK;
}

/* A host program may have set a locale with a decimal comma: strtod then stops at a point, and
 * takes the comma behind a number. */
static weft_status_t parse_number(parser_t *p, double *out)
{
    char *stop = p->at + strspn(p->at, "+-.0123456789eE"), after = *stop, *end;
    if (*p->at != '-' && (*p->at < '0' || *p->at > '9')) {
        return wrong(p, "a value is expected");
    }
    *stop = '\0';
    *out = strtod(p->at, &end);
    if (*end == '.') {
        *end = ',';
        *out = strtod(p->at, &end);
    }
    *stop = after;
    if (end != stop || !isfinite(*out)) {
        return wrong(p, "a number is malformed or too large");
    }
    p->at = stop;
    return WEFT_OK;
}

/* Members or elements up to the closing bracket. */
static weft_status_t parse_children(parser_t *p, uint32_t depth, uint32_t parent, char close)
{
    uint32_t last = 0, count = 0;
    p->at++;
    for (skip_space(p); *p->at != close; skip_space(p)) {
        const char *key = NULL;
        uint32_t child;
        if (count > 0) {
            if (*p->at != ',') {
                return wrong(p, "a comma or the closing bracket is expected");
            }
            p->at++;
            skip_space(p);
        }
        if (close == '}') {
            if (*p->at != '"') {
                return wrong(p, "a name in quotes is expected");
            }
            WEFT_RETURN_IF_ERROR(parse_string(p, &key));
            skip_space(p);
            if (*p->at != ':') {
                return wrong(p, "a colon is expected");
            }
            p->at++;
        }
        WEFT_RETURN_IF_ERROR(parse_value(p, depth + 1, key, &child));
        if (last != 0) {
            p->tree->nodes[last].next = child;
        }
        last = child;
        p->tree->nodes[parent].count = ++count;
    }
    p->at++;
    return WEFT_OK;
}

static bool take_word(parser_t *p, const char *word)
{
    size_t length = strlen(word);
    if (strncmp(p->at, word, length) != 0) {
        return false;
    }
    p->at += length;
    return true;
}

static weft_status_t parse_value(parser_t *p, uint32_t depth, const char *key, uint32_t *out_node)
{
    wefti_json_tree_t *tree = p->tree;
    weft_status_t status = WEFT_OK;
    WEFT_RETURN_IF_ERROR(wefti_array_reserve(tree->allocator, &tree->nodes, &tree->capacity,
                                             tree->count + 1, sizeof *tree->nodes));
    if (depth > MAX_DEPTH) {
        return wrong(p, "nested too deeply");
    }
    uint32_t index = (uint32_t)tree->count++;
    wefti_json_node_t node = {.kind = WEFTI_JSON_NULL, .key = key};
    *out_node = index;
    tree->nodes[index] = node;
    skip_space(p);
    if (*p->at == '{' || *p->at == '[') {
        bool object = *p->at == '{';
        tree->nodes[index].kind = object ? WEFTI_JSON_OBJECT : WEFTI_JSON_ARRAY;
        return parse_children(p, depth, index, object ? '}' : ']');
    }
    if (*p->at == '"') {
        node.kind = WEFTI_JSON_STRING;
        status = parse_string(p, &node.string);
    } else if (take_word(p, "true")) {
        node.kind = WEFTI_JSON_BOOL;
        node.number = 1;
    } else if (take_word(p, "false")) {
        node.kind = WEFTI_JSON_BOOL;
    } else if (!take_word(p, "null")) {
        node.kind = WEFTI_JSON_NUMBER;
        status = parse_number(p, &node.number);
    }
    tree->nodes[index] = node;
    return status;
}

weft_status_t wefti_json_parse(const char *text, size_t bytes, const weft_allocator_t *allocator,
                               wefti_json_tree_t *out)
{
    uint32_t top;
    *out = (wefti_json_tree_t){.allocator = allocator};
    if (bytes > MAX_BYTES) {
        return wefti_error(WEFT_ERR_FORMAT, "larger than 64 MiB");
    }
    out->text = wefti_alloc(allocator, bytes + 1);
    if (out->text == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    if (bytes > 0) {
        memcpy(out->text, text, bytes);
    }
    parser_t p = {out, out->text};
    weft_status_t status = parse_value(&p, 0, NULL, &top);
    if (status >= 0) {
        skip_space(&p);
        if (p.at != out->text + bytes) {
            status = wrong(&p, "something follows the value");
        }
    }
    if (status < 0) {
        wefti_json_tree_deinit(out);
    }
    return status;
}

void wefti_json_tree_deinit(wefti_json_tree_t *tree)
{
    wefti_free(tree->allocator, tree->nodes);
    wefti_free(tree->allocator, tree->text);
    *tree = (wefti_json_tree_t){0};
}

const wefti_json_node_t *wefti_json_first(const wefti_json_tree_t *tree,
                                          const wefti_json_node_t *parent)
{
    (void)tree;
    return parent != NULL && parent->count > 0 ? parent + 1 : NULL;
}

const wefti_json_node_t *wefti_json_after(const wefti_json_tree_t *tree,
                                          const wefti_json_node_t *node)
{
    return node->next != 0 ? &tree->nodes[node->next] : NULL;
}

const wefti_json_node_t *wefti_json_get(const wefti_json_tree_t *tree,
                                        const wefti_json_node_t *object, const char *key)
{
    if (object == NULL || object->kind != WEFTI_JSON_OBJECT) {
        return NULL;
    }
    const wefti_json_node_t *node = wefti_json_first(tree, object);
    while (node != NULL && strcmp(node->key, key) != 0) {
        node = wefti_json_after(tree, node);
    }
    return node;
}
