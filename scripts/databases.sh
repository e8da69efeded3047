#!/usr/bin/env bash
# Prints the programs of a database server for the tests, one path a line:
#   databases.sh postgres    initdb, postgres
#   databases.sh mariadb     mariadb-install-db, mariadbd
#   databases.sh pgbouncer   pgbouncer
#
# Looks into PATH and where Debian puts them, and last installs Debian's packages where this runs as root. Starts
# nothing. Safe to run again.
set -euo pipefail

fail() {
  echo "databases.sh: $*" >&2
  exit 1
}

# The path of a program, from PATH or the folders that servers are kept in.
program() {
  local folders=(/usr/lib/postgresql/*/bin /usr/sbin /usr/bin /usr/local/sbin /usr/local/bin)
  local found
  found=$(PATH="$PATH:$(IFS=:; echo "${folders[*]}")" command -v "$1") || return 1
  readlink -f "$found"
}

paths() {
  local name
  for name in "$@"; do program "$name" || return 1; done
}

install() {
  command -v apt-get >/dev/null && [ "$(id -u)" = 0 ] || return 1
  echo "installing $*, which tests of SQL effects need" >&2
  apt-get update -qq >&2
  # The server's package would create and start a cluster; the tests start their own.
  if [ -d /etc ] && [[ " $* " == *" postgresql "* ]]; then
    mkdir -p /etc/postgresql-common
    [ -e /etc/postgresql-common/createcluster.conf ] ||
      echo "create_main_cluster = false" >/etc/postgresql-common/createcluster.conf
  fi
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >&2
}

case "${1:-}" in
postgres)
  programs=(initdb postgres)
  packages=(postgresql)
  ;;
mariadb)
  programs=(mariadb-install-db mariadbd)
  packages=(mariadb-server-core mariadb-client-core)
  # The first calls the second's tools by name.
  programs_extra=(my_print_defaults)
  ;;
pgbouncer)
  programs=(pgbouncer)
  packages=(pgbouncer)
  ;;
*) fail "usage: databases.sh postgres|mariadb|pgbouncer" ;;
esac

for attempt in found installed; do
  if paths "${programs[@]}" ${programs_extra[@]+"${programs_extra[@]}"} >/dev/null; then
    paths "${programs[@]}"
    exit 0
  fi
  [ "$attempt" = found ] && install "${packages[@]}" || break
done
fail "found no ${programs[*]}: install ${packages[*]} (Debian), or put them on PATH"
