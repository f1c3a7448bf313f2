/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SAMPLE_ALGORITHM_H
#define SAMPLE_ALGORITHM_H

#include <weft/algo.h>

extern const weft_algorithm_t side_lanes_algorithm;

#endif
