"""Random questions of every kind over the whole catalogue: the words of a question, and what they mean when resolved."""

from __future__ import annotations

import json
import random
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any

from scalewright.catalog.library import Catalog, packaged_data
from scalewright.catalog.types import Storage
from scalewright.costs.collectives import Path, group_path
from scalewright.costs.machine import Machine
from scalewright.errors import ScalewrightError
from scalewright.here.place import Place
from scalewright.planner.answer import Answer, answer
from scalewright.planner.plan import Plan, make_plan
from scalewright.planner.question import Question, ask, resolve_place, resolve_spec
from scalewright.planner.request import PlanOptions, PlanRequest, resolve_request
from scalewright.planner.whole_run import WholeRun, step_work, whole_run
from scalewright.workload.model import ModelSpec
from scalewright.workload.precision import RECIPES

CATALOG = Catalog((packaged_data(),))
Words = dict[str, Any]
"""What a user would write: options by their names, a layout as its knobs."""
FIXED_SYSTEMS = ("laptop",)
"""Too small for most questions; asked less often."""


@cache
def place_at(
    system: str, partition: str | None = None, transport: str | None = None, network: str | None = None
) -> Place:
    return resolve_place(CATALOG, system, partition=partition, transport=transport, network=network)


@cache
def spec_of(model: str, seq: int | None = None) -> ModelSpec:
    return resolve_spec(CATALOG, model, seq)


@cache
def models(*, is_vision: bool) -> tuple[str, ...]:
    return tuple(name for name in CATALOG.ids("models") if spec_of(name).is_vision == is_vision)


@cache
def places() -> tuple[Words, ...]:
    """Every partition of every system, each with every transport of its fabric."""
    found: list[Words] = []
    for name in CATALOG.ids("systems"):
        for partition in CATALOG.system(name).partitions:
            here: Words = {"system": name, **({} if partition.default else {"partition": partition.id})}
            found.append(here)
            if partition.fabric is not None:
                others = CATALOG.fabric(partition.fabric).transports[1:]
                found += [{**here, "transport": other} for other in others]
    return tuple(found)


def layout_text(knobs: Words) -> str:
    return ",".join(f"{name}={value}" for name, value in knobs.items())


def machine_of(words: Words) -> Machine:
    return place_at(words["system"], words.get("partition"), words.get("transport"), words.get("network")).machine


@dataclass
class Asked:
    """A question in words, and what rules ask about it. `chance` draws what a rule leaves open, the same each time."""

    kind: str
    words: Words
    seed: int
    chance: random.Random = field(default_factory=random.Random)
    fault: str = ""
    """The exception that the question itself ended in, where it was no refusal."""

    def drawn_for(self, rule: str) -> Asked:
        """The same question with the chance that this rule always has for it."""
        self.chance = random.Random(f"{rule}-{self.seed}")
        return self

    @property
    def machine(self) -> Machine:
        return machine_of(self.words)

    @cached_property
    def question(self) -> Question:
        return question_of(self.words)

    @cached_property
    def answer(self) -> Answer:
        return answer(self.question)

    def with_words(self, **changes: Any) -> Answer:
        """The answer to the same words but for some; None leaves a word out."""
        return answer(question_of(changed_words(self.words, changes)))

    def with_layout(self, **knobs: Any) -> Answer:
        """The answer with some knobs of the layout set otherwise, everything else resolved as it is."""
        question = self.question
        return answer(replace(question, layout=replace(question.layout, **knobs)))

    def with_machine(self, **fields: Any) -> Answer:
        question = self.question
        return answer(replace(question, machine=replace(question.machine, **fields)))

    def with_shape(self, **fields: Any) -> Answer:
        spec = self.question.spec
        return self.asked_with(spec=replace(spec, shape=spec.transformer.model_copy(update=fields)))

    def with_stage(self, **fields: Any) -> Answer:
        question = self.question
        return answer(replace(question, stage=replace(question.stage, **fields)))  # type: ignore[type-var]

    def asked_with(self, **fields: Any) -> Answer:
        return answer(replace(self.question, **fields))

    @cached_property
    def run(self) -> WholeRun:
        return self.run_with()

    def run_with(self, prediction: Answer | None = None, **changes: Any) -> WholeRun:
        """The whole run of the step, with some of its conditions otherwise."""
        run = {**self.words["run"], **changes}
        entry = run.pop("storage")
        storage = entry if isinstance(entry, Storage) else CATALOG.storage(entry)
        work = run.pop("work", None) or step_work(prediction or self.answer, is_searched=run.pop("searched", False))
        run.pop("searched", None)
        return whole_run(work=work, storage_entry=storage, **run)

    @cached_property
    def request(self) -> PlanRequest:
        return request_of(self.words)

    @cached_property
    def plan(self) -> Plan:
        return make_plan(CATALOG, self.request)

    def planned_with(self, **changes: Any) -> Plan:
        return make_plan(CATALOG, request_of(changed_words(self.words, changes)))

    @property
    def path(self) -> Path:
        return self.path_with()

    def path_with(self, machine: Machine | None = None, **changes: Any) -> Path:
        """The group of ranks of a question about a network."""
        group = {**self.words["group"], **changes}
        return group_path(machine or self.machine, **group)

    @property
    def text(self) -> str:
        """The question as a command, or as its words where no command asks it."""
        if self.kind in ("run", "network", "storage"):
            return f"{self.kind}: {json.dumps(self.words)}"
        options = {
            **self.words,
            **{k: layout_text(self.words[k]) for k in ("layout", "generate", "rl") if k in self.words},
        }
        flags = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in options.items())
        return f"scalewright {'plan' if self.kind == 'plan' else 'predict'} {flags}"


