/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Statuses that the public headers state for wrong calls, and that the objects stay usable after
 * them. NULL arguments are in test_null_handles.c, sizes of structs in test_struct_sizes.c.
 */
#include <string.h>

#include "support_ranks.h"

#include "tests/support/support.h"

#define COUNT 4u
#define INVALID(call) RANK_CHECK((call) == WEFT_ERR_INVALID_ARGUMENT)
#define WRONG_STATE(call) RANK_CHECK((call) == WEFT_ERR_STATE)

/* The group is as before: the next call of all ranks works. */
static void check_usable(const rank_world_t *world)
{
    float x[COUNT] = {1, 2, 3, 4};
    RANK_OK(weft_all_reduce(x, x, COUNT, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, world->group, NULL));
    RANK_CHECK(x[3] == 4 * (float)world->size);
}

static weft_context_t *create_alone(void)
{
    weft_context_params_t params = WEFT_CONTEXT_PARAMS_INIT;
    weft_context_t *context = NULL;
    params.rank = 0;
    params.world_size = 1;
    params.address = "unix:@weft-never-used";
    RANK_OK(weft_context_create(&params, &context));
    return context;
}

/* ---- collective.h ---- */

static void run_reductions(rank_world_t *world)
{
    weft_group_t *g = world->group;
    uint8_t flags[COUNT] = {0};
    float x[COUNT] = {0};
    const weft_reduction_t unknown = (weft_reduction_t)(WEFT_REDUCTION_MAX + 1);
    INVALID(weft_all_reduce(flags, flags, COUNT, WEFT_DTYPE_BOOL, WEFT_REDUCTION_MAX, g, NULL));
    INVALID(weft_all_reduce(x, x, COUNT, WEFT_DTYPE_NONE, WEFT_REDUCTION_SUM, g, NULL));
    INVALID(weft_all_reduce(x, x, COUNT, WEFT_DTYPE_F32, unknown, g, NULL));
    INVALID(weft_all_reduce(NULL, x, COUNT, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, g, NULL));
    INVALID(weft_all_reduce(x, NULL, COUNT, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, g, NULL));
    INVALID(weft_all_reduce(x, x, UINT64_MAX, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, g, NULL));
    INVALID(weft_reduce(x, x, COUNT, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, world->size, g, NULL));
    RANK_OK(weft_all_reduce(NULL, NULL, 0, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, g, NULL));
    check_usable(world);
}

/* Only the root's buffers count: NULL elsewhere. */
static void run_rooted(rank_world_t *world)
{
    float x[2 * COUNT] = {1, 2, 3, 4, 5, 6, 7, 8}, y[2 * COUNT] = {0};
    const float *from = world->rank == 1 ? x : NULL;
    float *to = world->rank == 1 ? y : NULL;
    weft_group_t *g = world->group;
    RANK_OK(weft_reduce(x, to, COUNT, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, 1, g, NULL));
    RANK_OK(weft_gather(x, to, COUNT, WEFT_DTYPE_F32, 1, g, NULL));
    RANK_CHECK(to == NULL || (y[0] == 1 && y[COUNT] == 1));
    RANK_OK(weft_broadcast(from, y, COUNT, WEFT_DTYPE_F32, 1, g, NULL));
    RANK_OK(weft_scatter(from, y, COUNT, WEFT_DTYPE_F32, 1, g, NULL));
    RANK_CHECK(y[0] == x[world->rank * COUNT]);
}

static void run_pairs(rank_world_t *world)
{
    weft_group_t *g = world->group;
    const uint64_t counts[2] = {1, 1};
    float x[COUNT] = {0};
    weft_status_t status = WEFT_OK;
    uint32_t noted = 0;
    INVALID(weft_send(x, COUNT, WEFT_DTYPE_F32, world->rank, g, NULL));
    INVALID(weft_recv(x, COUNT, WEFT_DTYPE_F32, world->size, g, NULL));
    INVALID(weft_all_to_all_v(x, counts, NULL, x, counts, NULL, WEFT_DTYPE_F32, g, NULL));
    RANK_OK(weft_batch_begin(g));
    while (status == WEFT_OK) {
        status = weft_send(x, COUNT, WEFT_DTYPE_F32, 1 - world->rank, g, NULL);
        noted += status == WEFT_OK;
    }
    RANK_CHECK(status == WEFT_AGAIN && noted == 64);
    RANK_OK(weft_batch_cancel(g));
    check_usable(world);
}

/* ---- streams, memory, reports ---- */

