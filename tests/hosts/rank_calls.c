/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One rank of the tests on several hosts, by the public API only.
 *
 *   rank_calls check [quick]
 *     every collective over types, sizes, kinds of memory, in place and not, against what the
 *     results must be; rank 0 prints what all ranks reach each other by
 *   rank_calls loop BYTES
 *     all-reduces until one fails; says so, and ends with status 1
 *   rank_calls survive BYTES
 *     the same, then goes on with the ranks that are left; prints the error and which hosts these
 *     ranks are on
 */
#include <weft/weft.h>

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT_OF(a) (sizeof(a) / sizeof *(a))
#define MAX_RANKS 64u

typedef struct rank_state {
    weft_context_t *context;
    weft_group_t *group;
    uint32_t rank, size;
    uint8_t *send, *recv, *want;
    size_t buffer_bytes;
    uint64_t checked;
    bool quick; /* small sizes of two types */
} rank_state_t;

/* One kind of call. */
typedef struct call_kind {
    weft_dtype_t dtype;
    uint64_t count;
    bool in_place;
} call_kind_t;

static int fail(const rank_state_t *self, const char *what)
{
    fprintf(stderr, "rank %u: %s: %s\n", self->rank, what, weft_last_error());
    return 1;
}

/* ---- small whole numbers in every type ---- */

static uint16_t half_of(uint32_t value)
{
    uint32_t exponent = 0;
    while (value >> (exponent + 1) != 0) {
        exponent++;
    }
    return value == 0 ? 0
                      : (uint16_t)((exponent + 15) << 10 |
                                   ((value << (10 - exponent)) & 0x3ffu)); /* below 2048 */
}

static void store(uint8_t *buffer, weft_dtype_t dtype, uint64_t index, uint32_t value)
{
    size_t bytes = weft_dtype_size_bytes(dtype);
    double f64 = value;
    float f32 = (float)value;
    uint32_t bits;
    uint16_t half;
    memcpy(&bits, &f32, sizeof bits);
    half = dtype == WEFT_DTYPE_F16 ? half_of(value) : (uint16_t)(bits >> 16);
    uint64_t whole = value;
    const void *from = dtype == WEFT_DTYPE_F64                               ? (const void *)&f64
                       : dtype == WEFT_DTYPE_F32                             ? (const void *)&f32
                       : dtype == WEFT_DTYPE_F16 || dtype == WEFT_DTYPE_BF16 ? (const void *)&half
                                                                             : (const void *)&whole;
    memcpy(buffer + index * bytes, from, bytes);
}

/* What rank gives as its element index: 0 to 4. */
static uint32_t given(uint32_t rank, uint64_t index)
{
    return (uint32_t)((index * 7 + rank * 3 + index / 11) % 5);
}

static uint32_t reduced(const rank_state_t *self, weft_reduction_t reduction, uint64_t index)
{
    uint32_t result = reduction == WEFT_REDUCTION_MIN ? UINT32_MAX : 0;
    for (uint32_t r = 0; r < self->size; r++) {
        uint32_t value = given(r, index);
        result = reduction == WEFT_REDUCTION_SUM                         ? result + value
                 : (reduction == WEFT_REDUCTION_MAX) == (value > result) ? value
                                                                         : result;
    }
    return result;
}

/* ---- one call ---- */

static void fill(const rank_state_t *self, uint8_t *buffer, weft_dtype_t dtype, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++) {
        store(buffer, dtype, i, given(self->rank, i));
    }
}

static void spoil(uint8_t *buffer, weft_dtype_t dtype, uint64_t count)
{
    memset(buffer, 0x5a, count * weft_dtype_size_bytes(dtype));
}

static int compare(rank_state_t *self, const char *what, const uint8_t *got,
                   const call_kind_t *kind, uint64_t count)
{
    size_t bytes = weft_dtype_size_bytes(kind->dtype);
    self->checked++;
    for (uint64_t i = 0; i < count; i++) {
        if (memcmp(got + i * bytes, self->want + i * bytes, bytes) != 0) {
            fprintf(stderr, "rank %u: %s of %llu %s%s: element %llu is wrong (%s, %s)\n",
                    self->rank, what, (unsigned long long)kind->count, weft_dtype_name(kind->dtype),
                    kind->in_place ? " in place" : "", (unsigned long long)i,
                    weft_group_last_algorithm(self->group), weft_group_last_path(self->group));
            return 1;
        }
    }
    return 0;
}

