/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of the collectives' shapes against MPI's definitions, which are written here as one
 * function: from which rank, and which element there, comes an element that a rank receives? How
 * long buffers are, who has one and what overlaps in place follow from it without the table.
 */
#include <stdio.h>
#include <string.h>

#include "ops/collective.h"
#include "tests/support/support.h"

#define RANKS 5u
#define LIMIT 200u /* elements of the longest buffer */

/* A call on all ranks. */
typedef struct call {
    weft_collective_t op;
    uint32_t n, root, peer;
    uint64_t count;
    /* V forms: [from][to] of AllToAllV, [0][rank] of the others; where blocks begin */
    uint64_t counts[RANKS][RANKS], send_at[RANKS][RANKS], recv_at[RANKS][RANKS];
} call_t;

/* Element i of blocks that begin at at[0..n): its block and its place there. */
static bool find_block(const uint64_t *counts, const uint64_t *at, uint32_t n, uint64_t i,
                       uint32_t *out_block, uint64_t *out_rest)
{
    for (uint32_t b = 0; b < n; b++) {
        if (i >= at[b] && i < at[b] + counts[b]) {
            *out_block = b;
            *out_rest = i - at[b];
            return true;
        }
    }
    return false;
}

/* Element i of what rank receives is element *out_index of *out_from; n: of all ranks, reduced.
 * False: it receives no such element. */
static bool source_of(const call_t *c, uint32_t rank, uint64_t i, uint32_t *out_from,
                      uint64_t *out_index)
{
    uint64_t column[RANKS];
    uint32_t block = 0;
    *out_from = c->n;
    *out_index = i;
    switch (c->op) {
    case WEFT_COLLECTIVE_ALL_REDUCE:
        return i < c->count;
    case WEFT_COLLECTIVE_REDUCE:
        return rank == c->root && i < c->count;
    case WEFT_COLLECTIVE_BROADCAST:
        *out_from = c->root;
        return i < c->count;
    case WEFT_COLLECTIVE_SEND_RECV:
        *out_from = c->root;
        return rank == c->peer && i < c->count;
    case WEFT_COLLECTIVE_REDUCE_SCATTER: /* MPI_Reduce_scatter_block */
        *out_index = rank * c->count + i;
        return i < c->count;
    case WEFT_COLLECTIVE_SCATTER:
        *out_from = c->root;
        *out_index = rank * c->count + i;
        return i < c->count;
    case WEFT_COLLECTIVE_ALL_GATHER:
    case WEFT_COLLECTIVE_GATHER:
        *out_from = (uint32_t)(i / c->count);
        *out_index = i % c->count;
        return i < c->n * c->count && (c->op == WEFT_COLLECTIVE_ALL_GATHER || rank == c->root);
    case WEFT_COLLECTIVE_ALL_TO_ALL:
        *out_from = (uint32_t)(i / c->count);
        *out_index = rank * c->count + i % c->count;
        return i < c->n * c->count;
    case WEFT_COLLECTIVE_ALL_GATHER_V:
        return find_block(c->counts[0], c->recv_at[rank], c->n, i, out_from, out_index);
    case WEFT_COLLECTIVE_REDUCE_SCATTER_V:
        *out_index = c->send_at[rank][rank] + i;
        return i < c->counts[0][rank];
    case WEFT_COLLECTIVE_ALL_TO_ALL_V:
        for (uint32_t r = 0; r < c->n; r++) {
            column[r] = c->counts[r][rank];
        }
        if (!find_block(column, c->recv_at[rank], c->n, i, &block, out_index)) {
            return false;
        }
        *out_from = block;
        *out_index += c->send_at[block][rank];
        return true;
    default: /* barrier */
        return false;
    }
}

/* Elements from the begin of rank's send buffer to the last one that any rank receives. */
static uint64_t send_elems(const call_t *c, uint32_t rank)
{
    uint64_t end = 0, index;
    uint32_t from;
    for (uint32_t r = 0; r < c->n; r++) {
        for (uint64_t i = 0; i < LIMIT; i++) {
            bool read = source_of(c, r, i, &from, &index) && (from == rank || from == c->n);
            end = read && index + 1 > end ? index + 1 : end;
        }
    }
    return end;
}

static uint64_t recv_elems(const call_t *c, uint32_t rank)
{
    uint64_t end = 0, index;
    uint32_t from;
    for (uint64_t i = 0; i < LIMIT; i++) {
        end = source_of(c, rank, i, &from, &index) ? i + 1 : end;
    }
    return end;
}

