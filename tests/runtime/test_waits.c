/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks in different kinds of calls: all of them get an error at once that names two of them, and
 * what each is in. Ranks that wait for long in programs that are right never do.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <weft/compile.h>
#include <weft/session.h>

#include "runtime/base/sync.h"
#include "runtime/group/group.h"
#include "support_ranks.h"

#include "tests/support/support.h"

#define COUNT 8u

/* ThreadSanitizer has a thread of its own that wakes by itself: no circle is ever certain there. */
#if defined(__SANITIZE_THREAD__)
#define CIRCLES false
#else
#define CIRCLES true
#endif

/* What ranks have for their calls. */
typedef struct things {
    weft_group_t *second; /* of all ranks */
    weft_group_t *third;  /* of all ranks; not in use when ranks disagree */
    weft_stream_t *stream;
    weft_session_t *session; /* NULL: no call is of it */
    float x[COUNT];
} things_t;

/* Of a session for all ranks of the world at hand. */
static weft_plan_t *plan;

static void compile(uint32_t world)
{
    weft_compile_params_t params = WEFT_COMPILE_PARAMS_INIT;
    params.model_path = WEFT_SOURCE_DIR "/tests/data/torch_mlp_batch4.onnx";
    params.world_size = world;
    assert_int_equal(weft_compile(&params, &plan), WEFT_OK);
}

static void release_plan(void)
{
    weft_plan_release(plan);
    plan = NULL;
}

static void open_session(const rank_world_t *world, things_t *things)
{
    weft_session_params_t params = WEFT_SESSION_PARAMS_INIT;
    params.context = world->context;
    params.plan = plan;
    RANK_OK(weft_session_create(&params, &things->session));
}

/* Worlds of processes from here on: ranks by host; NULL: one host. */
static void over_sockets(const char *hosts)
{
    if (hosts != NULL) {
        setenv("WEFT_TEST_TRANSPORT", "tcp", 1);
        setenv("WEFT_TEST_HOSTS", hosts, 1);
    } else {
        unsetenv("WEFT_TEST_TRANSPORT");
        unsetenv("WEFT_TEST_HOSTS");
        unsetenv("WEFT_TRANSPORT");
    }
}

/* ---- kinds ---- */

static weft_status_t call_all_reduce(rank_world_t *world, things_t *things)
{
    return weft_all_reduce(things->x, things->x, COUNT, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM,
                           world->group, NULL);
}

static weft_status_t call_barrier(rank_world_t *world, things_t *things)
{
    (void)things;
    return weft_barrier(world->group, NULL);
}

static weft_status_t call_second(rank_world_t *world, things_t *things)
{
    (void)world;
    return weft_all_reduce(things->x, things->x, COUNT, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM,
                           things->second, NULL);
}

static weft_status_t call_on_stream(rank_world_t *world, things_t *things)
{
    float all[3 * COUNT];
    weft_status_t status =
        weft_all_gather(things->x, all, COUNT, WEFT_DTYPE_F32, things->second, things->stream);
    (void)world;
    return status < 0 ? status : weft_stream_synchronize(things->stream);
}

static weft_status_t call_mem_alloc(rank_world_t *world, things_t *things)
{
    void *memory = NULL;
    (void)things;
    return weft_mem_alloc(world->context, 4096, &memory);
}

static weft_status_t call_context_barrier(rank_world_t *world, things_t *things)
{
    (void)things;
    return weft_context_barrier(world->context);
}

static weft_status_t call_context_all_gather(rank_world_t *world, things_t *things)
{
    uint64_t own = 1, all[16];
    (void)things;
    return weft_context_all_gather(world->context, &own, sizeof own, all);
}

static weft_status_t call_topology(rank_world_t *world, things_t *things)
{
    char *text = NULL;
    (void)things;
    weft_status_t status = weft_context_topology(world->context, WEFT_FORMAT_TEXT, 0, &text);
    free(text);
    return status;
}

static weft_status_t call_duplicate(rank_world_t *world, things_t *things)
{
    weft_group_t *group = NULL;
    (void)things;
    return weft_group_duplicate(world->group, &group);
}

static weft_status_t call_fuser(rank_world_t *world, things_t *things)
{
    weft_fuser_params_t params = WEFT_FUSER_PARAMS_INIT;
    weft_fuser_t *fuser = NULL;
    (void)world;
    return weft_fuser_create(things->second, &params, &fuser);
}

static weft_status_t call_capture(rank_world_t *world, things_t *things)
{
    weft_capture_params_t params = WEFT_CAPTURE_PARAMS_INIT;
    weft_capture_t *capture = NULL;
    weft_status_t status = weft_capture_begin(world->group, &params);
    if (status == WEFT_OK) {
        status = call_all_reduce(world, things);
    }
    return status < 0 ? status : weft_capture_end(world->group, &capture);
}

static weft_status_t call_recv(rank_world_t *world, things_t *things)
{
    return weft_recv(things->x, COUNT, WEFT_DTYPE_F32, (world->rank + 1) % world->size,
                     things->second, NULL);
}

static weft_status_t call_step(rank_world_t *world, things_t *things)
{
    (void)world;
    return weft_session_step(things->session);
}

typedef struct kind {
    const char *name; /* what messages call it */
    bool in_group;    /* a call of a group: other groups go on */
    weft_status_t (*call)(rank_world_t *world, things_t *things);
} kind_t;

static const kind_t kinds[] = {
    {"all_reduce", true, call_all_reduce},
    {"barrier", true, call_barrier},
    {"all_reduce", true, call_second},
    {"all_gather", true, call_on_stream},
    {"mem_alloc", false, call_mem_alloc},
    {"context_barrier", false, call_context_barrier},
    {"context_all_gather", false, call_context_all_gather},
    {"context_topology", false, call_topology},
    {"group creation", false, call_duplicate},
    {"fuser_create", false, call_fuser},
    {"capture_end", false, call_capture},
    {"receive", true, call_recv},
    {"of a session", false, call_step},
};
#define KINDS (sizeof kinds / sizeof kinds[0])

