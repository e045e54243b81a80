"""Question: everything that a prediction depends on, with every name resolved and every option checked.

    question = ask(catalog, model="llama3-70b", system="leonardo", layout="tp=4,pp=4,dp=8,gbs=256")

The command line, studies, launches, lint and notebooks all build their questions here, so that the same words mean the
same prediction everywhere. `planner.answer.answer` answers a question.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any

from scalewright.catalog.derive import training_precision
from scalewright.catalog.library import Catalog
from scalewright.catalog.types import Stack
from scalewright.costs.energy import Facility
from scalewright.costs.machine import Machine, pick_partition, with_network
from scalewright.costs.setting import Setting
from scalewright.costs.step import why_not_expressed
from scalewright.errors import ConfigError, LayoutError, NotExpressedError
from scalewright.here.place import HERE, Place, place_of
from scalewright.planner.context import check_stage_context
from scalewright.planner.energy_use import facility_of
from scalewright.planner.engine_stack import named_stack
from scalewright.planner.generation import (
    USUAL_ENGINE,
    GenerateRequest,
    Generation,
    check_generation,
    check_not_split,
    generation_input,
    generation_of,
    parse_generate,
)
from scalewright.planner.stack_reason import auto_stack_reason
from scalewright.records.documents import digest
from scalewright.workload.layout import Layout, check_divides, parse_layout
from scalewright.workload.lengths import LengthDistribution
from scalewright.workload.model import ModelSpec
from scalewright.workload.named import resolve_model
from scalewright.workload.precision import Recipe, recipe
from scalewright.workload.rl import RlStep, parse_rl
from scalewright.workload.training import FULL, TEXT, Feed, TrainingMode, training_mode

AUTO = "auto"
NOT_SPLIT_IN_VISION = ("tp", "pp", "vpp", "cp", "ep")


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerStep:
    """One training step of a transformer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionModelStep:
    """One training step of a convolutional network, data parallel: `dp` devices with `mbs` images each."""

    channels_last: bool | None = None
    """Order of the activations in memory; None: channels last where the stack compiles."""
    library_norms: bool = False
    """Activation and shortcut are in the norms of the device's library, as MXNet has them."""


