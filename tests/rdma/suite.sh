#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# usage: suite.sh BINARY_DIR PLANS [speed]      in the emulated machine, or in both of two
# Runs what is to be proved over RDMA devices. PLANS has mlp<N>.weft and mlp<N>.digest for N ranks on one host.
# speed: measures instead.
set -euo pipefail

bin=$1 plans=$2 what=${3-}
: "${WEFT_VM_HOSTS:?}" "${WEFT_VM_RANK:?}"
data=/usr/share/datasets/fashion-mnist
tests=$bin/tests
export WEFT_SECRET=of-no-consequence-in-here WEFT_CONNECT_TIMEOUT=300 WEFT_TIMEOUT=400
# Where the machine below is busy, packets are lost and answers are late: 4 s for one, and 8 attempts, before
# a queue pair gives up, and two minutes before a host does.
export WEFT_VERBS_TIMEOUT=20 WEFT_LINK_TIMEOUT=120
port=29400
scratch=$(mktemp -d)

title() {
  printf '\n== %s (%d s)\n' "$*" "$SECONDS"
}

# ranks N COMMAND...: ranks of a world of N; with two machines each starts half of them. Devices are taken in turn.
ranks() {
  local n=$1 first=0 count=$1 rank failed=0 pids=()
  shift
  port=$((port + 1))
  if [ "$WEFT_VM_HOSTS" = 2 ]; then
    count=$((n / 2)) first=$((WEFT_VM_RANK * n / 2))
    export WEFT_HOST_ID=machine$WEFT_VM_RANK
  fi
  for ((rank = first; rank < first + count; rank++)); do
    if [ "$WEFT_VM_HOSTS" = 1 ]; then
      export WEFT_VERBS_DEVICE=rxe$((rank % 2)) WEFT_HOST_ID=host$((rank * hosts / n))
    fi
    WEFT_RANK=$rank WEFT_WORLD_SIZE=$n WEFT_ADDRESS=10.77.0.1:$port timeout -k 5 600 "$@" &
    pids+=($!)
  done
  for rank in "${pids[@]}"; do
    wait "$rank" || failed=$?
  done
  return "$failed"
}

# train N [DEVICES]: a few steps by the command; weights must be those of N ranks on one host, on processors.
train() {
  local n=$1 devices=${2-cpu} want got
  if [ ! -d "$data" ]; then
    echo "no training: $data is missing (Debian package dataset-fashion-mnist)"
    return
  fi
  title "training on $n ranks, device $devices"
  WEFT_DEVICE_PATH=$tests ranks "$n" "$bin/weft" run "$plans/mlp$n.weft" --device "$devices" --data "$data" --steps 3 \
    --no-eval --json >"$scratch/json"
  if [ "$WEFT_VM_RANK" = 0 ]; then
    want=$(cat "$plans/mlp$n.digest")
    got=$(sed -n 's/.*"param_digest": *"\([^"]*\)".*/\1/p' "$scratch/json" | sort -u)
    echo "param_digest: $got, on one host $want"
    [ "$got" = "$want" ]
  fi
}

# perftest NAME ARGUMENTS..: the server on the first end, the client on the second.
perftest() {
  local name=$1 try server=
  shift
  if [ "$WEFT_VM_RANK" = 0 ]; then
    timeout 240 "$name" -d rxe0 -x 1 "$@" >"$scratch/server" 2>&1 &
    server=$!
  fi
  if [ "$WEFT_VM_HOSTS" = 1 ] || [ "$WEFT_VM_RANK" = 1 ]; then
    for ((try = 0; try < 50; try++)); do # until the server listens
      if timeout 240 "$name" -d "rxe$((2 - WEFT_VM_HOSTS))" -x 1 "$@" 10.77.0.1 >"$scratch/client" 2>&1; then
        grep -A 1 '#bytes' "$scratch/client" || cat "$scratch/client"
        break
      fi
      sleep 0.2
    done
    [ "$try" -lt 50 ]
  fi
  [ -z "$server" ] || wait "$server"
}

# Emulated, so the figures mean little: beside each other only.
speed() {
  title "bandwidth and latency"
  ranks 2 "$tests/rdma_world" speed
  if ! command -v ib_write_bw >/dev/null; then
    echo "no ib_write_bw and ib_write_lat to compare with"
    return
  fi
  perftest ib_write_bw -s 65536 -n 100 -p $((port + 1000))
  perftest ib_write_lat -s 8 -n 500 -p $((port + 2000))
}

one_machine() {
  title "the driver alone, between two devices"
  WEFT_TEST_VERBS_DEVICES=rxe0,rxe1 "$tests/rdma_links"

  title "the conformance suite of transports"
  WEFT_TEST_FABRIC=verbs WEFT_VERBS_DEVICE=rxe0 "$tests/transport_conformance" | tee "$scratch/conformance"
  grep -q 'hosts over verbs, 3 ranks' "$scratch/conformance" # not skipped

  export WEFT_TRANSPORT=verbs
  title "collectives on 2 ranks"
  ranks 2 "$tests/rdma_world" collectives
  title "collectives on 4 ranks"
  ranks 4 "$tests/rdma_world" collectives
  train 4
  train 4 fake:0,1 # accelerators that other ranks reach through memory of their hosts
  title "a rank that may lock little memory"
  ranks 2 "$tests/rdma_world" memory

  export WEFT_TRANSPORT=verbs,tcp
  title "a queue pair dies, tcp follows"
  ranks 2 "$tests/rdma_world" broken
  title "a queue pair dies, nothing may follow"
  WEFT_FALLBACK=off ranks 2 "$tests/rdma_world" broken
}

two_machines() {
  unset WEFT_TRANSPORT # verbs by choice: tcp is there, too
  title "collectives on 2 ranks"
  ranks 2 "$tests/rdma_world" collectives
  title "collectives on 4 ranks, two of them on each machine"
  ranks 4 "$tests/rdma_world" collectives
  train 2
}

hosts=2
if [ "$what" = speed ]; then
  export WEFT_TRANSPORT=verbs
  speed
elif [ "$WEFT_VM_HOSTS" = 1 ]; then one_machine; else two_machines; fi
title "good"
