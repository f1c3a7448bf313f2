/* SPDX-License-Identifier: Apache-2.0 */
/* Files of named tensors: all that is accepted lies within the file. */
#include "runtime/checkpoint/safetensors.h"
#include "tests/support/support_fuzz.h"

void fuzz_one(const uint8_t *data, size_t size)
{
    wefti_safetensors_t file;
    weft_status_t status = wefti_safetensors_open(fuzz_file(data, size), NULL, &file);
    fuzz_check(status == WEFT_OK || status == WEFT_ERR_FORMAT || status == WEFT_ERR_UNSUPPORTED,
               "an error of another kind");
    for (uint32_t i = 0; status == WEFT_OK && i < file.tensor_count; i++) {
        const wefti_stored_tensor_t *tensor = &file.tensors[i];
        size_t bytes = 0;
        fuzz_check(wefti_safetensors_bytes(&tensor->desc, &bytes) &&
                       tensor->begin_bytes <= tensor->end_bytes &&
                       tensor->end_bytes <= file.data_bytes &&
                       tensor->end_bytes - tensor->begin_bytes == bytes,
                   "a tensor is not in the file");
        fuzz_check(file.data + file.data_bytes == (uint8_t *)file.mapping.data + size,
                   "the contents do not end with the file");
    }
    if (status == WEFT_OK) {
        (void)wefti_safetensors_text(&file, "format");
        wefti_safetensors_close(&file);
    }
}
