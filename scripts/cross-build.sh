#!/usr/bin/env bash
# cross-build.sh ARCH: builds the release for linux/ARCH (amd64 or arm64) on a machine of either, and prints the path of the program.
# cross-build.sh --names ARCH: prints how Rust and how GNU call that platform; builds nothing.
#
# For another platform than that of this machine it needs rustup, and the compiler and the C library of that platform: on Debian the
# packages crossbuild-essential-ARCH and libc6-dev-ARCH-cross.
set -euo pipefail
fail() { echo "cross-build.sh: $2" >&2; exit "$1"; }
only_names=
[[ ${1:-} == --names ]] && { only_names=1; shift; }
arch=${1:-}
case $arch in
  amd64) target=x86_64-unknown-linux-gnu gnu=x86_64-linux-gnu ;;
  arm64) target=aarch64-unknown-linux-gnu gnu=aarch64-linux-gnu ;;
  *) fail 64 "there is no build for '$arch': write amd64 or arm64" ;;
esac
if [[ $only_names ]]; then
  echo "$target $gnu"
  exit 0
fi
cd "$(dirname "$0")/.."
if [[ $(rustc -vV | sed -n 's/^host: //p') != "$target" ]]; then
  for tool in rustup "$gnu-gcc" "$gnu-g++" "$gnu-ar"; do
    command -v "$tool" >/dev/null || fail 69 "$tool is missing (packages crossbuild-essential-$arch and libc6-dev-$arch-cross, and rustup)"
  done
  rustup target add "$target" >&2
  name=${target//-/_}
  export "CARGO_TARGET_${name^^}_LINKER=$gnu-gcc" "CC_$name=$gnu-gcc" "CXX_$name=$gnu-g++" "AR_$name=$gnu-ar"
  # The binding of MDBX is made from headers, which include those of the other platform's C library.
  export "BINDGEN_EXTRA_CLANG_ARGS_$name=-I/usr/$gnu/include"
fi
cargo build --release --locked --target "$target" >&2
echo "${CARGO_TARGET_DIR:-target}/$target/release/saga-runner"