/* ---- pairs of them ---- */

typedef struct pair {
    const kind_t *odd, *others; /* of one rank; of the others */
    uint32_t victim;
} pair_t;

static void run_pair(rank_world_t *world)
{
    const pair_t *pair = world->user;
    const kind_t *kind = world->rank == pair->victim ? pair->odd : pair->others;
    things_t things = {0};
    RANK_OK(weft_group_duplicate(world->group, &things.second));
    RANK_OK(weft_group_duplicate(world->group, &things.third));
    RANK_OK(weft_stream_create(world->context, NULL, &things.stream));
    if (pair->odd->call == call_step || pair->others->call == call_step) {
        open_session(world, &things);
    }
    weft_status_t status = weft_context_barrier(world->context);
    if (status == WEFT_OK) { /* else the world of the others ended before this rank was out */
        status = kind->call(world, &things);
    }
    char victim[32];
    snprintf(victim, sizeof victim, "rank %u", pair->victim);
    if (status != WEFT_ERR_MISMATCH || strstr(weft_last_error(), victim) == NULL ||
        strstr(weft_last_error(), pair->odd->name) == NULL ||
        strstr(weft_last_error(), pair->others->name) == NULL) {
        fprintf(stderr, "rank %u: %s against %s of rank %u: %s\n", world->rank, pair->others->name,
                pair->odd->name, pair->victim, weft_last_error());
    }
    RANK_CHECK(status == WEFT_ERR_MISMATCH);
    RANK_CHECK(strstr(weft_last_error(), victim) != NULL);
    RANK_CHECK(strstr(weft_last_error(), pair->odd->name) != NULL);
    RANK_CHECK(strstr(weft_last_error(), pair->others->name) != NULL);
    if (pair->odd->in_group && pair->others->in_group) {
        RANK_OK(weft_barrier(things.third, NULL));
        RANK_OK(weft_context_barrier(world->context));
    }
    weft_session_destroy(things.session);
    weft_stream_destroy(things.stream);
    weft_group_destroy(things.second);
    weft_group_destroy(things.third);
}

static void test_every_pair_of_kinds(void **state)
{
    (void)state;
    if (!CIRCLES) {
        skip();
    }
    setenv("WEFT_TIMEOUT", "300", 1);
    compile(3);
    for (uint32_t a = 0; a < KINDS; a++) {
        for (uint32_t b = 0; b < KINDS; b++) {
            pair_t pair = {&kinds[a], &kinds[b], (a + b) % 3};
            if (a != b) {
                support_rank_threads(3, run_pair, &pair);
            }
        }
    }
    release_plan();
    unsetenv("WEFT_TIMEOUT");
}

/* A group that takes the channel of one that ended in a circle: its first receive waits, too. */
static void run_after_a_circle(rank_world_t *world)
{
    float x[COUNT] = {1}, y[COUNT];
    weft_group_t *group = NULL;
    for (int i = 0; i < 3; i++) {
        RANK_OK(weft_group_duplicate(world->group, &group));
        if (i % 2 == 0) {
            RANK_CHECK(weft_recv(y, COUNT, WEFT_DTYPE_F32, 1 - world->rank, group, NULL) ==
                       WEFT_ERR_MISMATCH);
        } else if (world->rank == 0) {
            RANK_OK(weft_recv(y, COUNT, WEFT_DTYPE_F32, 1, group, NULL));
        } else {
            wefti_sleep_ns(300000000); /* long enough for rank 0 to look for circles */
            RANK_OK(weft_send(x, COUNT, WEFT_DTYPE_F32, 0, group, NULL));
        }
        weft_group_destroy(group);
    }
}

static void test_after_a_circle(void **state)
{
    (void)state;
    if (!CIRCLES) {
        skip();
    }
    setenv("WEFT_TIMEOUT", "300", 1);
    support_rank_threads(2, run_after_a_circle, NULL);
    assert_true(support_rank_processes_too(2, run_after_a_circle, NULL));
    unsetenv("WEFT_TIMEOUT");
}

/* ---- in one group ---- */

static void expect(weft_status_t status, const char *first, const char *second)
{
    RANK_CHECK(status == WEFT_ERR_MISMATCH);
    RANK_CHECK(strstr(weft_last_error(), first) != NULL);
    RANK_CHECK(strstr(weft_last_error(), second) != NULL);
}

/* Making a group of a part of the world takes calls of that group, which are named after it. */
static void run_creation_in_part(rank_world_t *world)
{
    weft_group_t *part = NULL, *group = NULL;
    float x[COUNT] = {0}, all[2 * COUNT];
    RANK_OK(weft_group_split(world->group, world->rank / 2, 0, &part));
    if (world->rank == 0) {
        expect(weft_all_gather(x, all, COUNT, WEFT_DTYPE_F32, part, NULL), "group creation",
               "all_gather with 8 x f32");
    } else if (world->rank == 1) {
        expect(weft_group_duplicate(part, &group), "group creation", "all_gather with 8 x f32");
    }
    weft_group_destroy(part);
}

static void run_shapes(rank_world_t *world)
{
    static const int64_t shapes[][2] = {{32, 32}, {16, 64}};
    float x[1024] = {0};
    static const uint32_t ranks[] = {2, 1, 0, WEFT_SHAPE_EXCHANGE};
    for (uint32_t i = 0; i < 4; i++) {
        weft_group_t *group = NULL;
        RANK_OK(weft_group_duplicate(world->group, &group));
        for (uint32_t k = 0; k < 2; k++) { /* alike, and none again in the next call */
            RANK_OK(weft_group_set_shape(group, shapes[k], k == 0 ? 2 : 0));
            RANK_OK(weft_all_reduce(x, x, 1024, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, group, NULL));
        }
        /* A mismatch ends the calls in flight of the group on all ranks, see collective.h. */
        RANK_OK(weft_barrier(world->group, NULL));
        RANK_OK(weft_group_set_shape(group, shapes[0], 2));
        if (world->rank == 1) {
            RANK_OK(weft_group_set_shape(group, shapes[1], ranks[i]));
        }
        weft_status_t status =
            weft_all_reduce(x, x, 1024, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, group, NULL);
        expect(status, "of shape (32, 32)",
               i == 0   ? "of shape (16, 64)"
               : i == 3 ? "1024 x f32 (shapes ahead of the data)"
                        : "of shape (1024)");
        weft_group_destroy(group);
    }
}

