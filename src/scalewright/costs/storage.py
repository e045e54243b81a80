"""Storage: how fast a job reads and writes, what waits for data, an epoch's fixed cost, and saving checkpoints."""

from __future__ import annotations

from typing import Literal

import numpy as np

from scalewright.catalog.types import Constants, Storage
from scalewright.costs.breakdown import FloatLike

CheckpointKind = Literal["sync", "async"]
"""sync: training stops until the file is written; async: until the state is copied to host memory."""


def job_bytes_per_s(
    *, storage: Storage, direction: Literal["read", "write"], num_nodes: FloatLike, constants: Constants
) -> FloatLike:  # fmt: skip
    """Rate at which a job's nodes read or write together; infinite where the catalogue gives no rate.

    Equation  parallel or object: min(s B, n b);  node-local or memory: n B
    Source    the operators' aggregate rates in the catalogue; one node's rate from BLOOM's checkpoints
    Assumes   one job gets the share s of a shared file system; large files, evenly spread over the nodes
    Checked   tests/costs/test_storage.py: BLOOM's 2.3 TB in 40 s on 48 nodes of Jean Zay, within 25 %
    """
    fact = storage.read_bandwidth if direction == "read" else storage.write_bandwidth
    n = np.asarray(num_nodes, dtype=np.float64)
    if storage.kind in ("node-local", "memory"):
        return (n * (np.inf if fact is None else fact.value))[()]
    whole = np.inf if fact is None else fact.value * constants.shared_storage_share.value
    return np.minimum(whole, n * constants.storage_client_bandwidth.value)[()]


def num_job_files_per_s(*, storage: Storage, num_nodes: FloatLike, constants: Constants) -> FloatLike:
    """Small files a second that a job opens and reads; infinite for node-local storage without a rate.

    Equation  parallel or object: s F, or the usual rate of one job;  node-local or memory: n F
    Source    the rates in the catalogue
    Assumes   one job gets the share s of a shared file system; one metadata server, however many nodes ask it
    Checked   tests/costs/test_storage.py: more nodes do not help a shared file system
    """
    fact, n = storage.file_rate, np.asarray(num_nodes, dtype=np.float64)
    if storage.kind in ("node-local", "memory"):
        return (n * (np.inf if fact is None else fact.value))[()]
    shared = constants.shared_file_rate.value if fact is None else fact.value * constants.shared_storage_share.value
    return (0.0 * n + shared)[()]


def checkpoint_bytes(*, num_params: float, num_trained: float, weight_bytes: float, optimizer_bytes: float) -> float:
    """Size of a checkpoint that training can go on from.

    Equation  N w + A o, where all is trained A = N; adapters alone: A (w + o), the frozen weights are elsewhere
    Source    rajbhandari2020 (arXiv:1910.02054), section 3.1, for the state per parameter
    Assumes   weights, master copy and moments, no gradients; each part is written once
    Checked   tests/costs/test_storage.py: BLOOM's 2.3 TB within 8 %
    """
    whole = num_params if num_trained == num_params else num_trained
    return whole * weight_bytes + num_trained * optimizer_bytes


def write_time_s(*, size_bytes: float, bytes_per_s: float, latency_s: float) -> float:
    """Time until a checkpoint is on disk.

    Equation  t = L + S / B
    Source    the file system's rates in the catalogue
    Assumes   every node writes its share at once; opening files costs one latency
    Checked   tests/costs/test_storage.py: BLOOM's 40 s within 25 %
    """
    return latency_s + size_bytes / bytes_per_s


def stall_time_s(
    *, kind: CheckpointKind, write_s: float, state_bytes_per_device: float, host_bytes_per_s: float | None
) -> float:  # fmt: skip
    """Time training stops for one checkpoint.

    Equation  sync: t_write;  async: min(t_write, S_device / B_host)
    Source    PyTorch blog, "Reducing Model Checkpointing Times by Over 10x" (2024): 148.8 s to 6.3 s for a 7B model
    Assumes   the copy to host memory stops training, writing goes on beside it; unknown host link: nothing is gained
    Checked   tests/costs/test_storage.py: async never stops longer than sync, and 10 to 30 times less for that 7B
    """
    if kind == "sync" or host_bytes_per_s is None:
        return write_s
    return min(write_s, state_bytes_per_device / host_bytes_per_s)


def data_wait_s(
    *, step_s: FloatLike, step_bytes: FloatLike, read_bytes_per_s: FloatLike, loader_s_per_device: FloatLike,
    num_loaders_per_device: int, num_files: FloatLike = 0.0, num_files_per_s: FloatLike = np.inf,
) -> FloatLike:  # fmt: skip
    """What a step waits for its data, prepared beside the step before.

    Equation  max(0, S / B - t, f / F - t, p / k - t),  f files of their own, p seconds of one worker per device and
              step, k workers
    Source    PyTorch documentation, torch.utils.data: workers prefetch while the device computes
    Assumes   reading, decoding and computing overlap, so only the slowest is seen; files are not cached
    Checked   tests/costs/test_storage.py: nothing while both are faster than the step; text is
    """
    reading = np.maximum(step_bytes / read_bytes_per_s, num_files / num_files_per_s) - step_s
    preparing = loader_s_per_device / max(num_loaders_per_device, 1) - step_s
    return np.maximum(np.maximum(reading, preparing), 0.0)


def epoch_time_s(*, num_samples: float, num_per_batch: FloatLike, step_s: FloatLike, fixed_s: float) -> FloatLike:
    """Time of one pass over a data set.

    Equation  t = ceil(D / b) t_step + c
    Source    amdahl1967 (AFIPS 30): what does not divide bounds the gain
    Assumes   c, the restart of loaders, metadata, validation and logging at an epoch's end, is the same on any
              number of devices
    Checked   tests/costs/test_storage.py: 90 % at 16 nodes and 77 % at 64, EPICURE's Leonardo, within 6 points
    """
    return np.ceil(num_samples / num_per_batch) * step_s + fixed_s


def epoch_efficiency_frac(*, serial_frac: float, growth: FloatLike) -> FloatLike:
    """Efficiency per epoch on `growth` times the devices.

    Equation  e(n) = 1 / (1 - s + n s),  s the fixed part of the smallest run's epoch
    Source    amdahl1967 (AFIPS 30), with e(n) = t(1) / (n t(n))
    Assumes   everything but the fixed part divides
    Checked   tests/costs/test_storage.py: EPICURE's Leonardo in FP32, 90 % and 77 %, within 6 points
    """
    s = serial_frac
    return 1.0 / (1.0 - s + growth * s)


def serial_frac(*, efficiency_frac: float, growth: float) -> float:
    """The fixed part of an epoch that an efficiency measured at one size implies.

    Equation  s = (1/e - 1) / (n - 1)
    Source    amdahl1967 (AFIPS 30), solved for the serial part
    Assumes   as `epoch_efficiency_frac`
    Checked   tests/costs/test_storage.py: the inverse of `epoch_efficiency_frac`
    """
    return (1.0 / efficiency_frac - 1.0) / (growth - 1.0)
