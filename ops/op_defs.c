/* SPDX-License-Identifier: Apache-2.0 */
/* The one table: every family's rows, as an array that lives with the program. */
#include "ops/op_defs.h"

#include "ops/op_infer.h"

size_t wefti_op_defs(const weft_op_def_t **out_defs, size_t capacity)
{
    const wefti_op_family_t families[] = {
        wefti_op_defs_math(),      wefti_op_defs_nn(),         wefti_op_defs_pool(),
        wefti_op_defs_shape(),     wefti_op_defs_move(),       wefti_op_defs_grad(),
        wefti_op_defs_optimizer(), wefti_op_defs_accumulate(), wefti_op_defs_collective(),
        wefti_op_defs_microsoft(), wefti_op_defs_shard(),      wefti_op_defs_pack(),
        wefti_op_defs_logic(),     wefti_op_defs_index(),      wefti_op_defs_create(),
        wefti_op_defs_rows(),      wefti_op_defs_unary(),      wefti_op_defs_reduce(),
        wefti_op_defs_norm(),      wefti_op_defs_axis(),       wefti_op_defs_transposed(),
        wefti_op_defs_resize(),    wefti_op_defs_composed(),   wefti_op_defs_training(),
        wefti_op_defs_recurrent(), wefti_op_defs_fused(),      wefti_op_defs_contrib(),
    };
    size_t count = 0;
    for (size_t f = 0; f < WEFTI_COUNT(families); f++) {
        for (size_t i = 0; i < families[f].count; i++, count++) {
            if (count < capacity) {
                out_defs[count] = &families[f].defs[i];
            }
        }
    }
    return count;
}
