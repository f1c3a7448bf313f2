/* SPDX-License-Identifier: Apache-2.0 */
/* libweft_mpi.so through its binary interface, as jaxlib uses it: ranks are forked processes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <complex.h>
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <weft/types.h>

#include "interop/jax/xla_ffi.h"
#include "tests/interop/support_forked.h"

enum { COUNT = 1000, ROUNDS = 200 };

/* A rank loads the library, whose first use joins no world yet, when it first looks for a name:
 * before it starts threads. */
static void *find(const char *name)
{
    static void *library;
    if (library == NULL) {
        library = load_library(WEFT_MPI_LIBRARY);
    }
    return find_symbol(library, name);
}

/* MPIABI_Name as a function of these parameters that returns int. */
#define MPI(name, ...) ((int (*)(__VA_ARGS__))find("MPIABI_" #name))
#define VALUE(name) (*(const uintptr_t *)find("MPIABI_" #name))

static void expect_error(int code, const char *text)
{
    char message[1024];
    int length = 0;
    EXPECT(code != 0);
    MPI(Error_string, int, char *, int *)(code, message, &length);
    expect_text(text, message);
    EXPECT(length == (int)strlen(message));
}

static int init(void)
{
    int provided = 0;
    int result = MPI(Init_thread, int *, char ***, int,
                     int *)(NULL, NULL, (int)VALUE(THREAD_FUNNELED), &provided);
    EXPECT(provided == (int)VALUE(THREAD_MULTIPLE) && provided > (int)VALUE(THREAD_FUNNELED));
    return result;
}

static void finalize(void)
{
    EXPECT(MPI(Finalize, void)() == 0);
}

static int number(const char *name, uintptr_t comm)
{
    int value = -1;
    EXPECT(((int (*)(uintptr_t, int *))find(name))(comm, &value) == 0);
    return value;
}

static uintptr_t split(int color, int key)
{
    uintptr_t comm = 0;
    int result =
        MPI(Comm_split, uintptr_t, int, int, uintptr_t *)(VALUE(COMM_WORLD), color, key, &comm);
    EXPECT(result == 0 && comm != VALUE(COMM_NULL));
    return comm;
}

static void free_comm(uintptr_t comm)
{
    EXPECT(MPI(Comm_free, uintptr_t *)(&comm) == 0 && comm == VALUE(COMM_NULL));
}

static int all_reduce(const void *send, void *recv, int count, uintptr_t type, uintptr_t op,
                      uintptr_t comm)
{
    return MPI(Allreduce, const void *, void *, int, uintptr_t, uintptr_t,
               uintptr_t)(send, recv, count, type, op, comm);
}

/* ---- what ranks do ---- */

/* Rank r adds i % 3 + r + 1, so that sums, products, minima and maxima fit into 8 bits. */
#define REDUCE(ctype, mpi_type, with_order)                                                        \
    do {                                                                                           \
        ctype mine[COUNT], all[COUNT], parts[COUNT / 4];                                           \
        int counts[MOST_RANKS] = {COUNT / 4, COUNT / 4, COUNT / 4, COUNT / 4};                     \
        uintptr_t type = VALUE(mpi_type);                                                          \
        for (int i = 0; i < COUNT; i++) {                                                          \
            mine[i] = (ctype)(i % 3 + rank + 1);                                                   \
        }                                                                                          \
        EXPECT(all_reduce(mine, all, COUNT, type, VALUE(SUM), comm) == 0);                         \
        for (int i = 0; i < COUNT; i++) {                                                          \
            EXPECT(all[i] == (ctype)(size * (i % 3) + size * (size + 1) / 2));                     \
        }                                                                                          \
        int scattered = MPI(Reduce_scatter, const void *, void *, const int *, uintptr_t,          \
                            uintptr_t, uintptr_t)(mine, parts, counts, type, VALUE(SUM), comm);    \
        EXPECT(scattered == 0);                                                                    \
        for (int i = 0; i < COUNT / 4; i++) {                                                      \
            EXPECT(parts[i] == all[rank * (COUNT / 4) + i]);                                       \
        }                                                                                          \
        if (with_order) {                                                                          \
            ctype least[3], most[3], product[3];                                                   \
            EXPECT(all_reduce(mine, least, 3, type, VALUE(MIN), comm) == 0);                       \
            EXPECT(all_reduce(mine, most, 3, type, VALUE(MAX), comm) == 0);                        \
            EXPECT(all_reduce(mine, product, 3, type, VALUE(PROD), comm) == 0);                    \
            for (int i = 0; i < 3; i++) {                                                          \
                ctype expected = 1;                                                                \
                for (int r = 0; r < size; r++) {                                                   \
                    expected = (ctype)(expected * (ctype)(i + r + 1));                             \
                }                                                                                  \
                EXPECT(least[i] == (ctype)(i + 1) && most[i] == (ctype)(i + size));                \
                EXPECT(product[i] == expected);                                                    \
            }                                                                                      \
        }                                                                                          \
    } while (0)

