"""Files of a stage that trains a reasoning model: its curve, what it reached, and its iterations."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from scalewright.errors import DocumentError
from scalewright.observe.evidence.evidence import Evidence, SourceFact
from scalewright.observe.evidence.facts import MOST_EXCERPT, Spot, StepFact
from scalewright.records.events import short_lines
from scalewright.records.plain_file import open_plain, read_plain
from scalewright.records.run_directory import RunDirectory

MOST_LINE_BYTES = 1 << 20
STAGE_FILE = "stage of a reasoning model"
DIALECT = "scalewright"
STAGE_KEYS = (
    "stage", "rank_gap_frac", "kv_occupancy_frac", "kv_peak_frac", "num_groups", "num_equal_groups", "num_ranks",
    "wall_s", "utilisation_frac", "num_tokens", "num_samples",
)  # fmt: skip


def read_stage_facts(directory: RunDirectory, into: Evidence) -> set[Path]:
    """Add the curve and the iterations to the steps, and what the stage reached to the settings."""
    own = set()
    for path, prefix in ((directory.curve, ""), (directory.hybrid, "hybrid/")):
        if path.is_file():
            own.add(path)
            _merge_lines(path, prefix, into)
    if directory.stage.is_file():
        own.add(directory.stage)
        _read_record(directory.stage, into)
    own |= {path for path in (directory.rollouts, *directory.timelines()) if path.is_file()}
    return own


def _lines(path: Path) -> Iterator[tuple[int, str, dict[str, Any]]]:
    try:
        with open_plain(path) as file:
            for number, line in enumerate(short_lines(file), start=1):
                try:
                    row = json.loads(line) if len(line) <= MOST_LINE_BYTES else None
                except (ValueError, RecursionError):
                    continue
                if isinstance(row, dict):
                    yield number, line[:MOST_EXCERPT].decode("utf-8", "replace").rstrip("\n"), row
    except (OSError, DocumentError):
        return


def _merge_lines(path: Path, prefix: str, into: Evidence) -> None:
    """Values of a line become values of rank 0's step; a step that no event has becomes a step of its own."""
    at = {one.step: index for index, one in enumerate(into.steps) if one.dialect == DIALECT and one.rank == 0}
    num = 0
    for number, text, row in _lines(path):
        if "schema" in row:
            for key, value in row.items():
                if key != "schema" and isinstance(value, str | int | float):
                    into.settings[f"{prefix}{key}"] = (str(value), Spot(file=str(path), line=number, text=text))
            continue
        step = row.get("step")
        if not isinstance(step, int) or row.get("line", "step") != "step":
            continue
        num += 1
        spot = Spot(file=str(path), line=number, text=text)
        values = {f"{prefix}{key}": value for key, value in _numbers(row).items() if key != "step"}
        if step in at:
            one = into.steps[at[step]]
            into.steps[at[step]] = replace(
                one, values={**one.values, **values}, response_len=values.get("length_mean", one.response_len)
            )
        else:
            at[step] = len(into.steps)
            into.steps.append(_step(step, spot, row, values))
    into.sources.append(SourceFact(file=str(path), kind=STAGE_FILE, num_facts=num))


def _numbers(row: dict[str, Any]) -> dict[str, float]:
    values: dict[str, float] = {}
    for key, value in row.items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            values[key] = float(value)
        elif key == "num_trained_by_staleness" and isinstance(value, dict):
            counts = {int(behind): float(num) for behind, num in value.items() if str(behind).isdigit()}
            if sum(counts.values()):
                values["staleness_max"] = float(max(counts))
                values["staleness_mean"] = sum(b * n for b, n in counts.items()) / sum(counts.values())
    return values


def _step(step: int, spot: Spot, row: dict[str, Any], values: dict[str, float]) -> StepFact:
    parts = row.get("seconds_by_part")
    parts_s = (
        {str(k): float(v) for k, v in parts.items() if isinstance(v, int | float)} if isinstance(parts, dict) else {}
    )
    time_s = row.get("wall_s") or (sum(parts_s.values()) or None)
    return StepFact(
        step=step, spot=spot, dialect=DIALECT, rank=0, time_s=time_s, loss=values.get("loss"),
        grad_norm=values.get("grad_norm"), reward=values.get("reward_mean"), response_len=values.get("length_mean"),
        num_tokens=values.get("num_tokens"), parts_s=parts_s, values=values,
    )  # fmt: skip


def _read_record(path: Path, into: Evidence) -> None:
    problem, num, body = "", 0, None
    try:
        text = read_plain(path).decode("utf-8", "replace")
        body = json.loads(text)
    except (OSError, DocumentError, ValueError, RecursionError) as error:
        text, problem = "", f"cannot be read: {error}"
    lines = text.splitlines()
    if isinstance(body, dict):
        rows = {**{key: body.get(key) for key in STAGE_KEYS}, **_inner(body, "mismatch"), **_inner(body, "split")}
        for key, value in rows.items():
            if isinstance(value, str | int | float):
                into.settings[f"stage.{key}"] = (str(value), _spot_of(path, lines, key.rpartition(".")[2]))
                num += 1
    into.sources.append(
        SourceFact(file=str(path), kind=STAGE_FILE, num_lines=len(lines), num_facts=num, problem=problem)
    )


def _inner(body: dict[str, Any], section: str) -> dict[str, Any]:
    inner = body.get(section)
    return {f"{section}.{key}": value for key, value in inner.items()} if isinstance(inner, dict) else {}


def _spot_of(path: Path, lines: list[str], key: str) -> Spot:
    for number, line in enumerate(lines, start=1):
        if line.lstrip().startswith(f'"{key}"'):
            return Spot(file=str(path), line=number, text=line.strip()[:MOST_EXCERPT])
    return Spot(file=str(path))
