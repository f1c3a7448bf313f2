/* SPDX-License-Identifier: Apache-2.0 */
/* Profiles of steps (weft_session_write_profile). */
#include "fusion/profile.h"
#include "tests/support/support_fuzz.h"

void fuzz_one(const uint8_t *data, size_t size)
{
    wefti_arena_t arena;
    wefti_profile_t profile;
    wefti_arena_init(&arena, NULL, 0);
    weft_status_t status = wefti_profile_load(fuzz_file(data, size), &arena, &profile);
    fuzz_check(status == WEFT_OK || status == WEFT_ERR_FORMAT, "an error of another kind");
    for (uint32_t i = 0; status == WEFT_OK && i < profile.kernel_count; i++) {
        double ns;
        fuzz_check(wefti_profile_kernel_ns(&profile, profile.kernels[i].name, &ns) && ns >= 0,
                   "a kernel is not found");
    }
    wefti_arena_deinit(&arena);
}
