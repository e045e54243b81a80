"""Figures that the documentation states, each taken from a stored result, the catalogue or the code.

A page writes `<!-- claim:NAME -->TEXT<!-- /claim -->`; `tools/generate_docs.py` replaces TEXT by what `CLAIMS[NAME]`
returns. A figure that never changes (a value of another document, an experiment of the past) is written
`<!-- fixed:WHY -->TEXT<!-- /fixed -->` and stays as it is. `unmarked` finds figures that have neither marker.
"""

from __future__ import annotations

import functools
import json
import re
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scalewright.catalog.library import Catalog, packaged_data
from scalewright.catalog.published import load_runs, packaged_runs
from scalewright.lint.engine import known_rules
from scalewright.planner.validation.validate import validate_run

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PACKAGE = ROOT / "src" / "scalewright"

CLAIM = re.compile(r"<!-- claim:(?P<name>[\w-]+) -->(?P<text>.*?)<!-- /claim -->", re.S)
FIXED = re.compile(r"<!-- fixed:(?P<why>[^>]*?) -->(?P<text>.*?)<!-- /fixed -->", re.S)


def percent(value: float, *, signed: bool = False) -> str:
    return f"{100 * value:+.1f} %" if signed else f"{100 * value:.1f} %"


def json_lines(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (RESULTS / name).read_text(encoding="utf-8").splitlines()]


@functools.cache
def held_out() -> dict[str, Any]:
    """Scores of sources that nothing was fitted to, as `benchmarks/held_out.py --write` stored them."""
    document: dict[str, Any] = json.loads((RESULTS / "held_out.json").read_text(encoding="utf-8"))
    return document


@functools.cache
def left_out() -> dict[str, str]:
    """What `benchmarks/fit.py` printed: rows, constants, and the errors of sources that were left out in turn."""
    text = (RESULTS / "left_out.txt").read_text(encoding="utf-8")
    patterns = {
        "rows": r"^(\d+) rows in \d+ blocks",
        "constants": r"^\d+ rows in \d+ blocks, (\d+) parameters",
        "fitted_balanced": r"^fitted on all: balanced MAPE ([\d.]+ %)",
        "balanced": r"^left out: balanced MAPE ([\d.]+ %)",
        "median": r"^left out: .*median APE ([\d.]+ %)",
        "covered_groups": r"^covered on the mean of \d+ groups: ([\d.]+)%",
    }
    values = {}
    for name, pattern in patterns.items():
        match = re.search(pattern, text, re.M)
        if match is None:
            raise SystemExit(f"benchmarks/results/left_out.txt has no line like {pattern!r}")
        values[name] = match[1]
    return values


@functools.cache
def h200_errors_frac() -> tuple[float, ...]:
    """Errors of today's predictions of our own steps on one H200 that no constant was fitted to."""
    catalog = Catalog((packaged_data(),))
    rows = [validate_run(catalog, run) for run in load_runs(RESULTS / "h200_held_out.jsonl")]
    return tuple(
        row.predicted_step_s / row.measured_step_s - 1.0 for row in rows if row.predicted_step_s and row.measured_step_s
    )


@functools.cache
def calibrated_h200() -> tuple[dict[str, Any], ...]:
    return tuple(json_lines("h200_calibrated.jsonl"))


@functools.cache
def engine_fits() -> dict[str, Any]:
    """What benchmarks/engines_fit.py --write stored."""
    stored: dict[str, Any] = json.loads((RESULTS / "h200_engines_fit.json").read_text())
    return stored


def _sizes(key: str) -> str:
    """The smallest and the largest size of an error, over all programs."""
    runs = [run for program in engine_fits().values() for run in program["runs"]]
    return _range([abs(run[key]) for run in runs if run[key] is not None])


def mean_size(errors: list[float]) -> str:
    return percent(statistics.fmean(abs(error) for error in errors))


def num_catalogue_files(folder: str) -> int:
    return len(list((packaged_data() / folder).glob("*.toml")))


def _range(values_frac: list[float]) -> str:
    return f"{100 * min(values_frac):.0f} to {100 * max(values_frac):.0f} %"


def _within(operations: list[dict[str, Any]], most_frac: float) -> str:
    errors = [error for operation in operations for error in operation["errors_frac"].values()]
    return f"{sum(abs(error) <= most_frac for error in errors)} of {len(errors)}"