StageQuestion = TransformerStep | VisionModelStep | Generation | RlStep
"""What is predicted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is predicted: a stage of a model on a machine."""

    spec: ModelSpec
    machine: Machine
    layout: Layout
    recipe: Recipe
    stack: Stack
    stack_origin: str = ""
    """Why this stack, where the user did not name it."""
    stage: StageQuestion = TransformerStep()
    mode: TrainingMode = FULL
    feed: Feed = TEXT
    facility: Facility | None = None
    """Building, grid and price; without them there is no energy, money or carbon."""
    system: str = ""
    """Catalogued system around the machine; empty where none was named."""
    basis: str = ""
    """Where the machine's numbers come from: the catalogue, or a calibration."""
    catalog: Catalog | None = field(default=None, repr=False, compare=False)
    """Where a what-if looks up the names of stacks and transports."""

    @property
    def num_gpus(self) -> int:
        """Devices of the layout, and those of a generator beside the trainer."""
        return int(self.layout.num_gpus) + (self.stage.rollout_gpus if isinstance(self.stage, RlStep) else 0)

    @property
    def num_nodes(self) -> int:
        return self.machine.num_nodes_for(self.num_gpus)

    @property
    def has_own_lengths(self) -> bool:
        """Whether the stage says how long sequences are, so that the model's own length does not count."""
        return isinstance(self.stage, Generation | RlStep)

    @property
    def model_words(self) -> str:
        """One line: parameters, what was assumed of the model, and what of it is not modelled."""
        return self.spec.words(uses_seq=not self.has_own_lengths)

    @property
    def setting(self) -> Setting:
        """What the cost models of a transformer's training step take."""
        return Setting(
            shape=self.spec.transformer, machine=self.machine, layout=self.layout, recipe=self.recipe, stack=self.stack,
            mode=self.mode, feed=self.feed,
        )  # fmt: skip

    @property
    def channels_last(self) -> bool:
        """Order of the activations of a vision model."""
        assert isinstance(self.stage, VisionModelStep)
        return self.stack.compiled if self.stage.channels_last is None else self.stage.channels_last

    @property
    def library_norms(self) -> bool:
        return isinstance(self.stage, VisionModelStep) and self.stage.library_norms

    @property
    def id(self) -> str:
        return digest(self.resolved_input())

    def _answers(self, rl: RlStep) -> LengthDistribution | None:
        """Lengths of the answers of an RL step; None: all are equal."""
        c = self.machine.constants
        lengths = rl.answers(least_cv=c.answer_spread.value, limit_frac=c.answers_at_limit.value)
        return None if lengths.is_fixed else lengths

    def rollout(self, *, taken_bytes: float = 0.0, num_batches: int = 1) -> Question:
        """The generation inside an RL step, beside `taken_bytes` that the trainer holds on each device.

        `num_batches` is how many steps' answers are written together.
        """
        rl = self.stage
        assert isinstance(rl, RlStep)
        if rl.rollout_memory_frac is not None:  # the engine fills less of a device than usual
            usual = self.machine.constants.serving_memory_share.value
            taken_bytes += (usual - rl.rollout_memory_frac) * self.machine.memory_bytes
        per_copy = rl.rollout_tp * rl.rollout_pp
        return replace(
            self,
            spec=self.spec.with_seq(rl.prompt_len + rl.response_len),
            recipe=rl.rollout_recipe or self.recipe,
            layout=Layout(
                tp=rl.rollout_tp, pp=rl.rollout_pp, dp=(rl.rollout_gpus or self.num_gpus) // per_copy,
                gbs=num_batches * rl.num_sequences,
            ),
            stage=Generation(
                prompt_len=rl.prompt_len, response_len=rl.response_len, longest_len=rl.longest_len,
                answers=self._answers(rl), num_per_prompt=rl.num_responses, taken_bytes=taken_bytes,
                engine=None if self.catalog is None else self.catalog.engine(USUAL_ENGINE),
            ),
            mode=FULL,
            feed=TEXT,
            facility=None,
        )  # fmt: skip

    def resolved_input(self) -> dict[str, Any]:
        """What the prediction follows from; its hash is the prediction's id."""
        match self.stage:
            case TransformerStep():
                return self._transformer_input()
            case VisionModelStep():
                return self._vision_input()
            case Generation() as generation:
                return {
                    "stage": "generate",
                    "model": self.spec.id,
                    "shape": self._shape_input(),
                    "machine": self.machine.as_input(),
                    "precision": self.recipe.name,
                    "stack": self.stack.id,
                    "num_gpus": self.num_gpus,
                    **generation_input(generation, self.layout, self.recipe),
                }
            case RlStep() as rl:
                return self._rl_input(rl)

    def _shape_input(self) -> dict[str, Any]:
        return self.spec.transformer.model_dump(mode="json", exclude={"source", "context"})

    def _transformer_input(self) -> dict[str, Any]:
        return {
            "model": self.spec.id,
            "shape": self._shape_input(),
            "machine": self.machine.as_input(),
            "layout": self.layout.as_dict(),
            "precision": self.recipe.name,
            "stack": self.stack.id,
            "optimizer": self.recipe.optimizer,
            "mode": str(self.mode),
            "storage": None if self.feed.storage is None else self.feed.storage.id,
            "samples": "files" if self.feed.one_file_each else "shards",
            "checkpoint": "async" if self.feed.async_checkpoint else "sync",
        }

    def _vision_input(self) -> dict[str, Any]:
        return {
            "model": self.spec.id,
            "machine": self.machine.as_input(),
            "layout": self.layout.as_dict(),
            "precision": self.recipe.name,
            "stack": self.stack.id,
            "channels_last": self.channels_last,
            **({"library_norms": True} if self.library_norms else {}),
            "num_loaders": self.feed.num_loaders,
            "storage": None if self.feed.storage is None else self.feed.storage.id,
            **({"samples": "files"} if self.feed.one_file_each else {}),
        }

    def _rl_input(self, rl: RlStep) -> dict[str, Any]:
        return {
            "stage": "rl",
            "model": self.spec.id,
            "machine": self.machine.as_input(),
            "layout": self.layout.as_dict(),
            "precision": self.recipe.name,
            **({} if self.recipe.optimizer == "adam" else {"optimizer": self.recipe.optimizer}),
            "stack": self.stack.id,
            "mode": str(self.mode),
            "step": {name: getattr(rl, name) for name in _named_fields(rl)},
            **({"storage": self.feed.storage.id} if rl.sync == "file" and self.feed.storage is not None else {}),
            "rollout": self.rollout().resolved_input(),
        }


