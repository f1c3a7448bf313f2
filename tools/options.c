/* SPDX-License-Identifier: Apache-2.0 */
/* Parsing of options by tables; numbers; error lines. */
#include "tools/tool.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "ops/collective.h"
#include "runtime/base/suggest.h"

#define MAX_LIST 256u
#define MAX_OPTIONS (2 * COMPILE_OPTIONS_MAX)

/* Option names of earlier versions. */
static const char *const renamed[][2] = {
    {"ranks", "world"},
    {"shards", "global-micro-batches"},
    {"cards", "devices"},
};

/* The options that were passed to the command in this process, in the order of option_at. */
static const command_t *parsed_command;
static bool passed[MAX_OPTIONS];

typedef struct parser {
    int argc;
    char **argv;
    const command_t *command;
    option_fn handle;
    void *user;
    int index; /* of the argument being read */
} parser_t;

static const option_def_t help_option = {'h', "help", NULL, ""};

/* The index-th option of the command, --help last; NULL after that. */
static const option_def_t *option_at(const command_t *command, size_t index)
{
    for (size_t t = 0; command->options[t] != NULL; t++) {
        for (const option_def_t *def = command->options[t]; def->key != 0; def++) {
            if (index-- == 0) {
                return def;
            }
        }
    }
    return index == 0 ? &help_option : NULL;
}

/* ---- errors ---- */

static int unknown_option(const parser_t *parser, const char *name)
{
    const command_t *command = parser->command;
    wefti_suggestion_t near = {.word = name};
    const option_def_t *def;
    for (size_t i = 0; i < sizeof renamed / sizeof *renamed; i++) {
        for (size_t j = 0; (def = option_at(command, j)) != NULL; j++) {
            if (strcmp(name, renamed[i][0]) == 0 && strcmp(def->name, renamed[i][1]) == 0) {
                return wefti_usage_error(command->name, "unknown option '--%s' (renamed to '--%s')",
                                         name, def->name);
            }
        }
    }
    for (size_t i = 0; (def = option_at(command, i)) != NULL; i++) {
        wefti_suggestion_offer(&near, def->name);
    }
    return near.best != NULL
               ? wefti_usage_error(command->name, "unknown option '--%s' (did you mean '--%s'?)",
                                   name, near.best)
               : wefti_usage_error(command->name,
                                   "unknown option '--%s'; `weft help %s` lists the options", name,
                                   command->name);
}

static int ambiguous_option(const parser_t *parser, const char *name, size_t length)
{
    char list[MAX_LIST] = "";
    size_t used = 0;
    const option_def_t *def;
    for (size_t i = 0; (def = option_at(parser->command, i)) != NULL; i++) {
        if (strncmp(def->name, name, length) == 0 && used < sizeof list) {
            used += (size_t)snprintf(list + used, sizeof list - used, "%s--%s",
                                     used > 0 ? ", " : "", def->name);
        }
    }
    return wefti_usage_error(parser->command->name, "ambiguous option '--%s' (matches %s)", name,
                             list);
}

/* ---- parsing ---- */

static int take(parser_t *parser, const option_def_t *def, const char *value)
{
    for (size_t i = 0; i < MAX_OPTIONS && option_at(parser->command, i) != NULL; i++) {
        passed[i] = passed[i] || option_at(parser->command, i) == def;
    }
    if (def == &help_option) {
        wefti_print_command_help(parser->command);
        return -1;
    }
    return parser->handle(parser->user, def->key, value);
}

/* The argument after the option. Another long option there means that the value is missing. */
static const char *next_value(parser_t *parser)
{
    const char *next = parser->index + 1 < parser->argc ? parser->argv[parser->index + 1] : NULL;
    if (next == NULL || strncmp(next, "--", 2) == 0) {
        return NULL;
    }
    parser->index++;
    return next;
}

/* --name, --name=value, or the beginning of a name that no other option shares. */
static int read_long(parser_t *parser, const char *text)
{
    const char *command = parser->command->name;
    char name[128];
    size_t length = strcspn(text, "=");
    const char *value = text[length] == '=' ? text + length + 1 : NULL;
    const option_def_t *def, *found = NULL;
    size_t matches = 0;
    snprintf(name, sizeof name, "%.*s", (int)length, text);
    length = strlen(name);
    for (size_t i = 0; (def = option_at(parser->command, i)) != NULL; i++) {
        if (strcmp(def->name, name) == 0) {
            found = def;
            matches = 1;
            break;
        }
        if (strncmp(def->name, name, length) == 0) {
            found = def;
            matches++;
        }
    }
    if (matches == 0) {
        return unknown_option(parser, name);
    }
    if (matches > 1) {
        return ambiguous_option(parser, name, length);
    }
    if (found->arg == NULL && value != NULL) {
        return wefti_usage_error(command, "option '--%s' takes no value", found->name);
    }
    if (found->arg != NULL && value == NULL && (value = next_value(parser)) == NULL) {
        return wefti_usage_error(command, "option '--%s' requires a value", found->name);
    }
    return take(parser, found, value);
}

