/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Algorithms from XML files of MSCCL: written here by small generators, loaded by name, run by
 * ranks over shared memory, put links and TCP, compared with exact sums; and files that are wrong.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "support_ranks.h"
#include "tests/support/support.h"

#define MAX_COUNT 3001u
#define RANKS 4u

/* ---- files ---- */

typedef struct xml {
    char text[1 << 16];
    size_t used;
    uint32_t block, step;
} xml_t;

static xml_t file;

WEFT_PRINTF(1, 2) static void add(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int used = vsnprintf(file.text + file.used, sizeof file.text - file.used, format, args);
    va_end(args);
    file.used += (size_t)used;
    assert_true(file.used < sizeof file.text);
}

static void begin(const char *coll, uint32_t n, uint32_t chunks, uint32_t in_place)
{
    file.used = 0;
    add("<?xml version=\"1.0\"?>\n<!-- written by a test -->\n"
        "<algo name=\"%s\" proto=\"Simple\" nchannels=\"2\" nchunksperloop=\"%u\" ngpus=\"%u\" "
        "coll=\"%s\" inplace=\"%u\">\n",
        coll, chunks, n, coll, in_place);
}

static void begin_gpu(uint32_t id, uint32_t inputs, uint32_t outputs, uint32_t scratch)
{
    file.block = 0;
    add("<gpu id=\"%u\" i_chunks=\"%u\" o_chunks=\"%u\" s_chunks=\"%u\">\n", id, inputs, outputs,
        scratch);
}

static void begin_tb(int32_t send, int32_t recv, uint32_t channel)
{
    file.step = 0;
    add(" <tb id=\"%u\" send=\"%d\" recv=\"%d\" chan=\"%u\">\n", file.block++, send, recv, channel);
}

static void step(const char *type, char from, uint32_t source, char to, uint32_t target,
                 uint32_t count, int32_t needs_block, int32_t needs_step)
{
    add("  <step s=\"%u\" type=\"%s\" srcbuf=\"%c\" srcoff=\"%u\" dstbuf=\"%c\" dstoff=\"%u\" "
        "cnt=\"%u\" depid=\"%d\" deps=\"%d\" hasdep=\"1\"/>\n",
        file.step++, type, from, source, to, target, count, needs_block, needs_step);
}

/* Reads and writes the same chunk. */
static void at(const char *type, char buffer, uint32_t chunk, uint32_t count)
{
    step(type, buffer, chunk, buffer, chunk, count, -1, -1);
}

/* In place, two channels: each has every second chunk. */
static void ring_all_reduce(uint32_t n)
{
    begin("allreduce", n, 2 * n, 1);
    for (uint32_t r = 0; r < n; r++) {
        begin_gpu(r, 2 * n, 0, 0);
        for (uint32_t c = 0; c < 2; c++) {
            begin_tb((int32_t)((r + 1) % n), (int32_t)((r + n - 1) % n), c);
            at("s", 'i', 2 * r + c, 1);
            for (uint32_t i = 1; i + 1 < n; i++) {
                at("rrs", 'i', 2 * ((r + n - i) % n) + c, 1);
            }
            at("rrcs", 'i', 2 * ((r + 1) % n) + c, 1);
            for (uint32_t i = 0; i + 2 < n; i++) {
                at("rcs", 'i', 2 * ((r + n - i) % n) + c, 1);
            }
            at("r", 'i', 2 * ((r + 2) % n) + c, 1);
            add(" </tb>\n");
        }
        add("</gpu>\n");
    }
    add("</algo>\n");
}

static uint32_t peer_of(uint32_t rank, uint32_t i)
{
    return i < rank ? i : i + 1;
}

