/* SPDX-License-Identifier: Apache-2.0 */
/* In place of tests/transport/verbs_nic.c where libibverbs and the devices are real. */
#include "tests/transport/verbs_nic.h"

nic_model_t nic;

void nic_reset(void)
{
    nic = (nic_model_t){0};
}
