#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What a newcomer does on a bare machine, run in a room by ctest (bare_demo): the demo; the demo again without a network;
# an installation in a path with a space, and a program built against it with pkg-config and with find_package.
set -eu
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
fail() {
  echo "bare/demo.sh: $*" >&2
  exit 1
}

# The tests of the plain build run optimised code: here it only has to build and to run.
sed -i 's/"CMAKE_BUILD_TYPE": "RelWithDebInfo"/&, "CMAKE_C_FLAGS_RELWITHDEBINFO": "-O1 -DNDEBUG"/' CMakePresets.json
scripts/demo.sh
for file in demo/mlp.weft demo/mlp-trained.onnx demo/timeline.json demo/plan.html; do
  [ -s "$file" ] || fail "the demo did not write $file"
done
! find build -name 'test_*.o' | grep -q . || fail "the demo built tests"

echo "== again, without a network, without LANG and HOME"
env -u LANG -u HOME unshare -n scripts/demo.sh >second.log 2>&1 || { tail -n 30 second.log; fail "the second run failed"; }
grep -m 1 accuracy second.log

echo "== an installed copy"
tests/consumer/check.sh "$PWD" "$PWD/build" cc

echo "== configuring without cmocka"
cmake -S . -B other -G Ninja >other.log || { cat other.log; fail "cmake needs more than the demo installs"; }
grep 'tests are left out' other.log