/* Everybody sends everything to everybody, and adds. */
static void pairs_all_reduce(uint32_t n)
{
    begin("allreduce", n, 2, 0);
    for (uint32_t r = 0; r < n; r++) {
        begin_gpu(r, 2, 2, 2 * (n - 1));
        for (uint32_t i = 0; i + 1 < n; i++) {
            begin_tb((int32_t)peer_of(r, i), (int32_t)peer_of(r, i), 0);
            step("s", 'i', 0, 's', 0, 2, -1, -1);
            step("r", 'i', 0, 's', 2 * i, 2, -1, -1);
            add(" </tb>\n");
        }
        begin_tb(-1, -1, 0);
        step("cpy", 'i', 0, 'o', 0, 2, -1, -1);
        for (uint32_t i = 0; i + 1 < n; i++) {
            step("nop", 'i', 0, 'o', 0, 0, (int32_t)i, 1);
        }
        for (uint32_t i = 0; i + 1 < n; i++) {
            step("re", 's', 2 * i, 'o', 0, 2, -1, -1);
        }
        add(" </tb>\n</gpu>\n");
    }
    add("</algo>\n");
}

/* Distances 1, 2, 4: each sum goes to the partner, who adds it to the own. */
static void doubling_all_reduce(uint32_t n)
{
    begin("allreduce", n, 1, 1);
    for (uint32_t r = 0; r < n; r++) {
        begin_gpu(r, 1, 0, 2);
        for (uint32_t k = 0; 1u << k < n; k++) {
            int32_t peer = (int32_t)(r ^ 1u << k);
            begin_tb(peer, peer, 0);
            step("s", 'i', 0, 's', 0, 1, k > 0 ? (int32_t)k - 1 : -1, k > 0 ? 2 : -1);
            step("r", 'i', 0, 's', k, 1, -1, -1);
            step("re", 's', k, 'i', 0, 1, -1, -1);
            add(" </tb>\n");
        }
        add("</gpu>\n");
    }
    add("</algo>\n");
}

static void ring_all_gather(uint32_t n)
{
    begin("allgather", n, 2 * n, 0);
    for (uint32_t r = 0; r < n; r++) {
        begin_gpu(r, 2, 2 * n, 0);
        for (uint32_t c = 0; c < 2; c++) {
            begin_tb((int32_t)((r + 1) % n), (int32_t)((r + n - 1) % n), c);
            step("cpy", 'i', c, 'o', 2 * r + c, 1, -1, -1);
            at("s", 'o', 2 * r + c, 1);
            for (uint32_t i = 1; i < n; i++) {
                at(i + 1 < n ? "rcs" : "r", 'o', 2 * ((r + n - i) % n) + c, 1);
            }
            add(" </tb>\n");
        }
        add("</gpu>\n");
    }
    add("</algo>\n");
}

static void ring_reduce_scatter(uint32_t n)
{
    begin("reduce_scatter", n, n, 0);
    for (uint32_t r = 0; r < n; r++) {
        begin_gpu(r, n, 1, 0);
        begin_tb((int32_t)((r + 1) % n), (int32_t)((r + n - 1) % n), 0);
        at("s", 'i', (r + n - 1) % n, 1);
        for (uint32_t i = 2; i < n; i++) {
            at("rrs", 'i', (r + n - i) % n, 1);
        }
        step("rrc", 'i', r, 'o', 0, 1, -1, -1);
        add(" </tb>\n</gpu>\n");
    }
    add("</algo>\n");
}

static void pairs_all_to_all(uint32_t n)
{
    begin("alltoall", n, 2 * n, 0);
    for (uint32_t r = 0; r < n; r++) {
        begin_gpu(r, 2 * n, 2 * n, 0);
        for (uint32_t i = 0; i + 1 < n; i++) {
            uint32_t peer = peer_of(r, i);
            begin_tb((int32_t)peer, (int32_t)peer, 0);
            at("s", 'i', 2 * peer, 2);
            at("r", 'o', 2 * peer, 2);
            add(" </tb>\n");
        }
        begin_tb(-1, -1, 0);
        step("cpy", 'i', 2 * r, 'o', 2 * r, 2, -1, -1);
        add(" </tb>\n</gpu>\n");
    }
    add("</algo>\n");
}

