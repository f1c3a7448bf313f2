#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# usage: run.sh SOURCE CC SCRATCH
# Reductions built for aarch64 have the bits of those built for this machine: reduce_bits.c, under qemu-user.
# Exit status 77, with the reason: no cross compiler or no qemu here. scripts/wheel.sh --arch aarch64 --test runs more.
set -eu
source=$1 cc=$2 scratch=$3/aarch64
cross=aarch64-linux-gnu-gcc
qemu=$(command -v qemu-aarch64-static || command -v qemu-aarch64) ||
  { echo "skipped: no qemu-aarch64 (Debian package qemu-user-static)"; exit 77; }
command -v $cross >/dev/null ||
  { echo "skipped: no $cross (Debian packages gcc-aarch64-linux-gnu and libc6-dev-arm64-cross)"; exit 77; }
mkdir -p "$scratch"
cd "$source"
build() { # build COMPILER OUT FLAGS..
  local compiler=$1 out=$2
  shift 2
  "$compiler" -std=c11 -D_GNU_SOURCE -O2 -ffp-contract=off -I. -Iinclude -ffunction-sections -fdata-sections -Wl,--gc-sections "$@" \
    tests/aarch64/reduce_bits.c ops/reduce/*.c runtime/base/status.c runtime/base/types.c -o "$out"
}
build "$cc" "$scratch/own"
"$scratch/own" >"$scratch/own.txt"
lines=$(wc -l <"$scratch/own.txt")
[ "$lines" -gt 100 ] || { echo "only $lines reductions"; exit 1; }
for level in -O2 -O3; do # gcc vectorises all loops at the second
  build $cross "$scratch/foreign" $level -static
  "$qemu" "$scratch/foreign" >"$scratch/foreign.txt"
  diff "$scratch/own.txt" "$scratch/foreign.txt"
  echo "$lines reductions have equal bits at $level"
done
