"""Training that waits for data."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from scalewright.observe.evidence.evidence import Evidence
from scalewright.observe.evidence.facts import StepFact
from scalewright.observe.evidence.series import StepSeries, setting, setting_spots, step_series
from scalewright.observe.findings.rule import FindingContext, Gain, Seen, finding_rule
from scalewright.observe.findings.words import percent, ranks_named, seconds, size

BOUND_FRAC = 0.10
"""Share of a step that waits for data above which the loader is the limit, as in the summary of a vision run."""
STAGE_FRAC = 0.25
"""The same of a stage, which has no loader: it makes its batches itself, and small models wait for that a little."""
LEAST_WAIT_S = 5e-3
"""A shorter wait is a thread that wakes up."""
STORAGE_FRAC = 0.5
"""Share of their time that loader workers wait for storage, not for a core, from which storage is the cause."""
FIRST_FRAC = 0.10
"""Share of the whole run that its first batches may take."""
LARGE_FIRST_FRAC = 0.25
"""A warning also in a short run."""
NUM_FIRST = 5
LEAST_RUN_S = 60.0
"""A shorter run is a trial: its start says nothing of a real one."""
SMALL_FILE_BYTES = 1 << 20
"""Files below a MiB: opening one costs a parallel file system as much as reading it."""
MANY_FILES = 1000


@finding_rule(
    id="data-loader-bound",
    severity="warning",
    role="slowed",
    title="Training waits for data",
    why="A device that waits for its next batch computes nothing. In a synchronous job the slowest loader of all ranks "
    "sets the pace: every other rank waits for it in the next collective.",
    advice="More loader workers (one less than the cores of a rank), decoding on other cores, data packed in shards, "
    "and copies on a local disk or in RAM. Check with a run on synthetic data: its step is the target.",
    source="Mohan et al. 2021, Analyzing and Mitigating Data Stalls in DNN Training (arXiv:2007.06775)",
)
def data_loader_bound(evidence: Evidence, context: FindingContext) -> Iterator[Seen]:
    del context
    series = step_series(evidence)
    waits = series.part_of_slowest_s("data")
    steps = [one for one in series.job_steps if one.step in waits and one.time_s]
    if not steps or not series.is_enough:
        return
    total_s = sum(one.time_s or 0.0 for one in steps)
    share = min(sum(min(waits[one.step], one.time_s or 0.0) for one in steps) / total_s, 1.0)
    bound = STAGE_FRAC if setting(evidence, "kind") == "reason" else BOUND_FRAC
    if share < bound or share * total_s / len(steps) < LEAST_WAIT_S:
        return
    ranks = _waiting_ranks(series)
    worst = sorted(steps, key=lambda one: -waits[one.step])[:3]
    of = f" on {ranks_named(ranks)}" if len(ranks) < len(series.ranks) else ""
    workers = setting(evidence, "num_workers")
    with_workers = "" if workers is None else f", with {workers} loader workers a rank"
    mean_s = total_s / len(steps)
    yield Seen(
        message=f"ranks wait for data for {percent(share)} of the time{of} ({seconds(share * mean_s)} of a step of "
        f"{seconds(mean_s)}){with_workers}",
        spots=(*(_of_rank(series, one.step, ranks) for one in worst), *setting_spots(evidence, "num_workers", "data")),
        next_step="raise the number of loader workers, pack the samples in shards, or copy them to a local disk",
        certainty="certain", score=share, numbers={"data_frac": share}, ranks=tuple(ranks),
        gain=Gain(step_time_frac=share, how="measured: the steps without the wait of the slowest loader"),
    )  # fmt: skip


def _waiting_ranks(series: StepSeries) -> list[int]:
    """Ranks that wait about as long as the one that waits longest."""
    waits = {
        rank: statistics.fmean(one.parts_s.get("data", 0.0) for one in steps) for rank, steps in series.steady.items()
    }
    longest = max(waits.values())
    return sorted(rank for rank, wait in waits.items() if wait >= 0.5 * longest)


def _of_rank(series: StepSeries, step: int, ranks: list[int]):  # type: ignore[no-untyped-def]
    facts = [one for rank in ranks for one in series.steady.get(rank, ()) if one.step == step]
    return (facts or [series.job_steps[0]])[0].spot


@finding_rule(
    id="slow-first-batches",
    severity="info",
    role="slowed",
    title="The first batches take long",
    why="Workers start, files are opened and caches are cold. A job that is short or often restarted pays it each "
    "time.",
    advice="Start the loader's workers before the model is built, keep them between epochs "
    "(persistent_workers=True), and keep the index of the data set in one file.",
    source="PyTorch documentation, torch.utils.data: persistent_workers, prefetch_factor",
    because_of=("many-small-files", "data-loader-bound"),
)
def slow_first_batches(evidence: Evidence, context: FindingContext) -> Iterator[Seen]:
    del context
    series = step_series(evidence)
    steps = series.by_rank.get(0, ())
    first = [one for one in steps[:NUM_FIRST] if "data" in one.parts_s]
    usual = [one.parts_s["data"] for one in steps[NUM_FIRST:] if "data" in one.parts_s]
    total_s = sum(one.time_s or 0.0 for one in steps)
    if not first or not series.is_enough or not usual:
        return
    extra_s = sum(max(one.parts_s["data"] - statistics.median(usual), 0.0) for one in first)
    if extra_s < FIRST_FRAC * total_s:
        return
    is_loud = total_s >= LEAST_RUN_S or extra_s >= LARGE_FIRST_FRAC * total_s
    worst: StepFact = max(first, key=lambda one: one.parts_s["data"])
    yield Seen(
        message=f"the first {len(first)} batches waited {seconds(extra_s)} longer for data than later ones, "
        f"{percent(extra_s / total_s)} of the whole run",
        spots=(worst.spot,),
        next_step="keep loader workers alive between epochs, and warm the cache before the first step",
        certainty="certain", score=extra_s / total_s, severity="warning" if is_loud else None,
        numbers={"extra_s": extra_s},
        gain=Gain(step_time_frac=extra_s / total_s, how="measured: first batches as fast as the later ones"),
    )  # fmt: skip


@finding_rule(
    id="many-small-files",
    severity="warning",
    role="slowed",
    title="The data set is many small files",
    why="Every file costs an open and a close at the metadata server of a parallel file system. Small files are read "
    "at a fraction of its bandwidth, and other users feel it too.",
    advice="Pack samples into shards of 100 MB to 1 GB (tar, WebDataset, LMDB, Parquet), a few per reader.",
    source="EPICURE best practices for AI on EuroHPC systems; Lustre manual, section on small files",
)
def many_small_files(evidence: Evidence, context: FindingContext) -> Iterator[Seen]:
    stored = data_facts(evidence)
    num_files, num_bytes = stored.get("files"), stored.get("bytes")
    if not num_files or num_bytes is None or num_bytes / num_files >= SMALL_FILE_BYTES:
        return
    waits = next(data_loader_bound(evidence, context), None)
    took_s, computed_s = stored.get("workers_s"), stored.get("computing_s")
    blocked = 0.0 if not took_s or computed_s is None else 1.0 - computed_s / took_s
    is_cause = waits is not None and blocked >= STORAGE_FRAC
    if num_files < MANY_FILES and not is_cause:
        return
    words = "" if not blocked else f"; loader workers spend {percent(blocked)} of their time waiting for files"
    yield Seen(
        message=f"the data set is {num_files:,.0f} files of {size(num_bytes / num_files)} in the mean{words}",
        spots=tuple(one.spot for one in evidence.happenings if one.values.get("event") == "data")[:2],
        next_step="pack them: `scalewright bench storage` compares the ways of storing them on this file system",
        certainty="likely" if is_cause else "possible",
        score=waits.score + 0.01 if waits is not None and is_cause else 0.0, severity=None if is_cause else "info",
        numbers={"num_files": num_files, "mean_bytes": num_bytes / num_files},
        gain=waits.gain if waits is not None and is_cause else None,
    )  # fmt: skip


def data_facts(evidence: Evidence) -> dict[str, float]:
    """Files of the data set, and the time of loader workers summed over ranks, as runs of ours record them."""
    facts: dict[str, float] = {}
    latest: dict[int | None, dict[str, float]] = {}
    for one in evidence.happenings:
        if one.values.get("event") != "data":
            continue
        for key, value in one.values.items():
            if key in ("files", "bytes", "samples"):
                facts[key] = float(value)
            elif key in ("workers_s", "computing_s"):
                latest.setdefault(one.rank, {})[key] = float(value)
    for values in latest.values():
        for key, value in values.items():
            facts[key] = facts.get(key, 0.0) + value
    return facts
