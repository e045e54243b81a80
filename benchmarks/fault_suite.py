"""Inject every fault of the laboratory into real runs, explain each, and compare with what is known to be true.

    .venv/bin/python benchmarks/fault_suite.py [--folder DIR] [--only KIND]... [--variation N] [--score]

Runs stay in --folder: a suite that is stopped goes on there, and --score explains the stored runs again without running
them. The table and one line per run go to benchmarks/results/fault_suite.jsonl.

Precision of a rule: of the runs that it names first, the share in which it is the truth, or one of several that are.
Where other work used a quarter of the cores during a run, by the kernel's count, `busy-machine` is true of it and not
counted, unless it is the injected fault.
Recall: of the runs in which it is the truth, the share in which it, or another rule that is true of them, comes first.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from scalewright.errors import ScalewrightError
from scalewright.lab.faults.catalogue import CONTROLS, FAULTS
from scalewright.lab.faults.fault import Control, Fault, by_name
from scalewright.lab.faults.laboratory import EVIDENCE, run_control, run_fault
from scalewright.records.documents import read_document, write_document

RESULTS = Path(__file__).parent / "results" / "fault_suite.jsonl"
MOST_GAIN_ERROR_FRAC = 0.25
"""Error of an expected gain that the project allows itself, relative to the measured gain."""
BUSY, BUSY_FRAC = "busy-machine", 0.25
LEAST_GAIN_FRAC = 0.1
"""Faults that cost less than this are not compared: the machine's own noise is as large."""


def main() -> int:
    chosen = arguments()
    folder: Path = chosen.folder
    faults = [f for f in FAULTS if (not chosen.only or f.kind in chosen.only) and (chosen.slow or not f.is_slow)]
    controls = [] if chosen.only and "healthy" not in chosen.only else CONTROLS
    if not chosen.score:
        run_all(faults, controls, folder, only_variation=chosen.variation)
    rows = score_all(folder)
    print_tables(rows)
    if not chosen.only:
        RESULTS.write_text("".join(json.dumps(row) + "\n" for row in rows))
        print(f"wrote {RESULTS}")
    return 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--folder", type=Path, default=Path("runs/faults"), help="where the runs are kept")
    parser.add_argument("--only", action="append", default=[], metavar="KIND", help="a kind, or healthy; repeat it")
    parser.add_argument("--variation", type=int, default=0, help="only this variation of each kind")
    parser.add_argument("--score", action="store_true", help="explain the stored runs; start none")
    parser.add_argument(
        "--no-slow", dest="slow", action="store_false", help="leave out what needs the practice cluster"
    )
    return parser.parse_args()


def run_all(
    faults: list[Fault], controls: tuple[Control, ...] | list[Control], folder: Path, *, only_variation: int
) -> None:
    data = folder / "data"
    for control in controls:
        place = folder / f"healthy-{control.name}"
        if not (place / "control.json").exists():
            started_s = time.monotonic()
            shutil.rmtree(place, ignore_errors=True)
            outcome = run_control(control, place, data=data)
            write_document(
                place / "control.json",
                {"schema": "scalewright.control/1", "name": control.name, "exit_code": outcome.exit_code},
            )
            print(f"{place.name}: exit {outcome.exit_code}, {time.monotonic() - started_s:.1f} s", flush=True)
    most = max((len(fault.variations) for fault in faults), default=0)
    for number in range(1, most + 1):  # the first variation of every kind comes first
        for fault in faults:
            place = folder / f"{fault.kind}-{number}"
            is_left_out = number > len(fault.variations) or (only_variation and number != only_variation)
            if not is_left_out and not (place / "fault.json").exists():
                run_one(fault, number, place, data)


def run_one(fault: Fault, number: int, place: Path, data: Path) -> None:
    started_s = time.monotonic()
    shutil.rmtree(place, ignore_errors=True)  # of a suite that was stopped in it
    try:
        run = run_fault(fault, number, place, data=data)
    except ScalewrightError as error:
        print(f"{place.name}: not run: {error}", flush=True)
        return
    gain = "" if run.gain_frac is None else f", removing it saves {run.gain_frac:.0%} of a step"
    print(f"{place.name}: exit {run.outcome.exit_code}{gain}, {time.monotonic() - started_s:.1f} s", flush=True)


def score_all(folder: Path) -> list[dict[str, Any]]:
    """One row a run: what is true, what `explain` says first, and how far the expected gain is off."""
    rows = []
    for path in sorted(folder.glob("*/fault.json")):
        rows.append(score_fault(read_document(path, "fault"), path.parent))
    for path in sorted(folder.glob("*/control.json")):
        named = without_others(explained(path.parent / EVIDENCE), path.parent)
        alarms = [one["rule"] for one in named if one["severity"] in ("warning", "error")]
        rows.append(
            {"kind": "healthy", "name": path.parent.name, "said": named, "alarms": alarms, "is_right": not alarms}
        )
    return rows


