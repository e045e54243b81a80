"""Room: what a device shows beyond what tensors take, and whether that fits it. Every command asks here."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from scalewright.costs.breakdown import FloatLike
from scalewright.costs.machine import Machine

Room = Literal["fits", "tight", "too large"]
"""Within the device's memory even with the model's error added; only without it; not at all."""
MemoryKind = Literal["allocated", "reserved", "device"]
MEMORY_KINDS: tuple[MemoryKind, ...] = get_args(MemoryKind)
"""Peak of the tensors; what the framework's allocator took for them; what nvidia-smi or rocm-smi shows."""


def _overhead_frac(machine: Machine, num_gpus: FloatLike) -> FloatLike:
    """Fragments of the allocator on a device that has room: fewer where nothing is exchanged with other devices, since
    blocks of one stream do not serve another."""
    constants = machine.constants
    return np.where(
        np.asarray(num_gpus) > 1, constants.allocator_overhead.value, constants.lone_allocator_overhead.value
    )[()]


def reserved_bytes(
    *, machine: Machine, allocated_bytes: FloatLike, num_gpus: FloatLike, apart_bytes: FloatLike = 0.0
) -> FloatLike:
    """What the framework's allocator takes from a device that has room.

    Equation  R = (M + a) (1 + f),  a what is needed at another time in pieces too large for the freed ones
    Source    engine constants allocator_overhead and, for a job of one device, lone_allocator_overhead
    Assumes   fragments grow with what is allocated
    Checked   `scalewright validate`, published figures of this kind
    """
    return (allocated_bytes + apart_bytes) * (1.0 + _overhead_frac(machine, num_gpus))


def least_reserved_bytes(*, machine: Machine, allocated_bytes: FloatLike, num_gpus: FloatLike) -> FloatLike:
    """What the framework's allocator cannot do without on a full device.

    Equation  R = M (1 + g),  g fragments inside blocks that are in use
    Source    engine constant full_allocator_overhead; PyTorch's caching allocator gives unused blocks back before it
              fails (docs: notes/cuda, memory management)
    Assumes   as `reserved_bytes`
    Checked   `scalewright validate`, published runs that ran out of memory and runs that did not
    """
    full = np.minimum(machine.constants.full_allocator_overhead.value, _overhead_frac(machine, num_gpus))
    return allocated_bytes * (1.0 + full)


def device_bytes(*, machine: Machine, reserved_bytes: FloatLike, num_communicators: FloatLike) -> FloatLike:
    """What nvidia-smi or rocm-smi shows on the device of one process.

    Equation  D = R + c + n b
    Source    engine constants device_context and communicator_memory, with their sources
    Assumes   one process a device; workspaces of products and convolutions come from the allocator
    Checked   `scalewright validate`, published figures of this kind
    """
    constants = machine.constants
    outside = constants.device_context.value + num_communicators * constants.communicator_memory.value
    return reserved_bytes + (0.0 if machine.accelerator.kind == "cpu" else 1.0) * outside


def comfortable_bytes(machine: Machine) -> float:
    """The most that may be predicted to be needed for the model's error to leave it within a device's memory.

    Equation  L = C / (1 + e),  e the error of the memory model that 90 % of published runs stay below
    Source    engine constant memory_error, with its source
    Assumes   errors grow with what is predicted
    Checked   tests/costs/test_room.py: what lies between L and C is tight
    """
    return machine.memory_bytes / (1.0 + machine.constants.memory_error.value)


def holds(machine: Machine, needed_bytes: FloatLike) -> NDArray[np.bool_]:
    """Whether a device has what is needed, tightly or not; for each layout of a column."""
    return np.asarray(needed_bytes) <= machine.memory_bytes


def room(machine: Machine, needed_bytes: float) -> Room:
    """Whether a device has what is needed, and whether it still has it with the model's error added."""
    if not holds(machine, needed_bytes):
        return "too large"
    return "fits" if needed_bytes <= comfortable_bytes(machine) else "tight"
