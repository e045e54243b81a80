"""PlanRequest: what a plan searches for, with every name resolved and every limit checked against the others.

request = resolve_request(catalog, "leonardo", PlanOptions(model="llama3-70b", nodes="64", global_batch=1024))
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast, get_args

from scalewright import units
from scalewright.costs.energy import Facility
from scalewright.costs.machine import Machine
from scalewright.errors import ConfigError, QuantityError, UnknownNameError
from scalewright.here.place import Place
from scalewright.planner.critical_batch import TOKENS_PER_PARAM, batch_verdict, extra_tokens_frac
from scalewright.planner.energy_use import facility_of
from scalewright.planner.question import AUTO, resolve_place, resolve_recipe, resolve_spec
from scalewright.planner.search.search import Objective
from scalewright.planner.search.space import NOTHING_FIXED, Fixed, Space, parse_fixed, stacks_by_zero
from scalewright.planner.whole_run import WholeRun
from scalewright.sites.job_limits import longest_s
from scalewright.sites.loader import find_site, site_of_system
from scalewright.sites.types import Site
from scalewright.workload.grammar import MAX_SIZE, assignments
from scalewright.workload.model import ModelSpec
from scalewright.workload.precision import Recipe
from scalewright.workload.stage import check_stage
from scalewright.workload.training import FULL, Feed, TrainingMode, training_mode

if TYPE_CHECKING:
    from scalewright.catalog.library import Catalog

BUDGETS: dict[str, units.Dimension] = {
    "gpu-hours": units.COUNT,
    "energy": units.JOULES,
    "money": units.USD,
    "eur": units.EUR,
    "billed": units.COUNT,
    "time": units.SECONDS,
}
"""What a budget may limit; `billed` is in the unit of the site that the system belongs to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What the whole run may cost at most."""

    limits: Mapping[str, float] = field(default_factory=dict)
    """GPU-hours, joules, USD, EUR, the site's units and seconds, by the names of `BUDGETS`."""

    def broken(self, run: WholeRun) -> list[tuple[str, float]]:
        """Limits that a run exceeds, with what it needs."""
        return [(name, value) for name, value in self.needs(run).items() if value > self.limits[name]]

    def needs(self, run: WholeRun) -> dict[str, float]:
        """What a run needs of each limited figure; one that is not known cannot be held to."""
        known = {
            "gpu-hours": run.num_gpu_hours,
            "energy": None if run.energy is None else float(run.energy.total),
            "money": run.cost_usd,
            "eur": run.cost_eur,
            "billed": run.num_billed_units,
            "time": run.time_s,
        }
        needs = {}
        for name in self.limits:
            value = known[name]
            if value is None:
                raise ConfigError(f"budget {name} cannot be held to: {_why_unknown(name, run)}")
            needs[name] = value
        return needs

    def as_dicts(self, run: WholeRun) -> list[dict[str, Any]]:
        """Each limit beside what the run needs, with words for both and the upper end of the interval."""
        grown = run.interval_s[1] / run.time_s
        return [
            {
                "name": name, "limit": self.limits[name], "needs": needs, "high": needs * grown,
                "words": [self.words(name, value, run) for value in (self.limits[name], needs, needs * grown)],
            }
            for name, needs in self.needs(run).items()
        ]  # fmt: skip

    def words(self, name: str, value: float, run: WholeRun) -> str:
        """A sum of this kind with its unit, the site's own where the site bills in one."""
        facility = run.work.facility
        counted = {"gpu-hours": "GPU-hours", "billed": "" if facility is None else facility.billed_unit}
        return f"{units.format(value, BUDGETS[name])} {counted.get(name, '')}".rstrip()


def _why_unknown(name: str, run: WholeRun) -> str:
    facility = run.work.facility
    if name == "energy" or facility is None:
        return "the catalogue has no power or energy figures for this system"
    if name == "billed":
        return f"no site profile says how {run.work.machine} is billed; give gpu-hours instead"
    return facility.price_words


NO_BUDGET = Budget()


def parse_budget(text: str | None) -> Budget:
    """`gpu-hours=100000,energy=500 MWh,money=1 MUSD,time=30 d`, each optional; `money=900 kEUR` is `eur=900 kEUR`."""
    if not text:
        return NO_BUDGET
    limits = {}
    for name, value in assignments(text, allowed=tuple(BUDGETS), what="budget").items():
        kind = "eur" if name == "money" and value.rstrip().endswith("EUR") else name
        written = f"{value} EUR" if name == "eur" and _is_bare(value) else value
        if kind in limits:
            raise ConfigError(f"budget {text!r} limits {kind} twice: keep one")
        limits[kind] = units.parse(written, BUDGETS[kind])
        if limits[kind] <= 0.0:
            raise ConfigError(f"budget {name}={value}: nothing is free; give more than 0, or leave it out")
    return Budget(limits=limits)


