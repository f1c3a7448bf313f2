/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checkpoints of real plans: going on gives the bits of not having stopped, on every kind of link
 * and device, and at another number of ranks, bucket policy and shard mode everything is there;
 * state tensors and gradients by name.
 */
#include "support.h"

#include "support_cards.h"
#include "tests/support/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define STEPS 5u
#define STOP 2u
#define MLP WEFT_SOURCE_DIR "/tests/data/torch_mlp_batch4.onnx"
#define DROPOUT WEFT_SOURCE_DIR "/tests/data/torch_dropout_batch4.onnx"

static char directory[64];

static const char *path_of(const char *name, char *buffer, size_t bytes)
{
    snprintf(buffer, bytes, "%s/%s", directory, name);
    return buffer;
}

static int make_directory(void **state)
{
    (void)state;
    snprintf(directory, sizeof directory, "/tmp/weft-checkpoint-XXXXXX");
    return mkdtemp(directory) == NULL;
}

static int remove_directory(void **state)
{
    char path[128];
    (void)state;
    unlink(path_of("a", path, sizeof path));
    unlink(path_of("b", path, sizeof path));
    return rmdir(directory); /* nothing else may be left in it */
}

typedef struct job {
    const char *model, *optimizer, *bucket;
    uint32_t world;
    bool shard, decouple, parameters;
    weft_plan_t *plan;
    uint32_t until;   /* steps in all */
    uint32_t save_at; /* 0: nothing is saved */
    const char *load; /* NULL: from the beginning */
    const char *save;
    bool goes_on;                 /* saves while it trains */
    char digest[65], tensors[65]; /* of rank 0, at the end */
} job_t;

static void compile(job_t *job)
{
    weft_compile_params_t params = WEFT_COMPILE_PARAMS_INIT;
    params.model_path = job->model;
    params.world_size = job->world;
    params.optimizer = job->optimizer;
    params.bucket = job->bucket;
    params.shard_optimizer = job->shard;
    params.decouple = job->decouple;
    params.shard_parameters = job->parameters;
    if (weft_compile(&params, &job->plan) < 0) {
        print_error("%s\n", weft_last_error());
        fail();
    }
}

static void train(rank_world_t *world)
{
    job_t *job = world->user;
    weft_session_t *session = NULL;
    weft_session_params_t params = WEFT_SESSION_PARAMS_INIT;
    params.context = world->context;
    params.plan = job->plan;
    weft_checkpoint_info_t info = WEFT_CHECKPOINT_INFO_INIT;
    weft_checkpoint_writer_t *writer = NULL;
    uint32_t first = 0;
    char digest[65], tensors[65];
    RANK_OK(weft_session_create(&params, &session));
    if (job->load != NULL) {
        RANK_OK(weft_session_load_checkpoint(session, job->load, &info));
        RANK_CHECK(info.seed == 11 && info.epoch == 3 && info.sample == 96 && info.step == STOP);
        RANK_CHECK(info.lr > 0.24 && info.lr < 0.26 && strcmp(info.optimizer, job->optimizer) == 0);
        first = (uint32_t)info.step;
    }
    for (uint32_t step = first; step < job->until; step++) {
        RANK_OK(support_feed(session, job->plan, world->rank, step));
        RANK_OK(weft_session_step(session));
        if (step + 1 == job->save_at) {
            weft_checkpoint_info_t position = {.struct_size = sizeof position,
                                               .seed = 11,
                                               .epoch = 3,
                                               .sample = 96,
                                               .sample_count = 1000,
                                               .lr = 0.25};
            const weft_checkpoint_info_t *info_of_rank = world->rank == 0 ? &position : NULL;
            if (job->goes_on) {
                RANK_OK(weft_checkpoint_writer_create(session, NULL, &writer));
                RANK_OK(weft_checkpoint_writer_start(writer, job->save, info_of_rank));
            } else {
                RANK_OK(weft_session_save_checkpoint(session, job->save, info_of_rank));
            }
        }
    }
    if (writer != NULL) {
        RANK_OK(weft_checkpoint_writer_wait(writer));
        weft_checkpoint_writer_destroy(writer);
    }
    RANK_OK(weft_session_param_digest(session, digest));
    support_digest_state(session, tensors);
    if (world->rank == 0) {
        memcpy(job->digest, digest, sizeof digest);
        memcpy(job->tensors, tensors, sizeof tensors);
    }
    weft_session_destroy(session);
}

