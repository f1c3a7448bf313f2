/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file tensor_file.h
 * Tensors in files that hold one ONNX TensorProto (.pb), as ONNX's test data and
 * `weft run --inputs` use them.
 */
#ifndef WEFT_TENSOR_FILE_H
#define WEFT_TENSOR_FILE_H

#include <weft/registry.h>

WEFT_EXTERN_C_BEGIN
/**
 * Reads a tensor, from whichever field of the TensorProto holds its contents. Any thread.
 * @param[in]  path     the file
 * @param[out] out_desc type and shape, plain layout; its data is *out_data
 * @param[out] out_data contents; the caller frees them
 * @return WEFT_ERR_NOT_FOUND, WEFT_ERR_FORMAT, WEFT_ERR_UNSUPPORTED (a type that Weft does not
 *         have), naming the file
 */
WEFT_API weft_status_t weft_tensor_read(const char *path, weft_tensor_desc_t *out_desc,
                                        void **out_data);
/**
 * Writes a tensor: all or nothing. Any thread.
 * @param[in] path the file
 * @param[in] name name of the tensor in the file; NULL: none
 * @param[in] desc plain layout; desc->data holds the contents (may be NULL without elements)
 * @return WEFT_ERR_UNSUPPORTED above 2 GiB, which readers of protobuf refuse; WEFT_ERR_SYSTEM
 */
WEFT_API weft_status_t weft_tensor_write(const char *path, const char *name,
                                         const weft_tensor_desc_t *desc);
WEFT_EXTERN_C_END

#endif
