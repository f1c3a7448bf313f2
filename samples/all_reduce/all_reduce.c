/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <weft/weft.h>

int main(void)
{
    weft_context_params_t params = WEFT_CONTEXT_PARAMS_INIT; /* rank and world from the launcher */
    weft_context_t *context;
    weft_group_t *world;
    float x[2] = {1, 2};

    if (weft_context_create(&params, &context) < 0 ||
        weft_group_create_world(context, &world) < 0 ||
        /* in place */
        weft_all_reduce(x, x, 2, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, world, NULL) < 0) {
        fprintf(stderr, "%s\n", weft_last_error());
        return 1;
    }
    printf("rank %u of %u: %g %g\n", weft_group_rank(world), weft_group_size(world), x[0], x[1]);
    weft_group_destroy(world);
    weft_context_release(context);
    return 0;
}
