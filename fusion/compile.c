/* SPDX-License-Identifier: Apache-2.0 */
#include "fusion/fusion.h"
