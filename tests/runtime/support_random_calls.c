/* SPDX-License-Identifier: Apache-2.0 */
#include "support_random_calls.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ops/collective.h"
#include "runtime/base/half.h"
#include "tests/support/support.h"

#define GUARD 64u /* bytes on both sides of a buffer */
#define GAP 9u    /* fewer elements between two blocks of a V form */
#define LEAD 8u   /* fewer elements before a buffer */
#define ROOM (2 * GUARD + (LEAD + (size_t)RANDOM_RANKS * (RANDOM_COUNT + GAP)) * 8)
#define UNTOUCHED 0x5a

uint64_t support_random_mix(uint64_t a, uint64_t b)
{
    uint64_t state = a * 0x9e3779b97f4a7c15ull + b;
    return test_next_random(&state);
}

static bool is_float(weft_dtype_t dtype)
{
    return dtype >= WEFT_DTYPE_F64 && dtype <= WEFT_DTYPE_BF16;
}

static bool is_signed(weft_dtype_t dtype)
{
    return dtype >= WEFT_DTYPE_I64 && dtype <= WEFT_DTYPE_I8;
}

/* ---- elements ---- */

static void store_float(uint8_t *at, weft_dtype_t dtype, double value)
{
    float narrow = (float)value;
    uint16_t half =
        dtype == WEFT_DTYPE_F16 ? wefti_f16_from_f32(narrow) : wefti_bf16_from_f32(narrow);
    const void *from = dtype == WEFT_DTYPE_F64   ? (const void *)&value
                       : dtype == WEFT_DTYPE_F32 ? (const void *)&narrow
                                                 : &half;
    memcpy(at, from, weft_dtype_size_bytes(dtype));
}

static uint64_t wrapped(uint64_t value, weft_dtype_t dtype)
{
    uint32_t unused = 64 - 8 * (uint32_t)weft_dtype_size_bytes(dtype);
    return is_signed(dtype) ? (uint64_t)((int64_t)(value << unused) >> unused)
                            : value << unused >> unused;
}

/* Of 16 ranks: exact sums and products in every floating-point type, in any order. */
static uint64_t value_of(const random_call_t *call, uint32_t index, uint32_t rank, uint32_t block,
                         uint64_t i)
{
    uint64_t place = (uint64_t)rank << 48 | (uint64_t)block << 32 | i;
    uint64_t x = support_random_mix(support_random_mix(call->id, index), place);
    switch (call->dtype) {
    case WEFT_DTYPE_BOOL:
        return x % 2;
    case WEFT_DTYPE_F64:
    case WEFT_DTYPE_F32:
        return call->reduction == WEFT_REDUCTION_PROD ? 1 + x % 2 : x % 50021;
    case WEFT_DTYPE_F16:
        return call->reduction == WEFT_REDUCTION_PROD ? 1 + x % 2 : x % 100;
    case WEFT_DTYPE_BF16:
        return call->reduction == WEFT_REDUCTION_PROD ? 1 + x % 2 : x % 16;
    default:
        return wrapped(x % 50021 - 25000, call->dtype);
    }
}

static void store(uint8_t *at, weft_dtype_t dtype, uint64_t value)
{
    if (is_float(dtype)) {
        store_float(at, dtype, (double)value);
    } else {
        memcpy(at, &value, weft_dtype_size_bytes(dtype)); /* little end first */
    }
}

/* ---- the reference ---- */

typedef struct other { /* what if this rank contributed to that call? */
    uint32_t rank, index;
} other_t;

static uint64_t reduced(const random_call_t *call, uint32_t block, uint64_t i, const other_t *other)
{
    bool is_signed_type = is_signed(call->dtype);
    uint64_t sum = 0;
    for (uint32_t r = 0; r < call->size; r++) {
        uint32_t index = other != NULL && other->rank == r ? other->index : call->index;
        uint64_t x = value_of(call, index, r, block, i);
        bool less = is_signed_type ? (int64_t)x < (int64_t)sum : x < sum;
        bool more = is_signed_type ? (int64_t)x > (int64_t)sum : x > sum;
        switch (call->reduction) {
        case WEFT_REDUCTION_SUM:
        case WEFT_REDUCTION_AVG:
            sum += x;
            break;
        case WEFT_REDUCTION_PROD:
            sum = r == 0 ? x : sum * x;
            break;
        case WEFT_REDUCTION_MIN:
            sum = r == 0 || less ? x : sum;
            break;
        case WEFT_REDUCTION_MAX:
            sum = r == 0 || more ? x : sum;
            break;
        }
    }
    return sum;
}

