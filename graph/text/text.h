/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the text form share. parse.c describes the form. */
#ifndef WEFT_GRAPH_TEXT_TEXT_H
#define WEFT_GRAPH_TEXT_TEXT_H

#include "graph/ir.h"

/* Bytes that end a name. Within a name they are written as \xNN. */
#define WEFTI_TEXT_ENDS_NAME " ,(){}[]=\"#%@\\"
/* Contents with more elements are written as hexadecimal bytes. */
#define WEFTI_TEXT_LIST_ELEMENTS 16

extern const char *const wefti_text_kinds[];  /* by wefti_value_kind_t; ends with NULL */
extern const char *const wefti_text_phases[]; /* by wefti_phase_t; ends with NULL */

typedef struct wefti_text_mark {
    const char *name;
    wefti_value_flags_t flag;
} wefti_text_mark_t;
#define WEFTI_TEXT_MARK_COUNT 5
extern const wefti_text_mark_t wefti_text_marks[WEFTI_TEXT_MARK_COUNT];

/* The version of an operator whose text has none: that of the newest definition. */
int32_t wefti_text_default_version(const weft_registry_t *registry, const char *domain,
                                   const char *op);

/* scan.c: reads words, numbers, types and contents from one line. Each function first skips
 * spaces. */
typedef struct wefti_scan {
    const char *at, *end;
    wefti_arena_t *words;  /* names, lists */
    wefti_arena_t *kept;   /* contents and names of dimensions */
    size_t contents_bytes; /* of all contents so far */
} wefti_scan_t;

bool wefti_scan_ends(wefti_scan_t *scan); /* nothing is left of the line */
bool wefti_scan_accept(wefti_scan_t *scan, char symbol);
weft_status_t wefti_scan_expect(wefti_scan_t *scan, char symbol);
/* "expected .., got .." with what is there. */
weft_status_t wefti_scan_unexpected(wefti_scan_t *scan, const char *expected);
/* Accepts word where it is the whole next name. */
bool wefti_scan_word(wefti_scan_t *scan, const char *word);
/* Position in list (ends with NULL) of the next name, which is accepted; -1: none of them. */
int wefti_scan_choice(wefti_scan_t *scan, const char *const *list);
/* A name without its escapes. what: for the error, such as "a value". */
weft_status_t wefti_scan_name(wefti_scan_t *scan, const char *what, const char **out_name);
weft_status_t wefti_scan_int(wefti_scan_t *scan, int64_t low, int64_t high, int64_t *out_number);
weft_status_t wefti_scan_double(wefti_scan_t *scan, double *out_number);
/* "f32[batch,4]nhwc", or "?" (dtype NONE). dim_names NULL: dimensions have no names. */
weft_status_t wefti_scan_type(wefti_scan_t *scan, weft_tensor_desc_t *type, const char **dim_names);
/* "0.5", "[1,2]", "x3f80", "..." for a type whose shape is known. */
weft_status_t wefti_scan_contents(wefti_scan_t *scan, weft_tensor_desc_t *type);
/* "name=value"; def may be NULL. */
weft_status_t wefti_scan_attr(wefti_scan_t *scan, const weft_op_def_t *def, weft_attr_t *out_attr);

#endif
