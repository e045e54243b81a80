"""A soak that was cut off goes on with the shares that are missing, and its figures are those of all of them."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from fuzz_results import FuzzResults
from fuzz_soak import shares
from fuzzed_inputs import TRACEBACK, FuzzCounts


def test_results_are_kept_share_by_share(tmp_path: Path) -> None:
    first = FuzzResults.open(tmp_path / "out", kinds=["tokens", "plan"], seed=7, processes=1)
    first.add("tokens", 7, FuzzCounts(codes=Counter({0: 200, 2: 49}), longest_cpu_s=0.5))
    failed = FuzzCounts(codes=Counter({0: 249}), longest_cpu_s=0.1)
    failed.fail(TRACEBACK, "plan (seed 7, case 3): KeyError")
    first.add("plan", 7, failed)  # nothing is written after this: the run was cut off

    again = FuzzResults.open(tmp_path / "out", kinds=["tokens", "plan"], seed=None, processes=2)
    assert again.first_seed == 7
    assert again.finished == {("tokens", 7), ("plan", 7)}
    assert (again.every.num_cases, again.every.longest_cpu_s) == (499, 0.5)
    assert again.totals["plan"].failures == ["plan (seed 7, case 3): KeyError"]
    figures = json.loads(again.summary.read_text())
    assert (figures["all"]["num_inputs"], figures["all"]["num_tracebacks"]) == (499, 1)
    assert sum(figures["commits"].values()) == 499


def test_the_shares_of_a_seed_are_always_the_same() -> None:
    few, many = (list(shares(num, ["tokens", "plan"], 7)) for num in (5_000, 50_000))
    whole = {share[:2] for share in many}
    assert {share[:2] for share in few} <= whole
    assert sum(count for _, _, count in few) >= 5_000
