"""Which commands and flags there are: one more is a decision, and is written down in `command_flags.toml`."""

from __future__ import annotations

import re
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

Cli = Callable[..., subprocess.CompletedProcess[str]]
LISTS = tomllib.loads((Path(__file__).parent / "command_flags.toml").read_text(encoding="utf-8"))
FLAGS: dict[str, str] = LISTS["flags"]


@pytest.mark.parametrize("command", FLAGS)
def test_flags_are_these_and_growth_is_a_decision(cli: Cli, command: str) -> None:
    result = cli(*([] if command == "scalewright" else command.split()), "--help")
    assert result.returncode == 0
    listed = re.findall(r"^  (?:-\w, )?(--[a-z-]+)", result.stdout, re.MULTILINE)
    assert sorted(listed) == sorted([*FLAGS[command].split(), "--help"])


@pytest.mark.parametrize("group", [command for command, flags in FLAGS.items() if not flags.split()])
def test_every_command_of_a_group_is_listed(cli: Cli, group: str) -> None:
    listed = re.findall(r"^  ([a-z-]+) ", cli(*group.split(), "--help").stdout.partition("Commands:")[2], re.MULTILINE)
    assert {f"{group} {name}" for name in listed} <= set(FLAGS)


def test_commands_are_these(cli: Cli) -> None:
    listed = cli("--help").stdout.partition("Commands:")[2]
    assert re.findall(r"^  ([a-z-]+) ", listed, re.MULTILINE) == LISTS["commands"].split()
