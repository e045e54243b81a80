"""A vision run made ready: ranks, batch, data and device settled, its length predicted, nothing started yet."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from scalewright import units
from scalewright.catalog.library import Catalog
from scalewright.catalog.types import ConvShape
from scalewright.data.opening import open_samples
from scalewright.data.splits import HELD_OUT_EVERY, split_folders
from scalewright.errors import ConfigError, NotExpressedError
from scalewright.here.devices import device_here, machine_here, num_cores
from scalewright.launch.prepare.language_setup import default_ranks, machine_of
from scalewright.launch.prepare.outlook import Outlook, OverBudgetError, Ready, vision_outlook
from scalewright.launch.ranks.allocation import num_nodes
from scalewright.records.types import EnvName
from scalewright.workload.language_run import AUTO, SYNTHETIC, CompileMode
from scalewright.workload.model import ModelSpec
from scalewright.workload.vision_run import EPICURE_EPOCHS, MADE, RAM, MadeFormat, VisionRun

CPU_BATCH = 16
EPICURE_BATCHES = ((60e9, 128), (75e9, 256))
"""EPICURE's images a GPU by its memory: 128 for 40 GiB, 256 for 64 GiB, 512 for 80 GiB and more."""
LARGEST_BATCH = 512
SYNTHETIC_STEPS = 50
"""Steps of an epoch of images that have no number."""
MOST_WORKERS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionWanted:
    """What was asked for; None, 0 or `auto` where it is left to us."""

    spec: ModelSpec
    ranks: int | None = None
    batch: int | None = None
    image_size: int = 0
    epochs: int = 0
    steps: int = 0
    """Of an epoch."""
    device: str = AUTO
    precision: str = AUTO
    compile: str = AUTO
    channels: str = AUTO
    data: str = SYNTHETIC
    num_images: int = 0
    """That are made."""
    copy_to: str = ""
    workers: int | None = None
    protocol: str = "steady"
    options: Mapping[str, Any] = field(default_factory=dict)
    """Fields of VisionRun that need no settling."""