/* From rank 1 along the ring. */
static void chain_broadcast(uint32_t n)
{
    begin("broadcast", n, 3, 0);
    for (uint32_t r = 0; r < n; r++) {
        begin_gpu(r, r == 1 ? 3 : 0, 3, 0);
        begin_tb(r != 0 ? (int32_t)((r + 1) % n) : -1, r != 1 ? (int32_t)((r + n - 1) % n) : -1, 0);
        if (r == 1) {
            step("cpy", 'i', 0, 'o', 0, 3, -1, -1);
            at("s", 'i', 0, 3);
        } else {
            at(r != 0 ? "rcs" : "r", 'o', 0, 3);
        }
        add(" </tb>\n</gpu>\n");
    }
    add("</algo>\n");
}

/* ---- calls ---- */

typedef struct plan {
    const char *name;
    weft_collective_t op;
    void (*write)(uint32_t n);
    char path[64];
} plan_t;

static plan_t plans[] = {
    {"ring", WEFT_COLLECTIVE_ALL_REDUCE, ring_all_reduce, ""},
    {"pairs", WEFT_COLLECTIVE_ALL_REDUCE, pairs_all_reduce, ""},
    {"doubling", WEFT_COLLECTIVE_ALL_REDUCE, doubling_all_reduce, ""},
    {"gather", WEFT_COLLECTIVE_ALL_GATHER, ring_all_gather, ""},
    {"scatter", WEFT_COLLECTIVE_REDUCE_SCATTER, ring_reduce_scatter, ""},
    {"exchange", WEFT_COLLECTIVE_ALL_TO_ALL, pairs_all_to_all, ""},
    {"broadcast", WEFT_COLLECTIVE_BROADCAST, chain_broadcast, ""},
};
#define PLANS (sizeof plans / sizeof *plans)

static void save(char path[64])
{
    strcpy(path, "/tmp/weft_msccl_XXXXXX.xml");
    int fd = mkstemps(path, 4);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, file.text, file.used), file.used);
    close(fd);
}

static weft_status_t load(weft_registry_t *registry)
{
    char path[64];
    save(path);
    weft_status_t status = weft_registry_load_algorithm(registry, path, NULL);
    unlink(path);
    return status;
}

/* Small whole numbers: every type holds them and their sums exactly. */
static int32_t input(uint32_t rank, uint64_t i)
{
    return (int32_t)((rank * 5 + i * 7 + i / 11) % 13);
}

static void put(void *buffer, weft_dtype_t dtype, uint64_t i, int32_t value)
{
    if (dtype == WEFT_DTYPE_F64) {
        ((double *)buffer)[i] = value;
    } else if (dtype == WEFT_DTYPE_F32) {
        ((float *)buffer)[i] = (float)value;
    } else if (dtype == WEFT_DTYPE_U8) {
        ((uint8_t *)buffer)[i] = (uint8_t)value;
    } else { /* bf16: the upper half of f32 */
        float wide = (float)value;
        uint32_t bits;
        memcpy(&bits, &wide, sizeof bits);
        ((uint16_t *)buffer)[i] = (uint16_t)(bits >> 16);
    }
}

static int32_t expected(weft_collective_t op, uint32_t rank, uint32_t n, uint64_t count, uint64_t i)
{
    int32_t sum = 0;
    switch (op) {
    case WEFT_COLLECTIVE_ALL_GATHER:
        return input((uint32_t)(i / count), i % count);
    case WEFT_COLLECTIVE_ALL_TO_ALL:
        return input((uint32_t)(i / count), rank * count + i % count);
    case WEFT_COLLECTIVE_BROADCAST:
        return input(1, i);
    default:
        for (uint32_t r = 0; r < n; r++) {
            sum += input(r, (op == WEFT_COLLECTIVE_REDUCE_SCATTER ? rank * count : 0) + i);
        }
        return sum;
    }
}

