/* SPDX-License-Identifier: Apache-2.0 */
/* What prepare of the product and convolution kernels asks of a node; plans may be hostile. */
#ifndef WEFT_OPS_COMPUTE_KERNEL_CHECK_H
#define WEFT_OPS_COMPUTE_KERNEL_CHECK_H

#include <stdbool.h>

#include <weft/types.h>

/* Input or output index is there. */
bool wefti_node_has_input(const weft_node_desc_t *node, uint32_t index);
bool wefti_node_has_output(const weft_node_desc_t *node, uint32_t index);

/*
 * desc is f32, of known positive dimensions, whose product fits; what ("input 0") goes into the
 * message. Channels-last needs rank 4 and is refused unless allowed.
 */
weft_status_t wefti_check_f32(const weft_node_desc_t *node, const weft_tensor_desc_t *desc,
                              const char *what, bool channels_last_allowed);

/* The same for another type. */
weft_status_t wefti_check_type(const weft_node_desc_t *node, const weft_tensor_desc_t *desc,
                               const char *what, bool channels_last_allowed, weft_dtype_t dtype);

/* desc has exactly these dimensions. */
weft_status_t wefti_check_shape(const weft_node_desc_t *node, const weft_tensor_desc_t *desc,
                                const char *what, uint32_t rank, const int64_t *dims);

#endif
