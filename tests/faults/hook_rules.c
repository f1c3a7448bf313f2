/* SPDX-License-Identifier: Apache-2.0 */
/* Rules of a hook as text. */
#include "tests/faults/hook.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/base/error.h"

#define TEXT_BYTES 96u
#define FIELDS 5u

static const char *const kinds[] = {"delay", "jitter", "rate", "drop", "fail", "break"};
static const char *const calls[] = {"put", "signal", "all_gather", "grow", "barrier"};
static const struct {
    const char *name;
    weft_status_t status;
} statuses[] = {
    {"link", WEFT_ERR_LINK},
    {"no_memory", WEFT_ERR_NO_MEMORY},
    {"system", WEFT_ERR_SYSTEM},
    {"timeout", WEFT_ERR_TIMEOUT},
};

static bool find_name(const char *text, const char *const *names, uint32_t count, uint32_t *out)
{
    for (uint32_t i = 0; i < count; i++) {
        if (strcmp(text, names[i]) == 0) {
            *out = i;
            return true;
        }
    }
    return false;
}

static bool read_number(const char *text, uint64_t *out, const char **out_rest)
{
    char *end;
    if (*text < '0' || *text > '9') {
        return false;
    }
    *out = strtoull(text, &end, 10);
    *out_rest = end;
    return true;
}

static bool read_rank(const char *text, uint32_t *out, const char **out_rest)
{
    uint64_t number;
    if (*text == '*') {
        *out = WEFTI_HOOK_ANY;
        *out_rest = text + 1;
        return true;
    }
    if (!read_number(text, &number, out_rest) || number >= WEFTI_HOOK_ANY) {
        return false;
    }
    *out = (uint32_t)number;
    return true;
}

static bool read_link(const char *text, wefti_hook_rule_t *rule)
{
    const char *rest;
    return read_rank(text, &rule->from, &rest) && *rest == '-' &&
           read_rank(rest + 1, &rule->to, &rest) && *rest == '\0';
}

/* A number with one of units behind it, which multiply it. */
static bool read_amount(const char *text, const char *const *units, const uint64_t *factors,
                        uint32_t count, uint64_t *out)
{
    const char *rest;
    uint32_t unit;
    if (!read_number(text, out, &rest) || !find_name(rest, units, count, &unit)) {
        return false;
    }
    return !__builtin_mul_overflow(*out, factors[unit], out);
}

static bool read_time(const char *text, uint64_t *out)
{
    static const char *const units[] = {"ns", "us", "ms", "s"};
    static const uint64_t factors[] = {1, 1000, 1000000, 1000000000};
    return read_amount(text, units, factors, 4, out);
}

static bool read_rate(const char *text, uint64_t *out)
{
    static const char *const units[] = {"", "k", "M", "G"};
    static const uint64_t factors[] = {1, 1000, 1000000, 1000000000};
    return read_amount(text, units, factors, 4, out) && *out > 0;
}

static bool read_count(const char *text, uint64_t *out)
{
    const char *rest;
    return read_number(text, out, &rest) && *rest == '\0' && *out > 0;
}

static bool read_status(const char *text, weft_status_t *out)
{
    for (size_t i = 0; i < sizeof statuses / sizeof statuses[0]; i++) {
        if (strcmp(text, statuses[i].name) == 0) {
            *out = statuses[i].status;
            return true;
        }
    }
    return false;
}

static bool read_rule(char *const *fields, uint32_t count, wefti_hook_rule_t *rule)
{
    static const uint32_t lengths[] = {3, 3, 3, 4, 5, 3};
    uint32_t kind, call;
    const char *rest;
    if (!find_name(fields[0], kinds, 6, &kind) || count != lengths[kind]) {
        return false;
    }
    rule->kind = (wefti_hook_kind_t)kind;
    if (rule->kind == WEFTI_HOOK_DROP || rule->kind == WEFTI_HOOK_FAIL) {
        bool drops = rule->kind == WEFTI_HOOK_DROP;
        if (!find_name(fields[1], calls, drops ? 2 : WEFTI_HOOK_CALLS, &call)) {
            return false;
        }
        rule->call = (wefti_hook_call_t)call;
        if (drops) {
            return read_link(fields[2], rule) && read_count(fields[3], &rule->amount);
        }
        return read_rank(fields[2], &rule->from, &rest) && *rest == '\0' &&
               read_count(fields[3], &rule->amount) && read_status(fields[4], &rule->status);
    }
    if (!read_link(fields[1], rule)) {
        return false;
    }
    return rule->kind == WEFTI_HOOK_RATE    ? read_rate(fields[2], &rule->amount)
           : rule->kind == WEFTI_HOOK_BREAK ? read_count(fields[2], &rule->amount)
                                            : read_time(fields[2], &rule->amount);
}

static bool read_part(char *text, wefti_hook_rules_t *rules)
{
    char *fields[FIELDS + 1];
    uint32_t count = 0;
    for (char *field = text; field != NULL && count <= FIELDS; count++) {
        fields[count] = field;
        field = strchr(field, ':');
        if (field != NULL) {
            *field++ = '\0';
        }
    }
    const char *rest;
    if (count == 2 && strcmp(fields[0], "seed") == 0) {
        return read_number(fields[1], &rules->seed, &rest) && *rest == '\0';
    }
    return count <= FIELDS && rules->count < WEFTI_HOOK_RULES &&
           read_rule(fields, count, &rules->rules[rules->count++]);
}

weft_status_t wefti_hook_parse(const char *text, wefti_hook_rules_t *out_rules)
{
    *out_rules = (wefti_hook_rules_t){.seed = 1};
    while (*text != '\0') {
        char part[TEXT_BYTES];
        size_t length = strcspn(text, ";");
        if (length > 0) {
            bool fits = length < sizeof part;
            memcpy(part, text, fits ? length : sizeof part - 1);
            part[fits ? length : sizeof part - 1] = '\0';
            if (!fits || !read_part(part, out_rules)) {
                return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "invalid fault rule '%.*s'",
                                   (int)(fits ? length : sizeof part - 1), text);
            }
        }
        text += length + (text[length] == ';');
    }
    return WEFT_OK;
}
