/* SPDX-License-Identifier: Apache-2.0 */
/* Files of hwloc, which libhwloc reads in a child process: what comes back is a machine. */
#include "runtime/machine/machine.h"
#include "tests/support/support_fuzz.h"

void fuzz_one(const uint8_t *data, size_t size)
{
    wefti_arena_t arena;
    wefti_hardware_t hardware;
    wefti_arena_init(&arena, NULL, 0);
    weft_status_t status = wefti_hardware_from_xml(fuzz_file(data, size), &arena, &hardware);
    fuzz_check(status == WEFT_OK || status == WEFT_ERR_FORMAT || status == WEFT_ERR_UNSUPPORTED,
               "an error of another kind");
    fuzz_check(status < 0 ? hardware.core_count == 0 : wefti_hardware_check(&hardware) == WEFT_OK,
               "a machine that cannot be");
    wefti_arena_deinit(&arena);
}