static weft_status_t call(weft_collective_t op, const void *send, void *recv, uint64_t count,
                          weft_dtype_t dtype, weft_group_t *group)
{
    switch (op) {
    case WEFT_COLLECTIVE_ALL_GATHER:
        return weft_all_gather(send, recv, count, dtype, group, NULL);
    case WEFT_COLLECTIVE_ALL_TO_ALL:
        return weft_all_to_all(send, recv, count, dtype, group, NULL);
    case WEFT_COLLECTIVE_BROADCAST:
        return weft_broadcast(send, recv, count, dtype, 1, group, NULL);
    case WEFT_COLLECTIVE_REDUCE_SCATTER:
        return weft_reduce_scatter(send, recv, count, dtype, WEFT_REDUCTION_SUM, group, NULL);
    default:
        return weft_all_reduce(send, recv, count, dtype, WEFT_REDUCTION_SUM, group, NULL);
    }
}

static void run_case(const rank_world_t *world, const plan_t *plan, uint8_t *memory, uint64_t count,
                     weft_dtype_t dtype, bool in_place)
{
    uint32_t n = world->size;
    size_t bytes = weft_dtype_size_bytes(dtype), half = RANKS * MAX_COUNT * sizeof(double);
    bool gathers = plan->op == WEFT_COLLECTIVE_ALL_GATHER;
    bool scatters = plan->op == WEFT_COLLECTIVE_REDUCE_SCATTER;
    bool blocks = plan->op == WEFT_COLLECTIVE_ALL_TO_ALL;
    uint64_t sent = count * (scatters || blocks ? n : 1), got = count * (gathers || blocks ? n : 1);
    uint8_t *send = memory, *recv = memory + half;
    if (in_place) {
        recv = scatters ? send + world->rank * count * bytes : send;
        send += gathers ? world->rank * count * bytes : 0;
    }
    memset(memory, 0, 2 * half);
    for (uint64_t i = 0; i < sent; i++) {
        put(send, dtype, i, input(world->rank, i));
    }
    RANK_OK(call(plan->op, send, recv, count, dtype, world->group));
    for (uint64_t i = 0; i < got; i++) {
        uint8_t wanted[sizeof(double)];
        put(wanted, dtype, 0, expected(plan->op, world->rank, n, count, i));
        RANK_CHECK(memcmp(recv + i * bytes, wanted, bytes) == 0);
    }
}

static void run_plans(rank_world_t *world)
{
    static const uint64_t counts[] = {0, 1, 17, MAX_COUNT};
    static const weft_dtype_t dtypes[] = {WEFT_DTYPE_F32, WEFT_DTYPE_BF16, WEFT_DTYPE_F64,
                                          WEFT_DTYPE_U8};
    void *memory;
    RANK_OK(weft_mem_alloc(world->context, 2 * RANKS * MAX_COUNT * sizeof(double), &memory));
    RANK_OK(weft_group_set_order(world->group, WEFT_ORDER_ANY, NULL, 0));
    for (size_t p = 0; p < PLANS; p++) {
        RANK_OK(weft_group_set_algorithm(world->group, plans[p].op, plans[p].path));
        for (uint32_t i = 0; i < 4 * 4 * 2; i++) {
            run_case(world, &plans[p], memory, counts[i / 8], dtypes[i / 2 % 4], i % 2 != 0);
        }
        /* A name ends in a digest. */
        const char *ran = weft_group_last_algorithm(world->group), *dash = strrchr(ran, '-');
        RANK_CHECK(dash != NULL && strspn(dash + 1, "0123456789abcdef") >= 8);
        RANK_OK(weft_group_set_algorithm(world->group, plans[p].op, NULL));
    }
    RANK_OK(weft_mem_free(world->context, memory));
}

