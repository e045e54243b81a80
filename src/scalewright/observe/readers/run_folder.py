"""Reads a run directory of ours: every step of every rank, samples of nodes, what happened, and what was configured.

It reads only the files that this project writes. Logs, stacks and traces in the folder are left to other readers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from scalewright.errors import DocumentError
from scalewright.observe.evidence.evidence import Evidence, SourceFact
from scalewright.observe.evidence.facts import MOST_EXCERPT, DeviceSample, Happening, RankTime, Spot, StepFact
from scalewright.observe.readers.run_settings import read_settings
from scalewright.observe.readers.run_stage import read_stage_facts
from scalewright.records import metric_names as names
from scalewright.records.events import short_lines
from scalewright.records.plain_file import open_plain
from scalewright.records.run_directory import RunDirectory

DIALECT = "scalewright"
EVENT_FILE = "run events"
HOST = "host"
"""Name of the sample that holds the use of a node's CPUs and its memory."""
IS_PROFILED = "is_profiled"
"""Value of a step that a profiler made slower."""
MOST_LINE_BYTES = 1 << 20

_HAPPENINGS = {
    names.EVENT_NAN: "nan", names.EVENT_STALL: "stalled", names.EVENT_STOP: "signal",
    names.EVENT_RESUME: "checkpoint_loaded", names.EVENT_CHECKPOINT: "checkpoint_saved",
    names.EVENT_KERNELS: "configured", names.EVENT_PLACE: "configured", names.EVENT_BINDING: "configured",
    names.EVENT_DATA: "configured", names.EVENT_NO_SENSOR: "configured", names.EVENT_STEADY: "configured",
    names.EVENT_STEADY_END: "configured", names.EVENT_PART: "configured",
}  # fmt: skip
"""Kind of each event; all others are warnings."""
_PARTS = {
    names.COMPUTE_TIME: "compute", names.COMMUNICATION_TIME: "communication", names.DATA_WAIT: "data",
    names.IDLE_TIME: "idle", names.CHECKPOINT_BLOCK: "checkpoint", names.OWN_TIME: "own", names.CORE_WAIT: "core_wait",
    **{name: part for part, name in names.STAGE_PARTS.items() if part != "checkpoint"},
}  # fmt: skip
"""A stage reports a save twice: as what it blocked, and as the part of the next step in which it happened."""
_FIELDS = {
    names.STEP_TIME: "time_s", names.TOKENS_PER_S: "tokens_per_s", names.FLOP_PER_S: "flop_per_s",
    names.MFU: "mfu_frac", names.LOSS: "loss", names.GRAD_NORM: "grad_norm", names.LEARNING_RATE: "learning_rate",
    names.PEAK_MEMORY: "memory_bytes", names.REWARD: "reward",
}  # fmt: skip
_SAMPLES = {
    names.GPU_USE: "use_frac", names.GPU_MEMORY: "memory_bytes", names.GPU_POWER: "power_w",
    names.GPU_TEMPERATURE: "temperature_c", names.CPU_USE: "use_frac", names.HOST_MEMORY: "memory_bytes",
}  # fmt: skip
_NOT_FINITE = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}


class RunFolderReader:
    """Reads run directories."""

    kind: ClassVar[str] = "run directory"

    def sees(self, folder: Path) -> bool:
        """By the content of its run.json."""
        try:
            with open_plain(folder / "run.json") as file:
                return b'"scalewright.run/' in file.read(4096)
        except (OSError, DocumentError):
            return False

    def read(self, folder: Path, into: Evidence) -> set[Path]:
        """Add what the run directory says. Returns the files and folders that nobody else has to read."""
        directory = RunDirectory(folder)
        into.run_dir = into.run_dir or str(folder)
        own = read_settings(directory, into)
        for rank, path in directory.all_rank_events().items():
            own.add(path)
            _read_rank(path, rank, into)
        for path in directory.all_node_events():
            own.add(path)
            _read_node(path, into)
        own |= read_stage_facts(directory, into)
        for role in sorted(directory.roles.glob("*/run.json")):
            own |= self._read_role(role.parent, into)
        return own

    def _read_role(self, folder: Path, into: Evidence) -> set[Path]:
        """A role of separate roles has ranks of its own, so only what happened to it is taken, not its steps."""
        role = Evidence()
        own = self.read(folder, role)
        into.sources += role.sources
        into.happenings += [one for one in role.happenings if one.kind not in ("finished", "configured", "started")]
        return {*own, folder}


@dataclass(slots=True)
class _OpenStep:
    """Metrics of one step of one rank."""

    spot: Spot
    at_s: float
    fields: dict[str, Any] = field(default_factory=dict)
    parts_s: dict[str, float] = field(default_factory=dict)
    values: dict[str, float] = field(default_factory=dict)


def _read_rank(path: Path, rank: int, into: Evidence) -> None:
    steps: dict[int, _OpenStep] = {}
    file = EventFile(path)
    for number, text, row in file:
        name, step = row["name"], row["step"]
        if name.startswith(names.EVENT_PREFIX):
            into.happenings.append(_happening(path, number, text, row))
            file.num_facts += 1
        elif step >= 0:
            is_start = name == names.STEP_TIME
            one = steps.get(step)
            if one is None or (is_start and "time_s" in one.fields):  # a resumed run repeats steps: the last counts
                one = steps[step] = _OpenStep(_spot(path, number, text), row["time"])
            if is_start:
                one.spot, one.at_s = _spot(path, number, text), row["time"]
            _put(one, name, row)
    for step in sorted(steps):
        one = steps[step]
        if "time_s" not in one.fields:
            continue
        into.steps.append(_step_fact(step, rank, one))
        file.num_facts += 1
        if "compute" in one.parts_s and "communication" in one.parts_s:
            into.rank_times.append(_rank_time(step, rank, one))
    into.sources.append(file.source())