static bool same_files(const char *a, const char *b)
{
    FILE *files[] = {fopen(a, "rb"), fopen(b, "rb")};
    assert_true(files[0] != NULL && files[1] != NULL);
    int x, y;
    do {
        x = fgetc(files[0]);
        y = fgetc(files[1]);
    } while (x == y && x != EOF);
    fclose(files[0]);
    fclose(files[1]);
    return x == y;
}

typedef enum where { THREADS, HOSTS, CARDS, PROCESSES } where_t;

static void run(job_t *job, where_t where)
{
    static const uint32_t host_of[] = {0, 0, 1, 1};
    const wefti_hub_links_t links = {host_of, 7, 10000};
    compile(job);
    if (where == CARDS) {
        support_card_contexts(job->world, train, job);
    } else {
        support_rank_threads_over(job->world, train, job, where == HOSTS ? &links : NULL);
    }
    weft_plan_release(job->plan);
    job->plan = NULL;
}

/* Straight through, stopped and gone on from: the same weights and states. */
static void check_resume(const job_t *kind, where_t where)
{
    char a[128];
    job_t whole = *kind, stopped = *kind, resumed = *kind;
    whole.until = resumed.until = STEPS;
    stopped.until = stopped.save_at = STOP;
    stopped.save = resumed.load = path_of("a", a, sizeof a);
    run(&whole, where);
    run(&stopped, where);
    run(&resumed, where);
    assert_string_equal(resumed.digest, whole.digest);
    assert_string_equal(resumed.tensors, whole.tensors);
    assert_string_not_equal(stopped.digest, whole.digest);
}

static void test_resumed_training_has_the_bits_of_uninterrupted(void **state)
{
    static const char *const optimizers[] = {"sgd", "momentum", "adam"};
    (void)state;
    for (int i = 0; i < 3; i++) {
        for (uint32_t world = 1; world <= 3; world++) {
            check_resume(&(job_t){.model = MLP, .optimizer = optimizers[i], .world = world},
                         THREADS);
        }
    }
    check_resume(&(job_t){.model = DROPOUT, .optimizer = "adam", .world = 2}, THREADS);
}

static void test_shards_are_gathered_and_scattered(void **state)
{
    (void)state;
    check_resume(&(job_t){.model = MLP, .optimizer = "adam", .world = 3, .shard = true}, THREADS);
    check_resume(&(job_t){.model = MLP, .optimizer = "momentum", .world = 2, .decouple = true},
                 THREADS);
    check_resume(&(job_t){.model = MLP, .optimizer = "adam", .world = 3, .parameters = true},
                 THREADS);
}

static void test_over_put_links(void **state)
{
    (void)state;
    check_resume(&(job_t){.model = MLP, .optimizer = "adam", .world = 4, .shard = true}, HOSTS);
    check_resume(&(job_t){.model = MLP, .optimizer = "adam", .world = 4, .parameters = true},
                 HOSTS);
    check_resume(&(job_t){.model = MLP, .optimizer = "momentum", .world = 3}, HOSTS);
}

static void test_on_cards(void **state)
{
    (void)state;
    check_resume(&(job_t){.model = MLP, .optimizer = "adam", .world = 2}, CARDS);
    check_resume(&(job_t){.model = MLP, .optimizer = "adam", .world = 2, .parameters = true},
                 CARDS);
}

/* Saved by one kind of run, taken by another, saved again at once: the same contents. */
/* What is written while training goes on is what there was when it was asked for. */
static void test_written_while_training_goes_on(void **state)
{
    static const where_t places[] = {THREADS, HOSTS, CARDS};
    char a[128], b[128];
    (void)state;
    for (uint32_t i = 0; i < 6; i++) {
        job_t job = {.model = MLP,
                     .optimizer = "adam",
                     .world = 3,
                     .shard = i % 2 == 1,
                     .until = STEPS,
                     .save_at = STOP,
                     .save = path_of("a", a, sizeof a)};
        run(&job, places[i / 2]);
        job.goes_on = true;
        job.save = path_of("b", b, sizeof b);
        run(&job, places[i / 2]);
        assert_true(same_files(a, b));
    }
}

