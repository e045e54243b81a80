"""The command line in this process, for long tables of arguments."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from forked_cli import keep_commands
from scalewright.cli.main import main

Here = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def kept_commands() -> None:
    keep_commands()


@pytest.fixture
def here(
    kept_commands: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Here:
    """What `cli` does, in an empty folder and 80 columns, without starting Python for each row."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SCALEWRIGHT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")

    def run(*args: str) -> subprocess.CompletedProcess[str]:
        monkeypatch.setattr(sys, "argv", ["scalewright", *args])
        with pytest.raises(SystemExit) as stop:
            main()
        out, err = capsys.readouterr()
        return subprocess.CompletedProcess(args, int(stop.value.code or 0), out, err)

    return run
