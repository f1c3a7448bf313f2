/* SPDX-License-Identifier: Apache-2.0 */
/* Data sets in a temporary folder, for fuzz_dataset and fuzz_arrays. */
#ifndef WEFT_TESTS_FUZZ_DATA_H
#define WEFT_TESTS_FUZZ_DATA_H

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/support_fuzz.h"
#include "tools/train/dataset.h"

static char fuzz_folder[] = "/tmp/weft-fuzz-XXXXXX";

static void fuzz_path(const char *name, char *out, size_t bytes)
{
    snprintf(out, bytes, "%s/%s", fuzz_folder, name);
}

static void fuzz_remove_folder(void)
{
    char path[512];
    DIR *folder = opendir(fuzz_folder);
    for (struct dirent *entry; folder != NULL && (entry = readdir(folder)) != NULL;) {
        fuzz_path(entry->d_name, path, sizeof path);
        unlink(path);
    }
    if (folder != NULL) {
        closedir(folder);
    }
    rmdir(fuzz_folder);
}

static void fuzz_write(const char *name, const uint8_t *data, size_t size)
{
    static bool made;
    char path[512];
    if (!made) {
        made = mkdtemp(fuzz_folder) != NULL && atexit(fuzz_remove_folder) == 0;
        fuzz_check(made, "mkdtemp");
    }
    fuzz_path(name, path, sizeof path);
    FILE *out = fopen(path, "wb");
    fuzz_check(out != NULL && fwrite(data, 1, size, out) == size && fclose(out) == 0,
               "cannot write");
}

/* Loads a file of the folder for a model with images of 2 x 2, and reads all of it. Tokens are for a
 * model with integers. */
static void fuzz_load(const char *name)
{
    bool tokens = strstr(name, ".bin") != NULL;
    const data_input_t inputs[] = {
        {.name = "image", .dtype = tokens ? WEFT_DTYPE_I64 : WEFT_DTYPE_F32, .elems = 4},
        {.name = "label", .dtype = WEFT_DTYPE_I64, .elems = tokens ? 4 : 1, .is_label = true}};
    char path[512];
    float row[8];
    dataset_t dataset;
    fuzz_path(name, path, sizeof path);
    const data_request_t request = {
        .path = path, .token_dtype = WEFT_DTYPE_U16, .inputs = inputs, .input_count = 2};
    weft_status_t status = wefti_dataset_load(&request, &dataset);
    fuzz_check(status == WEFT_OK || status == WEFT_ERR_FORMAT || status == WEFT_ERR_NOT_FOUND ||
                   status == WEFT_ERR_UNSUPPORTED || status == WEFT_ERR_INVALID_ARGUMENT,
               "an error of another kind");
    for (uint32_t i = 0; status == WEFT_OK && i < dataset.train.count; i++) {
        for (uint32_t c = 0; c < 2; c++) {
            wefti_dataset_gather(&dataset.train, c, &i, 1, inputs[c].dtype, row);
        }
        (void)wefti_dataset_integer(&dataset.train, 1, i);
    }
    wefti_dataset_free(&dataset);
}

#endif