/* In place an element that a rank has for itself stays where it is: send = recv + *out_shift. */
static bool find_shift(const call_t *c, uint32_t rank, int64_t *out_shift)
{
    bool found = false;
    uint64_t index;
    uint32_t from;
    for (uint64_t i = 0; i < LIMIT && c->op != WEFT_COLLECTIVE_ALL_TO_ALL_V; i++) {
        if (source_of(c, rank, i, &from, &index) && (from == rank || from == c->n)) {
            int64_t shift = (int64_t)i - (int64_t)index;
            assert_true(!found || shift == *out_shift);
            *out_shift = shift;
            found = true;
        }
    }
    return found;
}

/* Counts with zeros, blocks in another order than ranks, and gaps. */
static call_t make_call(weft_collective_t op, uint32_t n, uint32_t root, uint64_t count)
{
    call_t c = {.op = op, .n = n, .root = root, .peer = (root + 1) % n, .count = count};
    for (uint32_t a = 0; a < n; a++) {
        for (uint32_t b = 0; b < n; b++) {
            c.counts[a][b] = (3 * a + 5 * b + count) % 4;
            c.send_at[a][b] = 5ull * (n - b) + a;
            c.recv_at[a][b] = 6ull * ((b + 2) % n) + 2 * a;
        }
    }
    for (uint32_t a = 1; a < n && op != WEFT_COLLECTIVE_ALL_TO_ALL_V;
         a++) { /* one list for all ranks */
        memcpy(c.send_at[a], c.send_at[0], sizeof c.send_at[0]);
        memcpy(c.recv_at[a], c.recv_at[0], sizeof c.recv_at[0]);
    }
    return c;
}

/* What rank passes: counts and displacements of the side that has several blocks. */
static void fill_counts(const call_t *c, uint32_t rank, uint64_t *counts)
{
    uint32_t n = c->n;
    memset(counts, 0xff, 4 * n * sizeof *counts); /* of a side that is one block: never read */
    for (uint32_t r = 0; r < n && c->op != WEFT_COLLECTIVE_ALL_GATHER_V; r++) {
        counts[r] = c->op == WEFT_COLLECTIVE_ALL_TO_ALL_V ? c->counts[rank][r] : c->counts[0][r];
        counts[n + r] = c->send_at[rank][r];
    }
    for (uint32_t r = 0; r < n && c->op != WEFT_COLLECTIVE_REDUCE_SCATTER_V; r++) {
        counts[2 * n + r] =
            c->op == WEFT_COLLECTIVE_ALL_TO_ALL_V ? c->counts[r][rank] : c->counts[0][r];
        counts[3 * n + r] = c->recv_at[rank][r];
    }
}

static void check_call(const call_t *c)
{
    for (uint32_t rank = 0; rank < c->n; rank++) {
        uint64_t counts[4 * RANKS];
        int64_t shift = 0;
        fill_counts(c, rank, counts);
        const wefti_collective_t *op = wefti_collective_of(c->op);
        wefti_buffer_shape_t send = wefti_send_shape(c->op, rank, c->root, c->n, c->count, counts);
        wefti_buffer_shape_t recv = wefti_recv_shape(c->op, rank, c->root, c->n, c->count, counts);
        assert_int_equal(wefti_shape_elems(&send), send_elems(c, rank));
        if (c->op != WEFT_COLLECTIVE_SEND_RECV) { /* its peer is not known to shapes of calls */
            assert_int_equal(wefti_shape_elems(&recv), recv_elems(c, rank));
        }
        if (!find_shift(c, rank, &shift)) {
            continue;
        }
        assert_true(op->in_place);
        uint64_t at = wefti_in_place_elems(c->op, rank, c->count);
        if (op->variable) {
            at = wefti_shared_counts(c->op, c->n, counts)[c->n + rank];
        }
        assert_int_equal(shift, wefti_collective_scatters(c->op) ? -(int64_t)at : (int64_t)at);
    }
}

/* Sums come from all ranks; where there is a root, another one changes who receives what. */
static void check_facts(const call_t *c)
{
    const wefti_collective_t *op = wefti_collective_of(c->op);
    call_t other = make_call(c->op, c->n, (c->root + 1) % c->n, c->count);
    bool any = c->op == WEFT_COLLECTIVE_BARRIER, reduces = false, rooted = false;
    for (uint32_t rank = 0; rank < c->n; rank++) {
        for (uint64_t i = 0; i < LIMIT; i++) {
            uint64_t index, other_index;
            uint32_t from, other_from;
            bool received = source_of(c, rank, i, &from, &index);
            any = any || received; /* with counts of 0 there is nothing to see */
            reduces = reduces || (received && from == c->n);
            rooted = rooted || received != source_of(&other, rank, i, &other_from, &other_index) ||
                     (received && from != other_from);
        }
    }
    assert_true(!any || op->reduces == reduces);
    assert_true(c->n == 1 || op->rooted == rooted);
    assert_int_equal(op->send.extent == WEFT_EXTENT_VECTOR, op->recv.extent == WEFT_EXTENT_VECTOR);
}