static void run_other_context(rank_world_t *world)
{
    weft_context_t *other = create_alone();
    weft_stream_t *stream = NULL;
    weft_event_t *event = NULL;
    weft_capture_params_t capture = WEFT_CAPTURE_PARAMS_INIT;
    float x[COUNT] = {0};
    RANK_OK(weft_stream_create(other, NULL, &stream));
    RANK_OK(weft_event_create(world->context, &event));
    INVALID(weft_all_reduce(x, x, COUNT, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, world->group, stream));
    INVALID(weft_event_record(event, stream));
    capture.stream = stream;
    INVALID(weft_capture_begin(world->group, &capture));
    RANK_OK(weft_event_synchronize(event)); /* no record: nothing to wait for */
    check_usable(world);
    weft_event_destroy(event);
    weft_stream_destroy(stream);
    weft_context_release(other);
}

static void run_memory(rank_world_t *world)
{
    static _Thread_local uint8_t bytes[2 * 4096];
    weft_context_t *context = world->context;
    void *address = bytes;
    char *text = (char *)bytes; /* set to NULL on failure */
    INVALID(weft_device_alloc(context, 0, &address));
    RANK_CHECK(address == NULL);
    INVALID(weft_mem_alloc(context, 0, &address));
    INVALID(weft_mem_copy(context, bytes, bytes + 1, 2));
    RANK_OK(weft_mem_copy(context, bytes, bytes + 1, 1));
    INVALID(weft_device_free(context, bytes));
    INVALID(weft_mem_free(context, bytes));
    INVALID(weft_mem_unregister(context, bytes));
    INVALID(weft_mem_register(context, bytes, 0));
    RANK_OK(weft_mem_register(context, bytes, sizeof bytes));
    INVALID(weft_mem_register(context, bytes, sizeof bytes));
    RANK_OK(weft_mem_unregister(context, bytes));
    INVALID(weft_context_topology(context, (weft_format_t)2, 0, &text));
    RANK_CHECK(text == NULL);
}

/* ---- group.h, while a capture is open ---- */

static void run_capture(rank_world_t *world)
{
    weft_group_t *g = world->group, *made = NULL;
    float x[COUNT] = {0};
    RANK_OK(weft_capture_begin(g, NULL));
    WRONG_STATE(weft_send(x, COUNT, WEFT_DTYPE_F32, 1 - world->rank, g, NULL));
    WRONG_STATE(weft_batch_begin(g));
    WRONG_STATE(weft_capture_begin(g, NULL));
    WRONG_STATE(weft_group_split(g, 0, 0, &made));
    WRONG_STATE(weft_group_duplicate(g, &made));
    WRONG_STATE(weft_group_set_order(g, WEFT_ORDER_ANY, NULL, 0));
    WRONG_STATE(weft_group_set_algorithm(g, WEFT_COLLECTIVE_ALL_REDUCE, NULL));
    RANK_OK(weft_capture_cancel(g));
    WRONG_STATE(weft_capture_cancel(g));
    check_usable(world);
}

static void run_groups(rank_world_t *world)
{
    weft_group_t *g = world->group, *made = NULL;
    const uint32_t twice[2] = {0, 0}, outside[2] = {0, 9}, zero = 0;
    INVALID(weft_group_create_ranks(g, twice, 2, &made));
    INVALID(weft_group_create_ranks(g, outside, 2, &made));
    INVALID(weft_group_create_ranks(g, twice, 0, &made));
    INVALID(weft_group_set_order(g, WEFT_ORDER_BLOCKS, &zero, 1));
    INVALID(weft_group_set_algorithm(g, WEFT_COLLECTIVE_SEND_RECV, NULL));
    INVALID(weft_group_set_algorithm(g, WEFT_COLLECTIVE_ALL_REDUCE, "no such algorithm"));
    RANK_CHECK(made == NULL && weft_group_status(g) == WEFT_OK);
    check_usable(world);
}

#define TEST(name)                                                                                 \
    static void test_##name(void **state)                                                          \
    {                                                                                              \
        (void)state;                                                                               \
        support_rank_threads(2, run_##name, NULL);                                                 \
    }
TEST(reductions)
TEST(rooted)
TEST(pairs)
TEST(other_context)
TEST(memory)
TEST(capture)
TEST(groups)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reductions), cmocka_unit_test(test_rooted),
        cmocka_unit_test(test_pairs),      cmocka_unit_test(test_other_context),
        cmocka_unit_test(test_memory),     cmocka_unit_test(test_capture),
        cmocka_unit_test(test_groups),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
