/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks as forked processes, each of which loads a library as a program does that is not linked to
 * Weft. Include cmocka.h first. */
#ifndef WEFT_TESTS_INTEROP_SUPPORT_FORKED_H
#define WEFT_TESTS_INTEROP_SUPPORT_FORKED_H

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

enum { MOST_RANKS = 4 };

extern int rank, size;

/* Ranks have no cmocka: a failure ends the process. */
#define EXPECT(condition)                                                                          \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "rank %d of %d, line %d: %s\n", rank, size, __LINE__, #condition);     \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

/* part is in text. */
void expect_text(const char *part, const char *text);

/* A library, and a symbol of it; what is missing ends the process. */
void *load_library(const char *path);
void *find_symbol(void *library, const char *name);

/* Starts the ranks, whose standard error goes to a text, and returns their exit statuses. */
void run_ranks(void (*body)(void), int ranks, int statuses[], char *errors, size_t bytes);
/* The same of ranks that all end well, but the one that dies (-1: none does). */
void expect_good_ranks(void (*body)(void), int ranks, int dead);

#endif
