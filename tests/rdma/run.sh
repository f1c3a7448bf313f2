#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# usage: run.sh SOURCE_DIR BINARY_DIR [speed]
# RDMA for real, in emulated machines: see README.md. Exit status 77, with the reason: not possible here.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source=$(realpath -- "$1")
binary=$(realpath -- "$2")
if [ -n "${WEFT_SANITIZED:-}" ]; then
  echo "skipped: programs under -fsanitize=$WEFT_SANITIZED are too slow in an emulated machine"
  exit 77
fi
cache=${WEFT_RDMA_CACHE:-$binary/rdma}
status=0
image=$("$here/fetch.sh" "$cache" 2>"$binary/rdma.log") || status=$?
if [ "$status" != 0 ]; then
  echo "skipped: $(tail -n 1 "$binary/rdma.log")"
  exit "$status"
fi

# What training on one host comes to, to compare with.
plans=$(mktemp -d "$binary/rdma-plans.XXXXXX")
trap 'rm -rf "$plans"' EXIT
for ranks in 2 4; do
  "$binary/weft" compile "$source/samples/models/mlp.onnx" -o "$plans/mlp$ranks.weft" --world "$ranks" --batch 16
  if [ -d /usr/share/datasets/fashion-mnist ]; then
    "$binary/weft" run "$plans/mlp$ranks.weft" -n "$ranks" --data /usr/share/datasets/fashion-mnist --steps 3 --no-eval \
      --json | sed -n 's/.*"param_digest": *"\([^"]*\)".*/\1/p' >"$plans/mlp$ranks.digest"
  fi
done >"$binary/rdma.log"

echo "==== one machine, two devices"
"$here/vm.sh" -t 900 -l "$binary/rdma.log" "$image" "$here/suite.sh" "$binary" "$plans" "${@:3}"
echo "==== two machines"
"$here/vm.sh" -2 -t 900 -l "$binary/rdma.log" "$image" "$here/suite.sh" "$binary" "$plans" "${@:3}"
