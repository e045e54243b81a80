"""Does advice pay? Full queues on a real Slurm, each played twice: with the original request and with the advised one.

    python benchmarks/queue_advice.py [--queues 10] [--first-seed 1] [--lab ID]

Each seed makes a queue on the practice cluster: running jobs that fill every node, waiting ones behind them, and a
request of the kind people write, larger and longer than the run needs. `scalewright advise` is asked once, and the time
from submission to start is taken of both requests in the same queue. Jobs end long before their limits, as they do, and
nobody told the advice when. Exit 1: the advised request starts earlier in fewer than 8 of 10 queues.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from scalewright.catalog.library import packaged_data
from scalewright.lab.cluster import Lab
from scalewright.lab.spec import LabSpec

ENOUGH_FRAC = 0.8
SYSTEM = "practice"
PATIENCE_S = 300.0
SAME_S = 2.0
"""Starts this close are of one round of the scheduler."""
MINUTE_S = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job of somebody else's."""

    num_nodes: int
    limit_min: int
    lasts_s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """One queue, and the request that comes to it."""

    seed: int
    running: tuple[Job, ...]
    waiting: tuple[Job, ...]
    num_nodes: int
    limit_min: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    seed: int
    original: str
    advised: str
    is_same: bool
    starts_earlier: bool
    original_wait_s: float
    advised_wait_s: float
    num_calls: int


