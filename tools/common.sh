# Sourced by the scripts beside it: finding a Python and making virtual environments.
# shellcheck shell=bash
export PIP_DISABLE_PIP_VERSION_CHECK=1

say() { printf '%s: %s\n' "${0##*/}" "$*" >&2; }

die() {
    say "$*"
    exit 1
}

apt_install() {
    if [[ $EUID -ne 0 ]] || ! command -v apt-get >/dev/null; then
        die "please install: $*"
    fi
    say "installing $* (apt-get)"
    local log
    log=$(mktemp)
    if ! { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@"; } \
        >"$log" 2>&1; then
        cat "$log" >&2
        rm -f "$log"
        die "apt-get could not install $*"
    fi
    rm -f "$log"
}

find_python() {
    local name
    for name in python3 python3.13 python3.12 python3.11; do
        if "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$name"
            return
        fi
    done
    return 1
}

make_venv() { # make_venv DIR
    local py
    if ! py=$(find_python); then
        apt_install python3 python3-venv
        py=$(find_python) || die "needs Python 3.11 or newer"
    fi
    # Debian ships Python without ensurepip; python3-venv (or python3.12-venv, ...) brings it.
    "$py" -c 'import ensurepip' 2>/dev/null || apt_install "$py-venv"
    "$py" -m venv --clear "$1"
}
