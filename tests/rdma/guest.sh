# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Sourced by the emulated machine's job file: makes RDMA devices, then runs the command and says how it ended.
#   weft_vm_hosts=1   rxe0 and rxe1 are the two ends of a wire in this machine (10.77.0.1, 10.77.0.2)
#   weft_vm_hosts=2   rxe0 is on the wire to the other machine
: "${weft_vm_hosts:?}" "${weft_vm_rank:?}" "${weft_vm_limit:?}"
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8

mac() { printf '02:77:65:66:74:%02x' "$1"; }

set_up_network() (
  cd /proc/sys/net || exit 1
  echo 0 >ipv6/conf/default/accept_dad # addresses, and with them GIDs, are good at once
  echo 20000 >core/netdev_max_backlog  # software RDMA sends in bursts; what is dropped waits for a time-out
  # Both ends of the wire are this machine's: let them talk, and let it go over the wire.
  echo 1 >ipv4/conf/all/accept_local
  echo 0 >ipv4/conf/all/rp_filter
  echo 0 >ipv4/conf/default/rp_filter
  ip link set lo up
  # 4,096 bytes of RDMA and its headers.
  if [ "$weft_vm_hosts" = 2 ]; then
    ip link set eth0 name wire0 mtu 4500 && add_end wire0 "$weft_vm_rank" rxe0
  else
    ip link add wire0 mtu 4500 address "$(mac 1)" type veth peer name wire1 mtu 4500 address "$(mac 2)" &&
      add_end wire0 0 rxe0 && add_end wire1 1 rxe1
  fi
)

# add_end INTERFACE END DEVICE: the other end's address is known beforehand, asking for it can take a second.
add_end() {
  ip address add "10.77.0.$(($2 + 1))/24" dev "$1" && ip link set "$1" up &&
    ip neighbour replace "10.77.0.$((2 - $2))" lladdr "$(mac $((2 - $2)))" dev "$1" nud permanent &&
    rdma link add "$3" type rxe netdev "$1"
}

main() {
  local status
  if ! set_up_network >/dev/console 2>&1; then
    echo "the emulated machine has no RDMA device" >/dev/vport0p1
    echo 125 >/dev/vport0p2
    return
  fi
  chmod 666 /dev/infiniband/uverbs* # as udev does
  hostname "machine$weft_vm_rank"
  ulimit -l unlimited
  export WEFT_VM_HOSTS=$weft_vm_hosts WEFT_VM_RANK=$weft_vm_rank
  export WEFT_VM_ADDRESS=10.77.0.$((weft_vm_rank + 1)) WEFT_VM_PEER=10.77.0.$((2 - weft_vm_rank))
  # A port can be opened once only, and a program may open its output again: hence the pipe.
  { timeout -k 5 "$weft_vm_limit" "$@" </dev/null 2>&1; echo $? >/run/status; } | cat >/dev/vport0p1
  status=$(cat /run/status)
  [ "$status" = 124 ] && echo "the emulated machine's time of $weft_vm_limit s is over" >/dev/console
  sync
  echo "$status" >/dev/vport0p2
}
