#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# From a fresh clone to a trained model: installs, builds, compiles an MLP for two ranks, explains the plan, trains it
# on Fashion-MNIST and writes the trained model and a timeline into demo/.
set -eu
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

data=/usr/share/datasets/fashion-mnist
install_packages "${build_packages[@]}" dataset-fashion-mnist

say "building (build/)"
configure_and_build build weft_tool -DCMAKE_BUILD_TYPE=RelWithDebInfo
weft=build/weft
mkdir -p demo

say "compiling samples/models/mlp.onnx for 2 ranks"
$weft compile samples/models/mlp.onnx -o demo/mlp.weft --world 2 --batch 64 --optimizer momentum \
  --lr 0.05 --bucket bytes:1M

say "what the plan does (weft explain demo/mlp.weft)"
$weft explain demo/mlp.weft

say "training on Fashion-MNIST, 2 ranks, 2 epochs"
$weft run demo/mlp.weft -n 2 --data "$data" --epochs 2 --lr-schedule linear --seed 1 \
  --save demo/mlp-trained.onnx --trace demo/timeline.json

cat <<TEXT

Next:
  - open demo/timeline.json in https://ui.perfetto.dev: a row per rank and stream, buckets named
  - demo/mlp-trained.onnx runs in any ONNX runtime
  - $weft run samples/models/lenet.onnx -n 2 --batch 64 --optimizer adam --data $data
  - $weft compile --help, $weft run --help, $weft info
  - pip install ./python in a virtual environment, then samples/python: the same from Python, and torch
  - scripts/test.sh runs the whole test suite
TEXT