def changed_words(words: Words, changes: Words) -> Words:
    return {name: value for name, value in {**words, **changes}.items() if value is not None}


def question_of(words: Words) -> Question:
    options = {k: v for k, v in words.items() if k not in ("run", "partition", "transport", "network", "system")}
    options["model"] = spec_of(options["model"], options.pop("seq", None))
    place = place_at(words["system"], words.get("partition"), words.get("transport"), words.get("network"))
    options["layout"] = layout_text(options["layout"])
    for name in ("rl", "generate"):
        if name in options:
            options[name] = layout_text(options[name])
    return ask(CATALOG, system=place, **options)


def request_of(words: Words) -> PlanRequest:
    options = {k: v for k, v in words.items() if k != "system"}
    return resolve_request(CATALOG, words["system"], PlanOptions(**options))


# Words of each kind, drawn.


def _place(chance: random.Random) -> Words:
    while True:
        words = dict(chance.choice(places()))
        if "transport" in words and chance.random() < 0.5:
            continue
        machine = machine_of(words)
        if machine.accelerator.kind == "cpu" and chance.random() < 0.8:
            continue
        if machine.network is not None and chance.random() < 0.25:
            words["network"] = chance.choice(("quiet", "shared"))
        return words


def _divisors(number: int, most: int) -> list[int]:
    return [n for n in range(1, min(number, most) + 1) if number % n == 0]


def _num_nodes(chance: random.Random, machine: Machine, most: int = 4096) -> int:
    """Powers of two mostly, and any other number."""
    limit = min(machine.num_nodes or most, most)
    if machine.network_bytes_per_s_per_gpu is None:
        limit = 1
    power = 2 ** chance.randint(0, max(limit.bit_length() - 1, 0))
    return min(power if chance.random() < 0.7 else chance.randint(1, power), limit)


def _precision(chance: random.Random, machine: Machine) -> str:
    has = set(machine.accelerator.peak)
    usable = [r.name for r in RECIPES.values() if {r.matmul, r.attention, r.head} <= has]
    return chance.choice(["auto", "auto", "auto", *usable])


