/* SPDX-License-Identifier: Apache-2.0 */
/* Maps from parameters to gradients (weft_compile_params_t.grads_path). */
#include "fusion/fusion.h"
#include "tests/support/support_fuzz.h"

void fuzz_one(const uint8_t *data, size_t size)
{
    wefti_arena_t arena;
    wefti_gradient_map_t map = {0};
    wefti_arena_init(&arena, NULL, 0);
    weft_status_t status = wefti_grads_map_load(fuzz_file(data, size), &arena, &map);
    fuzz_check(status == WEFT_OK || status == WEFT_ERR_FORMAT, "an error of another kind");
    for (uint32_t i = 0; status == WEFT_OK && i < map.count; i++) {
        fuzz_check(map.entries[i].param != NULL && map.entries[i].grad != NULL, "no name");
    }
    wefti_arena_deinit(&arena);
}
