#!/bin/sh
# Installs what the workers in other languages need, and prints two lines: the folder for PYTHONPATH, then the folder of the
# compiled TypeScript package.
#
# Everything goes into the tools directory ($SAGA_RUNNER_TOOLS, else .tools beside this repository's Cargo.toml), under the
# checksum of what it was made from. Safe to run again and by several processes at once.
set -eu

fail() {
    echo "workers.sh: $*" >&2
    exit 1
}

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
tools=${SAGA_RUNNER_TOOLS:-$root/.tools}
mkdir -p "$tools"

command -v python3 >/dev/null || fail "python3 is missing; the Python worker needs 3.11 or later"
python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || fail "python3 is older than 3.11"
command -v npm >/dev/null || fail "npm is missing; the TypeScript worker needs Node 20 or later"
node -e 'process.exit(Number(process.versions.node.split(".")[0]) < 20 ? 1 : 0)' || fail "node is older than 20"

staging=$(mktemp -d "$tools/staging.XXXXXX")
trap 'rm -rf "$staging"' EXIT

# A rename is atomic: another process sees the whole folder or none. Where one was faster, its folder is as good.
put() {
    mv -T "$1" "$2" 2>/dev/null || [ -d "$2" ] || fail "cannot write $2"
}

python=$tools/python-$(cksum <"$root/workers/python/pyproject.toml" | tr ' ' -)
if [ ! -d "$python" ]; then
    python3 -m pip install --quiet --disable-pip-version-check --target "$staging/python" 'nats-py>=2.10,<3' >&2 ||
        fail "could not install nats-py with pip"
    put "$staging/python" "$python"
fi

source=$root/workers/typescript
sum=$(cd "$source" && cat package.json package-lock.json tsconfig.json src/*.ts examples/*.ts | cksum | tr ' ' -)
typescript=$tools/typescript-$sum
if [ ! -d "$typescript" ]; then
    mkdir "$staging/typescript"
    (cd "$source" && cp -R package.json package-lock.json tsconfig.json src examples "$staging/typescript/")
    (cd "$staging/typescript" && npm ci --no-audit --no-fund >&2 && npm run --silent build >&2) ||
        fail "could not install and build the npm package"
    put "$staging/typescript" "$typescript"
fi

echo "$root/workers/python:$python"
echo "$typescript"
