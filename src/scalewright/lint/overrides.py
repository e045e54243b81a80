"""Options that win over a script's header: SBATCH_* variables, and over those the command line of sbatch."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from scalewright.errors import ConfigError, nearest
from scalewright.lint.options import SBATCH, SBATCH_ENVIRONMENT, SBATCH_TABLE, Argument, read_options


def all_overrides(environment: Mapping[str, str], command_line: str) -> dict[str, str | None]:
    """Value of each option that is not the header's to say."""
    found: dict[str, str | None] = {
        SBATCH_ENVIRONMENT[name]: value for name, value in environment.items() if name in SBATCH_ENVIRONMENT
    }
    return found | command_line_options(command_line)


def command_line_options(text: str) -> dict[str, str | None]:
    """Options of `--sbatch "-N 2 --time=1:00:00"`; the script's own name and arguments do not belong there."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"--sbatch {text!r} cannot be read: {str(error).lower()}; close it") from error
    options, num_read = read_options([Argument(text=word, start=0, end=0) for word in words], SBATCH_TABLE)
    if num_read < len(words):
        raise ConfigError(f"--sbatch holds {words[num_read]!r}, which is no option: give options of sbatch alone")
    for option in options:
        if option.problem:
            near = nearest(option.name, SBATCH) if not option.is_known else []
            hint = f"did you mean --{near[0]}?" if near else "see sbatch --help"
            raise ConfigError(f"--sbatch {text!r}: {option.problem}; {hint}")
    return {option.name: option.value for option in options}
