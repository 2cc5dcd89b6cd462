#!/bin/sh
# Brings the servers that tests run for real. Where it cannot, it says so and succeeds: those tests then skip,
# and give the reason.
set -eu

without() {
    echo "servers: no PostgreSQL here and $1: its tests will skip. Hint: install PostgreSQL's server." >&2
    exit 0
}

# Debian keeps server programs off the PATH.
has_postgres() {
    for folder in $(echo "$PATH" | tr ':' ' ') /usr/lib/postgresql/*/bin; do
        [ -x "$folder/initdb" ] && [ -x "$folder/postgres" ] && return 0
    done
    return 1
}

apt() {
    DEBIAN_FRONTEND=noninteractive \
        apt-get -qq -o DPkg::Lock::Timeout=120 -o Dpkg::Use-Pty=0 "$@" </dev/null >/dev/null
}

# Tests start their own throwaway servers: a cluster on the standard port would only be in the way. Settings
# that are there before the package are read by it, and are not ours to leave behind.
install_postgres() {
    settings=/etc/postgresql-common/createcluster.d/penstock-tests.conf
    mkdir -p "${settings%/*}"
    echo "create_main_cluster = false" >"$settings"
    status=0
    { apt update && apt install -y --no-install-recommends postgresql; } || status=1
    rm "$settings"
    return $status
}

has_postgres && exit 0
command -v apt-get >/dev/null || without "no apt-get to install it with"
[ "$(id -u)" = 0 ] || without "only root may install it"
echo "servers: installing PostgreSQL" >&2
install_postgres || without "installing it failed"
has_postgres || without "the installed package holds no server"
