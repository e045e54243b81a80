"""Output of rocm-smi: its short table, and the lines `GPU[0] : ...` of its pages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

from scalewright import units
from scalewright.observe.evidence.facts import DeviceSample, Spot
from scalewright.observe.readers.reader import Item, LineReader, Stated
from scalewright.observe.readers.source import Line

_PAGE = re.compile(r"^GPU\[(?P<device>\d{1,15})\]\s*: (?P<name>[^:]+?): (?P<value>.+)$")
_ROW = re.compile(r"^(?P<device>\d{1,15})\s+(?:\d+\s+0x\w+,?\s+\w+\s+|\[\S+[^\]]*\]\s+)?.*%")
_FIELDS: tuple[tuple[re.Pattern[str], str, float], ...] = (
    (re.compile(r"Temperature \(Sensor (?:junction|edge)\)"), "temperature_c", 1.0),
    (re.compile(r"(?:Average|Current Socket) Graphics Package Power|Current Socket.*Power"), "power_w", 1.0),
    (re.compile(r"Max Graphics Package Power"), "power_limit_w", 1.0),
    (re.compile(r"GPU use \(%\)"), "use_frac", 0.01),
    (re.compile(r"VRAM Total Used Memory \(B\)"), "memory_bytes", 1.0),
    (re.compile(r"VRAM Total Memory \(B\)"), "memory_total_bytes", 1.0),
    (re.compile(r"sclk clock (?:level|speed)"), "clock_hz", units.MEGA),
)
_VALUE = re.compile(r"\(?(-?\d+(?:\.\d+)?)(?:Mhz|MHz)?\)?")


class RocmSmiReader(LineReader):
    kind: ClassVar[str] = "rocm-smi"
    hints: ClassVar[tuple[str, ...]] = ("GPU[", "SCLK", "VRAM%", "End of ROCm SMI Log")

    def __init__(self) -> None:
        self._open: dict[str, dict[str, Any]] = {}
        self._spots: dict[str, Spot] = {}
        self._in_table = False

    def take(self, line: Line) -> Iterable[Item]:
        text = line.text.strip()
        if "End of ROCm SMI Log" in text:
            yield from self._flushed()
        elif "SCLK" in text and "VRAM%" in text:
            self._in_table = self.is_open = True
        elif match := _PAGE.match(text):
            yield from self._page(line, match)
        elif self._in_table and _ROW.match(text):
            yield from self._row(line, text)

    def end(self) -> Iterable[Item]:
        return self._flushed()

    def _page(self, line: Line, match: re.Match[str]) -> Iterator[Item]:
        device, name = match["device"], match["name"]
        if name in ("Card series", "Card Series"):
            yield Stated("accelerator", match["value"].strip(), line.spot)
        for pattern, field, factor in _FIELDS:
            if pattern.search(name) and (value := _VALUE.search(_after_level(match["value"]))):
                known = self._open.setdefault(device, {})
                if field in known and field != "temperature_c":
                    yield from self._flushed()
                    known = self._open.setdefault(device, {})
                known[field] = round(float(value[1]) * factor, 9)
                self._spots.setdefault(device, line.spot)
                break

    def _row(self, line: Line, text: str) -> Iterator[Item]:
        temperature = re.search(r"(\d+(?:\.\d+)?)°?[cC]\b", text)
        watts = re.findall(r"(\d+(?:\.\d+)?)W", text)
        clock = re.search(r"(\d{1,15})[Mm][Hh]z", text)
        shares = re.findall(r"(\d+(?:\.\d+)?)%", text)
        yield DeviceSample(
            device=text.split(maxsplit=1)[0], spot=line.spot, host=line.host, at_s=line.at_s,
            temperature_c=float(temperature[1]) if temperature else None,
            power_w=float(watts[0]) if watts else None, power_limit_w=float(watts[1]) if len(watts) > 1 else None,
            clock_hz=float(clock[1]) * units.MEGA if clock else None,
            use_frac=float(shares[-1]) / 100 if shares else None,
        )  # fmt: skip

    def _flushed(self) -> Iterator[Item]:
        samples, self._open = self._open, {}
        spots, self._spots = self._spots, {}
        self._in_table = self.is_open = False
        for device, values in samples.items():
            yield DeviceSample(device=device, spot=spots[device], **values)


def _after_level(value: str) -> str:
    """`3: (1300Mhz)` names the level first."""
    return value.partition(": (")[2] or value