static void store_reduced(const random_call_t *call, uint8_t *at, uint64_t sum)
{
    bool divides = call->reduction == WEFT_REDUCTION_AVG;
    uint32_t n = call->size;
    if (call->dtype == WEFT_DTYPE_F64) {
        store_float(at, call->dtype, divides ? (double)sum / n : (double)sum);
    } else if (is_float(call->dtype)) {
        store_float(at, call->dtype, divides ? (float)sum / (float)n : (float)sum);
    } else if (divides) {
        store(at, call->dtype,
              is_signed(call->dtype) ? (uint64_t)((int64_t)sum / (int64_t)n) : sum / n);
    } else {
        store(at, call->dtype, sum);
    }
}

/* Who sends to this rank in an exchange of pairs, and how far it is. */
static uint32_t distance(const random_call_t *call)
{
    return 1 + call->root % (call->size - 1);
}

/* Element i of block b of recv. */
static void expect(const random_call_t *call, uint32_t b, uint64_t i, const other_t *other,
                   uint8_t *out)
{
    const wefti_collective_t *op = wefti_collective_of(call->op);
    uint32_t block = op->recv.extent == WEFT_EXTENT_BLOCK ? call->rank : b;
    if (op->reduces) {
        store_reduced(call, out, reduced(call, block, i, other));
        return;
    }
    uint32_t from = block;
    if (call->op == WEFT_COLLECTIVE_SEND_RECV) {
        from = (call->rank + call->size - distance(call)) % call->size;
    } else if (op->rooted && op->send.holder == WEFT_HOLDER_ROOT) {
        from = call->root;
    }
    uint32_t sent = wefti_collective_exchanges(call->op)    ? call->rank
                    : op->send.extent == WEFT_EXTENT_BLOCKS ? block
                                                            : 0;
    uint32_t index = other != NULL && other->rank == from ? other->index : call->index;
    store(out, call->dtype, value_of(call, index, from, sent, i));
}

/* ---- drawing ---- */

/* Elements of the block that goes from rank from to rank to. */
static uint64_t block_count(const random_call_t *call, uint32_t from, uint32_t to)
{
    const wefti_collective_t *op = wefti_collective_of(call->op);
    uint64_t which = wefti_collective_exchanges(call->op) ? (uint64_t)from << 32 | to
                     : wefti_collective_gathers(call->op) ? from
                                                          : to;
    return op->variable ? support_random_mix(call->shape, which) % (call->count + 1) : call->count;
}

/* Blocks of V forms: in order and one after the other, or in any order with gaps. */
static void place_blocks(random_side_t *side, bool variable, uint64_t *own)
{
    uint32_t order[RANDOM_RANKS];
    side->packed = !variable || test_draw(own, 2) == 0;
    for (uint32_t i = 0; i < side->blocks; i++) {
        uint32_t at = side->packed ? i : test_draw(own, i + 1);
        order[i] = order[at];
        order[at] = i;
    }
    side->elems = 0;
    for (uint32_t i = 0; i < side->blocks; i++) {
        uint32_t b = order[i];
        side->elems += side->packed ? 0 : test_draw(own, GAP);
        side->displacements[b] = side->elems;
        side->elems += side->counts[b];
    }
}

static void draw_side(const random_call_t *call, bool sends, random_side_t *side, uint64_t *own)
{
    const wefti_collective_t *op = wefti_collective_of(call->op);
    wefti_side_t shape = sends ? op->send : op->recv;
    bool pair = call->op == WEFT_COLLECTIVE_SEND_RECV;
    bool on = pair || wefti_side_is_on(shape, call->rank == call->root);
    side->blocks = on ? wefti_side_blocks(shape, call->size) : 0;
    for (uint32_t b = 0; b < side->blocks; b++) {
        bool all = shape.extent == WEFT_EXTENT_BLOCKS;
        uint32_t from = all && !sends ? b : call->rank, to = all && sends ? b : call->rank;
        side->counts[b] = block_count(call, from, to);
    }
    place_blocks(side, op->variable && shape.extent == WEFT_EXTENT_BLOCKS, own);
}

