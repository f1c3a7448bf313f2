#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# usage: vm.sh [-2] [-t SECONDS] [-l LOG] IMAGE COMMAND [ARGUMENT...]
# Runs COMMAND, as root, in an emulated machine with RDMA devices (tests/rdma/README.md), or with -2 in two that
# are joined by a wire; this machine's files are there at the same paths, what is written is lost. Prints its output
# and exits with its status; 124: time ran out, 125: the machine did not run.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
hosts=1 limit=240 log=/dev/null
while getopts 2t:l: option; do
  case $option in
    2) hosts=2 ;;
    t) limit=$OPTARG ;;
    l) log=$OPTARG ;;
    *) exit 2 ;;
  esac
done
shift $((OPTIND - 1))
[ $# -ge 2 ] || { echo "usage: vm.sh [-2] [-t SECONDS] [-l LOG] IMAGE COMMAND [ARGUMENT...]" >&2; exit 2; }
image=$(realpath -e -- "$1")
shift

run=$(mktemp -d "${TMPDIR:-/tmp}/weft-vm.XXXXXX")
machines=()
# shellcheck disable=SC2317  # the trap's
clean_up() {
  [ ${#machines[@]} -eq 0 ] || kill "${machines[@]}" 2>/dev/null || true
  rm -rf "$run"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

if [ -x "$image/root/usr/bin/qemu-system-x86_64" ]; then
  libraries=$image/root/usr/lib/x86_64-linux-gnu
  qemu=(env "LD_LIBRARY_PATH=$libraries" "QEMU_MODULE_DIR=$libraries/qemu"
    "$image/root/usr/bin/qemu-system-x86_64" -L "$image/root/usr/share/qemu" -L "$image/root/usr/share/seabios")
else
  qemu=(qemu-system-x86_64)
fi

# Emulation everywhere: /dev/kvm may open and yet be slower, where the processor has neither svm nor vmx.
acceleration=(-accel "tcg,thread=multi")
kernel_words="console=ttyS0 quiet panic=-1 reboot=t net.ifnames=0 mitigations=off"
if grep -qwE 'svm|vmx' /proc/cpuinfo && [ -r /dev/kvm ] && [ -w /dev/kvm ]; then
  acceleration=(-accel kvm "${acceleration[@]}")
else
  # The emulated clock is the host's. Measured on a busy host its rate would come out wrong, so it is told.
  kernel_words+=" tsc=reliable"
  doubled=$(awk '/^bogomips/ {print $3; exit}' /proc/cpuinfo)
  [ -z "$doubled" ] || kernel_words+=" tsc_early_khz=$(awk "BEGIN {printf \"%d\", $doubled * 500}")"
fi
# Ranks that poll need a processor each, besides the kernel's part of software RDMA; more than the host has only slow
# it down.
processors=2
[ "$hosts" = 1 ] || processors=$(($(nproc) >= 4 ? 2 : 1))

start() { # start RANK
  local rank=$1
  {
    printf 'weft_vm_hosts=%q weft_vm_rank=%q weft_vm_limit=%q\n' "$hosts" "$rank" "$limit"
    printf '. %q\ncd %q\nmain' "$here/guest.sh" "$PWD"
    printf ' %q' "${command[@]}"
    echo
  } >"$run/job$rank"
  # shellcheck disable=SC2054  # QEMU's commas
  local arguments=(
    -nodefaults -no-user-config -display none -no-reboot -nic none -machine pc "${acceleration[@]}" -cpu max
    -smp "$processors" -m 1024 -kernel "$image/kernel" -initrd "$image/initrd"
    -append "$kernel_words weft.job=$run/job$rank"
    -serial "file:$run/console$rank" -device virtio-serial-pci
    -chardev "file,id=output,path=$run/output$rank" -device virtserialport,chardev=output,nr=1
    -chardev "file,id=status,path=$run/status$rank" -device virtserialport,chardev=status,nr=2
    -virtfs "local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap"
    -virtfs "local,path=$image/root,mount_tag=extra,security_model=none,readonly=on")
  if [ "$hosts" = 2 ]; then
    arguments+=(
      -device "virtio-net-pci,netdev=wire,romfile=,mac=02:77:65:66:74:0$((rank + 1))"
      -netdev "dgram,id=wire,local.type=unix,local.path=wire$rank,remote.type=unix,remote.path=wire$((1 - rank))")
  fi
  timeout -k 5 $((limit + 60)) env -C "$run" "${qemu[@]}" "${arguments[@]}" </dev/null >"$run/qemu$rank" 2>&1 &
  machines[rank]=$!
}

command=("$@")
for ((rank = 0; rank < hosts; rank++)); do
  start "$rank"
done
result=0
for ((rank = 0; rank < hosts; rank++)); do
  ended=0
  wait "${machines[rank]}" || ended=$?
  unset "machines[$rank]"
  [ "$hosts" = 1 ] || echo "-- machine $rank"
  cat "$run/output$rank" 2>/dev/null || true
  status=$(cat "$run/status$rank" 2>/dev/null || true)
  cat "$run/qemu$rank" "$run/console$rank" >>"$log" 2>/dev/null || true
  if ! [[ $status =~ ^[0-9]+$ ]]; then
    tail -n 30 "$run/console$rank" "$run/qemu$rank" >&2 || true
    status=$([ "$ended" = 124 ] && echo 124 || echo 125)
    echo "the emulated machine $([ "$status" = 124 ] && echo "ran out of time" || echo "did not run")" >&2
  fi
  [ "$result" != 0 ] || result=$status
done
exit "$result"
