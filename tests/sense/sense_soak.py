"""Ask random questions whether the rules of sense hold, in several processes, and print the counts of each rule.

    python tests/sense/sense_soak.py --questions 200000 --seed 1 --processes 2
    python tests/sense/sense_soak.py --rules more_nodes_are_never_more_efficient --questions 2000

The same seed asks the same questions. `--write` writes docs/sense.md with the rules and their counts.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from sense import every_rule  # noqa: F401
from sense.questions import KINDS, questions
from sense.rules import RULES, Counts, check_all

SHARE = 100
"""Questions that one process is given at once."""
SEED_STRIDE = 10_000_000
"""Between the first questions of two seeds."""


def _share(task: tuple[int, int, tuple[str, ...], tuple[str, ...]]) -> dict[str, Counts]:
    first, num, kinds, only = task
    return check_all(questions(first, num, kinds), only=only)


def soak(
    *, num: int, seed: int, processes: int = 1, kinds: tuple[str, ...] = tuple(KINDS), only: tuple[str, ...] = (),
    seconds: float = float("inf"),
) -> tuple[dict[str, Counts], int]:  # fmt: skip
    """Counts of every rule, and how many questions were asked; after `seconds` no further share begins."""
    start, stop_s = seed * SEED_STRIDE, time.monotonic() + seconds
    totals: dict[str, Counts] = defaultdict(Counts)
    done = 0

    def tasks() -> Iterator[tuple[int, int, tuple[str, ...], tuple[str, ...]]]:
        for first in range(0, num, SHARE):
            if time.monotonic() > stop_s:
                return
            yield start + first, min(SHARE, num - first), kinds, only

    if processes == 1:
        for task in tasks():
            _merge(totals, _share(task))
            done += task[1]
        return dict(totals), done
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        waiting = []
        for task in tasks():
            waiting.append((task, pool.apply_async(_share, (task,))))
            if len(waiting) >= 2 * processes:
                first_task, result = waiting.pop(0)
                _merge(totals, result.get())
                done += first_task[1]
        for task, result in waiting:
            _merge(totals, result.get())
            done += task[1]
    return dict(totals), done


def _merge(totals: dict[str, Counts], more: dict[str, Counts]) -> None:
    for name, counts in more.items():
        totals[name].add(counts)


def table(totals: dict[str, Counts]) -> str:
    lines = [f"{'rule':<58}{'asked':>9}{'checked':>9}{'violated':>9}"]
    for name in RULES:
        one = totals.get(name, Counts())
        lines.append(f"{name:<58}{one.asked:>9}{one.checked:>9}{one.violated:>9}")
    for name, one in totals.items():
        lines += [f"\n{name}: {RULES[name].sentence}", *(f"  {example}" for example in one.examples)] if one.examples else []
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--questions", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=None, help="chooses the questions; default: by the time")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--rules", nargs="+", choices=list(RULES), default=[])
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin nothing more after this time")
    options = parser.parse_args()
    seed = int(time.time()) % 100_000 if options.seed is None else options.seed
    began = time.monotonic()
    totals, done = soak(
        num=options.questions, seed=seed, processes=options.processes, kinds=tuple(options.kinds),
        only=tuple(options.rules), seconds=options.seconds,
    )  # fmt: skip
    num_checked, num_violated = (sum(getattr(one, name) for one in totals.values()) for name in ("checked", "violated"))
    sys.stdout.write(f"{table(totals)}\n")
    sys.stdout.write(
        f"\n{done:,} questions (seed {seed}), {num_checked:,} checks of {len(RULES)} rules, {num_violated} violated, "
        f"{time.monotonic() - began:.0f} s\n"
    )
    return int(num_violated > 0)


if __name__ == "__main__":
    sys.exit(main())
