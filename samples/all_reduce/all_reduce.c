/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <weft/weft.h>

static void check(weft_status_t status)
{
    if (status < 0) {
        fprintf(stderr, "all_reduce: %s\n", weft_last_error());
        exit(1);
    }
}

int main(void)
{
    weft_context_params_t params = WEFT_CONTEXT_PARAMS_INIT; /* rank and world from the launcher */
    weft_context_t *context;
    weft_group_t *world;
    check(weft_context_create(&params, &context));
    check(weft_group_create_world(context, &world));

    float x[2] = {1, (float)weft_context_rank(context)};
    check(weft_all_reduce(x, x, 2, WEFT_DTYPE_F32, WEFT_SUM, world, NULL)); /* NULL: blocking */
    printf("rank %u of %u: sum %g %g\n", weft_context_rank(context),
           weft_context_world_size(context), x[0], x[1]);

    weft_group_destroy(world);
    weft_context_release(context);
    return 0;
}
