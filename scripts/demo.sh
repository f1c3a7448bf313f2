#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
set -eu
usage() {
  cat <<'TEXT'
usage: scripts/demo.sh [-h | --help]

From a fresh clone to a trained model, on Debian 12: installs the missing packages (as root or with sudo), builds Weft in
build/, compiles an MLP for two ranks, explains the plan and trains it on Fashion-MNIST. Writes into demo/: the plan, the
trained model (ONNX) and a timeline (for Perfetto).

Exit status: 0 done, 1 a step failed, 2 packages are missing and this user cannot install them, or a wrong argument.
Afterwards `cmake --install build --prefix DIR` installs the library, its headers and the command.
TEXT
}
case "${1-}" in
  "") ;;
  -h | --help) usage; exit 0 ;;
  *) echo "unknown argument '$1'; try scripts/demo.sh --help" >&2; exit 2 ;;
esac
# shellcheck source=scripts/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
SECONDS=0

data=/usr/share/datasets/fashion-mnist
install_packages "${build_packages[@]}" dataset-fashion-mnist

say "building the command and the library (build/)"
options=()
# A folder that is configured already keeps its tests and samples.
if [ ! -e build/build.ninja ] && [ ! -e build/Makefile ]; then
  options=(--preset release)
fi
configure_and_build build weft_installed "${options[@]}"
weft=build/weft
mkdir -p demo

say "compiling samples/models/mlp.onnx for 2 ranks"
$weft compile samples/models/mlp.onnx -o demo/mlp.weft --world 2 --batch 64 --optimizer momentum --lr 0.05 --lr-schedule linear

say "what the plan does (weft explain demo/mlp.weft)"
$weft explain demo/mlp.weft

say "training on Fashion-MNIST, 2 ranks, 2 epochs"
$weft run demo/mlp.weft -n 2 --data "$data" --epochs 2 --seed 1 \
  --save demo/mlp-trained.onnx --trace demo/timeline.json
$weft explain demo/mlp.weft --profile demo/timeline.json --html demo/plan.html

cat <<TEXT

Done after $SECONDS s. Next:
  - open demo/plan.html in a browser: the plan, predicted and measured, and what other links or ranks would change
  - open demo/timeline.json in https://ui.perfetto.dev: a row per rank and stream
  - demo/mlp-trained.onnx runs in any ONNX runtime
  - $weft run samples/models/lenet.onnx -n 2 --batch 64 --optimizer adam --data $data
  - $weft help, $weft compile --help, $weft info
  - cmake --install build --prefix DIR, then link with pkg-config or find_package: docs/getting-started.md
  - from Python and torch: samples/python, after apt-get install python3-dev python3-venv and, in a virtual
    environment, pip install .
  - scripts/test.sh runs all tests
TEXT
