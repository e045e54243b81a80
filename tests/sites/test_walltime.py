"""Times as Slurm reads them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalewright.errors import ConfigError
from scalewright.sites.walltime import format_walltime, parse_walltime_s


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30", 1800), ("90:30", 5430), ("02:00:00", 7200), ("72:00:00", 259200), ("2-12", 216000), ("1-02:03", 93780),
     ("1-02:03:04", 93784)],
)  # fmt: skip
def test_forms_of_slurm(text: str, seconds: int) -> None:
    """From the manual page of sbatch: minutes, minutes:seconds, hours:minutes:seconds, days-hours and so on."""
    assert parse_walltime_s(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "2h", "1:60", "1:60:00", "-5", "1-24", "UNLIMITED", "1:2:3:4", "00:00:00"])
def test_other_forms_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="HH:MM:SS"):
        parse_walltime_s(text)


@given(st.integers(1, 400 * 86400))
def test_format_reads_back(seconds: int) -> None:
    assert parse_walltime_s(format_walltime(seconds)) == seconds