/* -n 2, -n2, or several letters without values. */
static int read_short(parser_t *parser, const char *letters)
{
    const char *command = parser->command->name;
    for (; *letters != '\0'; letters++) {
        const option_def_t *def;
        size_t i = 0;
        while ((def = option_at(parser->command, i)) != NULL && def->key != *letters) {
            i++;
        }
        if (def == NULL) {
            return wefti_usage_error(command,
                                     "unknown option '-%c'; `weft help %s` lists the options",
                                     *letters, command);
        }
        if (def->arg != NULL) {
            const char *value = letters[1] != '\0' ? letters + 1 : next_value(parser);
            return value != NULL
                       ? take(parser, def, value)
                       : wefti_usage_error(command, "option '-%c' requires a value", *letters);
        }
        int code = take(parser, def, NULL);
        if (code != EXIT_OK) {
            return code;
        }
    }
    return EXIT_OK;
}

int wefti_parse_options(int argc, char **argv, const command_t *command, option_fn handle,
                        void *user, int *out_positional)
{
    parser_t parser = {argc, argv, command, handle, user, 1};
    parsed_command = command;
    int kept = 0;
    bool options_end = false;
    for (; parser.index < argc; parser.index++) {
        const char *text = argv[parser.index];
        int code = EXIT_OK;
        if (!options_end && strcmp(text, "--") == 0) {
            options_end = true;
        } else if (!options_end && strncmp(text, "--", 2) == 0) {
            code = read_long(&parser, text + 2);
        } else if (!options_end && text[0] == '-' && text[1] != '\0') {
            code = read_short(&parser, text + 1);
        } else {
            if (kept == 0 && command->check_positional != NULL) {
                code = command->check_positional(argc, argv, parser.index);
            }
            argv[1 + kept++] = argv[parser.index];
        }
        if (code != EXIT_OK) {
            return code;
        }
    }
    *out_positional = kept;
    return EXIT_OK;
}

int wefti_usage_error(const char *command, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fprintf(stderr, "weft %s: ", command);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    return EXIT_BAD_INPUT;
}

const char *wefti_plural(uint64_t count)
{
    return count == 1 ? "" : "s";
}

exit_code_t wefti_exit_code(weft_status_t status)
{
    switch (status) {
    case WEFT_OK:
    case WEFT_IN_PROGRESS:
    case WEFT_AGAIN:
        return EXIT_OK;
    case WEFT_ERR_INVALID_ARGUMENT:
    case WEFT_ERR_UNSUPPORTED:
    case WEFT_ERR_NO_MEMORY:
    case WEFT_ERR_NOT_FOUND:
    case WEFT_ERR_FORMAT:
    case WEFT_ERR_SYSTEM:
        return EXIT_BAD_INPUT;
    case WEFT_ERR_MISMATCH:
    case WEFT_ERR_PEER_DIED:
    case WEFT_ERR_LINK:
    case WEFT_ERR_TIMEOUT:
    case WEFT_ERR_ABORTED:
    case WEFT_ERR_STATE:
    case WEFT_ERR_INTERNAL:
        break;
    }
    return EXIT_RUN_FAILED;
}

static bool is_option(const char *name, bool only_passed)
{
    const option_def_t *def;
    for (size_t i = 0; parsed_command != NULL && (def = option_at(parsed_command, i)) != NULL;
         i++) {
        if (wefti_same_name(name, def->name)) {
            return i < MAX_OPTIONS && (passed[i] || !only_passed);
        }
    }
    return false;
}

/* " (--world)": the option that sets the field of the last error; "" if there is none. Of --batch
 * and --split-batch, which set one field, it is the one that was passed. */
static const char *field_note(char *out, size_t bytes)
{
    const char *field = weft_last_error_field(), *name = field;
    const weft_compile_option_t *option;
    out[0] = '\0';
    for (size_t i = 0; field != NULL && (option = weft_compile_option(i)) != NULL; i++) {
        if (strcmp(option->field, field) == 0 && option->name != NULL) {
            if ((option->flags & WEFT_OPTION_FLAG_POSITIONAL) != 0) {
                snprintf(out, bytes, " (%s)", option->arg);
                return out;
            }
            name = option->name;
        } else if (option->needs != NULL && strcmp(option->needs, field) == 0 &&
                   is_option(option->name, true)) {
            name = option->name;
            break;
        }
    }
    name = field != NULL && strcmp(field, "trace_path") == 0 ? "trace" : name;
    if (name != NULL && is_option(name, false)) {
        snprintf(out, bytes, " (--%s)", name);
        for (char *at = out; *at != '\0'; at++) {
            *at = *at == '_' ? '-' : *at;
        }
    }
    return out;
}

