#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs a program as the two ranks of a world, processes that find each other over a unix socket.
# usage: two_processes.sh PROGRAM [ARGUMENTS]
export WEFT_WORLD_SIZE=2 WEFT_ADDRESS="unix:@weft-two-processes-$$"
WEFT_RANK=1 "$@" &
other=$!
WEFT_RANK=0 "$@"
first=$?
wait "$other" && exit "$first"