static int check_all_reduce(rank_state_t *self, const call_kind_t *kind)
{
    static const weft_reduction_t reductions[] = {WEFT_REDUCTION_SUM, WEFT_REDUCTION_MIN,
                                                  WEFT_REDUCTION_MAX};
    for (size_t k = 0; k < COUNT_OF(reductions); k++) {
        uint8_t *recv = kind->in_place ? self->send : self->recv;
        fill(self, self->send, kind->dtype, kind->count);
        if (!kind->in_place) {
            spoil(recv, kind->dtype, kind->count);
        }
        for (uint64_t i = 0; i < kind->count; i++) {
            store(self->want, kind->dtype, i, reduced(self, reductions[k], i));
        }
        if (weft_all_reduce(self->send, recv, kind->count, kind->dtype, reductions[k], self->group,
                            NULL) != WEFT_OK) {
            return fail(self, "all-reduce");
        }
        if (compare(self, "all-reduce", recv, kind, kind->count) != 0) {
            return 1;
        }
    }
    return 0;
}

static int check_reduce_scatter(rank_state_t *self, const call_kind_t *kind)
{
    size_t bytes = weft_dtype_size_bytes(kind->dtype);
    uint64_t first = self->rank * kind->count;
    uint8_t *recv = kind->in_place ? self->send + first * bytes : self->recv;
    fill(self, self->send, kind->dtype, self->size * kind->count);
    for (uint64_t i = 0; i < kind->count; i++) {
        store(self->want, kind->dtype, i, reduced(self, WEFT_REDUCTION_SUM, first + i));
    }
    if (weft_reduce_scatter(self->send, recv, kind->count, kind->dtype, WEFT_REDUCTION_SUM,
                            self->group, NULL) != WEFT_OK) {
        return fail(self, "reduce-scatter");
    }
    return compare(self, "reduce-scatter", recv, kind, kind->count);
}

/* want: the blocks of all ranks, in order. */
static void want_blocks(const rank_state_t *self, const call_kind_t *kind, uint64_t first)
{
    for (uint32_t r = 0; r < self->size; r++) {
        for (uint64_t i = 0; i < kind->count; i++) {
            store(self->want, kind->dtype, r * kind->count + i, given(r, first + i));
        }
    }
}

static int check_all_gather(rank_state_t *self, const call_kind_t *kind, uint32_t root, bool all)
{
    size_t bytes = weft_dtype_size_bytes(kind->dtype);
    uint8_t *send = kind->in_place ? self->recv + self->rank * kind->count * bytes : self->send;
    spoil(self->recv, kind->dtype, self->size * kind->count);
    fill(self, send, kind->dtype, kind->count);
    want_blocks(self, kind, 0);
    weft_status_t status =
        all ? weft_all_gather(send, self->recv, kind->count, kind->dtype, self->group, NULL)
            : weft_gather(send, self->recv, kind->count, kind->dtype, root, self->group, NULL);
    if (status != WEFT_OK) {
        return fail(self, all ? "all-gather" : "gather");
    }
    return all || self->rank == root ? compare(self, all ? "all-gather" : "gather", self->recv,
                                               kind, self->size * kind->count)
                                     : 0;
}