def _named_fields(rl: RlStep) -> list[str]:
    """Fields that the step follows from; those of a budget and of a bound count where there is one."""
    unused = {"rollout_recipe"}
    if not rl.token_budget:
        unused |= {"token_budget", "retention"}
    if rl.staleness is None:
        unused.add("staleness")
    return [field.name for field in fields(rl) if field.name not in unused]


def ask(
    catalog: Catalog, *, model: str | ModelSpec, system: str | Place | Machine, layout: str | Layout,
    precision: str = AUTO, stack: str = AUTO, seq: int | None = None, partition: str | None = None,
    transport: str | None = None, network: str | None = None, generate: str | GenerateRequest | None = None,
    rl: str | RlStep | None = None,
    mode: str = "full", lora_rank: int | None = None, optimizer: str | None = None, storage: str | None = None,
    samples: str = "shards", checkpoint: str = "sync", num_loaders: int | None = None,
    channels_last: bool | None = None,
) -> Question:  # fmt: skip
    """Resolve every name and check every option. Whether the layout fits model and machine, `check` says.

    `system` is a name as people write it, a place that was resolved before, or a bare machine, which has no storage,
    grid or price around it. `network` says whether other jobs share the fabric: quiet or shared; None: as the system's
    entry says. Transformers read from the system's own storage unless `storage` names another. Images
    are ready unless `storage` is named.
    """
    if generate is not None and rl is not None:
        raise ConfigError("generate and rl exclude each other: an RL step holds its own generation; give one of them")
    spec = resolve_spec(catalog, model, seq)
    split = parse_layout(layout) if isinstance(layout, str) else layout
    place = resolve_place(
        catalog, system, partition=partition, transport=transport, network=network, num_ranks=int(split.num_gpus)
    )
    machine = place.machine
    chosen_recipe = resolve_recipe(precision, machine)
    chosen_stack = resolve_stack(stack, catalog, split, machine, is_vision=spec.is_vision)
    training_options = {
        "mode": mode != "full",
        "lora-rank": lora_rank is not None,
        "optimizer": optimizer is not None,
        "checkpoint": checkpoint != "sync",
    }
    if generate is not None:
        _check_unused(training_options, reason="generation trains nothing")
    elif spec.is_vision:
        _check_unused(training_options, reason="vision models train all weights with momentum")
    return Question(
        spec=spec, machine=machine, layout=split, recipe=chosen_recipe.with_optimizer(optimizer or "adam"),
        stack=chosen_stack,
        stack_origin=auto_stack_reason(split, machine, is_vision=spec.is_vision) if stack == AUTO else "",
        mode=training_mode(mode, lora_rank=lora_rank),
        feed=_feed(
            catalog, place, num_gpus=int(split.num_gpus), is_vision=spec.is_vision, storage=storage, samples=samples,
            checkpoint=checkpoint, num_loaders=num_loaders,
        ),
        stage=_stage(catalog, spec, split, generate=generate, rl=rl, channels_last=channels_last),
        facility=facility_of(catalog, place.system, machine.accelerator.id) if place.system else None,
        system=place.system, basis=place.basis, catalog=catalog,
    )  # fmt: skip


def resolve_spec(catalog: Catalog, model: str | ModelSpec, seq: int | None = None) -> ModelSpec:
    """The model that is meant, with sequences of `seq` tokens; None: its own length."""
    spec = resolve_model(catalog, model) if isinstance(model, str) else model
    return spec if seq is None else spec.with_seq(seq)