static void reduce_all_types(uintptr_t comm)
{
    REDUCE(float, FLOAT, true);
    REDUCE(double, DOUBLE, true);
    REDUCE(int8_t, INT8_T, true);
    REDUCE(int16_t, INT16_T, true);
    REDUCE(int32_t, INT32_T, true);
    REDUCE(int64_t, INT64_T, true);
    REDUCE(uint8_t, UINT8_T, true);
    REDUCE(uint16_t, UINT16_T, true);
    REDUCE(uint32_t, UINT32_T, true);
    REDUCE(uint64_t, UINT64_T, true);
    REDUCE(float complex, C_COMPLEX, false);
    REDUCE(double complex, C_DOUBLE_COMPLEX, false);
}

static void gather(uintptr_t comm)
{
    double complex mine[5], all[5 * MOST_RANKS];
    for (int i = 0; i < 5; i++) {
        mine[i] = rank + i * I;
    }
    uintptr_t type = VALUE(C_DOUBLE_COMPLEX);
    EXPECT(MPI(Allgather, const void *, int, uintptr_t, void *, int, uintptr_t,
               uintptr_t)(mine, 5, type, all, 5, type, comm) == 0);
    for (int i = 0; i < 5 * size; i++) {
        EXPECT(all[i] == i / 5 + i % 5 * I);
    }
}

/* From each rank to the next one, as XLA's collective-permute, receives first; then in pairs, as
 * its all-to-all. */
static void exchange(uintptr_t comm, size_t bytes)
{
    char *sent = malloc(bytes), *received = malloc(bytes);
    int next = (rank + 1) % size, last = (rank + size - 1) % size;
    uintptr_t requests[2], type = VALUE(BYTE), none = VALUE(STATUS_IGNORE);
    memset(sent, rank + 1, bytes);
    memset(received, 99, bytes);
    EXPECT(MPI(Irecv, void *, int, uintptr_t, int, int, uintptr_t,
               uintptr_t *)(received, (int)bytes, type, last, 0, comm, &requests[0]) == 0);
    EXPECT(MPI(Isend, const void *, int, uintptr_t, int, int, uintptr_t,
               uintptr_t *)(sent, (int)bytes, type, next, 0, comm, &requests[1]) == 0);
    for (int i = 0; i < 2; i++) {
        EXPECT(MPI(Wait, uintptr_t *, uintptr_t)(&requests[i], none) == 0);
        EXPECT(requests[i] == VALUE(REQUEST_NULL));
        EXPECT(MPI(Wait, uintptr_t *, uintptr_t)(&requests[i], none) == 0);
    }
    EXPECT(received[0] == last + 1 && received[bytes - 1] == last + 1);
    for (int i = 1; i < size; i++) {
        int to = (rank + i) % size, from = (rank + size - i) % size;
        EXPECT(MPI(Sendrecv, const void *, int, uintptr_t, int, int, void *, int, uintptr_t, int,
                   int, uintptr_t, uintptr_t)(sent, (int)bytes, type, to, 0, received, (int)bytes,
                                              type, from, 0, comm, none) == 0);
        EXPECT(received[0] == from + 1 && received[bytes - 1] == from + 1);
    }
    free(sent);
    free(received);
}

