#!/usr/bin/env bash
# lock.sh: resolve the development environment anew, without installing it, and write requirements.lock.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=tools/common.sh
source tools/common.sh

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
make_venv "$scratch/venv"
say "resolving"
# For the oldest Python that is supported, not the one at hand: some releases refuse Debian 12's 3.11.2 but not 3.11.7.
# The editable install of `make setup` builds without isolation: hatchling and what it wants for that are locked too.
"$scratch/venv/bin/python" -m pip install -qq --dry-run --ignore-installed --report "$scratch/report.json" \
    --python-version 3.11.0 --only-binary :all: --target "$scratch/unused" hatchling editables '.[dev]'
"$scratch/venv/bin/python" - "$scratch/report.json" >"$scratch/requirements.lock" <<'PYTHON'
import json
import sys

with open(sys.argv[1]) as report:
    found = [item["metadata"] for item in json.load(report)["install"]]
for package in sorted(found, key=lambda package: package["name"].lower()):
    if package["name"] != "scalewright":
        # A local build (torch 2.13.0+cpu) is one way to meet the public version, which is what others can get.
        print(f"{package['name']}=={package['version'].partition('+')[0]}")
PYTHON
cp "$scratch/requirements.lock" requirements.lock
say "wrote requirements.lock ($(wc -l <requirements.lock) packages)"
