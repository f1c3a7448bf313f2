/* SPDX-License-Identifier: Apache-2.0 */
/* What the ranks of a world agree on when they have joined. */
#ifndef WEFT_TRANSPORT_WORLD_H
#define WEFT_TRANSPORT_WORLD_H

#include "transport/transport.h"

#define WEFTI_MAX_WORLD 4096u

/* Collective: settings flagged collective are equal everywhere; who shares cores with whom. */
weft_status_t wefti_world_agree(wefti_endpoint_t *endpoint);

#endif
