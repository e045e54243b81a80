"""Readers of what machines, libraries and schedulers say, beside the logs of training programs."""

from __future__ import annotations

from scalewright.observe.readers.flight.reader import FlightReader
from scalewright.observe.readers.reader import LineReader, Reader


def machine_whole_readers() -> list[Reader]:
    return [FlightReader()]


def machine_line_readers() -> list[LineReader]:
    return []
