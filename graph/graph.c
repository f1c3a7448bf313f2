/* SPDX-License-Identifier: Apache-2.0 */
#include "graph/ir.h"