static void test_msccl_runs(void **state)
{
    (void)state;
    static const uint32_t host_of[] = {0, 1, 0, 2};
    wefti_hub_links_t links = {.host_of = host_of, .seed = 7, .max_delay_ns = 1000};
    for (size_t p = 0; p < PLANS; p++) {
        plans[p].write(RANKS);
        save(plans[p].path);
    }
    support_rank_threads(RANKS, run_plans, NULL);
    support_rank_threads_over(RANKS, run_plans, NULL, &links);
    setenv("WEFT_TEST_TRANSPORT", "tcp", 1);
    bool over_tcp = support_rank_processes(RANKS, run_plans, NULL);
    unsetenv("WEFT_TEST_TRANSPORT");
    assert_true(over_tcp);
}

static void run_other_size(rank_world_t *world)
{
    float send[3] = {1, 2, 3}, recv[3];
    RANK_OK(weft_group_set_algorithm(world->group, WEFT_COLLECTIVE_ALL_REDUCE, plans[1].path));
    RANK_CHECK(
        weft_all_reduce(send, recv, 3, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, world->group, NULL) < 0);
    RANK_CHECK(strstr(weft_last_error(), "its file describes 4 ranks") != NULL);
    RANK_OK(weft_group_set_algorithm(world->group, WEFT_COLLECTIVE_ALL_REDUCE, NULL));
    RANK_OK(weft_all_reduce(send, recv, 3, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, world->group, NULL));
    RANK_CHECK(recv[2] == 3.0f * (float)world->size);
}

static void test_msccl_other_size(void **state)
{
    (void)state;
    support_rank_threads(3, run_other_size, NULL);
    for (size_t p = 0; p < PLANS; p++) {
        unlink(plans[p].path);
    }
}

/* ---- which reductions follow the tree ---- */

static void test_msccl_orders(void **state)
{
    (void)state;
    static const bool tree[] = {false, true, true};
    for (size_t p = 0; p < 3; p++) {
        weft_registry_t *registry = NULL;
        const weft_algorithm_t *algorithm = NULL;
        weft_algo_params_t params = WEFT_ALGO_PARAMS_INIT;
        char path[64];
        plans[p].write(RANKS);
        save(path);
        assert_int_equal(weft_registry_create(NULL, &registry), WEFT_OK);
        assert_int_equal(weft_registry_load_algorithm(registry, path, &algorithm), WEFT_OK);
        params.group_size = RANKS;
        assert_int_equal(weft_algorithm_verify(algorithm, &params) == WEFT_OK, tree[p]);
        params.order = WEFT_ORDER_ANY;
        assert_int_equal(weft_algorithm_verify(algorithm, &params), WEFT_OK);
        const weft_algorithm_t *again = NULL;
        assert_int_equal(weft_registry_load_algorithm(registry, path, &again), WEFT_OK);
        assert_ptr_equal(again, algorithm);
        unlink(path);
        weft_registry_destroy(registry);
    }
}

/* ---- files that are wrong ---- */

typedef struct fault {
    void (*write)(uint32_t n);
    const char *from, *to; /* the first one is replaced */
    const char *message;
} fault_t;