/* Of the second of three calls, which are two calls or one, in a batch or a capture. */
static void run_recorded_shapes(rank_world_t *world)
{
    static const int64_t shapes[][5] = {{8, 16}, {16, 8}, {2, 2, 2, 2, 8}};
    float(*large)[128 * 64] = calloc(3, sizeof *large);
    RANK_CHECK(large != NULL);
    for (uint32_t i = 0; i < 9; i++) {
        weft_group_t *group = NULL;
        weft_capture_t *capture = NULL;
        RANK_OK(weft_group_duplicate(world->group, &group));
        RANK_OK(i % 3 == 2 ? weft_capture_begin(group, NULL) : weft_batch_begin(group));
        for (uint32_t k = 0; k < 3; k++) {
            bool other = k == 1 && world->rank == 1;
            uint64_t count = k == 1 && i % 3 == 1 ? 128 * 64 : 128;
            int64_t dims[5] = {shapes[0][0], shapes[0][1] * (int64_t)count / 128};
            if (other) {
                memcpy(dims, shapes[1 + i / 3 % 2], sizeof dims);
            }
            RANK_OK(weft_group_set_shape(group, dims, !other || i < 3 ? 2 : i < 6 ? 5 : 0));
            RANK_OK(weft_all_reduce(large[k], large[k], count, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM,
                                    group, NULL));
        }
        weft_status_t status =
            i % 3 == 2 ? weft_capture_end(group, &capture) : weft_batch_end(group, NULL);
        expect(status, i % 3 == 1 ? "of shape (8, 1024)" : "of shape (8, 16)",
               i < 3    ? "of shape (16, 8)"
               : i >= 6 ? "of shape ("
                        : "of ");
        weft_capture_destroy(capture);
        weft_group_destroy(group);
    }
    free(large);
}

/* ---- calls that one rank refuses ---- */

#define LARGE 20000u /* elements: more than a call slot has */

typedef struct refused {
    rank_world_t *world;
    weft_stream_t *stream, *foreign; /* of another context; NULL without one */
    float *x, *y;                    /* [size * LARGE] */
    bool wrong;                      /* this rank has the wrong argument */
} refused_t;

static weft_status_t refuse_null(refused_t *r)
{
    return weft_all_reduce(r->wrong ? NULL : r->x, r->y, COUNT, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM,
                           r->world->group, NULL);
}

static weft_status_t refuse_large(refused_t *r)
{
    return weft_all_gather(r->x, r->wrong ? NULL : r->y, LARGE, WEFT_DTYPE_F32, r->world->group,
                           NULL);
}

static weft_status_t refuse_count(refused_t *r)
{
    return weft_reduce_scatter(r->x, r->y, r->wrong ? (uint64_t)-1 : COUNT, WEFT_DTYPE_F32,
                               WEFT_REDUCTION_SUM, r->world->group, NULL);
}

static weft_status_t refuse_type(refused_t *r)
{
    return weft_all_to_all(r->x, r->y, COUNT, r->wrong ? (weft_dtype_t)77 : WEFT_DTYPE_F32,
                           r->world->group, NULL);
}

static weft_status_t refuse_list(refused_t *r)
{
    const uint64_t counts[4] = {1, 2, 3, 4};
    return weft_all_gather_v(r->x, r->y, r->wrong ? NULL : counts, NULL, WEFT_DTYPE_F32,
                             r->world->group, NULL);
}

static weft_status_t refuse_root(refused_t *r)
{
    return weft_broadcast(r->x, r->x, LARGE, WEFT_DTYPE_F32, r->wrong ? 99 : 0, r->world->group,
                          NULL);
}

/* The call before it is still on the stream. */
static weft_status_t refuse_on_stream(refused_t *r)
{
    RANK_OK(weft_all_reduce(r->x, r->y, LARGE, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, r->world->group,
                            r->wrong ? r->stream : NULL));
    weft_status_t status =
        weft_all_reduce(r->x, r->wrong ? NULL : r->y, COUNT, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM,
                        r->world->group, r->wrong ? r->stream : NULL);
    if (r->wrong) {
        RANK_OK(weft_stream_synchronize(r->stream));
        RANK_CHECK(strstr(weft_last_error(), "recv is NULL") != NULL);
    }
    return status;
}

static weft_status_t refuse_foreign(refused_t *r)
{
    return weft_barrier(r->world->group, r->wrong ? r->foreign : NULL);
}

static weft_status_t refuse_by_name(refused_t *r)
{
    return r->wrong ? weft_group_refuse(r->world->group, WEFT_ERR_FORMAT, "no array", NULL)
                    : weft_barrier(r->world->group, NULL);
}

