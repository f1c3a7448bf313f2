/* SPDX-License-Identifier: Apache-2.0 */
/*
 * differentiate: appends the backward pass (graph/autodiff/differentiate.c).
 *
 * Matches the forward operators that the loss depends on, unless the model contains gradients.
 * Produces the operators of the backward pass, those of a parameter's gradient first, so that
 * communication can start early; and grad_of on the complete gradient of every parameter.
 * Parameters that the loss does not depend on become constants.
 */
#include "fusion/passes/passes.h"

weft_status_t wefti_apply_differentiate(wefti_compiler_t *c)
{
    return wefti_graph_differentiate(c->graph);
}
