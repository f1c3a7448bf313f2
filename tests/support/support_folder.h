/* SPDX-License-Identifier: Apache-2.0 */
/* A temporary folder with files that a test writes: a /sys and /proc that are made up, for example. */
#ifndef WEFT_TESTS_SUPPORT_SUPPORT_FOLDER_H
#define WEFT_TESTS_SUPPORT_SUPPORT_FOLDER_H

/* Setup and teardown of cmocka: *state is the path of an empty folder, which goes with its files. */
int test_folder_make(void **state);
int test_folder_drop(void **state);
/* Writes a file, and the folders to it; content NULL: the folders alone. */
void test_folder_put(const char *folder, const char *name, const char *content);

#endif