/* Rank 1 cannot send to rank 2. */
static void run_refused_sends(rank_world_t *world)
{
    float x[LARGE] = {0}, y[LARGE];
    weft_group_t *group = world->group;
    uint32_t to = (world->rank + 1) % world->size,
             from = (world->rank + world->size - 1) % world->size;
    for (uint32_t i = 0; i < 6; i++) { /* alone, then in a batch of the receiver */
        uint64_t count = i % 2 == 0 ? COUNT : LARGE;
        if (world->rank == 1) {
            weft_status_t status = weft_send(NULL, count, WEFT_DTYPE_F32, 2, group, NULL);
            RANK_CHECK(status == WEFT_ERR_INVALID_ARGUMENT);
            RANK_CHECK(strcmp(weft_last_error(), "Send: data is NULL") == 0);
        } else if (world->rank == 2) {
            RANK_OK(i > 3 ? weft_batch_begin(group) : WEFT_OK);
            weft_status_t status = weft_recv(y, count, WEFT_DTYPE_F32, 1, group, NULL);
            status = i > 3 ? weft_batch_end(group, NULL) : status;
            RANK_CHECK(status == WEFT_ERR_INVALID_ARGUMENT);
            RANK_CHECK(strcmp(weft_last_error(), "rank 1: Send: data is NULL") == 0);
        }
        /* the group is as before */
        x[count - 1] = (float)(world->rank + i);
        RANK_OK(weft_batch_begin(group));
        RANK_OK(weft_send(x, count, WEFT_DTYPE_F32, to, group, NULL));
        RANK_OK(weft_recv(y, count, WEFT_DTYPE_F32, from, group, NULL));
        RANK_OK(weft_batch_end(group, NULL));
        RANK_CHECK(y[count - 1] == (float)(from + i));
    }
}

/* Rank 1 refuses something that rank 0 waits for: both learn why at once, whether rank 1 goes on
 * elsewhere or does nothing. */
static void run_refused_and_on(rank_world_t *world)
{
    static const char *const why[] = {"rank 1: Send: invalid peer 9 for rank 1",
                                      "rank 1: Recv: data is NULL",
                                      "rank 1: session: the plan has 1 micro-batch per step"};
    uint32_t variant = *(const uint32_t *)world->user / 2;
    bool goes_on = *(const uint32_t *)world->user % 2 != 0;
    float x[LARGE] = {0};
    things_t things = {0};
    weft_group_t *group = world->group;
    weft_status_t status, refused = WEFT_ERR_INVALID_ARGUMENT;
    if (variant == 2) {
        open_session(world, &things);
        refused = WEFT_ERR_STATE;
    }
    if (world->rank == 0) {
        status = variant == 0   ? weft_recv(x, COUNT, WEFT_DTYPE_F32, 1, group, NULL)
                 : variant == 1 ? weft_send(x, LARGE, WEFT_DTYPE_F32, 1, group, NULL)
                                : weft_session_step(things.session);
    } else {
        status = variant == 0   ? weft_send(x, COUNT, WEFT_DTYPE_F32, 9, group, NULL)
                 : variant == 1 ? weft_recv(NULL, LARGE, WEFT_DTYPE_F32, 0, group, NULL)
                                : weft_session_micro_step(things.session);
        RANK_CHECK(status == refused);
        RANK_CHECK(strstr(weft_last_error(), why[variant] + strlen("rank 1: ")) != NULL);
        status = goes_on ? weft_barrier(group, NULL) : WEFT_OK;
        while (status == WEFT_OK) {
            wefti_sleep_ns(1000000);
            status = weft_group_status(group);
        }
    }
    RANK_CHECK(status == refused);
    RANK_CHECK(strstr(weft_last_error(), why[variant]) != NULL);
    weft_session_destroy(things.session);
}

/* Rank 1 refuses something in two groups, all go on in the first one, which says nothing about the
 * second one, and that fails much later: rank 1 reports that failure. */
static void run_refused_then_failed(rank_world_t *world)
{
    float x[COUNT] = {0}, y[COUNT];
    char text[512] = "";
    weft_group_t *second = NULL;
    RANK_OK(weft_group_duplicate(world->group, &second));
    if (world->rank == 1) {
        weft_status_t status = weft_send(x, COUNT, WEFT_DTYPE_F32, 9, second, NULL);
        RANK_CHECK(status == WEFT_ERR_INVALID_ARGUMENT);
    }
    weft_group_destroy(second);
    RANK_OK(weft_group_duplicate(world->group, &second)); /* in the same channel */
    if (world->rank == 1) {
        weft_status_t status =
            wefti_endpoint_add_error_of(world->group->endpoint, 1, text, sizeof text);
        RANK_CHECK(status == WEFT_OK);
        status = weft_send(x, COUNT, WEFT_DTYPE_F32, 9, world->group, NULL);
        RANK_CHECK(status == WEFT_ERR_INVALID_ARGUMENT);
        wefti_endpoint_add_error_of(world->group->endpoint, 1, text, sizeof text);
        RANK_CHECK(strstr(text, "invalid peer 9") != NULL);
        status = weft_send(x, COUNT, WEFT_DTYPE_F32, 8, second, NULL);
        RANK_CHECK(status == WEFT_ERR_INVALID_ARGUMENT);
    }
    RANK_OK(weft_barrier(world->group, NULL));
    if (world->rank == 1) {
        wefti_endpoint_add_error_of(world->group->endpoint, 1, text, sizeof text);
        RANK_CHECK(strstr(text, "invalid peer 8") != NULL);
    }
    weft_status_t status = weft_all_reduce(x, y, COUNT - world->rank, WEFT_DTYPE_F32,
                                           WEFT_REDUCTION_SUM, second, NULL);
    RANK_CHECK(status == WEFT_ERR_MISMATCH);
    if (world->rank == 1) {
        status = wefti_endpoint_add_error_of(world->group->endpoint, 1, text, sizeof text);
        RANK_CHECK(status == WEFT_ERR_MISMATCH && strstr(text, "invalid peer") == NULL);
    }
    RANK_OK(weft_barrier(world->group, NULL));
    weft_group_destroy(second);
}

static void test_refused_then_failed(void **state)
{
    const uint32_t host_of[2] = {0, 1};
    const wefti_hub_links_t links = {.host_of = host_of};
    (void)state;
    support_rank_threads(2, run_refused_then_failed, NULL);
    support_rank_threads_over(2, run_refused_then_failed, NULL, &links);
}

/* Rank 1 refuses a receive or a peer, and makes the right call before rank 0 comes: nothing is left of
 * the refusal. */
