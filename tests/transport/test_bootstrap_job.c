/* SPDX-License-Identifier: Apache-2.0 */
/* Who this rank is: by arguments, variables and launchers, in their order. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "transport/bootstrap/bootstrap.h"
#include "tests/support/support.h"

static const char *const variables[] = {"WEFT_RANK",
                                        "WEFT_WORLD_SIZE",
                                        "WEFT_ADDRESS",
                                        "WEFT_GROUP",
                                        "WEFT_SECRET",
                                        "WEFT_SECRET_FILE",
                                        "RANK",
                                        "WORLD_SIZE",
                                        "MASTER_ADDR",
                                        "MASTER_PORT",
                                        "PMIX_NAMESPACE",
                                        "PMIX_RANK",
                                        "TORCHELASTIC_RUN_ID",
                                        "PMI_FD",
                                        "PMI_RANK",
                                        "PMI_SIZE",
                                        "PET_NPROC_PER_NODE",
                                        "LOCAL_RANK",
                                        "TORCHELASTIC_RESTART_COUNT"};

/* libpmix forgets a few bytes when nobody answers it. */
__attribute__((visibility("default"))) const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
    return "leak:libpmix";
}

/* "NAME=value NAME=value": these and no others. */
static void set_only(const char *text)
{
    char copy[1024];
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) {
        unsetenv(variables[i]);
    }
    snprintf(copy, sizeof copy, "%s", text);
    for (char *rest = copy, *word; (word = strsep(&rest, " ")) != NULL;) {
        char *value = strchr(word, '=');
        if (value != NULL) {
            *value = '\0';
            setenv(word, value + 1, 1);
        }
    }
}

typedef struct row {
    const char *set;
    int32_t rank, world_size; /* of the arguments */
    const char *address;
    weft_status_t status;
    const char *launcher; /* or what the message says */
    uint32_t out_rank, out_world_size;
    const char *out_address;
} row_t;

#define GOOD WEFT_OK
#define BAD WEFT_ERR_INVALID_ARGUMENT
#define PLAIN "RANK=1 WORLD_SIZE=2 MASTER_ADDR=10.0.0.1"
#define TORCH PLAIN " MASTER_PORT=29500 TORCHELASTIC_RUN_ID=none"