/* kind: that of all ranks, or RANDOM_KINDS: whatever this rank takes. */
static void choose_memory(random_call_t *call, uint32_t kind, uint64_t *own)
{
    for (int side = 0; side < 2; side++) {
        call->memory[side] =
            call->kinds[side][kind < RANDOM_KINDS ? kind : test_draw(own, RANDOM_KINDS)];
    }
}

/* This rank's buffers of a call, within its memory, with what it contributes. */
static void prepare(random_call_t *call, uint64_t *own)
{
    const wefti_collective_t *op = wefti_collective_of(call->op);
    size_t elem = weft_dtype_size_bytes(call->dtype);
    random_side_t *sides[] = {&call->send, &call->recv};
    for (int i = 0; i < 2; i++) {
        draw_side(call, i == 0, sides[i], own);
        size_t lead = GUARD + test_draw(own, LEAD) * elem;
        sides[i]->at = call->memory[i] + lead;
        call->bytes[i] = lead + (size_t)sides[i]->elems * elem + GUARD;
        memset(call->memory[i], UNTOUCHED, call->bytes[i]);
    }
    call->in_place =
        call->in_place && op->in_place && call->send.blocks > 0 && call->recv.blocks > 0;
    if (call->in_place && op->send.extent == WEFT_EXTENT_BLOCK) {
        call->send.at = call->recv.at + call->recv.displacements[call->rank] * elem;
    } else if (call->in_place && op->recv.extent == WEFT_EXTENT_BLOCK) {
        call->recv.at = call->send.at + call->send.displacements[call->rank] * elem;
    } else if (call->in_place) {
        call->recv.at = call->send.at;
    }
    for (uint32_t b = 0; b < call->send.blocks; b++) {
        uint8_t *at = call->send.at + call->send.displacements[b] * elem;
        for (uint64_t i = 0; i < call->send.counts[b]; i++) {
            store(at + i * elem, call->dtype, value_of(call, call->index, call->rank, b, i));
        }
    }
    for (int i = 0; i < 2; i++) {
        memcpy(call->image[i], call->memory[i], call->bytes[i]);
    }
}

static weft_collective_t draw_op(uint64_t *draws, uint32_t size)
{
    const char *only = getenv("WEFT_TEST_OP");
    uint32_t op = test_draw(draws, 4) == 0 ? WEFT_COLLECTIVE_REDUCE_SCATTER
                                           : 1 + test_draw(draws, WEFTI_OPS - 1);
    op = only != NULL ? wefti_collective_from_name(only) : op;
    return op == WEFT_COLLECTIVE_SEND_RECV && size == 1 ? WEFT_COLLECTIVE_BARRIER
                                                        : (weft_collective_t)op;
}

void support_random_draw(random_call_t *call, const weft_group_t *group, uint64_t id,
                         uint32_t index, uint64_t *draws)
{
    uint32_t kind = test_draw(draws, 20), size = weft_group_size(group);
    call->size = size;
    call->rank = weft_group_rank(group);
    call->id = id;
    call->index = index;
    call->op = draw_op(draws, size);
    bool reduces = wefti_collective_reduces(call->op);
    call->dtype = (weft_dtype_t)(1 + test_draw(draws, WEFT_DTYPE_BOOL - (reduces ? 1 : 0)));
    call->reduction = WEFT_REDUCTION_SUM;
    if (reduces && test_draw(draws, 2) == 0) {
        call->reduction = (weft_reduction_t)test_draw(draws, WEFT_REDUCTION_MAX + 1);
    }
    call->root = test_draw(draws, size);
    call->shape = test_next_random(draws);
    call->count = kind == 0   ? 0
                  : kind < 10 ? 1 + test_draw(draws, 3)
                  : kind < 16 ? 1 + test_draw(draws, 60)
                  : kind < 19 ? 1 + test_draw(draws, 900)
                              : 1 + test_draw(draws, RANDOM_COUNT - 1);
    uint32_t places = test_draw(draws, 4); /* in place: nobody, all, some */
    uint32_t memory = test_draw(draws, RANDOM_KINDS + 1);
    uint64_t own = support_random_mix(call->shape, 1 + call->rank);
    call->in_place = places == 1 || (places > 1 && test_draw(&own, 2) == 0);
    choose_memory(call, memory, &own);
    prepare(call, &own);
}