/* The newest in its file, those before it beside it; a damaged one is passed over. */
static void keep_some(rank_world_t *world)
{
    job_t *job = world->user;
    weft_session_params_t params = WEFT_SESSION_PARAMS_INIT;
    weft_checkpoint_writer_params_t keeps = WEFT_CHECKPOINT_WRITER_PARAMS_INIT;
    weft_session_t *session = NULL;
    weft_checkpoint_writer_t *writer = NULL;
    params.context = world->context;
    params.plan = job->plan;
    keeps.keep = 1000;
    RANK_OK(weft_session_create(&params, &session));
    writer = (weft_checkpoint_writer_t *)&keeps;
    RANK_CHECK(weft_checkpoint_writer_create(session, &keeps, &writer) ==
               WEFT_ERR_INVALID_ARGUMENT);
    RANK_CHECK(writer == NULL);
    keeps.keep = 3;
    RANK_OK(weft_checkpoint_writer_create(session, &keeps, &writer));
    for (uint32_t step = 0; step < STEPS; step++) {
        RANK_OK(support_feed(session, job->plan, world->rank, step));
        RANK_OK(weft_session_step(session));
        RANK_OK(weft_checkpoint_writer_start(writer, job->save, NULL));
    }
    RANK_OK(weft_checkpoint_writer_wait(writer));
    RANK_OK(weft_checkpoint_writer_wait(writer));
    /* On all ranks, once; the files that there are stay. */
    RANK_OK(weft_checkpoint_writer_start(writer, "/nowhere/a", NULL));
    RANK_CHECK(weft_checkpoint_writer_start(writer, job->save, NULL) == WEFT_ERR_NOT_FOUND);
    RANK_CHECK(strstr(weft_last_error(), "/nowhere/a") != NULL);
    RANK_OK(weft_checkpoint_writer_wait(writer));
    RANK_OK(weft_checkpoint_writer_start(writer, "/nowhere/a", NULL));
    weft_checkpoint_writer_destroy(writer);
    weft_session_destroy(session);
}

static void save_once(rank_world_t *world)
{
    const job_t *job = world->user;
    weft_session_params_t params = WEFT_SESSION_PARAMS_INIT;
    weft_session_t *session = NULL;
    params.context = world->context;
    params.plan = job->plan;
    RANK_OK(weft_session_create(&params, &session));
    RANK_OK(weft_session_save_checkpoint(session, job->save, NULL));
    weft_session_destroy(session);
}

static void test_earlier_ones_are_kept(void **state)
{
    char path[128], older[140], found[140];
    weft_checkpoint_info_t info = WEFT_CHECKPOINT_INFO_INIT;
    job_t job = {.model = MLP, .optimizer = "sgd", .world = 2};
    (void)state;
    job.save = path_of("a", path, sizeof path);
    unlink(path);
    assert_int_equal(weft_checkpoint_newest(path, found, sizeof found, NULL), WEFT_ERR_NOT_FOUND);
    snprintf(older, sizeof older, "%s:", path);
    assert_non_null(strstr(weft_last_error(), older));
    compile(&job);
    support_rank_threads(2, keep_some, &job);
    for (uint32_t n = 0; n < 3; n++) {
        assert_int_equal(weft_checkpoint_newest(path, found, sizeof found, &info), WEFT_OK);
        assert_int_equal(info.step, STEPS - n);
        snprintf(older, sizeof older, n == 0 ? "%s" : "%s.%u", path, n);
        assert_string_equal(found, older);
        assert_int_equal(weft_checkpoint_newest(path, found, strlen(older), NULL),
                         WEFT_ERR_INVALID_ARGUMENT);
        FILE *file = fopen(older, "r+b");
        assert_non_null(file);
        fseek(file, -1, SEEK_END);
        int last = fgetc(file);
        fseek(file, -1, SEEK_END);
        fputc(last ^ 1, file);
        fclose(file);
    }
    assert_int_equal(weft_checkpoint_newest(path, found, sizeof found, NULL), WEFT_ERR_FORMAT);
    assert_non_null(strstr(weft_last_error(), "digest mismatch"));
    /* As a process leaves it that is killed between two renames. */
    snprintf(older, sizeof older, "%s.new", path);
    job.save = older;
    support_rank_threads(2, save_once, &job);
    assert_int_equal(weft_checkpoint_newest(path, found, sizeof found, &info), WEFT_OK);
    assert_string_equal(found, older);
    assert_int_equal(info.step, 0);
    unlink(older);
    unlink(path);
    for (uint32_t n = 1; n < 3; n++) {
        snprintf(older, sizeof older, "%s.%u", path, n);
        assert_int_equal(unlink(older), 0);
    }
    weft_plan_release(job.plan);
}