CLAIMS: dict[str, Callable[[], str]] = {
    # other training programs on one H200
    "engines_known": lambda: _sizes("other_program"),
    "engines_left_out": lambda: _sizes("left_out_held"),
    # sources that nothing was fitted to
    "held_out_balanced": lambda: percent(held_out()["all"]["balanced_mean_ape_frac"]),
    "held_out_mean": lambda: percent(held_out()["all"]["mean_ape_frac"]),
    "held_out_median": lambda: percent(held_out()["all"]["median_ape_frac"]),
    "held_out_rule": lambda: percent(held_out()["all"]["balanced_rule_mean_ape_frac"]),
    "held_out_rows": lambda: str(held_out()["all"]["num_rows"]),
    "held_out_sources": lambda: str(held_out()["all"]["num_sources"]),
    "held_out_inside": lambda: f"{held_out()['all']['num_inside']} of {held_out()['all']['num_rows']}",
    # each source left out of the fit in turn
    "left_out_balanced": lambda: left_out()["balanced"],
    "left_out_median": lambda: left_out()["median"],
    "fitted_rows": lambda: left_out()["rows"],
    "fitted_constants": lambda: left_out()["constants"],
    # one H200
    "h200_steps": lambda: str(len(h200_errors_frac())),
    "h200_mean": lambda: mean_size(list(h200_errors_frac())),
    "h200_median": lambda: percent(statistics.median(map(abs, h200_errors_frac()))),
    "h200_worst": lambda: percent(max(h200_errors_frac(), key=abs), signed=True),
    "calibrated_steps": lambda: str(len(calibrated_h200())),
    "calibrated_mean": lambda: mean_size([row["error_frac"] for row in calibrated_h200()]),
    "catalogue_mean": lambda: mean_size([row["catalogue_error_frac"] for row in calibrated_h200()]),
    # collectives on ranks of a CPU
    "collectives_median": lambda: _range(
        [row["median_error_frac"] for row in json_lines("collectives_predicted.jsonl")]
    ),
    "collectives_within": lambda: _within(json_lines("collectives_predicted.jsonl"), 0.15),
    # counts
    "lint_rules": lambda: str(len(known_rules())),
    "site_profiles": lambda: str(len(list((PACKAGE / "sites" / "profiles").glob("*.toml")))),
    "shipped_studies": lambda: str(len(list((PACKAGE / "study" / "studies").glob("*.toml")))),
    "published_rows": lambda: str(len(load_runs(packaged_runs()))),
    "systems": lambda: str(num_catalogue_files("systems")),
    "accelerators": lambda: str(num_catalogue_files("accelerators")),
    "models": lambda: str(num_catalogue_files("models")),
}


def fill_claims(text: str) -> str:
    def filled(match: re.Match[str]) -> str:
        make = CLAIMS.get(match["name"])
        if make is None:
            raise SystemExit(f"no claim is called {match['name']}; tools/claims.py has {', '.join(sorted(CLAIMS))}")
        return f"<!-- claim:{match['name']} -->{make()}<!-- /claim -->"

    return CLAIM.sub(filled, text)


# Figures without a marker

NUMBER = (
    r"(?:\d[\d,]*|three|four|five|six|seven|eight|nine|ten|eleven|twelve|thirteen|fourteen|fifteen|sixteen|seventeen"
    r"|eighteen|nineteen|twenty|hundreds?)"
)
COUNTED = re.compile(
    rf"\b{NUMBER}\s+(?:(?:lint|site|fitted|global|shipped|catalogued|training)\s+)*"
    r"(?:rules|sites|profiles|constants|rows|sources|studies|systems|accelerators|models|configurations"
    r"|published (?:runs|rows|steps|rates))\b",
    re.I,
)
PERCENT = re.compile(r"\d ?%")
ERROR_WORD = re.compile(r"\b(?:MAPE|errors?|off|left out|balanced|regret|bias|accuracy|accurate)\b", re.I)
SPEED = re.compile(
    r"\b(?:[\d.,]+|several|a thousand)\s+(?:times (?:faster|slower)|(?:layouts|predictions) (?:a|per) second)"
)
GENERATED = re.compile(r"<!-- (?P<name>[\w-]+):begin -->.*?<!-- (?P=name):end -->", re.S)
NOT_PROSE = (
    re.compile(r"```.*?```", re.S),
    GENERATED,
    CLAIM,
    FIXED,
    re.compile(r"<!--.*?-->", re.S),
    re.compile(r"`[^`\n]*`"),
)


def unmarked(text: str) -> list[str]:
    """Figures of accuracy, counts and speed in prose that no marker holds."""
    for pattern in NOT_PROSE:
        text = pattern.sub("", text)
    figures = []
    for paragraph in re.split(r"\n\s*\n|\n(?=[|\-#])", text):
        for sentence in re.split(r"(?<=[.:;])\s+", " ".join(paragraph.split())):
            figures += [match[0] for match in COUNTED.finditer(sentence)]
            figures += [match[0] for match in SPEED.finditer(sentence)]
            if PERCENT.search(sentence) and ERROR_WORD.search(sentence):
                figures.append(sentence)
    return figures