def resolve_place(
    catalog: Catalog, system: str | Place | Machine, *, partition: str | None = None, transport: str | None = None,
    network: str | None = None, num_ranks: int = 1,
) -> Place:  # fmt: skip
    """The machine that is meant, with the system around it."""
    if isinstance(system, Place):
        place = system
    elif isinstance(system, Machine):
        place = Place(machine=system, system="", basis="")
    else:
        place = place_of(catalog, system, partition=partition, transport=transport, num_ranks=num_ranks)
    return replace(place, machine=with_network(place.machine, network))


def resolve_recipe(name: str, machine: Machine) -> Recipe:
    """The recipe of that name; `auto` takes bf16 where the device has it, else fp16, else fp32."""
    if name != AUTO:
        return recipe(name)
    return recipe(training_precision(machine.accelerator))


def resolve_stack(
    name: str, catalog: Catalog, layout: Layout, machine: Machine | None = None, *, is_vision: bool = False
) -> Stack:
    """The stack of that name, or of the training program of that name; `auto`: compiled for vision, eager for ZeRO-3
    and on CPUs, else Megatron-Core; on a calibrated machine the stack of `bench language`."""
    if name != AUTO:
        return named_stack(name, catalog, machine)
    if is_vision:
        return catalog.stack("compiled")
    if machine is not None and machine.calibration_id:  # what runs here is what was measured here
        alone = int(layout.num_gpus) == 1 and machine.accelerator.kind != "cpu" and layout.recompute == "none"
        return catalog.stack_of_own_run("graphs" if alone else "off")
    on_cpu = machine is not None and machine.accelerator.kind == "cpu"
    return catalog.stack("eager" if layout.zero >= 3 or on_cpu else "megatron-core")


def _check_unused(given_options: dict[str, bool], *, reason: str) -> None:
    """Refuse options that the prediction would not follow."""
    unused = [name for name, is_given in given_options.items() if is_given]
    if unused:
        raise ConfigError(f"option {unused[0]} means nothing here: {reason}; leave it out")


def _feed(
    catalog: Catalog, place: Place, *, num_gpus: int, is_vision: bool, storage: str | None, samples: str,
    checkpoint: str, num_loaders: int | None,
) -> Feed:  # fmt: skip
    """Where samples come from and how many workers load them."""
    if samples not in ("shards", "files"):
        raise ConfigError(f"samples {samples!r}: choose shards or files; a shard holds many samples, a file one")
    if samples == "files" and storage is None and is_vision:
        raise ConfigError("samples in files need a storage to read them from: name one (see: catalog storage)")
    if checkpoint not in ("sync", "async"):
        raise ConfigError(f"there is no checkpoint kind {checkpoint!r}: choose sync or async")
    own = place.storage_of(catalog, num_gpus=num_gpus) if place.system else None
    is_measured = place.has_measured_storage and own is place.storage
    if storage == HERE and not is_measured:
        raise ConfigError(
            f"storage {HERE}: no storage was measured on {place.machine.name}; run scalewright calibrate with a longer "
            "budget, or name one (see: catalog storage)"
        )
    source = None if storage is None and is_vision else own  # images are ready unless a storage is named
    if storage is not None and storage != HERE:
        source = catalog.storage(storage)
    if num_loaders is None:
        num_loaders = _num_image_loaders(catalog, place) if is_vision else TEXT.num_loaders
    return Feed(
        storage=source,
        epoch_storage=(source or own) if is_vision else None,
        one_file_each=samples == "files",
        async_checkpoint=checkpoint == "async",
        num_loaders=num_loaders,
    )


