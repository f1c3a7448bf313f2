#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# usage: fetch.sh CACHE
# Prepares, once, what an emulated machine with software RDMA needs, out of Debian's packages, and prints the
# folder: kernel (unpacked), initrd, and root/ with the tools that this machine has not. Needs no root.
# Exit status 77: not to be had here, with the reason on standard error.
set -euo pipefail

skip() {
  echo "no emulated machine: $*" >&2
  exit 77
}

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
[ $# -eq 1 ] || { echo "usage: fetch.sh CACHE" >&2; exit 2; }
[ "$(uname -m)" = x86_64 ] || skip "only x86-64 machines are emulated here"
for tool in apt-get apt-cache dpkg-deb tar awk; do
  command -v "$tool" >/dev/null || skip "$tool is missing"
done
mkdir -p "$1"
cache=$(realpath -- "$1")

# In the initrd: enough to mount this machine's files, and RDMA. crc32_generic is asked for by the kernel itself,
# through a program that an initrd has not.
modules=(virtio_pci virtio_console virtio_net 9pnet_virtio 9p overlay veth ib_uverbs crc32_generic rdma_rxe)
# With the modules that they may need; those that are built in are not found, and not missed.
wanted=("${modules[@]}" virtio virtio_ring virtio_pci_modern_dev virtio_pci_legacy_dev net_failover failover 9pnet
  netfs fscache ib_core udp_tunnel ip6_udp_tunnel)
tools=(qemu-system-x86 busybox-static xz-utils iproute2 ibverbs-providers perftest)

key=$(cksum "$here/fetch.sh" "$here/guest_init.sh" | cksum | cut -d ' ' -f 1)
image=$cache/image-$key
exec 9>"$cache/lock"
flock 9
if [ -d "$image" ]; then
  echo "$image"
  exit 0
fi

new=$(mktemp -d "$cache/new.XXXXXX")
trap 'rm -rf "$new"' EXIT
mkdir -p "$new"/{debs,boot,initrd/bin,root/usr/{bin,sbin,lib,lib64},lists/partial,archives/partial}
for folder in bin sbin lib lib64; do
  ln -s "usr/$folder" "$new/root/$folder" # as on every merged system: the overlay must not hide the host's links
done

# ---- packages ----

apt_options=(-q -o APT::Sandbox::User=root)
# This machine's lists of packages may be missing, or older than the mirror.
private_lists() {
  apt_options+=(-o "Dir::State::lists=$new/lists" -o "Dir::Cache=$new" -o Debug::NoLocking=1)
  timeout 120 apt-get "${apt_options[@]}" update >"$new/update.log" 2>&1
}

# The real package behind linux-image-amd64; the cloud kernels have no software RDMA.
kernel_package() {
  apt-cache "${apt_options[@]}" depends linux-image-amd64 2>/dev/null |
    awk '$1 == "Depends:" && $2 ~ /^linux-image-/ {print $2; exit}'
}

# Those of the tools and what they need that are not installed; upgrades are none of our business.
missing_packages() {
  apt-get "${apt_options[@]}" --simulate --no-install-recommends install "${tools[@]}" 2>/dev/null |
    awk '$1 == "Inst" && $3 ~ /^\(/ {print $2}'
}

download() {
  local kernel names
  kernel=$(kernel_package)
  [ -n "$kernel" ] || return 1
  mapfile -t names < <(missing_packages)
  (cd "$new/debs" && rm -f ./*.deb &&
    timeout 300 apt-get "${apt_options[@]}" download "$kernel" busybox-static "${names[@]}") >"$new/download.log" 2>&1
}

if ! download; then
  private_lists || skip "Debian's packages cannot be fetched ($(tail -n 1 "$new/update.log"))"
  download || skip "Debian's packages cannot be fetched ($(tail -n 1 "$new/download.log" 2>/dev/null))"
fi

for deb in "$new"/debs/*.deb; do
  case ${deb##*/} in
    linux-image-*) ;;
    *) dpkg-deb --fsys-tarfile "$deb" |
      tar -x -C "$new/root" --keep-directory-symlink --exclude='./usr/share/doc' --exclude='./usr/share/man' ;;
  esac
done
export PATH=$PATH:$new/root/usr/bin LD_LIBRARY_PATH=$new/root/usr/lib/x86_64-linux-gnu

# ---- modules and initrd ----

patterns=()
for module in "${wanted[@]}"; do
  patterns+=("*/$module.ko*")
done
dpkg-deb --fsys-tarfile "$new"/debs/linux-image-*.deb | # built-in modules are not found, which tar complains of
  tar -x -C "$new/boot" --wildcards './boot/vmlinuz-*' "${patterns[@]}" 2>/dev/null || true
vmlinuz=$(echo "$new"/boot/boot/vmlinuz-*)
version=${vmlinuz##*/vmlinuz-}
target=$new/initrd/lib/modules/$version/kernel
mkdir -p "$target"
for module in "${wanted[@]}"; do
  find "$new/boot" -name "$module.ko*" -exec cp {} "$target" \;
done
[ -n "$(find "$target" -name 'rdma_rxe.ko*')" ] || skip "the kernel $version has no software RDMA (rdma_rxe)"
find "$target" -name '*.xz' -exec xz -d {} +
cp "$new/root/usr/bin/busybox" "$new/initrd/bin/"
cp "$here/guest_init.sh" "$new/initrd/init"
printf '%s\n' "${modules[@]}" >"$new/initrd/modules"
chmod 755 "$new/initrd/init"
mkdir -p "$new"/initrd/{proc,sys,dev,host,extra,memory,root}
"$new/initrd/bin/busybox" depmod -b "$new/initrd" "$version"
(cd "$new/initrd" && find . | ./bin/busybox cpio -o -H newc 2>/dev/null) >"$new/initrd.cpio"

# ---- kernel ----

# A compressed kernel takes the emulated processor longer to unpack than all the rest of its start: do it here.
# Offsets are those of the boot protocol's header; the payload's last four bytes are its unpacked length.
field() { # field OFFSET BYTES
  od -An -t "u$2" -j "$1" -N "$2" "$vmlinuz" | tr -d ' '
}
begin=$((($(field 497 1) + 1) * 512 + $(field 584 4)))
length=$(($(field 588 4) - 4))
tail -c "+$((begin + 1))" "$vmlinuz" >"$new/payload"
truncate -s "$length" "$new/payload"
case $(od -An -t x1 -N 4 "$new/payload" | tr -d ' ') in
  fd377a58) xz -dc "$new/payload" >"$new/kernel" 2>/dev/null || cp "$vmlinuz" "$new/kernel" ;;
  28b52ffd) zstd -dcq "$new/payload" >"$new/kernel" 2>/dev/null || cp "$vmlinuz" "$new/kernel" ;;
  *) cp "$vmlinuz" "$new/kernel" ;; # slower, but it starts
esac

(cd "$new" && rm -rf debs boot initrd payload lists archives ./*.bin ./*.log)
mv "$new/initrd.cpio" "$new/initrd"
chmod 755 "$new"
trap - EXIT
mv -T "$new" "$image"
echo "$image"
