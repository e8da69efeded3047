#!/usr/bin/env bash
# Writes what cel-go gives for each expression of the table of CEL's extensions. New expressions are added to the table as
# lines without a value. Needs git and go; CEL_GO names a checkout that is there already.
set -euo pipefail
cd "$(dirname "$0")/.."
version=v0.28.1
table=crates/language/src/expr/tests/cel_go
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
git -c advice.detachedHead=false clone --quiet --branch "$version" --depth 1 "${CEL_GO:-https://github.com/google/cel-go}" "$work/cel-go"
mkdir "$work/cel-go/table"
cp "$table/main.go" "$work/cel-go/table/"
(cd "$work/cel-go" && GOFLAGS=-mod=vendor go build -o "$work/table" ./table)
head -1 "$table/table.tsv" | sed "s/v[0-9.]*[0-9]/$version/" > "$work/table.tsv"
tail -n +2 "$table/table.tsv" | cut -f 1 | "$work/table" >> "$work/table.tsv"
mv "$work/table.tsv" "$table/table.tsv"
echo "$(grep -vc '^#' "$table/table.tsv") expressions of cel-go $version"
