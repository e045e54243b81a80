"""Running the scheduler's commands, with a timeout, and again if the scheduler did not answer."""

from __future__ import annotations

import os
import random
import re
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from scalewright.errors import EnvironmentFailedError

_AWAY = re.compile(
    r"unable to contact slurm controller|socket timed out|connection refused|connection timed out"
    r"|temporarily unable to accept job|zero bytes were transmitted|communications connection failure"
    r"|resource temporarily unavailable|slurm backup controller in standby|unable to establish controller machine"
    r"|connection reset by peer|slurmdbd.*(?:connect|unavailable)",
    re.IGNORECASE,
)
_NO_CONFIGURATION = re.compile(
    r"could not establish a configuration source|failed to fetch config|unable to process configuration file"
    r"|no such file or directory.*slurm\.conf|slurm\.conf.*no such file or directory",
    re.IGNORECASE,
)
_LOG_PREFIX = re.compile(r"^(?:sbatch|squeue|sacct|scancel|scontrol|sinfo|sacctmgr): (?:error: )?")


class SchedulerAwayError(EnvironmentFailedError):
    """The scheduler does not answer. It is unknown whether it accepted the request."""


class SchedulerRefusedError(EnvironmentFailedError):
    """The scheduler refused the request; `words` is its own message."""

    def __init__(self, message: str, *, words: str) -> None:
        super().__init__(message)
        self.words = words


@dataclass(slots=True, kw_only=True)
class Runner:
    """Runs commands as argument lists, never through a shell. Counts them, so that tests can limit the number."""

    env: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    timeout_s: float = 120.0
    max_tries: int = 6
    first_wait_s: float = 1.0
    longest_wait_s: float = 60.0
    sleep: Callable[[float], None] = time.sleep
    say: Callable[[str], object] = str
    """Prints a message when the scheduler does not answer; by default nothing is printed."""
    num_calls: Counter[str] = field(default_factory=Counter)

    def call(
        self, argv: Sequence[str], *, is_repeatable: bool = True, env: Mapping[str, str] = MappingProxyType({})
    ) -> str:
        """Standard output of a command that succeeded. Commands that change nothing are repeated with growing waits."""
        return self._repeated(argv, self.max_tries if is_repeatable else 1, env)[0]

    def call_for_messages(self, argv: Sequence[str]) -> str:
        """Standard error of a command that succeeded. `sbatch --test-only` prints its answer there."""
        return self._repeated(argv, self.max_tries, {})[1]

    def _repeated(self, argv: Sequence[str], tries: int, env: Mapping[str, str]) -> tuple[str, str]:
        for attempt in range(tries):
            try:
                return self._once(argv, env)
            except SchedulerAwayError as error:
                if attempt == tries - 1:
                    raise
                wait = self.wait_s(attempt)
                self.say(f"{error}; trying again in {wait:.0f} s")
                self.sleep(wait)
        raise AssertionError("max_tries is at least 1")

    def wait_s(self, attempt: int) -> float:
        """The wait doubles with each attempt. It is randomised, so that many drivers do not retry together."""
        return float(min(self.first_wait_s * 2.0**attempt, self.longest_wait_s) * random.uniform(0.75, 1.25))

    def _once(self, argv: Sequence[str], more: Mapping[str, str]) -> tuple[str, str]:
        """Standard output and the messages of one call."""
        name = argv[0]
        self.num_calls[name] += 1
        # Without this variable Slurm cuts lists of array tasks at 64 characters. sbatch would pass it on to jobs.
        env = {**self.env, **more} | ({} if name == "sbatch" else {"SLURM_BITSTR_LEN": "0"})
        if (conf := self.env.get("SLURM_CONF")) and not Path(conf).exists():
            raise _no_cluster(name, self.env)  # Slurm itself would search for a minute
        try:
            done = subprocess.run(
                list(argv), env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=self.timeout_s, check=False
            )
        except FileNotFoundError as error:
            raise EnvironmentFailedError(
                f"{name} is not on PATH: load Slurm's module or log in to the cluster, then try again"
            ) from error
        except PermissionError as error:
            raise EnvironmentFailedError(
                f"{name} cannot be run: {error.strerror}; ask the cluster's support"
            ) from error
        except subprocess.TimeoutExpired as error:
            raise SchedulerAwayError(f"{name} gave no answer in {self.timeout_s:.0f} s") from error
        output, messages = done.stdout.decode(errors="replace"), one_line_of(done.stderr.decode(errors="replace"))
        if done.returncode == 0:
            return output, messages
        if _NO_CONFIGURATION.search(messages):
            raise _no_cluster(name, self.env)
        if _AWAY.search(messages):
            raise SchedulerAwayError(f"{name} cannot reach the scheduler: {messages}")
        raise SchedulerRefusedError(f"{name} refused: {messages or f'exit code {done.returncode}'}", words=messages)


def _no_cluster(name: str, env: Mapping[str, str]) -> EnvironmentFailedError:
    conf = env.get("SLURM_CONF")
    why = f"SLURM_CONF is {conf}, which is missing or incomplete" if conf else "SLURM_CONF is not set"
    return EnvironmentFailedError(
        f"{name} finds no cluster: {why}; log in to the cluster, or use a practice cluster with: "
        'eval "$(scalewright lab env ID)"'
    )


def one_line_of(stderr: str) -> str:
    """A command's messages on one line, without its name before each of them."""
    lines = (_LOG_PREFIX.sub("", line).strip() for line in stderr.splitlines())
    return "; ".join(dict.fromkeys(line for line in lines if line))
