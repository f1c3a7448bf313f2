# SPDX-License-Identifier: Apache-2.0
# Shared by demo.sh and test.sh: installs missing packages (Debian 12, as root or with sudo) and builds, with progress.
# shellcheck shell=bash

unset CDPATH
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
jobs=$(nproc)

# README.md lists what each package is for.
build_packages=(build-essential cmake ninja-build pkg-config libprotobuf-c-dev protobuf-c-compiler
  libonnx-dev libhwloc-dev libdnnl-dev libssl-dev zlib1g-dev)

say() { printf '\n== %s\n' "$*"; }

# Rewrites one line on a terminal; prints a line every progress_every seconds elsewhere.
progress_every=5
progress_last=
progress_show() { # progress_show TEXT
  if [ -t 1 ]; then
    local columns=${COLUMNS:-0}
    [ "$columns" -gt 20 ] || columns=80
    printf '\r\033[K%s' "${1:0:columns-1}"
  elif [ -z "$progress_last" ] || [ $((SECONDS - progress_last)) -ge $progress_every ]; then
    progress_last=$SECONDS
    printf '%s\n' "$1"
  fi
}

progress_end() { # progress_end TEXT: the last state, always printed
  if [ -t 1 ]; then printf '\r\033[K'; fi
  printf '%s\n' "$1"
}

# progress_of LOG PARSER: copies standard input to LOG. PARSER gets each line and sets `state`.
# A second without a line shows the last state again, with the time that has passed.
progress_of() {
  local log=$1 parser=$2 line='' part started=$SECONDS state='' status
  progress_last=
  exec 5>"$log"
  while :; do
    IFS= read -r -t 1 part <&0 && status=0 || status=$?
    line+=$part
    if [ $status -eq 0 ] || { [ $status -le 128 ] && [ -n "$line" ]; }; then
      printf '%s\n' "$line" >&5
      $parser "$line"
      line=
    fi
    [ -z "$state" ] || progress_show "$state, $((SECONDS - started)) s"
    [ $status -eq 0 ] || [ $status -gt 128 ] || break
  done
  exec 5>&-
  [ "$parser" != parse_apt ] || state="packages: done"
  [ -z "$state" ] || progress_end "$state, $((SECONDS - started)) s"
}

# Lines of apt's status: "dlstatus:<file number>:<percent>:<text>" and "pmstatus:<package>:<percent>:<text>".
parse_apt() {
  local kind rest percent
  IFS=: read -r kind rest percent _ <<<"$1"
  case $kind in
    dlstatus) [ "${percent%%.*}" = 0 ] || state="[${percent%%.*} %] fetching packages" ;;
    pmstatus) [ "$rest" = dpkg-exec ] || state="[${percent%%.*} %] installing packages: ${rest%%:*}" ;;
    *" newly installed"* | "Need to get "* | "After this operation"*) printf '%s\n' "$1" ;;
  esac
}

