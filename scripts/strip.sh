#!/usr/bin/env bash
# strip.sh PROGRAM: takes the debug information out of a program and puts it beside it, as PROGRAM.debug, where debuggers and
# profilers find it. cargo puts the whole program back when it builds again. OBJCOPY: for programs of another platform.
set -euo pipefail
program=$1
objcopy=${OBJCOPY:-objcopy}
command -v "$objcopy" >/dev/null || { echo "$objcopy is missing (package binutils): $program keeps its debug information" >&2; exit 0; }
# A new file each time: the one that cargo has built has a second name, by which cargo knows it.
part=$(mktemp "$program.XXXXXX")
trap 'rm -f "$part"' EXIT
"$objcopy" --only-keep-debug "$program" "$program.debug"
"$objcopy" --strip-all --add-gnu-debuglink="$program.debug" "$program" "$part"
chmod --reference="$program" "$part"
mv "$part" "$program"
