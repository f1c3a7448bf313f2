/* SPDX-License-Identifier: Apache-2.0 */
/* Data sets of arrays and tokens. The first byte selects the kind of the file that follows: .npz, a
 * .npy file per input (all alike), .safetensors, or tokens. */
#include "tests/fuzz/fuzz_data.h"

void fuzz_one(const uint8_t *data, size_t size)
{
    static const char *const names[] = {"a.npz", "image.npy", "a.safetensors", "a.bin"};
    size_t count;
    const uint8_t *kind = fuzz_take(&data, &size, 1, &count);
    uint32_t form = count == 1 ? kind[0] % 4 : 0;
    fuzz_write(names[form], data, size);
    if (form == 1) {
        fuzz_write("label.npy", data, size);
    }
    fuzz_load(form == 1 ? "." : names[form]);
}
