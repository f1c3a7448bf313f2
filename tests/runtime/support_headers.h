/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the public headers, so that a table of functions can be checked for completeness. */
#ifndef WEFT_TESTS_RUNTIME_SUPPORT_HEADERS_H
#define WEFT_TESTS_RUNTIME_SUPPORT_HEADERS_H

/* The text of each header in include/weft, comments blanked. */
void support_each_header(void (*visit)(const char *text, void *user), void *user);
/* Each declaration of a public function: from its type up to end, its semicolon. */
void support_each_declaration(void (*visit)(const char *declaration, const char *end, void *user),
                              void *user);
/* Copies the last word before end to word; returns where it begins. */
const char *support_last_word(const char *begin, const char *end, char word[64]);

#endif