def _is_bare(text: str) -> bool:
    """Whether a sum has no unit, which `eur=5000` need not repeat."""
    return text.strip().replace(".", "", 1).isdigit()


def parse_counts(nodes: str | None, gpus: int | None, machine: Machine) -> tuple[int, ...]:
    """Numbers of devices from nodes `8`, `8,16,32` or `8-64` (doublings) and from gpus, which must agree.

    Without both, one node; the plan then chooses among more (`PlanRequest.chooses_nodes`).
    """
    if nodes is None:
        return (machine.gpus_per_node,) if gpus is None else (_positive(gpus, "gpus"),)
    counts = tuple(n * machine.gpus_per_node for n in _node_counts(nodes))
    if gpus is None:
        return counts
    if len(counts) > 1:
        raise ConfigError(f"nodes {nodes} and gpus {gpus} conflict: give several node counts or one of GPUs")
    if counts[0] != gpus:
        raise ConfigError(
            f"nodes {nodes} and gpus {gpus} conflict: {nodes} nodes of {machine.name} have {counts[0]} devices"
        )
    return counts


def _node_counts(text: str) -> list[int]:
    first, dash, last = text.partition("-")
    if not dash:
        return sorted({_whole(part, text) for part in text.split(",")})
    low, high = _whole(first, text), _whole(last, text)
    if high < low:
        raise ConfigError(f"nodes {text}: {high} is below {low}; write the smaller one first")
    doublings = [low]
    while doublings[-1] * 2 <= high:
        doublings.append(doublings[-1] * 2)
    return doublings


def _whole(part: str, text: str) -> int:
    try:
        return _positive(units.whole(part.strip()), "nodes")
    except QuantityError as error:
        raise ConfigError(f"nodes {text!r}: write 128, a list 8,16,32 or doublings 8-64") from error


def _positive(value: int, name: str) -> int:
    if not 1 <= value <= MAX_SIZE:
        raise ConfigError(f"{name} {value}: it must be between 1 and {MAX_SIZE}")
    return value


def parse_objective(name: str) -> Objective:
    if name not in get_args(Objective):
        raise UnknownNameError("objective", name, get_args(Objective), hint=f"choose {', '.join(get_args(Objective))}")
    return cast(Objective, name)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingWork:
    """How much is trained in the whole run."""

    num_tokens: float
    num_steps: int | None = None
    """Set where steps were given, not tokens."""
    origin: str
    """Where the number comes from."""


FINE_TUNING_STEPS = 1000


