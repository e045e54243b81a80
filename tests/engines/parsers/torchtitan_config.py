"""Read TOML files with torchtitan's own ConfigManager: torchtitan_config.py PACKAGES FILE... -> JSON on stdout."""

from __future__ import annotations

import dataclasses
import json
import sys
import types

packages, files = sys.argv[1], sys.argv[2:]
sys.path.insert(0, packages)
# The packages' own __init__ files import models, tokenizers and data loaders, which the parser does not need.
for name in ("torchtitan", "torchtitan.config", "torchtitan.tools"):
    module = types.ModuleType(name)
    module.__path__ = [f"{packages}/{name.replace('.', '/')}"]
    sys.modules[name] = module

from torchtitan.config.manager import ConfigManager  # noqa: E402

parsed = [dataclasses.asdict(ConfigManager().parse_args(["--job.config_file", file])) for file in files]
sys.stdout.write(json.dumps(parsed))
