#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs a command in a bare Debian: a minimal system that holds this repository's HEAD and nothing else.
set -eu
usage() {
  cat <<'TEXT'
usage: tests/bare/run.sh [--suite NAME] [--at DIR] [--user] [--cpus LIST] [--with PATH] [--] COMMAND ARGS..

  --suite NAME  the version of Debian (default: bookworm)
  --at DIR      where the repository is inside the room, and where COMMAND starts (default: /root/weft)
  --user        COMMAND runs as a user who has sudo (default: as root)
  --cpus LIST   COMMAND runs on these processors only, for example 0
  --with PATH   a file or folder that is copied into the repository's folder inside the room

Exit status: that of COMMAND; 77 with the reason where no room can be made (needs root, mmdebstrap and a Debian mirror).
README.md has examples.
TEXT
}
skip() {
  echo "skipped: $*" >&2
  exit 77
}

suite=bookworm at='' user=0 cpus='' with=''
while [ $# -gt 0 ]; do
  case $1 in
    --at) at=${2?--at needs a folder}; shift 2 ;;
    --cpus) cpus=${2?--cpus needs a list}; shift 2 ;;
    --suite) suite=${2?--suite needs a name}; shift 2 ;;
    --with) with=$(realpath -m -- "${2?--with needs a path}"); shift 2 ;;
    --user) user=1; shift ;;
    -h | --help) usage; exit 0 ;;
    --) shift; break ;;
    -*) echo "unknown option '$1'; try --help" >&2; exit 2 ;;
    *) break ;;
  esac
done
[ $# -gt 0 ] || { usage >&2; exit 2; }
[ -n "$at" ] || { [ $user -eq 1 ] && at=/home/weaver/weft || at=/root/weft; }
case $at in /?*) ;; *) echo "--at needs an absolute path: '$at'" >&2; exit 2 ;; esac

unset CDPATH
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
[ -z "$with" ] || [ -e "$with" ] || skip "there is no $with"
[ "$(id -u)" -eq 0 ] || skip "a bare room needs root"
for tool in mmdebstrap unshare chroot flock tar; do
  command -v $tool >/dev/null || skip "$tool is not installed"
done
unshare --mount --pid --fork --uts --ipc true 2>/dev/null || skip "unshare is not allowed here"

cache=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/weft/bare
scratch=$(mktemp -d "${TMPDIR:-/var/tmp}/weft-bare.XXXXXX")
trap 'rm -rf --one-file-system "$scratch"' EXIT
mkdir -p "$cache" "$scratch/room"

# ---- this machine's way to Debian: repositories, their keys, proxies ----