static const row_t rows[] = {
    {"", -1, -1, NULL, GOOD, "alone", 0, 1, ""},
    {"", 0, 1, NULL, GOOD, "arguments", 0, 1, ""},
    {"", -1, 1, NULL, GOOD, "arguments", 0, 1, ""},
    {"", 1, 4, "unix:@x", GOOD, "arguments", 1, 4, "unix:@x"},
    {"WEFT_RANK=2 WEFT_WORLD_SIZE=3 WEFT_ADDRESS=a:1", -1, -1, NULL, GOOD, "environment", 2, 3,
     "a:1"},
    {"WEFT_RANK=2 WEFT_WORLD_SIZE=3 WEFT_ADDRESS=a:1 " TORCH, -1, -1, NULL, GOOD, "environment", 2,
     3, "a:1"},
    {"WEFT_RANK=2 WEFT_WORLD_SIZE=3 WEFT_ADDRESS=a:1", 0, -1, "b:2", GOOD, "arguments", 0, 3,
     "b:2"},
    {"WEFT_RANK=1 WEFT_WORLD_SIZE=3 WEFT_ADDRESS=file:///a/b", -1, -1, NULL, GOOD, "environment", 1,
     3, "file:///a/b"},
    {"WEFT_RANK=3 WEFT_WORLD_SIZE=3 WEFT_ADDRESS=a:1", -1, -1, NULL, BAD,
     "invalid rank 3 for world size 3", 0, 0, ""},
    {"WEFT_RANK=x WEFT_WORLD_SIZE=3 WEFT_ADDRESS=a:1", -1, -1, NULL, BAD,
     "invalid value for WEFT_RANK: 'x' is not a number", 0, 0, ""},
    {"WEFT_RANK=-1 WEFT_WORLD_SIZE=3", -1, -1, NULL, BAD,
     "invalid value for WEFT_RANK: '-1' is not a number", 0, 0, ""},
    {"WEFT_RANK=0 WEFT_WORLD_SIZE=99999999999", -1, -1, NULL, BAD, "is not a number", 0, 0, ""},
    {"WEFT_RANK=0 WEFT_WORLD_SIZE=0", -1, -1, NULL, BAD, "for world size 0", 0, 0, ""},
    {"WEFT_RANK=0 WEFT_WORLD_SIZE=3", -1, -1, NULL, BAD, "set WEFT_ADDRESS", 0, 0, ""},
    {"WEFT_RANK=0", -1, -1, NULL, BAD, "but the world size (WEFT_WORLD_SIZE) is not", 0, 0, ""},
    {"WEFT_WORLD_SIZE=3", -1, -1, NULL, BAD, "but the rank (WEFT_RANK) is not", 0, 0, ""},
    {"WEFT_ADDRESS=a:1", -1, -1, NULL, BAD, "WEFT_ADDRESS is set, but WEFT_RANK", 0, 0, ""},
    {"WEFT_GROUP=g", -1, -1, NULL, BAD, "WEFT_GROUP is set, but WEFT_RANK", 0, 0, ""},
    {"WEFT_RANK=1 WEFT_WORLD_SIZE=3 WEFT_GROUP=my.job_1", -1, -1, NULL, GOOD, "group", 1, 3, NULL},
    {"WEFT_RANK=1 WEFT_WORLD_SIZE=3 WEFT_GROUP=a/b", -1, -1, NULL, BAD,
     "invalid value 'a/b' for WEFT_GROUP", 0, 0, ""},
    {PLAIN, -1, -1, NULL, GOOD, "plain", 1, 2, "10.0.0.1:29500"},
    {PLAIN " MASTER_PORT=77", -1, -1, NULL, GOOD, "plain", 1, 2, "10.0.0.1:77"},
    {"RANK=1 WORLD_SIZE=2 MASTER_ADDR=::1", -1, -1, NULL, GOOD, "plain", 1, 2, "[::1]:29500"},
    {PLAIN " WEFT_ADDRESS=c:3", -1, -1, NULL, GOOD, "plain", 1, 2, "c:3"},
    {PLAIN, -1, -1, "d:4", GOOD, "plain", 1, 2, "d:4"},
    {"RANK=1 WORLD_SIZE=2", -1, -1, NULL, BAD, "MASTER_ADDR is not set", 0, 0, ""},
    {"WORLD_SIZE=2 MASTER_ADDR=a", -1, -1, NULL, BAD, "RANK is not set", 0, 0, ""},
    {"RANK=2 WORLD_SIZE=2 MASTER_ADDR=a", -1, -1, NULL, BAD, "invalid rank 2 for", 0, 0, ""},
    {PLAIN " PET_NPROC_PER_NODE=1", -1, -1, NULL, GOOD, "plain", 1, 2, "10.0.0.1:29500"},
    {PLAIN " PET_NPROC_PER_NODE=2", -1, -1, NULL, BAD, "start ranks by torchrun", 0, 0, ""},
    {PLAIN " PET_NPROC_PER_NODE=2 LOCAL_RANK=1", -1, -1, NULL, GOOD, "plain", 1, 2,
     "10.0.0.1:29500"},
    {TORCH " PET_NPROC_PER_NODE=2", -1, -1, NULL, GOOD, "torchrun", 1, 2, "10.0.0.1:29500"},
    {TORCH, -1, -1, NULL, GOOD, "torchrun", 1, 2, "10.0.0.1:29500"},
    {PLAIN " TORCHELASTIC_RUN_ID=none", -1, -1, NULL, BAD, "MASTER_PORT is not set", 0, 0, ""},
    /* Variables of launchers that are not there: quietly not taken. */
    {"PMIX_NAMESPACE=nobody PMIX_RANK=0", -1, -1, NULL, GOOD, "alone", 0, 1, ""},
    {"PMI_FD=0 PMI_RANK=0 PMI_SIZE=2", -1, -1, NULL, GOOD, "alone", 0, 1, ""},
    {"PMI_FD=777 PMI_RANK=0 PMI_SIZE=2 " PLAIN, -1, -1, NULL, GOOD, "plain", 1, 2,
     "10.0.0.1:29500"},
};

