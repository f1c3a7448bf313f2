/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the programs of tests/fuzz share. Each defines fuzz_one. libFuzzer drives them where the
 * compiler has it; elsewhere support_fuzz.c does, with these options of libFuzzer:
 *
 *   fuzz_<input> [-runs=N] [-max_total_time=SECONDS] [-seed=N] FILE_OR_FOLDER...
 *
 * Every file is read as it is. Damaged copies follow until runs or seconds are over; with neither,
 * without end; with files only, none.
 */
#ifndef WEFT_TESTS_SUPPORT_SUPPORT_FUZZ_H
#define WEFT_TESTS_SUPPORT_SUPPORT_FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <weft/registry.h>

/* The program's: reads one input. An input that takes FUZZ_MOST_SECONDS of processor time fails. */
void fuzz_one(const uint8_t *data, size_t size);
#define FUZZ_MOST_SECONDS 10.0
/* libFuzzer's name of it. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Stops with the library's message. */
void fuzz_check(bool good, const char *what);

/* The registry of built-in operators, of the process. */
const weft_registry_t *fuzz_registry(void);

/* A file in memory, for readers that take a path; the path is valid until the next call. */
const char *fuzz_file(const uint8_t *data, size_t size);

/* The next bytes of an input, at most count: what is left of it after them stays in data, size. */
const uint8_t *fuzz_take(const uint8_t **data, size_t *size, size_t count, size_t *out_count);

/* A non-blocking pair of sockets: end 0 has received the bytes, and end 1 is closed for writing. */
void fuzz_sockets(const uint8_t *data, size_t size, int out_ends[2]);

#endif
