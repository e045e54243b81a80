#!/usr/bin/env bash
# setup_env.sh runtime|dev: bring .venv up to date; instant when nothing changed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=tools/common.sh
source tools/common.sh

mode=${1:-}
[[ $mode == runtime || $mode == dev ]] || die "usage: setup_env.sh runtime|dev"
[[ -f requirements.lock ]] || die "requirements.lock is missing (make lock writes it)"

# Two makes at once must not build the same environment; locking this file leaves no other file behind.
exec 9<"${BASH_SOURCE[0]}"
if command -v flock >/dev/null; then flock 9; fi

# The path is part of the stamp because a moved venv is broken: its scripts name their interpreter in full.
wanted=$({ pwd -P && cat requirements.lock pyproject.toml; } | cksum)

# A stamp is written only after its step succeeded, so a half-made environment never has one.
stamped() { [[ -f .venv/.stamp-$1 && $(<".venv/.stamp-$1") == "$2" ]]; }
stamp() { printf '%s\n' "$2" >".venv/.stamp-$1"; }

usable() { stamped venv "$(pwd -P)" && .venv/bin/python -c 'import pip' 2>/dev/null; }

if stamped dev "$wanted" || stamped "$mode" "$wanted"; then
    if usable; then exit 0; fi
fi
if ! usable; then
    say "making .venv"
    make_venv .venv
    stamp venv "$(pwd -P)"
fi
rm -f .venv/.stamp-runtime .venv/.stamp-dev
if [[ $mode == dev ]]; then
    say "installing the locked development environment"
    .venv/bin/python -m pip install -qq --no-compile -r requirements.lock
    say "installing scalewright (editable)"
    # The build backend is in the lock, so the build needs nothing that is not pinned.
    .venv/bin/python -m pip install -qq --no-deps --no-build-isolation -e .
else
    say "installing scalewright and what it needs to run"
    .venv/bin/python -m pip install -qq --no-compile -c requirements.lock -e '.[run,report,lint,data,parquet]'
fi
# pip compiles one file after the other, this on every core, without the packages' own tests. Some packages ship files
# that this Python cannot compile.
.venv/bin/python -m compileall -qq -j 0 -x '/tests/' .venv/lib || true
stamp "$mode" "$wanted"