# Lines of ninja: "[12/440] Building ..."; of make: "[ 12%] Building ...".
parse_build() {
  if [[ $1 == *"Re-checking globbed"* ]]; then
    return 0
  elif [[ $1 =~ ^\[\ *([0-9]+)/([0-9]+)\] ]]; then
    printf -v state '[%*d/%d] building' ${#BASH_REMATCH[2]} "${BASH_REMATCH[1]}" "${BASH_REMATCH[2]}"
  elif [[ $1 =~ ^\[\ *([0-9]+)%\] ]]; then
    printf -v state '[%3d %%] building' "${BASH_REMATCH[1]}"
  fi
}

as_root() {
  if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo "$@"; fi
}

# Whether as_root works. Asks for a password only where somebody can type it.
may_be_root() {
  [ "$(id -u)" -eq 0 ] && return 0
  command -v sudo >/dev/null || return 1
  sudo -n true 2>/dev/null && return 0
  [ -t 0 ] && sudo -v
}

package_is_installed() {
  dpkg-query -W -f='${Status}' "$1" 2>/dev/null | grep -q 'ok installed'
}

# apt closes its status descriptor in maintainer scripts, so it cannot be standard output itself; sudo closes all
# others, so the shell after sudo opens it.
apt_install() { # apt_install LOG PACKAGE..
  local log=$1
  shift
  # shellcheck disable=SC2016
  as_root env LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive sh -c 'exec apt-get install -y -q --no-install-recommends \
    -o APT::Status-Fd=3 -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=300 "$@" 3>&1' sh "$@" </dev/null 2>&1 |
    progress_of "$log" parse_apt
  return "${PIPESTATUS[0]}"
}

# Quiet when everything is there. Exit status 2: packages are missing and this user cannot install them.
install_packages() {
  local missing=() package log
  if ! command -v dpkg-query >/dev/null; then
    echo "no dpkg-query: not a Debian system; README.md lists the libraries that must be installed" >&2
    return 0
  fi
  for package in "$@"; do
    package_is_installed "$package" || missing+=("$package")
  done
  [ ${#missing[@]} -eq 0 ] && return 0
  if ! may_be_root; then
    printf '%s\n' "${#missing[@]} packages are missing, and this user cannot become root with sudo. As root:" "" \
      "  apt-get update && apt-get install -y --no-install-recommends ${missing[*]}" >&2
    return 2
  fi
  say "installing ${missing[*]}"
  log=$(mktemp)
  if [ -n "$(dpkg --audit 2>/dev/null)" ]; then
    echo "an earlier installation was interrupted: dpkg --configure -a"
    as_root env DEBIAN_FRONTEND=noninteractive dpkg --configure -a </dev/null >"$log" 2>&1 || true
  fi
  # A repository of somebody else may fail here while Debian's do not.
  echo "reading the lists of packages (apt-get update)"
  as_root env LC_ALL=C.UTF-8 apt-get update -qq -o DPkg::Lock::Timeout=300 >"$log" 2>&1 || cat "$log" >&2
  if ! apt_install "$log" "${missing[@]}"; then
    grep -v '^[dp][lm]status:' "$log" | tail -n 30 >&2
    rm -f "$log"
    echo "apt-get install failed" >&2
    return 1
  fi
  rm -f "$log"
}

# prepare_folder DIR: removes a configuration that cannot be continued: one that failed or was interrupted, or one that
# was made for another place.
prepare_folder() {
  local cache=$1/CMakeCache.txt
  [ -e "$cache" ] || return 0
  if [ ! -e "$1/build.ninja" ] && [ ! -e "$1/Makefile" ]; then
    rm -rf "$cache" "$1/CMakeFiles"
  elif [ ! "$(sed -n 's/^CMAKE_HOME_DIRECTORY:INTERNAL=//p' "$cache")" -ef . ]; then
    echo "$1 was configured for another folder: configuring it again"
    rm -rf "$cache" "$1/CMakeFiles" "$1/build.ninja" "$1/Makefile"
  fi
}

# configure_and_build DIR TARGETS [cmake options]: TARGETS are separated by spaces. Prints the log only when it fails.
# quiet=1: no progress.
quiet=0
configure_and_build() {
  local dir=$1 targets=$2 log=$1/build.log generator=() sink=progress_of
  shift 2
  mkdir -p "$dir" || return 1
  prepare_folder "$dir"
  # A folder keeps the generator that it was configured with.
  [ ! -e "$dir/CMakeCache.txt" ] || generator=(-G "$(sed -n 's/^CMAKE_GENERATOR:INTERNAL=//p' "$dir/CMakeCache.txt")")
  [ $quiet -eq 0 ] || sink=copy_to
  if ! LC_ALL=C.UTF-8 cmake "$@" -S . -B "$dir" "${generator[@]}" >"$log" 2>&1; then
    cat "$log" >&2
    echo "configuring $dir failed" >&2
    return 1
  fi
  # shellcheck disable=SC2086
  LC_ALL=C.UTF-8 cmake --build "$dir" -j "$jobs" --target $targets 2>&1 | $sink "$log" parse_build
  if [ "${PIPESTATUS[0]}" -ne 0 ]; then
    tail -n 60 "$log" >&2
    echo "building $dir failed; the log is $log" >&2
    return 1
  fi
}
copy_to() { cat >"$1"; }