static int check_rooted(rank_state_t *self, const call_kind_t *kind, uint32_t root)
{
    size_t bytes = weft_dtype_size_bytes(kind->dtype);
    uint8_t *recv = kind->in_place ? self->send : self->recv;
    fill(self, self->send, kind->dtype, kind->count);
    for (uint64_t i = 0; i < kind->count; i++) {
        store(self->want, kind->dtype, i, given(root, i));
    }
    if (weft_broadcast(self->send, recv, kind->count, kind->dtype, root, self->group, NULL) !=
        WEFT_OK) {
        return fail(self, "broadcast");
    }
    if (compare(self, "broadcast", recv, kind, kind->count) != 0) {
        return 1;
    }
    fill(self, self->send, kind->dtype, kind->count);
    for (uint64_t i = 0; i < kind->count; i++) {
        store(self->want, kind->dtype, i, reduced(self, WEFT_REDUCTION_SUM, i));
    }
    if (weft_reduce(self->send, recv, kind->count, kind->dtype, WEFT_REDUCTION_SUM, root,
                    self->group, NULL) != WEFT_OK) {
        return fail(self, "reduce");
    }
    if (self->rank == root && compare(self, "reduce", recv, kind, kind->count) != 0) {
        return 1;
    }
    fill(self, self->send, kind->dtype, self->size * kind->count);
    for (uint64_t i = 0; i < kind->count; i++) {
        store(self->want, kind->dtype, i, given(root, self->rank * kind->count + i));
    }
    recv =
        kind->in_place && self->rank == root ? self->send + root * kind->count * bytes : self->recv;
    if (weft_scatter(self->send, recv, kind->count, kind->dtype, root, self->group, NULL) !=
        WEFT_OK) {
        return fail(self, "scatter");
    }
    return compare(self, "scatter", recv, kind, kind->count);
}

static int check_all_to_all(rank_state_t *self, const call_kind_t *kind)
{
    uint8_t *recv = kind->in_place ? self->send : self->recv;
    fill(self, self->send, kind->dtype, self->size * kind->count);
    want_blocks(self, kind, self->rank * kind->count);
    if (weft_all_to_all(self->send, recv, kind->count, kind->dtype, self->group, NULL) != WEFT_OK) {
        return fail(self, "all-to-all");
    }
    return compare(self, "all-to-all", recv, kind, self->size * kind->count);
}

/* Rank r's block has so many elements. */
static uint64_t uneven(const call_kind_t *kind, uint32_t rank)
{
    return kind->count * (rank % 3) / 2;
}

static int check_uneven(rank_state_t *self, const call_kind_t *kind)
{
    uint64_t counts[MAX_RANKS], total = 0, first = 0;
    for (uint32_t r = 0; r < self->size; r++) {
        counts[r] = uneven(kind, r);
        first += r < self->rank ? counts[r] : 0;
        for (uint64_t i = 0; i < counts[r]; i++) {
            store(self->want, kind->dtype, total + i, given(r, i));
        }
        total += counts[r];
    }
    fill(self, self->send, kind->dtype, counts[self->rank]);
    if (weft_all_gather_v(self->send, self->recv, counts, NULL, kind->dtype, self->group, NULL) !=
        WEFT_OK) {
        return fail(self, "all-gather-v");
    }
    if (compare(self, "all-gather-v", self->recv, kind, total) != 0) {
        return 1;
    }
    fill(self, self->send, kind->dtype, total);
    for (uint64_t i = 0; i < counts[self->rank]; i++) {
        store(self->want, kind->dtype, i, reduced(self, WEFT_REDUCTION_SUM, first + i));
    }
    if (weft_reduce_scatter_v(self->send, self->recv, counts, NULL, kind->dtype, WEFT_REDUCTION_SUM,
                              self->group, NULL) != WEFT_OK) {
        return fail(self, "reduce-scatter-v");
    }
    return compare(self, "reduce-scatter-v", self->recv, kind, counts[self->rank]);
}

/* s sends d uneven(s + d) elements: the first of its own. */
static int check_all_to_all_v(rank_state_t *self, const call_kind_t *kind)
{
    uint64_t send_counts[MAX_RANKS], recv_counts[MAX_RANKS], sent = 0, got = 0;
    size_t bytes = weft_dtype_size_bytes(kind->dtype);
    for (uint32_t r = 0; r < self->size; r++) {
        send_counts[r] = recv_counts[r] = uneven(kind, self->rank + r);
        fill(self, self->send + sent * bytes, kind->dtype, send_counts[r]);
        for (uint64_t i = 0; i < recv_counts[r]; i++) {
            store(self->want, kind->dtype, got + i, given(r, i));
        }
        sent += send_counts[r];
        got += recv_counts[r];
    }
    if (weft_all_to_all_v(self->send, send_counts, NULL, self->recv, recv_counts, NULL, kind->dtype,
                          self->group, NULL) != WEFT_OK) {
        return fail(self, "all-to-all-v");
    }
    return compare(self, "all-to-all-v", self->recv, kind, got);
}

