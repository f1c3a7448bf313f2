/* SPDX-License-Identifier: Apache-2.0 */
/* Files that hold one TensorProto. */
#include <stdlib.h>
#include <string.h>

#include <weft/tensor_file.h>

#include "tests/support/support_fuzz.h"

void fuzz_one(const uint8_t *data, size_t size)
{
    weft_tensor_desc_t desc;
    void *contents;
    weft_status_t status = weft_tensor_read(fuzz_file(data, size), &desc, &contents);
    fuzz_check((status == WEFT_OK) == (contents != NULL), "status and contents disagree");
    fuzz_check(status != WEFT_ERR_INTERNAL && status != WEFT_ERR_NO_MEMORY, "an error of our own");
    if (status == WEFT_OK) {
        fuzz_check(weft_tensor_elem_count(&desc) >= 0, "the shape cannot be counted");
        free(contents);
    }
}
