/* SPDX-License-Identifier: Apache-2.0 */
/* The program `weft`. In a wheel the rest of the command is in the library (WEFT_COMMAND_IN_LIBRARY). */
#include "tools/tool.h"

int main(int argc, char **argv)
{
    return weft_command_main(argc, argv);
}
