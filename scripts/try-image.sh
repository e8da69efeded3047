#!/usr/bin/env bash
# try-image.sh PROGRAM: lays the content of the container image out in a folder, as the Dockerfile says, and runs the program in it
# as the container would: read-only root, user 65532, no capabilities, a volume at /data, and a network of its own. Its environment is
# that of the Dockerfile and what the first `docker run` of docs/deploying.md gives (-e), and nothing else. It waits until the API
# answers for all shards, by an address other than the loopback one too, drains, and expects exit code 0. Needs no container engine;
# needs Linux with namespaces.
set -euo pipefail
program=$(realpath "$1")
cd "$(dirname "$0")/.."
for tool in unshare setpriv chroot ip ldd; do
  command -v "$tool" >/dev/null || { echo "try-image.sh: $tool is missing (packages util-linux, iproute2)" >&2; exit 69; }
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root
mkdir -p "$root"/{data,proc,dev,tmp,lib64}
install -m 0755 "$program" "$root/saga-runner"
# What the base image has: the C library and what else the program is linked with.
ldd "$program" | grep -oE '/[^ ]+' | sort -u | while read -r library; do
  install -D "$library" "$root$library"
done
# Without any authority that it trusts, the client of the gateway does not start.
install -D /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt"
# The files that the Dockerfile copies from this repository.
sed -n '/^FROM .*nonroot/,$p' Dockerfile | sed -nE 's/^COPY ([^- ][^ ]*) ([^ ]+)$/\1 \2/p' | while read -r from to; do
  mkdir -p "$(dirname "$root$to")"
  cp -r "$from" "$root$to"
done
user=$(sed -nE 's/^USER ([0-9]+):.*/\1/p' Dockerfile)
read -r -a command < <(sed -nE 's/^CMD \[(.*)\]$/\1/p' Dockerfile | tr -d '",')
variables() {
  sed -nE 's/^ENV ([A-Z_]+=[^ ]+)$/\1/p' Dockerfile
  sed -n '/^docker run /{:a;/\\$/{N;ba};p;q}' docs/deploying.md | grep -oE -e '-e [A-Z_]+=[^ ]+' | cut -d' ' -f2
}
mapfile -t environment < <(variables)
for wanted in SAGA_RUNNER_DATA_DIR= SAGA_RUNNER_LISTEN=; do
  [[ " ${environment[*]}" == *" $wanted"* ]] || { echo "try-image.sh: $wanted is not in: ${environment[*]}" >&2; exit 1; }
done

inside() {
  set -euo pipefail
  mount --bind "$root" "$root"
  mount --rbind /proc "$root/proc"
  mount --rbind /dev "$root/dev"
  mount -t tmpfs tmpfs "$root/data"
  mount -t tmpfs tmpfs "$root/tmp"
  if ((is_root)); then chown "$user:$user" "$root/data"; fi
  chmod 1777 "$root/tmp"
  mount -o remount,ro,bind "$root"
  ip link set lo up
  # A process that changes from root to another user keeps no capability.
  local in_image=(env -i PATH="$PATH" "${environment[@]}" setpriv --no-new-privs chroot "$root" /saga-runner)
  if ((is_root)); then
    in_image=(env -i PATH="$PATH" "${environment[@]}" setpriv --no-new-privs chroot --userspec="$user:$user" --groups="" "$root" /saga-runner)
  fi
  if touch "$root/x" 2>/dev/null; then echo "the root can be written to" >&2; exit 1; fi
  "${in_image[@]}" "${command[@]}" 2>"$work/log" &
  local runner=$!
  for _ in $(seq 600); do
    if "${in_image[@]}" shard list >/dev/null 2>&1; then break; fi
    kill -0 "$runner" 2>/dev/null || break
    sleep 0.1
  done
  "${in_image[@]}" shard list || { tail -n 20 "$work/log" >&2; exit 1; }
  # As through a published port.
  ip address add 10.0.2.1/24 dev lo
  "${in_image[@]}" shard list --url http://10.0.2.1:8080 --admin-url http://10.0.2.1:8081 >/dev/null || { tail -n 20 "$work/log" >&2; exit 1; }
  kill -TERM "$runner"
  wait "$runner"
}
is_root=$((EUID == 0))
export root user work is_root
export command_line="${command[*]}" variable_list="${environment[*]}"
flags=(--mount --net)
((is_root)) || flags=(--user --map-root-user "${flags[@]}")
unshare "${flags[@]}" bash -c "$(declare -f inside); read -r -a command <<<\"\$command_line\"; read -r -a environment <<<\"\$variable_list\"; inside"
echo "the image's content runs with a read-only root, and drains"
