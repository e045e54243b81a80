"""The whole run: tokens or steps to days, GPU-hours, energy, money, carbon, checkpoints, failures and queue slices.

    run = whole_run(work=step_work(prediction), num_tokens=15e12, storage_entry=catalog.storage("lumi-f"))

`step_work` takes what is needed from a prediction; a measured step can fill a `StepWork` by hand.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from scalewright import __version__, units
from scalewright.catalog.library import Catalog
from scalewright.catalog.types import Constants, Storage
from scalewright.costs import campaign, energy, failures, storage
from scalewright.costs.breakdown import Breakdown
from scalewright.costs.campaign import Interruptions, SaveRange, Saving
from scalewright.costs.storage import CheckpointKind
from scalewright.errors import ConfigError
from scalewright.planner.answer import Answer
from scalewright.planner.question import TransformerStep
from scalewright.records.documents import document
from scalewright.records.types import WARNING
from scalewright.units import BYTES_PER_S, SECONDS
from scalewright.units import format as shown


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWork:
    """What one step of a run is: its time, the devices it holds, the tokens it brings and the state it leaves."""

    name: str
    machine: str
    step_time_s: float
    interval_s: tuple[float, float]
    """90 % interval of the step time."""
    num_gpus: int
    gpus_per_node: int
    num_tokens_per_step: float
    checkpoint_bytes: float
    constants: Constants
    host_link_bytes_per_s: float | None = None
    """At which a device's state leaves it before it is written beside training."""
    busy_w: float | None = None
    """Mean power of one device while steps run; None: no energy figure."""
    idle_w: float = 0.0
    overhead_w: float = 0.0
    """Hosts, NICs and fans of all nodes."""
    facility: energy.Facility | None = None
    is_searched: bool = False
    """Its layout is the best of a search, so the layouts that teams run are slower on average."""

    @property
    def num_nodes(self) -> int:
        return -(-self.num_gpus // self.gpus_per_node)


def step_work(prediction: Answer, *, is_searched: bool = False) -> StepWork:
    """A predicted step as the unit of a whole run; `is_searched`: with the best layout of a search."""
    question, machine, used = prediction.question, prediction.question.machine, prediction.footprint
    tdp, num_gpus = machine.accelerator.tdp.value, question.num_gpus
    measured = machine.checkpoint_copy_bytes_per_s
    return StepWork(
        name=question.spec.id,
        machine=machine.name,
        step_time_s=prediction.time_s,
        interval_s=prediction.interval_s,
        num_gpus=num_gpus,
        gpus_per_node=min(machine.gpus_per_node, num_gpus),
        num_tokens_per_step=prediction.num_units,
        checkpoint_bytes=prediction.transformer.checkpoint_bytes,
        constants=machine.constants,
        host_link_bytes_per_s=machine.host_link_bytes_per_s if measured is None else measured,
        busy_w=None if used is None else used.board_w,
        idle_w=energy.board_power_w(tdp_w=tdp, activity_frac=0.0, memory_frac=0.0, constants=machine.constants),
        overhead_w=energy.node_overhead_w(tdp_w=tdp, num_devices=num_gpus, constants=machine.constants),
        facility=question.facility,
        is_searched=is_searched,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Slices:
    """A run cut into jobs of a queue with a time limit."""

    limit_s: float
    num_jobs: int
    one: Breakdown
    """A full job, part by part."""
    last_request_s: float
    """Time to ask for the last, shorter one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeRun:
    """What a run costs from its first step to its last, with everything that went in."""

    work: StepWork
    num_steps: int
    saving: Saving
    checkpoint: CheckpointKind
    storage_id: str
    is_lost_with_node: bool
    """Checkpoints lie on the nodes themselves, so that one which fails takes its part along."""
    every_s: float
    """Work between two checkpoints."""
    save_range: SaveRange
    """Intervals that cost little."""
    young_s: float
    interruptions: Interruptions
    time: Breakdown
    interval_s: tuple[float, float]
    """90 % interval of the time: that of published campaigns, or that of the step where it is wider."""
    energy: Breakdown | None
    slices: Slices | None
    notes: tuple[str, ...]

    @property
    def time_s(self) -> float:
        return float(self.time.total)

    @property
    def num_tokens(self) -> float:
        return self.num_steps * self.work.num_tokens_per_step

    @property
    def num_failures(self) -> float:
        return campaign.num_failures(time_s=self.time_s, mttf_s=self.interruptions.mttf_s)

    @property
    def goodput_frac(self) -> float:
        """Share of the time that steps take which are not done again."""
        return float(self.time.part("steps").total) / self.time_s

    @property
    def device_time_s(self) -> float:
        """Whole nodes are charged."""
        return self._device_time_s(self.time_s)

    def _device_time_s(self, time_s: float) -> float:
        return campaign.device_time_s(
            num_nodes=self.work.num_nodes, num_devices_per_node=self.work.gpus_per_node, time_s=time_s
        )

    @property
    def num_gpu_hours(self) -> float:
        return self.device_time_s / units.HOUR_S

    @property
    def gpu_hours_interval(self) -> tuple[float, float]:
        """90 % interval of the GPU-hours."""
        low_s, high_s = self.interval_s
        return self._device_time_s(low_s) / units.HOUR_S, self._device_time_s(high_s) / units.HOUR_S

    @property
    def steps_between_checkpoints(self) -> int:
        return round(self.every_s / self.work.step_time_s)

    @property
    def request_s(self) -> float:
        """Time to ask for: of one job, where no limit cuts the run."""
        margin = self.work.constants.walltime_margin.value
        return campaign.walltime_request_s(expected_s=self.time_s, margin_frac=margin)

    @property
    def cost_usd(self) -> float | None:
        facility = self.work.facility
        if facility is None or facility.usd_per_s_per_gpu is None:
            return None
        return self.device_time_s * facility.usd_per_s_per_gpu

    @property
    def cost_eur(self) -> float | None:
        facility, cost_usd = self.work.facility, self.cost_usd
        if facility is None or cost_usd is None or facility.usd_per_eur is None:
            return None
        return cost_usd / facility.usd_per_eur

    @property
    def num_billed_units(self) -> float | None:
        """In the site's own unit; None where its profile does not say."""
        facility = self.work.facility
        if facility is None or facility.billed_per_node_s is None:
            return None
        return energy.billed_units(
            time_s=self.time_s, num_nodes=self.work.num_nodes, billed_per_node_s=facility.billed_per_node_s
        )

    @property
    def carbon_kgco2e(self) -> float | None:
        facility = self.work.facility
        if self.energy is None or facility is None or facility.kgco2e_per_j is None:
            return None
        return energy.carbon_kgco2e(energy_j=float(self.energy.total), kgco2e_per_j=facility.kgco2e_per_j)

    def as_dict(self) -> dict[str, Any]:
        """SI values with their unit in the key; part of a plan, or a document of its own."""
        carbon, cut = self.carbon_kgco2e, self.slices
        return {
            "model": self.work.name,
            "machine": self.work.machine,
            "num_steps": self.num_steps,
            "num_tokens": self.num_tokens,
            "num_gpus": self.work.num_gpus,
            "num_nodes": self.work.num_nodes,
            "step_time_s": self.work.step_time_s,
            "time_s": self.time_s,
            "time_interval_s": list(self.interval_s),
            "device_time_s": self.device_time_s,
            "num_gpu_hours": self.num_gpu_hours,
            "num_gpu_hours_interval": list(self.gpu_hours_interval),
            "goodput_frac": self.goodput_frac,
            "mttf_s": self.interruptions.mttf_s,
            "num_failures": self.num_failures,
            "restart_s": self.interruptions.restart_s + self.saving.read_s,
            "checkpoint": {
                "kind": self.checkpoint,
                "storage": self.storage_id,
                "is_lost_with_node": self.is_lost_with_node,
                "size_bytes": self.saving.size_bytes,
                "write_s": self.saving.write_s,
                "stall_s": self.saving.stall_s,
                "read_s": self.saving.read_s,
                "every_s": self.every_s,
                "every_num_steps": self.steps_between_checkpoints,
                "shortest_every_s": self.save_range.shortest_s,
                "longest_every_s": self.save_range.longest_s,
                "most_cost_frac": self.save_range.most_frac,
                "young_interval_s": self.young_s,
            },
            "walltime_request_s": self.request_s,
            **({} if self.energy is None else {"energy_j": float(self.energy.total)}),
            **self._money_dict(),
            **({} if carbon is None else {"carbon_kgco2e": carbon}),
            **({} if cut is None else {"slices": _slices_dict(cut)}),
            "notes": list(self.notes),
            "time": self.time.as_dict(),
            **({} if self.energy is None else {"energy": self.energy.as_dict()}),
        }

    def _money_dict(self) -> dict[str, Any]:
        """Money with its price, and what the site takes from an allocation."""
        facility, usd, eur, billed = self.work.facility, self.cost_usd, self.cost_eur, self.num_billed_units
        if facility is None:
            return {}
        ratios = [end / self.time_s for end in self.interval_s]
        body: dict[str, Any] = {"price": facility.price_words}
        if usd is not None:
            body |= {"cost_usd": usd, "cost_usd_interval": [usd * ratio for ratio in ratios]}
        if eur is not None:
            body |= {"cost_eur": eur, "cost_eur_interval": [eur * ratio for ratio in ratios]}
            body["usd_per_eur"] = facility.usd_per_eur
        if billed is not None:
            interval = [billed * ratio for ratio in ratios]
            body["billed"] = {
                "unit": facility.billed_unit, "note": facility.billed_note, "num_units": billed,
                "num_units_interval": interval,
            }  # fmt: skip
        return body

    def as_document(self) -> dict[str, Any]:
        return document("whole-run", {"scalewright": __version__, **self.as_dict()})


def _slices_dict(cut: Slices) -> dict[str, Any]:
    return {
        "limit_s": cut.limit_s,
        "num_jobs": cut.num_jobs,
        "last_request_s": cut.last_request_s,
        "one": cut.one.as_dict(),
    }


def whole_run(
    *, work: StepWork, storage_entry: Storage, num_tokens: float | None = None, num_steps: int | None = None,
    checkpoint: CheckpointKind = "async", limit_s: float | None = None, num_epochs: float = 0.0,
    epoch_fixed_s: float = 0.0, every_s: float | None = None, is_campaign: bool = True,
) -> WholeRun:  # fmt: skip
    """Steps to days: give tokens or steps.

    `limit_s` is the queue's longest job; `every_s` is work between checkpoints, else one that costs little;
    `epoch_fixed_s` is what each of `num_epochs` adds; without `is_campaign` only failures and checkpoints are counted.
    """
    steps = _num_steps(work, num_tokens, num_steps)
    saving = _saving(work, storage_entry, checkpoint)
    c = work.constants
    mttf_s = failures.job_mttf_s(device_mttf_s=c.device_mttf.value, num_devices=work.num_gpus)
    stops = Interruptions(mttf_s=mttf_s, restart_s=c.restart_time.value, startup_s=c.startup_time.value)
    work_s = steps * work.step_time_s
    if every_s is not None and every_s <= 0.0:
        raise ConfigError(
            f"{every_s:g} s of work between checkpoints is none: give more, or leave it to the advised range"
        )
    save_range = campaign.save_range(
        saving=saving, interruptions=stops, step_s=work.step_time_s, work_s=work_s,
        max_writing_frac=c.max_writing_share.value,
    )  # fmt: skip
    beside = campaign.NO_CAMPAIGN
    if is_campaign:
        steps_device_s = campaign.device_time_s(
            num_nodes=work.num_nodes, num_devices_per_node=work.gpus_per_node, time_s=work_s
        )
        beside = campaign.campaign_of(steps_device_s=steps_device_s, is_searched=work.is_searched, constants=c)

    def time_with(step_s: float, num_jobs: int) -> Breakdown:
        return campaign.run_time(
            num_steps=steps, step_s=step_s, every_s=every_s or save_range.every_s, saving=saving, interruptions=stops,
            num_jobs=num_jobs, num_epochs=num_epochs, epoch_fixed_s=epoch_fixed_s, campaign=beside,
        )  # fmt: skip

    def cut_time(step_s: float) -> tuple[Breakdown, Slices | None]:
        alone = time_with(step_s, 1)
        if limit_s is None:
            return alone, None
        cut = _slices(work, saving, stops, limit_s, float(alone.total))
        return time_with(step_s, cut.num_jobs), cut

    time, cut = cut_time(work.step_time_s)
    by_step_s = tuple(float(cut_time(s)[0].total) for s in work.interval_s)
    return WholeRun(
        work=work, num_steps=steps, saving=saving, checkpoint=checkpoint, storage_id=storage_entry.id,
        every_s=every_s or save_range.every_s, save_range=save_range,
        is_lost_with_node=_is_lost_with_node(work, storage_entry),
        young_s=failures.young_interval_s(checkpoint_s=saving.stall_s, mttf_s=mttf_s), interruptions=stops, time=time,
        interval_s=_interval_s(time, beside, by_step_s, least_s=steps * work.interval_s[0]),
        energy=_energy(work, time), slices=cut,
        notes=(*_short_run(work, num_tokens), *_notes(work, storage_entry, float(time.total), beside)),
    )  # fmt: skip


def _interval_s(
    time: Breakdown, beside: campaign.Campaign, by_step_s: tuple[float, ...], *, least_s: float
) -> tuple[float, float]:
    """The spread of published campaigns, which holds a usual error of the step, or the step's own where it is wider.

    No run is shorter than its steps at their fastest.
    """
    named_s = float(time.total) / beside.factor_frac
    low = min(named_s * beside.factor_low_frac, by_step_s[0])
    high = max(named_s * beside.factor_high_frac, by_step_s[1])
    return max(low, least_s), high


def _num_steps(work: StepWork, num_tokens: float | None, num_steps: int | None) -> int:
    if (num_tokens is None) == (num_steps is None):
        raise ConfigError("a whole run is so many tokens or so many steps: give one of them")
    if num_steps is None:
        assert num_tokens is not None
        num_steps = math.ceil(num_tokens / work.num_tokens_per_step)
    if num_steps < 1:
        raise ConfigError(f"a run of {num_steps} steps has nothing to do: give at least one step")
    return num_steps


def _saving(work: StepWork, entry: Storage, kind: CheckpointKind) -> Saving:
    rates = {
        direction: float(storage.job_bytes_per_s(
            storage=entry, direction=direction, num_nodes=work.num_nodes, constants=work.constants
        ))
        for direction in ("read", "write")
    }  # fmt: skip
    if math.isinf(rates["write"]):
        raise ConfigError(f"storage {entry.id} has no write rate in the catalogue: name another")
    latency = 0.0 if entry.latency is None else entry.latency.value
    write_s = storage.write_time_s(
        size_bytes=work.checkpoint_bytes, bytes_per_s=rates["write"], latency_s=latency
    )  # fmt: skip
    stall_s = storage.stall_time_s(
        kind=kind, write_s=write_s, state_bytes_per_device=work.checkpoint_bytes / work.num_gpus,
        host_bytes_per_s=work.host_link_bytes_per_s,
    )  # fmt: skip
    return Saving(
        size_bytes=work.checkpoint_bytes, write_s=write_s, stall_s=stall_s,
        read_s=latency + work.checkpoint_bytes / rates["read"],
    )  # fmt: skip


def _slices(work: StepWork, saving: Saving, stops: Interruptions, limit_s: float, alone_s: float) -> Slices:
    margin = work.constants.walltime_margin.value
    one = campaign.slice_parts(limit_s=limit_s, saving=saving, interruptions=stops, margin_frac=margin)
    each_s, around_s = float(one.part("work").total), stops.startup_s + saving.read_s + saving.write_s
    if each_s < work.step_time_s:
        limit, step = shown(limit_s, SECONDS), shown(work.step_time_s, SECONDS)
        raise ConfigError(
            f"a job of {limit} leaves no time for one step of {step}: use more nodes, or a smaller global batch (it "
            "counts samples, not tokens)"
        )
    needed_s = max(alone_s - around_s, 0.0)
    num_jobs = max(math.ceil(needed_s / each_s), 1)
    rest_s = needed_s - (num_jobs - 1) * each_s + around_s
    last = min(campaign.walltime_request_s(expected_s=rest_s, margin_frac=margin), limit_s)
    return Slices(limit_s=limit_s, num_jobs=num_jobs, one=one, last_request_s=last)


def _energy(work: StepWork, time: Breakdown) -> Breakdown | None:
    if work.busy_w is None or work.facility is None:
        return None
    return campaign.run_energy(
        time=time, num_devices=work.num_gpus, busy_w=work.busy_w, waiting_w=work.idle_w, overhead_w=work.overhead_w,
        pue_frac=work.facility.pue_frac,
    )  # fmt: skip


def _short_run(work: StepWork, num_tokens: float | None) -> tuple[str, ...]:
    """A warning where somebody asks for less than one step: most of them mean billions."""
    if num_tokens is None or num_tokens >= work.num_tokens_per_step:
        return ()
    count, step = f"{num_tokens:,.0f}", f"{work.num_tokens_per_step:,.0f}"
    return (
        f"{WARNING}{count} tokens are less than one step of {step}, so that the run is 1 step: write --tokens "
        f"{num_tokens:.0f}B for {count} billion",
    )


def _notes(work: StepWork, entry: Storage, time_s: float, beside: campaign.Campaign) -> tuple[str, ...]:
    c, notes = work.constants, ["waiting in the queue is not counted"]
    mttf = shown(c.device_mttf.value / work.num_gpus, SECONDS)
    notes.append(f"a failure every {mttf}, from Llama 3's rate per device: this machine's own may differ")
    if entry.kind in ("parallel", "object"):
        most = shown(c.storage_client_bandwidth.value, BYTES_PER_S)
        notes.append(f"a node writes at most {most}, a job {c.shared_storage_share.value:.0%} of {entry.id}'s rate")
    rate = entry.write_bandwidth
    if rate is not None and rate.source.kind == "measured":
        notes.append(f"checkpoints are written at {rate}: measured, {rate.source.text}")
    if beside.shares_frac:
        notes.append("a stage of long context is not counted: it added 4.5 % to DeepSeek-V3's hours")
    if _is_lost_with_node(work, entry):
        notes.append(f"{entry.id} is lost with its node: a checkpoint there needs a copy elsewhere")
    used_s = work.num_gpus * time_s
    if used_s > c.large_request.value:
        notes.append(f"above {c.large_request.value / units.HOUR_S:.0f} GPU-hours: try a short job first")
    return tuple(notes)


def _is_lost_with_node(work: StepWork, entry: Storage) -> bool:
    return entry.kind == "memory" or (entry.kind == "node-local" and work.num_nodes > 1)


def storage_of(catalog: Catalog, system_name: str, name: str | None = None) -> Storage:
    """The storage of that name, or the system's first."""
    own = catalog.system(system_name).storage
    if name is None and not own:
        raise ConfigError(f"{system_name} has no storage in the catalogue: name one (see: catalog storage)")
    return catalog.storage(own[0] if name is None else name)


def run_with(catalog: Catalog, prediction: Answer, *, tokens: str, checkpoint: str) -> WholeRun:
    """The whole run of a predicted training step on so many tokens, such as `300B`."""
    question = prediction.question
    if not isinstance(question.stage, TransformerStep):
        raise ConfigError(f"tokens {tokens}: only a training step of a language model makes a whole run; leave it out")
    num_tokens = units.parse(tokens, units.COUNT)
    if num_tokens < 1:
        raise ConfigError(f"tokens {tokens}: a run trains on one token or more, such as 300B")
    entry = question.feed.storage or storage_of(catalog, question.system)
    kind: CheckpointKind = "async" if checkpoint == "async" else "sync"
    return whole_run(work=step_work(prediction), storage_entry=entry, num_tokens=num_tokens, checkpoint=kind)
