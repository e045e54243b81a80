"""Times as Slurm writes them: minutes, MM:SS, HH:MM:SS, D-HH, D-HH:MM, D-HH:MM:SS."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BeforeValidator

from scalewright.errors import ConfigError

_CLOCK = re.compile(r"^(?:(\d{1,5}):)?(\d{1,5}):(\d{1,2})$")
_DAYS = re.compile(r"^(\d{1,4})-(\d{1,2})(?::(\d{1,2}))?(?::(\d{1,2}))?$")
_MINUTES = re.compile(r"^\d{1,6}$")
MINUTE_S, HOUR_S, DAY_S = 60, 3600, 86400


def parse_walltime_s(text: str) -> int:
    """Seconds of a time limit; a text that Slurm would read otherwise than a person is refused."""
    given = text.strip()
    if match := _DAYS.match(given):
        days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
        if hours < 24 and minutes < 60 and seconds < 60:
            return _above_zero(days * DAY_S + hours * HOUR_S + minutes * MINUTE_S + seconds, text)
    elif match := _CLOCK.match(given):
        hours, minutes, seconds = (int(part or 0) for part in match.groups())
        if seconds < 60 and (minutes < 60 or match.group(1) is None):
            return _above_zero(hours * HOUR_S + minutes * MINUTE_S + seconds, text)
    elif _MINUTES.match(given):
        return _above_zero(int(given) * MINUTE_S, text)
    raise ConfigError(f"time {text!r} is not one that Slurm reads: write HH:MM:SS or D-HH:MM:SS, such as 02:00:00")


def _above_zero(seconds: int, text: str) -> int:
    if seconds < 1:
        raise ConfigError(f"time {text!r} is no time: give HH:MM:SS above zero, such as 02:00:00")
    return seconds


def format_walltime(seconds: int) -> str:
    """The form that every Slurm command takes: HH:MM:SS, with days in front from one day on."""
    days, rest = divmod(seconds, DAY_S)
    clock = f"{rest // HOUR_S:02d}:{rest % HOUR_S // MINUTE_S:02d}:{rest % MINUTE_S:02d}"
    return f"{days}-{clock}" if days else clock


def _walltime(text: Any) -> Any:
    if not isinstance(text, str):
        raise ValueError(f'{text!r} is not a time: write it as text, such as "02:00:00"')
    try:
        return parse_walltime_s(text)
    except ConfigError as error:
        raise ValueError(str(error)) from error


Walltime = Annotated[int, BeforeValidator(_walltime, json_schema_input_type=str)]
"""Of a file: written as Slurm writes times, held in seconds."""