def _training_layout(chance: random.Random, spec: ModelSpec, machine: Machine, most_nodes: int = 1024) -> Words:
    shape, per_node = spec.transformer, machine.gpus_per_node
    nodes = _num_nodes(chance, machine, most_nodes)
    devices = chance.choice(_divisors(per_node, per_node)) if nodes == 1 else nodes * per_node
    tp = chance.choice([n for n in _divisors(shape.heads, 2 * per_node) if devices % n == 0 and n <= 64] or [1])
    rest = devices // tp
    pp = chance.choice([1, 1, *[n for n in (2, 3, 4, 6, 8, 12, 16) if n <= shape.layers and rest % n == 0]])
    rest //= pp
    cp = chance.choice([1, 1, 1, *[n for n in (2, 4, 8) if rest % n == 0 and shape.seq % (2 * n) == 0]])
    dp = rest // cp
    mbs = chance.choice((1, 1, 2, 4, 8))
    knobs: Words = {
        "tp": tp,
        "pp": pp,
        "cp": cp,
        "dp": dp,
        "mbs": mbs,
        "gbs": dp * mbs * chance.choice((1, 2, 4, 8, 16, 6)),
    }
    if pp > 1 and chance.random() < 0.3:
        knobs["vpp"] = chance.choice((2, 3, 4))
    if shape.moe is not None and chance.random() < 0.7:
        knobs["ep"] = chance.choice([n for n in _divisors(shape.moe.num_experts, 64) if (dp * cp * tp) % n == 0])
    knobs["zero"] = chance.choice((0, 1, 1, 2, 3))
    knobs["sp"] = int(tp > 1 and chance.random() < 0.7)
    knobs["recompute"] = chance.choice(("none", "none", "selective", "operators", "full"))
    return knobs


def _training(chance: random.Random) -> Words:
    words: Words = {"model": chance.choice(models(is_vision=False)), **_place(chance)}
    if chance.random() < 0.4:
        words["seq"] = chance.choice((512, 1024, 2048, 4096, 8192, 16384, 32768))
    machine, spec = machine_of(words), spec_of(words["model"], words.get("seq"))
    words["layout"] = _training_layout(chance, spec, machine)
    words["precision"] = _precision(chance, machine)
    words["stack"] = chance.choice(("auto", "auto", *CATALOG.ids("stacks")))
    if chance.random() < 0.15:
        words["mode"] = chance.choice(("lora", "offload"))
    if chance.random() < 0.1:
        words["optimizer"] = "sgd"
    if chance.random() < 0.2:
        words["storage"], words["samples"] = chance.choice(CATALOG.ids("storage")), chance.choice(("shards", "files"))
    return words