/* A thread reduces on a communicator of its own, while another one does the same. */
static void *reduce_often(void *user)
{
    uintptr_t comm = (uintptr_t)user;
    for (int i = 0; i < ROUNDS; i++) {
        int64_t mine = i + rank, sum = 0;
        EXPECT(all_reduce(&mine, &sum, 1, VALUE(INT64_T), VALUE(SUM), comm) == 0);
        EXPECT(sum == size * i + size * (size - 1) / 2);
    }
    return NULL;
}

static void all_calls(void)
{
    int flag = 0;
    uintptr_t world = VALUE(COMM_WORLD);
    float one = 1;
    expect_error(all_reduce(&one, &one, 1, VALUE(FLOAT), VALUE(SUM), world), "MPI_Init_thread");
    EXPECT(init() == 0 && init() == 0);
    EXPECT(MPI(Is_thread_main, int *)(&flag) == 0 && flag == 1);
    EXPECT(number("MPIABI_Comm_rank", world) == rank && number("MPIABI_Comm_size", world) == size);

    uintptr_t comms[2] = {split(0, rank), split(7, rank)};
    reduce_all_types(comms[0]);
    gather(comms[0]);
    if (size > 1) { /* XLA sends no messages to itself */
        exchange(comms[0], 1);
        exchange(comms[0], 300000);
    }
    expect_error(all_reduce(&one, &one, -1, VALUE(FLOAT), VALUE(SUM), comms[0]), "2147483647");
    expect_error(all_reduce(&one, &one, 1, VALUE(C_COMPLEX), VALUE(PROD), comms[0]), "complex");

    pthread_t threads[2];
    for (int i = 0; i < 2; i++) {
        EXPECT(pthread_create(&threads[i], NULL, reduce_often, (void *)comms[i]) == 0);
    }
    for (int i = 0; i < 2; i++) {
        EXPECT(pthread_join(threads[i], NULL) == 0);
    }

    /* Halves, in reverse order; rank 0 is in none. */
    uintptr_t half = VALUE(COMM_NULL);
    int color = rank == 0 ? (int)VALUE(UNDEFINED) : rank % 2;
    int key = rank == 0 ? 0 : (rank - 1) / 2;
    EXPECT(MPI(Comm_split, uintptr_t, int, int, uintptr_t *)(world, color, key, &half) == 0);
    EXPECT((half == VALUE(COMM_NULL)) == (rank == 0));
    if (rank != 0) {
        EXPECT(number("MPIABI_Comm_rank", half) == key);
        free_comm(half);
    }

    free_comm(comms[0]);
    finalize();
    EXPECT(all_reduce(&one, &one, 1, VALUE(FLOAT), VALUE(SUM), comms[1]) == 0 && one == 1);
    EXPECT(all_reduce(&one, &one, 1, VALUE(FLOAT), VALUE(SUM), world) == 0);
    free_comm(comms[1]);
}

/* XLA's side of a custom call: errors are texts. */
static char custom_call_error[1024];

static ffi_error_t *create_error(ffi_error_create_t *args)
{
    EXPECT(args->struct_size == FFI_ERROR_CREATE_SIZE && args->code == FFI_ERROR_UNKNOWN);
    snprintf(custom_call_error, sizeof custom_call_error, "%s", args->message);
    return (ffi_error_t *)custom_call_error;
}

static ffi_error_t *custom_call(int64_t kind, int64_t reduction, ffi_buffer_t **send,
                                ffi_buffer_t **recv, int64_t count)
{
    static const ffi_api_t api = {.struct_size = sizeof api, .error_create = create_error};
    ffi_name_t names[] = {{"kind", 4}, {"reduction", 9}};
    ffi_scalar_t scalars[] = {{FFI_S64, &kind}, {FFI_S64, &reduction}};
    ffi_frame_t frame = {
        .struct_size = sizeof frame,
        .api = &api,
        .stage = FFI_STAGE_EXECUTE,
        .args = {.size = count, .items = send},
        .results = {.size = count, .items = recv},
        .attributes = {.size = 2,
                       .names = (ffi_name_t *[]){&names[0], &names[1]},
                       .items = (void *[]){&scalars[0], &scalars[1]}},
    };
    return ((ffi_error_t * (*)(ffi_frame_t *)) find("weft_jax_collective"))(&frame);
}

