/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two processes of one host, started by hand in two terminals. They share nothing but the name of
 * a group. A collective is queued on a stream; the host goes on and waits where it needs the result.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <weft/weft.h>

#define ROUNDS 1000
#define COUNT 1024

static void check(weft_status_t status)
{
    if (status < 0) {
        fprintf(stderr, "two_terminals: %s\n", weft_last_error());
        exit(1);
    }
}

int main(int argc, char **argv)
{
    if (argc < 2 || (strcmp(argv[1], "0") != 0 && strcmp(argv[1], "1") != 0)) {
        fprintf(stderr, "usage: %s RANK [NAME]\nRANK is 0 in one terminal, 1 in the other\n",
                argv[0]);
        return 2;
    }
    const char *name = argc > 2 ? argv[2] : "weft-two-terminals";
    weft_group_t *group;
    weft_stream_t *stream;
    float *x;

    printf("waiting for the other rank\n");
    fflush(stdout);
    check(weft_group_create_named(name, 2, (uint32_t)atoi(argv[1]), NULL, &group));
    weft_context_t *context = weft_group_context(group);
    check(weft_stream_create(context, NULL, &stream));
    check(
        weft_mem_alloc(context, COUNT * sizeof(*x), (void **)&x)); /* memory that both ranks map */
    for (int i = 0; i < COUNT; i++) {
        x[i] = (float)weft_group_rank(group);
    }

    for (int round = 0; round < ROUNDS; round++) { /* in place: ranks hold 0 and 1, then 0.5 */
        check(weft_all_reduce(x, x, COUNT, WEFT_DTYPE_F32, WEFT_REDUCTION_AVG, group, stream));
        if (round % 100 == 99) {
            check(weft_stream_synchronize(stream)); /* a stream holds 1024 calls */
        }
    }
    printf("rank %u of %u: %d all-reduces on a stream, x[0] = %g\n", weft_group_rank(group),
           weft_group_size(group), ROUNDS, x[0]);

    int ok = x[0] == 0.5f;
    weft_stream_destroy(stream);
    check(weft_mem_free(context, x));
    weft_group_destroy(group);
    return ok ? 0 : 1;
}