def resolve_work(
    spec: ModelSpec, *, tokens: str | None, steps: int | None, global_batch: int, stage: str = "pretrain"
) -> TrainingWork:
    """The given tokens or steps; else those of the published run, else twenty tokens for each active parameter."""
    if tokens is not None and steps is not None:
        raise ConfigError(f"tokens {tokens} and steps {steps} conflict: give one of them")
    per_step = global_batch * spec.transformer.seq
    if steps is not None:
        return TrainingWork(num_tokens=float(_positive(steps, "steps") * per_step), num_steps=steps, origin="as asked")
    if tokens is not None:
        num = units.parse(tokens, units.COUNT)
        if num < 1:
            raise ConfigError(f"tokens {tokens}: a run trains on one token or more, such as 300B")
        return TrainingWork(num_tokens=num, origin="as asked")
    if stage == "sft":
        work = float(FINE_TUNING_STEPS * per_step)
        return TrainingWork(num_tokens=work, num_steps=FINE_TUNING_STEPS, origin="assumed: give --tokens or --steps")
    if spec.num_training_tokens is not None:
        return TrainingWork(num_tokens=spec.num_training_tokens, origin="as published")
    return TrainingWork(num_tokens=TOKENS_PER_PARAM * spec.num_active_params, origin="20 per parameter (Hoffmann 2022)")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """What a user writes of a plan, beside the system."""

    model: str
    global_batch: int | None = None
    """Samples per step; None: chosen from the critical batch."""
    nodes: str | None = None
    """`128`, a choice `8,16,32`, or doublings `8-64`; None, and no GPUs: the plan chooses."""
    gpus: int | None = None
    """Devices, where they are no whole nodes."""
    partition: str | None = None
    network: str | None = None
    """quiet or shared; None: as the system's entry says."""
    seq: int | None = None
    precision: str = "auto"
    """One or several, separated by commas."""
    stack: str = "auto"
    fix: str | None = None
    """Knobs that the search may not turn: `tp=8,recompute=full`."""
    objective: str = "time"
    tokens: str | None = None
    """Tokens of the whole run, such as `300B`."""
    steps: int | None = None
    """Steps of the whole run, instead of tokens."""
    budget: str | None = None
    walltime: str | None = None
    """Longest job of the queue, such as `24 h`; None: the site's limit, where the system has a profile."""
    site: str | None = None
    """Profile of the cluster, for its limits; None: that of the system."""
    mode: str = "full"
    stage: str = "pretrain"
    rl: str | None = None
    """The step of stage rl, as `predict` takes it."""
    generate: str | None = None
    """The requests of stage generate, as `predict` takes them."""
    top: int = 5
    """How many layouts to list."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """A plan's question, resolved."""

    spec: ModelSpec
    system: str
    machine: Machine
    stack: str
    """A stack's name, or auto."""
    stack_origin: str = ""
    """Why this stack, where the user did not name it and it is not auto."""
    counts: tuple[int, ...]
    """Numbers of devices to choose from."""
    global_batch: int
    recipes: tuple[Recipe, ...]
    work: TrainingWork
    feed: Feed
    facility: Facility
    fixed: Fixed = NOTHING_FIXED
    objective: Objective = "time"
    mode: TrainingMode = FULL
    stage: str = "pretrain"
    budget: Budget = NO_BUDGET
    limit_s: float | None = None
    """Longest job of the queue, as the user gives it."""
    site: Site | None = None
    """The cluster, for its limits."""
    chooses_nodes: bool = False
    """Whether the number of nodes is the question."""
    batch_origin: str = "as asked"
    """Where the global batch comes from."""
    top: int = 5

    def time_limit(self, num_gpus: int) -> tuple[float, str] | None:
        """The longest job of that size in seconds, and the rule that says so; None where no limit is known."""
        if self.limit_s is not None:
            return self.limit_s, "as asked"
        if self.site is None:
            return None
        usual, nodes = self.site.select, self.machine.num_nodes_for(num_gpus)
        limit = longest_s(self.site, partition=usual.partition, qos=usual.qos, num_nodes=nodes)
        return None if limit is None else (float(limit[0]), f"limit of {self.site.name} for {limit[1]}")

    def space(self, catalog: Catalog, num_gpus: int) -> Space:
        return Space(
            spec=self.spec, machine=self.machine, num_gpus=num_gpus, global_batch=self.global_batch,
            recipes=self.recipes, stack_of=stacks_by_zero(self.stack, catalog, self.machine), fixed=self.fixed,
            mode=self.mode, feed=self.feed, catalog=catalog, is_auto_stack=self.stack == AUTO,
            stack_origin=self.stack_origin,
        )  # fmt: skip

    def resolved(self) -> dict[str, Any]:
        return {
            "model": self.spec.id,
            "shape": self.spec.transformer.model_dump(mode="json", exclude={"source", "context"}),
            "machine": self.machine.as_input(),
            "num_gpus": list(self.counts),
            "global_batch": self.global_batch,
            "global_batch_origin": self.batch_origin,
            "chooses_nodes": self.chooses_nodes,
            "precision": [r.name for r in self.recipes],
            "stack": self.stack,
            "fixed": dict(self.fixed.values),
            "objective": self.objective,
            "mode": str(self.mode),
            "stage": self.stage,
            "num_tokens": self.work.num_tokens,
            "num_steps": self.work.num_steps,
            "tokens_origin": self.work.origin,
            "budget": dict(self.budget.limits),
            "walltime_limit_s": self.limit_s,
            "site": None if self.site is None else self.site.id,
            "storage": None if self.feed.storage is None else self.feed.storage.id,
        }


def check_top(num: int) -> None:
    """Refuse a list of no layouts or of too many."""
    if not 1 <= num <= MAX_TOP:
        raise ConfigError(f"top {num}: list 1 to {MAX_TOP} layouts")