/* A token and MANY vectors of one to three elements, more than one batch. */
static void operators(void)
{
    enum { MANY = 100 };
    float mine[MANY][3], sums[MANY][3];
    int64_t dims[MANY];
    ffi_buffer_t token = {.struct_size = sizeof token, .dtype = FFI_TOKEN};
    ffi_buffer_t sent[MANY], received[MANY], *send[MANY + 1] = {&token}, *recv[MANY + 1] = {&token};
    for (int i = 0; i < MANY; i++) {
        dims[i] = i % 3 + 1;
        for (int j = 0; j < 3; j++) {
            mine[i][j] = (float)(i + j + rank);
        }
        sent[i] = (ffi_buffer_t){sizeof sent[i], NULL, FFI_F32, mine[i], 1, &dims[i]};
        received[i] = (ffi_buffer_t){sizeof sent[i], NULL, FFI_F32, sums[i], 1, &dims[i]};
        send[i + 1] = &sent[i];
        recv[i + 1] = &received[i];
    }
    ffi_error_t *error = custom_call(WEFT_COLLECTIVE_ALL_REDUCE, WEFT_REDUCTION_SUM, send, recv, 1);
    EXPECT(error != NULL && strcmp(custom_call_error, "weft.jax: no world") == 0);
    EXPECT(init() == 0);
    ((void (*)(uintptr_t))find("weft_jax_use"))(split(0, rank));
    EXPECT(custom_call(WEFT_COLLECTIVE_ALL_REDUCE, WEFT_REDUCTION_SUM, send, recv, MANY + 1) ==
           NULL);
    for (int i = 0; i < MANY; i++) {
        for (int j = 0; j < dims[i]; j++) {
            EXPECT(sums[i][j] == (float)(size * (i + j) + size * (size - 1) / 2));
        }
    }
    EXPECT(custom_call(WEFT_COLLECTIVE_ALL_REDUCE, 99, send + 1, recv + 1, 2) != NULL);
    EXPECT(strstr(custom_call_error, "reduction") != NULL);
    finalize();
    EXPECT(custom_call(WEFT_COLLECTIVE_ALL_REDUCE, WEFT_REDUCTION_SUM, send, recv, 2) != NULL);

    ffi_metadata_t metadata = {.struct_size = sizeof metadata, .traits = 7};
    ffi_metadata_extension_t asked = {{sizeof asked, FFI_EXTENSION_METADATA, NULL}, &metadata};
    ffi_frame_t frame = {.struct_size = sizeof frame, .extensions = &asked.base};
    EXPECT(((ffi_error_t * (*)(ffi_frame_t *)) find("weft_jax_collective"))(&frame) == NULL);
    EXPECT(metadata.version.major == 0 && metadata.traits == 0);
}

static void rank_1_dies(void)
{
    float one = 1;
    EXPECT(init() == 0);
    uintptr_t comm = split(0, rank);
    EXPECT(all_reduce(&one, &one, 1, VALUE(FLOAT), VALUE(SUM), comm) == 0);
    if (rank == 1) {
        raise(SIGKILL);
    }
    int code = 0;
    while (code == 0) { /* the others may still have had its part of a call */
        code = all_reduce(&one, &one, 1, VALUE(FLOAT), VALUE(SUM), comm);
    }
    expect_error(code, "rank 1 (pid ");
    /* XLA does not look at the result of MPI_Comm_split. */
    uintptr_t broken = 0;
    EXPECT(MPI(Comm_split, uintptr_t, int, int, uintptr_t *)(VALUE(COMM_WORLD), 0, rank, &broken) !=
           0);
    int size_of_broken = -1;
    MPI(Comm_size, uintptr_t, int *)(broken, &size_of_broken);
    EXPECT(size_of_broken == 1);
    expect_error(all_reduce(&one, &one, 1, VALUE(FLOAT), VALUE(SUM), broken), "rank 1 (pid ");
    free_comm(broken);
    free_comm(comm);
    finalize();
}

