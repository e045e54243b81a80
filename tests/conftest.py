"""Shared helpers of every test: running the command line the way a user does."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol

import pytest
from hypothesis import core as hypothesis_core
from hypothesis import settings
from hypothesis.internal.conjecture import providers

from forked_cli import ForkedCli, StartedCall

# What is drawn is not to depend on which modules were imported before; reading all of them for constants to try would
# take every worker ten seconds besides.
providers._get_local_constants = lambda: providers._local_constants

SEED = "SCALEWRIGHT_TEST_SEED"
"""Variable with the seed of the tier `search`. Without it every run draws the same examples."""
# How long an example takes says how busy the machine is, and nothing about the code.
settings.register_profile("every-day", deadline=None, derandomize=True)
settings.register_profile("search", deadline=None, database=None)
settings.load_profile("search" if SEED in os.environ else "every-day")

# For every process of the tests: threads that wait for each other on a busy machine make small steps many times longer.
os.environ["OMP_NUM_THREADS"] = "1"

ROOT = Path(__file__).resolve().parents[1]
# Variables of the caller that would change what the command prints or finds.
DROPPED_PREFIXES = ("SLURM", "SBATCH_", "SINFO_", "SQUEUE_", "SCALEWRIGHT_")
DROPPED = {"FORCE_COLOR", "PY_COLORS", "GITHUB_ACTIONS"}


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "alone: compares times, so that no other test may run beside it")
    config.addinivalue_line("markers", "drawn: draws its examples; the tier `search` draws others")
    if SEED in os.environ:
        hypothesis_core.global_force_seed = int(os.environ[SEED])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
            item.add_marker("drawn")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if SEED in os.environ and terminalreporter.stats.get("failed"):
        terminalreporter.write_line(f"{SEED}={os.environ[SEED]} draws these examples again")


class Cli(Protocol):
    def __call__(
        self,
        *args: str,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        input: str | None = None,
        prefix: tuple[str, ...] = (),
        timeout: float = 120,
    ) -> subprocess.CompletedProcess[str]: ...


def clean_environment() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not k.startswith(DROPPED_PREFIXES) and k not in DROPPED}


@pytest.fixture(scope="session")
def forked_cli() -> Iterator[ForkedCli]:
    server = ForkedCli(clean_environment() | {"COLUMNS": "80", "NO_COLOR": "1"})
    yield server
    server.close()


@pytest.fixture(scope="session")
def forked_cli_with_ranks() -> Iterator[ForkedCli]:
    server = ForkedCli(clean_environment() | {"COLUMNS": "80", "NO_COLOR": "1"}, with_ranks=True)
    yield server
    server.close()


def command_line(home: Path, forked_cli: ForkedCli) -> Cli:
    def run(
        *args: str,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        input: str | None = None,
        prefix: tuple[str, ...] = (),
        timeout: float = 120,
    ) -> subprocess.CompletedProcess[str]:
        complete = call_environment(home, env)
        with forked_cli.taken() as is_mine:
            if is_mine and not prefix and forked_cli.can_run_in(complete):
                return forked_cli.run(args, cwd=cwd or Path.cwd(), env=complete, input=input, timeout=timeout)
        return subprocess.run(
            [*prefix, sys.executable, "-m", "scalewright", *args],
            cwd=cwd,
            env=complete,
            input=input,
            # Without input the command must not read the terminal of whoever runs the tests.
            stdin=subprocess.DEVNULL if input is None else None,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    return run


def call_environment(home: Path, env: Mapping[str, str] | None = None) -> dict[str, str]:
    fixed = {"SCALEWRIGHT_HOME": str(home), "COLUMNS": "80", "NO_COLOR": "1"}
    return clean_environment() | fixed | dict(env or {})


class StartCli(Protocol):
    def __call__(self, *args: str, cwd: Path) -> StartedCall: ...


@pytest.fixture
def start_cli(forked_cli_with_ranks: ForkedCli, tmp_path_factory: pytest.TempPathFactory) -> StartCli:
    """Start a command that is to be signalled. Its ranks are forked from a process that has imported PyTorch."""
    home = tmp_path_factory.mktemp("scalewright-home")

    def start(*args: str, cwd: Path) -> StartedCall:
        return forked_cli_with_ranks.start(args, cwd=cwd, env=call_environment(home))

    return start


@pytest.fixture
def cli(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Cli:
    """Run `python -m scalewright ARGS` in a clean environment; `prefix` is a command to run it through."""
    has_ranks = any(request.node.get_closest_marker(mark) for mark in ("ranks", "kills"))
    forked = request.getfixturevalue("forked_cli_with_ranks" if has_ranks else "forked_cli")
    return command_line(tmp_path_factory.mktemp("scalewright-home"), forked)


@pytest.fixture(scope="session")
def shared_cli(tmp_path_factory: pytest.TempPathFactory, forked_cli: ForkedCli) -> Cli:
    """The same for what several tests look at; they share its home."""
    return command_line(tmp_path_factory.mktemp("shared-home"), forked_cli)


@pytest.fixture(scope="session")
def shared_cli_with_ranks(tmp_path_factory: pytest.TempPathFactory, forked_cli_with_ranks: ForkedCli) -> Cli:
    """The same for a run that several tests look at."""
    return command_line(tmp_path_factory.mktemp("shared-home"), forked_cli_with_ranks)


class RememberedCli(Protocol):
    def __call__(self, *args: str, columns: int = 80) -> subprocess.CompletedProcess[str]: ...


@pytest.fixture(scope="session")
def remembered_cli(tmp_path_factory: pytest.TempPathFactory, shared_cli: Cli) -> RememberedCli:
    """A command that only prints, in the root folder: it runs once for all tests and all workers that ask for it."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "remembered"
    folder.mkdir(exist_ok=True)

    def run(*args: str, columns: int = 80) -> subprocess.CompletedProcess[str]:
        path = folder / hashlib.sha256(json.dumps([args, columns]).encode()).hexdigest()
        with path.open("a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # whoever comes second waits for the answer of the first
            file.seek(0)
            text = file.read()
            if not text:
                done = shared_cli(*args, cwd=ROOT, env={"COLUMNS": str(columns)})
                text = json.dumps([done.returncode, done.stdout, done.stderr])
                file.write(text)
        return subprocess.CompletedProcess(args, *json.loads(text))

    return run


class Refused(Protocol):
    def __call__(self, result: subprocess.CompletedProcess[str], code: int = 2) -> str: ...


@pytest.fixture
def refused() -> Refused:
    """Check that a command failed the way every command must: exit code, one sentence, nothing on stdout."""

    def check(result: subprocess.CompletedProcess[str], code: int = 2) -> str:
        assert "Traceback" not in result.stderr, result.stderr[-1500:]
        assert result.returncode == code, (result.returncode, result.stdout[-500:], result.stderr[-500:])
        assert result.stdout == ""
        lines = result.stderr.splitlines()
        assert len(lines) == 1, lines
        assert lines[0].startswith("error: ")
        return lines[0]

    return check
