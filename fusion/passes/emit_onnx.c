/* SPDX-License-Identifier: Apache-2.0 */
/*
 * emit-onnx: keeps the graph for emit_path.
 *
 * Matches the whole graph and changes nothing. It copies the graph; weft_compile writes the copy
 * after the plan has its algorithms (wefti_compiled_write). It runs before layout, because ONNX has
 * no layouts.
 */
#include "fusion/passes/passes.h"

weft_status_t wefti_apply_emit_onnx(wefti_compiler_t *c)
{
    return wefti_onnx_emit_begin(c->graph, c->allocator, &c->emit);
}
