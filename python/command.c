/* SPDX-License-Identifier: Apache-2.0 */
/* The command `weft` of a wheel: all of it is in the library beside it (WEFT_COMMAND_IN_LIBRARY). */
int weft_command_main(int argc, char **argv);

int main(int argc, char **argv)
{
    return weft_command_main(argc, argv);
}