/* Around the ring: to the next, from the one before. */
static int check_send(rank_state_t *self, const call_kind_t *kind)
{
    uint32_t next = (self->rank + 1) % self->size;
    uint32_t before = (self->rank + self->size - 1) % self->size;
    fill(self, self->send, kind->dtype, kind->count);
    for (uint64_t i = 0; i < kind->count; i++) {
        store(self->want, kind->dtype, i, given(before, i));
    }
    if (weft_batch_begin(self->group) != WEFT_OK ||
        weft_send(self->send, kind->count, kind->dtype, next, self->group, NULL) != WEFT_OK ||
        weft_recv(self->recv, kind->count, kind->dtype, before, self->group, NULL) != WEFT_OK ||
        weft_batch_end(self->group, NULL) != WEFT_OK) {
        return fail(self, "send and receive");
    }
    return compare(self, "send and receive", self->recv, kind, kind->count);
}

static int check_kind(rank_state_t *self, const call_kind_t *kind)
{
    uint32_t root = (uint32_t)(kind->count % self->size);
    if (check_all_reduce(self, kind) != 0 || check_reduce_scatter(self, kind) != 0 ||
        check_all_gather(self, kind, root, true) != 0 ||
        check_all_gather(self, kind, root, false) != 0 || check_rooted(self, kind, root) != 0 ||
        check_all_to_all(self, kind) != 0) {
        return 1;
    }
    if (!kind->in_place && (check_uneven(self, kind) != 0 || check_all_to_all_v(self, kind) != 0 ||
                            check_send(self, kind) != 0)) {
        return 1;
    }
    return weft_barrier(self->group, NULL) == WEFT_OK ? 0 : fail(self, "barrier");
}

static int check_memory(rank_state_t *self, uint64_t largest)
{
    static const weft_dtype_t dtypes[] = {WEFT_DTYPE_F32, WEFT_DTYPE_BF16, WEFT_DTYPE_I64,
                                          WEFT_DTYPE_U8,  WEFT_DTYPE_F16,  WEFT_DTYPE_F64};
    const uint64_t counts[] = {1, 1000, largest};
    for (size_t d = 0; d < COUNT_OF(dtypes); d++) {
        for (size_t c = 0; c < COUNT_OF(counts); c++) {
            for (int in_place = 0; in_place < 2; in_place++) {
                call_kind_t kind = {dtypes[d], counts[c], in_place != 0};
                bool wanted = self->quick ? c < 2 && d < 2 : c < 2 || d < 2;
                if (wanted && check_kind(self, &kind) != 0) {
                    return 1;
                }
            }
        }
    }
    return 0;
}

/* Memory that peers reach, then plain memory. */
static int check_all(rank_state_t *self)
{
    const uint64_t largest = 30011;
    size_t bytes = 8 * largest * self->size;
    void *send = NULL, *recv = NULL;
    self->want = malloc(bytes);
    if (self->want == NULL || weft_mem_alloc(self->context, bytes, &send) != WEFT_OK ||
        weft_mem_alloc(self->context, bytes, &recv) != WEFT_OK) {
        return fail(self, "memory");
    }
    self->send = send;
    self->recv = recv;
    int code = check_memory(self, largest);
    if (code == 0) {
        weft_mem_free(self->context, recv);
        weft_mem_free(self->context, send);
        self->send = malloc(bytes);
        self->recv = malloc(bytes);
        code = self->send == NULL || self->recv == NULL ? fail(self, "memory")
                                                        : check_memory(self, largest);
        free(self->send);
        free(self->recv);
    }
    free(self->want);
    return code;
}

/* ---- who reaches whom by what ---- */

typedef struct peer_row {
    uint64_t checked;
    uint32_t host[MAX_RANKS];
    char transport[MAX_RANKS][16];
    char host_name[64];
} peer_row_t;