def score_fault(truth: dict[str, Any], place: Path) -> dict[str, Any]:
    fault = by_name(FAULTS, truth["kind"])  # the rules of today, not those of when it ran
    rules = list(fault.variation(truth["variation"]).rules or fault.rules)
    truth = truth | {"rules": rules, "also": list(fault.also)}
    named = explained(place / EVIDENCE)
    if BUSY not in rules:
        named = without_others(named, place)
    first = named[0]["rule"] if named else ""
    place_of = next((at for at, one in enumerate(named, 1) if one["rule"] in truth["rules"]), None)
    expected = next((one["gain_frac"] for one in named if one["rule"] in truth["rules"]), None)
    return {
        "kind": truth["kind"], "variation": truth["variation"], "words": truth["words"], "effect": truth["effect"],
        "replayed": truth["replayed"], "rules": truth["rules"], "also": truth["also"], "first": first,
        "is_right": first in truth["rules"], "place": place_of, "said": named, "exit_code": truth["exit_code"],
        "measured_gain_frac": truth["measured_gain_frac"], "expected_gain_frac": expected,
        "step_time_s": truth["step_time_s"], "reference_step_time_s": truth["reference_step_time_s"],
    }  # fmt: skip


def without_others(named: list[dict[str, Any]], place: Path) -> list[dict[str, Any]]:
    """Findings without that of a busy machine, where the kernel counted other work of our own or others."""
    path = place / EVIDENCE / "run" / "conditions.json"
    attempts = json.loads(path.read_text())["attempts"] if path.exists() else []
    is_busy = any(one["others_cores"] >= BUSY_FRAC * one["num_cores"] for one in attempts)
    return [one for one in named if one["rule"] != BUSY] if is_busy else named


def explained(folder: Path) -> list[dict[str, Any]]:
    """What `explain` says of a folder, most valuable first."""
    from scalewright.observe.findings.order import explain
    from scalewright.observe.findings.rule import FindingContext
    from scalewright.observe.readers.reading import read_evidence

    evidence = read_evidence([folder])
    return [
        {
            "rule": one.rule.id, "severity": one.severity,
            "gain_frac": None if one.seen.gain is None else one.seen.gain.step_time_frac,
        }
        for one in explain(evidence, FindingContext())
    ]  # fmt: skip


def print_tables(rows: list[dict[str, Any]]) -> None:
    faults = [row for row in rows if row["kind"] != "healthy"]
    controls = [row for row in rows if row["kind"] == "healthy"]
    if faults:
        right = sum(row["is_right"] for row in faults)
        print(f"\ninjected cause first: {right} of {len(faults)} ({right / len(faults):.0%})")
    if controls:
        quiet = sum(row["is_right"] for row in controls)
        print(f"healthy runs without a warning or an error: {quiet} of {len(controls)}")
    for line in rule_table(faults, controls):
        print(line)
    for line in gain_table(faults):
        print(line)
    for row in rows:
        if not row["is_right"]:
            named = ", ".join(one["rule"] for one in row["said"][:4]) or "nothing"
            truth = "/".join(row.get("rules", ["no alarm"]))
            print(f"missed: {row.get('name') or row['kind'] + '-' + str(row['variation'])}: {truth}; it says {named}")


def rule_table(faults: list[dict[str, Any]], controls: list[dict[str, Any]]) -> list[str]:
    """Precision and recall of every rule that is the truth of a fault, or was named first."""
    truths: dict[str, list[bool]] = defaultdict(list)
    named: dict[str, list[bool]] = defaultdict(list)
    for row in faults:
        for rule in row["rules"]:
            truths[rule].append(row["is_right"])
        if row["first"]:
            named[row["first"]].append(row["is_right"])
    for row in controls:
        for rule in row["alarms"][:1]:
            named[rule].append(False)
    lines = [f"\n{'rule':28} {'runs':>5} {'precision':>10} {'recall':>7}"]
    for rule in sorted(set(truths) | set(named)):
        precision = f"{sum(named[rule]) / len(named[rule]):.0%}" if named[rule] else "-"
        recall = f"{sum(truths[rule]) / len(truths[rule]):.0%}" if truths[rule] else "-"
        lines.append(f"{rule:28} {len(truths[rule]):5d} {precision:>10} {recall:>7}")
    return lines


def gain_table(faults: list[dict[str, Any]]) -> list[str]:
    """Expected against measured gain, where a fault slowed a run by more than noise and was named first."""
    slowed = [row for row in faults if (row["measured_gain_frac"] or 0.0) >= LEAST_GAIN_FRAC and row["is_right"]]
    if not slowed:
        return []
    lines = [f"\n{'fault':28} {'measured':>9} {'expected':>9} {'error':>7}"]
    num_within = 0
    for row in slowed:
        measured, expected = row["measured_gain_frac"], row["expected_gain_frac"]
        error = None if expected is None else abs(expected - measured) / measured
        num_within += error is not None and error <= MOST_GAIN_ERROR_FRAC
        shown = f"{'none':>9} {'-':>7}" if expected is None else f"{expected:9.0%} {error:7.0%}"
        lines.append(f"{row['kind'] + '-' + str(row['variation']):28} {measured:9.0%} {shown}")
    lines.append(f"gain within {MOST_GAIN_ERROR_FRAC:.0%}: {num_within} of {len(slowed)}")
    return lines


if __name__ == "__main__":
    sys.exit(main())