static void run_refused_and_corrected(rank_world_t *world)
{
    uint32_t variant = *(const uint32_t *)world->user;
    float *x = calloc(LARGE, sizeof *x);
    char text[512] = "";
    weft_stream_t *stream = NULL;
    weft_group_t *second = NULL;
    RANK_OK(weft_group_duplicate(world->group, &second));
    RANK_OK(weft_stream_create(world->context, NULL, &stream));
    x[LARGE - 1] = world->rank == 0 ? 3 : 0;
    if (world->rank == 1) {
        weft_status_t status = variant == 0
                                   ? weft_recv(NULL, LARGE, WEFT_DTYPE_F32, 0, world->group, NULL)
                                   : weft_recv(x, LARGE, WEFT_DTYPE_F32, 9, world->group, NULL);
        RANK_CHECK(status == WEFT_ERR_INVALID_ARGUMENT);
        RANK_OK(weft_recv(x, LARGE, WEFT_DTYPE_F32, 0, world->group, stream));
    }
    RANK_OK(weft_barrier(second, NULL));
    if (world->rank == 0) {
        RANK_OK(weft_send(x, LARGE, WEFT_DTYPE_F32, 1, world->group, NULL));
    }
    RANK_OK(weft_stream_synchronize(stream));
    RANK_CHECK(x[LARGE - 1] == 3);
    if (world->rank == 1) {
        RANK_CHECK(wefti_endpoint_add_error_of(world->group->endpoint, 1, text, sizeof text) ==
                   WEFT_OK);
    }
    RANK_OK(weft_barrier(world->group, NULL));
    weft_stream_destroy(stream);
    weft_group_destroy(second);
    free(x);
}

static void test_refused_and_corrected(void **state)
{
    const uint32_t host_of[2] = {0, 1};
    const wefti_hub_links_t links = {.host_of = host_of};
    (void)state;
    for (uint32_t variant = 0; variant < 2; variant++) {
        support_rank_threads(2, run_refused_and_corrected, &variant);
        support_rank_threads_over(2, run_refused_and_corrected, &variant, &links);
    }
}

#define GROUPS (WEFTI_REFUSALS + 1)

/* Rank 1 refuses a receive in each of several groups: all ranks that send there learn it, also in
 * the last one, for which there is no place left. */
static void run_refused_in_groups(rank_world_t *world)
{
    float x[LARGE] = {0};
    weft_group_t *groups[GROUPS];
    for (uint32_t g = 0; g < GROUPS; g++) {
        RANK_OK(weft_group_duplicate(world->group, &groups[g]));
    }
    for (uint32_t g = 0; g < GROUPS && world->rank == 1; g++) {
        weft_status_t status = weft_recv(NULL, LARGE, WEFT_DTYPE_F32, 2 * (g % 2), groups[g], NULL);
        RANK_CHECK(status == WEFT_ERR_INVALID_ARGUMENT);
    }
    RANK_OK(weft_barrier(world->group, NULL));
    for (uint32_t g = 0; g < GROUPS; g++) {
        if (world->rank == 2 * (g % 2)) {
            weft_status_t status = weft_send(x, LARGE, WEFT_DTYPE_F32, 1, groups[g], NULL);
            RANK_CHECK(status == WEFT_ERR_INVALID_ARGUMENT);
            RANK_CHECK(strstr(weft_last_error(), "rank 1: Recv: data is NULL") != NULL);
        }
    }
    for (uint32_t g = 0; g < GROUPS; g++) {
        weft_group_destroy(groups[g]);
    }
}

/* Rank 1 refuses a receive. That is nothing to a rank that waits for what rank 1 sends. */
static void run_refused_other_way(rank_world_t *world)
{
    float x[COUNT] = {0};
    wefti_wait_t list[WEFTI_WAITS];
    weft_group_t *second = NULL;
    RANK_OK(weft_group_duplicate(world->group, &second));
    if (world->rank == 1) {
        weft_status_t status = weft_recv(NULL, LARGE, WEFT_DTYPE_F32, 0, second, NULL);
        RANK_CHECK(status == WEFT_ERR_INVALID_ARGUMENT);
        RANK_OK(weft_barrier(world->group, NULL));
        for (uint32_t seen = 0; seen < 30;) { /* rank 0 looks around meanwhile */
            seen += wefti_waits_read(world->group->endpoint, 0, list) > 0;
            wefti_sleep_ns(1000000);
        }
        x[0] = 7;
        RANK_OK(weft_send(x, COUNT, WEFT_DTYPE_F32, 0, second, NULL));
    } else {
        RANK_OK(weft_barrier(world->group, NULL));
        RANK_OK(weft_recv(x, COUNT, WEFT_DTYPE_F32, 1, second, NULL));
        RANK_CHECK(x[0] == 7);
    }
    RANK_OK(weft_barrier(second, NULL)); /* nothing is left of the refusal */
    weft_group_destroy(second);
}

static void test_refused_more(void **state)
{
    const uint32_t host_of[3] = {0, 1, 1};
    const wefti_hub_links_t links = {.host_of = host_of};
    (void)state;
    setenv("WEFT_TIMEOUT", "300", 1);
    support_rank_threads(3, run_refused_in_groups, NULL);
    support_rank_threads_over(3, run_refused_in_groups, NULL, &links);
    assert_true(support_rank_processes_too(3, run_refused_in_groups, NULL));
    support_rank_threads(2, run_refused_other_way, NULL);
    support_rank_threads_over(2, run_refused_other_way, NULL, &links);
    unsetenv("WEFT_TIMEOUT");
}

static void test_refused_and_on(void **state)
{
    const uint32_t host_of[2] = {0, 1};
    const wefti_hub_links_t links = {.host_of = host_of};
    (void)state;
    if (!CIRCLES) {
        skip();
    }
    setenv("WEFT_TIMEOUT", "300", 1);
    compile(2);
    for (uint32_t variant = 0; variant < 6; variant++) {
        support_rank_threads(2, run_refused_and_on, &variant);
        support_rank_threads_over(2, run_refused_and_on, &variant, &links);
        assert_true(support_rank_processes_too(2, run_refused_and_on, &variant));
    }
    release_plan();
    unsetenv("WEFT_TIMEOUT");
}

