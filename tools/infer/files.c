/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names of files. For input "x", the i-th of the plan, rank r reads the first of these that exists:
 *
 *   DIR/rank<r>/x.pb   DIR/rank<r>/input_<i>.pb   DIR/x.pb   DIR/input_<i>.pb
 *
 * Characters other than letters, digits and "._-" become "_" in names of files.
 */
#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/error.h"
#include "tools/infer/infer.h"
#include "tools/output.h"
#include "tools/tool.h"

const char *wefti_infer_type_text(const weft_tensor_desc_t *desc, char *buffer)
{
    size_t length = (size_t)snprintf(buffer, 256, "%s [", weft_dtype_name(desc->dtype));
    for (uint32_t d = 0; d < desc->rank && length < 230; d++) {
        length += (size_t)snprintf(buffer + length, 256 - length, "%s%lld", d > 0 ? ", " : "",
                                   (long long)desc->dims[d]);
    }
    snprintf(buffer + length, 256 - length, "]");
    return buffer;
}

static void file_name(const char *name, char *buffer, size_t bytes)
{
    size_t i = 0;
    for (; name[i] != '\0' && i + 1 < bytes; i++) {
        bool plain = isalnum((unsigned char)name[i]) || name[i] == '_' || name[i] == '-' ||
                     (name[i] == '.' && i > 0);
        buffer[i] = plain ? name[i] : '_';
    }
    buffer[i] = '\0';
}

static weft_status_t join(const char *folder, int32_t rank, const char *file, char *path)
{
    int length = rank < 0 ? snprintf(path, PATH_MAX, "%s/%s.pb", folder, file)
                          : snprintf(path, PATH_MAX, "%s/rank%d/%s.pb", folder, rank, file);
    return length > 0 && length < PATH_MAX
               ? WEFT_OK
               : wefti_error(WEFT_ERR_INVALID_ARGUMENT, "%s: path too long", folder);
}

weft_status_t wefti_infer_output_path(const infer_options_t *options, const char *name,
                                      int32_t rank, char *buffer)
{
    char file[NAME_MAX - 8];
    file_name(name, file, sizeof file);
    return join(options->outputs, rank, file, buffer);
}

/* Two inputs have one file name: only input_<i>.pb distinguishes them. */
static bool name_is_shared(const weft_plan_t *plan, const char *name)
{
    char own[NAME_MAX - 8], other[NAME_MAX - 8];
    weft_binding_t binding;
    file_name(name, own, sizeof own);
    for (size_t i = 0; wefti_next_binding(plan, BINDINGS_OF_INPUTS, &i, &binding);) {
        file_name(binding.name, other, sizeof other);
        if (strcmp(binding.name, name) != 0 && strcmp(own, other) == 0) {
            return true;
        }
    }
    return false;
}

/* The first file that exists, in path; the message of WEFT_ERR_NOT_FOUND lists the names tried. */
static weft_status_t find_input(const infer_options_t *options, const char *name, size_t index,
                                uint32_t rank, char *path)
{
    const char *folder = options->inputs;
    bool shared = name_is_shared(options->plan, name);
    char files[2][NAME_MAX - 8];
    file_name(name, files[0], sizeof files[0]);
    snprintf(files[1], sizeof files[1], "input_%zu", index);
    for (int place = 0; place < 4; place++) {
        weft_status_t status = join(folder, place < 2 ? (int32_t)rank : -1, files[place % 2], path);
        if (status < 0 || ((place % 2 != 0 || !shared) && access(path, F_OK) == 0)) {
            return status;
        }
    }
    if (shared) {
        return wefti_error(WEFT_ERR_NOT_FOUND,
                           "%s: no file for input '%s': expected %s.pb (%s.pb matches more inputs)",
                           folder, name, files[1], files[0]);
    }
    return wefti_error(WEFT_ERR_NOT_FOUND,
                       "%s: no file for input '%s': expected %s.pb or %s.pb, there or in rank%u",
                       folder, name, files[0], files[1], rank);
}

static weft_status_t read_input(const char *path, const weft_binding_t *binding,
                                weft_tensor_desc_t *desc, void **data)
{
    char has[256], wants[256];
    weft_status_t status = weft_tensor_read(path, desc, data);
    if (status < 0) {
        return status;
    }
    if (desc->dtype != binding->desc.dtype || desc->rank != binding->desc.rank ||
        memcmp(desc->dims, binding->desc.dims, desc->rank * sizeof desc->dims[0]) != 0) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "%s: type mismatch: %s, but input '%s' of the plan has type %s", path,
                           wefti_infer_type_text(desc, has), binding->name,
                           wefti_infer_type_text(&binding->desc, wants));
    }
    return WEFT_OK;
}

