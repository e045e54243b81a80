"""Prepare a vision run: resolve ranks, batch, data and device, and predict its length. Nothing is started."""

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
from scalewright.launch.prepare.outlook import Outlook, Ready, RunTooLargeError, vision_outlook
from scalewright.launch.ranks.allocation import num_nodes
from scalewright.records.types import EnvName
from scalewright.workload.model import ModelSpec
from scalewright.workload.run_options import AUTO, SYNTHETIC, CompileMode
from scalewright.workload.vision_run import EPICURE_EPOCHS, MADE, RAM, MadeFormat, VisionRun

CPU_BATCH = 16
EPICURE_BATCHES = ((60e9, 128), (75e9, 256))
"""EPICURE's images a GPU by its memory: 128 for 40 GiB, 256 for 64 GiB, 512 for 80 GiB and more."""
LARGEST_BATCH = 512
SYNTHETIC_STEPS = 50
"""Steps of an epoch of synthetic images, which have no end."""
MOST_WORKERS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionRequest:
    """Options of a vision run as the user gives them; None, 0 or `auto` where the run chooses."""

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
    """Fields of VisionRun that are taken as they are."""


def resolve_vision_run(catalog: Catalog, request: VisionRequest) -> VisionRun:
    """The configuration: from the request, from the data and from this node."""
    shape = request.spec.shape
    if not isinstance(shape, ConvShape):
        raise NotExpressedError(f"{request.spec.id} is no residual network: choose one such as resnet-50")
    if request.ranks is not None and request.ranks < 1:
        raise ConfigError(f"--ranks {request.ranks} must be 1 or more")
    if request.epochs < 0 or request.steps < 0 or request.num_images < 0 or request.image_size < 0:
        raise ConfigError("--epochs, --steps, --images and --size are 0 (as usual) or more")
    num_ranks = request.ranks or default_ranks(request.device)
    # A rank that a job script gives one device of its own sees no other.
    per_node = 1 if EnvName.DEVICE in os.environ else -(-num_ranks // num_nodes(os.environ))
    device = device_here(request.device, num_ranks=per_node)
    precision = ("bf16" if device == "cuda" else "fp32") if request.precision == AUTO else request.precision
    batch = request.batch if request.batch is not None else _batch(catalog, device, num_ranks, precision)
    data, made_format = resolve_images(request.data)
    options = {"passes_per_epoch": 1, **request.options}
    if options["passes_per_epoch"] < 1:
        raise ConfigError(f"--passes {options['passes_per_epoch']}: an epoch reads each image 1 time or more")
    return VisionRun(
        model_id=request.spec.id,
        block=shape.block,
        blocks=shape.blocks,
        width=shape.width,
        num_classes=shape.num_classes,
        image_size=request.image_size or shape.image_size,
        num_ranks=num_ranks,
        batch=batch,
        epochs=request.epochs or (EPICURE_EPOCHS if request.protocol == "epicure" else 1),
        steps_per_epoch=request.steps
        or _whole_epoch(data, num_made=request.num_images, batch=batch * num_ranks, passes=options["passes_per_epoch"]),
        precision=precision,  # type: ignore[arg-type]
        data=data,
        made_format=made_format,
        num_made=request.num_images if data == MADE else 0,
        copy_to=resolve_copy_to(request.copy_to),
        num_workers=_workers(request, data, per_node),
        channels_last=_channels_last(request.channels),
        compile=_compile_mode(request.compile, device, num_ranks),
        protocol=request.protocol,  # type: ignore[arg-type]
        device=device,  # type: ignore[arg-type]
        **options,
    )


def resolve_images(data: str) -> tuple[str, MadeFormat]:
    """Where images come from, by its full path, so that the same data set resumes from any folder."""
    name, _, made_format = data.partition(":")
    if name == MADE:
        if made_format and made_format not in get_args(MadeFormat):
            raise ConfigError(f"--data {data!r}: images are made as {', '.join(get_args(MadeFormat))}: choose one")
        usual: MadeFormat = "lmdb" if importlib.util.find_spec("lmdb") else "shards"
        return MADE, made_format or usual  # type: ignore[return-value]
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


def prepare_vision_config(
    catalog: Catalog, config: VisionRun, *, system: str | None, budget_s: float
) -> Ready[VisionRun]:
    """Predict the run of a resolved configuration."""
    here = machine_of(catalog, system, config, config.num_ranks)
    if here is None:
        note = "no prediction: name this machine with --system to have one"
        return Ready(config=config, num_ranks=config.num_ranks, here=None, outlook=None, note=note)
    try:
        outlook = vision_outlook(catalog, config, here.machine, start_s=here.start_s)
    except NotExpressedError as error:
        note = f"no prediction: {error}"
        return Ready(config=config, num_ranks=config.num_ranks, here=here, outlook=None, note=note)
    if not outlook.prediction.fits or outlook.duration_s > budget_s:
        raise RunTooLargeError(_what_would_fit(config, outlook, basis=here.basis, budget_s=budget_s))
    return Ready(config=config, num_ranks=config.num_ranks, here=here, outlook=outlook, note="")


def _what_would_fit(config: VisionRun, outlook: Outlook, *, basis: str, budget_s: float) -> str:
    what = f"{config.model_id} with {config.batch} images a rank"
    if not outlook.prediction.fits:
        return f"{what} does not fit in memory ({basis}): use a smaller --batch"
    duration, limit = (units.format(value, units.SECONDS) for value in (outlook.duration_s, budget_s))
    left_s = budget_s - outlook.start_s
    steps = int(left_s / outlook.step_s / config.epochs) if left_s > 0 else 0
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


def _workers(request: VisionRequest, data: str, ranks_per_node: int) -> int:
    if data == SYNTHETIC:
        return 0
    if request.workers is not None:
        return request.workers
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
