"""Time limits in Slurm's formats: minutes, MM:SS, HH:MM:SS, D-HH, D-HH:MM, D-HH:MM:SS."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BeforeValidator

from scalewright import units
from scalewright.errors import ConfigError

_CLOCK = re.compile(r"^(?:(\d{1,5}):)?(\d{1,5}):(\d{1,2})$")
_DAYS = re.compile(r"^(\d{1,4})-(\d{1,2})(?::(\d{1,2}))?(?::(\d{1,2}))?$")
_MINUTES = re.compile(r"^\d{1,6}$")
MINUTE_S, HOUR_S, DAY_S = int(units.MINUTE_S), int(units.HOUR_S), int(units.DAY_S)
"""Whole seconds, because Slurm's limits are whole."""


def parse_walltime_s(text: str) -> int:
    """Seconds of a time limit. A text that Slurm and a person would read differently is refused."""
    limit = text.strip()
    if match := _DAYS.match(limit):
        days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
        if hours < 24 and minutes < 60 and seconds < 60:
            return _above_zero(days * DAY_S + hours * HOUR_S + minutes * MINUTE_S + seconds, text)
    elif match := _CLOCK.match(limit):
        hours, minutes, seconds = (int(part or 0) for part in match.groups())
        if seconds < 60 and (minutes < 60 or match.group(1) is None):
            return _above_zero(hours * HOUR_S + minutes * MINUTE_S + seconds, text)
    elif _MINUTES.match(limit):
        return _above_zero(int(limit) * MINUTE_S, text)
    raise ConfigError(f"time {text!r} is not in Slurm's format: write HH:MM:SS or D-HH:MM:SS, such as 02:00:00")


def _above_zero(seconds: int, text: str) -> int:
    if seconds < 1:
        raise ConfigError(f"time {text!r} must be above zero: write HH:MM:SS, such as 02:00:00")
    return seconds


def format_walltime(seconds: int) -> str:
    """The format that every Slurm command accepts: HH:MM:SS, from one day on D-HH:MM:SS."""
    days, of_day_s = divmod(seconds, DAY_S)
    clock = f"{of_day_s // HOUR_S:02d}:{of_day_s % HOUR_S // MINUTE_S:02d}:{of_day_s % MINUTE_S:02d}"
    return f"{days}-{clock}" if days else clock


def _walltime(text: Any) -> Any:
    if not isinstance(text, str):
        raise ValueError(f'{text!r} is not a time: write it as text, such as "02:00:00"')
    try:
        return parse_walltime_s(text)
    except ConfigError as error:
        raise ValueError(str(error)) from error


Walltime = Annotated[int, BeforeValidator(_walltime, json_schema_input_type=str)]
"""A time limit of a file: written in Slurm's format, held in seconds."""
