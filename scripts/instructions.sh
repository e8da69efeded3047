#!/bin/sh
# Counts the instructions of the kernel's benches: unlike times, they are the same on a busy machine. Needs valgrind.
# Prints each case and its instructions per operation.
set -eu
cd "$(dirname "$0")/.."

cargo bench --locked --bench kernel --no-run
bench=$(ls -t "${CARGO_TARGET_DIR:-target}"/release/deps/kernel-* | grep -v '\.d$' | head -n 1)
runs=20

# count CASE OPERATIONS
count() {
    counted=$(valgrind --tool=callgrind --callgrind-out-file=/dev/null --toggle-collect='kernel::measured*' \
        "$bench" instructions "$1" "$runs" 2>&1 | sed -n 's/.*Collected : //p')
    printf '%-12s %s\n' "$1" "$((counted / $2 / runs))"
}

for case in start no-handler decoded repeated; do
    count "$case" 1
done
# Loops over 125 items: as many results, and as many again where each item is undone.
count items 125
count undone 250
