/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The compiler under damaged models: graphs that bring gradients and collectives, and compiled
 * graphs, whose properties say what the compiler would otherwise have decided itself.
 *
 *   fuzz_compile SECONDS FILE...    each file as it is, then damaged copies until the time is over
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <weft/weft.h>

#include "runtime/base/file.h"
#include "runtime/base/sync.h"

static void check(bool good, const char *what)
{
    if (!good) {
        fprintf(stderr, "%s (%s)\n", what, weft_last_error());
        abort();
    }
}

static uint64_t next_random(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return *seed >> 33;
}

static void damage(uint8_t *bytes, size_t size, uint64_t *seed)
{
    for (uint64_t i = next_random(seed) % 4 + 1; i > 0; i--) {
        size_t at = next_random(seed) % size, from = next_random(seed) % size;
        size_t length = next_random(seed) % 12;
        switch (next_random(seed) % 5) {
        case 0:
            bytes[at] = (uint8_t)next_random(seed);
            break;
        case 1:
            bytes[at] ^= (uint8_t)(1u << next_random(seed) % 8);
            break;
        case 2: /* small numbers: tags, lengths, counts */
            bytes[at] = (uint8_t)(next_random(seed) % 40);
            break;
        case 3: /* what properties are made of */
            bytes[at] = (uint8_t) "0123456789: FBCUPS"[next_random(seed) % 18];
            break;
        default:
            if (at + length < size && from + length < size) {
                memmove(bytes + at, bytes + from, length);
            }
        }
    }
}

static void silence(void *user, weft_log_level_t level, const char *text)
{
    (void)user;
    (void)level;
    (void)text;
}

static void compile(const char *path, uint32_t world_size)
{
    weft_compile_params_t params = WEFT_COMPILE_PARAMS_INIT;
    weft_plan_t *plan;
    params.model_path = path;
    params.world_size = world_size;
    params.batch = world_size != 0 ? 4 : 0;
    params.log = silence;
    weft_status_t status = weft_compile(&params, &plan);
    check((status >= 0) == (plan != NULL), "status and plan disagree");
    check(status != WEFT_ERR_INTERNAL, "an error of our own");
    weft_plan_release(plan);
}

int main(int argc, char **argv)
{
    uint64_t seed = wefti_now_ns(), runs = 0;
    uint64_t end = argc > 1 ? wefti_now_ns() + strtoull(argv[1], NULL, 10) * 1000000000u : 0;
    char path[] = "/tmp/weft-fuzz-XXXXXX";
    int fd = mkstemp(path);
    check(fd >= 0, "no temporary file");
    close(fd);
    printf("seed %llu\n", (unsigned long long)seed);
    fflush(stdout);
    for (int i = 2; i < argc || (argc > 2 && wefti_now_ns() < end); i++) {
        wefti_mapping_t mapping;
        const char *from =
            argv[i < argc ? i : 2 + (int)(next_random(&seed) % (uint64_t)(argc - 2))];
        check(wefti_file_map(from, &mapping) == WEFT_OK && mapping.size_bytes > 0, from);
        uint8_t *bytes = malloc(mapping.size_bytes);
        check(bytes != NULL, "no memory");
        memcpy(bytes, mapping.data, mapping.size_bytes);
        if (i >= argc) {
            damage(bytes, mapping.size_bytes, &seed);
        }
        wefti_piece_t piece = {bytes, mapping.size_bytes};
        check(wefti_file_write(path, &piece, 1) == WEFT_OK, "cannot write");
        compile(path, 0);
        compile(path, 2);
        free(bytes);
        wefti_file_unmap(&mapping);
        runs++;
    }
    unlink(path);
    printf("%llu runs\n", (unsigned long long)runs);
    return 0;
}
