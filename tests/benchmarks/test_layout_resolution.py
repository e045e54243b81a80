"""The resolution in the catalogue is that of the published jobs, and explains how much too fast their choices look."""

from __future__ import annotations

import importlib.util
import statistics
import sys
from functools import cache
from pathlib import Path
from typing import Any

from scalewright.catalog.library import Catalog, packaged_data

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "layout_resolution.py"
SPEC = importlib.util.spec_from_file_location("layout_resolution", SCRIPT)
assert SPEC is not None
assert SPEC.loader is not None
benchmark = importlib.util.module_from_spec(SPEC)
sys.modules["layout_resolution"] = benchmark
SPEC.loader.exec_module(benchmark)

CATALOG = Catalog((packaged_data(),))


@cache
def jobs() -> list[Any]:
    return list(benchmark.jobs(CATALOG))


def test_the_catalogue_has_the_resolution_of_the_published_jobs() -> None:
    by_source = benchmark.resolution_by_source(jobs())
    assert len(by_source) >= 3
    assert abs(statistics.fmean(by_source.values()) - CATALOG.constants().layout_resolution.value) < 0.005


def test_choices_in_published_jobs_err_as_predicted() -> None:
    mean, error, predicted, num_jobs = benchmark.optimism(jobs(), CATALOG.constants().layout_resolution.value)
    assert num_jobs >= 50
    assert mean > error  # there is something to correct
    assert abs(mean - predicted) < 1.5 * error
