#!/usr/bin/env bash
# Makes sure that libclang is there: the build of the MDBX binding runs bindgen.
set -euo pipefail

found() {
  [ -n "${LIBCLANG_PATH:-}" ] && return 0
  command -v ldconfig >/dev/null && ldconfig -p 2>/dev/null | grep -q 'libclang[-.0-9]*\.so' && return 0
  compgen -G '/usr/lib/llvm*/lib/libclang*.so*' | grep -qv 'libclang-cpp' && return 0
  [ "$(uname)" = Darwin ] && xcrun --find clang >/dev/null 2>&1 && return 0
  return 1
}

found && exit 0
if command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
  echo "installing libclang, which the build of the MDBX binding needs" >&2
  apt-get update -qq >&2
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends libclang-dev >&2
  found && exit 0
fi
echo "libclang is missing: install it (Debian: apt-get install libclang-dev) or set LIBCLANG_PATH" >&2
exit 1