static void test_buffers_are_as_mpi_defines(void **state)
{
    (void)state;
    for (uint32_t op = 1; op < WEFTI_OPS; op++) {
        for (uint32_t n = op == WEFT_COLLECTIVE_SEND_RECV ? 2 : 1; n <= RANKS; n++) {
            for (uint32_t root = 0; root < n; root++) {
                for (uint64_t count = 1; count < 5; count++) {
                    call_t call = make_call((weft_collective_t)op, n, root, count);
                    check_call(&call);
                    check_facts(&call);
                }
            }
        }
    }
}

/* With one element per block, elements are blocks; a rank's only block has the rank's number. */
static void check_blocks(const call_t *c)
{
    weft_algo_resources_t resources = {.blocks = (uint32_t)c->count, .scratch_slots = 2};
    weft_algo_params_t params = {.struct_size = sizeof params,
                                 .op = c->op,
                                 .group_size = c->n,
                                 .root = c->root,
                                 .peer = c->peer};
    for (uint32_t rank = 0; rank < c->n; rank++) {
        int64_t shift = 0;
        uint32_t elems[2] = {(uint32_t)send_elems(c, rank), (uint32_t)recv_elems(c, rank)};
        uint32_t first[2] = {0, 0}, count[2] = {0, 0}, alias;
        for (uint32_t buffer = WEFT_ALGO_BUFFER_SEND; buffer <= WEFT_ALGO_BUFFER_RECV; buffer++) {
            bool exists = wefti_buffer_blocks(&params, &resources, rank, buffer, &first[buffer],
                                              &count[buffer]);
            assert_int_equal(exists ? count[buffer] : 0, elems[buffer]);
            assert_true(!exists || first[buffer] == 0 ||
                        (first[buffer] == rank && count[buffer] == 1));
        }
        bool in_place = find_shift(c, rank, &shift);
        for (uint32_t j = 0; j < elems[0]; j++) {
            int64_t i = (int64_t)j + shift;
            bool shares = in_place && i >= 0 && i < elems[1];
            assert_int_equal(wefti_in_place_alias(&params, &resources, rank, first[0] + j, &alias),
                             shares);
            assert_true(!shares || alias == first[1] + (uint32_t)i);
        }
    }
}

static void test_blocks_of_schedules_are_the_elements(void **state)
{
    (void)state;
    for (uint32_t op = 1; op < WEFTI_OPS; op++) {
        for (uint32_t n = op == WEFT_COLLECTIVE_SEND_RECV ? 2 : 1; n <= RANKS; n++) {
            for (uint32_t root = 0; root < n; root++) {
                call_t call = make_call((weft_collective_t)op, n, root,
                                        wefti_collective_is_vector((weft_collective_t)op) ? 3 : 1);
                for (uint32_t a = 0; a < n; a++) { /* V forms: a block is one element, too */
                    for (uint32_t b = 0; b < n; b++) {
                        call.counts[a][b] = 1;
                        call.send_at[a][b] = call.recv_at[a][b] = b;
                    }
                }
                check_blocks(&call);
            }
        }
    }
}

/* "AllReduce" is all_reduce; equal names are equal operators. */
static void test_every_operator_has_a_row(void **state)
{
    (void)state;
    static const uint32_t values[] = {
#define VALUE(name, value, ...) value,
        WEFT_COLLECTIVE_MAP(VALUE)
#undef VALUE
    };
    assert_int_equal(sizeof values / sizeof *values, WEFTI_OPS - 1);
    for (uint32_t i = 0; i < WEFTI_OPS - 1; i++) {
        char function[40] = "";
        size_t used = 0;
        assert_int_equal(values[i], i + 1);
        assert_true(wefti_collective_known((weft_collective_t)(i + 1)));
        const char *name = weft_collective_name((weft_collective_t)(i + 1));
        for (const char *at = name; *at != '\0'; at++) {
            if (*at >= 'A' && *at <= 'Z' && at > name) {
                function[used++] = '_';
            }
            function[used++] = (char)(*at >= 'A' && *at <= 'Z' ? *at - 'A' + 'a' : *at);
        }
        assert_string_equal(wefti_collective_function((weft_collective_t)(i + 1)), function);
        assert_int_equal(wefti_collective_is_variable((weft_collective_t)(i + 1)),
                         name[strlen(name) - 1] == 'V');
        assert_int_equal(wefti_collective_from_name(name), i + 1);
    }
    assert_false(wefti_collective_known((weft_collective_t)0));
    assert_false(wefti_collective_known((weft_collective_t)WEFTI_OPS));
    assert_string_equal(weft_collective_name((weft_collective_t)255), "unknown");
    assert_int_equal(wefti_collective_from_name("unknown"), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_buffers_are_as_mpi_defines),
        cmocka_unit_test(test_blocks_of_schedules_are_the_elements),
        cmocka_unit_test(test_every_operator_has_a_row),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