int wefti_status_error(const char *command, weft_status_t status)
{
    char note[64];
    fprintf(stderr, "weft %s: %s%s\n", command, weft_last_error(), field_note(note, sizeof note));
    return (int)wefti_exit_code(status);
}

bool wefti_parse_int(const char *text, long long low, long long high, long long *out_value)
{
    char *end = NULL;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0' || value < low || value > high) {
        return false;
    }
    *out_value = value;
    return true;
}

bool wefti_parse_double(const char *text, double *out_value)
{
    char *end = NULL;
    errno = 0;
    double value = strtod(text, &end);
    if (errno != 0 || end == text || *end != '\0' || !isfinite(value)) {
        return false;
    }
    *out_value = value;
    return true;
}

bool wefti_same_file(const char *a, const char *b)
{
    struct stat of_a, of_b;
    return strcmp(a, b) == 0 ||
           (stat(a, &of_a) == 0 && stat(b, &of_b) == 0 && S_ISREG(of_a.st_mode) &&
            of_a.st_dev == of_b.st_dev && of_a.st_ino == of_b.st_ino);
}

int wefti_option_int(const char *command, const char *option, const char *text, long long low,
                     long long high, long long *out_value)
{
    long long value = 0;
    if (wefti_parse_int(text, low, high, out_value)) {
        return EXIT_OK;
    }
    const char *kind =
        wefti_parse_int(text, LLONG_MIN, LLONG_MAX, &value) ? "" : "not a whole number; ";
    return high == INT64_MAX ? wefti_usage_error(command, "%s %s: %smust be at least %lld", option,
                                                 text, kind, low)
                             : wefti_usage_error(command, "%s %s: %smust be between %lld and %lld",
                                                 option, text, kind, low, high);
}

int wefti_option_u32(const char *command, const char *option, const char *text, uint32_t low,
                     uint32_t high, uint32_t *out_value)
{
    long long value = 0;
    int code = wefti_option_int(command, option, text, low, high, &value);
    if (code == EXIT_OK) {
        *out_value = (uint32_t)value;
    }
    return code;
}

/* "tree, any or blocks" */
static const char *join(const char *const *names, size_t count, char *out, size_t bytes)
{
    size_t used = 0;
    for (size_t i = 0; i < count && used < bytes; i++) {
        const char *between = i == 0 ? "" : i + 1 < count ? ", " : " or ";
        used += (size_t)snprintf(out + used, bytes - used, "%s%s", between, names[i]);
    }
    return out;
}

int wefti_option_choice(const char *command, const char *option, const char *text,
                        const char *const *names, size_t count, size_t *out_index)
{
    char list[MAX_LIST] = "";
    for (size_t i = 0; i < count; i++) {
        if (strcmp(text, names[i]) == 0) {
            *out_index = i;
            return EXIT_OK;
        }
    }
    return wefti_usage_error(command, "%s %s: must be %s", option, text,
                             join(names, count, list, sizeof list));
}

/* ---- operators ---- */

int wefti_option_op(const char *command, const char *option, const char *text, bool measured,
                    weft_collective_t *out_op)
{
    const char *names[WEFTI_OPS], *what = "unknown operator";
    char list[MAX_LIST] = "";
    size_t count = 0;
    wefti_suggestion_t near = {.word = text};
    for (uint32_t op = 1; op < WEFTI_OPS; op++) {
        bool offered = !measured || wefti_collective_has_one_count((weft_collective_t)op);
        const char *name = wefti_collective_function((weft_collective_t)op);
        bool same = wefti_same_name(text, name);
        if (same && offered) {
            *out_op = (weft_collective_t)op;
            return EXIT_OK;
        }
        what = same ? "cannot be measured" : what;
        if (offered) {
            names[count++] = name;
            wefti_suggestion_offer(&near, name);
        }
    }
    return near.best != NULL && what[0] == 'u'
               ? wefti_usage_error(command, "%s %s: unknown operator (did you mean '%s'?)", option,
                                   text, near.best)
               : wefti_usage_error(command, "%s %s: %s; must be %s", option, text, what,
                                   join(names, count, list, sizeof list));
}

int wefti_parse_size(const char *command, const char *option, const char *text, uint64_t *out_bytes)
{
    char *rest = NULL;
    unsigned long long value = strtoull(text, &rest, 10);
    const char *units = "KMG";
    const char *unit = *rest != '\0' ? strchr(units, *rest) : NULL;
    unsigned int shift = unit != NULL ? 10u * (unsigned int)(unit - units + 1) : 0;
    if (text[0] < '0' || text[0] > '9' || (*rest != '\0' && (unit == NULL || rest[1] != '\0')) ||
        value == 0 || value > (1ull << 40) >> shift) {
        return wefti_usage_error(command, "%s %s: must be a number of bytes such as 8, 4K or 64M",
                                 option, text);
    }
    *out_bytes = value << shift;
    return EXIT_OK;
}
