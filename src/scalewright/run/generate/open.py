"""Open an engine: weights from a seed, from named tensors, or from a checkpoint of a run."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load as load_in_place

from scalewright.catalog.types import TransformerShape
from scalewright.errors import ConfigError
from scalewright.run.checkpoint_files import read_manifest
from scalewright.run.checkpoint_metadata import SafeReader
from scalewright.run.generate.cache import PagedCache, cache_bytes, num_pages_within
from scalewright.run.generate.engine import Engine
from scalewright.run.generate.options import EngineOptions, EngineStats
from scalewright.run.generate.pages import PagePool
from scalewright.run.generate.runner import PlainRunner
from scalewright.run.generate.scheduler import Scheduler
from scalewright.run.generate.served_model import NamedTensors, ServedModel
from scalewright.run.generate.tensor_ranks import TensorRanks
from scalewright.run.language.rotary import LayerConstants

PAGE_TOKENS = {"cpu": 16, "cuda": 64}
LEAST_HEAD_DIM, LEAST_PAGE_TOKENS = 32, 16
"""Our kernels multiply halves of a head with tensor cores, which take a depth of 16 and more."""
WEIGHT = "weight."
"""Prefix of weights in a checkpoint of a training run."""


def open_engine(
    shape: TransformerShape,
    options: EngineOptions,
    *,
    device: torch.device,
    weights: NamedTensors | int = 0,
    constants: LayerConstants | None = None,
    group: dist.ProcessGroup | None = None,
    where: str = "the weights",
) -> Engine:
    """An engine of one rank. `weights` are tensors by their names in the whole model, or the seed of random ones.

    `group` are the ranks that share one copy of the model (tensor parallelism); all of them call this.
    """
    model = ServedModel(
        shape,
        constants=constants or LayerConstants(),
        precision=options.precision,
        max_context=options.max_context,
        device=device,
        ranks=TensorRanks.of(group),
    )
    if isinstance(weights, int):
        model.fill_from_seed(weights)
    else:
        model.replace(weights, where=where)
    page_tokens = options.page_tokens or PAGE_TOKENS[device.type]
    num_pages = num_pages_within(
        options.cache_bytes or _bytes_of_all(model, options, page_tokens),
        model.shape,
        max_context=options.max_context,
        page_tokens=page_tokens,
        dtype=model.dtype,
    )
    cache = PagedCache(model.shape, num_pages=num_pages, page_tokens=page_tokens, dtype=model.dtype, device=device)
    scheduler = Scheduler(
        PagePool(num_pages),
        page_tokens=page_tokens,
        max_context=options.max_context,
        max_running=options.max_running,
        prefill_chunk=options.prefill_chunk,
    )
    stats = EngineStats(
        weight_bytes=model.weight_bytes,
        cache_bytes_per_token=cache_bytes(model.shape, 1, model.dtype),
        cache_bytes=cache_bytes(model.shape, (num_pages + 1) * page_tokens, model.dtype),
    )
    return Engine(model, open_runner(model, cache, options), scheduler, options, stats)


def open_runner(model: ServedModel, cache: PagedCache, options: EngineOptions) -> PlainRunner:
    """Kernels where they are chosen or, with `auto`, where the device, the packages and the model allow them."""
    obstacle = _obstacle_to_kernels(model, cache)
    if options.execution == "plain" or (options.execution == "auto" and obstacle):
        return PlainRunner(model, cache, max_running=options.max_running)
    if obstacle:
        raise ConfigError(f"execution {options.execution}: {obstacle}; choose plain")
    from scalewright.run.generate.graph_runner import GraphRunner

    return GraphRunner(
        model,
        cache,
        max_running=options.max_running,
        max_context=options.max_context,
        records=options.execution != "kernels",
    )


def _obstacle_to_kernels(model: ServedModel, cache: PagedCache) -> str:
    """Why our kernels cannot run; empty if they can."""
    if model.device.type != "cuda":
        return "it needs a GPU, and this runs on the CPU"
    if importlib.util.find_spec("triton") is None:
        return "it needs the package triton, which is not installed"
    sizes = {"head size": (model.shape.head_dim, LEAST_HEAD_DIM), "page_tokens": (cache.page_tokens, LEAST_PAGE_TOKENS)}
    for name, (size, least) in sizes.items():
        if size < least or size & (size - 1):
            return f"it needs a {name} that is a power of two from {least}, and it is {size}"
    return ""


def _bytes_of_all(model: ServedModel, options: EngineOptions, page_tokens: int) -> int:
    """Room for every sequence that may run at once, each as long as the context."""
    num_pages = options.max_running * -(-options.max_context // page_tokens) + 1
    return cache_bytes(model.shape, num_pages * page_tokens, model.dtype)


def checkpoint_weights(folder: Path, *, device: torch.device) -> Iterator[tuple[str, Tensor]]:
    """Weights of a training run's checkpoint, of any layout, one after the other."""
    reader = SafeReader(folder, files=read_manifest(folder).files)
    for name, stored in reader.read_metadata().state_dict_metadata.items():
        if name.startswith(WEIGHT) and isinstance(stored, TensorStorageMetadata):
            target = {name: torch.empty(stored.size, dtype=torch.float32, device=device)}
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # it is not needed here
                load_in_place(target, storage_reader=reader, no_dist=True)
            yield name.removeprefix(WEIGHT), target[name]
