/* SPDX-License-Identifier: Apache-2.0 */
/* Option tables to getopt_long and --help; numbers; error lines. */
#include "tools/tool.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define MAX_OPTIONS 64
#define KEY_HELP 1

static void print_help(const command_help_t *help, const option_def_t *const *tables)
{
    printf("usage: weft %s %s\n\n%s\n\noptions:\n", help->name, help->synopsis, help->summary);
    for (size_t t = 0; tables[t] != NULL; t++) {
        for (const option_def_t *def = tables[t]; def->key != 0; def++) {
            char head[64];
            int used = snprintf(head, sizeof head, def->key < 256 ? "-%c, " : "    ", def->key);
            snprintf(head + used, sizeof head - (size_t)used, "--%s%s%s", def->name,
                     def->arg != NULL ? " " : "", def->arg != NULL ? def->arg : "");
            printf("  %-30s %s\n", head, def->help);
        }
    }
    printf("      %-26s %s\n", "--help", "this text");
    if (help->epilogue != NULL) {
        printf("\n%s", help->epilogue);
    }
}

/* Flattens the tables into what getopt_long wants; returns how many there are. */
static size_t flatten(const option_def_t *const *tables, struct option *longs,
                      const option_def_t **defs, char *shorts)
{
    size_t count = 0;
    size_t used = 0;
    for (size_t t = 0; tables[t] != NULL; t++) {
        for (const option_def_t *def = tables[t]; def->key != 0 && count < MAX_OPTIONS; def++) {
            longs[count] = (struct option){
                def->name, def->arg != NULL ? required_argument : no_argument, NULL, def->key};
            defs[count++] = def;
            if (def->key < 256) {
                shorts[used++] = (char)def->key;
                if (def->arg != NULL) {
                    shorts[used++] = ':';
                }
            }
        }
    }
    longs[count] = (struct option){"help", no_argument, NULL, KEY_HELP};
    longs[count + 1] = (struct option){0};
    shorts[used] = '\0';
    return count;
}

int wefti_parse_options(int argc, char **argv, const command_help_t *help,
                        const option_def_t *const *tables, option_fn handle, void *user,
                        int *out_positional)
{
    struct option longs[MAX_OPTIONS + 2];
    const option_def_t *defs[MAX_OPTIONS];
    char shorts[2 * MAX_OPTIONS + 2];
    flatten(tables, longs, defs, shorts);
    opterr = 0;
    optind = 1;
    for (;;) {
        int before = optind;
        int key = getopt_long(argc, argv, shorts, longs, NULL);
        if (key == -1) {
            break;
        }
        if (key == KEY_HELP) {
            print_help(help, tables);
            return -1;
        }
        if (key == '?') {
            const char *text = argv[optind > before ? optind - 1 : before];
            return wefti_usage_error(help->name,
                                     "option '%s' is unknown, ambiguous or lacks its value; "
                                     "`weft %s --help` lists the options",
                                     text, help->name);
        }
        int code = handle(user, key, optarg);
        if (code != EXIT_OK) {
            return code;
        }
    }
    *out_positional = argc - optind;
    memmove(argv + 1, argv + optind, (size_t)*out_positional * sizeof *argv);
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

int wefti_status_error(const char *command, weft_status_t status)
{
    fprintf(stderr, "weft %s: %s\n", command, weft_last_error());
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

int wefti_parse_size(const char *command, const char *option, const char *text, uint64_t *out_bytes)
{
    char *rest = NULL;
    unsigned long long value = strtoull(text, &rest, 10);
    const char *units = "KMG";
    const char *unit = *rest != '\0' ? strchr(units, *rest) : NULL;
    unsigned int shift = unit != NULL ? 10u * (unsigned int)(unit - units + 1) : 0;
    if (text[0] < '0' || text[0] > '9' || (*rest != '\0' && (unit == NULL || rest[1] != '\0')) ||
        value == 0 || value > (1ull << 40) >> shift) {
        return wefti_usage_error(command, "%s '%s': expected bytes such as 8, 4K or 64M", option,
                                 text);
    }
    *out_bytes = value << shift;
    return EXIT_OK;
}
