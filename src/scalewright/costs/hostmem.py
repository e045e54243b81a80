"""Host memory of one node: processes, loaders, pinned buffers, state moved off the devices, checkpoint copies."""

from __future__ import annotations

import numpy as np

from scalewright.catalog.types import Constants
from scalewright.costs.breakdown import Breakdown, FloatLike
from scalewright.costs.setting import Setting
from scalewright.costs.shards import busiest_shards, busiest_trained, num_spread_params
from scalewright.workload.precision import Recipe
from scalewright.workload.training import TrainingMode

SAMPLE_BYTES_PER_TOKEN = 8.0
"""A token of a batch in host memory: PyTorch's 64-bit indices."""


def pinned_bytes(*, batch_bytes: FloatLike, num_prefetched: int, num_loaders: int) -> FloatLike:
    """Page-locked batches waiting for the device.

    Equation  n f S,  n loaders, each f batches ahead
    Source    PyTorch documentation, torch.utils.data: prefetch_factor batches per worker, pin_memory
    Assumes   every prefetched batch is pinned
    Checked   tests/costs/test_hostmem.py: linear in what is prefetched
    """
    return num_loaders * num_prefetched * batch_bytes


def offloaded_bytes(
    *, num_params: FloatLike, recipe: Recipe, mode: TrainingMode, num_weight_copies: int
) -> FloatLike:  # fmt: skip
    """Bytes of a device's share that live on its host.

    Equation  N (o + g + c w) in offload mode, c copies of the weights; else nothing
    Source    ren2021 (ZeRO-Offload, arXiv:2101.06840), section 4.1, and DeepSpeed's estimate of 16 bytes a parameter;
              sheng2024 (HybridFlow, arXiv:2409.19256)
    Assumes   gradients land in a host buffer; in RL the trainer's weights wait on the host during rollout, and the
              reference model always (c = 2)
    Checked   tests/costs/test_hostmem.py: 70B with Adam on the hosts asks for 16 bytes a parameter
    """
    if not mode.is_offload:
        return 0.0 * num_params
    return num_params * (recipe.optimizer_bytes + recipe.gradient_bytes + num_weight_copies * recipe.weight_bytes)


def offload_transfer_s(*, num_params: FloatLike, recipe: Recipe, host_bytes_per_s: float | None) -> FloatLike:
    """Gradients to the host and updated weights back, once per step; nothing where the link is not known.

    Equation  t = N (g + w) / B
    Source    ren2021 (ZeRO-Offload, arXiv:2101.06840), section 4.1: gradients down, parameters up, all else stays
    Assumes   one after the other and after the backward pass: an upper bound where an engine overlaps them
    Checked   tests/costs/test_hostmem.py: linear in parameters; 6 bytes of each in bf16 over the link
    """
    if host_bytes_per_s is None:
        return 0.0 * num_params
    return num_params * (recipe.gradient_bytes + recipe.weight_bytes) / host_bytes_per_s


def host_memory(
    *, num_devices: FloatLike, offloaded_bytes_per_device: FloatLike, checkpoint_bytes_per_device: FloatLike,
    num_loaders: int, batch_bytes: FloatLike, num_prefetched: int, constants: Constants,
) -> Breakdown:  # fmt: skip
    """Bytes of host memory that the devices of one node ask for.

    Equation  n (process + offloaded + checkpoint copy + loaders x worker + pinned)
    Source    ren2021 (ZeRO-Offload, arXiv:2101.06840), section 4.1, for state on the host
    Assumes   one process per device; an asynchronous checkpoint holds one whole copy until it is written
    Checked   tests/costs/test_hostmem.py: 70B with Adam on the host does not fit a Perlmutter node
    """
    c, n = constants, num_devices
    pinned = pinned_bytes(batch_bytes=batch_bytes, num_prefetched=num_prefetched, num_loaders=num_loaders)

    def term(name: str, each_bytes: FloatLike, formula: str = "hostmem.host_memory") -> Breakdown:
        return Breakdown(
            name=name, unit="bytes", value=n * each_bytes, formula=formula, inputs={"per_device_bytes": each_bytes}
        )

    return Breakdown(
        name="host_memory",
        unit="bytes",
        formula="hostmem.host_memory",
        parts=(
            term("processes", c.process_host_memory.value),
            term("loaders", num_loaders * c.loader_worker_memory.value),
            term("pinned", pinned, "hostmem.pinned_bytes"),
            term("offloaded_state", offloaded_bytes_per_device, "hostmem.offloaded_bytes"),
            term("checkpoint_copy", checkpoint_bytes_per_device),
        ),
    )


def training_host_memory(setting: Setting, *, num_weight_copies: int = 0) -> Breakdown:
    """Host memory of one node of a training job, by its mode and feed; columns of layouts too."""
    layout, recipe, feed = setting.layout, setting.recipe, setting.feed
    saved: FloatLike = 0.0
    if feed.async_checkpoint:
        saved = num_spread_params(setting, busiest_trained(setting)) * (recipe.weight_bytes + recipe.optimizer_bytes)
    return host_memory(
        num_devices=np.minimum(setting.machine.gpus_per_node, layout.num_gpus),
        offloaded_bytes_per_device=offloaded_bytes(
            num_params=num_spread_params(setting, busiest_shards(setting)) if setting.mode.is_offload else 0.0,
            recipe=recipe, mode=setting.mode,
            num_weight_copies=num_weight_copies,
        ),
        checkpoint_bytes_per_device=saved,
        num_loaders=feed.num_loaders,
        batch_bytes=SAMPLE_BYTES_PER_TOKEN * setting.shape.seq * layout.mbs,
        num_prefetched=feed.num_prefetched,
        constants=setting.constants,
    )  # fmt: skip
