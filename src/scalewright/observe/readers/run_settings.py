"""Documents of a run directory: configuration, versions, environment, machine, prediction, and how it ended."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from scalewright.errors import ScalewrightError
from scalewright.observe.evidence.evidence import Evidence, SourceFact
from scalewright.observe.evidence.facts import MOST_EXCERPT, Happening, Spot
from scalewright.records.documents import parse_json, read_text
from scalewright.records.events import json_lines
from scalewright.records.run_directory import RunDirectory
from scalewright.records.types import ExitCode
from scalewright.workload.layout import parse_layout

SHAPE = ("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn_hidden", "vocab", "seq")
PLAIN = ("precision", "compile", "checkpoint_every", "checkpoint_async", "device", "steps", "data", "batch",
         "device_mttf_s", "num_ranks", "stage", "image_size", "epochs", "attention", "offload", "copy_to")  # fmt: skip
"""Keys of a configuration that keep their name."""
RENAMED = {"model_id": "model", "workers": "num_workers", "num_workers": "num_workers"}
LAYOUT = ("tp", "pp", "vpp", "cp", "ep", "dp", "zero", "mbs", "gbs", "recompute")
MACHINE = {
    "name": "system", "accelerator": "accelerator", "basis": "basis", "peak_flop_per_s": "peak_flop_per_s",
    "memory_bytes": "device_memory_bytes", "memory_bytes_per_s": "device_memory_bytes_per_s",
}  # fmt: skip
CONDITIONS = ("others_cores", "num_cores", "num_throttles", "took_s")


def read_settings(directory: RunDirectory, into: Evidence) -> set[Path]:
    """Add what the documents of a run directory say. Returns the files that were read."""
    reader = _Documents(into)
    body = reader.read(directory.run)
    if body:
        reader.put("kind", str(body.get("kind", "")).removesuffix("-run"), directory.run, "kind")
    _configuration(reader, directory.config)
    machine = reader.read(directory.machine)
    for key, name in MACHINE.items():
        if machine.get(key) is not None:
            reader.put(name, machine[key], directory.machine, key)
    _conditions(reader, directory.conditions)
    into.prediction = reader.read(directory.prediction) or into.prediction
    variables = reader.read(directory.environment).get("variables")
    if isinstance(variables, dict):
        into.environment |= {str(name): str(value) for name, value in variables.items()}
    _provenance(reader, directory.provenance)
    _measurements(reader, directory.measurements)
    _end(reader, directory.exit_info)
    lock = directory.path / ".lock"
    for path in (directory.script, directory.rollup, directory.plan, directory.controller_address, lock):
        if path.is_file():
            reader.own.add(path)
    return reader.own


class _Documents:
    """Reads documents, and remembers the text of each for the line of a key."""

    def __init__(self, into: Evidence) -> None:
        self.into = into
        self.own: set[Path] = set()
        self._lines: dict[Path, list[str]] = {}

    def read(self, path: Path) -> dict[str, Any]:
        """The document, empty where there is none or it cannot be read."""
        if not path.is_file():
            return {}
        self.own.add(path)
        problem = ""
        body: dict[str, Any] = {}
        try:
            text = read_text(path)
            self._lines[path] = text.splitlines()
            content = parse_json(text, where=str(path))
            if isinstance(content, dict):
                body = content
            else:
                problem = "is no JSON object"
        except (ScalewrightError, OSError, RecursionError) as error:
            problem = str(error)
        self.into.sources.append(
            SourceFact(
                file=str(path), kind="run document", num_lines=len(self._lines.get(path, ())),
                num_facts=int(bool(body)), problem=problem,
            )
        )  # fmt: skip
        return body

    def spot(self, path: Path, key: str = "") -> Spot:
        for number, line in enumerate(self._lines.get(path, ()), start=1):
            if key and line.lstrip().startswith(f'"{key}"'):
                return Spot(file=str(path), line=number, text=line.strip()[:MOST_EXCERPT])
        return Spot(file=str(path))

    def put(self, name: str, value: object, path: Path, key: str) -> None:
        words = str(value).lower() if isinstance(value, bool) else str(value)
        self.into.settings[name] = (words, self.spot(path, key))


def _configuration(reader: _Documents, path: Path) -> None:
    body = reader.read(path)
    shape = body.get("shape")
    if isinstance(shape, dict):
        for key in SHAPE:
            if isinstance(shape.get(key), int):
                reader.put(key, shape[key], path, key)
    for key in PLAIN:
        if isinstance(body.get(key), str | int | float):
            reader.put(key, body[key], path, key)
    for key, name in RENAMED.items():
        if isinstance(body.get(key), str | int):
            reader.put(name, body[key], path, key)
    _layout(reader, body, path)
    for section in ("target", "loader"):
        inner = body.get(section)
        if isinstance(inner, dict):
            _put_inner(reader, inner, path)


def _put_inner(reader: _Documents, inner: Mapping[str, Any], path: Path) -> None:
    for key in ("tp", "dp", "precision", "num_workers", "max_running", "max_context"):
        if isinstance(inner.get(key), str | int):
            reader.put(key, inner[key], path, key)


def _layout(reader: _Documents, body: Mapping[str, Any], path: Path) -> None:
    words = body.get("layout")
    if not isinstance(words, str):
        return
    try:
        layout = parse_layout(words)
    except ScalewrightError:
        return
    values = layout.as_dict()
    for key in LAYOUT:
        if key in values:
            reader.put(key, values[key], path, "layout")
    reader.put("num_ranks", int(layout.num_gpus), path, "layout")
    reader.put("layout", layout.brief, path, "layout")


def _conditions(reader: _Documents, path: Path) -> None:
    attempts = reader.read(path).get("attempts")
    if isinstance(attempts, list) and attempts and isinstance(attempts[-1], dict):
        for key in CONDITIONS:
            if isinstance(attempts[-1].get(key), int | float):
                reader.put(key, attempts[-1][key], path, key)


def _provenance(reader: _Documents, path: Path) -> None:
    attempts = reader.read(path).get("attempts")
    if not isinstance(attempts, list) or not attempts or not isinstance(attempts[-1], dict):
        return
    last, into = attempts[-1], reader.into
    packages = last.get("packages")
    if isinstance(packages, dict):
        into.versions |= {str(name): str(version) for name, version in packages.items()}
    for key in ("python", "platform", "driver", "container"):
        if last.get(key):
            into.versions[key] = str(last[key])
    source = last.get("source")
    if isinstance(source, dict) and source.get("commit"):
        into.versions["commit"] = f"{source['commit']}{', with changes' if source.get('dirty') else ''}"
    for key in ("num_nodes", "num_ranks", "launcher"):
        if isinstance(last.get(key), str | int):
            reader.put(key, last[key], path, key)
    into.settings["num_attempts"] = (str(len(attempts)), reader.spot(path, "attempts"))
    if isinstance(last.get("time"), int | float):
        into.happenings.append(
            Happening(
                kind="started", spot=reader.spot(path, "time"), message=f"attempt {len(attempts)}",
                at_s=float(last["time"]), host=str(last.get("host", "")),
            )
        )  # fmt: skip


def _measurements(reader: _Documents, path: Path) -> None:
    body = reader.read(path)
    conditions = body.get("conditions")
    slowed = conditions.get("throttled") if isinstance(conditions, dict) else None
    if slowed:
        reader.into.happenings.append(
            Happening(kind="throttled", spot=reader.spot(path, "throttled"), message=", ".join(map(str, slowed)))
        )
    rows = body.get("rows")
    if body.get("kind") == "generate" and isinstance(rows, list) and rows and isinstance(rows[0], dict):
        _answers(reader, rows[0], path)
    summary = body.get("summary")
    if isinstance(summary, dict):
        for key, value in summary.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                reader.put(f"measured.{key}", value, path, key)


def _answers(reader: _Documents, row: Mapping[str, Any], path: Path) -> None:
    """What a generation benchmark says of its answers; their lengths are in files of their own."""
    for key in ("num_answers", "mean_running", "num_preemptions", "rank_gap_frac", "time_s", "cache_most_frac"):
        if isinstance(row.get(key), int | float):
            reader.put(f"answers.{key}", row[key], path, key)
    lengths: list[int] = []
    for file in RunDirectory(path.parent).all_rank_answers():
        reader.own.add(file)
        lengths += [row["num_tokens"] for row in _json_lines(file) if isinstance(row.get("num_tokens"), int)]
    if lengths:
        spot = Spot(file=str(RunDirectory(path.parent).rank_answers(0)))
        reader.into.settings["answers.longest"] = (str(max(lengths)), spot)
        reader.into.settings["answers.mean"] = (f"{sum(lengths) / len(lengths):.6g}", spot)
        most = min(len(lengths), int(float(reader.into.settings.get("max_running", ("0", spot))[0]) or len(lengths)))
        reader.into.settings["answers.num_at_once"] = (str(most), spot)


def _json_lines(path: Path) -> Iterator[dict[str, Any]]:
    try:
        yield from json_lines(path)
    except ScalewrightError:
        return


def _end(reader: _Documents, path: Path) -> None:
    body = reader.read(path)
    if not isinstance(body.get("code"), int):
        return
    is_whole = body["code"] in (ExitCode.YES, ExitCode.NO)  # NO: every step was done, and what they gave is no good
    at_s, rank = body.get("time"), body.get("rank")
    values: dict[str, float | str] = {"code": float(body["code"])}
    for key in ("job", "last_checkpoint"):
        if body.get(key):
            values[key] = str(body[key])
    reader.into.happenings.append(
        Happening(
            kind="finished" if is_whole else "exited", spot=reader.spot(path, "reason"),
            message=str(body.get("reason", "")), at_s=float(at_s) if isinstance(at_s, int | float) else None,
            rank=rank if isinstance(rank, int) else None, values=values,
        )
    )  # fmt: skip