static int print_peers(rank_state_t *self)
{
    static peer_row_t own;
    peer_row_t *all = calloc(self->size, sizeof *all);
    own.checked = self->checked;
    for (uint32_t r = 0; r < self->size; r++) {
        weft_peer_info_t peer = WEFT_PEER_INFO_INIT;
        if (weft_context_peer_info(self->context, r, &peer) != WEFT_OK) {
            return fail(self, "peer info");
        }
        own.host[r] = peer.host;
        memcpy(own.transport[r], peer.transport, sizeof own.transport[r]);
        if (r == self->rank) {
            memcpy(own.host_name, peer.host_name, sizeof own.host_name);
        }
    }
    if (all == NULL || weft_context_all_gather(self->context, &own, sizeof own, all) != WEFT_OK) {
        return fail(self, "peer info");
    }
    if (self->rank == 0) {
        printf("{\"launcher\": \"%s\", \"host_count\": %u, \"ranks\": [",
               weft_context_launcher(self->context), weft_context_host_count(self->context));
        for (uint32_t r = 0; r < self->size; r++) {
            printf("%s{\"host\": \"%s\", \"checked\": %llu, \"hosts\": [", r > 0 ? ", " : "",
                   all[r].host_name, (unsigned long long)all[r].checked);
            for (uint32_t p = 0; p < self->size; p++) {
                printf("%s%u", p > 0 ? ", " : "", all[r].host[p]);
            }
            printf("], \"transports\": [");
            for (uint32_t p = 0; p < self->size; p++) {
                printf("%s\"%s\"", p > 0 ? ", " : "", all[r].transport[p]);
            }
            printf("]}");
        }
        printf("]}\n");
    }
    free(all);
    return 0;
}

/* ---- until something breaks ---- */

/* Returns when a call has failed. */
static int loop(rank_state_t *self, size_t bytes)
{
    void *buffer = NULL;
    if (weft_mem_alloc(self->context, bytes, &buffer) != WEFT_OK) {
        return fail(self, "memory");
    }
    memset(buffer, 0, bytes);
    for (uint64_t i = 0;; i++) {
        if (weft_all_reduce(buffer, buffer, bytes / 4, WEFT_DTYPE_F32, WEFT_REDUCTION_MAX,
                            self->group, NULL) != WEFT_OK) {
            return fail(self, "all-reduce");
        }
        if (i == 3 && self->rank == 0) {
            puts("running");
            fflush(stdout);
        }
    }
}

static int survive(rank_state_t *self, size_t bytes)
{
    weft_group_t *left = NULL;
    uint32_t ranks[MAX_RANKS];
    loop(self, bytes);
    uint32_t rank = self->rank;
    if (weft_group_shrink(self->group, &left) != WEFT_OK ||
        weft_all_gather(&rank, ranks, 1, WEFT_DTYPE_U32, left, NULL) != WEFT_OK) {
        weft_group_destroy(left);
        return fail(self, "going on");
    }
    printf("rank %u goes on with", rank);
    for (uint32_t r = 0; r < weft_group_size(left); r++) {
        printf(" %u", ranks[r]);
    }
    puts("");
    weft_group_destroy(left);
    return 0;
}

int main(int argc, char **argv)
{
    rank_state_t self = {0};
    weft_context_params_t params = WEFT_CONTEXT_PARAMS_INIT;
    int code = 2;
    const char *what = argc > 1 ? argv[1] : "";
    bool loops = argc > 2 && strcmp(what, "loop") == 0;
    bool survives = argc > 2 && strcmp(what, "survive") == 0;
    if (!loops && !survives && strcmp(what, "check") != 0) {
        fputs("usage: rank_calls check [quick] | loop BYTES | survive BYTES\n", stderr);
        return 2;
    }
    self.quick = argc > 2 && strcmp(argv[2], "quick") == 0;
    self.rank = getenv("WEFT_RANK") != NULL ? (uint32_t)strtoul(getenv("WEFT_RANK"), NULL, 10) : 0;
    if (weft_context_create(&params, &self.context) != WEFT_OK) {
        return fail(&self, "joining");
    }
    self.rank = weft_context_rank(self.context);
    self.size = weft_context_world_size(self.context);
    if (self.size > MAX_RANKS) {
        fputs("too many ranks\n", stderr);
    } else if (weft_group_create_world(self.context, &self.group) != WEFT_OK) {
        code = fail(&self, "the group");
    } else if (loops || survives) {
        code = (loops ? loop : survive)(&self, strtoul(argv[2], NULL, 10));
    } else {
        code = check_all(&self);
        code = code == 0 ? print_peers(&self) : code;
    }
    weft_group_destroy(self.group);
    weft_context_release(self.context);
    return code;
}