def _num_image_loaders(catalog: Catalog, place: Place) -> int:
    """Loader workers for each device: a node's cores shared among its devices, where they are known."""
    if not place.system:
        return TEXT.num_loaders
    partition = pick_partition(catalog.system(place.system), place.machine.name.partition("/")[2])
    cores = partition.cpu_cores_per_node
    return TEXT.num_loaders if cores is None else max(int(cores.value) // place.machine.gpus_per_node, 1)


def _stage(
    catalog: Catalog, spec: ModelSpec, layout: Layout, *, generate: str | GenerateRequest | None,
    rl: str | RlStep | None, channels_last: bool | None,
) -> StageQuestion:  # fmt: skip
    if generate is not None:
        check_not_split(layout)
        if not isinstance(generate, str):
            return generation_of(catalog, generate)
        generation = generation_of(catalog, parse_generate(generate))
        check_stage_context(spec, generation)
        return generation
    if rl is not None:
        if not isinstance(rl, str):
            return rl
        step = parse_rl(rl)
        check_stage_context(spec, step)
        return step
    return VisionModelStep(channels_last=channels_last) if spec.is_vision else TransformerStep()


def check(question: Question) -> None:
    """Refuse a layout that cannot split the model, or that the machine has not the devices for."""
    match question.stage:
        case TransformerStep():
            _check_divides(question, question.spec)
        case VisionModelStep():
            _check_data_parallel(question)
        case Generation() as generation:
            _check_generation(question, generation)
        case RlStep() as rl:
            _check_rl(question, rl)
    check_num_gpus(question.machine, question.num_gpus, layout=f"layout {question.layout.brief} needs ")


def _check_divides(question: Question, spec: ModelSpec) -> None:
    shape = spec.transformer
    check_divides(
        question.layout,
        layers=shape.layers,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        seq=shape.seq,
        num_experts=shape.moe.num_experts if shape.moe else 0,
    )


def check_num_gpus(machine: Machine, num_gpus: int, *, layout: str = "") -> None:
    """Refuse more devices than the machine has: the one place that knows this rule."""
    if num_gpus > machine.gpus_per_node and machine.network_bytes_per_s_per_gpu is None:
        raise LayoutError(f"{layout}{num_gpus} devices: {machine.name} is one node of {machine.gpus_per_node}")
    num_nodes = machine.num_nodes_for(num_gpus)
    if machine.num_nodes is not None and num_nodes > machine.num_nodes:
        raise LayoutError(f"{layout}{num_nodes} nodes: {machine.name} has {machine.num_nodes}, use fewer devices")


def _check_data_parallel(question: Question) -> None:
    layout = question.layout
    split = [name for name in NOT_SPLIT_IN_VISION if int(getattr(layout, name)) > 1]
    if split or layout.gbs != layout.dp * layout.mbs:
        problem = f"{split[0]} above 1" if split else f"gbs={layout.gbs}"
        raise ConfigError(
            f"{question.spec.id} is trained data parallel, one batch a step: {problem} does not apply; set dp and mbs"
        )


def check_writes_text(spec: ModelSpec) -> None:
    if not spec.transformer.causal:
        raise ConfigError(
            f"{spec.id} reads whole sequences and generates none: choose a causal model, such as llama3-8b"
        )


def _check_generation(question: Question, generation: Generation) -> None:
    reason = why_not_expressed(question.spec)
    if reason is not None:
        raise NotExpressedError(f"{question.spec.id}: {reason}")
    check_writes_text(question.spec)
    check_generation(question.spec, question.layout, generation)


def _check_rl(question: Question, rl: RlStep) -> None:
    # what a rank computes is packed, so no length has to divide; the longest sequence is split by cp in memory
    multiple = 2 * int(question.layout.cp)
    longest = -(-rl.longest_sequence // multiple) * multiple
    _check_divides(question, question.spec.with_seq(longest))
    if rl.num_sequences % int(question.layout.gbs):
        raise ConfigError(
            f"{rl.num_sequences} answers are not whole mini-batches of gbs={question.layout.gbs}: choose a gbs that "
            "divides them"
        )
    per_copy, devices = rl.rollout_tp * rl.rollout_pp, rl.rollout_gpus or question.num_gpus
    if per_copy < 1 or devices % per_copy:
        split = f"tp={rl.rollout_tp}" + (f", pp={rl.rollout_pp}" if rl.rollout_pp > 1 else "")
        raise ConfigError(f"{devices} devices are not whole copies of {split}: choose a multiple of {per_copy}")
