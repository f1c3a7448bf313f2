/* SPDX-License-Identifier: Apache-2.0 */
/* Growing text and a JSON writer. Failures stick: check once at the end. */
#ifndef WEFT_RUNTIME_BASE_TEXT_H
#define WEFT_RUNTIME_BASE_TEXT_H

#include <stdbool.h>

#include <weft/types.h>

typedef struct wefti_text {
    const weft_allocator_t *allocator;
    char *data; /* always terminated once something was added */
    size_t length;
    size_t capacity;
    bool failed;
} wefti_text_t;

void wefti_text_init(wefti_text_t *text, const weft_allocator_t *allocator);
void wefti_text_deinit(wefti_text_t *text);
void wefti_text_add(wefti_text_t *text, const char *string);
void wefti_text_add_bytes(wefti_text_t *text, const void *bytes, size_t count);
void wefti_text_printf(wefti_text_t *text, const char *format, ...) WEFT_PRINTF(2, 3);
/* Control characters and bytes that are not UTF-8 become '?': for names from files, which must not
 * control a terminal. */
void wefti_text_add_printable(wefti_text_t *text, const char *string);
/* Length of the well-formed UTF-8 sequence at text (terminated), 0 for any other bytes. */
size_t wefti_utf8_length(const unsigned char *text);
/* Is the sequence of that length a control character (C0, DEL or C1)? */
bool wefti_utf8_control(const unsigned char *text, size_t length);
/* Hands the string over (free with the allocator), "" included; NULL if anything failed. */
char *wefti_text_take(wefti_text_t *text);

/* A number with a decimal point, also where the host program has set a locale with a comma. False:
 * text is none, or has more than 63 characters. */
bool wefti_double_parse(const char *text, double *out);
/* "1.5 MiB", "312 B"; buffer of at least 32 bytes, returned. */
const char *wefti_format_bytes(uint64_t bytes, char *buffer);

#endif
