/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <unistd.h>

#include "runtime/base/error.h"
#include "tools/launch/launch.h"

static weft_status_t become_program(void *user, uint32_t rank, uint32_t world_size,
                                    const char *address)
{
    const launch_t *launch = user;
    (void)rank;
    (void)world_size;
    (void)address; /* all of it is in the environment */
    execvp(launch->program[0], launch->program);
    return wefti_error_errno(errno == ENOENT ? WEFT_ERR_NOT_FOUND : WEFT_ERR_SYSTEM, errno,
                             "cannot run '%s'", launch->program[0]);
}

int wefti_launch_program(const launch_t *launch, uint32_t world_size)
{
    return wefti_launch_is_remote(launch)
               ? wefti_launch_remote(launch, world_size)
               : wefti_launch(launch, world_size, become_program, (void *)launch);
}
