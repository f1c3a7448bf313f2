/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/support_fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <weft/status.h>

#include "runtime/base/file.h"
#include "runtime/base/sync.h"
#include "tests/support/support.h"

void fuzz_check(bool good, const char *what)
{
    if (!good) {
        fprintf(stderr, "%s (%s)\n", what, weft_last_error());
        abort();
    }
}

#ifndef WEFT_LIBFUZZER
static void damage(uint8_t *bytes, size_t size, test_random_t *random)
{
    static const char text[] = "0123456789: FBCUPS.,%@-={}[]()\"";
    for (uint32_t i = test_random_below(random, 6) + 1; i > 0; i--) {
        size_t at = test_next_random(&random->state) % size,
               from = test_next_random(&random->state) % size;
        size_t length = test_random_below(random, 16);
        switch (test_random_below(random, 5)) {
        case 0:
            bytes[at] = (uint8_t)test_random(random);
            break;
        case 1:
            bytes[at] ^= (uint8_t)(1u << test_random_below(random, 8));
            break;
        case 2: /* small numbers: tags, lengths, counts */
            bytes[at] = (uint8_t)test_random_below(random, 40);
            break;
        case 3: /* what texts and properties are made of */
            bytes[at] = (uint8_t)text[test_random_below(random, sizeof(text) - 1)];
            break;
        default:
            if (at + length < size && from + length < size) {
                memmove(bytes + at, bytes + from, length);
            }
        }
    }
}

int main(int argc, char **argv)
{
    test_random_t random = {wefti_now_ns()};
    uint64_t runs = 0;
    uint64_t end = argc > 1 ? wefti_now_ns() + strtoull(argv[1], NULL, 10) * 1000000000u : 0;
    printf("seed %llu\n", (unsigned long long)random.state);
    fflush(stdout);
    for (int i = 2; i < argc || (argc > 2 && wefti_now_ns() < end); i++) {
        wefti_mapping_t mapping;
        const char *path =
            argv[i < argc ? i : 2 + (int)test_random_below(&random, (uint32_t)argc - 2)];
        fuzz_check(wefti_file_map(path, &mapping) == WEFT_OK && mapping.size_bytes > 0, path);
        uint8_t *bytes = malloc(mapping.size_bytes);
        fuzz_check(bytes != NULL, "no memory");
        memcpy(bytes, mapping.data, mapping.size_bytes);
        if (i >= argc) {
            damage(bytes, mapping.size_bytes, &random);
        }
        LLVMFuzzerTestOneInput(bytes, mapping.size_bytes);
        free(bytes);
        wefti_file_unmap(&mapping);
        runs++;
    }
    printf("%llu runs\n", (unsigned long long)runs);
    return 0;
}
#endif
