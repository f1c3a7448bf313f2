/* SPDX-License-Identifier: Apache-2.0 */
#include "ops/reduce/reduce_internal.h"

#define TARGET
#define NAME wefti_reduce_portable
#include "ops/reduce/reduce_blocks.h"