def _put(one: _OpenStep, name: str, row: Mapping[str, Any]) -> None:
    value = row["value"]
    if value is None:
        value = _NOT_FINITE.get(str(row.get("detail", "")))
        if value is None:
            return
    if name in _FIELDS:
        one.fields[_FIELDS[name]] = value
    elif name in _PARTS:
        part = _PARTS[name]
        one.parts_s[part] = one.parts_s.get(part, 0.0) + value if part == "checkpoint" else value
    else:
        one.values[name] = value


def _step_fact(step: int, rank: int, one: _OpenStep) -> StepFact:
    time_s, rate = one.fields.get("time_s"), one.fields.get("tokens_per_s")
    if "compute" in one.parts_s:
        one.values[IS_PROFILED] = 1.0
    images = one.values.get(names.IMAGES_PER_S)
    return StepFact(
        step=step, spot=one.spot, dialect=DIALECT, rank=rank, at_s=one.at_s,
        num_tokens=None if rate is None or time_s is None else rate * time_s,
        num_samples=None if images is None or time_s is None else images * time_s,
        parts_s=one.parts_s, values=one.values, **one.fields,
    )  # fmt: skip


def _rank_time(step: int, rank: int, one: _OpenStep) -> RankTime:
    parts = one.parts_s
    shown = ("compute", "communication", "data", "idle")
    return RankTime(
        rank=rank, spot=one.spot, step=step, step_s=sum(parts.get(name, 0.0) for name in shown),
        compute_s=parts["compute"], exposed_communication_s=parts["communication"], data_s=parts.get("data", 0.0),
        idle_s=parts.get("idle", 0.0),
    )  # fmt: skip


def _happening(path: Path, number: int, text: str, row: Mapping[str, Any]) -> Happening:
    name = row["name"]
    values: dict[str, float | str] = {"event": name.removeprefix(names.EVENT_PREFIX)}
    if row["value"] is not None:
        values["value"] = row["value"]
    if name in (names.EVENT_BINDING, names.EVENT_DATA):
        pairs = (word.partition("=") for word in str(row.get("detail", "")).split())
        values |= {key: value for key, mark, value in pairs if mark}
    return Happening(
        kind=_HAPPENINGS.get(name, "warning"),  # type: ignore[arg-type]
        spot=_spot(path, number, text), message=str(row.get("detail", "")), at_s=row["time"],
        rank=row["rank"] if row["rank"] >= 0 else None, host=row["host"],
        step=row["step"] if row["step"] >= 0 else None, values=values,
    )  # fmt: skip


def _read_node(path: Path, into: Evidence) -> None:
    """Readings of one device at one moment are one sample."""
    samples: dict[tuple[float, str], tuple[Spot, str, dict[str, Any]]] = {}
    file = EventFile(path)
    for number, text, row in file:
        name, value = row["name"], row["value"]
        if name.startswith(names.EVENT_PREFIX):
            into.happenings.append(_happening(path, number, text, row))
            file.num_facts += 1
            continue
        if value is None or (name not in _SAMPLES and name != names.GPU_SLOWED):
            continue
        device = str(row.get("detail", "")) or HOST
        _, _, fields = samples.setdefault((row["time"], device), (_spot(path, number, text), row["host"], {}))
        if name == names.GPU_SLOWED:
            fields["slowed_by"] = ("thermal or power brake",) if value else ()
        else:
            fields[_SAMPLES[name]] = value
    for (at_s, device), (spot, host, fields) in samples.items():
        into.device_samples.append(DeviceSample(device=device, spot=spot, host=host, at_s=at_s, **fields))
    file.num_facts += len(samples)
    into.sources.append(file.source())


class EventFile:
    """The events of one file with their line numbers. What cannot be read is counted, never raised."""

    def __init__(self, path: Path) -> None:
        self.path, self.num_lines, self.num_facts = path, 0, 0
        self._num_bad, self._error = 0, ""

    def __iter__(self) -> Iterator[tuple[int, str, dict[str, Any]]]:
        """Line number, text and content of every whole event."""
        try:
            with open_plain(self.path) as file:
                for number, line in enumerate(short_lines(file), start=1):
                    self.num_lines, row = number, _event(line)
                    if row is not None:
                        yield number, line[:MOST_EXCERPT].decode("utf-8", "replace").rstrip("\n"), row
                    else:
                        self._num_bad += b'"schema"' not in line[:64] and bool(line.strip())
        except OSError as error:
            self._error = f"cannot be read: {error.strerror}"
        except DocumentError as error:
            self._error = str(error).removeprefix(f"{self.path}: ")

    def source(self) -> SourceFact:
        """What was read of it, once it was."""
        bad = f"{self._num_bad} line{'' if self._num_bad == 1 else 's'} torn or not an event" if self._num_bad else ""
        return SourceFact(
            file=str(self.path), kind=EVENT_FILE, num_lines=self.num_lines, num_facts=self.num_facts,
            problem=self._error or bad,
        )  # fmt: skip


def _event(line: bytes) -> dict[str, Any] | None:
    if len(line) > MOST_LINE_BYTES:
        return None
    try:
        row = json.loads(line)
        value = row["value"]
        if not math.isfinite(row["time"]) or (value is not None and not math.isfinite(value)):
            return None
        return {
            "time": float(row["time"]), "rank": int(row["rank"]), "host": str(row["host"]), "step": int(row["step"]),
            "name": str(row["name"]), "value": None if value is None else float(value),
            "detail": str(row.get("detail", "")),
        }  # fmt: skip
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None


def _spot(path: Path, number: int, text: str) -> Spot:
    return Spot(file=str(path), line=number, text=text)