static void test_any_run_loads_what_any_other_saved(void **state)
{
    static const job_t kinds[] = {
        {.model = MLP, .optimizer = "adam", .world = 1},
        {.model = MLP, .optimizer = "adam", .world = 4, .bucket = "none"},
        {.model = MLP, .optimizer = "adam", .world = 2, .bucket = "bytes:300"},
        {.model = MLP, .optimizer = "adam", .world = 3, .shard = true, .bucket = "one"},
        {.model = MLP, .optimizer = "adam", .world = 2, .decouple = true, .bucket = "none"},
        {.model = MLP, .optimizer = "adam", .world = 4, .parameters = true, .bucket = "bytes:300"},
    };
    char a[128];
    (void)state;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        job_t writer = kinds[i];
        writer.until = writer.save_at = STOP;
        writer.save = path_of("a", a, sizeof a);
        run(&writer, THREADS);
        for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
            job_t reader = kinds[k];
            reader.load = writer.save;
            reader.until = STOP; /* no step */
            run(&reader, THREADS);
            assert_string_equal(reader.tensors, writer.tensors);
        }
    }
}

static void use_states(rank_world_t *world)
{
    job_t *job = world->user;
    weft_session_t *session = NULL;
    weft_session_params_t params = WEFT_SESSION_PARAMS_INIT;
    params.context = world->context;
    params.plan = job->plan;
    RANK_OK(weft_session_create(&params, &session));
    size_t count = weft_session_state_count(session);
    RANK_CHECK(count == 2 * weft_session_param_count(session) && count == 12);
    float data[4096], back[4096];
    RANK_CHECK(weft_session_state_info(session, count, NULL, NULL) == WEFT_ERR_INVALID_ARGUMENT);
    for (size_t i = 0; i < count; i++) {
        weft_tensor_desc_t desc;
        const char *name = NULL, *slots[] = {".moment1", ".moment2"};
        RANK_OK(weft_session_state_info(session, i, &name, &desc));
        RANK_CHECK(strstr(name, slots[i % 2]) != NULL && desc.dtype == WEFT_DTYPE_F32);
        size_t elems = (size_t)weft_tensor_elem_count(&desc);
        RANK_CHECK(elems <= 4096);
        RANK_OK(weft_session_get_state(session, i, back, elems * sizeof(float)));
        for (size_t k = 0; k < elems; k++) {
            RANK_CHECK(back[k] >= 0 && back[k] <= 0); /* they begin at zero */
            data[k] = (float)(i * 4096 + k) + 0.5f;
        }
        RANK_OK(weft_session_set_state(session, i, data, elems * sizeof(float)));
        RANK_OK(weft_session_get_state(session, i, back, elems * sizeof(float)));
        RANK_CHECK(memcmp(data, back, elems * sizeof(float)) == 0);
        /* One rank's mistake is everybody's error, and nobody waits for ever. */
        weft_status_t status =
            weft_session_get_state(session, i, back, elems * sizeof(float) - (world->rank == 1));
        RANK_CHECK(job->shard ? status == WEFT_ERR_INVALID_ARGUMENT
                              : (status < 0) == (world->rank == 1));
        RANK_CHECK(weft_session_set_state(session, i, NULL, elems * sizeof(float)) ==
                   WEFT_ERR_INVALID_ARGUMENT);
    }
    weft_session_destroy(session);
}

