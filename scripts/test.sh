#!/usr/bin/env bash
# Everything that must pass, in parts, each with its budget in minutes on 2 cores from a clean clone. The budgets keep the
# whole bearable: a change that makes a part exceed its own makes room first. `make test` calls this.
set -euo pipefail
cd "$(dirname "$0")/.."
export runner=${CARGO_TARGET_DIR:-target}/debug/saga-runner
report=()
begun=$SECONDS
# What a clean clone builds is built once: data for the next build would cost time and bring none.
[[ -d ${CARGO_TARGET_DIR:-target}/debug/incremental ]] || export CARGO_INCREMENTAL=0

# part NAME MINUTES FUNCTION
part() {
  local from=$SECONDS status=0
  # In a shell of its own, which ends at the first failure: `set -e` does not hold within `||`.
  bash -euo pipefail -c "$(declare -f "$3"); $3" || status=$?
  local took=$((SECONDS - from)) note=
  ((took > $2 * 60)) && note='  over its budget'
  ((status)) && note="$note  FAILED"
  report+=("$(printf '%-22s %3d min %02d s of %2d min%s' "$1" $((took / 60)) $((took % 60)) "$2" "$note")")
  ((status)) && finish "$status"
  return 0
}

finish() {
  local took=$((SECONDS - begun))
  printf '\n%s\n' "${report[@]}"
  printf '%-22s %3d min %02d s\n' whole $((took / 60)) $((took % 60))
  exit "$1"
}

lints() {
  make --no-print-directory check
  cargo test --locked --features planted --no-run
}

tests() {
  for tool in nats-server.sh 'databases.sh postgres' 'databases.sh mariadb' 'databases.sh pgbouncer' workers.sh smtp-sink.sh helm.sh; do
    # shellcheck disable=SC2086 # a script and its argument
    scripts/$tool >/dev/null
  done
  # Most tests wait for servers rather than for a processor.
  local log=${CARGO_TARGET_DIR:-target}/test.log status=0
  RUST_TEST_THREADS=$((3 * $(nproc))) NATS_SERVER=$(scripts/nats-server.sh) \
    cargo test --locked --features planted --no-fail-fast 2>&1 | tee "$log" || status=$?
  if ((status)); then
    # Once more at the end, where a reader of a long output looks first.
    printf '\nWhy tests failed (%s has all):\n' "$log"
    grep -A 8 -E '^---- .* stdout ----$|^error' "$log" | cut -c 1-500 | tail -n 150
    return "$status"
  fi
  "$runner" test sagas --coverage --chaos --min-coverage 90
  "$runner" test examples/webhooks/sagas --coverage --chaos --min-coverage 90
}

# Seeds that no run has seen: each tree has a range of its own, so that a red run can be repeated (docs/simulator.md).
simulator() {
  local tree
  tree=$(git rev-parse --short=7 'HEAD^{tree}' 2>/dev/null || sha1sum Cargo.lock)
  SEEDS=2000 FROM=$((16#${tree:0:7} * 2000 + 1)) MINUTES=${SIMULATOR_MINUTES:-3} \
    cargo test --locked --features planted --test simulator -- --nocapture promises_hold_under_faults
}

part 'build and lints' 10 lints
part 'unit and integration' 8 tests
part simulator 4 simulator
finish 0
