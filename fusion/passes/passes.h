/* SPDX-License-Identifier: Apache-2.0 */
/* The functions of the rows of fusion/pipeline.c, in its order. Each changes compiler->graph. */
#ifndef WEFT_FUSION_PASSES_H
#define WEFT_FUSION_PASSES_H

#include "fusion/compile.h"

weft_status_t wefti_apply_normalize_collectives(wefti_compiler_t *compiler);
weft_status_t wefti_apply_given_gradients(wefti_compiler_t *compiler);
weft_status_t wefti_apply_bind_shapes(wefti_compiler_t *compiler);
weft_status_t wefti_apply_tidy_collectives(wefti_compiler_t *compiler);
weft_status_t wefti_apply_settle_gradients(wefti_compiler_t *compiler);
weft_status_t wefti_apply_inference_form(wefti_compiler_t *compiler);
weft_status_t wefti_apply_compare_models(wefti_compiler_t *compiler);
weft_status_t wefti_apply_split_batch(wefti_compiler_t *compiler);
weft_status_t wefti_apply_differentiate(wefti_compiler_t *compiler);
weft_status_t wefti_apply_insert_collectives(wefti_compiler_t *compiler);
weft_status_t wefti_apply_bucket(wefti_compiler_t *compiler);
weft_status_t wefti_apply_clip(wefti_compiler_t *compiler);
weft_status_t wefti_apply_optimizer(wefti_compiler_t *compiler);
weft_status_t wefti_apply_schedule(wefti_compiler_t *compiler);
weft_status_t wefti_apply_fit_arena(wefti_compiler_t *compiler);
weft_status_t wefti_apply_emit_onnx(wefti_compiler_t *compiler);
weft_status_t wefti_apply_programs(wefti_compiler_t *compiler);
weft_status_t wefti_apply_layout(wefti_compiler_t *compiler);

#endif
