/* SPDX-License-Identifier: Apache-2.0 */
#include "ops/op_defs.h"
