#!/usr/bin/env bash
# setup_engines.sh: make the environment of other training programs, outside the checkout, and print its interpreter.
# Instant when it is there. The packages of tools/engines.txt take 1.6 GB.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=tools/common.sh
source tools/common.sh

packages=tools/engines.txt
cache=${XDG_CACHE_HOME:-$HOME/.cache}/scalewright
# Another list, or another Python, is another environment: two checkouts can use the same one.
key=$({ cat "$packages"; "$(find_python)" -V; } | cksum | cut -d ' ' -f 1)
venv=$cache/engines-$key
mkdir -p "$cache"

# Two makes at once must not build the same environment.
exec 9>"$cache/.engines-$key.lock"
if command -v flock >/dev/null; then flock 9; fi

if [[ ! -f $venv/.whole ]]; then
    say "making $venv (once, some minutes, 1.6 GB)"
    make_venv "$venv"
    "$venv/bin/python" -m pip install -qq --no-compile "$(grep '^torch==' "$packages")" 1>&2
    "$venv/bin/python" -m pip install -qq --no-compile -r "$packages" 1>&2
    # Some packages ship files that this Python cannot compile.
    "$venv/bin/python" -m compileall -qq -j 0 -x '/tests/' "$venv/lib" || true
    touch "$venv/.whole"
fi
echo "$venv/bin/python"
