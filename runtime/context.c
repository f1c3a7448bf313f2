/* SPDX-License-Identifier: Apache-2.0 */
#include <weft/session.h>
