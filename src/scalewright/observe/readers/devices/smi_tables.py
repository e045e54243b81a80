"""Output of nvidia-smi: its table, `dmon`, `--query-gpu --format=csv` and `topo -m`; rocm-smi's table and pages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

from scalewright import units
from scalewright.here.topology_tools import smi_matrix
from scalewright.observe.evidence.facts import DeviceSample, Spot
from scalewright.observe.readers.prefixes import time_in
from scalewright.observe.readers.reader import Item, LineReader, Stated
from scalewright.observe.readers.source import Line

_NUMBER = re.compile(r"^-?\d+(?:\.\d+)?")
_TABLE_FIRST = re.compile(r"^\|\s+(?P<index>\d{1,15})\s+(?P<name>\S.*?)\s+(?:On|Off|N/A)\s+\|")
_TABLE_SECOND = re.compile(
    r"^\|\s*(?:N/A|\d+%)\s+(?P<temperature>\d{1,15})C\s+P\d+\s+(?P<power>\d+|N/A)W?\s*/\s*(?P<limit>\d+|N/A)W?\s*\|"
    r"\s*(?P<used>\d{1,15})MiB\s*/\s*(?P<total>\d{1,15})MiB\s*\|\s*(?P<use>\d{1,15})%"
)
_SLOWED = {
    "sw_thermal_slowdown": "sw_thermal", "hw_thermal_slowdown": "hw_thermal", "hw_slowdown": "hw_slowdown",
    "hw_power_brake_slowdown": "power_brake", "sw_power_cap": "power_cap",
}  # fmt: skip
_REASON_BITS = {0x4: "power_cap", 0x8: "hw_slowdown", 0x20: "sw_thermal", 0x40: "hw_thermal", 0x80: "power_brake"}
"""NVML's mask of reasons for lower clocks."""
_DMON = {
    "pwr": ("power_w", 1.0), "gtemp": ("temperature_c", 1.0), "temp": ("temperature_c", 1.0), "sm": ("use_frac", 0.01),
    "fb": ("memory_bytes", float(units.MIB)), "pclk": ("clock_hz", units.MEGA),
}  # fmt: skip
_QUERY = {
    "utilization.gpu": ("use_frac", 0.01), "memory.used": ("memory_bytes", float(units.MIB)),
    "memory.total": ("memory_total_bytes", float(units.MIB)), "power.draw": ("power_w", 1.0),
    "power.draw.average": ("power_w", 1.0), "power.draw.instant": ("power_w", 1.0),
    "power.limit": ("power_limit_w", 1.0), "enforced.power.limit": ("power_limit_w", 1.0),
    "temperature.gpu": ("temperature_c", 1.0),
    "clocks.sm": ("clock_hz", units.MEGA), "clocks.current.sm": ("clock_hz", units.MEGA),
    "clocks.gr": ("clock_hz", units.MEGA), "clocks.current.graphics": ("clock_hz", units.MEGA),
    "clocks.max.sm": ("clock_high_hz", units.MEGA), "clocks.max.graphics": ("clock_high_hz", units.MEGA),
}  # fmt: skip
MOST_TOPOLOGY_LINES = 200


def _scaled(word: str, factor: float) -> float | None:
    match = _NUMBER.match(word.strip())
    return round(float(match[0]) * factor, 9) if match else None


