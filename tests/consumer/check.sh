#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs the build into a temporary prefix with a space in its path, moves that, and builds consumer.c against it,
# with find_package and with pkg-config.
# usage: check.sh SOURCE_DIR BINARY_DIR CC
set -eu
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
cmake --install "$2" --prefix "$place/first" >/dev/null
prefix="$place/an installed copy"
mv "$place/first" "$prefix"
model=$1/samples/models/mlp.onnx

cmake -S "$1/tests/consumer" -B "$place/build" -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_C_COMPILER="$3" >/dev/null
cmake --build "$place/build" >/dev/null
"$place/build/consumer" "$model"

libdir=$(dirname "$(find "$prefix" -name libweft.so)")
PKG_CONFIG_PATH=$libdir/pkgconfig
export PKG_CONFIG_PATH
found=$(cd "$(pkg-config --variable=prefix weft | sed 's/\\//g')" && pwd)
[ "$found" = "$prefix" ] || { echo "weft.pc: prefix is $found, expected $prefix"; exit 1; }
# pkg-config puts a backslash before a space, which only eval understands.
eval "\"\$3\" -std=c99 \"\$1/tests/consumer/consumer.c\" -o \"\$place/consumer\" $(pkg-config --cflags --libs weft)"
LD_LIBRARY_PATH=$libdir "$place/consumer" "$model"
"$prefix/bin/weft" info >/dev/null