static void test_states_by_index(void **state)
{
    (void)state;
    for (int shard = 0; shard < 2; shard++) {
        job_t job = {.model = MLP, .optimizer = "adam", .world = 3, .shard = shard == 1};
        compile(&job);
        support_rank_threads(job.world, use_states, &job);
        weft_plan_release(job.plan);
    }
}

static void use_params(rank_world_t *world)
{
    job_t *job = world->user;
    weft_session_t *session = NULL;
    weft_session_params_t params = WEFT_SESSION_PARAMS_INIT;
    params.context = world->context;
    params.plan = job->plan;
    float before[4096], after[4096], gradient[4096];
    RANK_OK(weft_session_create(&params, &session));
    RANK_OK(weft_session_set_scalar(session, "lr", 0.5));
    RANK_CHECK(weft_session_get_gradient(session, 0, gradient, 4) == WEFT_ERR_STATE);
    for (size_t i = 0; i < weft_session_param_count(session); i++) {
        weft_tensor_desc_t desc;
        RANK_OK(weft_session_param_info(session, i, NULL, &desc));
        size_t bytes = (size_t)weft_tensor_elem_count(&desc) * sizeof(float);
        RANK_OK(weft_session_get_param(session, i, before, bytes));
        before[0] = 0.25f;
        RANK_OK(weft_session_set_param(session, i, before, bytes));
        RANK_OK(weft_session_get_param(session, i, after, bytes));
        RANK_CHECK(memcmp(before, after, bytes) == 0);
        RANK_CHECK(weft_session_set_param(session, i, before, bytes - 1) ==
                   WEFT_ERR_INVALID_ARGUMENT);
        RANK_CHECK(weft_session_set_param(session, i, NULL, bytes) == WEFT_ERR_INVALID_ARGUMENT);
        /* w' = w - lr g tells the gradient */
        RANK_OK(support_feed(session, job->plan, world->rank, (uint32_t)i));
        RANK_OK(weft_session_step(session));
        RANK_OK(weft_session_get_param(session, i, after, bytes));
        weft_status_t status = weft_session_get_gradient(session, i, gradient, bytes);
        RANK_CHECK(status == (job->shard ? WEFT_ERR_UNSUPPORTED : WEFT_OK));
        for (size_t k = 0; !job->shard && k < bytes / sizeof(float); k++) {
            float expected = before[k] - 0.5f * gradient[k];
            RANK_CHECK(expected - after[k] < 1e-6f && after[k] - expected < 1e-6f);
        }
    }
    RANK_CHECK(weft_session_get_gradient(session, 99, gradient, 4) == WEFT_ERR_INVALID_ARGUMENT);
    weft_session_destroy(session);
}

/* What rank 1 got wrong is the error of every rank, at once. */
#define NAMES_RANK_1(call)                                                                         \
    RANK_CHECK((call) == WEFT_ERR_INVALID_ARGUMENT && strstr(weft_last_error(), "rank 1: ") != NULL)

