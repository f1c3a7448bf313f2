/* SPDX-License-Identifier: Apache-2.0 */
/* The table of weft_compile_params_t (weft_compile_option), applied to parameters. */
#ifndef WEFT_FUSION_OPTIONS_H
#define WEFT_FUSION_OPTIONS_H

#include <stdbool.h>

#include <weft/compile.h>

#include "runtime/base/memory.h"

/* Differs the field from its default? */
bool wefti_option_is_set(const weft_compile_option_t *option, const weft_compile_params_t *params);
/* A flag, number or text as weft_compile_option_set reads it, in arena; NULL: the default. */
weft_status_t wefti_option_format(const weft_compile_option_t *option,
                                  const weft_compile_params_t *params, wefti_arena_t *arena,
                                  const char **out_text);

/* Checks ranges, choices, training and inference, needed and excluded fields. Then sets what is
 * implied, and the defaults that are one value (lr has two). */
weft_status_t wefti_options_complete(weft_compile_params_t *params);

#endif
