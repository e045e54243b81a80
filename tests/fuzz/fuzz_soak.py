"""Fuzz every reader in many processes, within a limit of time, and write down what came of it.

    python tests/fuzz/fuzz_soak.py --inputs 1000000 --processes 9 --seconds 540 --out runs/fuzz

reads that many mutated inputs, shared among the kinds, and prints a table; `make soak` calls it. `summary.json` in the
folder has the figures, and `failures/` what failed. The same `--seed` makes the same inputs. pytest is not needed.

Each share that is done is a line of `shares.jsonl` at once, and the summary is written again every few seconds: a run
that is cut off keeps its figures. The same command on the same folder reads only the shares that are missing.

Each share of inputs is read in a process of its own, forked from one that has imported everything. A reader that no
signal stops is killed by its parent, and counts as one that hangs.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import resource
import shutil
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from fuzz_results import FuzzResults
from fuzzed_inputs import HANG, HANG_WALL_S, PROBLEMS, TRACEBACK, FuzzCounts, fuzz, summary
from inputs import INPUTS, NEEDS_TORCH

from scalewright import units

SHARE = 250
"""Inputs of one process."""
WEIGHTS = {
    "lint": 24, "study": 24, "site": 9, "catalogue": 5, "config": 8, "plan": 5, "run": 6, "trace": 5, "flight": 6,
    "log": 9, "calibration": 22, "tokens": 22, "shards": 18, "safetensors": 22, "checkpoint": 15,
    "words": 20,
}  # fmt: skip
"""How the inputs are shared: readers that print a page take a hundred times as long as readers of a few bytes."""
KILL_WALL_S = HANG_WALL_S + 30.0
MORE_BYTES = 8 * units.GIB
"""Of addresses, beyond those that the imports took; memory that is used is checked after each input."""
_FORK = multiprocessing.get_context("fork")


@dataclass(slots=True)
class Share:
    """Inputs that one process reads, and where it stands."""

    kind: str
    seed: int
    count: int
    folder: Path
    process: Any
    pipe: Connection
    place: Any
    """Number of the input that is being read, and when it began, in memory that both processes see."""


def shares(num_inputs: int, kinds: list[str], first_seed: int) -> Iterator[tuple[str, int, int]]:
    """Kind, seed and count of each share, spread so that every part of the sequence has all kinds."""
    whole = sum(WEIGHTS[kind] for kind in kinds)
    counts = {kind: -(-num_inputs * WEIGHTS[kind] // whole) for kind in kinds}
    placed = [
        ((number + 0.5) * SHARE / counts[kind], kind, first_seed + number, min(SHARE, counts[kind] - number * SHARE))
        for kind in kinds
        for number in range(-(-counts[kind] // SHARE))
    ]
    for _, kind, seed, count in sorted(placed):
        yield kind, seed, count


def _read(kind: str, seed: int, count: int, folder: Path, keep: Path, place: Any, pipe: Connection) -> None:
    """The life of one process."""
    os.environ |= {"SCALEWRIGHT_HOME": str(folder), "TMPDIR": str(folder)}
    tempfile.tempdir = str(folder)
    os.chdir(folder)
    num_pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit_bytes = num_pages * resource.getpagesize() + MORE_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, limit_bytes))

    def begin(number: int) -> None:
        place[0], place[1] = float(number), time.monotonic()

    pipe.send(fuzz(kind, seed=seed, count=count, folder=folder, keep=keep, begin=begin))


def _start(kind: str, seed: int, count: int, scratch: Path, keep: Path) -> Share:
    folder = scratch / f"{kind}-{seed}"
    folder.mkdir()
    place = _FORK.Array("d", [0.0, time.monotonic()], lock=False)
    mine, theirs = _FORK.Pipe(duplex=False)
    process = _FORK.Process(target=_read, args=(kind, seed, count, folder, keep, place, theirs))
    process.start()
    theirs.close()
    return Share(kind=kind, seed=seed, count=count, folder=folder, process=process, pipe=mine, place=place)


def _result(share: Share, keep: Path) -> FuzzCounts | None:
    """What a share found; None while it reads."""
    if share.pipe.poll():
        try:
            counts: FuzzCounts = share.pipe.recv()
        except EOFError:
            share.process.join()
            return _lost(share, keep, TRACEBACK, f"ended the process with {share.process.exitcode}")
        share.process.join()
        return counts
    if time.monotonic() > share.place[1] + KILL_WALL_S:
        share.process.kill()
        share.process.join()
        return _lost(share, keep, HANG, "hangs, and no signal stops it")
    return None


def _lost(share: Share, keep: Path, problem: str, text: str) -> FuzzCounts:
    """A process that is gone with its counts: the inputs before were read, and this one failed."""
    number = int(share.place[0])
    counts = FuzzCounts(codes=Counter({0: number}))
    counts.fail(problem, f"{share.kind} (seed {share.seed}, case {number}): {text}")
    shutil.copytree(share.folder, keep / f"{share.kind}-{share.seed}-{number}", dirs_exist_ok=True)
    return counts


def soak(options: argparse.Namespace, results: FuzzResults, scratch: Path) -> None:
    """Read every share that has no result yet, or those that begin before the time is over."""
    every = shares(options.inputs, options.kinds, results.first_seed)
    waiting = deque(share for share in every if share[:2] not in results.finished)
    stop_s = time.monotonic() + options.seconds
    running: list[Share] = []
    while running or (waiting and time.monotonic() < stop_s):
        while waiting and len(running) < options.processes and time.monotonic() < stop_s:
            running.append(_start(*waiting.popleft(), scratch, results.failures))
        wait([share.pipe for share in running], timeout=1.0)
        for share in list(running):
            counts = _result(share, results.failures)
            if counts is None:
                continue
            running.remove(share)
            share.pipe.close()
            shutil.rmtree(share.folder, ignore_errors=True)
            results.add(share.kind, share.seed, counts)
            sys.stdout.write("".join(f"{failure}\n\n" for failure in counts.failures))
            sys.stdout.flush()


def _warm_up(kinds: list[str]) -> None:
    """Import what the readers import on their first call, so that each process has it when it is forked."""
    if any(kind in NEEDS_TORCH for kind in kinds):
        import torch

        import scalewright.run.checkpoint
        import scalewright.run.generate.safetensor_files  # noqa: F401

        torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"SCALEWRIGHT_HOME": folder, "SCALEWRIGHT_SYSTEM": "laptop"}
        for kind in kinds:
            if kind not in NEEDS_TORCH:  # these would start threads, which do not survive a fork
                fuzz(kind, seed=0, count=0, folder=Path(folder))
    gc.freeze()


def _print(totals: dict[str, FuzzCounts]) -> None:
    columns = ("accepted", "refused", *PROBLEMS)
    sys.stdout.write(f"{'kind':<12}{'inputs':>9}" + "".join(f"{name[:10]:>11}" for name in columns) + "   longest\n")
    for kind, counts in totals.items():
        figures = summary(counts)
        row = "".join(f"{figures[f'num_{name}']:>11}" for name in columns)
        sys.stdout.write(f"{kind:<12}{counts.num_cases:>9}{row}{counts.longest_wall_s:>8.2f} s\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=1_000_000, help="of all kinds together")
    parser.add_argument("--kinds", nargs="+", choices=list(INPUTS), default=list(INPUTS))
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seed", type=int, help="first of the seeds, one for a share; default: the folder's, or new")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start nothing more after this time")
    parser.add_argument("--out", type=Path, help="folder of the summary and the failures; a second run goes on in it")
    options = parser.parse_args()
    out = (options.out or Path(tempfile.mkdtemp(prefix="fuzz-"))).absolute()
    results = FuzzResults.open(out, kinds=options.kinds, seed=options.seed, processes=options.processes)
    if results.finished:
        sys.stdout.write(f"goes on after {results.every.num_cases:,} inputs in {out}\n")
    _warm_up(options.kinds)
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as scratch:
        soak(options, results, Path(scratch))
    results.write_summary()
    _print(results.totals)
    every = results.every
    num_failed = sum(every.problems.values())
    sys.stdout.write(f"{every.num_cases:,} inputs, {num_failed} failed, {results.wall_s:.0f} s; {results.summary}\n")
    return int(num_failed > 0)


if __name__ == "__main__":
    sys.exit(main())