/* One rank's argument is wrong in calls that are collective. */
static void mistake_one_argument(rank_world_t *world)
{
    job_t *job = world->user;
    bool wrong = world->rank == 1;
    weft_session_t *session = NULL;
    weft_session_params_t params = WEFT_SESSION_PARAMS_INIT;
    weft_tensor_desc_t desc;
    float data[4096];
    char digest[65], path[128];
    params.context = world->context;
    params.plan = wrong ? NULL : job->plan;
    NAMES_RANK_1(weft_session_create(&params, &session));
    params.plan = job->plan;
    RANK_OK(weft_session_create(&params, &session));
    RANK_OK(weft_session_param_info(session, 0, NULL, &desc));
    size_t bytes = (size_t)weft_tensor_elem_count(&desc) * sizeof(float);
    for (uint32_t step = 0; step < 5; step++) { /* after a decoupled step calls flush first */
        RANK_OK(support_feed(session, job->plan, world->rank, step));
        RANK_OK(weft_session_step(session));
        if (step == 0) {
            NAMES_RANK_1(weft_session_get_param(session, wrong ? 99 : 0, data, bytes));
        } else if (step == 1) {
            NAMES_RANK_1(weft_session_get_param(session, 0, wrong ? NULL : data, bytes));
        } else if (step == 2) {
            NAMES_RANK_1(weft_session_get_param(session, 0, data, bytes - wrong));
        } else if (step == 3) {
            NAMES_RANK_1(weft_session_param_digest(session, wrong ? NULL : digest));
        } else if (job->decouple) {
            NAMES_RANK_1(weft_session_set_param(session, wrong ? 99 : 0, data, bytes));
        }
        RANK_OK(weft_session_get_param(session, 0, data, bytes));
    }
    NAMES_RANK_1(weft_session_get_state(session, wrong ? 99 : 0, data, bytes));
    NAMES_RANK_1(weft_session_get_state(session, 0, wrong ? NULL : data, bytes));
    weft_checkpoint_info_t info = WEFT_CHECKPOINT_INFO_INIT;
    info.struct_size = wrong ? 1 : sizeof info;
    NAMES_RANK_1(weft_session_save_checkpoint(session, path_of("a", path, sizeof path), &info));
    RANK_OK(weft_session_save_checkpoint(session, path, NULL));
    NAMES_RANK_1(weft_session_load_checkpoint(session, wrong ? NULL : path, NULL));
    RANK_OK(weft_session_get_state(session, 0, data, bytes));
    weft_session_destroy(session);
}

static void test_an_argument_of_one_rank_is_named_on_all(void **state)
{
    (void)state;
    for (int decouple = 0; decouple < 2; decouple++) {
        job_t job = {.model = MLP,
                     .optimizer = "adam",
                     .world = 3,
                     .shard = true,
                     .decouple = decouple == 1,
                     .parameters = decouple == 0};
        compile(&job);
        support_rank_threads(job.world, mistake_one_argument, &job);
        weft_plan_release(job.plan);
    }
}

static void test_parameters_are_set_and_gradients_read(void **state)
{
    (void)state;
    for (int shard = 0; shard < 2; shard++) {
        job_t job = {.model = MLP, .optimizer = "sgd", .world = 2, .shard = shard == 1};
        compile(&job);
        support_rank_threads(job.world, use_params, &job);
        weft_plan_release(job.plan);
    }
}

static void misuse(rank_world_t *world)
{
    job_t *job = world->user;
    weft_session_t *session = NULL;
    weft_session_params_t params = WEFT_SESSION_PARAMS_INIT;
    params.context = world->context;
    params.plan = job->plan;
    weft_checkpoint_info_t small = {.struct_size = 0};
    char path[128], digest[65], after[65];
    RANK_OK(weft_session_create(&params, &session));
    RANK_OK(weft_session_param_digest(session, digest));
    /* What rank 0 meets everybody hears of. */
    snprintf(path, sizeof path, "%s/none/file", directory);
    RANK_CHECK(weft_session_save_checkpoint(session, path, NULL) == WEFT_ERR_NOT_FOUND);
    RANK_CHECK(strstr(weft_last_error(), "rank 0: cannot write") != NULL);
    RANK_CHECK(weft_session_save_checkpoint(session, NULL, NULL) == WEFT_ERR_INVALID_ARGUMENT);
    RANK_CHECK(weft_session_save_checkpoint(session, path, world->rank == 1 ? &small : NULL) ==
               WEFT_ERR_INVALID_ARGUMENT);
    RANK_CHECK(weft_session_load_checkpoint(session, path, NULL) == WEFT_ERR_NOT_FOUND);
    RANK_CHECK(weft_session_load_checkpoint(session, NULL, NULL) == WEFT_ERR_INVALID_ARGUMENT);
    /* Ranks that read different files. */
    weft_session_t *own = session;
    snprintf(path, sizeof path, "%s/a", directory);
    RANK_OK(weft_session_save_checkpoint(own, path, NULL));
    snprintf(path, sizeof path, "%s/b", directory);
    weft_checkpoint_info_t other = {.struct_size = sizeof other, .seed = 5};
    RANK_OK(weft_session_save_checkpoint(own, path, &other));
    snprintf(path, sizeof path, "%s/%c", directory, world->rank == 0 ? 'a' : 'b');
    RANK_CHECK(weft_session_load_checkpoint(session, path, NULL) == WEFT_ERR_MISMATCH);
    RANK_CHECK(strstr(weft_last_error(), "ranks read different checkpoints") != NULL);
    /* Nothing of that has changed anything, and the world goes on. */
    RANK_OK(weft_session_param_digest(session, after));
    RANK_CHECK(strcmp(digest, after) == 0);
    RANK_OK(support_feed(session, job->plan, world->rank, 0));
    RANK_OK(weft_session_step(session));
    weft_session_destroy(session);
}

