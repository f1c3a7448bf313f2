/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the text form share. parse.c describes the form. */
#ifndef WEFT_GRAPH_TEXT_TEXT_H
#define WEFT_GRAPH_TEXT_TEXT_H

#include "graph/ir.h"
#include "runtime/base/error.h"

/* Bytes that end a name, with blanks; a name with one of them is written as a string. */
#define WEFTI_TEXT_ENDS_NAME " ,(){}[]=\"#%@\\"
/* Contents with more elements are written as hexadecimal bytes. */
#define WEFTI_TEXT_LIST_ELEMENTS 16

extern const char *const wefti_text_kinds[];  /* by wefti_value_kind_t; ends with NULL */
extern const char *const wefti_text_phases[]; /* by wefti_phase_t; ends with NULL */
/* By bit of wefti_value_flags_t from WEFTI_VALUE_LOSS on, then "grad" and "alias"; ends with
 * NULL. */
#define WEFTI_TEXT_FLAG_COUNT 5
#define WEFTI_TEXT_FLAG(i) ((wefti_value_flags_t)WEFTI_VALUE_LOSS << (i))
extern const char *const wefti_text_marks[];

/* scan.c: reads one line. Spaces are skipped. A failure sticks: the rest of the line is gone,
 * further calls accept nothing and return 0 or "", and the first message stays. */
typedef struct wefti_scan {
    const char *at, *end;
    wefti_arena_t words;   /* names and lists of the line */
    wefti_arena_t *kept;   /* contents, names of dimensions */
    size_t contents_bytes; /* of all contents so far */
    weft_status_t status;
} wefti_scan_t;

void wefti_scan_fail(wefti_scan_t *scan, weft_status_t status);
#define WEFTI_SCAN_FAIL(scan, ...)                                                                 \
    ((scan)->status < 0                                                                            \
         ? (void)0                                                                                 \
         : wefti_scan_fail(scan, wefti_error(WEFT_ERR_INVALID_ARGUMENT, __VA_ARGS__)))
bool wefti_scan_ends(wefti_scan_t *scan); /* nothing is left of the line */
bool wefti_scan_accept(wefti_scan_t *scan, char symbol);
void wefti_scan_expect(wefti_scan_t *scan, char symbol);
/* Fails with "expected .., got .." and what is there. */
void wefti_scan_unexpected(wefti_scan_t *scan, const char *expected);
/* Accepts word where it is the whole next name. */
bool wefti_scan_word(wefti_scan_t *scan, const char *word);
/* Position in list (ends with NULL) of the next name, which is accepted; -1: none of them. */
int wefti_scan_choice(wefti_scan_t *scan, const char *const *list);
/* Room for the elements of a list that ends with symbol; NULL: failed. */
void *wefti_scan_array(wefti_scan_t *scan, char symbol, size_t elem_bytes);
/* A name, or the contents of a string. what: for the error, such as "a value". */
const char *wefti_scan_name(wefti_scan_t *scan, const char *what);
int64_t wefti_scan_int(wefti_scan_t *scan, int64_t low, int64_t high);
double wefti_scan_double(wefti_scan_t *scan);
/* "f32[batch,4]nhwc", or "?" (dtype NONE). dim_names NULL: dimensions have no names. */
weft_tensor_desc_t wefti_scan_type(wefti_scan_t *scan, const char **dim_names);
/* "0.5", "[1,2]", "x3f80", "..." for a type whose shape is known. */
void wefti_scan_contents(wefti_scan_t *scan, weft_tensor_desc_t *type);
/* "name=value"; def may be NULL. */
weft_attr_t wefti_scan_attr(wefti_scan_t *scan, const weft_op_def_t *def);

#endif