# Repositories of others (a browser's, say) are left out.
# shellcheck disable=SC2016
apt-get indextargets --format '$(ORIGIN)|$(CODENAME)|$(REPO_URI)|$(RELEASE)|$(COMPONENT)|$(SIGNED_BY)' 'Created-By: Packages' \
  2>/dev/null | awk -F'|' -v suite=$suite '
    $1 == "Debian" && index($2, suite) == 1 {
      print "deb " ($6 ~ /^\// ? "[signed-by=" $6 "] " : "") $3 " " $4 " " $5
    }' | sort -u >"$scratch/sources.list"
if [ ! -s "$scratch/sources.list" ]; then
  echo "apt here has no lists of Debian $suite: using deb.debian.org" >&2
  printf 'deb http://deb.debian.org/%s main\n' "debian $suite" "debian $suite-updates" \
    "debian-security $suite-security" >"$scratch/sources.list"
fi
apt-config dump 2>/dev/null | grep -E '^Acquire::(http|https|Retries|ForceIPv4|ForceIPv6|Check-Valid-Until)\b' \
  >"$scratch/apt.conf" || true

# ---- the minimal system, made once a month ----

key=$(cat "$scratch/sources.list" "${BASH_SOURCE[0]}" | cksum | cut -d ' ' -f 1)
system=$cache/$suite-$key.tar
exec 9>"$cache/lock"
flock 9
find "$cache" -name '*.tar' -mtime +30 -delete
if [ ! -s "$system" ]; then
  echo "making a minimal Debian $suite: $system" >&2
  find "$cache" -name "$suite-*.tar*" -delete
  if ! mmdebstrap --quiet --variant=minbase --format=tar --aptopt="$scratch/apt.conf" --dpkgopt=force-unsafe-io \
    $suite "$system.new" "$scratch/sources.list" >"$scratch/mmdebstrap.log" 2>&1; then
    tail -n 5 "$scratch/mmdebstrap.log" >&2
    skip "mmdebstrap cannot make a minimal Debian $suite: no mirror that can be reached?"
  fi
  mv "$system.new" "$system"
fi
flock -u 9

# ---- the room ----

room=$scratch/room
tar -C "$room" --exclude='./dev/*' -xf "$system"
rm -f "$room"/etc/apt/sources.list.d/*
cp "$scratch/sources.list" "$room/etc/apt/sources.list"
cp "$scratch/apt.conf" "$room/etc/apt/apt.conf.d/50host"
echo force-unsafe-io >"$room/etc/dpkg/dpkg.cfg.d/unsafe-io"
# Keys that come with other packages, certificates of a proxy, PyPI's mirror.
for file in $(sed -n 's/.*signed-by=\([^]]*\)].*/\1/p' "$scratch/sources.list") /etc/resolv.conf /etc/hosts \
  /etc/ssl/certs/ca-certificates.crt /usr/local/share/ca-certificates /etc/pip.conf; do
  [ -e "$file" ] && [ ! -e "$room$file" ] || [ "$file" = /etc/resolv.conf ] || continue
  mkdir -p "$room$(dirname "$file")"
  cp -RL "$file" "$room$file"
done
environment=(PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin TERM="${TERM:-dumb}")
for name in http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY PIP_INDEX_URL PIP_EXTRA_INDEX_URL \
  PIP_TRUSTED_HOST PIP_CERT; do
  [ -z "${!name-}" ] || environment+=("$name=${!name}")
done

mkdir -p "$room$at"
if git -c safe.directory='*' -C "$repository" rev-parse HEAD >/dev/null 2>&1; then
  git -c safe.directory='*' -C "$repository" archive HEAD | tar -C "$room$at" -xf -
else # a release's archive
  tar -C "$repository" --exclude=./build --exclude=./demo -cf - . | tar -C "$room$at" -xf -
fi

[ -z "$with" ] || cp -R "$with" "$room$at/"

# ---- inside namespaces of its own ----

export room at user cpus
printf '%s\0' "${environment[@]}" >"$scratch/environment"
export scratch
# shellcheck disable=SC2016
unshare --mount --pid --fork --kill-child --uts --ipc bash -euc '
  mount --make-rprivate /
  mount -t proc proc "$room/proc"
  mount --rbind /sys "$room/sys"
  mount -t tmpfs -o mode=755 tmpfs "$room/dev"
  for device in null zero full random urandom tty; do
    : >"$room/dev/$device"
    mount --bind "/dev/$device" "$room/dev/$device"
  done
  mkdir "$room/dev/pts" "$room/dev/shm"
  mount -t devpts -o newinstance,ptmxmode=666 devpts "$room/dev/pts"
  mount -t tmpfs -o mode=1777 tmpfs "$room/dev/shm"
  ln -s pts/ptmx "$room/dev/ptmx"
  ln -s /proc/self/fd "$room/dev/fd"
  ln -s fd/0 "$room/dev/stdin"
  ln -s fd/1 "$room/dev/stdout"
  ln -s fd/2 "$room/dev/stderr"
  hostname bare
  echo "127.0.1.1 bare" >>"$room/etc/hosts"
  mapfile -d "" environment <"$scratch/environment"
  enter() { env -i "${environment[@]}" "$@"; }

  # A mirror that cannot be reached is not a failure of the command.
  if ! enter chroot "$room" apt-get update -qq --error-on=any >"$scratch/update.log" 2>&1; then
    tail -n 3 "$scratch/update.log" >&2
    echo "skipped: apt-get update fails in the room: no mirror that can be reached?" >&2
    exit 77
  fi
  as=() home=/root
  if [ "$user" -eq 1 ]; then
    enter DEBIAN_FRONTEND=noninteractive chroot "$room" apt-get install -y -qq --no-install-recommends sudo \
      >"$scratch/sudo.log" 2>&1 || { cat "$scratch/sudo.log" >&2; exit 1; }
    chroot "$room" useradd --create-home --shell /bin/bash weaver
    echo "weaver ALL=(ALL) NOPASSWD: ALL" >"$room/etc/sudoers.d/weaver"
    chroot "$room" chown -R weaver: "$at" /home/weaver
    as=(--reuid weaver --regid weaver --init-groups) home=/home/weaver
  fi
  rm -rf "$room"/var/lib/apt/lists/*
  [ -z "$cpus" ] || taskset -cp "$cpus" $$ >/dev/null
  # shellcheck disable=SC2093
  enter HOME="$home" chroot "$room" setpriv "${as[@]}" sh -c "cd \"\$1\" && shift && exec \"\$@\"" sh "$at" "$@"
' bash "$@"
