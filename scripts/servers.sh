#!/bin/sh
# Brings the servers that tests run for real, and a browser. Where it cannot, it says so and succeeds: those tests then skip,
# and give the reason.
set -eu

without() {
    echo "servers: no $1 here and $2: its tests will skip. Hint: install $1's server." >&2
}

# Debian keeps server programs off the PATH.
has_programs() {
    for program in "$@"; do
        found=no
        for folder in $(echo "$PATH" | tr ':' ' ') /usr/sbin /usr/lib/postgresql/*/bin; do
            [ -x "$folder/$program" ] && found=yes
        done
        [ $found = yes ] || return 1
    done
}

has_postgres() { has_programs initdb postgres; }
has_redis() { has_programs redis-server; }
has_mariadb() { has_programs mariadbd mariadb-install-db; }
has_rabbitmq() { has_programs rabbitmq-server; }
has_chromium() { has_programs chromium; }

apt() {
    DEBIAN_FRONTEND=noninteractive \
        apt-get -qq -o DPkg::Lock::Timeout=120 -o Dpkg::Use-Pty=0 "$@" </dev/null >/dev/null
}

# Tests start their own throwaway servers: one on the standard port would only be in the way. So packages are
# told not to start theirs. What we put there to say so is not ours to leave behind, nor is what somebody else
# has said to change.
install_quietly() {
    policy=/usr/sbin/policy-rc.d
    ours=no
    if [ ! -e "$policy" ]; then
        printf '#!/bin/sh\nexit 101\n' >"$policy"
        chmod +x "$policy"
        ours=yes
    fi
    status=0
    { apt update && apt install -y --no-install-recommends "$@"; } || status=1
    [ $ours = no ] || rm -f "$policy"
    return $status
}

# Settings that are there before the package are read by it: it makes no cluster of its own.
install_postgres() {
    settings=/etc/postgresql-common/createcluster.d/penstock-tests.conf
    mkdir -p "${settings%/*}"
    echo "create_main_cluster = false" >"$settings"
    status=0
    install_quietly postgresql || status=1
    rm "$settings"
    return $status
}

install_redis() { install_quietly redis-server; }
install_mariadb() { install_quietly mariadb-server; }
install_rabbitmq() { install_quietly rabbitmq-server; }
install_chromium() { install_quietly chromium; }

# bring NAME SHOWN: the server that has_NAME and install_NAME are about.
bring() {
    "has_$1" && return 0
    command -v apt-get >/dev/null || { without "$2" "no apt-get to install it with"; return 0; }
    [ "$(id -u)" = 0 ] || { without "$2" "only root may install it"; return 0; }
    echo "servers: installing $2" >&2
    "install_$1" || { without "$2" "installing it failed"; return 0; }
    "has_$1" || without "$2" "the installed package holds no server"
}

bring postgres PostgreSQL
bring redis Redis
bring mariadb MariaDB
bring rabbitmq RabbitMQ
bring chromium Chromium
