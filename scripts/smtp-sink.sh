#!/bin/sh
# Prints the folder of Python packages that the mail server of the tests needs (aiosmtpd).
#
# Looks whether python3 finds them by itself (then the folder is empty text), then into the tools directory
# ($SAGA_RUNNER_TOOLS, else .tools beside this repository's Cargo.toml), and last installs them there. Safe to run again
# and by several processes at once.
set -eu

fail() {
    echo "smtp-sink.sh: $*" >&2
    exit 1
}

command -v python3 >/dev/null || fail "found no python3"
if python3 -c 'import aiosmtpd' 2>/dev/null; then
    exit 0
fi

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
tools=${SAGA_RUNNER_TOOLS:-$root/.tools}
packages=$tools/smtp-sink
if PYTHONPATH=$packages python3 -c 'import aiosmtpd' 2>/dev/null; then
    echo "$packages"
    exit 0
fi

mkdir -p "$tools"
staging=$(mktemp -d "$tools/staging.XXXXXX")
trap 'rm -rf "$staging"' EXIT
python3 -m pip install --quiet --disable-pip-version-check --target "$staging/packages" "aiosmtpd>=1.4.6,<2" >&2 ||
    fail "could not install aiosmtpd with pip"
# A rename is atomic. Whoever comes second finds the folder there, which is as good.
mv -T "$staging/packages" "$packages" 2>/dev/null || [ -d "$packages/aiosmtpd" ] || fail "could not write $packages"
echo "$packages"