static const fault_t faults[] = {
    {ring_all_reduce, "</algo>", "", "the file ends before </algo>"},
    {ring_all_reduce, "<gpu id=\"0\"", "<gpu id=\"9\"", "invalid value '9' for id"},
    {ring_all_reduce, "<gpu id=\"2\"", "<gpu id=\"0\"", "duplicate gpu 0"},
    {ring_all_reduce, "type=\"s\"", "type=\"x\"", "gpu 0, tb 0, step 0: unknown type 'x'"},
    {ring_all_reduce, "type=\"s\"", "", "gpu 0, tb 0, step 0: attribute type is missing"},
    {ring_all_reduce, "srcoff=\"0\"", "srcoff=\"8\"", "chunks 8 to 8 are outside of buffer i"},
    {ring_all_reduce, "srcoff=\"0\"", "srcoff=\"99999999999\"", "invalid value '99999999999'"},
    {ring_all_reduce, "depid=\"-1\" deps=\"-1\"", "depid=\"7\" deps=\"0\"",
     "depends on tb 7, step 0, which does not exist"},
    {ring_all_reduce, "depid=\"-1\" deps=\"-1\"", "depid=\"0\" deps=\"1\"", "deadlock"},
    {ring_all_reduce, "nchunksperloop", "nchunks", "attribute nchunksperloop is missing"},
    {ring_all_reduce, "coll=\"allreduce\"", "coll=\"scan\"", "invalid value 'scan' for coll"},
    {ring_all_reduce, "<!--", "<!DOCTYPE x>", "expected an attribute"},
    {ring_all_reduce, "<!-- written by a test -->", "text", "unexpected text"},
    {ring_all_reduce, "<tb", "<block", "unexpected element 'block'"},
    {ring_all_reduce, "send=\"1\"", "send=\"-1\"", "type s, but the thread block has send"},
    {ring_all_reduce, "type=\"rrcs\"", "type=\"rcs\"", "lacks the contribution of gpu"},
    {ring_all_reduce, "cnt=\"1\"", "cnt=\"2\"", "sends 2 chunks, but gpu 1, tb 0, step 1"},
    {pairs_all_reduce, "type=\"re\" srcbuf=\"s\" srcoff=\"2\"",
     "type=\"re\" srcbuf=\"s\" srcoff=\"0\"", "adds the contribution of gpu 1 to chunk 0 twice"},
    {pairs_all_reduce, "depid=\"0\" deps=\"1\"", "depid=\"-1\" deps=\"-1\"", "data race"},
    {ring_all_gather, "type=\"rcs\" srcbuf=\"o\" srcoff=\"6\" dstbuf=\"o\" dstoff=\"6\"",
     "type=\"rcs\" srcbuf=\"o\" srcoff=\"6\" dstbuf=\"o\" dstoff=\"4\"", "output chunk"},
    {ring_all_gather, "type=\"r\"", "type=\"rrc\"", "does not reduce"},
};

static void test_msccl_faults(void **state)
{
    (void)state;
    weft_registry_t *registry = NULL;
    assert_int_equal(weft_registry_create(NULL, &registry), WEFT_OK);
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        static char rest[sizeof file.text];
        faults[i].write(RANKS);
        char *place = strstr(file.text, faults[i].from);
        assert_non_null(place);
        strcpy(rest, place + strlen(faults[i].from));
        file.used = (size_t)(place - file.text);
        add("%s%s", faults[i].to, rest);
        weft_status_t status = load(registry);
        if (status >= 0 || strstr(weft_last_error(), faults[i].message) == NULL) {
            fail_msg("fault %zu: expected \"%s\", got %d: %s", i, faults[i].message, (int)status,
                     status < 0 ? weft_last_error() : "no error");
        }
    }
    weft_registry_destroy(registry);
}

/* Cut and damaged files end in a status. */
static void test_msccl_damaged(void **state)
{
    (void)state;
    weft_registry_t *registry = NULL;
    uint64_t random = support_seed();
    assert_int_equal(weft_registry_create(NULL, &registry), WEFT_OK);
    for (uint32_t i = 0; i < 200; i++) {
        plans[i % PLANS].write(3 + (i % PLANS == 2));
        for (uint32_t k = 0; k < 1 + i % 3; k++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            size_t where = (size_t)(random >> 20) % file.used;
            if (i % 4 == 0) {
                file.used = where + 1;
            } else {
                file.text[where] = "0123456789-\"<>/ iosr"[random >> 60];
            }
        }
        load(registry);
    }
    weft_registry_destroy(registry);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_msccl_runs),    cmocka_unit_test(test_msccl_other_size),
        cmocka_unit_test(test_msccl_orders),  cmocka_unit_test(test_msccl_faults),
        cmocka_unit_test(test_msccl_damaged),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
