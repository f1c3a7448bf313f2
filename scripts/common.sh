# SPDX-License-Identifier: Apache-2.0
# Shared by demo.sh and test.sh: installs what is missing (Debian 12, as root or with sudo) and builds.

cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
jobs=$(nproc)

# Package -> purpose is listed in README.md.
build_packages=(build-essential cmake ninja-build pkg-config libprotobuf-c-dev protobuf-c-compiler
  protobuf-compiler libonnx-dev libhwloc-dev libdnnl-dev libssl-dev zlib1g-dev libibverbs-dev libpmix-dev python3-dev)

say() { printf '\n== %s\n' "$*"; }

as_root() {
  if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo "$@"; fi
}

# Quiet when everything is there already.
install_packages() {
  local missing=() package
  for package in "$@"; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
  done
  [ ${#missing[@]} -eq 0 ] && return 0
  say "installing ${missing[*]}"
  if [ "$(id -u)" -ne 0 ] && ! command -v sudo >/dev/null; then
    echo "not root and no sudo: please install the packages above" >&2
    return 1
  fi
  as_root apt-get update -qq || return 1
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
    "${missing[@]}" >/dev/null || return 1
}

# configure_and_build DIR TARGET [cmake options]: prints the log only when it fails.
configure_and_build() {
  local dir=$1 target=$2 log
  shift 2
  log=$(mktemp)
  if ! { cmake -S . -B "$dir" -G Ninja "$@" && cmake --build "$dir" -j "$jobs" --target "$target"; } >"$log" 2>&1; then
    tail -n 60 "$log" >&2
    rm -f "$log"
    echo "building $dir failed" >&2
    return 1
  fi
  rm -f "$log"
}