static weft_status_t refuse_in_batch(refused_t *r)
{
    RANK_OK(weft_batch_begin(r->world->group));
    RANK_OK(weft_all_reduce(r->x, r->y, COUNT, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, r->world->group,
                            NULL));
    weft_status_t status = refuse_null(r);
    RANK_CHECK((status == WEFT_OK) == !r->wrong);
    RANK_OK(weft_all_reduce(r->x, r->y, LARGE, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, r->world->group,
                            NULL));
    return weft_batch_end(r->world->group, NULL);
}

/* As bindings do after an error. */
static weft_status_t refuse_and_cancel(refused_t *r)
{
    RANK_OK(weft_batch_begin(r->world->group));
    weft_status_t status = refuse_large(r);
    if (!r->wrong) {
        return weft_batch_end(r->world->group, NULL);
    }
    RANK_OK(weft_batch_cancel(r->world->group));
    return status;
}

/* What the others captured comes to nothing. */
static weft_status_t refuse_to_capture(refused_t *r)
{
    weft_capture_params_t params = WEFT_CAPTURE_PARAMS_INIT;
    weft_capture_t *capture = NULL;
    params.bucket = r->wrong ? "?" : NULL;
    weft_status_t status = weft_capture_begin(r->world->group, &params);
    if (status == WEFT_OK) {
        RANK_OK(weft_all_reduce(r->x, r->y, COUNT, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM,
                                r->world->group, NULL));
        status = weft_capture_end(r->world->group, &capture);
    }
    return status;
}

static weft_status_t refuse_in_capture(refused_t *r)
{
    weft_capture_t *capture = NULL;
    RANK_OK(weft_capture_begin(r->world->group, NULL));
    weft_status_t status = refuse_null(r);
    RANK_CHECK((status == WEFT_OK) == !r->wrong);
    return weft_capture_end(r->world->group, &capture);
}

static const struct {
    weft_status_t (*call)(refused_t *r);
    weft_status_t status;
    const char *text;
} refusals[] = {
    {refuse_null, WEFT_ERR_INVALID_ARGUMENT, "AllReduce: send is NULL"},
    {refuse_large, WEFT_ERR_INVALID_ARGUMENT, "AllGather: recv is NULL"},
    {refuse_count, WEFT_ERR_INVALID_ARGUMENT, "ReduceScatter: count too large"},
    {refuse_type, WEFT_ERR_INVALID_ARGUMENT, "AllToAll: invalid dtype 77"},
    {refuse_list, WEFT_ERR_INVALID_ARGUMENT, "weft_all_gather_v: counts is NULL"},
    {refuse_root, WEFT_ERR_INVALID_ARGUMENT, "Broadcast: invalid root 99"},
    {refuse_on_stream, WEFT_ERR_INVALID_ARGUMENT, "AllReduce: recv is NULL"},
    {refuse_foreign, WEFT_ERR_INVALID_ARGUMENT, "stream"},
    {refuse_by_name, WEFT_ERR_FORMAT, "no array"},
    {refuse_in_batch, WEFT_ERR_INVALID_ARGUMENT, "AllReduce: send is NULL"},
    {refuse_and_cancel, WEFT_ERR_INVALID_ARGUMENT, "AllGather: recv is NULL"},
    {refuse_in_capture, WEFT_ERR_INVALID_ARGUMENT, "AllReduce: send is NULL"},
    {refuse_to_capture, WEFT_ERR_INVALID_ARGUMENT, "capture_begin: "},
};

static void check_sum(refused_t *r, uint64_t count)
{
    r->x[0] = (float)(r->world->rank + 1);
    RANK_OK(weft_all_reduce(r->x, r->y, count, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, r->world->group,
                            NULL));
    RANK_CHECK(r->y[0] == (float)(r->world->size * (r->world->size + 1) / 2));
}

/* Every rank in turn, then every rank but one. */
static void run_refused(rank_world_t *world)
{
    refused_t r = {.world = world};
    weft_context_params_t params = WEFT_CONTEXT_PARAMS_INIT;
    weft_context_t *other = NULL;
    params.world_size = 1;
    r.x = calloc(world->size * LARGE, sizeof *r.x);
    r.y = calloc(world->size * LARGE, sizeof *r.y);
    RANK_CHECK(r.x != NULL && r.y != NULL);
    RANK_OK(weft_stream_create(world->context, NULL, &r.stream));
    RANK_OK(weft_context_create(&params, &other));
    RANK_OK(weft_stream_create(other, NULL, &r.foreign));
    for (uint32_t i = 0; i < 2 * world->size * sizeof refusals / sizeof *refusals; i++) {
        uint32_t kind = i / 2 / world->size, victim = i % world->size;
        bool many = i / world->size % 2 != 0;
        r.wrong = (world->rank == victim) != many;
        weft_status_t status = refusals[kind].call(&r);
        RANK_CHECK(status == refusals[kind].status);
        if (kind != 6 || !r.wrong) {
            char prefix[16];
            snprintf(prefix, sizeof prefix, "rank %u: ", victim);
            bool of_other = strncmp(weft_last_error(), "rank ", 5) == 0 ||
                            strncmp(weft_last_error(), "batch: call 0: rank ", 20) == 0;
            RANK_CHECK(strstr(weft_last_error(), refusals[kind].text) != NULL);
            bool agrees = refusals[kind].call == refuse_in_capture;
            RANK_CHECK(r.wrong != of_other || agrees);
            RANK_CHECK(r.wrong || many || strstr(weft_last_error(), prefix) != NULL);
        }
        if (i % 3 != 0) { /* else the next call is the next one to be refused */
            check_sum(&r, i % 3 == 1 ? COUNT : LARGE);
        }
    }
    /* a small broadcast needs nothing of ranks that only receive */
    weft_status_t status = weft_broadcast(r.x, world->rank == 1 ? NULL : r.x, COUNT, WEFT_DTYPE_F32,
                                          0, world->group, NULL);
    RANK_CHECK(status == (world->rank == 1 ? WEFT_ERR_INVALID_ARGUMENT : WEFT_OK));
    check_sum(&r, COUNT);
    weft_stream_destroy(r.stream);
    weft_stream_destroy(r.foreign);
    weft_context_release(other);
    free(r.x);
    free(r.y);
}

