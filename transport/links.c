/* SPDX-License-Identifier: Apache-2.0 */
/* The link drivers of this build. A file of its own, so that tests can bring others. */
#include "transport/links.h"

const wefti_link_driver_t *const wefti_link_drivers[] = {
#if WEFT_HAVE_VERBS
    &wefti_link_verbs,
#endif
    &wefti_link_tcp,
    NULL,
};
