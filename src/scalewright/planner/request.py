"""What a plan is asked: model, machine, node counts, batch and limits, resolved once and checked against each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast, get_args

from scalewright import units
from scalewright.costs.energy import Facility
from scalewright.costs.machine import Machine
from scalewright.errors import ConfigError, UnknownNameError
from scalewright.planner.critical_batch import TOKENS_PER_PARAM
from scalewright.planner.search.search import Objective
from scalewright.planner.search.space import NOTHING_FIXED, Fixed, Space, stacks_by_zero
from scalewright.planner.whole_run import WholeRun
from scalewright.workload.grammar import MAX_SIZE, assignments
from scalewright.workload.model import ModelSpec
from scalewright.workload.precision import Recipe
from scalewright.workload.training import FULL, Feed, TrainingMode

if TYPE_CHECKING:
    from scalewright.catalog.library import Catalog

BUDGETS: dict[str, units.Dimension] = {
    "gpu-hours": units.COUNT,
    "energy": units.JOULES,
    "money": units.USD,
    "time": units.SECONDS,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What the whole run may cost at most."""

    limits: Mapping[str, float] = field(default_factory=dict)
    """GPU-hours, joules, USD and seconds, by the names of `BUDGETS`."""

    def broken(self, run: WholeRun) -> list[tuple[str, float]]:
        """Limits that a run exceeds, with what it needs; a figure that is not known cannot be held to."""
        needs = {
            "gpu-hours": run.num_gpu_hours,
            "energy": None if run.energy is None else float(run.energy.total),
            "money": run.cost_usd,
            "time": run.time_s,
        }
        found = []
        for name, limit in self.limits.items():
            value = needs[name]
            if value is None:
                raise ConfigError(f"budget {name} cannot be held to: the catalogue has no price or energy for this run")
            if value > limit:
                found.append((name, value))
        return found


NO_BUDGET = Budget()


def parse_budget(text: str | None) -> Budget:
    """`gpu-hours=100000,energy=500 MWh,money=1 MUSD,time=30 d`, each of them optional."""
    if not text:
        return NO_BUDGET
    written = assignments(text, allowed=tuple(BUDGETS), what="--budget")
    return Budget(limits={name: units.parse(value, BUDGETS[name]) for name, value in written.items()})


def parse_counts(nodes: str | None, gpus: int | None, machine: Machine) -> tuple[int, ...]:
    """Numbers of devices from `--nodes 8`, `8,16,32` or `8-64` (doublings) and `--gpus`, which must agree.

    A machine of one node has nothing to choose: all its devices.
    """
    if nodes is None:
        if gpus is None and machine.num_nodes == 1:
            return (machine.gpus_per_node,)
        if gpus is None:
            raise ConfigError("how many devices? give --nodes 128, --nodes 8,16,32, --nodes 8-64 or --gpus 1024")
        return (_positive(gpus, "--gpus"),)
    counts = tuple(n * machine.gpus_per_node for n in _node_counts(nodes))
    if gpus is None:
        return counts
    if len(counts) > 1:
        raise ConfigError(f"--nodes {nodes} and --gpus {gpus} conflict: give several node counts or one of GPUs")
    if counts[0] != gpus:
        raise ConfigError(
            f"--nodes {nodes} and --gpus {gpus} conflict: {nodes} nodes of {machine.name} have {counts[0]} devices"
        )
    return counts


def _node_counts(text: str) -> list[int]:
    first, dash, last = text.partition("-")
    if not dash:
        return sorted({_whole(part, text) for part in text.split(",")})
    low, high = _whole(first, text), _whole(last, text)
    if high < low:
        raise ConfigError(f"--nodes {text}: {high} is below {low}; write the smaller one first")
    found = [low]
    while found[-1] * 2 <= high:
        found.append(found[-1] * 2)
    return found


def _whole(part: str, text: str) -> int:
    try:
        return _positive(int(part.strip()), "--nodes")
    except ValueError as error:
        raise ConfigError(f"--nodes {text!r}: write 128, a list 8,16,32 or doublings 8-64") from error


def _positive(value: int, name: str) -> int:
    if not 1 <= value <= MAX_SIZE:
        raise ConfigError(f"{name} {value}: it must be 1 or more, and no machine has above {MAX_SIZE}")
    return value


