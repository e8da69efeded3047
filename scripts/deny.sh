#!/usr/bin/env bash
# Checks licences, sources and bans with cargo-deny where it is installed. Advisories need a database from the
# network, so they are a separate job: cargo deny check advisories.
set -euo pipefail
if cargo deny --version >/dev/null 2>&1; then
  exec cargo deny --offline --log-level error check bans licenses sources
fi
echo "cargo-deny is not installed: licences, sources and bans were not checked" >&2
