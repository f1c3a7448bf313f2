/* SPDX-License-Identifier: Apache-2.0 */
/* The signature of a collective in one word, which ranks compare, and as text. */
#ifndef WEFT_OPS_SIGNATURE_H
#define WEFT_OPS_SIGNATURE_H

#include <stddef.h>
#include <stdint.h>

/* what: operator 8, type 8, reduction 4, order 2, asked for 1, flags 8 (from 24), root 16, and 16
 * bits of the digest of what was asked for */
#define WEFTI_WHAT_ORDER_SHIFT 20
#define WEFTI_WHAT_WANTED (1u << 22)
#define WEFTI_WHAT_FUSED (1u << 23) /* several of a batch; count is a hash of theirs */
#define WEFTI_WHAT_ROOT_SHIFT 32
#define WEFTI_WHAT_SELECTION_SHIFT 48
#define WEFTI_WHAT_SELECTION_MASK                                                                  \
    (0xffffull << WEFTI_WHAT_SELECTION_SHIFT | 7ull << WEFTI_WHAT_ORDER_SHIFT)
#define WEFTI_WHAT_FLAGS_SHIFT 24
#define WEFTI_WHAT_FLAGS_MASK ((uint64_t)0xff << WEFTI_WHAT_FLAGS_SHIFT)
#define WEFTI_WHAT_REDUCTION_MASK (0xfull << 16)
#define WEFTI_WHAT_ROOT_MASK (0xffffull << WEFTI_WHAT_ROOT_SHIFT)

/* Of counts of elements: no more fit memory; above it is a digest of the tensor's shape, 0: none. */
#define WEFTI_COUNT_SHAPE_SHIFT 48
#define WEFTI_COUNT_MASK ((1ull << WEFTI_COUNT_SHAPE_SHIFT) - 1)
/* In the digest's place where the elements are themselves shapes; digests are odd. */
#define WEFTI_COUNT_SHAPES 2u

/* Of all-gathers that the library makes for a function: its wefti_control_kind_t, by which they are
 * named; else 0. */
uint32_t wefti_what_control(uint64_t what);

/* The operator of the call slot of a rank that refused its call: count is the status, negated, the
 * data is the message. */
#define WEFTI_WHAT_REFUSED 0xffull

/* "all_reduce": what the function is called, without its prefix. */
const char *wefti_what_function(uint64_t what);
/* What follows the name: " with 16 x f32 (sum, root 1)"; hidden: bits of what that need not be
 * told. */
void wefti_what_arguments(uint64_t what, uint64_t count, uint64_t hidden, char *out, size_t bytes);
/* "all_reduce with 100 x f32 (sum)"; buffer holds 160 bytes. Returns buffer. */
const char *wefti_what_text(uint64_t what, uint64_t count, char *buffer);

#endif
