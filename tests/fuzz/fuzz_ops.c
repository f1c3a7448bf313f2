/* SPDX-License-Identifier: Apache-2.0 */
/* Files that declare operators (weft_registry_load_ops). */
#include <weft/registry.h>

#include "tests/support/support_fuzz.h"

void fuzz_one(const uint8_t *data, size_t size)
{
    weft_registry_t *registry;
    fuzz_check(weft_registry_create(NULL, &registry) == WEFT_OK, "no registry");
    weft_status_t status = weft_registry_load_ops(registry, fuzz_file(data, size));
    fuzz_check(status == WEFT_OK || status == WEFT_ERR_FORMAT ||
                   status == WEFT_ERR_INVALID_ARGUMENT,
               "an error of another kind");
    weft_registry_destroy(registry);
}
