#!/usr/bin/env bash
# release.sh PROGRAM [FOLDER]: puts together what is released, in FOLDER (default: dist/ beside the program's build):
#
#   saga-runner-VERSION-TARGET.tar.gz        the stripped program, manual pages, completions, licence, changelog, unit and examples
#   saga-runner-VERSION-TARGET.debug         its debug information, for debuggers and profilers
#   saga-runner-VERSION-TARGET.cdx.json      what it is made of, as CycloneDX
#   SHA256SUMS                               of all such files of this version in FOLDER
#
# The archive depends on its files alone: the same program gives the same bytes. `make release` builds the program first.
#
# ARCH: amd64 or arm64, where the program is not one for this machine. RUNS is the same program for this machine then, which writes the
# manual pages and completions; OBJCOPY the tool for such programs (default: that of Debian's cross compilers).
set -euo pipefail
program=$(realpath "$1")
runs=$(realpath "${RUNS:-$1}")
cd "$(dirname "$0")/.."
out=$(realpath -m "${2:-${CARGO_TARGET_DIR:-target}/dist}")
target=$(rustc -vV | sed -n 's/^host: //p')
if [[ ${ARCH:-} ]]; then
  names=$(scripts/cross-build.sh --names "$ARCH")
  [[ $target == "${names% *}" ]] || OBJCOPY=${OBJCOPY:-${names#* }-objcopy}
  target=${names% *}
fi
export OBJCOPY=${OBJCOPY:-objcopy}
for tool in "$OBJCOPY" python3 sha256sum tar; do
  command -v "$tool" >/dev/null || { echo "release.sh: $tool is missing" >&2; exit 69; }
done
version=$("$runs" --version | awk '{print $2}')
name=saga-runner-$version-$target
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 0)}
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
folder=$stage/$name
mkdir -p "$folder"/{completions,man,systemd,sagas,effects,config}
cp "$program" "$folder/saga-runner"
# One that is stripped already has its debug information beside it.
if [[ -f $program.debug ]]; then
  cp "$program.debug" "$stage/$name.debug"
else
  scripts/strip.sh "$folder/saga-runner"
  mv "$folder/saga-runner.debug" "$stage/$name.debug"
  # The link has the name under which the file is released.
  "$OBJCOPY" --remove-section=.gnu_debuglink "$folder/saga-runner"
  (cd "$stage" && "$OBJCOPY" --add-gnu-debuglink="$name.debug" "$folder/saga-runner")
fi
"$runs" man --dir "$folder/man"
for shell in bash zsh fish; do
  "$runs" completions "$shell" >"$folder/completions/saga-runner.$shell"
done
cp LICENSE README.md CHANGELOG.md "$folder/"
cp deploy/systemd/* "$folder/systemd/"
cp -r sagas/. "$folder/sagas/"
cp effects/*.yaml "$folder/effects/"
cp config/saga-runner.yaml "$folder/config/"
SBOM_TIME=$(date -u -d "@$SOURCE_DATE_EPOCH" +%FT%TZ) scripts/sbom.py "$target" >"$stage/$name.cdx.json"
cp "$stage/$name.cdx.json" "$folder/sbom.cdx.json"
tar -C "$stage" --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --mode=go=rX,u+rw \
  -cf - "$name" | gzip -n "-${GZIP_LEVEL:-9}" >"$stage/$name.tar.gz"
mkdir -p "$out"
mv "$stage/$name.tar.gz" "$stage/$name.debug" "$stage/$name.cdx.json" "$out/"
(cd "$out" && sha256sum "saga-runner-$version"-*.tar.gz "saga-runner-$version"-*.debug "saga-runner-$version"-*.cdx.json >SHA256SUMS)
echo "$out"