def settle_vision(catalog: Catalog, wanted: VisionWanted) -> VisionRun:
    """The configuration as far as it follows from what was asked, from the data and from this node."""
    shape = wanted.spec.shape
    if not isinstance(shape, ConvShape):
        raise NotExpressedError(f"{wanted.spec.id} is no residual network: choose one such as resnet-50")
    if wanted.ranks is not None and wanted.ranks < 1:
        raise ConfigError(f"--ranks {wanted.ranks} must be 1 or more")
    if wanted.epochs < 0 or wanted.steps < 0 or wanted.num_images < 0 or wanted.image_size < 0:
        raise ConfigError("--epochs, --steps, --images and --size are 0 (as usual) or more")
    num_ranks = wanted.ranks or default_ranks(wanted.device)
    # A rank that a job script gives one device of its own sees no other.
    per_node = 1 if EnvName.DEVICE in os.environ else -(-num_ranks // num_nodes(os.environ))
    device = device_here(wanted.device, num_ranks=per_node)
    precision = ("bf16" if device == "cuda" else "fp32") if wanted.precision == AUTO else wanted.precision
    batch = wanted.batch if wanted.batch is not None else _batch(catalog, device, num_ranks, precision)
    data, made_format = settle_images(wanted.data)
    options = {"passes_per_epoch": 1, **wanted.options}
    if options["passes_per_epoch"] < 1:
        raise ConfigError(f"--passes {options['passes_per_epoch']}: an epoch reads each image 1 time or more")
    return VisionRun(
        model_id=wanted.spec.id,
        block=shape.block,
        blocks=shape.blocks,
        width=shape.width,
        num_classes=shape.num_classes,
        image_size=wanted.image_size or shape.image_size,
        num_ranks=num_ranks,
        batch=batch,
        epochs=wanted.epochs or (EPICURE_EPOCHS if wanted.protocol == "epicure" else 1),
        steps_per_epoch=wanted.steps
        or _whole_epoch(data, num_made=wanted.num_images, batch=batch * num_ranks, passes=options["passes_per_epoch"]),
        precision=precision,  # type: ignore[arg-type]
        data=data,
        made_format=made_format,
        num_made=wanted.num_images if data == MADE else 0,
        copy_to=resolve_copy_to(wanted.copy_to),
        num_workers=_workers(wanted, data, per_node),
        channels_last=_channels_last(wanted.channels),
        compile=_compile_mode(wanted.compile, device, num_ranks),
        protocol=wanted.protocol,  # type: ignore[arg-type]
        device=device,  # type: ignore[arg-type]
        **options,
    )


def settle_images(data: str) -> tuple[str, MadeFormat]:
    """Where images come from, by its full path, so that the same data set resumes from any folder."""
    name, _, wanted = data.partition(":")
    if name == MADE:
        if wanted and wanted not in get_args(MadeFormat):
            raise ConfigError(f"--data {data!r}: images are made as {', '.join(get_args(MadeFormat))}: choose one")
        usual: MadeFormat = "lmdb" if importlib.util.find_spec("lmdb") else "shards"
        return MADE, wanted or usual  # type: ignore[return-value]
    if data == SYNTHETIC:
        return data, "lmdb"
    if not Path(data).is_dir():
        raise ConfigError(f"--data {data!r}: no such folder: give a data set's, {MADE}, or {SYNTHETIC}")
    return str(Path(data).resolve()), "lmdb"


def resolve_copy_to(copy_to: str) -> str:
    if copy_to in ("", RAM):
        return copy_to
    if not Path(copy_to).is_dir():
        raise ConfigError(f"--copy-to {copy_to!r}: no such folder: name one on a node-local disk, or ram")
    return str(Path(copy_to).resolve())


def prepare_vision(catalog: Catalog, wanted: VisionWanted, *, system: str | None, budget_s: float) -> Ready[VisionRun]:
    """Resolve the configuration and predict its run, before anything starts."""
    return prepare_vision_config(catalog, settle_vision(catalog, wanted), system=system, budget_s=budget_s)


def prepare_vision_config(
    catalog: Catalog, config: VisionRun, *, system: str | None, budget_s: float
) -> Ready[VisionRun]:
    """Predict the run of a resolved configuration."""
    here = machine_of(catalog, system, config, config.num_ranks)
    if here is None:
        note = "no prediction: name this machine with --system to have one"
        return Ready(config=config, num_ranks=config.num_ranks, here=None, ahead=None, note=note)
    try:
        ahead = vision_outlook(catalog, config, here.machine, start_s=here.start_s)
    except NotExpressedError as error:
        note = f"no prediction: {error}"
        return Ready(config=config, num_ranks=config.num_ranks, here=here, ahead=None, note=note)
    if not ahead.prediction.fits or ahead.duration_s > budget_s:
        raise OverBudgetError(_what_would_fit(config, ahead, basis=here.basis, budget_s=budget_s))
    return Ready(config=config, num_ranks=config.num_ranks, here=here, ahead=ahead, note="")


def _what_would_fit(config: VisionRun, ahead: Outlook, *, basis: str, budget_s: float) -> str:
    what = f"{config.model_id} with {config.batch} images a rank"
    if not ahead.prediction.fits:
        return f"{what} does not fit in memory ({basis}): use a smaller --batch"
    duration, limit = (units.format(value, units.SECONDS) for value in (ahead.duration_s, budget_s))
    left_s = budget_s - ahead.start_s
    steps = int(left_s / ahead.step_s / config.epochs) if left_s > 0 else 0
    hint = f"--steps {steps} would fit" if steps else "use a smaller model or a larger --budget"
    return f"{what} would take {duration}, over the budget of {limit} ({basis}): {hint}"


def _batch(catalog: Catalog, device: str, num_ranks: int, precision: str) -> int:
    if device == "cpu":
        return CPU_BATCH
    here = machine_here(catalog, num_ranks=num_ranks, precision=precision, device=device)
    return next((batch for limit, batch in EPICURE_BATCHES if here.machine.memory_bytes < limit), LARGEST_BATCH)


def _whole_epoch(data: str, *, num_made: int, batch: int, passes: int) -> int:
    """Steps of full batches that one epoch has."""
    if data == SYNTHETIC:
        return SYNTHETIC_STEPS
    num_images = num_made
    if data != MADE:
        training, validation = split_folders(Path(data))
        num_images = len(open_samples(training))
        if training == validation:
            num_images -= num_images // HELD_OUT_EVERY
    steps = num_images * passes // batch
    if steps < 1:
        raise ConfigError(
            f"{num_images} training images are fewer than the {batch} of one step: use a smaller --batch or more images"
        )
    return steps


def _workers(wanted: VisionWanted, data: str, ranks_per_node: int) -> int:
    if data == SYNTHETIC:
        return 0
    if wanted.workers is not None:
        return wanted.workers
    return min(max(num_cores() // ranks_per_node, 1), MOST_WORKERS)


def _channels_last(channels: str) -> bool:
    """Matrix units want channels last, and so do 1x1 convolutions as matrix products; CPUs do not mind."""
    if channels not in (AUTO, "last", "first"):
        raise ConfigError(f"--channels {channels!r} is not known: choose last, first or auto")
    return channels != "first"


def _compile_mode(mode: str, device: str, num_ranks: int) -> CompileMode:
    """The fastest that is known: one graph a step on one GPU, compiled on several, as it is on a CPU."""
    if mode != AUTO:
        return mode  # type: ignore[return-value]
    if device == "cpu":
        return "off"
    return "graphs" if num_ranks == 1 else "default"
