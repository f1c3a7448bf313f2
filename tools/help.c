/* SPDX-License-Identifier: Apache-2.0 */
/* The texts of --help and `weft help`: for a terminal, and as JSON for the reference. */
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "runtime/base/json.h"
#include "runtime/base/settings.h"
#include "tools/output.h"
#include "tools/tool.h"

#define OPTION_COLUMN 30u

static const option_def_t help_option = {'h', "help", NULL, "print this text"};

static const char exit_codes[][4] = {"0", "1", "2", "130"};
static const char *const exit_meanings[] = {
    "success",
    "the run failed: a rank died, ranks disagree, a deadline passed, a check found an error",
    "invalid input: arguments, files, models, data, not enough memory or disk space",
    "interrupted (Ctrl-C)",
};

/* ---- terminal ---- */

/* The terminal's width between 60 and 100 columns; 80 where the text goes to a file or a pipe. */
static size_t text_width(FILE *out)
{
    struct winsize size;
    int fd = fileno(out);
    if (isatty(fd) != 1 || ioctl(fd, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) {
        return 80;
    }
    return size.ws_col < 60 ? 60 : size.ws_col > 100 ? 100 : size.ws_col;
}

#define NO_BREAK '\x1f' /* a space at which no line ends */

/* Prints words up to the width; lines after the first start at indent, the first one at column. */
void wefti_print_wrapped(FILE *out, const char *text, size_t column, size_t indent)
{
    size_t width = text_width(out);
    bool first = true;
    while (*text != '\0') {
        size_t length = strcspn(text, " \n");
        if (!first && column + 1 + length > width) {
            fprintf(out, "\n%*s", (int)indent, "");
            column = indent;
            first = true;
        }
        column += length + (first ? 0 : 1);
        if (!first) {
            fputc(' ', out);
        }
        first = false;
        for (size_t i = 0; i < length; i++) {
            fputc(text[i] == NO_BREAK ? ' ' : text[i], out);
        }
        text += length;
        if (*text == '\n') {
            fprintf(out, "\n%*s", text[1] == '\n' || text[1] == '\0' ? 0 : (int)indent, "");
            column = indent;
            first = true;
            text++;
        } else if (*text == ' ') {
            text++;
        }
    }
    fputc('\n', out);
}

static void print_option(FILE *out, const option_def_t *def)
{
    char head[64] = "    ";
    if (def->key < 256) {
        snprintf(head, sizeof head, "-%c, ", def->key);
    }
    size_t used = strlen(head);
    used += (size_t)snprintf(head + used, sizeof head - used, "--%s%s%s", def->name,
                             def->arg != NULL ? " " : "", def->arg != NULL ? def->arg : "");
    fprintf(out, "  %s", head);
    if (used + 4 > OPTION_COLUMN) {
        fputc('\n', out);
        used = 0;
    } else {
        used += 2;
    }
    fprintf(out, "%*s", (int)(OPTION_COLUMN - used), "");
    wefti_print_wrapped(out, def->help, OPTION_COLUMN, OPTION_COLUMN);
}

/* "usage: weft run ..": one line per form of the synopsis, which breaks outside brackets only. */
static void print_synopsis(const command_t *command)
{
    const char *line = command->synopsis;
    const char *head = "usage:";
    while (*line != '\0') {
        size_t length = strcspn(line, "\n");
        char form[256];
        snprintf(form, sizeof form, "%.*s", (int)length, line);
        uint32_t depth = 0;
        for (char *at = form; *at != '\0'; at++) {
            depth += *at == '[' ? 1 : 0;
            depth -= *at == ']' && depth > 0 ? 1 : 0;
            *at = *at == ' ' && depth > 0 ? NO_BREAK : *at;
        }
        int column = printf("%s weft %s ", head, command->name);
        wefti_print_wrapped(stdout, form, (size_t)column, (size_t)column);
        line += length + (line[length] == '\n');
        head = "      ";
    }
}

void wefti_print_command_help(const command_t *command)
{
    print_synopsis(command);
    fputc('\n', stdout);
    wefti_print_wrapped(stdout, command->summary, 0, 0);
    printf("\noptions:\n");
    for (size_t t = 0; command->options[t] != NULL; t++) {
        for (const option_def_t *def = command->options[t]; def->key != 0; def++) {
            print_option(stdout, def);
        }
    }
    print_option(stdout, &help_option);
    if (command->epilogue != NULL) {
        printf("\n%s", command->epilogue);
    }
}

void wefti_print_help(FILE *out)
{
    fputs("usage: weft COMMAND [options]\n"
          "       weft help [COMMAND]\n\n"
          "Weft compiles ONNX models with collectives to plans and runs them on several ranks.\n\n"
          "commands:\n",
          out);
    for (size_t i = 0; wefti_commands[i] != NULL; i++) {
        fprintf(out, "  %-10s", wefti_commands[i]->name);
        wefti_print_wrapped(out, wefti_commands[i]->brief, 12, 12);
    }
    fprintf(out, "  %-10s%s\n", "help", "show this list, or the options of a command");
    fputs("\noptions:\n", out);
    print_option(out, &help_option);
    print_option(out, &(option_def_t){256, "version", NULL, "print the version"});
    fputs("\nexit status:\n", out);
    for (size_t i = 0; i < sizeof exit_codes / sizeof *exit_codes; i++) {
        fprintf(out, "  %-10s", exit_codes[i]);
        wefti_print_wrapped(out, exit_meanings[i], 12, 12);
    }
    fputs("\nWEFT_ environment variables change settings of all commands: see `weft info`.\n", out);
}

/* ---- JSON ---- */

static void write_option(wefti_json_t *json, const option_def_t *def)
{
    const char letter[2] = {(char)def->key, '\0'};
    wefti_json_begin_object(json, NULL);
    wefti_json_string(json, "short", def->key < 256 ? letter : NULL);
    wefti_json_string(json, "long", def->name);
    wefti_json_string(json, "arg", def->arg);
    wefti_json_string(json, "help", def->help);
    wefti_json_end_object(json);
}

static void write_command(wefti_json_t *json, const command_t *command)
{
    wefti_json_begin_object(json, NULL);
    wefti_json_string(json, "name", command->name);
    wefti_json_string(json, "brief", command->brief);
    wefti_json_string(json, "synopsis", command->synopsis);
    wefti_json_string(json, "summary", command->summary);
    wefti_json_begin_array(json, "options");
    for (size_t t = 0; command->options[t] != NULL; t++) {
        for (const option_def_t *def = command->options[t]; def->key != 0; def++) {
            write_option(json, def);
        }
    }
    write_option(json, &help_option);
    wefti_json_end_array(json);
    wefti_json_string(json, "epilogue", command->epilogue);
    wefti_json_end_object(json);
}

static void write_settings(wefti_json_t *json)
{
    size_t count = 0;
    const wefti_setting_def_t *defs = wefti_setting_defs(&count);
    wefti_json_begin_array(json, "settings");
    for (size_t i = 0; i < count; i++) {
        wefti_json_begin_object(json, NULL);
        wefti_json_string(json, "name", defs[i].name);
        wefti_json_string(json, "default", defs[i].default_text);
        wefti_json_string(json, "unit", defs[i].unit);
        wefti_json_bool(json, "equal_on_all_ranks", defs[i].collective != 0);
        wefti_json_string(json, "help", defs[i].help);
        wefti_json_end_object(json);
    }
    wefti_json_end_array(json);
}

static void write_compile_options(wefti_json_t *json)
{
    static const char *const types[] = {"flag", "u32",    "i64",    "bytes", "f64",     "text",
                                        "path", "shapes", "models", "ops",   "plugins", "object"};
    static const char *const flags[] = {"training", "inference",  "recorded", "in_graph",
                                        "zero",     "positional", "reported", "list"};
    const weft_compile_option_t *option;
    char help[512];
    wefti_json_begin_array(json, "compile_options");
    for (size_t i = 0; (option = weft_compile_option(i)) != NULL; i++) {
        weft_compile_option_help(i, "", help, sizeof help);
        wefti_json_begin_object(json, NULL);
        wefti_json_string(json, "field", option->field);
        wefti_json_string(json, "name", option->name);
        wefti_json_string(json, "type", types[option->type]);
        wefti_json_string(json, "arg", option->arg);
        wefti_json_double(json, "low", option->low);
        wefti_json_double(json, "high", option->high);
        wefti_json_string(json, "excludes", option->excludes);
        wefti_json_string(json, "help", help);
        for (size_t bit = 0; bit < sizeof flags / sizeof *flags; bit++) {
            wefti_json_bool(json, flags[bit], (option->flags >> bit & 1) != 0);
        }
        wefti_json_begin_array(json, "choices");
        for (size_t c = 0; option->choices != NULL && option->choices[c] != NULL; c++) {
            wefti_json_string(json, NULL, option->choices[c]);
        }
        wefti_json_end_array(json);
        wefti_json_end_object(json);
    }
    wefti_json_end_array(json);
}

int wefti_print_help_json(void)
{
    output_object_t object;
    wefti_json_t *json = wefti_output_begin(&object);
    wefti_json_string(json, "version", weft_version());
    wefti_json_begin_object(json, "exit_status");
    for (size_t i = 0; i < sizeof exit_codes / sizeof *exit_codes; i++) {
        wefti_json_string(json, exit_codes[i], exit_meanings[i]);
    }
    wefti_json_end_object(json);
    wefti_json_begin_array(json, "commands");
    for (size_t i = 0; wefti_commands[i] != NULL; i++) {
        write_command(json, wefti_commands[i]);
    }
    wefti_json_end_array(json);
    write_settings(json);
    write_compile_options(json);
    return wefti_output_end(&object) ? EXIT_OK : wefti_usage_error("help", "out of memory");
}
