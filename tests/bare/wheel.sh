#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The wheel of scripts/wheel.sh on a machine without a compiler, in a room:
#   tests/bare/run.sh [--suite SUITE] --with build/wheel/x86_64/dist -- tests/bare/wheel.sh [PYTHON..]
# PYTHON: Debian's names of interpreters, such as python3.14; without any: python3.
set -eu
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
fail() {
  echo "bare/wheel.sh: $*" >&2
  exit 1
}
[ $# -gt 0 ] || set -- python3
packages=(dataset-fashion-mnist)
for python in "$@"; do
  packages+=("$python" "$python-venv")
done
apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${packages[@]}" >apt.log 2>&1 ||
  { tail -n 5 apt.log; fail "apt-get install failed"; }
for tool in cc gcc clang cmake; do
  ! command -v $tool || fail "$tool is installed: not the machine meant"
done

# An option whose library is absent names it; everything else works without it.
expect_error() { # expect_error TEXT COMMAND..
  local text=$1
  shift
  if "$@" >error.log 2>&1; then fail "no error: $*"; fi
  grep -qF "$text" error.log || { cat error.log; fail "expected '$text': $*"; }
  grep -F "$text" error.log | head -n 1
}

for python in "$@"; do
  echo "== $($python --version), glibc $(ldd --version | sed -n '1s/.* //p')"
  rm -rf venv
  "$python" -m venv venv
  venv/bin/pip install -q --no-index --disable-pip-version-check dist/*.whl
  weft=venv/bin/weft
  $weft info | sed -n '/^libraries/,/^$/p'
  $weft run -n 2 -- venv/bin/python -c '
import array, weft
weft.init()
x = array.array("f", range(1000))
weft.all_reduce_(x)
assert list(x) == [2.0 * i for i in range(1000)], x[:4]
print(f"rank {weft.get_rank()} of {weft.get_world_size()}: all_reduce\n", end="")'
  train=("$weft" run samples/models/mlp.onnx -n 2 --batch 64 --optimizer momentum --lr 0.05 --steps 60 --seed 1
    --data /usr/share/datasets/fashion-mnist)
  "${train[@]}" >train.log 2>&1 || { cat train.log; fail "training failed"; }
  grep -o 'trained .* accuracy .*' train.log || fail "no accuracy"
  expect_error "oneDNN: cannot load libdnnl.so.2: " env WEFT_KERNELS=onednn "${train[@]}"
done
