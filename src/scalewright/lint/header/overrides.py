"""Options that override a script's header: first the SBATCH_* variables, then the command line of sbatch."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from scalewright.errors import ConfigError, nearest
from scalewright.lint.header.options import SBATCH, SBATCH_ENVIRONMENT, SBATCH_TABLE, Argument, read_options


def all_overrides(environment: Mapping[str, str], command_line: str) -> dict[str, str | None]:
    """Value of each option that the environment or the command line sets."""
    overrides: dict[str, str | None] = {
        SBATCH_ENVIRONMENT[name]: value for name, value in environment.items() if name in SBATCH_ENVIRONMENT
    }
    return overrides | command_line_options(command_line)


def command_line_options(text: str) -> dict[str, str | None]:
    """Options of `--sbatch "-N 2 --time=1:00:00"`. Raises ConfigError for anything but options of sbatch."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"--sbatch {text!r} cannot be read: {str(error).lower()}; close the quote") from error
    options, num_read = read_options([Argument(text=word, start=0, end=0) for word in words], SBATCH_TABLE)
    if num_read < len(words):
        raise ConfigError(f"--sbatch holds {words[num_read]!r}, which is not an option: give only options of sbatch")
    for option in options:
        if option.problem:
            near = nearest(option.name, SBATCH) if not option.is_known else []
            hint = f"did you mean --{near[0]}?" if near else "see sbatch --help"
            raise ConfigError(f"--sbatch {text!r}: {option.problem}; {hint}")
    return {option.name: option.value for option in options}