class NvidiaSmiReader(LineReader):
    """Forms follow each other in one file, as scripts write them in a loop."""

    kind: ClassVar[str] = "nvidia-smi"
    hints: ClassVar[tuple[str, ...]] = (
        "NVIDIA-SMI", "# gpu ", "#gpu", "utilization.gpu", "memory.used [", "GPU0\t", "\tGPU1", "power.draw",
        "clocks_throttle_reasons", "clocks_event_reasons", "GPU0  ",
    )  # fmt: skip

    def __init__(self) -> None:
        self._mode = ""
        self._columns: list[str] = []
        self._index = ""
        self._name = ""
        self._matrix: list[str] = []
        self._spot: Spot | None = None
        self._num_other = 0

    def take(self, line: Line) -> Iterable[Item]:
        text = line.text.rstrip()
        mode = self._header(text)
        if mode:
            yield from self._ended()
            self._mode, self._num_other, self.is_open = mode, 0, True
            if mode == "topology":
                self._matrix, self._spot = [text], line.spot
            elif mode in ("dmon", "query"):
                self._columns = [
                    name.strip().lower() for name in re.split(r"," if mode == "query" else r"\s+", text.lstrip("# "))
                ]
            return
        if not self._mode:
            return
        items = list(self._row(line, text))
        self._num_other = 0 if items else self._num_other + 1
        if self._num_other > MOST_TOPOLOGY_LINES:
            yield from self._ended()
        yield from items

    def end(self) -> Iterable[Item]:
        return self._ended()

    @staticmethod
    def _header(text: str) -> str:
        if re.match(r"^#\s*gpu\s", text):
            return "dmon"
        if "," in text and re.search(r"utilization\.gpu|memory\.used|power\.draw|clocks[._]", text) and "=" not in text:
            return "query" if re.match(r"^[\w.]+(?: \[[^\]]+\])?(?:, ?[\w.]+(?: \[[^\]]+\])?)+$", text) else ""
        if re.match(r"^\s*(?:\x1b\[4m)?\s*GPU0\s+(?:GPU1|NIC0|mlx|CPU)", text):
            return "topology"
        return "table" if "NVIDIA-SMI" in text and "Driver Version" in text else ""

    def _row(self, line: Line, text: str) -> Iterator[Item]:
        if self._mode == "dmon":
            yield from self._dmon(line, text)
        elif self._mode == "query":
            yield from self._query(line, text)
        elif self._mode == "table":
            yield from self._table(line, text)
        elif self._mode == "topology":
            self._matrix.append(text)
            if not text.strip() and len(self._matrix) > 2:
                yield from self._ended()

    def _dmon(self, line: Line, text: str) -> Iterator[Item]:
        words = text.split()
        if text.startswith("#") or len(words) < 3 or len(words) > len(self._columns) + 2:
            return
        fields = dict(zip(self._columns, words, strict=False))
        device = fields.get("gpu", fields.get("idx", ""))
        if not device.isdecimal():
            return
        values: dict[str, Any] = {
            name: value
            for column, (name, factor) in _DMON.items()
            if (value := _scaled(fields.get(column, "-"), factor)) is not None
        }
        reasons = tuple(
            name for column, name in (("pviol", "power_cap"), ("tviol", "sw_thermal")) if _is_above(fields, column)
        )
        yield DeviceSample(device=device, spot=line.spot, host=line.host, at_s=line.at_s, slowed_by=reasons, **values)

    def _query(self, line: Line, text: str) -> Iterator[Item]:
        words = [word.strip() for word in text.split(",")]
        if len(words) != len(self._columns):
            return
        fields = {re.sub(r"\s*\[.*", "", name): word for name, word in zip(self._columns, words, strict=True)}
        device = fields.get("index") or fields.get("gpu_bus_id") or fields.get("pci.bus_id") or fields.get("uuid") or ""
        values: dict[str, Any] = {}
        for name, (field, factor) in _QUERY.items():
            value = _scaled(fields.get(name, "-"), factor)
            if value is not None:
                values.setdefault(field, value)
        if not values and not any("throttle" in name or "event_reasons" in name for name in fields):
            return
        if fields.get("name"):
            yield Stated("accelerator", fields["name"], line.spot)
        yield DeviceSample(
            device=device, spot=line.spot, host=fields.get("host", line.host),
            at_s=time_in(fields.get("timestamp", "")) or line.at_s, slowed_by=_reasons(fields), **values,
        )  # fmt: skip

    def _table(self, line: Line, text: str) -> Iterator[Item]:
        if first := _TABLE_FIRST.match(text):
            self._index, self._name = first["index"], first["name"]
        elif (second := _TABLE_SECOND.match(text)) and self._index:
            values: dict[str, Any] = {
                "power_w": _scaled(second["power"], 1.0), "power_limit_w": _scaled(second["limit"], 1.0),
                "temperature_c": _scaled(second["temperature"], 1.0), "use_frac": _scaled(second["use"], 0.01),
                "memory_bytes": _scaled(second["used"], float(units.MIB)),
                "memory_total_bytes": _scaled(second["total"], float(units.MIB)),
            }  # fmt: skip
            if not self._name.endswith("..."):
                yield Stated("accelerator", self._name, line.spot)
            yield DeviceSample(device=self._index, spot=line.spot, host=line.host, at_s=line.at_s, **values)
            self._index = ""

    def _ended(self) -> Iterator[Item]:
        lines, self._matrix = self._matrix, []
        self._mode, self.is_open = "", False
        spot = self._spot
        if not lines or spot is None:
            return
        matrix, nics = smi_matrix("\n".join(lines))
        gpus = {label for pair in matrix for label in pair if label.startswith("GPU")} or {"GPU0"}
        links = sorted(
            {way for (one, other), way in matrix.items() if one.startswith("GPU") and other.startswith("GPU")}
        )
        yield Stated("gpus_per_node", str(len(gpus)), spot)
        if links:
            yield Stated("gpu_links", ",".join(links), spot)
        if nics:
            yield Stated("network_cards", ",".join(nics.values()), spot)


def _is_above(fields: dict[str, str], column: str) -> bool:
    value = _scaled(fields.get(column, "-"), 1.0)
    return value is not None and value > 0


def _reasons(fields: dict[str, str]) -> tuple[str, ...]:
    """Active ones of `clocks_throttle_reasons.*` or `clocks_event_reasons.*`, also of the mask."""
    names = []
    for column, word in fields.items():
        if "reasons" not in column:
            continue
        reason = column.rsplit(".", 1)[-1]
        if reason == "active" and re.fullmatch(r"0x[0-9A-Fa-f]{1,16}", word):
            names += [name for bit, name in _REASON_BITS.items() if int(word, 16) & bit]
        elif reason in _SLOWED and word == "Active":
            names.append(_SLOWED[reason])
    return tuple(dict.fromkeys(names))
