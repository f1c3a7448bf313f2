/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Readers under damaged input. A fuzz test defines LLVMFuzzerTestOneInput. With clang it is built
 * with -DWEFT_LIBFUZZER -fsanitize=fuzzer,address; otherwise support_fuzz.c has a plain driver:
 *
 *   fuzz_<input> SECONDS FILE...    each file as it is, then damaged copies until the time is over
 */
#ifndef WEFT_TESTS_SUPPORT_SUPPORT_FUZZ_H
#define WEFT_TESTS_SUPPORT_SUPPORT_FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Stops with the library's message. */
void fuzz_check(bool good, const char *what);

#endif
