/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file weft.h
 * Includes all public headers.
 */
#ifndef WEFT_WEFT_H
#define WEFT_WEFT_H

#include <weft/algo.h>
#include <weft/capture.h>
#include <weft/checkpoint.h>
#include <weft/collective.h>
#include <weft/compile.h>
#include <weft/context.h>
#include <weft/device.h>
#include <weft/fuser.h>
#include <weft/graph_text.h>
#include <weft/graph_view.h>
#include <weft/group.h>
#include <weft/memory.h>
#include <weft/passes.h>
#include <weft/plan.h>
#include <weft/plan_builder.h>
#include <weft/registry.h>
#include <weft/session.h>
#include <weft/status.h>
#include <weft/stream.h>
#include <weft/tensor_file.h>
#include <weft/types.h>
#include <weft/version.h>

#endif