/* jax.distributed was initialised with explicit arguments and without a launcher. */
static void expected_another_world(void)
{
    float one = 1;
    uintptr_t comm = 0;
    setenv("WEFT_WORLD_SIZE", "1", 1);
    setenv("WEFT_RANK", "0", 1);
    EXPECT(init() == 0);
    int code = MPI(Comm_split, uintptr_t, int, int, uintptr_t *)(VALUE(COMM_WORLD), 0, 1, &comm);
    expect_error(code, "process 0 has rank 0 of 1 where XLA expects rank 1");
    expect_error(all_reduce(&one, &one, 1, VALUE(FLOAT), VALUE(SUM), comm),
                 "start all processes by");
    finalize();
    free_comm(comm);
}

/* Ranks 0 and 2 expect a communicator of all, rank 1 one of ranks 1 and 2: no rank has its own. */
static void different_communicators(void)
{
    float one = 1;
    uintptr_t comm = 0;
    const char *expected = "process 2 has rank 1 of 2 where XLA expects rank 2";
    EXPECT(init() == 0);
    int code = MPI(Comm_split, uintptr_t, int, int, uintptr_t *)(VALUE(COMM_WORLD), rank == 1,
                                                                 rank == 1 ? 0 : rank, &comm);
    expect_error(code, expected);
    expect_error(all_reduce(&one, &one, 1, VALUE(FLOAT), VALUE(SUM), comm), expected);
    free_comm(comm);
    if (rank == 0) { /* the world stays broken: nobody is waited for */
        code = MPI(Comm_split, uintptr_t, int, int, uintptr_t *)(VALUE(COMM_WORLD), 0, 0, &comm);
        expect_error(code, expected);
        free_comm(comm);
    }
    finalize();
}

static int two_processes(void)
{
    return 2;
}

static void fewer_ranks_than_processes(void)
{
    uintptr_t comm = 0;
    const char *expected = "JAX has 2 processes, Weft's world has 1 ranks";
    EXPECT(init() == 0); /* weft.jax, before JAX knows */
    ((void (*)(int (*)(void)))find("weft_jax_expect"))(two_processes);
    expect_error(init(), expected);
    int code = MPI(Comm_split, uintptr_t, int, int, uintptr_t *)(VALUE(COMM_WORLD), 0, 0, &comm);
    expect_error(code, expected);
    free_comm(comm);
    finalize();
}

static void no_world(void)
{
    int value;
    setenv("WEFT_RANK", "5", 1);
    expect_error(init(), "rank 5");
    expect_error(MPI(Comm_rank, uintptr_t, int *)(VALUE(COMM_WORLD), &value), "rank 5");
    uintptr_t comm = 0;
    MPI(Comm_split, uintptr_t, int, int, uintptr_t *)(VALUE(COMM_WORLD), 0, 0, &comm);
    expect_error(MPI(Comm_rank, uintptr_t, int *)(comm, &value), "rank 5");
    free_comm(comm);
}

static void refused(void)
{
    MPI(Bcast, void)();
}

/* ---- tests ---- */

static void test_calls(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= MOST_RANKS; ranks++) {
        expect_good_ranks(all_calls, ranks, -1);
    }
}

static void test_operators(void **state)
{
    (void)state;
    expect_good_ranks(operators, 3, -1);
}

static void test_dead_rank(void **state)
{
    (void)state;
    expect_good_ranks(rank_1_dies, 3, 1);
}

static void test_other_world(void **state)
{
    (void)state;
    expect_good_ranks(expected_another_world, 1, -1);
    expect_good_ranks(different_communicators, 3, -1);
    expect_good_ranks(fewer_ranks_than_processes, 1, -1);
    expect_good_ranks(no_world, 1, -1);
}

static void test_refused(void **state)
{
    int status;
    char errors[20000];
    (void)state;
    run_ranks(refused, 1, &status, errors, sizeof errors);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    assert_non_null(strstr(errors, "MPI_Bcast is not implemented"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_calls),     cmocka_unit_test(test_operators),
        cmocka_unit_test(test_dead_rank), cmocka_unit_test(test_other_world),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