/* With WEFT_CHECK some calls have two sequence numbers: also calls that a rank refuses, whatever
 * they are. Small rooted ones are complete on some ranks, and are not compared then. */
static void run_refused_checked(rank_world_t *world)
{
    float x[COUNT] = {0}, y[COUNT];
    for (uint32_t i = 0; i < 60; i++) {
        weft_group_t *group = world->group;
        uint32_t victim = i % world->size;
        bool wrong = world->rank == victim;
        x[COUNT - 1] = (float)(world->rank + i);
        weft_status_t status =
            i % 3 == 0 ? weft_group_refuse(group, WEFT_ERR_FORMAT, "no array", NULL)
            : i % 3 == 1
                ? weft_broadcast(x, wrong ? NULL : y, COUNT, WEFT_DTYPE_F32, 0, group, NULL)
                : weft_reduce(x, y, COUNT, WEFT_DTYPE_F32,
                              wrong ? (weft_reduction_t)77 : WEFT_REDUCTION_SUM, 0, group, NULL);
        RANK_CHECK(!wrong || status < 0);
        for (uint32_t k = 0; k < i % 4; k++) {
            RANK_OK(weft_barrier(group, NULL));
            RANK_OK(weft_all_reduce(x, y, COUNT, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, group, NULL));
            uint32_t n = world->size;
            RANK_CHECK(y[COUNT - 1] == (float)(n * (n - 1) / 2 + n * i));
        }
    }
}

static void test_refused(void **state)
{
    const uint32_t host_of[3] = {0, 1, 1};
    const wefti_hub_links_t links = {.host_of = host_of};
    (void)state;
    setenv("WEFT_TIMEOUT", "300", 1);
    support_rank_threads(3, run_refused, NULL);
    support_rank_threads(3, run_refused_sends, NULL);
    support_rank_threads_over(3, run_refused_sends, NULL, &links);
    assert_true(support_rank_processes_too(3, run_refused_sends, NULL));
    support_rank_threads_over(3, run_refused, NULL, &links);
    assert_true(support_rank_processes_too(2, run_refused, NULL));
    setenv("WEFT_ORDER", "any", 1);
    support_rank_threads(3, run_refused, NULL);
    unsetenv("WEFT_ORDER");
    static const char *const checks[] = {"results", "results:2", "results:5"};
    for (int i = 0; i < 3; i++) {
        setenv("WEFT_CHECK", checks[i], 1);
        support_rank_threads(2, run_refused_checked, NULL);
        support_rank_threads_over(3, run_refused_checked, NULL, &links);
        assert_true(support_rank_processes_too(3, run_refused, NULL));
    }
    unsetenv("WEFT_CHECK");
    unsetenv("WEFT_TIMEOUT");
}

static void test_in_one_group(void **state)
{
    (void)state;
    setenv("WEFT_TIMEOUT", "300", 1);
    support_rank_threads(3, run_creation_in_part, NULL);
    support_rank_threads(2, run_shapes, NULL);
    support_rank_threads(2, run_recorded_shapes, NULL);
    const uint32_t host_of[3] = {0, 1, 1};
    const wefti_hub_links_t links = {.host_of = host_of};
    support_rank_threads_over(3, run_shapes, NULL, &links);
    support_rank_threads_over(3, run_recorded_shapes, NULL, &links);
    assert_true(support_rank_processes_too(3, run_recorded_shapes, NULL));
    assert_true(support_rank_processes_too(3, run_shapes, NULL));
    unsetenv("WEFT_TIMEOUT");
}

/* ---- programs that are right ---- */

#define STEPS 12u
#define MOST_MS 40u

/*
 * Two lists of calls, each in one order on all ranks. Most ranks have a thread for each; rank 0 has
 * one thread for both, in an order of its own. Ranks come late to each call, by random times.
 */
typedef struct legal {
    uint64_t seed;
    uint32_t steps[2][STEPS]; /* which call */
    uint32_t merged[2 * STEPS];
} legal_t;

typedef struct worker {
    rank_world_t *world;
    things_t *things;
    const legal_t *legal;
    weft_group_t *group; /* of the second list */
    uint32_t list;
    uint64_t state;
} worker_t;

static void first_call(worker_t *worker, uint32_t step)
{
    rank_world_t *world = worker->world;
    things_t *things = worker->things;
    switch (step % 7) {
    case 0:
        RANK_OK(call_all_reduce(world, things));
        break;
    case 1:
        RANK_OK(call_mem_alloc(world, things));
        break;
    case 2:
        RANK_OK(call_context_barrier(world, things));
        break;
    case 3:
        RANK_OK(weft_barrier(things->second, things->stream)); /* goes on during what comes next */
        break;
    case 4:
        RANK_OK(weft_stream_synchronize(things->stream));
        break;
    case 5:
        RANK_OK(call_step(world, things));
        break;
    default: {
        weft_group_t *group = NULL;
        RANK_OK(weft_group_duplicate(world->group, &group));
        weft_group_destroy(group);
    }
    }
}

static void second_call(worker_t *worker, uint32_t step)
{
    const rank_world_t *world = worker->world;
    float x[COUNT] = {1}, all[4 * COUNT];
    if (step % 3 == 2) { /* around a ring */
        RANK_OK(weft_batch_begin(worker->group));
        RANK_OK(weft_send(x, COUNT, WEFT_DTYPE_F32, (world->rank + 1) % world->size, worker->group,
                          NULL));
        RANK_OK(weft_recv(all, COUNT, WEFT_DTYPE_F32, (world->rank + world->size - 1) % world->size,
                          worker->group, NULL));
        RANK_OK(weft_batch_end(worker->group, NULL));
    } else if (step % 2 == 0) {
        RANK_OK(
            weft_all_reduce(x, x, COUNT, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, worker->group, NULL));
        RANK_CHECK(x[0] == (float)world->size);
    } else {
        RANK_OK(weft_all_gather(x, all, COUNT, WEFT_DTYPE_F32, worker->group, NULL));
    }
}

