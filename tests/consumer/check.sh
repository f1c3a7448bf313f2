#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs the build into a temporary prefix and builds consumer.c against it, twice.
# usage: check.sh SOURCE_DIR BINARY_DIR CC
set -eu
prefix=$(mktemp -d)
trap 'rm -rf "$prefix"' EXIT
cmake --install "$2" --prefix "$prefix/usr" >/dev/null
model=$1/samples/models/mlp.onnx

cmake -S "$1/tests/consumer" -B "$prefix/build" -DCMAKE_PREFIX_PATH="$prefix/usr" -DCMAKE_C_COMPILER="$3" >/dev/null
cmake --build "$prefix/build" >/dev/null
"$prefix/build/consumer" "$model"

libdir=$(dirname "$(find "$prefix/usr" -name libweft.so)")
sed "s|^prefix=.*|prefix=$prefix/usr|" "$libdir/pkgconfig/weft.pc" >"$prefix/weft.pc"
# shellcheck disable=SC2046
"$3" -std=c99 "$1/tests/consumer/consumer.c" -o "$prefix/consumer" $(pkg-config --cflags --libs "$prefix/weft.pc")
LD_LIBRARY_PATH=$libdir "$prefix/consumer" "$model"

foreign=$(nm -D --defined-only "$libdir/libweft.so" | awk '$3 !~ /^weft_/ {print $3}')
[ -z "$foreign" ] || { echo "exported beside the public API: $foreign"; exit 1; }