/* ---- calling ---- */

static const uint64_t *places_of(const random_side_t *side)
{
    return side->packed ? NULL : side->displacements;
}

static weft_status_t exchange(const random_call_t *call, weft_group_t *g, weft_stream_t *stream)
{
    uint32_t to = (call->rank + distance(call)) % call->size;
    uint32_t from = (call->rank + call->size - distance(call)) % call->size;
    RANK_OK(weft_batch_begin(g));
    RANK_OK(weft_recv(call->recv.at, call->count, call->dtype, from, g, NULL));
    RANK_OK(weft_send(call->send.at, call->count, call->dtype, to, g, NULL));
    return weft_batch_end(g, stream);
}

weft_status_t support_random_submit(const random_call_t *call, weft_group_t *g,
                                    weft_stream_t *stream)
{
    const random_side_t *s = &call->send, *r = &call->recv;
    const void *send = s->blocks > 0 ? s->at : NULL;
    void *recv = r->blocks > 0 ? r->at : NULL;
    uint64_t count = call->count;
    weft_dtype_t dtype = call->dtype;
    weft_reduction_t reduction = call->reduction;
    switch (call->op) {
    case WEFT_COLLECTIVE_ALL_REDUCE:
        return weft_all_reduce(send, recv, count, dtype, reduction, g, stream);
    case WEFT_COLLECTIVE_BROADCAST:
        return weft_broadcast(send, recv, count, dtype, call->root, g, stream);
    case WEFT_COLLECTIVE_REDUCE_SCATTER:
        return weft_reduce_scatter(send, recv, count, dtype, reduction, g, stream);
    case WEFT_COLLECTIVE_ALL_GATHER:
        return weft_all_gather(send, recv, count, dtype, g, stream);
    case WEFT_COLLECTIVE_REDUCE:
        return weft_reduce(send, recv, count, dtype, reduction, call->root, g, stream);
    case WEFT_COLLECTIVE_GATHER:
        return weft_gather(send, recv, count, dtype, call->root, g, stream);
    case WEFT_COLLECTIVE_SCATTER:
        return weft_scatter(send, recv, count, dtype, call->root, g, stream);
    case WEFT_COLLECTIVE_ALL_TO_ALL:
        return weft_all_to_all(send, recv, count, dtype, g, stream);
    case WEFT_COLLECTIVE_ALL_GATHER_V:
        return weft_all_gather_v(send, recv, r->counts, places_of(r), dtype, g, stream);
    case WEFT_COLLECTIVE_REDUCE_SCATTER_V:
        return weft_reduce_scatter_v(send, recv, s->counts, places_of(s), dtype, reduction, g,
                                     stream);
    case WEFT_COLLECTIVE_ALL_TO_ALL_V:
        return weft_all_to_all_v(send, s->counts, places_of(s), recv, r->counts, places_of(r),
                                 dtype, g, stream);
    case WEFT_COLLECTIVE_SEND_RECV:
        return exchange(call, g, stream);
    default:
        return weft_barrier(g, stream);
    }
}

/* ---- checking ---- */

/* Most significant byte first. */
static void show(const uint8_t *element, size_t bytes)
{
    fprintf(stderr, " ");
    while (bytes-- > 0) {
        fprintf(stderr, "%02x", element[bytes]);
    }
}

static void explain(const random_call_t *call, uint32_t block, uint64_t i, const uint8_t *got)
{
    uint8_t expected[8];
    size_t elem = weft_dtype_size_bytes(call->dtype);
    expect(call, block, i, NULL, expected);
    fprintf(stderr, "  got");
    show(got, elem);
    fprintf(stderr, ", not");
    show(expected, elem);
    fprintf(stderr, "; ranks contributed");
    for (uint32_t r = 0; r < call->size; r++) {
        uint8_t own[8];
        store(own, call->dtype, value_of(call, call->index, r, block, i));
        show(own, elem);
    }
    fprintf(stderr, "\n");
    for (uint32_t r = 0; r < call->size; r++) {
        for (uint32_t c = 0; c < call->index + 8; c++) {
            expect(call, block, i, &(other_t){r, c}, expected);
            if (c != call->index && memcmp(expected, got, elem) == 0) {
                fprintf(stderr, "  as if rank %u had contributed to call %u\n", r, c);
            }
        }
    }
}

