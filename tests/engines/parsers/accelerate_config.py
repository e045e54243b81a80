"""Read YAML files as `accelerate launch` does: accelerate_config.py PACKAGES FILE... -> JSON on stdout."""

from __future__ import annotations

import json
import sys

sys.path.insert(0, sys.argv[1])

from accelerate.commands.launch import _validate_launch_command, launch_command_parser

configs = []
for file in sys.argv[2:]:
    parser = launch_command_parser()
    known = {action.dest for action in parser._actions}
    args, _, _ = _validate_launch_command(parser.parse_args(["--config_file", file, "train.py"]))
    values = {name: value for name, value in vars(args).items() if isinstance(value, str | int | bool)}
    configs.append({"args": values, "known": sorted(known)})
sys.stdout.write("\n" + json.dumps(configs))