def resolve_request(
    catalog: Catalog, system: str | Place, options: PlanOptions, *, feed: Feed | None = None
) -> PlanRequest:  # fmt: skip
    """What the options mean on one system.

    `feed` None: samples and checkpoints are in the system's own storage, and checkpoints are written beside training.
    """
    check_stage(options.stage)
    check_top(options.top)
    limit_s = None if options.walltime is None else units.parse(options.walltime, units.SECONDS)
    if limit_s == 0:
        raise ConfigError(f"walltime {options.walltime}: a job needs time, such as 24 h")
    spec = resolve_spec(catalog, options.model, options.seq)
    if spec.is_vision:
        raise ConfigError(f"{spec.id} has one layout, data parallel: predict it with a layout such as dp=8,mbs=256")
    place = resolve_place(
        catalog, system, partition=options.partition, network=options.network, num_ranks=options.gpus or 1
    )
    machine, counts = place.machine, parse_counts(options.nodes, options.gpus, place.machine)
    global_batch, batch_origin = resolve_batch(spec, machine, options)
    precisions = [name.strip() for name in options.precision.split(",") if name.strip()]
    if feed is None:
        is_open = options.nodes is None and options.gpus is None and machine.num_nodes != 1
        num_gpus = machine.gpus_per_node + 1 if is_open else max(counts)  # several nodes have the system's storage
        feed = Feed(storage=place.storage_of(catalog, num_gpus=num_gpus), async_checkpoint=True)
    return PlanRequest(
        spec=spec, system=place.system, machine=machine, stack=options.stack, limit_s=limit_s,
        facility=facility_of(catalog, place.system, machine.accelerator.id), global_batch=global_batch,
        batch_origin=batch_origin, chooses_nodes=options.nodes is None and options.gpus is None,
        site=resolve_site(options.site, place), stage=options.stage, counts=counts, fixed=parse_fixed(options.fix),
        recipes=tuple(dict.fromkeys(resolve_recipe(name, machine) for name in precisions)),
        work=resolve_work(
            spec, tokens=options.tokens, steps=options.steps, global_batch=global_batch, stage=options.stage
        ),
        feed=feed, objective=parse_objective(options.objective), mode=training_mode(options.mode),
        budget=parse_budget(options.budget), top=options.top,
    )  # fmt: skip


def resolve_site(name: str | None, place: Place) -> Site | None:
    """The profile of that name; else that of the catalogued system, which a calibration of one machine is not."""
    if name is not None:
        return find_site(name)
    return None if place.calibration is not None or not place.system else site_of_system(place.system)


def resolve_batch(spec: ModelSpec, machine: Machine, options: PlanOptions) -> tuple[int, str]:
    """Samples per step, and where the number comes from: as given, else from the critical batch."""
    if options.global_batch is not None:
        return options.global_batch, "as asked"
    if options.stage == "sft":
        usual = machine.constants.fine_tuning_batch
        return int(usual.value), f"chosen: {usual.value:.0f} samples, as in published fine-tuning (Tulu 3)"
    tokens = options.tokens if options.steps is None else None
    work = resolve_work(spec, tokens=tokens, steps=None, global_batch=1)
    critical = batch_verdict(spec, global_batch=1, num_tokens=work.num_tokens).critical_tokens
    batch = 2 ** int(math.log2(max(critical / spec.transformer.seq, 1.0)))
    least = extra_tokens_frac(batch_tokens=batch * spec.transformer.seq, critical_tokens=critical)
    return batch, (
        f"chosen: {batch} samples, the largest power of two within the critical batch of "
        f"{units.format(critical, units.COUNT)} tokens (Kaplan 2020); the same loss takes {1.0 + least:.1f} times the "
        "fewest tokens"
    )


MAX_TOP = 1000


def check_request(request: PlanRequest) -> None:
    """Refuse what contradicts itself, naming the two that do."""
    fixed = request.fixed.values
    if request.global_batch < 1 or request.global_batch > MAX_SIZE:
        raise ConfigError(f"global batch {request.global_batch}: it must be 1 or more samples")
    if "gbs" in fixed and int(fixed["gbs"]) != request.global_batch:
        raise ConfigError(f"fix gbs={fixed['gbs']} and a global batch of {request.global_batch} conflict: give one")
    degrees = {k: int(fixed[k]) for k in ("tp", "pp", "cp", "dp") if k in fixed}
    product = 1
    for value in degrees.values():
        product *= value
    text = " x ".join(f"{k}={v}" for k, v in degrees.items())
    for count in request.counts:
        whole = len(degrees) == 4
        if count % product or (whole and count != product):
            rule = f"it takes {product} devices" if whole else f"{count} is not a multiple of {product}"
            raise ConfigError(f"fix {text} and {count} devices conflict: {rule}")
