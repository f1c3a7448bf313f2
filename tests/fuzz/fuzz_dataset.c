/* SPDX-License-Identifier: Apache-2.0 */
/* Image data sets in MNIST's IDX format. Two bytes: how long the file of images is; the rest is the
 * file of labels. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "runtime/base/file.h"
#include "tests/support/support_fuzz.h"
#include "tools/train/dataset.h"

static char folder[] = "/tmp/weft-fuzz-XXXXXX";
static const char *const names[] = {"train-images-idx3-ubyte", "train-labels-idx1-ubyte"};

static const char *path_of(int file)
{
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, names[file]);
    return path;
}

static void remove_folder(void)
{
    for (int i = 0; i < 2; i++) {
        unlink(path_of(i));
    }
    rmdir(folder);
}

static void write_file(int file, const uint8_t *data, size_t size)
{
    FILE *out = fopen(path_of(file), "wb");
    fuzz_check(out != NULL && fwrite(data, 1, size, out) == size && fclose(out) == 0,
               "cannot write");
}

void fuzz_one(const uint8_t *data, size_t size)
{
    static bool made;
    dataset_t dataset;
    size_t count;
    if (!made) {
        made = mkdtemp(folder) != NULL && atexit(remove_folder) == 0;
        fuzz_check(made, "mkdtemp");
    }
    const uint8_t *length = fuzz_take(&data, &size, 2, &count);
    size_t images = count < 2 ? 0 : length[0] + 256u * length[1];
    const uint8_t *first = fuzz_take(&data, &size, images, &count);
    write_file(0, first, count);
    write_file(1, data, size);
    weft_status_t status = wefti_dataset_load(folder, &dataset);
    fuzz_check(status == WEFT_OK || status == WEFT_ERR_FORMAT, "an error of another kind");
    for (uint32_t i = 0; status == WEFT_OK && i < dataset.train.count; i++) {
        fuzz_check(dataset.train.labels[i] < dataset.class_count, "a label is out of range");
    }
    wefti_dataset_free(&dataset);
}