static void test_mistakes_are_everybodys_errors(void **state)
{
    job_t job = {.model = MLP, .optimizer = "momentum", .world = 2};
    (void)state;
    compile(&job);
    support_rank_threads(job.world, misuse, &job);
    weft_plan_release(job.plan);
}

/* Every allocation of a call fails once: a message, nothing changed, nothing left behind. */
static weft_status_t write_by_writer(weft_session_t *session, const char *path)
{
    weft_checkpoint_writer_t *writer = NULL;
    weft_status_t status = weft_checkpoint_writer_create(session, NULL, &writer);
    status = status < 0 ? status : weft_checkpoint_writer_start(writer, path, NULL);
    status = status < 0 ? status : weft_checkpoint_writer_wait(writer);
    weft_checkpoint_writer_destroy(writer);
    return status;
}

static void test_without_memory(void **state)
{
    test_memory_t memory;
    job_t job = {.model = MLP, .optimizer = "adam", .world = 1};
    weft_context_params_t params = WEFT_CONTEXT_PARAMS_INIT;
    weft_context_t *context = NULL;
    weft_session_t *session = NULL;
    char path[128], before[65], after[65];
    (void)state;
    compile(&job);
    params.rank = 0;
    params.world_size = 1;
    params.allocator = &memory.allocator;
    test_memory_init(&memory);
    assert_int_equal(weft_context_create(&params, &context), WEFT_OK);
    weft_session_params_t bind = WEFT_SESSION_PARAMS_INIT;
    bind.context = context;
    bind.plan = job.plan;
    assert_int_equal(weft_session_create(&bind, &session), WEFT_OK);
    assert_int_equal(weft_session_param_digest(session, before), WEFT_OK);
    path_of("a", path, sizeof path);
    for (int way = 0; way < 3; way++) {
        uint64_t failures = 0;
        weft_status_t status;
        do {
            test_memory_fail(&memory, UINT64_MAX, failures);
            status = way == 0   ? weft_session_save_checkpoint(session, path, NULL)
                     : way == 1 ? write_by_writer(session, path)
                                : weft_session_load_checkpoint(session, path, NULL);
            test_memory_fail(&memory, UINT64_MAX, UINT64_MAX);
            assert_true(status == WEFT_OK || status == WEFT_ERR_NO_MEMORY);
        } while (status < 0 && ++failures < 1000);
        assert_int_equal(status, WEFT_OK);
        assert_true(failures > 3);
    }
    assert_int_equal(weft_session_param_digest(session, after), WEFT_OK);
    assert_string_equal(before, after);
    weft_session_destroy(session);
    weft_context_release(context);
    weft_plan_release(job.plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_resumed_training_has_the_bits_of_uninterrupted),
        cmocka_unit_test(test_shards_are_gathered_and_scattered),
        cmocka_unit_test(test_over_put_links),
        cmocka_unit_test(test_on_cards),
        cmocka_unit_test(test_written_while_training_goes_on),
        cmocka_unit_test(test_earlier_ones_are_kept),
        cmocka_unit_test(test_any_run_loads_what_any_other_saved),
        cmocka_unit_test(test_states_by_index),
        cmocka_unit_test(test_parameters_are_set_and_gradients_read),
        cmocka_unit_test(test_mistakes_are_everybodys_errors),
        cmocka_unit_test(test_an_argument_of_one_rank_is_named_on_all),
        cmocka_unit_test(test_without_memory),
    };
    setenv("WEFT_THREADS", "1", 1); /* ranks are threads already */
    return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
