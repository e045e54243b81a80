"""The XML of `nvidia-smi -q -x`: every device with its memory, clocks, power and why it is slowed."""

from __future__ import annotations

import re
from typing import Any, ClassVar
from xml.etree import ElementTree

from scalewright import units
from scalewright.observe.evidence.evidence import Evidence
from scalewright.observe.evidence.facts import DeviceSample, Happening, Spot
from scalewright.observe.readers.devices.kernel_log import day_time_s
from scalewright.observe.readers.source import Head, Source

MOST_BYTES = 64 * units.MIB
_NUMBER = re.compile(r"^\s*(-?\d+(?:\.\d+)?)")
_PATHS: tuple[tuple[str, float, tuple[str, ...]], ...] = (
    ("use_frac", 0.01, ("utilization/gpu_util",)),
    ("memory_bytes", float(units.MIB), ("fb_memory_usage/used",)),
    ("memory_total_bytes", float(units.MIB), ("fb_memory_usage/total",)),
    ("power_w", 1.0, ("gpu_power_readings/instant_power_draw", "gpu_power_readings/power_draw",
                      "power_readings/power_draw", "gpu_power_readings/average_power_draw")),
    ("power_limit_w", 1.0, ("gpu_power_readings/current_power_limit", "power_readings/power_limit",
                            "power_readings/enforced_power_limit")),
    ("temperature_c", 1.0, ("temperature/gpu_temp",)),
    ("clock_hz", units.MEGA, ("clocks/sm_clock", "clocks/graphics_clock")),
    ("clock_high_hz", units.MEGA, ("max_clocks/sm_clock", "max_clocks/graphics_clock")),
)  # fmt: skip
_SLOWED = {
    "sw_thermal_slowdown": "sw_thermal", "hw_thermal_slowdown": "hw_thermal", "hw_slowdown": "hw_slowdown",
    "hw_power_brake_slowdown": "power_brake", "hw_power_brake": "power_brake", "sw_power_cap": "power_cap",
}  # fmt: skip


class SmiXmlReader:
    kind: ClassVar[str] = "nvidia-smi xml"

    def sees(self, head: Head) -> float:
        return 0.98 if b"<nvidia_smi_log>" in head.raw else 0.0

    def read(self, source: Source, into: Evidence) -> None:
        data = b"".join(piece for piece in _limited(source))
        if b"<!ENTITY" in data:
            source.problem("the XML declares entities, which nvidia-smi never does: not read")
            return
        for text in data.split(b"<?xml")[0:]:
            start = text.find(b"<nvidia_smi_log>")
            if start < 0:
                continue
            try:
                root = ElementTree.fromstring(text[start:])
            except ElementTree.ParseError as error:
                source.problem(f"broken XML: {error}")
                continue
            _read_root(root, source, into)


def _limited(source: Source) -> list[bytes]:
    pieces: list[bytes] = []
    for piece in source.chunks():
        pieces.append(piece)
        if sum(map(len, pieces)) > MOST_BYTES:
            source.problem(f"only the first {MOST_BYTES} bytes are read")
            break
    return pieces


def _read_root(root: ElementTree.Element, source: Source, into: Evidence) -> None:
    at_s = day_time_s(root.findtext("timestamp", ""))
    for name, path in (("NVIDIA driver", "driver_version"), ("CUDA", "cuda_version")):
        if value := root.findtext(path, "").strip():
            into.versions.setdefault(name, value)
    for number, gpu in enumerate(root.iter("gpu")):
        title = gpu.findtext("product_name", "").strip()
        spot = Spot(file=source.name, text=f"{gpu.get('id', '')} {title}".strip())
        values: dict[str, Any] = {}
        for name, factor, paths in _PATHS:
            for path in paths:
                match = _NUMBER.match(gpu.findtext(path, ""))
                if match:
                    values.setdefault(name, round(float(match[1]) * factor, 9))
        into.add((DeviceSample(
            device=gpu.findtext("minor_number", "").strip() or str(number), spot=spot, at_s=at_s,
            slowed_by=_reasons(gpu), **values,
        ),))  # fmt: skip
        if title:
            into.settings.setdefault("accelerator", (title, spot))
        _note_errors(gpu, spot, at_s, into)


def _reasons(gpu: ElementTree.Element) -> tuple[str, ...]:
    names = []
    for group in ("clocks_throttle_reasons", "clocks_event_reasons"):
        for element in gpu.findall(f"{group}/*"):
            reason = re.sub(r"^clocks_(?:throttle|event)_reason_", "", element.tag)
            if reason in _SLOWED and (element.text or "").strip() == "Active":
                names.append(_SLOWED[reason])
    return tuple(dict.fromkeys(names))


def _note_errors(gpu: ElementTree.Element, spot: Spot, at_s: float | None, into: Evidence) -> None:
    """Uncorrectable memory errors since the last restart, and rows that wait for a reset."""
    volatile = gpu.find("ecc_errors/volatile")
    counts = [
        int(element.text)
        for element in (volatile.iter() if volatile is not None else ())
        if ("uncorrectable" in element.tag or "double_bit" in element.tag) and (element.text or "").strip().isdecimal()
        and element.text is not None
    ]  # fmt: skip
    if any(counts):
        into.add((Happening(
            kind="device_error", spot=spot, at_s=at_s,
            message=f"{max(counts)} uncorrectable memory errors on {spot.text}",
            values={"num_errors": float(max(counts)), "meaning": "uncorrectable errors of GPU memory"},
        ),))  # fmt: skip
