/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEFT_OPS_COMPUTE_LANES_TRANSPOSE_H
#define WEFT_OPS_COMPUTE_LANES_TRANSPOSE_H

#include <stdint.h>
#include <weft/types.h>

/*
 * dst[j * dst_step + i] = src[i * src_image + j] for i < images, 0 for the other lanes up to 16;
 * and back, adding a constant. One of each instruction set in lanes_transpose.c.
 */
typedef void (*wefti_to_lanes_fn)(const float *src, int64_t src_image, int images, int64_t count,
                                  float *dst, int64_t dst_step);
typedef void (*wefti_from_lanes_fn)(const float *src, int64_t src_step, int images, int64_t count,
                                    float add, float *dst, int64_t dst_image);
wefti_to_lanes_fn wefti_to_lanes(weft_isa_t isa);
wefti_from_lanes_fn wefti_from_lanes(weft_isa_t isa);

#endif