void support_random_show(const random_call_t *call)
{
    fprintf(stderr, "call %u: %s of %llu x %s, reduction %u, root %u%s\n", call->index,
            weft_collective_name(call->op), (unsigned long long)call->count,
            weft_dtype_name(call->dtype), call->reduction, call->root,
            call->in_place ? ", in place here" : "");
}

static void report(const random_call_t *call, const weft_group_t *group, int side, size_t byte)
{
    size_t elem = weft_dtype_size_bytes(call->dtype);
    const uint8_t *at = call->memory[side] + byte;
    support_random_show(call);
    fprintf(stderr,
            "  rank %u of %u in group %llx: byte %zd of %s is %u, not %u; last path %s, %s, order "
            "%d\n",
            call->rank, call->size, (unsigned long long)call->id,
            at - (side == 0 ? call->send.at : call->recv.at), side == 0 ? "send" : "recv", *at,
            call->image[side][byte], weft_group_last_path(group), weft_group_last_algorithm(group),
            (int)weft_group_order(group));
    fprintf(stderr, "  world ranks:");
    for (uint32_t r = 0; r < call->size; r++) {
        fprintf(stderr, " %u", weft_group_world_rank(group, r));
    }
    fprintf(stderr, "\n");
    for (uint32_t b = 0; b < call->recv.blocks; b++) {
        const uint8_t *block = call->recv.at + call->recv.displacements[b] * elem;
        if (at >= block && at < block + call->recv.counts[b] * elem) {
            uint64_t i = (uint64_t)(at - block) / elem;
            fprintf(stderr, "  element %llu of block %u\n", (unsigned long long)i, b);
            explain(call, b, i, block + i * elem);
            return;
        }
    }
    fprintf(stderr, "  which no call may write\n");
}

bool support_random_check(const random_call_t *call, const weft_group_t *group)
{
    size_t elem = weft_dtype_size_bytes(call->dtype);
    /* In place, the receive buffer may lie in the send buffer's memory. */
    int side = call->recv.at >= call->memory[0] && call->recv.at < call->memory[0] + ROOM ? 0 : 1;
    uint8_t *recv = call->image[side] + (call->recv.at - call->memory[side]);
    for (uint32_t b = 0; b < call->recv.blocks; b++) {
        uint8_t *block = recv + call->recv.displacements[b] * elem;
        for (uint64_t i = 0; i < call->recv.counts[b]; i++) {
            expect(call, b, i, NULL, block + i * elem);
        }
    }
    for (side = 0; side < 2; side++) {
        const uint8_t *got = call->memory[side], *expected = call->image[side];
        if (memcmp(got, expected, call->bytes[side]) != 0) {
            size_t byte = 0;
            while (got[byte] == expected[byte]) {
                byte++;
            }
            report(call, group, side, byte);
            return false;
        }
    }
    return true;
}

/* ---- memory ---- */

void support_random_init(random_call_t *call, weft_context_t *context)
{
    for (int side = 0; side < 2; side++) {
        uint8_t **kinds = call->kinds[side];
        void *reached = NULL;
        RANK_OK(weft_mem_alloc(context, ROOM, &reached));
        kinds[RANDOM_REACHED] = reached;
        kinds[RANDOM_PLAIN] = malloc(ROOM);
        kinds[RANDOM_ADOPTED] = malloc(ROOM); /* neither begins nor ends with a page */
        call->image[side] = malloc(ROOM);
        RANK_CHECK(kinds[RANDOM_PLAIN] != NULL && kinds[RANDOM_ADOPTED] != NULL &&
                   call->image[side] != NULL);
        RANK_OK(weft_mem_register(context, kinds[RANDOM_ADOPTED], ROOM));
    }
}

void support_random_deinit(random_call_t *call, weft_context_t *context)
{
    for (int side = 0; side < 2; side++) {
        RANK_OK(weft_mem_free(context, call->kinds[side][RANDOM_REACHED]));
        RANK_OK(weft_mem_unregister(context, call->kinds[side][RANDOM_ADOPTED]));
        free(call->kinds[side][RANDOM_PLAIN]);
        free(call->kinds[side][RANDOM_ADOPTED]);
        free(call->image[side]);
    }
}