def _serving_layout(chance: random.Random, spec: ModelSpec, machine: Machine) -> Words:
    shape, per_node = spec.transformer, machine.gpus_per_node
    nodes = _num_nodes(chance, machine, 64)
    devices = chance.choice(_divisors(per_node, per_node)) if nodes == 1 else nodes * per_node
    tp = chance.choice([n for n in _divisors(shape.heads, per_node) if devices % n == 0])
    rest = devices // tp
    pp = chance.choice([1, 1, 1, *[n for n in (2, 4) if n <= shape.layers and rest % n == 0]])
    knobs: Words = {"tp": tp, "pp": pp, "dp": rest // pp}
    if shape.moe is not None and chance.random() < 0.4:
        knobs["ep"] = chance.choice([n for n in _divisors(shape.moe.num_experts, 64) if (tp * knobs["dp"]) % n == 0])
    return knobs


def _response(chance: random.Random) -> tuple[Any, int]:
    mean = chance.choice((16, 64, 128, 256, 512, 761, 1024, 2048, 4096))
    if chance.random() < 0.5:
        return mean, mean
    longest = mean * chance.choice((2, 3, 4, 8))
    return f"lognormal:mean={mean},cv={chance.choice((0.3, 0.5, 0.8, 1.0, 1.5))},max={longest}", mean


def _generation(chance: random.Random) -> Words:
    words: Words = {"model": chance.choice(models(is_vision=False)), **_place(chance)}
    spec, machine = spec_of(words["model"]), machine_of(words)
    each = chance.choice((1, 1, 1, 4, 8))
    request: Words = {"prompt": chance.choice((32, 128, 512, 1024, 2048, 8192))}
    request["response"], mean = _response(chance)
    if request["response"] == mean and chance.random() < 0.3:
        request["longest"] = mean * chance.choice((2, 4))
    if each > 1:
        request["answers"] = each
    if chance.random() < 0.2:
        request["rate"] = round(2.0 ** chance.uniform(-4, 6), 3)
    if chance.random() < 0.2:
        request["running"] = chance.choice((1, 4, 16, 64, 256))
    if chance.random() < 0.2:
        request["cache"] = "fp8"
    if chance.random() < 0.2:
        request["weights"] = chance.choice(("int4", "int8", "fp8"))
    if chance.random() < 0.2:
        request["engine"] = chance.choice(CATALOG.ids("engines"))
    words["layout"] = {
        **_serving_layout(chance, spec, machine),
        "gbs": each * chance.choice((1, 2, 8, 30, 64, 256, 389, 1024, 2048)),
    }
    words["precision"] = _precision(chance, machine)
    words["generate"] = request
    return words


def _rl(chance: random.Random) -> Words:
    words: Words = {"model": chance.choice(models(is_vision=False)), **_place(chance)}
    machine, spec = machine_of(words), spec_of(words["model"])
    layout = _training_layout(chance, spec, machine, 64)
    prompts, samples = chance.choice((8, 32, 64, 128, 512)), chance.choice((4, 8, 16))
    share = layout["dp"] * layout["mbs"]
    sequences = prompts * samples
    layout["gbs"] = chance.choice([n for n in _divisors(sequences, sequences) if n % share == 0] or [sequences])
    rl: Words = {"prompts": prompts, "samples": samples, "prompt": chance.choice((128, 512, 1024))}
    rl["response"] = chance.choice((128, 512, 1000, 2048, 3000, 4096))
    devices = layout["tp"] * layout["pp"] * layout["cp"] * layout["dp"]
    if chance.random() < 0.6:
        rl["longest"] = rl["response"] * chance.choice((2, 3, 4, 8))
        if chance.random() < 0.3:
            rl["cv"] = chance.choice((0.3, 0.6, 1.0, 1.5))
    if chance.random() < 0.4:
        rl["gpus"] = machine.gpus_per_node * chance.choice((1, 2, 4, 8))
        rl |= chance.choice(({}, {"lag": 1}, {"lag": 2}, {"stale": 0.5}, {"chunks": 4}))
    pool = rl.get("gpus", devices)
    rl["tp"] = chance.choice([n for n in _divisors(spec.transformer.heads, machine.gpus_per_node) if pool % n == 0])
    longest = rl.get("longest", rl["response"])
    if chance.random() < 0.3 and "stale" not in rl:
        rl["budget"] = max(int(sequences * rl["response"] * chance.choice((0.5, 0.8, 1.0, 1.5, 4.0))), longest)
        if chance.random() < 0.5:
            rl["retention"] = chance.choice((1, 2, 4, 8))
    for name, values, often in (
        ("ref", (0,), 0.3), ("old", (0,), 0.2), ("pack", (0,), 0.2), ("keep", (1,), 0.2),
        ("sync", ("broadcast", "peers", "file"), 0.3), ("reward", (1.5, 20), 0.2), ("memory", (0.4, 0.6, 0.8), 0.2),
    ):  # fmt: skip
        if chance.random() < often:
            rl[name] = chance.choice(values)
    words["layout"], words["precision"], words["rl"] = layout, _precision(chance, machine), rl
    if chance.random() < 0.15:
        words["mode"] = chance.choice(("lora", "offload"))
    return words


def _vision(chance: random.Random) -> Words:
    words: Words = {"model": chance.choice(models(is_vision=True)), **_place(chance)}
    machine = machine_of(words)
    nodes = _num_nodes(chance, machine, 256)
    dp = chance.choice(_divisors(machine.gpus_per_node, 64)) if nodes == 1 else nodes * machine.gpus_per_node
    mbs = chance.choice((16, 32, 64, 128, 256, 96))
    words["layout"] = {"dp": dp, "mbs": mbs, "gbs": dp * mbs}
    words["precision"] = _precision(chance, machine)
    words["stack"] = chance.choice(("auto", "auto", "compiled", "eager"))
    if chance.random() < 0.5:
        words["storage"], words["samples"] = chance.choice(CATALOG.ids("storage")), chance.choice(("shards", "files"))
    if chance.random() < 0.3:
        words["num_loaders"] = chance.choice((1, 2, 4, 8, 16))
    return words


def _whole_run(chance: random.Random) -> Words:
    words = _training(chance)
    words["run"] = {
        "storage": chance.choice(CATALOG.ids("storage")), "checkpoint": chance.choice(("sync", "async")),
        **({"num_steps": chance.choice((10, 1000, 50_000, 1_000_000))} if chance.random() < 0.4
           else {"num_tokens": 10.0 ** chance.uniform(8, 13)}),
        "searched": chance.random() < 0.5,
    }  # fmt: skip
    if chance.random() < 0.3:
        words["run"]["limit_s"] = chance.choice((6, 12, 24, 48)) * 3600.0
    return words


PLANNED = ("gpt2", "gpt2-xl", "llama3.2-1b", "llama2-7b", "llama3-8b", "qwen2.5-14b", "qwen3-30b-a3b", "llama3-70b")


def _plan(chance: random.Random) -> Words:
    while True:
        place = _place(chance)
        machine = machine_of(place)
        if machine.accelerator.kind != "cpu" and "transport" not in place:
            break
    nodes = min(chance.choice((1, 2, 4, 6, 8, 16)), _num_nodes(chance, machine, 16))
    words: Words = {"model": chance.choice(PLANNED), **place, "nodes": str(nodes)}
    words["global_batch"] = nodes * machine.gpus_per_node * chance.choice((1, 2, 4, 8))
    if chance.random() < 0.3:
        words["objective"] = chance.choice(("gpu-hours", "energy", "money", "time"))
    if chance.random() < 0.5:
        words["tokens"] = chance.choice(("1B", "10B", "100B", "1T"))
    if chance.random() < 0.3:
        words["fix"] = chance.choice(("tp=1", "tp=2", "pp=1", "zero=1", "zero=3", "recompute=full", "mbs=1"))
    return words


def _network(chance: random.Random) -> Words:
    words = _place(chance)
    machine = machine_of(words)
    most = _num_nodes(chance, machine) * machine.gpus_per_node
    ranks = chance.choice([2**n for n in range(1, 16) if 2**n <= most] or [most])
    stride = chance.choice([n for n in (1, 1, 2, 4, 8, 64) if n * ranks <= most] or [1])
    job = chance.choice((ranks * stride, most))
    words["group"] = {"num_ranks": ranks, "stride": stride, "num_job_devices": job}
    words["size_bytes"] = float(int(2.0 ** chance.uniform(6, 34)))
    return words


def _storage(chance: random.Random) -> Words:
    return {
        "system": chance.choice(("leonardo", "lumi", "generic-h100")), "storage": chance.choice(CATALOG.ids("storage")),
        "nodes": 2 ** chance.randint(0, 12), "size_bytes": 2.0 ** chance.uniform(20, 45),
        "devices": 2 ** chance.randint(0, 16), "mttf_s": 10.0 ** chance.uniform(3, 9),
        "host_bytes_per_s": 10.0 ** chance.uniform(8, 11), "step_s": 10.0 ** chance.uniform(-2, 2),
    }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of question."""

    draw: Callable[[random.Random], Words]
    weight: int
    """Of a thousand questions, so many are of this kind."""
    num_rules: int
    """How many of its rules one question is asked."""


KINDS: dict[str, Kind] = {
    "training": Kind(draw=_training, weight=330, num_rules=8),
    "generation": Kind(draw=_generation, weight=200, num_rules=8),
    "rl": Kind(draw=_rl, weight=160, num_rules=5),
    "vision": Kind(draw=_vision, weight=80, num_rules=8),
    "run": Kind(draw=_whole_run, weight=100, num_rules=8),
    "network": Kind(draw=_network, weight=70, num_rules=10),
    "storage": Kind(draw=_storage, weight=50, num_rules=10),
    "plan": Kind(draw=_plan, weight=8, num_rules=3),
}  # fmt: skip


def is_asked(asked: Asked) -> bool:
    """Whether the words make a question that is answered, or one that ends in a fault."""
    try:
        match asked.kind:
            case "plan":
                return asked.plan.best is not None
            case "run":
                return asked.run.time_s > 0.0
            case "network":
                return float(asked.path.num_ranks) > 1
            case "storage":
                return True
            case _:
                return asked.answer.time_s > 0.0
    except ScalewrightError:
        return False
    except Exception:
        asked.fault = traceback.format_exc()
        return True


def questions(first: int, num: int, kinds: tuple[str, ...] = tuple(KINDS)) -> Iterator[Asked]:
    """So many questions from this number on; the same number is always the same question."""
    weights = [KINDS[kind].weight for kind in kinds]
    for seed in range(first, first + num):
        chance = random.Random(f"question-{seed}")
        kind = chance.choices(kinds, weights)[0]
        while not is_asked(asked := Asked(kind=kind, words=KINDS[kind].draw(chance), seed=seed)):
            pass
        yield asked