static void make_call(worker_t *worker, uint32_t list, uint32_t i)
{
    uint32_t step = worker->legal->steps[list][i];
    if (test_next_random(&worker->state) % 4 == 0) {
        wefti_sleep_ns(test_next_random(&worker->state) % MOST_MS * 1000000);
    }
    if (list == 0) {
        first_call(worker, step);
    } else {
        second_call(worker, step);
    }
}

static void *run_list(void *user)
{
    worker_t *worker = user;
    for (uint32_t i = 0; i < STEPS; i++) {
        make_call(worker, worker->list, i);
    }
    return NULL;
}

static void run_legal(rank_world_t *world)
{
    const legal_t *legal = world->user;
    things_t things = {0};
    weft_group_t *group = NULL;
    RANK_OK(weft_group_duplicate(world->group, &things.second));
    RANK_OK(weft_group_duplicate(world->group, &group));
    RANK_OK(weft_stream_create(world->context, NULL, &things.stream));
    open_session(world, &things);
    worker_t first = {world, &things, legal, group, 0, legal->seed * 31 + world->rank + 1};
    worker_t second = {world, &things, legal, group, 1, legal->seed * 37 + world->rank + 1};
    if (world->rank == 0) {
        uint32_t at[2] = {0, 0};
        for (uint32_t i = 0; i < 2 * STEPS; i++) {
            uint32_t list = legal->merged[i];
            make_call(list == 0 ? &first : &second, list, at[list]++);
        }
    } else {
        pthread_t thread;
        RANK_CHECK(pthread_create(&thread, NULL, run_list, &second) == 0);
        run_list(&first);
        pthread_join(thread, NULL);
    }
    RANK_OK(weft_stream_synchronize(things.stream));
    RANK_OK(weft_context_barrier(world->context));
    weft_session_destroy(things.session);
    weft_stream_destroy(things.stream);
    weft_group_destroy(group);
    weft_group_destroy(things.second);
}

static void test_legal_programs(void **state)
{
    (void)state;
    uint64_t random = test_seed();
    uint32_t worlds = getenv("WEFT_TEST_WORLDS") != NULL
                          ? (uint32_t)strtoul(getenv("WEFT_TEST_WORLDS"), NULL, 10)
                          : 6;
    setenv("WEFT_TIMEOUT", "300", 1);
    for (uint32_t w = 0; w < worlds; w++) {
        legal_t legal = {.seed = test_next_random(&random)};
        uint32_t left[2] = {STEPS, STEPS};
        for (uint32_t i = 0; i < 2 * STEPS; i++) {
            legal.steps[i / STEPS][i % STEPS] = (uint32_t)(test_next_random(&random) % 7);
            uint32_t list = (uint32_t)(test_next_random(&random) % 2);
            list = left[list] > 0 ? list : 1 - list;
            legal.merged[i] = list;
            left[list]--;
        }
        compile(2 + w % 3);
        if (w % 2 == 0) {
            support_rank_threads(2 + w % 3, run_legal, &legal);
        } else {
            over_sockets(w % 6 == 3 ? "abcd" : w % 6 == 5 ? "aabb" : NULL);
            assert_true(support_rank_processes_too(2 + w % 3, run_legal, &legal));
        }
        release_plan();
    }
    over_sockets(NULL);
    unsetenv("WEFT_TIMEOUT");
}

/* Some pairs of kinds; links: between ranks that are threads, NULL: ranks are processes. */
static void run_some_pairs(const wefti_hub_links_t *links)
{
    static const uint32_t pairs[][2] = {{0, 4},  {2, 0},  {4, 5},  {9, 1},  {11, 0},
                                        {0, 11}, {11, 4}, {3, 11}, {12, 2}, {4, 12}};
    if (!CIRCLES) {
        skip();
    }
    setenv("WEFT_TIMEOUT", "300", 1);
    compile(3);
    for (uint32_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        pair_t pair = {&kinds[pairs[i][0]], &kinds[pairs[i][1]], i % 3};
        if (links != NULL) {
            support_rank_threads_over(3, run_pair, &pair, links);
        } else {
            assert_true(support_rank_processes_too(3, run_pair, &pair));
        }
    }
    release_plan();
    unsetenv("WEFT_TIMEOUT");
}

static void test_kinds_between_processes(void **state)
{
    (void)state;
    run_some_pairs(NULL);
}

static void test_kinds_between_hosts(void **state)
{
    const uint32_t host_of[3] = {0, 1, 2};
    const wefti_hub_links_t links = {.host_of = host_of};
    (void)state;
    run_some_pairs(&links);
    over_sockets("abc");
    run_some_pairs(NULL);
    over_sockets("aab");
    run_some_pairs(NULL);
    over_sockets(NULL);
}

/* Also after a failure: the tests that follow are not over sockets. */
static int back_to_one_host(void **state)
{
    (void)state;
    over_sockets(NULL);
    unsetenv("WEFT_TIMEOUT");
    return 0;
}

int main(void)
{
    cmocka_set_test_filter(getenv("WEFT_TEST_FILTER"));
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_pair_of_kinds),
        cmocka_unit_test(test_after_a_circle),
        cmocka_unit_test(test_kinds_between_processes),
        cmocka_unit_test_teardown(test_kinds_between_hosts, back_to_one_host),
        cmocka_unit_test(test_in_one_group),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_refused_and_on),
        cmocka_unit_test(test_refused_more),
        cmocka_unit_test(test_refused_and_corrected),
        cmocka_unit_test(test_refused_then_failed),
        cmocka_unit_test_teardown(test_legal_programs, back_to_one_host),
    };
    return cmocka_run_group_tests_name("runtime waits", tests, NULL, NULL);
}
