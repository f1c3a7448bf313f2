#!/bin/busybox sh
# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=dash
# The emulated machine's first program: loads modules, makes the host's files its root (read-only, under memory that
# takes what is written), and starts guest.sh there.
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
while read -r module; do
  modprobe -q "$module"
done </modules
share=trans=virtio,version=9p2000.L,ro,cache=loose,msize=512000
# weft.job=FILE: what to do, as the root will have it.
job=$(sed -n 's/.*weft\.job=\([^ ]*\).*/\1/p' /proc/cmdline)
if ! { mount -t 9p -o "$share" host /host && mount -t 9p -o "$share" extra /extra &&
  mount -t tmpfs -o mode=755 memory /memory; }; then
  poweroff -f
fi
mkdir /memory/upper /memory/work
# Packages that the host has not lie above its files.
mount -t overlay -o lowerdir=/extra:/host,upperdir=/memory/upper,workdir=/memory/work root /root || poweroff -f
for folder in proc sys dev; do
  mount --move "/$folder" "/root/$folder"
done
mkdir -p /root/dev/shm
mount -t tmpfs -o mode=1777 shm /root/dev/shm
mount -t tmpfs -o mode=755 run /root/run
mount -t tmpfs -o mode=1777 tmp /root/var/tmp
ln -s /proc/self/fd /root/dev/fd
for number in 0:stdin 1:stdout 2:stderr; do
  ln -s "fd/${number%:*}" "/root/dev/${number#*:}"
done
chroot /root /bin/bash "$job"
poweroff -f
