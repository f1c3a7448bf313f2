/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What launchers start in cli_launchers.py: joins, says who it is, and checks that the others are
 * there. usage: launched [WORLDS]: joins so many times in turn; launched --leave-out RANK: that
 * rank never joins.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <weft/weft.h>

static int join_once(int turn)
{
    weft_context_params_t params = WEFT_CONTEXT_PARAMS_INIT;
    weft_context_t *context = NULL;
    if (weft_context_create(&params, &context) != WEFT_OK) {
        fprintf(stderr, "error: %s\n", weft_last_error());
        return 3;
    }
    uint32_t rank = weft_context_rank(context), size = weft_context_world_size(context);
    uint32_t *all = calloc(size, sizeof *all);
    weft_status_t status = weft_context_all_gather(context, &rank, sizeof rank, all);
    for (uint32_t r = 0; r < size && status == WEFT_OK; r++) {
        status = all[r] == r ? WEFT_OK : WEFT_ERR_INTERNAL;
    }
    weft_peer_info_t peer = WEFT_PEER_INFO_INIT;
    weft_context_peer_info(context, (rank + 1) % size, &peer);
    printf("turn %d: rank %u of %u by %s, next by %s, hosts %u: %s\n", turn, rank, size,
           weft_context_launcher(context), peer.transport, weft_context_host_count(context),
           weft_status_name(status));
    fflush(stdout);
    weft_context_release(context);
    free(all);
    return status == WEFT_OK ? 0 : 4;
}

/* The rank, by whichever launcher: it is asked before joining. */
static const char *rank_text(void)
{
    static const char *const names[] = {"WEFT_RANK", "PMIX_RANK", "PMI_RANK", "RANK"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (getenv(names[i]) != NULL) {
            return getenv(names[i]);
        }
    }
    return "";
}

int main(int argc, char **argv)
{
    int worlds = argc == 2 ? atoi(argv[1]) : 1;
    if (argc == 3 && strcmp(argv[2], rank_text()) == 0) {
        sleep(4); /* alive, so that the launcher does not end the others */
        return 0;
    }
    for (int turn = 0; turn < worlds; turn++) {
        int result = join_once(turn);
        if (result != 0) {
            return result;
        }
    }
    return 0;
}
