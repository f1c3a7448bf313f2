/* SPDX-License-Identifier: Apache-2.0 */
/* Image data sets in MNIST's IDX format. Two bytes: how long the file of images is; the rest is the
 * file of labels. */
#include "tests/fuzz/fuzz_data.h"

void fuzz_one(const uint8_t *data, size_t size)
{
    size_t count;
    const uint8_t *length = fuzz_take(&data, &size, 2, &count);
    size_t images = count < 2 ? 0 : length[0] + 256u * length[1];
    const uint8_t *first = fuzz_take(&data, &size, images, &count);
    fuzz_write("train-images-idx3-ubyte", first, count);
    fuzz_write("train-labels-idx1-ubyte", data, size);
    fuzz_load(".");
}
