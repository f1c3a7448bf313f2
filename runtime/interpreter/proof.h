/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Algorithms of a registry are proved before a group runs them: once per context, group size, root,
 * order and in place or not. What is not proved is refused, on all ranks alike, for an algorithm is
 * a pure function of what is the same on all of them. Built-in ones are proved by the tests.
 */
#ifndef WEFT_RUNTIME_PROOF_H
#define WEFT_RUNTIME_PROOF_H

#include "runtime/context/context.h"

/* WEFT_OK; WEFT_ERR_UNSUPPORTED with the verifier's or the algorithm's reason; WEFT_ERR_NO_MEMORY.
 */
weft_status_t wefti_algorithm_prove(weft_context_t *context, const weft_algorithm_t *algorithm,
                                    const weft_algo_params_t *params);
/* The same for both, in place (where the operator can be) and not. */
weft_status_t wefti_algorithm_prove_places(weft_context_t *context,
                                           const weft_algorithm_t *algorithm,
                                           const weft_algo_params_t *params);

#endif