static weft_status_t load_rank(const infer_options_t *options, uint32_t rank, infer_feed_t *feed)
{
    size_t bindings = weft_plan_binding_count(options->plan);
    weft_binding_t binding;
    char path[PATH_MAX];
    feed->descs = calloc(bindings + 1, sizeof *feed->descs);
    feed->data = calloc(bindings + 1, sizeof *feed->data);
    if (feed->descs == NULL || feed->data == NULL) {
        return wefti_error(WEFT_ERR_NO_MEMORY, "out of memory: %zu inputs", bindings);
    }
    for (size_t i = 0; wefti_next_binding(options->plan, BINDINGS_OF_INPUTS, &i, &binding);) {
        if (options->inputs == NULL) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                               "missing option: --inputs DIR, for input '%s' of the plan",
                               binding.name);
        }
        WEFT_RETURN_IF_ERROR(find_input(options, binding.name, feed->count, rank, path));
        size_t at = feed->count++;
        WEFT_RETURN_IF_ERROR(read_input(path, &binding, &feed->descs[at], &feed->data[at]));
    }
    return WEFT_OK;
}

weft_status_t wefti_infer_load(const infer_options_t *options, uint32_t first, uint32_t count,
                               infer_feed_t *feeds)
{
    weft_plan_info_t info = WEFT_PLAN_INFO_INIT;
    weft_status_t status = weft_plan_get_info(options->plan, &info);
    for (uint32_t i = 0; i < count && status >= 0; i++) {
        if (!info.split_batch || first + i == 0) {
            status = load_rank(options, first + i, &feeds[i]);
        }
    }
    return status;
}

void wefti_infer_unload(infer_feed_t *feeds, uint32_t count)
{
    for (uint32_t r = 0; feeds != NULL && r < count; r++) {
        for (size_t i = 0; i < feeds[r].count; i++) {
            free(feeds[r].data[i]);
        }
        free(feeds[r].data);
        free(feeds[r].descs);
    }
}

/* Refuses two outputs with one file name. */
static weft_status_t check_names(const infer_options_t *options)
{
    const uint32_t outputs = 1u << WEFT_BINDING_ROLE_OUTPUT;
    weft_binding_t a, b;
    char file_a[NAME_MAX - 8], file_b[NAME_MAX - 8];
    for (size_t i = 0; wefti_next_binding(options->plan, outputs, &i, &a);) {
        file_name(a.name, file_a, sizeof file_a);
        for (size_t j = i; wefti_next_binding(options->plan, outputs, &j, &b);) {
            file_name(b.name, file_b, sizeof file_b);
            if (strcmp(file_a, file_b) == 0) {
                return wefti_error(WEFT_ERR_UNSUPPORTED,
                                   "outputs '%s' and '%s': same file name: %s.pb", a.name, b.name,
                                   file_a);
            }
        }
    }
    return WEFT_OK;
}

static weft_status_t check_scalars(const infer_options_t *options)
{
    weft_binding_t binding;
    for (uint32_t s = 0; s < options->scalar_count; s++) {
        bool found = false;
        for (size_t i = 0;
             !found &&
             wefti_next_binding(options->plan, 1u << WEFT_BINDING_ROLE_SCALAR, &i, &binding);) {
            found = strcmp(binding.name, options->scalars[s].name) == 0;
        }
        if (!found) {
            return wefti_error(WEFT_ERR_NOT_FOUND,
                               "--scalar %s: the plan has no scalar of that name",
                               options->scalars[s].name);
        }
    }
    return WEFT_OK;
}

weft_status_t wefti_infer_check(const infer_options_t *options)
{
    struct stat info;
    weft_status_t status = check_scalars(options);
    if (status >= 0 && options->inputs != NULL &&
        (stat(options->inputs, &info) != 0 || !S_ISDIR(info.st_mode))) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "--inputs %s: not a folder", options->inputs);
    }
    if (status < 0 || options->outputs == NULL) {
        return status;
    }
    if (mkdir(options->outputs, 0777) != 0 && errno != EEXIST) {
        return wefti_error_errno(WEFT_ERR_SYSTEM, errno, "cannot create folder %s",
                                 options->outputs);
    }
    if (stat(options->outputs, &info) != 0 || !S_ISDIR(info.st_mode)) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "--outputs %s: not a folder",
                           options->outputs);
    }
    return check_names(options);
}

bool wefti_infer_parse_scalar(infer_options_t *options, const char *text)
{
    const char *equals = strchr(text, '=');
    infer_scalar_t *scalar = &options->scalars[options->scalar_count];
    if (options->scalar_count >= INFER_MAX_SCALARS || equals == NULL || equals == text ||
        (size_t)(equals - text) >= sizeof scalar->name ||
        !wefti_parse_double(equals + 1, &scalar->value)) {
        return false;
    }
    memcpy(scalar->name, text, (size_t)(equals - text));
    scalar->name[equals - text] = '\0';
    options->scalar_count++;
    return true;
}