def scene(seed: int, *, num_nodes: int) -> Scene:
    """A full queue, drawn from a seed."""
    draw, longest_s = random.Random(seed), 40
    running, left = [], num_nodes
    while left:
        size = min(draw.choice((1, 1, 2, 3)), left)
        limit = draw.choice((10, 20, 30, 60, 120))
        running.append(Job(num_nodes=size, limit_min=limit, lasts_s=draw.randint(longest_s // 4, longest_s)))
        left -= size
    waiting = tuple(
        Job(
            num_nodes=draw.randint(1, num_nodes), limit_min=draw.choice((20, 60, 120, 240)),
            lasts_s=draw.randint(longest_s // 6, longest_s // 2),
        )
        for _ in range(draw.randint(2, 4))
    )  # fmt: skip
    return Scene(
        seed=seed, running=tuple(running), waiting=waiting, num_nodes=draw.choice((num_nodes // 2, num_nodes)),
        limit_min=draw.choice((120, 240, 480)),
    )  # fmt: skip


def write_system(folder: Path, lab: Lab, *, gpus_per_node: int) -> None:
    """The practice cluster as a catalogued system: Selene's parts in nodes of its own size."""
    text = (packaged_data() / "systems" / "selene.toml").read_text()
    lines = []
    for line in text.splitlines():
        if line.startswith("id = ") and not lines_have_partition(lines):
            line = f'id = "{SYSTEM}"'  # noqa: PLW2901
        elif line.startswith("aliases = "):
            line = "aliases = []"  # noqa: PLW2901
        elif line.startswith("accelerators_per_node = "):
            line = line.replace("value = 8", f"value = {gpus_per_node}")  # noqa: PLW2901
        elif line.startswith("num_nodes = "):
            line = f"num_nodes = {{ value = {len(lab.nodes)}, {line.partition(', ')[2]}"  # noqa: PLW2901
        lines.append(line)
    target = folder / "systems" / f"{SYSTEM}.toml"
    target.parent.mkdir(parents=True)
    target.write_text("\n".join(lines) + "\n")


def lines_have_partition(lines: list[str]) -> bool:
    return any(line.startswith("[[partitions]]") for line in lines)


def scalewright(*arguments: str, env: dict[str, str], codes: tuple[int, ...] = (0,)) -> str:
    command = [sys.executable, "-m", "scalewright", *arguments]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=300)
    if done.returncode not in codes:
        raise SystemExit(f"{' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


def make_plan(folder: Path, *, num_nodes: int, env: dict[str, str]) -> Path:
    """A run of minutes: most of what people submit while they still change things."""
    out = folder / f"plan-{num_nodes}.json"
    if not out.exists():
        steps = 400 if num_nodes < 4 else 800
        scalewright(
            "plan", "--model", "gpt3-1.3b", "--system", SYSTEM, "--catalog", str(folder), "--nodes", str(num_nodes),
            "--global-batch", "64", "--steps", str(steps), "--out", str(out), env=env,
        )  # fmt: skip
    return out


class Bench:
    """One practice cluster and what is asked of it."""

    def __init__(self, lab: Lab, folder: Path, *, gpus_per_node: int, account: str) -> None:
        self.lab, self.folder, self.gpus, self.account = lab, folder, gpus_per_node, account
        self.env = dict(os.environ) | lab.env
        write_system(folder, lab, gpus_per_node=gpus_per_node)

    def submit(self, *, num_nodes: int, limit_min: int, partition: str, lasts_s: int) -> str:
        done = self.lab.run(
            "sbatch", "--parsable", f"--nodes={num_nodes}", f"--gpus-per-node={self.gpus}", "--exclusive",
            f"--time={limit_min}", f"--partition={partition}", f"--account={self.account}", "--output=/dev/null",
            f"--wrap=sleep {lasts_s}",
        )  # fmt: skip
        if done.returncode:
            raise SystemExit(f"sbatch: {done.stderr.strip()}")
        return done.stdout.strip().partition(";")[0]

    def starts(self, *jobs: str) -> dict[str, float]:
        """When each has started, since the epoch; those that wait are left out."""
        query = ("squeue", "-h", "--states=all", f"--jobs={','.join(jobs)}", "-O", "JobID:20,StartTime:30,State:20")
        start_of_job = {}
        for line in self.lab.run(*query).stdout.splitlines():
            job, start, state = line.split()
            if state not in ("PENDING", "CANCELLED"):
                start_of_job[job] = time.mktime(time.strptime(start, "%Y-%m-%dT%H:%M:%S"))
        return start_of_job

    def empty(self) -> None:
        self.lab.run("scancel", f"--account={self.account}", f"--user={os.getuid()}")
        self.wait(lambda: not self.lab.run("squeue", "-h").stdout.strip(), "an empty queue")

    def wait(self, condition: Callable[[], object], what: str) -> None:
        until_s = time.monotonic() + PATIENCE_S
        while not condition():
            if time.monotonic() > until_s:
                raise SystemExit(f"no {what} in {PATIENCE_S:.0f} s")
            time.sleep(0.5)

    def fill(self, running: Iterable[Job], waiting: Iterable[Job]) -> float:
        """Jobs that run, and jobs behind them; when the last was submitted."""
        held = [self.submit(partition="batch", **asdict(job)) for job in running]
        self.wait(lambda: len(self.starts(*held)) == len(held), "running jobs")
        for job in waiting:
            self.submit(partition="batch", **asdict(job))
        return time.monotonic()

    def ask(self, *, num_nodes: int, limit_min: int) -> dict[str, Any]:
        limit = f"{limit_min // 60:02d}:{limit_min % 60:02d}:00"
        command = [
            "advise", str(make_plan(self.folder, num_nodes=num_nodes, env=self.env)), "--site", "here",
            "--account", self.account, "--partition", "batch", "--time", limit, "--json", "--catalog", str(self.folder),
        ]  # fmt: skip
        return dict(json.loads(scalewright(*command, env=self.env, codes=(0, 1))))

    def submit_ask(self, ask: dict[str, Any], *, lasts_s: int) -> str:
        limit_min = -(-ask["limit_s"] // MINUTE_S)
        return self.submit(
            num_nodes=ask["num_nodes"], limit_min=limit_min, partition=ask["partition"], lasts_s=lasts_s
        )  # fmt: skip

    def wait_of(self, ask: dict[str, Any]) -> float:
        """From submission to start, in the queue as it is now; empties it afterwards."""
        begun_s = time.time()
        job = self.submit_ask(ask, lasts_s=1)
        self.wait(lambda: self.starts(job), "start of the job")
        started_s = self.starts(job)[job]
        self.empty()
        return max(started_s - begun_s, 0.0)

    def play(self, chosen: Scene) -> Outcome:
        """The same queue twice; the second request comes as long after it was full as the first."""
        make_plan(self.folder, num_nodes=chosen.num_nodes, env=self.env)
        full_s = self.fill(chosen.running, chosen.waiting)
        advice = self.ask(num_nodes=chosen.num_nodes, limit_min=chosen.limit_min)
        after_s = time.monotonic() - full_s
        original, best = advice["original"], advice["best"]
        is_same = all(original[key] == best[key] for key in ("num_nodes", "partition", "limit_s"))
        advised_s = self.wait_of(best)
        full_s = self.fill(chosen.running, chosen.waiting)
        time.sleep(max(after_s - (time.monotonic() - full_s), 0.0))
        original_s = self.wait_of(original)
        return Outcome(
            seed=chosen.seed,
            original=_words(original),
            advised=_words(best),
            is_same=is_same,
            starts_earlier=not is_same and advised_s < original_s - SAME_S,
            original_wait_s=round(original_s, 1),
            advised_wait_s=round(advised_s, 1),
            num_calls=int(advice["num_tested"]),
        )


def _words(ask: dict[str, object]) -> str:
    return f"{ask['num_nodes']} nodes, {ask['partition']}, {int(str(ask['limit_s'])) // MINUTE_S} min"


@contextlib.contextmanager
def cluster(id: str | None) -> Iterator[Lab]:
    """The one that is named and stays, or a new one that goes."""
    if id is not None:
        yield Lab.open(id)
        return
    lab = Lab.up(LabSpec(num_nodes=8, num_gpus_per_node=2))
    try:
        yield lab
    finally:
        lab.down()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--queues", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--lab", help="id of a practice cluster that is up; default: start one")
    parser.add_argument("--account", default="lab")
    chosen = parser.parse_args()
    outcomes = []
    with cluster(chosen.lab) as lab, tempfile.TemporaryDirectory() as folder:
        bench = Bench(lab, Path(folder), gpus_per_node=2, account=chosen.account)
        for seed in range(chosen.first_seed, chosen.first_seed + chosen.queues):
            outcome = bench.play(scene(seed, num_nodes=len(lab.nodes)))
            outcomes.append(outcome)
            print(json.dumps(asdict(outcome)), flush=True)
    num_won = sum(outcome.starts_earlier for outcome in outcomes)
    print(f"the advised request starts earlier in {num_won} of {len(outcomes)} queues")
    return 0 if num_won >= ENOUGH_FRAC * len(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