def parse_objective(name: str) -> Objective:
    if name not in get_args(Objective):
        raise UnknownNameError("objective", name, get_args(Objective), hint=f"choose {', '.join(get_args(Objective))}")
    return cast(Objective, name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """How much is trained in the whole run."""

    num_tokens: float
    num_steps: int | None = None
    """Set where steps were asked for, not tokens."""
    origin: str
    """Who says so."""


FINE_TUNING_STEPS = 1000


def resolve_work(
    spec: ModelSpec, *, tokens: str | None, steps: int | None, global_batch: int, stage: str = "pretrain"
) -> Work:
    """Tokens or steps as asked; else what the published run took, else twenty tokens for each parameter it meets."""
    if tokens is not None and steps is not None:
        raise ConfigError(f"--tokens {tokens} and --steps {steps} conflict: give one of them")
    per_step = global_batch * spec.transformer.seq
    if steps is not None:
        return Work(num_tokens=float(_positive(steps, "--steps") * per_step), num_steps=steps, origin="as asked")
    if tokens is not None:
        num = units.parse(tokens, units.COUNT)
        if num < 1:
            raise ConfigError(f"--tokens {tokens}: a run trains on one token or more, such as 300B")
        return Work(num_tokens=num, origin="as asked")
    if stage == "sft":
        work = float(FINE_TUNING_STEPS * per_step)
        return Work(num_tokens=work, num_steps=FINE_TUNING_STEPS, origin="assumed: give --tokens or --steps")
    if spec.num_training_tokens is not None:
        return Work(num_tokens=spec.num_training_tokens, origin="as published")
    return Work(num_tokens=TOKENS_PER_PARAM * spec.num_active_params, origin="20 per parameter (Hoffmann 2022)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A plan's question, resolved."""

    spec: ModelSpec
    system: str
    machine: Machine
    stack: str
    """A stack's name, or auto."""
    counts: tuple[int, ...]
    """Numbers of devices to choose from."""
    global_batch: int
    recipes: tuple[Recipe, ...]
    work: Work
    feed: Feed
    facility: Facility
    fixed: Fixed = NOTHING_FIXED
    objective: Objective = "time"
    mode: TrainingMode = FULL
    stage: str = "pretrain"
    budget: Budget = NO_BUDGET
    limit_s: float | None = None
    """Longest job of the queue."""
    top: int = 5

    def space(self, catalog: Catalog, num_gpus: int) -> Space:
        return Space(
            spec=self.spec, machine=self.machine, num_gpus=num_gpus, global_batch=self.global_batch,
            recipes=self.recipes, stack_of=stacks_by_zero(self.stack, catalog, self.machine), fixed=self.fixed,
            mode=self.mode, feed=self.feed,
        )  # fmt: skip

    def resolved(self) -> dict[str, Any]:
        return {
            "model": self.spec.id,
            "shape": self.spec.transformer.model_dump(mode="json", exclude={"source"}),
            "machine": self.machine.as_input(),
            "num_gpus": list(self.counts),
            "global_batch": self.global_batch,
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
            "storage": None if self.feed.storage is None else self.feed.storage.id,
        }


def check_request(request: Request) -> None:
    """Refuse what contradicts itself, naming the two that do."""
    fixed = request.fixed.values
    if request.global_batch < 1 or request.global_batch > MAX_SIZE:
        raise ConfigError(f"--global-batch {request.global_batch}: it must be 1 or more samples")
    if "gbs" in fixed and int(fixed["gbs"]) != request.global_batch:
        raise ConfigError(f"--fix gbs={fixed['gbs']} and --global-batch {request.global_batch} conflict: give one")
    degrees = {k: int(fixed[k]) for k in ("tp", "pp", "cp", "dp") if k in fixed}
    product = 1
    for value in degrees.values():
        product *= value
    text = " x ".join(f"{k}={v}" for k, v in degrees.items())
    for count in request.counts:
        whole = len(degrees) == 4
        if count % product or (whole and count != product):
            rule = f"it takes {product} devices" if whole else f"{count} is not a multiple of {product}"
            raise ConfigError(f"--fix {text} and {count} devices conflict: {rule}")
