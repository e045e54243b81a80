"""What a stage used, gathered from all ranks at its end: time by part, energy, memory, collectives, rooflines."""

from __future__ import annotations

import resource
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch

from scalewright import units
from scalewright.data.sandbox.protections import as_texts, protections_here
from scalewright.data.sandbox.types import FAILURES
from scalewright.records.reasoning import (
    PARTS,
    Accuracy,
    CollectiveUse,
    MeasuredWork,
    Mismatch,
    StageRecord,
    StepSplitShares,
    write_stage,
)
from scalewright.run.breakdown import StepSplit
from scalewright.run.micro.session import device_identity
from scalewright.run.reasoning.exchange import from_all_ranks
from scalewright.run.reasoning.parts import WORKS, StageTotals
from scalewright.run.reasoning.session import StageSession
from scalewright.run.traffic.device_use import DeviceUse
from scalewright.run.traffic.energy import EnergyMeter

OUTSIDE_STEPS = ("evaluation", "checkpoint")
"""Parts that are no part of a step."""


class StageMeter:
    """Measures an attempt of a stage: energy of the node and use of the device. The totals count on."""

    def __init__(self, session: StageSession) -> None:
        world, device = session.rank.world, session.device
        self._session = session
        self._meter = EnergyMeter(local_world_size=world.local_world_size) if world.is_first_on_node else None
        index = device.index if device.type == "cuda" else None
        self._use = DeviceUse(gpu_index=index, local_world_size=world.local_world_size)
        self._energy = {} if self._meter is None else self._meter.read()
        self._read_s = time.perf_counter()
        self._cpu_s = time.thread_time()
        self.energy_of = ""

    def __enter__(self) -> Self:
        self._session.totals.add("num_attempts", 1)
        self._use.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._use.__exit__()
        share = self._use.busy_frac
        if self._session.device.type == "cuda" and share is not None:
            self._session.totals.add("busy_s", share * self._use.wall_s)

    def step_done(self, seconds_by_part: dict[str, float]) -> None:
        """Count a step: its parts, the energy since the last one, and the CPU time of this thread."""
        totals = self._session.totals
        for part, seconds in seconds_by_part.items():
            totals.add(f"{part}_s", seconds)
        totals.add("wall_s", sum(s for part, s in seconds_by_part.items() if part not in OUTSIDE_STEPS))
        if self._session.device.type == "cpu":
            now_s = time.thread_time()
            totals.add("busy_s", now_s - self._cpu_s)
            self._cpu_s = now_s
        if self._meter is not None:
            since = self._meter.since(self._energy)
            self._energy = self._meter.read()
            if since is not None:
                totals.add("energy_j", since[0])
                self.energy_of = since[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankUse:
    """What one rank used."""

    totals: StageTotals
    host_bytes: float
    device_bytes: float | None
    split: StepSplit | None
    collectives: dict[str, CollectiveUse]
    energy_of: str
    is_first_of_copy: bool


def write_record(
    session: StageSession, *, accuracy: Accuracy | None, num_trained_params: int, split: StepSplit | None = None,
    collectives: dict[str, CollectiveUse] | None = None, energy_of: str = "", notes: Sequence[str] = (),
    num_samples: int | None = None, num_tokens: int | None = None, reward_failures: dict[str, int] | None = None,
) -> None:  # fmt: skip
    """Gather what every rank used and write the stage's record. Every rank calls this.

    Ranks count the same samples and tokens, unless the caller gives those of all.
    """
    is_gpu = session.device.type == "cuda"
    own = RankUse(
        totals=session.totals,
        host_bytes=float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * units.KIB,
        device_bytes=float(torch.cuda.max_memory_allocated(session.device)) if is_gpu else None,
        split=split,
        collectives=collectives or {},
        energy_of=energy_of,
        is_first_of_copy=session.copy.is_first,
    )
    ranks = from_all_ranks(lambda: own)
    if session.is_first:
        record = _record(session, ranks, accuracy=accuracy, num_trained_params=num_trained_params, notes=notes)
        if num_samples is not None and num_tokens is not None:
            record = replace(record, num_samples=num_samples, num_tokens=num_tokens)
        if reward_failures is not None:
            record = replace(record, reward_failures=reward_failures)
        write_stage(session.directory, record)


def _record(
    session: StageSession, ranks: Sequence[RankUse], *, accuracy: Accuracy | None, num_trained_params: int,
    notes: Sequence[str],
) -> StageRecord:  # fmt: skip
    config, first = session.config, ranks[0].totals
    seconds = [{part: rank.totals[f"{part}_s"] for part in PARTS if rank.totals[f"{part}_s"]} for rank in ranks]
    energies = [rank.totals["energy_j"] for rank in ranks if rank.energy_of]
    busy = [rank.totals["busy_s"] for rank in ranks]
    spans = [sum(one.values()) for one in seconds]
    return StageRecord(
        stage=config.stage, model=config.model_id, num_params=config.spec.num_params,
        num_trained_params=num_trained_params, num_ranks=config.num_ranks, layout=config.layout.brief,
        device=str(device_identity(session.device, session.rank.world)["name"]), precision=config.precision,
        engine_precision=config.engine.precision, seed=config.seed, steps=config.steps,
        num_attempts=int(first["num_attempts"]), wall_s=first["wall_s"], accuracy=accuracy,
        seconds_by_part={part: _mean([one.get(part, 0.0) for one in seconds]) for part in PARTS if any(
            part in one for one in seconds)},
        rank_seconds_by_part=seconds, rank_gap_frac=_gap_frac(seconds), split=_split([r.split for r in ranks]),
        collectives=_collectives([rank.collectives for rank in ranks]),
        utilisation_frac=min(sum(busy) / sum(spans), 1.0) if sum(spans) and sum(busy) else None,
        roofline=_roofline(first),
        kv_occupancy_frac=first["occupancy"] / first["num_decode_steps"] if first["num_decode_steps"] else None,
        kv_peak_frac=first["kv_peak"] if first["num_decode_steps"] else None,
        host_bytes=max(rank.host_bytes for rank in ranks),
        device_bytes=max((rank.device_bytes for rank in ranks if rank.device_bytes is not None), default=None),
        energy_j=sum(energies) if energies else None,
        energy_of=next((rank.energy_of for rank in ranks if rank.energy_of), ""), cost_usd=None,
        num_samples=int(first["num_samples"]), num_tokens=int(first["num_tokens"]),
        train_flop=sum(rank.totals["training_flop"] for rank in ranks), mismatch=_mismatch(first),
        num_groups=int(first["num_groups"]), num_equal_groups=int(first["num_equal_groups"]), notes=list(notes),
        reward_failures={kind: int(first[f"failed_{kind}"]) for kind in FAILURES if first[f"failed_{kind}"]},
        sandbox=as_texts(protections_here()) if config.task.sandbox != "off" else {},
    )  # fmt: skip


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _gap_frac(seconds: Sequence[dict[str, float]]) -> float:
    busy = [sum(s for part, s in one.items() if part not in ("idle", *OUTSIDE_STEPS)) for one in seconds]
    return (max(busy) - min(busy)) / max(busy) if max(busy) > 0 else 0.0


def _split(splits: Sequence[StepSplit | None]) -> StepSplitShares | None:
    known = [one for one in splits if one is not None]
    wholes = [one.compute_s + one.communication_s + one.data_wait_s + one.idle_s for one in known]
    if not known or min(wholes) <= 0:
        return None
    shares = {
        name: _mean([getattr(one, f"{name}_s") / whole for one, whole in zip(known, wholes, strict=True)])
        for name in ("compute", "communication", "data_wait", "idle")
    }
    return StepSplitShares(**{f"{name}_frac": share for name, share in shares.items()})


def _collectives(each: Sequence[dict[str, CollectiveUse]]) -> dict[str, CollectiveUse]:
    """Means over ranks."""
    names = sorted({name for one in each for name in one})
    nothing = CollectiveUse(count=0, bytes=0.0, seconds=0.0)
    rows = {name: [one.get(name, nothing) for one in each] for name in names}
    return {
        name: CollectiveUse(
            count=round(_mean([r.count for r in row])), bytes=_mean([r.bytes for r in row]),
            seconds=_mean([r.seconds for r in row]),
        )
        for name, row in rows.items()
    }  # fmt: skip


def _roofline(totals: StageTotals) -> list[MeasuredWork]:
    points = []
    for name in WORKS:
        flop, num_bytes, seconds = (totals[f"{name}_{what}"] for what in ("flop", "bytes", "work_s"))
        if flop > 0 and num_bytes > 0 and seconds > 0:
            points.append(MeasuredWork(name=name, flop=flop, bytes=num_bytes, seconds=seconds))
    return points


def _mismatch(totals: StageTotals) -> Mismatch | None:
    num = totals["num_mismatches"]
    if not num:
        return None
    names = ("masked_frac", "effective_sample_frac", "clip_frac")
    return Mismatch(kl=totals["kl_engines"] / num, **{name: totals[name] / num for name in names})