static void test_order(void **state)
{
    static const wefti_log_t log = {.level = WEFT_LOG_LEVEL_ERROR};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const row_t *row = &rows[i];
        const wefti_job_wish_t wish = {row->rank, row->world_size, row->address};
        wefti_job_t job;
        char address[128];
        set_only(row->set);
        weft_status_t status = wefti_job_probe(&wish, &log, &job);
        snprintf(address, sizeof address, "unix:@weft-%u-my.job_1", (unsigned)geteuid());
        if (status != row->status ||
            (status < 0 ? strstr(weft_last_error(), row->launcher) == NULL
                        : strcmp(job.launcher, row->launcher) != 0 || job.rank != row->out_rank ||
                              job.world_size != row->out_world_size ||
                              strcmp(job.address,
                                     row->out_address != NULL ? row->out_address : address) != 0)) {
            fail_msg("%s: %s, %s, rank %u of %u at \"%s\" [%s]", row->set, weft_status_name(status),
                     job.launcher, job.rank, job.world_size, job.address, weft_last_error());
        }
        wefti_job_deinit(&job);
    }
}

static wefti_job_t probe(const char *set)
{
    static const wefti_log_t log = {.level = WEFT_LOG_LEVEL_ERROR};
    static const wefti_job_wish_t none = {-1, -1, NULL};
    wefti_job_t job;
    set_only(set);
    assert_int_equal(wefti_job_probe(&none, &log, &job), WEFT_OK);
    return job;
}

/* Two jobs of torchrun on one host, or one that was started again, do not meet. */
static void test_identities(void **state)
{
    (void)state;
    wefti_job_t a = probe(TORCH), b = probe(TORCH),
                c = probe(TORCH " TORCHELASTIC_RESTART_COUNT=1");
    wefti_job_t d = probe(PLAIN " MASTER_PORT=29501 TORCHELASTIC_RUN_ID=none");
    assert_memory_equal(a.id, b.id, sizeof a.id);
    assert_memory_not_equal(a.id, c.id, sizeof a.id);
    assert_memory_not_equal(a.id, d.id, sizeof a.id);
    assert_int_equal(a.ports, WEFTI_PORT_OTHERS);
    assert_true(a.delivered);
    wefti_job_t plain = probe(PLAIN), own = probe(PLAIN " WEFT_ADDRESS=c:3");
    assert_int_equal(plain.ports, WEFTI_PORT_FIRST);
    assert_int_equal(own.ports, WEFTI_PORT_ONE);
    assert_false(own.delivered); /* the launcher said nothing of this address */
}

static void test_secrets(void **state)
{
    static const wefti_log_t log = {.level = WEFT_LOG_LEVEL_ERROR};
    static const wefti_job_wish_t none = {-1, -1, NULL};
    char path[64], set[256], text[400];
    wefti_job_t job;
    (void)state;
    assert_int_equal(probe("").secret_bytes, 0);
    job = probe("WEFT_SECRET=0123456789abcdef");
    assert_int_equal(job.secret_bytes, 16);
    assert_memory_equal(job.secret, "0123456789abcdef", 16);
    set_only("WEFT_SECRET=short");
    assert_int_equal(wefti_job_probe(&none, &log, &job), WEFT_ERR_INVALID_ARGUMENT);
    assert_non_null(strstr(weft_last_error(), "at least 16 characters"));
    assert_null(strstr(weft_last_error(), "short"));

    snprintf(path, sizeof path, "/tmp/weft-test-%d-secret", (int)getpid());
    snprintf(set, sizeof set, "WEFT_SECRET_FILE=%s", path);
    set_only(set);
    assert_int_equal(wefti_job_probe(&none, &log, &job), WEFT_ERR_SYSTEM);
    assert_non_null(strstr(weft_last_error(), path));
    FILE *file = fopen(path, "w");
    fputs("0123456789abcdef\n", file);
    fclose(file);
    job = probe(set);
    assert_int_equal(job.secret_bytes, 16); /* without the end of the line */
    memset(text, 'x', sizeof text);
    file = fopen(path, "w");
    fwrite(text, 1, sizeof text, file);
    fclose(file);
    job = probe(set);
    assert_int_equal(job.secret_bytes, 32); /* a digest of it */
    unlink(path);
    set_only("WEFT_SECRET_FILE=/tmp");
    assert_int_equal(wefti_job_probe(&none, &log, &job), WEFT_ERR_INVALID_ARGUMENT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_identities),
        cmocka_unit_test(test_secrets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
