"""Ask random questions whether the rules of sense hold, in several processes, and print the counts of each rule.

    python tests/sense/sense_soak.py --questions 200000 --seed 1 --processes 2
    python tests/sense/sense_soak.py --rules more_nodes_are_never_more_efficient --questions 2000

The same seed asks the same questions. `--write` writes docs/sense.md with the rules and their counts, `--keep` adds the
smallest counterexamples to a file.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from sense.every_rule import FILES
from sense.questions import KINDS, questions
from sense.rules import RULES, Counts, Rule, check_all

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "sense.md"
RESULTS = ROOT / "benchmarks" / "results" / "sense_soak.json"

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
    for name in RULES if len(totals) > len(RULES) / 2 else totals:
        one = totals.get(name, Counts())
        lines.append(f"{name:<58}{one.asked:>9}{one.checked:>9}{one.violated:>9}")
    for name, one in totals.items():
        lines += (
            [f"\n{name}: {RULES[name].sentence}", *(f"  {example}" for example in one.examples)] if one.examples else []
        )
    return "\n".join(lines)


PAGE_TEXT = """# Rules of sense

After this page you know which rules every prediction, plan and run of Scalewright keeps, and how they are checked.

A rule is one sentence and one function in `tests/sense`. Random questions over all catalogued systems, transports, models, layouts,
precisions and stacks are asked whether it holds. A question is changed in one thing, such as a faster link or a longer sequence, and
both answers are compared.

```sh
.venv/bin/python -m pytest -q tests/sense                                           # 1,000 questions, the same ones each time
.venv/bin/python tests/sense/sense_soak.py --questions 200000 --seed 7 --write      # 200,000 others, and this page
.venv/bin/python tests/sense/sense_soak.py --rules accumulation_is_not_free --questions 2000
```

A violated rule is printed with the smallest question that was found for it, as a command. `--keep` stores that question in
`tests/sense/found.jsonl`, and every run of the tests asks it from then on.

To add a rule, write a function with `@rule(KIND, ...)` in the file of its subject: its docstring is the sentence, and it returns an empty
text where the rule holds, a sentence where it does not, and `None` where the question says nothing of it. `never_above` and `equal`
compare two figures. Then run the soak with `--rules NAME`, and with `--write`.

A question that a rule says nothing of, because the change is refused or does not apply, is asked and not checked.

<!-- fixed:tests/sense/sense_soak.py --write, benchmarks/results/sense_soak.json -->
{summary}
{tables}
<!-- /fixed -->
"""
TITLES = {
    "prediction_rules": "Every prediction", "training_rules": "Training", "serving_rules": "Generation and reinforcement learning",
    "cluster_rules": "Whole runs, networks, storage", "plan_rules": "Plans, and vision",
}  # fmt: skip


def rules_by_file() -> dict[str, list[Rule]]:
    """The rules under the title of their file."""
    found = {TITLES[file.__name__.rpartition(".")[2]]: file.__name__ for file in FILES}
    groups = {title: [one for one in RULES.values() if one.check.__module__ == name] for title, name in found.items()}
    listed = {one.name for group in groups.values() for one in group}
    groups["Every prediction"] += [one for one in RULES.values() if one.name not in listed]
    return groups


def page(results: dict[str, Any]) -> str:
    """docs/sense.md with these counts."""
    tables = []
    for title, rules in rules_by_file().items():
        rows = [f"\n## {title}\n", "| rule | asked | checked | violated |", "|---|---|---|---|"]
        for one in rules:
            counts = results["rules"].get(one.name, {"asked": 0, "checked": 0, "violated": 0})
            rows.append(
                f"| {one.sentence} | " + " | ".join(f"{counts[k]:,}" for k in ("asked", "checked", "violated")) + " |"
            )
        tables.append("\n".join(rows))
    total = {k: sum(counts[k] for counts in results["rules"].values()) for k in ("asked", "checked", "violated")}
    summary = (
        f"{results['questions']:,} questions (seed {results['seed']}) were asked {len(RULES)} rules: {total['checked']:,} checks, "
        f"{total['violated']:,} violated."
    )
    return PAGE_TEXT.format(summary=summary, tables="\n".join(tables))


def write(totals: dict[str, Counts], *, num: int, seed: int) -> None:
    counts = {
        name: {k: getattr(totals.get(name, Counts()), k) for k in ("asked", "checked", "violated")} for name in RULES
    }
    results = {"questions": num, "seed": seed, "rules": counts}
    RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(results), encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--questions", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=None, help="chooses the questions; default: by the time")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--rules", nargs="+", choices=list(RULES), default=[])
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin nothing more after this time")
    parser.add_argument("--write", action="store_true", help="write docs/sense.md and its counts")
    parser.add_argument("--keep", type=Path, help="file to which the smallest counterexamples are added, a line each")
    options = parser.parse_args()
    seed = int(time.time()) % 100_000 if options.seed is None else options.seed
    began = time.monotonic()
    totals, done = soak(
        num=options.questions, seed=seed, processes=options.processes, kinds=tuple(options.kinds),
        only=tuple(options.rules), seconds=options.seconds,
    )  # fmt: skip
    if options.write:
        write(totals, num=done, seed=seed)
    if options.keep is not None:
        with options.keep.open("a", encoding="utf-8") as file:
            file.writelines(f"{example.line}\n" for one in totals.values() for example in one.examples)
    num_checked, num_violated = (sum(getattr(one, name) for one in totals.values()) for name in ("checked", "violated"))
    sys.stdout.write(f"{table(totals)}\n")
    sys.stdout.write(
        f"\n{done:,} questions (seed {seed}), {num_checked:,} checks of {len(RULES)} rules, {num_violated} violated, "
        f"{time.monotonic() - began:.0f} s\n"
    )
    return int(num_violated > 0)


if __name__ == "__main__":
    sys.exit(main())
